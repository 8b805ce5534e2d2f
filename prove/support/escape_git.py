#!/usr/bin/env python3
"""Attempts of hostile repositories to make git run a program, read or write outside, or leave its limits. See prove/security/escape.

    escape_git.py CYNODE WORK [--quick]

Code in a sandbox and a person who imports a repository do to git's files what they like; the programs of a whole installation then use git on
them. A payload that runs outside of a sandbox leaves a mark in a directory that everybody may write. Each kind of payload is shown to leave
its mark with a plain git.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
import review_world  # noqa: E402
from review_world import descendants, processes_with, run_program  # noqa: E402

HOOKS = (
    "applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit prepare-commit-msg commit-msg post-commit pre-rebase "
    "post-checkout post-merge pre-push pre-receive update proc-receive post-receive post-update reference-transaction push-to-checkout "
    "pre-auto-gc post-rewrite fsmonitor-watchman post-index-change"
).split()
# Settings whose value is a command that git runs.
COMMANDS = (
    "core.fsmonitor core.sshCommand core.gitProxy core.askPass core.editor core.pager sequence.editor credential.helper diff.external "
    "gpg.program gpg.ssh.program uploadpack.packObjectsHook filter.evil.clean filter.evil.smudge filter.evil.process diff.evil.textconv "
    "diff.evil.command merge.evil.driver interactive.diffFilter core.alternateRefsCommand receive.procReceiveRefs"
).split()
SETTINGS = {"commit.gpgSign": "true", "tag.gpgSign": "true", "core.hooksPath": "/work/hooks", "core.attributesFile": "/work/.gitattributes"}
ATTRIBUTES = "* filter=evil diff=evil merge=evil\n"
# Limits that every git on the host has; none of them may be unlimited.
LIMITS = ("Max address space", "Max cpu time", "Max file size")


class Attempts:
    """What was tried, what came of it, and whether a plain git falls for the same."""

    def __init__(self, marks):
        self.marks, self.rows, self.outside = marks, 0, 0
        self.bad = []

    def payload(self, name):
        """A shell line that shows that it ran outside of a sandbox."""
        return f"touch {self.marks}/{name}"

    def marked(self):
        return sorted(path.name for path in self.marks.iterdir())

    def clear(self):
        for path in self.marks.iterdir():
            path.unlink()

    def judge(self, name, holds, said=""):
        marks = self.marked()
        good = holds and not marks
        self.rows += 1
        if not good:
            self.bad.append(name)
        print(f"{'ok  ' if good else 'FAIL'} {name}{f' -> {said}' if said else ''}{f'; marks: {marks}' if marks else ''}", flush=True)
        self.clear()

    def control(self, name, act):
        """The same with a plain git must leave a mark, or the attempt shows nothing."""
        act()
        if self.marked():
            self.outside += 1
        else:
            self.bad.append(name)
            print(f"FAIL {name}: it does not succeed with a plain git either", flush=True)
        self.clear()


class LimitWatch:
    """Looks at every git that the installation starts on the host, in its own namespaces: its limits, and its user below the node."""

    def __init__(self, world):
        self.root, self.node = world.process.pid, world.program_pid("cynode-node")
        self.host = os.readlink("/proc/self/ns/pid")
        self.over, self.seen, self.bad = False, set(), {}
        self.thread = threading.Thread(target=self.sample, daemon=True)

    def sample(self):
        while not self.over:
            below_node = descendants(self.node)
            for pid, words in descendants(self.root).items():
                # A process may end between two looks.
                with contextlib.suppress(OSError, IndexError):
                    if words[0].rsplit("/", 1)[-1] == "git" and os.readlink(f"/proc/{pid}/ns/pid") == self.host:
                        self.look_at(pid, words, pid in below_node)
            time.sleep(0.002)

    def look_at(self, pid, words, of_node):
        limits = open(f"/proc/{pid}/limits").read().splitlines()
        name = " ".join(words)[:100]
        free = [line for line in limits if line.startswith(LIMITS) and line.split()[3] == "unlimited"]
        user = next(line for line in open(f"/proc/{pid}/status") if line.startswith("Uid:")).split()[1]
        # What was just forked is still the program that forked it.
        if open(f"/proc/{pid}/comm").read().strip() != "git":
            return
        self.seen.add(pid)
        if free:
            self.bad[name] = free
        elif of_node and user == "0":
            self.bad[name] = "runs as root"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.thread.join()


def plain_git(folder, *words, check=False):
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.com", *words]
    return subprocess.run(command, capture_output=True, text=True, check=check, env=os.environ | {"GIT_TERMINAL_PROMPT": "0"})


def new_repository(folder):
    folder.mkdir(parents=True)
    plain_git(folder, "init", "-q", "-b", "main", check=True)
    (folder / "README.md").write_text("# A page\n")
    plain_git(folder, "add", ".", check=True)
    plain_git(folder, "commit", "-qm", "A page", check=True)
    return folder


def write_hooks(folder, line):
    folder.mkdir(exist_ok=True)
    for hook in HOOKS:
        (folder / hook).write_text(f"#!/bin/sh\n{line}\n")
        (folder / hook).chmod(0o755)


def tamper_script(parts, attempts, name):
    """A shell script that tampers with the .git of the working copy in the sandbox and leaves a change to be taken."""
    line = attempts.payload(name)
    lines = ["set -e", "cd /work", "echo changed >> README.md"]
    if "hooks" in parts:
        lines += ["mkdir -p .git/hooks hooks"]
        lines += [f"printf '#!/bin/sh\\n{line}\\n' > {folder}/{hook} && chmod 755 {folder}/{hook}" for folder in (".git/hooks", "hooks") for hook in HOOKS]
    if "settings" in parts:
        lines += [f"git config {key} '{line}'" for key in COMMANDS]
        lines += [f"git config {key} '{value}'" for key, value in SETTINGS.items()]
        lines += [f"printf '{ATTRIBUTES}' > .gitattributes", "mkdir -p .git/info", f"printf '{ATTRIBUTES}' > .git/info/attributes"]
    if "include" in parts:
        lines += [f"printf '[core]\\n\\tfsmonitor = {line}\\n' > included", "git config include.path /work/included"]
    return "\n".join(lines)


def run_tampering(world, attempts, name, script, holds=None):
    """A job whose code does that, and the export of what it leaves by the node."""
    project = world.create_project(world.unique("git"))
    world.import_repository(project)
    ((code, said),) = world.run_in_sandbox(["sh", "-c", script], project=project)
    result = world.last_result
    told = f"{result.get('stop_reason')}, {'a commit' if result.get('commit') else 'no commit'}"
    good = code == 0 and (holds is None or holds(result))
    attempts.judge(name, good, told if code == 0 else f"the script failed: {said[-300:]}")
    return project, result


def tamper_with_working_copies(world, attempts, scratch):
    """Hooks, settings and attributes in the .git of a working copy."""
    for name, parts in (("hooks", ["hooks"]), ("settings", ["settings"]), ("included-settings", ["include"]), ("hooks-and-settings", ["hooks", "settings"])):
        run_tampering(world, attempts, f"{name}-in-the-working-copy", tamper_script(parts, attempts, name))

    def with_hooks():
        folder = new_repository(scratch / "hooks")
        write_hooks(folder / ".git/hooks", attempts.payload("hooks"))
        plain_git(folder, "commit", "-q", "--allow-empty", "-m", "x")

    def with_settings():
        folder = new_repository(scratch / "settings")
        plain_git(folder, "config", "core.fsmonitor", attempts.payload("settings"))
        plain_git(folder, "status")

    def with_include():
        folder = new_repository(scratch / "include")
        (folder / "included").write_text(f"[core]\n\tfsmonitor = {attempts.payload('include')}\n")
        plain_git(folder, "config", "include.path", str(folder / "included"))
        plain_git(folder, "status")

    for name, act in (("hooks", with_hooks), ("settings", with_settings), ("included settings", with_include)):
        attempts.control(name, act)


def repository_place(world, project):
    number = project.split("_", 1)[1]
    return next(path.parent for path in world.storage.glob("repositories/**/HEAD") if number in str(path).replace("prj_", ""))


def lead_git_elsewhere(world, attempts, scratch):
    """A .git that leads to another repository: of another project, of the node, or one that code has made."""
    other = world.create_project(world.unique("other"))
    folder, _ = world.import_repository(other, {"secret.txt": "secret of another project\n"})
    blob = world.git(folder, "rev-parse", "HEAD:secret.txt")
    before = world.repository_refs(other)
    place = repository_place(world, other)

    def kept(_):
        return world.repository_refs(other) == before

    line = attempts.payload("gitfile")
    script = f"cd /work && mv .git /work/evil && git --git-dir=/work/evil config core.fsmonitor '{line}' && echo 'gitdir: /work/evil' > .git && echo x >> README.md"
    run_tampering(world, attempts, "gitfile-to-an-own-repository", script, kept)
    for name, target in (("symlink-to-another-project", place), ("symlink-to-the-root", "/"), ("symlink-to-the-storage", world.storage)):
        run_tampering(world, attempts, name, f"cd /work && mv .git evil && ln -s {target} .git && echo x >> README.md", kept)
    for name, target in (("gitfile-to-another-project", place), ("gitfile-to-nowhere", "/nowhere")):
        run_tampering(world, attempts, name, f"cd /work && mv .git evil && echo 'gitdir: {target}' > .git && echo x >> README.md", kept)
    for name, file in (("commondir", "commondir"), ("worktree", "gitdir")):
        run_tampering(world, attempts, f"{name}-of-another-project", f"cd /work && echo {place} > .git/{file} && echo x >> README.md", kept)
    run_tampering(world, attempts, "work-tree-of-the-host", "cd /work && git config core.worktree / && echo x >> README.md", kept)
    run_tampering(world, attempts, "alternates-of-another-project", f"cd /work && echo {place}/objects > .git/objects/info/alternates && echo x >> README.md", kept)
    # A commit that names an object of another project, which only the storage has.
    script = (
        "cd /work && git config user.name a && git config user.email a@example.com && "
        f"tree=$(printf '100644 blob {blob}\\tstolen.txt\\n' | git mktree --missing) && git reset -q --soft $(git commit-tree $tree -p HEAD -m x) && echo x >> README.md"
    )
    project, result = run_tampering(world, attempts, "commit-of-an-object-of-another-project", script, kept)
    stolen = plain_git(repository_place(world, project), "cat-file", "-p", blob).stdout
    attempts.judge("object-of-another-project-does-not-arrive", "secret" not in stolen, result.get("summary", "")[:120])
    refs = "cd /work && mkdir -p .git/refs/heads && git rev-parse HEAD > '.git/refs/heads/--upload-pack=touch' && echo 'ref: ../../../../escape' > .git/HEAD && echo x >> README.md"
    run_tampering(world, attempts, "refs-with-hostile-names", refs, kept)
    replace = "cd /work && mkdir -p .git/refs/replace && git rev-parse HEAD > .git/refs/replace/$(git rev-parse HEAD:README.md) && echo 0 > .git/shallow && echo x >> README.md"
    run_tampering(world, attempts, "replaced-and-shallow-history", replace, kept)

    def with_gitfile():
        folder = new_repository(scratch / "gitfile")
        (folder / ".git").rename(scratch / "elsewhere")
        (folder / ".git").write_text(f"gitdir: {scratch / 'elsewhere'}\n")
        plain_git(folder, "config", "core.fsmonitor", attempts.payload("gitfile"))
        plain_git(folder, "status")

    attempts.control("a .git that leads elsewhere", with_gitfile)


def tree_bundle(folder, entries):
    """A bundle whose tree has these raw entries: (mode, name, object)."""
    raw = b"".join(f"{mode} {name}".encode() + b"\0" + bytes.fromhex(object_id) for mode, name, object_id in entries)
    tree = subprocess.run(["git", "-C", folder, "hash-object", "-t", "tree", "-w", "--literally", "--stdin"], input=raw, capture_output=True, check=True)
    commit = plain_git(folder, "commit-tree", tree.stdout.decode().strip(), "-m", "x", check=True).stdout.strip()
    plain_git(folder, "update-ref", "refs/heads/main", commit, check=True)
    plain_git(folder, "bundle", "create", "-q", ".git/hostile.bundle", "main", check=True)
    return (folder / ".git/hostile.bundle").read_bytes()


def write_blob(folder, text):
    done = subprocess.run(["git", "-C", folder, "hash-object", "-w", "--stdin"], input=text.encode(), capture_output=True, check=True)
    return done.stdout.decode().strip()


def import_hostile_trees(world, attempts, scratch):
    """Trees whose names or links lead out of the working copy, and modules that name commands; a job then checks each of them out."""
    folder = new_repository(scratch / "trees")
    line = attempts.payload("tree")
    hook = write_blob(folder, f"#!/bin/sh\n{line}\n")
    plain = write_blob(folder, "plain\n")
    link = write_blob(folder, str(attempts.marks))
    modules = write_blob(folder, f'[submodule "m"]\n\tpath = m\n\turl = ext::sh -c "{line}"\n\tupdate = !{line}\n')
    option = write_blob(folder, '[submodule "m"]\n\tpath = m\n\turl = -u./payload\n')
    inner = subprocess.run(["git", "-C", folder, "mktree"], input=f"100755 blob {hook}\tpost-checkout\n".encode(), capture_output=True, check=True)
    hooks = inner.stdout.decode().strip()
    below = subprocess.run(["git", "-C", folder, "mktree"], input=f"040000 tree {hooks}\thooks\n".encode(), capture_output=True, check=True)
    below = below.stdout.decode().strip()
    head = plain_git(folder, "rev-parse", "HEAD").stdout.strip()
    trees = {
        "tree-with-dot-git": [("40000", ".git", below)],
        "tree-with-dot-git-in-capitals": [("40000", ".GIT", below)],
        "tree-with-the-short-name-of-dot-git": [("40000", "git~1", below)],
        "tree-with-an-ignored-character": [("40000", ".g\u200cit", below)],
        "tree-that-climbs": [("100644", "..", plain)],
        "tree-with-a-slash": [("100644", "../climbed", plain)],
        "tree-with-an-absolute-name": [("100644", f"{attempts.marks}/absolute", plain)],
        "link-and-a-file-behind-it": [("120000", "out", link), ("40000", "out", below)],
        "link-out-of-the-working-copy": [("120000", "out", link)],
        "module-with-a-command": [("100644", ".gitmodules", modules), ("160000", "m", head)],
        "module-with-an-option": [("100644", ".gitmodules", option), ("160000", "m", head)],
        "attributes-with-a-filter": [("100644", ".gitattributes", write_blob(folder, ATTRIBUTES))],
    }
    for name, entries in trees.items():
        project = world.create_project(world.unique("tree"))
        headers = {"content-type": "application/x-git-bundle"}
        status, answer, _ = world.api("PUT", f"/v1/projects/{project}/repository", tree_bundle(folder, entries), headers=headers)
        said = f"import {status}"
        if status < 300:
            ((_, output),) = world.run_in_sandbox(["sh", "-c", "ls -la /work; echo x > /work/written; echo y > /work/out/escaped"], project=project)
            said += f", a job of it {world.last_result.get('stop_reason')}"
            attempts.judge(name, "hooks/post-checkout" not in output, said)
        else:
            attempts.judge(name, status in (400, 409, 422), f"{said} {answer.get('detail', '')[:120]}")

    def with_module():
        clone = scratch / "module"
        new_repository(clone)
        plain_git(clone, "config", "submodule.m.url", f"ext::sh -c {line.replace(' ', '% ')}")
        (clone / ".gitmodules").write_text('[submodule "m"]\n\tpath = m\n\turl = x\n')
        plain_git(clone, "update-index", "--add", "--cacheinfo", f"160000,{head},m")
        plain_git(clone, "-c", "protocol.ext.allow=always", "submodule", "update", "--init")

    attempts.control("a module with a command", with_module)


def import_hostile_refs(world, attempts, scratch):
    """Bundles whose refs are named like options and paths."""
    folder = new_repository(scratch / "refs")
    head = plain_git(folder, "rev-parse", "HEAD").stdout.strip()
    plain_git(folder, "bundle", "create", "-q", ".git/plain.bundle", "main", check=True)
    data = (folder / ".git/plain.bundle").read_bytes()
    names = ["--upload-pack=touch", "refs/heads/../../hooks/post-update", "refs/heads/-u", "refs/heads/a..b", "HEAD", "refs/cynode/jobs/x", "refs/heads/x.lock"]
    for name in names:
        hostile = data.replace(f"{head} refs/heads/main\n".encode(), f"{head} refs/heads/main\n{head} {name}\n".encode())
        project = world.create_project(world.unique("refs"))
        status, answer, _ = world.api("PUT", f"/v1/projects/{project}/repository", hostile, headers={"content-type": "application/x-git-bundle"})
        refs = set(world.repository_refs(project)) if status < 300 else set()
        said = f"import {status}, refs {sorted(refs)}" if status < 300 else f"import {status} {answer.get('detail', '')[:120]}"
        attempts.judge(f"ref-{name}", refs <= {"refs/heads/main"}, said)


def name_hostile_remotes(world, attempts):
    """Addresses of forges that git would take for a command or a file."""
    for url in (f"ext::sh -c {attempts.payload('remote')}", "file:///etc", "/etc", "-u/bin/sh", f"ssh://-oProxyCommand={attempts.payload('remote')}/x", "fd::7/x"):
        project = world.create_project(world.unique("remote"))
        body = {"forge": "gitea", "url": url, "repository": "a/b", "default_branch": "main", "credential": "x"}
        status, _, _ = world.api("PUT", f"/v1/projects/{project}/remote", body)
        attempts.judge(f"remote-{url.split(':')[0][:20]}", status >= 400, str(status))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cynode")
    parser.add_argument("work")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = pathlib.Path(options.work)
    marks, scratch = work / "marks", work / "scratch"
    for folder in (marks, scratch):
        folder.mkdir(parents=True)
    work.chmod(0o755)
    marks.chmod(0o1777)
    attempts = Attempts(marks)
    world = review_world.World(options.cynode, work / "world", options.quick)
    try:
        review_world.until(lambda: [node for node in world.expect(200, "GET", "/v1/nodes")["items"] if node["started"]], 30)
        with LimitWatch(world) as watch:
            tamper_with_working_copies(world, attempts, scratch)
            lead_git_elsewhere(world, attempts, scratch)
            import_hostile_trees(world, attempts, scratch)
            import_hostile_refs(world, attempts, scratch)
            name_hostile_remotes(world, attempts)
        attempts.judge("every-git-of-the-host-has-limits", bool(watch.seen) and not watch.bad, f"{len(watch.seen)} seen; {watch.bad}" if watch.bad else f"{len(watch.seen)} seen")
        left = [pid for pid in processes_with(str(marks)) if pid != os.getpid() and "escape_git" not in run_program("cat", f"/proc/{pid}/cmdline")]
        attempts.judge("no-process-is-left", not left, str(left) if left else "")
    finally:
        world.stop()
    print(f"{attempts.rows} attempts with git refused, {attempts.outside} kinds of them shown to succeed with a plain git")
    if attempts.bad:
        print(f"FAILED: {', '.join(attempts.bad)}")
    sys.exit(1 if attempts.bad else 0)


if __name__ == "__main__":
    main()
