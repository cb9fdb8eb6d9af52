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
/// Words of static data without a symbol are one root where there are so many and no more than this lies between two of them.
const MOST_GAP_BYTES: u64 = 16;
const LEAST_ARRAY: usize = 16;
/// The most roots that are told apart; further words are those of one.
const MOST_ROOTS: usize = 1 << 20;

/// A root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Found {
    /// What it is.
    pub kind: RootKind,
    /// Its name.
    pub name: String,
    /// The program or library that it is in.
    pub module: Option<String>,
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
    index: HashMap<Found, u32>,
}

impl Finder<'_> {
    /// A root of this name, a new one where there is none yet. Those of threads are each their own.
    fn root(&mut self, kind: RootKind, name: &str, thread: Option<String>) -> u32 {
        self.add(Found { kind, name: name.to_owned(), module: None, thread })
    }

    fn add(&mut self, mut root: Found) -> u32 {
        if self.found.len() >= MOST_ROOTS {
            root = Found { kind: root.kind, name: "further roots".to_owned(), ..Found::default() };
        }
        let next = self.found.len() as u32;
        *self.index.entry(root.clone()).or_insert_with(|| {
            self.found.push(root);
            next
        })
    }

    fn hit(&mut self, root: u32, word: u64) {
        if let Some(block) = self.blocks.find(word) {
            self.hits.push((root, block));
        }
    }

    /// Looks through a range: each word that leads to a block, with where it stands.
    fn words(&self, (start, end): (u64, u64)) -> Vec<(u64, u64, u32)> {
        let residency = &self.snapshot.residency;
        let resident = |from: u64, to: u64| {
            let runs = residency.runs_in(from..to);
            runs.map(|run| (run.start.max(from), run.end.min(to))).collect()
        };
        let mut found = Vec::new();
        let memory = &self.snapshot.memory;
        each_word((memory, &resident), (start, end), AT_ONCE, &mut |at, word| {
            found.extend(self.blocks.find(word).map(|block| (at, word, block)));
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
                self.hits.extend(words.into_iter().map(|(.., block)| (root, block)));
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
                self.hits.extend(words.into_iter().map(|(.., block)| (root, block)));
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
            self.hits.extend(words.into_iter().map(|(.., block)| (root, block)));
        }
    }

    /// Whether a word of glibc's own data leads to what follows a block rather than to the block: bins and the top lead to where free
    /// chunks begin, and the first word of these is the last that the block before them may use (malloc.c, "the chunk's overlapping
    /// fields").
    fn is_behind(&self, block: u32, word: u64) -> bool {
        word + 8 >= self.blocks.start(block) + self.blocks.bytes(block)
    }

    /// Static data of a program or library, by symbol.
    fn module(&mut self, process: &Process, group: &[&Mapping], taken: &[(u64, u64)]) {
        let writable = group.iter().filter(|mapping| mapping.permissions.write);
        let ranges = writable.flat_map(|mapping| without((mapping.start, mapping.end), taken));
        let words: Vec<(u64, u64, u32)> = ranges.flat_map(|range| self.words(range)).collect();
        let Some(first) = group.first().filter(|_| !words.is_empty()) else { return };
        let symbols = Symbols::of(process, self.snapshot, first);
        let short = first.name.rsplit('/').next().unwrap_or_default();
        let has_arena = short.starts_with("libc.so.") || short.starts_with("libc-2.");
        let hits = words.into_iter().filter(|&(_, word, block)| !has_arena || !self.is_behind(block, word));
        let hits: Vec<(u64, u32)> = hits.map(|(at, _, block)| (at, block)).collect();
        // What has no symbol is an array where many such words stand in a row, and else each a variable.
        for row in hits.chunk_by(|one, next| next.0 - one.0 <= MOST_GAP_BYTES) {
            let array = row.first().filter(|_| row.len() >= LEAST_ARRAY).map(|first| first.0);
            for &(at, block) in row {
                let name = match symbols.at(at) {
                    Some(symbol) => symbol.to_owned(),
                    None => format!("{short}+{:#x}", array.unwrap_or(at) - first.start),
                };
                let module = Some(short.to_owned());
                let root = self.add(Found { kind: RootKind::Static, name, module, thread: None });
                self.hits.push((root, block));
            }
        }
    }

    /// Those of threads come last: what they lead to for a moment has another holder, where there is one.
    fn done(mut self) -> (Vec<Found>, Roots) {
        let is_passing = |found: &Found| matches!(found.kind, RootKind::Stack | RootKind::Register);
        let mut order: Vec<u32> = (0..self.found.len() as u32).collect();
        order.sort_by_key(|&root| self.found.get(root as usize).map(is_passing));
        self.hits.sort_unstable();
        self.hits.dedup();
        let (mut found, mut roots) = (Vec::new(), Roots::default());
        for root in order {
            let Some(of) = self.found.get(root as usize) else { continue };
            if is_passing(of) {
                roots.rest_is_passing();
            }
            let first = self.hits.partition_point(|hit| hit.0 < root);
            let behind = self.hits.partition_point(|hit| hit.0 <= root);
            roots.add(self.hits[first..behind].iter().map(|hit| hit.1));
            found.push(of.clone());
        }
        (found, roots)
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

    /// The name of the symbol that has an address.
    fn at(&self, address: u64) -> Option<&str> {
        let index = self.0.partition_point(|symbol| symbol.0 <= address).checked_sub(1)?;
        let (start, bytes, name) = self.0.get(index)?;
        (address - start < *bytes).then_some(name.as_str())
    }
}

/// A symbol's name as its author wrote it.
fn readable(name: &[u8]) -> String {
    let demangled = cpp_demangle::Symbol::new(name).ok().and_then(|symbol| symbol.demangle().ok());
    demangled.unwrap_or_else(|| String::from_utf8_lossy(name).into_owned())
}
