#!/usr/bin/env python3
"""Does what a page of the documentation says, as a person would: every command block is typed into a terminal, every question is answered there.

steps.py PAGE [--section TITLE] --home DIRECTORY --path DIRECTORY [--value NAME=VALUE ...] [--skip PREFIX ...] [--limit SECONDS]

A block that begins with ```sh is typed line by line, each line after the one before has ended well. A block that begins with ```sh server is typed into a
terminal of its own, which goes on. Words in capitals that --value names are replaced. Prints a table of what was typed and how long it took."""

import argparse
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

# Before it stands the number of the command that comes next: a prompt that is shown once more has the same one.
PROMPT = re.compile(r"(\d+)\[\[ready (\d+)\]\] $")
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>()][AB0]?|\r")

# What is asked, and what a person answers. Each answer is given when its question stands at the end of what is shown.
ANSWERS = [
    (r"[Pp]assword.*: ?$", "correct horse battery\n"),
    (r"Once more.*: ?$", "correct horse battery\n"),
    (r"empty: it has none\): ?$", "\n"),
    (r"Press Enter to end it\. ?$", "\n"),
    (r"\[Y/n\] ?$", "y\n"),
    (r"\[y/N\] ?$", "y\n"),
    (r"\[y/n\] ?$", "y\n"),
    (r"\[y\]es, \[e\]dit, \[n\]o, \[g\]ive up: ?$", "y\n"),
]


class Terminal:
    """A shell in a pseudo-terminal."""

    def __init__(self, environment, directory):
        self.shown, self.whole = "", ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            # Before the shell is there: a shell that is told of another size writes its prompt once more, as if a command had ended.
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
            os.chdir(directory)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
        self.number = None
        self.until(lambda: self.code() is not None, 20)

    def read(self, wait):
        ready, _, _ = select.select([self.fd], [], [], wait)
        if not ready:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        if not data:
            raise SystemExit("the terminal has gone")
        text = COLOUR.sub("", data.decode(errors="replace"))
        self.shown += text
        self.whole += text
        return True

    def until(self, holds, limit):
        end = time.monotonic() + limit
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError
            self.read(0.05)

    def type(self, text):
        os.write(self.fd, text.encode())

    def begin(self, line):
        # An Enter that answered a question which a key had answered already makes the shell show its prompt twice: that is no end of what is typed now.
        self.number = self.last_number()
        self.shown = ""
        self.type(line + "\n")
        # The echo of what was typed is not an answer.
        self.until(lambda: "\n" in self.shown, 10)

    def last_number(self):
        """The number in the prompt that was shown last."""
        return (re.findall(r"(\d+)\[\[ready \d+\]\] ", self.whole) or [None])[-1]

    def code(self):
        """The exit code of what was typed last, None while it goes on."""
        done = PROMPT.search(self.shown)
        return int(done.group(2)) if done and done.group(1) != self.number else None

    def do(self, line, limit):
        """Types a line, answers what is asked, gives the exit code."""
        self.begin(line)
        end = time.monotonic() + limit
        questions, answered = [], 0
        while True:
            code = self.code()
            if code is not None:
                return code, questions
            if time.monotonic() > end:
                raise TimeoutError
            if self.read(0.2):
                continue
            last = self.shown[answered:].rsplit("\n", 1)[-1]
            for question, answer in ANSWERS:
                if re.search(question, last):
                    questions.append(last.strip())
                    answered = len(self.shown)
                    self.type(answer)
                    break

    def close(self):
        """Nobody sits at it any more."""
        os.close(self.fd)
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def blocks(page, section):
    """The command blocks of a page: whether it is the server's terminal, the lines."""
    within, found, lines, kind = section is None, [], None, None
    for line in open(page, encoding="utf-8").read().split("\n"):
        if lines is None and line.startswith("#"):
            if section is not None:
                depth = len(line) - len(line.lstrip("#"))
                within = line.lstrip("# ").strip() == section or (within and depth > 2)
            continue
        if lines is None and line.startswith("```sh"):
            kind, lines = line[5:].strip(), []
        elif lines is not None and line.startswith("```"):
            if within:
                found.append((kind, join_continued(lines)))
            lines = None
        elif lines is not None:
            lines.append(line)
    return found


def join_continued(lines):
    """Lines that end with a backslash go on; what is empty or only a remark is left out."""
    whole, rest = [], ""
    for line in lines:
        rest += line
        if rest.endswith("\\"):
            rest = rest[:-1]
            continue
        if rest.strip() and not rest.lstrip().startswith("#"):
            whole.append(rest)
        rest = ""
    return whole


class Session:
    """A person at a terminal, and the terminals in which servers go on."""

    def __init__(self, home, path, values=None, directory=None, limit=120):
        self.environment = {
            "HOME": home, "PATH": f"{path}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "TERM": "xterm-256color", "LANG": "C.UTF-8", "PS1": r"\#[[ready $?]] ", "PS2": "", "USER": "ada", "EDITOR": "true",
        }  # fmt: skip
        for name in ("CARGO_TARGET_DIR", "CARGO_HOME", "RUSTUP_HOME", "BUILT"):
            if name in os.environ:
                self.environment[name] = os.environ[name]
        self.directory, self.values, self.limit = directory or home, dict(values or {}), limit
        self.person, self.servers, self.table = Terminal(self.environment, self.directory), [], []
        self.shown = []

    def serve(self, typed):
        """Types a line into a terminal of its own, and waits until what it starts is there."""
        server = Terminal(self.environment, self.directory)
        self.servers.append(server)
        server.begin(typed)
        server.until(lambda: "Ctrl-C" in server.shown or server.code() is not None, self.limit)
        return 0 if server.code() is None else 1

    def type(self, line, kind=""):
        """Types one line of a block and answers what is asked. Gives whether it ended well."""
        typed = re.sub(r"\b[A-Z]{4,}\b", lambda word: self.values.get(word.group(), word.group()), line)
        at = time.monotonic()
        try:
            code, questions = (self.serve(typed), []) if kind == "server" else self.person.do(typed, self.limit)
        except TimeoutError:
            code, questions = "late", []
        seconds = time.monotonic() - at
        self.table.append({"typed": line, "seconds": round(seconds, 1), "code": code, "questions": questions})
        print(f"{seconds:6.1f} s  {line[:110]}" + "".join(f"\n          asked: {it[:100]}" for it in questions), flush=True)
        if code != 0:
            terminal = self.servers[-1] if kind == "server" else self.person
            print(f"--- ended with {code}; the terminal shows:\n{terminal.shown[-3000:]}", file=sys.stderr)
            # What fails often follows from what an earlier command said.
            for earlier, said in self.shown[-3:]:
                print(f"--- before it, `{earlier[:80]}` said:\n{said[-600:]}", file=sys.stderr)
        self.shown.append((line, self.person.shown))
        return code == 0

    def close(self):
        """Ends everything as a person would. Gives whether it ended in time."""
        self.person.close()
        well = True
        for server in self.servers:
            server.type("\x03")
            try:
                server.until(lambda server=server: server.code() is not None, 30)
            except (TimeoutError, SystemExit):
                well = False
            server.close()
        return well


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("page")
    arguments.add_argument("--section")
    arguments.add_argument("--home", required=True)
    arguments.add_argument("--path", required=True)
    arguments.add_argument("--directory")
    arguments.add_argument("--value", action="append", default=[])
    arguments.add_argument("--skip", action="append", default=[])
    arguments.add_argument("--limit", type=float, default=120)
    arguments.add_argument("--within", type=float)
    arguments.add_argument("--record")
    options = arguments.parse_args()
    values = dict(pair.split("=", 1) for pair in options.value)
    session = Session(options.home, options.path, values, options.directory, options.limit)
    bad, begun = False, time.monotonic()
    try:
        lines = [(line, kind) for kind, lines in blocks(options.page, options.section) for line in lines]
        bad = not all(session.type(line, kind) for line, kind in lines if not line.startswith(tuple(options.skip)))
        total, table = time.monotonic() - begun, session.table
        print(f"{total:6.1f} s in all, {len(table)} commands, {sum(len(it['questions']) for it in table)} questions answered")
        if options.within and total > options.within:
            print(f"WRONG: that is more than {options.within:.0f} s")
            bad = True
        if options.record:
            with open(options.record, "w", encoding="utf-8") as file:
                json.dump({"table": table, "seconds": total, "values": session.values, "transcript": session.person.whole}, file)
    finally:
        bad = not session.close() or bad
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
