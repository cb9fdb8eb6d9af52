//! Perl: heads and bodies of values, string buffers, and what pads retain.
//!
//! Perl has no separate memory: all of it is in malloc's chunks, which are refined here. `locate`
//! finds the interpreters, `spaces` their arenas, `objects` interprets values, `census` counts
//! values and checks that structures agree before anything is claimed, `roots` reads the pads,
//! `survey` all values, `keys` the keys of hashes, `names` reads names, `chunk` knows malloc's
//! chunks and `retained` lists retained buffers.

mod census;
mod chunk;
mod equal;
pub mod facts;
mod figures;
mod findings;
mod globals;
mod interpreter;
mod keys;
pub mod layout;
pub mod locate;
mod names;
mod objects;
mod remedies;
mod retained;
mod roots;
pub mod rows;
mod search;
mod section;
mod spaces;
mod sums;
mod survey;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use self::facts::Perl;
use self::interpreter::InterpreterReading;
use self::locate::Interpreters;
use crate::batch::{CountingMemory, PageCache};
use crate::perl::layout::RELEASES;
use crate::programs::Programs;
use FileName::{Contains, Versioned};
use strandline_claims::caveat::Caveat;
use strandline_claims::class::Slot;
use strandline_claims::facts::Runtime;
use strandline_claims::reader::{
    Evidence, FileName, HeapKind, Match, ReaderInfo, leading_version, version_in_file_name,
};
use strandline_claims::refinements::Refinements;
use strandline_claims::remedy::{Effect, Spec};
use strandline_claims::runtime::{
    self, Access, Busy, Context, FinishContext, FoundRuntime, Pending, Reading,
};
use strandline_process::memory::Memory;

/// Limit on Perls read in one process (a program and libraries): each costs time.
pub const MAX_PROGRAMS: usize = 8;

/// The slots of Perl's claims. All but the last are for whole blocks of malloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// String buffers.
    string: Slot,
    /// String buffers with several owners.
    shared_string: Slot,
    /// Constants of the code.
    constant: Slot,
    /// Storage of arrays and hashes.
    container: Slot,
    /// Arenas of heads and bodies.
    arena: Slot,
    /// Retained buffers of lexicals and temporaries.
    pad_retained: Slot,
    /// Retained buffers of package variables.
    global_retained: Slot,
    /// Free slots for heads and bodies.
    arena_free: Slot,
}

impl Slots {
    fn new(refinements: &Refinements) -> Option<Self> {
        Some(Self {
            string: refinements.slot(&rows::STRING, None)?,
            shared_string: refinements.slot(&rows::STRING_SHARED, None)?,
            constant: refinements.slot(&rows::CONSTANT, None)?,
            container: refinements.slot(&rows::CONTAINER, None)?,
            arena: refinements.slot(&rows::ARENA, None)?,
            pad_retained: refinements.slot(&rows::PAD_RETAINED, None)?,
            global_retained: refinements.slot(&rows::BUFFER_RETAINED, None)?,
            arena_free: refinements.slot(&rows::ARENA_FREE, None)?,
        })
    }

    /// The slots that blocks are claimed with: free slots for heads and bodies are parts of arenas.
    fn chunk_slots(self) -> [Slot; 7] {
        [
            self.string,
            self.shared_string,
            self.constant,
            self.container,
            self.arena,
            self.pad_retained,
            self.global_retained,
        ]
    }
}

/// The entry for Perl in the table of readers.
pub static ABOUT: ReaderInfo = ReaderInfo {
    name: "perl",
    title: "Perl",
    evidence: Evidence {
        files: &[Contains("libperl", ".so")],
        executables: &[Versioned("perl")],
        symbols: &["PL_thr_key", "perl_alloc"],
        version: |clue| version_of_program(clue).or_else(|| version_in_file_name(clue.file)),
        ..Evidence::NONE
    },
    versions: "5.18 to 5.42",
    rows: &rows::ROWS,
    blocks: None,
    remedies: &[Spec::advice(
        "perl_undef",
        Effect::Objects,
        "the program undefines variables it no longer uses",
    )],
    not_read: "memory of C code outside Perl's values, which counts for the allocator's rows",
    heap: HeapKind::Malloc,
    ..ReaderInfo::NONE
};

/// Reader of Perl.
pub static READER: runtime::Reader = runtime::Reader {
    findings: findings::findings,
    section: section::section,
    ..runtime::Reader::new(|process, space| Programs::found(locate::find(process, space)))
};

impl FoundRuntime for Programs<locate::Program> {
    /// A Perl that has started is read from a copy: its values are scattered over all of its
    /// memory.
    fn access(&self, memory: &dyn Memory) -> Access {
        let has_started = self.0.iter().any(|program| program.has_started(memory));
        if has_started { Access::Copied } else { Access::InPlace }
    }

    /// The interpreter of a threaded Perl is a thread-specific variable.
    fn needs_thread_pointers(&self) -> bool {
        true
    }

    fn read(&self, context: &Context<'_>, refinements: &Refinements) -> Result<Vec<Reading>, Busy> {
        Ok(vec![read(context, &self.0, refinements)])
    }
}

/// The version in the module paths that perl is built with (`/usr/share/perl/5.36.0`).
fn version_of_program(clue: &Match<'_>) -> Option<String> {
    const PATHS: &[&str] = &["/perl/5.", "/perl5/5.", "/perl-5."];
    let image = clue.image().filter(|_| clue.is_executable())?;
    let text = image.strings(PATHS).into_iter().flatten().next()?;
    leading_version(text.get(text.find("5.")?..)?)
}

/// Reads all interpreters of the programs found.
pub fn read(context: &Context<'_>, programs: &[locate::Program], refinements: &Refinements) -> Reading {
    let mut reading = Reading::default();
    let memory = CountingMemory::new(context.memory);
    let mut perl = Perl::default();
    reading.facts.name = "perl".to_owned();
    let known = programs.iter().find(|program| program.release().is_some());
    if let Some(program) = known.or(programs.first()) {
        set_program(program, &mut reading.facts);
    }
    let Some(release) = known.and_then(locate::Program::release) else {
        reading.caveats.push(unknown_version(reading.facts.version.clone(), &reading.facts.found_by));
        reading.facts.set_details(ABOUT.name, &perl);
        return reading;
    };
    let Some(slots) = Slots::new(refinements) else {
        let text = "other readers use all slots for claims on blocks: Perl's claims are left out";
        reading.caveats.push(Caveat::new("slots_taken", &reading.facts.found_by, None, text));
        return reading;
    };
    if let Some(program) = programs.get(MAX_PROGRAMS) {
        let text = "the process has more Perls than strandline reads: this one and later ones count for the allocator's rows";
        reading.caveats.push(Caveat::new("perl_left_out", &program.path, None, text));
    }
    let mut interpreters: Vec<InterpreterReading> = Vec::new();
    for program in programs.iter().take(MAX_PROGRAMS) {
        // A program may contain one Perl and have loaded another, of another release.
        let release = program.release().unwrap_or(release);
        let reader = interpreter::Reader::new(context, &memory, release, refinements, slots);
        read_program(&reader, program, &mut reading, &mut perl, &mut interpreters);
    }
    for interpreter in interpreters {
        reading.caveats.extend(interpreter.caveats);
        reading.named_blocks.extend(interpreter.named_blocks);
        perl.interpreters.push(interpreter.facts);
    }
    if perl.interpreters.is_empty() {
        let text = "no interpreter was found: Perl has not started yet, or has ended";
        reading.caveats.push(Caveat::new("perl_not_started", &reading.facts.found_by, None, text));
    }
    reading.facts.read = perl.interpreters.iter().any(|interpreter| interpreter.read);
    let retained: Vec<_> = perl.interpreters.iter().map(|interpreter| &interpreter.retained).collect();
    reading.remedies.extend(remedies::undef(&retained));
    reading.bytes_read = memory.bytes();
    let claimed = perl.interpreters.iter().filter(|interpreter| interpreter.read);
    let claimed_arenas = claimed.map(|interpreter| interpreter.heads.arenas).sum();
    reading.pending = Some(Box::new(PendingChecks { slots, claimed_arenas }));
    perl.fill_common(&mut reading.facts);
    reading.facts.set_details(ABOUT.name, &perl);
    reading
}

/// States the version and the path of `program`.
fn set_program(program: &locate::Program, facts: &mut Runtime) {
    facts.version = program.version_text();
    facts.found_by.clone_from(&program.path);
}

/// Reads the interpreters of one program that are not in `interpreters` yet.
fn read_program(
    reader: &interpreter::Reader<'_>,
    program: &locate::Program,
    reading: &mut Reading,
    perl: &mut Perl,
    interpreters: &mut Vec<InterpreterReading>,
) {
    let &interpreter::Reader { context, memory, release, .. } = reader;
    // Two files may lead to one interpreter: the `PL_thr_key` of an unused libperl beside the
    // program's own perl is 0, which may be the key of the other. A reading with the wrong layout
    // fails, and the other one replaces it.
    let read_before = interpreters.iter().filter(|interpreter| interpreter.facts.read);
    let ids_before: HashSet<String> = read_before.map(|interpreter| interpreter.facts.id.clone()).collect();
    let is_new = |location: &locate::InterpreterLocation| {
        location.interpreter.is_none_or(|address| !ids_before.contains(&format!("{address:#x}")))
    };
    // A thread's values are read where glibc has them.
    let has_musl = context.space.mappings().iter().any(|mapping| mapping.name.contains("/ld-musl-"));
    let threads = if has_musl { &[] } else { context.threads };
    let Interpreters { mut locations, is_complete } =
        locate::interpreters(program, release, threads, &mut PageCache::new(memory));
    locations.retain(is_new);
    if locations.is_empty() {
        return;
    }
    if !is_complete {
        reading.caveats.push(more_interpreters(program));
    }
    if may_have_hidden_interpreters(context, program, &locations) {
        let found = search::search(context, memory, release);
        if !locate::add_interpreters(&mut locations, &found.interpreters, release) && is_complete {
            reading.caveats.push(more_interpreters(program));
        }
        if !found.is_complete {
            let text = "not all memory was searched for interpreters that belong to no thread";
            reading.caveats.push(Caveat::new("perl_interpreters", &program.path, None, text));
        }
    }
    perl.ithreads |= program.has_threads();
    set_program(program, &mut reading.facts);
    for location in locations.iter().filter(|location| is_new(location)) {
        let interpreter = reader.read(location);
        if location.interpreter.is_some() {
            interpreters.retain(|earlier| earlier.facts.read || earlier.facts.id != interpreter.facts.id);
        }
        interpreters.push(interpreter);
    }
}

/// Returns the caveat for interpreters that are not read.
fn more_interpreters(program: &locate::Program) -> Caveat {
    let text = "the process may have more interpreters than strandline reads: the others count for the allocator's rows";
    Caveat::new("perl_interpreters", &program.path, None, text)
}

/// Whether there may be interpreters that no exported variable points to: in a program that embeds
/// perl, and in a program with threads.
fn may_have_hidden_interpreters(
    context: &Context<'_>,
    program: &locate::Program,
    locations: &[locate::InterpreterLocation],
) -> bool {
    let is_perl = |path: &str| path.rsplit('/').next().is_some_and(|name| name.starts_with("perl"));
    let is_embedded =
        !is_perl(&program.path) && !context.process.executable().is_some_and(|path| is_perl(&path));
    let has_separate_interpreters = matches!(program.variables, locate::Variables::Interpreters { .. });
    has_separate_interpreters && (is_embedded || locations.len() > 1 || has_loaded_threads(context))
}

/// Whether a module for threads is loaded: ended threads keep their interpreters until they are
/// joined, and shared variables have their own interpreter.
fn has_loaded_threads(context: &Context<'_>) -> bool {
    let thread_modules = ["/threads/threads.so", "/threads/shared/shared.so"];
    context
        .space
        .mappings()
        .iter()
        .any(|mapping| thread_modules.iter().any(|name| mapping.name.ends_with(name)))
}

/// Returns the caveat for a perl whose layout is not known.
fn unknown_version(version: Option<String>, found_by: &str) -> Caveat {
    let newest = RELEASES.last().map_or(0, |release| release.version);
    let text = format!(
        "the layout of perl {} is not known (known: 5.18 to 5.{newest}): its values are not read",
        version.unwrap_or_else(|| "of unknown version".to_owned())
    );
    Caveat::new("perl_version_unknown", found_by, None, text)
}

/// What was claimed, to be compared with what the allocators' readers matched.
struct PendingChecks {
    slots: Slots,
    /// Arenas of heads in the interpreters that were read.
    claimed_arenas: u64,
}

impl Pending for PendingChecks {
    fn finish(self: Box<Self>, reading: &mut Reading, context: &FinishContext<'_>) {
        // Predictions and rounding are those of glibc.
        let is_in_glibc = context.by_allocator.iter().any(|matched| {
            matched.allocator == "glibc" && matched.matches.count_of(self.slots.chunk_slots()) > 0
        });
        if self.claimed_arenas == 0 || is_in_glibc {
            return;
        }
        if context.matched.count_of(self.slots.chunk_slots()) == 0 {
            let text = "perl's values are not in chunks of the C library's malloc: their bytes count for the allocator's rows, \
                        and figures for headers and rounding are those of glibc";
            reading.caveats.push(Caveat::new("perl_not_refined", &reading.facts.found_by, None, text));
        }
        // How another allocator treats freed memory is not known.
        for remedy in &mut reading.remedies {
            remedy.predicted_bytes = None;
            remedy.how = remedy.how.replace("; then malloc_trim", "");
        }
    }
}
