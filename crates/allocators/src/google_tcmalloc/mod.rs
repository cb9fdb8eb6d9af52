//! Google's tcmalloc, read from outside without symbols or calls.
//!
//! `locate` finds the page map and the size classes, `detect` the layout; `spans` walks the page
//! map, `huge` finds the huge pages that are free as a whole, `pieces` merges both and checks one
//! against the other; `caches` finds the objects in per-CPU, thread and transfer caches, `claims`
//! classifies each byte, `metadata` finds tcmalloc's own structures. A bitmap in the span structure
//! marks free objects; the heap itself is read only for small objects, whose free ones are linked.

mod cache_layout;
mod caches;
mod claims;
mod detect;
mod huge;
mod layout;
mod locate;
mod metadata;
mod pieces;
mod rows;
mod spans;
mod statics;
mod summary;

use self::locate::Heap;
use self::pieces::Piece;
use crate::blocks::UnmatchedCaches;
use crate::parallel::Claimed;
use crate::radix::{FoundHeaps, UnclaimedMemory};
use strandline_claims::accumulator::{Class, OutOfOrder};
use strandline_claims::allocator::{self, Context, FoundAllocator, Reading, Readings, read_each};
use strandline_claims::facts::Remedy;
use strandline_claims::reader::{Evidence, ReaderInfo};
use strandline_claims::remedy::{Effect, Spec};
use strandline_process::map::AddressSpace;
use strandline_process::procfs::Process;
use strandline_process::range::RangeSet;

/// Entry of Google's tcmalloc in the table of readers.
pub static ABOUT: ReaderInfo = ReaderInfo {
    name: "google_tcmalloc",
    title: "Google's tcmalloc",
    evidence: Evidence {
        symbols: &["TCMallocInternalMalloc", "MallocExtension_Internal_GetNumericProperty"],
        strings: &[('M', "mapAligned() failed - unable to allocate with tag"), ('t', "cmalloc_region_")],
        ..Evidence::NONE
    },
    versions: "2024-12 to 2026-08, pages of 8 KiB",
    rows: &rows::ROWS,
    blocks: Some(&rows::BLOCKS),
    block_sizes: "tcmalloc rounds up to its size classes, large blocks to its pages",
    remedies: &[Spec::advice(
        "google_tcmalloc_release",
        Effect::FreePages("google_tcmalloc"),
        "the program has Google's tcmalloc release free pages",
    )],
    not_read: "its small build (TCMALLOC_INTERNAL_SMALL_BUT_SLOW); pages of 32 and 256 KiB, and commits other than of 2025-06 and 2026-08, were not tried; commits before 2024-12; how large guarded samples are",
    ..ReaderInfo::NONE
};

/// The reader of Google's tcmalloc.
pub static READER: allocator::Reader =
    allocator::Reader::new(
        |_, space| {
            if locate::is_possible(space) { Some(Box::new(GoogleTcmalloc)) } else { None }
        },
    );

struct GoogleTcmalloc;

impl FoundAllocator for GoogleTcmalloc {
    /// The heap itself is read for small objects only.
    fn takes_long(&self) -> bool {
        false
    }

    fn read(&self, context: &Context<'_>) -> Result<Readings, OutOfOrder> {
        let FoundHeaps { heaps, caveats } = locate::find(context);
        Ok((read_each(context, heaps, |heap, taken| read(context, heap, taken)), caveats))
    }

    fn finish(&self, _: &Process, _: &AddressSpace, reading: &mut Reading) {
        if reading.releasable_bytes() < MIN_BYTES_FOR_REMEDY {
            return;
        }
        // No call from outside: demand in the minutes before decides how many free pages of a huge
        // page are released.
        let how = "call tcmalloc::MallocExtension::ReleaseMemoryToSystem(SIZE_MAX) in the program after it has freed memory, or run \
                   ProcessBackgroundActions() in a thread of it, with SetBackgroundReleaseRate()";
        let cost = "releases parts of huge pages, which splits them; page faults when the heap grows again";
        reading.remedies.push(Remedy::advice("google_tcmalloc_release", None, how, cost));
    }
}

/// Minimum free bytes for which a change of the program is proposed.
const MIN_BYTES_FOR_REMEDY: u64 = 1 << 20;

/// Reads one heap outside `taken` (claimed by others).
fn read(context: &Context<'_>, heap: &Heap, taken: &RangeSet) -> Reading {
    let spans = spans::walk(context, heap, taken);
    let huge_pages = huge::find(context, heap);
    let pieces = pieces::merge_sources(heap, &spans, &huge_pages, &mut UnclaimedMemory::new(context, taken));
    let caches = caches::read(context, heap);
    let Claimed { claims, mut counts } = claims::claim(context, heap, &pieces.all, &caches, &spans.proxies);
    let mut doubts = spans.doubts.clone();
    for part_doubts in [&huge_pages.doubts, &pieces.doubts, &counts.doubts] {
        doubts.add(part_doubts);
    }
    let mut reading = Reading { rows: Some(&rows::BLOCKS), claims, ..Reading::default() };
    let mut heap_and_taken = taken.clone();
    heap_and_taken.add(pieces.all.iter().map(Piece::range));
    let mut structure_pages = spans.structure_pages;
    structure_pages.extend(huge_pages.structure_pages);
    structure_pages.extend(&caches.structure_pages);
    let structures = metadata::find(context, heap, &structure_pages, &heap_and_taken);
    reading.claims.extend(structures.iter().map(|&range| context.claim_whole(range, Class::Metadata)));
    let not_resident_bytes = metadata::not_resident_bytes(heap, &structures);
    reading.allocator =
        summary::facts(heap, &counts, &caches, &structures, not_resident_bytes, doubts.is_empty());
    reading.refined = std::mem::take(&mut counts.matched);
    let bytes_read = [
        spans.bytes_read,
        huge_pages.bytes_read,
        counts.bytes_read,
        caches.bytes_read,
        heap.statics.bytes_read,
    ];
    reading.bytes_read = bytes_read.into_iter().sum();
    doubts.add_caveats(&mut reading.caveats, &ABOUT, "spans and huge pages", &heap.name);
    reading.is_inconsistent = doubts.damages > 0;
    // After the deadline neither caches nor spans were read completely.
    if !doubts.timed_out() {
        let unmatched_caches = UnmatchedCaches {
            block_word: "object",
            blocks: (caches.blocks.len() as u64).saturating_sub(counts.matched_objects),
            list_word: "list",
            lists: caches.unread_count,
        };
        reading.caveats.extend(unmatched_caches.caveat(&ABOUT, &heap.name));
        reading.caveats.extend(caches.swapped.caveat(&ABOUT));
    }
    reading
}
