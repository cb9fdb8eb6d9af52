//! Roots: references to objects from outside of the heap.
//!
//! References that HotSpot describes are certain roots, the same as for a collection: storages of
//! handles, handles of class loaders, local handles (`handles`), and frames of Java methods by
//! their maps (`frames`). Words that only may be references are uncertain roots: frames and
//! registers of a thread that was stopped outside of a safepoint. A stale word in a freed block, or
//! above the mark of an arena, is no root, though it may be the address of an object. In versions
//! with unknown structures all words are uncertain roots (`words`).

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
use crate::push_within;

/// Limit on certain roots; beyond it, the words are searched instead.
const MAX_CERTAIN: usize = 1 << 24;
/// Limit on parts of stacks that are searched, eight for each of the maximum number of threads;
/// beyond it, the words are searched instead.
const MAX_STACK_PARTS: usize = 1 << 20;
/// Bytes below the stack pointer that are in use (System V ABI).
const RED_ZONE_BYTES: u64 = 128;
/// Bytes of certain references between two checks of the limits.
const BYTES_AT_ONCE: u64 = 4096;
/// Words between two checks of the deadline.
const WORDS_AT_ONCE: u32 = 1 << 16;
/// First version in which every handle is in a storage (JDK-8248391 and its dependencies;
/// `oopStorageSet.hpp` of JDK 17). In earlier ones static data and `Thread` have references of
/// their own.
const FIRST_PRECISE_VERSION: u32 = 17;

/// The roots of a heap.
pub struct Roots<'a> {
    context: &'a Context<'a>,
    view: View<'a>,
    oops: OopFormat,
    precise: PreciseRoots,
    /// All words that may be references; `None` if the precise roots are complete.
    words: Option<Words<'a>>,
}

/// Roots found by HotSpot's description.
pub struct PreciseRoots {
    /// Reserved range of the heap.
    reserved: AddressRange,
    /// Values of certain references.
    certain_references: Vec<u64>,
    /// Values of registers, each of which may be a reference.
    register_words: Vec<u64>,
    /// Parts of stacks in which each word may be a reference.
    stack_parts: Vec<AddressRange>,
    /// Whether there were more roots than can be kept.
    is_full: bool,
    /// When the search stops.
    deadline: Instant,
}

impl PreciseRoots {
    /// Creates an empty list.
    fn new(reserved: AddressRange, deadline: Instant) -> Self {
        Self {
            reserved,
            certain_references: Vec::new(),
            register_words: Vec::new(),
            stack_parts: Vec::new(),
            is_full: false,
            deadline,
        }
    }

    /// `None` after the deadline, or if there are too many roots: the process controls the length
    /// of its lists.
    fn check_limits(&self) -> Option<()> {
        (!self.is_full && Instant::now() < self.deadline).then_some(())
    }

    /// Adds the words of `start..end` as certain references; `read` reads each. `None` if one
    /// cannot be read, or at a limit.
    fn add_words(&mut self, start: u64, end: u64, mut read: impl FnMut(u64) -> Option<u64>) -> Option<()> {
        for at in (start..end).step_by(8) {
            if (at - start).is_multiple_of(BYTES_AT_ONCE) {
                self.check_limits()?;
            }
            self.add(read(at)?);
        }
        Some(())
    }

    /// Adds a part of a stack in which each word may be a reference.
    fn add_stack_part(&mut self, range: AddressRange) {
        self.is_full |= !push_within(&mut self.stack_parts, MAX_STACK_PARTS, range);
    }

    /// Adds the value of a certain reference, if it points into the heap.
    fn add(&mut self, word: u64) {
        if self.reserved.contains(word) {
            self.is_full |= !push_within(&mut self.certain_references, MAX_CERTAIN, word);
        }
    }
}

impl<'a> Roots<'a> {
    /// Finds the roots of `heap` in a JVM whose static data is `data`; `None` if its threads cannot
    /// be read, or if roots may be missing.
    pub fn new(
        context: &'a Context<'a>,
        view: View<'a>,
        heap: &'a Heap,
        oops: OopFormat,
        data: AddressRange,
    ) -> Option<Self> {
        let threads = threads::threads(&view, context.deadline)?;
        let (precise, words) = match find_precise(context, &view, heap, oops, data, &threads) {
            Some(precise) => (precise, None),
            None => {
                let words = Words::new(context, view, heap, oops, data, &threads)?;
                (PreciseRoots::new(heap.reserved, context.deadline), Some(words))
            }
        };
        Some(Self { context, view, oops, precise, words })
    }

    /// Calls `visit` with each certain root.
    pub fn each_certain(&self, visit: &mut dyn FnMut(u64)) {
        self.precise.certain_references.iter().for_each(|&word| visit(word));
    }

    /// Calls `visit` with each uncertain root; `None` at the deadline.
    pub fn each_uncertain(&self, visit: &mut dyn FnMut(u64)) -> Option<()> {
        let mut checker = DeadlineChecker { deadline: self.context.deadline, words: 0, is_late: false };
        if let Some(words) = &self.words {
            words.search(&mut checker, visit);
        }
        self.precise.register_words.iter().for_each(|&word| self.oops.each_address_in(word, visit));
        // The process controls the bounds of its stacks: they may overlap.
        let stack_parts: RangeSet = self.precise.stack_parts.iter().copied().collect();
        for range in stack_parts {
            if checker.is_past_deadline() {
                break;
            }
            each_word(self.view.memory, self.context.resident, range, READ_BYTES, &mut |_, word| {
                self.oops.each_address_in(word, visit);
                checker.has_time()
            });
        }
        (!checker.is_late).then_some(())
    }
}

/// Checks the deadline while words are read.
struct DeadlineChecker {
    deadline: Instant,
    /// Number of words read.
    words: u32,
    /// Whether the deadline had passed at a check.
    is_late: bool,
}

impl DeadlineChecker {
    /// Counts a word, and checks the deadline every [`WORDS_AT_ONCE`] words. Returns whether there
    /// is time.
    fn has_time(&mut self) -> bool {
        self.words = self.words.wrapping_add(1);
        !self.words.is_multiple_of(WORDS_AT_ONCE) || !self.is_past_deadline()
    }

    /// Checks the deadline now.
    fn is_past_deadline(&mut self) -> bool {
        self.is_late |= Instant::now() >= self.deadline;
        self.is_late
    }
}

/// Returns the roots by HotSpot's description; `None` if it is not sufficient.
fn find_precise(
    context: &Context<'_>,
    view: &View<'_>,
    heap: &Heap,
    oops: OopFormat,
    data: AddressRange,
    threads: &[Thread],
) -> Option<PreciseRoots> {
    view.structs.major().filter(|&major| major >= FIRST_PRECISE_VERSION)?;
    let mut roots = PreciseRoots::new(heap.reserved, context.deadline);
    handles::add_storages(context, view, data, &mut roots)?;
    // A running JVM has handles: with none, the storages were not found.
    if roots.certain_references.is_empty() {
        return None;
    }
    handles::add_loaders(view, &mut roots)?;
    let mut frames = frames::Frames::new(view, oops)?;
    for thread in threads {
        handles::add_thread(view, thread.address, &mut roots)?;
        let registers = context.threads.iter().find(|facts| thread.stack.contains(facts.stack_pointer));
        frames.add_thread(thread, registers, &mut roots)?;
    }
    (!roots.is_full).then_some(roots)
}
