//! mimalloc, read from outside without symbols or calls.
//!
//! `segments` finds releases that keep their memory in segments (1.x, 2.x), `arenas` those with a
//! page map (3.x). Both divide it into the same `parts`, whose bytes `claims` classifies. Free
//! blocks are in lists linked through their first words, so the memory of pages with free blocks is
//! read.

pub mod arenas;
pub mod claims;
pub mod collect;
pub mod layout;
pub mod parts;
pub mod rows;
pub mod segments;
mod settings;
pub mod spans;

use self::claims::Counts;
use self::parts::{Collect, Heap, Part};
use crate::scan::{is_mapped_memory, is_unclaimed};
use strandline_claims::accumulator::{Class, OutOfOrder};
use strandline_claims::allocator::{
    self, Argument, CallPlan, Context, FoundAllocator, Function, RangeClaim, Reading, Readings, read_each,
};
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::{Allocator, Remedy, figures};
use strandline_claims::reader::{Evidence, FileName, HeapKind, Match, ReaderInfo, version_in_file_name};
use strandline_claims::remedy::Spec;
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
    remedies: &[
        Spec::call(
            "mimalloc_collect",
            "mimalloc",
            "mimalloc releases its free pages and those that a thread's end left",
        ),
        Spec::next_start("mimalloc_purge_delay", "mimalloc releases free pages at once"),
    ],
    not_read: "secure and debugging builds (encoded lists, padding); by how much an aligned block begins behind its place",
    heap: HeapKind::Own,
    ..ReaderInfo::NONE
};

/// Collects the heap of the calling thread, and what ended threads left (`mi_collect(true)`).
const COLLECT: Function = Function {
    name: "mi_collect",
    sibling: "mi_malloc",
    argument: Argument::Number(1),
    stack_bytes: 64 << 10,
    own_prefixes: &["mi_", "_mi_"],
};

/// Minimum bytes of a thread's own data, which includes its heap (`mi_thread_data_t`): it takes a
/// page up to 2.1.2, later two.
const THREAD_DATA_BYTES: [u64; 2] = [3 << 10, 6 << 10];

/// Minimum number of invalid pages that mean another build instead of damage, if they are the
/// majority.
const MIN_DAMAGES_FOR_ENCODED: u64 = 4;

/// Minimum free bytes for which a setting for the next start is proposed.
const MIN_BYTES_FOR_SETTING: u64 = 1 << 20;

/// The reader of mimalloc.
pub static READER: allocator::Reader = allocator::Reader::new(|_, space| {
    // A mimalloc that maps memory without a hint is recognised by its file.
    let is_likely = |mapping: &Mapping| {
        is_mapped_memory(mapping) && segments::HINTS.contains(&mapping.start)
            || mapping.has_file() && mapping.name.contains("libmimalloc")
    };
    Some(Box::new(Mimalloc { is_likely: space.mappings().iter().any(is_likely) }))
});

struct Mimalloc {
    is_likely: bool,
}

impl FoundAllocator for Mimalloc {
    fn reads_blocks(&self) -> bool {
        self.is_likely
    }

    fn read(&self, context: &Context<'_>) -> Result<Readings, OutOfOrder> {
        let mut taken: RangeSet = context.claimed.iter().copied().collect();
        let mut heaps = segments::find(context, &taken);
        taken.add(heaps.iter().flat_map(|heap| &heap.parts).map(Part::range));
        heaps.extend(arenas::find(context, &taken));
        let readings = read_each(context, heaps, |heap, taken| read(context, heap, taken));
        Ok((readings, Vec::new()))
    }

    fn finish(&self, process: &Process, space: &AddressSpace, reading: &mut Reading) {
        let Some(call) = &reading.call else { return };
        reading.remedies.push(Remedy::call(
            call.remedy,
            call.predicted_bytes,
            format!("strandline reclaim {} --remedy mimalloc_collect", process.pid()),
            "one call in one thread, over the pages of that thread's heap only; page faults when the heap grows again",
        ));
        let free = |claim: &RangeClaim| claim.sums.resident.kept + claim.sums.resident.trim;
        let free_bytes = reading.claims.iter().map(free).sum();
        if free_bytes >= MIN_BYTES_FOR_SETTING {
            let setting = image_at(process, space, call.object).and_then(|image| settings::purge(&image));
            let cost = "releases free pages at once: costs system calls, and page faults at reuse";
            reading.remedies.extend(
                setting.map(|how| Remedy::setting("mimalloc_purge_delay", how, cost).predicting(free_bytes)),
            );
        }
    }
}

/// Reads one heap outside `taken` (claimed by others).
fn read(context: &Context<'_>, heap: &Heap, taken: &RangeSet) -> Reading {
    let collection = collect::find(context, heap);
    let (claims, mut counts) = claims::claim(context, heap, &collection.delayed, &collection.released);
    let damages = counts.doubts.damages;
    if heap.is_encoded || damages >= MIN_DAMAGES_FOR_ENCODED && damages * 2 > counts.pages {
        return encoded(heap);
    }
    let mut doubts = heap.doubts.clone();
    doubts.add(&counts.doubts);
    let mut reading = Reading { rows: Some(&rows::BLOCKS), claims, ..Reading::default() };
    let mut held = taken.clone();
    held.add(reading.ranges());
    let is_new = heap.delayed_free.is_none_or(|offset| offset < THREAD_DATA_BYTES[0] / 2);
    let owners: &[u64] = if heap.has_thread_data { &collection.owners } else { &[] };
    let own = thread_data(context, owners, THREAD_DATA_BYTES[usize::from(is_new)], &held);
    reading.claims.extend(own.iter().map(|&range| context.claim_whole(range, Class::Metadata)));
    reading.call = (heap.collect != Collect::default()).then(|| CallPlan {
        remedy: "mimalloc_collect",
        function: COLLECT,
        object: heap.object,
        locks: Vec::new(),
        heaps: heap.parts.iter().map(Part::range).collect(),
        gives_all: false,
        threads: collection.thread.into_iter().collect(),
        predicted_bytes: reading.trimmable_bytes(),
        due_milliseconds: collection.due_milliseconds,
        libc_code: None,
        doubt: doubts.call_hazard(),
    });
    reading.allocator = facts(heap, &counts, &own, doubts.is_empty());
    reading.refined = std::mem::take(&mut counts.matched);
    reading.bytes_read = heap.bytes_read + counts.bytes_read + collection.bytes_read;
    doubts.add_caveats(&mut reading.caveats, &ABOUT, "segments and pages", &heap.name);
    reading.is_inconsistent = doubts.damages > 0;
    reading
}

/// Returns a reading without claims, for a heap whose structures are not those of a standard
/// release.
fn encoded(heap: &Heap) -> Reading {
    let text = "most of its segments or pages are inconsistent, as in a build with MI_SECURE or MI_DEBUG, which encodes its \
                lists: it is not read, and nothing is predicted";
    let mut reading = Reading { bytes_read: heap.bytes_read, ..Reading::default() };
    reading.caveats.push(Caveat::new("mimalloc_encoded", heap.name.clone(), None, text));
    reading.allocator = Allocator {
        name: ABOUT.name.to_owned(),
        found_by: format!("segments or page map of {}", heap.name),
        ..Allocator::default()
    };
    reading
}

/// Returns the ranges of threads' own data, including their heaps, outside `held`.
fn thread_data(context: &Context<'_>, owners: &[u64], bytes: u64, held: &RangeSet) -> RangeSet {
    let own = owners.iter().filter_map(|&owner| {
        let range = AddressRange::sized(owner, bytes).widened_to_pages();
        let range = context.space.find(range.start)?.range().intersection(range);
        is_unclaimed(context, held, range).then_some(range)
    });
    own.collect()
}

fn facts(heap: &Heap, counts: &Counts, own: &[AddressRange], is_whole: bool) -> Allocator {
    let mut allocator = Allocator {
        name: "mimalloc".to_owned(),
        found_by: format!("segments or page map of {} (laid out as in {})", heap.name, heap.releases),
        read: true,
        ..Allocator::default()
    };
    if is_whole {
        allocator.live_bytes = Some(counts.live_bytes);
        allocator.live_blocks = Some(counts.classes.values().map(|class| class.live_blocks).sum());
        allocator.cached_bytes = Some(counts.cached_bytes);
        allocator.free_bytes = Some(counts.free_bytes);
        let own_bytes: u64 = own.iter().map(|range| range.len()).sum();
        allocator.metadata_bytes = Some(counts.own_bytes + own_bytes);
        let free_parts = heap.parts.iter().filter(|part| part.is_free());
        let free_bytes: u64 = free_parts.map(|part| part.end - part.start).sum();
        // Named as its statistics (`mi_stats_t`), as far as structures hold them.
        allocator.own =
            figures(&[("segments", heap.segments), ("pages", counts.pages), ("free_span_bytes", free_bytes)]);
        allocator.size_classes = counts.classes.values().cloned().collect();
    }
    allocator
}
