# shellcheck shell=bash disable=SC2034,SC2154 # common.sh sets what it reads, proofs read what it sets
# Shared by the proofs about the console; source it after common.sh. Installs what drives a browser, and starts everything by `cynode up`.

. scripts/node.sh

# browser_tools: the packages that drive a browser and look for barriers, by their lockfile. Sets $modules.
browser_tools() {
    command -v chromium >/dev/null || { echo "chromium is not installed: run scripts/install" >&2; return 1; }
    use_recent_node
    modules=${XDG_CACHE_HOME:-$HOME/.cache}/cynode-prove/console
    cmp -s prove/support/console/package-lock.json "$modules/complete" && return
    rm -rf "$modules"
    mkdir -p "$modules"
    cp prove/support/console/package.json prove/support/console/package-lock.json "$modules"
    npm ci --silent --ignore-scripts --no-audit --no-fund --prefix "$modules"
    cp prove/support/console/package-lock.json "$modules/complete"
}

# console_up: a new installation in $work/data. If its server is killed, it is started again until $work/stop is there.
# Sets $address, $internal, $setup_link and $keeper_pid; the server's process is in $work/up.pid.
console_up() {
    unset DATABASE_URL CYNORK_URL CYNORK_TOKEN
    chmod 711 "$work"
    address=127.0.0.1:$(free_port) internal=127.0.0.1:$(free_port)
    mkdir -m 711 "$work/data"
    cat >"$work/data/config.toml" <<END
[server]
listen = "$address"
public_url = "http://$address"
internal_listen = "$internal"

[engine]
runner_listen = "127.0.0.1:$(free_port)"
reconcile_interval_ms = 200
redispatch_after_ms = 2000

[manager]
listen = "127.0.0.1:$(free_port)"
analyst_listen = "127.0.0.1:$(free_port)"
instructions = "$PWD/instructions"
END
    keep_up &
    keeper_pid=$!
    pids+=("$keeper_pid")
    wait_for "http://$address/readyz"
    setup_link=$(cat "$work/data/setup-link")
    curl -s -H 'Accept: text/html' "http://$address/" | grep -q 'id="root"' ||
        { echo "the server was built without the console: npm ci && npm run build in console/, then build it again" >&2; return 1; }
}

keep_up() {
    local up_pid=
    trap 'kill "$up_pid" 2>/dev/null; wait "$up_pid" 2>/dev/null; exit' TERM
    until [ -e "$work/stop" ]; do
        "$cynode" --config "$work/data/config.toml" up --data-dir "$work/data" >>"$work/up.log" 2>&1 &
        up_pid=$!
        echo "$up_pid" >"$work/up.pid"
        wait "$up_pid" || true
    done
}
