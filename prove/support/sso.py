"""Logs people in at a real OpenID provider by real redirects, and tries what must be refused.

sso.py ADDRESS CONTROL ISSUER SECRET_FILE BOOTSTRAP CYNORK [--quick]
"""

import http.cookies
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

ADDRESS, CONTROL, ISSUER, SECRET_FILE, BOOTSTRAP, CYNORK = sys.argv[1:7]
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

    def begin_login(self, return_to="/tasks"):
        """Begins a login. Gives the address at the provider."""
        status, target, _ = self.get(f"{SITE}/v1/sso/company/login?return_to={return_to}")
        assert status == 303 and target.startswith(ISSUER), (status, target)
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
    group = must(program(token, "POST", "/v1/groups", {"name": "operators"}))["id"]
    must(program(token, "PATCH", f"/v1/groups/{group}", {"role": "operator"}))
    body = {
        "display_name": "Company account",
        "issuer": ISSUER,
        "client_id": "cynode",
        "client_secret": pathlib.Path(SECRET_FILE).read_text(encoding="utf8").strip(),
        "scopes": ["profile", "email", "groups", "offline_access"],
        "mappings": [{"claim_value": "builders", "group_id": group}],
    }
    must(program(token, "PUT", "/v1/identity-providers/company", body))
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


def show_removal(ada, config):
    must(ada.call("GET", "/v1/me"))
    assert cynork_works(config)
    key = must(ada.call("POST", "/v1/api-keys", {"name": "removed"}), (201,))["token"]
    must(program(key, "GET", "/v1/me"))
    control("remove", person="ada")
    # Her program asks alone: no request of a session makes the server check her.
    took = seconds_until(lambda: program(key, "GET", "/v1/me")[0] == 401, REMOVAL_LIMIT_SECONDS)
    figure("removal_ends_keys", round(took, 1), "s")
    took += seconds_until(lambda: ada.call("GET", "/v1/me")[0] == 401, REMOVAL_LIMIT_SECONDS - took)
    figure("removal_at_provider", round(took, 1), "s")
    assert not cynork_works(config), "the device of a removed person still works"
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
    show_key_rotation()
    config = show_device_login(ada)
    show_group_change(ada)
    show_grace(bob)
    show_logout(token)
    show_no_passwords(token)
    show_removal(ada, config)


main()
