//! Commands `cynode-sandbox-init enter` and `cynode-sandbox-init run`; see the library.

mod calls;
mod enter;
mod files;
mod forward;
mod layers;
mod owner_map;
mod run;

use std::{
    io::{Write, stderr},
    process::ExitCode,
};

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("enter") => enter::enter_sandbox().map(|never| match never {}),
        Some("run") => run::run_init(),
        Some(owner_map::NAMESPACE_COMMAND) => owner_map::hold_namespace(),
        _ => Err(anyhow::anyhow!("this program is started by a node: enter | run")),
    };
    done.unwrap_or_else(|error| {
        let _ = writeln!(stderr(), "cynode-sandbox-init: {error:#}");
        ExitCode::from(125)
    })
}
