"""An innocent agent: it calls a tool and asks a model all the time, and notes how long each call took, until it is ended.

innocent_probe.py FILE: FILE is JSON with `internal` (the port for agents), `token` and `notes` (where a line goes for each call).
"""

import http.client
import json
import sys
import threading
import time
import urllib.parse

PAUSE_SECONDS = {"tool": 0.05, "model": 0.1}
ABOUT = json.load(open(sys.argv[1]))
ADDRESS = urllib.parse.urlsplit(ABOUT["internal"])
HEADERS = {"authorization": f"Bearer {ABOUT['token']}", "content-type": "application/json"}
PROTOCOL = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": PROTOCOL, "io.modelcontextprotocol/clientCapabilities": {}}
notes = open(ABOUT["notes"], "a", buffering=1)
lock = threading.Lock()


def call_tool(connection, number):
    headers = HEADERS | {"accept": "application/json, text/event-stream", "mcp-protocol-version": PROTOCOL, "mcp-method": "tools/call",
                         "mcp-name": "help__overview"}  # fmt: skip
    params = {"name": "help__overview", "arguments": {}, "_meta": META}
    connection.request("POST", "/mcp", json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}), headers)
    answer = connection.getresponse()
    said = answer.read().decode(errors="replace")
    return answer.status == 200 and '"isError":true' not in said and '"error"' not in said[:80], f"{answer.status} {said[:300]}"


def ask_model(connection, number):
    body = {"model": "scripted", "messages": [{"role": "user", "content": f"Number {number}."}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), HEADERS)
    answer = connection.getresponse()
    said = answer.read().decode(errors="replace")
    return answer.status == 200, f"{answer.status} {said[:300]}"


def call_for_ever(kind, call):
    connection, number = None, 0
    while True:
        number += 1
        began = time.monotonic()
        try:
            connection = connection or http.client.HTTPConnection(ADDRESS.hostname, ADDRESS.port, timeout=60)
            good, said = call(connection, number)
        except (OSError, http.client.HTTPException) as error:
            good, said, connection = False, repr(error), None
        taken = time.monotonic() - began
        row = {"at": began, "kind": kind, "ms": round(taken * 1000, 2), "ok": good} | ({} if good else {"said": said})
        with lock:
            notes.write(json.dumps(row) + "\n")
        time.sleep(max(0.0, PAUSE_SECONDS[kind] - taken))


threading.Thread(target=call_for_ever, args=("model", ask_model), daemon=True).start()
call_for_ever("tool", call_tool)
