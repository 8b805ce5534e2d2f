# shellcheck shell=bash disable=SC2154 # common.sh sets what it reads
# Source it after common.sh. goose, as its makers publish it, fetched once and cached; a home in which npm finds its packages without a network.

# fetch_goose_packages HOME: what `cynode-node agents install goose` needs, in the cache of that home.
fetch_goose_packages() {
    local home=$1 cache=${XDG_CACHE_HOME:-$HOME/.cache}/cynode-prove
    mkdir -p "$cache/npm" "$work/fetch"
    [ -e "$work/fetch/agents" ] || mkdir -p "$work/fetch/agents"
    printf 'registry=%s\ncache=%s\nprefer-offline=true\nupdate-notifier=false\n' "$(npm config get registry)" "$cache/npm" >"$home/.npmrc"
    # Once with a network: afterwards npm has every package that it needs.
    HOME=$home "${cynode%/*}/cynode-node" --state "$work/fetch" agents install goose >"$work/goose.log" 2>&1 || {
        echo "goose could not be fetched: the npm registry must be reachable once" >&2
        cat "$work/goose.log" >&2
        return 1
    }
}
