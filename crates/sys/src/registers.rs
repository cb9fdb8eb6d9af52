//! General registers with a value, for tests and for callers that start from nothing.

use crate::ptrace::Registers;

/// Registers that are all zero.
pub fn zeroed() -> Registers {
    // SAFETY: an all-zero user_regs_struct is a valid value of that plain C struct.
    unsafe { std::mem::zeroed() }
}
