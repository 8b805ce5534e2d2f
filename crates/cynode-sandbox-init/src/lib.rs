//! What a node and the first process of its sandboxes say to each other; the program is the other half.
//!
//! The program has two parts. `enter` runs outside: it joins the cgroups of its run, sets the limits of a process, becomes an
//! unprivileged user and turns into what makes the sandbox. `run` is the first process inside: it offers the sockets of the node on
//! 127.0.0.1, locks itself and all that follows in (Landlock, seccomp), starts the command and reaps.
//! Both read their launch spec from standard input, which afterwards belongs to the command: nothing of a job, least of all its
//! environment, is on a command line.

mod launch_spec;

pub use launch_spec::{
    EnterSpec, InitSpec, LaunchSpecError, PortForward, ProcessLimits, STARTED_MARKER,
    decode_launch_spec, encode_launch_spec,
};
