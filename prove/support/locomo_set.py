#!/usr/bin/env python3
"""Turns a local file of LoCoMo into a labelled set for the example `evaluate` of cynode-memory: `locomo_set.py FILE OUT`.

One turn is one chunk, all conversations are searched together, and the first turn that a question names is its evidence. Questions without an answer in
the conversation (category 5) are left out. The data has a licence of its own (CC BY-NC) and is not part of this repository.
"""

import json
import pathlib
import re
import sys


def main():
    conversations = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    out = pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    chunks, questions = [], []
    for conversation in conversations:
        places = {}
        for name, turns in conversation["conversation"].items():
            if not re.fullmatch(r"session_\d+", name):
                continue
            for turn in turns:
                places[turn["dia_id"]] = len(chunks)
                chunks.append({"path": name, "title": turn["speaker"], "text": turn.get("text", "")})
        for asked in conversation["qa"]:
            evidence = [places[place] for place in asked.get("evidence", []) if place in places]
            if evidence and asked.get("category") != 5:
                questions.append({"question": asked["question"], "kind": f"category {asked['category']}", "evidence": evidence[0], "half": "report"})
    for name, rows in (("chunks", chunks), ("questions", questions)):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (out / f"{name}.jsonl").write_text(text, encoding="utf-8")
    print(f"{len(questions)} questions over {len(chunks)} turns")


if __name__ == "__main__":
    main()
