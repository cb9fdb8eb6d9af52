//! The processes of a group: what the kernel counts of each, without stopping it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use strandline_process::group::find::Members;
use strandline_process::procfs::Process;
use strandline_process::smaps::Counts;
use strandline_process::work::on_threads;

use super::facts::GroupProcess;

/// Bytes of a thread's stack in the kernel (THREAD_SIZE of x86-64).
const KERNEL_STACK_BYTES: u64 = 16 << 10;
/// Maximum number of processes that stay open between the two reads.
const MAX_OPEN: usize = 256;
/// Maximum number of threads that read shares: the kernel walks page tables for them.
const MAX_THREADS: usize = 4;

/// What the kernel counts of a process, in /proc/PID/status except for `shares`.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessCounts {
    pub pid: i32,
    pub name: String,
    /// Index of its group in [`Members::groups`].
    pub group: usize,
    pub rss_bytes: Option<u64>,
    pub anonymous_bytes: Option<u64>,
    pub page_tables_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    pub threads: Option<u64>,
    /// Proportional shares, if they could be read in time.
    pub shares: Option<Counts>,
}

impl ProcessCounts {
    /// Its share of anonymous pages; `None` if it was not read, or before Linux 5.3, where the
    /// kernel reports no share of these alone.
    pub fn anonymous_share_bytes(&self) -> Option<u64> {
        self.shares.filter(Counts::has_pss_parts).map(|counts| counts.pss_anonymous_bytes)
    }

    /// Its anonymous bytes: its share, or else all. 0 if neither is known: its pages are then on
    /// the row of those in no process.
    pub fn anonymous_or_share_bytes(&self) -> u64 {
        self.anonymous_share_bytes().or(self.anonymous_bytes).unwrap_or(0)
    }

    /// The part of these that was released with MADV_FREE and not dropped yet.
    pub fn lazy_free_bytes(&self) -> u64 {
        self.shares.map_or(0, |counts| counts.lazy_free_bytes).min(self.anonymous_or_share_bytes())
    }

    /// Its name and id, as rows show them.
    pub fn label(&self) -> String {
        format!("{} ({})", self.name, self.pid)
    }
}

/// All processes of a group, those with the most anonymous memory first.
#[derive(Debug, Default)]
pub(super) struct GroupProcesses {
    pub all: Vec<ProcessCounts>,
    /// Number of those of which no share could be read.
    pub estimated_count: u64,
}

impl GroupProcesses {
    /// Reads all, and the shares of those with the most anonymous memory first, for at most
    /// `max_time`.
    pub fn read(members: &Members, max_time: Duration) -> Self {
        let since = Instant::now();
        let mut all: Vec<OpenProcess> = Vec::with_capacity(members.processes.len());
        for member in &members.processes {
            // It has ended meanwhile.
            let Ok(process) = Process::open(member.pid) else { continue };
            let Ok(status) = process.status() else { continue };
            let counts = ProcessCounts {
                pid: member.pid,
                name: status.name.unwrap_or_else(|| "?".to_owned()),
                group: member.group,
                rss_bytes: status.rss_bytes,
                anonymous_bytes: status.anonymous_bytes,
                page_tables_bytes: status.page_tables_bytes,
                swap_bytes: status.swap_bytes,
                threads: status.threads,
                shares: None,
            };
            // A zombie or a kernel thread has no memory.
            if counts.rss_bytes.is_none() {
                continue;
            }
            // The number of descriptors is limited: only some processes stay open.
            let stays_open = all.len() < MAX_OPEN;
            all.push(OpenProcess { counts, process: stays_open.then_some(process) });
        }
        all.sort_by_key(|open| (std::cmp::Reverse(open.counts.anonymous_bytes), open.counts.pid));
        read_shares(&mut all, since + max_time);
        let all: Vec<ProcessCounts> = all.into_iter().map(|open| open.counts).collect();
        let estimated_count = all.iter().filter(|counts| counts.shares.is_none()).count() as u64;
        Self { all, estimated_count }
    }

    /// Bytes of the processes' page tables; `None` without processes.
    pub fn page_tables_bytes(&self) -> Option<u64> {
        let sizes = self.all.iter().filter_map(|counts| counts.page_tables_bytes);
        (!self.all.is_empty()).then(|| sizes.fold(0, u64::saturating_add))
    }

    /// Bytes of the stacks that the kernel has for their threads; `None` without processes.
    pub fn kernel_stacks_bytes(&self) -> Option<u64> {
        let threads = self.all.iter().filter_map(|counts| counts.threads).fold(0, u64::saturating_add);
        (!self.all.is_empty()).then(|| threads.saturating_mul(KERNEL_STACK_BYTES))
    }

    /// The processes, as the explanation has them.
    pub fn facts(&self, members: &Members) -> Vec<GroupProcess> {
        let fact = |counts: &ProcessCounts| GroupProcess {
            pid: counts.pid,
            name: counts.name.clone(),
            cgroup: members
                .groups
                .get(counts.group)
                .map_or_else(String::new, |path| format!("/{}", path.to_string_lossy())),
            rss_bytes: counts.rss_bytes,
            pss_anonymous_bytes: counts.anonymous_share_bytes(),
            anonymous_bytes: counts.anonymous_bytes,
            swap_bytes: counts.swap_bytes,
            threads: counts.threads,
            ledger: None,
        };
        self.all.iter().map(fact).collect()
    }
}

/// A process whose shares are read next.
struct OpenProcess {
    counts: ProcessCounts,
    /// `None` if it has to be opened again.
    process: Option<Process>,
}

/// Reads the shares of all until `deadline`, those at the beginning first.
fn read_shares(all: &mut [OpenProcess], deadline: Instant) {
    let unread = Mutex::new(all.iter_mut());
    let work = || {
        loop {
            let next = unread.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(OpenProcess { counts, process }) = next.filter(|_| Instant::now() < deadline) else {
                return;
            };
            let process = process.take().or_else(|| Process::open(counts.pid).ok());
            counts.shares = process.and_then(|process| process.smaps_rollup());
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    on_threads(threads, work);
}
