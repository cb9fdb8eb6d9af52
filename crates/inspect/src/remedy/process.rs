//! What /proc says about a process and its threads, as a remedy needs it: small texts, read with a
//! bound, parsed with suspicion (a process's name may contain anything).

use std::fs::File;
use std::io::{self, Read};

use crate::map::AddressSpace;

/// The most of a small /proc file that is read.
const MOST_TEXT_BYTES: u64 = 64 << 10;
/// The most of /proc/PID/maps that is read: a process has at most 65,530 mappings by default.
const MOST_MAPS_BYTES: u64 = 64 << 20;
/// The most threads that are listed.
const MOST_THREADS: usize = 1 << 16;

/// Signals of a thread, bit n-1 for signal n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// Waiting for this thread.
    pub thread_pending: u64,
    /// Waiting for any thread of the process.
    pub process_pending: u64,
    /// Blocked by this thread.
    pub blocked: u64,
    /// Caught by a handler of the process.
    pub caught: u64,
}

/// What a remedy asks of /proc/PID/status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// `R`, `S`, `D`, `T` (stopped by a signal), `t` (by a tracer), `Z`, `X`, …
    pub state: char,
    pub process: i32,
    pub parent: i32,
    pub tracer: i32,
    pub is_kernel_thread: bool,
    /// 0 none, 1 strict, 2 filter.
    pub seccomp: u32,
    pub has_shadow_stack: bool,
    /// Pages that a device or the kernel holds on to.
    pub pinned_kib: u64,
    pub signals: Signals,
}

/// Reads at most `most` bytes of the file at `path`.
fn text(path: &str, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// /proc/PID/task/TID/status.
pub(crate) fn status(pid: i32, tid: i32) -> io::Result<Status> {
    Ok(parse_status(&text(&format!("/proc/{pid}/task/{tid}/status"), MOST_TEXT_BYTES)?))
}

/// The signals of one thread as they are now.
pub fn signals(pid: i32, tid: i32) -> io::Result<Signals> {
    Ok(status(pid, tid)?.signals)
}

fn parse_status(text: &str) -> Status {
    let mut status = Status { state: '?', ..Status::default() };
    for line in text.lines() {
        let Some((field, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        let number = || value.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let mask = || u64::from_str_radix(value, 16).unwrap_or(0);
        match field {
            "State" => status.state = value.chars().next().unwrap_or('?'),
            "Tgid" => status.process = number() as i32,
            "PPid" => status.parent = number() as i32,
            "TracerPid" => status.tracer = number() as i32,
            "Kthread" => status.is_kernel_thread = number() == 1,
            "Seccomp" => status.seccomp = number() as u32,
            "x86_Thread_features" => status.has_shadow_stack = value.contains("shstk"),
            "VmPin" => status.pinned_kib = number(),
            "SigPnd" => status.signals.thread_pending = mask(),
            "ShdPnd" => status.signals.process_pending = mask(),
            "SigCgt" => status.signals.caught = mask(),
            "SigBlk" => status.signals.blocked = mask(),
            _ => {}
        }
    }
    status
}

/// Fields of /proc/PID/stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub state: char,
    pub minor_faults: u64,
    /// In clock ticks since boot: tells a process from a later one with the same id.
    pub started: u64,
}

/// /proc/PID/stat: the process as a whole.
pub(crate) fn stat(pid: i32) -> io::Result<Stat> {
    parse_stat(&text(&format!("/proc/{pid}/stat"), MOST_TEXT_BYTES)?)
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The name in parentheses may hold spaces and parentheses; what follows the last one does not.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        // Fields 10 and 22 of proc(5), which counts from 1 and has state as its third.
        minor_faults: fields.get(7)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// The ids of a process's threads.
pub(crate) fn threads(pid: i32) -> io::Result<Vec<i32>> {
    let ids = std::fs::read_dir(format!("/proc/{pid}/task"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .take(MOST_THREADS)
        .collect();
    Ok(ids)
}

/// What a thread is doing in the kernel, as /proc/PID/task/TID/syscall says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It runs, or could.
    Running,
    /// It is blocked, not in a system call (a page fault).
    Blocked,
    /// It is blocked in this system call, whose first argument is this.
    Call(i64, u64),
}

/// What thread `tid` does; `None` where the kernel does not say.
pub(crate) fn doing(pid: i32, tid: i32) -> Option<Doing> {
    parse_doing(&text(&format!("/proc/{pid}/task/{tid}/syscall"), MOST_TEXT_BYTES).ok()?)
}

fn parse_doing(text: &str) -> Option<Doing> {
    let mut words = text.split_ascii_whitespace();
    match words.next()? {
        "running" => Some(Doing::Running),
        "-1" => Some(Doing::Blocked),
        number => {
            let argument = words.next()?.trim_start_matches("0x");
            Some(Doing::Call(number.parse().ok()?, u64::from_str_radix(argument, 16).ok()?))
        }
    }
}

/// The mappings of a process as they are now.
pub(crate) fn address_space(pid: i32) -> io::Result<AddressSpace> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?.take(MOST_MAPS_BYTES).read_to_end(&mut bytes)?;
    Ok(AddressSpace::parse(&bytes).0)
}

/// The Rss of /proc/PID/smaps_rollup in bytes.
pub(crate) fn rss_bytes(pid: i32) -> Option<u64> {
    let text = text(&format!("/proc/{pid}/smaps_rollup"), MOST_TEXT_BYTES).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The name of process `pid`, for a message.
pub(crate) fn name(pid: i32) -> String {
    text(&format!("/proc/{pid}/comm"), 64).map_or_else(|_| "?".into(), |name| name.trim_end().into())
}

/// Live memory of a process.
pub(crate) struct ProcessMemory(pub i32);

impl crate::memory::Memory for ProcessMemory {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        strandline_sys::memory::read(self.0, address, buffer).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_does_not_shift_the_fields() {
        let text = "7 (a) R 1 (b) S 1 2 3 4 5 6 1234 8 9 10 11 12 13 14 15 16 17 18 9876 21\n";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.state, stat.minor_faults, stat.started), ('S', 1234, 9876));
        assert_eq!(parse_stat("7 (a"), None);
        assert_eq!(parse_stat("7 (a) S 1"), None);
    }

    #[test]
    fn statuses_and_system_calls_parse() {
        let status = parse_status(
            "Name:\tx\nState:\tT (stopped)\nTgid:\t7\nPPid:\t3\nTracerPid:\t0\nVmPin:\t     8 kB\n\
             SigPnd:\t0000000000000200\nShdPnd:\t0000000000000001\nSigBlk:\tfffffffe7ffbfeff\n\
             Seccomp:\t2\nx86_Thread_features:\tshstk wrss\n",
        );
        assert_eq!((status.state, status.process, status.parent), ('T', 7, 3));
        assert_eq!((status.seccomp, status.pinned_kib, status.has_shadow_stack), (2, 8, true));
        assert_eq!(status.signals.thread_pending, 0x200);
        assert_eq!(parse_doing("running\n"), Some(Doing::Running));
        assert_eq!(parse_doing("-1 0x7ffd 0x7f00\n"), Some(Doing::Blocked));
        assert_eq!(parse_doing("202 0x55aa 0x80 0 0 0 0 0x1 0x2"), Some(Doing::Call(202, 0x55aa)));
        assert_eq!(parse_doing(""), None);
    }
}
