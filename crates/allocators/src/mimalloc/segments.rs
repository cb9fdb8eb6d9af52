//! Finds mimallocs with segments (1.6 to 2.4), and divides their memory.
//!
//! A segment is aligned to its size and holds its own address XOR a key of the process. The key is
//! in the static data of the program or library that contains mimalloc, so no symbol is needed.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::layout::FirstBlock;
use super::parts::{ArenaPurge, CollectRules, Heap, Part, PartKind, UnreadHeaps, UnreadSegments};
use super::segment::{Candidate, Structures, may_be_segment, segment_bytes};
use super::segment_layout::{ALIGNMENT, HEADER_BYTES, SEGMENTS, SegmentLayout};
use crate::radix::UnclaimedMemory;
use crate::scan::{each_word, is_mapped_memory};
use strandline_claims::allocator::Context;
use strandline_process::host;
use strandline_process::memory::word_at;
use strandline_process::modules;
use strandline_process::range::{AddressRange, RangeSet};

/// Maximum candidates for segments that are read: 1 TiB of the smallest. Of later ones only the
/// resident bytes are counted, for a caveat.
const MAX_SEGMENTS: usize = 1 << 18;
/// Bytes searched for keys, per mapping of static data.
const MAX_DATA_BYTES: u64 = 64 << 20;
/// Maximum mimallocs of one process that are read; a caveat names the number of the others.
const MAX_HEAPS: usize = 16;
/// Maximum parts of a heap: at least 256 GiB of pages. With more, the next segment counts as
/// damage.
const MAX_PARTS: usize = 1 << 22;

/// Segments on which each layout is tried.
const MAX_VOTES: usize = 16;
/// Minimum number of segments of which half must fit; below half, the build has another layout.
const MIN_VOTES: usize = 4;

/// How many segments fit a layout.
#[derive(Clone, Copy, Default)]
struct Votes {
    /// Number of segments tried.
    total: usize,
    /// Number of these that fit the layout.
    fitting: usize,
    bytes_read: u64,
}

/// Finds all heaps of a process outside `taken` (claimed by others).
pub fn find(context: &Context<'_>, taken: &RangeSet) -> Vec<Heap> {
    let mut candidates = Vec::new();
    let next_address = each_candidate(context, 0, &mut |candidate| {
        candidates.push(candidate);
        candidates.len() < MAX_SEGMENTS
    });
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
        let Some(index) = best_layout(&votes) else { continue };
        let (Some(layout), Some(layout_votes), Some(object)) =
            (SEGMENTS.get(index), votes.get(&index), objects.get(&key))
        else {
            continue;
        };
        let mut heap = Heap {
            bytes_read: votes.values().map(|votes| votes.bytes_read).sum(),
            // In a running process a few segments are mid-update; in another build nearly all
            // disagree.
            is_encoded: layout_votes.total >= MIN_VOTES && layout_votes.fitting * 2 < layout_votes.total,
            ..heap_without_parts(layout, object)
        };
        let has_fitting = layout_votes.fitting > 0 || votes.values().all(|votes| votes.total == 0);
        let mut segments = candidates.iter().filter(|candidate| candidate.key == key).peekable();
        if let Some(first) = segments.peek().filter(|_| !has_fitting || heap.is_encoded) {
            // All segments may be mid-update: nothing is claimed.
            heap.doubts.note_damage(first.start, 0);
        } else {
            let segments = segments.filter(|candidate| candidate.layout == layout);
            let mut unclaimed = UnclaimedMemory::new(context, &taken);
            add_segments(context, segments, &mut unclaimed, &mut heap);
            let read_end = heap.parts.last().map_or(0, |part| part.end);
            if let Some(next) = next_address {
                note_unread_segments(context, next.max(read_end), key, layout, &mut heap);
            }
            if heap.unread_segments.is_some() {
                heap.collect_rules = CollectRules::default();
            }
            // Unread memory may be in use; with several heaps, the owner of a gap is unknown.
            if heap.doubts.is_empty() && heap.unread_segments.is_none() && is_only {
                add_gaps(context, &mut heap, layout.bytes, &mut unclaimed);
            }
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

/// Returns a heap with this layout in `object`, before its parts are found.
fn heap_without_parts(layout: &SegmentLayout, object: &Object) -> Heap {
    Heap {
        object: object.address,
        name: object.name.clone(),
        releases: layout.releases,
        delayed_free: Some(layout.delayed_free),
        collect_rules: layout.collect_rules.unwrap_or_default(),
        has_offsets: layout.page.start == FirstBlock::Offset,
        thread_data: layout.thread_data,
        read_at_milliseconds: host::monotonic_milliseconds(),
        ..Heap::default()
    }
}

/// Returns the index of the layout that most segments of a heap fit, the first one of equals.
fn best_layout(votes: &BTreeMap<usize, Votes>) -> Option<usize> {
    let layout_and_votes =
        votes.iter().max_by_key(|(number, votes)| (votes.fitting, std::cmp::Reverse(**number)));
    layout_and_votes.map(|(&number, _)| number)
}

/// Counts the heaps that are not read, given the layout of each by its key; `None` if there are
/// none. A key without a segment outside `taken` is no heap: other words at the place of a cookie
/// make keys too.
fn unread_heaps(
    context: &Context<'_>,
    candidates: &[Candidate],
    layouts: &HashMap<u64, &SegmentLayout>,
    taken: &RangeSet,
) -> Option<UnreadHeaps> {
    let (mut keys, mut first_segment) = (HashSet::new(), None);
    let (mut segments, mut is_late) = (Vec::new(), false);
    let has_layout = |candidate: &&Candidate| layouts.get(&candidate.key) == Some(&candidate.layout);
    for candidate in candidates.iter().filter(has_layout) {
        if taken.contains(candidate.start) {
            continue;
        }
        first_segment.get_or_insert(candidate.start);
        keys.insert(candidate.key);
        is_late = is_late || context.deadline_passed();
        if !is_late {
            segments.push(mapped_segment(context, candidate));
        }
    }
    // Hostile segments may overlap.
    let segments = segments.into_iter().collect::<RangeSet>().without(taken);
    let resident_bytes: u64 = segments.iter().map(|&segment| context.resident_bytes(segment)).sum();
    first_segment.map(|first_segment| UnreadHeaps {
        count: keys.len(),
        first_segment,
        resident_bytes: (!is_late).then_some(resident_bytes),
    })
}

/// Returns the addresses of a segment, as far as they are in the mapping of its start.
fn mapped_segment(context: &Context<'_>, candidate: &Candidate) -> AddressRange {
    let mut header = [0; HEADER_BYTES];
    let is_read = context.memory.read(candidate.start, &mut header).is_ok();
    let bytes = if is_read { segment_bytes(candidate.layout, &header) } else { candidate.layout.bytes };
    // Without a mapping it has no addresses.
    let mapped = context.space.find(candidate.start).map(|mapping| mapping.range()).unwrap_or_default();
    AddressRange::sized(candidate.start, bytes).intersection(mapped)
}

/// Tries the layout of each candidate; returns the votes by key and index of the layout.
fn count_votes(context: &Context<'_>, candidates: &[Candidate]) -> BTreeMap<u64, BTreeMap<usize, Votes>> {
    let mut votes_by_key: BTreeMap<u64, BTreeMap<usize, Votes>> = BTreeMap::new();
    for candidate in candidates {
        let votes = votes_by_key.entry(candidate.key).or_default().entry(candidate.layout_index).or_default();
        if votes.total < MAX_VOTES && !context.deadline_passed() {
            votes.count_vote(context, candidate);
        }
    }
    votes_by_key
}

/// Adds the parts of these segments.
fn add_segments<'a>(
    context: &Context<'_>,
    segments: impl Iterator<Item = &'a Candidate>,
    unclaimed: &mut UnclaimedMemory<'_>,
    heap: &mut Heap,
) {
    let mut segments = segments.peekable();
    while let Some(candidate) = segments.next() {
        if context.deadline_passed() {
            heap.doubts.note_timeout(candidate.start);
            break;
        }
        if heap.parts.len() >= MAX_PARTS {
            heap.doubts.note_damage(candidate.start, 0);
            break;
        }
        if heap.parts.last().is_none_or(|last| last.end <= candidate.start) {
            let next_start = segments.peek().map_or(u64::MAX, |next| next.start);
            add_segment(context, candidate, next_start, unclaimed, heap);
        }
    }
}

/// Addresses that mimalloc requests from the kernel (`os.c`, `_mi_os_get_aligned_hint`). Nothing
/// else uses them: mimalloc mapped the memory between segments there, and does not use it.
pub const HINTS: std::ops::Range<u64> = 2 << 40..30 << 40;

/// Adds the free memory beside the segments of each mapping. If a segment does not fill its arena
/// blocks of `block_bytes`, the remainder of these is released with it.
fn add_gaps(context: &Context<'_>, heap: &mut Heap, block_bytes: u64, unclaimed: &mut UnclaimedMemory<'_>) {
    // In older releases it is unknown whether gaps between segments will be purged.
    let is_purged = heap.collect_rules.arena_purge == ArenaPurge::AnyThread && !heap.has_offsets;
    let kind = if is_purged { PartKind::PurgePending } else { PartKind::Free };
    let mut gaps = Vec::new();
    let mut add = |start: u64, end: u64, last: Option<&Part>| {
        let segment = last.filter(|last| last.release_unit.is_some() && last.end == start);
        let remainder_end = segment.map_or(start, |_| start.next_multiple_of(block_bytes).min(end));
        let remainder =
            Part { start, end: remainder_end, kind: PartKind::Free, release_unit: None, thread: None };
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

/// Calls `take` with each possible segment from the address `from` on, in address order, until it
/// returns false. Returns the address to continue at; `None` if there are no more.
fn each_candidate(context: &Context<'_>, from: u64, take: &mut dyn FnMut(Candidate) -> bool) -> Option<u64> {
    for mapping in context.space.mappings().iter().filter(|mapping| is_mapped_memory(mapping)) {
        if mapping.end <= from {
            continue;
        }
        for run in context.resident_runs(mapping.range()) {
            let mut at = run.start.max(from).next_multiple_of(ALIGNMENT);
            while at < run.end && !context.deadline_passed() {
                let mut bytes = [0; HEADER_BYTES];
                let mut takes_more = true;
                if context.memory.read(at, &mut bytes).is_ok() {
                    let possible = SEGMENTS.iter().enumerate().filter(|(_, layout)| {
                        at.is_multiple_of(layout.bytes) && may_be_segment(layout, &bytes)
                    });
                    for (layout_index, layout) in possible {
                        let key = word_at(&bytes, layout.cookie).unwrap_or(at) ^ at;
                        takes_more = (key == 0 || take(Candidate { start: at, layout, layout_index, key }))
                            && takes_more;
                    }
                }
                at += ALIGNMENT;
                if !takes_more {
                    return Some(at);
                }
            }
        }
    }
    None
}

/// Notes the segments with this key and layout from the address `from` on, or that time ran out
/// before one was found.
fn note_unread_segments(context: &Context<'_>, from: u64, key: u64, layout: &SegmentLayout, heap: &mut Heap) {
    heap.unread_segments = unread_segments(context, from, key, layout);
    if heap.unread_segments.is_none() && context.deadline_passed() {
        heap.doubts.note_timeout(from);
    }
}

/// Counts the segments with this key and layout from the address `from` on; `None` if there are
/// none.
fn unread_segments(
    context: &Context<'_>,
    from: u64,
    key: u64,
    layout: &SegmentLayout,
) -> Option<UnreadSegments> {
    let (mut first, mut end, mut resident_bytes) = (None, 0, 0_u64);
    each_candidate(context, from, &mut |candidate| {
        // A header inside a segment is one of a former segment.
        if candidate.key == key && candidate.layout == layout && candidate.start >= end {
            let segment = mapped_segment(context, &candidate);
            first.get_or_insert(candidate.start);
            end = segment.end;
            resident_bytes = resident_bytes.saturating_add(context.resident_bytes(segment));
        }
        true
    });
    let resident_bytes = (!context.deadline_passed()).then_some(resident_bytes);
    first.map(|first| UnreadSegments { first, resident_bytes })
}

/// A program or library.
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
            if context.deadline_passed() {
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
        if !structures.is_freed() && !structures.is_one_block() {
            let mut scratch = Heap::default();
            structures.divide(&mut scratch);
            let fits = scratch.doubts.is_empty() && structures.has_all_pages(&scratch.parts, 0);
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
    let end = structures.end;
    heap.bytes_read += structures.bytes_read;
    if structures.is_freed() {
        // Its size is still there, but other segments may be in that range by now.
        let mapped_end = context.space.find(candidate.start).map_or(candidate.start, |mapping| mapping.end);
        let end = end.min(next_start).min(mapped_end);
        if unclaimed.contains((candidate.start, end)) {
            heap.parts.push(Part {
                start: candidate.start,
                end,
                kind: PartKind::PurgePending,
                release_unit: None,
                thread: None,
            });
        }
        return;
    }
    if !unclaimed.contains((candidate.start, end)) {
        return heap.doubts.note_damage(candidate.start, 0);
    }
    heap.segment_count += 1;
    let structures_end = candidate.start + structures.info_bytes;
    heap.parts.push(structures.part(candidate.start, structures_end, PartKind::Own));
    let schedule = structures.purge_schedule(heap.read_at_milliseconds);
    heap.purge_schedules.extend(schedule.map(|schedule| (candidate.start, schedule)));
    let count_before = heap.parts.len();
    structures.divide(heap);
    // A page that is being freed may be cleared but still counted (`mi_segment_page_clear`).
    let parts = heap.parts.get(count_before..).unwrap_or_default();
    let tolerance = u64::from(structures.thread().is_some());
    if !structures.has_all_pages(parts, tolerance) {
        heap.doubts.note_damage(candidate.start, 0);
    }
    (context.progress)(end - candidate.start);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use strandline_process::map::AddressSpace;
    use strandline_process::memory::Memory;

    const START: u64 = 2 << 40;
    const DATA: u64 = 0x7f51_4000_0000;
    const KEY: u64 = 0x1357_9bdf_0246_8ace;
    const RESIDENT_BYTES: u64 = 4096;

    /// Segments of 1.9 that were freed, without a gap; and the key at the start of static data.
    struct Segments;

    impl Memory for Segments {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            let segment = address - address % ALIGNMENT;
            let is_data = address >= DATA;
            // Its size, capacity, own bytes, cookie and size of pages.
            let of_segment = [(32, ALIGNMENT), (96, 64), (104, 8 << 10), (112, segment ^ KEY), (144, 16)];
            let words: &[(u64, u64)] = if is_data { &[(0, KEY)] } else { &of_segment };
            buffer.fill(0);
            for (offset, word) in words {
                for (byte, at) in word.to_le_bytes().into_iter().zip(segment + offset..) {
                    let index = at.checked_sub(address).map(|index| index as usize);
                    if let Some(slot) = index.and_then(|index| buffer.get_mut(index)) {
                        *slot = byte;
                    }
                }
            }
            buffer.len()
        }
    }

    #[test]
    fn segments_that_were_not_searched_in_time_are_no_free_memory() {
        let maps = format!("{START:x}-{:x} rw-p 00000000 00:00 0\n", START + 4 * ALIGNMENT);
        let (space, _) = AddressSpace::parse(maps.as_bytes());
        let all_resident = |range: AddressRange| vec![range];
        let context = Context::of_image(&Segments, &space, &all_resident);
        let is_late = |deadline: Instant| {
            let (mut heap, context) = (Heap::default(), Context { deadline, ..context });
            note_unread_segments(&context, START + ALIGNMENT, KEY + 1, &SEGMENTS[0], &mut heap);
            assert_eq!(heap.unread_segments, None, "none has this key");
            heap.doubts.timed_out()
        };
        assert_eq!([is_late(context.deadline), is_late(Instant::now())], [false, true]);
    }

    #[test]
    fn segments_beyond_the_bound_are_counted_and_their_memory_is_not_free() {
        let unread = 3;
        let end = START + (MAX_SEGMENTS as u64 + unread) * ALIGNMENT;
        let maps = format!(
            "{START:x}-{end:x} rw-p 00000000 00:00 0\n{DATA:x}-{:x} rw-p 00080000 08:01 79 /usr/lib/libmimalloc.so.1\n",
            DATA + RESIDENT_BYTES
        );
        let (space, _) = AddressSpace::parse(maps.as_bytes());
        let first_pages = |range: AddressRange| -> Vec<AddressRange> {
            let mut runs = Vec::new();
            let mut at = range.start - range.start % ALIGNMENT;
            while at < range.end {
                runs.push(AddressRange::sized(at, RESIDENT_BYTES).intersection(range));
                at += ALIGNMENT;
            }
            runs.retain(|run| !run.is_empty());
            runs
        };
        let heaps = find(&Context::of_image(&Segments, &space, &first_pages), &RangeSet::default());
        let [heap] = heaps.as_slice() else { panic!("{} heaps", heaps.len()) };
        let first = end - unread * ALIGNMENT;
        let resident_bytes = Some(unread * RESIDENT_BYTES);
        assert_eq!(heap.unread_segments, Some(UnreadSegments { first, resident_bytes }));
        assert_eq!(heap.parts.last().map(|part| part.end), Some(first));
        assert_eq!(heap.collect_rules, CollectRules::default());
    }
}
