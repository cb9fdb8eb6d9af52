//! Every word that is the address of an object, for JVMs whose own references cannot all be found.
//!
//! The search takes each word of the stacks of Java threads, their registers, static data, compiled
//! code and malloc's arenas (which contain the handles of the JVM and its native code). A word that
//! only looks like a reference retains its object too, so an object reported as dead is almost
//! certainly dead. The search leaves out memory with addresses of objects that does not retain
//! them: large blocks of malloc with their own mappings, which contain leftovers of the last
//! collection's queues; stacks of the collector's threads; and long runs of such addresses in
//! smaller blocks. The collector's tables contain the start of a region with one large object, so
//! such an address counts only on stacks and in global handles.

use std::ops::RangeInclusive;

use strandline_claims::runtime::Context;
use strandline_claims::words::{READ_BYTES, each_word};
use strandline_process::c_library::CLibrary;
use strandline_process::map::Mapping;
use strandline_process::memory::{Memory, words_in};
use strandline_process::range::{AddressRange, overlapping};
use strandline_process::stacks::ThreadFacts;

use super::handles::{BLOCK_HANDLES, storages};
use super::{DeadlineChecker, RED_ZONE_BYTES};
use crate::jvm::heap::{AreaKind, Heap};
use crate::jvm::shapes::OopFormat;
use crate::jvm::threads::Thread;
use crate::jvm::view::View;

/// Alignment of glibc's arenas (`HEAP_MAX_SIZE`, malloc/arena.c).
const ARENA_BYTES: u64 = 64 << 20;
/// Sizes of a `heap_info`, which differ by version (malloc/arena.c).
const HEAP_INFO_BYTES: RangeInclusive<u64> = 0x20..=0x40;
/// Longest run of addresses of objects that is searched: handles and arrays of references form
/// shorter ones. A longer run is in a stack of the last collection, whose segments have 4 KiB less
/// two words (`Stack::_default_segment_size`, utilities/stack.hpp), or in one returned to malloc.
const MAX_RUN_WORDS: usize = 256;

/// Words that may be references.
pub struct Words<'a> {
    context: &'a Context<'a>,
    view: View<'a>,
    heap: &'a Heap,
    oops: OopFormat,
    /// Stacks of Java threads, in address order, without overlap.
    stacks: Vec<AddressRange>,
    /// Addresses of the storages of handles.
    storages: Vec<u64>,
}

impl<'a> Words<'a> {
    /// Prepares the search for `heap` in a JVM whose static data is `data`; `None` if handles may
    /// be in memory that is not searched.
    pub fn new(
        context: &'a Context<'a>,
        view: View<'a>,
        heap: &'a Heap,
        oops: OopFormat,
        data: AddressRange,
        threads: &[Thread],
    ) -> Option<Self> {
        let stacks = join_overlapping(threads.iter().map(|thread| thread.stack).collect());
        let storages = storages(context, &view, data)?;
        let words = Self { context, view, heap, oops, stacks, storages };
        words.are_handles_searched().then_some(words)
    }

    /// Calls `visit` with every word that may be a reference, while there is time.
    pub fn search(&self, checker: &mut DeadlineChecker, visit: &mut dyn FnMut(u64)) {
        for &stack in &self.stacks {
            if checker.is_past_deadline() {
                return;
            }
            self.search_stack(stack, checker, visit);
        }
        let memory: &dyn Memory = self.view.memory;
        for mapping in self.context.space.mappings().iter().filter(|mapping| self.is_searched(mapping)) {
            if checker.is_past_deadline() {
                return;
            }
            let mut run = Run::default();
            each_word(memory, self.context.resident, mapping.range(), READ_BYTES, &mut |at, word| {
                if !self.may_be_object(word) {
                    run.finish(visit);
                } else if !self.is_region_address(at, word) {
                    run.add(at, word, visit);
                }
                checker.has_time()
            });
            run.finish(visit);
        }
    }

    /// Whether a word could be the address of an object.
    fn may_be_object(&self, word: u64) -> bool {
        self.heap.reserved.contains(word) && word.is_multiple_of(8)
    }

    /// Whether handles are in the memory that is searched: a malloc other than glibc's may put them
    /// anywhere.
    fn are_handles_searched(&self) -> bool {
        let is_glibc = |mapping: &Mapping| CLibrary::of_file(&mapping.name) == Some(CLibrary::Glibc);
        let loaders = self.view.static_field(&["ClassLoaderDataGraph::_head"]);
        let is_in_arena = |&at: &u64| {
            let mapping = self.context.space.find(at).filter(|mapping| self.is_searched(mapping));
            mapping.is_some_and(|mapping| mapping.name == "[heap]" || self.is_arena(mapping.start))
        };
        self.context.space.mappings().iter().any(is_glibc)
            && loaders.is_some()
            && self.storages.iter().chain(&loaders).all(is_in_arena)
    }

    /// Whether a heap of one of glibc's arenas is at an address: its first word (`ar_ptr` in a
    /// `heap_info`) points to a `malloc_state`, which follows the `heap_info` of the arena's first
    /// heap.
    fn is_arena(&self, start: u64) -> bool {
        start.is_multiple_of(ARENA_BYTES)
            && self.view.word(start).is_some_and(|state| HEAP_INFO_BYTES.contains(&(state % ARENA_BYTES)))
    }

    /// Searches a stack from its pointer on, and its thread's registers; the whole stack if no
    /// thread's pointer is in it.
    fn search_stack(&self, stack: AddressRange, checker: &mut DeadlineChecker, visit: &mut dyn FnMut(u64)) {
        let AddressRange { start: low, end: high } = stack;
        let mut visit_addresses = |word: u64| self.oops.each_address_in(word, visit);
        let is_on = |thread: &&ThreadFacts| stack.contains(thread.stack_pointer);
        let thread = self.context.threads.iter().find(is_on);
        if let Some(thread) = thread {
            thread.general.iter().flatten().for_each(|&word| visit_addresses(word));
        }
        let from =
            thread.map_or(low, |thread| thread.stack_pointer.saturating_sub(RED_ZONE_BYTES).max(low) & !7);
        each_word(self.view.memory, self.context.resident, (from, high), READ_BYTES, &mut |_, word| {
            visit_addresses(word);
            checker.has_time()
        });
    }

    /// Whether a mapping is static data, compiled code or an arena of malloc.
    fn is_searched(&self, mapping: &Mapping) -> bool {
        let permissions = mapping.permissions;
        if permissions.shared || !permissions.write {
            return false;
        }
        // Both lists are in address order, without overlap.
        let next = self.heap.areas.partition_point(|area| area.end <= mapping.start);
        let area = self.heap.areas.get(next).map(|area| area.start);
        if area.is_some_and(|start| start < mapping.end)
            || !overlapping(&self.stacks, mapping.range()).is_empty()
            || self.context.threads.iter().any(|thread| mapping.contains(thread.stack_pointer))
        {
            return false;
        }
        let is_arena = mapping.name == "[heap]" || mapping.start.is_multiple_of(ARENA_BYTES);
        !mapping.is_private_anonymous() || is_arena || permissions.execute || self.is_bss(mapping)
    }

    /// Whether a mapping is the uninitialized data of a mapped file.
    fn is_bss(&self, mapping: &Mapping) -> bool {
        let previous = mapping.start.checked_sub(1).and_then(|at| self.context.space.find(at));
        previous.is_some_and(Mapping::has_file)
    }

    /// Whether a word is the address of a region with one large object, rather than a reference to
    /// that object. A small object at the start of a region may have its only reference anywhere,
    /// for example a class.
    fn is_region_address(&self, at: u64, word: u64) -> bool {
        let index = self.heap.areas.partition_point(|area| area.start < word);
        let area = self.heap.areas.get(index).filter(|area| area.start == word);
        area.is_some_and(|area| area.kind == AreaKind::Humongous) && !self.is_handle(at)
    }

    /// Whether an address is in a block of global handles.
    fn is_handle(&self, at: u64) -> bool {
        // The address of the storage follows within the size of a block.
        let mut bytes = [0; (BLOCK_HANDLES + 2) * 8];
        let read_bytes = self.view.memory.read_some(at, &mut bytes);
        bytes.get(..read_bytes).is_some_and(|bytes| words_in(bytes).any(|word| self.storages.contains(&word)))
    }
}

/// Sorts ranges and joins those that overlap. Stacks that only touch belong to two threads.
fn join_overlapping(mut ranges: Vec<AddressRange>) -> Vec<AddressRange> {
    ranges.sort_unstable();
    let mut joined: Vec<AddressRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(previous) if range.start < previous.end => previous.end = previous.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Consecutive words that are addresses of objects.
#[derive(Default)]
struct Run {
    /// The words; no more than one over the limit.
    words: Vec<u64>,
    /// Address of the word after the last one.
    next: u64,
    /// Number of words, those above the limit included.
    count: usize,
}

impl Run {
    /// Adds the word at an address; finishes the run before it if that does not adjoin.
    fn add(&mut self, at: u64, word: u64, visit: &mut dyn FnMut(u64)) {
        if at != self.next {
            self.finish(visit);
        }
        (self.next, self.count) = (at.wrapping_add(8), self.count + 1);
        if self.words.len() <= MAX_RUN_WORDS {
            self.words.push(word);
        }
    }

    /// Calls `visit` with the words, unless there are too many, and begins a new run.
    fn finish(&mut self, visit: &mut dyn FnMut(u64)) {
        if self.count <= MAX_RUN_WORDS {
            self.words.iter().for_each(|&word| visit(word));
        }
        self.words.clear();
        self.count = 0;
    }
}
