//! The collector's heap: its memory pools, and its areas in address order.
//!
//! Each collector has a file; a flag of the JVM (`UseG1GC`) tells which one is in use. Names and
//! figures are those of the memory pool beans (`java.lang.management.MemoryPoolMXBean`).

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
use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::range::AddressRange;

use super::view::View;

/// Limit on regions, beyond which a heap is not read: 32 TiB in regions of 32 MiB.
pub const MAX_REGIONS: u64 = 1 << 20;
/// Regions read between two checks of the deadline.
pub const REGIONS_AT_ONCE: u64 = 1024;

/// Content of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AreaKind {
    /// New objects.
    Eden,
    /// Objects that survived a collection.
    Survivor,
    /// Old objects.
    Old,
    /// One object, larger than half a region.
    Humongous,
    /// Objects of the class data archive, mapped from its file.
    Archive,
    /// No objects.
    Free,
}

impl AreaKind {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eden => "eden",
            Self::Survivor => "survivor",
            Self::Old => "old",
            Self::Humongous => "humongous",
            Self::Archive => "archive",
            Self::Free => "free",
        }
    }
}

/// A committed part of the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Content of the area.
    pub kind: AreaKind,
    /// Start of the area.
    pub start: u64,
    /// End of its objects.
    pub top: u64,
    /// End of the area.
    pub end: u64,
}

impl Area {
    /// An area; `None` if its bounds are inconsistent, or it is empty.
    pub fn new(kind: AreaKind, start: u64, top: u64, end: u64) -> Option<Self> {
        let is_sound = start.is_multiple_of(8)
            && start < end
            && (start..=end).contains(&top)
            && is_claimable(start, end);
        is_sound.then_some(Self { kind, start, top, end })
    }

    /// Its addresses.
    pub fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.end)
    }
}

/// A memory pool, as its bean reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Name: `G1 Old Gen`.
    pub name: String,
    /// Bytes of objects, including dead ones.
    pub used_bytes: u64,
    /// Committed bytes.
    pub committed_bytes: u64,
}

impl Pool {
    /// A pool.
    pub fn new(name: &str, used_bytes: u64, committed_bytes: u64) -> Self {
        Self { name: name.to_owned(), used_bytes, committed_bytes }
    }
}

/// The heap of a collector.
#[derive(Clone, Debug, Default)]
pub struct Heap {
    /// Name of the collector: `G1`, `Serial`.
    pub collector: &'static str,
    /// Reserved range.
    pub reserved: AddressRange,
    /// The areas, in address order.
    pub areas: Vec<Area>,
    /// The memory pools.
    pub pools: Vec<Pool>,
    /// Size of a region; `None` if the collector has no regions.
    pub region_bytes: Option<u64>,
    /// Parts of shared memory in use, if the heap is mapped: in address order, within
    /// [`Heap::views`].
    pub shared_used_ranges: Vec<AddressRange>,
    /// Parts of shared memory that could not be read, or not in time: in address order, within
    /// [`Heap::views`].
    pub shared_unread_ranges: Vec<AddressRange>,
    /// Mappings of that shared memory; a page may be in several.
    pub views: Vec<AddressRange>,
    /// Number of mappings of each page of that memory; `None` if it is 1.
    pub times_mapped: Option<u64>,
    /// Whether objects follow each other without gaps in each area, so that they can be walked.
    pub is_parsable: bool,
}

impl Heap {
    /// Returns the committed bytes of all pools.
    pub fn committed_bytes(&self) -> u64 {
        self.pools.iter().map(|pool| pool.committed_bytes).fold(0, u64::saturating_add)
    }

    /// Returns the bytes of objects in all pools, including dead ones.
    pub fn used_bytes(&self) -> u64 {
        self.pools.iter().map(|pool| pool.used_bytes).fold(0, u64::saturating_add)
    }

    /// Sorts by address; `None` if areas overlap or are outside of the reserved range.
    fn checked(mut self) -> Option<Self> {
        self.areas.sort_by_key(|area| area.start);
        let are_apart = self.areas.windows(2).all(|pair| pair[0].end <= pair[1].start);
        let are_inside = self.areas.iter().all(|area| self.reserved.covers(area.range()));
        (are_apart && are_inside).then_some(self)
    }
}

/// Reason why a heap is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapError {
    /// The JVM has not started: there is no heap yet.
    NotStarted,
    /// A collection is under way; the structures are inconsistent.
    Collecting,
    /// The collector, or its version, has unknown structures.
    Unknown,
    /// Structures contradict each other.
    Damaged,
    /// There was no time to read all parts.
    Late,
}

/// Reads the heap of the collector in use.
///
/// # Errors
/// The reason why it is not read.
pub fn read(context: &Context<'_>, view: &View<'_>) -> Result<Heap, HeapError> {
    let heap = view.static_field(&["Universe::_collectedHeap"]).ok_or(HeapError::Unknown)?;
    if heap == 0 {
        return Err(HeapError::NotStarted);
    }
    if is_collecting(view, heap) {
        return Err(HeapError::Collecting);
    }
    let major = view.structs.major().ok_or(HeapError::Unknown)?;
    let is_in_use =
        |collector: &&Collector| major >= collector.first_major && view.is_set(collector.flag) == Some(true);
    let collector = COLLECTORS.iter().find(is_in_use).ok_or(HeapError::Unknown)?;
    let error = || if Instant::now() < context.deadline { HeapError::Damaged } else { HeapError::Late };
    (collector.read)(context, view, heap).and_then(Heap::checked).ok_or_else(error)
}

/// Reads the heap of one collector, whose `CollectedHeap` is at an address.
type ReadHeap = fn(&Context<'_>, &View<'_>, u64) -> Option<Heap>;

/// A collector that can be read.
struct Collector {
    /// The command line flag that selects it.
    flag: &'static str,
    /// First major version whose tables describe enough of it.
    first_major: u32,
    read: ReadHeap,
}

impl Collector {
    const fn new(flag: &'static str, first_major: u32, read: ReadHeap) -> Self {
        Self { flag, first_major, read }
    }
}

/// All collectors that can be read.
static COLLECTORS: [Collector; 7] = [
    Collector::new("UseG1GC", 11, g1::read),
    Collector::new("UseSerialGC", 11, |_, view, heap| serial::read(view, heap)),
    Collector::new("UseParallelGC", 11, |_, view, heap| parallel::read(view, heap)),
    Collector::new("UseParallelOldGC", 11, |_, view, heap| parallel::read(view, heap)),
    Collector::new("UseEpsilonGC", 11, |_, view, heap| epsilon::read(view, heap)),
    Collector::new("UseShenandoahGC", 17, shenandoah::read),
    Collector::new("UseZGC", 17, z::read),
];

/// Whether the program is stopped for a collection. False if that cannot be read: then the heap
/// cannot be read either.
pub fn is_collecting(view: &View<'_>, heap: u64) -> bool {
    let flag = ["CollectedHeap::_is_stw_gc_active", "CollectedHeap::_is_gc_active"];
    view.byte_field(heap, &flag).is_some_and(|active| active != 0)
}

/// Reads `CollectedHeap::_reserved`.
fn reserved_range(view: &View<'_>, heap: u64) -> Option<AddressRange> {
    let region = view.field_address(heap, &["CollectedHeap::_reserved"])?;
    let start = view.field(region, &["MemRegion::_start"])?;
    let words = view.field(region, &["MemRegion::_word_size"])?;
    let end = start.checked_add(words.checked_mul(8)?)?;
    (start < end && end <= USER_ADDRESS_END).then_some(AddressRange { start, end })
}

/// Whether a range is valid: within the address space, and no larger than a claim may be.
pub fn is_claimable(start: u64, end: u64) -> bool {
    end <= USER_ADDRESS_END && page_up(end).saturating_sub(page_of(start)) <= MAX_BYTES
}

/// Reads the space at `address` of a collector without regions: start, end of objects, end. Each
/// field is that of the first of `types` that has it.
fn read_space(view: &View<'_>, address: u64, kind: AreaKind, types: &[&str]) -> Option<Area> {
    let field =
        |name: &str| types.iter().find_map(|owner| view.field(address, &[&format!("{owner}::{name}")]));
    let (start, top, end) = (field("_bottom")?, field("_top")?, field("_end")?);
    // An empty space is valid, too: its pool is reported.
    ((start..=end).contains(&top) && is_claimable(start, end)).then_some(Area { kind, start, top, end })
}

/// A region.
struct Region {
    area: Area,
    /// Whether it continues the large object of the region before.
    is_continued: bool,
}

/// Adds a region; joins it with the one before whose large object it continues. `None` if the
/// bounds of both together are inconsistent.
fn push_region(areas: &mut Vec<Area>, Region { area, is_continued }: Region) -> Option<()> {
    let is_rest = |first: &&mut Area| is_continued && first.kind == area.kind && first.end == area.start;
    match areas.last_mut().filter(is_rest) {
        Some(first) => *first = Area::new(first.kind, first.start, area.top, area.end)?,
        None => areas.push(area),
    }
    Some(())
}

/// Returns the heap of a collector with two generations. The survivor pool is the `from` space, the
/// one of the two survivor spaces that has objects.
fn generations(
    view: &View<'_>,
    heap: u64,
    collector: &'static str,
    [eden, from, to, old]: [Area; 4],
    [eden_name, survivor_name, old_name]: [&str; 3],
) -> Option<Heap> {
    Some(Heap {
        collector,
        reserved: reserved_range(view, heap)?,
        areas: [eden, from, to, old].into_iter().filter(|area| area.start < area.end).collect(),
        pools: vec![pool(eden_name, &eden), pool(survivor_name, &from), pool(old_name, &old)],
        is_parsable: true,
        ..Heap::default()
    })
}

/// The pool of a space.
fn pool(name: &str, area: &Area) -> Pool {
    Pool::new(name, area.top - area.start, area.end - area.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_no_larger_than_a_claim() {
        assert!(is_claimable(0x1000, 0x1000 + MAX_BYTES));
        assert!(!is_claimable(0x1000, 0x1001 + MAX_BYTES));
        // A claim covers whole pages.
        assert!(!is_claimable(0x1ff8, 0x1ff8 + MAX_BYTES));
    }
}
