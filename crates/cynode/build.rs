//! Has the linker keep one of functions that are the same, byte by byte: a tenth of the program, and of what is resident of it.

use std::env::var;

#[expect(clippy::disallowed_methods, reason = "cargo speaks to build scripts by the environment")]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| var(name).is_ok_and(|found| found == value);
    // Where rustc links with the lld that it brings along.
    let lld = is("CARGO_CFG_TARGET_ARCH", "x86_64")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ENV", "gnu");
    if lld && is("PROFILE", "release") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
