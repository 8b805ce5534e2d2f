# shellcheck shell=bash disable=SC2034 # proofs read what it sets
# Shared by the proofs; source it. Sets up what a proof needs on free loopback ports and removes it afterwards.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/postgres.sh

quick=
[ "${1:-}" = --quick ] && quick=1

work=$(mktemp -d /tmp/cynode-prove-XXXXXX)
chmod 755 "$work"
pids=()
finish() {
    local status=$?
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; done
    [ -d "$work/pg" ] && stop_cluster "$work/pg"
    remove_machines
    [ "$status" = 0 ] || tail -n 20 "$work"/*.log >&2 2>/dev/null || true
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT

# remove_machines: what proof_with_nodes may leave behind when it is killed itself.
machines=cynode-proof-$$
remove_machines() {
    local name
    for name in $(ip netns list 2>/dev/null | awk -v tag="$machines-" 'index($1, tag) == 1 { print $1 }'); do
        ip netns delete "$name"
    done
    awk -v tag="$machines-" 'index($1, tag) == 1 { print $2 }' /proc/mounts | while read -r name; do umount --lazy "$name"; done
}

# The release build, unless CYNODE_BIN names a program.
if [ -z "${CYNODE_BIN:-}" ]; then
    scripts/install
    # The server embeds the console when it is compiled.
    [ -f console/dist/index.html ] || scripts/build-console
    cargo build --release --workspace --quiet
    CYNODE_BIN=${CARGO_TARGET_DIR:-target}/release/cynode
fi
cynode=$(realpath "$CYNODE_BIN")
unset CYNODE_BIN

# One account sends the load of many: rate limits that no load reaches, unless a proof sets others.
export CYNODE_SERVER_REQUESTS_PER_SECOND=1000000 CYNODE_SERVER_REQUEST_BURST=1000000 CYNODE_SERVER_POLICY_CHANGES_PER_MINUTE=1000000

free_port() {
    prove/support/free-port
}

# wait_for URL: until it answers 200, at most 30 s.
wait_for() {
    for _ in $(seq 1 1500); do
        [ "$(curl -s -o /dev/null -w '%{http_code}' "$1")" = 200 ] && return
        sleep 0.02
    done
    echo "no answer from $1" >&2
    return 1
}

# start_server: a server on $address and $internal. Sets $server_pid. With scheme=https the proof configures TLS and CURL_CA_BUNDLE before.
start_server() {
    export CYNODE_STORAGE_DIRECTORY=$work/storage
    [ -f "$work/storage/master.key" ] || "$cynode" admin master-key "$work/storage/master.key" >/dev/null
    "$cynode" serve --set server.listen="$address" --set server.internal_listen="$internal" 2>>"$work/serve.log" &
    server_pid=$!
    pids+=("$server_pid")
    wait_for "${scheme:-http}://$address/readyz"
}

# serve_over_a_real_cluster: a durable cluster, migrated, and a server over it.
# Sets $address, $internal, $server_pid, $bootstrap and $cluster_url.
serve_over_a_real_cluster() {
    start_cluster "$work/pg" -c fsync=on -c synchronous_commit=on -c full_page_writes=on -c autovacuum=on
    address=127.0.0.1:$(free_port)
    internal=127.0.0.1:$(free_port)
    export DATABASE_URL=$cluster_url
    "$cynode" migrate 2>"$work/migrate.log"
    bootstrap=$("$cynode" admin bootstrap 2>>"$work/migrate.log")
    bootstrap=${bootstrap##*=}
    start_server
}

# The engine's program itself: what npm puts on the path is a script that starts it, and the script's child would outlive a kill.
engine_program() {
    local program dir
    program=$(readlink -f "$(command -v restate-server)") || { echo "restate-server is not installed: run scripts/install" >&2; return 1; }
    case $program in
    *.js)
        dir=$(dirname "$(dirname "$program")")
        # npm puts the program of a machine's kind below the package or beside it.
        (shopt -s nullglob && find "$dir" "$dir"/../restate-server-* -type f -path '*/bin/restate-server' -print -quit)
        ;;
    *) echo "$program" ;;
    esac
}

# figures MODE ARGUMENTS: passes on the output of a program and adds lines `figure: NAME VALUE UNIT`; see prove/support/figures.py.
figures() {
    python3 prove/support/figures.py "$@"
}

# figure NAME VALUE UNIT: a figure of this proof; prove/run writes it into the result.
figure() {
    echo "figure: $1 $2 $3"
}

# proof_of COMMAND ARGUMENTS: chaos or steps with an installation of real processes; see cynode-proof --help.
proof_of() {
    local command=$1
    shift
    "${cynode%/*}/cynode-proof" "$command" --cynode "$cynode" --restate "$(engine_program)" \
        --postgres "$(dirname "$(readlink -f "$(command -v initdb)")")" --scripts prove/data/scripts.json "$@"
}

# proof_with_nodes COMMAND ARGUMENTS: real nodes in network namespaces of their own; see cynode-proof nodes --help.
proof_with_nodes() {
    [ "$(id -u)" = 0 ] || { echo "network namespaces need root" >&2; return 1; }
    proof_of nodes --node "${cynode%/*}/cynode-node" --tag "$machines" "$@"
}

# proof_with_manager COMMAND ARGUMENTS: a whole installation with a project manager, an analyst and a node; see cynode-proof false-claims --help.
proof_with_manager() {
    local bin=${cynode%/*}
    [ "$(id -u)" = 0 ] || { echo "network namespaces need root" >&2; return 1; }
    proof_of "$@" --node "$bin/cynode-node" --runner "$bin/cynode-runner" --pma "$bin/cynode-pma" --instructions instructions --tag "$machines"
}

# api METHOD PATH [BODY]: a call of the user's interface as the admin; prints the answer, fails on anything but success.
api() {
    curl -sS --fail-with-body -X "$1" "${scheme:-http}://$address$2" -H "Authorization: Bearer $admin_token" \
        -H 'Content-Type: application/json' ${3:+-d "$3"}
}

# field NAME: a field of the JSON on standard input, as a Python expression after the object.
field() {
    python3 -c "import json, sys; print(json.load(sys.stdin)$1)"
}

# set_up_gateway ECHO_URL: an admin, a project, a task, the echo server's tools under their bare names, limits that no load reaches,
# and an agent. Sets $admin_token, $project, $task, $agent_token and $agent_token_id.
set_up_gateway() {
    local password='correct horse battery'
    curl -sS --fail-with-body -o /dev/null "http://$address/v1/bootstrap" -H 'Content-Type: application/json' \
        -d "{\"token\": \"$bootstrap\", \"handle\": \"admin\", \"display_name\": \"Admin\", \"password\": \"$password\"}"
    admin_token=$(curl -sS --fail-with-body "http://$address/v1/sessions" -H 'Content-Type: application/json' \
        -d "{\"handle\": \"admin\", \"password\": \"$password\"}" | field "['token']")
    project=$(api POST /v1/projects '{"slug": "gate", "title": "Gate"}' | field "['id']")
    task=$(api POST /v1/tasks "{\"project_id\": \"$project\", \"description\": \"Call tools.\", \"name\": \"call-tools\"}" | field "['id']")
    for setting in calls_per_second max_identical_calls calls_per_task_hour; do
        api PUT "/v1/settings/gateway.$setting" '{"value": 1000000, "expected_version": 0}' >/dev/null
    done
    install_tools echo "$1"
    issue_agent_token
}

# install_tools NAME URL: a tool server whose tools keep their bare names, all accepted. Sets $server and $server_tools.
install_tools() {
    server=$(api POST /v1/tool-servers "{\"name\": \"$1\", \"scope\": \"both\", \"audience\": \"everybody\", \"prefix\": \"\",
        \"timeout_ms\": ${tool_timeout:-10000}, \"max_in_flight\": 1000, \"allow_private\": true,
        \"transport\": {\"type\": \"http\", \"url\": \"$2\"}}" | field "['server_id']")
    local accepted
    accepted=$(api POST "/v1/tool-servers/$server/refresh" null | python3 -c 'import json, sys
server = json.load(sys.stdin)
assert server.get("failure") is None and server["tools"], server
print(json.dumps({"tools": {tool["tool"]: tool["definition_digest"] for tool in server["tools"]}}))')
    api POST "/v1/tool-servers/$server/accept" "$accepted" >/dev/null
    server_tools=$(python3 -c 'import json, sys; print("".join(f", \"{name}\"" for name in json.load(sys.stdin)["tools"]))' <<<"$accepted")
}

# make_networked_profile: once, a profile `networked` that has every tool, names those of install_tools, and may reach every host.
make_networked_profile() {
    [ -z "${networked:-}" ] || return 0
    networked=1
    api POST /v1/profiles '{"name": "networked", "spec": {"tools": ["*", "ext.*"'"${server_tools:-}"'], "network": [{"domain": "*", "methods": ["*"]}], "variables": ["*"],
        "paths": {"read": ["**"], "write": ["**"]}, "models": ["*"], "memory": "write"}}' >/dev/null
}

# issue_agent_token: a developer's token for the task. Sets $agent_token and $agent_token_id.
issue_agent_token() {
    local issued
    make_networked_profile
    issued=$(api POST /v1/agent-tokens "{\"role\": \"developer\", \"project_id\": \"$project\", \"task_id\": \"$task\", \"profile\": \"networked\", \"network\": true,
        \"expires_in_seconds\": 36000}")
    agent_token=$(field "['token']" <<<"$issued")
    agent_token_id=$(field "['agent_token_id']" <<<"$issued")
}
