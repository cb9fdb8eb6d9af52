//! What a collection releases of segments of 2.x, which free their pages into spans of slices.
//!
//! A freed page joins the adjacent free spans. The committed part of the joined span is scheduled
//! to be purged: a bit per slice in the segment's `purge_mask`. When it is purged differs by
//! version ([`SpanPurge`]) and depends on the order in which pages are freed: the last ones mostly
//! stay scheduled. So a collection is simulated page by page, as mimalloc does it
//! (`heap.c`, `mi_heap_collect_ex`; `segment.c`, `_mi_segment_page_free`,
//! `mi_segment_schedule_purge`, `mi_segment_try_purge`).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::collect::{Collection, Collector};
use super::layout::SLICE_BYTES;
use super::parts::{ArenaPurge, CollectingThread, Heap, Part, PartKind, SpanPurge};
use super::visits::{PageVisit, VisitPhase, pages_in_visit_order};
use strandline_claims::bits;
use strandline_process::range::{AddressRange, RangeSet};

/// Words of the largest mask.
const MASK_WORDS: usize = 16;
/// Slices of the largest segment, of 64 KiB each.
const MAX_SLICES: usize = 64 * MASK_WORDS;
/// Time for which an arena keeps a freed segment (options.c of 2.1.2: `purge_delay` 10,
/// `arena_purge_mult` 10).
const ARENA_DELAY_MILLISECONDS: u64 = 100;
/// Maximum time that `reclaim` waits for several such segments.
const MAX_ARENA_WAIT_MILLISECONDS: u64 = 500;

/// One bit per slice of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask([u64; MASK_WORDS]);

impl Mask {
    /// A mask of these words; further words are 0.
    pub fn new(words: impl Iterator<Item = u64>) -> Self {
        let mut mask = Self::default();
        for (mask_word, word) in mask.0.iter_mut().zip(words) {
            *mask_word = word;
        }
        mask
    }

    /// Whether the bit of a slice is set.
    pub fn has(&self, slice: usize) -> bool {
        bits::has(&self.0, slice)
    }

    fn set(&mut self, slice: usize) {
        bits::set(&mut self.0, slice);
    }

    fn add(&mut self, other: &Self) {
        for (mask_word, word) in self.0.iter_mut().zip(other.0) {
            *mask_word |= word;
        }
    }

    /// Returns the run of set bits around `slices`.
    fn run_around(&self, slices: Range<usize>) -> Range<usize> {
        let Range { mut start, mut end } = slices;
        while start > 0 && self.has(start - 1) {
            start -= 1;
        }
        while self.has(end) {
            end += 1;
        }
        start..end
    }
}

/// When scheduled slices are due (`purge_expire`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expire {
    /// Nothing is scheduled.
    #[default]
    Never,
    /// Not due soon: no call waits until then.
    Later,
    /// Due, or due soon: a call waits until then.
    Due,
}

/// When the free slices of a segment are released.
#[derive(Clone, Copy, Debug, Default)]
pub struct PurgeSchedule {
    /// Whether the segment may release anything.
    pub is_allowed: bool,
    /// When scheduled slices are due.
    pub expire: Expire,
    /// The time at which they are due, in milliseconds of mimalloc's clock.
    pub due_milliseconds: u64,
    /// Scheduled slices.
    pub scheduled_slices: Mask,
    /// Committed slices.
    pub committed_slices: Mask,
}

/// A segment as a collection changes it.
struct Segment<'a> {
    /// First byte.
    start: u64,
    /// Its thread; `None` if the thread ended.
    thread: Option<u64>,
    /// When scheduled slices are released.
    purge_rule: SpanPurge,
    /// State of its free slices; empty if the segment is a single block's.
    schedule: PurgeSchedule,
    /// Free slices.
    free_slices: Mask,
    /// Slices that were released.
    released_slices: Mask,
    /// When all of `released_slices` is due, in milliseconds of mimalloc's clock; 0 for at once.
    due_milliseconds: u64,
    /// Its parts, in address order.
    parts: Vec<&'a Part>,
    /// Number of pages in use.
    page_count: usize,
}

impl<'a> Segment<'a> {
    fn slices(&self, part: &Part) -> Range<usize> {
        let slice = |at: u64| ((at - self.start) / SLICE_BYTES) as usize;
        slice(part.start)..slice(part.end).min(MAX_SLICES)
    }

    fn push(&mut self, part: &'a Part) {
        match part.kind {
            PartKind::Page(_) => self.page_count += 1,
            PartKind::Free => self.slices(part).for_each(|slice| self.free_slices.set(slice)),
            PartKind::Own | PartKind::PurgePending => {}
        }
        self.parts.push(part);
    }

    /// Schedules the committed slices of a free span (`mi_segment_schedule_purge`).
    fn schedule_purge(&mut self, slices: Range<usize>) {
        if !self.schedule.is_allowed {
            return;
        }
        let committed = self.schedule.committed_slices;
        let scheduled = slices.filter(|&slice| committed.has(slice));
        scheduled.for_each(|slice| self.schedule.scheduled_slices.set(slice));
        match self.schedule.expire {
            Expire::Due if self.purge_rule != SpanPurge::Kept => {
                if self.purge() {
                    self.due_milliseconds = self.schedule.due_milliseconds;
                }
            }
            _ => self.schedule.expire = Expire::Later,
        }
    }

    /// Frees a page with nothing live (`mi_segment_page_clear`).
    fn free_page(&mut self, part: &Part) {
        let slices = self.slices(part);
        slices.clone().for_each(|slice| self.free_slices.set(slice));
        self.page_count = self.page_count.saturating_sub(1);
        let span = self.free_slices.run_around(slices);
        self.schedule_purge(span);
    }

    /// Releases scheduled slices (`mi_segment_try_purge`, `mi_segment_delayed_decommit`), and
    /// returns whether there are any. If not, the segment keeps its due time.
    fn purge(&mut self) -> bool {
        let is_scheduled =
            self.schedule.expire != Expire::Never && self.schedule.scheduled_slices != Mask::default();
        if !self.schedule.is_allowed || !is_scheduled {
            return false;
        }
        self.released_slices.add(&self.schedule.scheduled_slices);
        self.schedule.scheduled_slices = Mask::default();
        self.schedule.expire = Expire::Never;
        true
    }

    /// Simulates the collection of a segment that an ended thread left: the main thread takes it
    /// and schedules each of its free spans.
    fn collect_abandoned(&mut self, collection: &Collection, is_main: bool) {
        for part in self.parts.clone() {
            match part.kind {
                PartKind::Page(_) if collection.is_dead(part) => self.free_page(part),
                PartKind::Free if is_main => self.schedule_purge(self.slices(part)),
                _ => {}
            }
        }
        if !is_main || self.purge_rule == SpanPurge::AtVisits {
            self.purge();
        }
    }

    /// Returns the range of the whole segment if no page is left: then mimalloc frees it.
    fn freed_range(&self) -> Option<AddressRange> {
        let end = self.parts.last().map_or(self.start, |part| part.end);
        (self.page_count == 0).then_some(AddressRange::new(self.start, end))
    }

    /// Returns the slices that were released, without those of pages in use.
    fn releasable_ranges(&self) -> Vec<AddressRange> {
        let slices = (0..MAX_SLICES).filter(|&slice| self.released_slices.has(slice));
        let slice_range = |slice| AddressRange::sized(self.start + slice as u64 * SLICE_BYTES, SLICE_BYTES);
        let ranges: RangeSet = slices.map(slice_range).collect();
        // The masks are the target's: they must not release pages in use.
        let free_parts = |range: &AddressRange| {
            let first_part = self.parts.partition_point(|part| part.end <= range.start);
            let parts_within = self.parts[first_part..].iter().take_while(|part| part.start < range.end);
            let is_free = |part: &&&Part| {
                matches!(part.kind, PartKind::Free | PartKind::Page(_))
                    && self.slices(part).all(|slice| self.free_slices.has(slice))
            };
            let pieces = parts_within.filter(is_free).map(|part| part.range().intersection(*range));
            pieces.collect::<Vec<_>>()
        };
        ranges.iter().flat_map(free_parts).collect()
    }
}

/// Returns all segments in their current state.
fn segments(heap: &Heap) -> BTreeMap<u64, Segment<'_>> {
    let mut segments: BTreeMap<u64, Segment<'_>> = BTreeMap::new();
    for part in &heap.parts {
        let Some(start) = part.release_unit else { continue };
        let segment = segments.entry(start).or_insert_with(|| Segment {
            start,
            thread: part.thread,
            purge_rule: heap.collect_rules.span_purge,
            // The segment of a single block has no schedule, and releases nothing by one.
            schedule: heap.purge_schedules.get(&start).copied().unwrap_or_default(),
            free_slices: Mask::default(),
            released_slices: Mask::default(),
            due_milliseconds: 0,
            parts: Vec::new(),
            page_count: 0,
        });
        segment.push(part);
    }
    segments
}

/// Memory that one collection releases, and when.
#[derive(Default)]
pub struct ReleasableMemory {
    /// Addresses that are released.
    pub ranges: Vec<AddressRange>,
    /// When all of that is released, in milliseconds of mimalloc's clock; 0 for at once.
    due_milliseconds: u64,
}

impl ReleasableMemory {
    /// Adds what a segment releases; the whole segment if it was freed and `includes_whole`.
    fn add(&mut self, segment: &Segment<'_>, includes_whole: bool) {
        self.due_milliseconds = segment.due_milliseconds.max(self.due_milliseconds);
        self.ranges.extend(segment.releasable_ranges());
        self.ranges.extend(segment.freed_range().filter(|_| includes_whole));
    }
}

/// What collections release, by the thread that makes them.
#[derive(Default)]
pub struct Releasable {
    /// Memory of each live thread, by its FS base.
    pub by_thread: HashMap<u64, ReleasableMemory>,
    /// Memory that ended threads left or that belongs to no thread, if the main thread collects.
    ended_by_main: ReleasableMemory,
    /// The same memory, if another thread collects.
    ended_by_other: ReleasableMemory,
    /// The first segment that each thread frees, in releases where only the main thread's are
    /// released at once.
    first_freed_segments: HashMap<u64, AddressRange>,
}

impl Releasable {
    /// Simulates a collection by each thread, including `main`, if that is among them.
    pub fn new(heap: &Heap, collection: &Collection, main: Option<u64>) -> Self {
        let mut segments = segments(heap);
        // If only the main thread has arenas purged, a segment freed by another waits from then on.
        let by_any_thread = heap.collect_rules.arena_purge != ArenaPurge::MainThread;
        let mut released = Self::default();
        for segment in segments.values().filter(|segment| segment.thread.is_none()) {
            for is_main in [true, false] {
                let mut segment = Segment { parts: segment.parts.clone(), ..*segment };
                segment.collect_abandoned(collection, is_main);
                let ended = if is_main { &mut released.ended_by_main } else { &mut released.ended_by_other };
                ended.add(&segment, is_main || by_any_thread);
            }
        }
        for PageVisit { page, order } in pages_in_visit_order(heap, collection) {
            let (Some(unit), Some(thread)) = (page.release_unit, page.thread) else { continue };
            let Some(segment) = segments.get_mut(&unit) else { continue };
            if heap.collect_rules.span_purge == SpanPurge::AtVisits && order.phase == VisitPhase::AllPages {
                segment.purge();
            }
            if collection.is_dead(page) {
                segment.free_page(page);
                let waits = !by_any_thread && Some(thread) != main;
                if let Some(freed) = segment.freed_range().filter(|_| waits) {
                    released.first_freed_segments.entry(thread).or_insert(freed);
                }
            }
        }
        for segment in segments.values() {
            let Some(thread) = segment.thread else { continue };
            let memory = released.by_thread.entry(thread).or_default();
            memory.add(segment, by_any_thread || Some(thread) == main);
        }
        released
    }

    /// Adds a range that the collections of `collector` release.
    pub fn add(&mut self, range: AddressRange, collector: Option<Collector>) {
        match collector {
            None => {}
            Some(Collector::Thread(thread)) => self.by_thread.entry(thread).or_default().ranges.push(range),
            Some(Collector::Main) => self.ended_by_main.ranges.push(range),
            Some(Collector::Any) => {
                self.ended_by_main.ranges.push(range);
                self.ended_by_other.ranges.push(range);
            }
        }
    }

    /// Returns what a collection releases of ended threads' memory, by whether the main thread
    /// makes it.
    pub fn of_ended_threads(&self, is_main: bool) -> &ReleasableMemory {
        if is_main { &self.ended_by_main } else { &self.ended_by_other }
    }

    /// Adds memory that waits in arenas for the main thread: the first segment that any thread
    /// frees releases all of it that is due (`arena.c`, `mi_arenas_try_purge`). The due time cannot
    /// be read. It is no later than the time assumed here: by default 100 ms from now
    /// (`arena_purge_mult` times `purge_delay`), and a tenth of that for each segment freed
    /// meanwhile.
    pub fn add_waiting(&mut self, heap: &Heap, is_resident: impl Fn(AddressRange) -> bool) {
        if self.first_freed_segments.is_empty() {
            return;
        }
        let waiting_parts = heap
            .parts
            .iter()
            .filter(|part| matches!(part.kind, PartKind::PurgePending) && part.release_unit.is_none());
        let waiting_ranges: Vec<_> =
            waiting_parts.map(Part::range).filter(|range| is_resident(*range)).collect();
        if waiting_ranges.is_empty() {
            return;
        }
        let delay_milliseconds =
            ARENA_DELAY_MILLISECONDS + ARENA_DELAY_MILLISECONDS / 10 * (waiting_ranges.len() as u64 + 1);
        let due_milliseconds =
            heap.read_at_milliseconds.saturating_add(delay_milliseconds.min(MAX_ARENA_WAIT_MILLISECONDS));
        for (&thread, first_segment) in &self.first_freed_segments {
            let memory = self.by_thread.entry(thread).or_default();
            memory.due_milliseconds = memory.due_milliseconds.max(due_milliseconds);
            memory.ranges.push(*first_segment);
            memory.ranges.extend(&waiting_ranges);
        }
    }

    /// Returns when a collection by `thread` has released all of its memory; 0 for at once.
    pub fn due_milliseconds(&self, thread: CollectingThread) -> u64 {
        self.memory_of(thread).map(|memory| memory.due_milliseconds).max().unwrap_or(0)
    }

    /// Returns what a collection by `thread` releases.
    pub fn releasable_by(&self, thread: CollectingThread) -> impl Iterator<Item = AddressRange> + '_ {
        self.memory_of(thread).flat_map(|memory| &memory.ranges).copied()
    }

    /// Returns the memory that a collection by `thread` releases.
    fn memory_of(&self, thread: CollectingThread) -> impl Iterator<Item = &ReleasableMemory> {
        self.by_thread.get(&thread.fs_base).into_iter().chain([self.of_ended_threads(thread.is_main)])
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::PageWords;
    use super::super::parts::CollectRules;
    use super::*;

    const START: u64 = 0x200_0000_0000;
    const MAIN: CollectingThread = CollectingThread { fs_base: 0x7f00_0000_1000, is_main: true };
    /// The thread of a segment that is still in use.
    const LIVE: Option<u64> = Some(MAIN.fs_base);
    const OTHER: CollectingThread = CollectingThread { fs_base: 0x7f00_0000_2000, is_main: false };

    fn slices(first: u64, end: u64) -> AddressRange {
        AddressRange::new(START + first * SLICE_BYTES, START + end * SLICE_BYTES)
    }

    /// A segment of a thread: its own slice; a live page; a dead page; a free slice; another dead
    /// page, of larger blocks; and a live page, of still larger blocks if `is_last`.
    fn heap(span_purge: SpanPurge, thread: Option<u64>, is_last: bool) -> (Heap, Collection) {
        let page = |number: u64, block_bytes: u64| {
            let words = PageWords { block_bytes, used: 1, structure: START + number, ..PageWords::default() };
            PartKind::Page(words)
        };
        let kinds = [
            (0, PartKind::Own),
            (1, page(1, 16)),
            (2, page(2, 32)),
            (3, PartKind::Free),
            (4, page(3, 64)),
            (5, page(4, if is_last { 128 } else { 16 })),
        ];
        let part = |(slice, kind): (u64, PartKind)| {
            let AddressRange { start, end } = slices(slice, slice + 1);
            Part { start, end, kind, release_unit: Some(START), thread }
        };
        let mut heap = Heap { parts: kinds.map(part).into(), ..Heap::default() };
        heap.collect_rules = CollectRules { span_purge, frees_ended: true, ..CollectRules::default() };
        let committed_slices = Mask::new([u64::MAX; MASK_WORDS].into_iter());
        let scheduled = PurgeSchedule {
            is_allowed: true,
            expire: Expire::Due,
            committed_slices,
            ..PurgeSchedule::default()
        };
        heap.purge_schedules.insert(START, scheduled);
        (heap, Collection::new(&[slices(2, 3).start, slices(4, 5).start], &[]))
    }

    fn released(span_purge: SpanPurge, thread: Option<u64>, is_last: bool) -> RangeSet {
        let (heap, collection) = heap(span_purge, thread, is_last);
        Releasable::new(&heap, &collection, LIVE).releasable_by(MAIN).collect()
    }

    #[test]
    fn released_slices_depend_on_the_purge_rule() {
        // The first page is released with the free slice beside it; at the second nothing is due.
        assert_eq!(*released(SpanPurge::WhenDue, LIVE, true), [slices(2, 4)]);
        assert_eq!(*released(SpanPurge::Kept, LIVE, true), []);
        // If the collection visits a later page, all that was freed before it is released.
        assert_eq!(*released(SpanPurge::AtVisits, LIVE, true), [slices(2, 5)]);
        assert_eq!(*released(SpanPurge::AtVisits, LIVE, false), [slices(2, 4)]);
    }

    #[test]
    fn main_thread_collects_segments_of_ended_threads() {
        assert_eq!(*released(SpanPurge::AtVisits, None, false), [slices(2, 5)]);
        let (heap, collection) = heap(SpanPurge::Kept, None, true);
        let all = Releasable::new(&heap, &collection, LIVE);
        // Another thread releases its scheduled slices; the main thread keeps them.
        assert_eq!(all.releasable_by(OTHER).collect::<Vec<_>>(), [slices(2, 3), slices(3, 4), slices(4, 5)]);
        assert_eq!(all.releasable_by(MAIN).count(), 0);
    }

    #[test]
    fn uncommitted_and_disallowed_slices_are_not_released() {
        let (mut heap, collection) = heap(SpanPurge::AtVisits, LIVE, true);
        for scheduled in heap.purge_schedules.values_mut() {
            scheduled.committed_slices = Mask::new([1 << 2].into_iter());
        }
        assert_eq!(
            Releasable::new(&heap, &collection, LIVE).releasable_by(MAIN).collect::<Vec<_>>(),
            [slices(2, 3)]
        );
        heap.purge_schedules.values_mut().for_each(|scheduled| scheduled.is_allowed = false);
        assert_eq!(Releasable::new(&heap, &collection, LIVE).releasable_by(MAIN).count(), 0);
    }

    #[test]
    fn a_collection_waits_only_for_committed_slices() {
        for (committed, due_milliseconds) in [(u64::MAX, 7), (0, 0)] {
            let (mut heap, collection) = heap(SpanPurge::WhenDue, LIVE, true);
            for scheduled in heap.purge_schedules.values_mut() {
                scheduled.committed_slices = Mask::new([committed].into_iter());
                scheduled.due_milliseconds = 7;
            }
            let released = Releasable::new(&heap, &collection, LIVE);
            assert_eq!(released.due_milliseconds(MAIN), due_milliseconds);
        }
    }

    #[test]
    fn visits_of_a_cyclic_page_list_terminate() {
        let (mut heap, collection) = heap(SpanPurge::AtVisits, LIVE, true);
        for part in &mut heap.parts {
            if let PartKind::Page(page) = &mut part.kind {
                (page.next, page.previous) = (Some(START + 1), None);
                page.structure = START + 1;
            }
        }
        assert_eq!(pages_in_visit_order(&heap, &collection).len(), 1);
    }
}
