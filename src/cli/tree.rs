//! `explain --tree PID`: a process and all its descendants, in sequence.
//!
//! The parents are read from /proc once; processes that end before their turn, and those that may
//! not be inspected, are listed as left out. Only the root must be readable.

use std::collections::{BTreeMap, BTreeSet};

use strandline_claims::caveat::Caveat;
use strandline_inspect::Error;
use strandline_inspect::explain::{Options, explain};
use strandline_inspect::facts::Explanation;
use strandline_inspect::ledger::{proportional, rows};
use strandline_process::procfs::Process;
use strandline_process::snapshot;

use super::arguments::Explain;
use super::condition::PercentBase;
use super::output::Output;
use super::{CommandResult, Failure, Result, explain::test_conditions};
use strandline_report::tree::{Member, Tree, tree};

pub const SCHEMA: &str = "strandline/explain-tree/1";

/// Maximum number of processes inspected in a tree.
const MAX_PROCESSES: usize = 10_000;

/// Explains the tree and evaluates the conditions on its totals.
pub fn run(arguments: &Explain, output: &mut Output) -> Result<CommandResult> {
    let tree_result = explain_tree(arguments)?;
    if output.json {
        output.document(SCHEMA, None, &tree_result)?;
    } else {
        output.print(&tree(&tree_result, output.surface))?;
    }
    let processes = tree_result.processes.iter();
    Ok(match tree_result.total_pss_bytes {
        Some(_) => {
            let shares: Vec<Explanation> = processes.map(as_shares).collect();
            let shares: Vec<_> = shares.iter().collect();
            test_conditions(&arguments.fail_if, |condition| condition.test(&shares, PercentBase::Pss))
        }
        None => {
            let explanations: Vec<_> = processes.map(|member| &member.explanation).collect();
            test_conditions(&arguments.fail_if, |condition| condition.test(&explanations, PercentBase::Rss))
        }
    })
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
fn explain_tree(arguments: &Explain) -> Result<Tree> {
    let root = arguments.pid()?;
    let own_pid = std::process::id().cast_signed();
    let mut members = Vec::new();
    let mut caveats = Vec::new();
    let mut processes = descendants(root, &read_parents()?);
    if processes.len() > MAX_PROCESSES {
        let left_out = processes.len() - MAX_PROCESSES;
        processes.truncate(MAX_PROCESSES);
        caveats.push(Caveat::new(
            "too_many_processes",
            format!("tree of {root}"),
            None,
            format!("{left_out} more processes were not read"),
        ));
    }
    for Descendant { pid, parent, depth } in processes {
        // strandline started from a shell in the tree is temporarily part of it; skip it silently.
        if pid == own_pid && pid != root {
            continue;
        }
        // Skip the snapshot of a member, made by another strandline: it is no independent process.
        if pid != root && Process::open(pid).is_ok_and(|process| snapshot::is_snapshot(&process)) {
            continue;
        }
        let options = Options {
            runtimes: !arguments.no_runtimes,
            max_stop: arguments.max_stop,
            snapshot: arguments.snapshot.mode(),
            quiet_for: arguments.quiet.limit,
            ..Options::default()
        };
        match explain(pid, &options) {
            Ok(explanation) => members.push(Member::new(parent, depth, explanation)),
            Err(error) if pid == root => return Err(error.into()),
            Err(Error::NoSuchProcess { .. } | Error::Ended { .. }) => {
                let text = "it ended before it was read";
                caveats.push(Caveat::new("process_ended", format!("process {pid}"), None, text));
            }
            Err(error) => caveats.push(Caveat::new(
                "process_left_out",
                format!("process {pid}"),
                None,
                error.to_string(),
            )),
        }
    }
    Ok(Tree::new(root, members, caveats))
}

/// A process of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descendant {
    pid: i32,
    parent: i32,
    /// Number of generations below the root.
    depth: usize,
}

/// Reads the parent of every process; processes that end meanwhile have none.
fn read_parents() -> Result<BTreeMap<i32, i32>> {
    let folder = std::fs::read_dir("/proc").map_err(|error| Failure(format!("/proc: {error}")))?;
    let pids = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    Ok(pids.filter_map(|pid| Some((pid, Process::open(pid).ok()?.stat().ok()?.parent?))).collect())
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
