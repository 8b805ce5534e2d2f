# shellcheck shell=bash disable=SC2034 # scripts and proofs read what it sets
# Throw-away PostgreSQL clusters for tests, query checking and proofs. Source this file.
#
#   start_cluster DIR    makes and starts a cluster in DIR (socket only, no TCP, no fsync); its URL is in $cluster_url
#   stop_cluster DIR     ends it at once and removes DIR
#
# `start_cluster DIR -c fsync=on …` passes further options to the server.

# PostgreSQL refuses to run as root; under root it runs as the user `postgres`.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=postgres --regid=postgres --init-groups "$@"
    else
        "$@"
    fi
}

# Debian keeps the server's programs off the PATH.
if ! command -v initdb >/dev/null; then
    for bin in /usr/lib/postgresql/*/bin; do
        [ -x "$bin/initdb" ] && PATH="$bin:$PATH"
    done
fi

start_cluster() {
    local dir=$1
    shift
    mkdir -p "$dir"
    chmod 700 "$dir"
    [ "$(id -u)" = 0 ] && chown postgres "$dir"
    (
        cd "$dir" || exit 1
        as_postgres initdb -D "$dir/data" -A trust -U postgres -E UTF8 --locale=C.UTF-8 --no-sync >"$dir/initdb.log" 2>&1 &&
            as_postgres pg_ctl -D "$dir/data" -l "$dir/server.log" -w -s start -o "-k $dir -c listen_addresses='' \
                -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=300 \
                -c shared_buffers=256MB -c autovacuum=off $*"
    ) || { cat "$dir/initdb.log" "$dir/server.log" >&2 2>/dev/null; return 1; }
    cluster_url="postgres://postgres@localhost/postgres?host=$dir"
}

stop_cluster() {
    as_postgres pg_ctl -D "$1/data" -m immediate -s stop >/dev/null 2>&1
    rm -rf "$1"
}
