# Prints names of packages that begin as a name does: with as many letters of it as possible.
set -eu
name=$1
while [ "${#name}" -ge 3 ]; do
    names=$(apt-cache pkgnames "$name" 2>/dev/null | sort | head -n 5)
    if [ -n "$names" ]; then
        printf '%s\n' "$names"
        exit 0
    fi
    name=${name%?}
done
