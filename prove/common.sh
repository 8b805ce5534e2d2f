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
    [ "$status" = 0 ] || tail -n 20 "$work"/*.log >&2 2>/dev/null
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT

# The release build, unless told which program to use.
if [ -z "${CYNODE_BIN:-}" ]; then
    scripts/install
    cargo build --release --workspace --quiet
    CYNODE_BIN=${CARGO_TARGET_DIR:-target}/release/cynode
fi
cynode=$(realpath "$CYNODE_BIN")
unset CYNODE_BIN

# A port that is free on loopback now.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
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

# start_server: a server on $address and $internal. Sets $server_pid.
start_server() {
    "$cynode" serve --set server.listen="$address" --set server.internal_listen="$internal" 2>>"$work/serve.log" &
    server_pid=$!
    pids+=("$server_pid")
    wait_for "http://$address/readyz"
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
    local found dir
    found=$(readlink -f "$(command -v restate-server)") || { echo "restate-server is not installed: run scripts/install" >&2; return 1; }
    case $found in
    *.js)
        dir=$(dirname "$(dirname "$found")")
        find "$dir" "$dir"/../restate-server-* -type f -path '*/bin/restate-server' 2>/dev/null | head -n 1
        ;;
    *) echo "$found" ;;
    esac
}

# proof_of COMMAND ARGUMENTS: chaos or steps with an installation of real processes; see cynode-proof --help.
proof_of() {
    local command=$1
    shift
    "${cynode%/*}/cynode-proof" "$command" --cynode "$cynode" --restate "$(engine_program)" \
        --postgres "$(dirname "$(readlink -f "$(command -v initdb)")")" --scripts prove/data/scripts.json "$@"
}
