//! Counts objects by type, and collects their pointers to memory outside the arenas.

use std::time::Instant;

use super::counted::{
    BlockContent, CensusResult, ClaimedBlock, CountedType, LargeObject, MIN_OBJECTS_NOT_SPARSE, TypeCounts,
    TypedObjects, UNNUMBERED_TYPE,
};
use super::ints;
use super::layout::{GC_HEAD_BYTES, GC_LINK_MASK, INT_DIGITS, Release, flags};
use super::objects::{self, GUARD_BYTES, GUARD_SUFFIX_BYTES, HEAD_BYTES, NO_OWNER, Table};
use super::outside::OutsideMemory;
use super::types::{Kind, Type, Types};
use crate::batch::PageCache;
use crate::push_within;
use strandline_claims::class::Slot;
use strandline_claims::refinements::LARGE_BYTES;
use strandline_claims::runtime::{EncodedWord, ObjectTypes, ReferenceHints};
use strandline_process::memory::{Memory, words_in};
use strandline_process::range::AddressRange;

/// Limit on the targets that one worker keeps, and on its tables, claimed blocks and addresses
/// without an object; further ones are left out ([`CensusResult::is_incomplete`]).
const MAX_TARGETS: usize = 1 << 21;
/// Entries of the cache of addresses found last.
const RECENT_TARGETS: usize = 1 << 14;
/// Number of new addresses from which they are sorted, so that a page is read once for all of them.
const MIN_SORTED_TARGETS: usize = 1 << 16;
/// Pages kept while following pointers outside the arenas: 8 MiB.
const PAGES_KEPT: usize = 2048;
/// Bytes read at once of a block that is followed.
const PIECE_BYTES: usize = 64 << 10;
/// Largest block read through kept pages: larger ones would evict the pages that they point to.
const MAX_KEPT_BYTES: usize = 4096;

/// An address that a pointer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The address.
    pub at: u64,
    /// Number of the type of an object with the pointer, or [`NO_OWNER`].
    pub owner: u32,
}

/// An object outside the arenas.
pub struct OutsideObject {
    /// Address of its block.
    pub start: u64,
    pub size: objects::ObjectSize,
    /// Whether its words may be pointers.
    pub has_pointers: bool,
    pub type_number: u32,
    object_type: Type,
    /// First bytes of the object.
    head: [u8; HEAD_BYTES],
}

/// The block of an object outside the arenas.
struct BlockOfType {
    /// Address of the block.
    start: u64,
    /// Number of the object's type.
    type_number: u32,
}

/// A worker's census.
pub struct Census<'a> {
    memory: &'a dyn Memory,
    release: &'static Release,
    types: Types<'a>,
    pages: PageCache<'a>,
    outside_memory: &'a OutsideMemory,
    /// Objects by number of the type.
    counts: Vec<TypeCounts>,
    /// Numbers of the types of an arena's first few objects.
    first_types: Vec<u32>,
    /// Cache of the addresses found last.
    recent_targets: Vec<u64>,
    /// Piece of the block that is being followed.
    piece: Vec<u8>,
    /// Address of the current block.
    block_start: u64,
    /// Number of the type whose object is being followed.
    pub owner: u32,
    /// Pointers to memory outside the arenas that are not followed yet.
    pub targets: Vec<Target>,
    /// Pointers to memory that holds no object.
    pub non_objects: Vec<Target>,
    /// Tables outside the arenas.
    pub tables: Vec<Table>,
    /// The blocks that hold objects, by this worker's numbers of types.
    typed_objects: ObjectTypes,
    result: CensusResult,
}

impl<'a> Census<'a> {
    /// An empty census.
    pub fn new(memory: &'a dyn Memory, release: &'static Release, outside_memory: &'a OutsideMemory) -> Self {
        Self {
            memory,
            release,
            types: Types::new(PageCache::new(memory), release),
            pages: PageCache::new(memory),
            outside_memory,
            counts: Vec::new(),
            first_types: Vec::new(),
            recent_targets: vec![0; RECENT_TARGETS],
            piece: Vec::new(),
            block_start: 0,
            owner: NO_OWNER,
            targets: Vec::new(),
            non_objects: Vec::new(),
            tables: Vec::new(),
            typed_objects: ObjectTypes::default(),
            result: CensusResult::default(),
        }
    }

    /// Enables collection of blocks and references for the search for holders.
    pub fn with_hints(mut self, keeps_blocks: bool) -> Self {
        self.result.hints = keeps_blocks.then(ReferenceHints::default);
        self
    }

    /// An empty census that is to follow what other censuses found: it keeps more pages.
    pub fn following(
        memory: &'a dyn Memory,
        release: &'static Release,
        outside_memory: &'a OutsideMemory,
    ) -> Self {
        let pages = PageCache::with_capacity(memory, PAGES_KEPT);
        Self { pages, ..Self::new(memory, release, outside_memory) }
    }

    /// Takes over the targets and tables of another worker's census, with type numbers converted to
    /// its own.
    pub fn adopt(&mut self, other: &mut Census<'_>) {
        let own_number = |object_type: &Type| self.types.number_at(object_type.address).unwrap_or(NO_OWNER);
        let numbers: Vec<u32> = other.types.by_number.iter().map(own_number).collect();
        let owner = |other_number: u32| numbers.get(other_number as usize).copied().unwrap_or(NO_OWNER);
        self.targets
            .extend(other.targets.drain(..).map(|target| Target { owner: owner(target.owner), ..target }));
        self.tables.extend(other.tables.drain(..).map(|table| Table { owner: owner(table.owner), ..table }));
    }

    /// Records a claimed block, at `pointer`, of an object of the type being followed.
    pub fn record_claim(&mut self, pointer: u64, slot: Slot) {
        let Some(object_type) = self.types.get(self.owner) else { return };
        let block = ClaimedBlock { pointer, slot, type_address: object_type.address };
        self.result.is_incomplete |= !push_within(&mut self.result.claimed_blocks, MAX_TARGETS, block);
    }

    /// Counts the content of a block in use of an arena, at `at`.
    pub fn count_block(&mut self, at: u64, block: &[u8]) -> BlockContent {
        self.owner = NO_OWNER;
        self.block_start = at;
        let found = objects::in_block(&mut self.types, block);
        let content =
            found.map_or(BlockContent::Other, |found| self.count_object(found, block, block.len() as u64));
        // The pointers of a dead object are stale.
        if content != BlockContent::FreeListed {
            self.follow(block);
        }
        if let Some(hints) = &mut self.result.hints {
            hints.blocks.push(at, block.len() as u64);
            if content != BlockContent::Other {
                hints.objects.insert(at);
            }
        }
        content
    }

    /// Counts the content of a block in use of a heap of objects, which has `bytes` and begins with
    /// `head`. The caller follows its pointers.
    pub fn count_heap_block(&mut self, at: u64, head: &[u8], bytes: u64) -> BlockContent {
        self.owner = NO_OWNER;
        self.block_start = at;
        let found = objects::in_heap_block(&mut self.types, head);
        found.map_or(BlockContent::Other, |found| self.count_object(found, head, bytes))
    }

    /// Whether instances of a type contain pointers; strings, bytes and ints contain none.
    fn may_have_pointers(object_type: &Type) -> bool {
        !matches!(object_type.kind, Kind::String | Kind::Int) && object_type.flags & flags::BYTES == 0
    }

    /// Counts the object found in a block of `bytes` bytes, of which `block` has the first ones.
    fn count_object(&mut self, found: objects::FoundObject, block: &[u8], bytes: u64) -> BlockContent {
        if found.is_free_listed {
            self.result.free_listed_objects.add(bytes);
            // Code objects of 3.8 to 3.10 point to frames that ended, in which stale words remain.
            if let Some(hints) = &mut self.result.hints {
                hints.stops.insert(self.block_start);
            }
            return BlockContent::FreeListed;
        }
        let Some(object_type) = self.types.get(found.type_number) else {
            return BlockContent::Other;
        };
        self.owner = found.type_number;
        let head = block.get(found.offset + self.release.header_prefix_bytes as usize..).unwrap_or_default();
        let mut size = objects::size(&mut self.pages, self.release, &object_type, head);
        if size.block_bytes > bytes {
            size = objects::ObjectSize::plain(&object_type);
        }
        let at = self.block_start;
        self.record_type(at, found.type_number);
        let start = at.saturating_add(found.offset as u64);
        self.record_object(start, at.saturating_add(bytes), &object_type, head);
        self.count(found.type_number, size.reported_bytes, &object_type, head);
        if (self.first_types.len() as u64) < MIN_OBJECTS_NOT_SPARSE {
            self.first_types.push(found.type_number);
        }
        for table in size.tables.into_iter().flatten() {
            self.add_table(table);
        }
        BlockContent::Object { bytes: size.block_bytes, has_pointers: Self::may_have_pointers(&object_type) }
    }

    /// Records the type of the object in the block at `block`, for the search for holders.
    fn record_type(&mut self, block: u64, number: u32) {
        if self.result.hints.is_some() {
            self.typed_objects.push(block, u16::try_from(number).unwrap_or(UNNUMBERED_TYPE));
        }
    }

    /// Records an object at `at`, which begins with `head` in a block that ends at `end`, for the
    /// search for holders.
    fn record_object(&mut self, at: u64, end: u64, object_type: &Type, head: &[u8]) {
        let Some(hints) = &mut self.result.hints else { return };
        if object_type.flags & flags::HAVE_GC != 0 && self.release.has_links() {
            hints.gc_links.insert(at.saturating_sub(GC_HEAD_BYTES));
        }
        if matches!(object_type.kind, Kind::Class | Kind::Module | Kind::Weak) {
            hints.stops.insert(at);
        }
        if object_type.kind == Kind::Int
            && let Some(target) = ints::address_in_int(self.release, head)
            && self.outside_memory.contains(target)
            && let Some(at) = at.checked_add(self.release.header_prefix_bytes + INT_DIGITS)
        {
            let is_kept = push_within(&mut hints.encoded_words, MAX_TARGETS, EncodedWord { at, target });
            self.result.is_incomplete |= !is_kept;
        }
        // An instance of a class that the program defines has more fields behind its raw data.
        let is_built_in = object_type.flags & flags::HEAP_TYPE == 0;
        let offset = objects::raw_data_offset(self.release, object_type, head).filter(|_| is_built_in);
        let raw_data = offset.and_then(|offset| at.checked_add(offset)).filter(|&raw_data| raw_data < end);
        if let Some(raw_data) = raw_data {
            hints.opaque_from.insert(raw_data);
        }
    }

    /// Ends an arena. `used_blocks` is its number of blocks in use; `None` if unknown.
    pub fn end_arena(&mut self, range: AddressRange, used_blocks: Option<u64>) {
        if let (Some(hints), Some(_)) = (&mut self.result.hints, used_blocks) {
            hints.release_units.push(range);
        }
        if let Some(used_blocks) = used_blocks.filter(|&used_blocks| used_blocks < MIN_OBJECTS_NOT_SPARSE) {
            self.result.sparse_arenas += 1;
            self.result.sparse_arena_blocks += used_blocks;
            for number in &self.first_types {
                if let Some(counts) = self.counts.get_mut(*number as usize) {
                    counts.in_sparse_arenas += 1;
                }
            }
        }
        self.first_types.clear();
    }

    fn count(&mut self, type_number: u32, bytes: u64, object_type: &Type, head: &[u8]) {
        let index = type_number as usize;
        if self.counts.len() <= index {
            self.counts.resize(index + 1, TypeCounts::default());
        }
        if let Some(counts) = self.counts.get_mut(index) {
            counts.instances += 1;
            counts.bytes = counts.bytes.saturating_add(bytes);
        }
        if object_type.kind == Kind::String && objects::is_interned(head) {
            self.result.interned_objects.add(bytes);
        }
    }

    /// Returns the next address to read, from the end of `pending`. Once there are many new
    /// addresses, they are sorted and moved to `pending`: in the order found, the same pages would
    /// be read many times.
    pub fn next_target(&mut self, pending: &mut Vec<Target>) -> Option<Target> {
        if pending.is_empty() || self.targets.len() >= MIN_SORTED_TARGETS {
            self.targets.sort_unstable();
            self.targets.dedup_by_key(|target| target.at);
            let max_added = MAX_TARGETS.saturating_sub(pending.len());
            if self.targets.len() > max_added && !pending.is_empty() {
                self.targets.truncate(max_added);
                self.result.is_incomplete = true;
            }
            pending.append(&mut self.targets);
        }
        pending.pop()
    }

    /// Reads into `bytes` at `at`, a small block through kept pages. Returns the number of bytes
    /// read.
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> usize {
        if bytes.len() <= MAX_KEPT_BYTES && self.pages.read(at, bytes).is_ok() {
            return bytes.len();
        }
        self.memory.read_some(at, bytes)
    }

    /// Records the pointers in the used part of a block or a table, as far as it can be read before
    /// the deadline.
    pub fn follow_block(&mut self, block: Table, deadline: Instant) {
        let mut piece = std::mem::take(&mut self.piece);
        piece.resize(PIECE_BYTES, 0);
        let mut at = block.address;
        let end = block.address.saturating_add(block.used_bytes);
        while at < end && Instant::now() < deadline {
            let unread = &mut piece[..(end - at).min(PIECE_BYTES as u64) as usize];
            let read_bytes = self.read(at, unread);
            self.follow(&unread[..read_bytes]);
            if read_bytes < unread.len() {
                break;
            }
            at += read_bytes as u64;
        }
        self.piece = piece;
    }

    /// Records an address that holds no object.
    pub fn add_non_object(&mut self, target: Target) {
        self.result.is_incomplete |= !push_within(&mut self.non_objects, MAX_TARGETS, target);
    }

    /// Adds the table that `table` links to, if any.
    pub fn add_linked_table(&mut self, table: Table) {
        let link = table.link.and_then(|link| self.pages.word(table.address.checked_add(link)?));
        if let Some(address) = link {
            self.owner = table.owner;
            self.add_table(Table { address, ..table });
        }
    }

    fn add_table(&mut self, table: Table) {
        // Memory behind the used part may contain stale words. An address outside known memory is
        // left out: each may cost a leaf of the set.
        if let Some(hints) = &mut self.result.hints {
            let used_end = table.address.checked_add(table.used_bytes);
            let begin = used_end.and_then(|used_end| used_end.checked_next_multiple_of(16));
            let end = table.address.checked_add(table.bytes);
            if let Some((begin, end)) = begin.zip(end)
                && begin < end
                && self.outside_memory.is_known(begin)
            {
                hints.opaque_from.insert(begin);
            }
        }
        if self.outside_memory.contains(table.address) {
            let owned = Table { owner: self.owner, ..table };
            self.result.is_incomplete |= !push_within(&mut self.tables, MAX_TARGETS, owned);
        }
    }

    /// Records the pointers in the bytes of a block or a table.
    pub fn follow(&mut self, block: &[u8]) {
        for word in words_in(block) {
            if self.outside_memory.contains(word) && word.is_multiple_of(16) {
                self.add_target(word);
            }
        }
    }

    fn add_target(&mut self, at: u64) {
        let Some(recent) = self.recent_targets.get_mut((at >> 4) as usize % RECENT_TARGETS) else {
            return;
        };
        if *recent == at {
            return;
        }
        *recent = at;
        let target = Target { at, owner: self.owner };
        self.result.is_incomplete |= !push_within(&mut self.targets, MAX_TARGETS, target);
    }

    /// Returns the object at `at`, outside the arenas; `at` may also be the object's prefix, which
    /// the collector's lists point to.
    pub fn object_at(&mut self, at: u64) -> Option<OutsideObject> {
        // Builds without a global lock have no objects outside the heaps.
        if self.release.is_free_threaded() {
            return None;
        }
        let mut head = [0; HEAD_BYTES];
        let starts = objects::PREFIX_BYTES.into_iter().filter_map(|ahead| at.checked_add(ahead as u64));
        let BlockOfType { start, type_number } = starts
            .filter_map(|object| self.read_object(object, &mut head))
            .find(|block| block.start <= at)?;
        let object_type = self.types.get(type_number)?;
        let mut size = objects::size(&mut self.pages, self.release, &object_type, &head);
        // A freed object is not cleared: usually its reference count is 0, or its table is gone.
        if object_type.kind == Kind::Dict && size.tables[0].is_none() {
            return None;
        }
        if object_type.flags & self.release.inline_values_flags != 0 {
            // `struct _dictvalues`: the capacity, the values, and their order of insertion.
            let values_address =
                start.checked_add(object_type.prefix_bytes)?.checked_add(object_type.basic_bytes)?;
            let [capacity] = self.pages.array::<1>(values_address)?;
            let values_bytes = 8 + 8 * u64::from(capacity) + u64::from(capacity).next_multiple_of(8);
            size.block_bytes = size.block_bytes.saturating_add(values_bytes);
        }
        if !self.outside_memory.contains(start.saturating_add(size.block_bytes)) {
            size = objects::ObjectSize::plain(&object_type);
        }
        let has_pointers = Self::may_have_pointers(&object_type);
        Some(OutsideObject { start, size, has_pointers, type_number, object_type, head })
    }

    /// Reads the first bytes of the object at `at`; `None` if no object begins there.
    fn read_object(&mut self, at: u64, head: &mut [u8; HEAD_BYTES]) -> Option<BlockOfType> {
        // The smallest object may be the last of a mapping.
        let (references, type_address) = self.pages.pair(at)?;
        if !objects::is_reference_count(references) {
            return None;
        }
        let type_number = self.types.number_at(type_address)?;
        if references as u32 == 0 {
            if let Some(hints) = &mut self.result.hints {
                hints.stops.insert(at);
            }
            return None;
        }
        let object_type = self.types.get(type_number)?;
        let start = at.checked_sub(object_type.prefix_bytes)?;
        if object_type.flags & flags::HAVE_GC != 0 {
            // The next object in the collector's list links back, or the object is in no list. In a
            // freed block malloc has overwritten the links, and an apparent reference count may be
            // the size of a smaller block.
            let links_address = at.checked_sub(GC_HEAD_BYTES)?;
            let next = self.pages.word(links_address)? & GC_LINK_MASK;
            let leads_back =
                |pages: &mut PageCache<'_>| Some(pages.word(next.checked_add(8)?)? & GC_LINK_MASK);
            match next {
                // `PyType_GenericAlloc` links every new instance of a class at once, and the
                // collector unlinks only exact tuples and dicts. So this is not an object: a stale
                // word may point into a class's `__mro__`, for example, where the length is
                // followed by the class itself.
                0 if object_type.flags & flags::HEAP_TYPE != 0 => return None,
                0 => (),
                _ if leads_back(&mut self.pages) != Some(links_address) => return None,
                _ => (),
            }
        }
        *head = [0; HEAD_BYTES];
        let head_bytes = (object_type.basic_bytes as usize).min(HEAD_BYTES);
        self.pages.read(at, head.get_mut(..head_bytes)?).ok()?;
        Some(BlockOfType { start, type_number })
    }

    /// Returns the allocator's block that holds `bytes` at `at`. There are two pairs of guards if
    /// pymalloc passed on a block that was too large for it.
    pub fn guarded_block(&mut self, at: u64, bytes: u64) -> objects::GuardedBlock {
        let (mut begin, mut bytes) = (at, bytes);
        for _ in 0..2 {
            let word = begin.checked_sub(GUARD_BYTES / 2).and_then(|before| self.pages.word(before));
            if word.is_some_and(objects::is_guard) && begin >= GUARD_BYTES {
                begin -= GUARD_BYTES;
                bytes = bytes.saturating_add(GUARD_BYTES + GUARD_SUFFIX_BYTES);
            }
        }
        objects::GuardedBlock { begin, bytes }
    }

    /// Counts an object outside the arenas, in an allocator's block at `begin`, that was not
    /// counted before.
    pub fn count_outside(&mut self, object: &OutsideObject, begin: u64) {
        self.count(object.type_number, object.size.reported_bytes, &object.object_type, &object.head);
        self.owner = object.type_number;
        self.record_type(begin, object.type_number);
        let at = object.start.saturating_add(object.object_type.prefix_bytes);
        let end = object.start.saturating_add(object.size.block_bytes);
        self.record_object(at, end, &object.object_type, &object.head);
        if object.size.block_bytes > LARGE_BYTES {
            let (type_address, bytes) = (object.object_type.address, object.size.reported_bytes);
            self.result.large_objects.push(LargeObject { start: begin, type_address, bytes });
        }
        self.result.outside_objects.add(object.size.reported_bytes);
        for table in object.size.tables.into_iter().flatten() {
            self.add_table(table);
        }
        let words = self.pages.pair(object.start).filter(|_| object.object_type.prefix_bytes > GC_HEAD_BYTES);
        for word in words.into_iter().flat_map(|(first, second)| [first, second]) {
            self.add_values(word);
        }
    }

    /// Adds the table of attribute values that a word before an object may point to
    /// (`PyDictValues`, 3.11 and 3.12; 3.12 stores the address minus 1 as a mark). The byte before
    /// the values holds the length of the prefix in front of them.
    fn add_values(&mut self, word: u64) {
        let values_address = word.saturating_add(word & 1);
        if !values_address.is_multiple_of(8) || !self.outside_memory.contains(values_address) {
            return;
        }
        let prefix_length = values_address.checked_sub(1).and_then(|at| self.pages.array::<1>(at));
        let Some([prefix_bytes]) = prefix_length else { return };
        let prefix_bytes = u64::from(prefix_bytes);
        if prefix_bytes >= 8
            && prefix_bytes.is_multiple_of(8)
            && let Some(start) = values_address.checked_sub(prefix_bytes)
        {
            // `new_values` in Objects/dictobject.c: a byte in the prefix for each value, and two
            // more for the lengths.
            let bytes = prefix_bytes + 8 * (prefix_bytes - 2);
            self.add_table(Table { is_whole: true, ..Table::new(start, bytes, bytes) });
        }
    }

    /// Notes that some pointers are not followed.
    pub fn note_incomplete(&mut self) {
        self.result.is_incomplete = true;
    }

    /// Returns all counts.
    pub fn finish(mut self) -> CensusResult {
        self.result.is_incomplete |= self.types.is_full;
        for (object_type, counts) in self.types.by_number.iter().zip(&self.counts) {
            let counted = CountedType { object_type: *object_type, counts: *counts };
            self.result.types.insert(object_type.address, counted);
        }
        if !self.typed_objects.is_empty() {
            let typed = TypedObjects { objects: self.typed_objects, types: self.types.by_number };
            self.result.typed_objects.push(typed);
        }
        self.result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpython::layout::RELEASES;
    use crate::fabricated::EqualWords;
    use strandline_process::range::RangeSet;

    #[test]
    fn values_near_address_0_have_no_prefix_below_it() {
        let memory = EqualWords::new(0xf8f8_f8f8_f8f8_f8f8);
        let outside = OutsideMemory::new([AddressRange::new(0, 1 << 16)], RangeSet::default());
        let mut census = Census::new(&memory, &RELEASES[3], &outside);
        [0, 7, 8, 0xf0].into_iter().for_each(|word| census.add_values(word));
        assert!(census.tables.is_empty());
        census.add_values(0x1000);
        assert_eq!(census.tables.iter().map(|table| table.address).collect::<Vec<_>>(), [0x1000 - 0xf8]);
    }

    #[test]
    fn tables_outside_known_memory_cost_nothing() {
        let memory = EqualWords::new(0);
        let outside = OutsideMemory::new([AddressRange::new(0x1_0000, 0x2_0000)], RangeSet::default());
        let mut census = Census::new(&memory, &RELEASES[3], &outside).with_hints(true);
        for address in [0x1_0000, 0x5000_0000, u64::MAX - 15] {
            census.add_table(Table::new(address, 4096, 100));
        }
        let hints = census.finish().hints.unwrap();
        assert_eq!(hints.opaque_from.within(0, u64::MAX).collect::<Vec<_>>(), [0x1_0070]);
    }
}
