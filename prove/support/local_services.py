#!/usr/bin/env python3
"""Stands in for local servers of a person: a model at Ollama's port that speaks Chat Completions, and a topic of ntfy. Writes NAME=VALUE lines to the file that is named."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        print(*words, file=sys.stderr, flush=True)

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))


class Model(Answers):
    def do_POST(self):
        request = json.loads(self.body())
        head = {"id": "chatcmpl-1", "created": 1, "model": request["model"]}
        usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
        if not request.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "Hello there."}, "finish_reason": "stop"}
            whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            return self.answer("application/json", json.dumps(whole).encode())
        pieces = [{"role": "assistant", "content": "Hello"}, {"content": " there."}]
        chunks = [{"index": 0, "delta": piece, "finish_reason": None} for piece in pieces] + [{"index": 0, "delta": {}, "finish_reason": "stop"}]
        lines = [{**head, "object": "chat.completion.chunk", "choices": [chunk]} for chunk in chunks]
        lines.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        text = "".join(f"data: {json.dumps(line)}\n\n" for line in lines) + "data: [DONE]\n\n"
        self.answer("text/event-stream", text.encode())


class Topic(Answers):
    def do_POST(self):
        message = self.body()
        print("notification:", message.decode(errors="replace"), file=sys.stderr, flush=True)
        self.answer("application/json", json.dumps({"id": "1", "event": "message"}).encode())

    do_PUT = do_POST


def main():
    topic = ThreadingHTTPServer(("127.0.0.1", 0), Topic)
    model = ThreadingHTTPServer(("127.0.0.1", 11434), Model)
    threading.Thread(target=topic.serve_forever, daemon=True).start()
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(f"ADDRESS=http://127.0.0.1:{topic.server_port}/cynode\n")
    model.serve_forever()


main()
