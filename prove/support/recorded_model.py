#!/usr/bin/env python3
"""A model server at Ollama's address that plays a recording, in the wire format of Chat Completions.

recorded_model.py RECORDING [--port 11434] [--delay FILE] [--calls FILE]

RECORDING is JSON: {"rules": [{"when": {...}, "answer": {...}}]}. The first rule whose conditions all hold answers. Conditions: `text` (a regular expression over
all that was said), `user` (over the last message of a user), `tool` (a tool that is offered) and `results` (how many results of tools came since that message).
An answer has `text`, or `json` (an object that becomes the text), or `calls` ([{"name", "arguments"}]). A question that no rule answers gets 404.
The number in the file DELAY, if there is one, is how many seconds the server waits before it answers; a client that hangs up meanwhile is written to CALLS as `hung up`."""

import argparse
import json
import os
import re
import select
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {"prompt_tokens": 900, "completion_tokens": 90, "total_tokens": 990}


def text_of(content):
    """The text of a message, whole or in parts."""
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return content or ""


class Conversation:
    """What a request says, as the conditions look at it."""

    def __init__(self, request):
        messages = request.get("messages", [])
        self.text = "\n".join(text_of(message.get("content")) for message in messages)
        users = [at for at, message in enumerate(messages) if message["role"] == "user"]
        last = users[-1] if users else -1
        self.user = text_of(messages[last].get("content")) if users else ""
        self.results = sum(message["role"] == "tool" for message in messages)
        self.tools = [tool["function"]["name"] for tool in request.get("tools") or [] if "function" in tool]

    def fits(self, when):
        return (
            ("text" not in when or re.search(when["text"], self.text))
            and ("user" not in when or re.search(when["user"], self.user))
            and ("tool" not in when or when["tool"] in self.tools)
            and ("results" not in when or when["results"] == self.results)
        )


def message_of(answer, number):
    """The assistant's message, and why it ends."""
    if "calls" in answer:
        calls = [
            {"index": at, "id": f"call_{number}_{at}", "type": "function",
             "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])}}
            for at, call in enumerate(answer["calls"])
        ]  # fmt: skip
        return {"role": "assistant", "content": answer.get("text"), "tool_calls": calls}, "tool_calls"
    text = json.dumps(answer["json"]) if "json" in answer else answer["text"]
    return {"role": "assistant", "content": text}, "stop"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def reply(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        models = {"object": "list", "data": [{"id": "recorded", "object": "model", "created": 0, "owned_by": "proof"}]}
        self.reply(200, "application/json", json.dumps(models).encode())

    def wait(self):
        """Waits as long as the file says. Gives whether the client is still there."""
        end = time.monotonic() + self.server.delay()
        while time.monotonic() < end:
            ready, _, _ = select.select([self.connection], [], [], 0.05)
            if ready and not self.connection.recv(1, 2):  # 2: MSG_PEEK
                return False
            end = min(end, time.monotonic() + self.server.delay())
        return True

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        conversation = Conversation(request)
        if not self.wait():
            self.server.record("hung up", conversation, request)
            self.close_connection = True
            return
        rule = next((rule for rule in self.server.rules if conversation.fits(rule["when"])), None)
        if rule is None:
            self.server.record("no answer", conversation, request)
            error = {"error": {"message": "the recording has no answer to this", "type": "invalid_request_error", "param": None, "code": None}}
            return self.reply(404, "application/json", json.dumps(error).encode())
        self.server.record(rule.get("name", "answered"), conversation, request)
        message, reason = message_of(rule["answer"], self.server.number())
        head = {"id": "chatcmpl-1", "created": 1, "model": request["model"]}
        if not request.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            whole = {**head, "object": "chat.completion", "choices": [choice], "usage": USAGE}
            return self.reply(200, "application/json", json.dumps(whole).encode())
        chunks = [{"index": 0, "delta": message, "finish_reason": None}, {"index": 0, "delta": {}, "finish_reason": reason}]
        lines = [{**head, "object": "chat.completion.chunk", "choices": [chunk]} for chunk in chunks]
        lines.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
        text = "".join(f"data: {json.dumps(line)}\n\n" for line in lines) + "data: [DONE]\n\n"
        self.reply(200, "text/event-stream", text.encode())


class Server(ThreadingHTTPServer):
    def __init__(self, options):
        super().__init__(("127.0.0.1", options.port), Handler)
        self.options, self.lock, self.calls = options, threading.Lock(), 0
        with open(options.recording, encoding="utf-8") as file:
            self.rules = json.load(file)["rules"]

    def delay(self):
        if not self.options.delay or not os.path.exists(self.options.delay):
            return 0
        with open(self.options.delay, encoding="utf-8") as file:
            return float(file.read().strip() or 0)

    def number(self):
        with self.lock:
            self.calls += 1
            return self.calls

    def record(self, name, conversation, request):
        if not self.options.calls:
            return
        line = {"rule": name, "user": conversation.user[:4000], "results": conversation.results, "tools": conversation.tools, "stream": request.get("stream")}
        with self.lock, open(self.options.calls, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("recording")
    arguments.add_argument("--port", type=int, default=11434)
    arguments.add_argument("--delay")
    arguments.add_argument("--calls")
    Server(arguments.parse_args()).serve_forever()


main()
