"""Load of users, programs and admins while keys are rotated.

rotate_load.py STOP_FILE THREADS USER_ADDRESSES INTERNAL_ADDRESSES: asks the servers until STOP_FILE exists, by TLS. Addresses are separated
by commas. Each of THREADS threads reads with a session and with an API key, logs in, makes API keys and uses them at the other server,
issues agent tokens, and stores provider keys. Three of four threads open new connections all the time, and the fourth keeps its own. One
more thread asks the internal ports and calls a tool there (MCP), each time by a new connection with the client certificate that is there then. Prints one JSON object:
how many requests were sent, how many failed, the first failures, and how many certificates the two kinds of ports have shown. Fails when
a request failed.

ADMIN_TOKEN, ADMIN_PASSWORD, AGENT_TOKEN, PROJECT and TASK are in the environment, and the files CA_FILE and INTERNAL_CA_FILE that the ports are verified
with, and the directory CLIENT_DIRECTORY with `client.pem` and `client.key`, which may be a link that changes.
"""

import hashlib
import http.client
import itertools
import json
import os
import pathlib
import ssl
import sys
import threading
import time

MAX_SHOWN_FAILURES = 10
TIMEOUT_SECONDS = 20
TURNS_PER_CONNECTION = 5
MCP_PROTOCOL = "2026-07-28"
MCP_TOOL = "help__overview"


class Counter:
    """Requests, failures and certificates of all threads."""

    def __init__(self):
        self.lock, self.sent, self.failures, self.slowest = threading.Lock(), 0, [], 0.0
        self.certificates = {"user": set(), "internal": set()}
        self.tool_calls = 0

    def note(self, what, seconds, failure):
        with self.lock:
            self.sent += 1
            self.slowest = max(self.slowest, seconds)
            if failure is not None:
                self.failures.append(f"{what}: {failure}")

    def note_certificate(self, port, certificate):
        with self.lock:
            self.certificates[port].add(hashlib.sha256(certificate).hexdigest())


def send(counter, port, connection, method, path, token, body=None, more=None):
    """Sends a request over a connection and returns the answer's bytes; None when it failed, and then the connection is closed."""
    headers = {"Content-Type": "application/json"} | (more or {})
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    began = time.monotonic()
    answer, failure = None, None
    try:
        if connection.sock is None:
            connection.connect()
            counter.note_certificate(port, connection.sock.getpeercert(binary_form=True))
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        text = response.read()
        if response.status >= 300 or (more and not is_result(text)):
            failure = f"{response.status} {text[:200].decode(errors='replace')}"
        else:
            answer = text
    except (OSError, http.client.HTTPException) as error:
        failure = repr(error)
        connection.close()
    counter.note(f"{method} {path}", time.monotonic() - began, failure)
    return answer


def is_result(text):
    """Whether an answer of MCP, as JSON or as events, is the result of a tool that ran."""
    lines = [line[6:] for line in text.decode().splitlines() if line.startswith("data: {")]
    answer = json.loads(lines[-1] if lines else text)
    return "result" in answer and not answer["result"].get("isError")


def call_tool(counter, connection):
    """A call of a tool with an agent's token, which is recorded in the audit log."""
    meta = {"io.modelcontextprotocol/protocolVersion": MCP_PROTOCOL, "io.modelcontextprotocol/clientCapabilities": {}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": MCP_TOOL, "arguments": {}, "_meta": meta}}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MCP_PROTOCOL,
        "mcp-method": "tools/call",
        "mcp-name": MCP_TOOL,
    }
    if send(counter, "internal", connection, "POST", "/mcp", os.environ["AGENT_TOKEN"], body, headers) is not None:
        counter.tool_calls += 1


class Caller:
    """One thread's connections, one to each server."""

    def __init__(self, counter, addresses):
        context = ssl.create_default_context(cafile=os.environ["CA_FILE"])
        self.counter = counter
        self.connections = [http.client.HTTPSConnection(address, timeout=TIMEOUT_SECONDS, context=context) for address in addresses]

    def call(self, server, method, path, token, body=None):
        """Sends a request and returns the answer's JSON; None when it failed."""
        connection = self.connections[server % len(self.connections)]
        answer = send(self.counter, "user", connection, method, path, token, body)
        return json.loads(answer or "{}") if answer is not None else None

    def close(self):
        for connection in self.connections:
            connection.close()


def work(caller, number, stop):
    """The requests of one thread, until the file exists."""
    admin, password = os.environ["ADMIN_TOKEN"], os.environ["ADMIN_PASSWORD"]
    project, task = os.environ["PROJECT"], os.environ["TASK"]
    key = None
    for turn in itertools.count():
        if stop.exists():
            return
        caller.call(turn, "GET", "/v1/me", admin)
        caller.call(turn + 1, "GET", "/v1/tasks?limit=1", admin)
        if key is not None:
            caller.call(turn, "GET", "/v1/me", key)
        if turn % 10 == 0:
            made = caller.call(turn, "POST", "/v1/api-keys", admin, {"name": f"load {number} {turn}"})
            key = made["token"] if made else key
            caller.call(turn + 1, "GET", "/v1/me", key)
        if turn % 15 == 5:
            body = {"label": f"label-{number}-{turn}", "key": "sk-a-secret-of-the-load"}
            caller.call(turn, "POST", "/v1/providers/tape/keys", admin, body)
        if turn % 15 == 10:
            body = {"role": "developer", "project_id": project, "task_id": task, "expires_in_seconds": 3600}
            caller.call(turn, "POST", "/v1/agent-tokens", admin, body)
        if turn % 50 == 25 and number == 0:
            session = caller.call(turn, "POST", "/v1/sessions", None, {"handle": "admin", "password": password})
            if session:
                caller.call(turn + 1, "GET", "/v1/me", session["token"])
        if number % 4 != 3 and turn % TURNS_PER_CONNECTION == 0:
            caller.close()
        time.sleep(0.01)


def work_inside(counter, addresses, stop):
    """The requests to the internal ports, until the file exists."""
    for address in itertools.cycle(addresses):
        if stop.exists():
            return
        # Both files are those of one pair, also if the link changes meanwhile.
        client = pathlib.Path(os.environ["CLIENT_DIRECTORY"]).resolve()
        context = ssl.create_default_context(cafile=os.environ["INTERNAL_CA_FILE"])
        context.load_cert_chain(client / "client.pem", client / "client.key")
        connection = http.client.HTTPSConnection(address, timeout=TIMEOUT_SECONDS, context=context)
        send(counter, "internal", connection, "GET", "/v1/openapi.json", None)
        call_tool(counter, connection)
        connection.close()
        time.sleep(0.05)


def main():
    stop, threads = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    users, internals = (words.split(",") for words in sys.argv[3:5])
    counter = Counter()
    workers = [threading.Thread(target=work, args=(Caller(counter, users), number, stop)) for number in range(threads)]
    workers.append(threading.Thread(target=work_inside, args=(counter, internals, stop)))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    result = {
        "requests": counter.sent,
        "failed": len(counter.failures),
        "tool_calls": counter.tool_calls,
        "slowest_ms": round(counter.slowest * 1000),
        "user_certificates": len(counter.certificates["user"]),
        "internal_certificates": len(counter.certificates["internal"]),
        "failures": counter.failures[:MAX_SHOWN_FAILURES],
    }
    print(json.dumps(result))
    sys.exit(1 if counter.failures else 0)


if __name__ == "__main__":
    main()
