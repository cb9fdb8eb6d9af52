//! SBCL: its generations, its spaces, and what in them is dead.
//!
//! `locate` finds the runtime in the mapped files, `heap` reads the collector's own books and holds them against
//! each other, `threads` the regions that are open, `spaces` claims the memory. While the target stands
//! still its objects are only copied; live and dead ones are told apart once it runs again.

pub mod facts;
mod figures;
pub mod heap;
pub mod locate;
pub mod spaces;
pub mod threads;

use self::heap::{Doubt, Heap};
use self::spaces::Slots;
use super::{Busy, Context, Palette, Reading};
use crate::caveat::Caveat;
use crate::facts::Runtime;
use crate::ledger::rows::Id;

/// What was copied of the target, to be traced once it runs again.
pub struct Pending {}

impl Pending {
    /// Tells live objects from dead ones, and claims both in `reading`.
    pub fn finish(
        self,
        _reading: &mut Reading,
        _workers: usize,
        _progress: &(dyn Fn(&str, u64, u64) + Sync),
    ) {
    }
}

/// Reads one SBCL.
///
/// # Errors
/// [`Busy`] where it stands in the middle of its own collection.
pub fn read(context: &Context<'_>, program: &locate::Program) -> Result<Reading, Busy> {
    let mut reading = Reading { facts: named(program), ..Reading::default() };
    let Some((_, layout)) = program.layout() else {
        let version = program.version.as_deref().unwrap_or("of unknown version");
        let text = format!("SBCL {version}: where its structures stand is not known; nothing of it is read");
        reading.caveats.push(Caveat::new("sbcl_unknown_version", program.path.clone(), None, text));
        return Ok(reading);
    };
    let heap = match Heap::read(context.memory, program, layout) {
        Ok(heap) => heap,
        Err(Doubt::Busy) => return Err(Busy { runtime: "sbcl", bytes: dynamic_resident(context, program) }),
        Err(Doubt::Damaged(what)) => {
            let bytes = dynamic_resident(context, program);
            let text = format!("SBCL's own books do not hold together ({what}); nothing of it is read");
            reading.caveats.push(Caveat::new("sbcl_damaged", program.path.clone(), bytes, text));
            return Ok(reading);
        }
    };
    reading.bytes_read += heap.bytes_read;
    let threads = threads::read(context.memory, program, layout, &heap);
    if let Some(doubt) = &threads.doubt {
        let text = format!("SBCL's threads are not all known: {doubt}");
        reading.caveats.push(Caveat::new("sbcl_threads", program.path.clone(), None, text));
    }
    let found = spaces::spaces(context.memory, program);
    let mut figures = figures::figures(context, &heap, &threads.regions, &found, layout);
    let mut palette = Palette::default();
    for whole in spaces::wholes(context, program, &found, &threads) {
        if let Some(slot) = palette.add(whole.id, None)
            && !(whole.start < heap.start + heap.size && heap.start < whole.end)
        {
            let pages = spaces::range_pages(context, whole.start, whole.end);
            reading.claims.push(spaces::claim_whole(&pages, whole.start, whole.end, slot));
        }
    }
    if let Some(slots) = Slots::new(&mut palette, Id::SbclAllocated)
        && spaces::may_claim(context, heap.start, heap.start + heap.size)
    {
        let pages = spaces::range_pages(context, heap.start, heap.start + heap.size);
        let claim = spaces::claim_pages(&pages, &heap, &threads.regions, layout, &slots);
        let held = |slot| claim.sums.held.of(crate::ledger::fold::Class::Refined(slot));
        figures.free_resident_bytes = held(slots.free);
        figures.waste_resident_bytes = held(slots.waste);
        reading.claims.push(claim);
    }
    reading.palette = palette;
    reading.facts.read = true;
    reading.facts.sbcl = Some(Box::new(figures));
    Ok(reading)
}

fn named(program: &locate::Program) -> Runtime {
    Runtime {
        name: "sbcl".to_owned(),
        version: program.version.clone(),
        found_by: format!("symbols of {}", program.path),
        ..Runtime::default()
    }
}

/// The resident bytes of dynamic space, as far as it can be told where that is.
fn dynamic_resident(context: &Context<'_>, program: &locate::Program) -> Option<u64> {
    let start = program.value(context.memory, "DYNAMIC_SPACE_START")?;
    let size = program.value(context.memory, "dynamic_space_size")?;
    let runs = (context.resident)(start, start.checked_add(size)?);
    Some(runs.iter().map(|run| run.1 - run.0).sum())
}
