#!/usr/bin/env python3
"""Fills the installation that a demonstration left with things that wait, and looks at it through the screen of `cynork` in tmux.

screens.py set-up DATA_DIR                                 makes projects, tasks, a plan, a question and a call that waits; prints facts
screens.py drive CYNORK DATA_DIR WORK [--write] goes through the situations at both sizes and compares, or writes, what is shown

What differs from run to run (ids, times, ports, versions, what the machine has) is masked in text and in pictures alike."""

import difflib
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from xml.sax.saxutils import escape

GOLDEN_FOLDER = "prove/data/screens"
PICTURES = "docs/images"
SIZES = [(80, 24), (200, 60)]
TIMEOUT_SECONDS = 30


# ---------------------------------------------------------------- the installation


class Interface:
    """The public interface, as for any client."""

    def __init__(self, data_dir):
        with open(f"{data_dir}/config.toml", "rb") as file:
            server = tomllib.load(file)["server"]
        self.base, self.internal, self.token = f"http://{server['listen']}", f"http://{server['internal_listen']}", None
        with open(f"{data_dir}/demo-password") as file:
            self.password = file.read().strip()
        self.token = self.ask("POST", "/v1/sessions", {"handle": "demo", "password": self.password})["token"]

    def ask(self, method, path, body=None, data=None, where=None, token=None, headers=()):
        data = data if data is not None else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request((where or self.base) + path, data=data, method=method)
        request.add_header("Content-Type", "application/octet-stream" if path.endswith("/repository") else "application/json")
        for name, value in headers:
            request.add_header(name, value)
        if token or self.token:
            request.add_header("Authorization", f"Bearer {token or self.token}")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            sys.exit(f"{method} {path}: {error.code} {error.read().decode()[:600]}")

    def until(self, what, question):
        """Asks again and again until there is an answer that is not empty."""
        end = time.monotonic() + TIMEOUT_SECONDS * 2
        while time.monotonic() < end:
            found = question()
            if found:
                return found
            time.sleep(0.05)
        sys.exit(f"in vain waited for {what}")


def unit(title, path, after=()):
    return {
        "title": title, "kind": "implementation", "files_to_modify": [path], "files_to_read_first": [], "pattern_reference": "",
        "constraints": [], "requirements": [f"{path} is there and says what it is for"], "depends_on": list(after), "checks": [],
    }


DARK = "Give the page a dark mode: a switch that remembers what was chosen."
UNITS = [
    unit("Decide the colours", "colours.md"),
    unit("Keep the choice", "store.sh", ["Decide the colours"]),
    unit("Show the switch", "switch.sh", ["Decide the colours"]),
    unit("Paint in the dark", "dark.css", ["Decide the colours"]),
    unit("Remember it on all devices", "sync.sh", ["Keep the choice", "Show the switch"]),
]
UNCLEAR_TASK = "Make the greeting friendlier."
QUESTION = "Friendlier to whom: people who come for the first time, or those who come back?"
SMALL = "Let slug say its version with --version."


def plan_answer(units, question=""):
    return {"reason": "Each changes a file of its own.", "units": units, "leave_out": [], "assumptions": ["There is one page"], "question": question}


def script(answers):
    """What the model says: to some tasks something of their own, else what it said in the demonstration."""
    own = [
        (rf"(?s)^Decide how much of the project.*{re.escape(DARK)}",
         {"reason": "Several parts of the page.", "components": ["page"], "estimated_files": 5, "scope": "medium"}),
        (rf"(?s)^Plan the task.*{re.escape(DARK)}", plan_answer(UNITS)),
        (rf"(?s)^Plan the task.*{re.escape(UNCLEAR_TASK)}", plan_answer([], QUESTION)),
        (rf"(?s)^Plan the task.*{re.escape(SMALL)}", plan_answer([unit("Add the option --version to slug", "slug")])),
    ]
    rules = own + [(one["asked"], one["answer"]) for one in answers.values()]
    return {"rules": [{"when": {"user_matches": asked}, "answer": {"text": json.dumps(answer)}} for asked, answer in rules]}


def worker():
    """The first makes its file at once; whoever comes after it is still at work when somebody looks."""
    summary = "The colours are decided: ink on night blue."
    report = {"kind": "work_completed", "summary": summary, "details": {"files_modified": ["colours.md"], "artifacts": [], "notes": []}}
    first = [
        {"move": "say", "text": "I look at what is there."},
        {"move": "write", "path": "colours.md", "text": "# Colours\n\nInk on night blue.\n"},
        {"move": "say", "text": summary},
        {"move": "tool", "name": "pm.report", "arguments": report},
    ]
    later = [{"move": "say", "text": "I begin, and take my time."}, {"move": "wait", "milliseconds": 600_000}]
    return {"kind": "scripted", "moves": [{"move": "when", "path": "colours.md", "moves": later, "otherwise": first}]}


def set_up_installation(data_dir):
    api = Interface(data_dir)
    with open("crates/cynork/src/sample/answers.json") as file:
        api.ask("PUT", "/v1/providers/sample", {"kind": "scripted", "script": script(json.load(file))})
    web = api.ask("POST", "/v1/projects", {"slug": "web", "title": "Web"})["id"]
    subprocess.run(["git", "-c", "safe.directory=*", "-C", f"{data_dir}/slug", "bundle", "create", "--quiet", f"{data_dir}/web.bundle", "main"], check=True)
    with open(f"{data_dir}/web.bundle", "rb") as file:
        api.ask("PUT", f"/v1/projects/{web}/repository", data=file.read())
    for key, value in [("agents.project_manager.workers.developer", worker()), ("workflow.approve_plan", True)]:
        api.ask("PUT", f"/v1/preferences/{key}?scope_type=project&scope_id={web}", {"value": value, "expected_version": 0})
    # The models of the demonstration answer in its project only.
    for tier in ("fast", "standard", "deep"):
        body = {"context_tokens": 200_000, "max_output_tokens": 4_000, "tools": True, "json_schema": True, "tier": tier, "project_id": web,
                "routes": [{"provider": "sample", "upstream": "scripted",
                            "prices": {"input": 1_000_000, "cached": 100_000, "cache_write": 1_000_000, "output": 4_000_000}}]}
        api.ask("PUT", f"/v1/model-registry/sample-{tier}", body)
    slug = next(it["id"] for it in api.ask("GET", "/v1/projects")["items"] if it["slug"] == "slug")
    for scope, id, period, most in [("installation", None, "month", 20_000_000), ("project", slug, "day", 1_000_000), ("project", web, "total", 100_000)]:
        api.ask("PUT", "/v1/budgets", {"scope_type": scope, "scope_id": id, "period": period, "max_cost_micros": most, "max_tokens": None})

    def task(project, name, words, cap=500_000):
        budget = {"max_cost_micros": cap, "max_tokens": None}
        return api.ask("POST", "/v1/tasks", {"project_id": project, "name": name, "description": words, "budget": budget})["id"]

    def waits(id, reason):
        timeline = api.ask("GET", f"/v1/tasks/{id}/timeline")
        return [it for it in timeline["waits"] if it["reason"] == reason and not it.get("resolved_at")]

    dark = task(web, "dark-mode", DARK)
    api.until("the plan of dark-mode", lambda: waits(dark, "approval"))
    greeting = task(web, "friendlier-greeting", UNCLEAR_TASK)
    api.until("the question of friendlier-greeting", lambda: waits(greeting, "human_input"))
    version = task(slug, "slug-version", SMALL)
    api.until("the plan of slug-version", lambda: waits(version, "approval"))
    cancelled = task(web, "old-idea", "Play music on every page.")
    api.ask("POST", f"/v1/tasks/{cancelled}/cancel", data=b"null")
    # A call that a rule wants a person to see.
    rule = 'forbid (principal, action == Action::"api.call", resource) when { context.arguments has url && context.arguments.url like "*//billing.*" };'
    api.ask("PUT", "/v1/rules/refunds-need-a-person", {"mode": "approve", "text": rule})
    billing = {"tools": ["*"], "network": [{"domain": "billing.example.org", "methods": ["GET", "POST"]}], "paths": {"read": ["**"]}}
    api.ask("POST", "/v1/profiles", {"name": "billing", "project_id": web, "spec": billing})
    agent = api.ask("POST", "/v1/agent-tokens", {"role": "developer", "project_id": web, "task_id": greeting, "profile": "billing", "network": True, "expires_in_seconds": 36_000})
    arguments = {"method": "POST", "url": "https://billing.example.org/v1/refunds", "body": '{"invoice": 7, "cents": 1200}'}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "api__call", "arguments": arguments}}
    headers = [("Accept", "application/json, text/event-stream"), ("MCP-Protocol-Version", "2025-06-18")]
    api.ask("POST", "/mcp", call, where=api.internal, token=agent["token"], headers=headers)
    api.until("the call", lambda: api.ask("GET", "/v1/approvals")["items"])
    print(json.dumps({"dark": dark, "base": api.base, "password": api.password}))


# ---------------------------------------------------------------- masks

# What is masked, and by what. The longest first.
MASKS = [
    (r"\b(tsk|prj|usr|job|nod|agt|run|pul|apr|evd|wai)_[0-9a-f]{32}\b", lambda found: found.group(1) + "_" + "0" * 32),
    (r"\b127\.0\.0\.1:\d+\b", "127.0.0.1:12080"),
    (r"\b[0-9a-f]{64}\b", "0" * 64),
    (r"(?<=commit )[0-9a-f]{10}\b", "0" * 10),
    (r"(?<=joined     )\d+[smhd] ago", "0s ago"),
    (r"(?<=version    )[0-9]+\.[0-9]+\.[0-9]+\S*", "0.0.0"),
    (r"(?<=bubblewrap )[0-9.]+", "0.0.0"),
    (r"(?<=podman )(version )?[0-9.]+", "0.0.0"),
    # Lines of a log: what came together may come in two pieces.
    (r"\b\d:\d\d(?=  [^ ])", "    "),
    (r"exit (\d+), \d+ ms\b", lambda found: f"exit {found.group(1)}, 0 ms"),
    (r"\b\d+d \d+h\b", "0s"),
    (r"\b\d+:\d\d(:\d\d)?\b", "0s"),
    (r"\b\d+\.\ds\b", "0s"),
    (r"\b\d+[smhd]\b", "0s"),
    (r"\b\d+(\.\d)?[MG]\b(?! t)", "0G"),
    (r"(?<=[█░] )\d+/\d+\b", "0/0"),
    (r"[█░]{8}(?= 0/0)", "█" * 8),
    # What models cost follows from every word that they are asked.
    (r"(?<!of )\b\d+\.\d{4}\b", "0.0123"),
    (r"\b\d+\.\d[kM]\b", "1.2k"),
    (r"\b\d+(?= out\b)", "1.2k"),
    (r"\b\d+%", "50%"),
    (r"[█░]{9,}", lambda found: "█" * (len(found.group()) // 2) + "░" * (len(found.group()) - len(found.group()) // 2)),
    (r"\b\d+(?= +0G +0G)", "0"),
]

# What stands at the left of its column stays there.
LEFT_ALIGNED = ("joined", "version", "bubblewrap", "podman")


def mask(cells):
    """A line of (letter, style) with masks. What stands to the right keeps its column: the next gap gives or takes."""
    for pattern, by in MASKS:
        from_ = 0
        while True:
            found = re.compile(pattern).search("".join(letter for letter, _ in cells), from_)
            if not found:
                break
            new = by(found) if callable(by) else by
            start, end = found.span()
            style = cells[start][1]
            cells = cells[:start] + [(letter, style) for letter in new] + cells[end:]
            more = (end - start) - len(new)
            from_ = start + len(new)
            text = "".join(letter for letter, _ in cells)
            before = re.search(r"  +$", text[:start])
            after = re.compile(r"  +|$").search(text, from_)
            if more == 0:
                continue
            # A number that stands at the right of its column moves to the right.
            before = None if any(name in pattern for name in LEFT_ALIGNED) else before
            if before and more > 0:
                cells = cells[:start] + [(" ", cells[start - 1][1])] * more + cells[start:]
                from_ += more
            elif before and len(before.group()) + more >= 1:
                cells = cells[: start + more] + cells[start:]
                from_ += more
            elif after and more > 0:
                at = after.start()
                filler = cells[at][1] if at < len(cells) else ()
                cells = cells[:at] + [(" ", filler)] * more + cells[at:]
            elif after and len(after.group()) + more >= 0:
                at = after.start()
                cells = cells[:at] + cells[at - more :]
    return cells


def without_facts(lines):
    """What the machine is: blank from its name to the end of its panel, and below."""
    place = None
    for line in lines:
        text = "".join(letter for letter, _ in line)
        if text.lstrip(" │").startswith("facts ") or " facts      " in text:
            place = text.index("facts ") + 11
        if place is None:
            continue
        if "╯" in text[place:] or text[place - 11 : place].strip() not in ("", "facts"):
            break
        end = text.find("│", place)
        for at in range(place, end if end >= 0 else len(line)):
            line[at] = (" ", line[at][1])
    return lines


# ---------------------------------------------------------------- tmux


class Terminal:
    def __init__(self, socket):
        self.socket = socket

    def tmux(self, *words):
        done = subprocess.run(["tmux", "-S", self.socket, "-f", "/dev/null", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"tmux {' '.join(words)}: {done.stderr}")
        return done.stdout

    def open(self, command, size):
        self.tmux("new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "-s", "screen", command)
        self.tmux("set-option", "-g", "window-size", "manual")
        self.tmux("set-option", "-g", "default-terminal", "tmux-256color")

    def size(self, width, height):
        self.tmux("resize-window", "-t", "screen", "-x", str(width), "-y", str(height))

    def keys(self, *keys):
        for key in keys:
            literal = [] if re.fullmatch(r"[A-Z][A-Za-z]+|C-.", key) else ["-l"]
            self.tmux("send-keys", "-t", "screen", *literal, key)

    def click(self, column, row):
        """Presses and lets go the left button of the mouse."""
        for sign in "Mm":
            self.tmux("send-keys", "-t", "screen", "-l", f"\x1b[<0;{column};{row}{sign}")

    def plain(self):
        return self.tmux("capture-pane", "-t", "screen", "-p")

    def cells(self):
        """What is shown: lines of (letter, style), with masks."""
        lines = [mask(line) for line in parse_styles(self.tmux("capture-pane", "-t", "screen", "-e", "-p"))]
        return without_facts(lines)

    def until(self, *patterns):
        """Until everything is shown."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < end:
            shown = self.plain()
            if all(re.search(pattern, shown) for pattern in patterns):
                return shown
            time.sleep(0.03)
        sys.exit(f"in vain waited for {patterns}; shown is\n{shown}")


def parse_styles(text):
    """Lines of (letter, style) from a capture with escapes; a style is what the escapes since the last reset said."""
    lines = []
    style = ()
    for line in text.split("\n"):
        cells = []
        for piece in re.split(r"(\x1b\[[0-9;:]*m|\x0e|\x0f)", line):
            code = re.fullmatch(r"\x1b\[([0-9;:]*)m", piece)
            if code:
                style = apply_codes(style, [int(it or 0) for it in re.split("[;:]", code.group(1))])
            elif piece not in ("\x0e", "\x0f"):
                cells += [(letter, style) for letter in piece]
        lines.append(cells)
    while lines and not "".join(letter for letter, _ in lines[-1]).strip():
        lines.pop()
    return lines


def apply_codes(style, codes):
    style = dict(style)
    while codes:
        code = codes.pop(0)
        if code == 0:
            style = {}
        elif code in (1, 2, 4, 7):
            style[{1: "bold", 2: "dim", 4: "under", 7: "reverse"}[code]] = True
        elif code == 22:
            style.pop("bold", None), style.pop("dim", None)
        elif code in (24, 27):
            style.pop({24: "under", 27: "reverse"}[code], None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style["fg"] = code - 30 if code < 90 else code - 82
        elif 40 <= code <= 47:
            style["bg"] = code - 40
        elif code in (38, 48):
            kind = codes.pop(0) if codes else 0
            if kind == 5 and codes:
                style["fg" if code == 38 else "bg"] = codes.pop(0)
        elif code == 39:
            style.pop("fg", None)
        elif code == 49:
            style.pop("bg", None)
    return tuple(sorted(style.items()))


# ---------------------------------------------------------------- pictures

COLOURS = ["#1b1f27", "#f07178", "#a5d66f", "#ffcb6b", "#6fa8ff", "#c792ea", "#6fd6d6", "#d7dae0"]
BACKGROUND, INK, FAINT = "#11151c", "#d7dae0", "#7d8594"
WIDE, HIGH = 8.4, 18


def picture(lines, width, height):
    """A picture of the grid: runs of the same style, each at its column and as wide as its cells."""
    over, side = 34, 12
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width * WIDE + 2 * side:.0f}" height="{height * HIGH + over + side:.0f}" '
            f'viewBox="0 0 {width * WIDE + 2 * side:.0f} {height * HIGH + over + side:.0f}" '
            'font-family="ui-monospace, \'DejaVu Sans Mono\', Menlo, Consolas, monospace" font-size="14">'
        ),
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
    ]
    out += [f'<circle cx="{20 + 18 * at}" cy="17" r="5.5" fill="{colour}"/>' for at, colour in enumerate(["#f07178", "#ffcb6b", "#a5d66f"])]
    for row, line in enumerate(lines[:height]):
        y = over + row * HIGH
        for start, text, style in runs(line):
            fill, background = colours_of(dict(style))
            x, length = side + start * WIDE, len(text) * WIDE
            if background:
                out.append(f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="{HIGH}" fill="{background}"/>')
            if not text.strip():
                continue
            more = ' font-weight="bold"' if ("bold", True) in style else ""
            more += ' text-decoration="underline"' if ("under", True) in style else ""
            out.append(
                f'<text x="{x:.1f}" y="{y + 13.5:.1f}" textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs" fill="{fill}" '
                f'xml:space="preserve"{more}>{escape(text)}</text>'
            )
    return "\n".join(out + ["</svg>", ""])


def colours_of(style):
    fill = COLOURS[style["fg"] % 8] if "fg" in style else FAINT if "dim" in style else INK
    background = COLOURS[style["bg"] % 8] if "bg" in style else None
    return (BACKGROUND, fill) if "reverse" in style else (fill, background)


def runs(line):
    """Pieces of a line in one style: first column, text, style. What is blank and has no background is left out at the end."""
    line = list(line)
    while line and line[-1][0] == " " and not {"bg", "reverse", "under"} & set(dict(line[-1][1])):
        line.pop()
    at = 0
    while at < len(line):
        end = at
        while end < len(line) and line[end][1] == line[at][1]:
            end += 1
        yield at, "".join(letter for letter, _ in line[at:end]), line[at][1]
        at = end


# ---------------------------------------------------------------- the situations


class Gallery:
    """Compares what is shown with the golden files, or writes them."""

    def __init__(self, terminal, mode):
        self.terminal, self.mode, self.wrong, self.count = terminal, mode, [], 0

    def look(self, name, *patterns, sizes=SIZES, pictures=()):
        for width, height in sizes:
            self.terminal.size(width, height)
            self.terminal.until(*patterns)
            self.compare(name, width, height, (width, height) in pictures)
        self.terminal.size(*SIZES[0])
        if SIZES[0] in sizes:
            self.terminal.until(*patterns)

    def compare(self, name, width, height, pictured):
        self.count += 1
        golden_files = [(f"{GOLDEN_FOLDER}/{name}-{width}x{height}.txt", text_of)]
        if pictured:
            wide = "-wide" if width > 100 else ""
            golden_files.append((f"{PICTURES}/screen-{name}{wide}.svg", lambda lines: picture(lines, width, height)))
        if self.mode != "compare":
            lines = self.wait_until_stable()
            for path, made in golden_files:
                with open(path, "w") as file:
                    file.write(made(lines))
            return
        end = time.monotonic() + TIMEOUT_SECONDS / 2
        while True:
            lines = self.terminal.cells()
            differ = [(path, made(lines)) for path, made in golden_files if made(lines) != read(path)]
            if not differ:
                return
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        for path, made in differ:
            self.wrong.append(path)
            sys.stderr.write(f"DIFFERS FROM THE GOLDEN FILE: {path}\n{difference(read(path), made)}\n")

    def wait_until_stable(self):
        """What is shown, once it stays the same for a while."""
        last, since = None, time.monotonic()
        while time.monotonic() - since < 1.5:
            now = self.terminal.cells()
            if now != last:
                last, since = now, time.monotonic()
            time.sleep(0.1)
        return last


def text_of(lines):
    return "\n".join("".join(letter for letter, _ in line).rstrip() for line in lines) + "\n"


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def difference(old, new):
    return "\n".join(list(difflib.unified_diff(old.splitlines(), new.splitlines(), "golden", "shown", lineterm="", n=1))[:80])


def drive(cynork, data_dir, work, mode):
    with open(f"{work}/facts.json") as file:
        facts = json.load(file)
    terminal = Terminal(f"{work}/tmux")
    gallery = Gallery(terminal, mode)
    home = f"{work}/home"
    os.makedirs(home, exist_ok=True)
    # How it ended is said when it is known how the terminal was left.
    command = f"env XDG_CONFIG_HOME={home} {cynork} --url {facts['base']}; code=$?; stty -a >{work}/stty; echo ended $code; exec cat"
    terminal.open(command, SIZES[0])

    # Whoever has no session is asked for a name and a password, which is not shown.
    terminal.until("Log in", "password")
    terminal.keys("demo", "Enter", "not-this")
    gallery.look("login", "demo", "••••")
    terminal.keys("C-u", facts["password"], "Enter")

    small, wide = [SIZES[0]], SIZES
    terminal.until("● live", "slug-max", "4 things wait for you")
    terminal.keys("j", "j", "j")
    gallery.look("tasks", "● live", "✓ done +slug-max", "⚑ plan +dark-mode", pictures=wide)

    # What waits, exactly; and a yes by two keys.
    terminal.keys("2")
    gallery.look("inbox-plan", "The plan, as it will be", "limit +0.5000 USD", "class feature request", pictures=small)
    terminal.keys("a")
    gallery.look("inbox-yes", "May dark-mode be carried out as planned")
    terminal.keys("y")
    terminal.until("dark-mode goes on", "3 things wait for you")
    terminal.keys("G")
    gallery.look("inbox-call", "The call, exactly", "billing.example.org", pictures=small)
    terminal.keys("g", "a", "To those who come back.")
    gallery.look("inbox-question", "Your answer to friendlier-greeting", "come back")
    terminal.keys("Escape")
    terminal.until("It asks:")

    # A plan while it is carried out.
    terminal.keys("1", "/", "dark", "Enter", "Enter", "5")
    terminal.until("✓ Decide the colours", "▸ Show the switch")
    gallery.look("plan", "✓ Decide the colours", "▸ Show the switch", pictures=small)
    # Two escapes that come at once are one to whoever reads them.
    terminal.keys("Escape")
    terminal.until("STATE +NAME", "1 task")
    terminal.keys("Escape")
    terminal.until("old-idea")
    terminal.keys("/", "slug-max", "Enter", "Enter", "6")
    gallery.look("timeline", "read the task")
    terminal.keys("7", "[", "[", "[", "[", "[", "[", "[")
    gallery.look("logs", "job 2 of", "finishing")
    terminal.keys("8")
    terminal.until("file 1 of 2")
    terminal.keys("]")
    gallery.look("diff", "file 2 of 2: slug", "@@", pictures=small)
    terminal.keys("9")
    gallery.look("evidence", "NOT OK", "checks before any change")

    # By the mouse.
    column = terminal.plain().split("\n")[0].index("3 Nodes") + 1
    terminal.click(column, 1)
    gallery.look("nodes", "local", "● active", "bubblewrap")
    terminal.keys("4")
    gallery.look("spend", "By model", "project web", "in all", pictures=small)
    terminal.keys("?")
    gallery.look("help", "approve, or answer")
    terminal.keys("Escape")
    terminal.until("By model")
    terminal.keys("1")
    gallery.look("too-small", "needs 60x15", sizes=[(50, 12)])

    # The server is killed: it is said, what is known stays; started again, it goes on by itself.
    with open(f"{work}/up.pid") as file:
        os.kill(int(file.read()), signal.SIGKILL)
    gallery.look("disconnected", "✗ reconnecting", "slug-max")
    open(f"{work}/start", "w").close()
    terminal.until("● live")

    terminal.keys("q")
    terminal.until("ended 0")
    with open(f"{work}/stty") as file:
        modes = file.read()
    if not re.search(r"(?<!-)icanon", modes) or not re.search(r"(?<!-)echo\b", modes):
        gallery.wrong.append("the terminal, which was not given back")
        sys.stderr.write(f"NOT SO: the terminal was given back: {modes}\n")
    outcome = "written" if mode != "compare" else f"different: {', '.join(gallery.wrong)}" if gallery.wrong else "as in the golden files"
    print(f"{gallery.count} screens of {len(SIZES)} sizes, {outcome}")
    sys.exit(bool(gallery.wrong))


if __name__ == "__main__":
    if sys.argv[1] == "set-up":
        set_up_installation(sys.argv[2])
    else:
        drive(*sys.argv[2:5], {"--write": "write", "--pictures": "write"}.get((sys.argv[5:] or [""])[0], "compare"))
