#!/usr/bin/env python3
"""Talks to an MCP server with the official Python client (`mcp` 2.x) and prints what came as JSON.

    mcp_client.py URL [--token TOKEN] [--era auto|modern|legacy] list
    mcp_client.py URL [--token TOKEN] [--era ...] call TOOL ['{"argument": 1}'] [--answer '{"name": "Ada"}']

`modern` speaks 2026-07-28 without a session, `legacy` opens a session with `initialize`, `auto` asks the server first.
`--answer` accepts every question of the server with that content; without it the client says that it cannot be asked.
The token may also come in MCP_TOKEN. Ends with 0 if there is a result (also one that says isError), and with 1 on an
error, which is printed as {"error": {"code": ..., "message": ..., "data": ...}}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types.version import LATEST_MODERN_VERSION


def plain(model: Any) -> Any:
    """A model of the protocol as it is on the wire."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def talk(options: argparse.Namespace) -> dict[str, Any]:
    """Connects, lists or calls, and returns what is to be printed."""
    headers = {"Authorization": f"Bearer {options.token}"} if options.token else {}
    progress: list[list[float | None]] = []
    questions: list[Any] = []

    async def answer(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        questions.append(plain(params))
        return types.ElicitResult(action="accept", content=options.answer)

    async def note(done: float, total: float | None, _: str | None) -> None:
        progress.append([done, total])

    mode = {"auto": "auto", "legacy": "legacy", "modern": LATEST_MODERN_VERSION}[options.era]
    timeout = httpx2.Timeout(options.timeout)
    async with httpx2.AsyncClient(headers=headers, timeout=timeout) as http:
        transport = streamable_http_client(options.url, http_client=http)
        callback = answer if options.answer is not None else None
        async with Client(transport, mode=mode, elicitation_callback=callback) as client:
            report: dict[str, Any] = {"protocolVersion": client.session.protocol_version}
            if options.command == "list":
                tools: list[Any] = []
                cursor: str | None = None
                while True:
                    page = await client.list_tools(cursor=cursor, cache_mode="bypass")
                    tools += [plain(tool) for tool in page.tools]
                    cursor = page.next_cursor
                    if cursor is None:
                        return report | {"tools": tools}
            result = await client.call_tool(options.tool, options.arguments, progress_callback=note)
            report["result"] = plain(result)
            return report | {name: seen for name, seen in (("progress", progress), ("questions", questions)) if seen}


def failure(error: BaseException) -> dict[str, Any]:
    """What to print of an error; groups are opened up to their first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError):
        return {"error": plain(error.error)}
    return {"error": {"type": type(error).__name__, "message": str(error)}}


def main() -> int:
    """Reads the command line, talks and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("url")
    parser.add_argument("--token", default=os.environ.get("MCP_TOKEN"), help="bearer token (default: $MCP_TOKEN)")
    parser.add_argument("--era", choices=("auto", "modern", "legacy"), default="auto")
    parser.add_argument("--timeout", type=float, default=30, help="seconds to wait for the server")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list all tools")
    call = commands.add_parser("call", help="call one tool")
    call.add_argument("tool")
    call.add_argument("arguments", nargs="?", type=json.loads, default={}, help="arguments as JSON")
    call.add_argument("--answer", type=json.loads, help="content to answer questions with, as JSON")
    options = parser.parse_args()
    if options.command == "list":
        options.answer = None
    try:
        report = asyncio.run(talk(options))
    except Exception as error:
        print(json.dumps(failure(error)))
        return 1
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
