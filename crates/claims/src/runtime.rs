//! Readers of language runtimes: finer claims than an allocator's, with names.
//!
//! What malloc calls a block in use, Perl calls a buffer that a lexical keeps; what the kernel calls anonymous
//! memory, SBCL calls generation 2. A reader says so in one of two ways: it refines blocks of allocators
//! ([`crate::refinements`]), or it claims memory that is the runtime's own. One byte still stands on one row.
//!
//! All readers have the same shape: [`Reader::find`] finds the runtime and its version in the files
//! that are mapped, before the target is stopped; [`Found::read`] reads it while it stands still; what takes long, or
//! needs to know what the allocators' readers matched, is left to [`Pending::finish`], after it was let go. A version
//! without a layout, or structures that do not agree with each other, end in a caveat, and nothing is claimed.
//! `docs/adding-a-runtime.md` tells how to write one.

use std::collections::HashSet;
use std::time::Instant;

use strandline_holders::Builder;
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_process::stacks::ThreadFacts;

use crate::allocator::RangeClaim;
use crate::caveat::Caveat;
use crate::class::{Class, Slot};
use crate::facts::{self, Remedy};
use crate::palette::{BlockRows, Palette};
use crate::places::Places;
use crate::range::{RangePages, merge};
use crate::reader::About;
use crate::refinements::{Matched, Refinements};
use crate::rows::Id;

/// A reader of a language runtime.
pub trait Reader: Sync {
    /// What the table of readers says of it.
    fn about(&self) -> &'static About;

    /// Looks for the runtime in the files that `process` has mapped; reads no memory, and the process may run: what is
    /// found is checked when it is read.
    fn find(&self, process: &Process, space: &AddressSpace) -> Option<Box<dyn Found>>;
}

/// How a reader goes at the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads while the target stands still.
    InPlace,
    /// That takes longer than to copy all of the process's memory: it is better read from a copy.
    Copied,
    /// It copies what it needs itself.
    CopiesItself,
}

/// A runtime that was found in a process, about to be read.
pub trait Found: Send + Sync {
    /// How it wants to be read. Reads a few structures at most; the process may run.
    fn access(&self, _memory: &dyn Memory) -> Access {
        Access::InPlace
    }

    /// Whether to read it takes longer than to take a snapshot of it: not where a few structures tell all.
    fn takes_long(&self) -> bool {
        true
    }

    /// Whether it goes by the threads' pointers ([`ThreadFacts::fs_base`]).
    fn needs_thread_pointers(&self) -> bool {
        false
    }

    /// Whether it says that it is in the middle of its own collection. Reads what it takes to find that flag, of a JVM its tables
    /// of 200 KiB; the process may run.
    fn is_collecting(&self, _memory: &dyn Memory) -> bool {
        false
    }

    /// Reads it: a reading for each instance. What it knows of allocators' blocks it claims in `refinements`.
    ///
    /// # Errors
    /// [`Busy`] where it stands in the middle of its own collection.
    fn read(&self, context: &Context<'_>, refinements: &Refinements) -> Result<Vec<Reading>, Busy>;
}

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
    /// The runs of resident pages in a range that are not anonymous, cut to it: of files, and of shared memory.
    pub shared: &'a (dyn Fn(u64, u64) -> Vec<(u64, u64)> + Sync),
    /// The threads that could be asked.
    pub threads: &'a [ThreadFacts],
    /// Whether the target waits while it is read: what takes long and can be done without is then left out.
    pub is_stopped: bool,
    /// When the target has been stopped for long enough: what is not read by then is left unread.
    pub deadline: Instant,
    /// Threads to read with.
    pub workers: usize,
    /// The size of the cells in which to keep what is found besides, for a picture of the address space.
    pub cell_bytes: Option<u64>,
    /// Whether it is asked who holds what ([`Reading::holding`]).
    pub keeps_blocks: bool,
    /// Hears of bytes of memory read.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl Context<'_> {
    /// Whether what cannot be read may be swapped out, rather than nowhere.
    pub fn may_be_swapped(&self) -> bool {
        self.process.status().map_or(true, |status| status.swap_bytes.unwrap_or(0) > 0)
    }

    /// The pages of a range that is claimed, to be counted by an [`crate::accumulator::Accumulator`].
    pub fn pages(&self, start: u64, end: u64) -> RangePages {
        RangePages::of_claim((start, end), &self.resident, self.space, self.cell_bytes)
    }

    /// As [`Context::pages`], of a range of shared memory.
    pub fn shared_pages(&self, start: u64, end: u64) -> RangePages {
        RangePages::of_claim((start, end), &self.shared, self.space, self.cell_bytes)
    }

    /// A range that is all one thing: a structure of the runtime's own.
    pub fn claim_whole(&self, (start, end): (u64, u64), class: Class) -> RangeClaim {
        RangeClaim::whole(&self.pages(start, end), (start, end), class)
    }
}

/// A block, claimed as more than [`crate::refinements::LARGE_BYTES`], that gets a row with a holder of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// What the allocator returned.
    pub pointer: u64,
    /// How many bytes were claimed.
    pub bytes: u64,
    /// As what.
    pub slot: Slot,
    /// Who holds it: `main::build_report $buf (depth 2)`.
    pub holder: String,
}

/// What a reader knows of who holds what.
#[derive(Default)]
pub struct Holding {
    /// Blocks in use of the memory that it claims. The runtime itself leads to all of them.
    pub blocks: Builder,
    /// Where those of them begin that are objects; the others are what else [`Reading::rows`] has for blocks in use.
    pub objects: Places,
    /// Which row objects are on.
    pub object: Option<Id>,
    /// Where two words stand that link an object to the two beside it, as the collector has them, or are flags: an object holds none
    /// of those for that. The runtime itself does.
    pub links: Places,
    /// From where on, to the end of a block, there are characters or what is not in use: they and what is left behind there are no
    /// references.
    pub texts: Places,
    /// What of objects leads to all others, or holds nothing: modules, classes, what waits on a list to be used again. What only they
    /// hold is no variable's. An address of each.
    pub stops: Places,
    /// Variables by their names, and what each has.
    pub variables: Vec<(String, u64)>,
}

impl Holding {
    /// With what another worker found.
    pub fn add(&mut self, other: Self) {
        self.blocks.append(other.blocks);
        self.objects.add(other.objects);
        self.object = self.object.or(other.object);
        self.links.add(other.links);
        self.texts.add(other.texts);
        self.stops.add(other.stops);
        self.variables.extend(other.variables);
    }
}

/// What a reader found.
#[derive(Default)]
pub struct Reading {
    /// The runtime, and its own figures.
    pub facts: facts::Runtime,
    /// What the slots of its claims on memory of its own stand for; those of the [`Refinements`] are shared.
    pub palette: Palette,
    /// Which rows the other classes of those claims stand for.
    pub rows: Option<&'static BlockRows>,
    /// Memory that is the runtime's own, whose every byte is claimed. What may lie in an allocator's block is claimed when it is
    /// read: of what is added by [`Pending::finish`] no allocator has heard.
    pub claims: Vec<RangeClaim>,
    /// Shared memory that is the runtime's own, on rows of shared memory ([`crate::rows::RowKind::is_shared`]).
    pub shared: Vec<RangeClaim>,
    /// All-zero resident pages of the claimed ranges, as runs.
    pub zero_runs: Vec<(u64, u64)>,
    /// Blocks that get a row of their own; those that no allocator holds in use are left out.
    pub named: Vec<Named>,
    /// What gives its memory back.
    pub remedies: Vec<Remedy>,
    /// Target memory read.
    pub bytes_read: u64,
    /// What could not be read.
    pub caveats: Vec<Caveat>,
    /// Who holds what, where that is asked ([`Context::keeps_blocks`]) and known.
    pub holding: Option<Holding>,
    /// What is left to do once the target runs again, and the allocators have been read.
    pub pending: Option<Box<dyn Pending>>,
}

/// Work that is left for when the target runs again.
pub trait Pending: Send {
    /// Does it, and puts what it comes to into `reading`.
    fn finish(self: Box<Self>, reading: &mut Reading, how: &Finish<'_>);
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

/// How to do what was left for when the target runs again.
pub struct Finish<'a> {
    /// Threads to work with.
    pub workers: usize,
    /// A type of which a live object's path to a root is to be told.
    pub path_to: Option<&'a str>,
    /// What the allocators' readers matched of the refinements.
    pub matched: &'a Matched,
    /// The same by allocator: name, and what its reader matched.
    pub by_allocator: &'a [(String, Matched)],
    /// Hears of work done: what, how much, of how much.
    pub progress: &'a (dyn Fn(&str, u64, u64) + Sync),
}

/// The ranges that are claimed by these, in address order.
pub fn taken(readings: &[Reading]) -> Vec<(u64, u64)> {
    let claims = readings.iter().flat_map(|reading| &reading.claims);
    let mut taken: Vec<(u64, u64)> = claims.map(|claim| (claim.start, claim.end)).collect();
    merge(&mut taken);
    taken
}

impl Reading {
    /// Does what was left for when the target runs again.
    pub fn finish(&mut self, how: &Finish<'_>) {
        if let Some(pending) = self.pending.take() {
            pending.finish(self, how);
        }
        if !self.named.is_empty() {
            let large: HashSet<u64> = how.matched.large.iter().map(|block| block.0).collect();
            self.named.retain(|named| large.contains(&named.pointer));
        }
    }
}
