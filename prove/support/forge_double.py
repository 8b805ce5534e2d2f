"""A forge on loopback that speaks the API of Gitea and serves one repository through git's own program: what is outside, and outlives an installation.

    forge = Forge(work / "forge", source)      # a bare repository with the branches of `source`
    world.expect(None, "PUT", f"/v1/projects/{project}/remote", forge.connection())
    forge.pulls                                # every pull request that was made: {"number", "branch", "base", "title", "open"}
"""

import base64
import json
import os
import subprocess
import threading
import urllib.parse

from review_world import Listener, run_program

REPOSITORY = "acme/web"
BOT = "cynode-bot"
TOKEN = "forge-token-1"
STAMP = "2026-11-18T12:00:00Z"


class Forge(Listener):
    def __init__(self, root, source):
        self.bare = root / f"{REPOSITORY}.git"
        self.bare.parent.mkdir(parents=True)
        run_program("git", "clone", "-q", "--bare", source, self.bare)
        run_program("git", "-C", self.bare, "config", "http.receivepack", "true")
        self.root, self.pulls, self.comments, self.lock = root, [], [], threading.Lock()
        super().__init__(self.answer_request)

    def connection(self):
        """What an admin connects a project with."""
        return {"forge": "gitea", "url": f"{self.url}/{REPOSITORY}.git", "repository": REPOSITORY, "default_branch": "main",
                "credential": TOKEN, "intake": {"label": "cynode", "assigned_to_bot": False}}  # fmt: skip

    def branches(self):
        """Every branch but the default one, with its commit."""
        lines = run_program("git", "-C", self.bare, "for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads").splitlines()
        return {name: commit for name, commit in (line.split() for line in lines) if name != "main"}

    def tip(self, branch):
        done = subprocess.run(["git", "-C", self.bare, "rev-parse", "-q", "--verify", f"refs/heads/{branch}"], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def answer_request(self, asked):
        place = urllib.parse.urlsplit(asked.path)
        if not is_known(asked.headers.get("authorization", "")):
            return 401, {"www-authenticate": 'Basic realm="forge"'}, {"message": "authentication is required"}
        if not place.path.startswith("/api/v1/"):
            return self.answer_git(asked, place)
        parts = [urllib.parse.unquote(part) for part in place.path.removeprefix("/api/v1/").split("/")]
        query = dict(urllib.parse.parse_qsl(place.query))
        with self.lock:
            return self.answer_api(asked, parts, query)

    def answer_api(self, asked, parts, query):
        if parts == ["user"]:
            return 200, {}, user(BOT)
        if parts[:3] != ["repos", *REPOSITORY.split("/")]:
            return missing()
        match asked.method, parts[3:]:
            case "GET", ["collaborators", _, "permission"]:
                return 200, {}, {"permission": "write", "role_name": "write", "user": user(BOT)}
            case "GET", ["pulls"]:
                wanted = query.get("state", "open")
                found = [pull for pull in reversed(self.pulls) if wanted == "all" or pull["open"] == (wanted == "open")]
                # One page has all of them.
                return 200, {}, [self.show_pull(pull) for pull in found] if query.get("page", "1") == "1" else []
            case "POST", ["pulls"]:
                return self.open_pull(parse(asked))
            case "GET", ["pulls", number]:
                found = [pull for pull in self.pulls if str(pull["number"]) == number]
                return (200, {}, self.show_pull(found[0])) if found else missing()
            case "GET", ["issues", number, "comments"]:
                return 200, {}, [comment for comment in self.comments if str(comment["issue"]) == number]
            case "POST", ["issues", number, "comments"]:
                made = {"id": len(self.comments) + 1, "issue": int(number), "user": user(BOT), "body": parse(asked)["body"], "created_at": STAMP,
                        "updated_at": STAMP}  # fmt: skip
                self.comments.append(made)
                return 201, {}, made
            case "GET", ["commits", commit, "status"]:
                return 200, {}, {"state": "pending", "sha": commit, "total_count": 0, "statuses": None}
            case "GET", ["issues"] | ["pulls", _, "reviews"]:
                return 200, {}, []
        return missing()

    def open_pull(self, body):
        branch, base = body["head"], body["base"]
        if not self.tip(branch) or not self.tip(base):
            return missing()
        same = [pull for pull in self.pulls if pull["open"] and (pull["branch"], pull["base"]) == (branch, base)]
        if same:
            return 409, {}, {"message": f"pull request already exists for these targets [id: {same[0]['number']}]"}
        made = {"number": len(self.pulls) + 1, "branch": branch, "base": base, "title": body["title"], "body": body.get("body", ""), "open": True}
        self.pulls.append(made)
        return 201, {}, self.show_pull(made)

    def show_pull(self, pull):
        side = {"id": 1, "full_name": REPOSITORY, "fork": False}
        ends = {end: {"label": pull[name], "ref": pull[name], "sha": self.tip(pull[name]), "repo_id": 1, "repo": side} for end, name in
                (("head", "branch"), ("base", "base"))}  # fmt: skip
        return {"id": 1000 + pull["number"], "number": pull["number"], "title": pull["title"], "body": pull["body"], "user": user(BOT),
                "state": "open" if pull["open"] else "closed", "merged": False, "merge_commit_sha": None,
                "html_url": f"{self.url}/{REPOSITORY}/pulls/{pull['number']}"} | ends  # fmt: skip

    def answer_git(self, asked, place):
        """The repository, through `git http-backend`, which is a CGI program."""
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_PROJECT_ROOT": str(self.root),
                       "GIT_HTTP_EXPORT_ALL": "1", "REMOTE_USER": BOT, "REQUEST_METHOD": asked.method, "PATH_INFO": place.path,
                       "QUERY_STRING": place.query, "CONTENT_TYPE": asked.headers.get("content-type", ""), "CONTENT_LENGTH": str(len(asked.body)),
                       "HTTP_CONTENT_ENCODING": asked.headers.get("content-encoding", ""),
                       "GIT_PROTOCOL": asked.headers.get("git-protocol", "")}  # fmt: skip
        done = subprocess.run(["git", "-c", "safe.directory=*", "http-backend"], input=asked.body, capture_output=True, check=False, env=environment)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        headers = {name.lower(): value for name, value in headers.items()}
        return int(headers.pop("status", "200").split()[0]), headers, body


def is_known(header):
    scheme, _, value = header.partition(" ")
    if scheme == "Basic":
        return base64.b64decode(value).decode().endswith(f":{TOKEN}")
    return scheme in ("token", "Bearer") and value == TOKEN


def parse(asked):
    return json.loads(asked.body)


def user(login):
    return {"id": 1, "login": login, "username": login, "full_name": ""}


def missing():
    return 404, {}, {"errors": None, "message": "not found", "url": "/api/swagger"}
