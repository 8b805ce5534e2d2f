# shellcheck shell=bash
# Shared by the peers' scripts; source it. Finds a Python of a wanted version and waits for servers.
set -euo pipefail

# fits PYTHON OLDEST NEWEST: whether it runs, is within (3.12 3.13, say) and can make environments.
fits() {
    "$1" - "$2" "$3" 2>/dev/null <<'PYTHON'
import sys, ensurepip, sqlite3, ssl, venv
oldest, newest = (tuple(map(int, version.split("."))) for version in sys.argv[1:])
sys.exit(not oldest <= sys.version_info[:2] <= newest)
PYTHON
}

# find_python OLDEST NEWEST: prints the path of one that fits. Looks at what is here, then asks Debian, then uv.
find_python() {
    local python version fetched
    look() {
        for version in $(seq "${1#3.}" "${2#3.}"); do
            for python in "python3.$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$version".*/bin/python3; do
                fits "$python" "$1" "$2" && command -v "$python" && return
            done
        done
        fits python3 "$1" "$2" && command -v python3
    }
    look "$@" && return
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        apt-get update -qq >&2 || true
        for version in $(seq "${1#3.}" "${2#3.}"); do
            apt-get install -y -qq --no-install-recommends "python3.$version-venv" >/dev/null 2>&1 && break
        done
        look "$@" && return
    fi
    fetched=${XDG_CACHE_HOME:-$HOME/.cache}/cynode-prove/python
    python3 -m pip install -q --disable-pip-version-check --target "$fetched/uv" uv >&2 &&
        "$fetched/uv/bin/uv" python install -q --install-dir "$fetched" "$1" >&2 || true
    for python in "$fetched"/cpython-*/bin/python3; do
        fits "$python" "$1" "$2" && echo "$python" && return
    done
    echo "no Python from $1 to $2 was found" >&2
    return 1
}

# secret: a random word that also satisfies rules for passwords.
secret() { python3 -c 'import secrets; print(secrets.token_urlsafe(48) + "-aA1")'; }

# wait_for_peer PID URL LOG: until it answers 200, at most three minutes; shows the log if it does not.
wait_for_peer() {
    for _ in $(seq 1 1800); do
        [ "$(curl -s -o /dev/null -w '%{http_code}' "$2")" = 200 ] && return
        kill -0 "$1" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$3" >&2
    kill "$1" 2>/dev/null || true
    return 1
}
