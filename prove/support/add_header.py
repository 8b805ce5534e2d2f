#!/usr/bin/env python3
"""A reverse proxy that adds headers to every request, for clients that cannot be told to send them.

    add_header.py --listen 127.0.0.1:0 --to 127.0.0.1:8080 'Authorization: Bearer TOKEN' [--log FILE]

Prints one line of JSON with the address it listens on, {"listen": "127.0.0.1:41234"}, and serves until it is stopped.
Requests keep their bytes but for the added headers, and for a Host or an Origin that names the proxy itself, which then
names the server behind it; foreign ones stay as they are. Answers are passed on byte for byte as they arrive, so streams
stream. HTTP/1.1 without TLS on both sides.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from typing import TextIO

HEAD_LIMIT = 1 << 20
CHUNK = 1 << 16


def address(text: str) -> tuple[str, int]:
    """Splits `host:port`; an IPv6 host stands in brackets."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def header(text: str) -> tuple[bytes, bytes]:
    """Splits `Name: value`."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"not a header: {text!r}")
    return name.strip().encode("latin-1"), value.strip().encode("latin-1")


class Proxy:
    """One listening address, one server behind it, and the headers to add."""

    def __init__(self, to: str, added: list[tuple[bytes, bytes]], log: TextIO | None) -> None:
        self.to = to
        self.added = added
        self.log = log
        self.own: set[bytes] = set()

    def listens_on(self, host: str, port: int) -> None:
        """Tells the proxy the names under which clients know it."""
        self.own = {f"{name}:{port}".encode() for name in (host, "localhost", "127.0.0.1", "[::1]")}

    def note(self, **what: object) -> None:
        """Writes one line of the log, if there is one."""
        if self.log:
            print(json.dumps({"time": round(time.time(), 3), **what}), file=self.log, flush=True)

    def rewrite(self, head: bytes) -> bytes:
        """The head of a request with the headers added and its own name replaced."""
        start, *lines = head[:-4].split(b"\r\n")
        replaced = {name.lower() for name, _ in self.added}
        rewritten = [start]
        for line in lines:
            name, _, value = line.partition(b":")
            key = name.strip().lower()
            if key in replaced:
                continue
            if key == b"host" and value.strip().lower() in self.own:
                line = name + b": " + self.to.encode()
            elif key == b"origin":
                scheme, slashes, authority = value.strip().partition(b"://")
                if slashes and authority.lower() in self.own:
                    line = name + b": " + scheme + slashes + self.to.encode()
            rewritten.append(line)
        rewritten += [name + b": " + value for name, value in self.added]
        return b"\r\n".join(rewritten) + b"\r\n\r\n"

    async def requests(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Passes requests on until the client ends."""
        while True:
            try:
                head = await source.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            fields: dict[bytes, bytes] = {}
            for line in head[:-4].split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                fields[name.strip().lower()] = value.strip()
            sink.write(self.rewrite(head))
            if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
                body = await self.chunks(source, sink)
            else:
                body = await self.exactly(source, sink, int(fields.get(b"content-length", b"0")))
            await sink.drain()
            self.note(head=head.decode("latin-1"), body=body.decode("utf-8", "replace"))

    async def exactly(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int) -> bytes:
        """Passes on a body of a known length; returns it if there is a log."""
        seen = b""
        while length > 0:
            data = await source.readexactly(min(length, CHUNK))
            length -= len(data)
            sink.write(data)
            await sink.drain()
            if self.log:
                seen += data
        return seen

    async def chunks(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> bytes:
        """Passes on a chunked body; returns it if there is a log."""
        seen = b""
        while True:
            line = await source.readuntil(b"\r\n")
            sink.write(line)
            size = int(line.split(b";")[0], 16)
            if size == 0:
                while True:
                    trailer = await source.readuntil(b"\r\n")
                    sink.write(trailer)
                    if trailer == b"\r\n":
                        return seen
            seen += await self.exactly(source, sink, size)
            sink.write(await source.readexactly(2))

    async def answers(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Passes on what the server says, as it says it."""
        while data := await source.read(CHUNK):
            if self.log:
                self.note(answer=data.decode("utf-8", "replace"))
            sink.write(data)
            await sink.drain()

    async def serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        """One connection of a client, with one to the server of its own."""
        writers = [client_out]
        try:
            server_in, server_out = await asyncio.open_connection(*address(self.to), limit=HEAD_LIMIT)
            writers.append(server_out)
            forth = asyncio.ensure_future(self.requests(client_in, server_out))
            back = asyncio.ensure_future(self.answers(server_in, client_out))
            # Either side ending ends both: a closed stream is how a call is cancelled.
            done, pending = await asyncio.wait({forth, back}, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.gather(*done, *pending, return_exceptions=True)
        except OSError as error:
            self.note(error=str(error))
        finally:
            for writer in writers:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()


async def main() -> None:
    """Reads the command line and serves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--listen", default="127.0.0.1:0", help="address to listen on (default: a free port on loopback)"
    )
    parser.add_argument("--to", required=True, help="address of the server behind, host:port")
    parser.add_argument("--log", type=argparse.FileType("a"), help="append every request and answer as JSON lines")
    parser.add_argument(
        "headers", nargs="+", type=header, metavar="HEADER", help="'Name: value'; replaces one the client sent"
    )
    options = parser.parse_args()

    proxy = Proxy(options.to, options.headers, options.log)
    host, port = address(options.listen)
    server = await asyncio.start_server(proxy.serve, host, port, limit=HEAD_LIMIT)
    port = server.sockets[0].getsockname()[1]
    proxy.listens_on(host, port)
    print(json.dumps({"listen": f"{host}:{port}"}), flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
