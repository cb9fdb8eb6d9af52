//! Facts about the machine and about this process.

use std::io;
use std::time::Duration;

use crate::process::Usage;

/// Bytes of a base page: x86-64 has no other size of these.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Target of /proc/PID/ns/user in the first user namespace, whose inode number never changes
/// (PROC_USER_INIT_INO of include/linux/proc_ns.h, Linux 3.8).
pub const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";
/// Target of /proc/PID/ns/pid in the first pid namespace (PROC_PID_INIT_INO of the same file).
pub const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The kernel's page size in bytes.
pub fn page_bytes() -> u64 {
    PAGE_BYTES as u64
}

/// A version of the kernel. Distributions' backports do not show in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    /// The first number of its release.
    pub major: u32,
    /// The second number of its release.
    pub minor: u32,
}

/// The version of the running kernel; `None` if its release cannot be read, or does not begin with
/// two numbers.
pub fn kernel_version() -> Option<KernelVersion> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|word| word.parse().ok());
    Some(KernelVersion { major: numbers.next()??, minor: numbers.next()?? })
}

/// The effective user id of this process.
pub fn effective_user() -> u32 {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// Peak resident memory of this process, in bytes.
///
/// Not read with getrusage(2): its ru_maxrss survives execve(2), and a child of vfork(2) has that
/// of its parent (fs/exec.c, setmax_mm_hiwater_rss).
///
/// # Errors
/// Fails if /proc/self/status cannot be read or lacks it.
pub fn own_peak_rss_bytes() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    let bytes = kib.and_then(|kib| kib.checked_mul(1024));
    bytes.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no VmHWM in /proc/self/status"))
}

/// User and system time used by this process, in microseconds.
///
/// # Errors
/// Returns the error of getrusage(2).
pub fn own_cpu_us() -> io::Result<u64> {
    // SAFETY: an all-zero rusage is a valid value of that plain C struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a live, writable rusage.
    crate::check(unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) }.into())?;
    let Usage { user_us, system_us, .. } = Usage::of(&usage);
    Ok(user_us.saturating_add(system_us))
}

/// Clock ticks per second in the files of /proc.
pub fn ticks_per_second() -> u64 {
    // SAFETY: sysconf only reads its integer argument.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    // Linux knows this variable; on x86-64 it is 100 (`USER_HZ`).
    u64::try_from(ticks).ok().filter(|&ticks| ticks > 0).unwrap_or(100)
}

/// Reads CLOCK_MONOTONIC, the clock that programs use for deadlines.
pub fn monotonic_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Every kernel has this clock: the call cannot fail, and the nanoseconds are below a second.
    // SAFETY: the kernel fills in the structure that it gets, which lives until the call returns.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Whether this process is in the foreground of the terminal on its standard error. False without a
/// terminal. Only then may it write there unasked.
pub fn is_in_foreground() -> bool {
    // SAFETY: both read their integer arguments only.
    unsafe { libc::tcgetpgrp(libc::STDERR_FILENO) == libc::getpgrp() }
}
