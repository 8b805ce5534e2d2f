"""Finds the proofs of the repository and reads their headers and results; used by `prove/run` and `prove/list`."""

import dataclasses
import json
import os
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GROUPS = ("resilience", "security", "performance", "conformance", "journeys")
PROMISE = "# Promise: "
RUNS_ALONE = "# Runs alone: "
STARTS_FIRST = "# Starts first: "
# `figure: NAME VALUE UNIT`, on a line of its own.
FIGURE = re.compile(r"figure: (\S+) (-?[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?) (\S.*)")
# A line of the header about a variable of the environment, such as `# CYNODE_LOCAL_MODEL: …`.
VARIABLE = re.compile(r"# [A-Z_]+: ")


@dataclasses.dataclass(frozen=True)
class Proof:
    """One executable in `prove/GROUP/`."""

    group: str
    name: str
    promise: str
    runs_alone: bool
    starts_first: bool

    @property
    def path(self):
        return f"prove/{self.group}/{self.name}"


def results_folder():
    """The folder of results; a relative CARGO_TARGET_DIR is relative to the repository, where the proofs run."""
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "proofs"


def list_proofs():
    """All proofs by group, then by name. A name is unique over all groups."""
    proofs = [read_proof(group, path) for group in GROUPS for path in sorted((ROOT / "prove" / group).iterdir()) if os.access(path, os.X_OK)]
    names = [proof.name for proof in proofs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SystemExit(f"two proofs have the same name: {', '.join(twice)}")
    return proofs


def read_proof(group, path):
    """Reads the header: the comment lines after the first line of the file."""
    header = []
    with open(path, encoding="utf-8") as file:
        next(file)
        for line in file:
            if not line.startswith("#"):
                break
            header.append(line.rstrip("\n"))
    says = lambda word: any(line.startswith(word) for line in header)  # noqa: E731
    return Proof(group, path.name, read_promise(path, header), says(RUNS_ALONE), says(STARTS_FIRST))


def read_promise(path, header):
    if not header or not header[0].startswith(PROMISE):
        raise SystemExit(f"{path}: the second line does not begin with `{PROMISE}`")
    words = [header[0].removeprefix(PROMISE)]
    for line in header[1:]:
        if line.startswith((RUNS_ALONE, STARTS_FIRST)) or VARIABLE.match(line):
            break
        words.append(line.removeprefix("#").strip())
    return " ".join(words)


def find_proof(proofs, name):
    """The proof called NAME, GROUP/NAME or prove/GROUP/NAME; None when there is none."""
    name = name.removeprefix("prove/")
    return next((proof for proof in proofs if name in (proof.name, f"{proof.group}/{proof.name}")), None)


def parse_figures(output):
    """The figures in what a proof printed: name to value and unit. The last line of a name counts."""
    figures = {}
    for line in output.splitlines():
        match = FIGURE.fullmatch(line.strip())
        if match:
            name, value, unit = match.groups()
            figures[name] = {"value": int(value) if value.lstrip("-").isdigit() else float(value), "unit": unit}
    return figures


def read_result(proof):
    """The result of the last run, or None."""
    try:
        return json.loads((results_folder() / f"{proof.name}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
