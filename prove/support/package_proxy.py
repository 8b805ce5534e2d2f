#!/usr/bin/env python3
"""Drives the package proxy of a node with real package clients and with attacks, over registries on loopback that record every byte they get.

    package_proxy.py sealed PROGRAM [--quick]   in a network namespace of its own, see prove/security/package-proxy
    package_proxy.py public PROGRAM             over the registries of the machine

PROGRAM is `cynode-proof`. The last line of the output is a JSON object with the figures.
"""

import argparse
import base64
import collections
import datetime
import gzip
import hashlib
import http.client
import http.server
import io
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile

PACKAGE_COUNT = 12
CLIENT_COUNT = 8
FILE_BYTES = 200_000
OLD = "2020-01-01T00:00:00Z"
SOURCES = ("crates", "pypi", "npm")


def check(condition, text):
    """Ends the proof when the condition does not hold."""
    if not condition:
        sys.exit(f"NOT SO: {text}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def tar_gz(members):
    """A small archive with the same bytes each time."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    return gzip.compress(plain.getvalue(), mtime=0)


def wheel(name, version, filler):
    dist = f"{name}-{version}.dist-info"
    members = {
        f"{name}/__init__.py": b"",
        f"{name}/filler": filler,
        f"{dist}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{dist}/WHEEL": b"Wheel-Version: 1.0\nGenerator: proof\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*members, f"{dist}/RECORD"])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in {**members, f"{dist}/RECORD": record.encode()}.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return made.getvalue()


class Registry:
    """Four registries on one port. It records every request whole."""

    def __init__(self, slow=False):
        self.replies = {}
        self.requests = []
        self.lock = threading.Lock()
        self.slow = slow
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                with registry.lock:
                    registry.requests.append((self.command, self.path, str(self.headers), body))
                status, kind, reply = registry.replies.get(self.path, (404, "text/plain", b""))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", reply.decode())
                    reply = b""
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                if not registry.slow:
                    self.wfile.write(reply)
                    return
                for at in range(0, len(reply), 20_000):
                    self.wfile.write(reply[at : at + 20_000])
                    self.wfile.flush()
                    time.sleep(0.002)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_CONNECT = do_OPTIONS = answer

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 128

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.put("/crates/config.json", json.dumps({"dl": f"{self.url}/dl/{{crate}}-{{version}}.crate"}).encode())

    def put(self, path, body, kind="application/json", status=200):
        self.replies[path] = (status, kind, body)

    def upstreams(self):
        return {
            "crates": f"{self.url}/crates/",
            "pypi": f"{self.url}/simple/",
            "npm": f"{self.url}/npm/",
            "debian": f"deb {self.url}/debian stable main",
        }

    def fetches(self):
        """How often each package file was fetched."""
        with self.lock:
            paths = [path for _, path, _, _ in self.requests]
        return collections.Counter(path for path in paths if path.endswith((".crate", ".whl", ".tgz")))

    def publish(self, name, versions):
        """Publishes versions in all registries: {version: {"filler", "yanked", "published", "wrong"}}. Returns the files, by path of the proxy."""
        files, lines, links, entries, times = {}, [], [], {}, {}
        for version, facts in versions.items():
            filler = facts.get("filler", b"")
            published = facts.get("published", OLD)
            made = {
                "crates": tar_gz({
                    f"{name}-{version}/Cargo.toml": f'[package]\nname = "{name}"\nversion = "{version}"\nedition = "2021"\n'.encode(),
                    f"{name}-{version}/src/lib.rs": b"",
                    f"{name}-{version}/filler": filler,
                }),
                "pypi": wheel(name, version, filler),
                "npm": tar_gz({"package/package.json": json.dumps({"name": name, "version": version}).encode(), "package/filler": filler}),
            }
            listed = {kind: (b"another file" if facts.get("wrong") else data) for kind, data in made.items()}
            lines.append(json.dumps({"name": name, "vers": version, "deps": [], "features": {}, "yanked": bool(facts.get("yanked")), "pubtime": published, "cksum": hashlib.sha256(listed["crates"]).hexdigest()}))
            yanked = ' data-yanked="broken"' if facts.get("yanked") else ""
            file = f"{name}-{version}-py3-none-any.whl"
            links.append(f'<a href="../../files/{file}#sha256={hashlib.sha256(listed["pypi"]).hexdigest()}" data-upload-time="{published}"{yanked}>{file}</a>')
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(listed["npm"]).digest()).decode()
            entries[version] = {"name": name, "version": version, "dist": {"tarball": f"{self.url}/npm/{name}/-/{name}-{version}.tgz", "integrity": integrity}}
            times[version] = published
            for path, data in ((f"/dl/{name}-{version}.crate", made["crates"]), (f"/files/{file}", made["pypi"]), (f"/npm/{name}/-/{name}-{version}.tgz", made["npm"])):
                self.put(path, data, "application/octet-stream")
            files[f"/crates/dl/{name}/{version}"] = made["crates"]
            files[f"/pypi/files/{name}/{file}"] = made["pypi"]
            files[f"/npm/{name}/-/{name}-{version}.tgz"] = made["npm"]
        self.put(f"/crates/{name[:2]}/{name[2:4]}/{name}", "\n".join(lines).encode(), "text/plain")
        self.put(f"/simple/{name}/", ("<html><body>\n" + "<br>\n".join(links) + "</body></html>").encode(), "text/html")
        self.put(f"/npm/{name}", json.dumps({"name": name, "dist-tags": {"latest": version}, "versions": entries, "time": times}).encode())
        return files


class Proxy:
    """A proxy process."""

    def __init__(self, program, directory, upstreams=None, policy=None, advisories=None, offline=False):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.directory = pathlib.Path(directory)
        self.report = self.directory.parent / f"{self.directory.name}.report"
        arguments = [program, "packages", "serve", "--directory", directory, "--listen", f"127.0.0.1:{self.port}", "--report", self.report]
        for key, value in (upstreams or {}).items():
            arguments += ["--upstream", f"{key}={value}"]
        if policy:
            arguments += ["--policy", json.dumps(policy)]
        if advisories:
            arguments += ["--advisories", advisories]
        if offline:
            arguments += ["--offline"]
        self.process = subprocess.Popen([str(it) for it in arguments], stdout=subprocess.PIPE, text=True)
        while line := self.process.stdout.readline():
            if line.startswith("listening"):
                return
        sys.exit("the proxy did not start")

    def get(self, path, method="GET", headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, body

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def reports(self):
        return [json.loads(line) for line in self.report.read_text().splitlines()]


def clean_environment(home, proxy):
    """What a client in a sandbox has: nothing of this machine, and the proxy."""
    path = os.environ["PATH"]
    config = pathlib.Path(home) / ".cargo"
    config.mkdir(parents=True, exist_ok=True)
    (config / "config.toml").write_text(f'[source.crates-io]\nreplace-with = "cynode"\n[source.cynode]\nregistry = "sparse+{proxy.url}/crates/"\n[net]\nretry = 0\n')
    keep = {name: os.environ[name] for name in ("RUSTUP_HOME", "RUSTUP_TOOLCHAIN") if name in os.environ}
    keep.setdefault("RUSTUP_HOME", str(pathlib.Path.home() / ".rustup"))
    return {
        **keep,
        "PATH": path, "HOME": str(home), "CARGO_HOME": str(config), "LANG": "C.UTF-8",
        "PIP_INDEX_URL": f"{proxy.url}/pypi/simple/", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1",
        "npm_config_registry": f"{proxy.url}/npm/", "npm_config_replace_registry_host": "always", "npm_config_audit": "false", "npm_config_fund": "false",
        "npm_config_update_notifier": "false", "npm_config_fetch_retries": "0", "npm_config_cache": f"{home}/.npm", "npm_config_userconfig": os.devnull,
    }


def install(home, proxy, requirements):
    """Installs packages with pip, npm and cargo. Returns {client: (code, output)}."""
    home = pathlib.Path(home)
    home.mkdir(parents=True)
    environment = clean_environment(home, proxy)
    (home / "js").mkdir()
    (home / "js/package.json").write_text(json.dumps({"name": "demo", "version": "1.0.0", "dependencies": requirements}))
    (home / "rs/src").mkdir(parents=True)
    (home / "rs/src/lib.rs").write_text("")
    dependencies = "".join(f'{name} = "={version}"\n' for name, version in requirements.items())
    (home / "rs/Cargo.toml").write_text(f'[package]\nname = "consumer"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n{dependencies}')
    pinned = [f"{name}=={version}" for name, version in requirements.items()]
    commands = {
        "pip": (home, [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(home / "py"), *pinned]),
        "npm": (home / "js", ["npm", "install", "--ignore-scripts"]),
        "cargo": (home / "rs", ["cargo", "fetch"]),
    }
    results = {}
    for client, (folder, command) in commands.items():
        done = subprocess.run(command, check=False, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        results[client] = (done.returncode, done.stdout + done.stderr)
    return results


class DnsRecorder:
    """A name server that records every question and answers none."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 53))
        self.questions = []
        threading.Thread(target=self.record, daemon=True).start()

    def record(self):
        while True:
            data, _ = self.socket.recvfrom(4096)
            self.questions.append(data)


def attack_once(port, chance, marker, other):
    """Sends one hostile request, as bytes. Returns the status, or None when the connection was closed."""
    methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get", marker]
    paths = [
        f"/npm/-/user/org.couchdb.user:{marker}", "/npm/-/whoami", f"/npm/-/v1/search?text={marker}", "/npm/-/npm/v1/security/audits/quick", f"/npm/-/package/{marker}/dist-tags",
        f"/npm/demo?{marker}", f"/npm/demo/-/demo-1.0.0.tgz?{marker}", f"/npm/demo/-/{marker}.tgz", f"/npm/demo/-/../../../{marker}", f"/npm/demo/-rev/{marker}", f"/npm/demo/{marker}",
        "/pypi/legacy/", f"/pypi/files/demo/{marker}", f"/pypi/files/demo/..%2f{marker}", f"/pypi/simple/demo/?{marker}", f"/pypi/search/{marker}", f"/pypi/pypi/demo/{marker}/json",
        "/crates/api/v1/crates/new", f"/crates/api/v1/crates?q={marker}", f"/crates/dl/demo/{marker}", f"/crates/de/mo/demo?{marker}", f"/crates/xx/{marker}", f"/crates/config.json?{marker}", "/crates/me",
        f"/debian/0/{marker}", f"/debian/0/dists/../{marker}", f"/debian/9/dists/{marker}", f"/debian/0/pool/%2e%2e/{marker}", f"/debian/0/dists/stable/InRelease?{marker}",
        f"/debian/0/dists/{marker}/InRelease", f"/debian/0/dists/stable/{marker}", f"/debian/0/dists/stable/main/binary-amd64/{marker}",
        f"/debian/0/dists/stable/main/binary-amd64/by-hash/SHA256/{marker}", f"/debian/0/pool/{marker}", f"/debian/0/pool/main/d/demo/{marker}", f"/debian/0/pool/main/{marker}/demo/x_1_all.deb",
        f"http://127.0.0.1:{other}/{marker}", f"http://{marker}.example/npm/demo", f"https://{marker}.example/", f"//127.0.0.1:{other}/{marker}", f"{marker}.example:443", f"127.0.0.1:{other}",
        f"/{marker}", f"/npm/http://127.0.0.1:{other}/{marker}", f"/npm/@{marker}%00/x", f"/npm/demo%0d%0aX-Leak:%20{marker}", f"/npm/demo#{marker}", f"/npm/%2e%2e%2f{marker}", "*",
        "/npm/demo", "/pypi/simple/demo/", "/crates/de/mo/demo", "/npm/demo/-/demo-1.0.0.tgz", "/crates/dl/demo/1.0.0", "/npm/elsewhere", "/npm/elsewhere/-/elsewhere-1.0.0.tgz",
        "/npm/redirected/-/redirected-1.0.0.tgz", "/pypi/files/foreign/foreign-1.0.0.tar.gz",
    ]
    names = ["Authorization", "Cookie", "User-Agent", "Referer", "X-Leak", "Accept", "Accept-Language", "If-None-Match", "If-Modified-Since", "Range", "Forwarded", "X-Forwarded-For", "Proxy-Authorization", "npm-otp", "Origin"]
    hosts = ["127.0.0.1:3129", f"{marker}.example", f"127.0.0.1:{other}", "localhost", f"{marker}@127.0.0.1:{other}"]
    headers = [f"Host: {chance.choice(hosts)}"] + [f"{name}: {marker}" for name in chance.sample(names, chance.randrange(5))]
    body = b""
    if chance.random() < 0.4:
        body = (marker * chance.randrange(1, 50)).encode()
        headers.append(f"Content-Length: {len(body)}")
    elif chance.random() < 0.2:
        headers.append("Transfer-Encoding: chunked")
        body = f"{len(marker):x}\r\n{marker}\r\n0\r\n\r\n".encode()
    if chance.random() < 0.1:
        headers += ["Upgrade: websocket", "Connection: Upgrade"]
    head = f"{chance.choice(methods)} {chance.choice(paths)} HTTP/1.1\r\n" + "\r\n".join(headers) + "\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        try:
            connection.sendall(head.encode() + body)
            answer = b""
            while part := connection.recv(65536):
                answer += part
        except OSError:
            return None
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


def prove_sealed_requests(program, folder, count):
    """Hostile requests: nothing of them reaches a registry, another host or a name server."""
    registry, other, dns = Registry(), Registry(), DnsRecorder()
    registry.publish("demo", {"1.0.0": {}})
    registry.publish("redirected", {"1.0.0": {}})
    registry.put("/npm/redirected/-/redirected-1.0.0.tgz", f"{other.url}/taken".encode(), status=302)
    registry.put("/npm/elsewhere", json.dumps({"name": "elsewhere", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"dist": {"tarball": f"{other.url}/elsewhere-1.0.0.tgz", "shasum": "0" * 40}}}}).encode())
    link = f'<a href="http://name-that-leaks.example/foreign-1.0.0.tar.gz#sha256={"0" * 64}">foreign-1.0.0.tar.gz</a>'
    registry.put("/simple/foreign/", link.encode(), "text/html")
    proxy = Proxy(program, folder / "sealed", registry.upstreams())
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    marker = "leak" + "".join(chance.choices("0123456789abcdef", k=24))
    statuses = collections.Counter(attack_once(proxy.port, chance, marker, other.port) for _ in range(count))
    proxy.kill()
    allowed = {"accept", "host", "user-agent", "if-none-match", "if-modified-since"}
    leaked, methods, headers = 0, set(), set()
    for method, path, head, body in registry.requests + other.requests:
        methods.add(method)
        headers |= {line.split(":")[0].lower() for line in head.splitlines() if ":" in line}
        leaked += len(body) + len(marker) * f"{path} {head}".lower().count(marker)
    print(f"{count} hostile requests (seed {seed}): statuses {dict(statuses)}; {len(registry.requests)} requests reached the registry, {len(other.requests)} another host, {len(dns.questions)} the name server")
    check(leaked == 0, f"{leaked} bytes of hostile requests reached a registry")
    check(methods <= {"GET"}, f"methods {methods}")
    check(headers <= allowed, f"headers {headers - allowed}")
    check(not other.requests, f"another host was asked: {other.requests[:3]}")
    check(not dns.questions, f"a name was resolved: {dns.questions[:3]}")
    return {"hostile_requests": count, "leaked_bytes": leaked, "foreign_requests": len(other.requests), "dns_questions": len(dns.questions)}


def prove_refusals(program, folder):
    """Wrong digests, yanked, young, forbidden and vulnerable versions: refused with the reason, to the client and in the report."""
    registry = Registry()
    yesterday = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    cases = {
        "wrongdigest": ({"wrong": True}, "wrong digest"), "yankedone": ({"yanked": True}, "yanked"), "youngone": ({"published": yesterday}, "days old"),
        "forbiddenone": ({}, "policy forbids"), "weakone": ({}, "PROOF-1"),
    }
    for name, (facts, _) in cases.items():
        registry.publish(name, {"1.0.0": facts})
    advisories = folder / "advisories.json"
    advisories.write_text("\n".join(json.dumps({"id": "PROOF-1", "affected": [{"package": {"ecosystem": ecosystem, "name": "weakone"}, "ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}]}]}) for ecosystem in ("crates.io", "PyPI", "npm")))
    policy = {"min_age_days": 7, "forbidden": [f"{source}:forbiddenone" for source in SOURCES]}
    proxy = Proxy(program, folder / "refusals", registry.upstreams(), policy, advisories)
    refused = 0
    for name, (_, words) in cases.items():
        results = install(folder / f"refused-{name}", proxy, {name: "1.0.0"})
        for source, path in zip(SOURCES, (f"/crates/dl/{name}/1.0.0", f"/pypi/files/{name}/{name}-1.0.0-py3-none-any.whl", f"/npm/{name}/-/{name}-1.0.0.tgz"), strict=True):
            if name == "yankedone" and source == "npm":
                continue  # npm has no yanked versions
            client = {"crates": "cargo", "pypi": "pip", "npm": "npm"}[source]
            check(results[client][0] != 0, f"{client} installed {name}")
            status, body = proxy.get(path)
            check(status == 403 and words in json.loads(body)["error"], f"{path}: {status} {body[:300]}")
            told = [it for it in proxy.reports() if it["package"] == name and it["source"] == source]
            check(told and all(words in it["refused"] for it in told), f"{source} {name}: {told}")
            refused += 1
    shown = sum("wrong digest" in text for _, text in install(folder / "refused-again", proxy, {"wrongdigest": "1.0.0"}).values())
    proxy.kill()
    fetched = [path for path in registry.fetches() if "wrongdigest" not in path and not path.startswith("/npm/yankedone")]
    check(not fetched, f"refused files were fetched: {fetched}")
    print(f"{refused} versions refused with the reason; {shown} of 3 clients show it themselves")
    return {"refused_versions": refused}


def prove_single_fetch(program, folder):
    """Several installs of the same set at once: each file is fetched once, and all are whole."""
    registry = Registry(slow=True)
    filler = random.randbytes(FILE_BYTES)
    names = [f"package{at:02}" for at in range(PACKAGE_COUNT)]
    for name in names:
        registry.publish(name, {"1.0.0": {"filler": filler + name.encode()}})
    proxy = Proxy(program, folder / "single", registry.upstreams())
    requirements = dict.fromkeys(names, "1.0.0")
    results = [None] * CLIENT_COUNT

    def one(at):
        results[at] = install(folder / f"single-{at}", proxy, requirements)

    threads = [threading.Thread(target=one, args=(at,)) for at in range(CLIENT_COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at, result in enumerate(results):
        for client, (code, output) in result.items():
            check(code == 0, f"install {at} with {client}: {output[-1500:]}")
        for name in names:
            for path in (f"py/{name}/filler", f"js/node_modules/{name}/filler"):
                installed = (folder / f"single-{at}" / path).read_bytes()
                check(installed == filler + name.encode(), f"install {at}: {path} differs")
    fetches = registry.fetches()
    check(len(fetches) == 3 * PACKAGE_COUNT, f"{len(fetches)} files fetched")
    check(set(fetches.values()) == {1}, f"fetched more than once: {[it for it in fetches.items() if it[1] > 1]}")
    served = [it for it in proxy.reports() if not it.get("refused")]
    check(len(served) == 3 * PACKAGE_COUNT * CLIENT_COUNT, f"{len(served)} fetches were reported")
    proxy.kill()
    archive = folder / "cache.tar"
    run_offline(program, folder, proxy.directory, archive, registry, requirements)
    print(f"{CLIENT_COUNT} installs with three clients of {PACKAGE_COUNT} packages each: {len(fetches)} files, each fetched once; the exported cache served the same set offline")
    return {"parallel_installs": CLIENT_COUNT, "files": len(fetches), "max_fetches_per_file": max(fetches.values())}


def run_offline(program, folder, cache, archive, registry, requirements):
    """Exports a cache, imports it into an empty one, and installs the set from it without the registry."""
    upstreams = [option for key, value in registry.upstreams().items() for option in ("--upstream", f"{key}={value}")]
    subprocess.run([program, "packages", "export", "--directory", cache, *upstreams, archive], check=True)
    subprocess.run([program, "packages", "import", "--directory", folder / "imported", *upstreams, archive], check=True)
    asked = len(registry.requests)
    proxy = Proxy(program, folder / "imported", registry.upstreams(), offline=True)
    for client, (code, output) in install(folder / "offline", proxy, requirements).items():
        check(code == 0, f"offline with {client}: {output[-1500:]}")
    proxy.kill()
    check(len(registry.requests) == asked, "the registry was asked while the proxy was offline")


def prove_kills(program, folder, rounds):
    """Kills the proxy at any moment: what it serves before and afterwards is whole."""
    registry = Registry(slow=True)
    files = {}
    for at in range(6):
        files |= registry.publish(f"victim{at}", {"1.0.0": {"filler": random.randbytes(4 * FILE_BYTES)}})
    counts = collections.Counter()
    lock = threading.Lock()

    def download(proxy, path):
        try:
            status, body = proxy.get(path)
        except (OSError, http.client.HTTPException):
            return "broken"
        if status != 200:
            return "refused"
        return "whole" if body == files[path] else "partial"

    def worker(proxy, paths):
        for path in paths:
            result = download(proxy, path)
            with lock:
                counts[result] += 1

    for at in range(rounds):
        cache = folder / "kills"
        if at % 3 == 0:
            shutil.rmtree(cache, ignore_errors=True)
        proxy = Proxy(program, cache, registry.upstreams())
        paths = random.sample(list(files), len(files))
        threads = [threading.Thread(target=worker, args=(proxy, paths[part::4])) for part in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(random.uniform(0, 0.4))
        proxy.kill()
        for thread in threads:
            thread.join()
        for stored in (cache / "files").glob("*/*"):
            check(hashlib.sha256(stored.read_bytes()).hexdigest() == stored.name, f"{stored} is not whole")
    proxy = Proxy(program, folder / "kills", registry.upstreams())
    for path in files:
        check(download(proxy, path) == "whole", f"{path} afterwards")
    proxy.kill()
    print(f"killed {rounds} times during {sum(counts.values())} downloads: {dict(counts)}")
    check(counts["partial"] == 0, "a partial file was served as whole")
    check(counts["whole"] and counts["broken"], "the kills came too early or too late to show anything")
    return {"kills": rounds, "partial_files_served": counts["partial"]}


def prove_public(program, folder):
    """Real registries, as the machine's package clients are configured: real packages with three clients."""
    proxy = Proxy(program, folder / "public")
    home = folder / "public-clients"
    environment = clean_environment(home, proxy)
    (home / "js").mkdir(parents=True)
    (home / "rs/src").mkdir(parents=True)
    (home / "rs/src/lib.rs").write_text("")
    (home / "rs/Cargo.toml").write_text('[package]\nname = "consumer"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\nnom = "=7.1.3"\n')
    commands = {
        "pip": (home, [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(home / "py"), "humanize==4.12.1"]),
        "npm": (home / "js", ["npm", "install", "--ignore-scripts", "qs@6.12.3"]),
        "cargo": (home / "rs", ["cargo", "fetch"]),
    }
    for client, (cwd, command) in commands.items():
        done = subprocess.run(command, check=False, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
        check(done.returncode == 0, f"{client}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    served = [it for it in proxy.reports() if not it.get("refused")]
    proxy.kill()
    check({it["source"] for it in served} == set(SOURCES), f"{served}")
    print(f"real registries: {len(served)} packages served to pip, npm and cargo")
    return {"public_packages": len(served)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("sealed", "public"))
    parser.add_argument("program")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory(prefix="cynode-packages-") as name:
        folder = pathlib.Path(name)
        if options.part == "public":
            figures |= prove_public(options.program, folder)
        else:
            figures |= prove_sealed_requests(options.program, folder, 2000 if options.quick else 20000)
            figures |= prove_refusals(options.program, folder)
            figures |= prove_single_fetch(options.program, folder)
            figures |= prove_kills(options.program, folder, 15 if options.quick else 150)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
