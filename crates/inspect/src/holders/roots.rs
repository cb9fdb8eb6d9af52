//! Finds references to blocks from outside: static data by symbol, stacks and registers by thread,
//! memory of runtimes, and unexplained memory.
//!
//! Searches shared memory, and all private memory that no allocator's reader claims, word by word.
//! Leaves out file pages that were never written, because they contain no address of a block, and
//! the part of a known stack below the stack pointer.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use strandline_claims::runtime::{Reading, claimed_ranges};
use strandline_claims::words::each_word_until;
use strandline_holders::{BlockSet, Blocks, Refused, Roots};
use strandline_process::c_library::CLibrary;
use strandline_process::call::frame::RED_ZONE_BYTES;
use strandline_process::map::Mapping;
use strandline_process::memory::Memory;
use strandline_process::modules;
use strandline_process::pages::PageRun;
use strandline_process::procfs::Process;
use strandline_process::range::{AddressRange, RangeSet};
use strandline_process::target::kernel_pointers::KernelPointers;

use super::facts::RootKind;
use super::frames::{Frames, ThreadFrames};
use super::names;
use super::runtimes::RuntimeReferences;
use super::symbols::{Symbol, Symbols};
use crate::capture::FrozenState;

/// Words of static data without a symbol form one root if there are at least [`MIN_ARRAY_WORDS`] of
/// them, at most this far apart.
const MAX_GAP_BYTES: u64 = 16;
/// See [`MAX_GAP_BYTES`].
const MIN_ARRAY_WORDS: usize = 16;
/// Bytes below a thread pointer that are searched where the kernel has joined a thread's storage
/// with a heap: static TLS, and what the loader allocated before it.
const STORAGE_BELOW_BYTES: u64 = 64 << 10;
/// Bytes above it: `struct pthread` (nptl/descr.h), of 0x940 bytes in glibc 2.36.
const STORAGE_ABOVE_BYTES: u64 = 4 << 10;
/// Bytes of a usual signal stack, in minimum sizes (glibc ≥ 2.34, sysdeps/unix/sysv/linux/
/// sysconf-sigstksz.h: `_SC_SIGSTKSZ`).
const SIGNAL_STACK_FACTOR: u64 = 4;
/// Maximum bytes by which malloc rounds a size up, exclusive.
const MAX_PADDING_BYTES: u64 = 16;
/// Mask of the bits of an address within a word.
const WORD_MASK: u64 = 7;
/// Maximum number of distinct roots; further ones of each kind are merged.
const MAX_ROOTS: usize = 1 << 20;
/// Maximum number of references from all roots, of 8 bytes each.
const MAX_REFERENCES: usize = 1 << 26;

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
    /// A variable of the runtime's own code.
    NamedByRuntime,
    /// Memory of a runtime whose variables are known: static data of the runtime leads to
    /// everything in it.
    RuntimeMemory,
    /// Any other memory.
    #[default]
    Ordinary,
    /// A pointer in the kernel, which the program's own memory mostly has as well.
    Kernel,
    /// Memory that may contain stale words.
    Transient,
}

impl Rank {
    /// Whether paths from such a root stop at objects that lead to everything.
    fn is_named(self) -> bool {
        matches!(self, Self::Named | Self::NamedByRuntime)
    }
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

/// Finds all roots of `blocks`. `inner_targets` are the blocks that words of runtimes' objects
/// point into without being references, `pointers` what the program has given to the kernel.
///
/// # Errors
/// [`Refused::TooMany`] if there are too many references, [`Refused::DeadlinePassed`] after
/// `deadline`.
pub fn find(
    process: &Process,
    frozen: &FrozenState,
    blocks: &Blocks,
    inner_targets: Option<BlockSet>,
    pointers: &KernelPointers,
    deadline: Instant,
) -> Result<AllRoots, Refused> {
    let mut finder = Finder {
        frozen,
        blocks,
        deadline,
        found: Vec::new(),
        references: Vec::new(),
        index: HashMap::new(),
        runtime_references: HashMap::new(),
        inner_targets,
        key_addresses: frozen
            .allocator_readings
            .iter()
            .flat_map(|heap| heap.key_addresses.iter().copied())
            .collect(),
        unread_bytes: 0,
    };
    let names = thread_names(process, frozen);
    for thread in frozen.threads() {
        let name = names.get(&thread.tid).cloned();
        let root = finder.root(RootKind::Register, "registers", name);
        for &word in thread.general.iter().flatten() {
            if let Some(block) = finder.blocks.find(word) {
                finder.refer(root, block)?;
            }
        }
    }
    finder.add_kernel_pointers(pointers)?;
    finder.add_signal_stacks(process)?;
    let stacks = finder.search_stacks(&names, &Frames::find(process, frozen, deadline))?;
    finder.search_mappings(process, stacks)?;
    Ok(finder.finish())
}

/// The name of each thread, with its id; the id alone for a thread that has ended.
fn thread_names(process: &Process, frozen: &FrozenState) -> HashMap<i32, String> {
    let name = |tid: i32| {
        let text = std::fs::read_to_string(process.path(format!("task/{tid}/comm"))).unwrap_or_default();
        (tid, format!("{} ({tid})", text.trim_end()).trim_start().to_owned())
    };
    frozen.threads().iter().map(|thread| name(thread.tid)).collect()
}

/// The refusal of more references than `count`, which reached [`MAX_REFERENCES`] or filled memory.
fn too_many_references(count: usize) -> Refused {
    Refused::TooMany { count: count as u64, max_count: MAX_REFERENCES as u64 }
}

/// Collects roots and their references.
struct Finder<'a> {
    frozen: &'a FrozenState,
    blocks: &'a Blocks,
    deadline: Instant,
    found: Vec<FoundRoot>,
    /// References from roots to blocks, in no order.
    references: Vec<RootReference>,
    /// The index of each root in `found`.
    index: HashMap<FoundRoot, u32>,
    /// What readers report that runtimes refer to, by root.
    runtime_references: HashMap<u32, RuntimeReferences>,
    /// Blocks that words of runtimes' objects point into without being references.
    inner_targets: Option<BlockSet>,
    /// Addresses of words of allocators that are keys, not references.
    key_addresses: HashSet<u64>,
    unread_bytes: u64,
}

/// A reference from a root to a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RootReference {
    root: u32,
    block: u32,
}

/// A word that points to a block.
#[derive(Clone, Copy)]
struct Hit {
    address: u64,
    word: u64,
    block: u32,
}

impl Finder<'_> {
    /// Returns the root with this name, which is added if missing. Roots of different threads are
    /// distinct.
    fn root(&mut self, kind: RootKind, name: &str, thread: Option<String>) -> u32 {
        let is_transient = matches!(kind, RootKind::Stack | RootKind::Register);
        let rank = if is_transient { Rank::Transient } else { Rank::Ordinary };
        self.add(FoundRoot { kind, name: name.to_owned(), module: None, thread, rank })
    }

    /// Returns this root, which is added if missing.
    fn add(&mut self, mut root: FoundRoot) -> u32 {
        if self.found.len() >= MAX_ROOTS && !self.index.contains_key(&root) {
            let (kind, rank) = (root.kind, root.rank);
            root = FoundRoot { kind, name: "further roots".to_owned(), rank, ..FoundRoot::default() };
        }
        let next = self.found.len() as u32;
        *self.index.entry(root.clone()).or_insert_with(|| {
            self.found.push(root);
            next
        })
    }

    /// Adds a reference from a root to a block.
    fn refer(&mut self, root: u32, block: u32) -> Result<(), Refused> {
        let reference = RootReference { root, block };
        if self.references.last() != Some(&reference) {
            if self.references.len() >= MAX_REFERENCES || self.references.try_reserve(1).is_err() {
                return Err(too_many_references(self.references.len()));
            }
            self.references.push(reference);
        }
        Ok(())
    }

    /// Adds references from a root to the blocks of all `hits`.
    fn refer_all(&mut self, root: u32, hits: &[Hit]) -> Result<(), Refused> {
        hits.iter().try_for_each(|hit| self.refer(root, hit.block))
    }

    /// Adds the pointers that the program has given to the kernel.
    fn add_kernel_pointers(&mut self, pointers: &KernelPointers) -> Result<(), Refused> {
        let lists = [
            ("epoll data in the kernel", &pointers.epoll_data),
            ("timers in the kernel", &pointers.timer_values),
        ];
        for (name, words) in lists {
            let blocks: Vec<u32> = words.iter().filter_map(|&word| self.blocks.find(word)).collect();
            if !blocks.is_empty() {
                let (kind, name, rank) = (RootKind::Static, name.to_owned(), Rank::Kernel);
                let root = self.add(FoundRoot { kind, name, rank, ..FoundRoot::default() });
                blocks.into_iter().try_for_each(|block| self.refer(root, block))?;
            }
        }
        Ok(())
    }

    /// Adds the blocks that may be alternate signal stacks, whose addresses (sigaltstack(2)) the
    /// kernel does not show: those of the usual size, if there are no more than threads.
    fn add_signal_stacks(&mut self, process: &Process) -> Result<(), Refused> {
        let catches_signals = process.status().is_ok_and(|status| status.caught_signals != Some(0));
        let start_facts = process.start_facts().filter(|_| catches_signals);
        let min_bytes = start_facts.and_then(|facts| facts.min_signal_stack_bytes).unwrap_or(0);
        let Some(bytes) = min_bytes.checked_mul(SIGNAL_STACK_FACTOR).filter(|&bytes| bytes > 0) else {
            return Ok(());
        };
        let sizes = bytes..bytes.saturating_add(MAX_PADDING_BYTES);
        let is_stack = |block: &u32| sizes.contains(&self.blocks.bytes(*block));
        let max_stacks = self.frozen.threads().len();
        let stacks: Vec<u32> = (0..self.blocks.len()).filter(is_stack).take(max_stacks + 1).collect();
        if stacks.is_empty() || stacks.len() > max_stacks {
            return Ok(());
        }
        // What another root holds is no signal stack that was forgotten.
        let (kind, rank) = (RootKind::Static, Rank::Transient);
        let name = "signal stacks (by their size)".to_owned();
        let root = self.add(FoundRoot { kind, name, rank, ..FoundRoot::default() });
        stacks.into_iter().try_for_each(|block| self.refer(root, block))
    }

    /// Searches a range of private memory, and returns each word that points to a block.
    fn search_private(&mut self, range: AddressRange) -> Result<Vec<Hit>, Refused> {
        self.search_range(range, false)
    }

    /// Searches a range of memory, which `is_shared` or private, and returns each word that points
    /// to a block.
    fn search_range(&mut self, range: AddressRange, is_shared: bool) -> Result<Vec<Hit>, Refused> {
        let runs = self.frozen.residency.runs_in(range.into()).filter(|run| is_shared || run.is_anonymous);
        let resident: Vec<AddressRange> = runs.map(PageRun::range).collect();
        let resident_bytes: u64 = resident.iter().map(|run| run.len()).sum();
        let (mut hits, mut is_full): (Vec<Hit>, bool) = (Vec::new(), false);
        let memory: &dyn Memory = if is_shared { &self.frozen.memory } else { self.frozen.own_memory() };
        let max_hits = MAX_REFERENCES - self.references.len().min(MAX_REFERENCES);
        let read = each_word_until(memory, resident, self.deadline, &mut |address, word| {
            // Words in blocks are followed when the block is reached. Static data contains blocks
            // where musl's loader donated it to malloc.
            let is_reference =
                || self.blocks.find(address).is_none() && !self.key_addresses.contains(&address);
            if let Some(block) = self.blocks.find(word).filter(|_| is_reference()) {
                is_full |= hits.len() >= max_hits || hits.try_reserve(1).is_err();
                if !is_full {
                    hits.push(Hit { address, word, block });
                }
            }
            !is_full
        });
        if read.is_late {
            return Err(Refused::DeadlinePassed);
        }
        if is_full {
            return Err(too_many_references(self.references.len() + hits.len()));
        }
        self.unread_bytes += resident_bytes.saturating_sub(read.bytes);
        Ok(hits)
    }

    /// Searches the stacks from their stack pointers on, and returns the bounds of each.
    fn search_stacks(&mut self, names: &HashMap<i32, String>, frames: &Frames) -> Result<RangeSet, Refused> {
        let mut searched = Vec::new();
        for stack in &self.frozen.stacks {
            let thread = names.get(&stack.tid).cloned();
            let facts = self.frozen.threads().iter().find(|facts| facts.tid == stack.tid);
            let is_in_use = |base: &u64| (stack.stack_pointer..stack.high).contains(base);
            // Other threads than the main one have their `struct pthread` at the end of the stack,
            // after static TLS, which is not distinguished from the stack.
            let control_block = facts.map(|facts| facts.fs_base).filter(is_in_use).unwrap_or(stack.high);
            let start = stack.stack_pointer.saturating_sub(RED_ZONE_BYTES).max(stack.low) & !WORD_MASK;
            let root = self.root(RootKind::Tls, "thread control block", thread.clone());
            let hits = self.search_private(AddressRange::new(control_block, stack.high))?;
            self.refer_all(root, &hits)?;
            let in_use = AddressRange::new(start, control_block);
            self.add_frames(in_use, control_block < stack.high, frames.of_thread(stack.tid), thread)?;
            searched.push(stack.range());
        }
        Ok(searched.into_iter().collect())
    }

    /// Adds the roots of a stack, one for each function. Words in no known frame are roots of the
    /// stack as a whole. `in_use` is the part of the stack in use. With `has_storage`, thread-local
    /// storage follows the frames.
    fn add_frames(
        &mut self,
        in_use: AddressRange,
        has_storage: bool,
        frames: Option<&ThreadFrames>,
        thread: Option<String>,
    ) -> Result<(), Refused> {
        let called = frames.map(|frames| frames.called.as_slice()).unwrap_or_default();
        let hits = self.search_private(in_use)?;
        let between = |start: u64, end: u64| {
            let index = |address: u64| hits.partition_point(|hit| hit.address < address);
            hits.get(index(start)..index(end)).unwrap_or_default()
        };
        // A block that a caller refers to as well, such as an argument, belongs to the caller.
        let mut assigned_blocks: HashSet<u32> = HashSet::new();
        for (index, function) in called.iter().enumerate() {
            // The innermost function may also use memory below its stack pointer.
            let is_innermost = index + 1 == called.len();
            let start = if is_innermost { in_use.start } else { function.range.start };
            let in_frame = between(start, function.range.end).iter();
            let own_hits: Vec<Hit> =
                in_frame.filter(|hit| assigned_blocks.insert(hit.block)).copied().collect();
            if !own_hits.is_empty() {
                let root = self.add(FoundRoot {
                    kind: RootKind::Stack,
                    name: function.function.clone(),
                    module: Some(function.module.clone()),
                    thread: thread.clone(),
                    rank: Rank::Transient,
                });
                self.refer_all(root, &own_hits)?;
            }
        }
        let frames_end = called.first().map_or(in_use.start, |outermost| outermost.range.end);
        let past_frames = between(frames_end, in_use.end).iter();
        let past_frames: Vec<Hit> =
            past_frames.filter(|hit| !assigned_blocks.contains(&hit.block)).copied().collect();
        // Thread-local storage is past the frame of the function that the thread began with.
        let is_storage = has_storage && frames.is_some_and(|frames| frames.is_whole) && !called.is_empty();
        let root = if is_storage {
            self.root(RootKind::Tls, "thread-local storage", thread)
        } else {
            self.root(RootKind::Stack, "stack", thread)
        };
        self.refer_all(root, &past_frames)
    }

    /// Searches all memory that is not heap, except the ranges in `searched`.
    fn search_mappings(&mut self, process: &Process, mut searched: RangeSet) -> Result<(), Refused> {
        let frozen = self.frozen;
        for runtime in &frozen.runtime_readings {
            let root = self.add_runtime(runtime)?;
            for claim in &runtime.claims {
                let hits = self.search_private(claim.range())?;
                self.refer_all(root, &hits)?;
            }
            searched.extend(runtime.claims.iter().map(|claim| claim.range()));
        }
        let mut searched_and_heaps = searched.clone();
        searched_and_heaps.extend(frozen.allocator_readings.iter().flat_map(|heap| heap.ranges()));
        let mapped = frozen.allocator_readings.iter().flat_map(|heap| &heap.mapped_blocks);
        searched_and_heaps.extend(mapped.map(|block| (block.start, block.end)));
        self.search_joined_storage(&searched)?;
        let groups = modules::file_groups(&frozen.address_space);
        for group in &groups {
            self.search_module(process, group, &searched_and_heaps)?;
        }
        let devices =
            frozen.smaps_entries.iter().filter(|entry| entry.flags.is_io() || entry.flags.is_pfn_map());
        let module_ranges = groups.iter().flatten().map(|mapping| mapping.range());
        let searched_mappings: RangeSet =
            module_ranges.chain(devices.map(|entry| entry.mapping.range())).collect();
        for (mapping, has_blocks) in frozen.address_space.mappings().iter().zip(self.have_blocks()) {
            // Other memory may follow a library's bss in its mapping.
            for AddressRange { start, end } in searched_mappings.gaps_in(mapping.range()) {
                let gap = Mapping { start, end, ..mapping.clone() };
                // If a heap continues past foreign mappings, its claim includes these; only
                // mappings with blocks belong to the heap.
                self.search_unexplained(&gap, if has_blocks { &searched_and_heaps } else { &searched })?;
            }
        }
        Ok(())
    }

    /// Searches the storage of threads in what allocators claim. Where glibc's main arena continues
    /// in mapped memory because brk fails, the kernel may join this with the main thread's storage
    /// (malloc.c, `sysmalloc_mmap_fallback`; before glibc 2.35, `sysmalloc`).
    fn search_joined_storage(&mut self, searched: &RangeSet) -> Result<(), Refused> {
        let frozen = self.frozen;
        let heaps: Vec<AddressRange> =
            frozen.allocator_readings.iter().flat_map(|heap| heap.ranges()).collect();
        for thread in frozen.threads() {
            let base = thread.fs_base;
            let joined = heaps.iter().find(|heap| heap.contains(base));
            let Some(heap) = joined.filter(|_| !searched.contains(base) && self.blocks.find(base).is_none())
            else {
                continue;
            };
            let around = AddressRange::new(
                base.saturating_sub(STORAGE_BELOW_BYTES) & !WORD_MASK,
                base.saturating_add(STORAGE_ABOVE_BYTES) & !WORD_MASK,
            );
            let hits = self.search_private(around.intersection(*heap))?;
            // Free memory of the heap below it may hold stale pointers.
            let name = format!("storage of thread {}", thread.tid);
            let (kind, rank) = (RootKind::Tls, Rank::Transient);
            let root = self.add(FoundRoot { kind, name, rank, ..FoundRoot::default() });
            self.refer_all(root, &hits)?;
        }
        Ok(())
    }

    /// Adds a runtime as a root, with its variables and the references that its reader reports.
    fn add_runtime(&mut self, runtime: &Reading) -> Result<u32, Refused> {
        let (kind, name) = (RootKind::Runtime, runtime.facts.name.clone());
        let rank = if runtime.reference_hints.is_some() { Rank::RuntimeMemory } else { Rank::Ordinary };
        let root = self.add(FoundRoot { kind, name, rank, ..FoundRoot::default() });
        let Some(hints) = &runtime.reference_hints else { return Ok(root) };
        for variable in &hints.variables {
            if let Some(block) = self.blocks.find(variable.value) {
                let (name, module) = (variable.name.to_string(), Some(runtime.facts.name.clone()));
                let rank = if variable.is_own { Rank::NamedByRuntime } else { Rank::Named };
                let variable = self.add(FoundRoot { kind, name, module, rank, thread: None });
                self.refer(variable, block)?;
            }
        }
        let own_memory = claimed_ranges(std::slice::from_ref(runtime));
        let references = RuntimeReferences::new(hints, &own_memory, self.blocks);
        let inner_targets = self.inner_targets.take();
        let inner_targets = inner_targets.iter().flat_map(BlockSet::iter).map(|block| block..block + 1);
        let merged = self.runtime_references.entry(root).or_default();
        merged.blocks.extend(references.blocks.into_iter().chain(inner_targets));
        merged.stops.extend(references.stops);
        Ok(root)
    }

    /// Returns for each mapping whether a block begins in it.
    fn have_blocks(&self) -> Vec<bool> {
        let mut blocks = self.blocks.iter(0).peekable();
        let has_block = |mapping: &Mapping| {
            while blocks.next_if(|block| block.start < mapping.start).is_some() {}
            blocks.peek().is_some_and(|block| block.start < mapping.end)
        };
        self.frozen.address_space.mappings().iter().map(has_block).collect()
    }

    /// Searches unexplained memory. If a thread's FS base points into it, it is that thread's
    /// storage.
    fn search_unexplained(&mut self, mapping: &Mapping, searched: &RangeSet) -> Result<(), Refused> {
        let owner = self.frozen.threads().iter().find(|thread| mapping.contains(thread.fs_base));
        let (kind, name) = match owner {
            Some(thread) => (RootKind::Tls, format!("storage of thread {}", thread.tid)),
            None => (RootKind::Static, format!("memory at {:#x}", mapping.start)),
        };
        for range in searched.gaps_in(mapping.range()) {
            let hits = self.search_range(range, mapping.permissions.shared)?;
            if !hits.is_empty() {
                // It may contain unrecognised stacks, with stale words of earlier calls.
                let rank = if owner.is_none() { Rank::Transient } else { Rank::Ordinary };
                let root = self.add(FoundRoot { kind, name: name.clone(), rank, ..FoundRoot::default() });
                self.refer_all(root, &hits)?;
            }
        }
        Ok(())
    }

    /// Whether a word of glibc's own data points past a block rather than to it: bins and top point
    /// to the start of a free chunk, whose first word is the last that the block before may use
    /// (malloc.c: "the `foot' of the current chunk is actually represented as the prev_size of the
    /// NEXT chunk").
    fn is_past_block(&self, hit: &Hit) -> bool {
        let block_end = self.blocks.start(hit.block).saturating_add(self.blocks.bytes(hit.block));
        hit.word.saturating_add(size_of::<u64>() as u64) >= block_end
    }

    /// Searches static data of a program or library, with one root for each symbol.
    fn search_module(
        &mut self,
        process: &Process,
        group: &[&Mapping],
        searched: &RangeSet,
    ) -> Result<(), Refused> {
        let mut hits: Vec<Hit> = Vec::new();
        for mapping in group {
            for range in searched.gaps_in(mapping.range()) {
                hits.extend(self.search_private(range)?);
            }
        }
        let Some(first) = group.first().filter(|_| !hits.is_empty()) else { return Ok(()) };
        let symbols = Symbols::read(process, self.frozen, first);
        let file = first.file_name();
        let has_arena = CLibrary::of_file(&first.name) == Some(CLibrary::Glibc);
        let is_arena = |symbol: &Symbol| symbol.name == b"main_arena";
        hits.retain(|hit| {
            let is_in_arena = has_arena || symbols.containing(hit.address).is_some_and(is_arena);
            !is_in_arena || !self.is_past_block(hit)
        });
        // Words without a symbol are an array if many are in a row; otherwise each is a variable.
        for run in hits.chunk_by(|hit, next| next.address - hit.address <= MAX_GAP_BYTES) {
            let array = run.first().filter(|_| run.len() >= MIN_ARRAY_WORDS).map(|first| first.address);
            let variable = |hit: &Hit| {
                let symbol = symbols.containing(hit.address);
                symbol.map_or(array.unwrap_or(hit.address), |symbol| symbol.address)
            };
            for variable_hits in run.chunk_by(|hit, next| variable(hit) == variable(next)) {
                let Some(hit) = variable_hits.first() else { continue };
                let name = match symbols.containing(hit.address) {
                    Some(symbol) => names::demangle_symbol(&symbol.name),
                    None => format!("{file}+{:#x}", variable(hit) - first.start),
                };
                let module = Some(file.to_owned());
                let root = self.add(FoundRoot { name, module, ..FoundRoot::default() });
                self.refer_all(root, variable_hits)?;
            }
        }
        Ok(())
    }

    /// Returns the roots by rank: variables first, memory with stale words last.
    fn finish(mut self) -> AllRoots {
        let rank = |root: &u32| self.found.get(*root as usize).map(|found| found.rank);
        let mut order: Vec<u32> = (0..self.found.len() as u32).collect();
        order.sort_by_key(rank);
        self.references.sort_unstable();
        self.references.dedup();
        let (mut found, mut roots, mut rank) = (Vec::new(), Roots::default(), None);
        for root in order {
            let Some(found_root) = self.found.get(root as usize) else { continue };
            match rank.replace(found_root.rank) {
                Some(previous) if previous.is_named() && !found_root.rank.is_named() => {
                    roots.end_named_class()
                }
                Some(previous) if found_root.rank != previous => roots.begin_class(),
                _ => {}
            }
            let first = self.references.partition_point(|reference| reference.root < root);
            let end = self.references.partition_point(|reference| reference.root <= root);
            let blocks = self.references[first..end].iter().map(|reference| reference.block);
            let reported = self.runtime_references.remove(&root).unwrap_or_default();
            roots.add_with_stops(blocks.chain(reported.blocks.into_iter().flatten()), reported.stops);
            found.push(found_root.clone());
        }
        AllRoots { found, roots, unread_bytes: self.unread_bytes }
    }
}
