//! What leads to blocks from outside: static data by symbol, stacks and registers by thread, memory of runtimes and what nobody explains.
//!
//! All writable private memory that no allocator's reader claims is looked through, word by word. Of a stack the part below its pointer
//! is not.

use std::collections::HashMap;

use strandline_claims::range::merge;
use strandline_claims::words::{AT_ONCE, each_word};
use strandline_holders::{Blocks, Roots};
use strandline_process::elf::Object;
use strandline_process::map::Mapping;
use strandline_process::modules;
use strandline_process::procfs::Process;

use super::facts::RootKind;
use crate::explain::snapshot::Snapshot;

/// Below its pointer a stack is in use up to this (System V ABI).
const RED_ZONE_BYTES: u64 = 128;
/// Words of static data without a symbol are one root where no more than this lies between.
const MOST_GAP_BYTES: u64 = 64;
/// The most roots that are told apart; further words are those of one.
const MOST_ROOTS: usize = 1 << 20;

/// A root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// What it is.
    pub kind: RootKind,
    /// Its name.
    pub name: String,
    /// Its thread.
    pub thread: Option<String>,
}

/// All roots, and the blocks that each leads to.
pub fn find(process: &Process, snapshot: &Snapshot, blocks: &Blocks) -> (Vec<Found>, Roots) {
    let mut finder = Finder { snapshot, blocks, found: Vec::new(), hits: Vec::new(), index: HashMap::new() };
    let names = thread_names(process, snapshot);
    for thread in &snapshot.facts {
        let name = names.get(&thread.tid).cloned();
        let root = finder.root(RootKind::Register, "registers", name);
        thread.general.iter().for_each(|&word| finder.hit(root, word));
    }
    let taken = finder.stacks(&names);
    finder.mappings(process, taken);
    finder.done()
}

fn thread_names(process: &Process, snapshot: &Snapshot) -> HashMap<i32, String> {
    let name = |tid: i32| {
        let text = std::fs::read_to_string(process.path(&format!("task/{tid}/comm"))).ok()?;
        Some((tid, format!("{} ({tid})", text.trim_end())))
    };
    snapshot.facts.iter().filter_map(|thread| name(thread.tid)).collect()
}

struct Finder<'a> {
    snapshot: &'a Snapshot,
    blocks: &'a Blocks,
    found: Vec<Found>,
    /// Root and block, in no order.
    hits: Vec<(u32, u32)>,
    index: HashMap<(RootKind, String), u32>,
}

impl Finder<'_> {
    /// A root of this name, a new one where there is none yet. Those of threads are each their own.
    fn root(&mut self, kind: RootKind, name: &str, thread: Option<String>) -> u32 {
        let is_full = self.found.len() >= MOST_ROOTS;
        let name = if is_full { "further roots" } else { name };
        let key = (kind, thread.as_ref().map_or(name.to_owned(), |thread| format!("{name} {thread}")));
        let next = self.found.len() as u32;
        *self.index.entry(key).or_insert_with(|| {
            self.found.push(Found { kind, name: name.to_owned(), thread });
            next
        })
    }

    fn hit(&mut self, root: u32, word: u64) {
        if let Some(block) = self.blocks.find(word) {
            self.hits.push((root, block));
        }
    }

    /// Looks through a range: each word that leads to a block, with where it stands.
    fn words(&self, (start, end): (u64, u64)) -> Vec<(u64, u32)> {
        let residency = &self.snapshot.residency;
        let resident = |from: u64, to: u64| {
            let runs = residency.runs_in(from..to);
            runs.map(|run| (run.start.max(from), run.end.min(to))).collect()
        };
        let mut found = Vec::new();
        let memory = &self.snapshot.memory;
        each_word((memory, &resident), (start, end), AT_ONCE, &mut |at, word| {
            found.extend(self.blocks.find(word).map(|block| (at, block)));
            true
        });
        found
    }

    /// Stacks, above their pointers; returns the whole of each.
    fn stacks(&mut self, names: &HashMap<i32, String>) -> Vec<(u64, u64)> {
        let mut taken = Vec::new();
        for stack in &self.snapshot.stacks {
            let thread = names.get(&stack.tid).cloned();
            let known = self.snapshot.facts.iter().find(|thread| thread.tid == stack.tid);
            let own =
                known.map_or(stack.high, |thread| thread.fs_base).clamp(stack.stack_pointer, stack.high);
            let from = stack.stack_pointer.saturating_sub(RED_ZONE_BYTES).max(stack.low) & !7;
            // The thread's own structure stands at the end, with its storage in front, which is not told from the stack.
            for (kind, name, range) in [
                (RootKind::Stack, "stack", (from, own)),
                (RootKind::Tls, "thread control block", (own, stack.high)),
            ] {
                let root = self.root(kind, name, thread.clone());
                let words = self.words(range);
                self.hits.extend(words.into_iter().map(|(_, block)| (root, block)));
            }
            taken.push((stack.low, stack.high));
        }
        taken
    }

    /// All other writable memory that is no heap.
    fn mappings(&mut self, process: &Process, mut taken: Vec<(u64, u64)>) {
        let snapshot = self.snapshot;
        taken.extend(
            snapshot.readings.iter().flat_map(|reading| &reading.claims).map(|of| (of.start, of.end)),
        );
        for runtime in &snapshot.runtimes {
            for claim in &runtime.claims {
                let root = self.root(RootKind::Runtime, &runtime.facts.name, None);
                let words = self.words((claim.start, claim.end));
                self.hits.extend(words.into_iter().map(|(_, block)| (root, block)));
                taken.push((claim.start, claim.end));
            }
        }
        merge(&mut taken);
        let groups = modules::groups(snapshot.space.mappings());
        let mut known: Vec<(u64, u64)> = Vec::new();
        for group in &groups {
            self.module(process, group, &taken);
            known.extend(group.iter().map(|mapping| (mapping.start, mapping.end)));
        }
        merge(&mut known);
        for mapping in snapshot.space.mappings() {
            let is_known = known.binary_search_by(|range| {
                if range.1 <= mapping.start {
                    std::cmp::Ordering::Less
                } else if range.0 > mapping.start {
                    std::cmp::Ordering::Greater
                } else {
                    std::cmp::Ordering::Equal
                }
            });
            if is_known.is_err() && mapping.permissions.write {
                self.unexplained(mapping, &taken);
            }
        }
    }

    /// Memory that nobody explains: of a thread that keeps its storage there, its own.
    fn unexplained(&mut self, mapping: &Mapping, taken: &[(u64, u64)]) {
        let owner = self.snapshot.facts.iter().find(|thread| mapping.contains(thread.fs_base));
        let (kind, name) = match owner {
            Some(thread) => (RootKind::Tls, format!("storage of thread {}", thread.tid)),
            None => (RootKind::Static, format!("memory at {:#x}", mapping.start)),
        };
        for range in without((mapping.start, mapping.end), taken) {
            let words = self.words(range);
            if words.is_empty() {
                continue;
            }
            let root = self.root(kind, &name, None);
            self.hits.extend(words.into_iter().map(|(_, block)| (root, block)));
        }
    }

    /// Static data of a program or library, by symbol.
    fn module(&mut self, process: &Process, group: &[&Mapping], taken: &[(u64, u64)]) {
        let writable = group.iter().filter(|mapping| mapping.permissions.write);
        let ranges = writable.flat_map(|mapping| without((mapping.start, mapping.end), taken));
        let words: Vec<(u64, u32)> = ranges.flat_map(|range| self.words(range)).collect();
        let Some(first) = group.first().filter(|_| !words.is_empty()) else { return };
        let symbols = Symbols::of(process, self.snapshot, first);
        let short = first.name.rsplit('/').next().unwrap_or_default();
        let (mut last, mut root) = (None, 0);
        for (at, block) in words {
            let symbol = symbols.at(at);
            let goes_on = match (&symbol, last) {
                (Some((start, _)), Some((before, of))) => before == *start && of,
                (None, Some((before, of))) => !of && at - before <= MOST_GAP_BYTES,
                _ => false,
            };
            if !goes_on {
                let name = match &symbol {
                    Some((_, name)) => format!("{name} ({short})"),
                    None => format!("{short}+{:#x}", at - first.start),
                };
                root = self.root(RootKind::Static, &name, None);
            }
            last = Some(symbol.map_or((at, false), |(start, _)| (start, true)));
            self.hits.push((root, block));
        }
    }

    fn done(mut self) -> (Vec<Found>, Roots) {
        self.hits.sort_unstable();
        self.hits.dedup();
        let mut roots = Roots::default();
        let mut rest = self.hits.as_slice();
        for root in 0..self.found.len() as u32 {
            let count = rest.partition_point(|hit| hit.0 == root);
            let (mine, behind) = rest.split_at(count);
            roots.add(mine.iter().map(|hit| hit.1));
            rest = behind;
        }
        (self.found, roots)
    }
}

/// The parts of a range that are not in `taken`, which is in address order.
fn without((start, end): (u64, u64), taken: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut parts = Vec::new();
    let mut at = start;
    let first = taken.partition_point(|range| range.1 <= start);
    for &(from, to) in taken.iter().skip(first).take_while(|range| range.0 < end) {
        if at < from {
            parts.push((at, from));
        }
        at = at.max(to);
    }
    if at < end {
        parts.push((at, end));
    }
    parts
}

/// Symbols of data, in address order.
struct Symbols(Vec<(u64, u64, String)>);

impl Symbols {
    fn of(process: &Process, snapshot: &Snapshot, mapping: &Mapping) -> Self {
        let mut symbols: Vec<(u64, u64, String)> = Vec::new();
        if let Ok(object) = Object::open(process, &snapshot.space, mapping) {
            object.each_symbol(&mut |name, symbol| {
                let is_written = snapshot.space.find(symbol.address).is_some_and(|of| of.permissions.write);
                if is_written && symbol.bytes > 0 {
                    symbols.push((symbol.address, symbol.bytes, readable(name)));
                }
            });
        }
        symbols.sort_unstable();
        Self(symbols)
    }

    /// Where the symbol begins that has an address, and its name.
    fn at(&self, address: u64) -> Option<(u64, &str)> {
        let index = self.0.partition_point(|symbol| symbol.0 <= address).checked_sub(1)?;
        let (start, bytes, name) = self.0.get(index)?;
        (address - start < *bytes).then_some((*start, name.as_str()))
    }
}

/// A symbol's name as its author wrote it.
fn readable(name: &[u8]) -> String {
    let demangled = cpp_demangle::Symbol::new(name).ok().and_then(|symbol| symbol.demangle().ok());
    demangled.unwrap_or_else(|| String::from_utf8_lossy(name).into_owned())
}
