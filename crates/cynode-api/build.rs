//! Makes cargo embed the console anew when it was built.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A path that does not exist would make cargo run this anew every time.
    let watched =
        ["../../console/dist", "../../console"].into_iter().find(|path| Path::new(path).exists());
    if let Some(path) = watched {
        println!("cargo:rerun-if-changed={path}");
    }
}
