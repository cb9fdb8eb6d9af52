//! SBCL read from outside, compared with its own figures: `tests/subjects/sbcl/` makes heaps with
//! known answers and prints SBCL's own figures without allocating.
//!
//! The system's SBCL always; SBCLs of `scripts/fetch-sbcls` if STRANDLINE_SBCLS names their folder.

mod collected;
mod cores;
mod figures;
mod moving;
mod names;
mod paths;
