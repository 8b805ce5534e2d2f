#!/usr/bin/env python3
"""Runs every command of `cynork` against a real installation and holds it to what docs/cynork.json promises.

    cli_contract.py --cynork PROGRAM --cynode PROGRAM --data DIR --url URL --internal URL --link LINK --tools URL --work DIR --database URL
        --nobody HOST:PORT --issuer PORT [--quick]

DIR after --data is the data directory of `cynode up`. LINK is the one for the first admin, --tools an MCP server with the tools `echo` and `fail`,
--nobody an address where nobody answers, --issuer a port that an identity provider may be at.
Prints a line for each part that holds, goes on after one that does not, then a table of commands, and fails if anything is missing.
"""

import argparse
import base64
import concurrent.futures
import hashlib
import hmac
import http.server
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request

import jsonschema
import referencing
import referencing.jsonschema

parser = argparse.ArgumentParser()
for name in ("cynork", "cynode", "data", "url", "internal", "link", "tools", "work", "database", "nobody", "issuer"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--quick", action="store_true")
options = parser.parse_args()

CONTRACT = json.load(open("docs/cynork.json"))
DOCUMENT = json.load(open("docs/openapi.json"))
COMMANDS = {command["command"]: command for command in CONTRACT["commands"]}
OPERATIONS = {operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()}
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mini_provider import MiniProvider  # noqa: E402

REGISTRY = referencing.Registry().with_resource(
    "openapi.json", referencing.Resource(contents=DOCUMENT, specification=referencing.jsonschema.DRAFT202012)
)
PASSWORD = "correct horse battery"
# What a caller may do about it decides the number; see docs/reference/cynork.md.
CODES = {1: "failed", 2: "usage", 3: "refused", 4: "not_found", 5: "conflict", 6: "invalid", 7: "unreachable", 8: "internal"}
CALL_LINE = re.compile(r"^(\w+) (GET|POST|PUT|PATCH|DELETE) (/\S*) (\d{3}|-)$")

reached = {}  # operation -> statuses
ran = {}  # command -> how often it succeeded
seen_codes = {}  # code -> commands
wrong = []


class Wrong(Exception):
    pass


def environment(who, **more):
    home = f"{options.work}/home-{who}"
    os.makedirs(home, mode=0o700, exist_ok=True)
    return {"PATH": os.environ["PATH"], "HOME": home, "LANG": "C.UTF-8"} | more


def raw(words, who="ada", stdin=None, cwd=None, **more):
    """One process: its exit code, standard output and standard error."""
    done = subprocess.run(
        [options.cynork, *words], input=stdin, capture_output=True, text=True, cwd=cwd or options.work, env=environment(who, **more), timeout=300, check=False
    )
    return done.returncode, done.stdout, done.stderr


def record_calls(command, stderr):
    """Records the calls that the lines report; gives the other lines."""
    rest = []
    for line in stderr.splitlines():
        call = CALL_LINE.match(line)
        if not call:
            rest.append(line)
            continue
        operation, status = call[1], call[4]
        if operation != "api" and operation not in COMMANDS[command]["operations"] and command != "api":
            raise Wrong(f"`cynork {command}` calls {operation}, which docs/cynork.json does not say")
        reached.setdefault(operation, set()).add(status)
    return rest


def validate(command, text):
    answer = COMMANDS[command]["answer"]
    validator = jsonschema.Draft202012Validator(answer["schema"], registry=REGISTRY)
    if answer["form"] == "lines":
        values = [json.loads(line) for line in text.splitlines()]
    else:
        value, end = json.JSONDecoder().raw_decode(text)
        if text[end:].strip():
            raise Wrong(f"`cynork {command}` writes more than one value: {text[end:][:200]!r}")
        values = [value]
    for value in values:
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
        if error:
            raise Wrong(f"`cynork {command}` does not keep to its form: {error.json_path}: {error.message[:300]}")
    return values if answer["form"] == "lines" else values[0]


def call(command, *words, code=0, yes=True, **how):
    """One command that must end with a code. Gives what it wrote, or why it failed."""
    line = [*command.split(), *map(str, words), "--json", "--verbose", *(["--yes"] if yes else [])]
    got, out, err = raw(line, **how)
    shown = shlex.join(["cynork", *line])
    if got != code:
        raise Wrong(f"{shown}\n  ended with {got}, not {code}: {err.strip()[-600:]}")
    rest = record_calls(command, err)
    seen_codes.setdefault(code, set()).add(command)
    if code:
        if out:
            raise Wrong(f"{shown}\n  failed and wrote {out[:200]!r} to standard output")
        failure = json.loads(rest[-1])
        if len(rest) != 1 or failure["kind"] != CODES[code] or not failure["detail"]:
            raise Wrong(f"{shown}\n  reported its failure as {rest}")
        return failure
    if rest:
        raise Wrong(f"{shown}\n  succeeded and reported {rest}")
    value = validate(command, out)
    ran[command] = ran.get(command, 0) + 1
    return value


def until(what, look, seconds=60, why=lambda: ""):
    """What a look gives, as soon as it gives something."""
    end = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > end:
            raise Wrong(f"{what} did not come in {seconds} s {why()}")
        time.sleep(0.25)
    return found


def part(name):
    """A part of the proof: the next goes on when it fails."""

    def run(body):
        began = time.monotonic()
        try:
            body()
            print(f"ok {name} ({time.monotonic() - began:.1f} s)", flush=True)
        except Exception as error:
            wrong.append(name)
            message = str(error) if isinstance(error, Wrong) else traceback.format_exc()
            print(f"NOT SO: {name}: {message}", flush=True)

    return run


def write(name, content):
    path = f"{options.work}/{name}"
    with open(path, "w") as file:
        file.write(content if isinstance(content, str) else json.dumps(content))
    return path


# What is told to people, as a webhook takes it.
notices = []


class Hook(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        notices.append(json.loads(body))
        self.send_response(204)
        self.end_headers()


hook = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
threading.Thread(target=hook.serve_forever, daemon=True).start()


def tool(token, name, arguments):
    """A call of a tool by an agent, at the gate."""
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments, "_meta": meta}}
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name}
    return agent(token, "/mcp", body, headers)


def agent(token, path, body, headers=None):
    """A request of an agent to the internal port: its status and its answer."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"} | (headers or {})
    request = urllib.request.Request(options.internal + path, json.dumps(body).encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def git(*words, cwd):
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *words], check=True, cwd=cwd, capture_output=True, env=environment("ada"))


REPOSITORY = f"{options.work}/repository"
os.makedirs(REPOSITORY)
for name, text in (("greeting", "hello\n"), ("retries.md", "Wait.\n"), ("docs-writer.toml", 'tools = ["*"]\n'), ("docs/index.md", "# Pages\n"),
                   ("run-the-tests/SKILL.md", "---\nname: run-the-tests\ndescription: Before anything is done\n---\nRun them.\n"), ("CLAUDE.md", "# Greetings\n\nOne file, `greeting`, that says hello.\n\n- Test: `cat greeting`\n")):
    os.makedirs(os.path.dirname(f"{REPOSITORY}/{name}"), exist_ok=True)
    with open(f"{REPOSITORY}/{name}", "w") as file:
        file.write(text)
git("init", "--quiet", "--initial-branch=main", cwd=REPOSITORY)
git("add", "--all", cwd=REPOSITORY)
git("commit", "--quiet", "--message=A greeting", cwd=REPOSITORY)

# What the model answers: a plan of one unit, or a question where the words are unclear.
UNIT = {
    "title": "Greet everybody",
    "kind": "implementation",
    "files_to_modify": ["greeting"],
    "files_to_read_first": [],
    "pattern_reference": "",
    "constraints": [],
    "requirements": ["The greeting names everybody"],
    "depends_on": [],
    "checks": [],
}
PLAN = {"reason": "One change.", "units": [UNIT], "leave_out": [], "assumptions": [], "question": ""}
SCRIPT = [
    ("^Decide what kind of work", {"reason": "It exists.", "class": "feature_request"}),
    ("^Decide how much of the project", {"reason": "One file.", "components": ["greeting"], "estimated_files": 1, "scope": "small"}),
    ("(?s)^Plan the task.*UNCLEAR", PLAN | {"units": [], "question": "Whom shall it greet?"}),
    ("^Plan the task", PLAN),
    ("^Judge whether", {"reason": "It is there.", "findings": [], "recommended_actions": [], "status": "pass"}),
    ("^A unit of work came to nothing", {"reason": "It may pass.", "note": "Once more.", "decision": "retry"}),
    ("was reviewed and found good", {"why": "Nothing to test.", "commands": [], "needed": False}),
    ("^Write a summary", {"summary": "The greeting names everybody."}),
]
RULES = [{"when": {"user_matches": question}, "answer": {"text": json.dumps(answer)}} for question, answer in SCRIPT]
RULES.append({"answer": {"text": "Good day. Nothing waits for you."}})
REPORTS = {
    "developer": ("work_completed", {"files_modified": ["greeting"], "artifacts": [], "notes": []}),
    "reviewer": ("review_approved", {"critical_issues": [], "major_issues": [], "minor_issues": [], "summary": "Good."}),
}


def worker(role):
    kind, details = REPORTS[role]
    moves = [{"move": "say", "text": f"I am the {role}."}]
    if role == "developer":
        moves.append({"move": "run", "argv": ["sh", "-c", "echo hello, everybody >>greeting"]})
    moves.append({"move": "tool", "name": "pm.report", "arguments": {"kind": kind, "summary": "Done.", "details": details}})
    return {"kind": "scripted", "moves": moves, "revised": moves}


@part("the first admin, sessions, keys and who keeps them")
def _():
    # A link among the arguments would be there for everybody on the machine to read.
    call("setup", options.link, "--handle", "ada", "--password-stdin", stdin=f"{PASSWORD}\n", code=2)
    call("setup", "-", "--handle", "ada", "--name", "Ada", "--password-stdin", stdin=f"{options.link}\n{PASSWORD}\n")
    assert call("whoami")["installation_role"] == "admin"
    call("logout")
    call("whoami", code=3)
    call("login", options.url, "--handle", "ada", "--password-stdin", stdin=f"{PASSWORD}\n")
    call("login", options.url, "--handle", "ada", "--password-stdin", stdin="wrong\n", who="eve", code=3)
    # Who is not logged in sees that it runs; who is sees that nobody could do any work yet, and what to type.
    call("config set", "url", options.url, who="passer-by")
    until("readiness", lambda: raw(["status"], who="passer-by")[0] == 0)
    status = call("status", who="passer-by")
    assert status["ready"] and not status["logged_in"], status
    code, out, _ = raw(["status", "--json"])
    status = json.loads(out)
    missing = [check for check in status["checks"] if check["status"] == "failed"]
    assert status["logged_in"] and not status["ready"], out
    assert code == 1 and missing and all(check.get("fix") for check in missing), out
    # A key in the place of a session, kept by a helper and not in the file.
    key = call("api-key create", "proof", "--days", "1")["token"]
    store = f"{options.work}/store"
    helper = write("helper", f'read line; case $line in *get*) cat {store} ;; *store*) echo "$line" >{store} ;; *) rm -f {store} ;; esac\n')
    call("login", options.url, "--api-key-stdin", "--helper", "sh", helper, who="program", stdin=f"{key}\n")
    assert call("whoami", who="program")["user"]["handle"] == "ada"
    file = call("config show", who="program")["file"]
    assert key not in open(file).read() and key in open(store).read() and os.stat(file).st_mode & 0o777 == 0o600
    assert any(it["name"] == "proof" for it in call("api-key list")["items"])
    call("api-key revoke", "proof")
    call("whoami", who="program", code=3)
    call("config set", "helper", who="program")
    assert not call("config set", "url", options.url, who="eve")["logged_in"]


@part("projects, people and groups")
def _():
    call("project create", "web", "--title", "The web", "--use")
    call("project create", "web", code=5)
    call("project create", "Not A Name!", code=6)
    call("project create", "other")
    assert {it["slug"] for it in call("project list", "--all")["items"]} == {"web", "other"}
    assert len(call("project list", "--limit", 1)["items"]) == 1
    assert call("project show")["title"] == "The web"
    call("project show", "nowhere", code=4)
    call("project update", "web", "--description", "Where it greets.")
    call("project update", "web", code=2)
    call("project use", "web")
    call("project import", REPOSITORY)
    assert call("project repository")["default_branch"] == "main"
    for handle, more in (("bob", []), ("eve", ["--role", "viewer"])):
        call("user create", handle, *more, "--password-stdin", stdin=f"{PASSWORD}\n")
    call("user create", "bob", "--password-stdin", stdin=f"{PASSWORD}\n", code=5)
    assert len(call("user list")["items"]) == 3
    assert call("user show", "me")["handle"] == "ada"
    call("user show", "nobody", code=4)
    call("user update", "bob", "--role", "operator")
    call("group create", "reviewers")
    call("group update", "reviewers", "--add", "bob", "--role", "viewer")
    assert len(call("group list")["items"][0]["members"]) == 1
    call("project grant", "bob", "operator")
    call("project grant-group", "reviewers", "viewer")
    assert {it["handle"] for it in call("project members")["items"]} == {"ada", "bob"}
    call("project revoke", "bob", yes=False, code=2)
    call("project revoke", "bob")
    call("login", options.url, "--handle", "eve", "--password-stdin", stdin=f"{PASSWORD}\n", who="eve")
    call("settings set", "gateway.calls_per_second", 20, who="eve", code=3)


def one_time_password(secret):
    """The code that an authenticator shows now (RFC 6238)."""
    key = base64.b32decode(secret + "=" * (-len(secret) % 8))
    digest = hmac.new(key, int(time.time() // 30).to_bytes(8, "big"), hashlib.sha1).digest()
    offset = digest[-1] & 15
    return f"{(int.from_bytes(digest[offset : offset + 4], 'big') & 0x7FFFFFFF) % 1_000_000:06}"


def enrol(who, password):
    """Enrols a second factor: the command shows the secret before it asks for a code. Gives the recovery codes."""
    command = "second-factor enrol"
    line = [options.cynork, *command.split(), "--password-stdin", "--code-stdin", "--json", "--verbose"]
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=options.work, env=environment(who)
    ) as process:
        process.stdin.write(f"{password}\n")
        process.stdin.flush()
        said = ""
        while not said.startswith("Secret: "):
            said = process.stderr.readline()
            if not said:
                raise Wrong(f"`cynork {command}` showed no secret")
            record_calls(command, said)
        process.stdin.write(one_time_password(said.removeprefix("Secret: ").strip()) + "\n")
        out, err = process.communicate(timeout=60)
    record_calls(command, err)
    if process.returncode:
        raise Wrong(f"`cynork {command}` ended with {process.returncode}: {err[-600:]}")
    ran[command] = ran.get(command, 0) + 1
    return validate(command, out)["codes"]


def directory(token, method, path, body):
    """A request of a directory, by SCIM."""
    headers = {"content-type": "application/scim+json", "authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{options.url}/scim/v2{path}", json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


@part("passwords, second factors, a directory, and the way in when all else fails")
def _():
    other = "another good password"
    call("login", options.url, "--handle", "bob", "--password-stdin", stdin=f"{PASSWORD}\n", who="bob")
    call("password", "--password-stdin", stdin=f"wrong password\n{other}\n", who="bob", code=6)
    call("password", "--password-stdin", stdin=f"{PASSWORD}\n{other}\n", who="bob")
    codes = enrol("bob", other)
    shown = call("second-factor show", who="bob")
    assert shown["enrolled"] and shown["recovery_codes_left"] == len(codes) == 10, shown
    call("login", options.url, "--handle", "bob", "--password-stdin", stdin=f"{other}\n", who="bob-again", code=2)
    answers = ["--password-stdin", "--code-stdin"]
    call("login", options.url, "--handle", "bob", *answers, stdin=f"{other}\n{codes[0]}\n", who="bob-again")
    call("login", options.url, "--handle", "bob", *answers, stdin=f"{other}\n{codes[0]}\n", who="bob-again", code=3)
    assert call("second-factor verify", "--code-stdin", stdin=f"{codes[2]}\n", who="bob")["session_verified"]
    codes = call("second-factor recovery-codes", "--code-stdin", stdin=f"{codes[1]}\n", who="bob")["codes"]
    call("second-factor delete", *answers, stdin=f"{other}\n{codes[0]}\n", who="bob")
    call("password", "--password-stdin", stdin=f"{other}\n{PASSWORD}\n", who="bob")
    # A key of one project, and what it is refused.
    key = call("api-key create", "narrow", "--scope", "tasks", "--project", "web", "--read-only")["token"]
    call("login", options.url, "--api-key-stdin", who="narrow", stdin=f"{key}\n")
    call("task list", "--project", "web", who="narrow")
    call("user list", who="narrow", code=3)
    call("api-key revoke", "narrow")
    # A directory makes a person and takes the access away again.
    token = call("scim-token create", "proof", "--days", 1)["token"]
    assert call("scim-token list")["items"][0]["name"] == "proof"
    made = directory(token, "POST", "/Users", {"userName": "cyd@example.com"})
    off = {"Operations": [{"op": "replace", "path": "active", "value": False}]}
    assert not directory(token, "PATCH", f"/Users/{made['id']}", off)["active"]
    assert not call("user show", "cyd")["active"]
    call("scim-token revoke", "proof")
    # The host lets an admin in.
    words = [options.cynode, "admin", "break-glass", "ada", "--data-dir", options.data, "--set", f"server.public_url={options.url}"]
    made = subprocess.run(words, check=True, capture_output=True, text=True)
    link = write("break-glass", made.stdout)
    assert call("break-glass", "--link-file", link, who="glass")["user"]["handle"] == "ada"
    call("break-glass", "--link-file", link, who="glass", code=3)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def browse(operation, method, url, cookies, body=None, kind="application/json"):
    """A request of a browser, which reaches an operation. Gives the answer's address, text and cookies."""
    headers = {"cookie": "; ".join(cookies), "origin": options.url, "content-type": kind}
    if method == "GET":
        headers = {"cookie": "; ".join(cookies)}
    opener = urllib.request.build_opener(NoRedirect, urllib.request.ProxyHandler({}))
    try:
        answer = opener.open(urllib.request.Request(url, body, headers, method=method), timeout=30)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        reached.setdefault(operation, set()).add(str(answer.status))
        set_cookies = [text.split(";")[0] for text in answer.headers.get_all("set-cookie") or []]
        return answer.headers.get("location"), answer.read().decode(), [text for text in set_cookies if not text.endswith("=")]


def log_device_in():
    """`cynork login --sso`, whose code Ada confirms."""
    line = [options.cynork, "login", options.url, "--sso", "--json", "--verbose"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=options.work, env=environment("device")) as process:
        code = None
        while not code:
            said = process.stderr.readline()
            if not said:
                raise Wrong("`cynork login --sso` showed no code")
            record_calls("login", said)
            code = re.search(r"\b[A-Z]{4}-[A-Z]{4}\b", said)
        assert call("device show", code[0])["device"].startswith("cynork"), code
        call("device approve", code[0], yes=False, code=2)
        call("device approve", code[0])
        out, err = process.communicate(timeout=60)
    record_calls("login", err)
    if process.returncode:
        raise Wrong(f"`cynork login --sso` ended with {process.returncode}: {err[-600:]}")
    assert validate("login", out)["user"]["handle"] == "ada"


@part("an identity provider, sessions and devices")
def _():
    provider = MiniProvider(int(options.issuer), options.work, "cynode")
    words = ["--display-name", "Company account", "--issuer", provider.issuer, "--client-id", "cynode", "--map", "staff=reviewers"]
    call("identity-provider set", "company", code=2)
    call("identity-provider set", "company", *words, "--secret-stdin", stdin="a-secret\n")
    call("identity-provider set", "inside", "--display-name", "x", "--issuer", "https://10.0.0.1", "--client-id", "x", code=6)
    assert call("identity-provider list")["items"][0]["has_secret"]
    assert call("identity-provider test", "company")["issuer"] == provider.issuer
    assert call("api", "GET", "/v1/login-options")["providers"][0]["name"] == "company"
    # A browser goes to the provider and comes back.
    away, _, cookies = browse("start_provider_login", "GET", f"{options.url}/v1/sso/company/login", [])
    back, _, session = browse("finish_provider_login", "GET", provider.log_in(away), cookies)
    assert back == "/" and len(session) == 1, (back, session)
    token = session[0].partition("=")[2]
    call("login", options.url, "--api-key-stdin", who="grace", stdin=f"{token}\n")
    assert call("whoami", who="grace")["installation_role"] == "viewer"
    assert call("session list", who="grace")["items"][0]["provider"] == "Company account"
    identity = call("identity list", who="grace")["items"][0]["id"]
    call("identity unlink", identity, who="grace", code=5)
    # A logout at the provider ends the session.
    form = f"logout_token={provider.logout_token()}".encode()
    browse("backchannel_logout", "POST", f"{options.url}/v1/sso/company/backchannel-logout", [], form, "application/x-www-form-urlencoded")
    call("whoami", who="grace", code=3)
    # Somebody with a password links the account, after an admin unlinked it from its other user.
    away, _, cookies = browse("start_provider_login", "GET", f"{options.url}/v1/sso/company/login", [])
    _, _, session = browse("finish_provider_login", "GET", provider.log_in(away), cookies)
    browse("provider_logout", "POST", f"{options.url}/v1/sessions/current/provider-logout", session, b"null")
    call("identity unlink", identity, "--user", "grace")
    call("login", options.url, "--handle", "bob", "--password-stdin", stdin=f"{PASSWORD}\n", who="bob")
    _, _, session = browse("login", "POST", f"{options.url}/v1/sessions", [], json.dumps({"handle": "bob", "password": PASSWORD}).encode())
    _, begun, cookies = browse("link_identity", "POST", f"{options.url}/v1/me/identities", session, b'{"provider": "company"}')
    back, _, _ = browse("finish_provider_login", "GET", provider.log_in(json.loads(begun)["authorization_url"]), session + cookies)
    assert back == "/settings/sessions", back
    identity = call("identity list", "--user", "bob")["items"][0]["id"]
    assert call("identity list", who="bob")["items"][0]["id"] == identity
    call("identity unlink", identity, who="bob")
    call("identity unlink", identity, "--user", "bob", code=4)
    other = next(it for it in call("session list", who="bob")["items"] if not it["current"])
    call("session end", other["id"], who="eve", code=4)
    call("session end", other["id"], who="bob")
    # Devices without a browser.
    log_device_in()
    asked = call("api", "POST", "/v1/device-logins", "--body", "-", stdin='{"device": "a printer"}')
    call("device deny", asked["user_code"])
    call("device show", asked["user_code"], code=4)
    call("identity-provider delete", "company")


@part("a project that is not wanted any more")
def _():
    call("project create", "old")
    call("project delete", "old", code=5)
    call("project archive", "old", yes=False, code=2)
    assert call("project archive", "old")["archived_at"]
    call("task create", "Greet.", "--project", "old", code=5)
    assert "old" not in {it["slug"] for it in call("project list")["items"]}
    assert "old" in {it["slug"] for it in call("project list", "--archived")["items"]}
    call("project unarchive", "old")
    call("project archive", "old")
    call("project delete", "old", yes=False, code=2)
    call("project delete", "old")
    call("project show", "old", code=4)


@part("settings, preferences, images")
def _():
    call("prefs set", "workflow.aprove_plan", "true", code=6)
    call("settings set", "notifications.allow_private", "true")
    call("settings set", "notifications.allow_private", "true", "--expected-version", 7, code=5)
    assert call("settings get", "notifications.allow_private")["value"] is True
    call("settings set", "gateway.calls_per_second", 100)
    assert len(call("settings list")["items"]) == 2
    call("settings delete", "gateway.calls_per_second")
    assert len(call("settings history", "gateway.calls_per_second")["items"]) == 2
    call("prefs set", "chat.default_project", "web")
    assert call("prefs get", "chat.default_project")["value"] == "web"
    call("prefs list")
    call("prefs history", "chat.default_project")
    call("prefs delete", "chat.default_project")
    call("prefs set", "workflow.approve_plan", "true", "--project", "web")
    for role in REPORTS:
        file = write(f"{role}.json", worker(role))
        call("prefs set", f"agents.project_manager.workers.{role}", f"@{file}", "--project", "web")
    assert call("prefs effective", "--project", "web")["effective"]["workflow.approve_plan"] is True
    call("policy set", "workflow.approve_plans", "true", code=6)
    call("policy set", "workflow.approve_plan", "true", "--project", "web")
    assert call("policy list", "--project", "web")["items"][0]["key"] == "workflow.approve_plan"
    assert call("policy explain", "--project", "web")["items"][0]["value"] is True
    call("policy delete", "workflow.approve_plan", "--project", "web")
    call("image allow", "docker.io/library/debian:13")
    assert call("image list")["items"] == ["docker.io/library/debian:13"]
    call("image disallow", "docker.io/library/debian:13")
    # Both ports are on loopback and speak clear text; what the installation's own authority issued is for clients.
    versions = {it["kind"]: it for it in call("process list")["items"]}
    assert {"server", "database", "command_line"} <= versions.keys() and not any(it["skewed"] for it in versions.values()), versions
    # `cynode backup` tells the installation of its backups; here is none.
    assert call("backup list")["items"] == []
    certificates = call("certificate list")["items"]
    assert "authority" in {it["used_for"] for it in certificates} and not {"user_port", "internal_port"} & {it["used_for"] for it in certificates}, certificates


@part("providers, models, budgets, chat")
def _():
    call("provider set", "sample", "--kind", "scripted", "--script", write("script.json", {"rules": RULES}))
    for tier in ("fast", "standard", "deep"):
        ways = ["--route", "sample=scripted", "--context", 200000, "--max-output", 4000, "--price", "input=1", "--price", "output=4"]
        call("model set", f"sample-{tier}", *ways, "--tier", tier, "--tools", "--json-schema")
    call("provider set", "away", "--kind", "compatible", "--base-url", f"http://{options.nobody}/v1")
    call("provider add-key", "away", "--label", "first", "--key-stdin", stdin="sk-not-a-key\n")
    assert {it["name"] for it in call("provider list")["items"]} == {"sample", "away"}
    call("model set", "away", "--route", "away=x", "--context", 1000, "--max-output", 100)
    assert len(call("model list")["items"]) == 4
    choice = call("model explain", "fast", "--project", "web")["tiers"][0]
    assert choice["model"] == "sample-fast" and choice["choices"][0]["selected"], choice
    call("model explain", "nobody", code=2)
    call("model delete", "away")
    call("provider delete-key", "away", "first")
    call("provider delete-key", "away", "first", code=4)
    call("provider delete", "away")
    budget = call("budget set", "--project", "web", "--period", "day", "--max-cost", "100")
    assert any(it["budget_id"] == budget["budget_id"] for it in call("budget list", "--project", "web")["items"])
    call("budget delete", budget["budget_id"])
    answer = call("chat", "--message", "Good day!", "--project", "web")
    assert "Good day" in answer["content"] and answer["finish_reason"] == "stop", f"S000-075: the CLI chats with the manager: {answer}"
    thread = call("chat threads")["items"][0]["thread_id"]
    # The answer is kept when it is whole, which may be a moment after its last word was heard.
    until("the whole talk", lambda: [turn["role"] for turn in call("chat show", thread)["items"]] == ["user", "assistant"])


going = {}


@part("a task is asked for and followed to its end, beside all that comes")
def _():
    words = ["run", "Greet everybody.", "--repo", REPOSITORY, "--project", "web", "--name", "greet", "--check", "grep -q everybody greeting", "--json", "--verbose", "--yes"]
    going["run"] = subprocess.Popen(
        [options.cynork, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment("ada"), stdin=subprocess.DEVNULL
    )


@part("tools, servers of tools, rules, tokens of agents")
def _():
    call("tool install", "echo", "--http", options.tools, "--scope", "both", code=6)
    call("tool install", "echo", "--http", options.tools, "--allow-private", "--scope", "both", "--audience", "everybody", "--prefix", "")
    call("tool install", "echo", "--http", options.tools, "--allow-private", "--scope", "both", code=5)
    offered = call("tool refresh", "echo")
    assert {it["state"] for it in offered["tools"]} == {"new"}, offered
    call("tool accept", "echo", "--tool", "echo", yes=False, code=2)
    call("tool accept", "echo", "--tool", "echo")
    call("tool accept", "echo")
    call("tool annotate", "echo", "echo", "--read-only", "--idempotent")
    call("tool update", "echo", "--timeout-ms", 5000)
    assert {it["state"] for it in call("tool server", "echo")["tools"]} == {"accepted"}
    assert len(call("tool servers")["items"]) == 1
    assert any(it["name"] == "echo" for it in call("tool list")["items"])
    view = lambda: next(it for it in call("tool list")["items"] if it["name"] == "fail")  # noqa: E731
    assert not call("tool disable", "fail")["enabled"] and not view()["enabled"], "S003-28: switch a tool off, and see it"
    assert call("tool enable", "fail")["enabled"] and view()["enabled"], "S003-28: switch a tool on, and see it"
    assert call("tool scope", "fail", "sandbox")["scope"] == "sandbox" == view()["scope"], "S003-36: set the scope of a tool, and see it"
    call("tool allowlists")
    call("tool enable", "no.such.tool", code=4)
    call("rule set", "ask", "approve", "--text", 'forbid (principal, action == Action::"echo", resource);')
    call("rule set", "broken", "refuse", "--text", "forbid x;", code=6)
    call("rule check", "broken", "refuse", "--text", "forbid x;", code=6)
    checked = call("rule check", "ask", "approve", "--text", 'forbid (principal, action == Action::"echo", resource);')
    assert checked["valid"] and checked["tools"] == ["echo"], checked
    assert call("rule history", "ask")["items"][0]["version"] == 1
    assert "echo" in [it["name"] for it in call("rule vocabulary")["tools"]]
    shipped = ["default", "offline", "research", "builder", "reviewer"]
    assert [it["name"] for it in call("profile list", "--project", "web")["items"]] == shipped, "the profiles that ship"
    assert call("profile create", "careful", "--like", "research", "--project", "web")["spec"]["network"]
    call("profile create", "offline", "--like", "research", code=5)
    tools = 'tools = ["agent.*", "db.*", "handoff.*", "memory.*", "pm.*", "workflow.*"]'
    permits = write("careful.toml", f'{tools}\nmodels = ["*"]\nbudget_micros = 1000000\n[paths]\nread = ["**"]\nwrite = ["docs/**"]\n')
    assert call("profile update", "careful", "--file", permits, "--project", "web")["version"] == 2
    call("profile update", "careful", "--file", permits, "--project", "web", "--expected-version", 1, code=5)
    assert call("profile show", "careful", "--project", "web")["spec"]["paths"]["write"] == ["docs/**"]
    assert [it["version"] for it in call("profile history", "careful", "--project", "web")["items"]] == [2, 1]
    asked = call("profile check", "careful", "--project", "web", "--tool", "web.fetch", "--request", "GET docs.rs", "--write", "docs/a", "--model", "x")
    assert [it["allowed"] for it in asked["decisions"]] == [False, False, True, True], asked
    limited = call("task create", "UNCLEAR: profile.", "--project", "web", "--name", "under-profile", "--profile", "careful")
    assert limited["profile"] == "careful" and limited["budget"]["max_cost_micros"] == 1_000_000, limited
    call("task create", "Nothing.", "--project", "web", "--profile", "nobody", code=6)
    call("task cancel", limited["id"])
    call("profile delete", "careful", "--project", "web", yes=False, code=2)
    call("profile delete", "careful", "--project", "web")
    shipped = {"ask-before-schedules", "ask-before-skills", "ask-before-tasks"}
    assert {it["name"] for it in call("rule list")["items"]} == shipped | {"ask"}, "the rules that ship, and this one"
    made = call("task create", "UNCLEAR: call tools.", "--project", "web", "--name", "call-tools")
    # A trace begins at the terminal, given or made up, and the run carries it.
    traced = call("task create", "UNCLEAR: trace.", "--project", "web", "--name", "traced", "--trace-id", f"{7:032x}")
    traces = [call("task timeline", it["id"])["trace_id"] for it in (traced, made)]
    assert traces[0] == f"{7:032x}" and re.fullmatch("[0-9a-f]{32}", traces[1]) and traces[0] != traces[1], f"S001-70: {traces}"
    call("task cancel", traced["id"])
    wired = write("networked.toml", 'tools = ["*", "echo"]\nmodels = ["*"]\nmemory = "write"\n[[network]]\ndomain = "*"\nmethods = ["*"]\n[paths]\nread = ["**"]\n')
    call("profile create", "networked", "--file", wired)
    issued = call("agent-token issue", "developer", "--project", "web", "--task", made["id"], "--profile", "networked", "--network", "--model", "sample-fast")
    going["token"], going["agent"] = issued["token"], issued["agent_token_id"]
    assert issued["agent_token_id"] in [it["agent_token_id"] for it in call("agent-token list", "--project", "web", "--all")["items"]]
    explained = call("tool explain", "echo", "--agent", issued["agent_token_id"], "--arguments", '{"text": "x"}')
    assert explained["decision"] == "needs_approval", explained


@part("memory")
def _():
    place = ("--project", "web")
    kept = call("memory remember", "Greeting", "The greeting is said once.", "--kind", "convention", *place)
    assert kept["state"] == "accepted" and call("memory show", kept["memory_id"])["content"] == "The greeting is said once.", kept
    found = call("memory search", "greeting", "once", *place)["hits"]
    assert found[0]["memory"]["memory_id"] == kept["memory_id"] and 0 < found[0]["score"] <= 1, found
    better = call("memory correct", kept["memory_id"], "--text", "The greeting is said twice.")
    assert better["supersedes"] == kept["memory_id"], better
    assert call("memory pin", better["memory_id"])["pinned"] and not call("memory pin", better["memory_id"], "--off")["pinned"]
    for text in ("It is said at noon.", "It is said at midnight."):
        status, answer = tool(going["token"], "memory.remember", {"kind": "fact", "title": "When", "text": text})
        assert status == 200 and not answer["result"].get("isError"), answer
    proposed = call("memory list", "--state", "proposed", "--profile", "networked", *place)["items"]
    assert len(proposed) == 2, proposed
    assert call("memory accept", proposed[0]["memory_id"])["state"] == "accepted"
    assert call("memory reject", proposed[1]["memory_id"])["state"] == "rejected"
    call("memory accept", proposed[1]["memory_id"].replace("mem_", "prj_"), code=6)
    assert call("memory ingest", f"{REPOSITORY}/docs", *place)["state"] == "done"
    body = {"kind": "files", "name": "more", "files": [{"path": "a.md", "text": "# A page"}], "more": True}
    begun = call("api", "POST", "/v1/projects/web/memory-ingests", "--body", "-", stdin=json.dumps(body))
    assert {it["ingest_id"] for it in call("memory ingests", *place)["items"]} >= {begun["ingest_id"]}
    assert call("memory cancel-ingest", begun["ingest_id"])["state"] == "cancelled"
    exported = call("memory export", *place)
    assert "twice" in json.dumps(exported), exported
    call("memory forget", better["memory_id"])
    assert call("memory forget", "--source", "files:docs", *place)["forgotten"] == 1
    call("memory show", better["memory_id"], code=4)


@part("calls that wait for a person, notices, links, records")
def _():
    made = call("channel create", "receiver", "--kind", "webhook", "--address", f"http://127.0.0.1:{hook.server_port}/")
    assert made["secret"].startswith("whsec_")
    call("channel list")
    call("channel show", "receiver")
    call("channel update", "receiver", "--event", "approval.requested", "--event", "task.waiting")
    call("channel test", "receiver")
    until("the notice of a try", lambda: any("test" in it["type"] for it in notices))
    # A browser, with the keys of the example of RFC 8291; it is gone before anything is told to it.
    assert len(call("api", "GET", "/v1/web-push/key")["public_key"]) == 87
    browser = {
        "name": "browser",
        "endpoint": f"http://127.0.0.1:{hook.server_port}/push",
        "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
        "auth": "BTBZMqHH6r4Tts7J_aSIgg",
    }
    call("api", "POST", "/v1/web-push/subscriptions", "--body", "-", stdin=json.dumps(browser))
    call("channel delete", "browser")
    for text in ("one", "two", "three"):
        came = tool(going["token"], "echo", {"text": text})
        assert "needs_approval" in json.dumps(came), came
    pending = until("three calls that wait", lambda: it if len(it := call("approval list")["items"]) == 3 else None)
    waiting_items = call("inbox")
    call("api", "PUT", f"/v1/inbox/{pending[0]['approval_id']}/presence", "--body", "-", stdin="{}")
    assert waiting_items["counts"]["call"] == 3, waiting_items["counts"]
    assert {it["approval_id"] for it in pending} <= {it["id"] for it in waiting_items["items"]}
    first, second, _third = sorted(pending, key=lambda it: it["asked_at"])
    assert call("approval show", first["approval_id"])["arguments"] == {"text": "one"}
    drafted = call("approval draft-rule", first["approval_id"], "deny")
    assert drafted["arguments_included"] and drafted["rule"]["mode"] == "shadow", drafted
    call("approval approve", first["approval_id"], yes=False, code=2)
    assert call("approval approve", first["approval_id"])["state"] == "approved"
    assert call("approval deny", second["approval_id"])["state"] == "refused"
    call("approval deny", second["approval_id"], code=5)

    def link():
        pending = [it for it in notices if it["type"] == "approval.requested" and "three" in it["data"]["exact"]]
        return [way["url"] for it in pending for way in it["data"]["links"]]

    link = until("the link of the third", link)[0]
    page = call("link show", link)
    assert "three" in page["exact"] and "approve" in page["answers"], page
    call("link answer", link, "--approve")
    call("link answer", link, "--approve", code=4)
    call("link show", link.rsplit("/", 1)[0] + "/nonsense", code=4)
    done = until("notifications that were sent", lambda: call("notification list", "--state", "sent")["items"])
    call("notification replay", done[0]["notification_id"])
    call("channel delete", "receiver")
    status, answer = tool(going["token"], "echo", {"text": "one"})
    assert status == 200 and not answer["result"].get("isError"), answer
    until("records of these calls", lambda: len(call("audit search", "--project", "web", "--tool", "echo")["items"]) >= 4)
    tried = call("rule backtest", "ask", "refuse", "--text", 'forbid (principal, action == Action::"echo", resource);')
    assert tried["hits"] >= 4 and tried["effects"]["refuse"] == tried["hits"], tried
    recorded = call("audit search", "--tool", "echo", "--limit", 1)["items"][0]
    assert call("tool explain-call", recorded["call_id"])["record"]["call_id"] == recorded["call_id"]
    counted = next(it for it in call("tool stats", "--project", "web", "--since", "1h")["items"] if it["tool"] == "echo")
    assert counted["allowed"] + counted["refused"] + counted["needs_approval"] >= 4, counted
    bundle = call("audit bundle", "--tool", "echo")
    assert bundle[0]["type"] == "bundle" and bundle[-1]["type"] == "end", bundle
    exported = call("audit export", "--tool", "echo")
    assert len(exported) == len(call("audit search", "--tool", "echo", "--all")["items"])
    call("agent-token revoke", going["agent"])
    call("rule delete", "ask")
    call("tool uninstall", "echo")


@part("a question, a plan, instructions, a stop")
def _():
    waiting = lambda name, reason: until(  # noqa: E731
        f"{name} to wait for {reason}",
        lambda: any(it["reason"] == reason and not it.get("resolved_at") for it in call("task timeline", name)["waits"]),
        seconds=120,
    )
    assert any(it["name"] == "call-tools" for it in call("task list", "--project", "web")["items"])
    first = call("task list", "--project", "web", "--limit", 1)
    behind = call("task list", "--project", "web", "--cursor", first["next_cursor"])["items"] if first.get("next_cursor") else []
    assert [it["id"] for it in first["items"] + behind] == [it["id"] for it in call("task list", "--project", "web", "--all")["items"]]
    waiting("call-tools", "human_input")
    call("task answer", "call-tools", "Everybody.")
    call("task answer", "call-tools", "Everybody.", code=5)
    call("task cancel", "call-tools")
    call("task retry", "call-tools")
    for name in ("moon", "sun"):
        call("task create", f"Greet the {name}.", "--name", name)
    waiting("moon", "approval")
    call("task plan", "moon")
    call("task show", "moon")
    call("task approve", "moon", yes=False, code=2)
    call("task approve", "moon")
    call("task approve", "moon", code=5)
    waiting("sun", "approval")
    call("task expand", "sun", "and the stars")
    call("task reduce", "sun", "not the stars")
    call("task revise", "sun", "only the sun")
    call("task pause", "sun")
    call("task resume", "sun")
    call("task diff", "sun", code=4)
    call("task abort", "sun")
    # What the work has left can be looked at though it is not offered, since its check does not hold.
    call("task create", "Greet the void.", "--name", "void", "--check", "grep -q nobody greeting")
    waiting("void", "approval")
    call("task approve", "void")
    until("work that was left", lambda: raw(["task", "diff", "void", "--json"])[0] == 0)
    assert "+hello, everybody" in call("task diff", "void")["text"]
    call("task cancel", "void")
    # A task that asks the same again and again may ask no more until a person says so.
    call("settings set", "models.loop_guard.max_identical_calls", 2)
    stuck = call("task create", "UNCLEAR: ask again.", "--name", "stuck")
    issued = call("agent-token issue", "developer", "--task", stuck["id"], "--model", "sample-fast")
    body = {"model": "sample-fast", "messages": [{"role": "user", "content": "again"}]}
    until("a task that is parked", lambda: agent(issued["token"], "/v1/chat/completions", body) and call("task parked", "stuck"))
    call("task unpark", "stuck")
    call("task review", "stuck")
    assert call("task parked", "stuck") is None
    call("task cancel", "stuck")


@part("a pull request that is not wanted")
def _():
    def finished_task():
        moon = call("task timeline", "moon")
        going["standing"] = moon["standing"]
        return moon["state"] not in ("queued", "running") and moon

    moon = until("the end of the task", finished_task, seconds=120, why=lambda: going["standing"])
    assert moon["state"] == "completed" and moon["pull_request"], moon["standing"]
    assert call("pr close", moon["pull_request"]["id"])["state"] == "closed"


@part("what came of the task: evidence, cost, its pull request, what was thought")
def _():
    out, err = going["run"].communicate(timeout=240)
    if going["run"].returncode:
        raise Wrong(f"`cynork run` ended with {going['run'].returncode}: {err[-800:]}")
    rest = record_calls("run", err)
    if rest:
        raise Wrong(f"`cynork run` reported {rest}")
    result = validate("run", out)
    ran["run"] = 1
    task = result["task"]["id"]
    assert result["task"]["state"] == "completed" and result["pull_request"]["state"] == "open", result
    call("task watch", task)
    for command in ("evidence", "cost", "reports", "logs", "diff", "timeline"):
        call(f"task {command}", task)
    job = call("task timeline", task)["jobs"][0]["job_id"]
    followed = call("task logs", task, "--follow", "--job", job)["items"]
    assert followed and {it["job_id"] for it in followed} == {job}, followed
    stored = call("artifact list", task)["items"]
    assert stored, "the bundle of a commit is an artifact"
    file = f"{options.work}/artifact"
    assert call("artifact get", stored[0]["id"], "--output", file)["bytes"] == stored[0]["bytes"] == os.path.getsize(file)
    with open(file, "rb") as bytes_of_it:
        assert hashlib.sha256(bytes_of_it.read()).hexdigest() == stored[0]["sha256"]
    call("artifact get", stored[0]["id"], "--output", file, code=2)
    assert call("task estimate", "Greet nobody.", "--project", "web")["basis"] in ("project", "installation", "unknown")
    again = call("task check", task)["evidence"]
    assert "gathering" in [it["state"] for it in again] and any(it["stale"] for it in again), again
    call("task check", task, code=5)
    until("the checks that were run again", lambda: all(it["state"] == "passed" for it in call("task evidence", task)["evidence"]), seconds=120)
    # No node has the agent of those projects that choose none, so the diagnosis is shown and fails.
    code, out, err = raw(["doctor", "--json", "--verbose"])
    record_calls("doctor", err)
    diagnosis = validate("doctor", out)
    ran["doctor"] = ran.get("doctor", 0) + 1
    failing = [check["name"] for check in diagnosis["checks"] if check["state"] == "fail"]
    assert (code, failing, diagnosis["state"]) == (1, ["agents"], "fail"), out
    assert {"database", "storage", "clock", "backups"} <= {check["name"] for check in diagnosis["checks"]}, out
    number = result["pull_request"]["number"]
    assert number in [it["number"] for it in call("pr list", "--state", "open")["items"]]
    call("pr show", number)
    call("pr show", 99, code=4)
    assert [it["path"] for it in call("pr files", number)["files"]] == ["greeting"]
    assert "+hello, everybody" in call("pr diff", number)["text"]
    call("pr comment", number, "--message", "Good.", "--path", "greeting", "--line", 1)
    call("pr review", number, "approve", "--message", "As it should be.")
    assert call("pr merge", number)["state"] == "merged"
    call("pr close", number, code=5)
    handoffs = call("handoff list", "--task", task, "--all")["items"]
    planned = next(it for it in handoffs if it["kind"] == "plan")
    assert call("handoff show", planned["handoff_id"])["decisions"]
    asked = [planned["handoff_id"], planned["decisions"][0]["step"]]
    call("handoff prompt", *asked)
    replay = call("handoff replay", *asked)
    assert replay["state"] in ("answered", "invalid"), replay
    compared = call("handoff compare", *asked)
    assert [it["replay_id"] for it in compared["replays"]] == [replay["replay_id"]], compared
    call("handoff replay", *asked, "--model", "nobody", code=4)
    call("handoff show", "hof_00000000000070008000000000000000", code=4)
    assert call("usage sum", "--by", "model", "--since", "1d")["items"]
    assert call("usage series", "--step", "day", "--by", "model")["items"]
    assert call("usage calls", "--task", task, "--limit", 2)["items"]
    assert len(call("events", "--after", "0.0", "--limit", 5)) == 5


@part("the environment of a project")
def _():
    where = ["--project", "built"]
    call("project create", "built")
    call("project import", REPOSITORY, *where)
    call("project environment show", *where, code=4)
    detected = call("project environment detect", *where)
    assert detected["state"] == "proposed", detected
    file = write("environment.json", {"checks": [{"kind": "test", "command": "grep -q . greeting"}]})
    made = call("project environment set", file, *where)
    number = made["version"]
    assert call("project environment set", file, *where) == made, "the same content is one version"
    tried = call("project environment try", number, *where)
    assert tried["succeeded"] and tried["checks"][0]["exit_code"] == 0, tried
    assert call("project environment accept", number, *where)["state"] == "accepted"
    call("project environment accept", number, *where, code=5)
    assert call("project environment show", *where)["version"] == number
    assert call("project environment show", detected["version"], *where)["state"] == "proposed"
    call("project environment reject", detected["version"], "--note", "nothing is set up", *where)
    assert [it["state"] for it in call("project environment list", *where)["items"]] == ["accepted", "rejected"]
    call("project secret set", "npm-token", "--value-stdin", *where, stdin="not-a-token\n")
    assert [it["name"] for it in call("project secret list", *where)["items"]] == ["npm-token"]
    call("project secret delete", "npm-token", *where, yes=False, code=2)
    call("project secret delete", "npm-token", *where)
    assert call("project packages", *where)["items"] == []


@part("a repository on a forge that nobody answers for")
def _():
    secret = "a-secret-of-at-least-sixteen-characters"
    where = ["github", f"http://{options.nobody}/acme/web.git", "--api-url", f"http://{options.nobody}/api", "--project", "other"]
    # What the forge does not answer is said, and what to do about it; what was given is kept.
    assert call("remote set", *where, "--token-stdin", stdin="not-a-token\n")["missing"]
    tokens = f"not-a-token\n{secret}\n"
    made = call("remote set", *where, "--no-check", "--token-stdin", "--webhook-secret-stdin", "--label", "cynode", stdin=tokens)
    assert made["repository"] == "acme/web", made
    call("remote show", "--project", "other")
    assert call("remote issues", "--project", "other")["items"] == []
    body = json.dumps({"action": "opened", "repository": {"full_name": "acme/web"}})
    signature = hmac.new(secret.encode(), body.encode(), hashlib.sha256).hexdigest()
    headers = ["x-github-event=ping", "x-github-delivery=proof-1", f"x-hub-signature-256=sha256={signature}"]
    headers = [word for header in headers for word in ("--header", header)]
    call("api", "POST", made["webhook_path"], "--body", "-", *headers, stdin=body)
    call("api", "POST", made["webhook_path"], "--body", "-", stdin=body, code=3)
    call("remote delete", "--project", "other")
    call("remote show", "--project", "other", code=4)


@part("schedules, skills, checked records, a repository by git")
def _():
    when = ["--cron", "0 9 * * mon", "--timezone", "Europe/Berlin"]
    call("schedule create", "weekly", *when, "--task", "Say hello.", "--project", "web")
    call("schedule create", "weekly", *when, "--task", "Say hello.", "--project", "web", code=5)
    call("schedule create", "never", "--cron", "not a time", "--words", "x", "--project", "web", code=6)
    assert [it["name"] for it in call("schedule list", "--project", "web")["items"]] == ["weekly"]
    assert call("schedule show", "weekly")["next_at"]
    assert call("schedule run", "weekly")["outcome"] == "task"
    assert not call("schedule update", "weekly", "--disable")["enabled"]
    call("schedule update", "weekly", "--enable", "--expected-version", 1, code=5)
    call("schedule review", "weekly")
    call("schedule delete", "weekly")
    call("schedule show", "weekly", code=4)
    call("skill create", "test-first", "--about", "Before anything is called done", "--body", "Run the tests.", "--project", "web")
    assert call("skill show", "test-first", "--project", "web")["body"] == "Run the tests."
    assert call("skill update", "test-first", "--body", "Run all tests.", "--project", "web")["version"] == 2
    call("skill update", "test-first", "--about", "x", "--expected-version", 1, "--project", "web", code=5)
    assert len(call("skill list", "--project", "web")["items"]) == 1
    call("skill review", "test-first", "--project", "web")
    call("skill review", "test-first", "--expected-version", 1, "--project", "web", code=5)
    assert [it["version"] for it in call("skill versions", "test-first", "--project", "web")["items"]] == [2, 1]
    assert call("skill version", "test-first", 1, "--project", "web")["body"] == "Run the tests."
    with tempfile.TemporaryDirectory() as place:
        assert call("skill export", "test-first", "--to", place, "--project", "web")["version"] == 2
        call("skill export", "test-first", "--to", place, "--project", "web", code=5)
        assert call("skill import", f"{place}/test-first", "--mine")["scope"] == "person"
        call("skill import", f"{place}/test-first", "--mine", code=5)
        assert call("skill import", f"{place}/test-first", "--mine", "--replace")["version"] == 2
        call("skill import", place, "--mine", code=6)
    assert [it["name"] for it in call("skill list", "--common")["items"]] == ["test-first"]
    call("skill delete", "test-first", "--mine")
    call("skill delete", "test-first", "--project", "web")
    assert call("audit verify")["problems"] == []
    proved = call("audit search", "--limit", 50)["items"]
    covered = until("a signed head over a record", lambda: [it for it in proved if raw(["audit", "prove", it["call_id"]])[0] == 0])
    assert call("audit prove", covered[0]["call_id"])["items"]
    head = next(it for it in call("audit head")["heads"] if it.get("checkpoint"))
    assert call("audit consistency", head["chain_id"], 1)["checkpoint"]["size"] >= head["checkpoint"]["size"]
    call("audit consistency", head["chain_id"], 10**9, code=5)
    assert call("audit sink set", "local", "--syslog", "unix", "--address", f"{options.work}/nobody")["kind"] == "syslog"
    assert [it["name"] for it in call("audit sink list")["items"]] == ["local"]
    call("audit sink delete", "local")
    call("audit sink delete", "local", code=4)
    assert {key["purpose"] for key in call("keyring")["keys"]} == {"master", "signing", "token"}
    sample = call("sample", f"{options.work}/tried")
    call("project clone", sample["project_id"], f"{options.work}/copy")
    assert call("project pull", f"{options.work}/copy", "--project", sample["project_id"])["branch"] == "main"


@part("nodes, numbers, any call, and what cynork says of itself")
def _():
    node = until("a node", lambda: call("node list")["items"])[0]["name"]
    call("node show", node)
    call("node label", node, "proof")
    assert call("node drain", node)["state"] == "draining"
    assert call("node undrain", node)["state"] == "active"
    call("node join-token", "--label", "proof", "--expires-in", 60)
    call("node delete", node)
    assert call("metrics")["items"]
    assert "<html" in call("api", "GET", "/")
    call("api", "GET", "/v1/nowhere", code=4)
    assert call("completions", "bash")["script"]
    pages = call("man", f"{options.work}/man")["pages"]
    assert len(pages) > len(COMMANDS), len(pages)
    call("config set", "project")
    call("project show", code=2)
    assert call("contract") == CONTRACT


@part("nobody answers, nobody knows the caller, nobody understands")
def _():
    call("whoami", "--url", f"http://{options.nobody}", code=7)
    call("whoami", CYNORK_TOKEN="cyn_ses_wrong", code=3)
    call("task list", "--nonsense", code=2)
    call("task show", "tsk_00000000000070008000000000000000", code=4)


# These ask nobody, or nobody who must know the caller.
LOCAL = {"completions", "man", "config show", "config set", "contract", "logout"}
OPEN = {"setup", "login", "status", "link show", "link answer"}


def example(command, url):
    words = shlex.split(COMMANDS[command]["example"])[1:]
    words = [re.sub(r"https?://(127\.0\.0\.1:12080|cynode\.example)", url, word) for word in words]
    if "--link-file" in words:
        # A file with a link to nobody.
        with tempfile.NamedTemporaryFile("w", delete=False) as link:
            link.write(f"{url}/#bootstrap=cyn_boot_wrong\n")
        words[words.index("--link-file") + 1] = link.name
    if "environment.toml" in words:
        with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False) as file:
            file.write('setup = ["true"]\n')
        words[words.index("environment.toml")] = file.name
    if "no-fetch.cedar" in words:
        with tempfile.NamedTemporaryFile("w", suffix=".cedar", delete=False) as file:
            file.write('forbid (principal, action == Action::"web.fetch", resource);\n')
        words[words.index("no-fetch.cedar")] = file.name
    return [word for word in words if word not in ("--json", "--quiet", "--yes")]


def check_help_and_refusals(command):
    """Help, and the example as a stranger and with nobody there."""
    code, out, err = raw([*command.split(), "--help"])
    if code or err or "Example: cynork " not in out:
        raise Wrong(f"`cynork {command} --help` has no example")
    if command in LOCAL:
        return
    secret = "wrong horse battery\n" * 3
    flags = [f"--{word}-stdin" for word in ("password", "code", "key", "value") if any(it.get("flag") == f"--{word}-stdin" for it in COMMANDS[command]["arguments"])]
    nobody = f"http://{options.nobody}"
    for url, more, wanted in ((nobody, {}, 7), (options.url, {"CYNORK_TOKEN": "cyn_ses_wrong"}, 3)):
        if wanted == 3 and command in OPEN:
            continue
        words = [*example(command, url), *flags, "--json", "--yes", "--url", url]
        code, out, err = raw(words, who="stranger", stdin=secret, cwd=REPOSITORY, **more)
        if code != wanted or out:
            raise Wrong(f"{shlex.join(['cynork', *words])} ended with {code}, not {wanted}: {out[:200]} {err[:300]}")
        seen_codes.setdefault(wanted, set()).add(command)


@part("every command has help with an example, and says refused and unreachable")
def _():
    bad = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(check_help_and_refusals, command) for command in COMMANDS]:
            try:
                done.result()
            except Wrong as error:
                bad.append(str(error))
    if bad:
        raise Wrong("\n  ".join(["", *bad]))


def first_byte(words):
    """Milliseconds from the start of a process to its first byte."""
    began = time.perf_counter()
    with subprocess.Popen([options.cynork, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment("ada")) as process:
        process.stdout.read(1)
        took = time.perf_counter() - began
        process.stdout.read()
    if process.returncode:
        raise Wrong(f"{words} ended with {process.returncode}")
    return took * 1000


def measure(words, bar, what):
    times = sorted(first_byte(words) for _ in range(20))
    middle = statistics.median(times)
    # Only what people get is held to it.
    enforced = os.path.basename(os.path.dirname(options.cynork)) == "release"
    print(f"   {what}: p50 {middle:.1f} ms, most {times[-1]:.1f} ms (bar {bar} ms, {'enforced' if enforced else 'not a release build'})", flush=True)
    if enforced and middle >= bar:
        raise Wrong(f"{what} took {middle:.1f} ms")


@part("it starts at once")
def _():
    measure(["--version"], 30, "cynork --version, to its first byte")
    if options.quick:
        return
    rows = """INSERT INTO tasks (task_id, project_id, name, description, acceptance_criteria, state, started_at, ended_at, created_by, created_at, updated_at)
        SELECT gen_random_uuid(), (SELECT project_id FROM projects LIMIT 1), 'old-' || number, 'An old task.', '[]', 'completed', now(), now(),
            (SELECT user_id FROM users LIMIT 1), now(), now() FROM generate_series(1, 100000) AS number; ANALYZE tasks"""
    subprocess.run(["psql", "-q", "-v", "ON_ERROR_STOP=1", options.database, "-c", rows], check=True, capture_output=True)
    measure(["task", "list"], 100, "cynork task list of 100,000, to its first byte")


good = {operation for operation, statuses in reached.items() if any(status.startswith(("2", "303")) for status in statuses)}
missing = sorted(OPERATIONS - good)
unrun = sorted(set(COMMANDS) - set(ran))
print(f"\n{'exit code':<18}{'commands that ended so':>24}")
for code in sorted(seen_codes):
    print(f"{code} {CODES.get(code, 'ok'):<16}{len(seen_codes[code]):>24}")
print(f"{len(ran)} of {len(COMMANDS)} commands ran, {sum(ran.values())} times; {len(good & OPERATIONS)} of {len(OPERATIONS)} operations answered")
for name, left in (("did not run", unrun), ("was not reached", missing)):
    for one in left:
        print(f"NOT SO: {one} {name}")
lacking = {0, 2, 3, 4, 5, 6, 7} - set(seen_codes)
for code in sorted(lacking):
    print(f"NOT SO: nothing ended with {code}")
sys.exit(bool(wrong or unrun or missing or lacking))
