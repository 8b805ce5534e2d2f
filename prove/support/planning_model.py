#!/usr/bin/env python3
"""A model server that decides as the words of the task tell it.

    planning_model.py PORT [SECONDS]

It speaks Chat Completions, without streams, and takes SECONDS for an answer. `ASK` in a task leads to a question, `LOOK ALWAYS` to a planner that wants to
read one more file each time, `LOOK EMPTY` to one that wants a file in which nothing is, `LOOK ONCE` to one that reads one file.
"""

import contextlib
import json
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = int(sys.argv[1])
PAUSE = float(sys.argv[2]) if len(sys.argv) > 2 else 0
USAGE = {"prompt_tokens": 200, "completion_tokens": 50, "total_tokens": 250}
UNIT = {"title": "Do it", "kind": "implementation", "files_to_modify": ["src/f01.py"], "files_to_read_first": [], "pattern_reference": "",
        "constraints": [], "requirements": ["It is done"], "depends_on": [], "checks": []}  # fmt: skip


def plan(prompt):
    answer = {"reason": "as told", "units": [], "leave_out": [], "assumptions": [], "question": "", "look_at": []}
    seen = set(re.findall(r"^(src/f\d\d\.py):$", prompt, re.MULTILINE))
    may_look = "Nothing more can be read" not in prompt
    unseen = [f"src/f{number:02}.py" for number in range(1, 40) if f"src/f{number:02}.py" not in seen]
    if "ASK" in prompt:
        answer["question"] = "Which one?"
    elif may_look and "LOOK ALWAYS" in prompt:
        answer["look_at"] = unseen[:1]
    elif may_look and "LOOK ONCE" in prompt and not seen:
        answer["look_at"] = ["src/f01.py"]
    elif may_look and "LOOK EMPTY" in prompt:
        answer["look_at"] = ["empty.txt"]
    else:
        answer["units"] = [UNIT]
    return answer


def decide(prompt):
    if prompt.startswith("Decide what kind of work"):
        return {"reason": "as told", "class": "quick_fix"}
    if prompt.startswith("Plan the task"):
        return plan(prompt)
    return {"architecture": "Some files.", "key_paths": [], "patterns": [], "build_commands": []}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer({"object": "list", "data": []})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        users = [message["content"] for message in asked["messages"] if message["role"] == "user"]
        prompt = users[0] if isinstance(users[0], str) else "\n".join(part.get("text", "") for part in users[0])
        time.sleep(PAUSE)
        message = {"role": "assistant", "content": json.dumps(decide(prompt))}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "c", "object": "chat.completion", "created": int(time.time()), "model": "planning", "choices": [choice], "usage": USAGE}
        # Whoever asked may have been killed meanwhile.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.answer(body)


ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
