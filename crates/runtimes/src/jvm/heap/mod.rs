//! Where the collector keeps objects: its pools, and the parts of them that are in use, in the order of addresses.
//!
//! A file a collector; what it is told by its flag (`UseG1GC`). Figures are those that the memory pool beans tell, and by their
//! names.

pub mod epsilon;
pub mod g1;
pub mod parallel;
pub mod serial;
pub mod shenandoah;
pub mod z;

use std::time::Instant;

use serde::{Deserialize, Serialize};

use strandline_claims::range::{MAX_BYTES, page_of, page_up};
use strandline_claims::runtime::Context;

use super::view::{LAST, View};

/// The most regions that are read: 32 TiB in regions of 32 MiB are a million.
pub const MAX_REGIONS: u64 = 1 << 20;
/// How many regions the reader reads between two looks at the clock.
pub const REGIONS_AT_ONCE: u64 = 1024;

/// What a part of the heap is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// New objects.
    Eden,
    /// Objects that lived through a collection.
    Survivor,
    /// Old objects.
    Old,
    /// One object, larger than half a region, or what follows of it.
    Humongous,
    /// Objects of the class data archive, mapped from its file.
    Archive,
    /// None.
    Free,
}

/// A part of the heap that is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// What it is for.
    pub kind: Kind,
    /// Its first byte.
    pub start: u64,
    /// The first byte behind its objects.
    pub top: u64,
    /// The first byte behind it.
    pub end: u64,
}

impl Area {
    /// An area, if it makes sense: empty ones do not.
    pub fn new(kind: Kind, start: u64, top: u64, end: u64) -> Option<Self> {
        let is_sound =
            start.is_multiple_of(8) && start < end && (start..=end).contains(&top) && is_possible(start, end);
        is_sound.then_some(Self { kind, start, top, end })
    }
}

/// A memory pool, as its bean tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Its name: `G1 Old Gen`.
    pub name: String,
    /// Bytes of objects, dead ones among them.
    pub used_bytes: u64,
    /// Bytes that it has of the kernel.
    pub committed_bytes: u64,
}

impl Pool {
    /// A pool.
    pub fn new(name: &str, used_bytes: u64, committed_bytes: u64) -> Self {
        Self { name: name.to_owned(), used_bytes, committed_bytes }
    }
}

/// A collector's heap.
#[derive(Clone, Debug, Default)]
pub struct Heap {
    /// The collector: `G1`, `Serial`.
    pub collector: &'static str,
    /// The range that it may lie in.
    pub reserved: (u64, u64),
    /// Its parts, in the order of addresses.
    pub areas: Vec<Area>,
    /// Its pools.
    pub pools: Vec<Pool>,
    /// The size of a region, where it has such.
    pub region_bytes: Option<u64>,
    /// What is in use of shared memory, where the heap is there: in the order of addresses, within [`Heap::views`].
    pub shared: Vec<(u64, u64)>,
    /// Parts of it that the reader could not read, or not in time: in the order of addresses, within [`Heap::views`].
    pub shared_unread: Vec<(u64, u64)>,
    /// The mappings of that shared memory; one page may be in several.
    pub views: Vec<(u64, u64)>,
    /// How often that memory is mapped, where that is more than once.
    pub times_mapped: Option<u64>,
    /// Whether objects follow each other without a gap in each area, and can be walked.
    pub is_parsable: bool,
}

impl Heap {
    /// Bytes that are committed.
    pub fn committed(&self) -> u64 {
        self.pools.iter().map(|pool| pool.committed_bytes).fold(0, u64::saturating_add)
    }

    /// Bytes of objects, dead ones among them.
    pub fn used(&self) -> u64 {
        self.pools.iter().map(|pool| pool.used_bytes).fold(0, u64::saturating_add)
    }

    /// In the order of addresses; `None` where parts overlap or leave what is reserved.
    fn checked(mut self) -> Option<Self> {
        self.areas.sort_by_key(|area| area.start);
        let apart = self.areas.windows(2).all(|pair| pair[0].end <= pair[1].start);
        let (start, end) = self.reserved;
        let inside = self.areas.iter().all(|area| start <= area.start && area.end <= end);
        (apart && inside).then_some(self)
    }
}

/// Why there is no heap to tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It has not started: there is no heap yet.
    NotStarted,
    /// A collection is under way, and nothing adds up.
    Collecting,
    /// A collector, or a version of one, whose structures are not known.
    Unknown,
    /// Structures that do not agree with each other.
    Damaged,
    /// Parts of it that would lie on each other.
    Overlapping,
    /// There was no time to read all of its parts.
    Late,
}

/// Reads the heap, of whichever collector it is.
pub fn read(context: &Context<'_>, view: &View<'_>) -> Result<Heap, Doubt> {
    let heap = view.fixed(&["Universe::_collectedHeap"]).ok_or(Doubt::Unknown)?;
    if heap == 0 {
        return Err(Doubt::NotStarted);
    }
    if is_collecting(view, heap) {
        return Err(Doubt::Collecting);
    }
    type Read = fn(&Context<'_>, &View<'_>, u64) -> Option<Heap>;
    // With the first major version that describes enough of it.
    let collectors: [(&str, u32, Read); 7] = [
        ("UseG1GC", 11, g1::read),
        ("UseSerialGC", 11, |_, view, heap| serial::read(view, heap)),
        ("UseParallelGC", 11, |_, view, heap| parallel::read(view, heap)),
        ("UseParallelOldGC", 11, |_, view, heap| parallel::read(view, heap)),
        ("UseEpsilonGC", 11, |_, view, heap| epsilon::read(view, heap)),
        ("UseShenandoahGC", 17, shenandoah::read),
        ("UseZGC", 17, z::read),
    ];
    let major = view.structs.major().ok_or(Doubt::Unknown)?;
    let known = collectors.iter().find(|(flag, first, _)| major >= *first && view.has_flag(flag));
    let (_, _, read) = known.ok_or(Doubt::Unknown)?;
    let doubt = || if Instant::now() < context.deadline { Doubt::Damaged } else { Doubt::Late };
    read(context, view, heap).and_then(Heap::checked).ok_or_else(doubt)
}

/// Whether a collection has stopped the program.
pub fn is_collecting(view: &View<'_>, heap: u64) -> bool {
    let flag = ["CollectedHeap::_is_stw_gc_active", "CollectedHeap::_is_gc_active"];
    view.byte_field(heap, &flag).is_some_and(|active| active != 0)
}

/// `CollectedHeap::_reserved`.
fn reserved(view: &View<'_>, heap: u64) -> Option<(u64, u64)> {
    let region = view.place(heap, &["CollectedHeap::_reserved"])?;
    let start = view.field(region, &["MemRegion::_start"])?;
    let words = view.field(region, &["MemRegion::_word_size"])?;
    let end = start.checked_add(words.checked_mul(8)?)?;
    (start < end && end <= LAST).then_some((start, end))
}

/// Whether a part of a heap, or of what else is claimed, may be there: what is claimed in one is at most so large.
pub fn is_possible(start: u64, end: u64) -> bool {
    end <= LAST && page_up(end).saturating_sub(page_of(start)) <= MAX_BYTES
}

/// A space of the older collectors: where it begins, up to where objects stand, where it ends. The first of `types` that
/// has the field tells where it is.
fn space(view: &View<'_>, space: u64, kind: Kind, types: &[&str]) -> Option<Area> {
    let field = |name: &str| types.iter().find_map(|of| view.field(space, &[&format!("{of}::{name}")]));
    let (start, top, end) = (field("_bottom")?, field("_top")?, field("_end")?);
    // An empty one is one, too: its pool is told.
    ((start..=end).contains(&top) && is_possible(start, end)).then_some(Area { kind, start, top, end })
}

/// Those of two generations, and of survivor spaces the pool of the one with objects.
fn generations(
    view: &View<'_>,
    (heap, collector): (u64, &'static str),
    [eden, from, to, old]: [Area; 4],
    names: [&str; 3],
) -> Option<Heap> {
    Some(Heap {
        collector,
        reserved: reserved(view, heap)?,
        areas: [eden, from, to, old].into_iter().filter(|area| area.start < area.end).collect(),
        pools: vec![pool(names[0], &eden), pool(names[1], &from), pool(names[2], &old)],
        is_parsable: true,
        ..Heap::default()
    })
}

/// Of a space the pool.
fn pool(name: &str, area: &Area) -> Pool {
    Pool::new(name, area.top - area.start, area.end - area.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_no_larger_than_a_claim() {
        assert!(is_possible(0x1000, 0x1000 + MAX_BYTES));
        assert!(!is_possible(0x1000, 0x1001 + MAX_BYTES));
        // A claim has the whole pages that it touches.
        assert!(!is_possible(0x1ff8, 0x1ff8 + MAX_BYTES));
    }
}
