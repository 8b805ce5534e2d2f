"""The contract with the orchestrator (docs/openapi-internal.json), as a client of its internal port sees it."""

import time

import httpx

# How long a call tries to reach the orchestrator, and the first and longest pause between two tries.
PERSISTENCE = 30
PAUSE = (0.025, 0.4)

# The fields of a run's state that people and other runners read. `runner` beside them is the runner's own.
READABLE = (
    "acceptance_criteria", "preferences_effective", "plan", "current_step_index", "attempts_by_step", "last_result",
    "verification", "feedback", "node_failures", "failure", "summary",
)


class Unreachable(Exception):
    """It cannot answer now. It may have done what it was asked."""


class Fenced(Exception):
    """The lease is not ours any more."""


class NotNow(Exception):
    """The task may not be driven now."""


class Ended(Exception):
    """The task has ended and is never driven again."""


class Refused(Exception):
    """It will never do what it was asked."""

    def __init__(self, status, detail):
        super().__init__(f"refused with {status}: {detail}")
        self.status, self.detail = status, detail


class Client:
    """Talks to the orchestrator with the token of a runner or a worker. Threads may share it."""

    def __init__(self, base, token):
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=base, headers=headers, timeout=20, trust_env=False)

    def post(self, path, body):
        """Asks, and asks again while nothing answers: whatever the contract offers is safe to ask twice."""
        pause, end = PAUSE[0], time.monotonic() + PERSISTENCE
        while True:
            try:
                return self._ask(path, body)
            except Unreachable:
                if time.monotonic() > end:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, PAUSE[1])

    def _ask(self, path, body):
        try:
            answer = self._http.post(path, json=body)
            told = answer.json() if answer.content else {}
        except (httpx.TransportError, ValueError) as error:
            raise Unreachable(str(error)) from error
        if answer.is_success:
            return told
        code, detail = told.get("code"), told.get("detail")
        if code == "fenced":
            raise Fenced(detail)
        if code == "task_ended":
            raise Ended(detail)
        if code in ("not_runnable", "lease_held"):
            raise NotNow(detail)
        if answer.is_server_error or answer.status_code in (408, 429):
            raise Unreachable(detail)
        raise Refused(answer.status_code, detail)


class Drive:
    """One grant of a task's lease, and where the run stands under it."""

    def __init__(self, client, started, mind):
        self.client, self.mind = client, mind
        self.task, self.position = started["task"], started["position"]
        self.state = self.position["state"]
        self.task_id = self.position["task_id"]
        granted = started["lease"]
        self.lease = {"task_id": self.task_id} | {key: granted[key] for key in ("lease_id", "fencing_token")}
        # Set for each invocation of the graph: the way to end it between two nodes.
        self.control = None

    @property
    def next_node(self):
        """The node to run now; none when the run waits or has ended, and the lease was given back."""
        following = self.position["next"]
        return following["node"] if following["do"] == "run" else None

    def store(self, step, state):
        """Stores what a node did, and takes the answer as the new position."""
        body = {
            "lease": self.lease,
            "sequence": self.position["sequence"] + 1,
            # As of the answer that the node worked with: what came since ends a wait at once.
            "seen_wakes": self.position["wakes"],
            "state": state,
        }
        try:
            answer = self.client.post("/v1/workflow/checkpoint", body | step)
        except Refused as refusal:
            if refusal.status not in (400, 422):
                raise
            # It knows better than the node, about a plan for example: the task is given up, and why is written down.
            why = f"{step['node']}: {refusal.detail}"
            body["state"] = state = self.state | {"failure": why, "runner": None}
            step = step | {"verdict": "fail", "effects": [], "wait": None, "note": why}
            answer = self.client.post("/v1/workflow/checkpoint", body | step)
        self.position, self.state = answer, answer.get("state") or state
        self.seen_wakes, self.wait = body["seen_wakes"], step["wait"] or {}
