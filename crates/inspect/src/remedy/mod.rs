//! Releases memory in a running process, without harm to the process.
//!
//! [`malloc_trim`] has one thread call `malloc_trim(0)`, [`purge`] a function of another allocator,
//! [`notify`] one of a runtime; [`zero_pages`] releases pages that contain only zeros. These four
//! use [`strandline_process::call`], whose call looks to the kernel like a signal handler: if
//! strandline dies at any instant, the process runs on by itself. Other remedies are applied by the
//! reader they belong to. `docs/safety.md` describes each step and what was tried. Predictions are
//! made by the ledger, not here.

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
pub mod zero_pages;

pub use reclaim::{ReclaimOptions, applicable, reclaim};
pub use strandline_claims::remedy::{Applied, Footprint, Refusal};
