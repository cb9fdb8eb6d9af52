//! The table for scripts. Field names are an interface (`docs/schema.md`).

use std::time::Instant;

use serde::Serialize;

use crate::rows::{LedgerSums, Row};

/// The rows of the table, in its order.
#[derive(Debug, Serialize)]
pub struct Document {
    /// The processes; empty if the rows are control groups.
    processes: Vec<Process>,
    /// The control groups; left out if the rows are processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<Group>>,
    /// Number of processes that are left out because their files cannot be read.
    unread_processes: u64,
}

/// A process.
#[derive(Debug, Serialize)]
struct Process {
    pid: i32,
    /// Process id of its parent; `None` if it has none.
    parent: Option<i32>,
    name: String,
    /// Path of its control group; `None` if unknown.
    cgroup: Option<String>,
    rss_bytes: u64,
    /// `None` if it was not read.
    pss_bytes: Option<u64>,
    /// `None` if the kernel does not report it.
    anonymous_bytes: Option<u64>,
    /// `None` for a process that was not there at the first of the two surveys.
    growth_bytes_per_minute: Option<i64>,
    /// Its last ledger; `None` if none was taken.
    ledger: Option<Ledger>,
}

/// The sums of a ledger.
#[derive(Debug, Serialize)]
struct Ledger {
    stranded_bytes: u64,
    pinned_bytes: u64,
    age_seconds: f64,
}

/// A control group.
#[derive(Debug, Serialize)]
struct Group {
    cgroup: String,
    /// Number of processes.
    processes: u64,
    /// Shared pages count for each process.
    rss_bytes: u64,
    /// `None` unless it was read for all of its processes.
    pss_bytes: Option<u64>,
    /// `None` if the kernel does not report it for one of its processes.
    anonymous_bytes: Option<u64>,
    /// `None` for a group that was not there at the first of the two surveys.
    growth_bytes_per_minute: Option<i64>,
}

impl Document {
    /// The document of `rows`, which are control groups if `has_groups`.
    pub fn new(rows: &[Row], has_groups: bool, unread_processes: u64) -> Self {
        Self {
            processes: rows.iter().filter_map(process).collect(),
            groups: has_groups.then(|| rows.iter().map(group).collect()),
            unread_processes,
        }
    }
}

/// A row as a process; `None` if it is a control group.
fn process(row: &Row) -> Option<Process> {
    let ledger = |sums: LedgerSums| Ledger {
        stranded_bytes: sums.stranded_bytes,
        pinned_bytes: sums.pinned_bytes,
        age_seconds: Instant::now().saturating_duration_since(sums.at).as_secs_f64(),
    };
    Some(Process {
        pid: row.pid?,
        parent: row.parent.filter(|&parent| parent > 0),
        name: row.name.clone(),
        cgroup: row.group.clone(),
        rss_bytes: row.rss_bytes,
        pss_bytes: row.pss_bytes,
        anonymous_bytes: row.anonymous_bytes,
        growth_bytes_per_minute: row.growth_bytes_per_minute,
        ledger: row.ledger.map(ledger),
    })
}

fn group(row: &Row) -> Group {
    Group {
        cgroup: row.name.clone(),
        processes: row.processes,
        rss_bytes: row.rss_bytes,
        pss_bytes: row.pss_bytes,
        anonymous_bytes: row.anonymous_bytes,
        growth_bytes_per_minute: row.growth_bytes_per_minute,
    }
}
