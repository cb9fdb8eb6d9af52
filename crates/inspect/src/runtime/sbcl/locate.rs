//! Finds SBCL in mapped files.

use crate::map::AddressSpace;
use crate::procfs::Process;

/// A mapped file that holds an SBCL.
pub struct Program {}

/// The mapped files that hold an SBCL.
pub fn find(_process: &Process, _space: &AddressSpace) -> Vec<Program> {
    Vec::new()
}
