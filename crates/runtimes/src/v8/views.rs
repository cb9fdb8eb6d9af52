//! Which bytes of ArrayBuffers live typed arrays and DataViews show. Node.js allocates small
//! Buffers in slabs, ArrayBuffers of some KiB: a slab stays while one of its Buffers lives, and the
//! rest of it is in no view.

use super::layout::ViewOffsets;
use super::shapes::{Content, Shape};
use strandline_process::memory::word_at;
use strandline_process::range::{AddressRange, RangeSet};

/// Maximum number of views: 16 bytes each.
const MAX_VIEWS: usize = 1 << 20;

/// The ranges that views show.
#[derive(Clone, Debug, Default)]
pub struct Views {
    ranges: Vec<AddressRange>,
    /// Whether views are missing, because they are damaged or more than [`MAX_VIEWS`].
    is_incomplete: bool,
}

impl Views {
    /// Adds the range of an object, if it is a view.
    #[inline]
    pub fn add(&mut self, layout: &ViewOffsets, shape: Shape, bytes: &[u8]) {
        let data = match shape.content {
            Content::TypedArray => layout.typed_array_data,
            Content::DataView => layout.data_view_data,
            _ => return,
        };
        // An empty view shows nothing, and may have no address. The elements of a small array are
        // in the heap: its range is then one of offsets, where no store is.
        let view = word_at(bytes, data).zip(word_at(bytes, layout.length));
        match view.map(|(start, length)| (start, start.checked_add(length), length)) {
            Some((0, ..) | (.., 0)) => {}
            Some((start, Some(end), _)) if self.ranges.len() < MAX_VIEWS => {
                self.ranges.push(AddressRange::new(start, end));
            }
            _ => self.is_incomplete = true,
        }
    }

    /// Returns the bytes that no view shows, of those `stores` that views show in part; `None` if
    /// not all views are known.
    pub fn unviewed_bytes(&self, stores: &[AddressRange]) -> Option<u64> {
        if self.is_incomplete {
            return None;
        }
        let viewed: RangeSet = self.ranges.iter().copied().collect();
        // Several ArrayBuffers may have one store.
        let mut stores = stores.to_vec();
        stores.sort_unstable();
        stores.dedup();
        let unviewed = |store: AddressRange| {
            let shown: u64 = viewed.within(store).map(AddressRange::len).sum();
            if shown == 0 { 0 } else { store.len().saturating_sub(shown) }
        };
        // Damaged stores may overlap: their bytes may exceed 64 bits.
        Some(stores.into_iter().map(unviewed).fold(0, u64::saturating_add))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_slab_is_in_no_view() {
        let ranges = [(100, 150), (120, 160), (500, 600)].map(|(start, end)| AddressRange::new(start, end));
        let mut views = Views { ranges: ranges.to_vec(), is_incomplete: false };
        let stores = [(500, 600), (100, 200), (100, 200), (300, 400)];
        let stores = stores.map(|(start, end)| AddressRange::new(start, end));
        assert_eq!(views.unviewed_bytes(&stores), Some(40));
        let damaged = [0, 1, 2].map(|start| AddressRange::new(start, u64::MAX));
        assert_eq!(views.unviewed_bytes(&damaged), Some(u64::MAX));
        views.is_incomplete = true;
        assert_eq!(views.unviewed_bytes(&stores), None);
    }
}
