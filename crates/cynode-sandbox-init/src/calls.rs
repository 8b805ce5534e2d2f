//! Seccomp filters. An unknown system call fails with ENOSYS, so that libraries fall back. A call that could lead to an escape
//! fails with EPERM. A call of another architecture kills the process.

use std::collections::BTreeMap;

use anyhow::Context;
use libc::{c_int, c_long, c_ulong};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Is, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

/// Maps system call names to numbers.
macro_rules! calls {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}

/// System calls that programs may use, some of them with the argument restrictions below.
const ALLOWED_SYSCALLS: &[c_long] = calls![
    SYS_accept SYS_accept4 SYS_bind SYS_brk SYS_capget SYS_capset SYS_chdir SYS_clock_getres
    SYS_clock_gettime SYS_clock_nanosleep SYS_clone SYS_close SYS_close_range SYS_connect
    SYS_copy_file_range SYS_dup SYS_dup3 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait
    SYS_epoll_pwait2 SYS_eventfd2 SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_faccessat
    SYS_faccessat2 SYS_fadvise64 SYS_fallocate SYS_fanotify_mark SYS_fchdir SYS_fchmod
    SYS_fchmodat SYS_fchown SYS_fchownat SYS_fcntl SYS_fdatasync SYS_fgetxattr SYS_flistxattr
    SYS_flock SYS_fremovexattr SYS_fsetxattr SYS_fstat SYS_fstatfs SYS_fsync SYS_ftruncate
    SYS_futex SYS_futex_waitv SYS_get_mempolicy SYS_get_robust_list SYS_getcpu SYS_getcwd
    SYS_getdents64 SYS_getegid SYS_geteuid SYS_getgid SYS_getgroups SYS_getitimer
    SYS_getpeername SYS_getpgid SYS_getpid SYS_getppid SYS_getpriority SYS_getrandom
    SYS_getresgid SYS_getresuid SYS_getrusage SYS_getsid SYS_getsockname SYS_getsockopt
    SYS_gettid SYS_gettimeofday SYS_getuid SYS_getxattr SYS_inotify_add_watch SYS_inotify_init1
    SYS_inotify_rm_watch SYS_io_cancel SYS_io_destroy SYS_io_getevents SYS_io_setup
    SYS_io_submit SYS_ioctl SYS_ioprio_get SYS_ioprio_set SYS_kill SYS_landlock_add_rule
    SYS_landlock_create_ruleset SYS_landlock_restrict_self SYS_lgetxattr SYS_linkat SYS_listen
    SYS_listxattr SYS_llistxattr SYS_lremovexattr SYS_lseek SYS_lsetxattr SYS_madvise
    SYS_membarrier SYS_memfd_create SYS_mincore SYS_mkdirat SYS_mknodat SYS_mlock SYS_mlock2
    SYS_mlockall SYS_mmap SYS_mprotect SYS_mq_getsetattr SYS_mq_notify SYS_mq_open
    SYS_mq_timedreceive SYS_mq_timedsend SYS_mq_unlink SYS_mremap SYS_mseal SYS_msgctl
    SYS_msgget SYS_msgrcv SYS_msgsnd SYS_msync SYS_munlock SYS_munlockall SYS_munmap
    SYS_nanosleep SYS_newfstatat SYS_openat SYS_openat2 SYS_personality SYS_pidfd_open
    SYS_pidfd_send_signal SYS_pipe2 SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect SYS_ppoll
    SYS_prctl SYS_pread64 SYS_preadv SYS_preadv2 SYS_prlimit64 SYS_process_mrelease SYS_pselect6
    SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_read SYS_readahead SYS_readlinkat SYS_readv
    SYS_recvfrom SYS_recvmmsg SYS_recvmsg SYS_remap_file_pages SYS_removexattr SYS_renameat2
    SYS_restart_syscall SYS_rseq SYS_rt_sigaction SYS_rt_sigpending SYS_rt_sigprocmask
    SYS_rt_sigqueueinfo SYS_rt_sigreturn SYS_rt_sigsuspend SYS_rt_sigtimedwait
    SYS_rt_tgsigqueueinfo SYS_sched_get_priority_max SYS_sched_get_priority_min
    SYS_sched_getaffinity SYS_sched_getattr SYS_sched_getparam SYS_sched_getscheduler
    SYS_sched_rr_get_interval SYS_sched_setaffinity SYS_sched_setattr SYS_sched_setparam
    SYS_sched_setscheduler SYS_sched_yield SYS_seccomp SYS_semctl SYS_semget SYS_semop
    SYS_semtimedop SYS_sendfile SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_set_robust_list
    SYS_set_tid_address SYS_setfsgid SYS_setfsuid SYS_setgid SYS_setgroups SYS_setitimer
    SYS_setpgid SYS_setpriority SYS_setregid SYS_setresgid SYS_setresuid SYS_setreuid SYS_setsid
    SYS_setsockopt SYS_setuid SYS_setxattr SYS_shmat SYS_shmctl SYS_shmdt SYS_shmget
    SYS_shutdown SYS_sigaltstack SYS_signalfd4 SYS_socket SYS_socketpair SYS_splice SYS_statfs
    SYS_statx SYS_symlinkat SYS_sync SYS_syncfs SYS_sysinfo SYS_tee SYS_tgkill SYS_timer_create
    SYS_timer_delete SYS_timer_getoverrun SYS_timer_gettime SYS_timer_settime SYS_timerfd_create
    SYS_timerfd_gettime SYS_timerfd_settime SYS_times SYS_tkill SYS_truncate SYS_umask SYS_uname
    SYS_unlinkat SYS_utimensat SYS_vmsplice SYS_wait4 SYS_waitid SYS_write SYS_writev
];

/// Allowed legacy system calls, on architectures that have them. `clone3` is missing in both lists on purpose: its flags are in
/// memory, where no filter can read them.
#[cfg(target_arch = "x86_64")]
const LEGACY_ALLOWED_SYSCALLS: &[c_long] = calls![
    SYS_access SYS_alarm SYS_arch_prctl SYS_chmod SYS_chown SYS_creat SYS_dup2 SYS_epoll_create
    SYS_epoll_wait SYS_eventfd SYS_fchmodat2 SYS_fork SYS_futimesat SYS_getdents SYS_getpgrp
    SYS_getrlimit SYS_inotify_init SYS_lchown SYS_link SYS_lstat SYS_mkdir SYS_mknod SYS_open
    SYS_pause SYS_pipe SYS_poll SYS_readlink SYS_rename SYS_renameat SYS_rmdir SYS_select
    SYS_setrlimit SYS_signalfd SYS_stat SYS_symlink SYS_sync_file_range SYS_time SYS_unlink
    SYS_utime SYS_utimes SYS_vfork
];
/// `renameat`, `sync_file_range`, `getrlimit` and `setrlimit`, for which libc has no names on this architecture.
#[cfg(target_arch = "aarch64")]
const KNOWN_BY_OLD_NAMES: &[c_long] = &[38, 84, 163, 164];

/// System calls that are denied with any arguments: namespaces and mounts, other processes, keys, tracing, modules, clocks, and
/// control of the machine.
const DENIED_SYSCALLS: &[c_long] = calls![
    SYS_acct SYS_add_key SYS_adjtimex SYS_bpf SYS_chroot SYS_clock_adjtime SYS_clock_settime
    SYS_delete_module SYS_fanotify_init SYS_finit_module SYS_fsconfig SYS_fsmount SYS_fsopen
    SYS_fspick SYS_init_module SYS_io_uring_enter SYS_io_uring_register SYS_io_uring_setup
    SYS_kcmp SYS_kexec_file_load SYS_kexec_load SYS_keyctl SYS_lookup_dcookie SYS_mbind
    SYS_migrate_pages SYS_mount SYS_mount_setattr SYS_move_mount SYS_move_pages
    SYS_name_to_handle_at SYS_nfsservctl SYS_open_by_handle_at SYS_open_tree SYS_perf_event_open
    SYS_pidfd_getfd SYS_pivot_root SYS_process_madvise SYS_process_vm_readv
    SYS_process_vm_writev SYS_ptrace SYS_quotactl SYS_quotactl_fd SYS_reboot SYS_request_key
    SYS_set_mempolicy SYS_set_mempolicy_home_node SYS_setdomainname SYS_sethostname SYS_setns
    SYS_settimeofday SYS_swapoff SYS_swapon SYS_syslog SYS_umount2 SYS_unshare SYS_userfaultfd
    SYS_vhangup
];

/// Denied legacy system calls, on architectures that have them.
#[cfg(target_arch = "x86_64")]
const LEGACY_DENIED_SYSCALLS: &[c_long] = calls![
    SYS__sysctl SYS_afs_syscall SYS_getpmsg SYS_ioperm SYS_iopl SYS_modify_ldt SYS_putpmsg
    SYS_security SYS_sysfs SYS_tuxcall SYS_uselib SYS_ustat SYS_vserver SYS_epoll_ctl_old
    SYS_epoll_wait_old SYS_get_thread_area SYS_set_thread_area
];
#[cfg(target_arch = "aarch64")]
const REFUSED_BY_OLD_NAMES: &[c_long] = &[];

/// Namespace flags of `clone`.
const NAMESPACE_CLONE_FLAGS: [c_int; 8] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWTIME,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

/// Allowed socket families. The sandbox has no network; the only way out is a Unix socket that is mounted into it.
const ALLOWED_SOCKET_FAMILIES: [c_int; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];

/// Allowed protocols of the internet families: the default, TCP and UDP. Any other could load a module of the kernel (SCTP, DCCP), or one
/// that few programs exercise (MPTCP).
const ALLOWED_INTERNET_PROTOCOLS: [c_int; 3] = [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP];

/// Bits of a socket's type; the others are flags.
const SOCKET_TYPE_MASK: u64 = 0xf;

/// Allowed types of sockets of the internet families. With the default protocol, the type chooses the protocol.
const ALLOWED_INTERNET_TYPES: [c_int; 2] = [libc::SOCK_STREAM, libc::SOCK_DGRAM];

/// `ioctl` requests that inject input into a terminal.
const TERMINAL_INJECTION_IOCTLS: [c_ulong; 2] = [libc::TIOCSTI, libc::TIOCLINUX];

/// Allowed arguments of `personality`: the default, a query, and address space without randomization.
const ALLOWED_PERSONALITIES: [c_int; 3] = [0, -1, libc::ADDR_NO_RANDOMIZE];

/// Applies the filters to this process and its descendants.
pub(crate) fn apply_seccomp_filters() -> anyhow::Result<()> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).context("an unknown architecture")?;
    for filter in [build_allowlist_filter(arch)?, build_denylist_filter(arch)?] {
        seccompiler::apply_filter(&filter)?;
    }
    Ok(())
}

/// Builds the filter that answers unknown system calls with ENOSYS, as an old kernel does.
fn build_allowlist_filter(arch: TargetArch) -> anyhow::Result<BpfProgram> {
    let known =
        [ALLOWED_SYSCALLS, LEGACY_ALLOWED_SYSCALLS, DENIED_SYSCALLS, LEGACY_DENIED_SYSCALLS]
            .concat();
    compile_filter(
        known.into_iter().map(|call| (call, Vec::new())).collect(),
        SeccompAction::Errno(libc::ENOSYS.unsigned_abs()),
        SeccompAction::Allow,
        arch,
    )
}

/// Builds the filter that denies system calls with EPERM.
fn build_denylist_filter(arch: TargetArch) -> anyhow::Result<BpfProgram> {
    let always = [DENIED_SYSCALLS, LEGACY_DENIED_SYSCALLS].concat();
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        always.into_iter().map(|call| (call, Vec::new())).collect();
    rules.insert(
        libc::SYS_clone,
        NAMESPACE_CLONE_FLAGS
            .iter()
            .map(|flag| {
                build_conjunction_rule([(
                    0,
                    Is::MaskedEq(to_argument_bits(*flag)),
                    to_argument_bits(*flag),
                )])
            })
            .collect::<anyhow::Result<_>>()?,
    );
    rules.insert(libc::SYS_socket, build_socket_rules()?);
    rules.insert(
        libc::SYS_socketpair,
        vec![build_conjunction_rule([(0, Is::Ne, to_argument_bits(libc::AF_UNIX))])?],
    );
    rules.insert(
        libc::SYS_ioctl,
        TERMINAL_INJECTION_IOCTLS
            .iter()
            .map(|request| build_conjunction_rule([(1, Is::Eq, *request)]))
            .collect::<anyhow::Result<_>>()?,
    );
    rules.insert(
        libc::SYS_personality,
        vec![build_conjunction_rule(
            ALLOWED_PERSONALITIES.map(|kind| (0, Is::Ne, to_argument_bits(kind))),
        )?],
    );
    // Device files.
    let device = |argument| {
        [libc::S_IFCHR, libc::S_IFBLK]
            .iter()
            .map(|kind| {
                build_conjunction_rule([(
                    argument,
                    Is::MaskedEq(u64::from(libc::S_IFMT)),
                    u64::from(*kind),
                )])
            })
            .collect::<anyhow::Result<Vec<SeccompRule>>>()
    };
    rules.insert(libc::SYS_mknodat, device(2)?);
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_mknod, device(1)?);
    compile_filter(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        arch,
    )
}

/// Builds the rules that match a socket of another family, and an internet socket of another type or protocol than TCP and UDP.
fn build_socket_rules() -> anyhow::Result<Vec<SeccompRule>> {
    let mut rules = vec![build_conjunction_rule(
        ALLOWED_SOCKET_FAMILIES.map(|family| (0, Is::Ne, to_argument_bits(family))),
    )?];
    for family in [libc::AF_INET, libc::AF_INET6] {
        let family: (u8, Is, u64) = (0, Is::Eq, to_argument_bits(family));
        let [default, tcp, udp] =
            ALLOWED_INTERNET_PROTOCOLS.map(|protocol| (2_u8, Is::Ne, to_argument_bits(protocol)));
        rules.push(build_conjunction_rule([family.clone(), default, tcp, udp])?);
        let allowed = ALLOWED_INTERNET_TYPES.map(to_argument_bits);
        for other in (0..=SOCKET_TYPE_MASK).filter(|kind| !allowed.contains(kind)) {
            let kind = (1_u8, Is::MaskedEq(SOCKET_TYPE_MASK), other);
            rules.push(build_conjunction_rule([family.clone(), kind])?);
        }
    }
    Ok(rules)
}

/// Converts an `int` argument to the 32 bits that the filter compares.
fn to_argument_bits(value: c_int) -> u64 {
    u64::from(value.cast_unsigned())
}

/// Builds a rule that matches if all conditions (argument, comparison, value) hold. Arguments are compared as 32 bits, as the kernel
/// does.
fn build_conjunction_rule<const N: usize>(
    conditions: [(u8, Is, u64); N],
) -> anyhow::Result<SeccompRule> {
    let conditions = conditions
        .into_iter()
        .map(|(argument, is, value)| SeccompCondition::new(argument, Width::Dword, is, value))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(SeccompRule::new(conditions)?)
}

fn compile_filter(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
    arch: TargetArch,
) -> anyhow::Result<BpfProgram> {
    Ok(SeccompFilter::new(rules, otherwise, matched, arch)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_call_is_both_known_as_harmless_and_refused() {
        let harmless: BTreeSet<c_long> =
            [ALLOWED_SYSCALLS, LEGACY_ALLOWED_SYSCALLS].concat().into_iter().collect();
        let refused: BTreeSet<c_long> =
            [DENIED_SYSCALLS, LEGACY_DENIED_SYSCALLS].concat().into_iter().collect();
        assert_eq!(harmless.intersection(&refused).collect::<Vec<_>>(), Vec::<&c_long>::new());
    }

    #[test]
    fn the_filters_compile_and_are_short_enough_for_the_kernel() {
        for arch in [TargetArch::x86_64, TargetArch::aarch64] {
            assert!(build_allowlist_filter(arch).unwrap().len() < 4096);
            assert!(build_denylist_filter(arch).unwrap().len() < 4096);
        }
    }
}
