//! Builds `cynode-sandbox-init` a second time as a static binary, so that this crate can embed it. The binary must run in any image,
//! independent of the image's C library. A static program of the gnu target needs a compiler flag that cargo cannot set for one
//! crate of a workspace. The build therefore calls cargo again, with its own target directory.

#![expect(clippy::disallowed_methods, reason = "cargo speaks to it through the environment")]

use std::{env, path::PathBuf, process::Command};

/// Separates the flags that cargo passes on.
const FLAG_SEPARATOR: &str = "\u{1f}";

/// How a flag begins that replaces a path.
const REMAP_FLAG: &str = "--remap-path-prefix=";

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
    // Paths of the machine are not part of this program either: a release gives the same bytes elsewhere.
    let outer = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let remapped = outer.split(FLAG_SEPARATOR).filter(|flag| flag.starts_with(REMAP_FLAG));
    let flags: Vec<&str> = remapped.chain(["-Ctarget-feature=+crt-static"]).collect();
    let mut command = Command::new(of("CARGO")?);
    if text("HOST")? == target {
        // A release is linked against an old C library by a linker that makes no static programs of the gnu target.
        let name = target.to_uppercase().replace('-', "_");
        command.env_remove(format!("CARGO_TARGET_{name}_LINKER"));
    }
    let built = command
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
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join(FLAG_SEPARATOR))
        // A compiler wrapper of the outer build (a linter, for example) must not apply to this nested build.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    if !built.success() {
        return Err("cynode-sandbox-init was not built".into());
    }
    let program = out.join("sandbox-init").join(target).join("release/cynode-sandbox-init");
    println!("cargo::rustc-env=CYNODE_SANDBOX_INIT={}", program.display());
    Ok(())
}
