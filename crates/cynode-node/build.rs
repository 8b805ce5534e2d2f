//! Builds `cynode-sandbox-init` once more, statically, so that the node can carry it: it must run in any image, whatever C library that has.
//! A static program of the gnu target needs a flag of the compiler that cargo cannot set for one crate of a workspace; so cargo is
//! called again, with a target directory of its own.

#![expect(clippy::disallowed_methods, reason = "cargo speaks to it through the environment")]

use std::{env, path::PathBuf, process::Command};

fn main() {
    if let Err(error) = build() {
        println!("cargo::error={error}");
    }
}

fn build() -> Result<(), String> {
    let of = |name: &str| env::var_os(name).ok_or_else(|| format!("no {name}"));
    let text = |name: &str| env::var(name).map_err(|_| format!("no {name}"));
    let here = PathBuf::from(of("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(of("OUT_DIR")?);
    let manifest = here.join("../cynode-sandbox-init/Cargo.toml");
    let target = text("TARGET")?;
    println!("cargo::rerun-if-changed=../cynode-sandbox-init/src");
    println!("cargo::rerun-if-changed=../cynode-sandbox-init/Cargo.toml");
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    let built = Command::new(of("CARGO")?)
        .args([
            "build",
            "--release",
            "--quiet",
            "--locked",
            "--bin",
            "cynode-sandbox-init",
            "--target",
        ])
        .arg(&target)
        .arg("--manifest-path")
        .arg(&manifest)
        .arg("--target-dir")
        .arg(out.join("sandbox-init"))
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        // What tools around this build wrap the compiler with is not meant for this one.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .status()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    if !built.success() {
        return Err("cynode-sandbox-init was not built".into());
    }
    let program = out.join("sandbox-init").join(target).join("release/cynode-sandbox-init");
    println!("cargo::rustc-env=CYNODE_SANDBOX_INIT={}", program.display());
    Ok(())
}
