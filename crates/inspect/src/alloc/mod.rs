//! Allocator readers: what each byte of their ranges is.
//!
//! Every reader has the same shape: a [`Context`] in, a [`Reading`] out. It reads memory through the
//! context only, claims address ranges and adds nothing up across them; the ledger does that.

pub mod glibc;

use std::time::Instant;

use crate::caveat::Caveat;
use crate::facts;
use crate::ledger::accumulator::Sums;
use crate::map::AddressSpace;
use crate::memory::Memory;
use crate::runtime::refine::{Matched, Refinements};

/// What a reader may look at. All of it is of one frozen state.
pub struct Context<'a> {
    /// The target's memory.
    pub memory: &'a dyn Memory,
    /// Its mappings.
    pub space: &'a AddressSpace,
    /// The runs of resident anonymous pages in a range, cut to it.
    pub resident: &'a (dyn Fn(u64, u64) -> Vec<(u64, u64)> + Sync),
    /// The FS base of each thread that could be asked.
    pub fs_bases: &'a [u64],
    /// The bounds of threads' stacks, in address order: the kernel may list one and a heap as one mapping.
    pub stacks: &'a [(u64, u64)],
    /// What runtimes' readers have claimed.
    pub claimed: &'a [(u64, u64)],
    /// Where the data segment grown by brk starts.
    pub start_brk: Option<u64>,
    /// The mappings that are locked in memory, in address order.
    pub locked: &'a [(u64, u64)],
    /// The mappings of which something is swapped out, in address order.
    pub swapped: &'a [(u64, u64)],
    /// What language runtimes say of chunks in use.
    pub refinements: Option<&'a Refinements>,
    /// When the target has been stopped for long enough: what is not read by then is left unread.
    pub deadline: Instant,
    /// Whether to check what trimming would follow beyond what the ledger needs, before a call.
    pub before_call: bool,
    /// The size of the cells in which to keep what is found besides, for a picture of the address space.
    pub cell_bytes: Option<u64>,
    /// Threads to walk with.
    pub threads: usize,
    /// Hears of bytes of address space walked.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

/// A contiguous address range that an allocator owns, folded.
#[derive(Clone, Debug)]
pub struct RangeClaim {
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
    /// Its resident bytes, by what stands on them.
    pub sums: Sums,
}

/// What a reader found.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The allocator, its arenas and its own figures.
    pub allocator: facts::Allocator,
    /// Ranges whose every byte is claimed.
    pub claims: Vec<RangeClaim>,
    /// Chunks that are mappings of their own: start and end.
    pub mapped_chunks: Vec<(u64, u64)>,
    /// Chunks of the claimed ranges of which a runtime says more.
    pub refined: Matched,
    /// What trimming would do.
    pub trim: Option<TrimPlan>,
    /// All-zero resident pages of the claimed ranges, as runs.
    pub zero_runs: Vec<(u64, u64)>,
    /// Target memory read.
    pub bytes_read: u64,
    /// What could not be read.
    pub caveats: Vec<Caveat>,
}

/// The ranges of `all` (sorted) that overlap `start..end`.
pub(crate) fn overlapping(all: &[(u64, u64)], start: u64, end: u64) -> &[(u64, u64)] {
    let from = all.partition_point(|range| range.1 <= start);
    let to = all.partition_point(|range| range.0 < end).max(from);
    &all[from..to]
}

/// What is needed to trim an allocator's heaps from outside, and what it will give back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrimPlan {
    /// The object that holds the allocator's code: an address within one of its mappings.
    pub object: u64,
    /// The locks that the call takes.
    pub locks: Vec<u64>,
    /// The ranges the call works on.
    pub heaps: Vec<(u64, u64)>,
    /// What it gives back.
    pub predicted_bytes: u64,
    /// What speaks against a call. Complete only where [`Context::before_call`] was set.
    pub doubt: Option<Doubt>,
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
    /// The time for which a target may be stopped was over.
    TooSlow,
    /// The allocator leads to memory outside the ranges that were found to be its own, and it has more
    /// than was found.
    Elsewhere,
}
