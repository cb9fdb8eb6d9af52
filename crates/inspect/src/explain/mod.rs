//! Explains one process: captures it, accounts for its memory, and draws a verdict.
//!
//! Each run checks the rows against the kernel's own sum. A process that is ending can be explained
//! too, while it still has its memory ([`at_exit()`]).

mod at_exit;
mod describe;

use std::time::Instant;

pub use self::at_exit::at_exit;
pub(crate) use self::describe::describe;
use crate::account::Account;
use crate::capture::with_capture;
pub use crate::capture::{Ending, Options, Progress, QUIET_FOR, SnapshotMode};
use crate::facts::Explanation;
use strandline_process::error::Result;
use strandline_process::target::exit_watch;

/// Explains process `pid`.
///
/// # Errors
/// Those of [`strandline_process::error::Error`]: no such process, not allowed, traced by another
/// process, ended meanwhile, or rows that do not add up to the kernel's RSS.
pub fn explain(pid: i32, options: &Options<'_>) -> Result<Explanation> {
    let start = Instant::now();
    with_capture(pid, options, |process, frozen| {
        let mut account = Account::new(process, frozen, options, start)?;
        Ok(exit_watch::run_while_watching(|| describe(process, &mut account)))
    })
}
