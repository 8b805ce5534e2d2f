//! Tells the linker to make the program smaller, and with it its resident memory: identical functions are merged (a tenth of
//! the program), and relocations are packed (two megabytes that are read at the start and never again).

use std::{env::var, process::Command};

#[expect(clippy::disallowed_methods, reason = "cargo speaks to build scripts by the environment")]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CYNODE_LINKER");
    let is = |name: &str, value: &str| var(name).is_ok_and(|found| found == value);
    // Where rustc links with the bundled lld. A release that is linked by zig has neither option.
    let lld = !is("CYNODE_LINKER", "zig")
        && is("CARGO_CFG_TARGET_ARCH", "x86_64")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ENV", "gnu");
    if lld && is("PROFILE", "release") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
        // A release also runs with an older C library than the one here, which would not load them.
        let own = var("CYNODE_LINKER").unwrap_or_default().is_empty()
            && var("HOST").is_ok_and(|host| is("TARGET", &host));
        if own && supports_packed_relocations() {
            println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
        }
    }
}

/// Returns whether the C library here is 2.36 or later.
fn supports_packed_relocations() -> bool {
    let told = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let Ok(text) = told.map(|told| String::from_utf8_lossy(&told.stdout).into_owned()) else {
        return false;
    };
    let version = text.trim().strip_prefix("glibc ").and_then(|version| version.split_once('.'));
    version.is_some_and(|(first, second)| match (first.parse(), second.parse()) {
        (Ok(first), Ok(second)) => (first, second) >= (2_u32, 36_u32),
        _ => false,
    })
}
