#!/usr/bin/env python3
"""Attacks on environments, through `cynode up`: set-up scripts and install hooks of one project against its own layer once that is sealed, the
layers of other projects, the package cache, the package proxy and the node.

escape_environments.py CYNODE WORK

Runs in a mount namespace of its own: the machine's package sources are replaced by one on loopback, so that no registry is asked."""

import base64
import hashlib
import io
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tarfile
import uuid

from review_world import Installation, Listener, processes_with, run_program, until

HERE = pathlib.Path(__file__).resolve().parent
# Time in which an environment with a few small commands is set up, and then one whose set-up is ended for its disk usage.
SETUP_SECONDS = 180
# Disk that the set-up of the third project may use.
DISK_MIB = 64
# Names of hooks, and the command of a set-up that lets a package manager run each. Where the sandbox has no such program, what it would run is run.
HOOKS = {
    "setup": "python3 escape_hooks.py facts.json >results-setup.jsonl",
    "postinstall": "cd hooks/npm && if command -v npm; then npm install --offline --no-audit --no-fund --foreground-scripts; else sh hook.sh; fi",
    "setup_py": "cd hooks/python && python3 setup.py --version",
    "build_rs": "cd hooks/rust && if command -v cargo; then CARGO_TARGET_DIR=/tmp/target cargo build --offline; else ./build-script; fi",
}
HOOK_SCRIPT = "cd ../.. && python3 escape_hooks.py facts.json >results-{name}.jsonl"


class Failures(list):
    """What went wrong; each is said when it is found."""

    def check(self, holds, sentence):
        print(f"{'ok' if holds else 'WRONG':>6}  {sentence}", flush=True)
        if not holds:
            self.append(sentence)


# The machine's package sources.


def pack_tar(files, compression="gz"):
    """An archive of files: name to (mode, bytes or the target of a symlink)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=f"w:{compression}", format=tarfile.GNU_FORMAT) as archive:
        for name, (mode, content) in files.items():
            entry = tarfile.TarInfo(name)
            entry.mode, entry.uname, entry.gname = mode, "root", "root"
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()


def build_hostile_package(folder, marker):
    """A Debian package whose maintainer scripts leave a mark wherever they can, with a program that becomes root and a link to the host."""
    script = f"#!/bin/sh\nfor place in /work $HOME /tmp {marker.parent} /; do : >$place/{marker.name} 2>/dev/null; done\ntrue\n".encode()
    control = b"Package: hostile\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: attacks\n"
    controls = {"./control": (0o644, control)} | {f"./{name}": (0o755, script) for name in ("preinst", "postinst", "prerm", "postrm", "config")}
    content = {"./usr/bin/of-the-package": (0o6755, b"#!/bin/sh\necho here\n"), "./usr/share/hostile": (0o777, "/etc"), "./opt/hostile": (0o777, "/root")}
    parts = {"debian-binary": b"2.0\n", "control.tar.gz": pack_tar(controls), "data.tar.gz": pack_tar(content)}
    with open(folder / "hostile_1.0_all.deb", "wb") as file:
        file.write(b"!<arch>\n")
        for name, data in parts.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2))
    return folder / "hostile_1.0_all.deb"


def build_debian_archive(root, marker):
    """A signed archive with the hostile package, as a mirror has it; the bytes of its key."""
    pool, lists = root / "pool/main/h/hostile", root / "dists/stable"
    arch = run_program("dpkg", "--print-architecture").strip()
    index = lists / f"main/binary-{arch}"
    pool.mkdir(parents=True)
    index.mkdir(parents=True)
    build_hostile_package(pool, marker)
    packages = run_program("dpkg-scanpackages", "--multiversion", "pool", cwd=root).encode()
    (index / "Packages").write_bytes(packages)
    name = f"main/binary-{arch}/Packages"
    date = run_program("date", "-Ru").strip()
    release = f"Origin: proof\nSuite: stable\nCodename: stable\nDate: {date}\nArchitectures: {arch}\nComponents: main\n"
    release += f"SHA256:\n {hashlib.sha256(packages).hexdigest()} {len(packages)} {name}\n"
    (lists / "Release").write_text(release)
    home = root.parent / "gnupg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", home, "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
    run_program(*gpg, "--quick-generate-key", "proof@example.org", "rsa2048", "sign", "never")
    run_program(*gpg, "--clearsign", "--output", lists / "InRelease", lists / "Release")
    run_program(*gpg, "--detach-sign", "--armor", "--output", lists / "Release.gpg", lists / "Release")
    run_program(*gpg, "--output", root.parent / "key.gpg", "--export")
    run_program("gpgconf", "--homedir", home, "--kill", "all")
    return (root.parent / "key.gpg").read_bytes()


def replace_apt_sources(work, url, key):
    """The machine's package sources name one archive on loopback; only this mount namespace sees that."""
    apt = work / "apt"
    for name in ("sources.list.d", "trusted.gpg.d", "preferences.d", "apt.conf.d"):
        (apt / name).mkdir(parents=True)
    (apt / "sources.list").write_text(f"deb {url} stable main\n")
    (apt / "trusted.gpg.d/proof.gpg").write_bytes(key)
    run_program("chmod", "-R", "a+rX", apt)
    run_program("mount", "--bind", apt, "/etc/apt")


def answer_as_registry(archive, requests):
    """What the upstream says: an npm package, the Debian archive, and nothing else."""
    tarball = pack_tar({"package/package.json": (0o644, b'{"name": "shared", "version": "1.0.0"}')})
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()

    def answer(asked):
        requests.append(asked)
        path = asked.path.split("?")[0]
        if path == "/npm/shared":
            dist = {"tarball": f"http://{asked.headers['host']}/npm/shared/-/shared-1.0.0.tgz", "integrity": integrity}
            version = {"name": "shared", "version": "1.0.0", "dist": dist}
            return 200, {}, {"name": "shared", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        if path == "/npm/shared/-/shared-1.0.0.tgz":
            return 200, {"content-type": "application/octet-stream"}, tarball
        file = (archive / path.removeprefix("/debian/")).resolve()
        if path.startswith("/debian/") and file.is_relative_to(archive) and file.is_file():
            return 200, {"content-type": "application/octet-stream"}, file.read_bytes()
        return 404, {}, {"error": "not found"}

    return answer


# The installation.


class EnvironmentWorld:
    def __init__(self, cynode, work):
        self.work, self.failures = pathlib.Path(work), Failures()
        self.secret, self.mark = f"secret-{uuid.uuid4().hex}", f"proof-{uuid.uuid4().hex[:12]}"
        self.marker = self.work / "markers" / f"marker-{self.mark}"
        self.marker.parent.mkdir()
        self.marker.parent.chmod(0o777)
        archive = self.work / "archive"
        key = build_debian_archive(archive, self.marker)
        self.upstream_requests = []
        self.upstream = Listener(answer_as_registry(archive.resolve(), self.upstream_requests))
        self.outside = Listener(lambda asked: (200, {"content-type": "text/plain"}, self.secret.encode()))
        replace_apt_sources(self.work, f"{self.upstream.url}/debian", key)
        registries = {"npm": "npm/", "pypi": "pypi/simple/", "crates": "crates/"}
        upstreams = [f"{name}={self.upstream.url}/{path}" for name, path in registries.items()]
        self.installation = Installation(cynode, self.work / "installation", True, whole=True)
        self.installation.set_up(people=False)
        self.installation.end_process()
        (self.installation.data / "node/node.toml").write_text(f"package_upstreams = {json.dumps(upstreams)}\n")
        self.installation.start()
        self.state = self.installation.data / "node"
        self.layers = self.state / "environments"
        self.cynork = pathlib.Path(cynode).parent / "cynork"

    def stop(self):
        self.installation.stop()
        self.upstream.close()
        self.outside.close()

    def create_project(self, slug, files, environment):
        """A project with a repository and an accepted environment; its id and the reference to the version."""
        project = self.installation.create_project(slug)
        self.import_files(project, files)
        path = self.work / f"{slug}.toml"
        path.write_text(environment)
        self.run_cynork("project", "environment", "set", path, "--project", slug)
        number = project.split("_", 1)[1]
        versions = f"SELECT version, digest, state FROM project_environments WHERE project_id = '{number}' ORDER BY version DESC LIMIT 1"
        version = self.installation.sql(versions)[0]
        if version["state"] != "accepted":
            self.run_cynork("project", "environment", "accept", version["version"], "--project", slug)
        return project, {"version": version["version"], "digest": version["digest"]}

    def import_files(self, project, files):
        folder = self.work / self.installation.unique("files")
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            if path.suffix == "" or path.suffix == ".sh":
                path.chmod(0o755)
        self.installation.git(".", "init", "-q", "-b", "main", folder)
        self.installation.git(folder, "add", "--all", "--force")
        self.installation.git(folder, "commit", "-qm", "Files")
        self.installation.git(folder, "bundle", "create", "-q", ".git/import.bundle", "main")
        self.installation.expect(None, "PUT", f"/v1/projects/{project}/repository", (folder / ".git/import.bundle").read_bytes(),
                                 headers={"content-type": "application/x-git-bundle"})  # fmt: skip

    def run_cynork(self, *words):
        environment = os.environ | {"CYNORK_URL": self.installation.user_url, "CYNORK_TOKEN": self.installation.admin.token}
        return run_program(self.cynork, *words, env=environment, stdin=subprocess.DEVNULL)

    def run_commands(self, project, reference, *commands):
        """Commands of a job over the environment: (exit code, output) of each."""
        return self.installation.run_in_sandbox(*commands, project=project, seconds=SETUP_SECONDS, sandbox={"environment": reference})

    def layer_of(self, project):
        """The sealed layers of a project."""
        number = project.split("_", 1)[1]
        found = [path for path in self.layers.glob("*/*") if number in str(path).replace("prj_", "") and path.is_dir()]
        return [path for path in found if ".partial" not in path.name]

    def facts(self, victim_layer, own_layers=()):
        return {"secret": self.secret, "mark": self.mark, "victim_layer": str(victim_layer), "layers": str(self.layers), "jobs": str(self.state / "jobs"),
                "own_layers": [str(path) for path in own_layers], "package_cache": str(self.state / "packages"), "outside_port": self.outside.port,
                "host_marker": str(self.marker), "known_files": ["facts.json", "escape_hooks.py"]}  # fmt: skip


def snapshot(layer):
    """Everything about the directories of a layer: path to mode, owner, time and digest. The node's own record of it tells when it was used."""
    found = {}
    for folder, folders, files in os.walk(layer):
        for name in [*folders, *([] if folder == str(layer) else files)]:
            path = os.path.join(folder, name)
            meta = os.lstat(path)
            digest = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest() if stat.S_ISREG(meta.st_mode) else None
            found[path] = (meta.st_mode, meta.st_uid, meta.st_mtime_ns, digest)
    return found


def odd_entries(root):
    """What a layer must not have: devices, sockets, pipes, bits for another user, attributes of overlays, files that others own."""
    odd = []
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            meta = os.lstat(path)
            plain = any(kind(meta.st_mode) for kind in (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK))
            privileged = meta.st_mode & (stat.S_ISUID | stat.S_ISGID) or meta.st_uid != os.getuid()
            if not plain or privileged or any(".overlay." in name for name in os.listxattr(path, follow_symlinks=False)):
                odd.append(path)
    return odd


def hook_files():
    """A repository whose install hooks attack."""
    files = {"README.md": "as committed\n", "escape_hooks.py": (HERE / "escape_hooks.py").read_bytes(), "package-lock.json": "{}\n"}
    script = HOOK_SCRIPT.format(name="postinstall")
    files["hooks/npm/package.json"] = json.dumps({"name": "hook", "version": "1.0.0", "private": True, "scripts": {"postinstall": script}})
    files["hooks/npm/hook.sh"] = f"#!/bin/sh\n{script}\n"
    files["hooks/python/setup.py"] = f"import subprocess\n\nsubprocess.run(['sh', '-c', {HOOK_SCRIPT.format(name='setup_py')!r}], check=True)\nprint('1.0.0')\n"
    body = HOOK_SCRIPT.format(name="build_rs").replace('"', '\\"')
    build = f'fn main() {{\n    let done = std::process::Command::new("sh").args(["-c", "{body}"]).status();\n    assert!(done.unwrap().success());\n}}\n'
    files["hooks/rust/Cargo.toml"] = '[package]\nname = "hook"\nversion = "1.0.0"\nedition = "2021"\nbuild = "build.rs"\n'
    files["hooks/rust/build.rs"] = build
    files["hooks/rust/src/lib.rs"] = ""
    return files


def compile_build_script(work, source):
    """What cargo makes of a build script, for a sandbox that has no cargo; None where this machine has no compiler either."""
    if shutil.which("rustc") is None:
        return None
    (work / "build.rs").write_text(source)
    run_program("rustc", "--edition", "2021", "-C", "target-feature=+crt-static", "-o", work / "build-script", work / "build.rs", cwd=work)
    return (work / "build-script").read_bytes()


def read_outcomes(text, failures, where):
    """Lines of escape_hooks.py; their number."""
    outcomes = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    for outcome in outcomes:
        if outcome["outcome"] != "refused":
            failures.check(False, f"{where}: {outcome['attempt']} {outcome['outcome']}: {outcome['how']}")
    return len(outcomes)


def environment_text(setup, sources=(), system_packages=(), disk_mib=None):
    lines = [f"setup = {json.dumps(list(setup))}", f"package_sources = {json.dumps(list(sources))}", f"system_packages = {json.dumps(list(system_packages))}",
             'lock_files = ["package-lock.json"]', "", "[limits]"]  # fmt: skip
    return "\n".join([*lines, *([f"disk_mib = {disk_mib}"] if disk_mib else [])]) + "\n"


# The attacks.


def attack_from_hooks(world):
    """The whole course: a victim's layer, hooks that attack it, a job over what they left, and the victim again."""
    failures = world.failures
    plant = f"mkdir -p node_modules && echo {world.secret} >node_modules/planted && echo {world.secret} >$HOME/planted"
    victim, victim_version = world.create_project("victim", {"README.md": "# A page\n", "package-lock.json": "{}\n"}, environment_text([plant]))
    look = ["sh", "-c", "cat node_modules/planted $HOME/planted"]
    seen = world.run_commands(victim, victim_version, look)
    failures.check(seen == [(0, f"{world.secret}\n" * 2)], "the victim's job has what its set-up left")
    layers = world.layer_of(victim)
    failures.check(len(layers) == 1, f"the victim has one layer ({len(layers)})")
    victim_layer = layers[0]
    before = snapshot(victim_layer)

    files = hook_files()
    build_script = compile_build_script(world.work, files["hooks/rust/build.rs"])
    hooks = dict(HOOKS)
    if build_script is None:
        del hooks["build_rs"]
    else:
        files["hooks/rust/build-script"] = build_script
    files["facts.json"] = json.dumps(world.facts(victim_layer))
    setup = [*hooks.values(), "python3 escape_hooks.py facts.json --leave"]
    text = environment_text(setup, ["npm", "pypi", "crates", "debian"], ["hostile"])
    attacker, attacker_version = world.create_project("attacker", files, text)
    node = world.installation.program_pid("cynode-node")
    results = [["sh", "-c", f"cat results-{name}.jsonl"] for name in hooks]
    outputs = world.run_commands(attacker, attacker_version, *results)
    attempts = 0
    for name, (code, output) in zip(hooks, outputs, strict=True):
        count = read_outcomes(output, failures, name)
        failures.check(code == 0 and count > 20, f"{count} attempts from {name}")
        attempts += count
    own = world.layer_of(attacker)
    failures.check(len(own) == 1, f"the attacker has one layer ({len(own)})")
    sealed = snapshot(own[0])
    failures.check(odd_entries(own[0]) == [], f"the layer has nothing but files, directories and links: {odd_entries(own[0])[:5]}")
    failures.check(not (own[0] / "work/README.md").exists() and not (own[0] / "work/.git").exists(), "no tracked file and nothing of git is in the layer")
    failures.check(processes_with(world.mark) == [], "no process of a set-up is left")

    # A job over the layer: it may change what it sees, and nobody else sees that.
    facts = json.dumps(world.facts(victim_layer, [own[0], own[0] / "work"]))
    again = ["sh", "-c", 'printf %s "$1" >/tmp/facts.json && python3 escape_hooks.py /tmp/facts.json', "sh", facts]
    spoil = ["sh", "-c", "echo spoiled >results-setup.jsonl; rm -rf left hooks/npm; echo spoiled >>$HOME/spoiled; of-the-package"]
    outputs = world.run_commands(attacker, attacker_version, ["cat", "README.md"], again, spoil)
    failures.check(outputs[0] == (0, "as committed\n"), "a tracked file is as it was committed")
    count = read_outcomes(outputs[1][1], failures, "job")
    failures.check(count > 20, f"{count} attempts from a job over the layer")
    attempts += count
    failures.check(outputs[2] == (0, "here\n"), f"a program of the Debian package runs: {outputs[2]}")
    outputs = world.run_commands(attacker, attacker_version, ["sh", "-c", "head -c 1 results-setup.jsonl; ls -d left; ls $HOME/spoiled 2>/dev/null || echo clean"])
    failures.check(outputs[0][1] == "{left\nclean\n", f"the next job sees the layer as set-up left it: {outputs[0]}")
    failures.check(snapshot(own[0]) == sealed, "the attacker's layer is as it was sealed")
    failures.check(snapshot(victim_layer) == before, "the victim's layer is as it was sealed")
    failures.check(world.run_commands(victim, victim_version, look) == seen, "the victim's next job has what its set-up left")

    failures.check(world.outside.requests == [], f"no request reached a host outside: {[asked.path for asked in world.outside.requests][:5]}")
    # An `echo` of what the attacker chose would be in a method, a header or a body.
    leaks = [asked for asked in world.upstream_requests if asked.method not in ("GET", "HEAD") or asked.body or world.mark in str(asked.headers)]
    failures.check(leaks == [], f"of {len(world.upstream_requests)} requests to the registry none carries anything of the attacker: {leaks[:3]}")
    markers = [path for path in [world.marker, *own[0].rglob(world.marker.name)] if path.exists()]
    failures.check(markers == [], f"no maintainer script and no program that git was told to run has run: {markers[:3]}")
    failures.check(world.installation.program_pid("cynode-node") == node, "the node is the same process")
    controls = subprocess.run([sys.executable, str(HERE / "escape_hooks.py"), str(write_facts(world, victim_layer)), "--controls"],
                              capture_output=True, text=True, check=True).stdout  # fmt: skip
    outcomes = [json.loads(line) for line in controls.splitlines()]
    shown = [outcome for outcome in outcomes if outcome["outcome"] == "succeeded"]
    failures.check(len(shown) == len(outcomes), f"every control succeeds outside: {[o for o in outcomes if o not in shown]}")
    return attempts, len(shown)


def write_facts(world, victim_layer):
    path = world.work / "facts.json"
    path.write_text(json.dumps(world.facts(victim_layer)))
    return path


def attack_disk(world):
    """A set-up that fills the disk is ended, leaves no layer, and does not keep what it wrote."""
    fill = "i=0; while :; do i=$((i + 1)); head -c 4000000 /dev/zero >fill-$i; done"
    project, reference = world.create_project("filler", {"README.md": "x\n", "package-lock.json": "{}\n"}, environment_text([fill], disk_mib=DISK_MIB))
    installation = world.installation
    spec = {"worker": {"kind": "command", "steps": [{"argv": ["true"]}]}, "sandbox": {"environment": reference}}
    task = installation.create_jobs(["a"], project, work=spec)
    job = until(lambda: (found := installation.job_results(task)["a"])["result"] and found, SETUP_SECONDS, 0.2, "the filling set-up did not end")
    installation.api("POST", f"/v1/tasks/{task}/cancel", {})
    stop = job["result"].get("stop_reason")
    world.failures.check(job["state"] != "succeeded" and stop == "environment", f"a set-up that fills the disk fails the job: {job['state']}, {stop}")
    number = project.split("_", 1)[1]

    def remains():
        found = [path for path in world.layers.glob("**/*") if number in str(path).replace("prj_", "") and path.is_file()]
        return sum(path.stat().st_size for path in found)

    until(lambda: remains() < 1 << 20, 60, 0.5, lambda: f"{remains()} bytes of the filling set-up are left")
    world.failures.check(world.layer_of(project) == [], "it has no layer")


def main():
    cynode, work = sys.argv[1:3]
    world = EnvironmentWorld(cynode, work)
    try:
        attempts, shown = attack_from_hooks(world)
        attack_disk(world)
    finally:
        world.stop()
    failed = len(world.failures)
    print(f"{attempts} attempts refused inside, {shown} of them shown to succeed outside, {failed} findings")
    return 1 if failed or attempts < 80 else 0


if __name__ == "__main__":
    sys.exit(main())
