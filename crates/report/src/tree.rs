//! A process and its descendants: one line each, and their total.
//!
//! RSS of every process includes the shared pages it maps, so the RSS figures of a tree must not be
//! summed; PSS divides each page among the processes that share it and may be. The states of a tree
//! are parts of its PSS.

use std::collections::HashMap;

use serde::Serialize;
use strandline_claims::add_fields;
use strandline_claims::caveat::Caveat;
use strandline_inspect::facts::{Explanation, Totals};
use strandline_inspect::ledger::proportional;

use super::model::{self, short_name};
use super::paint::Surface;
use super::table::{Column, figures, lay_out, words};
use super::terminal::{faint, joined, listed, strong, table_lines};
use super::text::{clean, counted, shorten, wrap};
use super::units::{bytes, maybe_bytes};

/// The result of `explain --tree`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tree {
    /// The process the tree starts from.
    pub root: i32,
    /// The inspected processes, parents before their children.
    pub processes: Vec<Member>,
    /// Sum of their PSS, in which shared pages count once. `None` if that of one process is
    /// unknown.
    pub total_pss_bytes: Option<u64>,
    /// Sum of their RSS, in which shared pages count once per process.
    pub total_rss_bytes: u64,
    /// Their totals by state, as parts of their PSS, to which they add up. If the PSS of one
    /// process is unknown, parts of their RSS, in which shared pages count once per process.
    pub totals: Totals,
    /// The processes that were left out, and why.
    pub caveats: Vec<Caveat>,
}

/// One process of a tree.
#[derive(Clone, Debug, Serialize)]
pub struct Member {
    /// Its parent; 0 if it has none, or none is known.
    pub parent: i32,
    /// Number of generations below the root of the tree.
    pub depth: usize,
    /// Its totals by state, as parts of its PSS; `None` if that is unknown.
    pub proportional: Option<Totals>,
    /// The full result of `explain` for it.
    #[serde(flatten)]
    pub explanation: Explanation,
}

impl Member {
    /// A process of a tree.
    pub fn new(parent: i32, depth: usize, explanation: Explanation) -> Self {
        Self { parent, depth, proportional: proportional::totals(&explanation), explanation }
    }
}

impl Tree {
    /// Sums up a tree of `processes`.
    pub fn new(root: i32, processes: Vec<Member>, caveats: Vec<Caveat>) -> Self {
        let mut tree = Self { root, total_pss_bytes: Some(0), caveats, ..Self::default() };
        let are_shares_known = processes.iter().all(|member| member.proportional.is_some());
        for Member { explanation, proportional, .. } in &processes {
            let pss = explanation.kernel.pss_bytes;
            tree.total_pss_bytes = tree.total_pss_bytes.zip(pss).map(|(sum, pss)| sum.saturating_add(pss));
            tree.total_rss_bytes = tree.total_rss_bytes.saturating_add(explanation.kernel.rss_bytes);
            let shares = proportional.as_ref().filter(|_| are_shares_known);
            let (sum, totals) = (&mut tree.totals, shares.unwrap_or(&explanation.totals));
            add_fields!(saturating sum, totals: live, stranded, pinned, evictable, unattributed);
        }
        Self { processes, ..tree }
    }
}

const HEAD: [Column; 7] = [
    words("process"),
    figures("RSS"),
    figures("PSS"),
    figures("live"),
    figures("stranded"),
    figures("pinned"),
    figures("unattr."),
];

/// Depth from which lines are not indented any further, so that deep trees stay readable.
const MAX_INDENTED_DEPTH: usize = 5;
/// Maximum width of a process's name.
const MAX_NAME_COLUMNS: usize = 30;

/// The whole view, with a final newline.
pub fn tree(tree: &Tree, surface: Surface) -> String {
    let subject = counted(tree.processes.len() as u64, "process");
    let total = maybe_bytes(tree.total_pss_bytes);
    let headline = match tree.processes.len() {
        1 => format!("{subject} holds {total} (PSS)"),
        _ => format!("{subject} hold {total} together (PSS: pages they share are counted once)"),
    };
    let mut lines = strong(&wrap(&headline, surface.columns), surface);
    lines.push(String::new());
    let names = distinct_names(&tree.processes);
    let rows: Vec<Vec<String>> =
        tree.processes.iter().zip(&names).map(|(member, name)| member_row(member, name)).collect();
    lines.extend(table_lines(lay_out(&HEAD, &rows, 0, surface.columns), surface));
    lines.push(String::new());
    let totals = &tree.totals;
    let total = match tree.total_pss_bytes {
        Some(pss) => format!("PSS {}, of it", bytes(pss)),
        None => "PSS is not known; of their RSS (shared pages once for each process)".to_owned(),
    };
    let sums = format!(
        "together: {total} live {}, stranded {}, pinned {}, evictable {}, unattributed {}",
        bytes(totals.live),
        bytes(totals.stranded),
        bytes(totals.pinned),
        bytes(totals.evictable),
        bytes(totals.unattributed),
    );
    lines.extend(wrap(&sums, surface.columns));
    let remark = tree.total_pss_bytes.map_or("", |_| "states are parts of PSS; ");
    lines.extend(faint(&[format!("{remark}each process by itself: strandline explain PID")], surface));
    lines.extend(listed("left out", &model::caveats(&tree.caveats), surface));
    joined(&lines)
}

/// The names of the processes; if several have the same name (an interpreter), with their first
/// argument.
fn distinct_names(processes: &[Member]) -> Vec<String> {
    let short_names: Vec<String> =
        processes.iter().map(|member| short_name(&member.explanation.target)).collect();
    let mut counts: HashMap<&str, u32> = HashMap::new();
    short_names.iter().for_each(|name| *counts.entry(name).or_default() += 1);
    let first_argument = |member: &Member| {
        let mut arguments = member.explanation.target.command.iter().skip(1).map(|word| clean(word));
        let argument = arguments.find(|word| !word.is_empty() && !word.starts_with('-'))?;
        argument.rsplit('/').next().map(str::to_owned)
    };
    let distinct_name = |(member, name): (&Member, &String)| match first_argument(member) {
        Some(argument) if counts.get(name.as_str()).is_some_and(|&count| count > 1) => {
            format!("{name} {argument}")
        }
        _ => name.clone(),
    };
    processes.iter().zip(&short_names).map(distinct_name).collect()
}

fn member_row(member: &Member, name: &str) -> Vec<String> {
    let explanation = &member.explanation;
    let kernel = &explanation.kernel;
    let totals = member.proportional.as_ref().unwrap_or(&explanation.totals);
    let indent = "  ".repeat(member.depth.min(MAX_INDENTED_DEPTH));
    vec![
        format!("{indent}{} {}", explanation.target.pid, shorten(name, MAX_NAME_COLUMNS)),
        bytes(kernel.rss_bytes),
        maybe_bytes(kernel.pss_bytes),
        bytes(totals.live),
        bytes(totals.stranded),
        bytes(totals.pinned),
        bytes(totals.unattributed),
    ]
}
