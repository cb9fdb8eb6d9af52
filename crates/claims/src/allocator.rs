//! Readers of allocators: what each byte of their ranges is.
//!
//! Every reader has the same shape: [`Reader::find`] looks through the mapped files before the target is stopped;
//! [`Found::read`] gets a [`Context`] of one frozen state and returns a [`Reading`]. It reads memory through the
//! context only, claims address ranges and adds nothing up across them; the ledger does that.

use std::time::Instant;

use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;

use crate::accumulator::{Accumulator, Class, OutOfOrder, Sums};
use crate::caveat::Caveat;
pub use crate::class::MappedBlock;
use crate::facts;
use crate::palette::BlockRows;
use crate::range::{RangePages, merge};
use crate::reader::About;
use crate::refinements::{Matched, Refinements};

/// What the blocks of an allocator lie in, which decides the order of reading: the finer layer first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// In blocks of another allocator, or in mappings: pools over malloc.
    Blocks,
    /// In mappings, which its own books name.
    #[default]
    Mappings,
    /// In mappings, some of which are told by what is in them: read last, beside what the others have claimed.
    RestOfMappings,
}

/// A reader of an allocator.
pub trait Reader: Sync {
    /// What the table of readers says of it.
    fn about(&self) -> &'static About;

    /// What its blocks lie in.
    fn layer(&self) -> Layer {
        Layer::Mappings
    }

    /// Looks for the allocator in the files that `process` has mapped; the process may run. `None` where there
    /// is nothing to read.
    fn find(&self, process: &Process, space: &AddressSpace) -> Option<Box<dyn Found>>;
}

/// An allocator that was found in a process, about to be read.
pub trait Found: Send + Sync {
    /// Reads it.
    ///
    /// # Errors
    /// [`OutOfOrder`] where it would claim a byte twice: a bug of the reader.
    fn read(&self, context: &Context<'_>) -> Result<Readings, OutOfOrder>;

    /// Whether it reads the memory of the heap itself, and for each block: then a snapshot stops the process less.
    fn reads_blocks(&self) -> bool {
        false
    }

    /// Whether it goes by the threads' pointers ([`Context::fs_bases`]).
    fn needs_thread_pointers(&self) -> bool {
        true
    }

    /// Adds to a reading what only files tell, once the target runs again.
    fn finish(&self, _process: &Process, _space: &AddressSpace, _reading: &mut Reading) {}
}

/// What a reader found: a reading for each instance of the allocator, and what could not be read of none.
pub type Readings = (Vec<Reading>, Vec<Caveat>);

/// What a reader may look at. All of it is of one frozen state.
pub struct Context<'a> {
    /// The target's memory, of which only resident pages can be read: reading another would bring it in.
    pub memory: &'a dyn Memory,
    /// All of it: for the few pages that may be swapped out and without which there is nothing to read. Whoever reads here
    /// asks [`Context::resident`] first.
    pub whole_memory: &'a dyn Memory,
    /// Its mappings.
    pub space: &'a AddressSpace,
    /// The runs of resident anonymous pages in a range, cut to it.
    pub resident: &'a (dyn Fn(u64, u64) -> Vec<(u64, u64)> + Sync),
    /// The FS base of each thread that could be asked.
    pub fs_bases: &'a [u64],
    /// The bounds of threads' stacks, in address order: the kernel may list one and a heap as one mapping.
    pub stacks: &'a [(u64, u64)],
    /// What finer readers have claimed of mappings, in no order.
    pub claimed: &'a [(u64, u64)],
    /// Where the data segment grown by brk starts.
    pub start_brk: Option<u64>,
    /// The mappings that are locked in memory, in address order.
    pub locked: &'a [(u64, u64)],
    /// The mappings of which something is swapped out, in address order.
    pub swapped: &'a [(u64, u64)],
    /// The mappings on reserved huge pages (hugetlb), in address order: they are no RSS, and not read.
    pub reserved: &'a [(u64, u64)],
    /// What finer readers say of blocks in use.
    pub refinements: Option<&'a Refinements>,
    /// When the target has been stopped for long enough: what is not read by then is left unread.
    pub deadline: Instant,
    /// Whether all blocks in use are kept ([`Matched::blocks`]).
    pub keeps_blocks: bool,
    /// Whether to check what trimming would follow beyond what the ledger needs, before a call.
    pub before_call: bool,
    /// The size of the cells in which to keep what is found besides, for a picture of the address space.
    pub cell_bytes: Option<u64>,
    /// Threads to walk with.
    pub threads: usize,
    /// Hears of bytes of address space walked.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl Context<'_> {
    /// The pages of a range that is claimed, to be counted by an [`crate::accumulator::Accumulator`].
    pub fn pages(&self, start: u64, end: u64) -> RangePages {
        RangePages::of_claim((start, end), &self.resident, self.space, self.cell_bytes)
    }

    /// A range that is all one thing: a structure of an allocator's own.
    pub fn claim_whole(&self, (start, end): (u64, u64), class: Class) -> RangeClaim {
        RangeClaim::whole(&self.pages(start, end), (start, end), class)
    }

    /// Whether a page of a range is locked in memory: the kernel keeps those, whatever is asked for.
    pub fn is_locked(&self, (start, end): (u64, u64)) -> bool {
        !overlapping(self.locked, start, end).is_empty()
    }
}

/// A contiguous address range that an allocator owns, counted.
#[derive(Clone, Debug)]
pub struct RangeClaim {
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
    /// Its resident bytes, by what stands on them.
    pub sums: Sums,
}

impl RangeClaim {
    /// A range that is all one thing.
    pub fn whole(pages: &RangePages, (start, end): (u64, u64), class: Class) -> Self {
        let mut accumulator = Accumulator::new(start, pages);
        accumulator.claim_to(end, class);
        Self { start, end, sums: accumulator.cut().finish(pages) }
    }

    /// Where it is.
    pub fn range(&self) -> (u64, u64) {
        (self.start, self.end)
    }
}

/// What a reader found of one instance.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The allocator, its arenas and its own figures.
    pub allocator: facts::Allocator,
    /// Ranges whose every byte is claimed.
    pub claims: Vec<RangeClaim>,
    /// What its claims lie in: as its reader says.
    pub layer: Layer,
    /// Whether it made no sense at some place, as if caught in motion: a moment later it may.
    pub in_motion: bool,
    /// What gives its memory back, but for the call of its [`CallPlan`].
    pub remedies: Vec<facts::Remedy>,
    /// Which rows its classes stand for.
    pub rows: Option<&'static BlockRows>,
    /// Blocks that are mappings of their own.
    pub mapped_blocks: Vec<MappedBlock>,
    /// By how much the payload of a block stands lower in the claimed ranges than the pointer that was returned for it:
    /// glibc's walk counts a chunk's words from its own start on.
    pub shift_bytes: u64,
    /// Blocks of the claimed ranges of which a finer reader says more.
    pub refined: Matched,
    /// What the call would do by which it gives memory back itself.
    pub call: Option<CallPlan>,
    /// All-zero resident pages of the claimed ranges, as runs.
    pub zero_runs: Vec<(u64, u64)>,
    /// Target memory read.
    pub bytes_read: u64,
    /// What could not be read.
    pub caveats: Vec<Caveat>,
}

impl Reading {
    /// The ranges that it claims.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.claims.iter().map(RangeClaim::range)
    }

    /// What a purge gives back of all that it claims.
    pub fn trimmable_bytes(&self) -> u64 {
        self.claims.iter().map(|claim| claim.sums.trimmable).sum()
    }
}

/// Reads one instance after the other, each beside what others have claimed and those before it, in address order.
pub fn read_each<T>(
    context: &Context<'_>,
    instances: Vec<T>,
    read: impl Fn(&T, &[(u64, u64)]) -> Reading,
) -> Vec<Reading> {
    let mut taken = context.claimed.to_vec();
    let mut readings = Vec::new();
    for instance in &instances {
        merge(&mut taken);
        let reading = read(instance, &taken);
        taken.extend(reading.ranges());
        readings.push(reading);
    }
    readings
}

/// The ranges of `all` (sorted) that overlap `start..end`.
pub fn overlapping(all: &[(u64, u64)], start: u64, end: u64) -> &[(u64, u64)] {
    let from = all.partition_point(|range| range.1 <= start);
    let to = all.partition_point(|range| range.0 < end).max(from);
    &all[from..to]
}

/// What is needed to have an allocator give its free pages back from outside, and how much that will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPlan {
    /// The remedy that it is: `malloc_trim`, `jemalloc_purge`.
    pub remedy: &'static str,
    /// The function to call.
    pub function: Function,
    /// The object that holds the allocator's code: an address within one of its mappings.
    pub object: u64,
    /// The locks that the call takes, where they are words that are 0 while nobody has them.
    pub locks: Vec<u64>,
    /// The ranges the call works on.
    pub heaps: Vec<(u64, u64)>,
    /// The FS bases of threads that the allocator knows already, of which one has to make the call; empty where that is all one to glibc, and for others where none is known.
    pub threads: Vec<u64>,
    /// Whether all that is resident of these is what it gives back.
    pub gives_all: bool,
    /// What it gives back.
    pub predicted_bytes: u64,
    /// From when on it does, in milliseconds of CLOCK_MONOTONIC ([`strandline_process::host::monotonic_milliseconds`]); 0 for at once.
    /// An earlier call keeps what the program freed last.
    pub due_milliseconds: u64,
    /// What speaks against a call. Complete only where [`Context::before_call`] was set.
    pub doubt: Option<Doubt>,
}

/// A function of an allocator that gives its free pages back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// What it is called, with or without a prefix of the build's.
    pub name: &'static str,
    /// Another function that the allocator has under the same prefix.
    pub sibling: &'static str,
    /// What it is called with.
    pub argument: Argument,
    /// Stack that it may use.
    pub stack_bytes: u64,
    /// How the names of the allocator's own functions begin where it is linked into a program, behind such a prefix.
    pub own_names: &'static [&'static str],
}

/// The first argument of a function; all others are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A number.
    Number(u64),
    /// The address of a text.
    Text(&'static str),
}

/// A place of a heap because of which no call into its allocator is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The first such place.
    pub at: u64,
    /// What is the matter with it.
    pub cause: Cause,
}

/// Why a place of a heap was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The allocator's own chain of blocks does not hold together: damaged, or caught in motion.
    Broken,
    /// Parts are swapped out, and reading would bring them in.
    Swapped,
    /// Parts are on reserved huge pages (hugetlb), which are no RSS and not read.
    Reserved,
    /// The time for which a target may be stopped was over.
    TooSlow,
    /// The allocator leads to memory outside the ranges that were found to be its own, and it has more
    /// than was found.
    Elsewhere,
}
