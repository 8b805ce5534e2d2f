//! The program `cynork`.

use std::process::ExitCode;

fn main() -> ExitCode {
    cynork::main()
}
