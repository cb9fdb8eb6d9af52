//! The runtime's own figures, by their names in `runtime.MemStats`: computed from the spans, and
//! read from the counters if these agree.

use super::heap::{Heap, Instance, Kind};
use super::layout::{CHUNK_BYTES, HEAP_MINIMUM, HEAP_MINIMUM_AT_100, Layout, PAGE_BYTES, STATS_IN_HEAP};
use crate::batch::PageCache;
use std::time::Instant;
use strandline_claims::runtime::Context;
use strandline_claims::words::{READ_BYTES, each_word};
use strandline_process::memory::Memory;
use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::range::AddressRange;

/// Largest heap whose bitmaps are read: 4 TiB.
const MAX_BYTES: u64 = 1 << 42;
/// No limit (`GOMEMLIMIT=off`).
const NO_LIMIT: u64 = i64::MAX as u64;

/// Figures of one heap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// `HeapAlloc`: objects, including those not swept yet.
    pub alloc: u64,
    /// `HeapInuse`: spans that hold objects.
    pub in_use: u64,
    /// `HeapIdle`: memory without a span, released or not.
    pub idle: u64,
    /// `HeapReleased`: the part of `HeapIdle` that was released.
    pub released: Option<u64>,
    /// `StackInuse`.
    pub stacks: Option<u64>,
    /// Bytes that the last mark found live.
    pub marked: Option<u64>,
    /// Heap bytes at which the next collection ends; `None` unless `GOGC` alone decides that.
    pub goal: Option<u64>,
    /// `GOGC` in force; -1 for off.
    pub gc_percent: Option<i64>,
    /// `GOMEMLIMIT` in force; `None` if there is no limit.
    pub memory_limit: Option<u64>,
}

/// Reads the figures.
pub fn read(context: &Context<'_>, memory: &dyn Memory, instance: Instance<'_>) -> Figures {
    let Instance { program, layout, heap, spans } = instance;
    let mut pages = PageCache::new(memory);
    let (in_use, manual) = (spans.bytes(Kind::Objects), spans.bytes(Kind::Manual));
    let idle = heap.bytes().saturating_sub(in_use + manual);
    let mut figures = Figures { alloc: spans.object_bytes(), in_use, idle, ..Figures::default() };
    let counters = Counters { in_use, manual, idle };
    let controller =
        program.symbols.controller.filter(|&at| counters.is_controller_at(&mut pages, at, layout));
    let stats = program.symbols.stats.and_then(|at| at.checked_add(layout.stats));
    let stats = stats.filter(|&at| counters.match_deltas_at(&mut pages, at, layout));
    let mut found = Found { controller, stats };
    if !found.is_complete() {
        let mut tried = 0_u64;
        each_word(memory, context.resident, program.data, READ_BYTES, &mut |at, word| {
            let controller = match layout.in_use {
                Some(offset) => Some(offset).filter(|_| word == in_use),
                None => Some(HEAP_MINIMUM).filter(|_| (HEAP_MINIMUM_AT_100 / 100..1 << 42).contains(&word)),
            };
            let controller = controller.and_then(|offset| at.checked_sub(offset));
            if found.controller.is_none() {
                found.controller = controller.filter(|&at| counters.is_controller_at(&mut pages, at, layout));
            }
            let begin = at.wrapping_sub(STATS_IN_HEAP);
            if found.stats.is_none()
                && word <= USER_ADDRESS_END
                && counters.match_deltas_at(&mut pages, begin, layout)
            {
                found.stats = Some(begin);
            }
            tried += 1;
            let has_time = !tried.is_multiple_of(1 << 16) || Instant::now() < context.deadline;
            has_time && !found.is_complete()
        });
    }
    fill_in(&mut pages, layout, &found, &mut figures);
    if figures.released.is_none() {
        figures.released = released(&mut pages, layout, heap);
    }
    let stacks = found.stats.map(|at| counters.sum(&mut pages, at.wrapping_add(STATS_IN_HEAP + 8), layout));
    figures.stacks = stacks.filter(|&stacks| stacks <= manual);
    figures
}

/// Addresses of the runtime's counters, as far as they were found.
struct Found {
    /// `gcController`.
    controller: Option<u64>,
    /// The deltas in `memstats`.
    stats: Option<u64>,
}

impl Found {
    fn is_complete(&self) -> bool {
        self.controller.is_some() && self.stats.is_some()
    }
}

/// Adds the figures of the controller and of `memstats`, as far as these were found.
fn fill_in(pages: &mut PageCache<'_>, layout: &Layout, found: &Found, figures: &mut Figures) {
    if let Some(at) = found.controller {
        let mut word = |offset: u64| pages.word(at.wrapping_add(offset));
        figures.released = layout.in_use.and_then(|offset| word(offset + 8));
        figures.marked = word(layout.marked);
        figures.gc_percent = word(0).map(|word| i64::from(word as u32 as i32));
        figures.memory_limit = layout.memory_limit.and_then(&mut word).filter(|&limit| limit < NO_LIMIT);
        // A limit may end the collection earlier.
        let goal = word(layout.goal).filter(|&goal| goal < USER_ADDRESS_END);
        figures.goal = goal.filter(|_| figures.memory_limit.is_none());
    }
    if let (Some(at), Some(offset)) = (found.stats, layout.stats_in_use) {
        let counted = at.checked_sub(layout.stats).and_then(|at| pages.pair(at.checked_add(offset)?));
        let released = counted.filter(|pair| pair.0 == figures.in_use).map(|pair| pair.1);
        figures.released = released.filter(|&released| released <= figures.idle);
    }
}

/// Values that the runtime's counters must have, computed from the spans.
struct Counters {
    in_use: u64,
    manual: u64,
    idle: u64,
}

impl Counters {
    /// Whether `at` is the address of `gcController`. Up to 1.18 the heap counters are elsewhere:
    /// there `heapMinimum` must match `GOGC`, and the goal must be at least that minimum and the
    /// marked bytes plus `GOGC` percent.
    fn is_controller_at(&self, pages: &mut PageCache<'_>, at: u64, layout: &Layout) -> bool {
        if let Some(offset) = layout.in_use {
            return self.has_counters_at(pages, at.wrapping_add(offset));
        }
        let mut word = |offset: u64| pages.word(at.wrapping_add(offset)).unwrap_or(0);
        let (percent, minimum) = (word(0), word(HEAP_MINIMUM));
        let (goal, marked) = (word(layout.goal), word(layout.marked));
        (1..1 << 20).contains(&percent)
            && minimum == HEAP_MINIMUM_AT_100 * percent / 100
            && marked <= self.in_use.saturating_add(self.manual).saturating_add(self.idle)
            && goal < USER_ADDRESS_END
            && goal >= (marked + marked / 100 * percent).max(minimum)
    }

    /// Whether `heapInUse`, `heapReleased` and `heapFree` are at `at`.
    fn has_counters_at(&self, pages: &mut PageCache<'_>, at: u64) -> bool {
        let words = pages.word(at).zip(pages.pair(at.wrapping_add(8)));
        words.is_some_and(|(in_use, (released, free))| {
            in_use == self.in_use && in_use > 0 && released.checked_add(free) == Some(self.idle)
        })
    }

    /// Whether the deltas at `at` add up to the same counters.
    fn match_deltas_at(&self, pages: &mut PageCache<'_>, at: u64, layout: &Layout) -> bool {
        let mut sum = |index: u64| self.sum(pages, at.wrapping_add(STATS_IN_HEAP + 8 * index), layout);
        sum(0) == self.in_use
            && self.in_use > 0
            && (1..=layout.stats_manual).fold(0, |all: u64, index| all.wrapping_add(sum(index)))
                == self.manual
    }

    /// Adds up one figure of all three deltas; each delta may be negative.
    fn sum(&self, pages: &mut PageCache<'_>, at: u64, layout: &Layout) -> u64 {
        (0..3_u64).fold(0, |sum, index| {
            sum.wrapping_add(pages.word(at.wrapping_add(layout.stats_bytes * index)).unwrap_or(0))
        })
    }
}

/// Bytes released according to the chunks' bitmaps, without pages in the caches of processors.
fn released(pages: &mut PageCache<'_>, layout: &Layout, heap: &Heap) -> Option<u64> {
    if heap.bytes() > MAX_BYTES {
        return None;
    }
    let mut released = 0;
    for &AddressRange { start, end } in &heap.ranges {
        for chunk in (start..end).step_by(CHUNK_BYTES as usize) {
            let bits = heap.chunk(pages, layout, chunk)?;
            let idle = bits.used.iter().zip(bits.released).map(|(used, released)| !used & released);
            released += idle.map(|bits| u64::from(bits.count_ones())).sum::<u64>() * PAGE_BYTES;
        }
    }
    Some(released)
}
