//! mimalloc, read from outside, without symbols and without calling anything.
//!
//! `segments` finds those that keep their memory in segments (1.x, 2.x), `arenas` those that have a page map (3.x); both divide
//! it into the same `parts`, of which `claims` says what each byte is. Which blocks are free is told by lists through
//! their first words: of pages with free ones the memory itself is read.

pub mod arenas;
pub mod claims;
pub mod collect;
pub mod layout;
pub mod parts;
pub mod rows;
pub mod segments;

use self::claims::Counts;
use self::parts::{Collect, Heap, Kind, Part};
use crate::scan::{is_mapped_memory, is_own};
use strandline_claims::accumulator::{Accumulator, Class, OutOfOrder};
use strandline_claims::allocator::{
    self, Argument, CallPlan, Cause, Context, Doubt, Found, Function, RangeClaim, Reading, Readings,
    overlapping,
};
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::{Allocator, Figures, Remedy, RemedyKind};
use strandline_claims::range::{merge, page_of, page_up};
use strandline_claims::reader::{About, Clue, Evidence, FileName, HeapKind, version_in_file_name};
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::procfs::Process;

/// mimalloc, for the table of readers.
pub static ABOUT: About = About {
    name: "mimalloc",
    title: "mimalloc",
    evidence: Evidence {
        files: &[FileName::Has("libmimalloc", ".so")],
        symbols: &["mi_malloc", "mi_heap_malloc"],
        strings: &[('m', "imalloc: error: "), ('m', "imalloc: warning: ")],
        version: |clue: &Clue<'_>| clue.mapping.and_then(|_| version_in_file_name(clue.file)),
        ..Evidence::NONE
    },
    versions: "1.6 to 1.9, 2.0.3 to 2.4, 3.0 to 3.4, 64 bits",
    rows: &rows::ROWS,
    blocks: Some(&rows::BLOCKS),
    remedies: &["mimalloc_collect", "mimalloc_purge_delay"],
    not_read: "secure and debugging builds (encoded lists, padding); by how much an aligned block begins behind its place",
    heap: HeapKind::Own,
    part_of: None,
};

/// Collects the heap of the thread that calls it, and what threads that ended left (`mi_collect(true)`).
const COLLECT: Function = Function {
    name: "mi_collect",
    sibling: "mi_malloc",
    argument: Argument::Number(1),
    stack_bytes: 64 << 10,
    own_names: &["mi_", "_mi_"],
};

/// Bytes of what a thread has for itself, its heap and more (`mi_thread_data_t`): up to 2.1.2 a page, later two, at least.
const THREAD_DATA_BYTES: [u64; 2] = [3 << 10, 6 << 10];

/// So much in free pages is worth a setting for the next start.
const WORTH_A_SETTING_BYTES: u64 = 1 << 20;

/// Its reader.
pub struct Reader;

impl allocator::Reader for Reader {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn find(&self, _: &Process, space: &AddressSpace) -> Option<Box<dyn Found>> {
        // Where it takes memory without a hint there may be one too.
        let is_likely = |mapping: &Mapping| {
            is_mapped_memory(mapping) && segments::HINTS.contains(&mapping.start)
                || mapping.has_file() && mapping.name.contains("libmimalloc")
        };
        Some(Box::new(Mimalloc { is_likely: space.mappings().iter().any(is_likely) }))
    }
}

struct Mimalloc {
    is_likely: bool,
}

impl Found for Mimalloc {
    fn reads_blocks(&self) -> bool {
        self.is_likely
    }

    fn read(&self, context: &Context<'_>) -> Result<Readings, OutOfOrder> {
        let mut taken = context.claimed.to_vec();
        merge(&mut taken);
        let mut readings: Vec<Reading> = Vec::new();
        let mut heaps = segments::find(context, &taken);
        taken.extend(heaps.iter().flat_map(|heap| &heap.parts).map(|part| (part.start, part.end)));
        merge(&mut taken);
        heaps.extend(arenas::find(context, &taken));
        for heap in heaps {
            merge(&mut taken);
            let reading = read(context, &heap, &taken);
            taken.extend(reading.claims.iter().map(|claim| (claim.start, claim.end)));
            readings.push(reading);
        }
        Ok((readings, Vec::new()))
    }

    fn finish(&self, process: &Process, _: &AddressSpace, reading: &mut Reading) {
        let Some(call) = &reading.call else { return };
        reading.remedies.push(Remedy {
            id: call.remedy.to_owned(),
            kind: RemedyKind::Call,
            predicted_bytes: Some(call.predicted_bytes),
            how: format!("strandline reclaim {} --remedy mimalloc_collect", process.pid()),
            cost: "one call in one thread, over all pages of that thread's heap: again, for the next thread; later growth faults \
                   pages in again"
                .to_owned(),
        });
        let free = |claim: &RangeClaim| claim.sums.resident.kept + claim.sums.resident.trim;
        if reading.claims.iter().map(free).sum::<u64>() >= WORTH_A_SETTING_BYTES {
            reading.remedies.push(Remedy {
                id: "mimalloc_purge_delay".to_owned(),
                kind: RemedyKind::Setting,
                predicted_bytes: None,
                how: "MIMALLOC_PURGE_DELAY=0".to_owned(),
                cost: "free pages go back at once (MIMALLOC_DECOMMIT_DELAY before 2.1): calls of the kernel, and faults where they \
                       are wanted again"
                    .to_owned(),
            });
        }
    }
}

/// Reads one mimalloc, beside what is `taken` by others, in address order.
fn read(context: &Context<'_>, heap: &Heap, taken: &[(u64, u64)]) -> Reading {
    let left = collect::find(context, heap);
    let (claims, counts) = claims::claim(context, heap, &left.delayed, &|part| left.is_given(part));
    let mut reading = Reading { rows: Some(&rows::BLOCKS), claims, ..Reading::default() };
    let mut held: Vec<(u64, u64)> = reading.claims.iter().map(|claim| (claim.start, claim.end)).collect();
    held.extend(taken);
    merge(&mut held);
    let is_new = heap.delayed_free.is_none_or(|offset| offset < THREAD_DATA_BYTES[0] / 2);
    let own = thread_data(context, (&left.owners, THREAD_DATA_BYTES[usize::from(is_new)]), &held);
    reading.claims.extend(own.iter().map(|&range| own_claim(context, range)));
    reading.call = (heap.collect != Collect::default()).then(|| CallPlan {
        remedy: "mimalloc_collect",
        function: COLLECT,
        object: heap.object,
        locks: Vec::new(),
        heaps: heap.parts.iter().map(|part| (part.start, part.end)).collect(),
        gives_all: false,
        threads: left.thread.into_iter().collect(),
        predicted_bytes: reading.claims.iter().map(|claim| claim.sums.trimmable).sum(),
        doubt: doubt(heap, &counts),
    });
    reading.allocator = facts(heap, &counts, &own);
    reading.refined = counts.matched.clone();
    reading.bytes_read = heap.bytes_read + counts.bytes_read + left.bytes_read;
    say_doubts(heap, &counts, &mut reading);
    reading
}

/// What threads have for themselves, their heaps among it, where that is in none of the ranges that are `held`.
fn thread_data(
    context: &Context<'_>,
    (owners, bytes): (&[u64], u64),
    held: &[(u64, u64)],
) -> Vec<(u64, u64)> {
    let ranges = owners.iter().map(|&owner| (page_of(owner), page_up(owner + bytes)));
    let mut own: Vec<(u64, u64)> = ranges
        .filter_map(|(start, end)| {
            let mapping = context.space.find(start)?;
            let end = end.min(mapping.end);
            let is_free = is_own(context, start, end)
                && overlapping(held, start, end).is_empty()
                && overlapping(context.stacks, start, end).is_empty();
            is_free.then_some((start, end))
        })
        .collect();
    merge(&mut own);
    own
}

fn own_claim(context: &Context<'_>, (start, end): (u64, u64)) -> RangeClaim {
    let pages = context.pages(start, end);
    let mut accumulator = Accumulator::new(start, &pages);
    accumulator.claim_to(end, Class::Metadata);
    RangeClaim { start, end, sums: accumulator.cut().finish(&pages) }
}

/// What speaks against a call.
fn doubt(heap: &Heap, counts: &Counts) -> Option<Doubt> {
    let late = (heap.is_late || counts.is_late).then_some(Doubt { at: 0, cause: Cause::TooSlow });
    let damaged = heap.first_damage.or(counts.first_damage);
    damaged.map(|at| Doubt { at, cause: Cause::Broken }).or(late)
}

fn facts(heap: &Heap, counts: &Counts, own: &[(u64, u64)]) -> Allocator {
    let mut allocator = Allocator {
        name: "mimalloc".to_owned(),
        found_by: format!("segments or page map of {} (laid out as in {})", heap.name, heap.releases),
        read: true,
        ..Allocator::default()
    };
    if !heap.is_late && !counts.is_late && heap.damages == 0 && counts.damages == 0 {
        allocator.live_bytes = Some(counts.live_bytes);
        allocator.live_blocks = Some(counts.classes.values().map(|of| of.live_blocks).sum());
        allocator.cached_bytes = Some(counts.cached_bytes);
        allocator.free_bytes = Some(counts.free_bytes);
        let own_bytes: u64 = own.iter().map(|range| range.1 - range.0).sum();
        allocator.metadata_bytes = Some(counts.own_bytes + own_bytes);
        allocator.own = figures(heap, counts);
        allocator.size_classes = counts.classes.values().cloned().collect();
    }
    allocator
}

/// As its statistics are called (`mi_stats_t`), those that structures tell.
fn figures(heap: &Heap, counts: &Counts) -> Figures {
    let free = |part: &&Part| matches!(part.kind, Kind::Free | Kind::Waiting);
    let free_bytes: u64 = heap.parts.iter().filter(free).map(|part| part.end - part.start).sum();
    let figures = [("segments", heap.segments), ("pages", counts.pages), ("free_span_bytes", free_bytes)];
    figures.into_iter().map(|(name, figure)| (name.to_owned(), figure.into())).collect()
}

fn say_doubts(heap: &Heap, counts: &Counts, reading: &mut Reading) {
    if heap.is_late || counts.is_late {
        let text =
            "the time for which a target may be stopped was over: not all of mimalloc's pages were read";
        reading.caveats.push(Caveat::new("mimalloc_too_slow", heap.name.clone(), None, text));
    }
    let damages = heap.damages + counts.damages;
    if let Some(at) = heap.first_damage.or(counts.first_damage) {
        reading.in_motion = true;
        let text = format!(
            "{damages} of mimalloc's segments and pages make no sense: damaged, or caught in motion; what they hold is not known"
        );
        let bytes = (counts.damages > 0).then_some(counts.damaged_bytes);
        reading.caveats.push(Caveat::new("mimalloc_damaged", format!("{at:#x}"), bytes, text));
    }
}
