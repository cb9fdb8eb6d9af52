//! strandline: attributes every resident byte of a process to exactly one row, predicts what each
//! remedy releases, applies it, and prints predicted and actual.
//!
//! This file only starts the command line and passes on its exit status.

#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    // Must come first: threads started earlier would keep the capabilities that are dropped here.
    if let Some(exit_code) = cli::drop_dac_capabilities() {
        return exit_code;
    }
    cli::run()
}
