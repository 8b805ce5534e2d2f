#!/usr/bin/env python3
"""Does what docs/tutorials/first-project.md says, then provokes what used to hang, and holds CyNode to saying so within 15 seconds.

first_own_project.py --home DIRECTORY --path DIRECTORY --work DIRECTORY [--quick]

Runs inside the namespaces that `prove/journeys/first-own-project` makes: a fresh /var/lib/cynode, loopback and nothing else."""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from steps import Session, blocks

PAGE = "docs/tutorials/first-project.md"
STATE = "/var/lib/cynode"
LOG = f"{STATE}/cynode.log"
# Within how many seconds a sentence says what is wrong and what to type.
SAID_WITHIN = 15
RUN = 'cynork run "{words}" --check "{check}" --budget 1'
WORDS = "Add total(prices): the sum of several prices in cents."
CHECK = "PYTHONPATH=src python3 -m unittest discover -s tests"


def follow_the_page(session, quick):
    """Every block of the page, as written. The first one starts the server, which a new installation needs before anybody can log in."""
    found = blocks(PAGE, None)
    if not (session.type("cynode up", "server") and session.type(f"cynork setup --link-file {STATE}/setup-link --handle ada")):
        return False
    # There is no network that a set-up could fetch packages from: nobody is asked about an environment.
    if not session.type("cynork prefs set workflow.ask_environment false"):
        return False
    lines = [(line, kind) for kind, lines in found[1:] for line in lines]
    if quick:
        lines = lines[: next(at for at, (line, _) in enumerate(lines) if line.startswith("cp -r"))]
    return all(session.type(line, kind) for line, kind in lines)


class Screen:
    """The terminal screen of `cynork`, at the size that most people have."""

    def __init__(self, session, work):
        self.socket = f"{work}/tmux"
        environment = {**session.environment, "TERM": "screen-256color"}
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40", "cynork", env=environment)

    def tmux(self, *arguments, env=None):
        return subprocess.run(["tmux", "-S", self.socket, *arguments], check=True, capture_output=True, text=True, env=env).stdout

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def text(self):
        """What is shown, as one line of words: sentences are broken at the edge of a box."""
        lines = self.tmux("capture-pane", "-p").split("\n")
        # Two panes stand beside each other: what is broken in one goes on below, not in the other.
        halves = [line.split("││", 1) for line in lines]
        words = [half[0] for half in halves] + [half[1] for half in halves if len(half) > 1]
        return lines, re.sub(r"\s+", " ", " ".join(re.sub(r"[│┃║┆]", " ", word) for word in words))

    def close(self):
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], check=False, capture_output=True)


class Situations:
    """Each provokes something, looks where it is said, and puts things right again."""

    def __init__(self, session, work):
        self.session, self.work, self.failed, self.table = session, work, [], []
        self.screen = Screen(session, work)

    # -------------------------------------------------- looking

    def expect(self, name, terminal=None, screen=None, log=None, since=None, server=None):
        """Waits until each place has said its sentence, and writes down how long each took."""
        begun, deadline = since or time.monotonic(), (since or time.monotonic()) + SAID_WITHIN
        open_places = {place: pattern for place, pattern in [("terminal", terminal), ("screen", screen), ("log", log), ("server", server)] if pattern}
        seconds = {}
        while open_places and time.monotonic() < deadline:
            self.session.person.read(0.1)
            for other in self.session.servers:
                other.read(0.01)
            for place, pattern in list(open_places.items()):
                if re.search(pattern, self.read_output(place)):
                    seconds[place] = time.monotonic() - begun
                    del open_places[place]
        times = "  ".join(f"{place} {seconds[place]:.1f} s" if place in seconds else f"{place} NOT SAID" for place in ("terminal", "screen", "log", "server")
                          if place in seconds or place in open_places)  # fmt: skip
        print(f"{'WRONG' if open_places else 'ok':>6}  {name}: {times}", flush=True)
        self.table.append((name, seconds))
        for place, pattern in open_places.items():
            self.failed.append(name)
            print(f"--- {name}: {place} does not say {pattern!r}:\n{self.read_output(place)[-2500:]}", file=sys.stderr)
        return not open_places

    def read_output(self, place):
        if place == "terminal":
            return re.sub(r"\s+", " ", self.session.person.shown)
        if place == "server":
            return re.sub(r"\s+", " ", self.session.servers[-1].shown)
        if place == "screen":
            return self.screen.text()[1]
        with open(LOG, encoding="utf-8", errors="replace") as file:
            file.seek(self.logged)
            return file.read()

    def begin(self, line):
        """Types a line and does not wait for its end."""
        self.logged = os.path.getsize(LOG)
        self.session.person.begin(line)

    def leave(self):
        """Ctrl-C, and back at the prompt."""
        self.session.person.type("\x03")
        self.wait_for_prompt()

    def wait_for_prompt(self, limit=60):
        self.session.person.until(lambda: self.session.person.code() is not None, limit)

    def repository(self, name):
        """A fresh repository of the person's own, and the terminal in it."""
        path = f"{self.work}/repositories/{name}"
        shutil.copytree("prove/data/first-own-project/python", path)
        git = ["git", "-C", path, "-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main"]
        for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "Prices as people write them"]):
            subprocess.run([*git, *words], check=True)
        self.session.person.do(f"cd {path}", 10)

    def show_newest(self, project):
        """The screen shows the task that was just asked for, the newest in the list."""
        self.screen.keys("1")
        self.session.person.until(lambda: f" {project} " in self.screen.text()[1], 10)
        # An escape right before another key would be taken for that key with Alt.
        self.screen.keys("g")

    def cancel(self):
        self.session.person.do("cynork task cancel last --yes", 30)

    def processes(self, pattern):
        """Pids of processes whose command line matches. The proof has a process namespace of its own."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    line = file.read().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if int(pid) != os.getpid() and re.search(pattern, line):
                found.append(int(pid))
        return found

    def node(self):
        """The program of the node that `cynode up` started."""
        return self.processes(r"^\S*cynode-node --state \S+ run")

    def delay(self, seconds):
        """How long the model thinks before it answers."""
        with open(f"{self.work}/delay", "w", encoding="utf-8") as file:
            file.write(str(seconds))

    # -------------------------------------------------- situations

    def doctor_during_jobs(self):
        """`doctor` takes nothing from the running node: the job goes on and the next ones are taken."""
        self.repository("doctored")
        self.delay(1)
        self.begin(RUN.format(words=WORDS, check=CHECK) + " --yes")
        begun, codes = time.monotonic(), []
        while time.monotonic() < begun + 90 and self.session.person.code() is None:
            done = subprocess.run(["cynode-node", "--state", f"{STATE}/node", "doctor"], env=self.session.environment, capture_output=True, check=False)
            codes.append(done.returncode)
            self.session.person.read(0.5)
        self.delay(0)
        completed = self.session.person.code() == 0
        well = completed and codes and not any(codes)
        seconds = time.monotonic() - begun
        print(f"{'ok' if well else 'WRONG':>6}  doctor during jobs: {len(codes)} looks, the task ended after {seconds:.1f} s", flush=True)
        if not well:
            self.failed.append("doctor during jobs")
            print(self.session.person.shown[-2500:], codes, done.stdout.decode()[-1500:], file=sys.stderr)

    def dead_node(self):
        """A node that is there and does nothing: stopped, not ended, so that nobody starts it again."""
        self.repository("silent")
        pids = self.node()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self.begin(RUN.format(words=WORDS, check=CHECK) + " --yes --force")
        self.show_newest("silent")
        self.expect("dead node", r"has not been heard of.{0,400}cynork node list", r"has not been heard of", r"has not been heard of.*work\.stalled")
        self.leave()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        self.cancel()

    def no_model(self):
        self.repository("thoughtless")
        self.session.person.do("cynork model delete coder --yes", 20)
        self.begin(RUN.format(words=WORDS, check=CHECK))
        self.expect("no model", r"no model.{0,300}cynork provider set.{0,300}cynork model set", r"no model", r"readiness\.failed.*model")
        self.wait_for_prompt()
        self.session.person.do(MODEL, 20)

    def no_agent(self):
        self.repository("handless")
        agent = f"{STATE}/node/agents/goose"
        os.rename(agent, f"{STATE}/goose-aside")
        time.sleep(5)
        self.begin(RUN.format(words=WORDS, check=CHECK))
        self.expect("no agent", r"goose.{0,300}agents install goose", r"agents install goose|coding agent", r"readiness\.failed.*agents")
        self.wait_for_prompt()
        os.rename(f"{STATE}/goose-aside", agent)

    def check_that_cannot_run(self):
        self.repository("unchecked")
        self.screen.keys("2")
        self.begin(RUN.format(words=WORDS, check="pytest-of-mine -q"))
        self.expect("check that cannot run", r"pytest-of-mine.{0,200}cannot run.{0,600}node\.toml", r"cannot run", r"pytest-of-mine.*task\.waiting")
        self.leave()
        self.cancel()

    def unreadable_show(self):
        os.makedirs(f"{self.work}/secret", mode=0o700)
        with open(f"{STATE}/node/node.toml", "a+", encoding="utf-8") as file:
            file.seek(0)
            before = file.read()
        with open(f"{STATE}/node/node.toml", "w", encoding="utf-8") as file:
            file.write(f'show = ["{self.work}/secret"]\n')
        for pid in self.node():
            os.kill(pid, signal.SIGKILL)
        self.logged, begun = os.path.getsize(LOG), time.monotonic()
        time.sleep(4)
        self.begin("cynork status")
        self.expect("unreadable show", r"/secret.{0,300}(doctor|node\.toml)", r"/secret", r"/secret", since=begun)
        self.wait_for_prompt()
        with open(f"{STATE}/node/node.toml", "w", encoding="utf-8") as file:
            file.write(before)
        for pid in self.node():
            os.kill(pid, signal.SIGKILL)

    def reviewer_without_report(self):
        self.repository("unreviewed")
        words = WORDS + " The reviewer judges without a word."
        self.screen.keys("2")
        self.begin(RUN.format(words=words, check=CHECK) + " --yes")
        # Three reviews come before it; from the last one on it counts.
        self.session.person.until(lambda: "try 3" in self.session.person.shown or "left no report" in self.session.person.shown, 90)
        self.expect("reviewer without a report", r"left no report.{0,600}accept.{0,200}again", r"left no report", r"left no report.*task\.waiting")
        self.session.person.type("accept\n")
        self.wait_for_prompt(90)
        if self.session.person.code() != 0:
            self.failed.append("reviewer without a report: accept")
            print(self.session.person.shown[-2000:], file=sys.stderr)

    def slow_model(self):
        self.repository("slow")
        self.delay(600)
        self.begin(RUN.format(words=WORDS, check=CHECK))
        self.show_newest("slow")
        self.expect("slow model", SLOW + r".{0,400}cynork provider list", SLOW, SLOW + r".*work\.stalled")
        self.leave()
        self.cancel()
        self.delay(0)

    def killed_postgres(self):
        self.repository("killed")
        self.delay(2)
        self.begin(RUN.format(words=WORDS, check=CHECK) + " --yes")
        self.session.person.until(lambda: "manager" in self.session.person.shown, 30)
        for pid in self.processes(r"postgres .*-D \S*/postgres"):
            os.kill(pid, signal.SIGKILL)
        # It is back within a second or so: the stream says that it was gone, and the task goes on and ends well.
        self.expect("killed PostgreSQL", r"database cannot be reached.{0,80}cynork status", r"database cannot be reached.{0,80}cynork status",
                    r"database\.disconnected", server=r"PostgreSQL ended by itself.{0,200}started again")  # fmt: skip
        self.delay(0)
        self.wait_for_prompt(120)
        if self.session.person.code() != 0:
            self.failed.append("killed PostgreSQL: the task did not end well")
            print(self.session.person.shown[-2000:], file=sys.stderr)

    def run(self, names):
        for name in names:
            try:
                getattr(self, name)()
            except TimeoutError:
                self.failed.append(name)
                print(f" WRONG  {name}: it hangs:\n{self.session.person.shown[-2500:]}", file=sys.stderr)
                self.leave()
        self.screen.close()
        return not self.failed


SLOW = r"model `qwen2.5-coder:7b` of the provider `ollama` has not answered"
SITUATIONS = ["no_model", "no_agent", "check_that_cannot_run", "doctor_during_jobs", "dead_node", "reviewer_without_report", "slow_model", "unreadable_show", "killed_postgres"]  # fmt: skip
MODEL = next(line for _, lines in blocks(PAGE, None) for line in lines if line.startswith("cynork model set"))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--home", required=True)
    arguments.add_argument("--path", required=True)
    arguments.add_argument("--work", required=True)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--only", action="append", help="these situations and no others; the page is followed up to its first task")
    options = arguments.parse_args()
    os.environ["PATH"] = f"{options.path}:{os.environ['PATH']}"
    values = {"PYTHON": f"{options.work}/repositories/python", "NODEJS": f"{options.work}/repositories/node", "RUST": f"{options.work}/repositories/rust"}
    session = Session(options.home, options.path, values)
    well = False
    try:
        well = follow_the_page(session, options.quick)
        well = well and Situations(session, options.work).run(options.only or SITUATIONS)
    finally:
        well = session.close() and well
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
