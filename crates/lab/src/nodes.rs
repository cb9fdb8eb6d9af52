//! The machines that ran a lab, their kinds, and caveats where kinds differ.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};
use strandline_inspect::environment::Environment;

use super::cell::{LabCaveat, Node, Outcome};
use super::journal::hex;
use strandline_report::text::{clean, counted};
use strandline_report::units::bytes;

/// Maximum size of a file that describes a kind; a larger one is cut, and then not understood.
const MAX_KIND_BYTES: u64 = 64 << 10;
/// Memory sizes are rounded to this: firmware reserves slightly different amounts at each boot.
const MEMORY_STEP_BYTES: u64 = 256 << 20;
/// Length of the hash of a kind: a lab has few kinds, so that collisions are improbable.
const KIND_HASH_BYTES: usize = 4;
/// Maximum length of the hash in a file name; more than a hash has.
const MAX_FILE_HASH_CHARS: usize = 16;
/// Maximum number of kinds or names listed in a sentence.
const MAX_NAMED: usize = 5;

/// Short hash of a kind of machine: equal for equal kernel, processor, memory and C library.
pub fn kind_of(environment: &Environment) -> String {
    let Environment { kernel, machine, processor, cpus, memory_bytes, page_bytes, thp, libc, .. } =
        environment;
    let memory = memory_bytes.map(|bytes| bytes.saturating_add(MEMORY_STEP_BYTES / 2) / MEMORY_STEP_BYTES);
    let identity = format!("{:?}", (kernel, machine, processor, cpus, memory, page_bytes, thp, libc));
    hex(Sha256::digest(identity.as_bytes()).get(..KIND_HASH_BYTES).unwrap_or_default())
}

/// One kind of machine and its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeKind {
    /// Its hash, as in [`Node::kind`].
    pub kind: String,
    /// Names of the machines.
    pub nodes: BTreeSet<String>,
    /// Number of runs on them.
    pub runs: usize,
    /// Description of the kind; `None` if its file is missing or damaged.
    pub environment: Option<Environment>,
}

/// The kinds of machines in `nodes`, which has one item per run; descriptions are read from files
/// in `folder`.
pub fn kinds<'a>(nodes: impl Iterator<Item = &'a Node>, folder: &Path) -> Vec<NodeKind> {
    let mut kinds: BTreeMap<&str, NodeKind> = BTreeMap::new();
    for node in nodes {
        let kind = kinds.entry(&node.kind).or_default();
        kind.runs += 1;
        if !kind.nodes.contains(&node.name) {
            kind.nodes.insert(node.name.clone());
        }
    }
    let described = |(name, kind): (&str, NodeKind)| {
        let environment = read_environment(&folder.join(file_name(name)));
        NodeKind { kind: name.to_owned(), environment, ..kind }
    };
    kinds.into_iter().map(described).collect()
}

/// The kinds of several labs, each kind once.
pub fn merge(kinds: impl Iterator<Item = NodeKind>) -> Vec<NodeKind> {
    let mut merged: BTreeMap<String, NodeKind> = BTreeMap::new();
    for NodeKind { kind, nodes, runs, environment } in kinds {
        let same = merged.entry(kind.clone()).or_insert_with(|| NodeKind { kind, ..NodeKind::default() });
        same.nodes.extend(nodes);
        same.runs += runs;
        same.environment = same.environment.take().or(environment);
    }
    merged.into_values().collect()
}

/// For each round, the index of its kind of machine in order of first appearance; 0 for local
/// rounds.
pub fn blocks(outcomes: &[Vec<Option<Outcome>>]) -> Vec<u32> {
    let rounds = outcomes.iter().map(Vec::len).max().unwrap_or(0);
    let mut known_kinds: Vec<&str> = Vec::new();
    let block_of = |round: usize| {
        let mut nodes = outcomes.iter().filter_map(|subject| subject.get(round)?.as_ref()?.node.as_ref());
        let Some(node) = nodes.next() else { return 0 };
        let index = known_kinds.iter().position(|kind| *kind == node.kind).unwrap_or_else(|| {
            known_kinds.push(&node.kind);
            known_kinds.len() - 1
        });
        u32::try_from(index).unwrap_or(u32::MAX)
    };
    (0..rounds).map(block_of).collect()
}

/// Name of the file that describes a kind.
pub fn file_name(kind: &str) -> String {
    let safe: String = kind.chars().filter(char::is_ascii_alphanumeric).take(MAX_FILE_HASH_CHARS).collect();
    format!("kind-{safe}.json")
}

fn read_environment(path: &Path) -> Option<Environment> {
    use std::io::Read;
    let mut text = Vec::new();
    std::fs::File::open(path).ok()?.take(MAX_KIND_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Caveats for figures measured on these kinds of machines.
pub fn caveats(kinds: &[NodeKind]) -> Vec<LabCaveat> {
    let nodes: BTreeSet<&String> = kinds.iter().flat_map(|kind| &kind.nodes).collect();
    match kinds {
        [] => Vec::new(),
        [kind] => {
            let text = format!("run on {}: {}", names(&nodes), describe(kind));
            vec![LabCaveat::new("nodes", text)]
        }
        several => {
            let mut descriptions: Vec<String> = several
                .iter()
                .take(MAX_NAMED)
                .map(|kind| {
                    let names = names(&kind.nodes.iter().collect());
                    format!("{} on {names} ({})", counted(kind.runs as u64, "run"), describe(kind))
                })
                .collect();
            if several.len() > MAX_NAMED {
                descriptions.push(format!("and {} kinds more", several.len() - MAX_NAMED));
            }
            let text = format!(
                "rounds ran on {} unlike kinds of nodes, which are blocks in the statistics: pairs are of one node, \
                 and intervals of medians vary within a kind: {}",
                several.len(),
                descriptions.join("; ")
            );
            vec![LabCaveat::new("nodes_unlike", text)]
        }
    }
}

fn names(nodes: &BTreeSet<&String>) -> String {
    let named: Vec<String> = nodes.iter().take(MAX_NAMED).map(|name| clean(name)).collect();
    match nodes.len().saturating_sub(MAX_NAMED) {
        0 => format!("{} ({})", counted(nodes.len() as u64, "node"), named.join(", ")),
        more => format!("{} ({} and {more} more)", counted(nodes.len() as u64, "node"), named.join(", ")),
    }
}

fn describe(kind: &NodeKind) -> String {
    let Some(environment) = &kind.environment else { return "its description was lost".to_owned() };
    let unknown = || "?".to_owned();
    let text = format!(
        "Linux {}, {}, {} processors, {}",
        environment.kernel.clone().unwrap_or_else(unknown),
        environment.processor.clone().unwrap_or_else(unknown),
        environment.cpus.map_or_else(unknown, |cpus| cpus.to_string()),
        environment.memory_bytes.map_or_else(unknown, bytes)
    );
    clean(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_what_figures_depend_on() {
        let environment = Environment { memory_bytes: Some(8 << 30), ..Environment::default() };
        let later = Environment {
            time_utc: "2026".to_owned(),
            memory_bytes: Some((8 << 30) - 4096),
            ..environment.clone()
        };
        let larger = Environment { memory_bytes: Some(16 << 30), ..environment.clone() };
        assert_eq!(kind_of(&environment), kind_of(&later));
        assert_ne!(kind_of(&environment), kind_of(&larger));
    }

    #[test]
    fn unlike_nodes_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let node = |name: &str, kind: &str| Node { name: name.to_owned(), kind: kind.to_owned() };
        let runs = [node("n1", "a"), node("n2", "a"), node("n1", "a"), node("n3", "../b")];
        assert!(caveats(&kinds([].into_iter(), folder.path())).is_empty());
        let alike = caveats(&kinds(runs[..3].iter(), folder.path()));
        assert_eq!(alike[0].code, "nodes");
        assert!(alike[0].text.contains("2 nodes (n1, n2)"), "{alike:?}");
        let unlike = caveats(&kinds(runs.iter(), folder.path()));
        assert_eq!(unlike[0].code, "nodes_unlike");
        let text = &unlike[0].text;
        assert!(text.contains("3 runs on 2 nodes") && text.contains("1 run on"), "{unlike:?}");
        let both = [kinds(runs[..3].iter(), folder.path()), kinds(runs[2..].iter(), folder.path())];
        let merged = merge(both.into_iter().flatten());
        let counts: Vec<_> = merged.iter().map(|kind| (kind.nodes.len(), kind.runs)).collect();
        assert_eq!(counts, [(1, 1), (2, 4)], "{merged:?}");
    }
}
