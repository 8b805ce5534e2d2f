#!/usr/bin/env python3
"""An MCP server whose tools are those that the official conformance suite asks for, to stand behind a gateway.

    fixture_server.py --port 0 [--era both|modern|legacy] [--json] [--token TOKEN] [--log FILE]

Streamable HTTP on http://127.0.0.1:PORT/mcp, made with the official Python package (`mcp` 2.x). Prints one line of JSON,
{"url": "http://127.0.0.1:41234/mcp"}, once it answers. Both eras of the protocol are served on one endpoint: requests
that name 2026-07-28 are answered without a session, `initialize` opens a session of an older revision. `--era` makes the
server refuse the other one. Tools only: no prompts, no resources.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import socket
import struct
import time
import warnings
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.shared.subscriptions import ToolsListChanged
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Logging and sampling are deprecated, and wanted here all the same.
warnings.simplefilter("ignore", MCPDeprecationWarning)

Params = types.CallToolRequestParams
Outcome = types.CallToolResult | types.InputRequiredResult
Handler = Callable[[Any, Params], Awaitable[Outcome]]

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def png() -> str:
    """One red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0\xff\0\0")),
        (b"IEND", b""),
    ]
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)).decode()


def wav() -> str:
    """A wave file with eight silent samples."""
    data = bytes([128] * 8)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(data)) + data
    return base64.b64encode(struct.pack("<4sI", b"RIFF", len(body)) + body).decode()


def result(*content: Any, is_error: bool = False) -> types.CallToolResult:
    """A finished call."""
    return types.CallToolResult(content=list(content), is_error=is_error)


def text(words: str) -> types.TextContent:
    """A text item."""
    return types.TextContent(text=words)


def image() -> types.ImageContent:
    """An image item."""
    return types.ImageContent(data=png(), mime_type="image/png")


def resource(uri: str, mime_type: str, words: str) -> types.EmbeddedResource:
    """A resource item."""
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=mime_type, text=words))


def form(message: str, properties: dict[str, Any], required: list[str] | None = None) -> types.ElicitRequest:
    """A question to the user."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(words: str, max_tokens: int) -> types.CreateMessageRequest:
    """A question to the client's model."""
    message = types.SamplingMessage(role="user", content=text(words))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=max_tokens)
    )


def ask(state: str | None = None, **requests: Any) -> types.InputRequiredResult:
    """A call that needs input first."""
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def is_modern(context: Any) -> bool:
    """Whether the call came without a session."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def format_answer(answer: Any) -> str:
    """An answer of the user as text."""
    return f"action={answer.action}, content={json.dumps(answer.content)}"


TOOLS: dict[str, tuple[types.Tool, Handler]] = {}
BUS = InMemorySubscriptionBus()
DYNAMIC = "test_dynamic_tool"


def tool(
    name: str, description: str, schema: dict[str, Any] | None = None, output: dict[str, Any] | None = None
) -> Callable[[Handler], Handler]:
    """Registers a tool; the order here is the order of the list."""

    def register(handler: Handler) -> Handler:
        definition = types.Tool(
            name=name, description=description, input_schema=schema or NO_ARGUMENTS, output_schema=output
        )
        TOOLS[name] = (definition, handler)
        return handler

    return register


def takes(**properties: Any) -> dict[str, Any]:
    """The schema of a tool all of whose arguments are required."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


# --- results of every kind


@tool("test_simple_text", "Returns one text item.")
async def simple_text(_: Any, __: Params) -> Outcome:
    return result(text("This is a simple text response for testing."))


@tool("test_image_content", "Returns an image.")
async def image_content(_: Any, __: Params) -> Outcome:
    return result(image())


@tool("test_audio_content", "Returns audio.")
async def audio_content(_: Any, __: Params) -> Outcome:
    return result(types.AudioContent(data=wav(), mime_type="audio/wav"))


@tool("test_embedded_resource", "Returns an embedded resource.")
async def embedded_resource(_: Any, __: Params) -> Outcome:
    return result(resource("test://embedded-resource", "text/plain", "This is an embedded resource content."))


@tool("test_multiple_content_types", "Returns text, an image and a resource.")
async def multiple_content_types(_: Any, __: Params) -> Outcome:
    data = resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return result(text("Multiple content types test:"), image(), data)


@tool("test_error_handling", "Always fails.")
async def error_handling(_: Any, __: Params) -> Outcome:
    return result(text("This tool intentionally returns an error for testing"), is_error=True)


@tool(
    "test_structured_output",
    "Returns structured content.",
    output={"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]},
)
async def structured_output(_: Any, __: Params) -> Outcome:
    return types.CallToolResult(content=[text('{"answer":42}')], structured_content={"answer": 42})


# --- schemas and headers


@tool(
    "json_schema_2020_12_tool",
    "Tool with JSON Schema 2020-12 features",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)
async def json_schema(_: Any, params: Params) -> Outcome:
    return result(text(json.dumps(params.arguments or {}, sort_keys=True)))


@tool(
    "test_x_mcp_header",
    "Mirrors its region into a header.",
    {
        "type": "object",
        "properties": {
            "region": {"type": "string", "description": "Where to run.", "x-mcp-header": "Region"},
            "note": {"type": "string"},
        },
        "required": ["region"],
    },
)
async def x_mcp_header(context: Any, params: Params) -> Outcome:
    sent = context.request.headers.get("mcp-param-region") if context.request is not None else None
    return result(text(json.dumps({"region": (params.arguments or {}).get("region"), "header": sent})))


# --- during a call


@tool("test_tool_with_progress", "Reports progress three times.")
async def with_progress(context: Any, _: Params) -> Outcome:
    for progress in (0, 50, 100):
        await context.session.report_progress(progress, 100)
        await asyncio.sleep(0.05)
    return result(text("Progress reported."))


async def log(context: Any, *lines: str) -> None:
    """Sends log lines, 50 ms apart; without a wish to get them, modern calls drop them."""
    for number, line in enumerate(lines):
        if number:
            await asyncio.sleep(0.05)
        await context.session.send_log_message("info", line, related_request_id=context.request_id)


@tool("test_tool_with_logging", "Logs three times.")
async def with_logging(context: Any, _: Params) -> Outcome:
    await log(context, "Tool execution started", "Tool processing data", "Tool execution completed")
    return result(text("Logged three times."))


@tool("test_logging_tool", "Logs once, if the call asks for logs.")
async def logging_tool(context: Any, _: Params) -> Outcome:
    await log(context, "A line of log")
    return result(text("Logged, if it was wanted."))


@tool("test_reconnection", "Closes its stream and goes on; the result is there for whoever reconnects.")
async def reconnection(context: Any, _: Params) -> Outcome:
    if context.close_sse_stream is not None:
        await context.close_sse_stream()
        await asyncio.sleep(0.1)
    return result(text("Reconnected."))


# --- input, in the manner of the call's era


async def elicit_answer(
    context: Any, params: Params, key: str, question: types.ElicitRequest
) -> types.ElicitResult | None:
    """The user's answer: None where a modern call has yet to bring it."""
    if is_modern(context):
        answer = (params.input_responses or {}).get(key)
        return answer if isinstance(answer, types.ElicitResult) else None
    return await context.session.elicit_form(
        question.params.message, question.params.requested_schema, related_request_id=context.request_id
    )


def asking(key: str, question: Callable[[Params], types.ElicitRequest], words: str) -> Handler:
    """A tool that asks one question and says what came."""

    async def handler(context: Any, params: Params) -> Outcome:
        request = question(params)
        answer = await elicit_answer(context, params, key, request)
        return ask(**{key: request}) if answer is None else result(text(f"{words}: {format_answer(answer)}"))

    return handler


tool("test_elicitation", "Asks for a name and an address.", takes(message={"type": "string"}))(
    asking(
        "user",
        lambda params: form(
            str((params.arguments or {}).get("message", "Please provide your information")),
            {
                "username": {"type": "string", "description": "User's response"},
                "email": {"type": "string", "description": "User's email address"},
            },
            ["username", "email"],
        ),
        "User response",
    )
)

tool("test_elicitation_sep1034_defaults", "Asks with default values.")(
    asking(
        "defaults",
        lambda _: form(
            "Please review and update the form fields with defaults",
            {
                "name": {"type": "string", "default": "John Doe"},
                "age": {"type": "integer", "default": 30},
                "score": {"type": "number", "default": 95.5},
                "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
                "verified": {"type": "boolean", "default": True},
            },
        ),
        "Elicitation completed",
    )
)


def titled(words: str) -> list[dict[str, str]]:
    """Three choices with titles."""
    return [
        {"const": f"value{n}", "title": f"{order} {words}"} for n, order in enumerate(("First", "Second", "Third"), 1)
    ]


tool("test_elicitation_sep1330_enums", "Asks with every kind of choice.")(
    asking(
        "choices",
        lambda _: form(
            "Please select options from the enum fields",
            {
                "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
                "titledSingle": {"type": "string", "oneOf": titled("Option")},
                "legacyEnum": {
                    "type": "string",
                    "enum": ["opt1", "opt2", "opt3"],
                    "enumNames": ["Option One", "Option Two", "Option Three"],
                },
                "untitledMulti": {
                    "type": "array",
                    "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
                },
                "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
            },
        ),
        "Elicitation completed",
    )
)

tool("test_streaming_elicitation", "Asks to go on.")(
    asking("confirm", lambda _: form("Go on?", {"ok": {"type": "boolean"}}, ["ok"]), "Confirmed")
)


@tool("test_sampling", "Asks the client's model.", takes(prompt={"type": "string"}))
async def test_sampling(context: Any, params: Params) -> Outcome:
    question = sampling(str((params.arguments or {}).get("prompt", "")), 100)
    if is_modern(context):
        answer: Any = (params.input_responses or {}).get("sample")
        if answer is None:
            return ask(sample=question)
    else:
        answer = await context.session.create_message(
            question.params.messages, max_tokens=100, related_request_id=context.request_id
        )
    return result(text(f"LLM response: {getattr(answer.content, 'text', '')}"))


# --- input, modern calls only


@tool("test_missing_capability", "Needs a client that samples.")
async def missing_capability(context: Any, _: Params) -> Outcome:
    declared = context.session.client_capabilities
    if declared is None or declared.sampling is None:
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            "This tool needs the client capability sampling",
            {"requiredCapabilities": {"sampling": {}}},
        )
    return result(text("The client samples."))


NAME = {"name": {"type": "string"}}


@tool("test_input_required_result_elicitation", "Asks for a name and greets.")
async def mrtr_elicitation(_: Any, params: Params) -> Outcome:
    answer = (params.input_responses or {}).get("user_name")
    if not isinstance(answer, types.ElicitResult):
        return ask(user_name=form("What is your name?", NAME, ["name"]))
    return result(text(f"Hello, {(answer.content or {}).get('name', 'stranger')}!"))


@tool("test_input_required_result_sampling", "Asks the client's model for a capital.")
async def mrtr_sampling(_: Any, params: Params) -> Outcome:
    answer: Any = (params.input_responses or {}).get("capital_question")
    if answer is None:
        return ask(capital_question=sampling("What is the capital of France?", 100))
    return result(text(getattr(answer.content, "text", "")))


@tool("test_input_required_result_list_roots", "Asks for the client's roots.")
async def mrtr_list_roots(_: Any, params: Params) -> Outcome:
    answer = (params.input_responses or {}).get("client_roots")
    if not isinstance(answer, types.ListRootsResult):
        return ask(client_roots=types.ListRootsRequest())
    return result(text("Roots: " + ", ".join(str(root.uri) for root in answer.roots)))


def confirming(state: str) -> Handler:
    """A tool that asks to confirm and wants its state back."""

    async def handler(_: Any, params: Params) -> Outcome:
        # Only a state that this process sealed gets here; the server answers the others with an error.
        if (params.input_responses or {}).get("confirm") is None or params.request_state != state:
            return ask(state, confirm=form("Please confirm", {"ok": {"type": "boolean"}}, ["ok"]))
        return result(text("state-ok"))

    return handler


tool("test_input_required_result_request_state", "Asks to confirm, with a state.")(confirming("confirm"))
tool("test_input_required_result_tampered_state", "Asks to confirm, with a state that must not be changed.")(
    confirming("untouched")
)


@tool("test_input_required_result_multiple_inputs", "Asks three things at once.")
async def mrtr_multiple_inputs(_: Any, params: Params) -> Outcome:
    questions = {
        "user_name": form("What is your name?", NAME, ["name"]),
        "greeting": sampling("Generate a greeting", 50),
        "client_roots": types.ListRootsRequest(),
    }
    if not questions.keys() <= (params.input_responses or {}).keys():
        return ask("all-of-them", **questions)
    return result(text("All inputs received."))


@tool("test_input_required_result_multi_round", "Asks twice.")
async def mrtr_multi_round(_: Any, params: Params) -> Outcome:
    answers = params.input_responses or {}
    if params.request_state == "round-2" and "step2" in answers:
        return result(text("Both rounds are done."))
    if params.request_state in ("round-1", "round-2") and ("step1" in answers or params.request_state == "round-2"):
        question = form("Step 2: What is your favorite color?", {"color": {"type": "string"}}, ["color"])
        return ask("round-2", step2=question)
    return ask("round-1", step1=form("Step 1: What is your name?", NAME, ["name"]))


@tool("test_input_required_result_capabilities", "Asks only what the client can answer.")
async def mrtr_capabilities(context: Any, params: Params) -> Outcome:
    declared = context.session.client_capabilities
    questions: dict[str, Any] = {}
    if declared is not None and declared.sampling is not None:
        questions["sample"] = sampling("Say something", 50)
    if declared is not None and declared.elicitation is not None:
        questions["form"] = form("What is your name?", NAME, ["name"])
    if not questions or questions.keys() <= (params.input_responses or {}).keys():
        return result(text("Nothing to ask."))
    return ask(**questions)


# --- changes, and plain tools for everything else


@tool("test_trigger_tool_change", f"Adds the tool {DYNAMIC}, or removes it.")
async def trigger_tool_change(_: Any, __: Params) -> Outcome:
    if TOOLS.pop(DYNAMIC, None) is None:
        tool(DYNAMIC, "Comes and goes.")(simple_text)
    await BUS.publish(ToolsListChanged())
    return result(text("The list of tools has changed."))


@tool("echo", "Returns its text.", takes(text={"type": "string"}))
async def echo(_: Any, params: Params) -> Outcome:
    words = (params.arguments or {}).get("text")
    return result(text(words)) if isinstance(words, str) else result(text("text must be a string"), is_error=True)


@tool("test_sleep", "Waits for so many milliseconds.", takes(ms={"type": "integer", "minimum": 0}))
async def sleep(_: Any, params: Params) -> Outcome:
    milliseconds = (params.arguments or {}).get("ms", 0)
    await asyncio.sleep(milliseconds / 1000)
    return result(text(f"Slept for {milliseconds} ms."))


@tool("test_protocol_error", "Fails with a JSON-RPC error.")
async def protocol_error(_: Any, __: Params) -> Outcome:
    raise MCPError(types.INTERNAL_ERROR, "This tool fails with a protocol error", {"reason": "on purpose"})


class Events(EventStore):
    """Keeps the events of streams in memory, so that a lost stream can be taken up again."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        """Keeps an event; its number is its id."""
        self.events.append((stream_id, message))
        return str(len(self.events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Sends again what the stream of an event said after it."""
        if not last_event_id.isdecimal() or not 0 < int(last_event_id) <= len(self.events):
            return None
        stream = self.events[int(last_event_id) - 1][0]
        for number, (other, message) in enumerate(self.events[int(last_event_id) :], int(last_event_id) + 1):
            if other == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


class Door:
    """Refuses calls without the token and calls of the other era, and writes down what came."""

    def __init__(self, app: ASGIApp, era: str, token: str | None, log: str | None) -> None:
        self.app = app
        self.era = era
        self.token = token
        self.log = open(log, "a", encoding="utf-8") if log else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request in, or not."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
            await self.refuse(send, 401, {"error": "invalid_token"})
            return
        version = headers.get("mcp-protocol-version")
        is_legacy = version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
        if self.era == "legacy" and not is_legacy:
            error = {"code": -32600, "message": f"Bad Request: Unsupported protocol version: {version}"}
            await self.refuse(send, 400, {"jsonrpc": "2.0", "id": "server-error", "error": error})
            return
        if self.era == "modern" and is_legacy:
            message = f"Only protocol versions {', '.join(MODERN_PROTOCOL_VERSIONS)} are served"
            await self.refuse(
                send, 400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32020, "message": message}}
            )
            return

        async def receive_and_log() -> Message:
            message = await receive()
            if self.log and message["type"] == "http.request" and message.get("body"):
                line = {
                    "time": round(time.time(), 3),
                    "headers": headers,
                    "body": message["body"].decode("utf-8", "replace"),
                }
                print(json.dumps(line), file=self.log, flush=True)
            return message

        await self.app(scope, receive_and_log, send)

    @staticmethod
    async def refuse(send: Send, status: int, body: dict[str, Any]) -> None:
        """Answers in the server's place."""
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})


async def list_tools(_: Any, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    """All tools on one page."""
    return types.ListToolsResult(tools=[definition for definition, _ in TOOLS.values()])


async def call_tool(context: Any, params: Params) -> Outcome:
    """Calls a tool."""
    if params.name not in TOOLS:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
    return await TOOLS[params.name][1](context, params)


async def set_logging_level(_: Any, __: types.SetLevelRequestParams) -> types.EmptyResult:
    """Takes any level; the fixtures log at info only."""
    return types.EmptyResult()


def make(options: argparse.Namespace) -> ASGIApp:
    """The server as an application."""
    server: Server[Any] = Server(
        "fixture",
        version="1.0.0",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_set_logging_level=set_logging_level,
        on_subscriptions_listen=ListenHandler(BUS),
        get_tool_input_schema=lambda name: TOOLS[name][0].input_schema if name in TOOLS else None,
    )
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="fixture"))
    app = server.streamable_http_app(json_response=options.json, event_store=Events(), retry_interval=100)
    return Door(app, options.era, options.token, options.log)


async def main() -> None:
    """Reads the command line and serves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=0, help="port on loopback (default: a free one)")
    parser.add_argument(
        "--era", choices=("both", "modern", "legacy"), default="both", help="which revisions to serve"
    )
    parser.add_argument("--json", action="store_true", help="never answer with a stream (no progress, no questions)")
    parser.add_argument("--token", help="demand this bearer token")
    parser.add_argument("--log", help="append the requests as JSON lines to this file")
    options = parser.parse_args()

    # Named so, or the loop does not know that it is TCP, and small answers wait 40 ms for company.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", options.port))
        listener.listen(1024)
        config = uvicorn.Config(make(options), log_level="warning", access_log=False, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"}), flush=True)
        await serving


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
