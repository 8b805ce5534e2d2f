# shellcheck shell=bash
# Source it where a recent Node.js is needed: to build the console and to drive a browser. Debian 12 has an older one; then the one of
# scripts/node/package-lock.json, which has the digest of each package, goes first on the path.

# use_recent_node: a Node.js of 20.19 or later as `node`.
use_recent_node() {
    local folder=${XDG_CACHE_HOME:-$HOME/.cache}/cynode-node-js cpu=x64 root
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' 2>/dev/null && return
    [ "$(uname -m)" != aarch64 ] || cpu=arm64
    if ! cmp -s "$root/node/package-lock.json" "$folder/complete"; then
        rm -rf "$folder"
        mkdir -p "$folder"
        cp "$root/node/package.json" "$root/node/package-lock.json" "$folder"
        npm ci --silent --ignore-scripts --no-audit --no-fund --prefix "$folder"
        cp "$root/node/package-lock.json" "$folder/complete"
    fi
    PATH=$folder/node_modules/node-linux-$cpu/bin:$PATH
}
