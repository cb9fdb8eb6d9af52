//! Every word that is the address of an object, where HotSpot's own references are not known.
//!
//! Stacks of Java's threads, their registers, static data, compiled code and what is in malloc's arenas are looked through word by word
//! (handles of the JVM and of its native code are there). What only looks like a reference holds an object too: of what is
//! called dead hardly anything lives. Not looked through is what has the addresses of objects and holds none: large blocks of
//! malloc's, which are mappings of their own, have what the last collection left in its queues; so do stacks of the collector's
//! threads; long rows of such addresses in smaller blocks are the same; and the first byte of a region with one large object is in tables of regions, so that such an address counts on stacks
//! and in global handles only.

use strandline_claims::runtime::Context;
use strandline_claims::words::{AT_ONCE, each_word};
use strandline_process::map::Mapping;
use strandline_process::memory::{Memory, word_at};
use strandline_process::stacks::ThreadFacts;

use super::Clock;
use super::handles::{HANDLES, storages};
use crate::jvm::heap::{Heap, Kind};
use crate::jvm::shapes::Oops;
use crate::jvm::threads::Thread;
use crate::jvm::view::View;

/// Below its pointer a stack is in use up to this (System V ABI).
const RED_ZONE_BYTES: u64 = 128;
/// glibc's arenas begin at multiples of this (`HEAP_MAX_SIZE`, malloc/arena.c).
const ARENA_BYTES: u64 = 64 << 20;
/// Handles and arrays of references stand in shorter rows: more is a queue of the last collection's, which keeps pieces of it (of 4 KiB
/// less a header, `StackChunkSize`) or has given them back to malloc.
const MAX_IN_A_ROW: usize = 256;
/// The words.
pub struct Words<'a> {
    context: &'a Context<'a>,
    view: View<'a>,
    heap: &'a Heap,
    oops: Oops,
    /// Java's threads' stacks, in the order of addresses, without overlap.
    stacks: Vec<(u64, u64)>,
    /// The storages of handles.
    storages: Vec<u64>,
}

impl<'a> Words<'a> {
    /// Those of `heap` of a JVM whose static data is `data`; `None` where its threads cannot be told.
    pub fn new(
        context: &'a Context<'a>,
        view: View<'a>,
        heap: &'a Heap,
        (oops, data, threads): (Oops, (u64, u64), &[Thread]),
    ) -> Option<Self> {
        let stacks = apart(threads.iter().map(|thread| thread.stack).collect());
        let storages = storages(context, &view, data);
        let words = Self { context, view, heap, oops, stacks, storages };
        words.are_in_arenas().then_some(words)
    }

    /// Shows every word that may be a reference, as long as there is time.
    pub fn each(&self, clock: &mut Clock, take: &mut dyn FnMut(u64)) {
        for &stack in &self.stacks {
            if clock.is_over() {
                return;
            }
            self.stack(stack, clock, take);
        }
        let memory: &dyn Memory = self.view.memory;
        for mapping in self.context.space.mappings().iter().filter(|mapping| self.is_looked_through(mapping))
        {
            if clock.is_over() {
                return;
            }
            let range = (mapping.start, mapping.end);
            let mut row = Row::default();
            each_word((memory, self.context.resident), range, AT_ONCE, &mut |at, word| {
                if !self.may_be_object(word) {
                    row.end(take);
                } else if !self.is_of_a_region(at, word) {
                    row.add(at, word, take);
                }
                clock.goes_on()
            });
            row.end(take);
        }
    }

    /// Whether a word is an address that an object may have.
    fn may_be_object(&self, word: u64) -> bool {
        let (start, end) = self.heap.reserved;
        (start..end).contains(&word) && word.is_multiple_of(8)
    }

    /// Whether handles are where they are looked for: where another malloc than glibc's has them, it may have some of them anywhere.
    fn are_in_arenas(&self) -> bool {
        let is_glibc =
            |mapping: &Mapping| mapping.name.ends_with("/libc.so.6") || mapping.name.contains("/libc-2.");
        let loaders = self.view.fixed(&["ClassLoaderDataGraph::_head"]);
        let is_in_arena = |&at: &u64| {
            let found = self.context.space.find(at).filter(|mapping| self.is_looked_through(mapping));
            found.is_some_and(|mapping| mapping.name == "[heap]" || self.is_arena(mapping.start))
        };
        self.context.space.mappings().iter().any(is_glibc)
            && loaders.is_some()
            && self.storages.iter().chain(&loaders).all(is_in_arena)
    }

    /// Whether glibc has an arena at an address: the first word there leads to what describes it, close behind where one begins.
    fn is_arena(&self, start: u64) -> bool {
        let arena = self.view.word(start).unwrap_or(0);
        start.is_multiple_of(ARENA_BYTES) && (0x20..=0x40).contains(&(arena % ARENA_BYTES))
    }

    /// A stack from its pointer on, with its thread's registers; all of it, where no thread stands there.
    fn stack(&self, (low, high): (u64, u64), clock: &mut Clock, take: &mut dyn FnMut(u64)) {
        let mut both = |word: u64| self.oops.each_of(word, take);
        let is_on = |thread: &&ThreadFacts| (low..high).contains(&thread.stack_pointer);
        let thread = self.context.threads.iter().find(is_on);
        if let Some(thread) = thread {
            thread.general.iter().flatten().for_each(|&word| both(word));
        }
        let from =
            thread.map_or(low, |thread| thread.stack_pointer.saturating_sub(RED_ZONE_BYTES).max(low) & !7);
        each_word((self.view.memory, self.context.resident), (from, high), AT_ONCE, &mut |_, word| {
            both(word);
            clock.goes_on()
        });
    }

    /// Static data, compiled code and malloc's arenas.
    fn is_looked_through(&self, mapping: &Mapping) -> bool {
        let permissions = mapping.permissions;
        if permissions.shared || !permissions.write {
            return false;
        }
        // Both lists are in the order of addresses, without overlap.
        let next = self.heap.areas.partition_point(|area| area.end <= mapping.start);
        let area = self.heap.areas.get(next).map(|area| area.start);
        let next = self.stacks.partition_point(|stack| stack.1 <= mapping.start);
        let stack = self.stacks.get(next).map(|stack| stack.0);
        if area.into_iter().chain(stack).any(|start| start < mapping.end)
            || self.context.threads.iter().any(|thread| mapping.contains(thread.stack_pointer))
        {
            return false;
        }
        let is_arena = mapping.name == "[heap]" || mapping.start.is_multiple_of(ARENA_BYTES);
        !mapping.is_private_anonymous() || is_arena || permissions.execute || self.is_bss(mapping)
    }

    /// Whether it is what a mapped file has of data without content.
    fn is_bss(&self, mapping: &Mapping) -> bool {
        let before = mapping.start.checked_sub(1).and_then(|at| self.context.space.find(at));
        before.is_some_and(Mapping::has_file)
    }

    /// Whether a word is the address of a region rather than of what stands first in it: of those with one large object. What is small
    /// and stands first in a region may have its one reference anywhere, as a class has.
    fn is_of_a_region(&self, at: u64, word: u64) -> bool {
        let index = self.heap.areas.partition_point(|area| area.start < word);
        let area = self.heap.areas.get(index).filter(|area| area.start == word);
        area.is_some_and(|area| area.kind == Kind::Humongous) && !self.is_handle(at)
    }

    /// Whether it stands in a block of global handles.
    fn is_handle(&self, at: u64) -> bool {
        let mut behind = [0; (HANDLES + 2) * 8];
        let got = self.view.memory.read_some(at, &mut behind);
        let mut words = (0..got / 8).filter_map(|index| word_at(&behind, index * 8));
        words.any(|word| self.storages.contains(&word))
    }
}

/// Sorts ranges, and puts those together that overlap: stacks that only touch are two threads'.
fn apart(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut apart: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match apart.last_mut() {
            Some(last) if start < last.1 => last.1 = last.1.max(end),
            _ => apart.push((start, end)),
        }
    }
    apart
}

/// Addresses of objects in a row, with nothing between them.
#[derive(Default)]
struct Row {
    words: Vec<u64>,
    behind: u64,
    count: usize,
}

impl Row {
    fn add(&mut self, at: u64, word: u64, take: &mut dyn FnMut(u64)) {
        if at != self.behind {
            self.end(take);
        }
        (self.behind, self.count) = (at.wrapping_add(8), self.count + 1);
        if self.words.len() <= MAX_IN_A_ROW {
            self.words.push(word);
        }
    }

    /// Shows them, unless they are too many.
    fn end(&mut self, take: &mut dyn FnMut(u64)) {
        if self.count <= MAX_IN_A_ROW {
            self.words.iter().for_each(|&word| take(word));
        }
        self.words.clear();
        self.count = 0;
    }
}
