# shellcheck shell=bash disable=SC2034,SC2154 # common.sh sets what it reads, proofs read what it sets
# Shared by the proofs about the project manager; source it after common.sh and support/models.sh. Starts everything by `cynode up`.

# up: everything on free loopback ports, in $work/data. Sets $address, $internal, $manager, $up_pid and $cluster_url.
up() {
    local key ports=()
    unset DATABASE_URL
    address=127.0.0.1:$(free_port) internal=127.0.0.1:$(free_port) manager=127.0.0.1:$(free_port)
    for key in engine.runner_listen manager.analyst_listen; do
        ports+=(--set "$key=127.0.0.1:$(free_port)")
    done
    "$cynode" up --data-dir "$work/data" --set manager.instructions=instructions --set server.listen="$address" \
        --set server.public_url="http://$address" --set server.internal_listen="$internal" --set manager.listen="$manager" \
        "${ports[@]}" >"$work/up.log" 2>&1 &
    up_pid=$!
    pids+=("$up_pid")
    wait_for "http://$address/readyz"
    wait_for "http://$manager/healthz"
    bootstrap=$(sed 's/.*#bootstrap=//' "$work/data/setup-link")
    # Only to look at.
    cluster_url="postgres://cynode:$(cat "$work/data/postgres/password")@localhost/postgres?host=$work/data/postgres/run"
}

# tiers PROVIDER UPSTREAM CONTEXT MAX_OUTPUT: one model for each tier, all called UPSTREAM at the provider.
tiers() {
    local tier
    for tier in fast standard deep; do
        api PUT "/v1/model-registry/$1-$tier" "{\"tier\": \"$tier\", \"context_tokens\": $3, \"max_output_tokens\": $4, \"tools\": true,
            \"json_schema\": true, \"routes\": [{\"provider\": \"$1\", \"upstream\": \"$2\",
                \"prices\": {\"input\": 1000, \"cached\": 100, \"cache_write\": 1000, \"output\": 2000}}]}" >/dev/null
    done
}

# people HANDLE...: people of no rights but those in a project of their own, each with a key. Writes $work/people.
people() {
    local handle user key token project password='correct horse battery'
    for handle in "$@"; do
        user=$(api POST /v1/users "{\"handle\": \"$handle\", \"display_name\": \"$handle\", \"password\": \"$password\"}" | field "['id']")
        token=$(curl -sS --fail-with-body "http://$address/v1/sessions" -H 'Content-Type: application/json' \
            -d "{\"handle\": \"$handle\", \"password\": \"$password\"}" | field "['token']")
        project=$(api POST /v1/projects "{\"slug\": \"of-$handle\", \"title\": \"Of $handle\"}" | field "['id']")
        api PUT "/v1/projects/$project/members/$user" '{"role": "operator"}' >/dev/null
        key=$(admin_token=$token api POST /v1/api-keys '{"name": "proof"}' | field "['token']")
        printf '{"%s": {"user": "%s", "project": "%s", "key": "%s"}}\n' "$handle" "$user" "$project" "$key"
    done | python3 -c 'import json, sys
print(json.dumps({who: about for line in sys.stdin for who, about in json.loads(line).items()}))' >"$work/people"
}
