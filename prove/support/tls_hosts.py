#!/usr/bin/env python3
"""An installation on two hosts, which are network namespaces with one cable between them. Every packet of the cable is captured.

    tls_hosts.py run --programs DIRECTORY --work DIRECTORY --tag TAG [--quick]
    tls_hosts.py sniff INTERFACE FILE

`run` needs root. It prints one JSON object with what it found, and ends with 1 if something was readable, accepted or lost that must not be.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

import certificates

SERVER, NODE, NAME = "10.77.0.1", "10.77.0.2", "cynode.test"
USER_PORT, INTERNAL_PORT, DECOY_PORT, CONTROL_PORT, ACME_PORT, ACME_ADMIN_PORT = 12080, 12082, 12180, 12181, 14000, 15000
PASSWORD = "planted-password-correct-horse"
TASK_TEXT = "planted-words-of-a-task-7f3a"
CONTROL_TEXT = "planted-control-text-91bc"
DATAGRAM_TEXT = "planted-control-datagram-44d1"
FILE_TEXT = "planted-content-of-a-file-c07e"
# What would be readable if anything were sent in clear text, beside what is planted.
MARKS = ("cyn_ses_", "cyn_join_", "cyn_nod_", "cyn_boot_", "cyn_run_", "cyn_pma_", "authorization: bearer", "HTTP/1.1 200")
ETHERTYPE_IPV4, TCP = 0x0800, 6
START_TIMEOUT_SECONDS = 90
# Options of packet sockets that Python does not name.
SOL_PACKET, PACKET_STATISTICS, SO_RCVBUFFORCE = 263, 6, 33
# What our programs say of a server that they do not trust.
DISTRUST = "invalid peer certificate"


def sniff(interface, path):
    """Writes every frame of an interface to a file, each after its length, until it is ended. How many frames the kernel saw and dropped is
    beside it then."""
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)) as wire, open(path, "wb") as out:
        # The privileged option goes beyond the limit of the machine.
        wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
        wire.settimeout(0.2)
        wire.bind((interface, 0))
        idle = False
        while not (ended and idle):
            try:
                frame = wire.recv(1 << 18)
            except TimeoutError:
                idle = True
                continue
            idle = False
            out.write(struct.pack(">I", len(frame)) + frame)
            out.flush()
        seen, dropped = struct.unpack("II", wire.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
    pathlib.Path(f"{path}.counts").write_text(json.dumps({"seen": seen, "dropped": dropped}))


def read_streams(path):
    """The bytes of each direction of each TCP connection, by addresses and ports, in the order in which they came; and every other frame
    whole: UDP, IPv6 and whatever else was sent."""
    streams, others = {}, []
    data = pathlib.Path(path).read_bytes()
    at = 0
    while at + 4 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        frame = data[at + 4 : at + 4 + length]
        at += 4 + length
        if len(frame) < 34 or struct.unpack_from(">H", frame, 12)[0] != ETHERTYPE_IPV4 or frame[23] != TCP:
            others.append(frame)
            continue
        header = (frame[14] & 0x0F) * 4
        total = struct.unpack_from(">H", frame, 16)[0] or len(frame) - 14
        segment = frame[14 + header : 14 + total]
        if len(segment) < 20:
            others.append(frame)
            continue
        source, target = struct.unpack_from(">HH", segment)
        payload = segment[(segment[12] >> 4) * 4 :]
        key = (frame[26:30], source, frame[30:34], target)
        streams.setdefault(key, bytearray()).extend(payload)
    return streams, others


class Proof:
    def __init__(self, options):
        self.programs = pathlib.Path(options.programs)
        self.work = pathlib.Path(options.work)
        self.hosts = {"server": f"{options.tag}-a", "node": f"{options.tag}-b"}
        self.quick = options.quick
        self.children = []
        self.refused, self.problems = 0, []

    # hosts and programs

    def make_hosts(self):
        (self.work / "hosts").write_text(f"127.0.0.1 localhost\n{SERVER} {NAME}\n")
        for name in self.hosts.values():
            subprocess.run(["ip", "netns", "add", name], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        subprocess.run(["ip", "link", "add", "cyntls-a", "type", "veth", "peer", "name", "cyntls-b"], check=True)
        for host, link, address in (("server", "cyntls-a", SERVER), ("node", "cyntls-b", NODE)):
            name = self.hosts[host]
            subprocess.run(["ip", "link", "set", link, "netns", name], check=True)
            subprocess.run(["ip", "-n", name, "addr", "add", f"{address}/24", "dev", link], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", link, "up"], check=True)

    def remove_hosts(self):
        for child in reversed(self.children):
            if child.poll() is None:
                child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=30)
            if child.poll() is None:
                child.kill()
        for name in self.hosts.values():
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)

    def on(self, host, *command):
        # `ip netns exec` would hide the control groups, which nodes need.
        script = 'mount --bind "$1" /etc/hosts; shift; exec "$@"'
        place = ["nsenter", f"--net=/run/netns/{self.hosts[host]}", "unshare", "--mount"]
        return [*place, "sh", "-euc", script, "sh", str(self.work / "hosts"), *map(str, command)]

    def start(self, host, log, *command):
        out = open(self.work / log, "ab")
        child = subprocess.Popen(self.on(host, *command), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.children.append(child)
        return child

    def run(self, host, *command, stdin="", check=True):
        done = subprocess.run(self.on(host, *command), input=stdin, capture_output=True, text=True, timeout=120, check=False)
        if check and done.returncode != 0:
            raise SystemExit(f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def cynork(self, *words, stdin="", check=True):
        flags = ["--config", self.work / "cynork.toml", "--ca-file", self.work / "site-ca.pem"]
        return self.run("node", self.programs / "cynork", *flags, *words, stdin=stdin, check=check)

    def expect_refused(self, what, done, text=None):
        """Counts an attempt that has to fail, with these words if some are named."""
        told = done.stdout + done.stderr
        if done.returncode == 0 or (text and text not in told):
            self.problems.append(f"{what} was not refused as it should be: {done.returncode} {told[-400:]}")
        else:
            self.refused += 1

    def wait_until(self, what, holds, seconds=START_TIMEOUT_SECONDS):
        until = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > until:
                raise SystemExit(f"{what} did not happen within {seconds} s")
            time.sleep(0.1)

    # certificates that are not the installation's own

    def make_authority(self, name):
        certificates.make_authority(self.work, name)

    def issue(self, authority, key, stem, names, **times):
        return certificates.issue(self.work, authority, key, stem, names, **times)

    # the installation

    def start_installation(self, *more):
        settings = {"server.listen": f"{SERVER}:{USER_PORT}", "server.internal_listen": f"{SERVER}:{INTERNAL_PORT}",
                    "server.public_url": f"https://{NAME}:{USER_PORT}", "tls.names": NAME}
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return self.start("server", "up.log", self.programs / "cynode", "up", "--data-dir", self.work / "data", *flags, *more)

    def stop_installation(self, child):
        child.terminate()
        child.wait(timeout=60)

    def answers(self, authority, path="/readyz", port=USER_PORT):
        done = self.run("node", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "5", "--cacert", authority,
                        f"https://{NAME}:{port}{path}", check=False)
        return done.stdout == "200"

    def use_installation(self):
        """A person on the other host sets up, asks for work and joins that host as a node."""
        link = (self.work / "data" / "setup-link").read_text().strip()
        token = link.split("#bootstrap=")[1]
        self.cynork("--url", f"https://{NAME}:{USER_PORT}", "setup", "-", "--handle", "ada", "--password-stdin",
                    stdin=f"https://{NAME}:{USER_PORT}/setup#bootstrap={token}\n{PASSWORD}\n")
        self.cynork("project", "create", "web", "--title", "Web")
        self.cynork("task", "create", TASK_TEXT, "--project", "web")
        token = self.cynork("--quiet", "node", "join-token").stdout.strip()
        if ".sha256:" not in token:
            raise SystemExit("the join token carries no pin")
        self.refuse_wrong_servers(token)
        self.join("state", token, f"https://{NAME}:{INTERNAL_PORT}")
        state = self.work / "state"
        self.start("node", "node.log", self.programs / "cynode-node", "--state", state, "run")
        self.wait_until("the second node is heard", self.hears_second_node)

    def hears_second_node(self):
        done = self.cynork("--json", "node", "show", "second", check=False)
        return done.returncode == 0 and json.loads(done.stdout)["alive"]

    def join(self, state, token, url, check=True):
        (self.work / "token").write_text(token)
        (self.work / "token").chmod(0o600)
        return self.run("node", self.programs / "cynode-node", "--state", self.work / state, "join", "--url", url, "--token-file",
                        self.work / "token", "--name", "second", check=check)

    # refusals

    @contextlib.contextmanager
    def decoy(self, certificate, key):
        """A server of somebody else on the host of the installation. It answers whatever is asked, and writes it down: gives the file."""
        asked = self.work / "decoy-requests"
        asked.write_text("")
        script = (
            "import http.server, ssl, sys\n"
            "class Answer(http.server.BaseHTTPRequestHandler):\n"
            "    def do_POST(self):\n"
            "        self.rfile.read(int(self.headers.get('content-length', 0)))\n"
            "        open(sys.argv[5], 'a').write(self.path + '\\n')\n"
            "        self.send_response(200); self.end_headers(); self.wfile.write(b'{}')\n"
            "context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
            "context.load_cert_chain(sys.argv[1], sys.argv[2])\n"
            "server = http.server.ThreadingHTTPServer((sys.argv[3], int(sys.argv[4])), Answer)\n"
            "server.socket = context.wrap_socket(server.socket, server_side=True)\n"
            "server.serve_forever()\n"
        )
        child = self.start("server", "decoy.log", sys.executable, "-c", script, certificate, key, SERVER, DECOY_PORT, asked)
        try:
            connect = ("bash", "-c", f"exec 3<>/dev/tcp/{SERVER}/{DECOY_PORT}")
            self.wait_until("the decoy listens", lambda: self.run("node", *connect, check=False).returncode == 0, 20)
            yield asked
        finally:
            child.terminate()
            child.wait(timeout=10)

    def refuse_wrong_servers(self, token):
        own = self.work / "data" / "storage" / "tls"
        head, pin = token.split(".sha256:")
        wrong_pin = f"{head}.sha256:{'0' * 8 if pin[:8] != '0' * 8 else '1' * 8}{pin[8:]}"
        self.expect_refused("a wrong pin", self.join("wrong-pin", wrong_pin, f"https://{NAME}:{INTERNAL_PORT}", check=False), DISTRUST)
        self.expect_refused("clear text of a node", self.join("clear", token, f"http://{NAME}:{INTERNAL_PORT}", check=False), "not encrypted")
        servers = {
            "foreign": (self.work / "foreign-ca.pem", self.work / "foreign-ca.key", [NAME, SERVER], {}),
            "expired": (own / "ca.pem", own / "ca.key", [NAME, SERVER], {"start": "20200101000000Z", "end": "20200201000000Z"}),
            "misnamed": (own / "ca.pem", own / "ca.key", ["other.test"], {}),
        }
        for what, (authority, key, names, times) in servers.items():
            with self.decoy(*self.issue(authority, key, what, names, **times)) as asked:
                done = self.join(what, token, f"https://{NAME}:{DECOY_PORT}", check=False)
                self.expect_refused(f"a server that is {what}", done, DISTRUST)
                if asked.read_text():
                    self.problems.append(f"a server that is {what} got a request: {asked.read_text()}")
        # The decoy is asked by whoever trusts it: it is not merely silent.
        with self.decoy(*self.issue(own / "ca.pem", own / "ca.key", "trusted", [NAME, SERVER])) as asked:
            self.join("trusted", token, f"https://{NAME}:{DECOY_PORT}", check=False)
            if not asked.read_text():
                self.problems.append("the decoy gets no request of a node that trusts it, so that the refusals above say nothing")

    def refuse_wrong_clients(self):
        own = self.work / "data" / "storage" / "tls"
        base = f"https://{NAME}:{INTERNAL_PORT}"

        def ask(*words, path="/v1/openapi.json"):
            done = self.run("node", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "10", *words, base + path, check=False)
            return subprocess.CompletedProcess(done.args, 0 if done.stdout == "200" else 1, done.stdout, done.stderr)

        trusted = ("--cacert", own / "ca.pem")
        self.expect_refused("no client certificate", ask(*trusted), "401")
        certificate, key = self.issue(self.work / "foreign-ca.pem", self.work / "foreign-ca.key", "foreign-client", ["node"])
        self.expect_refused("a foreign client certificate", ask(*trusted, "--cert", certificate, "--key", key))
        times = {"start": "20200101000000Z", "end": "20200201000000Z"}
        certificate, key = self.issue(own / "ca.pem", own / "ca.key", "expired-client", ["node"], **times)
        self.expect_refused("an expired client certificate", ask(*trusted, "--cert", certificate, "--key", key))
        # It has the right issuer, and nobody has stored it: only what the server itself issued is taken.
        certificate, key = self.issue(own / "ca.pem", own / "ca.key", "unknown-client", ["node"])
        self.expect_refused("a client certificate that is not stored", ask(*trusted, "--cert", certificate, "--key", key), "401")
        for port in (USER_PORT, INTERNAL_PORT):
            done = self.run("node", "curl", "-s", "--max-time", "10", f"http://{NAME}:{port}/healthz", check=False)
            self.expect_refused(f"plain HTTP to port {port}", done)
        done = self.run("node", self.programs / "cynork", "--config", self.work / "other.toml", "--url", f"http://{NAME}:{USER_PORT}", "login", "--handle",
                        "ada", "--password-stdin", stdin=f"{PASSWORD}\n", check=False)
        self.expect_refused("clear text of cynork", done, "not encrypted")
        done = self.run("node", self.programs / "cynork", "--config", self.work / "other.toml", "--url", f"https://{NAME}:{USER_PORT}", "login",
                        "--handle", "ada", "--password-stdin", stdin=f"{PASSWORD}\n", check=False)
        self.expect_refused("an authority that cynork does not trust", done)
        done = self.run("server", self.programs / "cynode", "serve", "--set", f"server.listen={SERVER}:12999", "--set",
                        f"storage.directory={self.work}/nowhere", check=False)
        self.expect_refused("a port without TLS", done, "nothing encrypts it")

    # the exchange of certificates under load

    def serves_present_certificate(self):
        """Whether a new connection gets the certificate that is in the file."""
        serial = ["openssl", "x509", "-noout", "-serial"]
        present = subprocess.run([*serial, "-in", self.work / "site.pem"], capture_output=True, check=True).stdout
        connect = ("openssl", "s_client", "-connect", f"{SERVER}:{USER_PORT}", "-servername", NAME)
        shown = self.run("node", *connect, check=False).stdout
        return subprocess.run(serial, input=shown.encode(), capture_output=True, check=False).stdout == present

    def exchange_under_load(self):
        """Replaces the certificate again and again while new connections ask. Returns the numbers of exchanges, requests and failures."""
        script = self.work / "load.py"
        script.write_text(
            "import http.client, ssl, sys, threading, time, json\n"
            "authority, name, port, stop = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]\n"
            "import os\n"
            "counts = {'requests': 0, 'failed': 0, 'serials': []}\n"
            "lock = threading.Lock()\n"
            "def ask(kept):\n"
            "    context = ssl.create_default_context(cafile=authority)\n"
            "    connection = None\n"
            "    while not os.path.exists(stop):\n"
            "        try:\n"
            "            if connection is None:\n"
            "                connection = http.client.HTTPSConnection(name, port, context=context, timeout=20)\n"
            "            connection.request('GET', '/healthz')\n"
            "            answer = connection.getresponse(); answer.read()\n"
            "            serial = connection.sock.getpeercert()['serialNumber'] if connection.sock else None\n"
            "            good = answer.status == 200\n"
            "        except Exception as error:\n"
            "            good, serial = False, None\n"
            "            print(repr(error), file=sys.stderr)\n"
            "        with lock:\n"
            "            counts['requests'] += 1; counts['failed'] += not good\n"
            "            if serial and serial not in counts['serials']: counts['serials'].append(serial)\n"
            "        if not kept or not good:\n"
            "            connection.close() if connection else None\n"
            "            connection = None\n"
            "threads = [threading.Thread(target=ask, args=(number < 2,)) for number in range(6)]\n"
            "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
            "print(json.dumps(counts))\n"
        )
        stop = self.work / "stop-load"
        load = subprocess.Popen(self.on("node", sys.executable, script, self.work / "site-ca.pem", NAME, USER_PORT, stop),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.children.append(load)
        exchanges = 3 if self.quick else 20
        for number in range(exchanges):
            self.issue(self.work / "site-ca.pem", self.work / "site-ca.key", "site", [NAME, SERVER])
            if number % 2 == 0:
                # The server looks every five seconds; the signal lets it look at once.
                os.kill(int((self.work / "data" / "lock").read_text()), signal.SIGHUP)
            self.wait_until("the certificate is exchanged", self.serves_present_certificate, 30)
            # Some connections of the load begin with this certificate.
            time.sleep(0.5)
        stop.touch()
        out, err = load.communicate(timeout=60)
        counts = json.loads(out.strip().splitlines()[-1])
        if len(counts["serials"]) < exchanges:
            self.problems.append(f"only {len(counts['serials'])} certificates were seen of {exchanges}")
        if counts["failed"]:
            self.problems.append(f"{counts['failed']} of {counts['requests']} requests failed: {err[-400:]}")
        return exchanges, counts["requests"], counts["failed"]

    # ACME

    def get_certificate_by_acme(self):
        """Lets pebble issue the certificate of the user-facing port. Returns how many it issued."""
        pebble = shutil.which("pebble")
        assert pebble is not None, "pebble is not installed: run scripts/install"
        certificate, key = self.issue(self.work / "site-ca.pem", self.work / "site-ca.key", "acme", [NAME, SERVER])
        config = {"pebble": {"listenAddress": f"{SERVER}:{ACME_PORT}", "managementListenAddress": f"{SERVER}:{ACME_ADMIN_PORT}",
                             "certificate": str(certificate), "privateKey": str(key), "httpPort": 5002, "tlsPort": USER_PORT,
                             "ocspResponderURL": "", "externalAccountBindingRequired": False}}
        (self.work / "pebble.json").write_text(json.dumps(config))
        self.start("server", "pebble.log", "env", "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0", pebble, "-config", self.work / "pebble.json")
        root = self.work / "pebble-root.pem"

        def fetch_root():
            done = self.run("server", "curl", "-s", "--cacert", self.work / "site-ca.pem", "-o", root,
                            f"https://{NAME}:{ACME_ADMIN_PORT}/roots/0", check=False)
            return done.returncode == 0

        self.wait_until("pebble answers", fetch_root, 20)
        up = self.start_installation("--set", f"tls.acme_domains={NAME}", "--set", f"tls.acme_directory_url=https://{NAME}:{ACME_PORT}/dir", "--set",
                                     f"tls.acme_root_file={self.work}/site-ca.pem")
        self.wait_until("the certificate comes by ACME", lambda: self.answers(root, "/healthz"))
        self.stop_installation(up)
        return 1

    # what was captured

    def search_capture(self, path):
        """The secrets that can be read in what was captured, and whether the control was found."""
        streams, others = read_streams(path)
        wanted = [PASSWORD, TASK_TEXT, FILE_TEXT, *MARKS]
        readable, control, captured = [], 0, 0
        for (_, source, _, target), data in streams.items():
            captured += len(data)
            text = bytes(data).lower()
            if CONTROL_PORT in (source, target):
                control += text.count(CONTROL_TEXT.encode())
                continue
            readable += [f"{mark} on ports {source} and {target}" for mark in wanted if mark.lower().encode() in text]
        rest = b"\n".join(others).lower()
        captured += len(rest)
        readable += [f"{mark} beside the connections" for mark in wanted if mark.lower().encode() in rest]
        if DATAGRAM_TEXT.encode() not in rest:
            self.problems.append("the capture does not show the datagram of the control")
        return captured, readable, control

    def end_capture(self, sniffer, path):
        """Ends the capture. A frame that was dropped was searched by nobody."""
        sniffer.terminate()
        sniffer.wait(timeout=60)
        counts = json.loads(pathlib.Path(f"{path}.counts").read_text())
        if counts["dropped"] or not counts["seen"]:
            self.problems.append(f"the capture is not complete: {counts}")
        return counts["dropped"]

    def send_control(self):
        """A plain request beside the installation: if the capture does not show it, the capture shows nothing."""
        child = self.start("server", "control.log", sys.executable, "-m", "http.server", CONTROL_PORT, "--bind", SERVER, "--directory", self.work / "empty")
        address = f"http://{SERVER}:{CONTROL_PORT}/{CONTROL_TEXT}"
        self.wait_until("the control answers", lambda: self.run("node", "curl", "-s", "-o", "/dev/null", address, check=False).returncode == 0, 20)
        child.terminate()
        script = "import socket, sys; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(sys.argv[1].encode(), (sys.argv[2], 9))"
        self.run("node", sys.executable, "-c", script, DATAGRAM_TEXT, SERVER)

    def import_repository(self):
        """Sends a repository with a planted file from the other host, in objects that are not compressed, and reads the file back."""
        repository = self.work / "repository"
        git = ["git", "-C", repository, "-c", "user.name=Ada", "-c", "user.email=ada@localhost", "-c", "core.compression=0"]
        repository.mkdir()
        (repository / "planted.txt").write_text(f"{FILE_TEXT}\n" * 200)
        for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "Plant a file"]):
            subprocess.run([*git, *words], check=True)
        subprocess.run([*git, "config", "core.compression", "0"], check=True)
        self.cynork("project", "import", repository, "--project", "web")

    def show(self):
        (self.work / "empty").mkdir()
        self.make_hosts()
        for name in ("site-ca", "foreign-ca"):
            self.make_authority(name)
        certificate, key = self.issue(self.work / "site-ca.pem", self.work / "site-ca.key", "site", [NAME, SERVER])
        capture = self.work / "capture"
        sniffer = self.start("node", "sniff.log", sys.executable, __file__, "sniff", "cyntls-b", capture)
        self.wait_until("the capture begins", capture.exists, 20)
        up = self.start_installation("--set", f"tls.certificate_file={certificate}", "--set", f"tls.key_file={key}")
        self.wait_until("the installation answers", lambda: self.answers(self.work / "site-ca.pem"))
        self.send_control()
        self.use_installation()
        self.import_repository()
        self.refuse_wrong_clients()
        exchanges, requests, failed = self.exchange_under_load()
        self.stop_installation(up)
        acme = self.get_certificate_by_acme()
        dropped = self.end_capture(sniffer, capture)
        captured, readable, control = self.search_capture(capture)
        if readable:
            self.problems.append(f"readable on the wire: {readable}")
        if control == 0:
            self.problems.append("the capture does not show the control")
        report = {"captured_bytes": captured, "frames_dropped": dropped, "secrets_in_clear": len(readable), "control_found": control, "refused": self.refused,
                  "exchanges": exchanges, "requests_under_load": requests, "failed_requests": failed, "acme_certificates": acme}
        for problem in self.problems:
            print(f"problem: {problem}", file=sys.stderr)
        print(json.dumps(report), flush=True)
        return 1 if self.problems else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    for flag in ("--programs", "--work", "--tag"):
        running.add_argument(flag, required=True)
    running.add_argument("--quick", action="store_true")
    sniffing = commands.add_parser("sniff")
    sniffing.add_argument("interface")
    sniffing.add_argument("file")
    options = parser.parse_args()
    if options.command == "sniff":
        return sniff(options.interface, options.file)
    proof = Proof(options)
    try:
        return proof.show()
    finally:
        proof.remove_hosts()


if __name__ == "__main__":
    sys.exit(main())
