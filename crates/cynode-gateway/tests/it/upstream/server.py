"""A server of either era over standard input and output, whose tools look around and misbehave."""

import json
import os
import signal
import socket
import sys
import time

era = sys.argv[1]
cancelled = []


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def read_file(path):
    with open(path) as file:
        return file.read()


def write_file(path):
    with open(path, "w") as file:
        file.write("x")


def write_link(path):
    link = os.environ["HOME"] + "/link"
    os.symlink(path, link)
    write_file(link)


def attempt(action, *arguments):
    try:
        return str(action(*arguments))
    except OSError as error:
        return type(error).__name__


def status(field):
    return [line.split()[1] for line in open("/proc/self/status") if line.startswith(field + ":")][0]


def read_given(path):
    """What of a folder that was given can be read."""
    return {name: attempt(read_file, os.path.join(path, name)) for name in sorted(os.listdir(path))}


def connect(family, address):
    with socket.socket(family) as s:
        s.settimeout(2)
        s.connect(address)
    return "connected"


def fork_without_end():
    children = []
    try:
        for _ in range(2000):
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            children.append(child)
        return [len(children), "never"]
    except OSError as error:
        return [len(children), type(error).__name__]
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def allocate_without_end():
    kept = [bytearray(os.urandom(1 << 20) * 16) for _ in range(64)]
    return f"{len(kept)} pieces of memory"


def fill(path):
    """How many MiB fit."""
    written = 0
    try:
        with open(path, "wb", buffering=0) as file:
            while written < 1024:
                if file.write(b"x" * (1 << 20)) < 1 << 20:
                    break
                written += 1
    except OSError:
        pass
    os.unlink(path)
    return written


def tunnel(target):
    """What is at the other end of the proxy, or its refusal."""
    with socket.create_connection(("127.0.0.1", 4003), 5) as s:
        s.sendall(f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n".encode())
        head = s.recv(4096).split(b"\r\n")[0].decode()
        if " 200 " not in head:
            return head
        s.sendall(b"ping")
        return s.recv(100).decode()


def linger():
    """Leaves a process behind that has nothing to do with us any more."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    return "left"


def call(id, params):
    name, arguments = params["name"], params.get("arguments", {})
    meta = params.get("_meta", {})
    if name == "echo":
        return json.dumps(arguments, sort_keys=True)
    if name == "environment":
        return json.dumps(dict(os.environ), sort_keys=True)
    if name == "look":
        return json.dumps(
            {
                "uid": os.getuid(),
                "caps": status("CapEff"),
                "seccomp": status("Seccomp"),
                "no_new_privileges": status("NoNewPrivs"),
                "users": [line.split(":")[0] for line in read_file("/etc/passwd").splitlines()],
                "shadow": attempt(read_file, "/etc/shadow"),
                "private_keys": attempt(os.listdir, "/etc/ssl/private"),
                "write_usr": attempt(write_file, "/usr/x"),
                "write_root": attempt(write_file, "/x"),
                "write_by_link": attempt(write_link, "/usr/x"),
                "write_by_climbing": attempt(write_file, os.environ["HOME"] + "/../../usr/x"),
                "write_home": attempt(write_file, os.environ["HOME"] + "/x"),
                "network": attempt(socket.create_connection, ("127.0.0.1", int(arguments["port"])), 2)[:20],
                "processes": len([entry for entry in os.listdir("/proc") if entry.isdigit()]),
            }
        )
    if name == "read_given":
        return json.dumps(read_given(arguments["path"]))
    if name == "connect":
        return json.dumps(
            [
                attempt(connect, socket.AF_INET, ("127.0.0.1", arguments["port"])),
                attempt(connect, socket.AF_INET6, ("::ffff:127.0.0.1", arguments["port"])),
                attempt(connect, socket.AF_UNIX, "\0" + arguments["abstract"]),
                attempt(socket.getaddrinfo, arguments["host"], 443)[:9],
            ]
        )
    if name == "fork_without_end":
        return json.dumps(fork_without_end())
    if name == "allocate_without_end":
        return allocate_without_end()
    if name == "fill":
        return json.dumps([fill("/tmp/fill"), fill("/dev/shm/fill")])
    if name == "tunnel":
        return json.dumps([attempt(tunnel, target) for target in arguments["targets"]])
    if name == "hang":
        time.sleep(600)
    if name == "linger":
        return linger()
    if name == "crash":
        os._exit(3)
    if name == "huge":
        return "x" * (9 * 1024 * 1024)
    if name == "noise":
        print("Listening on standard input!", flush=True)
        print("what a mess", file=sys.stderr, flush=True)
        return "quiet now"
    if name == "flood":
        for _ in range(20000):
            sys.stderr.write("complaint " * 20 + "\n")
        return "flooded"
    if name == "progress":
        token = meta["progressToken"]
        for step in (1, 2):
            send({"method": "notifications/progress", "params": {"progressToken": token, "progress": step}})
        return "done"
    if name == "ask":
        send({"id": "s1", "method": "sampling/createMessage", "params": {}})
        return json.dumps(json.loads(sys.stdin.readline())["error"]["code"])
    if name == "later":
        # Answered only when the next message has been read, which is the cancellation.
        message = json.loads(sys.stdin.readline())
        cancelled.append([message["method"], message["params"]["requestId"] == id])
        return None
    if name == "cancelled":
        return json.dumps(cancelled)
    raise KeyError(name)


def handle(message):
    method, params = message.get("method"), message.get("params", {})
    id = message.get("id")
    if id is None:
        return
    modern = "io.modelcontextprotocol/protocolVersion" in params.get("_meta", {})
    if method == "server/discover" and era == "modern":
        send({"id": id, "result": {"supportedVersions": ["2026-07-28"]}})
    elif method == "server/discover" and era == "deaf":
        pass
    elif method == "server/discover" and era == "fragile":
        sys.exit("what is this?")
    elif method == "initialize" and era != "modern":
        send({"id": id, "result": {"protocolVersion": "2025-11-25"}})
    elif modern != (era == "modern"):
        send({"id": id, "error": {"code": -32601, "message": "Method not found"}})
    elif method == "tools/list":
        send({"id": id, "result": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}})
    elif method == "tools/call":
        text = call(id, params)
        if text is not None:
            send({"id": id, "result": {"content": [{"type": "text", "text": text}]}})


for line in sys.stdin:
    handle(json.loads(line))
