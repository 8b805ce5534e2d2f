#!/usr/bin/env python3
"""Talks to a model server with the official clients (`openai` 3.x, `anthropic` 2.x) and prints what was seen as one line of JSON.

    clients.py chat|responses|messages ROOT --key KEY --model MODEL [--lacks CHECK,CHECK] [--skip CHECK,CHECK] [--only CHECK,CHECK] [--retries N]

ROOT is the address without /v1. Every check is about the protocol: which events came, in which order, of which type, and not
about how wise the answer is. `--lacks` names checks that are known to fail there; one of them that passes is an error too.
`--skip` leaves checks out.
Ends with 0 if all is as expected, and with 1 if not: the line then has `failed` and `unexpected`.
Nothing is tried again unless `--retries` says so: a server that drops a connection is not to be excused by the clients' patience.
The key may also come in MODEL_KEY.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import anthropic
import jsonschema
import openai
import pydantic

COUNT = "Count from 1 to 5."
PERSON = "Ada is 36 years old. Give her name and age."
PERSON_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = "What is the weather in Paris? Use the tool."
TOOL = "get_weather"
TOOL_WORDS = "Weather of a city."
TOOL_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
RESULT = '{"temperature_celsius": 18, "sky": "rain"}'


class Wrong(Exception):
    """Something that was seen is not what the protocol says."""


def must(good: Any, words: str) -> None:
    """Like assert, but never left out."""
    if not good:
        raise Wrong(words)


def fits(text: str, schema: dict[str, Any]) -> Any:
    """The JSON in the text, which must be of the schema."""
    try:
        value = json.loads(text)
        jsonschema.validate(value, schema)
    except (json.JSONDecodeError, jsonschema.ValidationError) as error:
        raise Wrong(f"not of the schema: {text!r}: {str(error).splitlines()[0]}") from error
    return value


class Dialect:
    """What the three have in common: the checks to run, and a note of everything that is not of its official type."""

    checks: tuple[str, ...]

    def __init__(self, options: argparse.Namespace) -> None:
        self.root: str = options.root.rstrip("/")
        self.key: str = options.key
        self.model: str = options.model
        self.retries: int = options.retries
        self.untyped: set[str] = set()

    def typed(self, thing: Any) -> Any:
        """Validates what the client only built: it takes missing fields as they come."""
        try:
            type(thing).model_validate(thing.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False))
        except pydantic.ValidationError as error:
            name = getattr(thing, "type", None) or getattr(thing, "object", None) or type(thing).__name__
            for problem in error.errors():
                place = ".".join(str(step) for step in problem["loc"] if not isinstance(step, int))
                self.untyped.add(f"{name}: {place}: {problem['type']}")
        return thing

    def pieces(self, stream: Iterable[Any], text_of: Callable[[Any], str | None]) -> tuple[list[Any], dict[str, Any]]:
        """All events, and the text in them, which must come in several pieces."""
        events = [self.typed(event) for event in stream]
        pieces = [piece for piece in map(text_of, events) if piece]
        must(len(pieces) >= 3, f"the text came in {len(pieces)} pieces")
        return events, {"pieces": len(pieces), "text": "".join(pieces)}

    def check_typed(self) -> Any:
        """Runs last: every object seen until here is of its official type."""
        must(not self.untyped, "; ".join(sorted(self.untyped)))
        return True

    def refused(self, kind: type[Exception], call: Callable[[], Any]) -> Any:
        """The error that the call must end in."""
        try:
            call()
        except kind as error:
            return error
        except (openai.APIError, anthropic.APIError) as error:
            raise Wrong(f"{type(error).__name__} instead of {kind.__name__}: {error}") from error
        raise Wrong(f"accepted instead of {kind.__name__}")

    def lines(self, call: Callable[..., Any], **more: Any) -> tuple[list[str], dict[str, Any]]:
        """The lines of a stream as they are on the wire, which must come over the time of the answer, not all at its end.

        This is timed here because a client takes the better part of a second to learn its own types when it meets them first.
        """
        lines: list[str] = []
        times: list[float] = []
        began = time.monotonic()
        with call(stream=True, **more) as response:
            kind = response.headers.get("content-type", "")
            must(kind.startswith("text/event-stream"), f"a stream of {kind}")
            for line in response.iter_lines():
                if line:
                    lines.append(line)
                    times.append(time.monotonic() - began)
        took, half = time.monotonic() - began, times[len(times) * 3 // 4] - times[len(times) // 4]
        must(half > took / 10, f"half of the events came within {half:.3f} of {took:.3f} s")
        return lines, {"lines": len(lines), "first_ms": round(times[0] * 1000), "last_ms": round(times[-1] * 1000)}

    def check_event_names(self, lines: list[str]) -> None:
        """Every event has the name that its data says."""
        names = [line[7:] for line in lines if line.startswith("event: ")]
        must("data: [DONE]" not in lines, "data: [DONE] is of another dialect")
        kinds = [json.loads(line[6:])["type"] for line in lines if line.startswith("data: ")]
        must(names == kinds, f"event names {names} with data of {kinds}")


class OpenAi(Dialect):
    """What the two dialects of OpenAI have in common."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.client = self.with_key(self.key)

    def with_key(self, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.root}/v1", api_key=key, max_retries=self.retries, timeout=120)

    def error(self, error: Any, code: str) -> Any:
        """Both dialects have the same errors."""
        must(isinstance(error.body, dict) and error.body.get("message"), f"no message: {error.body!r}")
        must(error.code == code, f"code {error.code!r} instead of {code!r}")
        return {"status": error.status_code, "type": error.type, "code": error.code}

    def check_models(self) -> Any:
        listed = [self.typed(model).id for model in self.client.models.list()]
        must(self.model in listed, f"{self.model} is not in {listed}")
        return len(listed)


class Chat(OpenAi):
    """Chat Completions."""

    checks = ("models", "stream", "wire", "helper", "whole", "length", "json", "tools", "tools_stream", "unknown_model", "bad_key", "typed")
    tools: Any = [{"type": "function", "function": {"name": TOOL, "description": TOOL_WORDS, "parameters": TOOL_SCHEMA}}]

    def ask(self, words: str | list[Any], most: int = 40, **more: Any) -> Any:
        messages = [{"role": "user", "content": words}] if isinstance(words, str) else words
        return {"model": self.model, "messages": messages, "max_completion_tokens": most, "temperature": 0, **more}

    def usage(self, usage: Any) -> Any:
        must(usage and usage.prompt_tokens > 0 and usage.completion_tokens > 0, f"usage {usage}")
        must(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, f"usage {usage}")
        return {"input": usage.prompt_tokens, "output": usage.completion_tokens}

    def check_stream(self) -> Any:
        stream = self.client.chat.completions.create(**self.ask(COUNT, stream=True, stream_options={"include_usage": True}))
        chunks, seen = self.pieces(stream, lambda chunk: chunk.choices[0].delta.content if chunk.choices else None)
        must(len({chunk.id for chunk in chunks}) == 1, "more than one id")
        must(all(chunk.model for chunk in chunks), "chunks that do not say which model speaks")
        must(chunks[0].choices[0].delta.role == "assistant", "the first chunk does not say who speaks")
        finishes = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
        must(finishes == ["stop"], f"finish reasons {finishes}")
        must([bool(chunk.usage) for chunk in chunks].index(True) == len(chunks) - 1, "the usage is not in the last chunk alone")
        must(chunks[-1].choices == [], "the chunk with the usage has choices")
        return {**seen, "finish": finishes[0], "usage": self.usage(chunks[-1].usage)}

    def check_wire(self) -> Any:
        call = self.client.chat.completions.with_streaming_response.create
        lines, seen = self.lines(call, **self.ask(COUNT))
        must(lines[-1] == "data: [DONE]", f"ends with {lines[-1]!r}")
        must(not any(json.loads(line[6:]).get("usage") for line in lines[:-1]), "usage that was not asked for")
        return seen

    def check_helper(self) -> Any:
        with self.client.chat.completions.stream(**self.ask(COUNT)) as stream:
            text = "".join(event.delta for event in stream if event.type == "content.delta")
            final = stream.get_final_completion()
        must(text and final.choices[0].message.content == text, f"{final.choices[0].message.content!r} is not {text!r}")
        return final.choices[0].finish_reason

    def check_whole(self) -> Any:
        answer = self.typed(self.client.chat.completions.create(**self.ask(COUNT)))
        must(answer.choices[0].message.content, "no text")
        must(answer.choices[0].finish_reason == "stop", f"finish reason {answer.choices[0].finish_reason}")
        return {"model": answer.model, "usage": self.usage(answer.usage)}

    def check_length(self) -> Any:
        answer = self.typed(self.client.chat.completions.create(**self.ask(COUNT, 4)))
        must(answer.choices[0].finish_reason == "length", f"finish reason {answer.choices[0].finish_reason}")
        must(answer.usage.completion_tokens <= 4, f"{answer.usage.completion_tokens} tokens")
        return "length"

    def check_json(self) -> Any:
        form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON_SCHEMA}}
        answer = self.typed(self.client.chat.completions.create(**self.ask(PERSON, response_format=form)))
        return fits(answer.choices[0].message.content, PERSON_SCHEMA)

    def check_tools(self) -> Any:
        answer = self.typed(self.client.chat.completions.create(**self.ask(WEATHER, 60, tools=self.tools)))
        must(answer.choices[0].finish_reason == "tool_calls", f"finish reason {answer.choices[0].finish_reason}")
        return self.answer_tools([call.model_dump() for call in answer.choices[0].message.tool_calls or []])

    def answer_tools(self, calls: list[Any]) -> Any:
        """The second half of the loop: the result is given, and the model speaks."""
        must(len(calls) == 1 and calls[0]["id"] and calls[0]["function"]["name"] == TOOL, f"calls {calls}")
        arguments = fits(calls[0]["function"]["arguments"], TOOL_SCHEMA)
        talk = [
            {"role": "user", "content": WEATHER},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": calls[0]["id"], "content": RESULT},
        ]
        answer = self.typed(self.client.chat.completions.create(**self.ask(talk, 40, tools=self.tools)))
        message = answer.choices[0].message
        must(message.content and not message.tool_calls, f"no words after the result: {message}")
        return {"arguments": arguments, "words": message.content}

    def check_tools_stream(self) -> Any:
        call: dict[str, Any] = {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        finish = None
        for chunk in self.client.chat.completions.create(**self.ask(WEATHER, 60, tools=self.tools, stream=True)):
            self.typed(chunk)
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                for delta in choice.delta.tool_calls or []:
                    must(delta.index == 0, f"index {delta.index}")
                    call["id"] = delta.id or call["id"]
                    call["function"]["name"] += delta.function.name or ""
                    call["function"]["arguments"] += delta.function.arguments or ""
        must(finish == "tool_calls", f"finish reason {finish}")
        return self.answer_tools([call])

    def check_unknown_model(self) -> Any:
        ask = {**self.ask(COUNT, 4), "model": "no-such-model"}
        return self.error(self.refused(openai.NotFoundError, lambda: self.client.chat.completions.create(**ask)), "model_not_found")

    def check_bad_key(self) -> Any:
        client = self.with_key("sk-wrong")
        ask = self.ask(COUNT, 4)
        return self.error(self.refused(openai.AuthenticationError, lambda: client.chat.completions.create(**ask)), "invalid_api_key")


class Responses(OpenAi):
    """Responses."""

    checks = (
        "models", "stream", "sequence", "wire", "helper", "whole", "length", "json", "tools", "tools_stream", "unknown_model", "bad_key", "typed",
    )  # fmt: skip
    tools: Any = [{"type": "function", "name": TOOL, "description": TOOL_WORDS, "parameters": TOOL_SCHEMA, "strict": True}]

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.numbers: list[Any] = []

    def ask(self, talk: str | list[Any], most: int = 40, **more: Any) -> Any:
        return {"model": self.model, "input": talk, "max_output_tokens": most, "temperature": 0, "store": False, **more}

    def usage(self, usage: Any) -> Any:
        must(usage and usage.input_tokens > 0 and usage.output_tokens > 0, f"usage {usage}")
        must(usage.total_tokens == usage.input_tokens + usage.output_tokens, f"usage {usage}")
        return {"input": usage.input_tokens, "output": usage.output_tokens}

    def check_stream(self) -> Any:
        stream = self.client.responses.create(**self.ask(COUNT, stream=True))
        events, seen = self.pieces(stream, lambda event: event.delta if event.type == "response.output_text.delta" else None)
        self.numbers = [getattr(event, "sequence_number", None) for event in events]
        order: list[str] = []
        for event in events:
            if not order or order[-1] != event.type:
                order.append(event.type)
        expected = [
            "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
            "content_part.done", "output_item.done", "completed",
        ]  # fmt: skip
        must(order == [f"response.{name}" for name in expected], f"events {order}")
        final = events[-1].response
        must(final.id == events[0].response.id, "another id at the end")
        must(final.status == "completed" and final.output_text == seen["text"], f"the last event says {final.status} {final.output_text!r}")
        return {**seen, "finish": final.status, "usage": self.usage(final.usage)}

    def check_sequence(self) -> Any:
        """The events that `stream` saw count from 0."""
        must(self.numbers and self.numbers == list(range(len(self.numbers))), f"sequence numbers {self.numbers[:5]} and on")
        return len(self.numbers)

    def check_wire(self) -> Any:
        call = self.client.responses.with_streaming_response.create
        lines, seen = self.lines(call, **self.ask(COUNT))
        self.check_event_names(lines)
        return seen

    def check_helper(self) -> Any:
        with self.client.responses.stream(**self.ask(COUNT)) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        must(text and final.output_text == text, f"{final.output_text!r} is not {text!r}")
        return final.status

    def check_whole(self) -> Any:
        answer = self.typed(self.client.responses.create(**self.ask(COUNT)))
        must(answer.output_text, "no text")
        must(answer.status == "completed", f"status {answer.status}")
        return {"model": answer.model, "usage": self.usage(answer.usage)}

    def check_length(self) -> Any:
        # The least that the official server takes is 16.
        answer = self.typed(self.client.responses.create(**self.ask("Count from 1 to 50.", 16)))
        must(answer.status == "incomplete", f"status {answer.status}")
        must(answer.incomplete_details.reason == "max_output_tokens", f"details {answer.incomplete_details}")
        return answer.status

    def check_json(self) -> Any:
        form = {"format": {"type": "json_schema", "name": "person", "strict": True, "schema": PERSON_SCHEMA}}
        answer = self.typed(self.client.responses.create(**self.ask(PERSON, text=form)))
        return fits(answer.output_text, PERSON_SCHEMA)

    def check_tools(self) -> Any:
        return self.answer_tools(self.typed(self.client.responses.create(**self.ask(WEATHER, 60, tools=self.tools))))

    def answer_tools(self, answer: Any) -> Any:
        """The second half of the loop: what the model said is sent back with the result, and the model speaks."""
        calls = [item for item in answer.output if item.type == "function_call"]
        must(len(calls) == 1 and calls[0].call_id and calls[0].name == TOOL, f"output {answer.output}")
        arguments = fits(calls[0].arguments, TOOL_SCHEMA)
        items = [item.model_dump(mode="json", exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
        result = {"type": "function_call_output", "call_id": calls[0].call_id, "output": RESULT}
        talk = [{"role": "user", "content": WEATHER}, *items, result]
        words = self.typed(self.client.responses.create(**self.ask(talk, 40, tools=self.tools)))
        must(words.output_text, f"no words after the result: {words.output}")
        return {"arguments": arguments, "words": words.output_text}

    def check_tools_stream(self) -> Any:
        deltas, done, final = "", None, None
        for event in self.client.responses.create(**self.ask(WEATHER, 60, tools=self.tools, stream=True)):
            self.typed(event)
            if event.type == "response.function_call_arguments.delta":
                deltas += event.delta
            elif event.type == "response.function_call_arguments.done":
                done = event.arguments
            elif event.type == "response.completed":
                final = event.response
        must(final, "no response.completed")
        seen = self.answer_tools(final)
        whole = next(item.arguments for item in final.output if item.type == "function_call")
        must(deltas == whole, f"the deltas {deltas!r} are not the arguments {whole!r}")
        must(done == whole, f"response.function_call_arguments.done says {done!r}")
        return seen

    def check_unknown_model(self) -> Any:
        ask = {**self.ask(COUNT, 16), "model": "no-such-model"}
        return self.error(self.refused(openai.NotFoundError, lambda: self.client.responses.create(**ask)), "model_not_found")

    def check_bad_key(self) -> Any:
        client = self.with_key("sk-wrong")
        ask = self.ask(COUNT, 16)
        return self.error(self.refused(openai.AuthenticationError, lambda: client.responses.create(**ask)), "invalid_api_key")


class Messages(Dialect):
    """Messages of Anthropic."""

    checks = (
        "models", "stream", "wire", "helper", "whole", "length", "stop_sequence", "json", "tools", "tools_stream", "count", "bearer",
        "unknown_model", "bad_key", "typed",
    )  # fmt: skip
    tools: Any = [{"name": TOOL, "description": TOOL_WORDS, "input_schema": TOOL_SCHEMA}]

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.client = self.with_key(self.key)

    def with_key(self, key: str) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.root, api_key=key, max_retries=self.retries, timeout=120)

    def ask(self, words: str | list[Any], most: int = 40, **more: Any) -> Any:
        messages = [{"role": "user", "content": words}] if isinstance(words, str) else words
        # The client no longer has a word for the temperature; the protocol does.
        return {"model": self.model, "messages": messages, "max_tokens": most, "extra_body": {"temperature": 0}, **more}

    def usage(self, usage: Any) -> Any:
        read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        must(usage.input_tokens + read + written > 0 and usage.output_tokens > 0, f"usage {usage}")
        return {"input": usage.input_tokens, "cache_read": read, "cache_written": written, "output": usage.output_tokens}

    def text(self, message: Any) -> str:
        return "".join(block.text for block in message.content if block.type == "text")

    def check_models(self) -> Any:
        listed = [self.typed(model).id for model in self.client.models.list()]
        must(self.model in listed, f"{self.model} is not in {listed}")
        return len(listed)

    def check_stream(self) -> Any:
        stream = self.client.messages.create(**self.ask(COUNT, stream=True))
        events, seen = self.pieces(stream, lambda event: event.delta.text if event.type == "content_block_delta" else None)
        order: list[str] = []
        for event in events:
            if not order or order[-1] != event.type:
                order.append(event.type)
        expected = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"]
        must(order == expected, f"events {order}")
        must(events[0].message.content == [] and events[0].message.model, f"begins with {events[0].message}")
        ended = events[-2]
        must(ended.delta.stop_reason == "end_turn", f"stop reason {ended.delta.stop_reason}")
        must(ended.usage.output_tokens > 0, f"usage {ended.usage}")
        return {**seen, "finish": ended.delta.stop_reason, "usage": {"output": ended.usage.output_tokens}}

    def check_wire(self) -> Any:
        call = self.client.messages.with_streaming_response.create
        lines, seen = self.lines(call, **self.ask(COUNT))
        self.check_event_names(lines)
        return seen

    def check_helper(self) -> Any:
        with self.client.messages.stream(**self.ask(COUNT)) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        must(text and self.text(final) == text, f"{self.text(final)!r} is not {text!r}")
        return {"finish": final.stop_reason, "usage": self.usage(final.usage)}

    def check_whole(self) -> Any:
        answer = self.typed(self.client.messages.create(**self.ask(COUNT, system="You are brief.")))
        must(self.text(answer), "no text")
        must(answer.stop_reason == "end_turn", f"stop reason {answer.stop_reason}")
        return {"model": answer.model, "usage": self.usage(answer.usage)}

    def check_length(self) -> Any:
        answer = self.typed(self.client.messages.create(**self.ask(COUNT, 4)))
        must(answer.stop_reason == "max_tokens", f"stop reason {answer.stop_reason}")
        must(answer.usage.output_tokens <= 4, f"{answer.usage.output_tokens} tokens")
        return answer.stop_reason

    def check_stop_sequence(self) -> Any:
        answer = self.typed(self.client.messages.create(**self.ask(COUNT, stop_sequences=["3"])))
        must(answer.stop_reason == "stop_sequence" and answer.stop_sequence == "3", f"{answer.stop_reason} {answer.stop_sequence!r}")
        must("3" not in self.text(answer), f"text {self.text(answer)!r}")
        return answer.stop_reason

    def check_json(self) -> Any:
        form = {"format": {"type": "json_schema", "schema": PERSON_SCHEMA}}
        answer = self.typed(self.client.messages.create(**self.ask(PERSON, output_config=form)))
        return fits(self.text(answer), PERSON_SCHEMA)

    def check_tools(self) -> Any:
        return self.answer_tools(self.typed(self.client.messages.create(**self.ask(WEATHER, 60, tools=self.tools))))

    def answer_tools(self, answer: Any) -> Any:
        """The second half of the loop: what the model said is sent back with the result, and the model speaks."""
        must(answer.stop_reason == "tool_use", f"stop reason {answer.stop_reason}")
        calls = [block for block in answer.content if block.type == "tool_use"]
        must(len(calls) == 1 and calls[0].id and calls[0].name == TOOL, f"content {answer.content}")
        jsonschema.validate(calls[0].input, TOOL_SCHEMA)
        blocks = [block.model_dump(mode="json", exclude_none=True) for block in answer.content]
        result = {"type": "tool_result", "tool_use_id": calls[0].id, "content": RESULT}
        talk = [{"role": "user", "content": WEATHER}, {"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
        words = self.typed(self.client.messages.create(**self.ask(talk, 40, tools=self.tools)))
        must(self.text(words) and words.stop_reason != "tool_use", f"no words after the result: {words.content}")
        return {"arguments": calls[0].input, "words": self.text(words)}

    def check_tools_stream(self) -> Any:
        pieces = ""
        with self.client.messages.stream(**self.ask(WEATHER, 60, tools=self.tools)) as stream:
            for event in stream:
                if event.type == "input_json":
                    pieces += event.partial_json
            final = stream.get_final_message()
        fits(pieces, TOOL_SCHEMA)
        return self.answer_tools(final)

    def check_count(self) -> Any:
        counted = self.typed(self.client.messages.count_tokens(model=self.model, messages=[{"role": "user", "content": COUNT}]))
        must(counted.input_tokens > 0, f"{counted.input_tokens} tokens")
        return counted.input_tokens

    def check_bearer(self) -> Any:
        """Some programs send the key as a bearer token instead of x-api-key."""
        client = anthropic.Anthropic(base_url=self.root, auth_token=self.key, max_retries=self.retries, timeout=120)
        answer = client.messages.create(**self.ask(COUNT, 4))
        must(self.text(answer), "no text")
        return True

    def error(self, error: Any, kind: str) -> Any:
        body = error.body
        must(isinstance(body, dict) and body.get("type") == "error", f"not an error of this dialect: {body!r}")
        must(body["error"].get("message") and body["error"].get("type") == kind, f"{body['error']!r} instead of {kind}")
        return {"status": error.status_code, "type": kind, "request_id": bool(error.request_id)}

    def check_unknown_model(self) -> Any:
        ask = {**self.ask(COUNT, 4), "model": "no-such-model"}
        return self.error(self.refused(anthropic.NotFoundError, lambda: self.client.messages.create(**ask)), "not_found_error")

    def check_bad_key(self) -> Any:
        client = self.with_key("sk-wrong")
        ask = self.ask(COUNT, 4)
        return self.error(self.refused(anthropic.AuthenticationError, lambda: client.messages.create(**ask)), "authentication_error")


def main() -> int:
    """Runs the checks and prints the line."""
    names = {"chat": Chat, "responses": Responses, "messages": Messages}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dialect", choices=names)
    parser.add_argument("root")
    parser.add_argument("--key", default=os.environ.get("MODEL_KEY", "none"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--lacks", default="")
    parser.add_argument("--skip", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--retries", type=int, default=0)
    options = parser.parse_args()
    # The clients would take their keys and addresses from there.
    for name in [name for name in os.environ if name.startswith(("OPENAI_", "ANTHROPIC_"))]:
        del os.environ[name]

    dialect = names[options.dialect](options)
    lacks = {name for name in options.lacks.split(",") if name}
    skip = {name for name in options.skip.split(",") if name}
    only = {name for name in options.only.split(",") if name}
    unknown = (lacks | only) - set(dialect.checks)
    if unknown:
        parser.error(f"no check {', '.join(sorted(unknown))}")
    seen: dict[str, Any] = {}
    failed: dict[str, str] = {}
    began = time.monotonic()
    for name in dialect.checks:
        if name in skip or (only and name not in only):
            continue
        try:
            seen[name] = getattr(dialect, f"check_{name}")()
        # Whatever a client stumbles over counts: what it was given is not what it is made for.
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"[:2000]
    wrong = {name: words for name, words in failed.items() if name not in lacks}
    unexpected = sorted(lacks & seen.keys())
    line = {"dialect": options.dialect, "passed": len(seen), "seconds": round(time.monotonic() - began, 1), "seen": seen}
    line |= {"lacks": {name: words for name, words in failed.items() if name in lacks}, "failed": wrong, "unexpected": unexpected}
    print(json.dumps({name: value for name, value in line.items() if value not in ({}, [])}))
    return 1 if wrong or unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
