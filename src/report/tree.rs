//! A process and its descendants: one line each, and what they hold together.
//!
//! Shared pages stand in the RSS of every process that maps them, so RSS figures of a tree must not be
//! added up; PSS divides each page among its sharers and may be.

use serde::Serialize;
use strandline_inspect::caveat::Caveat;
use strandline_inspect::facts::{Explanation, Totals};

use super::model::{self, program};
use super::paint::{Paint, Surface};
use super::table::{Column, figures, lay_out, words};
use super::terminal::{faint, joined, listed};
use super::text::{shorten, wrap};
use super::units::{bytes, maybe_bytes};

/// What `explain --tree` says.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tree {
    /// The process the tree starts from.
    pub root: i32,
    /// The processes that were looked at, parents before their children.
    pub processes: Vec<Member>,
    /// Their PSS, added up: shared pages once. Unknown where one process's is.
    pub total_pss_bytes: Option<u64>,
    /// Their RSS, added up: pages that they share are in it once for each.
    pub total_rss_bytes: u64,
    /// Their totals by state, added up; shared pages once for each.
    pub totals: Totals,
    /// Which processes were left out, and why.
    pub caveats: Vec<Caveat>,
}

/// One process of a tree.
#[derive(Clone, Debug, Serialize)]
pub struct Member {
    /// Its parent.
    pub parent: i32,
    /// How far it is from the tree's root.
    pub depth: usize,
    /// Everything `explain` says about it.
    #[serde(flatten)]
    pub explanation: Explanation,
}

impl Tree {
    /// A tree of `processes`, added up.
    pub fn new(root: i32, processes: Vec<Member>, caveats: Vec<Caveat>) -> Self {
        let mut tree = Self { root, total_pss_bytes: Some(0), caveats, ..Self::default() };
        for Member { explanation, .. } in &processes {
            let pss = explanation.kernel.pss_bytes;
            tree.total_pss_bytes = tree.total_pss_bytes.zip(pss).map(|(sum, one)| sum.saturating_add(one));
            tree.total_rss_bytes = tree.total_rss_bytes.saturating_add(explanation.kernel.rss_bytes);
            let (sum, one) = (&mut tree.totals, &explanation.totals);
            sum.live = sum.live.saturating_add(one.live);
            sum.stranded = sum.stranded.saturating_add(one.stranded);
            sum.pinned = sum.pinned.saturating_add(one.pinned);
            sum.evictable = sum.evictable.saturating_add(one.evictable);
            sum.unattributed = sum.unattributed.saturating_add(one.unattributed);
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

/// The whole view, ending with a newline.
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
    let rows: Vec<Vec<String>> = tree.processes.iter().map(member).collect();
    let table = lay_out(&HEAD, &rows, 0, surface.columns);
    lines.extend(faint(&table[..1], surface));
    lines.extend_from_slice(&table[1..]);
    lines.push(String::new());
    let totals = &tree.totals;
    let sums = format!(
        "together: PSS {}; by state (shared pages once for each process): live {}, stranded {}, \
         pinned {}, evictable {}, unattributed {}",
        maybe_bytes(tree.total_pss_bytes),
        bytes(totals.live),
        bytes(totals.stranded),
        bytes(totals.pinned),
        bytes(totals.evictable),
        bytes(totals.unattributed),
    );
    lines.extend(wrap(&sums, surface.columns));
    let hint = "each process by itself: strandline explain PID";
    lines.extend(faint(&[hint.to_owned()], surface));
    lines.extend(listed("left out", &model::caveats(&tree.caveats), surface));
    joined(&lines)
}

fn member(member: &Member) -> Vec<String> {
    let explanation = &member.explanation;
    let (kernel, totals) = (&explanation.kernel, &explanation.totals);
    let path = program(&explanation.target);
    let name = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(&path);
    // Deep trees stay readable: the indent stops growing.
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
