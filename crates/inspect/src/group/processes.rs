//! The processes of a group: what the kernel counts of each, without stopping it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use strandline_process::group::find::Members;
use strandline_process::procfs::Process;
use strandline_process::smaps::{self, Counts};

use super::facts::GroupProcess;

/// Bytes of a thread's stack in the kernel (THREAD_SIZE of x86-64).
const KERNEL_STACK_BYTES: u64 = 16 << 10;

/// A process.
#[derive(Clone, Debug, Default)]
pub(super) struct OneProcess {
    pub pid: i32,
    pub name: String,
    /// Index of its group.
    pub group: usize,
    pub rss_bytes: Option<u64>,
    pub anonymous_bytes: Option<u64>,
    pub page_tables_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    pub threads: Option<u64>,
    /// Proportional shares, if they could be read in time.
    pub shares: Option<Counts>,
}

impl OneProcess {
    /// Its anonymous bytes: its share, or else all.
    pub fn anonymous(&self) -> u64 {
        let share = self.shares.map(|counts| counts.pss_anonymous_bytes);
        // Before Linux 5.4 there is no share of the anonymous pages alone.
        share.filter(|&bytes| bytes > 0).or(self.anonymous_bytes).unwrap_or(0)
    }

    /// The part of these that was released with MADV_FREE and not dropped yet.
    pub fn lazy_free(&self) -> u64 {
        self.shares.map_or(0, |counts| counts.lazy_free_bytes).min(self.anonymous())
    }

    /// For a person.
    pub fn label(&self) -> String {
        format!("{} ({})", self.name, self.pid)
    }
}

/// All processes of a group, those with the most anonymous memory first.
#[derive(Debug, Default)]
pub(super) struct GroupProcesses {
    pub all: Vec<OneProcess>,
    /// Those of which no share could be read.
    pub estimated: u64,
}

impl GroupProcesses {
    /// Reads all, and the shares of those with the most anonymous memory first, for at most `time`.
    pub fn read(members: &Members, time: Duration) -> Self {
        let since = Instant::now();
        let mut all: Vec<(OneProcess, Option<Process>)> = Vec::with_capacity(members.processes.len());
        for member in &members.processes {
            let Ok(process) = Process::open(member.pid) else { continue };
            let Ok(status) = process.status() else { continue };
            let one = OneProcess {
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
            if one.rss_bytes.is_none() {
                continue;
            }
            // The number of descriptors is limited: only some processes stay open.
            let keep = all.len() < MAX_OPEN;
            all.push((one, keep.then_some(process)));
        }
        all.sort_by_key(|(one, _)| (std::cmp::Reverse(one.anonymous_bytes), one.pid));
        read_shares(&mut all, since + time);
        let all: Vec<OneProcess> = all.into_iter().map(|(one, _)| one).collect();
        let estimated = all.iter().filter(|one| one.shares.is_none()).count() as u64;
        Self { all, estimated }
    }

    /// The pages of page tables that the processes have.
    pub fn page_tables_bytes(&self) -> Option<u64> {
        let known = self.all.iter().filter_map(|one| one.page_tables_bytes);
        (!self.all.is_empty()).then(|| known.fold(0, u64::saturating_add))
    }

    /// The stacks that the kernel has for their threads.
    pub fn kernel_stacks_bytes(&self) -> Option<u64> {
        let threads = self.all.iter().filter_map(|one| one.threads).fold(0, u64::saturating_add);
        (!self.all.is_empty()).then(|| threads.saturating_mul(KERNEL_STACK_BYTES))
    }

    /// As data.
    pub fn facts(&self, members: &Members) -> Vec<GroupProcess> {
        let fact = |one: &OneProcess| GroupProcess {
            pid: one.pid,
            name: one.name.clone(),
            cgroup: members
                .groups
                .get(one.group)
                .map_or_else(String::new, |path| format!("/{}", path.to_string_lossy())),
            rss_bytes: one.rss_bytes,
            pss_anonymous_bytes: one.shares.map(|counts| counts.pss_anonymous_bytes),
            anonymous_bytes: one.anonymous_bytes,
            swap_bytes: one.swap_bytes,
            threads: one.threads,
            ledger: None,
        };
        self.all.iter().map(fact).collect()
    }
}

/// Processes that stay open between the two reads.
const MAX_OPEN: usize = 256;
/// Maximum number of threads that read shares: the kernel walks page tables for them.
const MAX_THREADS: usize = 4;

/// Reads the shares of all until `deadline`, those at the beginning first.
fn read_shares(all: &mut [(OneProcess, Option<Process>)], deadline: Instant) {
    let next = Mutex::new(all.iter_mut());
    let work = || {
        loop {
            let turn = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((one, process)) = turn.filter(|_| Instant::now() < deadline) else { return };
            let process = process.take().or_else(|| Process::open(one.pid).ok());
            one.shares = process.and_then(|process| shares(&process));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Without another thread, this one reads all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

fn shares(process: &Process) -> Option<Counts> {
    smaps::read_rollup(process.open_file("smaps_rollup").ok()?).ok()
}
