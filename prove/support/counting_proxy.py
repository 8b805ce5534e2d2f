#!/usr/bin/env python3
"""Passes requests on to a server on loopback, streams as they come, and keeps one line for each: method, path and status.

    counting_proxy.py PORT UPSTREAM_PORT LOG

The line is there before whoever asked has the first byte of the answer. The log may be emptied at any time.
"""

import http.client
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, UPSTREAM_PORT, LOG = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
# Of one connection only, or set anew here.
OWN = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "date", "server", "upgrade", "te", "trailer"}
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        upstream = http.client.HTTPConnection("127.0.0.1", UPSTREAM_PORT, timeout=120)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in OWN}
        upstream.request(self.command, self.path, body or None, headers)
        answer = upstream.getresponse()
        with lock, open(LOG, "a", encoding="utf-8") as log:
            log.write(f"{self.command} {self.path.partition('?')[0]} {answer.status}\n")
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in OWN:
                self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        # Where the length is not told, the end of the connection is the end of the answer.
        while piece := answer.read1(65536):
            self.wfile.write(piece)
        upstream.close()
        self.close_connection = True

    do_GET = do_HEAD = do_POST = pass_on


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Whoever asked may go away."""


Server(("127.0.0.1", PORT), Handler).serve_forever()
