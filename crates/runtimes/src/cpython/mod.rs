//! CPython: its arenas, the objects in them, and the blocks of malloc that these own.
//!
//! `locate` finds CPython in the mapped files, `arenas` its arrays of arenas (there is no symbol
//! for them), `pools` classifies each block of an arena, `types` and `objects` recognise an object,
//! `census` counts objects (`counted`), `large` follows pointers to memory outside the arenas and
//! claims it in allocators' blocks. `names` reads names of types, `collector` the collector's
//! generations, `variables` the named variables of modules. Builds without a global lock have no
//! arenas: `heaps` finds the pages with their objects, `heap_blocks` walks these.

mod arenas;
mod census;
mod collector;
mod confirm;
mod counted;
mod data;
mod facts;
mod figures;
mod findings;
mod heap_blocks;
mod heaps;
mod ints;
mod large;
mod layout;
pub mod locate;
mod names;
mod objects;
mod outside;
mod pools;
mod remedies;
mod rows;
mod section;
mod types;
mod variables;

#[cfg(test)]
mod tests;

use self::arenas::{Arena, ArenaSet, FoundArenas, InterpreterStates};
use self::census::Census;
use self::confirm::PendingConfirmation;
use self::counted::CensusResult;
use self::facts::CPython;
use self::heaps::Heaps;
use self::layout::Release;
use self::locate::Program;
use self::names::Names;
use self::outside::OutsideMemory;
use self::pools::{Sums, Walker};
use crate::batch::{self, PageCache};
use crate::programs::{Limit, Programs};
use crate::work;
use FileName::{Contains, Versioned};
use strandline_claims::caveat::Caveat;
use strandline_claims::class::Slot;
use strandline_claims::reader::{Evidence, FileName, HeapKind, ReaderInfo};
use strandline_claims::refinements::Refinements;
use strandline_claims::remedy::{Action, Effect, Spec};
use strandline_claims::runtime::{self, Busy, Context, FoundRuntime, Reading};
use strandline_claims::words::is_mapped_memory;
use strandline_process::map::Mapping;
use strandline_process::memory::Memory;
use strandline_process::range::{AddressRange, RangeSet};

/// Limit on CPythons read in one process: each costs memory and time.
pub const MAX_PROGRAMS: usize = 8;

/// Entry of CPython in the table of readers.
pub static ABOUT: ReaderInfo = ReaderInfo {
    name: "cpython",
    title: "CPython",
    evidence: Evidence {
        files: &[Contains("libpython", ".so")],
        executables: &[Versioned("python")],
        symbols: &["_PyRuntime"],
        version_symbols: &["Py_Version"],
        version: |clue| crate::named::cpython_version(clue),
        ..Evidence::NONE
    },
    versions: "3.8 to 3.14, with a global lock and without",
    rows: &rows::ROWS,
    blocks: Some(&rows::BLOCKS),
    remedies: &[
        Spec::next_start(
            "cpython_malloc",
            "puts objects into malloc's blocks, whose free pages malloc_trim releases",
        ),
        Spec {
            id: "cpython_gc",
            help: "gc.collect() in CPython: not predicted, never applied from outside; says how to run it",
            effect: Effect::Objects,
            action: Action::Advice(remedies::refuse_collection),
        },
    ],
    not_read: "which objects are garbage",
    heap: HeapKind::Own,
    ..ReaderInfo::NONE
};

/// Reader of CPython.
pub static READER: runtime::Reader = runtime::Reader {
    findings: findings::findings,
    section: section::section,
    ..runtime::Reader::new(|process, space| Programs::found(locate::find(process, space)))
};

impl FoundRuntime for Programs<Program> {
    fn read(&self, context: &Context<'_>, refinements: &Refinements) -> Result<Vec<Reading>, Busy> {
        let limit = Limit { max_programs: MAX_PROGRAMS, code: "cpython_left_out", runtimes: "CPythons" };
        self.read_within(
            context,
            &limit,
            |program| &program.path,
            |program, _| Ok(read(context, program, refinements)),
        )
    }
}

/// Reads one CPython.
pub fn read(context: &Context<'_>, program: &Program, refinements: &Refinements) -> Reading {
    let mut reading = Reading::default();
    reading.facts.name = ABOUT.name.to_owned();
    reading.facts.version = program.version_text();
    reading.facts.found_by = format!("_PyRuntime of {}", program.path);
    if let Err(caveat) = read_interpreters(context, program, refinements, &mut reading) {
        reading.caveats.push(caveat);
    }
    reading
}

/// Reads the memory of a CPython's interpreters into `reading`.
///
/// # Errors
/// The reason why nothing is read, as a caveat.
fn read_interpreters(
    context: &Context<'_>,
    program: &Program,
    refinements: &Refinements,
    reading: &mut Reading,
) -> Result<(), Caveat> {
    let caveat = |code, text| Caveat::new(code, &program.path, None, text);
    let release = program.release().ok_or_else(|| unknown_version_caveat(program))?;
    let memory = batch::CountingMemory::new(context.memory);
    // A program that can run Python, such as an editor, maps the library and often has none.
    let states = arenas::interpreters(&memory, program, release);
    if states.addresses.is_empty() {
        let text = "no interpreter was found: CPython has not started yet, or has ended";
        return Err(caveat("cpython_not_started", text));
    }
    let object_slot = reading.palette.add(&rows::OBJECT, None);
    let (Some(object_slot), Some(slots)) = (object_slot, claim_slots(refinements)) else {
        let text = "other readers use all slots for claims on blocks: CPython's claims are left out";
        return Err(caveat("slots_taken", text));
    };
    let interpreters = states.addresses.as_slice();
    let object_memory = ObjectMemory::find(context, &memory, program, release, interpreters);
    // Before the census, which may take all of the time.
    let collectors = collector::find(&memory, program, release, interpreters, context.deadline);
    let outside = outside_memory(context, program, &object_memory);
    let walk = Walk {
        context,
        memory: &memory,
        program,
        release,
        interpreters,
        outside: &outside,
        object_slot,
        refinements,
        slots,
    };
    let Totals { sums, census: mut result } = walk.walk_all(&object_memory, reading);
    reading.rows = Some(&rows::BLOCKS);
    reading.facts.read = true;
    reading.reference_hints = result.hints.take();
    add_variables(context, &memory, program, release, interpreters, reading);
    let arena_sets = object_memory.arenas.sets.as_slice();
    figures::fill_in_facts(arena_sets, &sums, release, reading);
    let mut details = CPython { collectors, ..figures::details(arena_sets, &sums) };
    if result.types.values().any(|counted| counted.counts.instances > 0) {
        walk.add_objects(&object_memory, &mut result, &mut details, reading);
    } else if object_memory.has_arenas_or_heaps() {
        let text = "no object was found in the blocks in use: they count as cpython.block, and their types are not known";
        reading.caveats.push(caveat("cpython_no_objects", text));
    } else if !sums.doubts.timed_out() {
        confirm::note_missing_arenas(reading, &program.path);
    }
    if !object_memory.has_arenas_or_heaps() && !sums.doubts.is_empty() {
        // There may be arenas that were not found: which objects are outside of them is not known.
        details.beside_arenas = None;
    }
    reading.facts.set_details(ABOUT.name, &details);
    add_remedies(context, release, reading);
    reading.bytes_read = memory.bytes();
    sums.doubts.add_caveats(&mut reading.caveats, &ABOUT, "arenas, pools and objects", &program.path);
    add_caveats(context, program, &states, &object_memory, &result, reading);
    Ok(())
}

/// Adds the variables of modules to the hints for the search for holders, if it was requested.
fn add_variables(
    context: &Context<'_>,
    memory: &dyn Memory,
    program: &Program,
    release: &'static Release,
    interpreters: &[u64],
    reading: &mut Reading,
) {
    let Some(hints) = &mut reading.reference_hints else { return };
    hints.object_row = Some(&rows::OBJECT);
    hints.release_units.sort_unstable();
    if !variables::find(context, memory, release, interpreters, hints) {
        let text = "not all modules of CPython could be found and read: no variable is named as a holder";
        reading.caveats.push(Caveat::new("cpython_names", &program.path, None, text));
    }
}

/// Adds the predictions for pymalloc's claims and for a collection.
fn add_remedies(context: &Context<'_>, release: &Release, reading: &mut Reading) {
    let kept: u64 = reading.claims.iter().map(|claim| claim.sums.resident.kept).sum();
    let pinned: u64 = reading.claims.iter().map(|claim| claim.sums.resident.pinned).sum();
    reading.remedies = remedies::remedies(kept, pinned);
    let object_bytes = reading.facts.types.iter().map(|facts| facts.bytes).fold(0, u64::saturating_add);
    reading.remedies.extend(remedies::collection(release, context.process.pid(), object_bytes));
}

/// Returns the slots for claims on allocators' blocks; `None` if too few are left.
fn claim_slots(refinements: &Refinements) -> Option<large::Slots> {
    Some(large::Slots {
        object: refinements.slot(&rows::OBJECT, None)?,
        table: refinements.slot(&rows::TABLE, None)?,
        buffer: refinements.slot(&rows::BUFFER, None)?,
        free_listed: refinements.slot(&rows::FREE_LIST, None)?,
    })
}

/// Memory that holds objects.
struct ObjectMemory {
    arenas: FoundArenas,
    /// Pages of builds without a global lock.
    heaps: Heaps,
}

impl ObjectMemory {
    fn find(
        context: &Context<'_>,
        memory: &dyn Memory,
        program: &Program,
        release: &Release,
        interpreters: &[u64],
    ) -> Self {
        if release.is_free_threaded() {
            Self { arenas: FoundArenas::default(), heaps: heaps::find(context, memory, program) }
        } else {
            let arenas = arenas::find(context, memory, program, interpreters);
            Self { arenas, heaps: Heaps::default() }
        }
    }

    /// Whether any arena or heap was found.
    fn has_arenas_or_heaps(&self) -> bool {
        !self.arenas.sets.is_empty() || !self.heaps.pages.is_empty()
    }

    /// Ranges of the arenas, and of the heaps' pages with objects.
    fn ranges(&self) -> impl Iterator<Item = AddressRange> {
        let arenas = self.arenas.sets.iter().flat_map(|set| &set.arenas);
        let pages = self.heaps.pages.iter().filter(|page| page.has_objects());
        arenas.map(Arena::range).chain(pages.map(|page| AddressRange::new(page.start, page.end)))
    }
}

/// Returns the memory outside `object_memory` that objects can point to: mapped memory, without
/// static data. An allocator's mapping may follow a library without a gap, so of anonymous memory
/// only CPython's own counts as static data.
fn outside_memory(context: &Context<'_>, program: &Program, object_memory: &ObjectMemory) -> OutsideMemory {
    let mut excluded_ranges: RangeSet = object_memory.ranges().collect();
    let files = context.space.mappings().iter().filter(|mapping| mapping.has_file());
    excluded_ranges.extend(files.map(Mapping::range));
    excluded_ranges.add([program.data]);
    let mapped_memory = context.space.mappings().iter().filter(|mapping| is_mapped_memory(mapping));
    let gaps = mapped_memory.flat_map(|mapping| excluded_ranges.gaps_in(mapping.range()));
    let runs: Vec<_> = gaps.flat_map(|gap| context.resident_runs(gap)).collect();
    OutsideMemory::new(runs, excluded_ranges)
}

/// Context of a walk over all arenas or heaps.
struct Walk<'a> {
    context: &'a Context<'a>,
    memory: &'a dyn Memory,
    program: &'a Program,
    release: &'static Release,
    /// Addresses of the interpreters' states.
    interpreters: &'a [u64],
    outside: &'a OutsideMemory,
    /// Slot of arenas' blocks that hold objects.
    object_slot: Slot,
    refinements: &'a Refinements,
    /// Slots of allocators' blocks.
    slots: large::Slots,
}

/// What was counted in blocks, and of objects.
#[derive(Default)]
struct Totals {
    sums: Sums,
    census: CensusResult,
}

/// What the walkers that ended have counted.
struct Counted<'a> {
    /// Counts the objects outside the arenas, which all walkers found pointers to.
    outside_census: Census<'a>,
    totals: Totals,
}

impl Counted<'_> {
    /// Adds the census of one walker.
    fn add_census(&mut self, mut census: Census<'_>) {
        self.outside_census.adopt(&mut census);
        self.totals.census.add(census.finish());
    }
}

impl Walk<'_> {
    /// Walks all arenas or heaps, then everything that their objects point to.
    fn walk_all(&self, object_memory: &ObjectMemory, reading: &mut Reading) -> Totals {
        let outside_census = Census::following(self.memory, self.release, self.outside);
        let mut counted = Counted {
            outside_census: outside_census.with_hints(self.context.keeps_blocks),
            totals: Totals::default(),
        };
        if object_memory.arenas.is_late {
            counted.totals.sums.doubts.note_timeout(self.program.runtime);
        }
        for arena_set in &object_memory.arenas.sets {
            self.walk_arenas(arena_set, &mut counted, reading);
        }
        self.walk_heaps(&object_memory.heaps, &mut counted);
        let Counted { mut outside_census, mut totals } = counted;
        // Static data: where all objects are in malloc's blocks, they are reachable only from here.
        let states =
            self.interpreters.iter().map(|&state| AddressRange::sized(state, arenas::MAX_STATE_BYTES));
        let deadline = self.context.deadline;
        // The main interpreter's state is in static data from 3.11 on (pycore_runtime.h).
        let ranges: RangeSet = std::iter::once(self.program.data).chain(states).collect();
        for &range in &ranges {
            // Pages of a state that were never written are not resident.
            for run in self.context.resident_runs(range) {
                let table = objects::Table::new(run.start, run.len(), run.len());
                outside_census.follow_block(table, deadline);
            }
        }
        if !large::follow(&mut outside_census, self.refinements, self.slots, deadline) {
            totals.sums.doubts.note_timeout(self.program.runtime);
        }
        totals.census.add(outside_census.finish());
        totals
    }

    /// Lists the objects by type; [`Reading::pending`] compares them with allocators' blocks.
    fn add_objects(
        &self,
        object_memory: &ObjectMemory,
        result: &mut CensusResult,
        details: &mut CPython,
        reading: &mut Reading,
    ) {
        let deadline = self.context.deadline;
        let mut names = Names::new(PageCache::new(self.memory), self.release, self.context.space);
        let mut type_names = figures::list_types(&mut names, result, deadline, reading, details);
        figures::name_owners(&mut names, result, &mut type_names);
        let typed_objects = std::mem::take(&mut result.typed_objects);
        reading.object_types = figures::object_types(&mut names, typed_objects, &type_names, deadline);
        reading.pending = Some(Box::new(PendingConfirmation {
            slots: self.slots,
            large_objects: std::mem::take(&mut result.large_objects),
            claimed_blocks: std::mem::take(&mut result.claimed_blocks),
            type_names,
            has_arenas: object_memory.has_arenas_or_heaps(),
            outside_object_count: result.outside_objects.objects,
            path: self.program.path.clone(),
        }));
    }

    /// An empty census for a worker.
    fn new_census(&self) -> Census<'_> {
        Census::new(self.memory, self.release, self.outside).with_hints(self.context.keeps_blocks)
    }

    /// Walks the arenas of one allocator.
    fn walk_arenas(&self, arena_set: &ArenaSet, counted: &mut Counted<'_>, reading: &mut Reading) {
        let doubts = &mut counted.totals.sums.doubts;
        arena_set.invalid_entries.iter().for_each(|&entry| doubts.note_damage(entry, 0));
        let (sizes, slot) = (arena_set.sizes, self.object_slot);
        let walker = || Walker::new(self.context, self.memory, sizes, slot, self.new_census());
        let job = |walker: &mut Walker<'_>, index: usize| {
            if let Some(arena) = arena_set.arenas.get(index) {
                walker.claim_arena(arena);
            }
        };
        let (workers, deadline) = (self.context.workers, self.context.deadline);
        let (walkers, unfinished_jobs) =
            work::run_jobs(workers, arena_set.arenas.len(), deadline, walker, job);
        for walker in walkers {
            counted.totals.sums.add(&walker.sums);
            reading.claims.extend(walker.claims);
            counted.add_census(walker.census);
        }
        if unfinished_jobs > 0 {
            counted.totals.sums.doubts.note_timeout(arena_set.array);
        }
    }

    /// Walks the heaps of a build without a global lock.
    fn walk_heaps(&self, heaps: &Heaps, counted: &mut Counted<'_>) {
        counted.totals.sums.doubts.add(&heaps.doubts);
        let Self { context, memory, refinements, slots, .. } = *self;
        let walker = || heap_blocks::Walker::new(context, memory, refinements, slots, self.new_census());
        let job = |walker: &mut heap_blocks::Walker<'_>, index: usize| {
            if let Some(page) = heaps.pages.get(index) {
                walker.count_page(page);
            }
        };
        let (workers, deadline) = (self.context.workers, self.context.deadline);
        let (walkers, unfinished_jobs) = work::run_jobs(workers, heaps.pages.len(), deadline, walker, job);
        for walker in walkers {
            counted.totals.sums.heaps.add(&walker.sums);
            counted.add_census(walker.census);
        }
        let sums = &mut counted.totals.sums;
        sums.doubts.add(&sums.heaps.doubts);
        if let Some(page) = heaps.pages.first().filter(|_| unfinished_jobs > 0) {
            sums.doubts.note_timeout(page.start);
        }
    }
}

fn unknown_version_caveat(program: &Program) -> Caveat {
    let text = format!(
        "the layout of CPython {} is not known (known: 3.{} to 3.{}): its objects are not read",
        program.version_text().unwrap_or_else(|| "of unknown version".to_owned()),
        if program.is_free_threaded { 13 } else { 8 },
        layout::last_minor()
    );
    Caveat::new("cpython_version_unknown", &program.path, None, text)
}

/// Adds the caveats on what was left out: figures are too low.
fn add_caveats(
    context: &Context<'_>,
    program: &Program,
    states: &InterpreterStates,
    object_memory: &ObjectMemory,
    census: &CensusResult,
    reading: &mut Reading,
) {
    let mut add = |code, text| reading.caveats.push(Caveat::new(code, &program.path, None, text));
    if !states.is_whole {
        let text = "the list of CPython's interpreters could not be read to its end: what only the later ones hold counts as \
                    anonymous, or for the allocator's rows";
        add("cpython_interpreters", text);
    }
    if object_memory.arenas.is_cut {
        let text = "CPython's data points to more places than strandline searches for arenas: arenas that were not found count as \
                    anonymous";
        add("cpython_cut", text);
    }
    if census.is_incomplete || object_memory.heaps.is_cut {
        let text = "there are more types, or more objects outside CPython's arenas, than strandline follows: types count too few, \
                    and the other objects count for the allocator's rows";
        add("cpython_cut", text);
    }
    if context.may_be_swapped() {
        let text = "parts of the process are, or may be, swapped out: if CPython's objects are there, they, and objects that only \
                    they refer to, are not counted";
        add("cpython_swapped", text);
    }
}
