//! The Java virtual machine (HotSpot): its heap by pools and regions, objects by class, metaspace,
//! compiled code.
//!
//! `locate` finds HotSpot in the mapped files and reads its description of its own structures
//! (`structs`); `view` reads fields by name, `heap` the collector's spaces and regions, `threads`
//! the allocation buffers of threads, `metaspace` and `code` the memory named so, `objects` walks
//! areas that can be parsed, and `trace` determines which objects are live (`roots`, `shapes`,
//! `bits`); `claims` classifies each byte.

mod apply;
pub mod attach;
pub mod bits;
pub mod claims;
pub mod code;
pub mod facts;
mod findings;
pub mod heap;
pub mod klasses;
pub mod layout;
pub mod locate;
pub mod metaspace;
pub mod names;
pub mod objects;
pub mod remedies;
pub mod roots;
pub mod rows;
mod section;
pub mod shapes;
pub mod structs;
#[cfg(test)]
mod tests;
pub mod threads;
pub mod trace;
pub mod view;

use std::collections::BTreeMap;
use std::time::Instant;

use self::bits::{Bitmap, HeapIndex};
use self::facts::{AreaKind, ClassLoader, Jvm};
use self::heap::{Heap, HeapError, Kind};
use self::klasses::Headers;
use self::locate::Program;
use self::metaspace::Metaspace;
use self::view::View;
use crate::batch::CountingMemory;
use crate::named::java_version;
use strandline_claims::allocator::overlapping;
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::{Remedy, Runtime};
use strandline_claims::finding::{Finding, LedgerView};
use strandline_claims::reader::{Evidence, FileName, HeapKind, ReaderInfo, version_in_file_name};
use strandline_claims::refinements::Refinements;
use strandline_claims::remedy::{Action, Effect, Spec};
use strandline_claims::runtime::{self, Busy, Context, Found, Reading};
use strandline_claims::section::Section;
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_process::range::RangeSet;

/// Entry of HotSpot in the table of readers.
pub static ABOUT: ReaderInfo = ReaderInfo {
    name: "jvm",
    title: "the Java virtual machine",
    evidence: Evidence {
        files: &[FileName::Contains("libjvm", ".so")],
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
            help: "the JVM is asked for a full collection (GC.run, as jcmd asks it)",
            effect: Effect::Objects,
            action: Action::Apply(apply::collect),
        },
        Spec {
            id: "jvm_trim",
            help: "the JVM is asked to trim its malloc (System.trim_native_heap)",
            effect: Effect::FreePages("glibc"),
            action: Action::Apply(apply::trim),
        },
    ],
    not_read: "other virtual machines than HotSpot; ZGC, Shenandoah and CMS of 11 to 16; objects of ZGC by class",
    heap: HeapKind::Own,
    ..ReaderInfo::NONE
};

/// Limit on class loaders listed.
const MAX_LOADERS: usize = 100;
/// Limit on classes listed, most bytes first: a hostile process has any number.
const MAX_TYPES: usize = 10_000;
/// Limit on HotSpots read in one process: usually there is one, and each costs memory and time.
pub const MAX_PROGRAMS: usize = 4;

/// Reader of HotSpot.
pub struct Reader;

impl runtime::Reader for Reader {
    fn about(&self) -> &'static ReaderInfo {
        &ABOUT
    }

    fn find(&self, process: &Process, space: &AddressSpace) -> Option<Box<dyn Found>> {
        let programs = locate::find(process, space);
        if programs.is_empty() { None } else { Some(Box::new(Programs(programs))) }
    }

    fn findings(&self, view: &LedgerView<'_>) -> Vec<Finding> {
        findings::findings(view)
    }

    fn in_use(&self, view: &LedgerView<'_>) -> Option<Finding> {
        findings::beside_heap(view)
    }

    fn remedies(&self, view: &LedgerView<'_>) -> Vec<Remedy> {
        remedies::trim(view).into_iter().collect()
    }

    fn section(&self, runtime: &Runtime) -> Option<Section> {
        section::section(runtime)
    }
}

/// The mapped files that contain HotSpot.
struct Programs(Vec<Program>);

impl Found for Programs {
    fn is_collecting(&self, memory: &dyn Memory) -> bool {
        self.0.iter().take(MAX_PROGRAMS).filter_map(|program| program.structs(memory)).any(|structs| {
            let view = View { memory, structs };
            let heap = view.static_field(&["Universe::_collectedHeap"]);
            heap.is_some_and(|heap| heap != 0 && heap::is_collecting(&view, heap))
        })
    }

    fn read(&self, context: &Context<'_>, refinements: &Refinements) -> Result<Vec<Reading>, Busy> {
        let mut readings: Vec<Reading> = Vec::new();
        for (index, program) in self.0.iter().enumerate() {
            let is_late = index > 0 && Instant::now() >= context.deadline;
            if let Some(last) = readings.last_mut().filter(|_| is_late || index >= MAX_PROGRAMS) {
                let text = "the process has more JVMs than are read, or there was no time: this one and what follows stand on \
                            anonymous";
                last.caveats.push(Caveat::new("jvm_left_out", program.path.clone(), None, text));
                break;
            }
            let mut reading = read(context, program, (&runtime::claimed_ranges(&readings), refinements))?;
            // Shared memory with the same name cannot be assigned to one of several JVMs.
            if readings.iter().any(|before| !before.shared.is_empty()) {
                reading.shared.clear();
            }
            readings.push(reading);
        }
        Ok(readings)
    }
}

/// Reads one JVM. `taken` are the ranges that others claimed, in address order; its blocks from
/// malloc are claimed in `refinements`.
///
/// # Errors
/// [`Busy`] if a collection is under way.
pub fn read(
    context: &Context<'_>,
    program: &Program,
    (taken, refinements): (&RangeSet, &Refinements),
) -> Result<Reading, Busy> {
    let facts = Runtime {
        name: ABOUT.name.to_owned(),
        found_by: format!("gHotSpotVMStructs of {}", program.path),
        ..Runtime::default()
    };
    let mut reading = Reading { facts, rows: Some(&rows::BLOCKS), ..Reading::default() };
    let memory = CountingMemory::new(context.memory);
    let Some(structs) = program.structs(&memory) else {
        reading.caveats.push(not_read(program, HeapError::Unknown));
        return Ok(reading);
    };
    reading.facts.version.clone_from(&structs.release);
    let view = View { memory: &memory, structs };
    let heap = match heap::read(context, &view) {
        Ok(heap) => heap,
        Err(HeapError::Collecting) => {
            return Err(Busy { runtime: ABOUT.name, bytes: None, collecting: true });
        }
        Err(doubt) => {
            reading.caveats.push(not_read(program, doubt));
            return Ok(reading);
        }
    };
    let buffers = threads::buffers(&view, context.deadline).unwrap_or_default();
    // Objects may take all of the time, so the fast parts come first.
    let metaspace = Metaspace::read(&view, context.deadline);
    let segments = code::segments(&view, context.deadline);
    let (census, live) = objects(context, &view, &heap, (&buffers, program.data));
    let known = JvmState { heap, buffers, live, metaspace, segments };
    if claim(context, &view, &known, (taken, &program.path), &mut reading) {
        reading.caveats.push(not_read(program, HeapError::Overlapping));
    }
    reading.facts.read = true;
    fill_in_facts(&known, &mut reading.facts);
    reading.caveats.extend(unread(program, &known, census.as_ref()));
    claim_direct(census.as_ref(), refinements);
    reading.facts.types = census.map(|census| census.types).unwrap_or_default();
    reading.facts.types.truncate(MAX_TYPES);
    let details = details(context, &view, &known);
    reading.remedies = remedies::remedies(context, &view, &known.heap, (&details, known.live.as_ref()));
    reading.facts.set_details(ABOUT.name, &details);
    reading.bytes_read = memory.bytes();
    Ok(reading)
}

/// Claims direct buffers. With `NativeMemoryTracking`, the JVM puts 16 bytes before each block from
/// malloc: of the two addresses only one is the start of a block.
fn claim_direct(census: Option<&objects::Census>, refinements: &Refinements) {
    let buffers = census.map(|census| census.direct.as_slice()).unwrap_or_default();
    let Some(slot) = refinements.slot(&rows::DIRECT, None).filter(|_| !buffers.is_empty()) else { return };
    for &(address, size) in buffers {
        refinements.claim(address, size, slot);
        if let Some((counted, more)) = address.checked_sub(16).zip(size.checked_add(16)) {
            refinements.claim(counted, more, slot);
        }
    }
}

/// Everything read of a JVM.
struct JvmState {
    heap: Heap,
    buffers: Vec<threads::Tlab>,
    live: Option<trace::Live>,
    metaspace: Option<Metaspace>,
    segments: Option<Vec<code::Segment>>,
}

/// Claims all memory that is not taken. Returns whether some claims overlapped.
fn claim(
    context: &Context<'_>,
    view: &View<'_>,
    known: &JvmState,
    (taken, place): (&RangeSet, &str),
    reading: &mut Reading,
) -> bool {
    let dead = known.live.as_ref().zip(reading.palette.add(&rows::DEAD, None));
    let (mut claims, left_bytes) = claims::heap(context, (&known.heap.areas, &known.buffers), dead);
    if left_bytes > 0 {
        let text = "there was no time for all of the heap: the rest of it stands on anonymous";
        reading.caveats.push(Caveat::new("jvm_part_unread", place, Some(left_bytes), text));
    }
    if let Some(metaspace) = &known.metaspace {
        claims.extend(claims::metaspace(context, &mut reading.palette, metaspace));
    }
    if let Some(segments) = &known.segments {
        claims.extend(claims::code(context, &mut reading.palette, segments));
    }
    claims.extend(claims::claim_card_table(context, view, &mut reading.palette));
    claims.retain(|claim| claim.start < claim.end && overlapping(taken, claim.start, claim.end).is_empty());
    let is_doubtful = claims::drop_overlapping(&mut claims);
    reading.claims = claims;
    reading.shared = claims::shared(context, &mut reading.palette, &known.heap);
    is_doubtful
}

/// Returns caveats for what could not be read.
fn unread(program: &Program, known: &JvmState, census: Option<&objects::Census>) -> Vec<Caveat> {
    let of =
        |code: &str, bytes: Option<u64>, text: &str| Caveat::new(code, program.path.clone(), bytes, text);
    let mut caveats = Vec::new();
    if let Some(bytes) = census.map(|census| census.unread_bytes).filter(|&bytes| bytes > 0) {
        let text = "objects were caught in motion, or are of classes that are gone, or there was no time: their bytes are not \
                    counted by class";
        caveats.push(of("jvm_objects", Some(bytes), text));
    }
    if !known.heap.shared_unread.is_empty() {
        let bytes = known.heap.shared_unread.iter().map(|range| range.1 - range.0).sum();
        let text = "what ZGC has of its shared memory could not be read everywhere, or there was no time: the rest stands with other \
                    shared memory";
        caveats.push(of("jvm_part_unread", Some(bytes), text));
    }
    let parts = [("metaspace", known.metaspace.is_none()), ("the code cache", known.segments.is_none())];
    for (part, _) in parts.iter().filter(|(_, is_unread)| *is_unread) {
        let text = format!(
            "{part} is laid out in another way than is known, or was changed just then, or there was no time: it is not told apart"
        );
        caveats.push(of("jvm_part_unread", None, &text));
    }
    caveats
}

/// Counts objects in areas that can be walked, and traces the live ones unless the process would
/// have to wait.
fn objects(
    context: &Context<'_>,
    view: &View<'_>,
    heap: &Heap,
    (buffers, data): (&[threads::Tlab], (u64, u64)),
) -> (Option<objects::Census>, Option<trace::Live>) {
    if !heap.is_parsable {
        return (None, None);
    }
    let headers = Headers::read(view).filter(|_| may_be_traced(context, heap));
    let places = headers.map(|headers| HeapIndex::new(heap.areas.iter(), headers.alignment));
    let starts = places.and_then(|places| Some((Bitmap::new(places.count())?, places)));
    let areas = (heap.areas.as_slice(), buffers);
    let census =
        objects::count(context, view, areas, starts.as_ref().map(|(starts, places)| (places, starts)));
    let Some((starts, places)) = starts else { return (census, None) };
    // An object that was not understood may hold references.
    let whole = census.as_ref().filter(|census| census.unread_bytes == 0 && !census.has_moved);
    let live =
        whole.and_then(|census| trace::live(context, view, heap, (places, starts), (census.weak, data)));
    (census, live)
}

/// Whether a trace is worthwhile: the heap must be resident, and the process must not wait.
fn may_be_traced(context: &Context<'_>, heap: &Heap) -> bool {
    let used: u64 = heap.areas.iter().map(|area| area.top - area.start).sum();
    let resident: u64 = heap.areas.iter().map(|area| claims::resident(context, area.start, area.end)).sum();
    // The unused part of threads' buffers may not be resident.
    !context.is_stopped && !context.may_be_swapped() && used / 8 * 7 <= resident.saturating_add(64 << 20)
}

/// Returns the caveat for a JVM, or parts of it, that was not read.
fn not_read(program: &Program, doubt: HeapError) -> Caveat {
    let (code, text) = match doubt {
        HeapError::NotStarted => {
            ("jvm_not_started", "the JVM has no heap yet, or is mapped and was never started")
        }
        HeapError::Unknown => (
            "jvm_unknown_version",
            "which collector the JVM has, or where its structures stand, is not known; nothing of it is read",
        ),
        HeapError::Overlapping => (
            "jvm_damaged",
            "parts of the JVM's memory would lie on each other: the later ones are not claimed",
        ),
        HeapError::Late => {
            ("jvm_left_out", "there was no time to read the parts of the JVM's heap; nothing of it is read")
        }
        HeapError::Damaged | HeapError::Collecting => {
            ("jvm_damaged", "the JVM's own books do not hold together; nothing of it is read")
        }
    };
    Caveat::new(code, program.path.clone(), None, text)
}

fn fill_in_facts(known: &JvmState, facts: &mut Runtime) {
    let heap = &known.heap;
    facts.used_bytes = Some(heap.used());
    facts.committed_bytes = Some(heap.committed());
    facts.free_bytes = Some(heap.committed().saturating_sub(heap.used()));
    let mut pools = heap.pools.clone();
    if let Some(metaspace) = &known.metaspace {
        let (others, classes) = (&metaspace.others, &metaspace.classes);
        let both = |a: u64, b: u64| a.saturating_add(b);
        pools.push(heap::Pool::new(
            "Metaspace",
            both(others.used_bytes, classes.used_bytes),
            both(others.committed_bytes, classes.committed_bytes),
        ));
        if !classes.ranges.is_empty() {
            pools.push(heap::Pool::new(
                "Compressed Class Space",
                classes.used_bytes,
                classes.committed_bytes,
            ));
        }
    }
    pools.extend(known.segments.as_deref().map(code::pools).unwrap_or_default());
    facts.own.insert("collector".to_owned(), heap.collector.into());
    if let Ok(pools) = serde_json::to_value(&pools) {
        facts.own.insert("pools".to_owned(), pools);
    }
}

fn details(context: &Context<'_>, view: &View<'_>, known: &JvmState) -> Jvm {
    let (heap, live) = (&known.heap, known.live.as_ref());
    let mut kinds: BTreeMap<Kind, AreaKind> = BTreeMap::new();
    for (index, area) in heap.areas.iter().enumerate() {
        let name = format!("{:?}", area.kind).to_lowercase();
        let kind = kinds.entry(area.kind).or_insert_with(|| AreaKind { kind: name, ..AreaKind::default() });
        kind.areas += 1;
        kind.bytes += area.end - area.start;
        kind.used_bytes += area.top - area.start;
        kind.resident_bytes += claims::resident(context, area.start, area.end);
        kind.free_resident_bytes += claims::free_resident(context, area);
        if let Some(live) = live.and_then(|live| live.of_areas.get(index)) {
            *kind.live_bytes.get_or_insert(0) += live;
        }
    }
    let of_views =
        |(from, to): (u64, u64)| (context.shared)(from, to).iter().map(|run| run.1 - run.0).sum::<u64>();
    let shared: u64 = heap.views.iter().map(|&view| of_views(view)).sum();
    let shared_used: u64 = heap
        .shared_used
        .iter()
        .chain(&heap.shared_unread)
        .map(|&(from, to)| claims::shared_resident(context, from, to))
        .sum();
    let mut names = names::LoaderNames::new(view);
    let loaders = known.metaspace.as_ref().map(|metaspace| metaspace.loaders.as_slice()).unwrap_or_default();
    Jvm {
        max_heap_bytes: view.flag("MaxHeapSize"),
        min_heap_bytes: view.flag("MinHeapSize"),
        region_bytes: heap.region_bytes,
        resident_bytes: kinds.values().map(|kind| kind.resident_bytes).sum::<u64>() + shared,
        free_resident_bytes: kinds.values().map(|kind| kind.free_resident_bytes).sum::<u64>()
            + shared.saturating_sub(shared_used),
        heap_range: (heap.collector != "Z").then_some(heap.reserved),
        views: heap.times_mapped,
        attach: view
            .is_set("DisableAttachMechanism")
            .zip(view.is_set("ReduceSignalUsage"))
            .map(|(is_off, has_no_signals)| !is_off && !has_no_signals),
        kinds: kinds.into_values().collect(),
        live_bytes: live.map(|live| live.bytes),
        live_at_least_bytes: live.map(|live| live.certain.bytes),
        live_types: live.map(|live| live.types.iter().take(MAX_TYPES).cloned().collect()).unwrap_or_default(),
        class_loader_count: loaders.len() as u64,
        class_loaders: loaders
            .iter()
            .take(MAX_LOADERS)
            .map(|&(handle, used_bytes)| ClassLoader { name: names.of(handle), used_bytes })
            .collect(),
    }
}
