//! What gives memory back in a running process, done so that the process cannot be hurt.
//!
//! [`malloc_trim`] makes one thread call that function, [`purge`] another allocator's own; [`zero_pages`] gives back pages that hold
//! only zeros; [`jvm`] asks a Java virtual machine. The others rest on [`strandline_process::call`], a call that looks to the kernel like a signal handler's, so
//! that a strandline that dies at any instant leaves a process that goes on by itself.
//! `docs/safety.md` tells each step and what was tried. Nothing here predicts; the ledger does.

pub mod call;
pub mod choose;
pub mod malloc_trim;
mod precheck;
pub mod purge;
pub mod reclaim;
pub mod zero_pages;

pub use reclaim::{ReclaimOptions, applicable, reclaim};
pub use strandline_claims::remedy::{Applied, Footprint, Refusal};
