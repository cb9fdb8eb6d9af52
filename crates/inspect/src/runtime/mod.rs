//! Readers of language runtimes: finer claims than an allocator's, with names.
//!
//! What malloc calls a chunk in use, Perl calls a buffer that a lexical keeps; what the kernel calls anonymous
//! memory, SBCL calls generation 2. A reader says so in one of two ways: it refines chunks of malloc's
//! ([`refine`]), or it claims memory that is the runtime's own. One byte still stands on one row.
//!
//! All readers have the same shape and the same files: `locate` finds the runtime and its version in the files
//! that are mapped, before the target is stopped; [`read`] reads it while it stands still; what takes long is
//! left to [`Reading::finish`], after it was let go. A version without a layout, or structures that do
//! not agree with each other, end in a caveat, and nothing is claimed. `docs/adding-a-runtime.md` tells
//! how to write one.

pub mod perl;
pub mod refine;
pub mod resident;
pub mod sbcl;

use std::time::Instant;

use self::refine::{Matched, Refinements};
use crate::alloc::RangeClaim;
use crate::caveat::Caveat;
use crate::facts::{self, Remedy};
use crate::ledger::accumulator::{SLOTS, Slot};
use crate::ledger::rows::Id;
use crate::map::AddressSpace;
use crate::memory::Memory;
use crate::procfs::Process;
use crate::stacks::ThreadFacts;

/// What a reader may look at. All of it is of one frozen state.
pub struct Context<'a> {
    /// The target's memory, of which only resident pages can be read: reading another would bring it in.
    pub memory: &'a dyn Memory,
    /// The process, for its files.
    pub process: &'a Process,
    /// Its mappings.
    pub space: &'a AddressSpace,
    /// The runs of resident anonymous pages in a range, cut to it.
    pub resident: &'a (dyn Fn(u64, u64) -> Vec<(u64, u64)> + Sync),
    /// The threads that could be asked.
    pub threads: &'a [ThreadFacts],
    /// When the target has been stopped for long enough: what is not read by then is left unread.
    pub deadline: Instant,
    /// Threads to read with.
    pub workers: usize,
    /// The size of the cells in which to keep what is found besides, for a picture of the address space.
    pub cell_bytes: Option<u64>,
    /// Hears of bytes of memory read.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

/// What the slots of a runtime stand for: each a row of the ledger, and who holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Palette(Vec<(Id, Option<String>)>);

impl Palette {
    /// The slot for a row; `holder` where the row is not all of one holder. `None` where all are taken.
    pub fn add(&mut self, id: Id, holder: Option<&str>) -> Option<Slot> {
        let known = self.0.iter().position(|entry| entry.0 == id && entry.1.as_deref() == holder);
        let index = known.unwrap_or(self.0.len());
        if index >= SLOTS {
            return None;
        }
        if known.is_none() {
            self.0.push((id, holder.map(str::to_owned)));
        }
        u8::try_from(index).ok().and_then(Slot::new)
    }

    /// What a slot stands for.
    pub fn get(&self, slot: Slot) -> Option<(Id, Option<&str>)> {
        self.0.get(slot.index()).map(|(id, holder)| (*id, holder.as_deref()))
    }
}

/// A chunk, claimed as more than [`refine::LARGE_BYTES`], that gets a row with a holder of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// What malloc returned.
    pub pointer: u64,
    /// How many bytes were claimed.
    pub bytes: u64,
    /// As what.
    pub slot: Slot,
    /// Who holds it: `main::build_report $buf (depth 2)`.
    pub holder: String,
}

/// What a reader found.
#[derive(Default)]
pub struct Reading {
    /// The runtime, and its own figures.
    pub facts: facts::Runtime,
    /// What its slots stand for.
    pub palette: Palette,
    /// Whether its slots are those of the [`Refinements`].
    pub refines: bool,
    /// Memory that is the runtime's own, whose every byte is claimed.
    pub claims: Vec<RangeClaim>,
    /// All-zero resident pages of the claimed ranges, as runs.
    pub zero_runs: Vec<(u64, u64)>,
    /// Chunks that get a row of their own.
    pub named: Vec<Named>,
    /// What gives its memory back.
    pub remedies: Vec<Remedy>,
    /// Target memory read.
    pub bytes_read: u64,
    /// What could not be read.
    pub caveats: Vec<Caveat>,
    /// What is left to do once the target runs again.
    pub pending: Option<Pending>,
}

/// Work on what was copied of the target; see [`Reading::finish`].
pub enum Pending {
    /// Tells SBCL's live objects from dead ones.
    Sbcl(Box<sbcl::Pending>),
}

/// A runtime stood in the middle of its own collection, where nothing adds up: it has to be let go, and looked
/// at again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Which, for a caveat when it stays so.
    pub runtime: &'static str,
    /// How many resident bytes are not read.
    pub bytes: Option<u64>,
    /// Whether it says so itself; else its books do not agree with each other, for a moment or for good.
    pub collecting: bool,
}

/// The runtimes among the files that a process has mapped.
#[derive(Default)]
pub struct Found {
    perl: Vec<perl::locate::Program>,
    sbcl: Vec<sbcl::locate::Program>,
}

impl Found {
    /// Whether reading what was found takes longer than to copy all of the process's memory: the values of a Perl that
    /// has started are scattered over all of it. SBCL's reader copies what it needs itself. Reads a word of each; the
    /// process may run.
    pub fn takes_longer_than_a_copy(&self, memory: &dyn Memory) -> bool {
        self.sbcl.is_empty() && self.perl.iter().any(|program| program.has_started(memory))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.perl.is_empty() && self.sbcl.is_empty()
    }
}

/// Looks for runtimes in the files that `process` has mapped; reads no memory. The process may run: what is
/// found is checked when it is read.
pub fn find(process: &Process, space: &AddressSpace) -> Found {
    Found { perl: perl::locate::find(process, space), sbcl: sbcl::locate::find(process, space) }
}

/// Whether one of the runtimes that were found says that it is in the middle of its own collection. Reads a word of
/// each; the process may run.
pub fn is_collecting(memory: &dyn Memory, found: &Found) -> bool {
    found.sbcl.iter().any(|program| sbcl::is_collecting(memory, program))
}

/// Reads the runtimes that were found. Those that refine malloc's chunks claim them in `refinements`.
///
/// # Errors
/// [`Busy`] where one stands in the middle of its own collection.
pub fn read(context: &Context<'_>, found: &Found, refinements: &Refinements) -> Result<Vec<Reading>, Busy> {
    let mut readings = Vec::new();
    if !found.perl.is_empty() {
        readings.push(perl::read(context, &found.perl, refinements));
    }
    for program in &found.sbcl {
        readings.push(sbcl::read(context, program)?);
    }
    Ok(readings)
}

/// How to do what was left for when the target runs again.
pub struct Finish<'a> {
    /// Threads to work with.
    pub workers: usize,
    /// A type of which a live object's path to a root is to be told.
    pub path_to: Option<&'a str>,
    /// Hears of work done: what, how much, of how much.
    pub progress: &'a (dyn Fn(&str, u64, u64) + Sync),
}

impl Reading {
    /// Does what was left for when the target runs again.
    pub fn finish(&mut self, how: &Finish<'_>) {
        match self.pending.take() {
            Some(Pending::Sbcl(pending)) => pending.finish(self, how),
            None => {}
        }
    }

    /// Takes note of what malloc's walk matched of what this reader refined.
    pub fn take_matched(&mut self, matched: &Matched) {
        if !self.refines {
            return;
        }
        perl::take_matched(self, matched);
        let large: std::collections::HashSet<u64> = matched.large.iter().copied().collect();
        self.named.retain(|named| large.contains(&named.pointer));
    }
}
