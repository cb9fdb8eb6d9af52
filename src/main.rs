//! strandline: accounts for every resident byte of a process on exactly one row, predicts what each
//! remedy gives back, applies it, and prints predicted beside actual.
//!
//! This file only starts the command line and hands its exit status on.

#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    // First of all, and before there is a second thread, which would keep what this one lays down.
    if let Some(ending) = cli::lay_down_rights() {
        return ending;
    }
    cli::run()
}
