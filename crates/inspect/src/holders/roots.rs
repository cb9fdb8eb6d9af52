//! Finds references to blocks from outside: static data by symbol, stacks and registers by thread,
//! memory of runtimes, and unexplained memory.
//!
//! Searches all private memory that no allocator's reader claims, word by word, and shared memory;
//! file pages that were never written contain no address of a block. Of a known stack, the part
//! below the stack pointer is not searched.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use strandline_claims::runtime::{Reading, claimed_ranges};
use strandline_claims::words::{READ_BYTES, each_word};
use strandline_holders::{BlockSet, Blocks, Refused, Roots};
use strandline_process::c_library::CLibrary;
use strandline_process::map::Mapping;
use strandline_process::memory::Memory;
use strandline_process::modules;
use strandline_process::procfs::Process;
use strandline_process::range::{AddressRange, RangeSet};

use super::facts::RootKind;
use super::frames::{Frames, ThreadFrames};
use super::names;
use super::runtimes::Whole as RuntimeReferences;
use super::symbols::Symbols;
use crate::capture::Frozen;

/// A stack is in use down to this distance below its stack pointer (System V ABI, red zone).
const RED_ZONE_BYTES: u64 = 128;
/// Words of static data without a symbol form one root if there are at least `MIN_ARRAY` of them,
/// at most this far apart.
const MAX_GAP_BYTES: u64 = 16;
const MIN_ARRAY: usize = 16;
/// Maximum number of distinct roots; further ones of each kind are merged.
const MAX_ROOTS: usize = 1 << 20;
/// Maximum number of references from all roots, of 8 bytes each.
const MAX_HITS: usize = 1 << 26;

/// A root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FoundRoot {
    /// What it is.
    pub kind: RootKind,
    /// Its name.
    pub name: String,
    /// The program or library that it is in.
    pub module: Option<String>,
    /// Its thread.
    pub thread: Option<String>,
    rank: Rank,
}

/// Order of roots: what an earlier class reaches is not held by a later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Rank {
    /// A variable of a runtime. Tables of the runtime refer to its value as well.
    Named,
    /// Memory of a runtime whose variables are known: static data of the runtime leads to
    /// everything in it.
    RuntimeMemory,
    #[default]
    Ordinary,
    /// Memory that may contain stale words.
    Transient,
}

/// All roots.
pub struct AllRoots {
    /// Kind and name of each root.
    pub found: Vec<FoundRoot>,
    /// The blocks that each root refers to.
    pub roots: Roots,
    /// Bytes that could not be searched: what only they refer to is unknown.
    pub unread_bytes: u64,
}

/// Finds all roots of `blocks`. `pointed_into` are the blocks that words of runtimes' objects point
/// into without being references. Refused if there are too many, or after `deadline`.
pub fn find(
    process: &Process,
    frozen: &Frozen,
    blocks: &Blocks,
    pointed_into: Option<BlockSet>,
    deadline: Instant,
) -> Result<AllRoots, Refused> {
    let mut finder = Finder {
        frozen,
        blocks,
        deadline,
        found: Vec::new(),
        hits: Vec::new(),
        index: HashMap::new(),
        runtime_references: Vec::new(),
        pointed_into,
        unread_bytes: 0,
    };
    let names = thread_names(process, frozen);
    for thread in &frozen.facts {
        let name = names.get(&thread.tid).cloned();
        let root = finder.root(RootKind::Register, "registers", name);
        for &word in thread.general.iter().flatten() {
            if let Some(block) = finder.blocks.find(word) {
                finder.hit(root, block)?;
            }
        }
    }
    let taken = finder.stacks(&names, &Frames::find(process, frozen, deadline))?;
    finder.search_mappings(process, taken)?;
    Ok(finder.finish())
}

fn thread_names(process: &Process, frozen: &Frozen) -> HashMap<i32, String> {
    let name = |tid: i32| {
        let text = std::fs::read_to_string(process.path(format!("task/{tid}/comm"))).unwrap_or_default();
        (tid, format!("{} ({tid})", text.trim_end()).trim_start().to_owned())
    };
    frozen.facts.iter().map(|thread| name(thread.tid)).collect()
}

struct Finder<'a> {
    frozen: &'a Frozen,
    blocks: &'a Blocks,
    deadline: Instant,
    found: Vec<FoundRoot>,
    /// Pairs of root and block, in no order.
    hits: Vec<(u32, u32)>,
    index: HashMap<FoundRoot, u32>,
    /// For roots that are runtimes: what the reader reports that they refer to.
    runtime_references: Vec<(u32, RuntimeReferences)>,
    /// Blocks that words of runtimes' objects point into without being references.
    pointed_into: Option<BlockSet>,
    unread_bytes: u64,
}

/// A word that points to a block: its address, its value, the block.
type Hit = (u64, u64, u32);

impl Finder<'_> {
    /// Returns the root with this name, which is added if missing. Roots of different threads are
    /// distinct.
    fn root(&mut self, kind: RootKind, name: &str, thread: Option<String>) -> u32 {
        let is_passing = matches!(kind, RootKind::Stack | RootKind::Register);
        let rank = if is_passing { Rank::Transient } else { Rank::Ordinary };
        self.add(FoundRoot { kind, name: name.to_owned(), module: None, thread, rank })
    }

    fn add(&mut self, mut root: FoundRoot) -> u32 {
        if self.found.len() >= MAX_ROOTS {
            let (kind, rank) = (root.kind, root.rank);
            root = FoundRoot { kind, name: "further roots".to_owned(), rank, ..FoundRoot::default() };
        }
        let next = self.found.len() as u32;
        *self.index.entry(root.clone()).or_insert_with(|| {
            self.found.push(root);
            next
        })
    }

    fn hit(&mut self, root: u32, block: u32) -> Result<(), Refused> {
        if self.hits.last() != Some(&(root, block)) {
            let most = Refused::TooMany(self.hits.len() as u64);
            if self.hits.len() >= MAX_HITS || self.hits.try_reserve(1).is_err() {
                return Err(most);
            }
            self.hits.push((root, block));
        }
        Ok(())
    }

    fn hit_all(&mut self, root: u32, hits: &[Hit]) -> Result<(), Refused> {
        hits.iter().try_for_each(|&(.., block)| self.hit(root, block))
    }

    /// Searches a range of shared or of private memory, and returns each word that points to a
    /// block.
    fn search_range(&mut self, range: AddressRange, is_shared: bool) -> Result<Vec<Hit>, Refused> {
        let residency = &self.frozen.residency;
        let resident = |from: u64, to: u64| -> Vec<(u64, u64)> {
            let runs = residency.runs_in(from..to).filter(|run| is_shared || run.anonymous);
            runs.map(|run| (run.start.max(from), run.end.min(to))).collect()
        };
        let wanted: u64 = resident(range.start, range.end).iter().map(|run| run.1 - run.0).sum();
        let (mut found, mut is_over): (Vec<Hit>, bool) = (Vec::new(), Instant::now() >= self.deadline);
        let memory: &dyn Memory = if is_shared { &self.frozen.memory } else { self.frozen.own_memory() };
        let room = MAX_HITS - self.hits.len().min(MAX_HITS);
        let read = each_word(memory, &resident, range, READ_BYTES, &mut |at, word| {
            // Words in blocks are followed when the block is reached. Static data contains blocks
            // where musl's loader donated it to malloc.
            if let Some(block) = self.blocks.find(word).filter(|_| self.blocks.find(at).is_none()) {
                is_over = is_over || found.len() >= room || found.try_reserve(1).is_err();
                if !is_over {
                    found.push((at, word, block));
                }
            }
            !is_over
        });
        if is_over {
            return Err(Refused::TooMany(found.len() as u64));
        }
        self.unread_bytes += wanted.saturating_sub(read);
        Ok(found)
    }

    /// Searches the stacks from their stack pointers on, and returns the bounds of each.
    fn stacks(&mut self, names: &HashMap<i32, String>, frames: &Frames) -> Result<RangeSet, Refused> {
        let mut taken = Vec::new();
        for stack in &self.frozen.stacks {
            let thread = names.get(&stack.tid).cloned();
            let known = self.frozen.facts.iter().find(|thread| thread.tid == stack.tid);
            let is_on = |base: &u64| (stack.stack_pointer..stack.high).contains(base);
            // Other threads than the main one have their `struct pthread` at the end of the stack,
            // after static TLS, which is not distinguished from the stack.
            let own = known.map(|thread| thread.fs_base).filter(is_on).unwrap_or(stack.high);
            let from = stack.stack_pointer.saturating_sub(RED_ZONE_BYTES).max(stack.low) & !7;
            let root = self.root(RootKind::Tls, "thread control block", thread.clone());
            let words = self.search_range(AddressRange::new(own, stack.high), false)?;
            self.hit_all(root, &words)?;
            let in_use = AddressRange::new(from, own);
            self.add_frames(in_use, own < stack.high, frames.of(stack.tid), thread)?;
            taken.push((stack.low, stack.high));
        }
        Ok(taken.into_iter().collect())
    }

    /// Adds the roots of a stack, one for each function. Words in no known frame are roots of the
    /// stack as a whole. With `has_storage`, thread-local storage follows the frames.
    fn add_frames(
        &mut self,
        whole: AddressRange,
        has_storage: bool,
        of: Option<&ThreadFrames>,
        thread: Option<String>,
    ) -> Result<(), Refused> {
        let called = of.map(|of| of.called.as_slice()).unwrap_or_default();
        let words = self.search_range(whole, false)?;
        let between = |from: u64, to: u64| {
            let place = |at: u64| words.partition_point(|hit| hit.0 < at);
            words.get(place(from)..place(to)).unwrap_or_default()
        };
        // A block that a caller refers to as well, such as an argument, belongs to the caller.
        let mut known: HashSet<u32> = HashSet::new();
        for (index, one) in called.iter().enumerate() {
            // The innermost function may also use memory below its stack pointer.
            let from = if index + 1 == called.len() { whole.start } else { one.range.start };
            let found = between(from, one.range.end).iter();
            let own: Vec<Hit> = found.filter(|hit| known.insert(hit.2)).copied().collect();
            if !own.is_empty() {
                let (name, module) = (one.function.clone(), Some(one.module.clone()));
                let kind = RootKind::Stack;
                let root = FoundRoot { kind, name, module, thread: thread.clone(), rank: Rank::Transient };
                let root = self.add(root);
                self.hit_all(root, &own)?;
            }
        }
        let outer = called.first().map_or(whole.start, |one| one.range.end);
        let rest: Vec<Hit> =
            between(outer, whole.end).iter().filter(|hit| !known.contains(&hit.2)).copied().collect();
        // Thread-local storage is past the frame of the function that the thread began with.
        let root = match has_storage && of.is_some_and(|of| of.is_whole) && !called.is_empty() {
            true => self.root(RootKind::Tls, "thread-local storage", thread),
            false => self.root(RootKind::Stack, "stack", thread),
        };
        self.hit_all(root, &rest)
    }

    /// Searches all other memory that is not heap.
    fn search_mappings(&mut self, process: &Process, mut taken: RangeSet) -> Result<(), Refused> {
        let frozen = self.frozen;
        for runtime in &frozen.runtimes {
            let root = self.add_runtime(runtime)?;
            for claim in &runtime.claims {
                let words = self.search_range(claim.range(), false)?;
                self.hit_all(root, &words)?;
            }
            taken.extend(runtime.claims.iter().map(|claim| claim.range()));
        }
        let mut with_heaps = taken.clone();
        with_heaps.extend(frozen.readings.iter().flat_map(|heap| heap.ranges()));
        let mapped = frozen.readings.iter().flat_map(|heap| &heap.mapped_blocks);
        with_heaps.extend(mapped.map(|block| (block.start, block.end)));
        let with_blocks = self.with_blocks();
        let groups = modules::file_groups(frozen.address_space.mappings());
        for group in &groups {
            self.search_module(process, group, &with_heaps)?;
        }
        let devices =
            frozen.smaps_entries.iter().filter(|space| space.flags.is_io() || space.flags.is_pfn_map());
        let of_files = groups.iter().flatten().map(|mapping| mapping.range());
        let known: RangeSet = of_files.chain(devices.map(|space| space.mapping.range())).collect();
        for (mapping, has_blocks) in frozen.address_space.mappings().iter().zip(with_blocks) {
            if known.contains(mapping.start) {
                continue;
            }
            // If a heap continues past foreign mappings, its claim includes these; only mappings
            // with blocks belong to the heap.
            self.search_unexplained(mapping, if has_blocks { &with_heaps } else { &taken })?;
        }
        Ok(())
    }

    /// Adds a runtime as a root, with its variables and the references that its reader reports.
    fn add_runtime(&mut self, runtime: &Reading) -> Result<u32, Refused> {
        let (kind, name) = (RootKind::Runtime, runtime.facts.name.clone());
        let rank = if runtime.holding.is_some() { Rank::RuntimeMemory } else { Rank::Ordinary };
        let root = self.add(FoundRoot { kind, name, rank, ..FoundRoot::default() });
        let Some(holding) = &runtime.holding else { return Ok(root) };
        for (name, value) in &holding.variables {
            if let Some(block) = self.blocks.find(*value) {
                let (name, module) = (name.clone(), Some(runtime.facts.name.clone()));
                let variable = self.add(FoundRoot { kind, name, module, rank: Rank::Named, thread: None });
                self.hit(variable, block)?;
            }
        }
        let mut whole =
            RuntimeReferences::new(holding, &claimed_ranges(std::slice::from_ref(runtime)), self.blocks);
        whole
            .blocks
            .extend(self.pointed_into.take().iter().flat_map(BlockSet::iter).map(|block| block..block + 1));
        self.runtime_references.push((root, whole));
        Ok(root)
    }

    /// For each mapping, whether a block begins in it.
    fn with_blocks(&self) -> Vec<bool> {
        let mut blocks = self.blocks.iter(0).peekable();
        let has = |mapping: &Mapping| {
            while blocks.next_if(|block| block.0 < mapping.start).is_some() {}
            blocks.peek().is_some_and(|block| block.0 < mapping.end)
        };
        self.frozen.address_space.mappings().iter().map(has).collect()
    }

    /// Searches unexplained memory. If a thread's FS base points into it, it is that thread's
    /// storage.
    fn search_unexplained(&mut self, mapping: &Mapping, taken: &RangeSet) -> Result<(), Refused> {
        let owner = self.frozen.facts.iter().find(|thread| mapping.contains(thread.fs_base));
        let (kind, name) = match owner {
            Some(thread) => (RootKind::Tls, format!("storage of thread {}", thread.tid)),
            None => (RootKind::Static, format!("memory at {:#x}", mapping.start)),
        };
        for range in taken.gaps_in(mapping.range()) {
            let words = self.search_range(range, mapping.permissions.shared)?;
            if !words.is_empty() {
                // It may contain unrecognised stacks, with stale words of earlier calls.
                let rank = if owner.is_none() { Rank::Transient } else { Rank::Ordinary };
                let root = self.add(FoundRoot { kind, name: name.clone(), rank, ..FoundRoot::default() });
                self.hit_all(root, &words)?;
            }
        }
        Ok(())
    }

    /// Whether a word of glibc's own data points past a block rather than to it: bins and top point
    /// to the start of a free chunk, whose first word is the last that the block before may use
    /// (malloc.c, "the chunk's overlapping fields").
    fn is_past_block(&self, block: u32, word: u64) -> bool {
        word.saturating_add(8) >= self.blocks.start(block).saturating_add(self.blocks.bytes(block))
    }

    /// Searches static data of a program or library, with one root for each symbol.
    fn search_module(
        &mut self,
        process: &Process,
        group: &[&Mapping],
        taken: &RangeSet,
    ) -> Result<(), Refused> {
        let mut words: Vec<Hit> = Vec::new();
        for mapping in group {
            for range in taken.gaps_in(mapping.range()) {
                words.extend(self.search_range(range, false)?);
            }
        }
        let Some(first) = group.first().filter(|_| !words.is_empty()) else { return Ok(()) };
        let symbols = Symbols::read(process, self.frozen, first);
        let short = first.name.rsplit('/').next().unwrap_or_default();
        let has_arena = CLibrary::of_file(&first.name) == Some(CLibrary::Glibc);
        words.retain(|&(at, word, block)| {
            let is_arena =
                has_arena || symbols.containing(at).is_some_and(|symbol| symbol.name == b"main_arena");
            !is_arena || !self.is_past_block(block, word)
        });
        // Words without a symbol are an array if many are in a row; otherwise each is a variable.
        for row in words.chunk_by(|one, next| next.0 - one.0 <= MAX_GAP_BYTES) {
            let array = row.first().filter(|_| row.len() >= MIN_ARRAY).map(|first| first.0);
            let place = |at: u64| symbols.containing(at).map_or(array.unwrap_or(at), |symbol| symbol.address);
            for of_one in row.chunk_by(|one, next| place(one.0) == place(next.0)) {
                let Some(&(at, ..)) = of_one.first() else { continue };
                let name = match symbols.containing(at) {
                    Some(symbol) => names::demangle_symbol(&symbol.name),
                    None => format!("{short}+{:#x}", place(at) - first.start),
                };
                let module = Some(short.to_owned());
                let root = self.add(FoundRoot { name, module, ..FoundRoot::default() });
                self.hit_all(root, of_one)?;
            }
        }
        Ok(())
    }

    /// Returns the roots by rank: variables first, memory with stale words last.
    fn finish(mut self) -> AllRoots {
        let rank = |root: &u32| self.found.get(*root as usize).map(|found| found.rank);
        let mut order: Vec<u32> = (0..self.found.len() as u32).collect();
        order.sort_by_key(rank);
        self.hits.sort_unstable();
        self.hits.dedup();
        let (mut found, mut roots, mut rank) = (Vec::new(), Roots::default(), None);
        for root in order {
            let Some(of) = self.found.get(root as usize) else { continue };
            match rank.replace(of.rank) {
                Some(Rank::Named) if of.rank != Rank::Named => roots.end_named_class(),
                Some(before) if of.rank != before => roots.begin_class(),
                _ => {}
            }
            let first = self.hits.partition_point(|hit| hit.0 < root);
            let behind = self.hits.partition_point(|hit| hit.0 <= root);
            let hits = self.hits[first..behind].iter().map(|hit| hit.1);
            let wholes =
                || self.runtime_references.iter().filter(|whole| whole.0 == root).map(|whole| &whole.1);
            let own = wholes().flat_map(|whole| whole.blocks.iter().cloned().flatten());
            roots.add_with_stops(hits.chain(own), wholes().flat_map(|whole| whole.stops.iter().copied()));
            found.push(of.clone());
        }
        AllRoots { found, roots, unread_bytes: self.unread_bytes }
    }
}
