//! `explain --tree PID`: a process and all its descendants, in sequence.
//!
//! The parents are read from /proc once; processes that end before their turn, and those that may
//! not be inspected, are listed as left out. Only the root must be readable. If one with memory was
//! left out, the sums are lower bounds for the conditions.

use std::collections::{BTreeMap, BTreeSet};

use strandline_claims::caveat::Caveat;
use strandline_inspect::Error;
use strandline_inspect::explain::{Options, explain};
use strandline_inspect::facts::Explanation;
use strandline_inspect::ledger::{proportional, rows};
use strandline_process::procfs::{Process, all_pids};
use strandline_process::snapshot;

use super::arguments::Explain;
use super::condition::{PercentBase, Subjects};
use super::output::Output;
use super::{CommandResult, Failure, Result, explain::test_conditions};
use strandline_report::text::counted;
use strandline_report::tree::{Member, Tree, tree};

pub const SCHEMA: &str = "strandline/explain-tree/1";

/// Maximum number of processes inspected in a tree.
const MAX_PROCESSES: usize = 10_000;

/// Explains the tree and evaluates the conditions on its totals.
pub fn run(arguments: &Explain, output: &mut Output) -> Result<CommandResult> {
    let InspectedTree { tree: inspected, is_incomplete } = explain_tree(arguments)?;
    if output.is_json {
        output.document(SCHEMA, None, &inspected)?;
    } else {
        output.print(&tree(&inspected, output.surface))?;
    }
    let members = inspected.processes.iter();
    let shares: Option<Vec<Explanation>> =
        inspected.total_pss_bytes.map(|_| members.clone().map(as_shares).collect());
    let (base, processes): (_, Vec<&Explanation>) = match &shares {
        Some(shares) => (PercentBase::Pss, shares.iter().collect()),
        None => (PercentBase::Rss, members.map(|member| &member.explanation).collect()),
    };
    let subjects = Subjects { processes: &processes, base, is_incomplete };
    Ok(test_conditions(&arguments.fail_if, |condition| condition.test_together(&subjects)))
}

/// A tree with what it lacks.
struct InspectedTree {
    tree: Tree,
    /// Whether a process that has memory was left out; not if its parent is unknown (hidepid).
    is_incomplete: bool,
}

/// A process with its rows and states as parts of its PSS, to which conditions on a tree refer.
fn as_shares(member: &Member) -> Explanation {
    let mut explanation = member.explanation.clone();
    if let Some(rows) = proportional::rows(&explanation) {
        explanation.totals = rows::totals(&rows);
        explanation.rows = rows;
    }
    explanation
}

/// Explains the process and its descendants, one after the other.
fn explain_tree(arguments: &Explain) -> Result<InspectedTree> {
    let root = arguments.pid()?;
    let own_pid = std::process::id().cast_signed();
    let Parents { parents, unreadable } = read_parents()?;
    let mut processes = descendants(root, &parents);
    let left_out = processes.len().saturating_sub(MAX_PROCESSES);
    processes.truncate(MAX_PROCESSES);
    let of_tree = |code: &str, text: String| Caveat::new(code, format!("tree of {root}"), None, text);
    let mut caveats = Vec::new();
    if left_out > 0 {
        caveats.push(of_tree("too_many_processes", format!("{left_out} more processes were not read")));
    }
    if unreadable > 0 {
        let text = format!(
            "the parents of {} cannot be read (/proc may be mounted with hidepid): descendants among them are left out",
            counted(unreadable, "process")
        );
        caveats.push(of_tree("process_left_out", text));
    }
    let mut is_incomplete = left_out > 0;
    let mut members = Vec::new();
    let options = Options {
        reads_runtimes: !arguments.no_runtimes,
        max_stop: arguments.max_stop,
        snapshot: arguments.snapshot.mode(),
        quiet_for: arguments.quiet.limit,
        ..Options::default()
    };
    for Descendant { pid, parent, depth } in processes {
        // strandline started from a shell in the tree is temporarily part of it; skip it silently.
        if pid == own_pid && pid != root {
            continue;
        }
        // Skip the snapshot of a member, made by another strandline: it is no independent process.
        if pid != root && Process::open(pid).is_ok_and(|process| snapshot::is_snapshot(&process)) {
            continue;
        }
        let error = match explain(pid, &options) {
            Ok(explanation) => {
                members.push(Member::new(parent, depth, explanation));
                continue;
            }
            Err(error) if pid == root => return Err(error.into()),
            Err(error) => error,
        };
        let (code, text) = match error {
            Error::NoSuchProcess { .. } | Error::Ended { .. } => {
                ("process_ended", "it ended before it was read".to_owned())
            }
            error => {
                is_incomplete |= !matches!(error, Error::Zombie { .. } | Error::KernelThread { .. });
                ("process_left_out", error.to_string())
            }
        };
        caveats.push(Caveat::new(code, format!("process {pid}"), None, text));
    }
    Ok(InspectedTree { tree: Tree::new(root, members, caveats), is_incomplete })
}

/// A process of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descendant {
    pid: i32,
    parent: i32,
    /// Number of generations below the root.
    depth: usize,
}

/// The parent of each process that has one.
#[derive(Default)]
struct Parents {
    parents: BTreeMap<i32, i32>,
    /// Number of running processes whose parents cannot be read.
    unreadable: u64,
}

/// Reads the parent of every process; processes that end meanwhile have none.
fn read_parents() -> Result<Parents> {
    let mut read = Parents::default();
    for pid in all_pids().map_err(|error| Failure(format!("/proc: {error}")))? {
        match Process::open(pid).and_then(|process| process.stat()) {
            Ok(stat) => read.parents.extend(stat.parent.map(|parent| (pid, parent))),
            Err(Error::NoSuchProcess { .. } | Error::Ended { .. }) => {}
            Err(_) => read.unreadable += 1,
        }
    }
    Ok(read)
}

/// `root` and its descendants, parents before their children. A root without a known parent has
/// the parent 0, as init has.
fn descendants(root: i32, parents: &BTreeMap<i32, i32>) -> Vec<Descendant> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (&pid, &parent) in parents {
        children.entry(parent).or_default().push(pid);
    }
    let mut listed_pids = BTreeSet::new();
    let mut order = Vec::new();
    let parent = parents.get(&root).copied().unwrap_or(0);
    let mut pending = vec![Descendant { pid: root, parent, depth: 0 }];
    while let Some(process) = pending.pop() {
        // Process ids may be reused while /proc is read, so even cycles are possible.
        if !listed_pids.insert(process.pid) {
            continue;
        }
        order.push(process);
        let own_children = children.get(&process.pid).map_or(&[][..], Vec::as_slice);
        let child = |&pid: &i32| Descendant { pid, parent: process.pid, depth: process.depth + 1 };
        pending.extend(own_children.iter().rev().map(child));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_before_children_and_rings_end() {
        let tree = |parents: &[(i32, i32)]| -> Vec<(i32, i32, usize)> {
            let processes = descendants(1, &parents.iter().copied().collect());
            processes.iter().map(|process| (process.pid, process.parent, process.depth)).collect()
        };
        let parents = [(2, 1), (3, 1), (4, 2), (9, 8), (5, 4)];
        assert_eq!(tree(&parents), [(1, 0, 0), (2, 1, 1), (4, 2, 2), (5, 4, 3), (3, 1, 1)]);
        let ring = [(1, 2), (2, 1)];
        assert_eq!(tree(&ring), [(1, 2, 0), (2, 1, 1)]);
    }
}
