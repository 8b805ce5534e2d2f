# The loop. `cargo install just`, or read the recipes: each is one line.

# Lints, as CI sees them.
check:
    cargo clippy --workspace --all-targets -- -D warnings

# Shell, Python, spelling, paths in pages, libraries, subjects of commits; `scripts/install --linters` brings the programs.
lint-habits:
    scripts/lint-habits

# Tests; narrow with a filter: just test -E 'package(cynode-db)'
[positional-arguments]
test *args:
    cargo nextest run --workspace "$@"

# Checks every query against a real schema and renews crates/cynode-db/.sqlx.
sqlx:
    scripts/sqlx

# Renews generated files.
gen:
    cargo run --quiet --bin cynode -- openapi > docs/openapi.json
    cargo run --quiet --bin cynode -- openapi --internal > docs/openapi-internal.json
    cargo run --quiet --bin cynork -- contract > docs/cynork.json
    cargo run --quiet --bin cynode -- reference docs/reference
    cargo run --quiet --bin cynork -- contract --table | sed -i -e '/^<!-- commands -->$/,/^<!-- end of commands -->$/{//!d}' -e '/^<!-- commands -->$/r /dev/stdin' docs/reference/cynork.md

# Builds the web console into console/dist, which the next build of the server embeds.
console:
    scripts/build-console

# Pictures of every page of the console at four widths in both themes: just console-screens URL NAME PASSWORD_FILE DIRECTORY
[positional-arguments]
console-screens *args:
    cd console && node --experimental-websocket scripts/screens.mjs "$@"

# One promise, shown: just prove api-load
prove *args:
    prove/run {{args}}

# Everything that CI runs.
verify:
    .ci/run
