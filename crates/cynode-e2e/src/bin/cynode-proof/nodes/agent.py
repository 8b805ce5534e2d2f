"""A coding agent that asks before it does anything: it speaks the Agent Client Protocol on its standard input and output."""

import json
import os
import sys

SESSIONS = os.path.expanduser("~/sessions")


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def receive():
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    return json.loads(line)


def may_i(session):
    """Asks for leave to write a file; what else comes meanwhile does not matter to it."""
    call = {"toolCallId": "write", "title": "Write the file", "kind": "edit", "rawInput": {"path": "/work/asking"}}
    update = {"sessionUpdate": "tool_call", "status": "pending", **call}
    send({"method": "session/update", "params": {"sessionId": session, "update": update}})
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}, {"optionId": "no", "name": "No", "kind": "reject_once"}]
    params = {"sessionId": session, "toolCall": {"toolCallId": "write"}, "options": options}
    send({"id": "may-i", "method": "session/request_permission", "params": params})
    while (message := receive()).get("id") != "may-i":
        if message.get("method") == "session/cancel":
            return None
    return message.get("result", {}).get("outcome", {}).get("optionId") == "yes"


def answer(method, params):
    if method == "initialize":
        can = {"loadSession": True, "mcpCapabilities": {"http": True}, "sessionCapabilities": {"resume": {}}}
        return {"protocolVersion": 1, "agentCapabilities": can}
    if method == "session/new":
        with open(SESSIONS, "a") as file:
            session = f"session-{file.tell()}"
            file.write(session + "\n")
        return {"sessionId": session}
    if method in ("session/load", "session/resume"):
        with open(SESSIONS) as file:
            known = file.read().split()
        return {} if params["sessionId"] in known else None
    if method == "session/prompt":
        allowed = may_i(params["sessionId"])
        if allowed is None:
            return {"stopReason": "cancelled"}
        if allowed:
            with open("/work/asking", "w") as file:
                file.write("allowed\n")
        return {"stopReason": "end_turn"}
    return {} if method == "session/set_mode" else None


if sys.argv[1:] == ["--version"]:
    print("1.0.0")
    sys.exit()
while True:
    request = receive()
    if "id" in request and "method" in request:
        said = answer(request["method"], request.get("params", {}))
        failed = {"error": {"code": -32603, "message": "it cannot be done"}}
        send({"id": request["id"], **(failed if said is None else {"result": said})})
