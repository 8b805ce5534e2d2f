#!/usr/bin/env python3
"""Carries twelve published faults of real projects from import to pull request. See prove/journeys/real-repositories.

    real_repositories.py CYNODE WORK [--quick] [--only ID...] [--offline]

A task is release N of a package with the tests of release N+1, some of which fail. Nothing of the packages is stored here: archives are downloaded
at pinned versions with the registries' own tools, compared with their SHA-256, and kept in the cache directory of the user.
"""

import argparse
import difflib
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time

sys.dont_write_bytecode = True
import review_world  # noqa: E402
from review_world import ROOT, run_program, until  # noqa: E402

DATA = ROOT / "prove/data/real-repositories"
QUICK = ("py-humanize", "js-qs", "c-cjson")
# Generated files that archives do not ignore.
TASK_SECONDS = 900
MAX_TASKS_WITH_LINES, MAX_LINES = 3, 3
TIERS = ("fast", "standard", "deep")


class Skipped(Exception):
    """An archive is not published any more."""


# Archives.


def cache_directory():
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = pathlib.Path(home) / "cynode-prove/real-repositories"
    place.mkdir(parents=True, exist_ok=True)
    return place


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def try_program(*argv, **more):
    return subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False, **more)


def download_pypi(task, version, into):
    return try_program("python3", "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", into, f"{task['package']}=={version}")


def download_npm(task, version, into):
    return try_program("npm", "pack", "--silent", f"{task['package']}@{version}", cwd=into)


def download_crates(task, version, into):
    """The archive is in cargo's cache after a fetch of a project that names it."""
    project = into / "project"
    (project / "src").mkdir(parents=True, exist_ok=True)
    (project / "src/lib.rs").write_text("")
    (project / "Cargo.toml").write_text(f'[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n{task["package"]} = "={version}"\n')
    done = try_program("cargo", "fetch", cwd=project, env=os.environ | {"CARGO_TARGET_DIR": str(project / "target")})
    home = pathlib.Path(os.environ.get("CARGO_HOME") or os.path.expanduser("~/.cargo"))
    for found in home.glob(f"registry/cache/*/{task['package']}-{version}.crate"):
        shutil.copy(found, into)
    return done


def download_debian(task, archive, into):
    """A file of the archive, from the machine's own mirror."""
    listed = try_program("apt-get", "indextargets", "--format", "$(REPO_URI)").stdout.split()
    roots = dict.fromkeys(word.rstrip("/") for word in listed)
    name = task["package"]
    for root in roots:
        url = f"{root}/pool/main/{name[:4] if name.startswith('lib') else name[0]}/{name}/{archive['file']}"
        done = try_program("curl", "--fail", "--silent", "--show-error", "--location", "--max-time", "60", "--output", into / archive["file"], url)
        if done.returncode == 0:
            break
    else:
        raise Skipped(f"{archive['file']} is not published any more")
    return done


def fetch_archive(task, number, cache):
    archive = task["archives"][number]
    path = cache / archive["file"]
    if not path.exists():
        into = cache / f"download-{task['id']}-{number}"
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir()
        version = task["versions"][number]
        if task["registry"] == "Debian":
            done = download_debian(task, archive, into)
        else:
            done = {"PyPI": download_pypi, "npm": download_npm, "crates.io": download_crates}[task["registry"]](task, version, into)
        found = into / archive["file"]
        assert found.exists(), f"{archive['file']} was not downloaded: {done.stderr[-500:]}"
        found.rename(path)
        shutil.rmtree(into)
    assert digest(path) == archive["sha256"], f"{path} is not the archive that was published"
    return path


def unpack(archive, into):
    """All archives have one top directory. Times are those of now: old ones make build tools believe that nothing changed."""
    into.mkdir(parents=True)
    run_program("tar", "-xf", archive, "-C", into, "--strip-components=1", "--no-same-owner", "--touch")


def make_repository(task, folder):
    """Release N with the tests of N+1 and with lock files; a directory beside it has N+1."""
    cache = cache_directory()
    archives = [fetch_archive(task, number, cache) for number in (0, 1)]
    repository, published = folder / "repository", folder / "next"
    unpack(archives[0], repository)
    if task["registry"] == "Debian":
        shutil.copytree(repository, published)
        with tarfile.open(archives[1]) as packed:
            patch = packed.extractfile(f"debian/patches/{task['patch']}").read()
        (folder / "patch").write_bytes(patch)
        run_program("patch", "-d", published, "-p1", "--no-backup-if-mismatch", "-i", folder / "patch")
    else:
        unpack(archives[1], published)
    for path in task.get("remove", []):
        shutil.rmtree(repository / path)
    for path, text in task["own_files"].items():
        (repository / path).write_text(text)
    for path, name in task.get("lock_files", {}).items():
        shutil.copy(DATA / "locks" / name, repository / path)
    if "npm" in task:
        write_package(task["npm"], repository)
    for path in task["test_files"]:
        shutil.copyfile(published / path, repository / path)
    git = ("git", "-C", repository, "-c", "user.name=ada", "-c", "user.email=ada@example.org")
    run_program(*git, "init", "-q", "-b", "main")
    run_program(*git, "add", "-A", "-f")
    run_program(*git, "commit", "-qm", f"{task['package']} {task['versions'][0]}, with tests that show the fault")
    return repository, published


def write_package(npm, repository):
    """The package with the dependencies of the lock file: archives leave out what their tests need, or name no versions."""
    package = json.loads((repository / "package.json").read_text())
    for key in ("dependencies", "peerDependencies", "optionalDependencies"):
        package.pop(key, None)
    package["devDependencies"] = json.loads((DATA / "locks" / npm["package"]).read_text())["dependencies"]
    package["scripts"] = {"test": npm["test"]}
    (repository / "package.json").write_text(json.dumps(package, indent=2) + "\n")
    lock = json.loads((DATA / "locks" / npm["lock"]).read_text())
    root = lock["packages"][""]
    root.pop("dependencies", None)
    root |= {"name": package["name"], "version": package["version"], "devDependencies": package["devDependencies"]}
    lock |= {"name": package["name"], "version": package["version"]}
    for entry, about in lock["packages"].items():
        if entry:
            about["dev"] = True
    (repository / "package-lock.json").write_text(json.dumps(lock, indent=2) + "\n")


# Solutions.


def half_of(old, new):
    """The first half of the changed lines, or a change that only looks like one where there is a single line."""
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    changes = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    keep = len(changes) // 2
    if keep == 0:
        return old + ["\n"]
    out, at = [], 0
    for _, i1, i2, j1, j2 in changes[:keep]:
        out += old[at:i1] + new[j1:j2]
        at = i2
    return out + old[at:]


def solution_moves(task, repository, published, kind):
    """What the scripted agent does: `right`, `half` of the patch, or `untested`: the tests that fail are deleted."""
    moves = [{"move": "say", "text": "I read the issue and the tests."}]
    if kind == "untested" and task["test_files"]:
        moves.append({"move": "run", "argv": ["rm", *task["test_files"]]})
    else:
        for path in task["solution_files"]:
            old = (repository / path).read_text().splitlines(keepends=True)
            new = (published / path).read_text().splitlines(keepends=True)
            wanted = new if kind == "right" else half_of(old, new)
            patch = "".join(difflib.unified_diff(old, wanted, f"a/{path}", f"b/{path}"))
            moves.append({"move": "run", "argv": ["sh", "-c", 'printf "%s" "$1" | git apply -', "sh", patch]})
    said = "The fault is mended."
    details = {"files_modified": task["solution_files"], "artifacts": [], "notes": []}
    moves.append({"move": "tool", "name": "pm.report", "arguments": {"kind": "work_completed", "summary": said, "details": details}})
    return moves


def review_moves():
    details = {"critical_issues": [], "major_issues": [], "minor_issues": [], "summary": "Good."}
    return [{"move": "tool", "name": "pm.report", "arguments": {"kind": "review_approved", "summary": "Good.", "details": details}}]


def model_rules(task):
    """Answers to the manager's questions: one unit that changes the files of the solution."""
    unit = {"title": "Mend the fault", "kind": "implementation", "files_to_modify": task["solution_files"], "files_to_read_first": task["test_files"],
            "pattern_reference": "", "constraints": [], "requirements": ["The tests pass"], "depends_on": [], "checks": []}  # fmt: skip
    answers = {
        "^Describe how the project": {"architecture": "A library with tests.", "key_paths": [], "patterns": [], "build_commands": []},
        "^Decide what kind of work": {"reason": "It does not do what it should.", "class": "quick_fix"},
        "^Decide how much of the project": {"reason": "One file.", "components": task["solution_files"][:1], "estimated_files": 1, "scope": "small"},
        "^Plan the task": {"reason": "One change.", "units": [unit], "leave_out": [], "assumptions": [], "question": ""},
        "^Judge whether": {"reason": "The file was changed.", "findings": [], "recommended_actions": [], "status": "pass"},
        "was reviewed and found good": {"why": "The checks run all tests.", "commands": [], "needed": False},
        "^Write a summary": {"summary": "The fault is mended."},
    }
    return {"rules": [{"when": {"user_matches": asked}, "answer": {"text": json.dumps(answer)}} for asked, answer in answers.items()]}


# The journey.


def counted(counts):
    """What the published figures count: a skipped test is no failure."""
    return {"passed": counts.get("passed", 0) + counts.get("skipped", 0), "failed": counts.get("failed", 0)}


class Journey:
    """One repository, from import to pull request."""

    def __init__(self, world, task, folder):
        self.world, self.task, self.folder = world, task, folder
        self.times, self.lines = {}, []
        self.name = task["id"]

    def timed(self, step, act):
        began = time.monotonic()
        done = act()
        self.times[step] = time.monotonic() - began
        return done

    def cynork(self, *words, check=True):
        done = subprocess.run([self.world.cynode.with_name("cynork"), *map(str, words)], capture_output=True, text=True, check=False, env=self.world.cynork_environment())
        assert not check or done.returncode == 0, f"cynork {' '.join(map(str, words))}: {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
        return done

    def prepare(self):
        self.repository, self.published = self.timed("download", lambda: make_repository(self.task, self.folder))
        self.project = self.world.create_project(self.name)
        self.timed("import", lambda: self.cynork("project", "import", self.repository, "--project", self.name))
        self.set_models()

    def set_models(self):
        provider = f"script-{self.name}"
        self.world.expect(None, "PUT", f"/v1/providers/{provider}", {"kind": "scripted", "script": model_rules(self.task)})
        prices = {"input": 1, "cached": 1, "cache_write": 1, "output": 1}
        for tier in TIERS:
            body = {"context_tokens": 200000, "max_output_tokens": 4000, "tools": True, "json_schema": True, "tier": tier, "project_id": self.project,
                    "routes": [{"provider": provider, "upstream": "scripted", "prices": prices}]}  # fmt: skip
            self.world.expect(None, "PUT", f"/v1/model-registry/{provider}-{tier}", body)

    def set_preference(self, key, value):
        path = f"/v1/preferences/{key}?scope_type=project&scope_id={self.project}"
        _, found, _ = self.world.api("GET", path)
        version = found.get("version", 0) if isinstance(found, dict) else 0
        self.world.expect(None, "PUT", path, {"value": value, "expected_version": version})

    def accept_environment(self):
        """Detects, adds the lines that a person has to write, and accepts."""
        found = json.loads(self.timed("detect", lambda: self.cynork("project", "environment", "detect", "--project", self.name, "--json")).stdout)
        spec = found["spec"]
        for line in self.task.get("lines", []):
            self.lines.append(line["line"])
            if isinstance(line["value"], dict):
                spec.setdefault(line["key"], {}).update(line["value"])
            else:
                spec[line["key"]] = line["value"]
        if self.lines:
            file = self.folder / "environment.json"
            file.write_text(json.dumps(spec))
            found = json.loads(self.cynork("project", "environment", "set", file, "--project", self.name, "--json").stdout)
        self.cynork("project", "environment", "accept", found["version"], "--project", self.name)
        self.spec, self.version = spec, found["version"]

    def reference(self):
        """The environment in force, as jobs name it."""
        found = json.loads(self.cynork("project", "environment", "show", "--project", self.name, "--json").stdout)
        return {"version": found["version"], "digest": found["digest"]}

    def try_environment(self):
        """The set-up must succeed. That a test fails is what the tests are for."""
        tried = self.timed("try", lambda: self.cynork("project", "environment", "try", self.version, "--project", self.name, check=False))
        assert "failed at step" not in tried.stdout + tried.stderr, f"{tried.stdout[-2000:]}{tried.stderr[-1000:]}"
        return tried

    def criterion_checks(self):
        """What a person names who has written a test for the fault: all tests must pass."""
        found = [check for check in self.spec["checks"] if check["kind"] == "test"]
        checks = [{"argv": ["sh", "-c", check["command"]]} | {key: check[key] for key in ("report",) if key in check} for check in found]
        return checks + ([{"argv": ["sh", "-c", self.task["own_check"]]}] if "own_check" in self.task else [])

    def run_task(self, kind):
        """A task whose agent does that; the state it ends or waits in, and its evidence."""
        worker = {"kind": "scripted", "moves": solution_moves(self.task, self.repository, self.published, kind)}
        self.set_preference("agents.project_manager.workers.developer", worker)
        self.set_preference("agents.project_manager.workers.fixer", worker)
        self.set_preference("agents.project_manager.workers.reviewer", {"kind": "scripted", "moves": review_moves()})
        self.set_preference("workflow.approve_plan", False)
        self.set_preference("workflow.max_step_retries", 1)
        criteria = [{"text": f"`{check['argv'][2]}` passes", "check": check} for check in self.criterion_checks()]
        task = self.world.create_task(self.project, name=f"mend-{kind}", description=self.task["issue"], acceptance_criteria=criteria)
        began = time.monotonic()
        state = until(lambda: self.settled_state(task), TASK_SECONDS, 0.3, lambda: f"task {task} is {self.task_state(task)}")
        self.times[kind] = time.monotonic() - began
        evidence = self.world.expect(200, "GET", f"/v1/tasks/{task}/evidence")
        pulls = [it for it in self.world.expect(200, "GET", f"/v1/projects/{self.project}/pull-requests")["items"] if it["task_id"] == task]
        if state.startswith("asks"):
            self.world.api("POST", f"/v1/tasks/{task}/cancel", {})
        return state, evidence, pulls

    def task_state(self, task):
        return self.world.expect(200, "GET", f"/v1/tasks/{task}")["state"]

    def settled_state(self, task):
        """How the task ended; `asks` and the beginning of the question when it waits for a person."""
        seen = self.world.expect(200, "GET", f"/v1/tasks/{task}/timeline")
        if seen["state"] in ("completed", "failed", "cancelled"):
            return seen["state"]
        waits = [wait for wait in seen["waits"] if wait["owner"] == "person" and not wait.get("resolved_at")]
        return f"asks: {(waits[0].get('question') or waits[0]['reason'])[:300]}" if waits else None

    def check_right(self):
        state, evidence, pulls = self.run_task("right")
        assert state == "completed", f"the published solution: {state} {json.dumps(evidence)[-1500:]}"
        assert any(pull["state"] == "open" for pull in pulls), f"no pull request: {pulls}"
        listed = evidence["evidence"]
        compared = [check["tests"] for one in listed for check in one["checks"] if check.get("tests")]
        assert compared, f"no results per test: {json.dumps(evidence)[-1500:]}"
        # The last commit of the work counts.
        last = compared[-1]
        counts = counted(last["after"])
        assert counts == self.task["after"], f"after the change {counts}, published {self.task['after']}"
        mended = last.get("fail_to_pass", {"total": 0, "names": []})
        if self.task["before"]:
            before = counted(last.get("before") or {})
            assert before == self.task["before"], f"before the change {before}, published {self.task['before']}"
            assert mended["total"] == before["failed"], mended
            same = last["pass_to_pass"] + last["after"].get("skipped", 0)
            assert same == before["passed"], f"{same} pass before and after, published {before['passed']}"
            for name in self.task["fail_to_pass"]:
                assert any(name in full for full in mended["names"]), f"{name} is not among {mended['names']}"
        assert "pass_to_fail" not in last and "vanished" not in last, last
        return f"{counts['passed']} pass, {mended['total']} mended"

    def check_wrong(self, kind):
        state, evidence, pulls = self.run_task(kind)
        assert state != "completed" and not any(pull["state"] in ("open", "merged") for pull in pulls), f"the {kind} solution: {state} {pulls} {json.dumps(evidence)[-800:]}"
        return state.split(":")[0]

    def run(self):
        self.prepare()
        self.accept_environment()
        self.try_environment()
        said = self.check_right()
        kinds = ["half"] + (["untested"] if self.task["test_files"] else [])
        return said, " ".join(f"{kind}:{self.check_wrong(kind)}" for kind in kinds)


class RealWorld(review_world.Installation):
    def import_packages(self, file):
        """From now on the node has these packages and asks no registry."""
        state = self.data / "node"
        until(state.exists, 30)
        self.end_process()
        with open(state / "node.toml", "a", encoding="utf-8") as config:
            config.write("packages_offline = true\n")
        run_program(self.cynode.with_name("cynode-node"), "--state", state, "packages", "import", file)
        self.start()

    def cynork_environment(self):
        return self.environment | {"CYNORK_URL": self.user_url, "CYNORK_TOKEN": self.admin.token, "HOME": str(self.work)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cynode")
    parser.add_argument("work")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--packages", help="exported packages; the registries are not asked")
    parser.add_argument("--offline", action="store_true", help="once with the network, then once more without it from the exported packages")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    tasks = json.loads((DATA / "tasks.json").read_text())
    chosen = [task for task in tasks if (task["id"] in options.only if options.only else not options.quick or task["id"] in QUICK)]
    work = pathlib.Path(options.work)
    if options.offline:
        sys.exit(run_offline(options, work))
    bad = run_journeys(options, chosen, work, None)
    sys.exit(1 if bad else 0)


def run_offline(options, work):
    """All journeys with the network, and again in a network namespace with nothing but loopback."""
    tasks = json.loads((DATA / "tasks.json").read_text())
    chosen = [task for task in tasks if not options.only or task["id"] in options.only]
    packages = work / "packages.tar"
    bad = run_journeys(options, chosen, work / "online", packages)
    command = [sys.executable, __file__, options.cynode, work / "cut-off", "--packages", packages]
    script = 'ip link set lo up && exec "$@"'
    done = subprocess.run(["unshare", "--net", "bash", "-c", script, "offline", *map(str, command)], check=False)
    return 1 if bad or done.returncode else 0


def run_journeys(options, chosen, work, export_to):
    world = RealWorld(options.cynode, work / "world", options.quick, whole=True)
    bad, with_lines, skipped, rows = [], 0, 0, []
    steps = ("download", "import", "detect", "try", "right", "half", "untested")
    try:
        # A start makes a new link for the first admin, so that comes first.
        world.set_up(people=False)
        if options.packages:
            world.import_packages(options.packages)
        until(lambda: [node for node in world.expect(200, "GET", "/v1/nodes")["items"] if node["started"]], 60)
        for task in chosen:
            folder = work / task["id"]
            folder.mkdir(parents=True)
            journey, began = Journey(world, task, folder), time.monotonic()
            try:
                said, wrong = journey.run()
                outcome = "ok"
            except Skipped as why:
                said, wrong, outcome = str(why), "", "skipped"
                skipped += 1
            except AssertionError as error:
                said, wrong, outcome = str(error), "", "FAIL"
                bad.append(task["id"])
            with_lines += bool(journey.lines)
            cells = " ".join(f"{journey.times[step]:>8.1f}" if step in journey.times else " " * 8 for step in steps)
            rows.append(f"{outcome:<8}{task['id']:<19}{len(journey.lines):>5} {cells} {time.monotonic() - began:>8.1f}  {said.splitlines()[0][:90]} {wrong}")
            print(rows[-1], flush=True)
            if outcome == "FAIL":
                print(said, flush=True)
        if export_to:
            run_program(world.cynode.with_name("cynode-node"), "--state", world.data / "node", "packages", "export", export_to)
    finally:
        world.stop()
    print(f"\n{'':<8}{'repository':<19}{'lines':>5} " + " ".join(f"{step:>8}" for step in (*steps, "whole")))
    print("\n".join(rows))
    done = len(chosen) - len(bad) - skipped
    print(f"{done} of {len(chosen)} repositories, {skipped} skipped, {with_lines} with lines by hand")
    if with_lines > MAX_TASKS_WITH_LINES or any(len(task.get("lines", [])) > MAX_LINES for task in chosen):
        bad.append("too many lines by hand")
    if done == 0:
        bad.append("nothing was carried through")
    if bad:
        print(f"FAILED: {', '.join(bad)}")
    return bad


if __name__ == "__main__":
    main()
