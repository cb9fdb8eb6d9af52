//! stub
use crate::memory::Memory;
/// stub
pub fn repair(
    _: i32,
    _: i32,
    _: &strandline_sys::ptrace::Registers,
    _: &dyn Memory,
) -> std::io::Result<bool> {
    Ok(false)
}
