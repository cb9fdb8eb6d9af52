//! mimalloc, read from outside without symbols or calls.
//!
//! `segments` finds releases that keep their memory in segments (1.x, 2.x), `arenas` those with a
//! page map (3.x). Both divide the memory into `parts`, and `claims` classifies their bytes. The
//! first word of a free block links to the next one, so pages with free blocks are read.

mod arena_layout;
mod arenas;
mod claims;
mod collect;
mod layout;
mod options;
mod parts;
mod rows;
mod segment;
mod segment_layout;
mod segments;
mod settings;
mod spans;
mod visits;

use self::claims::Counts;
use self::parts::{CollectRules, Heap, Part, ThreadDataBytes, UnreadHeaps, UnreadSegments};
use self::segment_layout::LATER_HEAP_BYTES;
use crate::parallel::Claimed;
use crate::scan::{is_mapped_memory, is_unclaimed, read_words};
use strandline_claims::accumulator::{Class, OutOfOrder};
use strandline_claims::allocator::{
    self, Argument, CallPlan, Context, FoundAllocator, Function, Reading, Readings, read_each,
};
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::{Allocator, figures};
use strandline_claims::reader::{Evidence, FileName, Match, ReaderInfo, version_in_file_name};
use strandline_claims::remedy::Spec;
use strandline_claims::units::counted;
use strandline_process::image::image_at;
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::procfs::Process;
use strandline_process::range::{AddressRange, RangeSet};

/// mimalloc's entry in the table of readers.
pub static ABOUT: ReaderInfo = ReaderInfo {
    name: "mimalloc",
    title: "mimalloc",
    evidence: Evidence {
        files: &[FileName::Contains("libmimalloc", ".so")],
        symbols: &["mi_malloc", "mi_heap_malloc"],
        strings: &[('m', "imalloc: error: "), ('m', "imalloc: warning: ")],
        version: |clue: &Match<'_>| clue.mapping.and_then(|_| version_in_file_name(clue.file)),
        ..Evidence::NONE
    },
    versions: "1.6 to 1.9, 2.0.3 to 2.4, 3.0 to 3.4 without 3.0.1, CPython's, 64 bits",
    rows: &rows::ROWS,
    blocks: Some(&rows::BLOCKS),
    block_sizes: "mimalloc rounds up to its size classes",
    remedies: &[CALL, Spec::next_start(settings::PURGE_DELAY, "mimalloc releases free pages at once")],
    not_read: "secure and debugging builds (encoded lists, padding); by how many bytes an aligned block begins after the start of its slot",
    ..ReaderInfo::NONE
};

/// The call that `reclaim` makes.
const CALL: Spec = Spec::call(
    "mimalloc_collect",
    "mimalloc",
    "mimalloc releases its free pages and those that a thread's end left",
);

/// Collects the heap of the calling thread and the pages of ended threads (`mi_collect(true)`).
const COLLECT: Function = Function {
    name: "mi_collect",
    sibling: Some("mi_malloc"),
    argument: Argument::Number(1),
    stack_bytes: 64 << 10,
    own_prefixes: &["mi_", "_mi_"],
};

/// Minimum number of invalid pages that indicate an encoding build and not damage, if they are the
/// majority.
const MIN_INVALID_PAGES_FOR_ENCODED: u64 = 4;

/// The reader of mimalloc. It searches mimalloc's library besides mappings at its hints, because
/// some builds map memory without a hint.
pub static READER: allocator::Reader = allocator::Reader::new(|_, space| {
    let is_likely = |mapping: &Mapping| {
        is_mapped_memory(mapping) && segments::HINTS.contains(&mapping.start)
            || mapping.has_file() && mapping.name.contains("libmimalloc")
    };
    Some(Box::new(Mimalloc { is_likely: space.mappings().iter().any(is_likely) }))
});

struct Mimalloc {
    /// Whether mimalloc is likely: the reader searches for it in every process.
    is_likely: bool,
}

impl FoundAllocator for Mimalloc {
    fn takes_long(&self) -> bool {
        self.is_likely
    }

    fn read(&self, context: &Context<'_>) -> Result<Readings, OutOfOrder> {
        let mut taken: RangeSet = context.claimed_ranges.iter().copied().collect();
        let mut heaps = segments::find(context, &taken);
        taken.add(heaps.iter().flat_map(|heap| &heap.parts).map(Part::range));
        heaps.extend(arenas::find(context, &taken));
        let text = "not all memory was searched for mimalloc in the time that a target may be stopped";
        let is_missed = heaps.is_empty() && self.is_likely && context.deadline_passed();
        let caveat = is_missed.then(|| Caveat::new("mimalloc_too_slow", "mimalloc", None, text));
        let readings = read_each(context, heaps, |heap, taken| {
            let mut reading = read(context, heap, taken);
            reading.caveats.extend(heap.unread_heaps.map(unread_heaps_caveat));
            reading.caveats.extend(heap.unread_segments.map(unread_segments_caveat));
            reading
        });
        Ok((readings, caveat.into_iter().collect()))
    }

    fn finish(&self, process: &Process, space: &AddressSpace, reading: &mut Reading) {
        let Some(call) = &reading.call else {
            reading.remedies.retain(|remedy| remedy.id != settings::PURGE_DELAY);
            return;
        };
        reading.remedies.push(call.remedy(
            process.pid(),
            "one call in one thread, over the pages of that thread's heap only; page faults when the heap grows again",
        ));
        let image = image_at(process, space, call.object);
        settings::finish(process, image.as_ref(), &mut reading.remedies);
    }
}

/// Reads one heap outside `taken` (claimed by others).
fn read(context: &Context<'_>, heap: &Heap, taken: &RangeSet) -> Reading {
    let collection = collect::find(context, heap);
    // After the deadline, collect::find may have missed blocks that other threads freed.
    let is_late = context.deadline_passed();
    let Claimed { claims, mut counts } =
        claims::claim(context, heap, &collection.delayed_blocks, &collection.releasable);
    let damages = counts.doubts.damages;
    if heap.is_encoded || damages >= MIN_INVALID_PAGES_FOR_ENCODED && damages * 2 > counts.pages {
        return encoded_reading(heap, heap.bytes_read + counts.bytes_read + collection.bytes_read);
    }
    let mut doubts = heap.doubts.clone();
    doubts.add(&counts.doubts);
    if is_late {
        doubts.note_timeout(heap.parts.first().map_or(heap.object, |part| part.start));
    }
    let mut reading = Reading { rows: Some(&rows::BLOCKS), claims, ..Reading::default() };
    let mut taken = taken.clone();
    taken.add(reading.ranges());
    let thread_data = thread_data(context, heap, &collection.thread_heaps, &taken);
    reading.claims.extend(thread_data.iter().map(|&range| context.claim_whole(range, Class::Metadata)));
    reading.call = (heap.collect_rules != CollectRules::default()).then(|| CallPlan {
        spec: &CALL,
        function: COLLECT,
        object: heap.object,
        locks: Vec::new(),
        heaps: heap.parts.iter().map(Part::range).collect(),
        releases_all: false,
        fs_bases: collection.chosen_thread.into_iter().collect(),
        predicted_bytes: reading.releasable_bytes(),
        due_milliseconds: collection.due_milliseconds,
        libc_code: None,
        doubt: doubts.call_hazard(),
    });
    if reading.call.is_some() {
        reading.remedies.extend(settings::purge_delay(context, heap));
    }
    let is_complete = doubts.is_empty() && heap.unread_segments.is_none();
    reading.allocator = facts(heap, &counts, thread_data.bytes(), is_complete);
    reading.refined = std::mem::take(&mut counts.matched);
    reading.bytes_read = heap.bytes_read + counts.bytes_read + collection.bytes_read;
    doubts.add_caveats(&mut reading.caveats, &ABOUT, "segments and pages", &heap.name);
    reading.caveats.extend(collection.swapped.caveat(&ABOUT));
    reading.is_inconsistent = doubts.damages > 0;
    reading
}

/// Returns the caveat on further mimallocs that are not read.
fn unread_heaps_caveat(unread_heaps: UnreadHeaps) -> Caveat {
    let UnreadHeaps { count, first_segment, resident_bytes } = unread_heaps;
    let text = format!(
        "the process has {} than strandline reads: the memory of the others counts as anonymous",
        counted(count as u64, "more mimalloc")
    );
    Caveat::new("mimalloc_left_out", format!("{first_segment:#x}"), resident_bytes, text)
}

/// Returns the caveat on segments that are not read.
fn unread_segments_caveat(unread_segments: UnreadSegments) -> Caveat {
    let text = "mimalloc has more segments than strandline reads: the memory of the others counts as anonymous, and no \
                collection is predicted";
    Caveat::new(
        "mimalloc_left_out",
        format!("{:#x}", unread_segments.first),
        unread_segments.resident_bytes,
        text,
    )
}

/// Returns a reading without claims, for a heap of a build that encodes its lists; `bytes_read` of
/// it were read.
fn encoded_reading(heap: &Heap, bytes_read: u64) -> Reading {
    let text = "most of its segments or pages are inconsistent, as in a build with MI_SECURE or MI_DEBUG, which encodes its \
                lists: it is not read, and nothing is predicted";
    let mut reading = Reading { bytes_read, ..Reading::default() };
    reading.caveats.push(Caveat::new("mimalloc_encoded", heap.name.clone(), None, text));
    reading.allocator = Allocator {
        name: ABOUT.name.to_owned(),
        found_by: format!("segments or page map of {}", heap.name),
        ..Allocator::default()
    };
    reading
}

/// Returns the ranges of threads' own data, which begin with `thread_heaps`, outside `taken`.
fn thread_data(context: &Context<'_>, heap: &Heap, thread_heaps: &[u64], taken: &RangeSet) -> RangeSet {
    let Some(ThreadDataBytes { earlier, later }) = heap.thread_data else { return RangeSet::default() };
    let bytes_from = |thread_heap: u64| {
        let heap_bytes = read_words(context, thread_heap).map(|[tld]| tld.wrapping_sub(thread_heap));
        let is_later = heap_bytes.is_some_and(|bytes| LATER_HEAP_BYTES.contains(&bytes));
        later.filter(|_| is_later).unwrap_or(earlier)
    };
    let unclaimed_ranges = thread_heaps.iter().filter_map(|&thread_heap| {
        let range = AddressRange::sized(thread_heap, bytes_from(thread_heap)).widened_to_pages();
        let range = context.space.find(range.start)?.range().intersection(range);
        is_unclaimed(context, taken, range).then_some(range)
    });
    unclaimed_ranges.collect()
}

/// Returns the allocator's statistics; without totals unless the heap `is_complete`.
fn facts(heap: &Heap, counts: &Counts, thread_data_bytes: u64, is_complete: bool) -> Allocator {
    let mut allocator = Allocator {
        name: ABOUT.name.to_owned(),
        found_by: format!("segments or page map of {} (laid out as in {})", heap.name, heap.releases),
        read: true,
        ..Allocator::default()
    };
    if is_complete {
        allocator.live_bytes = Some(counts.live_bytes);
        allocator.live_blocks = Some(counts.classes.values().map(|class| class.live_blocks).sum());
        allocator.cached_bytes = Some(counts.cached_bytes);
        allocator.free_bytes = Some(counts.free_bytes);
        allocator.metadata_bytes = Some(counts.structure_bytes + thread_data_bytes);
        let free_parts = heap.parts.iter().filter(|part| part.is_free());
        let free_bytes: u64 = free_parts.map(|part| part.range().len()).sum();
        // Names of `mi_stats_t`, for the statistics that structures hold.
        allocator.own = figures(&[
            ("segments", heap.segment_count),
            ("pages", counts.pages),
            ("free_span_bytes", free_bytes),
        ]);
        allocator.size_classes = counts.classes.values().cloned().collect();
    }
    allocator
}
