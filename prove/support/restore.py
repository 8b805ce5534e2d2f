"""The proof `restore`: `restore.py CYNODE WORK [--quick]`. Kills and deletes an installation under load and brings it back from its backup."""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.parse

from forge_double import Forge
from review_world import PASSWORD, Installation, Listener, run_program, until

LIMITS = {
    "CYNODE_SERVER_REQUESTS_PER_SECOND": "1000000",
    "CYNODE_SERVER_REQUEST_BURST": "1000000",
    "CYNODE_SERVER_POLICY_CHANGES_PER_MINUTE": "1000000",
}
WORDS = "Add an option --max LENGTH to slug: no name is longer, and names are cut between words."
# What a task reaches once and by itself.
MILESTONES = ("task.completed", "task.failed", "pull_request.opened")
# How long a task of the sample may take when several run at once on two cores.
TASK_TIMEOUT_SECONDS = 600


def figure(name, value, unit):
    print(f"figure: {name} {value} {unit}", flush=True)


class Load:
    """Calls of people and agents, one after the other in a few threads. What was answered, and when, is written down."""

    def __init__(self, world):
        self.world, self.stopped, self.threads = world, threading.Event(), []
        self.project = world.create_project("load")
        self.clone, _ = world.import_repository(self.project, {"README.md": "# Load\n"})
        self.task = world.create_task(self.project)
        self.agent = world.agent_token(self.project, task=self.task)
        # (moment of the answer, what): kept forever.
        self.tasks, self.artifacts, self.calls, self.pushes = [], [], [], []

    def start(self):
        for work in (self.create_tasks, self.store_artifacts, self.call_tools, self.push_commits):
            thread = threading.Thread(target=self.repeat, args=(work,), daemon=True)
            thread.start()
            self.threads.append(thread)

    def repeat(self, work):
        number = 0
        while not self.stopped.is_set():
            number += 1
            try:
                work(number)
            except (OSError, AssertionError):
                # The installation was killed: what was not answered does not count.
                time.sleep(0.05)
            time.sleep(0.1)

    def create_tasks(self, number):
        created = self.world.expect(201, "POST", "/v1/tasks", {"project_id": self.project, "name": f"load-{number}", "description": "Wait."})
        self.tasks.append((time.monotonic(), created["id"]))
        # Nobody does the work of hundreds here: it would keep the manager from the tasks that are to end.
        self.world.expect(None, "POST", f"/v1/tasks/{created['id']}/cancel")

    def store_artifacts(self, number):
        text = f"artifact {number} {'x' * (number % 5000)}"
        arguments = {"task_id": self.task, "name": f"artifact-{number}.txt", "media_type": "text/plain", "text": text}
        outcome, answer = self.world.mcp_call(self.agent, "artifact.put", arguments)
        assert outcome == "result", answer
        self.artifacts.append((time.monotonic(), hashlib.sha256(text.encode()).hexdigest()))

    def call_tools(self, _number):
        outcome, answer = self.world.mcp_call(self.agent, "artifact.list", {"task_id": self.task})
        assert outcome == "result", answer
        self.calls.append(time.monotonic())

    def push_commits(self, number):
        self.world.git(self.clone, "commit", "-q", "--allow-empty", "-m", f"Push {number}")
        self.world.git(self.clone, "bundle", "create", "-q", ".git/push.bundle", "main")
        bundle = (self.clone / ".git/push.bundle").read_bytes()
        path = f"/v1/projects/{self.project}/repository"
        self.world.expect(None, "PUT", path, bundle, headers={"content-type": "application/x-git-bundle"})
        self.pushes.append((time.monotonic(), self.world.git(self.clone, "rev-parse", "main")))

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join(60)


class Inbox(Listener):
    """Receives notifications; remembers each."""

    def ids(self):
        return [asked.headers.get("webhook-id") for asked in self.requests]

    def milestones(self):
        """What tasks reach once, by the task: (kind, task) of each notification about it."""
        told = [json.loads(asked.body) for asked in self.requests]
        return [(one["type"], task) for one in told if one["type"] in MILESTONES and (task := find_task(one))]


def find_task(told):
    """The id of the task that a notification is about."""
    found = re.search(r"tsk_[0-9a-f]{32}", json.dumps(told))
    return found and found.group()


def cynode(world, *words, **more):
    return subprocess.run([str(world.cynode), *map(str, words)], capture_output=True, text=True, check=False, env=world.environment, **more)


class Sample:
    """A project with a script in place of a model, whose pull requests go to a forge outside, and tasks that run to theirs by themselves."""

    def __init__(self, world, home):
        home.mkdir()
        self.home, self.world = home, world
        self.environment = world.environment | {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
        self.run("login", world.user_url, "--handle", "admin", "--password-stdin", input=PASSWORD + "\n")
        self.project = json.loads(self.run("--json", "sample", str(home / "slug")))["project_id"]
        # It is of no installation, and outlives this one.
        self.forge = Forge(home / "forge", home / "slug")
        world.expect(None, "PUT", f"/v1/projects/{self.project}/remote", self.forge.connection())

    def run(self, *words, **more):
        cynork = [str(self.world.cynode.parent / "cynork"), "--url", self.world.user_url]
        return run_program(*cynork, *words, env=self.environment, **more)

    def start_tasks(self, count):
        for number in range(count):
            self.run("run", WORDS, "--check", "sh tests/max_test.sh", "--budget", "0.50", "--name", f"sample-{number}", "--project", self.project,
                "--no-import", "--force", "--detach", "--yes", cwd=self.home / "slug")  # fmt: skip


def running_samples(world):
    """Names of the tasks of the sample that are under way."""
    return {row["name"] for row in world.sql("SELECT name FROM tasks WHERE name LIKE 'sample-%' AND state = 'running'")}


class Interruption:
    """Stops the runner when a pull request was made outside that the backup does not know: others of the tasks are still under way when everything
    is killed, and one of them has done more than the backup says."""

    def __init__(self, world, forge, destination):
        self.world, self.forge, self.destination, self.error = world, forge, destination, None
        self.at_backup = set()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        try:
            until(lambda: [path for path in self.destination.glob("cynode-*") if path.suffix != ".partial"], 300, 0.02)
            self.at_backup, known = running_samples(self.world), len(self.forge.pulls)
            until(lambda: len(self.forge.pulls) > known, TASK_TIMEOUT_SECONDS, 0.02)
            os.kill(self.world.program_pid("cynode-runner"), signal.SIGSTOP)
        except AssertionError as error:
            self.error = error

    def finish(self):
        self.thread.join()
        assert not self.error, self.error
        assert self.at_backup, "no task of the sample was running at the backup"
        running = running_samples(self.world)
        assert running, "no task of the sample was running when everything was killed"
        return len(running)


def back_up(world, destination, passphrase):
    """A backup that is killed in the middle, and then made. Gives what the command says."""
    words = ["backup", destination, "--data-dir", world.data, "--passphrase-file", passphrase, "--verify", "--json"]
    killed = subprocess.Popen([str(world.cynode), *map(str, words)], env=world.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: killed.poll() is not None or list(destination.glob("*.partial/files-*")), 120)
    killed.kill()
    killed.wait()
    began = time.monotonic()
    done = cynode(world, *words)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    said = json.loads(done.stdout)
    assert said["verification"]["problems"] == [], said
    figure("backup_with_verification", round(time.monotonic() - began, 1), "s")
    figure("writers_waited", said["fenced_ms"], "ms")
    return said


def destroy(world):
    """Kills every process of the installation at once and deletes its data."""
    postmaster = int((world.data / "postgres/data/postmaster.pid").read_text().splitlines()[0])
    # The runner was stopped before: a signal to end would wait in it.
    for pid in (world.program_pid("cynode-runner"), world.orchestrator_pid(), postmaster):
        os.kill(pid, signal.SIGKILL)
    world.process.wait()
    until(lambda: not pathlib.Path(f"/proc/{postmaster}").exists(), 30)
    # Programs that `up` started end with it.
    until(lambda: remove_tree(world.data), 30, what="the data of the lost installation could not be deleted")


def remove_tree(path):
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def restore(world, backup, data, passphrase, *more, kill=False):
    """Restores a backup; with `kill` it is killed in the middle first, and then repeated."""
    origin = [] if "--public-key" in more else ["--any-origin"]
    words = ["restore", backup, "--data-dir", data, "--passphrase-file", passphrase, *origin, *more]
    if kill:
        killed = subprocess.Popen([str(world.cynode), *map(str, words)], env=world.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: killed.poll() is not None or (data / "postgres/data").exists(), 120)
        killed.kill()
        killed.wait()
        stop_stray_database(data)
    began = time.monotonic()
    done = cynode(world, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return time.monotonic() - began, done.stdout


def stop_stray_database(data):
    """A restore that was killed may leave the database that it started; it stops by itself, as after a kill of `cynode up`."""
    file = data / "postgres/data/postmaster.pid"
    if file.exists():
        pid = int(file.read_text().splitlines()[0])
        until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), 60)


def refuse_wrong_restores(world, backup, passphrase, work):
    """What must not be restored is refused, and nothing is left of it."""
    wrong = work / "wrong-passphrase"
    wrong.write_text("another passphrase of some length\n")
    changed = work / "changed"
    shutil.copytree(backup, changed)
    part = max(changed.glob("files-*.age"), key=lambda path: path.stat().st_size)
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    later = work / "later"
    shutil.copytree(backup, later)
    manifest = json.loads((later / "manifest.json").read_text())
    (later / "manifest.json").write_text(json.dumps(manifest | {"schema_version": manifest["schema_version"] + 1}))
    full = work / "full"
    full.mkdir()
    (full / "something").write_text("")
    for number, (source, target, key, reason) in enumerate([
        (backup, work / "refused-1", wrong, "cannot be opened"),
        (changed, work / "refused-2", passphrase, "is not what the manifest names"),
        (later, work / "refused-3", passphrase, "restore it with"),
        (backup, full, passphrase, "is not empty"),
    ]):  # fmt: skip
        done = cynode(world, "restore", source, "--data-dir", target, "--passphrase-file", key, "--any-origin")
        assert done.returncode != 0 and reason in done.stderr, f"{number}: {done.returncode} {done.stderr[-1000:]}"


def other_host(program, folder):
    """The program under another host name."""
    script = folder / "cynode-elsewhere"
    inner = 'hostname restored.example; exec "$0" "$@"'
    script.write_text(f"#!/bin/sh\nexec unshare --uts sh -c '{inner}' {program} \"$@\"\n")
    script.chmod(0o755)
    return script


class RestoredInstallation(Installation):
    """An installation over restored data: its admin is there already."""

    def __init__(self, program, work, quick, first):
        self.admin = first.admin
        super().__init__(program, work, quick, whole=True, environment=LIMITS)


def compare(load, world, before):
    """Everything that was answered before the backup is there. Gives the number of each."""
    tasks = {f"tsk_{row['id']}" for row in world.sql("SELECT replace(task_id::text, '-', '') AS id FROM tasks")}
    wanted = [task for at, task in load.tasks if at < before]
    lost = [task for task in wanted if task not in tasks]
    assert not lost, f"{len(lost)} of {len(wanted)} tasks are lost"
    digests = {row["digest"] for row in world.sql("SELECT encode(digest, 'hex') AS digest FROM artifacts")}
    kept = [digest for at, digest in load.artifacts if at < before]
    for digest in kept:
        assert digest in digests, "an artifact is lost"
        content = (world.storage / "artifacts/sha256" / digest[:2] / digest).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest, "an artifact was changed"
    made = len([at for at in load.calls if at < before]) + len(kept)
    recorded = world.sql("SELECT count(DISTINCT call_id) AS calls FROM audit_records WHERE phase = 'decision'")[0]["calls"]
    assert recorded >= made, f"{recorded} of {made} calls are recorded"
    head = world.repository_refs(load.project).get("refs/heads/main")
    pushed = [commit for at, commit in load.pushes if at < before]
    assert pushed, "nothing was pushed before the backup"
    # The copy is of a moment after `before`: the head is the last push that was answered, or a later one.
    known = world.git(load.clone, "rev-list", "main").split()
    assert head in known[: known.index(pushed[-1]) + 1], f"the head is {head}, and {pushed[-1]} was pushed before the backup"
    rows = world.sql(f"SELECT head FROM repositories WHERE project_id = '{load.project.split('_', 1)[1]}'")
    assert rows[0]["head"] in known[known.index(head) :], f"the database has {rows[0]['head']}, the repository {head}"
    return len(wanted), len(kept), made, len(pushed)


def verify_audit(world):
    done = cynode(world, "audit", "verify", "--data-dir", world.data)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def wait_for_tasks(world, project, count, forge):
    """Every task of the sample ends with success and has one pull request and one branch, also outside."""

    def states():
        found = world.expect(200, "GET", f"/v1/tasks?limit=200&project={urllib.parse.quote(project)}")["items"]
        return {task["name"]: task["state"] for task in found if task["name"].startswith("sample-")}

    def all_ended():
        return all(state in ("completed", "failed", "cancelled") for state in states().values())

    until(all_ended, TASK_TIMEOUT_SECONDS, 0.5, lambda: f"tasks do not end: {states()}")
    ended = states()
    assert len(ended) == count and set(ended.values()) == {"completed"}, ended
    pulls = world.sql("""SELECT t.name, count(*) AS pulls FROM pull_requests p JOIN tasks t USING (task_id)
        WHERE t.name LIKE 'sample-%' GROUP BY t.name""")
    assert len(pulls) == count and all(row["pulls"] == 1 for row in pulls), pulls
    outside = [pull["branch"] for pull in forge.pulls]
    assert len(outside) == len(set(outside)) == count, f"pull requests outside: {sorted(outside)}"
    assert set(forge.branches()) == set(outside), f"branches outside: {sorted(forge.branches())}, pull requests: {sorted(outside)}"


def restore_to_moment(first, backup, archive, passphrase, work, program, quick, marker, moment, key, calls):
    """By the archive the database comes back as it was after the backup, at a moment, and its audit log with it. `key` is the public key of the
    installation, and so many tool calls were answered until then."""
    place = work / "third"
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    restore(first, backup, place / "data", passphrase, "--wal-archive", archive, "--until", moment, "--public-key", key)
    third = RestoredInstallation(program, place, quick, first)
    try:
        names = {row["name"] for row in third.sql("SELECT name FROM tasks WHERE name LIKE 'marker-%'")}
        assert names == {marker}, f"at {moment} there are {names}"
        # The audit files are of the backup, the database goes on behind them.
        recorded = third.sql("SELECT count(DISTINCT call_id) AS calls FROM audit_records WHERE phase = 'decision'")[0]["calls"]
        assert recorded >= calls, f"{recorded} of {calls} calls are recorded"
        verify_audit(third)
    finally:
        third.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cynode")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    work, samples = given.work, 4 if given.quick else 8
    passphrase, archive, backups = work / "passphrase", work / "wal-archive", work / "backups"
    passphrase.write_text("correct horse battery staple\n")
    first = Installation(given.cynode, work / "first", given.quick, {"database.wal_archive": archive}, whole=True, environment=LIMITS)
    inbox = Inbox()
    installations = [first]
    try:
        first.set_up(people=False)
        for setting, value in (("notifications.allow_private", True), ("gateway.calls_per_second", 1000000), ("gateway.calls_per_task_hour", 1000000),
                               ("gateway.max_identical_calls", 1000000)):  # fmt: skip
            first.expect(None, "PUT", f"/v1/settings/{setting}", {"value": value, "expected_version": 0})
        channel = {"name": "inbox", "kind": "webhook", "address": f"{inbox.url}/hook", "scope": "installation"}
        first.expect(None, "POST", "/v1/notification-channels", channel)
        # The password of a session may change on the way; a key stays.
        key = first.expect(201, "POST", "/v1/api-keys", {"name": "proof"})["token"]
        first.admin = first.admin._replace(token=key)
        load = Load(first)
        load.start()
        sample = Sample(first, work / "home")
        until(lambda: len(load.tasks) > (20 if given.quick else 100) and load.pushes, 120)
        public_key = cynode(first, "audit", "key", "--data-dir", first.data).stdout.split()[-1]
        sample.start_tasks(samples)
        until(lambda: running_samples(first), 120, what="no task of the sample began")

        before = time.monotonic()
        interruption = Interruption(first, sample.forge, backups)
        said = back_up(first, backups, passphrase)
        backup = pathlib.Path(said["path"])
        doctor = cynode(first, "doctor", "--restore", "--data-dir", first.data)
        assert doctor.returncode == 0, doctor.stdout + doctor.stderr
        # Work that the backup does not have, and a moment in it.
        first.expect(201, "POST", "/v1/tasks", {"project_id": load.project, "name": "marker-before", "description": "Wait."})
        called = len(load.calls)
        until(lambda: len(load.calls) > called + 5, 60, what="no tools were called after the backup")
        calls_until = len(load.calls) + len(load.artifacts)
        time.sleep(1.5)
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        time.sleep(1.5)
        first.expect(201, "POST", "/v1/tasks", {"project_id": load.project, "name": "marker-after", "description": "Wait."})
        segment = first.sql("SELECT pg_walfile_name(pg_switch_wal()) AS name")[0]["name"]
        until((archive / segment).exists, 90, what="the write-ahead log was not archived")
        until(inbox.ids, 120, what="no notification was delivered")
        interrupted = interruption.finish()
        known_outside = len(sample.forge.pulls)
        # A milestone that was reached is told before everything is killed.
        until(inbox.milestones, 60, what="no milestone of a task was told")
        destroy(first)
        load.stop()
        delivered, milestones = set(inbox.ids()), set(inbox.milestones())
        lost_at, told_at = len(inbox.requests), len(inbox.milestones())

        refuse_wrong_restores(first, backup, passphrase, work)
        place = work / "second"
        place.mkdir(mode=0o755)
        place.chmod(0o755)
        took, told = restore(first, backup, place / "data", passphrase, kill=True)
        assert "epoch 2" in told, told
        figure("restore", round(took, 1), "s")
        began = time.monotonic()
        second = RestoredInstallation(other_host(given.cynode, work), place, given.quick, first)
        installations.append(second)
        figure("start_after_restore", round(time.monotonic() - began, 1), "s")
        tasks, artifacts, calls, pushes = compare(load, second, before)
        wait_for_tasks(second, sample.project, samples, sample.forge)
        verify_audit(second)
        again = [one for one in inbox.ids()[lost_at:] if one in delivered]
        assert not again, f"{len(again)} notifications were delivered twice"
        assert len(set(inbox.ids())) == len(inbox.ids()), "a notification was delivered twice"
        twice = milestones & set(inbox.milestones()[told_at:])
        assert not twice, f"told by both installations: {sorted(twice)}"
        second.stop()
        restore_to_moment(first, backup, archive, passphrase, work, given.cynode, given.quick, "marker-before", moment, public_key, calls_until)
        figure("tasks_before_backup", tasks, "tasks")
        print(f"{tasks} tasks, {artifacts} artifacts, {pushes} pushes and {calls} recorded calls before the backup: none lost; {samples} tasks, of which {interrupted} "
              f"were running at the end and {known_outside} had a pull request outside, ended with one each; {len(delivered)} notifications before and "
              f"{len(inbox.requests) - lost_at} after: none twice; {said['resumed_parts']} parts of the interrupted backup were kept")  # fmt: skip
    finally:
        for installation in installations:
            installation.stop()


if __name__ == "__main__":
    main()
