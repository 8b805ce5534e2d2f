#!/usr/bin/env python3
"""Runs `cynode demo --yes` and, when asked, kills its processes at random moments; prints what came of it as JSON.

demo.py CYNODE DIRECTORY [--seed N --within SECONDS --kill NAME...]
demo.py CYNODE DIRECTORY --facts: what is left of a demonstration, asked through the interface of the installation that it left."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request

# After this there is a judgement, a summary, the pull request and the merge.
LAST = "reviewer reports"


def processes():
    """Every process: id, parent, words."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = [word.decode(errors="replace") for word in file.read().split(b"\0") if word]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != "Z" and words:
            yield int(entry), int(fields[1]), words


def role_of(words):
    program = os.path.basename(words[0])
    if program == "cynode" and "up" in words:
        return "orchestrator"
    if program == "cynode-node":
        return "node" if "run" in words else None
    if program == "cynode-pma":
        return "manager" if "--role=project_manager" in words else "analyst"
    return {"cynode-runner": "runner", "restate-server": "engine", "postgres": "postgresql"}.get(program)


def members(demo):
    """Who belongs to the demonstration: the child of our own process, and its children."""
    found = {}
    listed = list(processes())
    ups = [pid for pid, parent, words in listed if parent == demo and role_of(words) == "orchestrator"]
    for up in ups:
        found["orchestrator"] = up
        for pid, parent, words in listed:
            name = role_of(words)
            if parent == up and name and name != "orchestrator":
                found[name] = pid
    return found


class Interface:
    def __init__(self, base):
        self.base, self.token = base, None

    def ask(self, path, body=None):
        request = urllib.request.Request(self.base + path, data=body and json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def log_in(self, password):
        for _ in range(600):
            try:
                self.token = self.ask("/v1/sessions", {"handle": "demo", "password": password})["token"]
                return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.1)
        sys.exit("the installation does not answer")


def facts(cynode, directory):
    """What can be counted of what was left."""
    config = f"{directory}/config.toml"
    with open(config, "rb") as file:
        listen = tomllib.load(file)["server"]["listen"]
    with open(f"{directory}/demo-password") as file:
        password = file.read().strip()
    log = open(directory + ".again", "w")
    up = subprocess.Popen([cynode, "--config", config, "up", "--data-dir", directory], stdout=log, stderr=log)
    try:
        interface = Interface(f"http://{listen}")
        interface.log_in(password)
        project = interface.ask("/v1/projects")["items"][0]["id"]
        tasks = interface.ask(f"/v1/tasks?project_id={project}")["items"]
        requests = interface.ask(f"/v1/projects/{project}/pull-requests")["items"]
        details = [interface.ask(f"/v1/pull-requests/{it['id']}") for it in requests]
        timeline = interface.ask(f"/v1/tasks/{tasks[0]['id']}/timeline")
        shown = interface.ask(f"/v1/tasks/{tasks[0]['id']}/evidence")["evidence"]
    finally:
        up.terminate()
        up.wait(60)
    bare = f"{directory}/storage/repositories/{project}.git"

    def git(where, *words):
        return subprocess.run(["git", "-c", "safe.directory=*", "-C", where, *words], check=True, capture_output=True, text=True).stdout.strip()

    count = {
        "tree of main": git(bare, "rev-parse", "main^{tree}"),
        "tree of the working copy": git(f"{directory}/slug", "rev-parse", "HEAD^{tree}"),
        "commits on main": git(bare, "log", "--format=%s", "main").splitlines(),
        "signed off, for the task": git(bare, "log", "-1", "--format=%(trailers:key=CyNode-Task,valueonly)", "main") == tasks[0]["id"],
        "branches": len(git(bare, "for-each-ref", "--format=%(refname)", "refs/heads").splitlines()),
        "tasks": [it["state"] for it in tasks],
        "pull requests": [[it["number"], it["state"], it["title"]] for it in details],
        "comments": [it["body"] for it in details for it in it["comments"]],
        "reviews": [it["verdict"] for it in details for it in it["reviews"]],
        "deliveries": sum(len(it["deliveries"]) for it in details),
        "units": [[it["key"], it["state"]] for it in timeline["units"]],
        "the last evidence": [[it["check"]["argv"], it["tally"]] for it in shown[-1]["checks"]],
    }
    beside = {
        "attempts": [it["attempts"] for it in timeline["units"]],
        "evidence": [it["state"] for it in shown],
        "body": details[0]["body"] if details else None,
    }
    print(json.dumps({"count": count, "beside": beside}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cynode")
    parser.add_argument("directory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within", type=float, default=15)
    parser.add_argument("--kill", nargs="*", default=[])
    parser.add_argument("--facts", action="store_true")
    arguments = parser.parse_args()
    if arguments.facts:
        return facts(arguments.cynode, arguments.directory)
    chance = random.Random(arguments.seed)
    moments = sorted((chance.uniform(0, arguments.within), name) for name in arguments.kill)
    output = open(arguments.directory + ".out", "w+")
    begun = time.monotonic()
    demo = subprocess.Popen(
        [arguments.cynode, "demo", "--yes", "--plain", "--data-dir", arguments.directory],
        stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
    )
    killed = []
    first = None
    while demo.poll() is None:
        time.sleep(0.02)
        if time.monotonic() - begun > 300:
            demo.terminate()
            demo.wait()
            break
        with open(arguments.directory + ".out") as text:
            transcript = text.read()
        if "kill -9" not in transcript:
            continue
        first = first or time.monotonic()
        # A machine that is faster this time must not be done before everybody was killed: what is left is made up for near the end.
        if moments and (time.monotonic() - first >= moments[0][0] or LAST in transcript):
            victim = members(demo.pid).get(moments[0][1])
            # Whoever is just starting again is killed as soon as it is there.
            if victim:
                os.kill(victim, signal.SIGKILL)
                killed.append([moments[0][1], round(time.monotonic() - first, 1)])
                moments.pop(0)
    seconds = time.monotonic() - begun
    story_seconds = time.monotonic() - first if first else None
    print(json.dumps({"code": demo.returncode, "seconds": round(seconds, 1), "story": story_seconds and round(story_seconds, 1), "killed": killed,
                      "unkilled": [name for _, name in moments]}))


if __name__ == "__main__":
    main()
