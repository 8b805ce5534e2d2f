# shellcheck shell=bash disable=SC2034,SC2154 # common.sh sets what it reads, proofs read what it sets
# Shared by the proofs about models; source it after common.sh. Sets up people, providers and models by the user's interface.

# set_up_models: an admin and a project. Sets $admin_token and $project.
set_up_models() {
    local password='correct horse battery'
    curl -sS --fail-with-body -o /dev/null "http://$address/v1/bootstrap" -H 'Content-Type: application/json' \
        -d "{\"token\": \"$bootstrap\", \"handle\": \"admin\", \"display_name\": \"Admin\", \"password\": \"$password\"}"
    admin_token=$(curl -sS --fail-with-body "http://$address/v1/sessions" -H 'Content-Type: application/json' \
        -d "{\"handle\": \"admin\", \"password\": \"$password\"}" | field "['token']")
    project=$(api POST /v1/projects '{"slug": "models", "title": "Models"}' | field "['id']")
}

# scripted_provider NAME FILE: a provider that answers by the script in the file.
scripted_provider() {
    api PUT "/v1/providers/$1" "{\"kind\": \"scripted\", \"script\": $(cat "$2")}" >/dev/null
}

# compatible_provider NAME DIALECT ROOT: a server that speaks the dialect at ROOT (without /v1).
compatible_provider() {
    api PUT "/v1/providers/$1" "{\"kind\": \"compatible\", \"dialect\": \"$2\", \"base_url\": \"$3/v1\"}" >/dev/null
}

# model ID PROVIDER UPSTREAM CONTEXT MAX_OUTPUT: a model that is called UPSTREAM at its one provider and costs a little.
model() {
    api PUT "/v1/model-registry/$1" "{\"context_tokens\": $4, \"max_output_tokens\": $5, \"tools\": true, \"json_schema\": true,
        \"routes\": [{\"provider\": \"$2\", \"upstream\": \"$3\",
            \"prices\": {\"input\": 1000, \"cached\": 100, \"cache_write\": 1000, \"output\": 2000}}]}" >/dev/null
}
