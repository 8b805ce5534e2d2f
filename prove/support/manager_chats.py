#!/usr/bin/env python3
"""Talks to the project manager with the official client of OpenAI, and checks what comes back, what is stored and what is stopped.

    manager_chats.py ROOT NOTES PEOPLE UP-PID [--chats N]

NOTES are those of pacing_model.py, PEOPLE a file with `{"handle": {"key": …, "project": …, "user": …}}`, UP-PID the process of `cynode up`.
Prints a line for each thing that holds, goes on after one that does not, and fails at the end if there was one.
"""

import argparse
import json
import os
import signal
import statistics
import threading
import time
import traceback
import urllib.error
import urllib.request

import openai

parser = argparse.ArgumentParser()
parser.add_argument("root")
parser.add_argument("notes")
parser.add_argument("people")
parser.add_argument("up", type=int)
parser.add_argument("--chats", type=int, default=30)
options = parser.parse_args()
PEOPLE = json.load(open(options.people))
PM = "cynodeai.pm"
count = iter(range(10**6))


def client(who="ada", **more):
    return openai.OpenAI(base_url=f"{options.root}/v1", api_key=PEOPLE[who]["key"], max_retries=0, timeout=60, **more)


def order_message(words="Please go on.", **do):
    """A message with an order for the model server, and the name under which it notes it."""
    do = {"id": f"w{next(count)}"} | do
    return f"{words} DO:{json.dumps(do)}", do["id"]


def notes(name, event=None):
    found = [json.loads(line) for line in open(options.notes)]
    return [note for note in found if note["id"] == name and event in (None, note["event"])]


def wait_for_note(name, event, seconds):
    """The note, as soon as it is there."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := notes(name, event):
            return found[0]
        time.sleep(0.02)
    raise AssertionError(f"{event} of {name} was not noted in {seconds} s: {notes(name)}")


def get(path, who="ada", method="GET", body=None):
    headers = {"Authorization": f"Bearer {PEOPLE[who]['key']}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    return json.load(urllib.request.urlopen(urllib.request.Request(options.root + path, data, headers, method=method), timeout=30))


def newest_turns(who="ada"):
    """The messages of the newest conversation."""
    thread = get("/v1/chat/threads", who)["items"][0]["thread_id"]
    turns = get(f"/v1/chat/threads/{thread}/messages", who)
    return turns["items"] if isinstance(turns, dict) else turns


def last_turn(who="ada", until=lambda turn: True, seconds=5):
    """The last message of the newest conversation, as soon as it is as wanted."""
    end = time.monotonic() + seconds
    while True:
        turns = newest_turns(who)
        if turns and until(turns[-1]):
            return turns[-1]
        assert time.monotonic() < end, turns[-3:]
        time.sleep(0.05)


def stream(text, who="ada", project=None):
    """Asks, and gives the pieces of text with their times."""
    headers = {"OpenAI-Project": project} if project else {}
    pieces = []
    answer = client(who).chat.completions.create(model=PM, stream=True, messages=[{"role": "user", "content": text}], extra_headers=headers)
    for chunk in answer:
        for choice in chunk.choices:
            if choice.delta.content:
                pieces.append((time.time(), choice.delta.content))
            if choice.finish_reason:
                pieces.append((time.time(), f"<{choice.finish_reason}>"))
    return pieces


def joined_text(pieces):
    return "".join(text for _, text in pieces)


def passes(what, **numbers):
    print(f"ok {what}" + ("; " + ", ".join(f"{name} {value}" for name, value in numbers.items()) if numbers else ""), flush=True)


def models():
    """A client finds the manager in the list, as any other model."""
    listed = {model.id: model for model in client().models.list()}
    assert PM in listed, f"S000-075: {PM} is not in the list: {sorted(listed)}"
    chosen = listed[PM].id
    answer = client().chat.completions.create(model=chosen, messages=[{"role": "user", "content": order_message(pieces=2)[0]}])
    assert answer.choices[0].message.content == "word0 word1 ", f"S000-075: chosen from the list, it does not answer: {answer}"
    assert answer.model == PM, f"S000-076: the answer names another model than {PM}: {answer.model}"
    passes("the manager is in the list of models, and is chosen from it", models=len(listed))


def streams():
    text, _name = order_message(pieces=12, gap=0.1)
    pieces = stream(text)
    assert joined_text(pieces).split() == [f"word{n}" for n in range(12)] + ["<stop>"], ("S000-016, S000-036", pieces)
    assert len(pieces) >= 12 and pieces[-1][0] - pieces[0][0] > 0.5, pieces
    turn = last_turn(until=lambda turn: turn["role"] == "assistant")
    assert turn["content"].split() == [f"word{n}" for n in range(12)] and turn["state"] == "whole", turn
    passes("deltas come as the model says them", pieces=len(pieces) - 1, spread_ms=round((pieces[-1][0] - pieces[0][0]) * 1000))

    answer = client().chat.completions.create(model=PM, messages=[{"role": "user", "content": order_message(pieces=3)[0]}])
    assert answer.choices[0].message.content == "word0 word1 word2 " and answer.choices[0].finish_reason == "stop", answer
    assert answer.usage.total_tokens > 0, answer
    passes("the same whole")

    # The words of an instance of Open WebUI that sets up its model: a system message is the person's, and is no hindrance.
    answer = client().chat.completions.create(
        model=PM, messages=[{"role": "system", "content": "Be short."}, {"role": "user", "content": order_message(pieces=2)[0]}]
    )
    assert answer.choices[0].message.content == "word0 word1 ", answer


def responses():
    text, _ = order_message(pieces=8, gap=0.1)
    kinds, times, whole = [], [], None
    for event in client().responses.create(model=PM, input=text, stream=True):
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            times.append(time.time())
        if event.type == "response.completed":
            whole = event.response
    assert whole and whole.output_text == "".join(f"word{n} " for n in range(8)), (kinds, whole)
    assert len(times) >= 8 and times[-1] - times[0] > 0.25, times
    answer = client().responses.create(model=PM, input=order_message(pieces=3)[0])
    assert answer.output_text == "word0 word1 word2 " and answer.status == "completed", answer
    passes("through /v1/responses, as a stream and whole", deltas=len(times))


class Approving:
    """Ada says yes to each call of the manager that waits for her, as it comes: the rules of a new installation ask for it."""

    def __enter__(self):
        self.tools, self.over = [], threading.Event()
        self.thread = threading.Thread(target=self.answer, daemon=True)
        self.thread.start()
        return self.tools

    def answer(self):
        while not self.over.wait(0.1):
            for waiting in get("/v1/approvals")["items"]:
                get(f"/v1/approvals/{waiting['approval_id']}", method="POST", body={"approved": True})
                self.tools.append(waiting["tool"])

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def task_of_a_chat(ask):
    """Creates a task, watches it and cancels it, each by what is said. What adds or ends is approved by the person who is there."""
    project, name = PEOPLE["ada"]["project"], f"from-a-chat-{next(count)}"
    create = ["db__task__create", {"project_id": project, "name": name, "description": "Write a greeting."}]
    with Approving() as approved:
        text = ask(order_message("Please create a task that writes a greeting.", calls=[create], gap=0.05)[0])
    assert approved == ["db.task.create"] and "waits for your approval" in text, (approved, text)
    found = [task for task in get(f"/v1/tasks?project_id={project}")["items"] if task["name"] == name]
    assert len(found) == 1 and "› db.task.create …" in text and found[0]["id"] in text, ("S002-34, S002-52", found, text)
    task = found[0]["id"]
    watch = [["db__task__get", {"task_id": task}], ["db__task__result", {"task_id": task}], ["db__task__logs", {"task_id": task}]]
    text = ask(order_message("How is the task? Read the task's result and its story, and its logs.", calls=watch, gap=0.05)[0])
    for tool in ("db.task.get", "db.task.result", "db.task.logs"):
        assert f"› {tool} …" in text, text
    assert "Not called" not in text and "Refused" not in text and "failed" not in text.split("word0")[0], text
    assert get(f"/v1/tasks/{task}")["state"] in ("queued", "running"), get(f"/v1/tasks/{task}")
    with Approving() as approved:
        text = ask(order_message("Cancel the task: stop it.", calls=[["db__task__cancel", {"task_id": task}]])[0])
    assert approved == ["db.task.cancel"], (approved, text)
    after = get(f"/v1/tasks/{task}")
    assert "› db.task.cancel …" in text and after["state"] == "cancelled", ("S000-018, S002-34", text, after)
    return task


def recorded_tools(project, expected, seconds=10):
    """The tools that the project manager called in a project, by the records, as soon as all expected ones are there."""
    end = time.monotonic() + seconds
    while True:
        records = get(f"/v1/audit?project_id={project}&limit=1000")["items"]
        tools = {it["tool"] for it in records if it["agent_role"] == "project_manager" and it["outcome"] == "success"}
        if expected <= tools or time.monotonic() > end:
            return tools
        time.sleep(0.1)


def tasks():
    progress = []

    def by_chat(text):
        pieces = stream(text)
        progress.append([(at, piece) for at, piece in pieces if "›" in piece])
        return joined_text(pieces)

    def by_responses(text):
        return "".join(
            event.delta for event in client().responses.create(model=PM, input=text, stream=True) if event.type == "response.output_text.delta"
        )

    task_of_a_chat(by_chat)
    called = {f"db.task.{verb}" for verb in ("create", "get", "result", "logs", "cancel")}
    recorded = recorded_tools(PEOPLE["ada"]["project"], called)
    assert called <= recorded, ("S000-018: what a chat does is in the records", called - recorded)
    watched = progress[1]
    assert len(watched) == 3 and watched[0][0] < watched[1][0] < watched[2][0], watched
    passes(
        "a chat creates a task, watches it with progress as deltas, and cancels it",
        steps=len(watched),
        apart_ms=round((watched[2][0] - watched[0][0]) * 1000),
    )
    task_of_a_chat(by_responses)
    task_of_a_chat(lambda text: client().responses.create(model=PM, input=text).output_text)
    passes("the same through /v1/responses, as a stream and whole")


def secrets():
    # In pieces, so that no tool takes this file for one that holds keys.
    planted = ["ghp_" + "Zq3vT8kWc1Lx" * 3, "AKIA" + "QWERTYUIOP234567", "sk-proj-" + "aB3dE5fG7hJ9kL1m" * 3]
    text, name = order_message("My keys are " + " and ".join(planted) + ", keep them.", pieces=2)
    assert joined_text(stream(text)), name
    request = wait_for_note(name, "request", 5)
    assert not any(secret in json.dumps(request) for secret in planted) and "[redacted:" in request["text"], ("S000-010", request)
    thread = get("/v1/chat/threads")["items"][0]["thread_id"]
    stored = json.dumps(get(f"/v1/chat/threads/{thread}/messages"))
    assert not any(secret in stored for secret in planted) and "[redacted:" in stored, ("S000-010", stored[-2000:])
    passes("a secret in a turn is neither passed on nor stored", planted=len(planted))
    return planted


def hang_ups():
    worst = 0
    for dialect in ("chat", "responses"):
        text, name = order_message(pieces=400, gap=0.1)
        if dialect == "chat":
            answer = client().chat.completions.create(model=PM, stream=True, messages=[{"role": "user", "content": text}])
        else:
            answer = client().responses.create(model=PM, input=text, stream=True)
        received = 0
        for event in answer:
            received += "word" in str(event)
            if received == 4:
                break
        answer.close()
        left = time.time()
        took = wait_for_note(name, "left", 4)["at"] - left
        worst = max(worst, took)
        assert took <= 2, took
        turn = last_turn(until=lambda turn: turn["role"] == "assistant" and turn["state"] != "whole")
        assert turn["state"] == "interrupted" and turn["content"].startswith("word0 word1 "), turn
        assert not notes(name, "finished"), notes(name)
    passes("whoever hangs up stops the model within 2 s, and the turn is stored as interrupted", worst_ms=round(worst * 1000))


def hang_up_of_a_whole():
    """A client that wants the whole answer hangs up while it waits."""
    text, name = order_message(pieces=400, gap=0.1)
    started = time.time()
    try:
        client().with_options(timeout=1.0).chat.completions.create(model=PM, messages=[{"role": "user", "content": text}])
        raise AssertionError("an answer of 40 s came in one")
    except openai.APITimeoutError:
        left = time.time()
    took = wait_for_note(name, "left", 4)["at"] - left
    assert took <= 2, (took, left - started)
    turn = last_turn(until=lambda turn: turn["role"] == "assistant" and turn["state"] != "whole")
    assert turn["state"] == "interrupted" and turn["content"].startswith("word0 "), turn
    passes("the same for whoever waits for a whole answer", ms=round(took * 1000))


def latency():
    first = []
    for _ in range(options.chats):
        text, name = order_message(pieces=4, gap=0.05)
        received = next(at for at, piece in stream(text) if "word0" in piece)
        first.append((received - notes(name, "first")[0]["at"]) * 1000)
    first.sort()
    p50, p95 = statistics.median(first), first[max(0, -(-len(first) * 95 // 100) - 1)]
    passes("from the model's first word to the client's", chats=len(first), p50_ms=round(p50, 1), p95_ms=round(p95, 1), max_ms=round(first[-1], 1))
    assert p95 <= 300, first


def two_people():
    received = {}

    def talk(who, number):
        word = f"{who}{number}x"
        received[who, number] = (word, joined_text(stream(order_message(f"I am {who}.", word=word, pieces=10, gap=0.03)[0], who)))

    threads = [threading.Thread(target=talk, args=(who, number)) for number in range(5) for who in ("ada", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(received) == 10, received.keys()
    for word, text in received.values():
        assert text.split() == [f"{word}{n}" for n in range(10)] + ["<stop>"], (word, text)
    for who, other in (("ada", "bob"), ("bob", "ada")):
        for thread in get("/v1/chat/threads", who)["items"]:
            stored = json.dumps(get(f"/v1/chat/threads/{thread['thread_id']}/messages", who))
            assert f"{other}0x" not in stored and f"I am {other}" not in stored, stored[-1000:]
            try:
                get(f"/v1/chat/threads/{thread['thread_id']}/messages", other)
                raise AssertionError("somebody reads the conversation of another")
            except urllib.error.HTTPError as error:
                assert error.code == 404, error
    passes("ten chats of two people at once do not mix, and nobody reads the other's", chats=len(received))


def processes(program, argument=b""):
    """The processes of a program that `cynode up` keeps, those with an argument if one is given."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")
            parent = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if parent == options.up and words[0].endswith(program) and (not argument or argument in words):
            found.append(int(pid))
    return found


def managers():
    """The processes of the project manager that `cynode up` keeps."""
    return processes(b"cynode-pma", b"--role=project_manager")


def chats_again(seconds=15):
    """What the project manager says as soon as it answers again."""
    until = time.time() + seconds
    while True:
        try:
            return joined_text(stream(order_message(pieces=2)[0]))
        except openai.APIStatusError as error:
            assert error.status_code == 503 and time.time() < until, error
            time.sleep(0.1)


def kill_manager():
    for dialect in ("chat", "responses"):
        (pid,) = managers()
        text, name = order_message(pieces=300, gap=0.1)
        received, failure, last_type, at = 0, None, None, None
        try:
            if dialect == "chat":
                answer = client().chat.completions.create(model=PM, stream=True, messages=[{"role": "user", "content": text}])
            else:
                answer = client().responses.create(model=PM, input=text, stream=True)
            for event in answer:
                received += "word" in str(event)
                last_type = getattr(event, "type", None)
                if received == 3 and at is None:
                    os.kill(pid, signal.SIGKILL)
                    at = time.time()
                if dialect == "responses" and last_type in ("error", "response.failed"):
                    failure = event
        except openai.APIError as error:
            failure = error
        assert failure is not None, f"S000-074: {dialect}: the stream of a killed manager ended as if it were whole, with {last_type}"
        assert time.time() - at < 5, time.time() - at
        turn = last_turn(until=lambda turn: turn["role"] == "assistant" and turn["state"] != "whole")
        assert turn["state"] == "failed" and turn["content"].startswith("word0 "), turn
        kept = newest_turns()[-2:]
        states = [(turn["role"], turn["state"]) for turn in kept]
        assert states == [("user", "whole"), ("assistant", "failed")] and name in kept[0]["content"], ("S000-012", kept)
        wait_for_note(name, "left", 5)
        again = chats_again()
        assert again.split() == ["word0", "word1", "<stop>"], again
        assert managers() != [pid], pid
        error = getattr(getattr(failure, "response", None), "error", None) or failure
        what = f"a manager killed in the middle of a stream of {dialect}: an error in the dialect, and the next works"
        passes(what, after_ms=round((time.time() - at) * 1000), message=repr(getattr(error, "message", str(error)))[:100])


def one_of_two_killed():
    """The project manager and the runner are two processes: killing one leaves the other at work."""
    (runner,), (manager,) = processes(b"cynode-runner"), managers()
    text, _ = order_message(pieces=30, gap=0.05)
    words, killed = "", False
    for chunk in client().chat.completions.create(model=PM, stream=True, messages=[{"role": "user", "content": text}]):
        words += "".join(choice.delta.content or "" for choice in chunk.choices)
        if "word3" in words and not killed:
            os.kill(runner, signal.SIGKILL)
            killed = True
    whole = [f"word{n}" for n in range(30)]
    assert killed and words.split() == whole and managers() == [manager], ("S000-033: a chat goes on without the runner", words)

    until = time.monotonic() + 30
    while processes(b"cynode-runner") in ([], [runner]):
        assert time.monotonic() < until, "the runner is not started again"
        time.sleep(0.05)
    (runner,) = processes(b"cynode-runner")
    os.kill(manager, signal.SIGKILL)
    task = get("/v1/tasks", method="POST", body={"project_id": PEOPLE["ada"]["project"], "description": "Write a greeting."})["id"]
    until = time.monotonic() + 30
    while get(f"/v1/tasks/{task}")["state"] != "running":
        assert time.monotonic() < until, ("S000-033: a task is driven without the manager", get(f"/v1/tasks/{task}"))
        time.sleep(0.05)
    assert processes(b"cynode-runner") == [runner], "S000-033: the runner lives on"
    assert chats_again().split() == ["word0", "word1", "<stop>"]
    with Approving():
        stream(order_message("Cancel the task: stop it.", calls=[["db__task__cancel", {"task_id": task}]])[0])
    passes("a chat goes on without the runner, and a task is driven without the manager")


failed, planted = 0, []
for check in (models, streams, responses, tasks, secrets, hang_ups, latency, two_people, kill_manager, hang_up_of_a_whole, one_of_two_killed):
    try:
        planted += check() or []
    except Exception:
        failed += 1
        print(f"NOT SO: {check.__name__}: {traceback.format_exc()[-1500:]}", flush=True)
print("planted " + " ".join(planted))
raise SystemExit(1 if failed else 0)
