//! Input and output of a walk: regions, and the counts and claims of their parts.

use std::time::Instant;

use super::fastbins::{Candidate, CandidateBudget, LinkTargets};
use super::lists::{LinkEncoding, SpecialChunks};
use strandline_claims::accumulator::AccumulatedPart;
use strandline_claims::add_fields;
use strandline_claims::range::RangePages;
use strandline_claims::refinements::{Matches, Refinements};
use strandline_process::memory::Memory;
use strandline_process::range::AddressRange;

/// How a range was added to an arena, which determines how it ends and where the arena may
/// continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// The main arena on brk; other users of sbrk may have left gaps in it.
    Brk,
    /// A heap of a secondary arena.
    Heap,
    /// Mappings in which the main arena continues if brk was blocked; other mappings may lie
    /// between.
    Pieces,
}

/// The top chunk of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Top {
    /// Its address.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// One contiguous range of an arena.
#[derive(Clone, Debug)]
pub struct Region {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Address of the first chunk; what is before it (`heap_info`, `malloc_state`) is metadata.
    /// `None` if it has to be searched.
    pub first_chunk: Option<u64>,
    /// How it was added to the arena.
    pub kind: RegionKind,
    /// Whether it belongs to the main arena.
    pub is_main: bool,
    /// The arena's top chunk, if it is in this range.
    pub top: Option<Top>,
    /// Whether the break is at the end of the top chunk, so that a trim can lower it.
    pub is_break_at_top: bool,
    /// Step in which a trim lowers the break (a huge page under `glibc.malloc.hugetlb`).
    pub trim_unit_bytes: u64,
    /// The parts locked in memory, in address order: the kernel refuses to drop their pages.
    pub locked: Vec<AddressRange>,
}

impl Region {
    /// Its addresses.
    pub fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.end)
    }

    /// Returns the part in `range`.
    pub fn cut_to(&self, range: AddressRange) -> Self {
        let top = self.top.filter(|top| range.contains(top.address));
        Self { start: range.start, end: range.end, top, ..self.clone() }
    }
}

/// Counts of a walk. Bytes are of address space, resident or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Chunks in use by the program, without the structures of thread caches.
    pub blocks: u64,
    /// Capacity of these blocks.
    pub payload_bytes: u64,
    /// Chunks in bins.
    pub bin_chunks: u64,
    /// Bytes in chunks in bins.
    pub bin_bytes: u64,
    /// Chunks in fastbins.
    pub fast_chunks: u64,
    /// Bytes in chunks in fastbins.
    pub fast_bytes: u64,
    /// Bytes in chunks in thread caches.
    pub cached_bytes: u64,
    /// Bytes of the top chunk.
    pub top_bytes: u64,
    /// Bytes of other users of the range.
    pub foreign_bytes: u64,
    /// Those foreign bytes that follow the last section.
    pub trailing_bytes: u64,
    /// Bytes skipped because the chain was inconsistent.
    pub unread_bytes: u64,
    /// Number of places where the chain was inconsistent.
    pub damages: u64,
    /// The first place where the chain was inconsistent.
    pub first_damage: Option<u64>,
    /// Whether the end was left unread because the deadline had passed.
    pub is_late: bool,
    /// Pages that a trim itself brings in (see `Walker::close_run`).
    pub touched_pages: u64,
    /// Resident bytes of the top that stay only because the trim threshold has grown (see
    /// [`Counts::add_over_threshold`]).
    pub over_threshold_bytes: u64,
    /// Resident bytes in free runs of 128 KiB or more (see [`Counts::add_large_run`]).
    pub large_run_bytes: u64,
    /// Number of mmapped chunks between pieces.
    pub mmapped_chunks: u64,
    /// Bytes of mmapped chunks between pieces.
    pub mmapped_bytes: u64,
    /// Refinements of chunks in use.
    pub refined: Matches,
}

impl Counts {
    /// Counts resident runs of the top that free() would have cut off with the initial threshold
    /// (malloc.c, _int_free, systrim; arena.c, heap_trim).
    pub fn add_over_threshold(&mut self, runs: impl Iterator<Item = AddressRange>) {
        self.over_threshold_bytes += runs.map(AddressRange::len).sum::<u64>();
    }

    /// Counts resident runs of a large free run. With the initial thresholds a block of 128 KiB or
    /// more would have its own mapping (malloc.c, sysmalloc), but smaller blocks that merged would
    /// be in the heap as now: which they were is unknown.
    pub fn add_large_run(&mut self, runs: impl Iterator<Item = AddressRange>) {
        self.large_run_bytes += runs.map(AddressRange::len).sum::<u64>();
    }

    /// Records an inconsistent place.
    pub fn note_damage(&mut self, at: u64) {
        self.damages += 1;
        self.first_damage = self.first_damage.or(Some(at));
    }

    /// Adds another part's counts.
    pub fn add(&mut self, other: Self) {
        add_fields!(self, other: blocks, payload_bytes, bin_chunks, bin_bytes);
        add_fields!(self, other: fast_chunks, fast_bytes, cached_bytes, top_bytes, foreign_bytes);
        add_fields!(self, other: trailing_bytes, unread_bytes, damages, touched_pages);
        add_fields!(self, other: over_threshold_bytes, large_run_bytes, mmapped_chunks, mmapped_bytes);
        self.first_damage = self.first_damage.or(other.first_damage);
        self.is_late |= other.is_late;
        self.refined.add(other.refined);
    }
}

/// A part of a region, counted: it starts and ends at chunk boundaries with no free run open.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its claims.
    pub claims: AccumulatedPart,
    /// Its counts.
    pub counts: Counts,
    /// Chunks treated as members of fastbins.
    pub candidates: Vec<Candidate>,
}

/// How chunks in fastbins are recognised.
#[derive(Clone, Copy)]
pub enum FastbinMode<'a> {
    /// By their links alone: every chunk that may be a member is treated as one.
    Guess {
        /// What links may point to.
        targets: &'a LinkTargets,
        /// Encoding of links.
        links: LinkEncoding,
        /// For how many such chunks memory may be reserved.
        budget: &'a CandidateBudget,
    },
    /// By the [`SpecialChunks`].
    Known,
}

/// Input of a walk: the region, what is known of its chunks, and its memory.
#[derive(Clone, Copy)]
pub struct WalkContext<'a> {
    /// The region.
    pub region: &'a Region,
    /// Its special chunks.
    pub special_chunks: &'a SpecialChunks,
    /// How chunks in fastbins are recognised.
    pub fastbin_mode: FastbinMode<'a>,
    /// The target's memory.
    pub memory: &'a dyn Memory,
    /// The region's pages.
    pub pages: &'a RangePages,
    /// Claims of runtimes on chunks in use.
    pub refinements: Option<&'a Refinements>,
    /// Whether all blocks in use are kept.
    pub keeps_blocks: bool,
    /// When the walk must end: what is not walked by then stays unread.
    pub deadline: Instant,
}
