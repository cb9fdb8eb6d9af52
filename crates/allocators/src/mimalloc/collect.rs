//! What a collection would release, by the thread that makes it.
//!
//! `mi_collect(true)` frees the pages without live blocks of the calling thread's heaps; if the
//! main thread calls it, also what ended threads left. A segment without pages is released, and so
//! is the free memory of arenas.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use super::arena_layout::WORD_SLICES;
use super::layout::{PageWords, SLICE_BYTES};
use super::parts::{
    ArenaPurge, CollectRules, CollectingThread, Heap, Part, PartKind, RunPurgedArena, SpanPurge,
};
use super::spans::Releasable;
use crate::blocks::SwappedCaches;
use crate::scan::within;
use strandline_claims::allocator::Context;
use strandline_process::page_cache::PageCache;
use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::range::{AddressRange, RangeSet};

/// No heap is below this address: smaller words are no pointers (`vm.mmap_min_addr`).
const MIN_HEAP_ADDRESS: u64 = 64 << 10;
/// Maximum blocks of heaps' lists, in case one is damaged: the others count as in use.
const MAX_DELAYED_BLOCKS: u64 = 1 << 22;
/// Bytes of the slices whose marks are in one word.
const WORD_BYTES: u64 = WORD_SLICES * SLICE_BYTES;

/// Blocks that other threads freed, and what a collection can release as a result.
#[derive(Default)]
pub struct Collection {
    /// Addresses of threads' heaps.
    pub thread_heaps: Vec<u64>,
    /// Lists of blocks that other threads freed that were not read.
    pub swapped: SwappedCaches,
    /// Blocks that other threads freed and that are in no page's list, in address order.
    pub delayed_blocks: Vec<u64>,
    /// Position of each of these blocks in its list.
    list_positions: Vec<usize>,
    /// Units that can be released as a whole: segments, or pages of 3.x.
    dead_units: HashSet<u64>,
    /// Pages with nothing live, by their first byte.
    dead_pages: HashSet<u64>,
    /// Pages of heaps that the program created, by their first byte.
    program_heap_pages: HashSet<u64>,
    /// What a collection releases in this version.
    collect_rules: CollectRules,
    /// What a collection by the chosen thread releases.
    pub releasable: RangeSet,
    /// When that collection releases it, by the clock of [`Heap::read_at_milliseconds`]; 0 for at
    /// once.
    pub due_milliseconds: u64,
    /// The thread whose collection releases most.
    pub chosen_thread: Option<u64>,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

impl Collection {
    /// Whether nothing in a page is live, so that a collection frees it.
    pub fn is_dead(&self, part: &Part) -> bool {
        self.dead_pages.contains(&part.start)
    }

    /// Whether a collection visits a page; it does not visit heaps that the program created.
    pub fn is_visited(&self, part: &Part) -> bool {
        !self.program_heap_pages.contains(&part.start)
    }

    /// Returns the positions in its heap's list of the blocks of a page that other threads freed.
    pub fn list_positions(&self, part: &Part) -> Option<RangeInclusive<usize>> {
        let from = self.delayed_blocks.partition_point(|&pointer| pointer < part.start);
        let to = self.delayed_blocks.partition_point(|&pointer| pointer < part.end);
        let positions = self.list_positions.get(from..to)?;
        Some(*positions.iter().min()?..=*positions.iter().max()?)
    }

    /// Returns which collections release a part, apart from spans of slices.
    fn collector_of(&self, part: &Part) -> Option<Collector> {
        let rules = &self.collect_rules;
        if matches!(part.kind, PartKind::PurgePending) && part.release_unit.is_none() {
            return match rules.arena_purge {
                ArenaPurge::Never => None,
                ArenaPurge::MainThread => Some(Collector::Main),
                ArenaPurge::AnyThread => Some(Collector::Any),
            };
        }
        if matches!(part.kind, PartKind::PurgePending) {
            // Only collections of its own thread release it.
            return part.thread.map(Collector::Thread);
        }
        let is_released =
            self.dead_units.contains(&part.release_unit?) || rules.frees_pages && self.is_dead(part);
        if !is_released || rules.span_purge != SpanPurge::None {
            return None;
        }
        match part.thread {
            Some(thread) => Some(Collector::Thread(thread)),
            None => rules.frees_ended.then_some(Collector::Main),
        }
    }

    /// Chooses the thread whose collection releases most, the first of equals.
    fn choose_thread(&mut self, context: &Context<'_>, heap: &Heap) {
        let main = context.main_fs_base;
        // In a forked child the heaps of other threads are frozen, maybe mid-update: no call is
        // made.
        let live_threads: HashSet<u64> = context.fs_bases.iter().copied().collect();
        let is_alive = |part: &Part| part.thread.is_none_or(|thread| live_threads.contains(&thread));
        if self.collect_rules == CollectRules::default() || !heap.parts.iter().all(is_alive) {
            return;
        }
        let has_spans = self.collect_rules.span_purge != SpanPurge::None;
        let mut releasable =
            if has_spans { Releasable::new(heap, self, main) } else { Releasable::default() };
        for part in &heap.parts {
            releasable.add(part.range(), self.collector_of(part));
        }
        // A freed segment is on the list, and so are its slices: the set counts them once.
        let bytes = |ranges: &[AddressRange]| {
            let ranges: RangeSet = ranges.iter().copied().collect();
            ranges.iter().map(|range| context.resident_bytes(*range)).sum::<u64>()
        };
        releasable.add_waiting(heap, |range| context.resident_bytes(range) > 0);
        let [ended_by_main, ended_by_other] =
            [true, false].map(|is_main| bytes(&releasable.of_ended_threads(is_main).ranges));
        let bytes_of = |&fs_base: &u64| {
            let own_bytes = releasable.by_thread.get(&fs_base).map_or(0, |memory| bytes(&memory.ranges));
            own_bytes + if Some(fs_base) == main { ended_by_main } else { ended_by_other }
        };
        let most = context.fs_bases.iter().rev().max_by_key(|fs_base| bytes_of(fs_base));
        let Some(&fs_base) = most else { return };
        let thread = CollectingThread { fs_base, is_main: Some(fs_base) == main };
        self.chosen_thread = Some(fs_base);
        self.due_milliseconds = releasable.due_milliseconds(thread);
        let is_in_run_purged_arena = |range: &AddressRange| {
            let next = heap.run_purged_arenas.partition_point(|arena| arena.range.end <= range.start);
            heap.run_purged_arenas.get(next).is_some_and(|arena| arena.range.contains(range.start))
        };
        let ranges_outside = releasable.releasable_by(thread).filter(|range| !is_in_run_purged_arena(range));
        let is_released =
            |part: &Part| self.collector_of(part).is_some_and(|collector| collector.includes(thread));
        let runs: Vec<_> = heap
            .run_purged_arenas
            .iter()
            .flat_map(|arena| arena.releasable_runs(heap, &is_released))
            .collect();
        self.releasable = ranges_outside.chain(runs).collect();
    }
}

/// The collections that release something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collector {
    /// The collections of one thread.
    Thread(u64),
    /// The collections of the main thread.
    Main,
    /// The collections of any thread.
    Any,
}

impl Collector {
    /// Whether a collection by `thread` is one of them.
    fn includes(self, thread: CollectingThread) -> bool {
        match self {
            Self::Thread(fs_base) => fs_base == thread.fs_base,
            Self::Main => thread.is_main,
            Self::Any => true,
        }
    }
}

#[cfg(test)]
impl Collection {
    /// A collection with these dead pages, by their first byte, and blocks that other threads
    /// freed, in the order of the lists.
    pub fn new(dead_pages: &[u64], delayed: &[u64]) -> Self {
        let mut blocks: Vec<(u64, usize)> = delayed.iter().copied().zip(0..).collect();
        blocks.sort_unstable();
        let (delayed_blocks, list_positions) = blocks.into_iter().unzip();
        Self {
            dead_pages: dead_pages.iter().copied().collect(),
            delayed_blocks,
            list_positions,
            ..Self::default()
        }
    }
}

impl RunPurgedArena {
    /// Returns what a collection releases: slices that are free, or in pages for which `is_freed`
    /// holds, in runs that are marked throughout (`bitmap.c`, `_mi_bitmap_forall_setc_rangesn`).
    /// Freeing a page marks its slices.
    fn releasable_runs(&self, heap: &Heap, is_freed: &dyn Fn(&Part) -> bool) -> Vec<AddressRange> {
        let AddressRange { start: arena_start, end: arena_end } = self.range;
        let slices = |start: u64, end: u64| {
            let slice = |at: u64| (at.saturating_sub(arena_start) / SLICE_BYTES) as usize;
            slice(start)..slice(end.min(arena_end))
        };
        let mut marks = self.marks.clone();
        let first_part = heap.parts.partition_point(|part| part.end <= arena_start);
        let parts = heap.parts[first_part..].iter().take_while(|part| part.start < arena_end);
        let is_freed = |part: &&Part| part.page().is_some() && is_freed(part);
        for part in parts.clone().filter(is_freed) {
            for slice in slices(part.start, part.end) {
                if let Some(byte) = marks.get_mut(slice / 8) {
                    *byte |= 1 << (slice % 8);
                }
            }
        }
        let is_marked = |start: u64, end: u64| {
            slices(start, end)
                .all(|slice| marks.get(slice / 8).is_some_and(|byte| byte >> (slice % 8) & 1 != 0))
        };
        let mut released_ranges = Vec::new();
        for part in parts.filter(|part| part.is_free() || is_freed(part)) {
            let start = part.start.max(arena_start);
            for run in self.runs(start - (start - arena_start) % WORD_BYTES, part.end.min(arena_end)) {
                let released = part.range().intersection(run);
                if run.end <= arena_end && !released.is_empty() && is_marked(run.start, run.end) {
                    released_ranges.push(released);
                }
            }
        }
        released_ranges
    }

    /// Returns the runs from `start`, where a word of marks begins, to `end`, without those that
    /// reach into the next word ([`WORD_SLICES`]).
    fn runs(&self, start: u64, end: u64) -> impl Iterator<Item = AddressRange> + use<> {
        let run_bytes = self.slices_per_run * SLICE_BYTES;
        let runs_per_word = WORD_SLICES.checked_div(self.slices_per_run).unwrap_or(0);
        let words = (0..).map(move |word| start + word * WORD_BYTES).take_while(move |&word| word < end);
        words.flat_map(move |word| {
            (0..runs_per_word).map(move |run| AddressRange::sized(word + run * run_bytes, run_bytes))
        })
    }
}

/// Finds the blocks that other threads freed, and the thread whose collection releases most.
pub fn find(context: &Context<'_>, heap: &Heap) -> Collection {
    let mut collection = Collection::default();
    let mut cache = PageCache::new(context.memory);
    collection.thread_heaps = heap.parts.iter().flat_map(heaps_of_part).collect();
    collection.thread_heaps.sort_unstable();
    collection.thread_heaps.dedup();
    let listed_blocks = read_delayed_blocks(context, &mut cache, heap, &mut collection);
    let mut delayed_blocks: Vec<(u64, usize)> = listed_blocks.into_iter().zip(0..).collect();
    delayed_blocks.sort_unstable();
    delayed_blocks.dedup_by_key(|&mut (block, _)| block);
    (collection.delayed_blocks, collection.list_positions) = delayed_blocks.into_iter().unzip();
    collection.collect_rules = heap.collect_rules;
    let mut live_units: HashSet<u64> = HashSet::new();
    for part in &heap.parts {
        let Some(release_unit) = part.release_unit else { continue };
        collection.dead_units.insert(release_unit);
        let PartKind::Page(page) = part.kind else { continue };
        // A heap that the program created (mi_heap_new) is in a block of mimalloc: no collection of
        // its thread visits it.
        if is_program_heap(heap, page.thread_heap()) {
            collection.program_heap_pages.insert(part.start);
        } else if is_dead(context, &mut cache, part, &page, &collection.delayed_blocks) {
            collection.dead_pages.insert(part.start);
            continue;
        }
        live_units.insert(release_unit);
    }
    collection.dead_units.retain(|unit| !live_units.contains(unit));
    collection.choose_thread(context, heap);
    collection.bytes_read = cache.bytes_read;
    collection
}

/// Whether the heap of a thread is inside a page, as those that the program created.
fn is_program_heap(heap: &Heap, thread_heap: u64) -> bool {
    let next = heap.parts.partition_point(|part| part.end <= thread_heap);
    heap.parts.get(next).is_some_and(|part| part.start <= thread_heap && part.page().is_some())
}

/// Whether nothing in a page is live.
fn is_dead(
    context: &Context<'_>,
    cache: &mut PageCache<'_>,
    part: &Part,
    page: &PageWords,
    delayed_blocks: &[u64],
) -> bool {
    let freed_blocks = within(delayed_blocks, part.range(), |&pointer| pointer).len() as u64;
    let mut blocks_in_use = page.used.saturating_sub(freed_blocks);
    let mut at = page.lists.thread_free;
    while blocks_in_use > 0 && at != 0 && !context.deadline_passed() {
        if !(part.start..part.end).contains(&at) {
            return false;
        }
        blocks_in_use -= 1;
        let Some(next) = cache.word(at) else { return false };
        at = next;
    }
    // All blocks in use were freed, and no others.
    blocks_in_use == 0 && at == 0
}

/// Returns the blocks that other threads freed into lists of heaps, in the order of these lists. A
/// link that cannot be read ends its list: the blocks after it count as in use, which is noted in
/// `collection` if it may be swapped out.
fn read_delayed_blocks(
    context: &Context<'_>,
    cache: &mut PageCache<'_>,
    heap: &Heap,
    collection: &mut Collection,
) -> Vec<u64> {
    let mut blocks = Vec::new();
    let used_blocks = |part: &Part| part.page().map_or(0, |page| page.used.min(page.capacity));
    // No more than the blocks in use, so that a cycle ends.
    let max_blocks = heap.parts.iter().map(used_blocks).sum::<u64>().min(MAX_DELAYED_BLOCKS);
    let heads = heap
        .delayed_free
        .iter()
        .flat_map(|offset| collection.thread_heaps.iter().map(move |thread_heap| thread_heap + offset));
    for head in heads {
        let mut word = |at: u64| {
            let word = cache.word(at);
            if word.is_none() {
                collection.swapped.count_if_swapped(context, AddressRange::sized(at, 8));
            }
            word
        };
        let mut next = word(head);
        while let Some(block) = next.filter(|&block| block != 0 && block.is_multiple_of(8))
            && (blocks.len() as u64) < max_blocks
            && !context.deadline_passed()
        {
            blocks.push(block);
            next = word(block);
        }
    }
    blocks
}

/// Returns the heaps that a page belongs to, without addresses where none can be.
fn heaps_of_part(part: &Part) -> impl Iterator<Item = u64> + use<> {
    let heaps = part.page().map_or([0; 2], |page| page.heaps);
    heaps
        .into_iter()
        .filter(|&heap| heap > MIN_HEAP_ADDRESS && heap.is_multiple_of(8) && heap < USER_ADDRESS_END)
}

#[cfg(test)]
mod tests {
    use super::super::spans::{Expire, Mask, PurgeSchedule};
    use super::*;
    use crate::scan::Unreadable;
    use strandline_process::map::AddressSpace;

    const START: u64 = 0x200_0000_0000;
    /// Bytes of a run of 32 slices.
    const RUN_BYTES: u64 = 32 * SLICE_BYTES;

    #[test]
    fn runs_go_back_where_each_slice_is_marked() {
        let part = |first: u64, past_last: u64, kind: PartKind| Part {
            start: START + first * SLICE_BYTES,
            end: START + past_last * SLICE_BYTES,
            kind,
            release_unit: Some(START + first * SLICE_BYTES),
            thread: None,
        };
        let page = PartKind::Page(PageWords::default());
        // Two runs of 32 slices: a freed page, a page that stays, free slices; then free slices.
        let parts = vec![
            part(0, 8, page),
            part(8, 12, page),
            part(12, 40, PartKind::PurgePending),
            part(40, 64, PartKind::Free),
        ];
        let heap = Heap { parts, ..Heap::default() };
        let released_in_runs = |slices_per_run: u64, marks: [u64; 1]| {
            let marks = marks[0].to_le_bytes().to_vec();
            let range = AddressRange::sized(START, 64 * SLICE_BYTES);
            let arena = RunPurgedArena { range, slices_per_run, marks };
            let released = arena.releasable_runs(&heap, &|part| part.start == START);
            released.iter().map(|range| range.len() / SLICE_BYTES).collect::<Vec<_>>()
        };
        let released = |marks| released_in_runs(32, marks);
        // The mark of a slice that is in use again stays.
        assert_eq!(released([0xffff_ff00]), [8, 20]);
        assert_eq!(released([0xffff_f000]), Vec::<u64>::new());
        assert_eq!(released([u64::MAX]), [8, 20, 8, 24]);
        assert_eq!(released([0]), Vec::<u64>::new());
        // Two runs of 24 slices fit into a word.
        assert_eq!(released_in_runs(24, [u64::MAX]), [8, 12, 16, 8]);
    }

    #[test]
    fn a_freed_segment_and_its_slices_count_once() {
        let segment_bytes = 16 * SLICE_BYTES;
        // The own slice of a segment, and a page with nothing live.
        let segment = |number: u64, slices: u64| {
            let start = START + number * segment_bytes;
            let words = PageWords { structure: start, ..PageWords::default() };
            [(0, 1, PartKind::Own), (1, slices, PartKind::Page(words))].map(|(first, past_last, kind)| Part {
                start: start + first * SLICE_BYTES,
                end: start + past_last * SLICE_BYTES,
                kind,
                release_unit: Some(start),
                thread: Some(number + 1),
            })
        };
        let mut heap = Heap { parts: [segment(0, 6), segment(1, 9)].concat(), ..Heap::default() };
        // Slices of the first segment are due, of the second none.
        let schedule = PurgeSchedule {
            is_allowed: true,
            expire: Expire::Due,
            committed_slices: Mask::new([u64::MAX].into_iter()),
            ..PurgeSchedule::default()
        };
        heap.purge_schedules.insert(START, schedule);
        let mut collection =
            Collection::new(&[START + SLICE_BYTES, START + segment_bytes + SLICE_BYTES], &[]);
        collection.collect_rules = CollectRules {
            arena_purge: ArenaPurge::AnyThread,
            span_purge: SpanPurge::WhenDue,
            ..CollectRules::default()
        };
        heap.collect_rules = collection.collect_rules;
        let (space, _) = AddressSpace::parse(b"");
        let all_resident = |range: AddressRange| vec![range];
        let context = Context {
            fs_bases: &[1, 2],
            main_fs_base: Some(1),
            ..Context::of_image(&Unreadable, &space, &all_resident)
        };
        collection.choose_thread(&context, &heap);
        assert_eq!(collection.chosen_thread, Some(2));
    }

    #[test]
    fn only_the_main_thread_collects_what_ended_threads_left() {
        let words = PageWords { structure: START, ..PageWords::default() };
        let part = Part {
            start: START,
            end: START + SLICE_BYTES,
            kind: PartKind::Page(words),
            release_unit: Some(START),
            thread: None,
        };
        let heap = Heap {
            parts: vec![part],
            collect_rules: CollectRules { frees_ended: true, ..CollectRules::default() },
            ..Heap::default()
        };
        let (space, _) = AddressSpace::parse(b"");
        let all_resident = |range: AddressRange| vec![range];
        // The main thread may be any of those whose FS base is known, or none of them.
        for (main_fs_base, chosen, releasable) in
            [(Some(1), 1, SLICE_BYTES), (Some(2), 2, SLICE_BYTES), (None, 1, 0)]
        {
            let mut collection = Collection::new(&[START], &[]);
            collection.collect_rules = heap.collect_rules;
            collection.dead_units.insert(START);
            let image = Context::of_image(&Unreadable, &space, &all_resident);
            collection.choose_thread(&Context { fs_bases: &[1, 2], main_fs_base, ..image }, &heap);
            assert_eq!(collection.chosen_thread, Some(chosen));
            assert_eq!(collection.releasable.bytes(), releasable);
        }
    }

    #[test]
    fn what_is_before_an_arena_is_not_released_with_it() {
        let range = AddressRange::sized(START, 64 * SLICE_BYTES);
        let part = Part {
            start: START - 2 * RUN_BYTES,
            end: range.end,
            kind: PartKind::PurgePending,
            release_unit: None,
            thread: None,
        };
        let heap = Heap { parts: vec![part], ..Heap::default() };
        let arena = RunPurgedArena { range, slices_per_run: 32, marks: vec![0xff; 8] };
        let runs = [0, RUN_BYTES].map(|offset| AddressRange::sized(START + offset, RUN_BYTES));
        assert_eq!(arena.releasable_runs(&heap, &|_| false), runs);
    }
}
