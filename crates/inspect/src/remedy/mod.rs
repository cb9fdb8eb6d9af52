//! Releases memory in a running process, without harm to the process.
//!
//! [`reclaim`](reclaim::reclaim) takes the ledger, which makes the predictions, and applies one
//! remedy. Four are here, the others in the reader that they belong to:
//!
//! - [`malloc_trim`]: a thread of the process calls `malloc_trim(0)`;
//! - [`purge`]: it calls a function of another allocator;
//! - [`notify`]: it calls a function of a runtime, while `owner` holds the thread that owns the
//!   runtime's heap; `runtime_code` recognises both threads;
//! - [`zero_pages`]: pages that contain only zeros are released.
//!
//! `precheck` refuses processes in which nothing may be done, [`choose`] finds a thread that holds
//! no lock, and [`call`] makes the call in it, with room for the signal handlers by which runtimes
//! stop threads (`stop_handlers`). All four use [`strandline_process::call`], whose call looks to
//! the kernel like a signal handler: if strandline dies at any instant, the process runs on by
//! itself. `docs/safety.md` describes each step and what was tried.

pub mod call;
pub mod choose;
pub mod malloc_trim;
pub mod notify;
mod owner;
mod precheck;
pub mod purge;
pub mod reclaim;
mod runtime_code;
mod stop_handlers;
mod totals;
pub mod zero_pages;

use crate::facts::{Remedy, RemedyKind};
use crate::readers;

pub use reclaim::{ApplicableRemedy, ReclaimOptions, applicable, reclaim};
pub use strandline_claims::remedy::{Applied, Footprint, Refusal};

/// Whether a remedy counts as one for the running process: no setting, and no call of `reclaim`'s
/// that only the program can make here.
pub fn releases_now(remedy: &Remedy) -> bool {
    match remedy.kind {
        RemedyKind::Setting => false,
        RemedyKind::Program => !readers::remedy(&remedy.id).is_some_and(|spec| spec.is_applied()),
        RemedyKind::Call | RemedyKind::Allocator => true,
    }
}
