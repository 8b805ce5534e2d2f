#!/usr/bin/env python3
"""Provisions people by SCIM while they work, and takes the access away again; then logs an admin in by a link of the host.

    provisioning.py --url URL --replica URL --bootstrap TOKEN --people N --cynode PROGRAM --database URL

Prints figures, and fails at the first request that was accepted and must not be.
"""

import argparse
import concurrent.futures
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

parser = argparse.ArgumentParser()
for name in ("url", "replica", "bootstrap", "cynode", "database"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--people", type=int, required=True)
options = parser.parse_args()
PASSWORD = "correct horse battery"


def send(method, url, token=None, body=None):
    """One request: its status and its answer."""
    headers = {"content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=60) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


def good(method, path, token=None, body=None, url=options.url):
    status, answer = send(method, url + path, token, body)
    assert 200 <= status < 300, f"{method} {path}: {status} {answer}"
    return answer


def log_in(handle):
    return good("POST", "/v1/sessions", body={"handle": handle, "password": PASSWORD})["token"]


class Worker(threading.Thread):
    """Asks again and again with one credential at one replica; keeps when each request that was accepted had begun."""

    def __init__(self, url, token):
        super().__init__(daemon=True)
        self.url, self.token, self.accepted, self.count, self.stop = url, token, 0.0, 0, threading.Event()

    def run(self):
        while not self.stop.is_set():
            began = time.monotonic()
            status, _ = send("GET", f"{self.url}/v1/me", self.token)
            self.count += 1
            if status == 200:
                self.accepted = began
            elif status == 401:
                return
            else:
                self.accepted = float("inf")
                return


good("POST", "/v1/bootstrap", body={"token": options.bootstrap, "handle": "ada", "display_name": "Ada", "password": PASSWORD})
admin = log_in("ada")
directory = good("POST", "/v1/scim-tokens", admin, {"name": "proof"})["token"]
for path in ("/v1/me", "/v1/users", "/v1/projects", "/metrics"):
    assert send("GET", options.url + path, directory)[0] == 401, path
assert send("GET", options.url + "/scim/v2/Users", admin)[0] == 401


def try_person(number):
    """Creates a person, lets them work, disables them. Gives how late the last request began that was accepted, in milliseconds."""
    user = good("POST", "/scim/v2/Users", directory, {"userName": f"person-{number}@example.com"})
    place = f"/scim/v2/Users/{user['id']}"
    good("PATCH", f"/v1/users/{user['id']}", admin, {"password": PASSWORD})
    handle = good("GET", f"/v1/users/{user['id']}", admin)["handle"]
    session = log_in(handle)
    key = good("POST", "/v1/api-keys", session, {"name": "work"})["token"]
    workers = [Worker(url, token) for url in (options.url, options.replica) for token in (session, key)]
    for worker in workers:
        worker.start()
    while any(worker.count < 3 for worker in workers):
        time.sleep(0.005)
    patch = {"Operations": [{"op": "replace", "path": "active", "value": False}]}
    good("PATCH", place, directory, patch)
    ended = time.monotonic()
    for worker in workers:
        worker.join(10)
        worker.stop.set()
        assert not worker.is_alive(), "a credential of a disabled account still works after 10 s"
    late = max(worker.accepted for worker in workers) - ended
    patch["Operations"][0]["value"] = True
    good("PATCH", place, directory, patch)
    back = sum(send("GET", options.url + "/v1/me", token)[0] != 401 for token in (session, key))
    good("DELETE", place, directory)
    return late * 1000, back


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    results = list(pool.map(try_person, range(options.people)))
late = max(late for late, _ in results)
back = sum(back for _, back in results)
print(f"figure: people {len(results)} people")
print(f"figure: accepted_after_disabling {sum(late > 0 for late, _ in results)} people")
print(f"figure: credentials_that_came_back {back} credentials")

# Who can write to the database alone makes a row, and no link.
link = subprocess.run([options.cynode, "admin", "break-glass", "ada"], check=True, capture_output=True, text=True).stdout.strip()
token = link.partition("#token=")[2]
forge = "UPDATE break_glass_tokens SET tag = decode(repeat('00', 32), 'hex')"
subprocess.run(["psql", "-q", "-v", "ON_ERROR_STOP=1", options.database, "-c", forge], check=True, capture_output=True)
forged, _ = send("POST", options.url + "/v1/break-glass", body={"token": token})
link = subprocess.run([options.cynode, "admin", "break-glass", "ada"], check=True, capture_output=True, text=True).stdout.strip()
token = link.partition("#token=")[2]
first, opened = send("POST", options.url + "/v1/break-glass", body={"token": token})
second, _ = send("POST", options.replica + "/v1/break-glass", body={"token": token})
assert (forged, first, second) == (401, 201, 401), (forged, first, second)
assert good("GET", "/v1/me", opened["token"])["installation_role"] == "admin"
recorded = ["psql", "-qAt", options.database, "-c", "SELECT count(*) FROM events WHERE kind IN ('break_glass.issued', 'break_glass.used')"]
assert subprocess.run(recorded, check=True, capture_output=True, text=True).stdout.strip() == "3"
sys.exit(late > 0 or back > 0)
