//! Reads V8's heaps: the spaces of each isolate, and the pages in each space's list.
//!
//! A heap is trusted if each of its spaces refers back to it with its own number, and if the pages
//! in the list of each space add up to what the space has committed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Instant;

use super::layout::{
    ALLOCATOR_BUFFER, AreaPointer, BUFFER_TOP, LOCAL_BUFFER, LOCAL_BUFFER_HEAP, LOCAL_HEAP_BYTES, Layout,
    LocalBufferOffsets, MAX_ISOLATE_BYTES, MAX_STATE, NEW_SPACE, NEW_SPACE_BYTES, NOT_IN_GC, OLD_SPACE,
    PAGE_ALIGNMENT, SPACE_COMMITTED, SPACE_HEAP, SPACE_ID,
};
use super::pages::{self, Page};
use crate::batch::PageCache;
use strandline_claims::runtime::Context;
use strandline_claims::words::{READ_BYTES, each_word};
use strandline_process::memory::{Memory, word_at};
use strandline_process::range::{AddressRange, RangeSet};

/// Limit on isolates read in one process; each costs hundreds of small reads.
pub const MAX_ISOLATES: usize = 1024;

/// The part of an allocation area that holds no object; both addresses are 0 if there is no area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationBuffer {
    /// First byte without an object.
    pub top: u64,
    /// First byte past the area.
    pub limit: u64,
}

impl AllocationBuffer {
    /// Bytes without objects.
    pub fn free_bytes(&self) -> u64 {
        self.limit - self.top
    }

    /// Whether it is in the area for objects of a page.
    pub fn is_on(&self, page: &Page) -> bool {
        page.area_start <= self.top && self.limit <= page.area_end
    }
}

/// What the pages of a space hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceKind {
    /// Objects of many sizes.
    Paged,
    /// One object on each page.
    Large,
    /// The new space: objects up to the allocation area.
    Young,
}

/// A space of one isolate.
#[derive(Clone, Debug)]
pub struct Space {
    /// Address of the isolate's heap.
    pub heap: u64,
    /// Its name, as `v8.getHeapSpaceStatistics()` has it.
    pub name: &'static str,
    /// What its pages hold.
    pub kind: SpaceKind,
    /// Bytes of its pages, by its own count.
    pub committed_bytes: u64,
    /// Bytes of objects, as V8's statistics have them; `None` if they cannot be determined.
    pub used_bytes: Option<u64>,
    /// Its pages; for the new space, those that may hold objects, in the order in which they are
    /// used.
    pub pages: Vec<Page>,
    /// Pages of the new space that hold no object.
    pub idle_pages: Vec<Page>,
    /// Where the main thread allocates in it; `None` if that could not be read, and for large
    /// objects.
    pub buffer: Option<AllocationBuffer>,
    /// Where V8 itself allocates in the old space, up to V8 11; `None` in other spaces and
    /// versions, or if it could not be read.
    pub local_buffer: Option<AllocationBuffer>,
}

impl Space {
    /// A space without pages.
    fn new(heap: u64, name: &'static str, kind: SpaceKind, buffer: Option<AllocationBuffer>) -> Self {
        Self {
            heap,
            name,
            kind,
            committed_bytes: 0,
            used_bytes: None,
            pages: Vec::new(),
            idle_pages: Vec::new(),
            buffer,
            local_buffer: None,
        }
    }

    /// Whether its pages hold compiled code.
    pub fn is_code(&self) -> bool {
        self.name.starts_with("code_")
    }

    /// The allocation areas on a page.
    pub fn buffers_on(&self, page: &Page) -> impl Iterator<Item = &AllocationBuffer> {
        self.buffer.iter().chain(&self.local_buffer).filter(|buffer| buffer.is_on(page))
    }
}

/// An isolate and its heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isolate {
    /// Address of the `Isolate`.
    pub address: u64,
    /// Address of its `Heap`.
    pub heap: u64,
    /// Its old space, by which the heap is recognised again.
    pub old_space: SpaceAddress,
}

/// All heaps of a process.
#[derive(Debug, Default)]
pub struct Heaps {
    /// The isolates.
    pub isolates: Vec<Isolate>,
    /// Spaces of all isolates.
    pub spaces: Vec<Space>,
    /// Pages that belong to no space and are kept for reuse.
    pub pool: Vec<Page>,
    /// Pages of the read-only space.
    pub read_only: Vec<Page>,
    /// Heaps of isolates beyond the limit, which were not read.
    pub left_out: LeftOut,
}

/// Heaps that were recognised and not read.
#[derive(Debug, Default)]
pub struct LeftOut {
    /// Their addresses.
    pub heaps: HashSet<u64>,
    /// Resident bytes of their pages.
    pub resident_bytes: u64,
}

impl Heaps {
    /// Returns all pages: of spaces, pooled ones and those of the read-only space.
    pub fn all_pages(&self) -> impl Iterator<Item = &Page> {
        let owned = self.spaces.iter().flat_map(|space| space.pages.iter().chain(&space.idle_pages));
        owned.chain(&self.pool).chain(&self.read_only)
    }

    /// Returns where objects are: in the pages of all spaces.
    pub fn object_areas(&self) -> RangeSet {
        let pages = self.spaces.iter().flat_map(|space| &space.pages).chain(&self.read_only);
        pages.map(|page| (page.area_start, page.area_end)).collect()
    }
}

/// Why heaps were not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapError {
    /// The process has no V8 heap, or none with this layout.
    NotFound,
    /// Its structures are inconsistent, for a moment or permanently.
    Inconsistent,
    /// An isolate is collecting or ending: objects are in motion.
    Collecting,
    /// The time for reading was over.
    Late,
}

/// Reads the heaps of `max_isolates` isolates at most, without pages that overlap `foreign_ranges`.
///
/// # Errors
/// Why they were not read.
pub fn read(
    context: &Context<'_>,
    memory: &dyn Memory,
    layout: &'static Layout,
    foreign_ranges: &RangeSet,
    max_isolates: usize,
) -> Result<Heaps, HeapError> {
    let mut pages = pages::candidates(context, memory, layout).ok_or(HeapError::Late)?;
    pages.retain(|page| !foreign_ranges.overlaps(page.range()));
    let mut reader = Reader {
        layout,
        cache: PageCache::new(memory),
        page_numbers: pages.iter().enumerate().map(|(number, page)| (page.record, number)).collect(),
        is_listed: vec![false; pages.len()],
        pages: &pages,
    };
    // If all pages of a heap are pooled, its isolate has ended: the memory is free, and may still
    // look like a heap.
    let in_use = pages.iter().filter(|page| !page.is_pooled && page.heap != 0);
    let mut heap_addresses: Vec<u64> = in_use.map(|page| page.heap).collect();
    heap_addresses.sort_unstable();
    heap_addresses.dedup();
    let mut heaps = Heaps::default();
    for heap in heap_addresses {
        if Instant::now() >= context.deadline {
            return Err(HeapError::Late);
        }
        let Some(spaces) = reader.spaces_of(heap) else {
            // An isolate that is starting or ending has spaces, but not all of them.
            if reader.has_owned_page(heap) {
                return Err(HeapError::Inconsistent);
            }
            continue;
        };
        if heaps.isolates.len() >= max_isolates {
            heaps.left_out.heaps.insert(heap);
            continue;
        }
        if reader.state_of(heap) != Some(NOT_IN_GC) {
            return Err(HeapError::Collecting);
        }
        heaps.spaces.extend(reader.read_spaces(heap, &spaces)?);
        heaps.pool.extend(reader.pool_of(heap)?);
        let isolate = reader.isolate_of(heap).zip(reader.old_space(&spaces));
        let (address, old_space) = isolate.ok_or(HeapError::Inconsistent)?;
        heaps.isolates.push(Isolate { address, heap, old_space });
    }
    if heaps.isolates.is_empty() {
        return Err(HeapError::NotFound);
    }
    heaps.pool.extend(reader.pool_of_ended_isolates(&heaps));
    let left_out_pages = pages.iter().filter(|page| heaps.left_out.heaps.contains(&page.heap));
    let left_out_ranges: RangeSet = left_out_pages.map(Page::range).collect();
    heaps.left_out.resident_bytes = left_out_ranges.iter().map(|&range| context.resident_bytes(range)).sum();
    heaps.read_only = read_only_pages(context, memory, &pages, &heaps.isolates);
    if has_overlapping_pages(&heaps) { Err(HeapError::Inconsistent) } else { Ok(heaps) }
}

/// Reads heaps from candidates for pages.
struct Reader<'a> {
    layout: &'static Layout,
    cache: PageCache<'a>,
    pages: &'a [Page],
    /// Number of a page by the address of its record.
    page_numbers: HashMap<u64, usize>,
    /// Whether a page is in the list of a space.
    is_listed: Vec<bool>,
}

/// A space that refers back to its heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceAddress {
    /// Its number (`AllocationSpace` in `src/common/globals.h`).
    pub number: usize,
    /// Its address.
    pub address: u64,
}

impl Reader<'_> {
    /// Returns the spaces of a heap; `None` if `heap` is not one.
    fn spaces_of(&mut self, heap: u64) -> Option<Vec<SpaceAddress>> {
        let mut spaces = Vec::new();
        for number in 0..self.layout.spaces.len() {
            let at = heap.checked_add(self.layout.heap_spaces)?.checked_add(number as u64 * 8)?;
            let address = self.cache.word(at)?;
            if address == 0 {
                continue;
            }
            if self.space_number(address, heap) != Some(number) {
                return None;
            }
            spaces.push(SpaceAddress { number, address });
        }
        self.isolate_of(heap)?;
        self.state_of(heap).filter(|&state| state <= MAX_STATE)?;
        self.old_space(&spaces).map(|_| spaces)
    }

    /// Returns the old space among these, which every heap has.
    fn old_space(&self, spaces: &[SpaceAddress]) -> Option<SpaceAddress> {
        let is_old = |space: &&SpaceAddress| self.layout.spaces.get(space.number) == Some(&OLD_SPACE);
        spaces.iter().find(is_old).copied()
    }

    /// Returns the number of the space at an address; `None` if it does not refer back to `heap`.
    fn space_number(&mut self, address: u64, heap: u64) -> Option<usize> {
        let number = self.cache.word32(address.checked_add(SPACE_ID)?)?;
        (self.field(address, SPACE_HEAP) == Some(heap)).then_some(number as usize)
    }

    /// Whether a space of this heap owns a page in use.
    fn has_owned_page(&mut self, heap: u64) -> bool {
        let pages = self.pages;
        let mut in_use = pages.iter().filter(|page| page.heap == heap && !page.is_pooled);
        in_use.any(|page| {
            let number = self.space_number(page.owner, heap).filter(|_| page.owner != 0);
            number.is_some_and(|number| number < self.layout.spaces.len())
        })
    }

    /// Returns what a heap is doing: [`NOT_IN_GC`], or a kind of collection.
    fn state_of(&mut self, heap: u64) -> Option<u32> {
        self.cache.word32(heap.checked_add(self.layout.heap_state)?)
    }

    /// Reads the word at an offset of a structure.
    fn field(&mut self, address: u64, offset: u64) -> Option<u64> {
        self.cache.word(address.checked_add(offset)?)
    }

    /// Returns the isolate that holds a heap.
    fn isolate_of(&mut self, heap: u64) -> Option<u64> {
        let isolate = self.field(heap, self.layout.heap_isolate)?;
        heap.checked_sub(isolate).filter(|bytes| (1..=MAX_ISOLATE_BYTES).contains(bytes))?;
        Some(isolate)
    }

    /// Reads the spaces of a heap at these addresses.
    fn read_spaces(&mut self, heap: u64, addresses: &[SpaceAddress]) -> Result<Vec<Space>, HeapError> {
        let mut spaces = Vec::new();
        for &SpaceAddress { number, address } in addresses {
            let Some(&name) = self.layout.spaces.get(number) else { continue };
            let buffer = self.buffer_of(heap, address);
            let space = if name == NEW_SPACE {
                self.read_new_space(heap, SpaceAddress { number, address }, buffer)?
            } else {
                let mut space = self.read_space(name, heap, address, buffer)?;
                if let Some(offsets) = self.layout.local_buffer.filter(|_| name == OLD_SPACE) {
                    space.local_buffer = self.read_local_buffer(heap, address, offsets);
                }
                space
            };
            spaces.push(space);
        }
        Ok(spaces)
    }

    /// Reads a space other than the new space.
    fn read_space(
        &mut self,
        name: &'static str,
        heap: u64,
        address: u64,
        buffer: Option<AllocationBuffer>,
    ) -> Result<Space, HeapError> {
        let pages = self.listed_pages(address)?;
        let committed_bytes = sum_of_bytes(&pages);
        let is_large = name.contains("large");
        let used_bytes = if is_large {
            self.field(address, self.layout.objects_size).filter(|&used_bytes| used_bytes <= committed_bytes)
        } else {
            // A page's own count may be ahead (swept by another thread) or behind (not swept yet).
            let allocated =
                self.field(address, self.layout.space_allocated).filter(|&bytes| bytes <= committed_bytes);
            // From 12.4 on V8 frees the rest of the allocation area before it counts.
            let freed_first = match self.layout.area_pointer {
                AreaPointer::InLocalHeap(_) => buffer.map(|buffer| buffer.free_bytes()),
                AreaPointer::InSpace(_) => Some(0),
            };
            allocated.zip(freed_first).and_then(|(allocated, freed)| allocated.checked_sub(freed))
        };
        let kind = if is_large { SpaceKind::Large } else { SpaceKind::Paged };
        let buffer = buffer.filter(|_| !is_large);
        Ok(Space { committed_bytes, used_bytes, pages, ..Space::new(heap, name, kind, buffer) })
    }

    /// Reads the new space. Its pages are owned by two semi-spaces, which are parts of it.
    fn read_new_space(
        &mut self,
        heap: u64,
        space: SpaceAddress,
        buffer: Option<AllocationBuffer>,
    ) -> Result<Space, HeapError> {
        let semi_spaces = space.address..space.address.saturating_add(NEW_SPACE_BYTES);
        let owners = self.pages.iter().filter(|page| page.heap == heap).map(|page| page.owner);
        let mut owners: Vec<u64> = owners.filter(|owner| semi_spaces.contains(owner)).collect();
        owners.sort_unstable();
        owners.dedup();
        let mut young = Space::new(heap, NEW_SPACE, SpaceKind::Young, buffer);
        for owner in owners {
            if self.space_number(owner, heap) != Some(space.number) {
                continue;
            }
            let pages = self.listed_pages(owner)?;
            young.committed_bytes = young.committed_bytes.saturating_add(sum_of_bytes(&pages));
            let has_buffer = |page: &Page| buffer.is_some_and(|buffer| buffer.is_on(page));
            // Objects are in the pages before the allocation area, and in front of it.
            match pages.iter().position(has_buffer) {
                Some(current) => {
                    let (in_use, idle_pages) = pages.split_at(current + 1);
                    young.pages = in_use.to_vec();
                    young.idle_pages.extend_from_slice(idle_pages);
                }
                None => young.idle_pages.extend(pages),
            }
        }
        // Without an allocation area it is unknown which pages hold objects.
        if young.pages.is_empty() {
            young.pages = std::mem::take(&mut young.idle_pages);
            return Ok(young);
        }
        if let Some((last, full)) = young.pages.split_last() {
            // Pages may still overlap here: the sum is not bounded by the address space.
            let full_bytes = full.iter().map(Page::area_bytes).fold(0, u64::saturating_add);
            young.used_bytes = buffer.map(|buffer| full_bytes.saturating_add(buffer.top - last.area_start));
        }
        Ok(young)
    }

    /// Returns the pages in the list of a space, whose bytes must be the committed ones.
    fn listed_pages(&mut self, space: u64) -> Result<Vec<Page>, HeapError> {
        let committed_bytes = self.field(space, SPACE_COMMITTED).ok_or(HeapError::Inconsistent)?;
        let mut record = self.field(space, self.layout.first_page).ok_or(HeapError::Inconsistent)?;
        let mut pages = Vec::new();
        while record != 0 {
            let number = *self.page_numbers.get(&record).ok_or(HeapError::Inconsistent)?;
            let page = self.pages.get(number).filter(|page| page.owner == space);
            let page = *page.ok_or(HeapError::Inconsistent)?;
            let is_listed = self.is_listed.get_mut(number).ok_or(HeapError::Inconsistent)?;
            // A page is in one list, once: this also ends a list that leads back to itself.
            if std::mem::replace(is_listed, true) {
                return Err(HeapError::Inconsistent);
            }
            pages.push(page);
            record = self.field(record, self.layout.record.next).ok_or(HeapError::Inconsistent)?;
        }
        if sum_of_bytes(&pages) == committed_bytes { Ok(pages) } else { Err(HeapError::Inconsistent) }
    }

    /// Returns the pages of a heap that are in no list; they must be pooled.
    fn pool_of(&mut self, heap: u64) -> Result<Vec<Page>, HeapError> {
        let unlisted = self.pages.iter().zip(&self.is_listed).filter(|(_, is_listed)| !**is_listed);
        let pool: Vec<Page> = unlisted.map(|(page, _)| *page).filter(|page| page.heap == heap).collect();
        if pool.iter().all(|page| page.is_pooled) { Ok(pool) } else { Err(HeapError::Inconsistent) }
    }

    /// Returns the pooled pages of isolates that have ended: from 13.6 on all isolates share a pool
    /// (`src/heap/page-pool.h`).
    fn pool_of_ended_isolates(&self, heaps: &Heaps) -> Vec<Page> {
        let read_heaps = heaps.isolates.iter().map(|isolate| isolate.heap);
        let living_heaps: HashSet<u64> = read_heaps.chain(heaps.left_out.heaps.iter().copied()).collect();
        let in_use = heaps.spaces.iter().flat_map(|space| &space.pages);
        let headers: HashSet<u64> = in_use.map(Page::header_bytes).collect();
        let is_of_ended_isolate = |page: &&Page| {
            page.is_pooled
                && page.heap != 0
                && !living_heaps.contains(&page.heap)
                && page.bytes() == PAGE_ALIGNMENT
                && headers.contains(&page.header_bytes())
        };
        self.pages.iter().filter(is_of_ended_isolate).copied().collect()
    }

    /// Returns the allocation area of a space; `None` if it cannot be read.
    fn buffer_of(&mut self, heap: u64, space: u64) -> Option<AllocationBuffer> {
        let at = match self.layout.area_pointer {
            AreaPointer::InSpace(offset) => self.field(space, offset)?,
            AreaPointer::InLocalHeap(offset) => {
                let mut allocators = [0; LOCAL_HEAP_BYTES];
                let local_heap = self.field(heap, offset)?;
                self.cache.read(local_heap, &mut allocators).ok()?;
                match allocator_buffer(&allocators, heap, space) {
                    Some(at) => at,
                    None => return Some(AllocationBuffer::default()),
                }
            }
        };
        self.read_buffer(at)
    }

    /// Returns the second allocation area of the old space.
    fn read_local_buffer(
        &mut self,
        heap: u64,
        space: u64,
        offsets: LocalBufferOffsets,
    ) -> Option<AllocationBuffer> {
        let local_heap = self.field(heap, offsets.local_heap)?;
        let allocator = self.field(local_heap, offsets.allocator)?;
        let is_of_space = self.cache.pair(allocator)? == (local_heap, space)
            && self.field(allocator, LOCAL_BUFFER_HEAP)? == heap;
        self.read_buffer(allocator.checked_add(LOCAL_BUFFER).filter(|_| is_of_space)?)
    }

    /// Reads a `LinearAllocationArea`; an empty buffer if it starts at 0, as V8 marks an absent
    /// area. `None` if it cannot be read, or its bounds are not in order.
    fn read_buffer(&mut self, at: u64) -> Option<AllocationBuffer> {
        let start = self.cache.word(at)?;
        if start == 0 {
            return Some(AllocationBuffer::default());
        }
        let (top, limit) = self.cache.pair(at.checked_add(BUFFER_TOP)?)?;
        (start <= top && top <= limit).then_some(AllocationBuffer { top, limit })
    }
}

/// Returns the sum of the sizes of pages, which may overlap.
fn sum_of_bytes(pages: &[Page]) -> u64 {
    pages.iter().map(Page::bytes).fold(0, u64::saturating_add)
}

/// Returns the address of the allocation area of a space, whose allocator has a pointer to the
/// heap, then one to the space; `None` if the space has no allocator.
fn allocator_buffer(allocators: &[u8], heap: u64, space: u64) -> Option<u64> {
    let word = |offset: usize| word_at(allocators, offset);
    let mut offsets = (8..allocators.len()).step_by(8);
    let at = offsets.find(|&at| {
        // The list of all spaces starts with the heap, too, but has no allocation area.
        word(at) == Some(space) && word(at - 8) == Some(heap) && word(at + ALLOCATOR_BUFFER) != Some(0)
    })?;
    word(at + ALLOCATOR_BUFFER)
}

/// Returns the read-only pages: those to which the roots of an isolate refer.
fn read_only_pages(
    context: &Context<'_>,
    memory: &dyn Memory,
    pages: &[Page],
    isolates: &[Isolate],
) -> Vec<Page> {
    let is_candidate = |page: &&Page| {
        let is_writable = context.space.find(page.start).is_none_or(|mapping| mapping.permissions.write);
        page.heap == 0 && page.owner == 0 && !is_writable
    };
    let candidates: Vec<Page> = pages.iter().filter(is_candidate).copied().collect();
    let mut referenced = BTreeSet::new();
    // One isolate is enough: all of a process share these pages.
    if let Some(isolate) = isolates.first().filter(|_| !candidates.is_empty()) {
        // The table of roots is in the isolate, before its heap.
        let roots = AddressRange::new(isolate.address, isolate.heap);
        each_word(memory, context.resident, roots, READ_BYTES, &mut |_, word| {
            let next = candidates.partition_point(|page| page.start <= word);
            // A pointer to an object has the lowest bit set (`kHeapObjectTag`).
            if word % 2 == 1
                && let Some(number) = next.checked_sub(1)
                && candidates.get(number).is_some_and(|page| (page.area_start..page.area_end).contains(&word))
            {
                referenced.insert(number);
            }
            true
        });
    }
    referenced.into_iter().filter_map(|number| candidates.get(number).copied()).collect()
}

/// Whether any two pages overlap.
fn has_overlapping_pages(heaps: &Heaps) -> bool {
    let mut ranges: Vec<AddressRange> = heaps.all_pages().map(Page::range).collect();
    ranges.sort_unstable();
    !ranges.is_sorted_by(|range, next| range.end <= next.start)
}
