//! SBCL: its generations, its spaces, and the dead objects in them.
//!
//! `locate` finds the runtime in the mapped files, `heap` reads the collector's own records and
//! checks them against each other, `threads` finds the open regions, `spaces` claims the memory.
//! While the target is stopped, `copy` only copies its objects (to `store`), and `roots` the words
//! that may refer to them. Once it runs again, `trace` walks them (`objects`), marks those that
//! live (`mark`), and counts them (`census`, `names`); `path` finds what keeps one alive.

mod census;
mod copy;
pub mod facts;
mod figures;
mod findings;
mod heap;
mod layout;
pub mod locate;
mod mark;
mod names;
mod objects;
mod path;
mod remedies;
mod reserved_memory;
mod roots;
pub mod rows;
mod section;
mod spaces;
mod store;
mod threads;
mod trace;

#[cfg(test)]
mod tests;

use self::copy::{CopiedHeap, CopyPlan};
use self::facts::Sbcl;
use self::heap::{DynamicSpace, ReadError};
use self::roots::Roots;
use self::spaces::Spaces;
use self::threads::Threads;
use self::trace::PendingTrace;
use crate::programs::{Limit, Programs};
use crate::sbcl::layout::{KnownRelease, Layout, Release};
use FileName::{Contains, Versioned};
use strandline_claims::caveat::Caveat;
use strandline_claims::class::Class;
use strandline_claims::facts::Runtime;
use strandline_claims::palette::SlotTable;
use strandline_claims::range::RangePages;
use strandline_claims::reader::{Evidence, FileName, HeapKind, ReaderInfo, version_in_file_name};
use strandline_claims::refinements::Refinements;
use strandline_claims::remedy::{Action, Effect, Spec};
use strandline_claims::runtime::{self, Access, Busy, Context, FoundRuntime, PathAnswer, Reading};
use strandline_claims::units::bytes;
use strandline_process::memory::Memory;
use strandline_process::range::AddressRange;
use strandline_process::target::budget;

/// Limit on SBCLs read in one process: each may take half of the available memory for a copy.
pub const MAX_PROGRAMS: usize = 2;

/// The entry for SBCL in the table of readers.
pub static ABOUT: ReaderInfo = ReaderInfo {
    name: "sbcl",
    title: "SBCL",
    evidence: Evidence {
        files: &[Contains("sbcl", ".core")],
        executables: &[Versioned("sbcl")],
        symbols: &["gc_and_save"],
        version: |clue| version_in_file_name(clue.file),
        ..Evidence::NONE
    },
    versions: "2.1.0 to 2.1.4, 2.2.8 to 2.6.6",
    rows: &rows::ROWS,
    blocks: None,
    remedies: &[
        Spec {
            id: "sbcl_full_gc",
            help: "predicts what (gc :full t) releases (--dry-run); never applied from outside",
            effect: Effect::Objects,
            action: Action::Advice(remedies::full_collection),
        },
        Spec::next_start("sbcl_generations", "keeps short-lived objects out of older generations"),
    ],
    not_read: "its other collector (mark-region), and memory of foreign code, which counts for the allocator's rows",
    heap: HeapKind::OwnOnly("sbcl"),
    ..ReaderInfo::NONE
};

/// Reader of SBCL.
pub static READER: runtime::Reader = runtime::Reader {
    findings: findings::findings,
    path,
    section: section::section,
    ..runtime::Reader::new(|process, space| Programs::found(locate::find(process, space)))
};

/// The answer to the request for a path; `None` if the details of `runtime` are not for SBCL.
fn path(runtime: &Runtime) -> Option<PathAnswer> {
    let facts: Sbcl = runtime.details("sbcl")?;
    Some(match (facts.path, facts.no_path) {
        (Some(path), _) => PathAnswer::Found(section::path_text(&path)),
        (None, Some(reason)) => PathAnswer::NoPath(reason),
        (None, None) if facts.traced => PathAnswer::NoObject,
        (None, None) => PathAnswer::NotTraced,
    })
}

impl FoundRuntime for Programs<locate::Program> {
    fn access(&self, _: &dyn Memory) -> Access {
        Access::OwnCopy
    }

    fn is_collecting(&self, memory: &dyn Memory) -> bool {
        self.0.iter().any(|program| is_collecting(memory, program))
    }

    fn read(&self, context: &Context<'_>, _: &Refinements) -> Result<Vec<Reading>, Busy> {
        let limit = Limit { max_programs: MAX_PROGRAMS, code: "sbcl_left_out", runtimes: "SBCLs" };
        self.read_within(context, &limit, |program| &program.path, |program, _| read(context, program))
    }
}

/// Reads one SBCL.
///
/// # Errors
/// [`Busy`] if it is in the middle of a collection.
pub fn read(context: &Context<'_>, program: &locate::Program) -> Result<Reading, Busy> {
    let facts = Runtime {
        name: "sbcl".to_owned(),
        version: program.version.clone(),
        found_by: format!("symbols of {}", program.path),
        ..Runtime::default()
    };
    let mut reading = Reading { facts, ..Reading::default() };
    let Some(KnownRelease { release, layout }) = program.known_release() else {
        let version = program.version.as_deref().unwrap_or("of unknown version");
        let text = format!("the layout of SBCL {version} is not known; strandline read nothing of it");
        reading.caveats.push(Caveat::new("sbcl_unknown_version", &program.path, None, text));
        return Ok(reading);
    };
    let heap = match DynamicSpace::read(context.memory, program, layout) {
        Ok(heap) => heap,
        Err(ReadError::Busy) => {
            let bytes = dynamic_resident_bytes(context, program);
            let collecting = is_collecting(context.memory, program);
            return Err(Busy { runtime: "sbcl", bytes, is_collecting: collecting });
        }
        Err(ReadError::Damaged(reason)) => {
            let bytes = dynamic_resident_bytes(context, program);
            let text =
                format!("SBCL's structures are inconsistent ({reason}); strandline read nothing of it");
            reading.caveats.push(Caveat::new("sbcl_damaged", &program.path, bytes, text));
            return Ok(reading);
        }
    };
    reading.bytes_read += heap.bytes_read;
    let threads = threads::read(context.memory, program, layout, &heap);
    if let Some(inconsistency) = &threads.inconsistency {
        let text = format!("not all of SBCL's threads are known: {inconsistency}");
        reading.caveats.push(Caveat::new("sbcl_threads", &program.path, None, text));
    }
    let other_spaces = spaces::spaces(context.memory, program);
    let figures = figures::figures(context, &heap, &threads.regions, &other_spaces.list, layout);
    let dynamic_space = AddressRange::sized(heap.start, heap.size_bytes);
    let mut palette = SlotTable::default();
    // What overlaps dynamic space is damaged: dynamic space itself is claimed below.
    for claimed in spaces::claimed_ranges(context, program, &other_spaces.list, &threads) {
        if let Some(slot) = palette.add(claimed.row, None)
            && !claimed.range.overlaps(dynamic_space)
        {
            reading.claims.push(context.claim_whole(claimed.range, Class::Refined(slot)));
        }
    }
    reading.palette = palette;
    reading.facts.read = true;
    figures.write_to(&mut reading.facts);
    if spaces::foreign_memory(context).overlaps(dynamic_space) {
        let text = "SBCL's dynamic space would overlap the heap or a stack: it is not claimed";
        reading.caveats.push(Caveat::new("sbcl_damaged", format!("{:#x}", heap.start), None, text));
        return Ok(reading);
    }
    let pages = context.pages(heap.start, heap.claim_end());
    let state = HeapState { program, layout, release, heap, threads, spaces: other_spaces };
    state.copy_or_claim(context, pages, figures, &mut reading);
    Ok(reading)
}

/// An SBCL whose objects are not read yet.
struct HeapState<'a> {
    program: &'a locate::Program,
    layout: &'static Layout,
    release: Release,
    heap: DynamicSpace,
    threads: Threads,
    spaces: Spaces,
}

/// What tracing needs of the target's memory.
struct Copies {
    roots: Roots,
    heap: CopiedHeap,
}

impl HeapState<'_> {
    /// Copies what is to be traced later; if that is not possible, claims dynamic space by page.
    fn copy_or_claim(self, context: &Context<'_>, pages: RangePages, figures: Sbcl, reading: &mut Reading) {
        let Copies { roots, heap: copied } = match self.copy(context, &pages) {
            Ok(copies) => copies,
            Err(reason) => return self.claim_by_page(&pages, figures, &reason, reading),
        };
        reading.bytes_read += copied.bytes_read;
        if copied.gaps.unsearched_bytes > 0 {
            let text = "there was no time to search all of SBCL's large objects for pages of zeros: the pages not searched count \
                        as objects";
            let bytes = Some(copied.gaps.unsearched_bytes);
            reading.caveats.push(Caveat::new("sbcl_zeros_unsearched", &self.program.path, bytes, text));
        }
        reading.pending = Some(Box::new(PendingTrace {
            figures,
            copied,
            runs: objects::runs(&self.heap, &self.threads.regions),
            heap: self.heap,
            regions: self.threads.regions,
            spaces: self.spaces.list,
            layout: self.layout,
            release: self.release,
            roots,
            pages,
            program_path: self.program.path.clone(),
        }));
    }

    /// Reads the roots and copies the objects.
    ///
    /// # Errors
    /// The reason why objects are not traced.
    fn copy(&self, context: &Context<'_>, pages: &RangePages) -> Result<Copies, String> {
        let plan = CopyPlan::new(&self.heap, &self.threads.regions, &self.spaces.list, self.layout);
        let budget_bytes = budget::copy_budget_bytes(self.program.reserved.bytes());
        if let Some(reason) = self.reason_not_traced(context, &plan, budget_bytes) {
            return Err(reason);
        }
        let max_root_bytes = budget_bytes.saturating_sub(plan.bytes());
        let roots = roots::read(context, self.program, &self.threads, max_root_bytes)?;
        let heap = plan
            .copy(context, pages, &self.program.reserved)
            .ok_or("there was no memory or no time for a copy")?;
        Ok(Copies { roots, heap })
    }

    /// The reason why objects are not traced, if they are not. The copy may take `budget_bytes`.
    fn reason_not_traced(&self, context: &Context<'_>, plan: &CopyPlan, budget_bytes: u64) -> Option<String> {
        if plan.bytes() > budget_bytes {
            return Some(format!(
                "a copy takes {}, and the limit is {} (half of what is available)",
                bytes(plan.bytes()),
                bytes(budget_bytes)
            ));
        }
        if self.threads.inconsistency.is_some() {
            return Some(
                "not all of its threads are known, and objects that only they hold would count as dead"
                    .to_owned(),
            );
        }
        if let Some(kind) = self.spaces.left_out {
            let name = kind.name();
            return Some(format!(
                "its space {name} overlaps another or has an impossible place, and objects that only it holds would count as dead"
            ));
        }
        if self.program.value(context.memory, "arena_chain").is_some_and(|chain| chain != 0) {
            return Some("it has arenas, and objects that only these hold would count as dead".to_owned());
        }
        match context.process.status().ok().and_then(|status| status.swap_bytes) {
            Some(0) => None,
            Some(swapped) => {
                Some(format!("{} of the process is swapped out and may belong to objects", bytes(swapped)))
            }
            None => Some("it is not known whether parts of the process are swapped out".to_owned()),
        }
    }

    /// Claims dynamic space by page, with a caveat that has the reason.
    fn claim_by_page(&self, pages: &RangePages, mut figures: Sbcl, reason: &str, reading: &mut Reading) {
        let text =
            format!("SBCL's objects are not traced ({reason}): live and dead objects are not distinguished");
        let affected_bytes = Some(self.heap.bytes_allocated);
        reading.caveats.push(Caveat::new("sbcl_not_traced", &self.program.path, affected_bytes, text));
        let regions = &self.threads.regions;
        if spaces::claim_by_page(pages, &self.heap, regions, self.layout, &mut figures, reading).is_some() {
            reading.remedies.extend(remedies::remedies(&figures));
            figures.write_to(&mut reading.facts);
        }
    }
}

/// Whether the program's own flag (`gc_active_p`) is set: it is collecting, and its records are
/// inconsistent. False if the flag cannot be read.
pub fn is_collecting(memory: &dyn Memory, program: &locate::Program) -> bool {
    program.value(memory, "gc_active_p").is_some_and(|active| active != 0)
}

/// Resident bytes of dynamic space; `None` if its address or its size is unknown.
fn dynamic_resident_bytes(context: &Context<'_>, program: &locate::Program) -> Option<u64> {
    let start = program.value(context.memory, "DYNAMIC_SPACE_START")?;
    let size_bytes = program.value(context.memory, "dynamic_space_size")?;
    Some(context.resident_bytes((start, start.checked_add(size_bytes)?)))
}
