//! What holds objects from outside of the heap.
//!
//! Where HotSpot says itself where its references are, these are roots for certain, as a collection has them: its storages of handles,
//! the handles of class loaders, local handles (`handles`), and frames of Java methods by their maps (`frames`). What only may be a
//! reference is a doubtful root: frames and registers of a thread that was stopped outside of a safepoint. A word that was left in a
//! freed block or above the mark of an arena is neither, though it may be the address of an object. Of versions whose structures are
//! not known all words are doubtful (`words`).

mod blobs;
mod frames;
mod handles;
mod maps;
mod words;

use std::time::Instant;

use strandline_claims::range::merge;
use strandline_claims::runtime::Context;
use strandline_claims::words::{AT_ONCE, each_word};

use self::words::Words;
use super::heap::Heap;
use super::shapes::Oops;
use super::threads::{self, Thread};
use super::view::View;

/// The most words that are roots for certain.
const MAX_WORDS: usize = 1 << 24;
/// The most parts of stacks that are looked through: eight for each of as many threads as there may be.
const MAX_RANGES: usize = 1 << 20;
/// How many words the reader looks at between two looks at the clock.
const WORDS_AT_ONCE: u32 = 1 << 16;
/// The first version in which every handle is in a storage (JDK-8248391 and what it depends on; `oopStorageSet.hpp` of JDK 17): in
/// earlier ones static data and `Thread` have references of their own.
const FIRST_PRECISE: u32 = 17;

/// The roots of a heap.
pub struct Roots<'a> {
    context: &'a Context<'a>,
    memory: View<'a>,
    oops: Oops,
    known: Known,
    /// All words that may be references, where it is not known which are.
    words: Option<Words<'a>>,
}

/// The roots that were found.
pub struct Known {
    /// Where the heap may lie.
    reserved: (u64, u64),
    /// What references hold, for certain.
    certain: Vec<u64>,
    /// What registers hold.
    registers: Vec<u64>,
    /// Parts of stacks of which each word may be a reference.
    ranges: Vec<(u64, u64)>,
    /// Whether there were more than can be kept.
    is_full: bool,
    /// When to stop.
    deadline: Instant,
}

impl Known {
    fn new(reserved: (u64, u64), deadline: Instant) -> Self {
        let (certain, registers, ranges) = (Vec::new(), Vec::new(), Vec::new());
        Self { reserved, certain, registers, ranges, is_full: false, deadline }
    }

    /// `None` where there is no time for more: the process decides how long its lists are.
    fn in_time(&self) -> Option<()> {
        (!self.is_full && Instant::now() < self.deadline).then_some(())
    }

    /// Adds a part of a stack.
    fn add_range(&mut self, range: (u64, u64)) {
        if self.ranges.len() < MAX_RANGES {
            self.ranges.push(range);
        } else {
            self.is_full = true;
        }
    }

    /// Adds what a reference holds.
    fn add(&mut self, word: u64) {
        let (start, end) = self.reserved;
        if !(start..end).contains(&word) {
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
    /// Those of `heap` of a JVM whose static data is `data`; `None` where its threads cannot be told.
    pub fn new(
        context: &'a Context<'a>,
        view: View<'a>,
        heap: &'a Heap,
        oops: Oops,
        data: (u64, u64),
    ) -> Option<Self> {
        let threads = threads::threads(&view, context.deadline)?;
        let known = precise(context, &view, heap, (oops, data, &threads));
        let (known, words) = match known {
            Some(known) => (known, None),
            None => {
                let words = Words::new(context, view, heap, (oops, data, &threads))?;
                (Known::new(heap.reserved, context.deadline), Some(words))
            }
        };
        Some(Self { context, memory: view, oops, known, words })
    }

    /// Shows what is held for certain.
    pub fn certain(&self, take: &mut dyn FnMut(u64)) {
        self.known.certain.iter().for_each(|&word| take(word));
    }

    /// Shows what else may be held; `None` where there was no time for all of it.
    pub fn doubtful(&self, take: &mut dyn FnMut(u64)) -> Option<()> {
        let mut clock = Clock { deadline: self.context.deadline, words: 0, is_late: false };
        if let Some(words) = &self.words {
            words.each(&mut clock, take);
        }
        self.known.registers.iter().for_each(|&word| self.oops.each_of(word, take));
        let memory = (self.memory.memory, self.context.resident);
        // A process says itself where its stacks are: they may lie on each other.
        let mut ranges = self.known.ranges.clone();
        merge(&mut ranges);
        for range in ranges {
            if clock.is_over() {
                break;
            }
            each_word(memory, range, AT_ONCE, &mut |_, word| {
                self.oops.each_of(word, take);
                clock.goes_on()
            });
        }
        (!clock.is_late).then_some(())
    }
}

/// Whether there is time to look at more words.
struct Clock {
    deadline: Instant,
    words: u32,
    is_late: bool,
}

impl Clock {
    /// Counts a word, and looks at the clock now and then.
    fn goes_on(&mut self) -> bool {
        self.words = self.words.wrapping_add(1);
        !self.words.is_multiple_of(WORDS_AT_ONCE) || !self.is_over()
    }

    /// Looks at the clock at once.
    fn is_over(&mut self) -> bool {
        self.is_late |= Instant::now() >= self.deadline;
        self.is_late
    }
}

/// The roots, where HotSpot says where they are; `None` where it does not.
fn precise(
    context: &Context<'_>,
    view: &View<'_>,
    heap: &Heap,
    (oops, data, threads): (Oops, (u64, u64), &[Thread]),
) -> Option<Known> {
    view.structs.major().filter(|&major| major >= FIRST_PRECISE)?;
    let mut known = Known::new(heap.reserved, context.deadline);
    handles::of_storages(context, view, data, &mut known)?;
    // A machine that runs has handles: without any its storages were not found.
    if known.certain.is_empty() {
        return None;
    }
    handles::of_loaders(view, &mut known)?;
    let mut frames = frames::Frames::new(view, oops)?;
    for thread in threads {
        handles::of_thread(view, thread.address, &mut known)?;
        let is_its = |on: u64| (thread.stack.0..thread.stack.1).contains(&on);
        let registers = context.threads.iter().find(|facts| is_its(facts.stack_pointer));
        frames.of_thread(thread, registers, &mut known)?;
    }
    (!known.is_full).then_some(known)
}
