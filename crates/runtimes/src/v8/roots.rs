//! References to objects of V8's from outside of their pages.
//!
//! Words of stacks in use, of registers, of an `Isolate` (which has V8's table of roots), and of
//! compiled code are certain roots; code refers weakly to objects of some classes
//! (`trace::is_weak`). Other memory contains V8's strong and weak handles, but also stale words: an
//! object to which only such a word refers may be alive. Free malloc blocks are skipped.

use std::time::Instant;

use super::heap::Heaps;
use super::layout::{DISPATCH_POINTER_SHIFT, Layout};
use super::objects::Heap;
use super::pages::Page;
use super::shapes::Shapes;
use strandline_claims::words::{READ_BYTES, each_word_until};
use strandline_process::buffer::ReadBuffer;
use strandline_process::map::Mapping;
use strandline_process::memory::word_at;
use strandline_process::range::{AddressRange, RangeSet};
use strandline_process::stacks::{self, Stack};

/// Bytes below the stack pointer that are in use (System V ABI, red zone).
const RED_ZONE_BYTES: u64 = 128;
/// Bytes of a `Heap` that are searched for roots, with all of the `Isolate` before it.
const HEAP_BYTES: u64 = 0x1000;

/// The place of a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// The word at this address, outside of V8's pages.
    Native(u64),
    /// A register of the thread with this id.
    Register(i32),
    /// The bytes at this address, in compiled code.
    Code(u64),
}

/// The roots of all heaps.
pub struct Roots<'a> {
    heap: Heap<'a>,
    heaps: &'a Heaps,
    /// Whether V8 calls functions through dispatch tables, whose entries are roots.
    has_dispatch_tables: bool,
    /// Stacks in use, and isolates.
    certain_ranges: RangeSet,
    /// V8's pages, stacks below the stack pointers, and free memory of allocators.
    skipped_ranges: RangeSet,
}

/// Called with each root and the address to which it may point; ends the search by returning false.
type Visit<'a> = &'a mut dyn FnMut(Root, u64) -> bool;

impl<'a> Roots<'a> {
    /// Finds the ranges that contain roots.
    pub fn new(heap: Heap<'a>, heaps: &'a Heaps, layout: &Layout) -> Self {
        let context = heap.context;
        let pages = heaps.all_pages().map(Page::range);
        let stacks = stacks::stacks(context.threads, heap.memory, context.space);
        let first_used = |stack: &Stack| stack.stack_pointer.saturating_sub(RED_ZONE_BYTES).max(stack.low);
        let in_use = stacks.iter().map(|stack| AddressRange::new(first_used(stack), stack.high));
        // Functions that returned left stale words below the stack pointers.
        let unused = stacks.iter().map(|stack| AddressRange::new(stack.low, first_used(stack)));
        let isolates = heaps
            .isolates
            .iter()
            .map(|isolate| AddressRange::new(isolate.address, isolate.heap.saturating_add(HEAP_BYTES)));
        // V8 removes a context from this list that nothing else refers to.
        let lists = heaps.isolates.iter().map(|isolate| isolate.heap.saturating_add(layout.heap_contexts));
        let lists = lists.map(|list| AddressRange::sized(list, 8));
        Self {
            heap,
            heaps,
            has_dispatch_tables: layout.has_dispatch_tables(),
            certain_ranges: in_use.chain(isolates).collect(),
            skipped_ranges: pages
                .chain(unused)
                .chain(lists)
                .chain(context.free_memory.iter().copied())
                .collect(),
        }
    }

    /// Calls `visit` with the certain roots. `None` if the deadline passed, or memory could not be
    /// read.
    pub fn each_certain(&self, visit: Visit<'_>) -> Option<()> {
        for thread in self.heap.context.threads {
            for address in thread.general.iter().flatten().filter_map(|word| Shapes::object_at(*word)) {
                if !visit(Root::Register(thread.tid), address) {
                    return Some(());
                }
            }
        }
        for range in &self.certain_ranges {
            if !self.visit_words(*range, visit)? {
                return Some(());
            }
        }
        self.visit_code(visit)
    }

    /// Calls `visit` with all words in memory that may be roots, the certain ones among them, but
    /// not with registers and code. `None` if the deadline passed, or memory could not be read.
    pub fn each_uncertain(&self, visit: Visit<'_>) -> Option<()> {
        // The clocks of the kernel (`[vvar]`, `[vvar_vclock]`) cannot be read by others.
        let may_hold_handles = |mapping: &&Mapping| {
            mapping.permissions.read && !mapping.permissions.shared && !mapping.name.starts_with("[vvar")
        };
        let context = self.heap.context;
        for mapping in context.space.mappings().iter().filter(may_hold_handles) {
            match self.visit_words(mapping.range(), visit) {
                Some(true) => {}
                Some(false) => return Some(()),
                // The registers of a device cannot be read either.
                None if mapping.has_file()
                    && mapping.name.starts_with("/dev/")
                    && Instant::now() < context.deadline => {}
                None => return None,
            }
        }
        Some(())
    }

    /// Calls `visit` with the words in a range; returns false if `visit` ended the search. `None`
    /// if the deadline passed, or a part could not be read.
    fn visit_words(&self, range: AddressRange, visit: Visit<'_>) -> Option<bool> {
        let context = self.heap.context;
        let mut is_ended = false;
        for run in context.resident_runs(range) {
            if Instant::now() >= context.deadline {
                return None;
            }
            let gaps: Vec<AddressRange> = self.skipped_ranges.gaps_in(run).collect();
            let gap_bytes: u64 = gaps.iter().map(|gap| gap.len()).sum();
            let read = each_word_until(self.heap.memory, gaps, context.deadline, &mut |at, word| {
                is_ended |= match Shapes::object_at(word) {
                    Some(address) => !visit(Root::Native(at), address),
                    // An entry of a dispatch table has a pointer above the number of parameters.
                    None if self.has_dispatch_tables => {
                        !visit(Root::Native(at), word >> DISPATCH_POINTER_SHIFT & !7)
                    }
                    None => false,
                };
                !is_ended
            });
            if is_ended {
                return Some(false);
            }
            if read.is_late || read.bytes < gap_bytes {
                return None;
            }
        }
        Some(true)
    }

    /// Calls `visit` with the pointers in compiled code. `None` if the deadline passed, or code
    /// could not be read.
    fn visit_code(&self, visit: Visit<'_>) -> Option<()> {
        let code_spaces = self.heaps.spaces.iter().filter(|space| space.is_code());
        let mut buffer = ReadBuffer::new(READ_BYTES);
        for page in code_spaces.flat_map(|space| &space.pages) {
            for run in self.heap.context.resident_runs((page.area_start, page.area_end)) {
                if !self.visit_code_in(run, &mut buffer, visit)? {
                    return Some(());
                }
            }
        }
        Some(())
    }

    /// Calls `visit` with the pointers in a range of compiled code, where they may be unaligned;
    /// returns false if `visit` ended the search. `None` if the deadline passed, or a part could
    /// not be read.
    fn visit_code_in(&self, range: AddressRange, buffer: &mut ReadBuffer, visit: Visit<'_>) -> Option<bool> {
        let mut at = range.start;
        while at < range.end {
            if Instant::now() >= self.heap.context.deadline {
                return None;
            }
            let length = (range.end - at).min(READ_BYTES as u64) as usize;
            let bytes = buffer.get_mut(..length)?;
            self.heap.memory.read(at, bytes).ok()?;
            for (offset, window) in bytes.windows(8).enumerate() {
                let Some(address) = word_at(window, 0).and_then(Shapes::object_at) else { continue };
                if !visit(Root::Code(at + offset as u64), address) {
                    return Some(false);
                }
            }
            // A pointer may cross the end of the bytes that were read.
            let is_last = at + length as u64 >= range.end;
            at += if is_last { length as u64 } else { length as u64 - 7 };
        }
        Some(true)
    }
}
