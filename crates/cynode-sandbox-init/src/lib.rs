//! Protocol between a node and the first process of its sandboxes. The program of this crate implements the other side.
//!
//! The program has two commands, and one that it starts itself. `enter` runs outside the sandbox: it joins the cgroups of its run, sets the limits of a process,
//! mounts the layers of the sandbox in a mount namespace of its own, switches to an unprivileged user and executes the program that creates the sandbox. `run` is the first process inside: it forwards
//! the sockets of the node on 127.0.0.1, restricts itself and its descendants (Landlock, seccomp), starts the command and reaps.
//! Both read their launch spec from standard input, which afterwards belongs to the command: no data of a job, least of all its
//! environment, is on a command line.

mod launch_spec;

pub use launch_spec::{
    EnterSpec, InitSpec, LaunchSpecError, LayerMount, PortForward, ProcessLimits, STARTED_MARKER,
    UpperLayer, decode_launch_spec, encode_launch_spec,
};
