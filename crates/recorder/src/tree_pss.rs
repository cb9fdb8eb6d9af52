//! The proportional set size of a tree of processes.

use strandline_process::error::Error;
use strandline_process::procfs::Process;
use strandline_process::smaps;

use super::sampler::ESRCH;

/// The proportional set size of several processes together, in which shared pages count once.
/// `None` if there are fewer than two, or if one cannot be read.
pub fn tree_pss_bytes(pids: &[i32]) -> Option<u64> {
    if pids.len() < 2 {
        return None;
    }
    let mut sum = 0u64;
    for &pid in pids {
        let rollup = Process::open(pid).and_then(|process| process.open_file("smaps_rollup"));
        match rollup.map(smaps::read_rollup) {
            Ok(Ok(sums)) => sum = sum.saturating_add(sums.pss_bytes),
            // It runs, and /proc hides it (hidepid).
            Err(Error::NoSuchProcess { .. }) if strandline_sys::signal::exists(pid) => return None,
            // It ended meanwhile and has no memory left.
            Err(Error::NoSuchProcess { .. } | Error::Ended { .. }) => {}
            Ok(Err(error)) if error.raw_os_error() == Some(ESRCH) => {}
            Ok(Err(_)) | Err(_) => return None,
        }
    }
    Some(sum)
}
