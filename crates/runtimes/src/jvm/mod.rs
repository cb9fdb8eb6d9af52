//! The Java virtual machine (HotSpot): its heap by pools and regions, objects by class, metaspace,
//! compiled code.
//!
//! `locate` finds HotSpot in the mapped files and reads its description of its own structures
//! (`structs`); `view` reads fields by name, `heap` the collector's spaces and regions, `threads`
//! the allocation buffers of threads, `metaspace` the memory of classes, and `code` the code cache.
//! `objects` walks areas that can be parsed, `trace` determines which objects are live (`roots`,
//! `shapes`), and `claims` classifies each byte.

mod apply;
mod attach;
mod claims;
mod code;
mod facts;
mod figures;
mod findings;
mod heap;
mod klasses;
mod layout;
pub mod locate;
mod metaspace;
mod names;
mod objects;
mod remedies;
mod roots;
mod rows;
mod section;
mod shapes;
mod structs;
#[cfg(test)]
mod tests;
mod threads;
mod trace;
mod view;

use self::claims::{HeapClaims, Traced};
use self::heap::{Heap, HeapError};
use self::klasses::Headers;
use self::locate::Program;
use self::metaspace::Metaspace;
use self::view::View;
use crate::batch::CountingMemory;
use crate::bits::{Bitmap, HeapIndex};
use crate::named::java_version;
use crate::programs::{Limit, Programs};
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::{Runtime, sum_other_types};
use strandline_claims::reader::{Evidence, FileName, HeapKind, ReaderInfo, version_in_file_name};
use strandline_claims::refinements::Refinements;
use strandline_claims::remedy::{Action, Effect, Spec};
use strandline_claims::runtime::{self, Busy, Context, FoundRuntime, Reading};
use strandline_process::memory::Memory;
use strandline_process::range::{AddressRange, RangeSet};

/// Entry of HotSpot in the table of readers.
pub static ABOUT: ReaderInfo = ReaderInfo {
    name: "jvm",
    title: "the Java virtual machine",
    evidence: Evidence {
        files: &[FileName::Exact("libjvm.so")],
        symbols: &["JNI_CreateJavaVM"],
        version: |clue| java_version(clue).or_else(|| version_in_file_name(clue.file)),
        ..Evidence::NONE
    },
    versions: "HotSpot 11 to 27 (12 to 16, 18 to 20, 22 to 24 not tried)",
    rows: &rows::ROWS,
    blocks: None,
    remedies: &[
        Spec {
            id: "jvm_gc",
            help: "asks the JVM for a full collection (GC.run, as jcmd does)",
            effect: Effect::Objects,
            action: Action::Apply(apply::collect),
        },
        Spec {
            id: "jvm_trim",
            help: "asks the JVM to trim its malloc (System.trim_native_heap)",
            effect: Effect::FreePages("glibc"),
            action: Action::Apply(apply::trim),
        },
    ],
    not_read: "other virtual machines than HotSpot; ZGC, Shenandoah and CMS of 11 to 16; objects of ZGC by class",
    heap: HeapKind::Own,
    ..ReaderInfo::NONE
};

/// Limit on classes listed, most bytes first: a hostile process has any number of them. One more
/// entry has the sum of the others.
const MAX_TYPES: usize = 10_000;
/// Bytes of the `MallocHeader` (`nmt/mallocHeader.hpp`) that `NativeMemoryTracking` puts before
/// each block.
const TRACKING_HEADER_BYTES: u64 = 16;
/// Bytes by which the resident part of a heap that is traced may fall short of seven eighths of its
/// used bytes: the unused parts of threads' buffers may not be resident.
const MAX_ABSENT_BYTES: u64 = 64 << 20;
/// Limit on JVMs read in one process: usually there is one, and each costs memory and time.
pub const MAX_PROGRAMS: usize = 4;

/// Reader of HotSpot.
pub static READER: runtime::Reader = runtime::Reader {
    findings: findings::findings,
    in_use: findings::beside_heap,
    remedies: |view| remedies::trim(view).into_iter().collect(),
    section: section::section,
    ..runtime::Reader::new(|process, space| Programs::found(locate::find(process, space)))
};

impl FoundRuntime for Programs<Program> {
    fn is_collecting(&self, memory: &dyn Memory) -> bool {
        // `read` adds a caveat for a JVM whose structures cannot be read.
        self.0.iter().take(MAX_PROGRAMS).filter_map(|program| program.structs(memory).ok()).any(|structs| {
            let view = View { memory, structs };
            let heap = view.static_field(&["Universe::_collectedHeap"]);
            heap.is_some_and(|heap| heap != 0 && heap::is_collecting(&view, heap))
        })
    }

    fn read(&self, context: &Context<'_>, refinements: &Refinements) -> Result<Vec<Reading>, Busy> {
        let limit = Limit { max_programs: MAX_PROGRAMS, code: "jvm_left_out", runtimes: "JVMs" };
        self.read_within(
            context,
            &limit,
            |program| &program.path,
            |program, earlier| {
                let mut reading = read(context, program, &runtime::claimed_ranges(earlier), refinements)?;
                // Shared memory with the same name cannot be assigned to one of several JVMs.
                if earlier.iter().any(|reading| !reading.shared_claims.is_empty()) {
                    reading.shared_claims.clear();
                }
                Ok(reading)
            },
        )
    }
}

/// Reads one JVM. `foreign_ranges` are the ranges that others claimed, in address order; the JVM's
/// blocks from malloc are claimed in `refinements`.
///
/// # Errors
/// [`Busy`] if a collection is under way.
pub fn read(
    context: &Context<'_>,
    program: &Program,
    foreign_ranges: &RangeSet,
    refinements: &Refinements,
) -> Result<Reading, Busy> {
    let facts = Runtime {
        name: ABOUT.name.to_owned(),
        found_by: format!("gHotSpotVMStructs of {}", program.path),
        ..Runtime::default()
    };
    let mut reading = Reading { facts, rows: Some(&rows::BLOCKS), ..Reading::default() };
    let memory = CountingMemory::new(context.memory);
    let structs = match program.structs(&memory) {
        Ok(structs) => structs,
        Err(missing) => {
            reading.facts.found_by = format!("exported tables of HotSpot in {}", program.path);
            let text = format!(
                "HotSpot's tables of its own structures are incomplete: {missing}; strandline read nothing of it"
            );
            reading.caveats.push(Caveat::new("jvm_unknown_version", &program.path, None, text));
            return Ok(reading);
        }
    };
    reading.facts.version.clone_from(&structs.release);
    let view = View { memory: &memory, structs };
    let heap = match heap::read(context, &view) {
        Ok(heap) => heap,
        Err(HeapError::Collecting) => {
            return Err(Busy { runtime: ABOUT.name, bytes: None, is_collecting: true });
        }
        Err(error) => {
            reading.caveats.push(unread_caveat(program, error));
            return Ok(reading);
        }
    };
    let buffers = threads::buffers(&view, context.deadline);
    // Objects may take all of the time, so the fast parts come first.
    let metaspace = Metaspace::read(&view, context.deadline);
    let segments = code::segments(&view, context.deadline);
    let known_buffers = buffers.as_deref().unwrap_or_default();
    let Objects { census, live, untraced_because } =
        count_and_trace(context, &view, &heap, known_buffers, program.data);
    let state = JvmState { heap, buffers, live, metaspace, segments };
    claim(context, &view, &state, foreign_ranges, &program.path, &mut reading);
    reading.facts.read = true;
    figures::fill_in_facts(&state, &mut reading.facts);
    reading.caveats.extend(unread_caveats(context, program, &state, census.as_ref()));
    if let Some(reason) = untraced_because {
        let text = format!("which of the JVM's objects live is not known: {reason}");
        reading.caveats.push(Caveat::new("jvm_not_traced", &program.path, None, text));
    }
    if let Some(census) = census {
        reading.caveats.extend(claim_direct(&census, refinements, &program.path));
        reading.facts.types = census.types;
        sum_other_types(&mut reading.facts.types, MAX_TYPES);
    }
    let details = figures::details(context, &view, &state);
    reading.remedies = remedies::remedies(context, &view, &state.heap, &details, state.live.as_ref());
    reading.facts.set_details(ABOUT.name, &details);
    reading.bytes_read = memory.bytes();
    Ok(reading)
}

/// Claims direct buffers, each at both addresses at which its block from malloc may start: with
/// `NativeMemoryTracking`, a header precedes the buffer. Returns a caveat, at `path`, if some are
/// not claimed.
fn claim_direct(census: &objects::Census, refinements: &Refinements, path: &str) -> Option<Caveat> {
    if census.direct_buffers.is_empty() && !census.has_left_out_buffers {
        return None;
    }
    let Some(slot) = refinements.slot(&rows::DIRECT, None) else {
        let text = "other readers use all slots for claims on blocks: the JVM's direct buffers are left out";
        return Some(Caveat::new("slots_taken", path, None, text));
    };
    for &objects::DirectBuffer { address, bytes } in &census.direct_buffers {
        refinements.claim(address, bytes, slot);
        let header_start = address.checked_sub(TRACKING_HEADER_BYTES);
        let bytes_with_header = bytes.checked_add(TRACKING_HEADER_BYTES);
        if let Some((start, bytes)) = header_start.zip(bytes_with_header) {
            refinements.claim(start, bytes, slot);
        }
    }
    census.has_left_out_buffers.then(|| {
        let text = "some of the JVM's direct buffers could not be read, or are more than strandline keeps: these count for the \
                    allocator's rows";
        Caveat::new("jvm_part_unread", path, None, text)
    })
}

/// Everything read of a JVM.
struct JvmState {
    heap: Heap,
    /// Allocation buffers of threads, in address order; `None` if they could not be read.
    buffers: Option<Vec<threads::Tlab>>,
    /// Live objects; `None` if they were not traced.
    live: Option<trace::Live>,
    /// `None` if it could not be read.
    metaspace: Option<Metaspace>,
    /// Segments of the code cache; `None` if they could not be read.
    segments: Option<Vec<code::Segment>>,
}

/// Claims all memory that is not in `foreign_ranges`; `path` is that of the library. The palette of
/// a new reading has room for all rows.
fn claim(
    context: &Context<'_>,
    view: &View<'_>,
    state: &JvmState,
    foreign_ranges: &RangeSet,
    path: &str,
    reading: &mut Reading,
) {
    let dead_slot = reading.palette.add(&rows::DEAD, None);
    let traced = state.live.as_ref().zip(dead_slot).map(|(live, dead_slot)| Traced { live, dead_slot });
    let buffers = state.buffers.as_deref().unwrap_or_default();
    let HeapClaims { mut claims, unclaimed_bytes } =
        claims::claim_heap(context, &state.heap.areas, buffers, traced);
    if unclaimed_bytes > 0 {
        let text = "there was no time to read all of the heap: the rest counts as anonymous";
        reading.caveats.push(Caveat::new("jvm_part_unread", path, Some(unclaimed_bytes), text));
    }
    if let Some(metaspace) = &state.metaspace {
        claims.extend(claims::claim_metaspace(context, &mut reading.palette, metaspace));
    }
    if let Some(segments) = &state.segments {
        claims.extend(claims::claim_code(context, &mut reading.palette, segments));
    }
    claims.extend(claims::claim_card_table(context, view, &mut reading.palette));
    claims.retain(|claim| claim.start < claim.end);
    if claims::drop_overlapping(&mut claims, foreign_ranges) {
        let text =
            "parts of the JVM's memory overlap each other or another JVM's: the later ones are not claimed";
        reading.caveats.push(Caveat::new("jvm_damaged", path, None, text));
    }
    reading.claims = claims;
    reading.shared_claims = claims::claim_shared(context, &mut reading.palette, &state.heap);
}

/// Returns caveats for what could not be read.
fn unread_caveats(
    context: &Context<'_>,
    program: &Program,
    state: &JvmState,
    census: Option<&objects::Census>,
) -> Vec<Caveat> {
    let caveat = |code: &str, bytes: Option<u64>, text: &str| Caveat::new(code, &program.path, bytes, text);
    let mut caveats = Vec::new();
    if let Some(bytes) = census.map(|census| census.unread_bytes).filter(|&bytes| bytes > 0) {
        let text = "some objects changed while they were read, or their classes are unloaded, or there are more classes than \
                    strandline keeps, or there was no time: their bytes are not counted by class";
        caveats.push(caveat("jvm_objects", Some(bytes), text));
    }
    if state.heap.is_parsable && census.is_none() {
        let text = "the headers of the JVM's objects could not be read: none are counted by class";
        caveats.push(caveat("jvm_objects", None, text));
    }
    if !state.heap.is_parsable {
        let text = "strandline does not read the objects of this collector's heap: none are counted by class";
        caveats.push(caveat("jvm_objects", None, text));
    }
    // A stopped process has a caveat already.
    if state.heap.is_parsable && !context.is_stopped && context.may_be_swapped() {
        let text =
            "parts of the process are, or may be, swapped out: which of the JVM's objects live is not known";
        caveats.push(caveat("jvm_not_traced", None, text));
    }
    if state.buffers.is_none() {
        let text = "the allocation buffers of the JVM's threads could not be read, or there was no time: their free ends count \
                    as objects";
        caveats.push(caveat("jvm_part_unread", None, text));
    }
    if !state.heap.shared_unread_ranges.is_empty() {
        let bytes = state.heap.shared_unread_ranges.iter().map(|range| range.len()).sum();
        let text = "ZGC's records of its shared memory could not be read completely, or there was no time: the rest counts as \
                    other shared memory";
        caveats.push(caveat("jvm_part_unread", Some(bytes), text));
    }
    let parts = [("metaspace", state.metaspace.is_none()), ("the code cache", state.segments.is_none())];
    for (part, _) in parts.into_iter().filter(|(_, is_unread)| *is_unread) {
        let text = format!(
            "the layout of {part} is not known, or it changed while it was read, or there was no time: its parts are not distinguished"
        );
        caveats.push(caveat("jvm_part_unread", None, &text));
    }
    caveats
}

/// What is known of the objects.
#[derive(Default)]
struct Objects {
    /// `None` if the areas cannot be walked, or the headers of objects cannot be read.
    census: Option<objects::Census>,
    /// `None` if live objects were not traced.
    live: Option<trace::Live>,
    /// Why live objects were not traced; `None` if they were, or if another caveat says why not.
    untraced_because: Option<&'static str>,
}

/// Counts objects in areas that can be walked, and traces the live ones unless the process would
/// have to wait. `data` is the static data of the JVM.
fn count_and_trace(
    context: &Context<'_>,
    view: &View<'_>,
    heap: &Heap,
    buffers: &[threads::Tlab],
    data: AddressRange,
) -> Objects {
    if !heap.is_parsable {
        return Objects::default();
    }
    let is_resident = is_resident(context, heap);
    let must_not_wait = context.is_stopped || context.may_be_swapped();
    let headers = Headers::read(view).filter(|_| is_resident && !must_not_wait);
    let starts = headers.and_then(|headers| {
        let used = heap.areas.iter().map(|area| AddressRange::new(area.start, area.top));
        let places = HeapIndex::new(used, headers.alignment);
        let bits = Bitmap::new(places.count())?;
        Some(objects::ObjectStarts { places, bits })
    });
    let census = objects::count(context, view, &heap.areas, buffers, starts.as_ref());
    // An object that was not understood may hold references.
    let complete_census = census.as_ref().filter(|census| census.unread_bytes == 0);
    let live = complete_census
        .filter(|census| !census.has_moved)
        .zip(starts)
        .and_then(|(census, starts)| trace::trace(context, view, heap, starts, census.weak_class, data));
    let untraced = complete_census.filter(|_| live.is_none() && !must_not_wait);
    let untraced_because = untraced.map(|census| match (is_resident, census.has_moved) {
        (false, _) => "a part of the heap is not resident",
        (true, true) => "a collection was moving them",
        (true, false) => {
            "there was no time or no memory to trace them, or a part of the memory could not be read"
        }
    });
    Objects { census, live, untraced_because }
}

/// Whether enough of the heap is resident for a trace.
fn is_resident(context: &Context<'_>, heap: &Heap) -> bool {
    let used_bytes: u64 = heap.areas.iter().map(|area| area.top - area.start).sum();
    let heap_resident_bytes: u64 = heap.areas.iter().map(|area| context.resident_bytes(area.range())).sum();
    used_bytes / 8 * 7 <= heap_resident_bytes.saturating_add(MAX_ABSENT_BYTES)
}

/// Returns the caveat for a JVM that was not read.
fn unread_caveat(program: &Program, error: HeapError) -> Caveat {
    let (code, text) = match error {
        HeapError::NotStarted => {
            ("jvm_not_started", "the JVM has no heap yet, or is mapped but was never started")
        }
        HeapError::Unknown => (
            "jvm_unknown_version",
            "the JVM's collector or its layout is not known; strandline read nothing of it",
        ),
        HeapError::Late => {
            ("jvm_left_out", "there was no time to read the JVM's heap; strandline read nothing of it")
        }
        HeapError::Damaged | HeapError::Collecting => {
            ("jvm_damaged", "the JVM's structures are inconsistent; strandline read nothing of it")
        }
    };
    Caveat::new(code, &program.path, None, text)
}
