# Writes apt's configuration and reads the package index.
set -eu
apt_dir="$PACKAGES_DIR/.apt"
rm -rf "$apt_dir"
mkdir -p "$apt_dir/state/lists/partial" "$apt_dir/cache/archives/partial" "$apt_dir/none"
: > "$apt_dir/status"
printf '%s\n' "$APT_SOURCES" > "$apt_dir/sources.list"
cat > "$apt_dir/apt.conf" <<END
Dir::State "$apt_dir/state";
Dir::State::Lists "$apt_dir/state/lists";
Dir::State::status "$APT_STATUS";
Dir::Cache "$apt_dir/cache";
Dir::Cache::Archives "$apt_dir/cache/archives";
Dir::Etc "$apt_dir/none";
Dir::Etc::SourceList "$apt_dir/sources.list";
Dir::Etc::SourceParts "$apt_dir/none";
Dir::Etc::Parts "$apt_dir/none";
Dir::Etc::Preferences "$apt_dir/none/preferences";
Dir::Etc::PreferencesParts "$apt_dir/none";
Dir::Etc::Trusted "$apt_dir/none/trusted.gpg";
Dir::Etc::TrustedParts "$APT_KEYS_DIR";
Dir::Log "$apt_dir/log";
APT::Sandbox::User "";
APT::Get::AllowUnauthenticated "false";
APT::Update::Error-Mode "any";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::Check-Valid-Until "$APT_CHECK_EXPIRY";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::http::Pipeline-Depth "0";
Acquire::http::Proxy "false";
Acquire::https::Proxy "false";
Debug::NoLocking "true";
END
exec apt-get update -q
