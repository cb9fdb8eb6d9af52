//! Roots: references to objects from outside of the heap.
//!
//! Where HotSpot describes its references, these are certain roots, the same as for a collection:
//! storages of handles, handles of class loaders, local handles (`handles`), and frames of Java
//! methods by their maps (`frames`). Words that only may be references are doubtful roots: frames
//! and registers of a thread that was stopped outside of a safepoint. A stale word in a freed
//! block, or above the mark of an arena, is neither, though it may be the address of an object. In
//! versions with unknown structures all words are doubtful (`words`).

mod blobs;
mod frames;
mod handles;
mod maps;
mod words;

use std::time::Instant;

use strandline_claims::runtime::Context;
use strandline_claims::words::{READ_BYTES, each_word};
use strandline_process::range::{AddressRange, RangeSet};

use self::words::Words;
use super::heap::Heap;
use super::shapes::OopFormat;
use super::threads::{self, Thread};
use super::view::View;

/// Limit on certain roots.
const MAX_WORDS: usize = 1 << 24;
/// Limit on parts of stacks searched: eight for each of the maximum number of threads.
const MAX_RANGES: usize = 1 << 20;
/// Bytes below the stack pointer that are in use (System V ABI).
const RED_ZONE_BYTES: u64 = 128;
/// Words between two checks of the deadline.
const WORDS_AT_ONCE: u32 = 1 << 16;
/// First version in which every handle is in a storage (JDK-8248391 and its dependencies;
/// `oopStorageSet.hpp` of JDK 17). In earlier ones static data and `Thread` have references of
/// their own.
const FIRST_PRECISE: u32 = 17;

/// The roots of a heap.
pub struct Roots<'a> {
    context: &'a Context<'a>,
    memory: View<'a>,
    oops: OopFormat,
    known: PreciseRoots,
    /// All words that may be references; `None` if the references are known.
    words: Option<Words<'a>>,
}

/// Roots found by HotSpot's description.
pub struct PreciseRoots {
    /// Reserved range of the heap.
    reserved: AddressRange,
    /// Values of certain references.
    certain: Vec<u64>,
    /// Values of registers.
    registers: Vec<u64>,
    /// Parts of stacks in which each word may be a reference.
    ranges: Vec<AddressRange>,
    /// Whether there were more roots than can be kept.
    is_full: bool,
    /// When to stop.
    deadline: Instant,
}

impl PreciseRoots {
    fn new(reserved: AddressRange, deadline: Instant) -> Self {
        let (certain, registers, ranges) = (Vec::new(), Vec::new(), Vec::new());
        Self { reserved, certain, registers, ranges, is_full: false, deadline }
    }

    /// `None` if the time is over, or there are too many roots: the process controls the length of
    /// its lists.
    fn in_time(&self) -> Option<()> {
        (!self.is_full && Instant::now() < self.deadline).then_some(())
    }

    /// Adds a part of a stack.
    fn add_range(&mut self, range: AddressRange) {
        if self.ranges.len() < MAX_RANGES {
            self.ranges.push(range);
        } else {
            self.is_full = true;
        }
    }

    /// Adds the value of a certain reference.
    fn add(&mut self, word: u64) {
        if !self.reserved.contains(word) {
            return;
        }
        if self.certain.len() < MAX_WORDS {
            self.certain.push(word);
        } else {
            self.is_full = true;
        }
    }
}

impl<'a> Roots<'a> {
    /// Finds the roots of `heap` in a JVM whose static data is `data`; `None` if its threads cannot
    /// be read, or if roots may be missed.
    pub fn new(
        context: &'a Context<'a>,
        view: View<'a>,
        heap: &'a Heap,
        oops: OopFormat,
        data: AddressRange,
    ) -> Option<Self> {
        let threads = threads::threads(&view, context.deadline)?;
        let known = precise(context, &view, heap, oops, data, &threads);
        let (known, words) = match known {
            Some(known) => (known, None),
            None => {
                let words = Words::new(context, view, heap, oops, data, &threads)?;
                (PreciseRoots::new(heap.reserved, context.deadline), Some(words))
            }
        };
        Some(Self { context, memory: view, oops, known, words })
    }

    /// Calls `take` with each certain root.
    pub fn certain(&self, take: &mut dyn FnMut(u64)) {
        self.known.certain.iter().for_each(|&word| take(word));
    }

    /// Calls `take` with each conservative root; `None` if there was no time for all.
    pub fn conservative(&self, take: &mut dyn FnMut(u64)) -> Option<()> {
        let mut clock = DeadlineChecker { deadline: self.context.deadline, words: 0, is_late: false };
        if let Some(words) = &self.words {
            words.each(&mut clock, take);
        }
        self.known.registers.iter().for_each(|&word| self.oops.each_of(word, take));
        // The process controls the bounds of its stacks: they may overlap.
        let ranges: RangeSet = self.known.ranges.iter().copied().collect();
        for range in ranges {
            if clock.is_over() {
                break;
            }
            each_word(self.memory.memory, self.context.resident, range, READ_BYTES, &mut |_, word| {
                self.oops.each_of(word, take);
                clock.has_time()
            });
        }
        (!clock.is_late).then_some(())
    }
}

/// Checks the deadline while words are read.
struct DeadlineChecker {
    deadline: Instant,
    words: u32,
    is_late: bool,
}

impl DeadlineChecker {
    /// Counts a word; checks the deadline from time to time. True if there is time.
    fn has_time(&mut self) -> bool {
        self.words = self.words.wrapping_add(1);
        !self.words.is_multiple_of(WORDS_AT_ONCE) || !self.is_over()
    }

    /// Checks the deadline.
    fn is_over(&mut self) -> bool {
        self.is_late |= Instant::now() >= self.deadline;
        self.is_late
    }
}

/// Returns the roots by HotSpot's description; `None` if it is not sufficient.
fn precise(
    context: &Context<'_>,
    view: &View<'_>,
    heap: &Heap,
    oops: OopFormat,
    data: AddressRange,
    threads: &[Thread],
) -> Option<PreciseRoots> {
    view.structs.major().filter(|&major| major >= FIRST_PRECISE)?;
    let mut known = PreciseRoots::new(heap.reserved, context.deadline);
    handles::of_storages(context, view, data, &mut known)?;
    // A running JVM has handles: with none, the storages were not found.
    if known.certain.is_empty() {
        return None;
    }
    handles::of_loaders(view, &mut known)?;
    let mut frames = frames::Frames::new(view, oops)?;
    for thread in threads {
        handles::of_thread(view, thread.address, &mut known)?;
        let is_its = |on: u64| thread.stack.contains(on);
        let registers = context.threads.iter().find(|facts| is_its(facts.stack_pointer));
        frames.of_thread(thread, registers, &mut known)?;
    }
    (!known.is_full).then_some(known)
}
