"""The proof `skew`: `skew.py CYNODE WORK [--quick]`. Programs of three releases, made of copies of the built ones, with one installation."""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess

from review_world import Installation, figure, figures, request, run_program, until

# What stands before the release in a program's file (`crates/cynode-core/src/releases.rs`).
MARK = b"cynode program release "
PROGRAMS = ("cynode", "cynode-runner", "cynode-pma", "cynode-node", "cynork")
LIMITS = {"CYNODE_SERVER_REQUESTS_PER_SECOND": "1000000", "CYNODE_SERVER_REQUEST_BURST": "1000000"}
JOB_TIMEOUT_SECONDS = 60
# A version that no migration of this release has.
LATER_MIGRATION = 29990101000001


class Releases:
    """Copies of the programs that say another release. The copies of one release differ from the built programs in that text only."""

    def __init__(self, built, folder):
        self.built, self.folder = built, folder
        found = re.findall(re.escape(MARK) + rb"(\d+)\.(\d+)\.(\d+)\n", (built / "cynode").read_bytes())
        assert len(found) == 1, f"a program names its release {len(found)} times"
        major, minor, patch = map(int, found[0])
        self.own, self.next, self.second_next = (f"{major}.{minor + step}.{patch}" for step in range(3))

    def program(self, name, release):
        """The program of a release."""
        path = self.folder / release / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            before, after = (MARK + text.encode() + b"\n" for text in (self.own, release))
            assert len(before) == len(after), f"{self.own} and {release} have different lengths"
            content = (self.built / name).read_bytes()
            assert content.count(before) == 1, f"{name} names its release {content.count(before)} times"
            path.write_bytes(content.replace(before, after))
            path.chmod(0o755)
        return path

    def combine(self, server, node):
        """A folder with the server of one release and the node of another; its `cynode`."""
        place = self.folder / f"server-{server}-node-{node}"
        if not place.exists():
            place.mkdir(parents=True)
            for name in PROGRAMS:
                os.link(self.program(name, node if name == "cynode-node" else server), place / name)
            # It has no release of its own.
            shutil.copy2(self.built / "cynode-sandbox-init", place)
        return place / "cynode"


class Terminal:
    """A command line of a release, with the API key of the admin."""

    def __init__(self, world, program, home):
        self.program, self.world, self.home = program, world, home
        home.mkdir(exist_ok=True)

    def run(self, *words):
        """Runs a command; (exit code, output, complaint)."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "CYNORK_TOKEN": self.world.admin.token}
        command = [self.program, "--url", self.world.user_url, *words]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, env=environment)
        return done.returncode, done.stdout, done.stderr

    def ask(self, *words):
        """The JSON of a command that succeeds."""
        code, said, complaint = self.run("--json", *words)
        assert code == 0, f"cynork {words}: {code} {complaint}"
        return json.loads(said)


def run_task(world, terminal):
    """A task that a command line creates and sees, whose job a real node runs in a sandbox."""
    name = world.unique("skew")
    with world.paused_runner():
        task = terminal.ask("task", "create", "Mend it.", "--project", world.project, "--name", name)
        work = {"worker": {"kind": "command", "steps": [{"argv": ["true"]}]}}
        world.create_jobs(work=work, task=task["id"])
    done = until(lambda: world.job_results(task["id"])["a"]["result"], JOB_TIMEOUT_SECONDS, 0.1, lambda: f"no result: {world.job_results(task['id'])}")
    assert [step["exit_code"] for step in done["steps"]] == [0], done
    assert terminal.ask("task", "show", task["id"])["name"] == name
    world.expect(None, "POST", f"/v1/tasks/{task['id']}/cancel", None)
    return task["id"]


def wait_for_node(world, release):
    """Waits until the installation's own node is there with this release."""

    def listed():
        nodes = world.expect(200, "GET", "/v1/processes")["items"]
        return [it for it in nodes if it["kind"] == "node" and it["present"] and it["version"] == release]

    until(listed, JOB_TIMEOUT_SECONDS, 0.1, lambda: f"no node of {release}: {world.expect(200, 'GET', '/v1/processes')}")


def start_programs(world, program):
    world.end_process()
    world.cynode = program
    world.start()


def expect_releases(world, server, node):
    """The list of processes names what runs, and nothing that is there is out of step."""
    there = [it for it in world.expect(200, "GET", "/v1/processes")["items"] if it["present"]]
    versions = {kind: {it["version"] for it in there if it["kind"] == kind} for kind in ("server", "node", "manager", "database", "engine")}
    assert versions["server"] >= {server} and versions["node"] == {node}, versions
    assert versions["database"] and versions["engine"], versions
    assert not [it for it in there if it["kind"] in ("server", "node") and it["skewed"]], there


def refuse_two_apart(world, releases, work):
    """Programs of the release after the next are refused by the server of this one, and change nothing."""
    count = "SELECT (SELECT count(*) FROM tasks) AS tasks, (SELECT count(*) FROM nodes) AS nodes"
    before = world.sql(count)
    terminal = Terminal(world, releases.program("cynork", releases.second_next), work / "home-far")
    code, _, complaint = terminal.run("task", "create", "Mend it.", "--project", world.project)
    assert code != 0 and "install" in complaint and releases.own in complaint, f"{code} {complaint}"
    token = work / "join-token"
    token.write_text(world.expect(201, "POST", "/v1/nodes/join-tokens", {"labels": []})["join_token"])
    node = releases.program("cynode-node", releases.second_next)
    if not (node.parent / "cynode-sandbox-init").exists():
        shutil.copy2(releases.built / "cynode-sandbox-init", node.parent)
    command = [node, "--state", work / "node-far", "join", "--url", world.internal_url, "--token-file", token, "--name", "far"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "release" in done.stdout + done.stderr, f"{done.returncode} {done.stdout} {done.stderr}"
    for port in (world.user_url, world.internal_url):
        status, _, answer = request(f"{port}/v1/me", headers={"cynode-release": releases.second_next})
        assert status == 426 and json.loads(answer)["code"] == "release_skew", f"{status} {answer}"
    assert world.sql(count) == before, "a refused program changed something"


def add_to_schema(world):
    """What a migration of the next release may do: it adds."""
    world.sql("ALTER TABLE tasks ADD COLUMN later_release text; CREATE TABLE later_release (only_row boolean PRIMARY KEY);")
    world.sql(f"""INSERT INTO _sqlx_migrations (version, description, installed_on, success, checksum, execution_time)
        VALUES ({LATER_MIGRATION}, 'later release', now(), true, '\\x00', 0)""")


def refuse_older_server(world, releases, program):
    """A schema that needs the next release is refused by this one, with the release to install."""
    world.sql(f"UPDATE schema_requirements SET min_release = '{releases.next}'")
    world.end_process()
    world.cynode = program
    with contextlib.suppress(AssertionError):
        world.start()
    assert world.process.poll() is not None, "it started on a schema that needs a later release"
    assert releases.next in world.tail(), world.tail()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cynode", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    programs = given.work / "programs"
    programs.mkdir(mode=0o755)
    releases = Releases(given.cynode.parent, programs)
    near = (releases.own, releases.next)
    # In the short form each of the two is once ahead of the other.
    pairs = [(near[0], near[1]), (near[1], near[0])] if given.quick else list(itertools.product(near, near))
    world = Installation(releases.combine(*pairs[0]), given.work / "world", given.quick, whole=True, environment=LIMITS)
    tasks = []
    try:
        world.set_up(people=False)
        key = world.expect(201, "POST", "/v1/api-keys", {"name": "proof"})["token"]
        world.admin = world.admin._replace(token=key)
        world.import_repository()
        terminals = {release: Terminal(world, releases.program("cynork", release), given.work / f"home-{release}") for release in near}
        for server, node in pairs:
            if (server, node) != pairs[0]:
                start_programs(world, releases.combine(server, node))
            wait_for_node(world, node)
            if server == releases.own and not (given.work / "join-token").exists():
                refuse_two_apart(world, releases, given.work)
            for release in near:
                tasks.append(run_task(world, terminals[release]))
            expect_releases(world, server, node)
        seen = {it["version"] for it in world.expect(200, "GET", "/v1/processes")["items"] if it["kind"] == "command_line"}
        assert seen == set(near), f"command lines of {seen} were seen"

        # The last server was of the next release. Back to this one, over what the next has added to the schema.
        add_to_schema(world)
        downgraded = releases.combine(releases.own, releases.own if not given.quick else releases.next)
        start_programs(world, downgraded)
        wait_for_node(world, releases.own if not given.quick else releases.next)
        tasks.append(run_task(world, terminals[releases.own]))
        kept = {f"tsk_{row['id']}" for row in world.sql("SELECT replace(task_id::text, '-', '') AS id FROM tasks")}
        assert not set(tasks) - kept, "a task was lost on the way"
        refuse_older_server(world, releases, downgraded)
        figure("combinations", len(pairs) * len(near), "combinations")
        for name, (value, unit) in figures.items():
            print(f"figure: {name} {value} {unit}")
        print(f"{len(tasks)} tasks in {len(pairs) * len(near)} combinations of {near[0]} and {near[1]} and after the downgrade: all ran; "
              f"{releases.second_next} was refused by {near[0]}, and so was {near[0]} by a schema that needs {near[1]}")  # fmt: skip
    finally:
        world.stop()
        run_program("rm", "-rf", programs)


if __name__ == "__main__":
    main()
