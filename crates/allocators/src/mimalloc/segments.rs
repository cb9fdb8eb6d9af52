//! Finds mimallocs with segments (1.6 to 2.4), and divides their memory.
//!
//! A segment is aligned to its size and holds its own address XOR a key of the process. The key is
//! in the static data of the program or library that contains mimalloc, so no symbol is needed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use super::layout::{FirstBlock, PageLayout, SLICE_BYTES};
use super::parts::{ArenaPurge, Heap, Part, PartKind, UnreadHeaps};
use super::segment_layout::{
    ALIGNMENT, HEADER_BYTES, HUGE_PAGE_KIND, HUGE_SEGMENT_KIND, MAX_ALIGNED_PAGE_BYTES, NO_PAGE_BLOCK_BYTES,
    NORMAL_SEGMENT_KIND, PAGE_SHIFTS, SEGMENTS, SLICE_COUNT, SLICE_OFFSET, SegmentDivision, SegmentLayout,
};
use super::spans::{Expire, Mask, PurgeSchedule};
use crate::radix::UnclaimedMemory;
use crate::scan::{each_word, is_mapped_memory};
use strandline_claims::allocator::Context;
use strandline_process::host;
use strandline_process::memory::{half_word_at, word_at};
use strandline_process::modules;
use strandline_process::pages::{PAGE_BYTES, USER_ADDRESS_END};
use strandline_process::range::{AddressRange, RangeSet};

/// Maximum candidates for segments.
const MAX_SEGMENTS: usize = 1 << 18;
/// Bytes searched for keys, per mapping of static data.
const MAX_DATA_BYTES: u64 = 64 << 20;
/// Maximum mimallocs of one process.
const MAX_HEAPS: usize = 16;
/// Maximum bytes of a segment's own structures: 1,025 pages of 96 bytes, and more.
const MAX_INFO_BYTES: u64 = 1 << 20;
/// Maximum parts of a heap: at least 256 GiB of pages.
const MAX_PARTS: usize = 1 << 22;

/// Segments on which each layout is tried.
const MAX_VOTES: usize = 16;
/// Minimum number of segments of which half must fit; below half, the build has another layout.
const MIN_VOTES: usize = 4;

/// Purges that are due within this time, as after a program's last frees, count as due, because
/// `reclaim` waits that long.
const SOON_MILLISECONDS: u64 = 500;

/// How many segments fit a layout.
#[derive(Clone, Copy, Default)]
struct Votes {
    /// Number of segments tried.
    total: usize,
    /// Number of these that fit the layout.
    fitting: usize,
    bytes_read: u64,
}

/// A possible segment.
struct Candidate {
    start: u64,
    layout: &'static SegmentLayout,
    key: u64,
}

/// Finds all heaps of a process outside `taken` (claimed by others).
pub fn find(context: &Context<'_>, taken: &RangeSet) -> Vec<Heap> {
    let mut candidates = candidates(context);
    if candidates.is_empty() {
        return Vec::new();
    }
    let objects = objects_with_keys(context, &candidates);
    candidates.retain(|candidate| objects.contains_key(&candidate.key));
    // There is one mimalloc per key. Its layout is the one in which most segments have as many
    // pages as they record.
    let mut heaps: Vec<Heap> = Vec::new();
    let mut taken = taken.clone();
    let votes_by_key = count_votes(context, &candidates);
    let is_only = votes_by_key.len() == 1;
    let mut remaining_votes = votes_by_key.into_iter();
    for (key, votes) in remaining_votes.by_ref().take(MAX_HEAPS) {
        let Some(number) = best_layout(&votes) else { continue };
        let Some((layout, layout_votes)) = SEGMENTS.get(number).zip(votes.get(&number)) else { continue };
        let Object { address, name } = objects.get(&key).cloned().unwrap_or_default();
        let mut heap = Heap {
            object: address,
            name,
            releases: layout.releases,
            delayed_free: Some(layout.delayed_free),
            collect_rules: layout.collect_rules.unwrap_or_default(),
            has_offsets: layout.page.start == FirstBlock::Offset,
            thread_data_bytes: layout.thread_data_bytes,
            bytes_read: votes.values().map(|votes| votes.bytes_read).sum(),
            read_at_milliseconds: host::monotonic_milliseconds(),
            // In a running process a few segments are mid-update; in another build nearly all
            // disagree.
            is_encoded: layout_votes.total >= MIN_VOTES && layout_votes.fitting * 2 < layout_votes.total,
            ..Heap::default()
        };
        let has_fitting = layout_votes.fitting > 0 || votes.values().all(|votes| votes.total == 0);
        let mut segments = candidates.iter().filter(|candidate| candidate.key == key).peekable();
        if let Some(first) = segments.peek().filter(|_| !has_fitting || heap.is_encoded) {
            // All segments may be mid-update: nothing is claimed.
            heap.doubts.note_damage(first.start, 0);
        } else {
            let segments = segments.filter(|candidate| candidate.layout == layout);
            add_parts(context, segments, &taken, layout, &mut heap, is_only);
            taken.add(heap.parts.iter().map(Part::range));
        }
        heaps.push(heap);
    }
    let layouts = remaining_votes.filter_map(|(key, votes)| Some((key, SEGMENTS.get(best_layout(&votes)?)?)));
    if let Some(last) = heaps.last_mut() {
        last.unread_heaps = unread_heaps(context, &candidates, &layouts.collect(), &taken);
    }
    heaps
}

/// Returns the index of the layout that most segments of a heap fit, the first one of equals.
fn best_layout(votes: &BTreeMap<usize, Votes>) -> Option<usize> {
    let layout_and_votes =
        votes.iter().max_by_key(|(number, votes)| (votes.fitting, std::cmp::Reverse(**number)));
    layout_and_votes.map(|(&number, _)| number)
}

/// Counts the heaps that are not read, given the layout of each by its key. A key without a segment
/// outside `taken` is no heap: other words at the place of a cookie make keys too.
fn unread_heaps(
    context: &Context<'_>,
    candidates: &[Candidate],
    layouts: &HashMap<u64, &SegmentLayout>,
    taken: &RangeSet,
) -> UnreadHeaps {
    let (mut keys, mut first_segment) = (HashSet::new(), 0);
    let (mut segments, mut is_late) = (Vec::new(), false);
    let has_layout = |candidate: &&Candidate| layouts.get(&candidate.key) == Some(&candidate.layout);
    for candidate in candidates.iter().filter(has_layout) {
        if taken.contains(candidate.start) {
            continue;
        }
        if keys.is_empty() {
            first_segment = candidate.start;
        }
        keys.insert(candidate.key);
        is_late = is_late || Instant::now() >= context.deadline;
        if !is_late {
            segments.push(mapped_segment(context, candidate));
        }
    }
    // Hostile segments may overlap.
    let segments = segments.into_iter().collect::<RangeSet>().without(taken);
    let resident_bytes: u64 = segments.iter().map(|&segment| context.resident_bytes(segment)).sum();
    UnreadHeaps { count: keys.len(), first_segment, resident_bytes: (!is_late).then_some(resident_bytes) }
}

/// Returns the addresses of a segment, as far as they are in the mapping of its start.
fn mapped_segment(context: &Context<'_>, candidate: &Candidate) -> AddressRange {
    let mut header = [0; HEADER_BYTES];
    let header = context.memory.read(candidate.start, &mut header).ok().map(|()| header);
    let bytes = header.map_or(candidate.layout.bytes, |header| segment_bytes(candidate.layout, &header));
    let mapped = context.space.find(candidate.start).map(|mapping| mapping.range()).unwrap_or_default();
    AddressRange::sized(candidate.start, bytes).intersection(mapped)
}

/// Returns the size of a segment that begins with these bytes.
fn segment_bytes(layout: &SegmentLayout, header: &[u8]) -> u64 {
    let word = |at: usize| word_at(header, at).unwrap_or(0);
    match layout.division {
        SegmentDivision::Pages { segment_bytes, .. } => word(segment_bytes),
        SegmentDivision::Slices { slices, .. } => word(slices).saturating_mul(SLICE_BYTES),
    }
}

/// Tries the layout of each candidate; returns the votes by key and index of the layout.
fn count_votes(context: &Context<'_>, candidates: &[Candidate]) -> BTreeMap<u64, BTreeMap<usize, Votes>> {
    let mut votes_by_key: BTreeMap<u64, BTreeMap<usize, Votes>> = BTreeMap::new();
    for candidate in candidates {
        let number = SEGMENTS.iter().position(|layout| layout == candidate.layout).unwrap_or(0);
        let votes = votes_by_key.entry(candidate.key).or_default().entry(number).or_default();
        if votes.total < MAX_VOTES && Instant::now() < context.deadline {
            votes.count_vote(context, candidate);
        }
    }
    votes_by_key
}

/// Adds the parts of a heap with these segments, outside `taken`. `is_only` if the process has no
/// other heap with segments.
fn add_parts<'a>(
    context: &Context<'_>,
    segments: impl Iterator<Item = &'a Candidate>,
    taken: &RangeSet,
    layout: &SegmentLayout,
    heap: &mut Heap,
    is_only: bool,
) {
    let mut unclaimed = UnclaimedMemory::new(context, taken);
    let mut segments = segments.peekable();
    while let Some(candidate) = segments.next() {
        if Instant::now() >= context.deadline {
            heap.doubts.note_timeout(candidate.start);
            break;
        }
        if heap.parts.len() >= MAX_PARTS {
            heap.doubts.note_damage(candidate.start, 0);
            break;
        }
        if heap.parts.last().is_none_or(|last| last.end <= candidate.start) {
            let next_start = segments.peek().map_or(u64::MAX, |next| next.start);
            add_segment(context, candidate, next_start, &mut unclaimed, heap);
        }
    }
    // In older releases it is unknown whether gaps between segments will be purged.
    let is_purged = heap.collect_rules.arena_purge == ArenaPurge::AnyThread && !heap.has_offsets;
    // Unread memory may be in use; with several heaps, its owner is unknown.
    if heap.doubts.is_empty() && is_only {
        let kind = if is_purged { PartKind::PurgePending } else { PartKind::Free };
        add_gaps(context, heap, kind, layout.bytes, &mut unclaimed);
    }
}

/// Addresses that mimalloc requests from the kernel (`os.c`, `_mi_os_get_aligned_hint`). Nothing
/// else uses them: mimalloc mapped the memory between segments there, and does not use it.
pub const HINTS: std::ops::Range<u64> = 2 << 40..30 << 40;

/// Adds the free memory beside the segments of each mapping, as `kind`. If a segment does not fill
/// its arena blocks of `block_bytes`, the remainder of these is released with it.
fn add_gaps(
    context: &Context<'_>,
    heap: &mut Heap,
    kind: PartKind,
    block_bytes: u64,
    unclaimed: &mut UnclaimedMemory<'_>,
) {
    let mut gaps = Vec::new();
    let mut add = |start: u64, end: u64, last: Option<&Part>| {
        let segment = last.filter(|last| last.release_unit != 0 && last.end == start);
        let remainder_end = segment.map_or(start, |_| start.next_multiple_of(block_bytes).min(end));
        let remainder = Part { start, end: remainder_end, kind: PartKind::Free, release_unit: 0, thread: 0 };
        gaps.extend(segment.map(|last| Part {
            release_unit: last.release_unit,
            thread: last.thread,
            ..remainder
        }));
        gaps.push(Part { start: remainder_end, end, kind, ..remainder });
    };
    for mapping in context.space.mappings().iter().filter(|mapping| HINTS.contains(&mapping.start)) {
        let first_part = heap.parts.partition_point(|part| part.end <= mapping.start);
        let parts_within = heap.parts[first_part..].iter().take_while(|part| part.start < mapping.end);
        let mut at = mapping.start;
        let mut last = None;
        for part in parts_within {
            add(at, part.start, last);
            at = at.max(part.end);
            last = Some(part);
        }
        if last.is_some() {
            add(at, mapping.end, last);
        }
    }
    gaps.retain(|gap| unclaimed.contains(gap.range()));
    heap.parts.extend(gaps);
    heap.parts.sort_unstable_by_key(|part| part.start);
}

/// Returns the possible segments, in address order.
fn candidates(context: &Context<'_>) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for mapping in context.space.mappings().iter().filter(|mapping| is_mapped_memory(mapping)) {
        for run in context.resident_runs(mapping.range()) {
            let mut at = run.start.next_multiple_of(ALIGNMENT);
            while at < run.end && candidates.len() < MAX_SEGMENTS && Instant::now() < context.deadline {
                let mut bytes = [0; HEADER_BYTES];
                if context.memory.read(at, &mut bytes).is_ok() {
                    let fits = |layout: &&SegmentLayout| {
                        at.is_multiple_of(layout.bytes) && may_be_segment(layout, &bytes)
                    };
                    candidates.extend(SEGMENTS.iter().filter(fits).filter_map(|layout| {
                        let key = word_at(&bytes, layout.cookie)? ^ at;
                        (key != 0).then_some(Candidate { start: at, layout, key })
                    }));
                }
                at += ALIGNMENT;
            }
        }
    }
    candidates
}

/// Whether the first bytes may be a segment's.
fn may_be_segment(layout: &SegmentLayout, bytes: &[u8]) -> bool {
    let word = |at: usize| word_at(bytes, at).unwrap_or(u64::MAX);
    let half = |at: usize| half_word_at(bytes, at).unwrap_or(u32::MAX);
    match layout.division {
        SegmentDivision::Pages { capacity, page_shift, page_kind, segment_bytes, info_bytes, .. } => {
            let is_huge = word(page_kind) as u32 == HUGE_PAGE_KIND;
            let pages = layout.bytes >> word(page_shift).min(63);
            (is_huge && word(capacity) == 1
                || PAGE_SHIFTS.contains(&word(page_shift)) && word(capacity) == pages)
                && word(segment_bytes).is_multiple_of(PAGE_BYTES)
                && word(segment_bytes) > 0
                && word(segment_bytes) < USER_ADDRESS_END
                && (1..=MAX_INFO_BYTES).contains(&word(info_bytes))
        }
        SegmentDivision::Slices { slices, info_slices, kind, entries, structures } => {
            let max_slices = layout.bytes / SLICE_BYTES;
            let info = word(info_slices);
            let field =
                |slice: u64, offset: usize| half(structures + slice as usize * layout.page.bytes + offset);
            word(kind) as u32 <= HUGE_SEGMENT_KIND
                && layout.size.is_none_or(|at| Some(word(at)) == word(slices).checked_mul(SLICE_BYTES))
                && (1..=max_slices + 1).contains(&word(entries))
                && (1..1 << 31).contains(&word(slices))
                && info > 0
                && info <= MAX_INFO_BYTES / SLICE_BYTES
                // The first slices are its own; after them a span begins.
                && field(0, SLICE_COUNT) == info as u32
                && (1..=word(slices) as u32).contains(&field(info, SLICE_COUNT))
                && field(info, SLICE_OFFSET) == 0
        }
    }
}

/// A program or library.
#[derive(Clone, Default)]
struct Object {
    /// An address in it.
    address: u64,
    name: String,
}

/// Returns the program or library that contains the key, for each key.
fn objects_with_keys(context: &Context<'_>, candidates: &[Candidate]) -> HashMap<u64, Object> {
    let keys: HashSet<u64> = candidates.iter().map(|candidate| candidate.key).collect();
    let mut objects = HashMap::new();
    for group in modules::file_groups(context.space) {
        for mapping in group.iter().filter(|mapping| mapping.permissions.write) {
            let end = mapping.end.min(mapping.start.saturating_add(MAX_DATA_BYTES));
            if Instant::now() >= context.deadline {
                break;
            }
            each_word(context, (mapping.start, end), &mut |_, word| {
                if keys.contains(&word) {
                    let object = || Object { address: group[0].start, name: group[0].name.clone() };
                    objects.entry(word).or_insert_with(object);
                }
                objects.len() < keys.len()
            });
        }
    }
    objects
}

/// The structures at the start of a segment.
struct Structures {
    /// End of the segment.
    end: u64,
    /// Number of their bytes, up to `MAX_INFO_BYTES`.
    info_bytes: u64,
    /// Their bytes; zeros where nothing was ever written.
    bytes: Vec<u8>,
    bytes_read: u64,
}

impl Structures {
    /// Reads the structures; `None` if their recorded size is impossible.
    fn read(context: &Context<'_>, candidate: &Candidate) -> Option<Self> {
        let mut header = [0; HEADER_BYTES];
        context.memory.read(candidate.start, &mut header).ok()?;
        let word = |at: usize| word_at(&header, at).unwrap_or(0);
        let info_bytes = match candidate.layout.division {
            SegmentDivision::Pages { info_bytes, .. } => word(info_bytes),
            SegmentDivision::Slices { info_slices, .. } => word(info_slices).saturating_mul(SLICE_BYTES),
        };
        let end = candidate.start.saturating_add(segment_bytes(candidate.layout, &header));
        if info_bytes > MAX_INFO_BYTES || candidate.start + info_bytes > end {
            return None;
        }
        // Only the first slice of a span has a structure; pages in between may never have been
        // written.
        let mut bytes = vec![0; (info_bytes as usize).max(HEADER_BYTES)];
        let mut bytes_read = 0;
        for run in context.resident_runs(AddressRange::sized(candidate.start, bytes.len() as u64)) {
            let range = (run.start - candidate.start) as usize..(run.end - candidate.start) as usize;
            bytes_read += context.memory.read_some(run.start, bytes.get_mut(range)?) as u64;
        }
        Some(Self { end, info_bytes, bytes, bytes_read })
    }

    fn word(&self, at: usize) -> u64 {
        word_at(&self.bytes, at).unwrap_or(0)
    }

    /// Whether the segment was freed; its header still describes its former pages.
    fn is_freed(&self, candidate: &Candidate) -> bool {
        self.word(candidate.layout.thread_id) == 0 && self.word(candidate.layout.used) == 0
    }

    fn is_one_block(&self, candidate: &Candidate) -> bool {
        match candidate.layout.division {
            SegmentDivision::Pages { page_kind, .. } => self.word(page_kind) as u32 == HUGE_PAGE_KIND,
            SegmentDivision::Slices { kind, .. } => self.word(kind) as u32 == HUGE_SEGMENT_KIND,
        }
    }

    /// Whether the segment has as many pages as it records, or up to `tolerance` fewer; in a wrong
    /// layout the two differ. A segment of one block has one page; up to 2.0.7 it records another
    /// number.
    fn has_all_pages(&self, candidate: &Candidate, parts: &[Part], tolerance: u64) -> bool {
        let pages = parts.iter().filter(|part| matches!(part.kind, PartKind::Page(_))).count() as u64;
        let recorded_pages = if self.is_one_block(candidate) { 1 } else { self.word(candidate.layout.used) };
        pages <= recorded_pages && recorded_pages <= pages.saturating_add(tolerance)
    }

    /// Returns when its free slices are released; `None` for a segment of one block.
    fn purge_schedule(&self, candidate: &Candidate, now: u64) -> Option<PurgeSchedule> {
        let SegmentDivision::Slices { kind, .. } = candidate.layout.division else { return None };
        let is_normal = self.word(kind) as u32 == NORMAL_SEGMENT_KIND;
        let masks = candidate.layout.masks.as_ref().filter(|_| is_normal)?;
        let mask = |from: usize| Mask::new((0..masks.words).map(|word| self.word(from + 8 * word)));
        let due_milliseconds = self.word(masks.expire);
        Some(PurgeSchedule {
            is_allowed: self.bytes.get(masks.allow).is_some_and(|byte| *byte != 0),
            expire: match due_milliseconds {
                0 => Expire::Never,
                due if due >= now.saturating_add(SOON_MILLISECONDS) => Expire::Later,
                _ => Expire::Due,
            },
            due_milliseconds,
            scheduled_slices: mask(masks.slices),
            committed_slices: mask(masks.slices + 8 * masks.words),
        })
    }

    /// Adds its parts after its own structures.
    fn divide(&self, candidate: &Candidate, heap: &mut Heap) {
        match candidate.layout.division {
            SegmentDivision::Pages { .. } => self.add_pages(candidate, heap),
            SegmentDivision::Slices { .. } => self.add_slices(candidate, heap),
        }
    }

    /// Divides a segment of 1.x.
    fn add_pages(&self, candidate: &Candidate, heap: &mut Heap) {
        let SegmentDivision::Pages { capacity, page_shift, pages, .. } = candidate.layout.division else {
            return;
        };
        let layout = candidate.layout.page;
        let thread = self.word(candidate.layout.thread_id);
        let is_huge = self.is_one_block(candidate);
        let page_bytes =
            if is_huge { self.end - candidate.start } else { 1 << self.word(page_shift).min(PAGE_SHIFTS[2]) };
        for index in 0..self.word(capacity) {
            let start = candidate.start + if index == 0 { self.info_bytes } else { index * page_bytes };
            let part_end = candidate.start + (index + 1) * page_bytes;
            if start >= part_end || part_end > self.end {
                return heap.doubts.note_damage(start, 0);
            }
            let at = pages + index as usize * layout.bytes;
            let structure = self.bytes.get(at..at + layout.bytes);
            let is_in_use = structure.is_some_and(PageLayout::is_in_use);
            let page = structure.and_then(|bytes| layout.read(bytes, candidate.start + at as u64));
            // If a freed page is scheduled for purging, the time replaces its list
            // (`mi_page_set_expire`).
            let is_due = page.is_some_and(|page| page.lists.free != 0) && heap.collect_rules.frees_pages;
            let free_kind = if is_due { PartKind::PurgePending } else { PartKind::Free };
            let page = page.filter(|page| is_in_use && page.block_bytes > NO_PAGE_BLOCK_BYTES);
            let kind = page.map_or(free_kind, |mut page| {
                page.block_bytes = page.block_bytes.min(part_end - start);
                page.start = page.start.or_else(|| {
                    first_aligned(
                        AddressRange::new(start, part_end),
                        page.block_bytes,
                        index == 0 && !is_huge,
                    )
                });
                PartKind::Page(page)
            });
            heap.parts.push(Part { start, end: part_end, kind, release_unit: candidate.start, thread });
        }
    }

    /// Divides a segment of 2.x.
    fn add_slices(&self, candidate: &Candidate, heap: &mut Heap) {
        let SegmentDivision::Slices { entries, structures, .. } = candidate.layout.division else {
            return;
        };
        let layout = candidate.layout.page;
        let thread = self.word(candidate.layout.thread_id);
        let is_huge = self.is_one_block(candidate);
        let mut index = self.info_bytes / SLICE_BYTES;
        while index < self.word(entries) {
            let start = candidate.start + index * SLICE_BYTES;
            let at = structures + index as usize * layout.bytes;
            let structure = self.bytes.get(at..at + layout.bytes);
            let count = structure.and_then(|bytes| half_word_at(bytes, SLICE_COUNT)).map_or(0, u64::from);
            let part_end = if is_huge { self.end } else { start + count * SLICE_BYTES };
            if structure.is_none() || part_end <= start || part_end > self.end {
                return heap.doubts.note_damage(start, 0);
            }
            let page = structure.and_then(|bytes| layout.read(bytes, candidate.start + at as u64));
            // A span without a block size is free.
            let page = page.filter(|page| page.block_bytes > NO_PAGE_BLOCK_BYTES);
            let kind = page.map_or(PartKind::Free, |mut page| {
                page.block_bytes = page.block_bytes.min(part_end - start);
                PartKind::Page(page)
            });
            heap.parts.push(Part { start, end: part_end, kind, release_unit: candidate.start, thread });
            index = (part_end - candidate.start) / SLICE_BYTES;
        }
    }
}

impl Votes {
    /// Checks whether a segment has as many pages in use as it records, which it does not in a
    /// wrong layout. A freed segment is skipped.
    fn count_vote(&mut self, context: &Context<'_>, candidate: &Candidate) {
        let Some(structures) = Structures::read(context, candidate) else {
            self.total += 1;
            return;
        };
        self.bytes_read += structures.bytes_read;
        // A segment of one block fits any layout.
        if !structures.is_freed(candidate) && !structures.is_one_block(candidate) {
            let mut scratch = Heap::default();
            structures.divide(candidate, &mut scratch);
            let fits = scratch.doubts.is_empty() && structures.has_all_pages(candidate, &scratch.parts, 0);
            self.total += 1;
            self.fitting += usize::from(fits);
        }
    }
}

/// Adds the parts of a segment; the next segment begins at `next_start`.
fn add_segment(
    context: &Context<'_>,
    candidate: &Candidate,
    next_start: u64,
    unclaimed: &mut UnclaimedMemory<'_>,
    heap: &mut Heap,
) {
    let Some(structures) = Structures::read(context, candidate) else {
        return heap.doubts.note_damage(candidate.start, 0);
    };
    let (end, word) = (structures.end, |at: usize| structures.word(at));
    heap.bytes_read += structures.bytes_read;
    if structures.is_freed(candidate) {
        // Its size is still there, but other segments may be in that range by now.
        let mapped_end = context.space.find(candidate.start).map_or(candidate.start, |mapping| mapping.end);
        let end = end.min(next_start).min(mapped_end);
        if unclaimed.contains((candidate.start, end)) {
            heap.parts.push(Part {
                start: candidate.start,
                end,
                kind: PartKind::PurgePending,
                release_unit: 0,
                thread: 0,
            });
        }
        return;
    }
    if !unclaimed.contains((candidate.start, end)) {
        return heap.doubts.note_damage(candidate.start, 0);
    }
    heap.segments += 1;
    let thread = word(candidate.layout.thread_id);
    let structures_part = Part {
        start: candidate.start,
        end: candidate.start + structures.info_bytes,
        kind: PartKind::Own,
        release_unit: candidate.start,
        thread,
    };
    heap.parts.push(structures_part);
    heap.purge_schedules.extend(
        structures
            .purge_schedule(candidate, heap.read_at_milliseconds)
            .map(|schedule| (candidate.start, schedule)),
    );
    let count_before = heap.parts.len();
    structures.divide(candidate, heap);
    // A page that is being freed may be cleared but still counted (`mi_segment_page_clear`).
    let parts = heap.parts.get(count_before..).unwrap_or_default();
    if !structures.has_all_pages(candidate, parts, u64::from(thread != 0)) {
        heap.doubts.note_damage(candidate.start, 0);
    }
    (context.progress)(end - candidate.start);
}

/// Returns the first block of a page of 1.6 to 1.8.2. `is_first` if it is the first page of a
/// segment that is not huge.
fn first_aligned(page: AddressRange, block_bytes: u64, is_first: bool) -> Option<u64> {
    let is_aligned = is_first && page.len() <= MAX_ALIGNED_PAGE_BYTES;
    let aligned_start = page.start.checked_next_multiple_of(block_bytes)?;
    Some(if is_aligned && aligned_start.checked_add(block_bytes)? <= page.end {
        aligned_start
    } else {
        page.start
    })
}
