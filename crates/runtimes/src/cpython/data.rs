//! Data of an object in an allocator's block that a field of the object points to.
//!
//! No other word makes an object the owner of a block: blocks of C code may be pointed to by stale
//! words in an object, or by a number that a program keeps.

use super::layout::{
    ARRAY_ALLOCATED, ARRAY_DESCRIPTION, ARRAY_ITEM_BYTES, ARRAY_ITEMS, BUFFERED_BYTES, BUFFERED_LAST_MINOR,
    CTYPES_BYTES, CTYPES_NEEDS_FREE, CTYPES_SIZE, NDARRAY_DATA, NDARRAY_DESCRIPTION, NDARRAY_DIMENSION_COUNT,
    NDARRAY_DIMENSIONS, NDARRAY_FLAGS, NDARRAY_KIND, NDARRAY_MAX_DIMENSIONS, NDARRAY_OWNS,
    NDARRAY_PLAIN_KINDS, NDARRAY_STRIDES, Release,
};
use super::objects::Table;
use super::types::Kind;
use crate::batch::PageCache;
use strandline_process::memory::{half_word_at, word_at};

/// Returns the data of an object that begins with `head`; `None` if it owns none, or if the size
/// is invalid.
pub fn owned_data(pages: &mut PageCache<'_>, release: &Release, kind: Kind, head: &[u8]) -> Option<Table> {
    let data = match kind {
        Kind::Array => array_data(pages, head),
        Kind::NumpyArray => numpy_data(pages, release, head),
        Kind::Buffered if release.minor <= BUFFERED_LAST_MINOR => {
            let address = word_at(head, BUFFERED_BYTES)?;
            // The program chose the size: all of the block is counted, whatever its size.
            Some(Table { is_whole: true, ..Table::new(address, 1, 0) })
        }
        Kind::CData => {
            // An array of pointers leads to further objects.
            let (owns, bytes) = (half_word_at(head, CTYPES_NEEDS_FREE)?, word_at(head, CTYPES_SIZE)?);
            (owns != 0).then_some(Table::new(word_at(head, CTYPES_BYTES)?, bytes, bytes))
        }
        _ => None,
    };
    data.filter(|table| table.address != 0 && table.bytes > 0)
}

fn array_data(pages: &mut PageCache<'_>, head: &[u8]) -> Option<Table> {
    let description: [u8; 8] = pages.array(word_at(head, ARRAY_DESCRIPTION)?)?;
    let item_bytes = u64::from(half_word_at(&description, ARRAY_ITEM_BYTES)?);
    let bytes = word_at(head, ARRAY_ALLOCATED)?.checked_mul(item_bytes)?;
    Some(Table::new(word_at(head, ARRAY_ITEMS)?, bytes, 0))
}

/// Returns data that the array owns; borrowed data is part of another object's data and may begin
/// where that begins.
fn numpy_data(pages: &mut PageCache<'_>, release: &Release, head: &[u8]) -> Option<Table> {
    let dimensions = half_word_at(head, NDARRAY_DIMENSION_COUNT)?;
    if half_word_at(head, NDARRAY_FLAGS)? & NDARRAY_OWNS == 0 || dimensions > NDARRAY_MAX_DIMENSIONS {
        return None;
    }
    let (lengths, strides) = (word_at(head, NDARRAY_DIMENSIONS)?, word_at(head, NDARRAY_STRIDES)?);
    let mut bytes = 0;
    for index in 0..u64::from(dimensions) {
        let length = pages.word(lengths.checked_add(index * 8)?)?;
        let stride = pages.word(strides.checked_add(index * 8)?)?.cast_signed().unsigned_abs();
        // Owned data has no gaps: the outermost dimension spans all of it.
        bytes = bytes.max(length.checked_mul(stride)?);
    }
    let kind_address = word_at(head, NDARRAY_DESCRIPTION)?
        .checked_add(release.header_prefix_bytes)?
        .checked_add(NDARRAY_KIND)?;
    let [kind] = pages.array::<1>(kind_address)?;
    let pointer_bytes = if NDARRAY_PLAIN_KINDS.contains(&kind) { 0 } else { bytes };
    Some(Table::new(word_at(head, NDARRAY_DATA)?, bytes, pointer_bytes))
}
