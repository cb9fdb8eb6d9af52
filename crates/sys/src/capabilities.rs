//! The capabilities of this process, and file capabilities that it gives up while it does not need
//! them.
//!
//! A strandline with file capabilities (`setcap`) runs for a user with fewer rights than it has.
//! Files named by this user must be opened with the user's rights. So [`drop_dac_capabilities`]
//! removes the capabilities that override file permissions from the effective set at the start,
//! before there is a second thread, and only [`with_dac_capabilities`] puts them back, while it
//! opens a file of /proc. Capability sets are per thread; a new thread inherits those of its
//! creator.

use std::cell::Cell;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A capability, by its number (include/uapi/linux/capability.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Its number, which is its bit in a set.
    pub number: u32,
    /// Its name without `cap_`, as container options spell it.
    pub name: &'static str,
}

/// Reads, writes and searches regardless of file permissions.
pub const DAC_OVERRIDE: Capability = Capability { number: 1, name: "DAC_OVERRIDE" };
/// Reads and searches regardless of file permissions.
pub const DAC_READ_SEARCH: Capability = Capability { number: 2, name: "DAC_READ_SEARCH" };
/// Acts as the owner of any file.
pub const FOWNER: Capability = Capability { number: 3, name: "FOWNER" };
/// Receives forks, execs and exits from the process connector (from Linux 6.6 on, any user does).
pub const NET_ADMIN: Capability = Capability { number: 12, name: "NET_ADMIN" };
/// Traces and reads any process; a program still gains its privileges (setuid) under such a trace.
pub const SYS_PTRACE: Capability = Capability { number: 19, name: "SYS_PTRACE" };
/// Pages out other processes.
pub const SYS_NICE: Capability = Capability { number: 23, name: "SYS_NICE" };
/// Opens /proc/PID/map_files (Linux 5.9).
pub const CHECKPOINT_RESTORE: Capability = Capability { number: 40, name: "CHECKPOINT_RESTORE" };

/// `_LINUX_CAPABILITY_VERSION_3`: two 32-bit words per set.
const VERSION: u32 = 0x2008_0522;

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    /// 0: the calling thread.
    pid: i32,
}

/// `struct __user_cap_data_struct`: 32 bits of each set.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SetWord {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Capabilities removed from the effective set, as bits.
static WITHHELD: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Nesting depth of [`with_dac_capabilities`] in this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

impl Capability {
    /// Its bit in a capability set.
    pub fn bit(self) -> u64 {
        1 << self.number
    }

    /// Whether this thread has the capability or can regain it with [`with_dac_capabilities`].
    pub fn is_held(self) -> bool {
        held_bits() & self.bit() != 0
    }
}

/// Capabilities of this thread, with those that [`with_dac_capabilities`] can regain, as bits.
pub fn held_bits() -> u64 {
    // capget(2) of the own thread fails only under a seccomp filter: then none counts as held.
    read_sets().map_or(0, |words| effective_bits(&words)) | WITHHELD.load(Ordering::Relaxed)
}

/// The capability bounding set, as bits: the most that a program started from here can have.
/// Without capabilities unknown to the kernel.
pub fn bounding_bits() -> u64 {
    let is_in = |number: u32| {
        // SAFETY: PR_CAPBSET_READ takes integers and writes nothing.
        unsafe { libc::prctl(libc::PR_CAPBSET_READ, libc::c_ulong::from(number), 0, 0, 0) == 1 }
    };
    (0..u64::BITS).filter(|&number| is_in(number)).map(|number| 1 << number).sum()
}

/// The capability sets of this thread.
fn read_sets() -> io::Result<[SetWord; 2]> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut words = [SetWord::default(); 2];
    // SAFETY: for version 3 the kernel writes two words of three sets, which live until the call
    // returns.
    crate::check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) })?;
    Ok(words)
}

/// The effective set, as bits.
fn effective_bits(words: &[SetWord; 2]) -> u64 {
    u64::from(words[0].effective) | u64::from(words[1].effective) << 32
}

/// Sets the effective set of this thread to `bits`; the others stay as in `words`.
fn set_effective(words: &mut [SetWord; 2], bits: u64) -> io::Result<()> {
    words[0].effective = bits as u32;
    words[1].effective = (bits >> 32) as u32;
    let mut header = Header { version: VERSION, pid: 0 };
    // SAFETY: for version 3 the kernel reads two words of three sets, which live until the call
    // returns.
    crate::check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, words.as_ptr()) })?;
    Ok(())
}

/// Whether this program has rights that its starter lacks: setuid, setgid or file capabilities.
pub fn is_privileged_start() -> bool {
    // SAFETY: getauxval reads the auxiliary vector that the kernel made at the start of this
    // process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether a program is known to gain privileges when it starts: it is setuid or setgid, or has
/// file capabilities. One that cannot be looked up cannot be started either.
pub fn gains_privileges(program: &Path) -> bool {
    const SET_ID: u32 = 0o6000;
    let is_set_id = std::fs::metadata(program).is_ok_and(|metadata| metadata.mode() & SET_ID != 0);
    let Ok(path) = CString::new(program.as_os_str().as_bytes()) else { return is_set_id };
    // SAFETY: both names are live and NUL-terminated; with a size of 0 nothing is written.
    let bytes =
        unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) };
    is_set_id || bytes > 0
}

/// Whether this process acts as another user than the one that started it.
pub fn acts_as_other_user() -> bool {
    // SAFETY: neither call has arguments, and neither can fail.
    unsafe { libc::getuid() != libc::geteuid() }
}

/// Removes the capabilities that override file permissions from the effective set, if they come
/// from the program's file. Call it at the start of `main`: threads that exist already keep theirs.
///
/// # Errors
/// Returns the error of capget(2) or capset(2).
pub fn drop_dac_capabilities() -> io::Result<()> {
    if !is_privileged_start() {
        return Ok(());
    }
    let mut words = read_sets()?;
    let bits_before = effective_bits(&words);
    let withheld = bits_before & (DAC_OVERRIDE.bit() | DAC_READ_SEARCH.bit() | FOWNER.bit());
    if withheld != 0 {
        set_effective(&mut words, bits_before & !withheld)?;
        WITHHELD.store(withheld, Ordering::Relaxed);
    }
    Ok(())
}

/// Removes on drop the capabilities that [`with_dac_capabilities`] restored, also on panic.
struct RaisedGuard;

impl Drop for RaisedGuard {
    fn drop(&mut self) {
        let depth = DEPTH.get().saturating_sub(1);
        DEPTH.set(depth);
        if depth > 0 {
            return;
        }
        let withheld = WITHHELD.load(Ordering::Relaxed);
        let removed = read_sets().and_then(|mut words| {
            let bits = effective_bits(&words) & !withheld;
            set_effective(&mut words, bits)
        });
        if removed.is_err() {
            // The kernel never refuses to remove capabilities; with them this thread could open
            // files that its user may not.
            std::process::abort();
        }
    }
}

/// Runs `work` with the withheld capabilities; just runs it if none is withheld. Use it only for
/// files of /proc/PID, by names chosen neither by strandline's user nor by a target.
pub fn with_dac_capabilities<T>(work: impl FnOnce() -> T) -> T {
    let withheld = WITHHELD.load(Ordering::Relaxed);
    if withheld == 0 {
        return work();
    }
    if DEPTH.get() == 0 {
        let restored = read_sets().and_then(|mut words| {
            let bits = effective_bits(&words) | withheld;
            set_effective(&mut words, bits)
        });
        if restored.is_err() {
            // The open in `work` then fails and reports the error.
            return work();
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    let _raised = RaisedGuard;
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_those_of_the_status() {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(value.trim(), 16).unwrap()
        };
        assert_eq!(effective_bits(&read_sets().unwrap()), line("CapEff:"));
        for capability in [DAC_OVERRIDE, SYS_PTRACE, CHECKPOINT_RESTORE] {
            assert_eq!(capability.is_held(), line("CapEff:") & capability.bit() != 0);
        }
        assert_eq!(bounding_bits(), line("CapBnd:"));
    }

    #[test]
    fn a_thread_drops_and_raises_its_own_capabilities() {
        std::thread::spawn(|| {
            let mut words = read_sets().unwrap();
            let bits_before = effective_bits(&words);
            set_effective(&mut words, bits_before & !FOWNER.bit()).unwrap();
            assert_eq!(effective_bits(&read_sets().unwrap()), bits_before & !FOWNER.bit());
            set_effective(&mut words, bits_before).unwrap();
            assert_eq!(effective_bits(&read_sets().unwrap()), bits_before);
        })
        .join()
        .unwrap();
        assert_eq!(with_dac_capabilities(|| with_dac_capabilities(|| 7)), 7);
        drop_dac_capabilities().unwrap();
        assert!(!is_privileged_start(), "no test is");
    }
}
