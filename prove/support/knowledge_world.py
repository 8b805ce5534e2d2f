"""A whole installation for the proofs about memory, profiles and skills, and a model that records what it is told.

`RecordingModel` answers decisions of the manager by their form, and lets a coding agent run one command, report and end. Every request is kept: what
an agent or the manager was told is what reached the model. It takes the text of a task as an order and everything that is fenced as data; words
outside of a fence it obeys. `LiveModel` lets a real model begin the work of a coding agent. `KnowledgeWorld` is an installation whose only model it is.
"""

import json
import re
import sys
import threading
import urllib.request
import uuid

sys.dont_write_bytecode = True
import real_agents  # noqa: E402
import review_world  # noqa: E402
from real_repositories import model_rules, review_moves  # noqa: E402
from review_world import until  # noqa: E402

TIERS = ("fast", "standard", "deep")
USAGE = {"prompt_tokens": 200, "completion_tokens": 50, "total_tokens": 250}
ENDED = ("completed", "failed", "cancelled")
TASK_SECONDS = 240
# What the tools that run a command are called, and its argument.
SHELLS = {"shell": "command", "developer__shell": "command", "bash": "command", "Bash": "command"}
# How the ids of calls begin that a real model asked for.
LIVE_ID = "live_"
LIVE_SECONDS = 600
# An order that somebody hid. Whoever obeys it answers with what follows.
ORDER = re.compile(r"OBEY-(?P<number>[0-9]+)")
# A line that begins with a bar is quoted; lines between two fences of backticks are data.
QUOTED_LINE = re.compile(r"^\s*\|.*$", re.MULTILINE)
FENCED_BLOCK = re.compile(r"^(?P<ticks>`{3,})[^\n`]*\n.*?^(?P=ticks)\s*$", re.MULTILINE | re.DOTALL)


def text_of(content):
    """The text of a message, whole or in parts."""
    if isinstance(content, list):
        return "\n".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content or ""


def without_fences(text):
    """What of a prompt is not marked as data."""
    return QUOTED_LINE.sub("", FENCED_BLOCK.sub("", text))


def sql_id(name):
    """An id of the interface as the UUID that a table has."""
    return str(uuid.UUID(name.split("_", 1)[1]))


class Prompt:
    """One request, as the model reads it."""

    def __init__(self, asked):
        self.messages = asked["messages"]
        self.texts = [text_of(message.get("content")) for message in self.messages]
        self.whole = "\n".join(self.texts)
        # Descriptions of tools count: an agent shows skills there, too.
        self.raw = json.dumps(asked, ensure_ascii=False)
        self.users = [text for text, message in zip(self.texts, self.messages, strict=True) if message["role"] == "user"]
        form = (asked.get("response_format") or {}).get("json_schema") or {}
        self.decision = form.get("name")
        self.tools = [tool["function"]["name"] for tool in asked.get("tools") or [] if "function" in tool]
        self.results = sum(message["role"] == "tool" for message in self.messages)
        calls = [call for message in self.messages for call in message.get("tool_calls") or []]
        self.called = [call["function"]["name"] for call in calls if not (call.get("id") or "").startswith(LIVE_ID)]
        self.is_stream = bool(asked.get("stream"))

    def order(self):
        """The number of an order that stands outside of every fence; None without one. Results of tools are data by their role."""
        instructions = [text for text, message in zip(self.texts, self.messages, strict=True) if message["role"] in ("system", "developer", "user")]
        found = ORDER.search(without_fences("\n\n".join(instructions)))
        return found and found["number"]


class LiveModel:
    """A real model behind an interface of chat completions. It gives the first answer of each conversation of a coding agent."""

    def __init__(self, url, name):
        self.url, self.name, self.answers = f"{url.rstrip('/')}/v1/chat/completions", name, []

    def begin(self, request):
        """What the model answers to the first request: its text and the calls that it asks for."""
        asked = {"model": self.name, "messages": request["messages"], "tools": request["tools"], "max_tokens": 96, "temperature": 0, "stream": False}
        sent = urllib.request.Request(self.url, json.dumps(asked).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(sent, timeout=LIVE_SECONDS) as answer:
            message = json.load(answer)["choices"][0]["message"]
        names = {tool["function"]["name"] for tool in request["tools"]}
        calls = [call for call in message.get("tool_calls") or [] if call["function"]["name"] in names]
        self.answers.append(message)
        numbered = [call | {"index": index, "id": f"{LIVE_ID}{len(self.answers)}_{index}"} for index, call in enumerate(calls)]
        return message.get("content") or None, numbered


class RecordingModel(review_world.Listener):
    """The model. `prompts` has everything that it was told, `decisions` what it answered to the manager: [(form, answer)]."""

    def __init__(self, files=("README.md",)):
        self.prompts, self.decisions, self.obeyed, self.lock = [], [], [], threading.Lock()
        rules = model_rules({"solution_files": list(files), "test_files": []})["rules"]
        self.rules = [(re.compile(rule["when"]["user_matches"]), json.loads(rule["answer"]["text"])) for rule in rules]
        self.task, self.command, self.live = None, "echo 'One more line.' >> README.md", None
        super().__init__(self.answer_chat)

    def answer_chat(self, asked):
        if asked.method == "GET":
            return 200, {}, {"object": "list", "data": []}
        request = json.loads(asked.body)
        prompt = Prompt(request)
        order = prompt.order()
        with self.lock:
            self.prompts.append(prompt)
            if order is not None:
                self.obeyed.append((prompt.decision or "agent", order))
        message = self.decide(prompt, order) or self.begin_live(prompt, request) or self.work(prompt)
        return speak(message, prompt.is_stream)

    def decide(self, prompt, order):
        """The answer to a decision. An order that stands outside of a fence turns it around."""
        for user in reversed(prompt.users):
            for pattern, answer in self.rules:
                if pattern.search(user):
                    if order is not None:
                        answer = disobedient(answer, order)
                    with self.lock:
                        self.decisions.append((prompt.decision, pattern.pattern, json.dumps(answer, sort_keys=True)))
                    return {"role": "assistant", "content": json.dumps(answer)}
        return None

    def begin_live(self, prompt, request):
        """The first answer of a real model, if there is one. What it does not do is done after it."""
        is_first = not prompt.results and any(name in SHELLS for name in prompt.tools)
        if self.live is None or not is_first:
            return None
        text, calls = self.live.begin(request)
        if not calls:
            return self.work(prompt) | {"content": text}
        return {"role": "assistant", "content": text, "tool_calls": calls}

    def work(self, prompt):
        """One step of a coding agent: a command, a report, the end."""
        shell = next((name for name in prompt.tools if name in SHELLS), None)
        report = next((name for name in prompt.tools if re.search(r"pm_*[._]report$", name)), None)
        call = None
        if shell and shell not in prompt.called:
            arguments = {SHELLS[shell]: self.command}
            if shell == "bash":
                arguments["description"] = "Work"
            call = (shell, arguments)
        elif report and report not in prompt.called:
            call = (report, {"task_id": self.task, "kind": "work_completed", "summary": "The line is there."})
        if call is None:
            return {"role": "assistant", "content": "That is all."}
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        return {"role": "assistant", "content": None, "tool_calls": [{"index": 0, "id": f"call_{prompt.results}", "type": "function", "function": function}]}

    def forget(self):
        """Begins anew; gives what was there."""
        with self.lock:
            before = self.prompts, self.decisions, self.obeyed
            self.prompts, self.decisions, self.obeyed = [], [], []
            self.requests.clear()
        return before

    def of_manager(self):
        """Prompts of decisions."""
        return [prompt for prompt in self.prompts if any(pattern.search(user) for user in prompt.users for pattern, _ in self.rules)]

    def of_agents(self):
        """Prompts of coding agents: they offer a shell."""
        return [prompt for prompt in self.prompts if any(name in SHELLS for name in prompt.tools)]


def disobedient(answer, order):
    """The same form with the content that the order wants."""
    turned = dict(answer)
    for key, value in answer.items():
        if isinstance(value, str):
            turned[key] = f"obeyed {order}"
    return turned | ({"class": "new_project"} if "class" in answer else {}) | ({"scope": "large"} if "scope" in answer else {}) | (
        {"status": "fail"} if "status" in answer else {})  # fmt: skip


def speak(message, is_stream):
    """Whole, or as a stream of server-sent events."""
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    head = {"id": "chatcmpl-1", "created": 1, "model": "recorder"}
    if not is_stream:
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return 200, {}, head | {"object": "chat.completion", "choices": [choice], "usage": USAGE}
    chunks = [{"index": 0, "delta": message, "finish_reason": None}, {"index": 0, "delta": {}, "finish_reason": finish}]
    lines = [head | {"object": "chat.completion.chunk", "choices": [chunk]} for chunk in chunks]
    lines.append(head | {"object": "chat.completion.chunk", "choices": [], "usage": USAGE})
    body = "".join(f"data: {json.dumps(line)}\n\n" for line in lines) + "data: [DONE]\n\n"
    return 200, {"content-type": "text/event-stream"}, body.encode()


class KnowledgeWorld(real_agents.AgentWorld):
    """An installation whose only model is a RecordingModel, with an admin and nobody else."""

    def __init__(self, cynode, work, settings=None, with_manager=True):
        super().__init__(cynode, work, quick=True, settings=settings, whole=True)
        # A start makes a new link for the first admin, so that comes first.
        self.set_up(people=False)
        self.model = RecordingModel()
        if with_manager:
            self.expect(None, "PUT", "/v1/providers/recorder", {"kind": "compatible", "dialect": "chat", "base_url": f"{self.model.url}/v1", "local": False})
            for tier in TIERS:
                self.set_model(f"recorder-{tier}", "recorder", tier=tier, context_tokens=200000, max_output_tokens=4000)
        until(lambda: [node for node in self.expect(200, "GET", "/v1/nodes")["items"] if node["started"]], 90, what="no node joined")

    def set_preference(self, project, key, value):
        path = f"/v1/preferences/{key}?scope_type=project&scope_id={project}"
        _, found, _ = self.api("GET", path)
        version = found.get("version", 0) if isinstance(found, dict) else 0
        self.expect(None, "PUT", path, {"value": value, "expected_version": version})

    def prepare_project(self, slug, worker, files=None):
        """A project with a repository whose work is done by `worker`, without questions to a person and without a pull request."""
        project = self.create_project(slug)
        self.import_repository(project, files or {"README.md": "# A page\n", "CLAUDE.md": "# A project\n\n## Architecture\n\nA page.\n"})
        for role in ("developer", "fixer"):
            self.set_preference(project, f"agents.project_manager.workers.{role}", worker)
        self.set_preference(project, "agents.project_manager.workers.reviewer", {"kind": "scripted", "moves": review_moves()})
        for key, value in (("agents.project_manager.review.max_review_iterations", 1), ("workflow.max_step_retries", 1),
                           ("workflow.approve_plan", False), ("delivery.mode", "none")):  # fmt: skip
            self.set_preference(project, key, value)
        return project

    def run_task(self, project, description, seconds=TASK_SECONDS, **more):
        """A task until it ends or asks a person: (id, state or question)."""
        with_name = {"name": self.unique("task")} | more
        task = self.expect(201, "POST", "/v1/tasks", {"project_id": project, "description": description} | with_name)["id"]
        self.model.task = task
        return task, until(lambda: self.settled(task), seconds, 0.2, lambda: f"task {task} does not end: {self.timeline(task)}")

    def timeline(self, task):
        return self.expect(200, "GET", f"/v1/tasks/{task}/timeline")

    def settled(self, task):
        seen = self.timeline(task)
        if seen["state"] in ENDED:
            return seen["state"]
        waits = [wait for wait in seen["waits"] if wait["owner"] == "person" and not wait.get("resolved_at")]
        return f"asks: {(waits[0].get('question') or waits[0]['reason'])[:300]}" if waits else None

    def handoffs(self, project, task):
        """The handoffs of a task, each with its decisions and with what was given."""
        listed = self.expect(200, "GET", f"/v1/projects/{project}/handoffs?limit=200")["items"]
        return [self.expect(200, "GET", f"/v1/handoffs/{it['handoff_id']}") for it in listed if it.get("task_id") == task]

    def report_checks(self, checks):
        """Runs checks and prints a line for each; whether all hold. A check is (name, function); it gives what was seen or raises AssertionError."""
        good = True
        for name, check in checks:
            try:
                said = check()
            except AssertionError as error:
                good = False
                print(f"NOT SO  {name}: {error}", flush=True)
            else:
                print(f"ok      {name}: {said}", flush=True)
        return good
