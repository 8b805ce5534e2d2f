"""Drives one task through the workflow, with LangGraph. Started again after a crash, it goes on where the task stands."""

import argparse
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl

from contract import Client, Drive, Ended, Fenced, NotNow, Refused, Unreachable
from graph import build
from saver import Saver, entry
from scripts import Scripts

GRAPH = build()

# First and longest pause between two attempts to get the lease.
LOOK = (0.02, 1.0)

# Longest look at a run that waits, in seconds.
LONGEST_LOOK = 2.0


def looks():
    """Pauses that grow, without end."""
    pause = LOOK[0]
    while True:
        time.sleep(pause)
        yield
        pause = min(pause * 1.5, LOOK[1])


def take(client, asked):
    """The lease of the task, once it can be had; none when the task has ended."""
    body = asked | {"idempotency_key": str(uuid4())}
    pauses = looks()
    while True:
        try:
            return client.post("/v1/workflow/start", body)
        except Ended:
            return None
        except NotNow:
            next(pauses)


@contextmanager
def kept(drive, seconds):
    """Keeps the lease while its holder works, and gives it back when the holder stops early."""
    stop = threading.Event()

    def keep():
        # A lease that is lost needs no word here: the next checkpoint is refused.
        with suppress(Fenced, Refused, Unreachable):
            while not stop.wait(seconds / 3):
                drive.client.post("/v1/workflow/renew", drive.lease | {"expires_in_seconds": seconds})

    threading.Thread(target=keep, daemon=True).start()
    try:
        yield
    finally:
        stop.set()
        if drive.next_node:
            drive.client.post("/v1/workflow/release", drive.lease)


def advance(drive, seconds):
    """Runs node after node, until the run waits or has ended."""
    graph = GRAPH.compile(checkpointer=Saver(drive))
    config = {"configurable": {"thread_id": drive.task_id}}
    with kept(drive, seconds):
        while drive.next_node:
            begin, drive.control = entry(drive), RunControl()
            print("enters" if begin else "resumes", drive.task_id, drive.position["sequence"], flush=True)
            with suppress(GraphDrained):
                graph.invoke(begin, config, context=drive, control=drive.control, durability="sync")


def rest(drive):
    """Waits until something has happened to the run that its last node had not seen, or its time has come."""
    due = time.monotonic() + drive.wait.get("wake_in_ms", float("inf")) / 1000
    while True:
        left = min(max(due - time.monotonic(), 0), LONGEST_LOOK)
        look = {"task_id": drive.task_id, "seen_wakes": drive.seen_wakes, "wait_ms": int(left * 1000)}
        now = drive.client.post("/v1/workflow/resume", look)["position"]
        if now["wakes"] != drive.seen_wakes or now["next"]["do"] != "wait" or time.monotonic() >= due:
            return


class Mortal(Client):
    """A client that kills its process before or after a checkpoint, to show that nothing is lost."""

    def __init__(self, base, token, before, after):
        super().__init__(base, token)
        self.before, self.after, self.checkpoints = before, after, 0

    def post(self, path, body):
        if path != "/v1/workflow/checkpoint":
            return super().post(path, body)
        self.checkpoints += 1
        if self.checkpoints == self.before:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = super().post(path, body)
        if self.checkpoints == self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def main():
    # To be told to stop is no failure, and leaves time to give the lease back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", help="the id of the task, tsk_…")
    parser.add_argument("--orchestrator", metavar="URL", default="http://127.0.0.1:12082", help="its internal port")
    parser.add_argument("--token-file", required=True, help="holds the token from `cynode admin token runner`")
    parser.add_argument("--scripts", required=True, help="the file of scripts")
    parser.add_argument("--lease-seconds", type=int, default=30, help="how long it may be silent")
    parser.add_argument("--die-before", type=int, metavar="N", help="be killed before the Nth checkpoint is sent")
    parser.add_argument("--die-after", type=int, metavar="N", help="be killed after the Nth checkpoint was answered")
    args = parser.parse_args()
    token = Path(args.token_file).read_text().strip()
    client = Mortal(args.orchestrator, token, args.die_before, args.die_after)
    mind = Scripts(args.scripts)
    # All its processes have one name; each process is an instance of its own.
    asked = {"task_id": args.task, "holder": "langgraph", "instance": str(uuid4())}
    asked["expires_in_seconds"] = args.lease_seconds
    while (started := take(client, asked)) is not None:
        drive = Drive(client, started, mind)
        try:
            advance(drive, args.lease_seconds)
        except Fenced as why:
            print("fenced", args.task, why, flush=True)
            continue
        if drive.position["next"]["do"] == "end":
            break
        rest(drive)
    print("ended", args.task, flush=True)


if __name__ == "__main__":
    main()
