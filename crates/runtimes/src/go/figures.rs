//! The runtime's own figures, by their names in `runtime.MemStats`: computed from the spans, and
//! read from the counters if these agree.

use std::time::Instant;

use super::heap::{Heap, Instance, SpanKind};
use super::layout::{
    CHUNK_BYTES, DELTA_IN_HEAP, HEAP_MINIMUM, HEAP_MINIMUM_AT_100, Layout, RUNTIME_PAGE_BYTES,
};
use super::locate::Program;
use crate::batch::PageCache;
use strandline_claims::runtime::Context;
use strandline_claims::words::each_word_until;
use strandline_process::memory::Memory;
use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::range::AddressRange;

/// Largest heap whose bitmaps are read: 4 TiB.
const MAX_HEAP_BYTES: u64 = 1 << 42;
/// Upper bound on `GOGC` in a controller.
const MAX_GC_PERCENT: u64 = 1 << 20;
/// Value of `memoryLimit` without a limit (`GOMEMLIMIT=off`).
const NO_LIMIT: u64 = i64::MAX as u64;
/// Number of deltas in `memstats.heapStats` (`consistentHeapStats.stats`).
const DELTA_COUNT: u64 = 3;

/// Figures of one heap; `None` is not known, unless noted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// `HeapAlloc`: objects, including those not swept yet.
    pub alloc_bytes: u64,
    /// `HeapInuse`: spans that hold objects.
    pub in_use_bytes: u64,
    /// `HeapIdle`: memory without a span, released or not.
    pub idle_bytes: u64,
    /// `HeapReleased`: the part of `HeapIdle` that was released.
    pub released_bytes: Option<u64>,
    /// `StackInuse`.
    pub stack_bytes: Option<u64>,
    /// Bytes that the last mark found live.
    pub marked_bytes: Option<u64>,
    /// Heap bytes at which the next collection ends; `None` also if `GOGC` is off, or if there is a
    /// memory limit, which may end it earlier.
    pub goal_bytes: Option<u64>,
    /// `GOGC` in force; -1 for off.
    pub gc_percent: Option<i64>,
    /// `GOMEMLIMIT` in force; `None` if there is no limit. If `gc_percent` is `None`, neither is
    /// known.
    pub memory_limit_bytes: Option<u64>,
}

/// Computes the figures of a heap, and reads those of its counters.
pub fn read(context: &Context<'_>, memory: &dyn Memory, instance: Instance<'_>) -> Figures {
    let Instance { program, layout, heap, spans } = instance;
    let mut pages = PageCache::new(memory);
    let (in_use_bytes, manual_bytes) = (spans.bytes(SpanKind::Objects), spans.bytes(SpanKind::Manual));
    let idle_bytes = heap.bytes().saturating_sub(in_use_bytes + manual_bytes);
    let expected = ExpectedCounters { in_use_bytes, manual_bytes, idle_bytes };
    let controller = program.symbols.controller;
    let deltas = program.symbols.memstats.and_then(|at| at.checked_add(layout.deltas));
    let mut counters = CounterAddresses {
        controller: controller.filter(|&at| expected.is_controller_at(&mut pages, at, layout)),
        deltas: deltas.filter(|&at| expected.match_deltas_at(&mut pages, at, layout)),
    };
    counters.search(context, memory, program, layout, &expected);
    let alloc_bytes = spans.object_bytes();
    let mut figures = Figures { alloc_bytes, in_use_bytes, idle_bytes, ..Figures::default() };
    read_counters(&mut pages, layout, &counters, &mut figures);
    if figures.released_bytes.is_none() {
        figures.released_bytes = released_bytes(&mut pages, layout, heap, context.deadline);
    }
    let in_stacks_address = counters.deltas.map(|at| at.wrapping_add(DELTA_IN_HEAP + 8));
    let stack_bytes = in_stacks_address.and_then(|at| sum_of_deltas(&mut pages, at, layout));
    figures.stack_bytes = stack_bytes.filter(|&bytes| bytes <= manual_bytes);
    figures
}

/// Addresses of the runtime's counters, as far as they were found.
struct CounterAddresses {
    /// `gcController`.
    controller: Option<u64>,
    /// The deltas in `memstats`.
    deltas: Option<u64>,
}

impl CounterAddresses {
    /// Whether both addresses were found.
    fn is_complete(&self) -> bool {
        self.controller.is_some() && self.deltas.is_some()
    }

    /// Searches static data for the counters without a symbol, until the deadline.
    fn search(
        &mut self,
        context: &Context<'_>,
        memory: &dyn Memory,
        program: &Program,
        layout: &Layout,
        expected: &ExpectedCounters,
    ) {
        if self.is_complete() {
            return;
        }
        let mut pages = PageCache::new(memory);
        let runs = context.resident_runs(program.data);
        each_word_until(memory, runs, context.deadline, &mut |at, word| {
            if self.controller.is_none() {
                let offset = match layout.heap_in_use {
                    Some(offset) => Some(offset).filter(|_| word == expected.in_use_bytes),
                    None => Some(HEAP_MINIMUM).filter(|_| may_be_heap_minimum(word)),
                };
                let controller = offset.and_then(|offset| at.checked_sub(offset));
                self.controller = controller.filter(|&at| expected.is_controller_at(&mut pages, at, layout));
            }
            let deltas = at.wrapping_sub(DELTA_IN_HEAP);
            if self.deltas.is_none()
                && word <= USER_ADDRESS_END
                && expected.match_deltas_at(&mut pages, deltas, layout)
            {
                self.deltas = Some(deltas);
            }
            !self.is_complete()
        });
    }
}

/// Whether a word may be `heapMinimum`, by its value with `GOGC=1` and with the largest heap.
fn may_be_heap_minimum(word: u64) -> bool {
    (HEAP_MINIMUM_AT_100 / 100..MAX_HEAP_BYTES).contains(&word)
}

/// Reads the figures of the controller and of `memstats`, as far as these were found.
fn read_counters(
    pages: &mut PageCache<'_>,
    layout: &Layout,
    counters: &CounterAddresses,
    figures: &mut Figures,
) {
    if let Some(at) = counters.controller {
        let mut word = |offset: u64| pages.word(at.wrapping_add(offset));
        figures.released_bytes = layout.heap_in_use.and_then(|offset| word(offset + 8));
        figures.marked_bytes = word(layout.heap_marked);
        let limit = match layout.memory_limit {
            Some(offset) => word(offset),
            None => Some(NO_LIMIT),
        };
        if let Some((percent, limit)) = word(0).zip(limit) {
            figures.gc_percent = Some(i64::from(percent as u32 as i32));
            figures.memory_limit_bytes = Some(limit).filter(|&limit| limit < NO_LIMIT);
            let goal = word(layout.heap_goal).filter(|&goal| goal < USER_ADDRESS_END);
            figures.goal_bytes = goal.filter(|_| figures.memory_limit_bytes.is_none());
        }
    }
    if let (Some(at), Some(offset)) = (counters.deltas, layout.memstats_in_use) {
        let pair = at.checked_sub(layout.deltas).and_then(|at| pages.pair(at.checked_add(offset)?));
        let released = pair.filter(|&(in_use, _)| in_use == figures.in_use_bytes);
        let released = released.map(|(_, released)| released);
        figures.released_bytes = released.filter(|&released| released <= figures.idle_bytes);
    }
}

/// Values that the runtime's counters must have, computed from the spans.
struct ExpectedCounters {
    in_use_bytes: u64,
    manual_bytes: u64,
    idle_bytes: u64,
}

impl ExpectedCounters {
    /// Whether `at` is the address of `gcController`.
    fn is_controller_at(&self, pages: &mut PageCache<'_>, at: u64, layout: &Layout) -> bool {
        match layout.heap_in_use {
            Some(offset) => self.has_counters_at(pages, at.wrapping_add(offset)),
            None => self.is_old_controller_at(pages, at, layout) == Some(true),
        }
    }

    /// Whether `at` is the address of `gcController` of 1.18, which has no counters of the heap:
    /// `heapMinimum` must match `GOGC`, and the goal must be at least that minimum and the marked
    /// bytes plus `GOGC` percent. `None` if it cannot be read.
    fn is_old_controller_at(&self, pages: &mut PageCache<'_>, at: u64, layout: &Layout) -> Option<bool> {
        let mut word = |offset: u64| pages.word(at.wrapping_add(offset));
        let (percent, minimum) = (word(0)?, word(HEAP_MINIMUM)?);
        let (goal, marked) = (word(layout.heap_goal)?, word(layout.heap_marked)?);
        let heap_bytes = self.in_use_bytes.saturating_add(self.manual_bytes).saturating_add(self.idle_bytes);
        let is_valid = (1..MAX_GC_PERCENT).contains(&percent)
            && minimum == HEAP_MINIMUM_AT_100 * percent / 100
            && marked <= heap_bytes
            && goal < USER_ADDRESS_END
            && goal >= (marked + marked / 100 * percent).max(minimum);
        Some(is_valid)
    }

    /// Whether `heapInUse`, `heapReleased` and `heapFree` are at `at`.
    fn has_counters_at(&self, pages: &mut PageCache<'_>, at: u64) -> bool {
        let in_use = pages.word(at).filter(|&in_use| in_use == self.in_use_bytes && in_use > 0);
        let others = in_use.and_then(|_| pages.pair(at.wrapping_add(8)));
        others.is_some_and(|(released, free)| released.checked_add(free) == Some(self.idle_bytes))
    }

    /// Whether the deltas at `at` add up to the bytes of spans with objects, and of other spans.
    fn match_deltas_at(&self, pages: &mut PageCache<'_>, at: u64, layout: &Layout) -> bool {
        let mut sum = |index: u64| sum_of_deltas(pages, at.wrapping_add(DELTA_IN_HEAP + 8 * index), layout);
        let add = |total: u64, bytes: Option<u64>| Some(total.wrapping_add(bytes?));
        self.in_use_bytes > 0
            && sum(0) == Some(self.in_use_bytes)
            && (1..=layout.manual_figure_count).map(sum).try_fold(0, add) == Some(self.manual_bytes)
    }
}

/// Adds up one figure of all deltas, at `at` in the first one; each may be negative.
/// `None` if one cannot be read.
fn sum_of_deltas(pages: &mut PageCache<'_>, at: u64, layout: &Layout) -> Option<u64> {
    (0..DELTA_COUNT).try_fold(0_u64, |sum, index| {
        Some(sum.wrapping_add(pages.word(at.wrapping_add(layout.delta_bytes * index))?))
    })
}

/// Bytes released according to the chunks' bitmaps, without pages in the caches of processors.
/// `None` if a bitmap cannot be read before the deadline.
fn released_bytes(pages: &mut PageCache<'_>, layout: &Layout, heap: &Heap, deadline: Instant) -> Option<u64> {
    if heap.bytes() > MAX_HEAP_BYTES {
        return None;
    }
    let mut released_bytes = 0;
    for &AddressRange { start, end } in &heap.ranges {
        for chunk in (start..end).step_by(CHUNK_BYTES as usize) {
            if Instant::now() >= deadline {
                return None;
            }
            let bits = heap.chunk_bits(pages, layout, chunk)?;
            let released_idle =
                bits.used_pages.iter().zip(bits.released_pages).map(|(used, released)| !used & released);
            released_bytes +=
                released_idle.map(|bits| u64::from(bits.count_ones())).sum::<u64>() * RUNTIME_PAGE_BYTES;
        }
    }
    Some(released_bytes)
}

#[cfg(test)]
mod tests {
    use super::super::layout::LAYOUTS;
    use super::*;

    /// Memory whose words are 5 up to an address.
    struct Fives(u64);

    impl Memory for Fives {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            let readable = usize::try_from(self.0.saturating_sub(address)).unwrap().min(buffer.len());
            for word in buffer[..readable].chunks_exact_mut(8) {
                word.copy_from_slice(&5_u64.to_le_bytes());
            }
            readable
        }
    }

    #[test]
    fn a_delta_that_cannot_be_read_is_not_zero() {
        let layout = &LAYOUTS[0];
        // The second delta is on the next page.
        let sum = |end: u64| sum_of_deltas(&mut PageCache::new(&Fives(end)), 0x1f00, layout);
        assert_eq!(sum(0x1_0000), Some(15));
        assert_eq!(sum(0x2000), None);
    }

    #[test]
    fn a_limit_that_cannot_be_read_is_not_known() {
        // The limit is on the page after `GOGC`.
        let counters = CounterAddresses { controller: Some(0x1ff8), deltas: None };
        let read = |end: u64| {
            let mut figures = Figures::default();
            read_counters(&mut PageCache::new(&Fives(end)), &LAYOUTS[1], &counters, &mut figures);
            (figures.gc_percent, figures.memory_limit_bytes)
        };
        assert_eq!(read(0x1_0000), (Some(5), Some(5)));
        assert_eq!(read(0x2000), (None, None));
    }
}
