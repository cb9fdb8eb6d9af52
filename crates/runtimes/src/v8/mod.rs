//! V8: objects, free and wasted bytes of each space, pages kept for reuse, the idle part of the new
//! space.
//!
//! `locate` finds V8 in the mapped files, `pages` what looks like a page of its heap, `heap` the
//! isolates, spaces and lists that these pages must agree with, `outside` V8's other memory,
//! `stores` the memory of ArrayBuffers and external strings; `claims` classifies each byte,
//! `figures` has the counts of `v8.getHeapSpaceStatistics()`, `notification` the call that makes V8
//! collect, `current` the thread of an isolate.
//!
//! `objects` counts the objects on the pages of `page_index` by type (`tally`): `shapes` has their
//! hidden classes and sizes, `instance_types` the numbers of V8's classes, `names` the names of
//! constructors and functions. `trace` finds what lives, from `roots` along `references`; `path`
//! searches a path to one object, `forward` a long one; `slots` names its steps, `constants` tells
//! names from data. `views` has what Buffers show, `holding` what `holders` needs, `forecast` what
//! a collection releases.

mod claims;
mod constants;
mod current;
mod facts;
mod figures;
mod findings;
mod forecast;
mod forward;
mod heap;
mod holding;
mod instance_types;
mod layout;
pub mod locate;
mod names;
mod notification;
mod objects;
mod outside;
mod page_index;
mod pages;
mod path;
mod references;
mod remedies;
mod roots;
mod rows;
mod section;
mod shapes;
mod slots;
mod stores;
mod tally;
mod trace;
mod views;

#[cfg(test)]
mod tests;

use self::forecast::{ObjectBytes, TracedPages};
use self::heap::{HeapError, Heaps, LeftOut, MAX_ISOLATES};
use self::holding::Holding;
use self::layout::Layout;
use self::locate::Program;
use self::objects::Census;
use self::page_index::PageIndex;
use self::path::{NoPath, Search};
use self::roots::Roots;
use self::stores::Stores;
use crate::batch::CountingMemory;
use crate::bits::Bitmap;
use crate::programs::{Limit, Programs};
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::Runtime;
use strandline_claims::reader::{Evidence, HeapKind, ReaderInfo};
use strandline_claims::refinements::Refinements;
use strandline_claims::remedy::{Action, Effect, Spec};
use strandline_claims::runtime::{self, Busy, Context, FoundRuntime, PathAnswer, Reading, ReferenceHints};
use strandline_claims::units;
use strandline_process::range::RangeSet;

/// Limit on V8s read in one process: usually there is one, and each costs a read of every page.
pub const MAX_PROGRAMS: usize = 2;

/// Entry of V8 in the table of readers. Its symbol is v8::V8::GetVersion().
pub static ABOUT: ReaderInfo = ReaderInfo {
    name: "v8",
    title: "V8",
    evidence: Evidence { symbols: &["_ZN2v82V810GetVersionEv"], ..Evidence::NONE },
    versions: "Node.js 18, 20, 22, 24, 26",
    rows: &rows::ROWS,
    blocks: None,
    remedies: &[
        Spec {
            id: remedies::MEMORY_PRESSURE,
            help: "asks V8 to collect and to release its pool (MemoryPressureNotification)",
            effect: Effect::Objects,
            action: Action::Notify(&rows::HEAP),
        },
        Spec::next_start("v8_optimize_for_size", "V8 keeps pages and young generation small, and is slower"),
        Spec::next_start("v8_semi_space", "V8 limits the young generation, and collects it more often"),
    ],
    not_read: "pointer compression (Chromium, Electron)",
    heap: HeapKind::OwnOnly("v8"),
    part_of: Some("node"),
    ..ReaderInfo::NONE
};

/// Reader of V8.
pub static READER: runtime::Reader = runtime::Reader {
    findings: findings::findings,
    in_use: findings::beside_heap,
    section: section::section,
    path,
    ..runtime::Reader::new(|process, space| Programs::found(locate::find(process, space)))
};

/// The result for the requested path; `None` if the details of `runtime` are not for V8.
fn path(runtime: &Runtime) -> Option<PathAnswer> {
    let facts: facts::V8 = runtime.details(ABOUT.name)?;
    Some(match (facts.path, facts.no_path) {
        (Some(path), _) => PathAnswer::Found(section::path_text(&path)),
        (None, Some(reason)) => PathAnswer::NoPath(reason),
        (None, None) if facts.reachable.is_some() => PathAnswer::NoObject,
        (None, None) => PathAnswer::NotTraced,
    })
}

impl FoundRuntime for Programs<Program> {
    /// A child that fork makes does not have V8's heap: measured in all five versions.
    fn hides_memory_from_children(&self) -> bool {
        true
    }

    /// Words in free memory are no roots (`roots`).
    fn needs_free_memory(&self) -> bool {
        true
    }

    /// Thread pointers lead to the isolate of each thread (`current`).
    fn needs_thread_pointers(&self) -> bool {
        true
    }

    fn read(&self, context: &Context<'_>, refinements: &Refinements) -> Result<Vec<Reading>, Busy> {
        let limit = Limit { max_programs: MAX_PROGRAMS, code: "v8_left_out", runtimes: "V8s" };
        self.read_within(
            context,
            &limit,
            |program| &program.path,
            |program, earlier| read(context, program, &runtime::claimed_ranges(earlier), refinements),
        )
    }
}

/// Reads all heaps of one V8. `foreign_ranges` are the ranges that other runtimes claimed; blocks
/// of malloc are claimed in `refinements`.
///
/// # Errors
/// [`Busy`] if its structures are inconsistent, as during a collection.
pub fn read(
    context: &Context<'_>,
    program: &Program,
    foreign_ranges: &RangeSet,
    refinements: &Refinements,
) -> Result<Reading, Busy> {
    let facts = Runtime {
        name: ABOUT.name.to_owned(),
        version: program.version_text(),
        found_by: format!("version numbers of {}", program.path),
        ..Runtime::default()
    };
    let mut reading = Reading { facts, rows: Some(&rows::BLOCKS), ..Reading::default() };
    let memory = CountingMemory::new(context.memory);
    let caveat = |code: &str, text: String| Caveat::new(code, &program.path, None, text);
    let Some(layout) = program.layout() else {
        let version = program.version_text().unwrap_or_else(|| "of unknown version".to_owned());
        let text = format!("the layout of V8 {version} is not known; strandline read nothing of it");
        reading.caveats.push(caveat("v8_unknown_version", text));
        return Ok(reading);
    };
    let heaps = match heap::read(context, &memory, layout, foreign_ranges, MAX_ISOLATES) {
        Ok(heaps) => heaps,
        Err(error) => {
            reading.caveats.push(unread_heaps_caveat(error, program)?);
            return Ok(reading);
        }
    };
    let objects = count_objects(context, &memory, program, layout, &heaps);
    let traced = objects.as_ref().map_or_else(|_| TracedPages::new(), Objects::bytes_by_page);
    let mut claimed = claims::claim(context, &mut reading.palette, &heaps, &traced, foreign_ranges);
    if layout.has_dispatch_tables() {
        outside::claim(context, &memory, &heaps, &mut reading.palette, &mut claimed.claims, foreign_ranges);
    }
    let stores = stores::read(context, &memory, layout, &heaps);
    stores.claim_blocks(refinements);
    if stores.buffers.is_none() || stores.strings.is_none() {
        let text = "not all ArrayBuffers or external strings were found: their list was changing, is damaged, unreadable or too \
                    long, or there was no time; strandline counts the others as malloc's blocks";
        reading.caveats.push(caveat("v8_buffers_unread", text.to_owned()));
    }
    reading.caveats.extend(left_out_caveat(&heaps.left_out, program));
    reading.facts.read = true;
    figures::fill_in_facts(&heaps, layout, &mut reading.facts);
    let mut details = figures::details(&heaps, &claimed, &stores);
    match objects {
        Ok(objects) => add_objects(objects, &stores, program, &mut details, &mut reading),
        Err(text) => reading.caveats.push(caveat("v8_objects_left_out", text)),
    }
    reading.facts.set_details(ABOUT.name, &details);
    let external_bytes = stores.buffers.map(|buffers| buffers.accounted_bytes);
    let forecasts = forecast::forecasts(&heaps, &claimed, &traced, external_bytes);
    let notification = notification::notification(context, program, layout, &heaps, &claimed, &forecasts);
    let plan = notification.as_ref().ok();
    reading.remedies = remedies::remedies(context.process.pid(), &heaps, &claimed, plan, &forecasts);
    reading.notification = Some(notification);
    stores.claim_mapped(context, &mut reading.palette, &mut claimed.claims, foreign_ranges);
    reading.claims = claimed.claims;
    reading.bytes_read = memory.bytes();
    Ok(reading)
}

/// Returns the caveat for heaps that were not read.
///
/// # Errors
/// [`Busy`] if their structures are inconsistent, as during a collection.
fn unread_heaps_caveat(error: HeapError, program: &Program) -> Result<Caveat, Busy> {
    let (code, text) = match error {
        HeapError::Inconsistent | HeapError::Collecting => {
            let is_collecting = error == HeapError::Collecting;
            return Err(Busy { runtime: ABOUT.name, bytes: None, is_collecting });
        }
        HeapError::NotFound => (
            "v8_heap_not_found",
            "V8's heap was not found: V8 may not have started, or its layout differs from that of its version \
             (pointer compression); strandline read nothing of it",
        ),
        HeapError::Late => {
            ("v8_left_out", "there was no time to read V8's heap; strandline read nothing of it")
        }
    };
    Ok(Caveat::new(code, &program.path, None, text))
}

/// Returns the caveat for isolates that were not read; `None` if all were.
fn left_out_caveat(left_out: &LeftOut, program: &Program) -> Option<Caveat> {
    if left_out.heaps.is_empty() {
        return None;
    }
    let isolates = units::counted(left_out.heaps.len() as u64, "isolate");
    let text = format!(
        "V8 has more than {MAX_ISOLATES} isolates: strandline read nothing of {isolates}; their pages are on the row anonymous, \
         their Buffers on the allocator's rows"
    );
    Some(Caveat::new("v8_left_out", &program.path, Some(left_out.resident_bytes), text))
}

/// Adds what is known of the objects to the details and the reading.
fn add_objects(
    objects: Objects,
    stores: &Stores,
    program: &Program,
    details: &mut facts::V8,
    reading: &mut Reading,
) {
    details.objects = Some(objects.census.totals.instances);
    if let Some(live) = &objects.live {
        details.reachable = Some(figures::counted(&live.reachable));
        details.uncertain = Some(figures::counted(&live.uncertain));
        details.unviewed_buffer_bytes = stores.unviewed_bytes(&live.views);
        details.garbage = Some(figures::garbage(&objects.census, live));
    }
    match objects.path {
        Some(Ok(path)) => details.path = Some(path),
        Some(Err(reason)) => details.no_path = reason.text().map(str::to_owned),
        None => {}
    }
    let mut caveat = |code: &str, bytes: Option<u64>, text: &str| {
        reading.caveats.push(Caveat::new(code, &program.path, bytes, text.to_owned()));
    };
    let unread = objects.census.unread_bytes;
    if unread > 0 {
        let text = "objects on these bytes of pages could not be separated, and are not counted by type; which objects live is not known";
        caveat("v8_objects_unread", Some(unread), text);
    } else if let Some(text) = objects.untraced_because {
        caveat("v8_not_traced", None, text);
    }
    if objects.census.constructors.is_cut {
        let text = "there are more functions or constructors than strandline keeps names of: objects may be listed under another \
                    name, and functions without one";
        caveat("v8_names_cut", None, text);
    }
    if objects.holding.as_ref().is_some_and(|holding| holding.is_cut) {
        let text = "there are more variables than strandline lists: what the others hold is not named";
        caveat("v8_variables_cut", None, text);
    }
    reading.facts.types = objects.census.totals.types;
    if let Some(holding) = objects.holding {
        let plain_targets = Some(stores.in_blocks());
        reading.reference_hints = Some(ReferenceHints { plain_targets, ..holding.hints });
        reading.object_types = holding.types;
    }
}

/// The objects, and those that may be alive.
struct Objects {
    /// The pages with objects.
    index: PageIndex,
    /// All objects, live or not.
    census: Census,
    /// The objects that may be alive; `None` if they were not traced.
    live: Option<trace::Live>,
    /// The path to an object of the requested type; `None` if none was requested.
    path: Option<Result<facts::Path, NoPath>>,
    /// What the live objects hold, if the blocks are wanted.
    holding: Option<Holding>,
    /// Why it is not known which objects live, or what they hold; `None` if both are known, and for
    /// a stopped process if neither was wanted.
    untraced_because: Option<&'static str>,
}

impl Objects {
    /// Returns the bytes of the objects of each page; none if they were not traced.
    fn bytes_by_page(&self) -> TracedPages {
        let Some(live) = &self.live else { return TracedPages::new() };
        let bytes_at = |bytes: &[u64], number: usize| bytes.get(number).copied().unwrap_or(0);
        let pages = self.index.pages.iter().enumerate().map(|(number, indexed)| {
            let reachable = bytes_at(&live.reachable_page_bytes, number);
            let live = bytes_at(&live.page_bytes, number);
            let dead = bytes_at(&self.census.page_bytes, number).saturating_sub(live);
            (indexed.page.start, ObjectBytes { dead, reachable, uncertain: live.saturating_sub(reachable) })
        });
        pages.collect()
    }
}

/// Counts the objects by type; finds those that live, unless the process would have to wait for it.
///
/// # Errors
/// Why they are not counted.
fn count_objects(
    context: &Context<'_>,
    memory: &CountingMemory<'_>,
    program: &Program,
    layout: &Layout,
    heaps: &Heaps,
) -> Result<Objects, String> {
    let Some(types) = &program.types else {
        let text = "the program does not export the numbers of V8's classes (v8dbg_type_…); its objects are not counted \
                    by type";
        return Err(text.to_owned());
    };
    let index = PageIndex::new(heaps);
    let heap = objects::Heap { context, memory, layout: &layout.objects, types, index: &index };
    if !heap.has_time() {
        return Err(format!(
            "its objects are not counted by type: strandline read the stopped process, not a snapshot of it, and more than {} \
             of objects take too long",
            units::bytes(objects::MAX_STOPPED_BYTES)
        ));
    }
    let is_swapped = !context.is_stopped && context.may_be_swapped();
    let is_traced = !context.is_stopped && !is_swapped;
    let starts = if is_traced { Bitmap::new(index.places) } else { None };
    let mut census = objects::count(&heap, starts.as_ref());
    // An object that was not understood may hold references.
    let starts = starts.filter(|_| census.unread_bytes == 0);
    let roots = Roots::new(heap, heaps, layout);
    let live = starts.and_then(|starts| trace::live(&heap, &roots, starts, &mut census.constructors));
    let requested = live.as_ref().zip(context.path_to);
    let path = requested
        .map(|(live, name)| Search { heap, roots: &roots, live }.path_to(name, &mut census.constructors));
    let held_live = live.as_ref().filter(|_| context.keeps_blocks);
    let holding = held_live.and_then(|live| holding::holding(&heap, &live.marks, &mut census.constructors));
    let is_unknown = is_swapped || is_traced && live.is_none() || context.keeps_blocks && holding.is_none();
    let untraced_because = is_unknown.then_some(if is_swapped {
        "parts of the process are, or may be, swapped out: which objects live is not known"
    } else if context.is_stopped {
        "strandline read the stopped process, not a snapshot of it: which objects live is not known"
    } else {
        "it is not known which objects live: there was no time or no memory to trace them, or a part of the memory \
         could not be read"
    });
    Ok(Objects { index, census, live, path, holding, untraced_because })
}
