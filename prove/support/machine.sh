# shellcheck shell=bash disable=SC2154 # common.sh sets them
# Machines of proofs: containers in which systemd is process 1, over the Debian of debian-root, without a compiler and without a network. Sourced after
# common.sh.
#
#   start_machine NAME [OPTION…]   starts one, with further options of podman, and waits until it is up
#   remove_machine NAME            ends its units, whose control groups would stay in those of this machine, and removes it
#   run_on NAME COMMAND…           runs a command there as root

[ "$(id -u)" = 0 ] || { echo "a machine with systemd needs root" >&2; exit 1; }

# Where the container tools are those of an old kernel interface: a runtime that knows it, and limits that they may set.
files=$(ulimit -Hn)
[ "$files" != unlimited ] && [ "$files" -lt 1048576 ] || files=1048576
printf '[containers]\ndefault_ulimits=["nofile=%s:%s","nproc=8192:8192"]\n[engine]\ncgroup_manager="cgroupfs"\nruntime="runc"\nevents_logger="file"\n' \
    "$files" "$files" >"$work/containers.conf"
export CONTAINERS_CONF=$work/containers.conf

run_on() {
    local name=$1
    shift
    podman exec -i --env HOME=/root --workdir /root "$name" "$@" </dev/null
}
start_machine() {
    local name=$1 network=--network=none
    shift
    case "$*" in *--network=*) network="" ;; esac
    # shellcheck disable=SC2086 # none or one
    podman run -d --name "$name" --systemd=always --cgroupns=private $network --cap-add=SYS_ADMIN,NET_ADMIN,SYS_PTRACE \
        --security-opt seccomp=unconfined --security-opt unmask=ALL "$@" --rootfs "$(prove/support/debian-root):O" /sbin/init >/dev/null
    for _ in $(seq 300); do
        [ "$(run_on "$name" systemctl is-system-running 2>/dev/null)" != running ] || break
        sleep 0.1
    done
    run_on "$name" systemctl is-system-running >/dev/null || { run_on "$name" systemctl --failed >&2; return 1; }
    # As on a real machine: mounts are shared, which credentials of units need, and control groups can be made.
    # shellcheck disable=SC2016 # the shell of the machine expands it
    run_on "$name" sh -c 'mount --make-rshared /; for group in /sys/fs/cgroup/*; do mount -o remount,bind,rw "$group" 2>/dev/null || true; done'
}
remove_machine() {
    podman exec "$1" sh -c 'timeout 60 systemctl stop "cynode*"; true' </dev/null >/dev/null 2>&1 || true
    podman rm -f -t 0 "$1" >/dev/null 2>&1 || true
}
