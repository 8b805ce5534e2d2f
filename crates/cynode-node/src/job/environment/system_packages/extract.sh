# Extracts the packages, makes links, and removes apt's files. Maintainer scripts are not even unpacked.
set -eu
umask 022
cd "$PACKAGES_DIR"
# A merged /usr: what a package has below /lib goes to /usr/lib.
for name in bin sbin lib lib32 lib64 libx32; do
    mkdir -p "usr/$name"
    [ -e "$name" ] || [ -L "$name" ] || ln -s "usr/$name" "$name"
done
count=0
for file in .apt/cache/archives/*.deb; do
    [ -e "$file" ] || continue
    { dpkg-deb --fsys-tarfile "$file" || printf '%s\n' "$file" > .apt/failed; } |
        tar -x --no-same-owner --keep-directory-symlink --delay-directory-restore
    [ ! -e .apt/failed ] || { echo "E: $file cannot be extracted"; exit 1; }
    count=$((count + 1))
done
bytes=$(cat .apt/cache/archives/*.deb 2>/dev/null | wc -c)
# Directories that a job may not enter would break the layer.
find . -path ./.apt -prune -o -type d ! -perm -u+rwx -exec chmod u+rwx {} +
printf '%s\n' "$ALTERNATIVES" | while read -r link targets; do
    for directory in ${link%/*}; do
        [ -d "$directory" ] || continue
        path="$directory/${link##*/}"
        [ ! -e "$path" ] && [ ! -L "$path" ] || continue
        if [ -n "$OVER_HOST" ] && { [ -e "$OVER_HOST$path" ] || [ -L "$OVER_HOST$path" ]; }; then
            continue
        fi
        target=$(cd "$directory" && for each in $targets; do
            if [ -e "$each" ]; then
                printf '%s\n' "$each"
                break
            fi
        done)
        [ -z "$target" ] || ln -s "$target" "$path"
    done
done
if [ -d usr/share/ca-certificates/mozilla ] && [ ! -e etc/ssl/certs/ca-certificates.crt ]; then
    mkdir -p etc/ssl/certs
    cat usr/share/ca-certificates/mozilla/*.crt > etc/ssl/certs/ca-certificates.crt
fi
rm -rf .apt
echo "$SUMMARY_MARK $count $bytes"
