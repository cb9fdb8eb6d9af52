//! Where things stand inside other people's structures, by version, as data.
//!
//! Readers take offsets from here and hold none themselves. Each fact names the source file and
//! structure it was read from, and is checked against real processes of that version in the tests.

pub mod glibc;
pub mod perl;
pub mod sbcl;
