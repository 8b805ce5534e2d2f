#!/usr/bin/env python3
"""A model server that says what the official ones would, in all three dialects, to what clients.py and openwebui ask.

    model_server.py PORT KEY MODEL... [--gap SECONDS] [--pieces N]

It stands for the providers that a proof cannot reach. `--gap` is the time before each piece of text.
"""

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("key")
parser.add_argument("models", nargs="+")
parser.add_argument("--gap", type=float, default=0.02)
parser.add_argument("--pieces", type=int, default=13)
options = parser.parse_args()
USAGE = {"input": 27, "output": 14}


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
        self.send_header("request-id", "req_1")
        self.end_headers()
        self.wfile.write(data)

    def begin(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, data, name=None):
        text = (f"event: {name}\n" if name else "") + f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text.encode()), text.encode()))
        self.wfile.flush()

    def error(self, dialect, status, kind, code, message):
        if dialect == "messages":
            self.whole(status, {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"})
        else:
            self.whole(status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}})

    def allowed(self, dialect):
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if options.key in (bearer, self.headers.get("x-api-key")):
            return True
        self.error(dialect, 401, "authentication_error", "invalid_api_key", "The key is not known.")
        return False

    def do_GET(self):
        models = [{"id": model, "object": "model", "created": 0, "owned_by": "good", "type": "model", "lifecycle": "active",
                   "display_name": model, "created_at": "1970-01-01T00:00:00Z"} for model in options.models]  # fmt: skip
        if self.path.startswith("/v1/models"):
            if self.allowed("messages" if self.headers.get("anthropic-version") else "chat"):
                self.whole(200, {"object": "list", "data": models, "has_more": False, "first_id": options.models[0], "last_id": options.models[-1]})
        else:
            self.whole(200 if self.path == "/health" else 404, {})

    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.split("?")[0]
        dialect = {"/v1/chat/completions": "chat", "/v1/responses": "responses"}.get(path, "messages")
        if not self.allowed(dialect):
            return
        if ask["model"] not in options.models:
            self.error(dialect, 404, "not_found_error", "model_not_found", f"The model {ask['model']} is not known.")
            return
        if path.endswith("count_tokens"):
            self.whole(200, {"input_tokens": USAGE["input"]})
            return
        self.model = ask["model"]
        talk = ask.get("messages") or ask["input"]
        conversation = json.dumps(talk)
        answered = '"tool_call_id"' in conversation or "function_call_output" in conversation or "tool_result" in conversation
        most = ask.get("max_tokens") or ask.get("max_completion_tokens") or ask.get("max_output_tokens") or 99
        pieces, stop = [f"{number} " for number in range(1, options.pieces + 1)], "end"
        if ask.get("stop_sequences"):
            pieces, stop = ["1 ", "2 "], "sequence"
        elif ask.get("tools") and not answered:
            pieces, stop = ['{"city"', ': "Paris"}'], "tool"
        elif "schema" in json.dumps([ask.get("response_format"), ask.get("text"), ask.get("output_config")]):
            pieces = ['{"name": "Ada", ', '"age": 36}']
        elif most <= 4 or "1 to 50" in conversation:
            pieces, stop = pieces[:4], "length"
        getattr(self, f"{dialect}_{'stream' if ask.get('stream') else 'whole'}")(ask, pieces, stop)
        if ask.get("stream"):
            self.wfile.write(b"0\r\n\r\n")

    def paced(self, pieces):
        for piece in pieces:
            time.sleep(options.gap)
            yield piece

    # Chat Completions.
    chat_stops = {"end": "stop", "sequence": "stop", "length": "length", "tool": "tool_calls"}

    def chat_usage(self, pieces):
        used = min(len(pieces), USAGE["output"])
        return {"prompt_tokens": USAGE["input"], "completion_tokens": used, "total_tokens": USAGE["input"] + used}

    def chat_whole(self, ask, pieces, stop):
        text = "".join(pieces)
        message = {"role": "assistant", "content": text, "refusal": None}
        if stop == "tool":
            call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": text}}
            message |= {"content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.chat_stops[stop]}
        self.whole(200, {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": self.model, "choices": [choice],
                         "usage": self.chat_usage(pieces)})  # fmt: skip

    def chat_stream(self, ask, pieces, stop):
        self.begin()
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": self.model}

        def chunk(delta, finish=None):
            self.event(base | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]})

        if stop == "tool":
            call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
            chunk({"role": "assistant", "content": None, "tool_calls": [call]})
        else:
            chunk({"role": "assistant", "content": ""})
        for piece in self.paced(pieces):
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} if stop == "tool" else {"content": piece})
        chunk({}, self.chat_stops[stop])
        if (ask.get("stream_options") or {}).get("include_usage"):
            self.event(base | {"choices": [], "usage": self.chat_usage(pieces)})
        self.event("[DONE]")

    # Responses.
    def response(self, ask, status, output, pieces=None):
        used = min(len(pieces or []), USAGE["output"])
        usage = {"input_tokens": USAGE["input"], "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}, "output_tokens": used,
                 "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": USAGE["input"] + used}  # fmt: skip
        return {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": self.model, "output": output, "error": None,
                "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None, "parallel_tool_calls": True,
                "tool_choice": "auto", "tools": ask.get("tools", []), "usage": usage if pieces else None}  # fmt: skip

    def item(self, text, stop, status):
        if stop == "tool":
            return {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_weather", "arguments": text, "status": status}
        content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}] if status != "in_progress" else []
        return {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": content}

    def responses_whole(self, ask, pieces, stop):
        status = "incomplete" if stop == "length" else "completed"
        self.whole(200, self.response(ask, status, [self.item("".join(pieces), stop, status)], pieces))

    def responses_stream(self, ask, pieces, stop):
        self.begin()
        number = iter(range(1000))

        def event(kind, **more):
            self.event({"type": f"response.{kind}", "sequence_number": next(number)} | more, f"response.{kind}")

        text, status = "".join(pieces), "incomplete" if stop == "length" else "completed"
        event("created", response=self.response(ask, "in_progress", []))
        event("in_progress", response=self.response(ask, "in_progress", []))
        event("output_item.added", output_index=0, item=self.item("", stop, "in_progress"))
        if stop == "tool":
            for piece in self.paced(pieces):
                event("function_call_arguments.delta", item_id="fc_1", output_index=0, delta=piece)
            event("function_call_arguments.done", item_id="fc_1", output_index=0, name="get_weather", arguments=text)
        else:
            place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
            event("content_part.added", **place, part={"type": "output_text", "text": "", "annotations": [], "logprobs": []})
            for piece in self.paced(pieces):
                event("output_text.delta", **place, delta=piece, logprobs=[])
            event("output_text.done", **place, text=text, logprobs=[])
            event("content_part.done", **place, part={"type": "output_text", "text": text, "annotations": [], "logprobs": []})
        item = self.item(text, stop, status)
        event("output_item.done", output_index=0, item=item)
        event(status, response=self.response(ask, status, [item], pieces))

    # Messages.
    def message_stop(self, stop):
        reason = {"end": "end_turn", "sequence": "stop_sequence", "length": "max_tokens", "tool": "tool_use"}[stop]
        return {"stop_reason": reason, "stop_sequence": "3" if stop == "sequence" else None}

    def message(self, content, stop, used):
        usage = {"input_tokens": USAGE["input"], "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": used}
        return {"id": "msg_1", "type": "message", "role": "assistant", "model": self.model, "content": content, "usage": usage} | stop

    def messages_whole(self, ask, pieces, stop):
        text = "".join(pieces)
        block = {"type": "text", "text": text, "citations": None}
        if stop == "tool":
            block = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": json.loads(text)}
        self.whole(200, self.message([block], self.message_stop(stop), min(len(pieces), USAGE["output"])))

    def messages_stream(self, ask, pieces, stop):
        self.begin()

        def event(name, **more):
            self.event({"type": name} | more, name)

        event("message_start", message=self.message([], {"stop_reason": None, "stop_sequence": None}, 1))
        tool = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}
        event("content_block_start", index=0, content_block=tool if stop == "tool" else {"type": "text", "text": ""})
        event("ping")
        for piece in self.paced(pieces):
            delta = {"type": "input_json_delta", "partial_json": piece} if stop == "tool" else {"type": "text_delta", "text": piece}
            event("content_block_delta", index=0, delta=delta)
        event("content_block_stop", index=0)
        event("message_delta", delta=self.message_stop(stop), usage={"output_tokens": min(len(pieces), USAGE["output"])})
        event("message_stop")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


Server(("127.0.0.1", options.port), Handler).serve_forever()
