#!/usr/bin/env python3
"""Passes on what it reads and adds figures of it: lines `figure: NAME VALUE UNIT`, which `prove/run` writes into the result of a proof.

    COMMAND | figures.py text NAME UNIT PATTERN [NAME UNIT PATTERN...]
    COMMAND | figures.py json NAME UNIT PATH [NAME UNIT PATH...]
    COMMAND | figures.py latency PREFIX QUANTILE...

text: VALUE is the first group of the last match of PATTERN in the output; a time such as `1.5ms` becomes a number of UNIT (us, ms, s). json: VALUE is at PATH (`worst.in_flight_ended_ms`) in the last
JSON object of the output, which has a line of its own. A path that ends in `#` gives the number of elements there.
latency: the output of `cynode-proof gateway latency` or `models latency`; of each target and rate the added time of each QUANTILE (`p50`), and
the memory. The name of each figure begins with PREFIX, which may be empty.

Fails when a figure is not in the output. `set -o pipefail` makes a failure of COMMAND count, too.
"""

import json
import re
import sys

BASELINE = "direct"
DURATION = re.compile(r"([0-9.]+)(ns|µs|us|ms|s)")
NANOSECONDS = {"ns": 1, "µs": 1_000, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def read_and_pass_on():
    """All lines of standard input, each printed as soon as it is there."""
    lines = []
    for line in sys.stdin:
        print(line, end="", flush=True)
        lines.append(line.rstrip("\n"))
    return lines


def last_object(lines):
    """The last line that is a JSON object."""
    for line in reversed(lines):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None


def value_at(report, path):
    count = path.endswith("#")
    value = report
    for key in filter(None, path.removesuffix("#").split(".")):
        value = value.get(key) if isinstance(value, dict) else None
    if count:
        return len(value) if isinstance(value, (dict, list)) else None
    return value


def value_in(lines, pattern, unit):
    matches = re.findall(pattern, "\n".join(lines), re.MULTILINE)
    if not matches:
        return None
    duration = DURATION.fullmatch(matches[-1])
    if duration is None:
        return matches[-1]
    return float(duration.group(1)) * NANOSECONDS[duration.group(2)] / NANOSECONDS[unit]


def latency_figures(report, prefix, quantiles):
    """Name, value and unit of each figure of a report about latency."""
    for result in report["results"]:
        target, rate = result["target"], result["rate"]
        if target == BASELINE:
            continue
        for quantile in quantiles:
            yield f"{prefix}{target}_added_{quantile}_at_{rate}_per_second", (result["added"] or {}).get(f"{quantile}_us"), "us"
        if result["rss_mb"] is not None:
            yield f"{prefix}{target}_memory_at_{rate}_per_second", result["rss_mb"], "MB"


def select_figures(lines, mode, words):
    """Name, value and unit of each figure that is asked for; the value is None when there is none."""
    if mode == "latency":
        report = last_object(lines)
        return list(latency_figures(report, words[0], words[1:])) if report else [("latency", None, "us")]
    wanted = [words[at : at + 3] for at in range(0, len(words), 3)]
    if mode == "json":
        report = last_object(lines)
        return [(name, value_at(report, path), unit) for name, unit, path in wanted]
    return [(name, value_in(lines, pattern, unit), unit) for name, unit, pattern in wanted]


def main():
    mode, *words = sys.argv[1:] or [""]
    if mode not in ("text", "json", "latency") or len(words) < 2 or (mode != "latency" and len(words) % 3):
        sys.exit(__doc__)
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8", errors="replace")
    missing = []
    for name, value, unit in select_figures(read_and_pass_on(), mode, words):
        if value is None:
            missing.append(name)
        else:
            print(f"figure: {name} {round(value, 3) if isinstance(value, float) else value} {unit}", flush=True)
    if missing:
        sys.exit(f"the output has no figure: {', '.join(missing)}")


if __name__ == "__main__":
    main()
