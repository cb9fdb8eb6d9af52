//! Reading and writing another process's memory.

use std::io;

/// Reads target memory at `address` into `buffer` with one `process_vm_readv`.
///
/// Returns the number of bytes read. It is less than requested if the range runs into memory that
/// is not mapped or not readable.
///
/// # Errors
/// Returns the error of process_vm_readv(2): `EFAULT` if nothing can be read at `address`, `ESRCH`
/// without such a process, `EPERM` for one that this process may not trace.
pub fn read(pid: i32, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: buffer.len() };
    // SAFETY: `local` describes `buffer`, which is live and writable for the call; `remote` is an
    // address in the other process that the kernel checks.
    let result = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    Ok(crate::check(result as libc::c_long)? as usize)
}

/// The maximum number of ranges of one [`read_many`] call (the kernel's `UIO_MAXIOV`).
pub const MAX_RANGES: usize = 1024;

/// Reads `item_bytes` at each of `addresses` (at most [`MAX_RANGES`]) into `buffer`, one after the
/// other, with one system call. Stops at the first address that cannot be read and returns the
/// number of whole items read.
///
/// # Errors
/// As [`read`], for the first address.
pub fn read_many(pid: i32, addresses: &[u64], item_bytes: usize, buffer: &mut [u8]) -> io::Result<usize> {
    let count = addresses.len().min(MAX_RANGES).min(buffer.len() / item_bytes.max(1));
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: count * item_bytes };
    let remote: Vec<libc::iovec> = addresses[..count]
        .iter()
        .map(|&address| libc::iovec { iov_base: address as *mut libc::c_void, iov_len: item_bytes })
        .collect();
    // SAFETY: `local` covers at most buffer.len() writable bytes, `remote` is a live array of
    // `count` descriptors whose addresses the kernel checks.
    let result = unsafe {
        libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), count as libc::c_ulong, 0)
    };
    Ok(crate::check(result as libc::c_long)? as usize / item_bytes.max(1))
}

/// Writes all of `bytes` into the target's memory at `address`.
///
/// # Errors
/// As [`read`]; `WriteZero` if only a part could be written.
pub fn write(pid: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: bytes.as_ptr() as *mut libc::c_void, iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the kernel only reads from `local`, which is live for the call; the remote address is
    // checked by the kernel.
    let written = unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) };
    match crate::check(written as libc::c_long)? as usize {
        count if count == bytes.len() => Ok(()),
        count => {
            let text = format!("wrote {count} of {} bytes", bytes.len());
            Err(io::Error::new(io::ErrorKind::WriteZero, text))
        }
    }
}
