"""The world of the proof `security-review`: an installation, the people and agents in it, and doubles of the machines around it.

An attack is a function of the world. It returns one sentence about what was seen, and raises AssertionError when harm was done:

    from review_world import attack

    @attack("H3", attacker="vendor of a tool server", tried="a schema that needs 2^20 steps", quick=True)
    def bomb_schemas(world):
        status, body, headers = world.api("GET", "/v1/me", token=world.eve.token)
        assert status == 200, body
        return "it was refused"

`quick=False` keeps an attack out of the short form. Attacks of one id may be several functions. They run one after the other, in the order of
their modules, while `probe.py` calls for an innocent project; so an attack leaves the installation as it found it where that is no
effort: names that it makes are its own (`world.unique("evil")`).

What a world has, beside the helpers below:

    user_url, internal_url         the two ports of `cynode up`, as http://127.0.0.1:PORT
    admin, second_admin            Actors (handle, user_id, token, password) with the role admin in the whole installation
    operator, second_operator      operators of `project` and of nothing else
    eve                            an account without any role
    project                        a project of the operators; attackers work here
    innocent_project, innocent_task, innocent_agent   what the probe uses: hands off
    provider                       a Listener that answers as a model in three dialects and logs what it is asked. Models `fake-chat`,
                                   `fake-responses` and `fake-messages` lead to it. `scripted` is a model that answers "Done."
    data, storage, work            folders: data of the installation, its storage, and one for the attacks' own files
    cynode                         path of the program; its siblings are beside it
    quick                          whether this is the short form

`world.second_installation({"server.max_connections": 64})` is an Installation of `cynode serve` on other ports, with its own database, admin,
project and people under the same names; it has every helper of a world. With `whole=True` it is a `cynode up` of its own: slower, with
engine, runner, project manager and node. It is stopped when the proof ends, or by `.stop()`. Limits of requests are the product's own defaults.
"""

import collections
import contextlib
import hashlib
import http.client
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
PASSWORD = "correct horse battery"
MODERN_PROTOCOL = "2026-07-28"
START_TIMEOUT_SECONDS = 90

Attack = collections.namedtuple("Attack", "finding attacker tried quick run")
Actor = collections.namedtuple("Actor", "handle user_id token password")
LoggedRequest = collections.namedtuple("LoggedRequest", "at method path headers body")
attacks = []
figures = {}
# Times in which the proof itself starts programs: the innocent project is not slowed down by an attack then.
preparations = []


def attack(finding, *, attacker, tried, quick=True):
    """Registers an attack for a finding. `tried` says in a few words what the attacker does."""

    def register(function):
        attacks.append(Attack(finding, attacker, tried, quick, function))
        return function

    return register


def figure(name, value, unit):
    """A measured number; the greatest of a name is printed at the end."""
    if name not in figures or figures[name][0] < value:
        figures[name] = (value, unit)


@contextlib.contextmanager
def preparing():
    """What happens meanwhile is no attack: it does not count how long calls of the innocent project take. Refusals count."""
    began = time.monotonic()
    try:
        yield
    finally:
        preparations.append((began, time.monotonic()))


def until(condition, seconds=15, pause=0.05, what="it did not happen in time"):
    """Waits until `condition()` is true and gives what it gave."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(pause)


def free_port():
    return int(subprocess.run([ROOT / "prove/support/free-port"], check=True, capture_output=True, text=True).stdout)


def run_program(*argv, **more):
    """Runs a program to its end; its standard output, or AssertionError with what it said."""
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, f"{argv}: {done.stderr[-2000:]}"
    return done.stdout


def parallel(function, arguments, threads=32):
    """Calls `function` with each argument, so many at once; the results in order. An exception is a result, too."""
    arguments = list(arguments)
    results = [None] * len(arguments)
    numbers = iter(range(len(arguments)))
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                results[number] = function(arguments[number])
            except Exception as error:
                results[number] = error

    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(threads, len(arguments)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


# HTTP.


def request(url, method="GET", body=None, token=None, headers=None, timeout=60):
    """One request on a connection of its own: (status, headers, bytes). The body is bytes, or anything that is sent as JSON."""
    parts = urllib.parse.urlsplit(url)
    headers = {name.lower(): value for name, value in (headers or {}).items()}
    if token is not None:
        headers.setdefault("authorization", f"Bearer {token}")
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    if body is not None:
        headers.setdefault("content-type", "application/json")
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A server that refuses by the headers answers before it has read the body, and may close.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), body, headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def parse_json(data):
    """The JSON in an answer; its text where it is none."""
    try:
        return json.loads(data) if data else None
    except ValueError:
        return data.decode(errors="replace")


# Processes.


def process_field(pid, name):
    """A number of `/proc/PID/status` such as VmRSS, in KiB for memory; None when the process is gone."""
    try:
        for line in open(f"/proc/{pid}/status"):
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    except OSError:
        pass
    return None


def rss(pid):
    """Resident memory of a process now, in bytes."""
    return (process_field(pid, "VmRSS") or 0) * 1024


def peak_rss(pid):
    """Most resident memory of a process since `reset_peak`, in bytes."""
    return (process_field(pid, "VmHWM") or 0) * 1024


def reset_peak(pid):
    with open(f"/proc/{pid}/clear_refs", "w") as file:
        file.write("5")


def processes_with(mark):
    """The processes of the whole machine with a word on their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if mark.encode() in open(f"/proc/{pid}/cmdline", "rb").read():
                found.append(int(pid))
    return found


def descendants(pid):
    """Every process below one: {pid: words of the command line}."""
    found, below = {}, [pid]
    while below:
        parent = below.pop()
        # A process may end between two looks.
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                below += [int(child) for child in open(f"/proc/{parent}/task/{thread}/children").read().split()]
        if parent != pid:
            with contextlib.suppress(OSError):
                found[parent] = open(f"/proc/{parent}/cmdline", "rb").read().decode(errors="replace").split("\0")
    return found


class PeakWatch:
    """Samples the peak memory of a process and of every one that begins below it: `with PeakWatch(pid) as watch: …; watch.highest()`."""

    def __init__(self, root):
        self.root, self.peaks, self.over = root, {}, False
        self.older = set(descendants(root))
        self.thread = threading.Thread(target=self.sample, daemon=True)

    def sample(self):
        while not self.over:
            for pid, words in descendants(self.root).items():
                peak = peak_rss(pid)
                if pid not in self.older and peak > self.peaks.get(pid, (0, None))[0]:
                    self.peaks[pid] = (peak, " ".join(words)[:80])
            time.sleep(0.002)

    def __enter__(self):
        reset_peak(self.root)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.thread.join()
        self.peaks[self.root] = (peak_rss(self.root), "the orchestrator")

    def highest(self):
        """(bytes, command line) of the process with the highest peak."""
        return max(self.peaks.values())


class MemoryWatch:
    """How much the resident memory of a process rose at most: `with MemoryWatch(pid) as watch: …; watch.growth` in bytes."""

    def __init__(self, pid):
        self.pid, self.growth = pid, 0

    def __enter__(self):
        reset_peak(self.pid)
        self.before = rss(self.pid)
        return self

    def __exit__(self, *_):
        self.growth = max(0, peak_rss(self.pid) - self.before)


def start_process(argv, log, environment=None):
    """Starts a program whose output goes to a file, and that ends with the thread that started it."""
    command = ["setpriv", "--pdeathsig=TERM", "--"] + [str(word) for word in argv]
    with open(log, "ab") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)


# Doubles.


class Listener:
    """An HTTP server on loopback that logs every request and answers as `answer(request)` says: (status, headers, body)."""

    def __init__(self, answer=None):
        listener = self
        self.requests, self.connections = [], 0
        self.answer = answer or (lambda request: (200, {}, {}))

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def setup(self):
                listener.connections += 1
                super().setup()

            def serve(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                asked = LoggedRequest(time.monotonic(), self.command, self.path, {n.lower(): v for n, v in self.headers.items()}, body)
                listener.requests.append(asked)
                status, headers, body = listener.answer(asked)
                if not isinstance(body, bytes):
                    body = json.dumps(body).encode()
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    for name, value in ({"content-type": "application/json", "content-length": str(len(body))} | headers).items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def has(self, text):
        """Whether a word is in the path, the headers or the body of any request."""
        word = text.encode()
        return any(word in asked.body or text in asked.path or text in str(asked.headers) for asked in self.requests)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def answer_as_model(asked):
    """What a model says in the dialect that the path names. It is asked for whole answers only."""
    if asked.method == "GET":
        return 200, {}, {"object": "list", "data": []}
    if asked.path.startswith("/v1/responses"):
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "Done.", "annotations": [], "logprobs": []}]}  # fmt: skip
        usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2,
                 "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 11}  # fmt: skip
        return 200, {}, {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "m", "output": [item],
                         "error": None, "incomplete_details": None, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
                         "usage": usage}  # fmt: skip
    if asked.path.startswith("/v1/messages"):
        return 200, {}, {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "Done."}],
                         "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 2}}  # fmt: skip
    choice = {"index": 0, "message": {"role": "assistant", "content": "Done.", "refusal": None}, "logprobs": None, "finish_reason": "stop"}
    return 200, {}, {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
                     "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}}  # fmt: skip


class ToolVendor(Listener):
    """A tool server over HTTP. `tools` is what it lists, `call(name, arguments)` gives the result of a call; both may be changed later.
    `raw_list` in place of `tools` is sent as it is: bytes of a JSON array."""

    def __init__(self, tools=None, call=None, raw_list=None):
        self.tools, self.raw_list = tools or [], raw_list
        self.call = call or (lambda name, arguments: {"content": [{"type": "text", "text": "ok"}]})
        super().__init__(self.answer_mcp)
        self.mcp_url = f"{self.url}/mcp"

    def answer_mcp(self, asked):
        message = parse_json(asked.body)
        if asked.method != "POST" or not isinstance(message, dict) or "id" not in message:
            return (405 if asked.method != "POST" else 202), {}, b""
        method, params = message.get("method"), message.get("params") or {}
        if method == "server/discover":
            result = {"supportedVersions": [MODERN_PROTOCOL]}
        elif method == "tools/list" and self.raw_list is not None:
            return 200, {}, b'{"jsonrpc":"2.0","id":%s,"result":{"tools":%s}}' % (json.dumps(message["id"]).encode(), self.raw_list)
        elif method == "tools/list":
            result = {"tools": self.tools}
        else:
            result = self.call(params.get("name"), params.get("arguments") or {})
        return 200, {}, {"jsonrpc": "2.0", "id": message["id"], "result": result}


# Ed25519, as RFC 8032 has it: nodes sign a challenge. It is slow and not meant for anything but proofs.

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
CURVE = -121665 * pow(121666, -1, PRIME) % PRIME


def recover_x(y, sign):
    square = (y * y - 1) * pow(CURVE * y * y + 1, -1, PRIME)
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if (x * x - square) % PRIME:
        x = x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    return PRIME - x if x & 1 != sign else x


BASE_Y = 4 * pow(5, -1, PRIME) % PRIME
BASE_X = recover_x(BASE_Y, 0)
BASE_POINT = (BASE_X, BASE_Y, 1, BASE_X * BASE_Y % PRIME)


def add_points(p, q):
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % PRIME, (p[1] + p[0]) * (q[1] + q[0]) % PRIME
    c, d = 2 * p[3] * q[3] * CURVE % PRIME, 2 * p[2] * q[2] % PRIME
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f, g * h, f * g, e * h)


def multiply_base(scalar):
    result, point = (0, 1, 1, 0), BASE_POINT
    while scalar:
        if scalar & 1:
            result = add_points(result, point)
        point = add_points(point, point)
        scalar >>= 1
    inverse = pow(result[2], -1, PRIME)
    x, y = result[0] * inverse % PRIME, result[1] * inverse % PRIME
    return (y | (x & 1) << 255).to_bytes(32, "little")


class SigningKey:
    def __init__(self):
        digest = hashlib.sha512(os.urandom(32)).digest()
        number = int.from_bytes(digest[:32], "little")
        self.scalar, self.prefix = number & (1 << 254) - 8 | 1 << 254, digest[32:]
        self.public = multiply_base(self.scalar)

    def sign(self, message):
        nonce = int.from_bytes(hashlib.sha512(self.prefix + message).digest(), "little") % ORDER
        point = multiply_base(nonce)
        challenge = int.from_bytes(hashlib.sha512(point + self.public + message).digest(), "little")
        return point + ((nonce + challenge * self.scalar) % ORDER).to_bytes(32, "little")


class Node:
    """A machine that joined as a node and does what the attack wants. Made by `join_node`."""

    def __init__(self, installation, name, labels, slots, report):
        self.installation, self.name, self.key = installation, name, SigningKey()
        status, issued, _ = installation.api("POST", "/v1/nodes/join-tokens", {"labels": labels})
        assert status == 201, issued
        self.report = {"version": "0.1.0", "cores": 2, "memory_mib": 4096, "disk_free_mib": 9000, "slots": slots,
                       "backends": [{"backend": "bubblewrap", "version": "0.8.0"}], "agents": [{"agent": "goose", "version": "1.37.0"}],
                       "facts": {"cgroups": "v1"}} | (report or {})  # fmt: skip
        body = {"join_token": issued["join_token"], "name": name, "report": self.report, "public_key": self.key.public.hex()}
        status, joined, _ = installation.api("POST", "/v1/nodes/join", body, token="", internal=True)
        assert status == 200, joined
        self.node_id = joined["node_id"]
        _, asked, _ = installation.api("POST", "/v1/nodes/challenge", {"node_id": self.node_id}, token="", internal=True)
        signature = self.key.sign(f"cynode node token v1\n{self.node_id}\n{asked['challenge']}".encode())
        body = {"node_id": self.node_id, "challenge": asked["challenge"], "signature": signature.hex()}
        status, given, _ = installation.api("POST", "/v1/nodes/token", body, token="", internal=True)
        assert status == 200, given
        self.token = given["token"]

    def api(self, method, path, body=None, headers=None):
        """A request at the internal port with the node's token: (status, json, headers)."""
        return self.installation.api(method, path, body, token=self.token, headers=headers, internal=True)

    def claim(self, most=10, wait_ms=0):
        """Jobs that were placed on this node."""
        status, given, _ = self.api("POST", "/v1/nodes/claim", {"claim_id": str(uuid.uuid4()), "max_jobs": most, "wait_ms": wait_ms,
                                                                "applies_profiles": True})  # fmt: skip
        assert status == 200, given
        return given["jobs"]

    def claim_all(self, count, seconds=15):
        """So many jobs, once they are placed: {unit: job}."""
        jobs = {}

        def ask():
            jobs.update({job["unit"]: job for job in self.claim(most=count, wait_ms=1000)})
            return len(jobs) >= count

        until(ask, seconds, what=lambda: f"{len(jobs)} of {count} jobs came")
        return jobs

    def heartbeat(self, jobs=()):
        held = [{"job_id": job["job_id"], "fencing_token": job["fencing_token"], "phase": "working"} for job in jobs]
        return self.api("POST", "/v1/nodes/heartbeat", {"jobs": held, "delivered": []})

    def upload(self, job, data):
        """Stores bytes for a job: (status, json, headers)."""
        name = hashlib.sha256(data).hexdigest()
        path = f"/v1/nodes/jobs/{job['job_id']}/blobs/{name}?fencing_token={job['fencing_token']}"
        return self.api("PUT", path, data, {"content-type": "application/octet-stream"})

    def send_result(self, job, result, outcome="succeeded"):
        body = {"fencing_token": job["fencing_token"], "outcome": outcome, "result": result}
        return self.api("POST", f"/v1/nodes/jobs/{job['job_id']}/result", body)

    def leave(self):
        self.installation.api("DELETE", f"/v1/nodes/{self.node_id}")


# Installations.


class Installation:
    """A CyNode that was started for the proof, with people and projects. See the top of this file."""

    def __init__(self, cynode, work, quick, settings=None, whole=False, cluster=None, environment=None, storage=None):
        self.cynode, self.quick, self.whole, self.cluster = pathlib.Path(cynode), quick, whole, cluster
        self.work = pathlib.Path(work)
        self.work.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.work.chmod(0o755)
        self.data = self.work / "data"
        self.storage = pathlib.Path(storage) if storage else (self.data if whole else self.work) / "storage"
        self.settings, self.process, self.log = dict(settings or {}), None, self.work / "output.log"
        # The limits of the product, not those that other proofs raise.
        limits = ("CYNODE_SERVER_", "DATABASE_URL", "CYNODE_STORAGE_", "CYNODE_BIN")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(limits)} | (environment or {})
        self.addresses = {}
        keys = ["server.listen", "server.internal_listen"]
        if whole:
            keys += ["engine.runner_listen", "manager.listen", "manager.analyst_listen"]
        for key in keys:
            self.addresses[key] = f"127.0.0.1:{free_port()}"
        self.user_url = f"http://{self.addresses['server.listen']}"
        self.internal_url = f"http://{self.addresses['server.internal_listen']}"
        self.numbers = itertools.count(1)
        self.installations = []
        self.database, self.own_runner_token = None, None
        if not whole:
            self.prepare_database()
        self.start()

    # Processes.

    def prepare_database(self):
        """A database of its own in the cluster of the first installation, and a master key."""
        name = f"review_{uuid.uuid4().hex[:12]}"
        run_program("psql", self.cluster, "-XAtqc", f"CREATE DATABASE {name}")
        self.database = self.cluster.replace("/postgres?", f"/{name}?")
        self.environment |= {"DATABASE_URL": self.database, "CYNODE_STORAGE_DIRECTORY": str(self.storage)}
        self.storage.mkdir(mode=0o711, parents=True, exist_ok=True)
        run_program(self.cynode, "admin", "master-key", self.storage / "master.key", env=self.environment)
        run_program(self.cynode, "migrate", env=self.environment)
        link = run_program(self.cynode, "admin", "bootstrap", env=self.environment)
        self.bootstrap = link.strip().rsplit("=", 1)[1]

    def start(self, settings=None):
        """Starts the program with these settings beside those it was made with, and waits until it answers."""
        chosen = self.addresses | self.settings | (settings or {})
        words = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
        command = ["up", "--data-dir", self.data, "--set", f"manager.instructions={ROOT / 'instructions'}"] if self.whole else ["serve"]
        self.process = start_process([self.cynode, *command, *words], self.log, self.environment)
        until(lambda: self.is_ready() or self.process.poll() is not None, START_TIMEOUT_SECONDS, what=lambda: f"no start: {self.tail()}")
        assert self.process.poll() is None, f"it ended: {self.tail()}"
        if self.whole and self.database is None:
            password = (self.data / "postgres/password").read_text().strip()
            self.database = f"postgres://cynode:{password}@localhost/postgres?host={self.data}/postgres/run"
            self.cluster = self.database
            # A restored installation has an admin.
            link = self.data / "setup-link"
            self.bootstrap = link.read_text().strip().rsplit("=", 1)[1] if link.exists() else None

    def is_ready(self):
        try:
            return request(f"{self.user_url}/readyz", timeout=2)[0] == 200
        except OSError:
            return False

    def restart(self, settings=None):
        """Ends the program and starts it again, with these settings beside its own. Databases, tokens and people stay."""
        with preparing():
            self.end_process()
            self.start(settings)

    def end_process(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def stop(self):
        """Ends the installation and those that were made from it."""
        for other in self.installations:
            other.stop()
        self.installations.clear()
        self.end_process()

    def tail(self):
        return self.log.read_text(errors="replace")[-3000:]

    def orchestrator_pid(self):
        """The process that has both ports: `cynode up` or `cynode serve` itself."""
        return self.process.pid

    def program_pid(self, name):
        """A process that `cynode up` keeps, such as `cynode-runner` or `cynode-node`."""
        for pid, words in descendants(self.process.pid).items():
            if words[0].rsplit("/", 1)[-1] == name:
                return pid
        raise AssertionError(f"{name} does not run")

    def second_installation(self, extra_sets=None, whole=False, people=True, environment=None, storage=None):
        """Another installation on other ports; see the top of this file. `people=False` leaves it without anybody but an admin. `storage` is
        where it keeps its files, when that matters."""
        with preparing():
            folder = self.work / self.unique("installation")
            other = Installation(self.cynode, folder, self.quick, extra_sets, whole, self.cluster, environment, storage)
            self.installations.append(other)
            other.set_up(people)
        return other

    # People and projects.

    def set_up(self, people=True):
        body = {"token": self.bootstrap, "handle": "admin", "display_name": "Admin", "password": PASSWORD}
        status, answer, _ = self.api("POST", "/v1/bootstrap", body, token="")
        assert status in (200, 201), answer
        token = self.log_in("admin")
        _, me, _ = self.api("GET", "/v1/me", token=token)
        self.admin = Actor("admin", me.get("id") or me["user"]["id"], token, PASSWORD)
        self.project = self.create_project("attacked")
        if not people:
            return
        self.second_admin = self.create_person("ann", role="admin")
        self.operator = self.create_person("oscar")
        self.second_operator = self.create_person("olga")
        self.eve = self.create_person("eve")
        for person in (self.operator, self.second_operator):
            self.add_member(self.project, person)

    def unique(self, word):
        """A name that nobody else uses: evil-1, evil-2 and so on."""
        return f"{word}-{next(self.numbers)}"

    def log_in(self, handle, password=PASSWORD):
        status, answer, _ = self.api("POST", "/v1/sessions", {"handle": handle, "password": password}, token="")
        assert status == 201 or status == 200, answer
        return answer["token"]

    def create_person(self, handle, role=None):
        """An account, without any role unless one in the whole installation is named. Its token is an API key."""
        body = {"handle": handle, "display_name": handle.title(), "password": PASSWORD} | ({"role": role} if role else {})
        user = self.expect(201, "POST", "/v1/users", body)
        key = self.expect(201, "POST", "/v1/api-keys", {"name": "proof"}, token=self.log_in(handle))
        return Actor(handle, user["id"], key["token"], PASSWORD)

    def create_project(self, slug):
        return self.expect(201, "POST", "/v1/projects", {"slug": slug, "title": slug.title()})["id"]

    def add_member(self, project, person, role="operator"):
        self.expect(None, "PUT", f"/v1/projects/{project}/members/{person.user_id}", {"role": role})

    def create_task(self, project=None, token=None, **more):
        """A task. In a whole installation the runner begins with it at once; see `create_jobs`."""
        body = {"project_id": project or self.project, "name": self.unique("task"), "description": "Mend it."} | more
        return self.expect(201, "POST", "/v1/tasks", body, token=token)["id"]

    # Requests.

    def api(self, method, path, body=None, token=None, headers=None, internal=False, timeout=60):
        """One request: (status, json, headers). Without a token it is the admin's; "" sends none. `internal` asks at the internal port."""
        token = self.admin.token if token is None else token or None
        root = self.internal_url if internal else self.user_url
        status, got, data = request(root + path, method, body, token, headers, timeout)
        return status, parse_json(data), got

    def expect(self, wanted, method, path, body=None, token=None, **more):
        """A request that must be answered with this status (None: any success); the JSON of the answer."""
        status, answer, _ = self.api(method, path, body, token, **more)
        assert status == wanted or (wanted is None and status < 300), f"{method} {path}: {status} {answer}"
        return answer

    def sql(self, text):
        """Rows of a query as a list of dicts. A text that is no query (UPDATE, …) is carried out and gives []."""
        if not re.match(r"\s*(SELECT|WITH)\b", text, re.IGNORECASE):
            run_program("psql", self.database, "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text)
            return []
        return json.loads(run_program("psql", self.database, "-XAtq", "-c", f"SELECT coalesce(json_agg(found), '[]') FROM ({text}) found"))

    def agent_token(self, project=None, role="developer", task=None, network=False, **more):
        """A token of an agent for the internal port. Only a project manager may do without a task: one is made for others. `more` may have
        `models=[…]` and `tools=[…]`."""
        return self.issue_agent_token(project, role, task, network, **more)["token"]

    def networked_profile(self):
        """The name of a profile that has every tool and may reach every host; made once."""
        if not getattr(self, "networked", None):
            spec = {"tools": ["*", "ext.*"], "network": [{"domain": "*", "methods": ["*"]}], "variables": ["*"], "models": ["*"], "memory": "write"}
            spec |= {"paths": {"read": ["**"], "write": ["**"]}}
            self.expect(201, "POST", "/v1/profiles", {"name": "networked", "spec": spec})
            self.networked = "networked"
        return self.networked

    def issue_agent_token(self, project=None, role="developer", task=None, network=False, **more):
        """The same, with `agent_token_id` beside `token`."""
        project = project or self.project
        if task is None and role != "project_manager":
            task = self.create_task(project)
        body = {"role": role, "project_id": project, "network": network, "expires_in_seconds": 3600} | ({"task_id": task} if task else {})
        # A token has network only under a profile that has it.
        body |= {"profile": self.networked_profile()} if network else {}
        return self.expect(201, "POST", "/v1/agent-tokens", body | more)

    def mcp_call(self, token, tool, arguments, timeout=60):
        """One tool call at the gateway. Gives ("result" | "failed" | "refused", what it says). Names have dots or `__`."""
        return self.mcp_message(token, "tools/call", {"name": tool.replace(".", "__"), "arguments": arguments}, timeout)

    def mcp_verdict(self, token, tool, arguments, timeout=60):
        """The same in a few words: "ok", "refused CODE", "failed CODE", "error NUMBER" of the protocol, or the status such as "413"."""
        outcome, answer = self.mcp_call(token, tool, arguments, timeout)
        if outcome == "result":
            return "ok"
        if not isinstance(answer, dict) or "content" not in answer:
            return f"error {answer['error'].get('code')}" if isinstance(answer, dict) and isinstance(answer.get("error"), dict) else str(answer)
        told = (answer.get("structuredContent") or {}) | {name.removeprefix("cynode/"): said for name, said in (answer.get("_meta") or {}).items()}
        for field, word in (("refused", "refused"), ("error", "failed")):
            if isinstance(told.get(field), dict):
                return f"{word} {told[field].get('code')}"
        return "failed"

    def mcp_message(self, token, method, params, timeout=60):
        meta = {"io.modelcontextprotocol/protocolVersion": MODERN_PROTOCOL, "io.modelcontextprotocol/clientCapabilities": {}}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params | {"_meta": meta}}
        headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN_PROTOCOL, "mcp-method": method}
        if "name" in params:
            headers["mcp-name"] = params["name"]
        status, got, data = request(f"{self.internal_url}/mcp", "POST", body, token, headers, timeout)
        answer = parse_json(data)
        if got.get("content-type", "").startswith("text/event-stream"):
            answer = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")][-1]
        if status != 200 or not isinstance(answer, dict) or "error" in answer:
            return "refused", answer
        result = answer["result"]
        structured = result.get("structuredContent") or {}
        if not result.get("isError"):
            return "result", result
        return ("refused" if "refused" in structured else "failed"), result

    def ask_model(self, token, model, words="Hello.", internal=True, timeout=60, **more):
        """One Chat Completions request: (status, json, headers). Agents ask at the internal port, people at the other."""
        body = {"model": model, "messages": [{"role": "user", "content": words}]} | more
        return self.api("POST", "/v1/chat/completions", body, token, internal=internal, timeout=timeout)

    # Models and tool servers.

    def set_provider(self, name, listener, dialect="chat"):
        """A provider that leads to a Listener, and a model of the same name."""
        self.expect(None, "PUT", f"/v1/providers/{name}", {"kind": "compatible", "dialect": dialect, "base_url": f"{listener.url}/v1"})
        self.set_model(name, name)

    def set_model(self, model, provider, images=True, **more):
        prices = {"input": 1, "cached": 1, "cache_write": 1, "output": 1}
        body = {"context_tokens": 100000, "max_output_tokens": 200, "tools": True, "json_schema": True, "images": images,
                "routes": [{"provider": provider, "upstream": model, "prices": prices}]}  # fmt: skip
        self.expect(None, "PUT", f"/v1/model-registry/{model}", body | more)

    def set_up_models(self):
        self.provider = Listener(answer_as_model)
        for dialect in ("chat", "responses", "messages"):
            self.set_provider(f"fake-{dialect}", self.provider, dialect)
        self.expect(None, "PUT", "/v1/providers/scripted", {"kind": "scripted", "script": {"rules": [{"answer": {"text": "Done."}}]}})
        self.set_model("scripted", "scripted")

    def install_server(self, name, url, token=None, **more):
        """Installs a tool server over HTTP for everybody's agents: (status, json, headers)."""
        body = {"name": name, "scope": "both", "audience": "everybody", "allow_private": True, "transport": {"type": "http", "url": url}}
        return self.api("POST", "/v1/tool-servers", body | more, token)

    def refresh_server(self, server_id, token=None):
        """Asks a tool server for its tools: (status, json, headers); `failure` says what went wrong."""
        return self.api("POST", f"/v1/tool-servers/{server_id}/refresh", b"null", token, timeout=120)

    def accept_tools(self, server_id, token=None):
        """Accepts all that the server lists now: (status, json, headers)."""
        _, server, _ = self.api("GET", f"/v1/tool-servers/{server_id}", token=token)
        tools = {tool["tool"]: tool["definition_digest"] for tool in server["tools"]}
        return self.api("POST", f"/v1/tool-servers/{server_id}/accept", {"tools": tools}, token)

    def delete_server(self, server_id, token=None):
        return self.api("DELETE", f"/v1/tool-servers/{server_id}", token=token)

    # Repositories, jobs and nodes.

    def import_repository(self, project=None, files=None):
        """Gives the project a small repository; (folder of a clone, commit of `main`)."""
        folder = self.work / self.unique("repository")
        folder.mkdir()
        self.git(folder, "init", "-q", "-b", "main")
        for name, text in (files or {"README.md": "# A page\n"}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        self.git(folder, "add", ".")
        self.git(folder, "commit", "-qm", "A page")
        self.git(folder, "bundle", "create", "-q", ".git/import.bundle", "main")
        self.expect(None, "PUT", f"/v1/projects/{project or self.project}/repository", (folder / ".git/import.bundle").read_bytes(),
                    headers={"content-type": "application/x-git-bundle"})  # fmt: skip
        return folder, self.git(folder, "rev-parse", "HEAD")

    def git(self, folder, *words):
        return run_program("git", "-C", folder, "-c", "user.name=proof", "-c", "user.email=proof@localhost", *words).strip()

    def repository_refs(self, project=None):
        """Every ref of a project's repository in the storage: {name: commit}."""
        number = (project or self.project).split("_", 1)[1]
        found = [path for path in self.storage.glob("repositories/**/HEAD") if number in str(path).replace("prj_", "")]
        assert found, f"no repository of {project} in {self.storage}"
        lines = run_program("git", "-C", found[0].parent, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        return dict(line.split() for line in lines)

    def join_node(self, labels=(), slots=1, name=None, report=None):
        """A node that the attack plays: `claim`, `upload`, `send_result`, `api`. Jobs of `create_jobs` with one of its labels come to it."""
        return Node(self, name or self.unique("node"), list(labels), slots, report)

    @contextlib.contextmanager
    def paused_runner(self):
        """Meanwhile the runner of a whole installation does nothing, so that an attack can drive a task as it likes."""
        pid = self.program_pid("cynode-runner") if self.whole else None
        if pid:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            if pid:
                os.kill(pid, signal.SIGCONT)

    def runner_token(self):
        """What a runner shows: that of the installation's own, or a new one where it has none."""
        if self.whole:
            return (self.data / "runner-token").read_text().strip()
        if self.own_runner_token is None:
            self.own_runner_token = run_program(self.cynode, "admin", "token", "runner", "--name", "proof", env=self.environment).strip()
        return self.own_runner_token

    def create_jobs(self, units=("a",), project=None, labels=(), work=None, task=None, **task_fields):
        """A task with a job for each unit, placed on nodes with all these labels. Gives the task's id. Jobs are commands (`true`) unless `work`
        says otherwise: it is merged into the specification of each job."""
        with self.paused_runner():
            task = task or self.create_task(project, **task_fields)
            body = {"task_id": task, "holder": "proof", "idempotency_key": str(uuid.uuid4())}
            started = self.runner_call("start", body)
            lease = {name: value for name, value in started["lease"].items() if name not in ("holder", "expires_at")} | {"task_id": task}
            spec = {"role": "developer", "worker": {"kind": "command", "steps": [{"argv": ["true"]}]}, "placement": {"labels": list(labels)}} | (work or {})
            planned = [{"key": unit, "title": unit, "payload": {"work": spec}} for unit in units]
            jobs = [{"effect": "create_job", "unit": unit, "attempt": 1, "timeout_seconds": 600} for unit in units]
            position = started["position"]
            for effects in ([], [{"effect": "plan_units", "units": planned}], jobs):
                body = {"lease": lease, "sequence": position["sequence"] + 1, "node": position["next"]["node"], "verdict": "pass",
                        "state": position.get("state") or {}, "seen_wakes": position["wakes"], "attempt": 1, "duration_ms": 5}  # fmt: skip
                state = position.get("state")
                position = self.runner_call("checkpoint", body | ({"effects": effects} if effects else {}))
                position.setdefault("state", state)
        return task

    def job_results(self, task):
        """What came of the jobs of a task, by unit: {key: {"state", "result"}}."""
        rows = self.sql(f"""SELECT u.key, j.state, j.result FROM jobs j JOIN work_units u USING (unit_id)
            WHERE u.task_id = '{task.split("_", 1)[1]}'""")
        return {row["key"]: row for row in rows}

    def run_in_sandbox(self, *commands, project=None, models=(), seconds=60, **work):
        """Runs commands as a job on the installation's own node, one after the other, in a real sandbox without a network. Gives (exit code,
        output) of each. Models answer at http://127.0.0.1:4001 there, tools at http://127.0.0.1:4002/mcp. Only in a whole installation."""
        node = until(lambda: [node for node in self.expect(200, "GET", "/v1/nodes")["items"] if node["started"]], 30)[0]["name"]
        steps = [{"argv": list(command), "on_failure": "continue"} for command in commands]
        spec = {"worker": {"kind": "command", "steps": steps}, "placement": {"node": node}, "models": list(models)} | work
        task = self.create_jobs(["a"], project, work=spec)
        done = until(lambda: self.job_results(task)["a"]["result"], seconds, 0.1, lambda: f"no result: {self.job_results(task)}")
        self.api("POST", f"/v1/tasks/{task}/cancel", {})
        self.last_result = done
        assert len(done.get("steps", [])) == len(commands), done
        return [(step["exit_code"], step["output"]) for step in done["steps"]]

    def runner_call(self, name, body):
        status, answer, _ = self.api("POST", f"/v1/workflow/{name}", body, token=self.runner_token(), internal=True)
        assert status == 200, f"{name}: {status} {answer}"
        return answer


class World(Installation):
    """The first installation: a whole one, with the probe's project in it."""

    def __init__(self, cynode, work, quick):
        super().__init__(cynode, work, quick, whole=True)
        self.set_up()
        self.set_up_models()
        self.innocent_project = self.create_project("innocent")
        self.innocent_task = self.create_task(self.innocent_project)
        for setting in ("gateway.max_identical_calls", "models.loop_guard.max_calls_without_progress"):
            self.expect(None, "PUT", f"/v1/settings/{setting}", {"value": 1000000, "expected_version": 0})
        self.innocent_agent = self.agent_token(self.innocent_project, task=self.innocent_task, models=["scripted"])
