//! The kernel's own figures of a captured process.

use crate::capture::FrozenState;
use crate::facts::{Kernel, PssParts};
use strandline_process::procfs::Status;
use strandline_process::smaps::Counts;

/// Returns the figures of `frozen`, with those of /proc/PID/status.
pub fn figures(frozen: &FrozenState, status: &Status, shmem_bytes: u64) -> Kernel {
    let sums = &frozen.sums;
    Kernel {
        rss_bytes: sums.rss_bytes,
        pss_bytes: frozen.rollup.as_ref().map(|rollup| rollup.pss_bytes),
        pss_parts: frozen.rollup.as_ref().and_then(pss_parts),
        anonymous_bytes: sums.anonymous_bytes,
        file_bytes: sums.rss_bytes.saturating_sub(sums.anonymous_bytes.saturating_add(shmem_bytes)),
        shmem_bytes,
        swap_bytes: sums.swap_bytes,
        lazyfree_bytes: sums.lazy_free_bytes,
        huge_bytes: sums.huge_bytes(),
        hugetlb_bytes: sums.hugetlb_bytes(),
        page_tables_bytes: status.page_tables_bytes,
        high_water_bytes: status.peak_rss_bytes,
        status_rss_bytes: status.rss_bytes,
    }
}

/// The parts of the proportional set size, if the kernel reports them.
fn pss_parts(rollup: &Counts) -> Option<PssParts> {
    rollup.has_pss_parts().then_some(PssParts {
        anonymous_bytes: rollup.pss_anonymous_bytes,
        file_bytes: rollup.pss_file_bytes,
        shmem_bytes: rollup.pss_shmem_bytes,
    })
}
