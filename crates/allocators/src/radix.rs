//! Page maps of allocators: two-level radix trees from pages to the structures that describe them.
//! The root is in the static data of the program or library that contains the allocator.
//!
//! No symbol is needed: a static word is an entry of a root if it points to a leaf whose first
//! entries point to structures that cover exactly their pages. The page number yields the index of
//! the entry, and so the address of the root.

use std::collections::HashSet;

use crate::scan::{
    DeadlineCheck, each_word, each_word_in_steps, is_mapped_memory, is_private_memory, is_unclaimed,
};
use strandline_claims::allocator::Context;
use strandline_claims::caveat::Caveat;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::reader::ReaderInfo;
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::modules;
use strandline_process::page_cache::PageCache;
use strandline_process::pages::{PAGE_BYTES, USER_ADDRESS_END};
use strandline_process::range::{AddressRange, RangeSet, overlapping};

/// Maximum candidates tried for tables of size classes, per program or library: only a hostile one
/// has more.
const MAX_TABLES: usize = 4096;
/// Maximum candidates for root entries, per program or library: only a hostile one has more.
const MAX_ROOT_CANDIDATES: usize = 1 << 16;
/// Non-zero words further apart than this are in different runs.
const GAP_BYTES: u64 = 64;
/// Maximum entries tried per leaf candidate.
const MAX_ENTRIES_TRIED: usize = 16;
/// Maximum bytes of leaf candidates read; those of a real map are recognised by a page each.
const MAX_TRIED_BYTES: u64 = 256 << 20;

/// Layout of a map. Entries are words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLayout {
    /// Binary logarithm of the allocator's page size.
    pub page_shift: u32,
    /// Binary logarithm of the number of entries in a leaf.
    pub leaf_bits: u32,
    /// Bytes of the root that cover user addresses.
    pub used_root_bytes: u64,
    /// Alignment of leaves.
    pub leaf_alignment: u64,
    /// Mask of the pointer in a leaf entry. If these bits are 0, nothing has that page, even if
    /// other bits are set.
    pub pointer_mask: u64,
}

impl MapLayout {
    /// Bytes of a leaf.
    pub fn leaf_bytes(&self) -> u64 {
        8 << self.leaf_bits
    }

    /// Addresses under one leaf.
    pub fn leaf_span(&self) -> u64 {
        1 << (self.leaf_bits + self.page_shift)
    }
}

/// Reads the structure that a leaf entry points to; returns the range that it describes, an extent.
pub type RangeOfEntry<'a> = &'a dyn Fn(&mut PageCache<'_>, u64) -> Option<AddressRange>;

/// The static data of a program or library.
pub struct StaticData<'a> {
    /// Its range.
    pub range: AddressRange,
    /// A mapping of the program or library.
    pub object: &'a Mapping,
}

/// The heaps of a process with a page map.
pub struct FoundHeaps<Heap> {
    /// The heaps that can be read.
    pub heaps: Vec<Heap>,
    /// Caveats on those that cannot.
    pub caveats: Vec<Caveat>,
}

impl<Heap> FoundHeaps<Heap> {
    /// Adds a caveat on the allocator in the file `file_name`: its size classes were found, but not
    /// its page map.
    pub fn add_unread(&mut self, context: &Context<'_>, about: &ReaderInfo, file_name: &str) {
        let (code, reason) = if context.deadline_passed() {
            ("too_slow", "was not found in the time that a target may be stopped")
        } else {
            ("unknown_layout", "is empty or has an unknown layout")
        };
        let text = format!(
            "the size classes of {} were found, but its page map {reason}: it is not read",
            about.title
        );
        self.caveats.push(Caveat::new(&format!("{}_{code}", about.name), file_name, None, text));
    }
}

/// Returns the static data of each mapped program and library, as far as [`modules::data`] returns
/// it, if it has more than `min_bytes`.
pub fn large_data(space: &AddressSpace, min_bytes: u64) -> Vec<StaticData<'_>> {
    let mut static_data = Vec::new();
    for group in modules::file_groups(space) {
        if let Some(range) = modules::data(&group).filter(|data| data.len() > min_bytes) {
            static_data.push(StaticData { range, object: group[0] });
        }
    }
    static_data
}

/// A non-zero word of static data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticWord {
    /// Its address.
    pub address: u64,
    /// Its value.
    pub value: u64,
}

/// A leaf of a map.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// The first address that it covers.
    pub covered_start: u64,
    /// Its own address.
    pub address: u64,
}

/// Returns the words that may be entries of a root. A root is mostly 0, with one run of entries per
/// used part of the address space: only words at an end of a run qualify. Candidates
/// beyond `MAX_ROOT_CANDIDATES` are left out.
pub fn root_candidates(context: &Context<'_>, data: &StaticData<'_>, alignment: u64) -> Vec<StaticWord> {
    let mut candidates = Vec::new();
    let (mut previous, mut follows_gap) = (None::<StaticWord>, true);
    let mut take = |word: StaticWord, is_edge: bool| {
        let is_mapped = || context.space.find(word.value).is_some_and(is_mapped_memory);
        if is_edge && word.value.is_multiple_of(alignment) && word.value < USER_ADDRESS_END && is_mapped() {
            candidates.push(word);
        }
        candidates.len() < MAX_ROOT_CANDIDATES
    };
    each_word(context, data.range, &mut |address, value| {
        let is_gap = previous.is_none_or(|word| address - word.address > GAP_BYTES);
        let continues = previous.is_none_or(|word| take(word, follows_gap || is_gap));
        (previous, follows_gap) = (Some(StaticWord { address, value }), is_gap);
        continues
    });
    if let Some(last) = previous {
        take(last, true);
    }
    candidates
}

/// Returns the first table of size classes in `data` that `read` accepts. A candidate begins with
/// the sizes 0 and then 8 or 16, 32 bits each. Candidates beyond `MAX_TABLES` are left out.
pub fn size_table<T>(
    context: &Context<'_>,
    data: &StaticData<'_>,
    read: &mut dyn FnMut(u64) -> Option<T>,
) -> Option<T> {
    let mut candidates = Vec::new();
    each_word(context, data.range, &mut |at, word| {
        candidates.extend(match (word as u32, word >> 32) {
            // The first two sizes after the 0 share a word, so the 0 is 32 bits before it.
            (8, 16) | (16, 32) => at.checked_sub(4),
            (0, 8 | 16) => Some(at),
            _ => None,
        });
        candidates.len() < MAX_TABLES
    });
    candidates.into_iter().find_map(read)
}

/// The roots of all maps with one layout in static data.
pub struct FoundRoots {
    /// Their addresses.
    pub roots: Vec<u64>,
    /// Whether the deadline passed before all candidates were tried.
    pub is_late: bool,
}

/// Returns the roots of all maps with this layout in `data`, given its [`root_candidates`].
pub fn roots(
    context: &Context<'_>,
    data: &StaticData<'_>,
    candidates: &[StaticWord],
    layout: MapLayout,
    range_of_entry: RangeOfEntry<'_>,
) -> FoundRoots {
    let mut finder = Finder {
        context,
        data,
        layout,
        range_of_entry,
        tried_leaves: HashSet::new(),
        roots: Vec::new(),
        remaining_bytes: MAX_TRIED_BYTES,
    };
    let is_late = !finder.search(candidates);
    FoundRoots { roots: finder.roots, is_late }
}

struct Finder<'a> {
    context: &'a Context<'a>,
    data: &'a StaticData<'a>,
    layout: MapLayout,
    range_of_entry: RangeOfEntry<'a>,
    /// Addresses of leaf candidates that were read.
    tried_leaves: HashSet<u64>,
    /// Addresses of the roots found.
    roots: Vec<u64>,
    /// Bytes of leaf candidates that may still be read.
    remaining_bytes: u64,
}

impl Finder<'_> {
    /// Tries the candidates; false if the deadline passed before the last one.
    fn search(&mut self, candidates: &[StaticWord]) -> bool {
        let mut cache = PageCache::new(self.context.memory);
        for &StaticWord { address, value: leaf } in candidates {
            let is_within = |root: &u64| (*root..root + self.layout.used_root_bytes).contains(&address);
            if self.context.deadline_passed() {
                return false;
            }
            let may_be_leaf = leaf.is_multiple_of(self.layout.leaf_alignment);
            if !may_be_leaf || self.roots.iter().any(is_within) || !self.tried_leaves.insert(leaf) {
                continue;
            }
            let Some(index) = self.leaf_index(&mut cache, leaf) else { continue };
            let root = address.wrapping_sub(index * 8);
            if self.data.range.covers(AddressRange::sized(root, self.layout.used_root_bytes)) {
                self.roots.push(root);
            }
        }
        true
    }

    /// Returns the index of the root entry that points to `leaf`, by the addresses that it covers;
    /// `None` if it is not a leaf.
    fn leaf_index(&mut self, cache: &mut PageCache<'_>, leaf: u64) -> Option<u64> {
        let end = leaf + self.layout.leaf_bytes();
        if !is_private_memory(self.context, (leaf, end)) || self.remaining_bytes == 0 {
            return None;
        }
        let (mut spans, mut tried_entries) = (Vec::new(), 0);
        let (mut next_index, bytes_read_before) = (0, cache.bytes_read);
        let bytes_read =
            each_word_in_steps(self.context, (leaf, end), PAGE_BYTES as usize, &mut |at, entry| {
                let index = (at - leaf) / 8;
                // Entries inside an extent may be stale; the allocator does not read them.
                if index < next_index || entry & self.layout.pointer_mask == 0 {
                    return true;
                }
                if let Some(extent_rest) = self.rest_of_extent(cache, index, entry) {
                    spans.push(extent_rest.start / self.layout.leaf_span());
                    next_index = index + (extent_rest.len() >> self.layout.page_shift);
                }
                tried_entries += 1;
                tried_entries < MAX_ENTRIES_TRIED
            });
        self.remaining_bytes =
            self.remaining_bytes.saturating_sub(bytes_read + cache.bytes_read - bytes_read_before);
        // Some entries may be mid-update, and other memory may begin with a word that points to an
        // extent: the majority decides.
        let first = *spans.first()?;
        let agreeing = spans.iter().filter(|&&span| span == first).count();
        (agreeing * 2 > tried_entries).then_some(first)
    }

    /// Returns the addresses from the page of a leaf entry to the end of its extent; `None` if that
    /// extent does not contain the page.
    fn rest_of_extent(&self, cache: &mut PageCache<'_>, index: u64, entry: u64) -> Option<AddressRange> {
        let range = (self.range_of_entry)(cache, entry)?;
        if !is_private_memory(self.context, range) {
            return None;
        }
        let shift = self.layout.page_shift;
        // The leaf's own place is unknown: page numbers are compared modulo the pages of a leaf.
        let page_in_extent = index.wrapping_sub(range.start >> shift) % (1 << self.layout.leaf_bits);
        let is_inside = page_in_extent < range.len() >> shift;
        is_inside.then(|| AddressRange::new(range.start + (page_in_extent << shift), range.end))
    }
}

/// Returns the leaves under a root that cover mapped memory, in address order.
pub fn leaves(context: &Context<'_>, root: u64, layout: MapLayout) -> Vec<Leaf> {
    let (mut leaves, mut seen_leaves) = (Vec::new(), HashSet::new());
    each_word(context, (root, root + layout.used_root_bytes), &mut |at, leaf| {
        let start = (at - root) / 8 * layout.leaf_span();
        let end = leaf.saturating_add(layout.leaf_bytes());
        // Each leaf covers only one part of the address space.
        if has_mapping(context, AddressRange::sized(start, layout.leaf_span()))
            && seen_leaves.insert(leaf)
            && is_private_memory(context, (leaf, end))
        {
            leaves.push(Leaf { covered_start: start, address: leaf });
        }
        true
    });
    leaves
}

/// Whether a mapping overlaps `range`.
pub fn has_mapping(context: &Context<'_>, range: AddressRange) -> bool {
    let mappings = context.space.mappings();
    let next = mappings.get(mappings.partition_point(|mapping| mapping.end <= range.start));
    next.is_some_and(|mapping| mapping.start < range.end)
}

/// Outcome of a walk over a map.
#[derive(Default)]
pub struct Walk {
    /// Entries that do not lead to a structure with their page, and where the deadline passed.
    pub doubts: ReadProblems,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Walks a map in address order. Calls `take` with the page and the entry of the first page of each
/// extent; `take` returns the end of the extent, or `None` if the structure is invalid.
pub fn walk(
    context: &Context<'_>,
    leaves: &[Leaf],
    layout: MapLayout,
    take: &mut dyn FnMut(&mut PageCache<'_>, u64, u64) -> Option<u64>,
) -> Walk {
    let mut cache = PageCache::new(context.memory);
    let mut walk = Walk::default();
    let has_swap = !context.swapped_mappings.is_empty();
    let in_use = context.claimed_ranges.iter().chain(context.stacks).filter(|_| has_swap);
    let in_use: RangeSet = in_use.copied().collect();
    let (mut cursor, mut follows_swapped, mut deadline) = (0, false, DeadlineCheck::new(context));
    for &Leaf { covered_start, address: leaf } in leaves {
        if context.deadline_passed() {
            walk.doubts.note_timeout(covered_start);
            break;
        }
        let page_of_entry = |at: u64| covered_start + (((at - leaf) / 8) << layout.page_shift);
        let leaf_range = AddressRange::sized(leaf, layout.leaf_bytes());
        let note_swapped = |part: AddressRange, cursor: u64, doubts: &mut ReadProblems| {
            let end = page_of_entry(part.end);
            let covered = AddressRange::new(page_of_entry(part.start).max(cursor).min(end), end);
            note_swapped(context, covered, &in_use, doubts);
        };
        let mut swapped_parts = context.swapped_parts(leaf_range).into_iter().peekable();
        each_word(context, leaf_range, &mut |at, entry| {
            let page = page_of_entry(at);
            while let Some(part) = swapped_parts.next_if(|part| part.start < at) {
                note_swapped(part, cursor, &mut walk.doubts);
                follows_swapped = true;
            }
            // Most extents have an entry for their first and last page only, extents of small
            // blocks for every page.
            if page < cursor || entry & layout.pointer_mask == 0 {
                return true;
            }
            // A hostile map may have damage on every page, so the deadline is checked here too.
            if deadline.passed() {
                walk.doubts.note_timeout(page);
                return false;
            }
            match take(&mut cache, page, entry) {
                Some(end) => (cursor, follows_swapped) = (end, false),
                // The entry of its first page is swapped out.
                None if follows_swapped => walk.doubts.note_swapped(page, 0),
                None => walk.doubts.note_damage(page, 0),
            }
            true
        });
        if !walk.doubts.timed_out() {
            for part in swapped_parts {
                note_swapped(part, cursor, &mut walk.doubts);
                follows_swapped = true;
            }
        }
        walk.bytes_read += context.resident_bytes(leaf_range);
    }
    walk.bytes_read += cache.bytes_read;
    walk
}

/// Notes that the extents in `range` are unknown, if it has memory outside `in_use` that an
/// allocator could have mapped.
fn note_swapped(context: &Context<'_>, range: AddressRange, in_use: &RangeSet, doubts: &mut ReadProblems) {
    let mappings = context.space.mappings();
    let from_range = mappings.iter().skip(mappings.partition_point(|mapping| mapping.end <= range.start));
    let of_range = from_range.take_while(|mapping| mapping.start < range.end);
    let parts = of_range.filter(|mapping| is_mapped_memory(mapping));
    let memory: RangeSet = parts.map(|mapping| mapping.range().intersection(range)).collect();
    let unknown = memory.without(in_use);
    if let Some(first) = unknown.first() {
        let bytes = unknown.iter().map(|part| context.resident_bytes(*part)).sum();
        doubts.note_swapped(first.start, bytes);
    }
}

/// Tests whether ranges, mostly in address order, are memory that an allocator could have mapped
/// and that nothing else has claimed.
pub struct UnclaimedMemory<'a> {
    context: &'a Context<'a>,
    taken: &'a RangeSet,
    /// The last range that passed the test, extended as far as it would still pass.
    last_passed: AddressRange,
}

impl<'a> UnclaimedMemory<'a> {
    /// Excludes `taken`, claimed by others, and stacks.
    pub fn new(context: &'a Context<'a>, taken: &'a RangeSet) -> Self {
        Self { context, taken, last_passed: AddressRange::default() }
    }

    /// Whether all of `range` passes.
    pub fn contains(&mut self, range: impl Into<AddressRange>) -> bool {
        let range = range.into();
        if range.is_empty() {
            return false;
        }
        if self.last_passed.covers(range) {
            return true;
        }
        let passes = is_unclaimed(self.context, self.taken, range);
        if passes && let Some(mapping) = self.context.space.find(range.start) {
            let remainder = (range.start, mapping.end);
            let first_start = |ranges: &[AddressRange]| {
                overlapping(ranges, remainder).first().map_or(mapping.end, |next| next.start)
            };
            let end = first_start(self.taken).min(first_start(self.context.stacks));
            self.last_passed = AddressRange::new(range.start, end);
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use strandline_process::memory::Memory;

    const LEAF: u64 = 0x1_0000;
    const ROOT: u64 = 0x3_0000;
    const LAYOUT: MapLayout = MapLayout {
        page_shift: 12,
        leaf_bits: 3,
        used_root_bytes: 64,
        leaf_alignment: 64,
        pointer_mask: u64::MAX,
    };

    /// Memory whose words are all 1.
    struct Ones;

    impl Memory for Ones {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            for (byte, at) in buffer.iter_mut().zip(address..) {
                *byte = u8::from(at % 8 == 0);
            }
            buffer.len()
        }
    }

    #[test]
    fn roots_after_the_deadline_are_missed_even_if_one_was_found_before() {
        let maps = b"10000-20000 rw-p 00000000 00:00 0\n30000-31000 rw-p 00000000 fe:01 5 /usr/lib/a.so\n";
        let (space, _) = AddressSpace::parse(maps);
        let all_resident = |range: AddressRange| vec![range];
        let mapping = &space.mappings()[1];
        let data = StaticData { range: mapping.range(), object: mapping };
        // An entry of the root, for the addresses from that of the leaf on, and another word.
        let entry = StaticWord { address: ROOT + LEAF / LAYOUT.leaf_span() * 8, value: LEAF };
        let other = StaticWord { address: ROOT + 0x800, value: LEAF + LAYOUT.leaf_bytes() };
        let search = |patience: Duration, candidates: &[StaticWord]| {
            let deadline = Instant::now() + patience;
            let context = Context { deadline, ..Context::of_image(&Ones, &space, &all_resident) };
            // The deadline passes while the first candidate is tried.
            let range_of_entry = |_: &mut PageCache<'_>, _: u64| {
                while !context.deadline_passed() {
                    std::hint::spin_loop();
                }
                Some(AddressRange::sized(LEAF, LAYOUT.leaf_span()))
            };
            let FoundRoots { roots, is_late } = roots(&context, &data, candidates, LAYOUT, &range_of_entry);
            (roots, is_late)
        };
        assert_eq!(search(Duration::ZERO, &[]), (Vec::new(), false), "nothing was left to try");
        assert_eq!(search(Duration::ZERO, &[entry, other]), (Vec::new(), true));
        // On a busy machine the first deadlines may pass before the first candidate.
        let mut patience = (1..=14).map(|doublings| Duration::from_millis(1 << doublings));
        assert!(patience.any(|patience| search(patience, &[entry, other]) == (vec![ROOT], true)));
    }
}
