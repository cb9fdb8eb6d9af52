//! References to objects of V8's from outside of their pages.
//!
//! Words of stacks in use, of registers, of an `Isolate` with V8's table of roots, and of compiled
//! code are certain roots. Other memory has V8's handles, weak and strong ones, but also stale
//! words: what only such a word leads to may be alive. Free blocks of malloc are left out.

use std::time::Instant;

use super::heap::Heaps;
use super::layout::{DISPATCH_POINTER_SHIFT, Layout};
use super::objects::Heap;
use strandline_claims::words::{READ_BYTES, each_word_in};
use strandline_process::buffer::ReadBuffer;
use strandline_process::range::{AddressRange, RangeSet};
use strandline_process::stacks::{self, Stack};

/// A stack is in use down to this distance below its stack pointer (System V ABI).
const RED_ZONE_BYTES: u64 = 128;
/// Bytes of a `Heap`, which is a part of an `Isolate` and has most of the roots behind it.
const HEAP_BYTES: u64 = 0x1000;
/// Words between two checks of the deadline.
const WORDS_AT_ONCE: u64 = 1 << 16;

/// Where a root is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// A word in memory outside of V8's pages.
    Native(u64),
    /// A register of a thread.
    Register(i32),
    /// Compiled code.
    Code(u64),
}

/// The roots of all heaps.
pub struct Roots<'a> {
    heap: Heap<'a>,
    heaps: &'a Heaps,
    has_dispatch_tables: bool,
    /// Stacks in use, and isolates.
    certain: RangeSet,
    /// V8's pages, what is below the stack pointers, and free memory of allocators.
    skipped: RangeSet,
}

/// Called with each root and the address to which it may point, until it returns false.
type Visit<'a> = &'a mut dyn FnMut(Root, u64) -> bool;

impl<'a> Roots<'a> {
    /// Finds where roots are.
    pub fn new(heap: Heap<'a>, heaps: &'a Heaps, layout: &Layout) -> Self {
        let context = heap.context;
        let of_spaces = heaps.spaces.iter().flat_map(|space| space.pages.iter().chain(&space.idle));
        let pages = of_spaces.chain(&heaps.pool).chain(&heaps.read_only);
        let pages = pages.map(|page| (page.start, page.end));
        let stacks = stacks::stacks(context.threads, heap.memory, context.space);
        let in_use = |stack: &Stack| stack.stack_pointer.saturating_sub(RED_ZONE_BYTES).max(stack.low);
        // What returned functions left below the stack pointers.
        let unused = stacks.iter().map(|stack| (stack.low, in_use(stack)));
        let isolates =
            heaps.isolates.iter().map(|isolate| (isolate.address, isolate.heap.saturating_add(HEAP_BYTES)));
        let free = context.free.iter().map(|range| (range.start, range.end));
        let certain = stacks.iter().map(|stack| (in_use(stack), stack.high)).chain(isolates);
        Self {
            heap,
            heaps,
            has_dispatch_tables: layout.has_dispatch_tables(),
            certain: certain.filter(|(start, end)| start < end).collect(),
            skipped: pages.chain(unused.filter(|(start, end)| start < end)).chain(free).collect(),
        }
    }

    /// Passes the certain roots. `None` if the time was over.
    pub fn each_certain(&self, visit: Visit<'_>) -> Option<()> {
        for thread in self.heap.context.threads {
            for word in thread.general.iter().flatten().filter(|word| *word & 7 == 1) {
                if !visit(Root::Register(thread.tid), word - 1) {
                    return Some(());
                }
            }
        }
        for range in &self.certain {
            if !self.words(*range, visit)? {
                return Some(());
            }
        }
        self.code(visit)
    }

    /// Passes all words that may be roots, without registers and code. `None` if the time was over.
    pub fn each_other(&self, visit: Visit<'_>) -> Option<()> {
        let mappings = self.heap.context.space.mappings().iter();
        for mapping in mappings.filter(|mapping| mapping.permissions.read && !mapping.permissions.shared) {
            if !self.words((mapping.start, mapping.end).into(), visit)? {
                return Some(());
            }
        }
        Some(())
    }

    /// Passes the words in a range; returns whether `visit` wants more.
    fn words(&self, range: AddressRange, visit: Visit<'_>) -> Option<bool> {
        let context = self.heap.context;
        let (mut words, mut is_late, mut is_over) = (0_u64, false, false);
        for run in context.resident_runs(range) {
            each_word_in(self.heap.memory, self.skipped.gaps_in(run), READ_BYTES, &mut |at, word| {
                words += 1;
                is_late |= words.is_multiple_of(WORDS_AT_ONCE) && Instant::now() >= context.deadline;
                let is_pointer = word & 7 == 1;
                is_over |= is_pointer && !visit(Root::Native(at), word - 1);
                // An entry of a table of functions: the pointer is above the number of parameters.
                let entry = word >> DISPATCH_POINTER_SHIFT & !7;
                is_over |= self.has_dispatch_tables && !is_pointer && !visit(Root::Native(at), entry);
                !is_late && !is_over
            });
            if is_late || is_over {
                return (!is_late).then_some(false);
            }
        }
        Some(true)
    }

    /// Passes the pointers in compiled code, where they are at any address.
    fn code(&self, visit: Visit<'_>) -> Option<()> {
        let of_code = self.heaps.spaces.iter().filter(|space| space.name.starts_with("code_"));
        let mut buffer = ReadBuffer::new(READ_BYTES);
        for page in of_code.flat_map(|space| &space.pages) {
            for run in self.heap.context.resident_runs((page.area_start, page.area_end)) {
                let mut at = run.start;
                while at < run.end {
                    if Instant::now() >= self.heap.context.deadline {
                        return None;
                    }
                    let most = usize::try_from(run.end - at).unwrap_or(usize::MAX).min(READ_BYTES);
                    let bytes = buffer.get_mut(..most)?;
                    let got = self.heap.memory.read_some(at, bytes);
                    for (offset, window) in bytes.get(..got)?.windows(8).enumerate() {
                        let word = window.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
                        if word & 7 == 1 && !visit(Root::Code(at + offset as u64), word - 1) {
                            return Some(());
                        }
                    }
                    // A pointer may cross the end of what was read.
                    at += if at + (most as u64) < run.end { most as u64 - 7 } else { most as u64 };
                }
            }
        }
        Some(())
    }
}
