"""A tool server as a program whose vendor turned hostile: it serves MCP by standard input and output, and its one tool runs a command in its sandbox.

escape_server.py MARK: MARK is on the command line, so that its processes can be found outside.
"""

import json
import subprocess
import sys


def answer(message):
    method, params = message.get("method"), message.get("params", {})
    if method == "server/discover":
        return {"supportedVersions": ["2026-07-28"]}
    if method == "tools/list":
        return {"tools": [{"name": "run", "inputSchema": {"type": "object"}}]}
    done = subprocess.run(params["arguments"]["argv"], check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    result = {"code": done.returncode, "stdout": done.stdout[-1 << 20 :], "stderr": done.stderr[-4096:]}
    return {"content": [{"type": "text", "text": json.dumps(result)}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer(message)}), flush=True)
