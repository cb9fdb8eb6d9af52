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
use super::paint::{Paint, Surface};
use super::table::{Column, figures, lay_out, words};
use super::terminal::{faint, joined, listed, table_lines};
use super::text::{clean, shorten, wrap};
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
    /// Its parent.
    pub parent: i32,
    /// Its distance from the root of the tree.
    pub depth: usize,
    /// Its totals by state, as parts of its PSS.
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
        let is_known = processes.iter().all(|member| member.proportional.is_some());
        for Member { explanation, proportional, .. } in &processes {
            let pss = explanation.kernel.pss_bytes;
            tree.total_pss_bytes = tree.total_pss_bytes.zip(pss).map(|(sum, one)| sum.saturating_add(one));
            tree.total_rss_bytes = tree.total_rss_bytes.saturating_add(explanation.kernel.rss_bytes);
            let shares = proportional.as_ref().filter(|_| is_known);
            let (sum, one) = (&mut tree.totals, shares.unwrap_or(&explanation.totals));
            add_fields!(saturating sum, one: live, stranded, pinned, evictable, unattributed);
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

/// The whole view, with a final newline.
pub fn tree(tree: &Tree, surface: Surface) -> String {
    let headline = format!(
        "{} {} together (PSS: pages they share are counted once)",
        if tree.processes.len() == 1 {
            "1 process holds".to_owned()
        } else {
            format!("{} processes hold", tree.processes.len())
        },
        maybe_bytes(tree.total_pss_bytes),
    );
    let mut lines: Vec<String> =
        wrap(&headline, surface.columns).iter().map(|line| surface.paint(Paint::Strong, line)).collect();
    lines.push(String::new());
    let names = names(&tree.processes);
    let rows: Vec<Vec<String>> =
        tree.processes.iter().zip(&names).map(|(of, name)| member(of, name)).collect();
    lines.extend(table_lines(lay_out(&HEAD, &rows, 0, surface.columns), surface));
    lines.push(String::new());
    let totals = &tree.totals;
    let of = match tree.total_pss_bytes {
        Some(pss) => format!("PSS {}, of it", bytes(pss)),
        None => "PSS is not known; of their RSS (shared pages once for each process)".to_owned(),
    };
    let sums = format!(
        "together: {of} live {}, stranded {}, pinned {}, evictable {}, unattributed {}",
        bytes(totals.live),
        bytes(totals.stranded),
        bytes(totals.pinned),
        bytes(totals.evictable),
        bytes(totals.unattributed),
    );
    lines.extend(wrap(&sums, surface.columns));
    let parts = tree.total_pss_bytes.map_or("", |_| "states are parts of PSS; ");
    lines.extend(faint(&[format!("{parts}each process by itself: strandline explain PID")], surface));
    lines.extend(listed("left out", &model::caveats(&tree.caveats), surface));
    joined(&lines)
}

/// The names of the processes; if several have the same name (an interpreter), with their first
/// argument.
fn names(processes: &[Member]) -> Vec<String> {
    let short: Vec<String> = processes.iter().map(|of| short_name(&of.explanation.target)).collect();
    let mut counts: HashMap<&str, u32> = HashMap::new();
    short.iter().for_each(|name| *counts.entry(name).or_default() += 1);
    let given = |of: &Member| {
        let words = of.explanation.target.command.iter().skip(1);
        let first = words.map(|word| clean(word)).find(|word| !word.is_empty() && !word.starts_with('-'))?;
        first.rsplit('/').next().map(str::to_owned)
    };
    let name = |(of, name): (&Member, &String)| match given(of) {
        Some(given) if counts.get(name.as_str()).is_some_and(|&count| count > 1) => format!("{name} {given}"),
        _ => name.clone(),
    };
    processes.iter().zip(&short).map(name).collect()
}

fn member(member: &Member, name: &str) -> Vec<String> {
    let explanation = &member.explanation;
    let kernel = &explanation.kernel;
    let totals = member.proportional.as_ref().unwrap_or(&explanation.totals);
    // Limit the indent, so that deep trees stay readable.
    let indent = "  ".repeat(member.depth.min(5));
    vec![
        format!("{indent}{} {}", explanation.target.pid, shorten(name, 30)),
        bytes(kernel.rss_bytes),
        maybe_bytes(kernel.pss_bytes),
        bytes(totals.live),
        bytes(totals.stranded),
        bytes(totals.pinned),
        bytes(totals.unattributed),
    ]
}
