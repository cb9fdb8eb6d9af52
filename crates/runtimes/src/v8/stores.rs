//! What V8's objects hold outside its heap: the stores of ArrayBuffers and Buffers, and the
//! characters of external strings. Most are blocks of malloc; V8 maps memories of WebAssembly and
//! resizable ArrayBuffers itself.
//!
//! A heap lists its ArrayBuffers with a store, young and old ones, with the sum of their bytes
//! (`src/heap/array-buffer-sweeper.h`), and separately those that a collection is sweeping. There
//! are figures only if the entries of each list add up to its sum; the stores that were found are
//! claimed in any case. A shared store (SharedArrayBuffer) is in the lists of all isolates that use
//! it, with no bytes in their sums, and counts once.

use std::collections::HashMap;
use std::time::Instant;

use super::facts::Amount;
use super::heap::Heaps;
use super::layout::{
    ArrayBufferLists, CACHED_EXTERNAL_BITS, CACHED_EXTERNAL_MASK, ExternalStrings, IS_ONE_BYTE, IS_SHARED,
    Layout, MAP_INSTANCE_TYPE, STORE_BYTES, STRING_BYTES, STRING_DATA, STRING_LENGTH, SWEEPER_JOB,
};
use super::rows;
use super::shapes::Shapes;
use super::views::Views;
use crate::batch::PageCache;
use strandline_claims::accumulator::Class;
use strandline_claims::allocator::RangeClaim;
use strandline_claims::palette::SlotTable;
use strandline_claims::range::MAX_BYTES;
use strandline_claims::refinements::Refinements;
use strandline_claims::runtime::Context;
use strandline_process::memory::{Memory, half_word_at, word_at};
use strandline_process::pages::PAGE_BYTES;
use strandline_process::range::{AddressRange, RangeSet};

/// Offset of the sum of bytes in an `ArrayBufferList`, after its first and its last entry.
const LIST_SUM: u64 = 16;
/// Entries read between two checks of the deadline.
const ENTRIES_AT_ONCE: usize = 256;
/// Maximum entries of all lists of a process, beyond which its figures are unknown: strandline
/// keeps at most 100 bytes of each.
const MAX_ENTRIES: usize = 1 << 20;

/// ArrayBuffers with a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrayBuffers {
    /// Those in blocks of malloc.
    pub in_blocks: Amount,
    /// Those that V8 maps: memories of WebAssembly, resizable ArrayBuffers.
    pub mapped: Amount,
    /// Stores that several isolates may use, in blocks or mapped.
    pub shared: Amount,
    /// Bytes that V8 counts when it decides whether to collect: the sums of all lists.
    pub accounted_bytes: u64,
}

/// Where the bytes of a store are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StorePlace {
    /// In a block of malloc.
    Block,
    /// V8 maps it.
    Mapped,
}

/// A store of an ArrayBuffer.
#[derive(Clone, Copy, Debug)]
struct Store {
    range: AddressRange,
    place: StorePlace,
    is_shared: bool,
}

/// What the lists of all isolates have.
#[derive(Debug, Default)]
pub struct Stores {
    /// ArrayBuffers; `None` if a list does not add up, or was not read to its end.
    pub buffers: Option<ArrayBuffers>,
    /// External strings; `None` if a list was not read to its end, or a string cannot be read.
    pub strings: Option<Amount>,
    /// Stores of ArrayBuffers in malloc's blocks.
    blocks: Vec<AddressRange>,
    /// Stores of SharedArrayBuffers in malloc's blocks.
    shared_blocks: Vec<AddressRange>,
    /// Addresses of V8's own structures for stores.
    structures: Vec<u64>,
    /// The characters of external strings.
    characters: Vec<AddressRange>,
    /// Stores that V8 maps.
    mapped: Vec<AddressRange>,
}

/// Reads the lists of all isolates.
pub fn read(context: &Context<'_>, memory: &dyn Memory, layout: &Layout, heaps: &Heaps) -> Stores {
    let mut reader = Reader {
        context,
        cache: PageCache::new(memory),
        entries_left: MAX_ENTRIES,
        stores: Stores::default(),
        shared_store_bytes: HashMap::new(),
    };
    let (mut buffers, mut strings) = (Some(ArrayBuffers::default()), Some(Amount::default()));
    let objects = heaps.object_areas();
    for isolate in &heaps.isolates {
        let isolate_buffers = reader.buffers(&layout.array_buffers, isolate.heap, layout.sweeper);
        buffers = buffers.zip(isolate_buffers).map(|(sum, isolate_buffers)| ArrayBuffers {
            in_blocks: sum.in_blocks.plus(isolate_buffers.in_blocks),
            mapped: sum.mapped.plus(isolate_buffers.mapped),
            // Counted once for all isolates, below.
            shared: Amount::default(),
            accounted_bytes: sum.accounted_bytes.saturating_add(isolate_buffers.accounted_bytes),
        });
        strings = strings
            .zip(reader.strings(&layout.strings, isolate.heap, &objects))
            .map(|(sum, isolate_strings)| sum.plus(isolate_strings));
    }
    let shared = reader
        .shared_store_bytes
        .values()
        .fold(Amount::default(), |sum, &bytes| sum.plus(Amount { count: 1, bytes }));
    let buffers = buffers.map(|buffers| ArrayBuffers { shared, ..buffers });
    Stores { buffers, strings, ..reader.stores }
}

impl Stores {
    /// Claims the blocks of malloc. Once no slot is left, they stay with the allocator's rows.
    pub fn claim_blocks(&self, refinements: &Refinements) {
        let claim_ranges = |row, ranges: &[AddressRange]| {
            if let Some(slot) = refinements.slot(row, None).filter(|_| !ranges.is_empty()) {
                for range in ranges {
                    refinements.claim(range.start, range.len(), slot);
                }
            }
        };
        claim_ranges(&rows::BUFFER, &self.blocks);
        claim_ranges(&rows::SHARED_BUFFER, &self.shared_blocks);
        claim_ranges(&rows::EXTERNAL_STRING, &self.characters);
        if let Some(slot) = refinements.slot(&rows::METADATA, None).filter(|_| !self.structures.is_empty()) {
            for &address in &self.structures {
                refinements.claim_whole(address, slot);
            }
        }
    }

    /// Returns the bytes that no live view shows in those ArrayBuffers of malloc's blocks that
    /// views show in part; `None` if the ArrayBuffers or the views are not known.
    pub fn unviewed_bytes(&self, views: &Views) -> Option<u64> {
        self.buffers.and_then(|_| views.unviewed_bytes(&self.blocks))
    }

    /// The stores and characters in malloc's blocks.
    pub fn in_blocks(&self) -> Vec<AddressRange> {
        [self.blocks.as_slice(), &self.shared_blocks, &self.characters].concat()
    }

    /// Claims what V8 maps, except what `claims` or other runtimes (`foreign_ranges`) claim.
    /// Without a slot it stays anonymous.
    pub fn claim_mapped(
        &self,
        context: &Context<'_>,
        palette: &mut SlotTable,
        claims: &mut Vec<RangeClaim>,
        foreign_ranges: &RangeSet,
    ) {
        let Some(slot) = palette.add(&rows::MAPPED_BUFFER, None).filter(|_| !self.mapped.is_empty()) else {
            return;
        };
        let claimed: RangeSet = claims.iter().map(RangeClaim::range).collect();
        // Several ArrayBuffers may have the same store.
        for range in self.mapped.iter().copied().collect::<RangeSet>() {
            if !claimed.overlaps(range) && !foreign_ranges.overlaps(range) && range.len() <= MAX_BYTES {
                claims.push(context.claim_whole(range, Class::Refined(slot)));
            }
        }
    }
}

/// Reads the lists of all isolates, one after the other.
struct Reader<'a> {
    context: &'a Context<'a>,
    cache: PageCache<'a>,
    /// Entries that may still be read.
    entries_left: usize,
    /// What was found so far; the sums are added at the end.
    stores: Stores,
    /// Bytes of shared stores, by their address.
    shared_store_bytes: HashMap<u64, u64>,
}

impl Reader<'_> {
    /// Reads the word at an offset of a structure.
    fn word(&mut self, address: u64, offset: u64) -> Option<u64> {
        self.cache.word(address.checked_add(offset)?)
    }

    /// Counts one entry against the limit; `None` at the limit, or once the time is over.
    fn count_entry(&mut self) -> Option<()> {
        self.entries_left = self.entries_left.checked_sub(1)?;
        (!self.entries_left.is_multiple_of(ENTRIES_AT_ONCE) || Instant::now() < self.context.deadline)
            .then_some(())
    }

    /// Reads the lists of ArrayBuffers of a heap; `None` if one does not add up, or was not read to
    /// its end.
    fn buffers(&mut self, layout: &ArrayBufferLists, heap: u64, sweeper: u64) -> Option<ArrayBuffers> {
        let sweeper = self.word(heap, sweeper)?;
        // Its first field is its heap.
        if self.word(sweeper, 0)? != heap {
            return None;
        }
        let mut buffers = ArrayBuffers::default();
        let job = self.word(sweeper, SWEEPER_JOB)?;
        let addresses = |at: u64, lists: [u64; 2]| lists.map(|offset| at.checked_add(offset));
        let job_lists = addresses(job, layout.job_lists).into_iter().filter(|_| job != 0);
        for list in addresses(sweeper, layout.lists).into_iter().chain(job_lists) {
            self.list(layout, list?, &mut buffers)?;
        }
        Some(buffers)
    }

    /// Reads an `ArrayBufferList`: its first entry, its last, and the sum of their bytes.
    fn list(&mut self, layout: &ArrayBufferLists, at: u64, buffers: &mut ArrayBuffers) -> Option<()> {
        let (mut entry, last_entry) = self.cache.pair(at)?;
        let expected_bytes = self.word(at, LIST_SUM)?;
        let (mut sum_bytes, mut previous_entry, mut has_transferred) = (0_u64, 0, false);
        while entry != 0 {
            self.count_entry()?;
            let bytes = self.word(entry, layout.length)? >> layout.length_shift;
            sum_bytes = sum_bytes.checked_add(bytes)?;
            let store = self.word(entry, layout.store)?;
            self.stores.structures.push(entry);
            // An ArrayBuffer that was transferred has no store; its entry stays until a collection.
            if store == 0 {
                has_transferred = true;
            } else {
                buffers.accounted_bytes = buffers.accounted_bytes.saturating_add(bytes);
                let store = self.store(layout, store)?;
                match store.place {
                    _ if store.is_shared => self.add_shared(store.range),
                    StorePlace::Block => {
                        buffers.in_blocks.add(Amount { count: 1, bytes });
                    }
                    // V8 14 does not account memories of WebAssembly
                    // (`PerIsolateAccountingLength` in `src/objects/backing-store.h`).
                    StorePlace::Mapped => {
                        buffers.mapped.add(Amount { count: 1, bytes: store.range.len() });
                    }
                }
            }
            previous_entry = entry;
            entry = self.word(entry, layout.next)?;
        }
        // V8 does not subtract what was transferred while a collection freed others.
        let adds_up = sum_bytes == expected_bytes || has_transferred && sum_bytes < expected_bytes;
        (previous_entry == last_entry && adds_up).then_some(())
    }

    /// Counts a shared store, which may grow while isolates are read.
    fn add_shared(&mut self, range: AddressRange) {
        let bytes = self.shared_store_bytes.entry(range.start).or_default();
        *bytes = range.len().max(*bytes);
    }

    /// Reads a `BackingStore` (`src/objects/backing-store.h`).
    fn store(&mut self, layout: &ArrayBufferLists, store: u64) -> Option<Store> {
        let mut words = [0; STORE_BYTES];
        self.cache.read(store, &mut words).ok()?;
        self.stores.structures.push(store);
        let (start, bytes) = (word_at(&words, 0)?, word_at(&words, 8)?);
        let range = AddressRange::new(start, start.checked_add(bytes)?);
        let flags = half_word_at(&words, layout.store_flags)?;
        let is_shared = flags & IS_SHARED != 0;
        // V8 10.2 takes resizable ones from malloc.
        if flags & layout.mapped_flags == 0 || !start.is_multiple_of(PAGE_BYTES) {
            let blocks = if is_shared { &mut self.stores.shared_blocks } else { &mut self.stores.blocks };
            blocks.push(range);
            return Some(Store { range, place: StorePlace::Block, is_shared });
        }
        let end = range.end.checked_next_multiple_of(PAGE_BYTES)?;
        let is_mapping = self.context.space.find(start).is_some_and(|mapping| {
            mapping.is_private_anonymous() && mapping.permissions.write && end <= mapping.end
        });
        if bytes > 0 && is_mapping {
            self.stores.mapped.push(AddressRange::new(start, end));
        }
        Some(Store { range, place: StorePlace::Mapped, is_shared })
    }

    /// Reads the external strings of a heap; `None` if not all of them can be read.
    fn strings(&mut self, layout: &ExternalStrings, heap: u64, objects: &RangeSet) -> Option<Amount> {
        let table = heap.checked_add(layout.table)?;
        // Its first field is its heap.
        if self.word(table, 0)? != heap {
            return None;
        }
        let (mut sum, mut is_complete) = (Amount::default(), true);
        for &offset in layout.vectors {
            let (mut entry, end) = self.cache.pair(table.checked_add(offset)?)?;
            while entry < end {
                self.count_entry()?;
                let object = self.cache.word(entry)?;
                match self.characters_of(object, objects) {
                    Some(range) if range.is_empty() => {}
                    Some(range) => {
                        sum.add(Amount { count: 1, bytes: range.len() });
                        self.stores.characters.push(range);
                    }
                    None => is_complete = false,
                }
                entry = entry.checked_add(8)?;
            }
        }
        is_complete.then_some(sum)
    }

    /// Returns the characters of an external string; an empty range if a collection has cleared the
    /// entry, or the string does not cache their address. `None` if the string cannot be read.
    fn characters_of(&mut self, object: u64, objects: &RangeSet) -> Option<AddressRange> {
        let at = Shapes::object_at(object).filter(|at| objects.contains(*at));
        let Some(at) = at else { return Some(AddressRange::default()) };
        let mut words = [0; STRING_BYTES];
        self.cache.read(at, &mut words).ok()?;
        let map = word_at(&words, 0).and_then(Shapes::object_at).filter(|map| objects.contains(*map))?;
        let instance_type = self.cache.word32(map.checked_add(MAP_INSTANCE_TYPE)?)? & 0xffff;
        if instance_type & CACHED_EXTERNAL_MASK != CACHED_EXTERNAL_BITS {
            return Some(AddressRange::default());
        }
        let characters = u64::from(half_word_at(&words, STRING_LENGTH)?);
        let bytes = if instance_type & IS_ONE_BYTE != 0 { characters } else { 2 * characters };
        let start = word_at(&words, STRING_DATA)?;
        Some(AddressRange::new(start, start.checked_add(bytes)?))
    }
}
