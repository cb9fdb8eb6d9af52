//! The address of a thread's restartable sequence area (`rseq(2)`).

use std::io;

/// `PTRACE_GET_RSEQ_CONFIGURATION` (Linux 5.13).
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;

/// `struct ptrace_rseq_configuration` of `include/uapi/linux/ptrace.h`.
#[repr(C)]
#[derive(Default)]
struct Configuration {
    rseq_abi_pointer: u64,
    rseq_abi_size: u32,
    signature: u32,
    flags: u32,
    pad: u32,
}

/// Address of the `struct rseq` that the stopped tracee `tid` registered; `None` if it registered
/// none.
///
/// # Errors
/// Returns the error of ptrace(2): `EIO` on kernels without the request.
pub fn area(tid: i32) -> io::Result<Option<u64>> {
    let mut configuration = Configuration::default();
    // SAFETY: the kernel writes at most size_of::<Configuration>() bytes into `configuration`,
    // which is live for the call.
    let result = unsafe {
        libc::ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, size_of::<Configuration>(), &raw mut configuration)
    };
    crate::check(result)?;
    Ok(Some(configuration.rseq_abi_pointer).filter(|&address| address != 0))
}
