"""Logs people in at a real OpenID provider by real redirects, and tries what must be refused.

sso.py ADDRESS CONTROL ISSUER SECRET_FILE BOOTSTRAP CYNORK OTHER_ISSUER INTERNAL [--quick]
"""

import http.cookies
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ADDRESS, CONTROL, ISSUER, SECRET_FILE, BOOTSTRAP, CYNORK, OTHER_ISSUER, INTERNAL = sys.argv[1:9]
QUICK = "--quick" in sys.argv
SITE = f"http://{ADDRESS}"
PASSWORD = "correct horse battery"
REMOVAL_LIMIT_SECONDS = 60


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects are looked at one by one."""

    def redirect_request(self, *_):
        return None


OPENER = urllib.request.build_opener(NoRedirect, urllib.request.ProxyHandler({}))


def send(method, url, headers=None, body=None):
    """Sends one request. Gives the status, the headers and the body."""
    request = urllib.request.Request(url, method=method, headers=headers or {}, data=body)
    try:
        answer = OPENER.open(request, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.headers, answer.read()


class Browser:
    """A browser: cookies by host, and redirects as far as they lead."""

    def __init__(self):
        self.cookies = {}

    def get(self, url):
        host = urllib.parse.urlsplit(url).netloc
        jar = self.cookies.setdefault(host, {})
        headers = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/130.0", "Accept": "text/html"}
        if jar:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in jar.items())
        status, answer, body = send("GET", url, headers)
        self.take_cookies(jar, answer)
        target = answer.get("Location")
        return status, urllib.parse.urljoin(url, target) if target else None, body

    @staticmethod
    def take_cookies(jar, headers):
        for text in headers.get_all("Set-Cookie") or []:
            for name, morsel in http.cookies.SimpleCookie(text).items():
                if morsel.value == "" or morsel["max-age"] == "0":
                    jar.pop(name, None)
                else:
                    jar[name] = morsel.value

    def begin_login(self, return_to="/tasks", provider="company", issuer=ISSUER):
        """Begins a login. Gives the address at the provider."""
        status, target, _ = self.get(f"{SITE}/v1/sso/{provider}/login?return_to={return_to}")
        assert status == 303 and target.startswith(issuer), (status, target)
        return target

    def answer_provider(self, target, person):
        """Logs in at the provider. Gives the address that it sends the browser back to."""
        for _ in range(12):
            if target.startswith(f"{SITE}/"):
                return target
            separator = "&" if "?" in target else "?"
            if "/interaction/" in target:
                target = f"{target}{separator}person={person}"
            status, next_target, body = self.get(target)
            assert next_target, (status, target, body[:300])
            target = next_target
        raise AssertionError("the provider never came to an end")

    def finish_login(self, callback):
        """Comes back. Gives the page that the browser is sent to."""
        status, target, _ = self.get(callback)
        assert status == 303, status
        return target.removeprefix(SITE)

    def log_in(self, person):
        return self.finish_login(self.answer_provider(self.begin_login(), person))

    def call(self, method, path, body=None):
        """A call of the console in this browser."""
        cookies = self.cookies.get(ADDRESS, {})
        headers = {
            "Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items()),
            "Origin": SITE,
            "Sec-Fetch-Site": "same-origin",
            "Content-Type": "application/json",
        }
        status, answer, text = send(method, f"{SITE}{path}", headers, None if body is None else json.dumps(body).encode())
        self.take_cookies(self.cookies.setdefault(ADDRESS, {}), answer)
        return status, json.loads(text) if text else None


def control(action, **body):
    status, _, text = send("POST", f"http://{CONTROL}/{action}", {}, json.dumps(body).encode())
    assert status == 200, (action, status)
    return json.loads(text)


def program(token, method, path, body=None):
    """A call of a program with a token."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    status, _, text = send(method, f"{SITE}{path}", headers, None if body is None else json.dumps(body).encode())
    return status, json.loads(text) if text else None


def must(outcome, expected=(200, 201, 204)):
    status, body = outcome
    assert status in expected, (status, body)
    return body


def seconds_until(what, limit):
    """Waits until something holds. Gives how long it took."""
    started = time.monotonic()
    while time.monotonic() - started < limit:
        if what():
            return time.monotonic() - started
        time.sleep(0.5)
    raise AssertionError(f"it took longer than {limit} s")


def figure(name, value, unit):
    print(f"figure: {name} {value} {unit}")


def set_up():
    """The first admin, a group and the provider. Gives the admin's token."""
    must(program(None, "POST", "/v1/bootstrap", {"token": BOOTSTRAP, "handle": "root", "display_name": "Root", "password": PASSWORD}))
    token = must(program(None, "POST", "/v1/sessions", {"handle": "root", "password": PASSWORD}))["token"]
    groups = {}
    for name, role in (("operators", "operator"), ("leads", "admin")):
        groups[name] = must(program(token, "POST", "/v1/groups", {"name": name}))["id"]
        must(program(token, "PATCH", f"/v1/groups/{groups[name]}", {"role": role}))
    body = {
        "display_name": "Company account",
        "issuer": ISSUER,
        "client_id": "cynode",
        "client_secret": pathlib.Path(SECRET_FILE).read_text(encoding="utf8").strip(),
        "scopes": ["profile", "email", "groups", "offline_access"],
        "links_directory": True,
        "mappings": [{"claim_value": "builders", "group_id": groups["operators"]}, {"claim_value": "leads", "group_id": groups["leads"]}],
    }
    must(program(token, "PUT", "/v1/identity-providers/company", body))
    other = {**body, "display_name": "Other company", "issuer": OTHER_ISSUER, "links_directory": False, "mappings": []}
    must(program(token, "PUT", "/v1/identity-providers/other", other))
    found = must(program(token, "POST", "/v1/identity-providers/company/test"))
    assert found["names_issuer"] and found["issuer"] == ISSUER, found
    return token


def show_login_and_groups():
    ada, bob = Browser(), Browser()
    assert ada.log_in("ada") == "/tasks"
    assert bob.log_in("bob") == "/tasks"
    me = must(ada.call("GET", "/v1/me"))
    assert (me["user"]["handle"], me["installation_role"]) == ("ada", "operator"), me
    me = must(bob.call("GET", "/v1/me"))
    assert (me["user"]["handle"], me["installation_role"]) == ("bob", None), me
    must(bob.call("GET", "/v1/users"), (403,))
    print("login by redirects, mapped groups give rights, others give none")
    return ada, bob


def show_refused_states():
    refused = 0
    browser, other = Browser(), Browser()
    callback = browser.answer_provider(browser.begin_login(), "ada")
    assert other.finish_login(callback) == "/login?sso=stale"  # another browser
    foreign = other.answer_provider(other.begin_login(), "bob")
    assert browser.finish_login(foreign) == "/login?sso=stale"  # a login of somebody else
    mixed = re.sub(r"([?&]code=)[^&]+", lambda found: found.group(1) + urllib.parse.parse_qs(urllib.parse.urlsplit(foreign).query)["code"][0], callback)
    assert browser.finish_login(mixed).startswith("/login?sso="), "a code of another login"
    assert browser.finish_login(callback) == "/login?sso=stale"  # used up by the attempt before
    refused += 4
    browser = Browser()
    callback = browser.answer_provider(browser.begin_login(), "ada")
    wrong_issuer = re.sub(r"([?&]iss=)[^&]+", r"\g<1>https%3A%2F%2Fevil.example", callback)
    assert browser.finish_login(wrong_issuer) == "/login?sso=provider"
    refused += 1
    browser = Browser()
    callback = browser.answer_provider(browser.begin_login(), "ada")
    assert browser.finish_login(callback) == "/tasks"
    assert browser.finish_login(callback) == "/login?sso=stale"  # replayed
    assert Browser().finish_login(f"{SITE}/v1/sso/company/callback?code=x&state=y") == "/login?sso=stale"
    refused += 2
    figure("refused_answers", refused, "answers")


def show_two_providers():
    """What one provider answers is never taken for the answer of another."""
    browser = Browser()

    def answers():
        own = browser.answer_provider(browser.begin_login(), "ada")
        return own, browser.answer_provider(browser.begin_login(provider="other", issuer=OTHER_ISSUER), "ada")

    def values(url):
        return {name: value[0] for name, value in urllib.parse.parse_qs(urllib.parse.urlsplit(url).query).items()}

    # The code of the other one with the state of the login here, as a malicious provider sends it: with its issuer, and with the right one.
    for issuer in (OTHER_ISSUER, ISSUER):
        own, foreign = answers()
        query = urllib.parse.urlencode({"state": values(own)["state"], "code": values(foreign)["code"], "iss": issuer})
        assert browser.finish_login(f"{SITE}/v1/sso/company/callback?{query}") == "/login?sso=provider", issuer
    # The whole answer of one at the address of the other.
    own, foreign = answers()
    assert browser.finish_login(own.replace("/sso/company/", "/sso/other/")) == "/login?sso=stale"
    assert browser.finish_login(foreign.replace("/sso/other/", "/sso/company/")) == "/login?sso=stale"
    figure("mixed_up_answers_refused", 4, "answers")
    # The same name at both is two people.
    assert browser.log_in("ada") == "/tasks"
    first = must(browser.call("GET", "/v1/me"))["user"]["id"]
    stranger = Browser()
    target = stranger.begin_login(provider="other", issuer=OTHER_ISSUER)
    assert stranger.finish_login(stranger.answer_provider(target, "ada")) == "/tasks"
    me = must(stranger.call("GET", "/v1/me"))
    assert me["user"]["id"] != first and me["installation_role"] is None, me


def show_admin_without_password():
    carol = Browser()
    assert carol.log_in("carol") == "/tasks"
    assert must(carol.call("GET", "/v1/me"))["installation_role"] == "admin"
    group = must(carol.call("POST", "/v1/groups", {"name": "made-by-carol"}), (201,))["id"]
    must(carol.call("PATCH", f"/v1/groups/{group}", {"role": "viewer"}))
    must(carol.call("GET", "/v1/identity-providers"))
    print("an admin by a mapped group administers without a password")


def show_directory(token):
    """A directory makes an account, which logs in by the provider, and ends it."""
    scim = must(program(token, "POST", "/v1/scim-tokens", {"name": "directory"}), (201,))["token"]
    headers = {"Content-Type": "application/scim+json", "Authorization": f"Bearer {scim}"}
    body = {"schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"], "userName": "dora@example.com", "externalId": "dora"}
    status, _, text = send("POST", f"{SITE}/scim/v2/Users", headers, json.dumps(body).encode())
    assert status == 201, (status, text)
    made = json.loads(text)["id"]
    dora = Browser()
    assert dora.log_in("dora") == "/tasks"
    assert must(dora.call("GET", "/v1/me"))["user"]["id"] == made
    change = {"op": "replace", "path": "active", "value": False}
    body = {"schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"], "Operations": [change]}
    status, _, text = send("PATCH", f"{SITE}/scim/v2/Users/{made}", headers, json.dumps(body).encode())
    assert status == 200, (status, text)
    must(dora.call("GET", "/v1/me"), (401,))
    assert Browser().log_in("dora") == "/login?sso=disabled"
    print("an account of the directory logs in by the provider, and ends with the directory's word")


def show_provider_failures(ada):
    """What fails at the provider, and is no word about a person, ends nothing."""
    failures = [("/token", 401, "invalid_client"), ("/token", 403, "access_denied"), ("/me", 500, "server_error"), ("/me", 403, "no")]
    for path, status, error in failures[::2] if QUICK else failures:
        control("fail", path=path, status=status, error=error)
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            assert must(ada.call("GET", "/v1/me"))["installation_role"] == "operator", (path, status)
            time.sleep(1)
        control("mend")
        assert must(ada.call("GET", "/v1/me"))["installation_role"] == "operator", (path, status)
    print("a refusal of our client, and a failure after a token was renewed, end no session")


def show_key_rotation():
    for _ in range(2):
        before = control("keys")
        control("rotate")
        assert control("keys") != before
        assert Browser().log_in("bob") == "/tasks"
    print("keys of the provider rotate, and logins go on")


def show_device_login(ada):
    """cynork logs in by a code that Ada confirms. Gives its configuration file."""
    config = pathlib.Path(tempfile.mkdtemp()) / "config.toml"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CYNORK_")}
    command = [CYNORK, "--config", str(config), "login", SITE, "--sso", "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as login:
        shown = login.stderr.readline()
        code = re.search(r"[A-Z]{4}-[A-Z]{4}", shown).group(0)
        asked = must(ada.call("GET", f"/v1/device-logins/{code}"))
        assert asked["user_code"] == code and asked["device"].startswith("cynork"), asked
        must(ada.call("POST", f"/v1/device-logins/{code}", {"approved": True}))
        output, errors = login.communicate(timeout=60)
        assert login.returncode == 0, errors
    assert json.loads(output)["user"]["handle"] == "ada", output
    sessions = must(ada.call("GET", "/v1/sessions"))["items"]
    assert {"provider", "device"} <= {session["method"] for session in sessions}, sessions
    print("cynork logs in by a code that a person confirms")
    return config


def cynork_works(config):
    command = [CYNORK, "--config", str(config), "whoami", "--json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CYNORK_")}
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0


def show_group_change(ada):
    control("groups", person="ada", groups=["everybody"])
    took = seconds_until(lambda: must(ada.call("GET", "/v1/me"))["installation_role"] is None, REMOVAL_LIMIT_SECONDS)
    figure("group_removal", round(took, 1), "s")
    control("groups", person="ada", groups=["builders"])
    seconds_until(lambda: must(ada.call("GET", "/v1/me"))["installation_role"] == "operator", REMOVAL_LIMIT_SECONDS)


def show_grace(bob):
    """The provider is gone for longer than a check: nobody is logged out, and it is recorded."""
    control("available", available=False)
    ends = time.monotonic() + (50 if QUICK else 150)
    while time.monotonic() < ends:
        must(bob.call("GET", "/v1/me"))
        time.sleep(1)
    control("available", available=True)
    must(bob.call("GET", "/v1/me"))
    print("sessions go on while the provider cannot be reached")


def show_logout(token):
    """Logging out at the provider ends the session here by its logout token."""
    bob = Browser()
    assert bob.log_in("bob") == "/tasks"
    answer = must(bob.call("POST", "/v1/sessions/current/provider-logout"))
    assert answer["logout_url"].startswith(f"{ISSUER}/"), answer
    must(bob.call("GET", "/v1/me"), (401,))
    # Another session of the same browser at the provider ends when it logs out there.
    assert bob.log_in("bob") == "/tasks"
    status, target, page = bob.get(answer["logout_url"])
    form = re.search(rb'name="xsrf" value="([^"]+)"', page)
    assert status == 200 and form, (status, target, page[:300])
    jar = bob.cookies[urllib.parse.urlsplit(ISSUER).netloc]
    body = urllib.parse.urlencode({"xsrf": form.group(1).decode(), "logout": "yes"}).encode()
    cookies = "; ".join(f"{name}={value}" for name, value in jar.items())
    headers = {"Cookie": cookies, "Content-Type": "application/x-www-form-urlencoded"}
    status, _, text = send("POST", f"{ISSUER}/session/end/confirm", headers, body)
    assert status in (302, 303), (status, text[:300])
    took = seconds_until(lambda: bob.call("GET", "/v1/me")[0] == 401, 10)
    figure("backchannel_logout", round(took, 1), "s")
    forged = send("POST", f"{SITE}/v1/sso/company/backchannel-logout", {"Content-Type": "application/x-www-form-urlencoded"}, b"logout_token=a.b.c")
    assert forged[0] == 400, forged
    must(program(token, "GET", "/v1/me"))


def start_work(person):
    """An agent token and a schedule of a person. Gives the token and the id of the schedule."""
    project = must(person.call("POST", "/v1/projects", {"slug": "web", "title": "Web"}), (201,))["id"]
    task = must(person.call("POST", "/v1/tasks", {"project_id": project, "description": "x"}), (201,))["id"]
    body = {"role": "developer", "project_id": project, "task_id": task}
    agent = must(person.call("POST", "/v1/agent-tokens", body), (201,))["token"]
    assert agent_status(agent) != 401
    body = {
        "project_id": project,
        "name": "minutely",
        "action": {"kind": "words", "text": "Look."},
        "trigger": {"kind": "cron", "expression": "* * * * *", "timezone": "UTC"},
    }
    schedule = must(person.call("POST", "/v1/schedules", body), (201,))["schedule_id"]
    return agent, schedule


def agent_status(token):
    """What the gateway answers an agent: 401 when its token opens nothing any more."""
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": f"Bearer {token}"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    return send("POST", f"http://{INTERNAL}/mcp", headers, json.dumps(message).encode())[0]


def open_stream(person):
    """Follows the events of the installation in the browser of a person, in a thread that ends with the stream."""
    cookies = "; ".join(f"{name}={value}" for name, value in person.cookies[ADDRESS].items())
    request = urllib.request.Request(f"{SITE}/v1/events", headers={"Cookie": cookies, "Accept": "text/event-stream"})
    answer = OPENER.open(request, timeout=REMOVAL_LIMIT_SECONDS * 2)
    follower = threading.Thread(target=lambda: [None for _ in answer], daemon=True)
    follower.start()
    return follower


def show_removal(token, ada, config):
    must(ada.call("GET", "/v1/me"))
    assert cynork_works(config)
    key = must(ada.call("POST", "/v1/api-keys", {"name": "removed"}), (201,))["token"]
    must(program(key, "GET", "/v1/me"))
    agent, schedule = start_work(ada)
    stream = open_stream(ada)
    control("remove", person="ada")
    # Her program asks alone: no request of a session makes the server check her.
    took = seconds_until(lambda: program(key, "GET", "/v1/me")[0] == 401, REMOVAL_LIMIT_SECONDS)
    figure("removal_ends_keys", round(took, 1), "s")
    took += seconds_until(lambda: ada.call("GET", "/v1/me")[0] == 401, REMOVAL_LIMIT_SECONDS - took)
    figure("removal_at_provider", round(took, 1), "s")
    assert not cynork_works(config), "the device of a removed person still works"
    began = time.monotonic()
    seconds_until(lambda: agent_status(agent) == 401, max(1, REMOVAL_LIMIT_SECONDS - took))
    stream.join(timeout=max(1, REMOVAL_LIMIT_SECONDS - took))
    assert not stream.is_alive(), "the open stream of a removed person goes on"
    figure("removal_ends_agents_and_streams", round(took + time.monotonic() - began, 1), "s")
    # The schedule is due every minute: the next one is refused.
    def last_outcome():
        firing = must(program(token, "GET", f"/v1/schedules/{schedule}"))["last_firing"]
        return firing and firing["outcome"]

    seconds_until(lambda: last_outcome() == "refused", 90)
    # She cannot come back either.
    try:
        page = Browser().log_in("ada")
    except AssertionError:
        page = None
    assert page != "/tasks", page


def show_no_passwords(token):
    must(program(token, "PUT", "/v1/settings/login.disable_local", {"value": True, "expected_version": 0}))
    must(program(None, "POST", "/v1/sessions", {"handle": "root", "password": PASSWORD}), (403,))
    options = must(program(None, "GET", "/v1/login-options"))
    assert options["password"] is False and options["providers"][0]["name"] == "company", options
    assert Browser().log_in("bob") == "/tasks"
    print("nobody needs a password of the installation")


def main():
    token = set_up()
    ada, bob = show_login_and_groups()
    show_refused_states()
    show_two_providers()
    show_admin_without_password()
    show_directory(token)
    show_key_rotation()
    config = show_device_login(ada)
    show_group_change(ada)
    show_provider_failures(ada)
    show_grace(bob)
    show_logout(token)
    show_no_passwords(token)
    show_removal(token, ada, config)


main()
