//! What this process may do beyond its user's own rights, and the rights over files that it lays down.
//!
//! A strandline with file capabilities (`setcap`) works for a user who has less than it has. The files that this user
//! names must be opened with the user's rights; so what overrides the rights of files is taken out of the effective set at the start
//! ([`withhold_file_rights`]), before there is a second thread, and put back by [`with_file_rights`] alone, for as long as
//! that opens a file of /proc. Sets are a thread's own; threads begin with those of whoever starts them.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// A capability, by its number (include/uapi/linux/capability.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Its bit.
    pub number: u32,
    /// Its name without `cap_`, as containers' options write it.
    pub name: &'static str,
}

/// Reads, writes and searches whatever the rights of files say.
pub const DAC_OVERRIDE: Capability = Capability { number: 1, name: "DAC_OVERRIDE" };
/// Reads and searches whatever the rights of files say.
pub const DAC_READ_SEARCH: Capability = Capability { number: 2, name: "DAC_READ_SEARCH" };
/// Acts as the owner of any file.
pub const FOWNER: Capability = Capability { number: 3, name: "FOWNER" };
/// Hears of forks, execs and ends from the process connector.
pub const NET_ADMIN: Capability = Capability { number: 12, name: "NET_ADMIN" };
/// Traces and reads any process.
pub const SYS_PTRACE: Capability = Capability { number: 19, name: "SYS_PTRACE" };
/// Pages out other processes.
pub const SYS_NICE: Capability = Capability { number: 23, name: "SYS_NICE" };
/// Opens /proc/PID/map_files (Linux 5.9).
pub const CHECKPOINT_RESTORE: Capability = Capability { number: 40, name: "CHECKPOINT_RESTORE" };

/// `_LINUX_CAPABILITY_VERSION_3`: two words of 32 bits a set.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    /// 0: the calling thread.
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Word {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Capabilities that were taken out of the effective set, as bits.
static WITHHELD: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// How many [`with_file_rights`] this thread is inside of.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

impl Capability {
    /// As the sets have it.
    pub fn bit(self) -> u64 {
        1 << self.number
    }

    /// Whether this thread has it, or can have it back by [`with_file_rights`].
    pub fn is_held(self) -> bool {
        held() & self.bit() != 0
    }
}

/// What this thread has, or can have back by [`with_file_rights`], as bits.
pub fn held() -> u64 {
    read().map_or(0, |words| effective(&words)) | WITHHELD.load(Ordering::Relaxed)
}

/// What a program that is started from here can have at most, as bits; of those that the kernel does not know, nothing.
pub fn bounds() -> u64 {
    let is_in = |number: u32| {
        // SAFETY: PR_CAPBSET_READ takes integers and writes nothing.
        unsafe { libc::prctl(libc::PR_CAPBSET_READ, libc::c_ulong::from(number), 0, 0, 0) == 1 }
    };
    (0..u64::BITS).filter(|&number| is_in(number)).map(|number| 1 << number).sum()
}

fn read() -> io::Result<[Word; 2]> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut words = [Word::default(); 2];
    // SAFETY: of version 3 the kernel writes two words of three sets, which live until the call returns.
    crate::check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) })?;
    Ok(words)
}

fn effective(words: &[Word; 2]) -> u64 {
    u64::from(words[0].effective) | u64::from(words[1].effective) << 32
}

fn set_effective(words: &mut [Word; 2], bits: u64) -> io::Result<()> {
    words[0].effective = bits as u32;
    words[1].effective = (bits >> 32) as u32;
    let mut header = Header { version: VERSION, pid: 0 };
    // SAFETY: of version 3 the kernel reads two words of three sets, which live until the call returns.
    crate::check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, words.as_ptr()) })?;
    Ok(())
}

/// Whether this program was given rights that who started it has not: setuid, setgid or file capabilities.
pub fn is_privileged_start() -> bool {
    // SAFETY: getauxval reads what the kernel gave this process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether this process acts as another user than the one who started it.
pub fn is_set_user() -> bool {
    // SAFETY: neither has arguments, and neither can fail.
    unsafe { libc::getuid() != libc::geteuid() }
}

/// Takes what overrides the rights of files out of the effective set, where the program's file gave it. For the start of `main`: threads
/// that exist already keep theirs.
pub fn withhold_file_rights() -> io::Result<()> {
    if !is_privileged_start() {
        return Ok(());
    }
    let mut words = read()?;
    let had = effective(&words);
    let withheld = had & (DAC_OVERRIDE.bit() | DAC_READ_SEARCH.bit() | FOWNER.bit());
    if withheld != 0 {
        set_effective(&mut words, had & !withheld)?;
        WITHHELD.store(withheld, Ordering::Relaxed);
    }
    Ok(())
}

/// Lays down what [`with_file_rights`] took up, whatever ends it.
struct Raised;

impl Drop for Raised {
    fn drop(&mut self) {
        let depth = DEPTH.get().saturating_sub(1);
        DEPTH.set(depth);
        if depth > 0 {
            return;
        }
        let withheld = WITHHELD.load(Ordering::Relaxed);
        let down = read().and_then(|mut words| {
            let bits = effective(&words) & !withheld;
            set_effective(&mut words, bits)
        });
        if down.is_err() {
            // The kernel never refuses to take away; going on with them would lend them.
            std::process::abort();
        }
    }
}

/// Does `work` with the rights over files that were withheld; without any just does it. For files of /proc/PID only, by
/// names that neither strandline's user nor a target chose.
pub fn with_file_rights<T>(work: impl FnOnce() -> T) -> T {
    let withheld = WITHHELD.load(Ordering::Relaxed);
    if withheld == 0 {
        return work();
    }
    if DEPTH.get() == 0 {
        let up = read().and_then(|mut words| {
            let bits = effective(&words) | withheld;
            set_effective(&mut words, bits)
        });
        if up.is_err() {
            // Then the opening says what is refused.
            return work();
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    let _raised = Raised;
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_those_of_the_status() {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = |name: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(found.trim(), 16).unwrap()
        };
        assert_eq!(effective(&read().unwrap()), line("CapEff:"));
        for one in [DAC_OVERRIDE, SYS_PTRACE, CHECKPOINT_RESTORE] {
            assert_eq!(one.is_held(), line("CapEff:") & one.bit() != 0);
        }
        assert_eq!(bounds(), line("CapBnd:"));
    }

    #[test]
    fn a_thread_lays_down_and_takes_up_its_own() {
        std::thread::spawn(|| {
            let mut words = read().unwrap();
            let had = effective(&words);
            set_effective(&mut words, had & !FOWNER.bit()).unwrap();
            assert_eq!(effective(&read().unwrap()), had & !FOWNER.bit());
            set_effective(&mut words, had).unwrap();
            assert_eq!(effective(&read().unwrap()), had);
        })
        .join()
        .unwrap();
        assert_eq!(with_file_rights(|| with_file_rights(|| 7)), 7);
        withhold_file_rights().unwrap();
        assert!(!is_privileged_start(), "no test is");
    }
}
