//! Getting at a target: stopping it without its noticing, and letting it go.

pub mod quiet;
