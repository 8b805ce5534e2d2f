# Fetches the named packages and all that they need.
set -eu
exec apt-get install -q -y --download-only --no-install-recommends --no-remove -- "$@"
