#!/bin/sh
# Installs CyNode from packages or from the archive, after verifying who signed it.
#
# usage: install.sh [--from URL|DIRECTORY] [--release VERSION] [--prefix DIRECTORY] [--only cynork|cynode-node] [--no-database]
#                   [--allow-downgrade] [--public-key KEY] [--dry-run]
#   --from             where the release is: https://…, http://127.0.0.1…, file://… or a directory (for machines without a network)
#   --release          the version that is wanted; another one, though it is signed, is refused
#   --prefix           unpacks the archive there instead of installing packages; needs no root
#   --only             one program with what it needs: the command line, or a node for another control plane
#   --no-database      does not install PostgreSQL, because the database is elsewhere
#   --allow-downgrade  installs an older version than the one that is there: at most the release before, whose programs know the schema
#   --public-key       the minisign public key to trust, instead of the one that this script was published with
#   --dry-run          downloads and verifies, and installs nothing
#
# It needs minisign (`apt-get install minisign`) and curl. A release that is not signed by the key is refused, and so is a file whose
# digest the signed list does not have. Nothing of the release runs before it was verified.
set -eu
public_key=''
from='' prefix='' only='' dry='' downgrade='' wanted='' database=postgresql

fail() { echo "install.sh: $*" >&2; exit 1; }
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry=1; shift; continue ;;
    --no-database) database=''; shift; continue ;;
    --allow-downgrade) downgrade=1; shift; continue ;;
    --from | --release | --prefix | --only | --public-key) [ $# -ge 2 ] || fail "$1 needs a value" ;;
    *) sed -n '4,15s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
    case $1 in
    --from) from=$2 ;;
    --release) wanted=$2 ;;
    --prefix) prefix=$2 ;;
    --only) only=$2 ;;
    --public-key) public_key=$2 ;;
    esac
    shift 2
done
[ -n "$from" ] || fail "say where the release is: --from URL or --from DIRECTORY"
[ -n "$public_key" ] || fail "this copy has no public key: give --public-key, from a place that you trust"
case $only in '' | cynork | cynode-node) ;; *) fail "--only is cynork or cynode-node" ;; esac
command -v minisign >/dev/null || fail "minisign is not installed: apt-get install minisign"
case $from in
https://* | http://127.0.0.1[:/]* | http://localhost[:/]* | file:///*) command -v curl >/dev/null || fail "curl is not installed" ;;
http://*) fail "$from is not encrypted: use https" ;;
/* | ./* | ../*) [ -d "$from" ] || fail "there is no directory $from" ;;
*) fail "--from is a URL or a directory that begins with / or ./" ;;
esac
case $(uname -m) in
x86_64) arch=amd64 ;;
aarch64) arch=arm64 ;;
*) fail "there are no programs for $(uname -m)" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
fetch() {
    case $from in
    *://*) curl --fail --silent --show-error --location --proto '=https,http,file' --proto-redir '=https' --output "$work/$1" "${from%/}/$1" ;;
    *) cp "$from/$1" "$work/$1" ;;
    esac || fail "$1 could not be fetched from $from"
}

# First the signed list of digests, then only files that it names.
fetch SHA256SUMS
fetch SHA256SUMS.minisig
# The comment of the signature is signed, too: it names the release, so that an older one does not pass for the one that was wanted.
release=$(minisign -V -Q -P "$public_key" -m "$work/SHA256SUMS" -x "$work/SHA256SUMS.minisig") || fail "the release is not signed by the key that you trust: nothing was installed"
if [ -n "$wanted" ] && [ "$release" != "cynode $wanted" ]; then
    fail "the list is signed as that of \"$release\", and cynode $wanted is wanted: nothing was installed"
fi
while read -r digest name; do
    case $digest$name in *[!A-Za-z0-9._~+-]*) fail "the signed list names a file in a way that is not expected" ;; esac
done <"$work/SHA256SUMS"

# pick SUFFIX: the one file of the list whose name ends so.
pick() {
    found=$(awk -v pattern="$1" '$2 ~ pattern { print $2 }' "$work/SHA256SUMS")
    [ "$(printf '%s' "$found" | grep -c .)" = 1 ] || fail "the release has no file $1, or several"
    echo "$found"
}
if [ -n "$prefix" ]; then
    files=$(pick "^cynode-[0-9][^/]*-linux-${arch}[.]tar[.]zst$")
    command -v zstd >/dev/null || fail "zstd is not installed"
elif command -v dpkg >/dev/null; then
    kind="_${arch}[.]deb$"
    names=${only:-cynode-engine cynode cynode-node cynork}
    files=$(for name in $names; do pick "^${name}_[0-9][^/]*$kind"; done)
elif command -v rpm >/dev/null; then
    machine=$(uname -m)
    names=${only:-cynode-engine cynode cynode-node cynork}
    files=$(for name in $names; do pick "^$name-[0-9][^/]*[.]${machine}[.]rpm$"; done)
else
    fail "there is no package manager that it knows here: give --prefix to unpack the archive"
fi
for file in $files; do
    # The engine has a version of its own.
    case ${wanted:+$file} in '' | cynode-engine* | *_"$wanted"_* | *-"$wanted"-*) ;; *) fail "$file is not of version $wanted: nothing was installed" ;; esac
    fetch "$file"
    (cd "$work" && awk -v name="$file" '$2 == name' SHA256SUMS | sha256sum --check --quiet --strict) || fail "$file is not the file that was signed: nothing was installed"
done
echo "verified: $release: $files" | tr "\n" " " && echo
[ -z "$dry" ] || exit 0

if [ -n "$prefix" ]; then
    mkdir -p "$prefix"
    # The programs find each other and their instructions by where they are.
    zstd -q -d -c "$work/$files" | tar -x --strip-components=1 --no-same-owner -C "$prefix"
    echo "CyNode is in $prefix: begin with $prefix/bin/cynode doctor"
    exit 0
fi
[ "$(id -u)" = 0 ] || fail "packages are installed by root; --prefix ~/.local needs none"
# apt's own user reads them.
chmod 755 "$work"
set --
for file in $files; do set -- "$@" "$work/$file"; done
# shellcheck disable=SC2086 # none or one
case $1 in
*.deb)
    [ -n "$only" ] || set -- "$@" $database
    # A new machine has no lists of the packages that these depend on.
    has_lists() { find /var/lib/apt/lists -name '*_Packages*' 2>/dev/null | grep -q .; }
    if ! has_lists; then
        echo "apt has no lists of packages: apt-get update"
        { apt-get update -qq && has_lists; } || fail "apt-get update failed, and apt knows no packages: mend the sources of apt, then repeat this command. Nothing was installed"
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ${downgrade:+--allow-downgrades} "$@" ||
        fail "apt-get failed. If it could not fetch a package, its lists are out of date: apt-get update. An older version needs --allow-downgrade"
    ;;
*)
    if command -v dnf >/dev/null; then
        # dnf installs nothing older, and downgrades nothing that is not there.
        if [ -n "$downgrade" ]; then dnf downgrade -y "$@"; else dnf install -y "$@"; fi
    else
        rpm -U ${downgrade:+--oldpackage} "$@"
    fi
    ;;
esac
case $only in
'') echo "begin with: cynode doctor && systemctl enable --now cynode" ;;
*) echo "$only is installed" ;;
esac
