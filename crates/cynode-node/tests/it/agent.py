"""A coding agent for tests: it does what it is told in words, and misbehaves when it is told to. FAKE_START says how it starts."""

import json
import os
import sys
import time

START = os.environ.get("FAKE_START", "")
SESSIONS = os.path.expanduser("~/sessions")
session = None
asked = 0
number = 0


def write(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    sys.stdout.flush()


def read():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def update(**what):
    write({"method": "session/update", "params": {"sessionId": session, "update": what}})


def say(text):
    for piece in (text[:3], text[3:]):
        update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": piece})


def tool(title, **given):
    global number
    number += 1
    update(sessionUpdate="tool_call", toolCallId=f"call-{number}", title=title, kind="execute", status="pending", rawInput=given)
    return f"call-{number}"


def done(call, status="completed"):
    update(sessionUpdate="tool_call_update", toolCallId=call, status=status)


def ask(method, **params):
    global asked
    asked += 1
    write({"id": f"ask-{asked}", "method": method, "params": {"sessionId": session} | params})
    while True:
        message = read()
        if message.get("id") == f"ask-{asked}":
            return message.get("result") or message["error"]


def until_cancelled():
    while read().get("method") != "session/cancel":
        pass


def note(name, value):
    with open(f"/work/{name}", "a") as file:
        file.write(json.dumps(value) + "\n")


def prompt(text):
    note("prompts", text)
    if text == "greet":
        update(sessionUpdate="agent_thought_chunk", content={"type": "text", "text": "Hm."})
        say("I look.")
        call = tool("ls", command="ls")
        update(sessionUpdate="plan", entries=[{"content": "greet", "priority": "high", "status": "pending"}])
        done(call)
        update(sessionUpdate="usage_update", used=10, size=100)
        say("Hello.")
        return {"stopReason": "end_turn", "usage": {"totalTokens": 12}}
    if text == "noise":
        sys.stderr.write("a complaint\n")
        sys.stderr.flush()
        print("Listening on port 1")
        print("y" * (17 * 1024 * 1024))
        print("[]")
        update(sessionUpdate="something_new", x=1)
        write({"method": "session/update", "params": {"nonsense": True}})
        write({"id": 99, "result": {}})
        write({"method": "session/update", "params": {"sessionId": "another", "update": {
            "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "not mine"}}}})
        say("Still here.")
        return {"stopReason": "end_turn"}
    if text == "die":
        sys.stderr.write("panic: no more\n")
        sys.stderr.flush()
        os._exit(3)
    if text == "hang":
        time.sleep(1000)
    if text == "babble":
        while True:
            print("noise")
            sys.stdout.flush()
            time.sleep(0.02)
    if text == "work for ever":
        while True:
            done(tool("think", step=time.time()))
            time.sleep(0.02)
    if text == "go in circles":
        for _ in range(1000):
            done(tool("cat", path="a"))
            done(tool("cat", path="b"))
        until_cancelled()
        return {"stopReason": "cancelled"}
    if text == "use yours":
        answers = [ask("fs/read_text_file", path="/etc/passwd"), ask("terminal/create", command="id"), ask("_ours/thing")]
        say(" ".join(str(answer.get("code")) for answer in answers))
        return {"stopReason": "end_turn"}
    if text == "ask much":
        call = tool("Terminal", command="rm -rf build")
        options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}, {"optionId": "no", "name": "No", "kind": "reject_once"}]
        asks = {f"much-{at}" for at in range(20)}
        for id in sorted(asks):
            write({"id": id, "method": "session/request_permission",
                "params": {"sessionId": session, "toolCall": {"toolCallId": call, "title": "rm"}, "options": options}})
        refused = 0
        while refused < 12:
            message = read()
            if message.get("id") in asks and message["result"]["outcome"].get("optionId") == "no":
                refused += 1
        say(f"{refused} refused")
        return {"stopReason": "end_turn"}
    if text.startswith("ask"):
        call = tool("Terminal", command="rm -rf build")
        options = [
            {"optionId": "always", "name": "Always", "kind": "allow_always"},
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        ]
        if text == "ask":
            options.append({"optionId": "no", "name": "No", "kind": "reject_once"})
        answer = ask("session/request_permission", toolCall={"toolCallId": call, "title": "rm -rf build"}, options=options)
        say(json.dumps(answer["outcome"]))
        return {"stopReason": "end_turn"}
    if text == "wait":
        say("Waiting.")
        until_cancelled()
        say("Stopped.")
        return {"stopReason": "cancelled"}
    if text == "refuse":
        return {"stopReason": "refusal"}
    if text == "too much":
        return {"stopReason": "max_tokens"}
    if text == "nonsense":
        return {"stopReason": 7}
    say("You said: " + text)
    return {"stopReason": "end_turn"}


def answer(method, params):
    global session
    if method == "initialize":
        capabilities = {"mcpCapabilities": {"http": True}, "loadSession": True}
        if START != "loads":
            capabilities["sessionCapabilities"] = {"resume": {}}
        return {"protocolVersion": 2 if START == "newer" else 1, "agentCapabilities": capabilities}
    if method == "session/new":
        note("new", params | {"fake": os.environ.get("FAKE_ENV"), "file": open(os.path.expanduser("~/.fake/config")).read()})
        if START == "refuses":
            raise ValueError("no session today")
        session = f"session-{time.time_ns()}"
        with open(SESSIONS, "a") as file:
            file.write(session + "\n")
        return {"sessionId": session}
    if method in ("session/load", "session/resume"):
        note("taken", {"method": method, "servers": len(params["mcpServers"])})
        if params["sessionId"] not in open(SESSIONS).read().split():
            raise ValueError("no such session")
        session = params["sessionId"]
        if method == "session/load":
            say("What was said before.")
        return {}
    if method == "session/set_mode":
        note("mode", params["modeId"])
        return {}
    if method == "session/prompt":
        [block] = params["prompt"]
        if block["text"] == "fail":
            raise ValueError("402: the budget is spent")
        return prompt(block["text"])
    raise ValueError(f"no method {method}")


if START == "dies":
    sys.exit("cannot start")
if START == "babbles":
    print("hello\n" * 10, flush=True)
    time.sleep(1000)
while True:
    message = read()
    if "method" not in message or "id" not in message:
        continue
    try:
        write({"id": message["id"], "result": answer(message["method"], message["params"])})
    except (ValueError, OSError) as error:
        write({"id": message["id"], "error": {"code": -32603, "message": "Internal error", "data": {"details": str(error)}}})
