#!/usr/bin/env python3
"""A model server that does what the last message of the person tells it, at the pace that it tells, and notes what happened when.

    pacing_model.py PORT NOTES

It speaks Chat Completions. `DO:{…}` in a person's message: `id` names it in the notes, `calls` are the tools to be called one after
the other, each as `[name, arguments]`, `pieces` and `gap` say how many words follow and how many seconds are before each.
Questions for a decision wait until nobody wants the answer: a task that was asked for is being planned, for as long as one looks.
Only a task that says `UNCLEAR` is answered at once, with a question to the person.
Each line of NOTES is one event: `request`, `first` (a word), `finished`, or `left` (nobody listens any more), with the time.
"""

import json
import select
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, NOTES = int(sys.argv[1]), open(sys.argv[2], "a", buffering=1)
LOCK = threading.Lock()
USAGE = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}


def note(event, order, **more):
    with LOCK:
        NOTES.write(json.dumps({"event": event, "id": order.get("id"), "at": time.time(), **more}) + "\n")


def text_of(message):
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def read_order(talk):
    """What the last message of a person wants, what it says, and how many tools were called since."""
    at = max((n for n, message in enumerate(talk) if message["role"] == "user"), default=0)
    text = text_of(talk[at])
    results = [text_of(message) for message in talk[at:] if message["role"] == "tool"]
    start = text.rfind("DO:")
    order = json.JSONDecoder().raw_decode(text[start + 3 :])[0] if start >= 0 else {}
    return order, text, results


def unclear(schema, name=""):
    """An answer of that form that plans nothing and asks."""
    kind = schema.get("type")
    # What may be left out may be null, too.
    kind = kind[0] if isinstance(kind, list) else kind
    if "enum" in schema:
        return next((value for value in ("feature_request", "large") if value in schema["enum"]), schema["enum"][0])
    if kind == "object":
        return {key: unclear(value, key) for key, value in schema.get("properties", {}).items()}
    return {"array": [], "boolean": False, "integer": 1, "number": 1}.get(kind, "Which one?" if name == "question" else "It is not said.")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def whole(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.whole(200, {"object": "list", "data": []})

    def event(self, delta, finish=None):
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": int(time.time()), "model": "paced",
                 "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}  # fmt: skip
        self.line(json.dumps(chunk))

    def line(self, data):
        text = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        self.wfile.flush()

    def rest(self, seconds):
        """Waits, but not longer than somebody listens."""
        if select.select([self.connection], [], [], seconds)[0] and not self.connection.recv(1):
            raise BrokenPipeError

    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        order, message, results = read_order(ask["messages"])
        calls = order.get("calls", [])
        offered = [tool["function"]["name"] for tool in ask.get("tools", [])]
        note("request", order, text=message, offered=offered, results=results, decision=bool(ask.get("response_format")))
        try:
            if ask.get("response_format"):
                if "UNCLEAR" not in json.dumps(ask["messages"]):
                    self.rest(600)
                    return
                text = json.dumps(unclear(ask["response_format"]["json_schema"]["schema"]))
                self.whole(200, {"id": "c", "object": "chat.completion", "created": 0, "model": "paced", "usage": USAGE,
                                 "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})  # fmt: skip
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if len(results) < len(calls):
                name, arguments = calls[len(results)]
                self.rest(order.get("gap", 0))
                self.event({"tool_calls": [{"index": 0, "id": f"call_{len(results)}", "type": "function",
                                            "function": {"name": name, "arguments": json.dumps(arguments)}}]})  # fmt: skip
                self.event({}, "tool_calls")
            else:
                for number in range(order.get("pieces", 3)):
                    self.rest(order.get("gap", 0))
                    if number == 0:
                        note("first", order)
                    self.event({"content": f"{order.get('word', 'word')}{number} "})
                for result in results:
                    self.event({"content": result})
                self.event({}, "stop")
            self.line(json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "paced", "choices": [], "usage": USAGE}))  # fmt: skip
            self.line("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
            note("finished", order)
        except OSError:
            note("left", order)
            self.close_connection = True


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


Server(("127.0.0.1", PORT), Handler).serve_forever()
