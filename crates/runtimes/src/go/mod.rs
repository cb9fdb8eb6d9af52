//! Go: spans of objects, free slots in them, stacks, idle spans, and the runtime's own structures.
//!
//! `locate` finds Go in the mapped files, `heap` the heap structure and all spans, `claims`
//! classifies each byte, `metadata` finds the runtime's own structures, `figures` reads its
//! counters. No object is read: the bits of a span mark the slots in use.

mod claims;
mod facts;
mod figures;
mod findings;
mod heap;
mod layout;
pub mod locate;
mod metadata;
mod remedies;
mod rows;
mod section;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use self::claims::HeapClaims;
use self::facts::{Go, SizeClass};
use self::figures::Figures;
use self::heap::{Heap, Instance, SpanKind, Spans};
use self::layout::BUILD_INFORMATION_BYTES;
use self::locate::Program;
use crate::batch::CountingMemory;
use crate::named::go_version;
use crate::programs::{Limit, Programs};
use strandline_claims::accumulator::Class;
use strandline_claims::allocator::RangeClaim;
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::Runtime;
use strandline_claims::range::pieces;
use strandline_claims::reader::{Evidence, HeapKind, ReaderInfo};
use strandline_claims::refinements::Refinements;
use strandline_claims::remedy::{Effect, Spec};
use strandline_claims::runtime::{self, Busy, Context, FoundRuntime, Reading};
use strandline_process::range::{AddressRange, RangeSet};

/// Limit on Go runtimes read in one process (a program and libraries in Go); each costs memory and
/// time.
pub const MAX_PROGRAMS: usize = 8;

/// Limit on size classes: Go has 68, a hostile process as many as it has spans.
const MAX_SIZE_CLASSES: usize = 256;

/// Entry of Go in the table of readers.
pub static ABOUT: ReaderInfo = ReaderInfo {
    name: "go",
    title: "Go",
    evidence: Evidence {
        section: Some(".go.buildinfo"),
        version: |clue| go_version(&clue.image()?.section_bytes(".go.buildinfo", BUILD_INFORMATION_BYTES)?),
        ..Evidence::NONE
    },
    versions: "1.18 to 1.27",
    rows: &rows::ROWS,
    blocks: None,
    remedies: &[
        Spec::advice("go_free_os_memory", Effect::Objects, "the program calls debug.FreeOSMemory()"),
        Spec::next_start("go_memory_limit", "Go collects and releases memory more often near a limit"),
    ],
    not_read: "types of objects, and which of them are garbage",
    heap: HeapKind::OwnOnly("go"),
    ..ReaderInfo::NONE
};

/// Reader of Go.
pub static READER: runtime::Reader = runtime::Reader {
    findings: findings::findings,
    section: section::section,
    ..runtime::Reader::new(|process, space| Programs::found(locate::find(process, space)))
};

impl FoundRuntime for Programs<Program> {
    /// Reading takes a word or two for each span.
    fn takes_long(&self) -> bool {
        false
    }

    fn read(&self, context: &Context<'_>, _: &Refinements) -> Result<Vec<Reading>, Busy> {
        let limit = Limit { max_programs: MAX_PROGRAMS, code: "go_left_out", runtimes: "Go runtimes" };
        self.read_within(
            context,
            &limit,
            |program| &program.path,
            |program, before| Ok(read(context, program, &runtime::claimed_ranges(before))),
        )
    }
}

/// Reads one Go runtime. `foreign_ranges` are the ranges that runtimes read before it claimed.
pub fn read(context: &Context<'_>, program: &Program, foreign_ranges: &RangeSet) -> Reading {
    let facts = Runtime {
        name: "go".to_owned(),
        version: program.version.clone(),
        found_by: format!("build information of {}", program.path),
        ..Runtime::default()
    };
    let mut reading = Reading { facts, rows: Some(&rows::BLOCKS), ..Reading::default() };
    let memory = CountingMemory::new(context.memory);
    let is_unclaimed = |range: &AddressRange| !foreign_ranges.overlaps(*range);
    let Some(layout) = program.layout() else {
        let version = program.version.as_deref().unwrap_or("of unknown version");
        let text = format!("the layout of Go {version} is not known; strandline read nothing of it");
        reading.caveats.push(Caveat::new("go_unknown_version", &program.path, None, text));
        return reading;
    };
    let heap = heap::find(context, &memory, program, layout);
    let Some(heap) = heap.filter(|heap| heap.ranges.iter().all(is_unclaimed)) else {
        let text = "Go's heap was not found: Go may not have started, or its layout differs from that of its version, or there \
                    was no time; strandline read nothing of it";
        reading.caveats.push(Caveat::new("go_heap_not_found", &program.path, None, text));
        return reading;
    };
    // The palette of a new reading has room.
    let Some(stack_slot) = reading.palette.add(&rows::STACK, None) else { return reading };
    let spans = heap.read_spans(context, &memory, layout);
    let instance = Instance { program, layout, heap: &heap, spans: &spans };
    let HeapClaims { claims, unread_bytes } = claims::claim(context, &memory, instance, stack_slot);
    let idle_resident_bytes: u64 = claims.iter().map(|claim| claim.sums.releasable_bytes).sum();
    reading.claims = claims;
    let structures = metadata::find(context, &memory, instance);
    let structure_ranges = structures.ranges.into_iter().filter(is_unclaimed).flat_map(pieces);
    let structure_claims: Vec<RangeClaim> =
        structure_ranges.map(|range| context.claim_whole(range, Class::Metadata)).collect();
    let structure_bytes: u64 =
        structure_claims.iter().map(|claim| claim.sums.resident.of(Class::Metadata)).sum();
    reading.claims.extend(structure_claims);
    reading.facts.read = true;
    let mut details = Go { size_classes: size_classes(&spans), ..Go::default() };
    if spans.doubts.is_empty() {
        details.idle_resident_bytes = (unread_bytes == 0).then_some(idle_resident_bytes);
        let figures = figures::read(context, &memory, instance);
        fill_in_facts(&figures, &heap, &mut reading.facts, &mut details);
        let span_bytes = figures.in_use_bytes.saturating_add(spans.bytes(SpanKind::Manual));
        let in_use_bytes = span_bytes.saturating_add(structure_bytes);
        reading.remedies = remedies::remedies(idle_resident_bytes, in_use_bytes);
    }
    reading.facts.set_details(ABOUT.name, &details);
    reading.bytes_read = memory.bytes();
    spans.doubts.add_caveats(&mut reading.caveats, &ABOUT, "spans", &program.path);
    reading.caveats.extend(unread_caveats(program, unread_bytes, structures.is_complete));
    reading
}

/// Returns caveats for what was not read: bytes of spans, and the runtime's own structures if some
/// are missing.
fn unread_caveats(
    program: &Program,
    unread_bytes: u64,
    has_all_structures: bool,
) -> impl Iterator<Item = Caveat> {
    let caveat = |bytes: Option<u64>, text: &str| Caveat::new("go_unread", &program.path, bytes, text);
    let spans = (unread_bytes > 0).then(|| {
        let text = "the bitmaps of some spans or pages could not be read, or there was no time: these bytes count as go.unread or \
                    anonymous";
        caveat(Some(unread_bytes), text)
    });
    let structures = (!has_all_structures).then(|| {
        let text = "some of the runtime's own structures could not be read, or are too many, or there was no time: these count \
                    as anonymous";
        caveat(None, text)
    });
    spans.into_iter().chain(structures)
}

/// Fills in the figures common to all runtimes, Go's own, and details.
fn fill_in_facts(heap_figures: &Figures, heap: &Heap, facts: &mut Runtime, details: &mut Go) {
    facts.used_bytes = Some(heap_figures.alloc_bytes);
    facts.free_bytes = Some(heap_figures.in_use_bytes.saturating_sub(heap_figures.alloc_bytes));
    facts.committed_bytes = heap_figures.released_bytes.map(|released| heap.bytes().saturating_sub(released));
    let own_figures = [
        ("HeapAlloc", Some(heap_figures.alloc_bytes)),
        ("HeapSys", Some(heap_figures.in_use_bytes.saturating_add(heap_figures.idle_bytes))),
        ("HeapIdle", Some(heap_figures.idle_bytes)),
        ("HeapInuse", Some(heap_figures.in_use_bytes)),
        ("HeapReleased", heap_figures.released_bytes),
        ("StackInuse", heap_figures.stack_bytes),
    ];
    let known = own_figures.into_iter().filter_map(|(name, figure)| Some((name.to_owned(), figure?.into())));
    facts.own = known.collect();
    details.live_after_last_mark_bytes = heap_figures.marked_bytes;
    details.next_gc_bytes = heap_figures.goal_bytes;
    details.gogc_percent = heap_figures.gc_percent;
    details.memory_limit_bytes = heap_figures.memory_limit_bytes;
}

/// Returns the size classes with the most free bytes.
fn size_classes(spans: &Spans) -> Vec<SizeClass> {
    let mut classes: BTreeMap<u64, SizeClass> = BTreeMap::new();
    for span in spans.by_address.iter().filter(|span| span.kind == SpanKind::Objects) {
        let object_bytes = if span.object_capacity == 1 { 0 } else { span.object_bytes };
        let class = classes.entry(object_bytes).or_insert(SizeClass { object_bytes, ..SizeClass::default() });
        class.spans += 1;
        class.span_bytes += span.end - span.start;
        class.objects += span.used_objects;
        class.free_places += span.object_capacity - span.used_objects;
    }
    let mut classes: Vec<SizeClass> = classes.into_values().collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.free_places * class.object_bytes));
    classes.truncate(MAX_SIZE_CLASSES);
    classes
}
