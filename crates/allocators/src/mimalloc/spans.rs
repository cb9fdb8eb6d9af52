//! What a collection releases of segments of 2.x, which free their pages into spans of slices.
//!
//! A freed page joins the adjacent free spans, and the committed part of the joined span is
//! scheduled: a bit per slice in the segment's `purge_mask`. When scheduled slices are released
//! differs by release ([`SpanPurge`]) and depends on the order in which pages are freed: the last
//! ones mostly stay scheduled. So a collection is simulated page by page, as mimalloc does it
//! (`heap.c`, `mi_heap_collect_ex`; `segment.c`, `_mi_segment_page_free`,
//! `mi_segment_schedule_purge`, `mi_segment_try_purge`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use super::collect::{Collection, Collector};
use super::layout::{PageWords, SLICE_BYTES};
use super::parts::{ArenaPurge, Heap, Kind, Part, SpanPurge};
use strandline_claims::bits;
use strandline_process::range::{AddressRange, RangeSet};

/// Words of the largest mask: 1,024 slices of 64 KiB.
const MASK_WORDS: usize = 16;
/// Milliseconds for which an arena keeps a freed segment (options.c, mimalloc 2.1: `purge_delay`
/// 10, `arena_purge_mult` 10), and the longest that `reclaim` waits for several.
const ARENA_DELAY: u64 = 100;
const MAX_ARENA_WAIT: u64 = 500;
/// A larger block has a page of its own, and all such pages are in one queue
/// (`MI_MEDIUM_OBJ_SIZE_MAX`, `MI_BIN_HUGE`).
const MEDIUM_BYTES: u64 = 128 << 10;

/// One bit per slice of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask([u64; MASK_WORDS]);

impl Mask {
    /// A mask of these words; the rest is 0.
    pub fn new(words: impl Iterator<Item = u64>) -> Self {
        let mut mask = Self::default();
        for (own, word) in mask.0.iter_mut().zip(words) {
            *own = word;
        }
        mask
    }

    fn has(&self, slice: usize) -> bool {
        bits::has(&self.0, slice)
    }

    fn set(&mut self, slice: usize) {
        bits::set(&mut self.0, slice);
    }

    fn add(&mut self, other: &Self) {
        for (own, word) in self.0.iter_mut().zip(other.0) {
            *own |= word;
        }
    }

    /// Returns the run of set bits around `slices`.
    fn around(&self, slices: Range<usize>) -> Range<usize> {
        let Range { start: mut first, end: mut past_last } = slices;
        while first > 0 && self.has(first - 1) {
            first -= 1;
        }
        while self.has(past_last) {
            past_last += 1;
        }
        first..past_last
    }
}

/// When scheduled slices are due (`purge_expire`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expire {
    /// Nothing is scheduled.
    #[default]
    Never,
    /// Not soon: no call waits for them.
    Later,
    /// Due, or due soon: a call waits for them.
    Due,
}

/// When the free slices of a segment are released.
#[derive(Clone, Copy, Debug, Default)]
pub struct PurgeSchedule {
    /// Whether the segment may release anything.
    pub is_allowed: bool,
    /// When scheduled slices are due.
    pub expire: Expire,
    /// That time, in milliseconds of mimalloc's clock.
    pub due_milliseconds: u64,
    /// Scheduled slices.
    pub slices: Mask,
    /// Committed slices.
    pub committed: Mask,
}

/// A segment as a collection changes it.
struct Segment<'a> {
    start: u64,
    thread: u64,
    rules: SpanPurge,
    /// State of its free slices; empty if the segment is a single block's.
    schedule: PurgeSchedule,
    free: Mask,
    released: Mask,
    /// Due time of all of `given`, if the clock decides.
    due_milliseconds: u64,
    /// Its parts, in address order.
    parts: Vec<&'a Part>,
    pages: usize,
}

impl<'a> Segment<'a> {
    fn slices(&self, part: &Part) -> Range<usize> {
        let slice = |at: u64| ((at - self.start) / SLICE_BYTES) as usize;
        slice(part.start)..slice(part.end).min(64 * MASK_WORDS)
    }

    fn push(&mut self, part: &'a Part) {
        match part.kind {
            Kind::Page(_) => self.pages += 1,
            Kind::Free => self.slices(part).for_each(|slice| self.free.set(slice)),
            Kind::Own | Kind::PurgePending => {}
        }
        self.parts.push(part);
    }

    /// `mi_segment_schedule_purge`.
    fn schedule_purge(&mut self, slices: Range<usize>) {
        if !self.schedule.is_allowed {
            return;
        }
        let committed = self.schedule.committed;
        slices.filter(|&slice| committed.has(slice)).for_each(|slice| self.schedule.slices.set(slice));
        match self.schedule.expire {
            Expire::Due if self.rules != SpanPurge::Kept => {
                self.due_milliseconds = self.schedule.due_milliseconds;
                self.purge();
            }
            _ => self.schedule.expire = Expire::Later,
        }
    }

    /// Frees a page with nothing live (`mi_segment_page_clear`).
    fn free(&mut self, part: &Part) {
        let slices = self.slices(part);
        slices.clone().for_each(|slice| self.free.set(slice));
        self.pages = self.pages.saturating_sub(1);
        let span = self.free.around(slices);
        self.schedule_purge(span);
    }

    /// `mi_segment_try_purge`, `mi_segment_delayed_decommit`; an empty mask keeps its expiry.
    fn purge(&mut self) {
        let is_scheduled = self.schedule.expire != Expire::Never && self.schedule.slices != Mask::default();
        if self.schedule.is_allowed && is_scheduled {
            self.released.add(&self.schedule.slices);
            self.schedule.slices = Mask::default();
            self.schedule.expire = Expire::Never;
        }
    }

    /// Simulates the collection of a segment that an ended thread left: the main thread takes it
    /// and schedules each of its free spans.
    fn collect_abandoned(&mut self, collection: &Collection, is_main: bool) {
        for part in self.parts.clone() {
            match part.kind {
                Kind::Page(_) if collection.is_dead(part) => self.free(part),
                Kind::Free if is_main => self.schedule_purge(self.slices(part)),
                _ => {}
            }
        }
        if !is_main || self.rules == SpanPurge::AtVisits {
            self.purge();
        }
    }

    /// Returns the whole segment if no page is left.
    fn whole(&self) -> Option<AddressRange> {
        let end = self.parts.last().map_or(self.start, |part| part.end);
        (self.pages == 0).then_some(AddressRange::new(self.start, end))
    }

    /// Returns what was released of it before it was freed.
    fn ranges(&self) -> Vec<AddressRange> {
        let slices = (0..64 * MASK_WORDS).filter(|&slice| self.released.has(slice));
        let slice_range = |slice| AddressRange::sized(self.start + slice as u64 * SLICE_BYTES, SLICE_BYTES);
        let ranges: RangeSet = slices.map(slice_range).collect();
        // Pages in use stay, whatever the masks hold.
        let free = |range: &AddressRange| {
            let first = self.parts.partition_point(|part| part.end <= range.start);
            let within = self.parts[first..].iter().take_while(|part| part.start < range.end);
            let is_free = |part: &&&Part| {
                matches!(part.kind, Kind::Free | Kind::Page(_))
                    && self.slices(part).all(|slice| self.free.has(slice))
            };
            let pieces = within.filter(is_free).map(|part| part.range().intersection(*range));
            pieces.collect::<Vec<_>>()
        };
        ranges.iter().flat_map(free).collect()
    }
}

/// Returns all segments in their current state.
fn segments(heap: &Heap) -> BTreeMap<u64, Segment<'_>> {
    let mut segments: BTreeMap<u64, Segment<'_>> = BTreeMap::new();
    for part in heap.parts.iter().filter(|part| part.unit != 0) {
        let segment = segments.entry(part.unit).or_insert_with(|| Segment {
            start: part.unit,
            thread: part.thread,
            rules: heap.collect.spans,
            schedule: heap.purge_schedules.get(&part.unit).copied().unwrap_or_default(),
            free: Mask::default(),
            released: Mask::default(),
            due_milliseconds: 0,
            parts: Vec::new(),
            pages: 0,
        });
        segment.push(part);
    }
    segments
}

/// What collections release, by the thread that makes them.
#[derive(Default)]
pub struct Released {
    /// What belongs to a thread.
    pub own: HashMap<u64, Vec<AddressRange>>,
    /// What ended threads left and what belongs to no thread: if the main thread collects, and if
    /// another does.
    pub of_ended: [Vec<AddressRange>; 2],
    /// Due time of a thread's memory, if the clock decides.
    due_milliseconds: HashMap<u64, u64>,
    /// The same for what ended threads left.
    due_of_ended: [u64; 2],
    /// The first segment without pages of each thread, in releases where only the main thread's are
    /// released at once.
    pub first: HashMap<u64, AddressRange>,
}

impl Released {
    /// Simulates a collection by each thread, including `main`.
    pub fn new(heap: &Heap, collection: &Collection, main: u64) -> Self {
        let mut segments = segments(heap);
        // If only the main thread has arenas purged, a segment freed by another waits from then on.
        let by_any_thread = heap.collect.arenas != ArenaPurge::MainThread;
        let mut released = Self::default();
        for segment in segments.values().filter(|segment| segment.thread == 0) {
            for (at, is_main) in [true, false].into_iter().enumerate() {
                let (ranges, due) = (&mut released.of_ended[at], &mut released.due_of_ended[at]);
                let mut segment = Segment { parts: segment.parts.clone(), ..*segment };
                segment.collect_abandoned(collection, is_main);
                *due = segment.due_milliseconds.max(*due);
                ranges.extend(segment.ranges());
                ranges.extend(segment.whole().filter(|_| is_main || by_any_thread));
            }
        }
        segments.retain(|_, segment| segment.thread != 0);
        for (page, order) in visits(heap, collection) {
            let Some(segment) = segments.get_mut(&page.unit) else { continue };
            if heap.collect.spans == SpanPurge::AtVisits && order.phase == VisitPhase::Visited {
                segment.purge();
            }
            if collection.is_dead(page) {
                segment.free(page);
                if let Some(whole) = segment.whole().filter(|_| !by_any_thread && segment.thread != main) {
                    released.first.entry(segment.thread).or_insert(whole);
                }
            }
        }
        for segment in segments.values() {
            let due = released.due_milliseconds.entry(segment.thread).or_default();
            *due = segment.due_milliseconds.max(*due);
            let own = released.own.entry(segment.thread).or_default();
            own.extend(segment.ranges());
            own.extend(segment.whole().filter(|_| by_any_thread || segment.thread == main));
        }
        released
    }

    /// Adds a range that these collections release.
    pub fn add(&mut self, range: AddressRange, collector: Option<Collector>) {
        let [main, other] = &mut self.of_ended;
        match collector {
            None => {}
            Some(Collector::Thread(thread)) => self.own.entry(thread).or_default().push(range),
            Some(Collector::Main) => main.push(range),
            Some(Collector::Any) => {
                main.push(range);
                other.push(range);
            }
        }
    }

    /// If memory waits in arenas for the main thread, the first segment that is freed triggers the
    /// return of all that is due (`arena.c`, `mi_arenas_try_purge`). The time is not visible, but
    /// within the wait here: by default 100 ms (`arena_purge_mult` times `purge_delay`), and a
    /// tenth of that for each segment freed meanwhile.
    pub fn add_waiting(&mut self, heap: &Heap, is_resident: impl Fn(AddressRange) -> bool) {
        if self.first.is_empty() {
            return;
        }
        let waiting =
            heap.parts.iter().filter(|part| matches!(part.kind, Kind::PurgePending) && part.unit == 0);
        let waiting: Vec<_> = waiting.map(Part::range).filter(|range| is_resident(*range)).collect();
        let latest = ARENA_DELAY + ARENA_DELAY / 10 * (waiting.len() as u64 + 1);
        for (thread, first) in self.first.iter().filter(|_| !waiting.is_empty()) {
            let due = self.due_milliseconds.entry(*thread).or_default();
            *due = heap.now.saturating_add(latest.min(MAX_ARENA_WAIT)).max(*due);
            let own = self.own.entry(*thread).or_default();
            own.push(*first);
            own.extend(&waiting);
        }
    }

    /// When a collection by `thread` has released all of that; 0 for at once.
    pub fn due_milliseconds(&self, thread: u64, is_main: bool) -> u64 {
        let own = self.due_milliseconds.get(&thread).copied().unwrap_or(0);
        own.max(self.due_of_ended[usize::from(!is_main)])
    }

    /// What a collection by `thread` releases.
    pub fn released_by(&self, thread: u64, is_main: bool) -> impl Iterator<Item = AddressRange> + '_ {
        let ended = &self.of_ended[usize::from(!is_main)];
        self.own.get(&thread).into_iter().flatten().chain(ended).copied()
    }
}

/// When a collection visits a page, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum VisitPhase {
    /// With blocks that other threads freed (`_mi_heap_delayed_free_all`).
    Delayed,
    /// As a retired page (`_mi_heap_collect_retired`).
    Retired,
    /// With all pages of its heap (`mi_heap_visit_pages`).
    Visited,
}

/// Position of a page in the order of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct VisitOrder {
    phase: VisitPhase,
    /// Full pages are in the last queue of a heap; the others are ordered by block size.
    is_full: bool,
    block_bytes: u64,
    /// Position in its queue.
    number: usize,
}

/// Returns the pages of live threads in the order in which collections visit them.
fn visits<'a>(heap: &'a Heap, collection: &Collection) -> Vec<(&'a Part, VisitOrder)> {
    let pages = heap.parts.iter().filter(|part| part.thread != 0 && collection.is_visited(part));
    let pages = pages.filter_map(|part| Some((part, part.page()?)));
    let next: HashMap<u64, u64> = pages.clone().map(|(_, page)| (page.structure, page.links[0])).collect();
    let mut numbers: HashMap<u64, usize> = HashMap::new();
    for (_, page) in pages.clone().filter(|(_, page)| page.links[1] == 0) {
        let mut at = page.structure;
        // A page that already has a number closes a cycle.
        while let Some(&next_page) = next.get(&at).filter(|_| !numbers.contains_key(&at)) {
            numbers.insert(at, numbers.len());
            at = next_page;
        }
    }
    let mut seen = HashSet::new();
    let pages: Vec<_> = pages.filter(|(_, page)| seen.insert(page.structure)).collect();
    let after_delayed = phases_of_delayed(&pages, collection);
    let order_of = |part: &Part, page: &PageWords| {
        let delayed = collection.list_positions(part);
        let phase = match after_delayed.get(&page.structure) {
            Some(&phase) => phase,
            None if page.is_retired && page.used == 0 && page.links[1] == 0 => VisitPhase::Retired,
            None => VisitPhase::Visited,
        };
        let number = match &delayed {
            Some(positions) if phase == VisitPhase::Delayed => Some(next.len() + positions.end()),
            // A full page moves to the end of the queue of its size with the first of its blocks.
            Some(positions) if page.is_full => Some(next.len() + positions.start()),
            _ => numbers.get(&page.structure).copied(),
        };
        let is_ordered_by_size = phase != VisitPhase::Delayed;
        VisitOrder {
            phase,
            is_full: is_ordered_by_size && page.is_full && delayed.is_none(),
            block_bytes: match page.block_bytes {
                _ if !is_ordered_by_size => 0,
                bytes if bytes > MEDIUM_BYTES => u64::MAX,
                bytes => bytes,
            },
            number: number.unwrap_or(usize::MAX),
        }
    };
    let mut visits: Vec<(&Part, VisitOrder)> =
        pages.iter().map(|(part, page)| (*part, order_of(part, page))).collect();
    visits.sort_by_key(|(_, order)| *order);
    visits
}

/// Simulates the first step of a collection, which frees the blocks that other threads freed one by
/// one (`_mi_free_delayed_block`). Returns when it frees the pages whose last block is among them:
/// at once, or as retired pages if a page is the only one of its queue at that moment
/// (`_mi_page_retire`).
fn phases_of_delayed(pages: &[(&Part, PageWords)], collection: &Collection) -> HashMap<u64, VisitPhase> {
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    enum Change {
        /// A full page joins the queue of its size with the first of its blocks.
        Joins,
        /// The last block of a page in the queue of its size is freed.
        Ends,
        /// The same of a page that is still in the queue of full pages.
        EndsFull,
    }
    let queue_of = |page: &PageWords| (page.heaps[0], page.block_bytes);
    let mut queues: HashMap<(u64, u64), usize> = HashMap::new();
    let mut changes = Vec::new();
    for (number, (part, page)) in pages.iter().enumerate() {
        if !page.is_full {
            *queues.entry(queue_of(page)).or_default() += 1;
        }
        let Some(positions) = collection.list_positions(part) else { continue };
        let (first, last) = positions.into_inner();
        let is_dead = collection.is_dead(part);
        if page.is_full && is_dead && first == last {
            changes.push((last, Change::EndsFull, number));
            continue;
        }
        if page.is_full {
            changes.push((first, Change::Joins, number));
        }
        if is_dead {
            changes.push((last, Change::Ends, number));
        }
    }
    changes.sort_unstable();
    let mut phases = HashMap::new();
    for (_, change, number) in changes {
        let Some((_, page)) = pages.get(number) else { continue };
        let in_queue = queues.entry(queue_of(page)).or_default();
        let phase = match change {
            Change::Joins => {
                *in_queue += 1;
                continue;
            }
            Change::Ends if *in_queue == 1 && page.block_bytes <= MEDIUM_BYTES => VisitPhase::Retired,
            Change::Ends => {
                *in_queue = in_queue.saturating_sub(1);
                VisitPhase::Delayed
            }
            Change::EndsFull => VisitPhase::Delayed,
        };
        phases.insert(page.structure, phase);
    }
    phases
}

#[cfg(test)]
mod tests {
    use super::super::parts::Collect;
    use super::*;

    const START: u64 = 0x200_0000_0000;
    const THREAD: u64 = 0x7f00_0000_1000;
    const OTHER: u64 = 0x7f00_0000_2000;

    fn slices(first: u64, behind: u64) -> AddressRange {
        AddressRange::new(START + first * SLICE_BYTES, START + behind * SLICE_BYTES)
    }

    /// A segment of a thread: its own slice; a live page; a dead page; a free slice; another dead
    /// page, of larger blocks; and a live page, of still larger blocks if `is_last`.
    fn heap(spans: SpanPurge, thread: u64, is_last: bool) -> (Heap, Collection) {
        let page = |number: u64, block_bytes: u64| {
            let words = PageWords { block_bytes, used: 1, structure: START + number, ..PageWords::default() };
            Kind::Page(words)
        };
        let kinds = [
            (0, Kind::Own),
            (1, page(1, 16)),
            (2, page(2, 32)),
            (3, Kind::Free),
            (4, page(3, 64)),
            (5, page(4, if is_last { 128 } else { 16 })),
        ];
        let part = |(slice, kind): (u64, Kind)| {
            let AddressRange { start, end } = slices(slice, slice + 1);
            Part { start, end, kind, unit: START, thread }
        };
        let mut heap = Heap { parts: kinds.map(part).into(), ..Heap::default() };
        heap.collect = Collect { spans, ended: true, ..Collect::default() };
        let committed = Mask::new([u64::MAX; MASK_WORDS].into_iter());
        let scheduled =
            PurgeSchedule { is_allowed: true, expire: Expire::Due, committed, ..PurgeSchedule::default() };
        heap.purge_schedules.insert(START, scheduled);
        (heap, Collection::new(&[slices(2, 3).start, slices(4, 5).start], &[]))
    }

    fn released(spans: SpanPurge, thread: u64, is_last: bool) -> RangeSet {
        let (heap, collection) = heap(spans, thread, is_last);
        Released::new(&heap, &collection, THREAD).released_by(THREAD, true).collect()
    }

    #[test]
    fn released_slices_depend_on_the_purge_rule() {
        // The first page is released with the free slice beside it; at the second nothing is due.
        assert_eq!(*released(SpanPurge::WhenDue, THREAD, true), [slices(2, 4)]);
        assert_eq!(*released(SpanPurge::Kept, THREAD, true), []);
        // If the collection visits a later page, all that was freed before it is released.
        assert_eq!(*released(SpanPurge::AtVisits, THREAD, true), [slices(2, 5)]);
        assert_eq!(*released(SpanPurge::AtVisits, THREAD, false), [slices(2, 4)]);
    }

    #[test]
    fn main_thread_collects_segments_of_ended_threads() {
        assert_eq!(*released(SpanPurge::AtVisits, 0, false), [slices(2, 5)]);
        let (heap, collection) = heap(SpanPurge::Kept, 0, true);
        let all = Released::new(&heap, &collection, THREAD);
        // Another thread releases its scheduled slices; the main thread keeps them.
        assert_eq!(
            all.released_by(OTHER, false).collect::<Vec<_>>(),
            [slices(2, 3), slices(3, 4), slices(4, 5)]
        );
        assert_eq!(all.released_by(THREAD, true).count(), 0);
    }

    #[test]
    fn uncommitted_and_disallowed_slices_are_not_released() {
        let (mut heap, collection) = heap(SpanPurge::AtVisits, THREAD, true);
        for scheduled in heap.purge_schedules.values_mut() {
            scheduled.committed = Mask::new([1 << 2].into_iter());
        }
        assert_eq!(
            Released::new(&heap, &collection, THREAD).released_by(THREAD, true).collect::<Vec<_>>(),
            [slices(2, 3)]
        );
        heap.purge_schedules.values_mut().for_each(|scheduled| scheduled.is_allowed = false);
        assert_eq!(Released::new(&heap, &collection, THREAD).released_by(THREAD, true).count(), 0);
    }

    /// A page whose last block another thread freed is retired if it is alone in its queue when
    /// that block is freed: a full page joins the queue with the first of its blocks.
    #[test]
    fn only_page_of_a_queue_is_retired() {
        let page = |number: u64, is_full: bool| {
            let AddressRange { start, end } = slices(number, number + 1);
            let words = PageWords {
                block_bytes: 8192,
                used: 2,
                is_full,
                structure: START + number,
                ..PageWords::default()
            };
            (Part { start, end, kind: Kind::Page(words), unit: START, thread: THREAD }, words)
        };
        let parts = [page(1, false), page(2, true)];
        let pages: Vec<(&Part, PageWords)> = parts.iter().map(|(part, words)| (part, *words)).collect();
        let [alone, full] = [slices(1, 2).start, slices(2, 3).start];
        let phases = |dead: &[u64], delayed: &[u64]| {
            let phases = phases_of_delayed(&pages, &Collection::new(dead, delayed));
            [1, 2].map(|number| phases.get(&(START + number)).copied())
        };
        let (retired, delayed) = (Some(VisitPhase::Retired), Some(VisitPhase::Delayed));
        assert_eq!(phases(&[alone], &[alone]), [retired, None]);
        assert_eq!(phases(&[alone], &[alone, full]), [retired, None]);
        assert_eq!(phases(&[alone], &[full, alone]), [delayed, None]);
        // With its only block it is freed as a full page; with the second of two it has a queue.
        assert_eq!(phases(&[alone, full], &[full, alone]), [retired, delayed]);
        assert_eq!(phases(&[alone, full], &[full, alone, full + 8192]), [delayed, retired]);
        assert_eq!(phases(&[alone, full], &[full, full + 8192, alone]), [retired, delayed]);
        assert_eq!(phases(&[], &[full, alone]), [None, None]);
    }

    #[test]
    fn visits_of_a_cyclic_page_list_terminate() {
        let (mut heap, collection) = heap(SpanPurge::AtVisits, THREAD, true);
        for part in &mut heap.parts {
            if let Kind::Page(page) = &mut part.kind {
                page.links = [START + 1, 0];
                page.structure = START + 1;
            }
        }
        assert_eq!(visits(&heap, &collection).len(), 1);
    }
}
