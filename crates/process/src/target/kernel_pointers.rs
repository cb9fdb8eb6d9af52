//! Pointers that a program has given to the kernel and that may be nowhere in its memory: the data
//! of descriptors in epoll(7), and the values of POSIX timers (timer_create(2)).

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use strandline_sys::capabilities::with_dac_capabilities;

use crate::error::Result;
use crate::procfs::Process;
use crate::target::tracee::ESRCH;

/// Maximum number of pointers of each kind.
const MAX_POINTERS: usize = 1 << 21;
/// Maximum bytes of a line; the kernel writes about a hundred.
const MAX_LINE_BYTES: u64 = 4096;

/// What a process has given to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelPointers {
    /// `epoll_data` of epoll_ctl(2).
    pub epoll_data: Vec<u64>,
    /// `sigev_value` of timer_create(2).
    pub timer_values: Vec<u64>,
    /// Whether there may be others: not all could be read.
    pub may_lack_others: bool,
}

/// Reads the pointers that a process has given to the kernel. A kernel that does not list timers
/// (CONFIG_CHECKPOINT_RESTORE) counts as one without any; descriptors that a thread does not share
/// with the first one (CLONE_FILES) are not read.
///
/// # Errors
/// Fails if the process may not be inspected.
pub fn find(process: &Process) -> Result<KernelPointers> {
    const FOLDER: &str = "fdinfo";
    let mut pointers = KernelPointers::default();
    let entries = with_dac_capabilities(|| std::fs::read_dir(process.path(FOLDER)));
    for entry in entries.map_err(|source| process.error(FOLDER, source))? {
        let path = entry.map_err(|source| process.error(FOLDER, source))?.path();
        pointers.may_lack_others |= !add_numbers(&path, epoll_data, &mut pointers.epoll_data);
    }
    let timers = process.path("timers");
    pointers.may_lack_others |= !add_numbers(&timers, timer_value, &mut pointers.timer_values);
    // A process that has ended has none any more.
    pointers.may_lack_others |= !process.stat().is_ok_and(|stat| stat.is_alive());
    Ok(pointers)
}

/// Adds the number in each line of a file that has one. Returns whether all were added; a file that
/// is gone has none.
fn add_numbers(path: &Path, number_in: fn(&str) -> Option<u64>, numbers: &mut Vec<u64>) -> bool {
    let mut file = match with_dac_capabilities(|| File::open(path)) {
        Ok(file) => BufReader::new(file),
        Err(error) => return is_gone(&error),
    };
    let mut line = Vec::new();
    loop {
        line.clear();
        match file.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return is_gone(&error),
        }
        if let Some(number) = std::str::from_utf8(&line).ok().and_then(number_in) {
            if numbers.len() >= MAX_POINTERS {
                return false;
            }
            numbers.push(number);
        }
    }
}

/// Whether a file was closed, or its process has ended.
fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH)
}

/// The data in a line of an epoll descriptor: `tfd: 5 events: 19 data: 55e097138a60 pos:0 …`
/// (fs/eventpoll.c, ep_show_fdinfo).
fn epoll_data(line: &str) -> Option<u64> {
    let (_, data) = line.strip_prefix("tfd:")?.split_once(" data:")?;
    u64::from_str_radix(data.split_whitespace().next()?, 16).ok()
}

/// The value in a line of /proc/PID/timers: `signal: 34/000055e09716dff0` (fs/proc/base.c,
/// show_timer).
fn timer_value(line: &str) -> Option<u64> {
    let (_, value) = line.strip_prefix("signal:")?.split_once('/')?;
    u64::from_str_radix(value.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_read() {
        let line = "tfd:        5 events:       19 data:     55e097138a60  pos:0 ino:2 sdev:f\n";
        assert_eq!(epoll_data(line), Some(0x55e0_9713_8a60));
        assert_eq!(timer_value("signal: 34/000055e09716dff0\n"), Some(0x55e0_9716_dff0));
        for other in ["pos:\t0\n", "tfd: 5\n", "tfd: 5 data: x", "signal: 34\n", "notify: signal/pid.7\n"] {
            assert_eq!((epoll_data(other), timer_value(other)), (None, None), "{other:?}");
        }
    }

    #[test]
    fn data_of_a_closed_descriptor_are_not_missing() {
        let mut numbers = Vec::new();
        assert!(add_numbers(Path::new("/proc/self/fdinfo/1000000"), epoll_data, &mut numbers));
        assert_eq!(numbers, []);
    }
}
