//! The system calls that strandline needs and safe Rust does not offer.
//!
//! This crate is the only one of the workspace that contains `unsafe`. It wraps one system call
//! per function, checks what the kernel returned, and decides nothing: policy (which thread to
//! stop, what to read, when to give up) lives in the crates above.
//!
//! x86-64 Linux only: registers and signal frames are the processor's own.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("strandline reads x86-64 Linux processes; other targets are not supported yet");

pub mod capabilities;
pub mod connector;
pub mod files;
pub mod host;
pub mod interrupt;
pub mod memory;
pub mod own_memory;
pub mod pagemap;
pub mod process;
pub mod ptrace;
pub mod registers;
pub mod rseq;
pub mod seize;
pub mod signal;
pub mod spawn;
pub mod watchdog;
pub mod xstate;

use std::io;

/// Turns the kernel's "-1 and errno" into a `Result`.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
