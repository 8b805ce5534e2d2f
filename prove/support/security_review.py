#!/usr/bin/env python3
"""Attacks an installation of `cynode up`, once for each finding, while an innocent project goes on.

    security_review.py CYNODE WORK [--quick] [--only ID...]

Prints a table with a row for each attack, and fails when one of them did harm or the innocent project was disturbed. `review_world.py` says how
an attack is written; the modules with attacks are named below.
"""

import argparse
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback

sys.dont_write_bytecode = True
import review_world  # noqa: E402

MODULES = ["attacks_high", "attacks_rest"]
KINDS = ("tool", "model")
# Quiet before the attacks and after them, and between each two: what else the machine does is in both.
QUIET_SECONDS = {True: 3, False: 20}
PAUSE_SECONDS = {True: 0.5, False: 3}
# What an attack leaves behind is over by then.
SETTLE_SECONDS = 0.2
# On a noisy machine a few milliseconds are nobody's harm.
P99_FLOOR_MS = 20
MAX_P99_RATIO = 2


class Probe:
    """The innocent project: a process that calls a tool and a model all the time and notes how long each call took."""

    def __init__(self, world):
        self.notes = world.work / "probe.jsonl"
        about = {"internal": world.internal_url, "token": world.innocent_agent, "notes": str(self.notes)}
        file = world.work / "probe.json"
        file.write_text(json.dumps(about))
        program = pathlib.Path(__file__).with_name("innocent_probe.py")
        self.process = review_world.start_process([sys.executable, program, file], world.work / "probe.log")

    def rows(self, since, before):
        """The calls between two moments of the monotonic clock."""
        rows = [json.loads(line) for line in open(self.notes) if line.endswith("\n")] if self.notes.exists() else []
        return [row for row in rows if since <= row["at"] < before]

    def stop(self):
        self.process.terminate()
        self.process.wait(10)


def is_counted(row):
    """Whether nothing was being prepared while the call was made."""
    ended = row["at"] + row["ms"] / 1000
    return not any(row["at"] < until and began < ended for began, until in review_world.preparations)


def percentile(rows, kind, share=0.99):
    times = sorted(row["ms"] for row in rows if row["kind"] == kind and is_counted(row))
    return times[min(len(times) - 1, int(len(times) * share))] if times else 0.0


def run_attack(one, world, probe):
    """One row of the table."""
    began = time.monotonic()
    try:
        said, good = one.run(world), True
    except AssertionError as harm:
        said, good = f"HARM: {harm or traceback.format_exc()}", False
    except Exception:
        said, good = f"BROKEN: {traceback.format_exc()}", False
    ended = time.monotonic()
    rows = probe.rows(began, ended)
    refused = [row for row in rows if not row["ok"]]
    if refused:
        good, said = False, f"{said}; the innocent project was refused {len(refused)} times: {refused[0]['said']}"
    slow = " ".join(f"{kind} {percentile(rows, kind):.0f}" for kind in KINDS)
    print(f"{'ok  ' if good else 'FAIL'} {one.finding:<4} {one.attacker}: {one.tried} -> {str(said)[:3000]} ({ended - began:.1f} s; p99 ms {slow})", flush=True)
    return good, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cynode")
    parser.add_argument("work")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", help="ids of findings")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for module in MODULES:
        if (pathlib.Path(__file__).with_name(f"{module}.py")).exists():
            importlib.import_module(module)
    chosen = [one for one in review_world.attacks if (one.quick or not options.quick) and (not options.only or one.finding in options.only)]
    world, probe = None, None
    try:
        # Neither neighbours on the machine nor the programs of attackers, who are elsewhere, take time from the server and from the innocent.
        os.nice(-10)
        world = review_world.World(options.cynode, pathlib.Path(options.work) / "world", options.quick)
        probe = Probe(world)
        os.nice(20)
        good = attack_all(world, probe, chosen, options)
    finally:
        if probe:
            probe.stop()
        if world:
            world.stop()
    sys.exit(0 if good else 1)


def listen_in_quiet(probe, seconds):
    """What the probe sees while nobody attacks."""
    began = time.monotonic()
    time.sleep(seconds)
    return probe.rows(began, time.monotonic())


def attack_all(world, probe, chosen, options):
    review_world.until(lambda: probe.rows(0, time.monotonic()), 20, what=lambda: (world.work / "probe.log").read_text()[-2000:])
    time.sleep(2)
    calm = listen_in_quiet(probe, QUIET_SECONDS[options.quick])
    good, during = True, []
    for one in chosen:
        held, rows = run_attack(one, world, probe)
        good = held and good
        during += rows
        time.sleep(SETTLE_SECONDS)
        calm += listen_in_quiet(probe, PAUSE_SECONDS[options.quick])
    calm += listen_in_quiet(probe, QUIET_SECONDS[options.quick])
    assert all(row["ok"] for row in calm), [row for row in calm if not row["ok"]][:3]
    good = report_probe(calm, during, options.quick) and good
    review_world.figure("attacks", len(chosen), "attacks")
    for name, (value, unit) in review_world.figures.items():
        print(f"figure: {name} {value} {unit}", flush=True)
    return good


def report_probe(calm, during, quick):
    """Compares the innocent project's calls during attacks with those in quiet; whether it was left in peace. The short form runs beside
    other work on few cores: it measures the latency, and the long form holds it."""
    refused = sum(not row["ok"] for row in during)
    quiet, worst = ({kind: percentile(rows, kind) for kind in KINDS} for rows in (calm, during))
    ratio = max(worst[kind] / quiet[kind] for kind in KINDS)
    slow = [kind for kind in KINDS if worst[kind] > max(MAX_P99_RATIO * quiet[kind], P99_FLOOR_MS)]
    for kind in KINDS:
        print(f"probe: p99 of a {kind} call {worst[kind]:.1f} ms during attacks, {quiet[kind]:.1f} ms in quiet", flush=True)
    print(f"probe: {len(during)} calls during attacks, {refused} refused; {len(calm)} in quiet", flush=True)
    if refused or (slow and not quick):
        print(f"FAIL the innocent project was disturbed: {refused} refused, too slow: {slow}", flush=True)
    review_world.figure("probe_refused", refused, "calls")
    review_world.figure("probe_p99_ratio", round(ratio, 2), "x")
    return not refused and (quick or not slow)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}: {error.stderr}")
