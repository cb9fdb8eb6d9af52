//! The pages whose objects are walked, and numbers for the places where an object may begin: one
//! for each word of a page, and one for a page with a large object.

use super::heap::{AllocationBuffer, Heaps, Space, SpaceKind};
use super::layout::PAGE_ALIGNMENT;
use super::pages::Page;
use super::shapes::HEAD_BYTES;
use strandline_claims::runtime::Context;
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::Memory;
use strandline_process::range::AddressRange;

/// Bytes read at the start of a large object, for its hidden class and its size.
const LARGE_HEAD_BYTES: usize = 4096;
/// Bytes of the smallest object: one word.
pub const WORD_BYTES: u64 = 8;

/// A page with objects.
#[derive(Clone, Debug)]
pub struct IndexedPage {
    /// The page.
    pub page: Page,
    /// Whether it has one object.
    pub is_large: bool,
    /// The parts with consecutive objects.
    pub runs: Vec<AddressRange>,
    /// Where objects end before the free parts of allocation areas: the last one may be incomplete.
    pub buffer_tops: Vec<u64>,
    /// Number of its first place.
    pub first_place: u64,
}

/// All pages, in address order.
#[derive(Clone, Debug, Default)]
pub struct PageIndex {
    /// The pages, in address order.
    pub pages: Vec<IndexedPage>,
    /// Number of places.
    pub places: u64,
    /// Bytes of objects on pages of an unexpected size, which are left out.
    pub unread_bytes: u64,
}

/// A place where an object may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of its page in [`PageIndex::pages`].
    pub page: usize,
    /// Its number among all places.
    pub number: u64,
}

impl PageIndex {
    /// Numbers the pages of all spaces but those with code.
    pub fn new(heaps: &Heaps) -> Self {
        let spaces = heaps.spaces.iter().filter(|space| !space.is_code());
        let pages = spaces.flat_map(|space| space.pages.iter().map(move |page| (space, page)));
        let mut index = Self::default();
        for (space, page) in pages {
            let is_large = space.kind == SpaceKind::Large;
            if !is_large && page.bytes() > PAGE_ALIGNMENT {
                index.unread_bytes += page.allocated_bytes;
                continue;
            }
            let runs = object_runs(space, page);
            let buffer_tops = space.buffers_on(page).map(|buffer| buffer.top).collect();
            index.pages.push(IndexedPage { page: *page, is_large, runs, buffer_tops, first_place: 0 });
        }
        index.pages.sort_unstable_by_key(|indexed| indexed.page.start);
        for indexed in &mut index.pages {
            indexed.first_place = index.places;
            index.places += if indexed.is_large { 1 } else { indexed.page.area_bytes().div_ceil(WORD_BYTES) };
        }
        index
    }

    /// Returns the place at `address`; `None` if no object can begin there.
    #[inline]
    pub fn place_at(&self, address: u64) -> Option<Place> {
        let page = self.pages.partition_point(|indexed| indexed.page.area_end <= address);
        let indexed = self.pages.get(page)?;
        let offset = address.checked_sub(indexed.page.area_start)?;
        let may_begin = if indexed.is_large { offset == 0 } else { offset.is_multiple_of(WORD_BYTES) };
        may_begin.then_some(Place { page, number: indexed.first_place + offset / WORD_BYTES })
    }

    /// Returns the address of the place of this number.
    pub fn address_of(&self, place: u64) -> Option<u64> {
        let number = self.pages.partition_point(|indexed| indexed.first_place <= place).checked_sub(1)?;
        self.pages.get(number).map(|indexed| indexed.address_of(place))
    }
}

impl IndexedPage {
    /// The address of the place of this number, which is on this page.
    pub fn address_of(&self, place: u64) -> u64 {
        self.page.area_start + (place - self.first_place) * WORD_BYTES
    }

    /// The number of the place at an address in its area.
    pub fn place_of(&self, address: u64) -> u64 {
        self.first_place + (address - self.page.area_start) / WORD_BYTES
    }

    /// Reads the first bytes of a large object, at most [`LARGE_HEAD_BYTES`]; `None` if they cannot
    /// be read.
    pub fn read_head<'b>(&self, memory: &dyn Memory, buffer: &'b mut ReadBuffer) -> Option<&'b [u8]> {
        buffer.resize(PAGE_ALIGNMENT as usize);
        let area_bytes = usize::try_from(self.page.area_bytes()).ok()?;
        let head = buffer.get_mut(..area_bytes.min(LARGE_HEAD_BYTES))?;
        let read_bytes = memory.read_some(self.page.area_start, head);
        head.get(..read_bytes).filter(|head| head.len() >= HEAD_BYTES)
    }

    /// Reads the page; what is not resident or cannot be read is zero, which is not an object: the
    /// bytes then count as unread.
    pub fn read(&self, context: &Context<'_>, memory: &dyn Memory, buffer: &mut ReadBuffer) {
        buffer.resize(PAGE_ALIGNMENT as usize);
        buffer.fill(0);
        for run in context.resident_runs((self.page.start, self.page.end)) {
            if let Some(bytes) = buffer.get_mut(self.offset_of(run.start)..self.offset_of(run.end)) {
                memory.read_some(run.start, bytes);
            }
        }
    }

    /// The offset of an address in the page.
    pub fn offset_of(&self, address: u64) -> usize {
        usize::try_from(address.saturating_sub(self.page.start)).unwrap_or(usize::MAX)
    }
}

/// Returns the parts of a page with objects: without what is free in allocation areas.
fn object_runs(space: &Space, page: &Page) -> Vec<AddressRange> {
    // A page whose objects were all moved away holds forwarding pointers.
    if page.allocated_bytes == 0 && space.kind == SpaceKind::Paged {
        return Vec::new();
    }
    let is_young = space.kind == SpaceKind::Young;
    let mut buffers: Vec<&AllocationBuffer> = space.buffers_on(page).collect();
    buffers.sort_unstable_by_key(|buffer| buffer.top);
    let mut runs = Vec::new();
    let mut at = page.area_start;
    for buffer in buffers.into_iter().filter(|buffer| buffer.top < buffer.limit || is_young) {
        if at < buffer.top {
            runs.push(AddressRange::new(at, buffer.top));
        }
        at = at.max(if is_young { page.area_end } else { buffer.limit });
    }
    if at < page.area_end {
        runs.push(AddressRange::new(at, page.area_end));
    }
    runs
}
