//! Perl: heads and bodies of values, buffers of strings, and what its pads keep.
//!
//! Perl has no memory of its own: all of it is chunks of malloc's, which are refined here. `locate` finds the
//! interpreters, `spaces` the arenas, `objects` says what a value is, `census` counts values and checks
//! that structures agree before anything is claimed, `roots` looks through the pads, `survey` through all
//! values, `keys` through hashes' keys, `names` reads names and `retained` lists what is kept.

mod batch;
mod census;
mod equal;
pub mod facts;
mod globals;
mod interpreter;
mod keys;
pub mod locate;
mod names;
mod objects;
mod retained;
mod roots;
mod search;
mod spaces;
mod sums;
mod survey;
#[cfg(test)]
mod tests;
mod work;

use self::batch::{Counted, Pages};
use self::facts::Perl;
use super::refine::{Matched, Refinements};
use super::{Context, Palette, Reading};
use crate::caveat::Caveat;
use crate::layout::perl::{RELEASES, Release};
use crate::ledger::accumulator::Slot;
use crate::ledger::rows::Id;
use crate::memory::Memory;

/// What the slots stand for. All but the last are chunks'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    string: Slot,
    shared: Slot,
    constant: Slot,
    container: Slot,
    arena: Slot,
    pad: Slot,
    buffer: Slot,
    arena_free: Slot,
}

impl Slots {
    fn new(palette: &mut Palette) -> Option<Self> {
        Some(Self {
            string: palette.add(Id::PerlString, None)?,
            shared: palette.add(Id::PerlStringShared, None)?,
            constant: palette.add(Id::PerlConstant, None)?,
            container: palette.add(Id::PerlContainer, None)?,
            arena: palette.add(Id::PerlArena, None)?,
            pad: palette.add(Id::PerlPadRetained, None)?,
            buffer: palette.add(Id::PerlBufferRetained, None)?,
            arena_free: palette.add(Id::PerlArenaFree, None)?,
        })
    }
}

/// Reads all interpreters of the programs found.
pub fn read(context: &Context<'_>, programs: &[locate::Program], refinements: &Refinements) -> Reading {
    let mut reading = Reading { refines: true, ..Reading::default() };
    let Some(slots) = Slots::new(&mut reading.palette) else { return reading };
    let memory = Counted::new(context.memory);
    let mut perl = Perl::default();
    let version = programs.iter().find_map(locate::Program::version_text);
    reading.facts.name = "perl".to_owned();
    reading.facts.version.clone_from(&version);
    reading.facts.found_by = programs.first().map(|program| program.path.clone()).unwrap_or_default();
    let release = programs.iter().find_map(locate::Program::release);
    let Some(release) = release else {
        reading.caveats.push(unknown_version(version, &reading.facts.found_by));
        reading.facts.perl = Some(Box::new(perl));
        return reading;
    };
    for program in programs {
        // A program may hold one Perl and have loaded another.
        let release = program.release().unwrap_or(release);
        read_program(context, &memory, (program, release), (refinements, slots), &mut reading, &mut perl);
    }
    if perl.interpreters.is_empty() {
        let text = "no interpreter of it was found: it may not have started";
        reading.caveats.push(Caveat::new("perl_not_started", reading.facts.found_by.clone(), None, text));
    }
    reading.facts.read = perl.interpreters.iter().any(|interpreter| interpreter.read);
    let retained: Vec<_> = perl.interpreters.iter().map(|interpreter| &interpreter.retained).collect();
    reading.remedies.extend(retained::remedy(&retained));
    reading.bytes_read = memory.bytes();
    reading.facts.perl = Some(Box::new(perl));
    reading
}

fn read_program(
    context: &Context<'_>,
    memory: &dyn Memory,
    (program, release): (&locate::Program, &'static Release),
    (refinements, slots): (&Refinements, Slots),
    reading: &mut Reading,
    perl: &mut Perl,
) {
    let mut anchors = locate::interpreters(program, release, context.threads, &mut Pages::new(memory));
    if anchors.is_empty() {
        return;
    }
    if may_have_others(context, program, &anchors) {
        let runs = (context.resident)(0, u64::MAX);
        let until = (context.workers, context.deadline);
        let (others, whole) = search::search(memory, &runs, release, until);
        locate::add(&mut anchors, &others, release);
        if !whole {
            let text = "not all memory was searched for interpreters that no thread has as its own";
            reading.caveats.push(Caveat::new("perl_interpreters", program.path.clone(), None, text));
        }
    }
    perl.ithreads |= program.has_threads();
    reading.facts.found_by.clone_from(&program.path);
    let reader = interpreter::Reader::new(context, memory, release, refinements, slots);
    for anchor in &anchors {
        let of_interpreter = reader.read(anchor);
        reading.caveats.extend(of_interpreter.caveats);
        reading.named.extend(of_interpreter.named);
        perl.interpreters.push(of_interpreter.facts);
    }
}

/// Whether there may be interpreters that nothing exported points to: in a program that is no perl itself, and in
/// one with threads.
fn may_have_others(context: &Context<'_>, program: &locate::Program, anchors: &[locate::Anchor]) -> bool {
    let is_perl = |path: &str| path.rsplit('/').next().is_some_and(|name| name.starts_with("perl"));
    let embedded =
        !is_perl(&program.path) && !context.process.executable().is_some_and(|path| is_perl(&path));
    let apart = matches!(program.variables, locate::Variables::Interpreters { .. });
    apart && (embedded || anchors.len() > 1 || has_loaded_threads(context))
}

/// Whether the module for threads is loaded: threads that ended keep their interpreters until they are joined, and
/// shared variables have one of their own.
fn has_loaded_threads(context: &Context<'_>) -> bool {
    let modules = ["/threads/threads.so", "/threads/shared/shared.so"];
    context.space.mappings().iter().any(|mapping| modules.iter().any(|module| mapping.name.ends_with(module)))
}

fn unknown_version(version: Option<String>, found_by: &str) -> Caveat {
    let last = RELEASES.last().map_or(0, |release| release.version);
    let text = format!(
        "perl {} is of no release whose structures are known (5.18 to 5.{last}): its values are not told apart",
        version.unwrap_or_else(|| "of an unknown version".to_owned())
    );
    Caveat::new("perl_version_unknown", found_by, None, text)
}

/// Takes note of what malloc's walk matched of the refinements.
pub fn take_matched(reading: &mut Reading, matched: &Matched) {
    let Some(perl) = &reading.facts.perl else { return };
    let read: u64 =
        perl.interpreters.iter().filter(|interpreter| interpreter.read).map(|i| i.heads.arenas).sum();
    if read > 0 && matched.chunks() == 0 {
        let text = "perl's values are not in chunks of the C library's malloc (it has another allocator): its bytes \
                    stand on the allocator's rows, and what malloc's headers and rounding take are those of glibc";
        reading.caveats.push(Caveat::new("perl_not_refined", reading.facts.found_by.clone(), None, text));
        // What another allocator does with what it is given back is not known.
        for remedy in &mut reading.remedies {
            remedy.predicted_bytes = None;
            remedy.how = remedy.how.replace("; then malloc_trim", "");
        }
    }
}
