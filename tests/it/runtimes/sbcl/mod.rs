//! SBCL read from outside, beside what SBCL says of itself: `tests/subjects/sbcl/` makes heaps of known answer and tells
//! SBCL's own figures without allocating.
//!
//! The system's SBCL always, those of `scripts/fetch-sbcls` where STRANDLINE_SBCLS names their folder.

mod collected;
mod cores;
mod figures;
mod moving;
mod names;
mod paths;
