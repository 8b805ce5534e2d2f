#!/usr/bin/env python3
"""Compares retrievers: `retrieval_check.py FILE [--default NAME]` reads lines of JSON of `evaluate` and of retrieval_baselines.py.

The default must find more and rank better than full text search, grep and the embedder of 64 dimensions, and at least as well as MiniLM where it was
measured. Prints a figure for each.
"""

import argparse
import json
import pathlib
import sys

BETTER_THAN = ("fulltext", "grep", "hashing64")
AT_LEAST = ("minilm",)
MEASURES = ("recall_at_10", "ndcg_at_10")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--default", default="default", help="what the default is called in the file")
    options = parser.parse_args()
    rows = {}
    for line in options.file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line) if line.startswith("{") else {}
        if "retriever" in row:
            rows[row["retriever"]] = row
    missing = [name for name in (options.default, *BETTER_THAN) if name not in rows]
    if missing:
        sys.exit(f"not measured: {', '.join(missing)}; there are {', '.join(rows)}")
    own, bad = rows[options.default], []
    print(f"{'retriever':<14} recall@10  nDCG@10")
    for name, row in rows.items():
        print(f"{name:<14} {row['recall_at_10']:>9} {row['ndcg_at_10']:>8}")
    for name in (*BETTER_THAN, *AT_LEAST):
        for measure in MEASURES if name in rows else ():
            difference = own[measure] - rows[name][measure]
            if difference < 0 or (difference == 0 and name in BETTER_THAN):
                bad.append(f"{measure} of the default is {own[measure]}, of {name} {rows[name][measure]}")
    for name in (options.default, *BETTER_THAN, *AT_LEAST):
        for measure in MEASURES if name in rows else ():
            print(f"figure: {'default' if name == options.default else name}_{measure} {rows[name][measure]} %")
    print(f"figure: questions {own['questions']} questions")
    if bad:
        sys.exit("NOT SO: " + "; ".join(bad))


if __name__ == "__main__":
    main()
