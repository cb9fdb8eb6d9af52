//! Sending signals and waiting for a flag set by one.

use std::io;

/// Sends `signal` to the process `pid`.
pub fn send(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill only reads its integer arguments.
    crate::check(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}
