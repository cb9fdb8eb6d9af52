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
use super::condition::Whole;
use super::output::Output;
use super::{CommandResult, Result, explain::test_conditions};
use strandline_report::tree::{Member, Tree, tree};

pub const SCHEMA: &str = "strandline/explain-tree/1";

/// Maximum number of processes inspected in a tree.
const MAX_PROCESSES: usize = 10_000;

/// Explains the tree and evaluates the conditions on its totals.
pub fn run(arguments: &Explain, output: &mut Output) -> Result<CommandResult> {
    let found = look(arguments)?;
    if output.json {
        output.document(SCHEMA, None, &found)?;
    } else {
        output.print(&tree(&found, output.surface))?;
    }
    let processes = found.processes.iter();
    Ok(match found.total_pss_bytes {
        Some(_) => {
            let shares: Vec<Explanation> = processes.map(as_shares).collect();
            let shares: Vec<_> = shares.iter().collect();
            test_conditions(&arguments.fail_if, |condition| condition.test(&shares, Whole::Pss))
        }
        None => {
            let whole: Vec<_> = processes.map(|member| &member.explanation).collect();
            test_conditions(&arguments.fail_if, |condition| condition.test(&whole, Whole::Rss))
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

fn look(arguments: &Explain) -> Result<Tree> {
    let root = arguments.pid();
    let own = std::process::id().cast_signed();
    let mut members = Vec::new();
    let mut caveats = Vec::new();
    let mut processes = descendants(root, &parents());
    if processes.len() > MAX_PROCESSES {
        let more = processes.len() - MAX_PROCESSES;
        processes.truncate(MAX_PROCESSES);
        caveats.push(Caveat::new(
            "too_many_processes",
            format!("tree of {root}"),
            None,
            format!("{more} more processes were not read"),
        ));
    }
    for (pid, parent, depth) in processes {
        // strandline started from a shell in the tree is temporarily part of it; skip it silently.
        if pid == own && pid != root {
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

/// The parent of every process.
fn parents() -> BTreeMap<i32, i32> {
    let Ok(folder) = std::fs::read_dir("/proc") else { return BTreeMap::new() };
    folder
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            Some((pid, Process::open(pid).ok()?.stat().ok()?.parent?))
        })
        .collect()
}

/// `root` and its descendants with parents and depths, parents before their children.
fn descendants(root: i32, parents: &BTreeMap<i32, i32>) -> Vec<(i32, i32, usize)> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (&pid, &parent) in parents {
        children.entry(parent).or_default().push(pid);
    }
    let mut seen = BTreeSet::new();
    let mut order = Vec::new();
    let mut waiting = vec![(root, parents.get(&root).copied().unwrap_or(0), 0)];
    while let Some((pid, parent, depth)) = waiting.pop() {
        // Process ids may be reused while /proc is read, so even cycles are possible.
        if !seen.insert(pid) {
            continue;
        }
        order.push((pid, parent, depth));
        let own = children.get(&pid).map_or(&[][..], Vec::as_slice);
        waiting.extend(own.iter().rev().map(|&child| (child, pid, depth + 1)));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_before_children_and_rings_end() {
        let parents = BTreeMap::from([(2, 1), (3, 1), (4, 2), (9, 8), (5, 4)]);
        assert_eq!(descendants(1, &parents), [(1, 0, 0), (2, 1, 1), (4, 2, 2), (5, 4, 3), (3, 1, 1)]);
        let ring = BTreeMap::from([(1, 2), (2, 1)]);
        assert_eq!(descendants(1, &ring), [(1, 2, 0), (2, 1, 1)]);
    }
}
