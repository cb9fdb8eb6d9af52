//! Pages that other processes map too, as after a fork: a remedy removes them from this process's
//! RSS, but the machine keeps them.

use std::ops::Range;

use strandline_process::pages::{self, anonymous_bytes_in};
use strandline_process::procfs::Process;
use strandline_process::range::RangeSet;
use strandline_process::smaps::Smaps;

/// How much of some resident memory is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Bytes of pages that no other process has mapped.
    pub private_bytes: u64,
    /// Bytes of pages that other processes have mapped too.
    pub shared_bytes: u64,
    /// Average number of these other processes; `None` if no page is shared, or if it is unknown.
    pub other_processes: Option<u64>,
}

/// Returns how much of the resident anonymous pages in `runs`, which are in address order, is
/// shared now; `None` if that cannot be read.
pub fn of_runs(process: &Process, runs: &RangeSet) -> Option<Sharing> {
    let ranges: Vec<Range<u64>> = runs.iter().map(|&run| run.into()).collect();
    let pagemap = process.open_file("pagemap").ok()?;
    let private_bytes = pages::exclusive_bytes(&pagemap, &ranges).ok()?;
    let shared_bytes = anonymous_bytes_in(&pagemap, &ranges).ok()?.saturating_sub(private_bytes);
    let other_processes = if shared_bytes > 0 { other_processes(process, runs) } else { None };
    Some(Sharing { private_bytes, shared_bytes, other_processes })
}

/// Returns how many other processes have the shared pages of the mappings with `runs`: a page that
/// `n` processes have counts as an `n`th of a page in the Pss of each (proc_pid_smaps(5)).
fn other_processes(process: &Process, runs: &RangeSet) -> Option<u64> {
    let smaps = Smaps::read(process.open_file("smaps").ok()?).ok()?;
    // Of the shared pages: their bytes, and the part of these that counts for this process.
    let (mut shared_bytes, mut proportional_bytes) = (0_u64, 0_u64);
    for entry in &smaps.entries {
        if runs.overlaps(entry.mapping.range()) {
            let private = entry.counts.private_bytes();
            shared_bytes = shared_bytes.saturating_add(entry.counts.rss_bytes.saturating_sub(private));
            proportional_bytes =
                proportional_bytes.saturating_add(entry.counts.pss_bytes.saturating_sub(private));
        }
    }
    let processes = (shared_bytes.saturating_add(proportional_bytes / 2)).checked_div(proportional_bytes)?;
    processes.checked_sub(1).filter(|&count| count > 0)
}
