"""Attempts to get out of a sandbox. Started inside one, none may succeed; started outside, as root, those with a control must.

escape.py --victim SECRET MARK KEY NAME: something of the host to attack, until its standard input ends.
escape.py FACTS [NAME…]: FACTS is a JSON file with what an attacker could know at best. Each attempt runs in a process of its own and
prints one line of JSON: {"attempt", "outcome": "succeeded" | "refused" | "unknown", "how"}.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import pty
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
attempts = {}

# Numbers of system calls, x86_64.
NR = dict(ptrace=101, syslog=103, personality=135, mknod=133, pivot_root=155, chroot=161, acct=163, settimeofday=164, mount=165, umount2=166, swapon=167,
          reboot=169, sethostname=170, setdomainname=171, iopl=172, ioperm=173, init_module=175, quotactl=179, io_setup=206, clock_settime=227,
          kexec_load=246, add_key=248, request_key=249, keyctl=250, migrate_pages=256, unshare=272, move_pages=279, perf_event_open=298, fanotify_init=300, name_to_handle_at=303,
          open_by_handle_at=304, setns=308, process_vm_readv=310, process_vm_writev=311, kcmp=312, finit_module=313, kexec_file_load=320, bpf=321,
          userfaultfd=323, pidfd_send_signal=424, io_uring_setup=425, open_tree=428, move_mount=429, fsopen=430, fspick=433, pidfd_open=434, clone3=435,
          pidfd_getfd=438, mount_setattr=442, quotactl_fd=443, clone=56, shmget=29, shmat=30, shmctl=31, semget=64, msgget=68, mq_open=240, capset=126, prctl=157)


class Refused(Exception):
    pass


def attempt(function):
    attempts[function.__name__] = function
    return function


def call(name, *arguments):
    """A system call; what it gives, or an OSError."""
    ctypes.set_errno(0)
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(NR[name]), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def reaches(name, *arguments):
    """A call that can do no harm, because its arguments are wrong: whether the kernel looked at them at all."""
    try:
        call(name, *arguments)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS, errno.EACCES):
            raise
        return f"the kernel took it up and said {errno.errorcode[error.errno]}"
    return "it was done"


def text(path, most=200):
    with open(path, "rb") as file:
        return file.read(most)


def secret(data):
    if facts["secret"].encode() not in data:
        raise Refused("what was read is not the secret")
    return "read the secret"


def talk(family, kind, address, word=b"?"):
    with socket.socket(family, kind) as s:
        s.settimeout(2)
        s.connect(address)
        s.send(word)
        return secret(s.recv(200))


# The network.
@attempt
def tcp_to_the_host(): return talk(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", facts["tcp4"]))
@attempt
def tcp_to_the_host_over_ipv6(): return talk(socket.AF_INET6, socket.SOCK_STREAM, ("::1", facts["tcp6"]))
@attempt
def tcp_to_an_ipv4_address_in_ipv6(): return talk(socket.AF_INET6, socket.SOCK_STREAM, ("::ffff:127.0.0.1", facts["tcp4"]))
@attempt
def udp_to_the_host(): return talk(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", facts["udp4"]))
@attempt
def udp_to_the_host_over_ipv6(): return talk(socket.AF_INET6, socket.SOCK_DGRAM, ("::1", facts["udp6"]))


def question():
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\6secret\4host\0" + struct.pack(">HH", 16, 1)


@attempt
def a_question_to_the_hosts_resolver(): return talk(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", facts["dns"]), question())


@attempt
def a_question_to_the_hosts_resolver_over_tcp():
    return talk(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", facts["tcp4"]), struct.pack(">H", len(question())) + question())


@attempt
def a_way_out_in_the_routing_table():
    routes = text("/proc/net/route", 10000).decode().splitlines()[1:]
    interfaces = [line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]]
    if not routes and interfaces == ["lo"]:
        raise Refused("loopback only")
    return f"{interfaces} {len(routes)} routes"


@attempt
def a_raw_socket(): return str(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
@attempt
def a_raw_socket_over_ipv6(): return str(socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58))
@attempt
def a_packet_socket(): return str(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
@attempt
def a_netlink_socket(): return str(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
@attempt
def a_netlink_socket_for_events_of_the_kernel(): return str(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15))
@attempt
def a_netlink_socket_for_the_firewall(): return str(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12))


@attempt
def a_socket_of_any_other_family():
    made = []
    for family in range(50):
        if family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
            continue
        for kind in (1, 2, 3, 5):
            if libc.socket(family, kind, 0) >= 0:
                made.append(family)
                break
    if not made:
        raise Refused("no family")
    return f"families {made}"


@attempt
def a_socket_of_any_other_protocol():
    """SCTP, DCCP, MPTCP and whatever else the kernel has or would load, by its number or by the type of the socket."""
    made = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for kind in (1, 2, 3, 4, 5, 6, 10):
            for protocol in (*range(256), 262):
                if (kind, protocol) in ((1, 0), (1, 6), (2, 0), (2, 17)):
                    continue
                descriptor = libc.socket(family, kind, protocol)
                if descriptor >= 0:
                    os.close(descriptor)
                    made.append((int(family), kind, protocol))
    if not made:
        raise Refused("only TCP and UDP")
    return f"{len(made)} kinds, such as {made[:3]}"


@attempt
def another_state_of_an_interface():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        # What it is already: whoever may set that may set anything.
        fcntl.ioctl(s, 0x8914, fcntl.ioctl(s, 0x8913, struct.pack("16sh14x", b"lo", 0)))
    return "changed an interface"


@attempt
def a_tunnel_device():
    os.close(os.open("/dev/net/tun", os.O_RDWR))
    return "opened the device of tunnels"


@attempt
def sockets_by_io_uring():
    parameters = ctypes.create_string_buffer(120)
    return f"ring {call('io_uring_setup', 8, parameters)}"


@attempt
def an_abstract_socket_of_the_host(): return talk(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + facts["abstract"])
@attempt
def a_socket_of_the_host_by_its_path(): return talk(socket.AF_UNIX, socket.SOCK_STREAM, facts["socket"])
@attempt
def a_socket_of_another_job_by_its_path(): return talk(socket.AF_UNIX, socket.SOCK_STREAM, facts["other_socket"])


@attempt
def a_socket_of_another_job_by_its_port():
    """Whoever answers at the ports of forwarders must be this job's."""
    for port in (4001, 4002, 4003, facts["other_port"]):
        try:
            with socket.create_connection(("127.0.0.1", port), 2) as s:
                s.sendall(b"?")
                if facts["other_token"].encode() in s.recv(200):
                    return f"port {port} is another job's"
        except OSError:
            pass
    raise Refused("only this job's answered")


@attempt
def another_socket_in_place_of_the_own():
    path = facts["own_socket"]
    os.rename(path, path + ".away")
    os.rename(path + ".away", path)
    return "replaced it"


# Files of the host.
@attempt
def a_secret_file(): return secret(text(facts["file"]))
@attempt
def a_secret_file_through_the_first_process(): return secret(text(f"/proc/{facts['process']}/root" + facts["file"]))


@attempt
def a_secret_file_through_every_process():
    for process in os.listdir("/proc"):
        for way in ("root", "cwd"):
            try:
                return secret(text(f"/proc/{process}/{way}{facts['file']}"))
            except (OSError, Refused):
                pass
    raise Refused("through none")


@attempt
def a_secret_file_by_climbing():
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    return secret(os.read(os.open("../" * 64 + facts["file"].lstrip("/"), os.O_RDONLY, dir_fd=here), 200))


@attempt
def a_secret_file_by_a_symbolic_link():
    link = os.path.join(facts["workspace"], "link")
    if os.path.lexists(link):
        os.unlink(link)
    os.symlink(facts["file"], link)
    return secret(text(link))


@attempt
def a_secret_file_by_a_hard_link():
    link = os.path.join(facts["workspace"], "hard")
    os.link(facts["file"], link)
    try:
        return secret(text(link))
    finally:
        os.unlink(link)


@attempt
def a_file_of_the_system_by_a_hard_link():
    link = os.path.join(facts["beside_system"], "hard-link-of-a-test")
    os.link("/usr/bin/env", link)
    os.unlink(link)
    return "linked a file of the system"


@attempt
def a_secret_file_by_its_handle():
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + b"\0" * 128)
    mount = ctypes.c_int()
    call("name_to_handle_at", -100, facts["file"].encode(), handle, ctypes.byref(mount), 0)
    root = os.open("/", os.O_RDONLY)
    return secret(os.read(call("open_by_handle_at", root, handle, os.O_RDONLY), 200))


@attempt
def the_root_of_the_disk_by_a_guessed_handle():
    """The second inode is the root of ext4."""
    handle = ctypes.create_string_buffer(struct.pack("IiII", 8, 1, 2, 0))
    place = os.open(facts["workspace"], os.O_RDONLY)
    return f"{os.listdir(call('open_by_handle_at', place, handle, os.O_RDONLY | os.O_DIRECTORY))[:5]}"


@attempt
def a_file_of_another_job(): return secret(text(facts["other_file"]))
@attempt
def the_token_of_another_job_in_its_directory(): return secret(text(facts["other_assignment"]))


@attempt
def the_token_of_another_job_anywhere():
    """In every file, environment and command line that can be seen."""
    word = facts["other_token"].encode()
    places = [facts["search"]] if "search" in facts else ["/work", "/home", "/tmp", "/run", "/out", "/opt", "/etc", "/dev/shm", "/var"]
    for place in places:
        for folder, _, files in os.walk(place):
            for name in files:
                try:
                    path = os.path.join(folder, name)
                    if stat.S_ISREG(os.lstat(path).st_mode) and os.path.abspath(path) != os.path.abspath(sys.argv[1]) and word in text(path, 1 << 20):
                        return f"in {path}"
                except OSError:
                    pass
    for process in os.listdir("/proc"):
        for file in ("environ", "cmdline"):
            try:
                if process.isdigit() and word in text(f"/proc/{process}/{file}", 1 << 20):
                    return f"in {file} of {process}"
            except OSError:
                pass
    raise Refused("nowhere")


@attempt
def passwords_of_the_host(): return f"{text('/etc/shadow')[:20]}"
@attempt
def a_process_of_the_host_in_proc(): return text(f"/proc/{facts['process']}/cmdline").decode() if facts["mark"] in text(f"/proc/{facts['process']}/cmdline").decode() else secret(b"")
@attempt
def the_environment_of_a_process_of_the_host(): return secret(text(f"/proc/{facts['process']}/environ", 100000))


@attempt
def a_program_of_the_system():
    with open("/usr/bin/of-an-escape", "w"):
        pass
    os.unlink("/usr/bin/of-an-escape")
    return "made a file beside the system's programs"


@attempt
def the_names_of_users():
    with open("/etc/passwd", "ab"):
        return "opened for writing"


@attempt
def what_was_given_to_be_read():
    with open(os.path.join(facts["readonly"], "of-an-escape"), "w"):
        return "made a file in it"


@attempt
def the_mode_of_what_was_given_to_be_read():
    os.chmod(os.path.join(facts["readonly"], "given"), 0o777)
    return "changed"


@attempt
def a_file_in_the_root():
    with open("/of-an-escape", "w"):
        pass
    os.unlink("/of-an-escape")
    return "made a file in the root"


# Mounts.
def place():
    path = os.path.join(facts["workspace"], "mount")
    os.makedirs(path, exist_ok=True)
    return path.encode()


def undo(path):
    libc.umount2(path, 2)
    return "mounted"


@attempt
def a_new_tmpfs(): return call("mount", b"none", place(), b"tmpfs", 0, 0) or undo(place())
@attempt
def a_new_proc(): return call("mount", b"none", place(), b"proc", 0, 0) or undo(place())
@attempt
def a_new_sysfs(): return call("mount", b"none", place(), b"sysfs", 0, 0) or undo(place())
@attempt
def a_new_cgroup_hierarchy(): return call("mount", b"none", place(), b"cgroup2", 0, 0) or undo(place())
@attempt
def a_new_overlay(): return call("mount", b"none", place(), b"overlay", 0, b"lowerdir=/usr/bin:/usr/lib") or undo(place())
@attempt
def a_bind_of_the_root(): return call("mount", b"/", place(), 0, 4096 | 16384, 0) or undo(place())
@attempt
def the_root_writable():
    call("mount", b"none", b"/", 0, 32 | 4096, 0)
    with open("/usr/of-an-escape", "w"):
        pass
    os.unlink("/usr/of-an-escape")
    return "remounted"
@attempt
def a_mount_taken_away():
    if facts["control"]:
        call("mount", b"none", place(), b"tmpfs", 0, 0)
        call("umount2", place(), 2)
    else:
        call("umount2", b"/etc", 2)
    return "unmounted"
@attempt
def a_new_file_system_by_the_new_calls(): return f"file system {call('fsopen', b'tmpfs', 0)}"
@attempt
def a_copy_of_a_mount_by_the_new_calls(): return f"tree {call('open_tree', -100, b'/', 1)}"
@attempt
def another_attribute_of_a_mount():
    return reaches("mount_setattr", -100, b"/", 0, ctypes.create_string_buffer(32), 1)
@attempt
def another_root():
    call("chroot", facts["workspace"].encode())
    return "changed the root"
@attempt
def another_root_by_pivot(): return reaches("pivot_root", b"/nowhere", b"/nowhere")


# Namespaces, users, privileges.
def in_child(work):
    """Runs it in a child of its own, so that a namespace ends with it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, f"+{work()}".encode())
        except OSError as error:
            os.write(writer, f"-{errno.errorcode.get(error.errno)}".encode())
        except BaseException as error:
            os.write(writer, f"-{error}".encode())
        os._exit(0)
    os.close(writer)
    output = b""
    while part := os.read(reader, 1000):
        output += part
    status = os.waitpid(child, 0)[1]
    if output.startswith(b"+"):
        return output[1:].decode()
    raise Refused(output[1:].decode() or f"ended by signal {os.WTERMSIG(status)}")


def unshares(flag): return in_child(lambda: f"unshared {call('unshare', flag)}")
@attempt
def a_new_user_namespace(): return unshares(0x10000000)
@attempt
def a_new_mount_namespace(): return unshares(0x00020000)
@attempt
def a_new_network_namespace(): return unshares(0x40000000)
@attempt
def a_new_process_namespace(): return unshares(0x20000000)
@attempt
def a_new_name_namespace(): return unshares(0x04000000)
@attempt
def a_new_ipc_namespace(): return unshares(0x08000000)
@attempt
def a_new_cgroup_namespace(): return unshares(0x02000000)


def clones(flags):
    child = call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "cloned"


@attempt
def a_child_in_a_new_user_namespace(): return clones(0x10000000)
@attempt
def a_child_in_all_new_namespaces(): return clones(0x10000000 | 0x20000 | 0x40000000 | 0x20000000)


@attempt
def a_child_in_a_new_user_namespace_by_the_new_call():
    arguments = ctypes.create_string_buffer(struct.pack("QQQQQQQQ", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0))
    child = call("clone3", arguments, 64)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "cloned"


def joins(kind):
    other = os.open(f"/proc/{facts['process']}/ns/{kind}", os.O_RDONLY)
    return in_child(lambda: f"joined {call('setns', other, 0)}")
@attempt
def the_network_namespace_of_the_first_process(): return joins("net")
@attempt
def the_mount_namespace_of_the_first_process(): return joins("mnt")


@attempt
def to_be_root():
    if facts["control"]:
        return in_child(lambda: os.setresuid(65534, 0, 0) or os.setuid(0) or "is root")
    os.setuid(0)
    return "is root"


@attempt
def to_be_in_another_group(): return in_child(lambda: os.setgroups([0, 4, 27]) or "is in groups")
@attempt
def to_be_somebody_else(): return in_child(lambda: os.setresuid(facts["other_user"], facts["other_user"], facts["other_user"]) or "is the other job's user")


@attempt
def a_program_that_becomes_root():
    """su runs as root from its start, if the system lets it."""
    become = (lambda: os.setuid(65534)) if facts["control"] else None
    # This program has one thread.
    child = subprocess.Popen(
        ["/bin/su", "root"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=become  # noqa: PLW1509
    )
    try:
        for _ in range(100):
            users = [line for line in open(f"/proc/{child.pid}/status") if line.startswith("Uid:")][0].split()
            name = text(f"/proc/{child.pid}/comm")
            if b"su" in name and users[2] == "0":
                return "su runs as root"
            if child.poll() is not None:
                break
            time.sleep(0.01)
        raise Refused(f"su ran as {users[2]}")
    finally:
        child.kill()
        child.wait()


@attempt
def an_own_program_that_becomes_root():
    path = os.path.join(facts["workspace"], "su-of-mine")
    with open("/usr/bin/env", "rb") as source, open(path, "wb") as copy:
        copy.write(source.read())
    os.chown(path, 0, 0)
    os.chmod(path, 0o4755)
    found = os.stat(path)
    os.unlink(path)
    return f"owner {found.st_uid} mode {found.st_mode:o}"


@attempt
def more_capabilities():
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    data = ctypes.create_string_buffer(struct.pack("IIIIII", 1 << 21, 1 << 21, 0, 0, 0, 0))
    return in_child(lambda: f"has them {call('capset', header, data)}")


@attempt
def a_capability_left():
    found = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapPrm", "CapEff", "CapBnd", "CapAmb"))]
    if all(int(value, 16) == 0 for value in found):
        raise Refused("none")
    return f"{found}"


@attempt
def privileges_by_new_programs():
    if libc.prctl(39, 0, 0, 0, 0) == 1:
        raise Refused("no new privileges")
    return "new programs may have more"


@attempt
def calls_that_are_not_filtered():
    mode = [line.split()[1] for line in open("/proc/self/status") if line.startswith("Seccomp:")][0]
    if mode == "2":
        raise Refused("filtered")
    return "no filter"


def machine_code(code):
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    result = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return f"gave {result}"


@attempt
def calls_of_the_32_bit_kind_past_the_filter():
    """mov eax, 20 (getpid); int 0x80; ret"""
    return in_child(lambda: machine_code(b"\xb8\x14\0\0\0\xcd\x80\xc3"))


# Other processes.
PTRACE_ATTACH, PTRACE_SEIZE, PTRACE_DETACH = 16, 0x4206, 17


@attempt
def to_trace_the_first_process():
    call("ptrace", PTRACE_ATTACH, facts["process"], 0, 0)
    os.waitpid(facts["process"], 0x40000000)
    call("ptrace", PTRACE_DETACH, facts["process"], 0, 0)
    return "traced"


@attempt
def to_seize_the_first_process(): return f"seized {call('ptrace', PTRACE_SEIZE, facts['process'], 0, 0)}"


def region(process):
    for line in open(f"/proc/{process}/maps"):
        if "rw-p" in line:
            return int(line.split("-")[0], 16)
    raise Refused("its memory is not shown")


@attempt
def the_memory_of_the_first_process():
    memory = os.open(f"/proc/{facts['process']}/mem", os.O_RDONLY)
    return f"{os.pread(memory, 16, region(facts['process']))}"


@attempt
def the_memory_of_the_first_process_by_a_call():
    target = region(facts["process"]) if facts["control"] else 0x10000
    buffer = ctypes.create_string_buffer(16)
    local = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(buffer), 16))
    remote = ctypes.create_string_buffer(struct.pack("QQ", target, 16))
    return f"read {call('process_vm_readv', facts['process'], local, 1, remote, 1, 0)}"


@attempt
def a_file_of_the_first_process():
    handle = call("pidfd_open", facts["process"], 0)
    return f"descriptor {call('pidfd_getfd', handle, 0, 0)}"


@attempt
def the_open_files_of_the_first_process():
    folder = f"/proc/{facts['process']}/fd"
    return f"{[os.readlink(os.path.join(folder, name)) for name in os.listdir(folder)]}"


@attempt
def to_compare_processes(): return f"{call('kcmp', os.getpid(), facts['process'], 0, 0, 0)}"


@attempt
def a_signal_to_a_process_of_the_host():
    os.kill(facts["victim"], 0)
    if facts["mark"] not in text(f"/proc/{facts['victim']}/cmdline", 10000).decode():
        raise Refused("that number is another process here")
    return "it is there"


@attempt
def a_signal_to_all_processes_that_can_be_seen():
    """Numbers far beyond those of a sandbox."""
    reached = []
    for process in range(facts["victim"] - 50, facts["victim"] + 50):
        try:
            os.kill(process, 0)
            if process != os.getpid() and facts["mark"] in text(f"/proc/{process}/cmdline", 10000).decode():
                reached.append(process)
        except OSError:
            pass
    if not reached:
        raise Refused("none is there")
    return f"{reached}"


@attempt
def files_that_were_left_open():
    """Descriptors that are neither the three nor the one that lists them."""
    left = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2:
                left[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass
    left = {name: target for name, target in left.items() if "/fd" not in target and target != sys.argv[0] and not target.startswith("pipe:")}
    if facts["control"]:
        left["9"] = "a control has no node"
    if not left:
        raise Refused("none")
    return f"{left}"


@attempt
def shared_memory_of_the_host():
    number = call("shmget", facts["shared_memory"], 0, 0)
    libc.shmat.restype = ctypes.c_void_p
    return secret(ctypes.string_at(libc.shmat(number, None, 0o10000), 100))


@attempt
def shared_memory_of_the_host_by_name(): return secret(text("/dev/shm/" + facts["shared_name"]))


# The kernel and the machine.
@attempt
def the_kernels_keys(): return f"key {call('add_key', b'user', b'of-an-escape', b'x', 1, -2)}"
@attempt
def a_key_by_request(): return reaches("request_key", b"user", b"nothing-of-this-name", 0, 0)
@attempt
def the_session_keyring(): return f"{call('keyctl', 0, -3, 0)}"
@attempt
def a_program_for_the_kernel(): return reaches("bpf", 5, ctypes.create_string_buffer(128), 128)
@attempt
def a_map_for_the_kernel():
    return f"map {call('bpf', 0, ctypes.create_string_buffer(struct.pack('IIIII', 2, 4, 8, 1, 0) + bytes(108)), 128)}"


@attempt
def to_watch_the_processor():
    attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 112, 0) + bytes(96))
    return f"event {call('perf_event_open', attributes, 0, -1, -1, 0)}"


@attempt
def to_handle_faults_of_memory(): return f"descriptor {call('userfaultfd', 0)}"
@attempt
def a_module_for_the_kernel(): return reaches("init_module", ctypes.create_string_buffer(8), 8, b"")
@attempt
def a_module_for_the_kernel_from_a_file(): return reaches("finit_module", -1, b"", 0)
@attempt
def another_kernel(): return reaches("kexec_load", 0, 1000, 0, 0)
@attempt
def another_kernel_from_a_file(): return reaches("kexec_file_load", -1, -1, 0, b"", 0xFF00)
@attempt
def to_restart_the_machine(): return reaches("reboot", 1, 2, 3, 0)
@attempt
def another_time(): return reaches("settimeofday", ctypes.create_string_buffer(struct.pack("qq", 0, 99_000_000)), 0)
@attempt
def another_time_of_a_clock(): return reaches("clock_settime", 0, ctypes.create_string_buffer(struct.pack("qq", 0, 9_000_000_000)))
@attempt
def another_name_of_the_machine(): return f"named {call('sethostname', b'escaped', 7)}"
@attempt
def memory_on_a_disk(): return reaches("swapon", b"/nowhere", 0)
@attempt
def the_ports_of_the_machine(): return in_child(lambda: f"{call('iopl', 3)}")
@attempt
def one_port_of_the_machine(): return in_child(lambda: f"{call('ioperm', 0x80, 1, 1)}")
@attempt
def the_log_of_the_kernel(): return f"{call('syslog', 3, ctypes.create_string_buffer(100), 100)} bytes"
@attempt
def to_watch_all_files(): return f"descriptor {call('fanotify_init', 0, 0)}"
@attempt
def quotas_of_the_disk(): return reaches("quotactl", 0x800001 << 8, b"/nowhere", 0, 0)
@attempt
def an_account_of_processes(): return reaches("acct", b"/nowhere/at/all")
@attempt
def memory_of_others_moved(): return reaches("move_pages", facts["process"], 1, ctypes.create_string_buffer(8), 0, ctypes.create_string_buffer(8), 0)


def terminal_request(number, argument):
    os.setsid()
    _, slave = pty.openpty()
    with os.fdopen(slave, "rb", 0) as file:
        libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p]
        # It becomes the terminal of this session, as that of an attacker would be.
        fcntl.ioctl(file, 0x540E, 0)
        if libc.ioctl(file.fileno(), number, argument) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "typed"
@attempt
def to_type_into_a_terminal(): return in_child(lambda: terminal_request(0x5412, b"x"))
@attempt
def to_type_into_a_terminal_with_high_bits(): return in_child(lambda: terminal_request(0xFFFF00005412, b"x"))


# Devices and settings of the kernel.
def device(kind, major, minor, name):
    path = os.path.join(facts["workspace"], name)
    os.mknod(path, kind | 0o666, os.makedev(major, minor))
    os.unlink(path)
    return "made"
@attempt
def a_device_of_memory(): return device(stat.S_IFCHR, 1, 1, "mem")
@attempt
def a_device_of_the_disk(): return device(stat.S_IFBLK, *facts["disk"], "disk")
@attempt
def a_harmless_device(): return device(stat.S_IFCHR, 1, 3, "null")


def opens(path, flags=os.O_RDONLY):
    os.close(os.open(path, flags))
    return f"opened {path}"
@attempt
def the_disk_itself(): return opens(facts["disk_path"])
@attempt
def the_memory_of_the_machine(): return opens("/dev/mem")
@attempt
def the_messages_of_the_kernel(): return opens("/dev/kmsg")
@attempt
def the_core_of_the_kernel(): return f"{len(text('/proc/kcore', 10) or secret(b''))}"
@attempt
def the_settings_of_core_files(): return opens("/proc/sys/kernel/core_pattern", os.O_WRONLY)
@attempt
def the_settings_of_modules(): return opens("/proc/sys/kernel/modprobe", os.O_WRONLY)
@attempt
def the_settings_of_memory(): return opens("/proc/sys/vm/overcommit_memory", os.O_WRONLY)
@attempt
def the_keys_of_emergencies(): return opens("/proc/sysrq-trigger", os.O_WRONLY)
@attempt
def the_program_for_new_devices(): return opens("/sys/kernel/uevent_helper", os.O_WRONLY)


@attempt
def a_larger_limit_of_memory():
    """In any place where the files of limits could be."""
    for folder, _folders, files in os.walk("/sys/fs/cgroup"):
        for name in files:
            if name in ("memory.limit_in_bytes", "memory.max", "pids.max", "cgroup.procs", "release_agent"):
                try:
                    return opens(os.path.join(folder, name), os.O_WRONLY)
                except OSError:
                    pass
    raise Refused("no file of limits can be written")


@attempt
def to_be_the_last_to_be_killed():
    """Lower than it is: others would go first."""
    own = int(open("/proc/self/oom_score_adj").read())
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(own))
    return "lowered"


@attempt
def a_larger_limit_of_files():
    import resource
    _soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if facts["control"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, hard))
        return "raised"
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard + 1, hard + 1))
    except ValueError as error:
        raise Refused(error) from error
    return "raised"


def victim(word, mark, key, name):
    """Something of the host that is worth an attack: a secret in an environment and in shared memory."""
    number = libc.shmget(int(key), 100, 0o1666)
    libc.shmat.restype = ctypes.c_void_p
    ctypes.memmove(libc.shmat(number, None, 0), word.encode(), len(word))
    with open("/dev/shm/" + name, "w") as file:
        file.write(word)
    print("ready", flush=True)
    try:
        sys.stdin.read()
    finally:
        libc.shmctl(number, 0, None)
        os.unlink("/dev/shm/" + name)


def main():
    for name in sys.argv[2:] or attempts:
        sys.stdout.flush()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            signal.alarm(20)
            try:
                outcome, how = "succeeded", str(attempts[name]())
            except Refused as refusal:
                outcome, how = "refused", str(refusal)
            except OSError as error:
                outcome, how = "refused", errno.errorcode.get(error.errno, str(error))
            except BaseException as error:
                outcome, how = "unknown", repr(error)
            os.write(writer, json.dumps({"attempt": name, "outcome": outcome, "how": how[:200]}).encode())
            os._exit(0)
        os.close(writer)
        output = b""
        while part := os.read(reader, 65536):
            output += part
        status = os.waitpid(child, 0)[1]
        os.close(reader)
        if not output:
            output = json.dumps({"attempt": name, "outcome": "unknown", "how": f"ended with {status}"}).encode()
        print(output.decode(), flush=True)


if sys.argv[1] == "--victim":
    victim(*sys.argv[2:])
else:
    with open(sys.argv[1]) as file:
        facts = json.load(file)
    main()
