//! Recognizes objects: whether a block holds one, its size, and its tables.

use super::data;
use super::layout::{
    AHEAD_BYTES, BYTEARRAY_ALLOCATED, BYTEARRAY_BYTES, BYTES_DATA, DEQUE_BLOCK_BYTES, DEQUE_BLOCK_ITEMS,
    DEQUE_INDEX, DEQUE_LEFT, DEQUE_LINK, DICT_KEYS, DICT_VALUES, INSTRUCTION_BYTES, INT_DIGITS, INTERNED,
    Keys, LIST_ALLOCATED, LIST_ITEMS, LOCAL_REFERENCES, Release, SET_ENTRY_BYTES, SET_MASK, SET_SMALL_TABLE,
    SET_TABLE, SHARED_REFERENCES, SHARED_SHIFT, SIZE, STRING_LENGTH, STRING_STATE, TYPE, flags,
};
use super::types::{Kind, Type, Types};
use crate::batch::PageCache;
use strandline_process::memory::{half_word_at, word_at};

/// Limit on places of a dict's keys: 2^40.
const MAX_LOG2_PLACES: u8 = 40;
/// Bytes read of an object to compute its size.
pub const HEAD_BYTES: usize = 80;

/// Bytes in front of an object in its block: none, the collector's links, or these and two more
/// words.
pub const PREFIX_BYTES: [usize; 3] = [0, 16, 32];

/// `PYMEM_FORBIDDENBYTE`, 0xfd, seven times.
const FORBIDDEN: u64 = 0x00fd_fdfd_fdfd_fdfd;

/// Bytes that debug hooks (PYTHONMALLOC=debug, -X dev, builds with Py_DEBUG;
/// `_PyMem_DebugRawAlloc`) put before a block: its size, a letter, and seven bytes that must not be
/// written.
pub const GUARD_BYTES: u64 = 16;
/// Bytes that debug hooks put after a block.
pub const GUARD_SUFFIX_BYTES: u64 = 8;

/// Whether the word right before a block is the second word of a guard.
pub fn is_guard(word: u64) -> bool {
    word >> 8 == FORBIDDEN
}

/// An object, as recognized by the first bytes of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Number of its type.
    pub of: u32,
    /// Whether it has no references: it is on a free list.
    pub is_dead: bool,
    /// Offset of the object in the block.
    pub before: usize,
}

/// Returns the object that a block holds; `None` if it holds none.
#[inline]
pub fn in_block(types: &mut Types<'_>, block: &[u8]) -> Option<Found> {
    let guard = if word_at(block, 8).is_some_and(is_guard) { GUARD_BYTES as usize } else { 0 };
    PREFIX_BYTES.into_iter().map(|before| guard + before).find_map(|before| {
        let (references, of) = (word_at(block, before)?, word_at(block, before + TYPE as usize)?);
        // A pointer is no reference count; immortal objects have all lower bits set from 3.12 on,
        // and flags in the highest bits from 3.14 on.
        if references >> 32 & 0xffff != 0 {
            return None;
        }
        let of = types.number_at(of)?;
        let is_one = types.all.get(of as usize)?.before == (before - guard) as u64;
        is_one.then_some(Found { of, is_dead: references as u32 == 0, before })
    })
}

/// A table that belongs to one object, in its own block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Address of the table.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Bytes in use; stale words may follow.
    pub used: u64,
    /// Whether the table fills its block, which may be larger.
    pub is_whole: bool,
    /// Whether it is data rather than a table of objects.
    pub is_data: bool,
    /// Offset of the link to the next table of the same kind.
    pub link: Option<u64>,
    /// Number of the type of its object, or [`NO_OWNER`].
    pub owner: u32,
}

/// No type: reached from no object, or from one of unknown type.
pub const NO_OWNER: u32 = u32::MAX;

impl Table {
    /// A table without a link.
    pub fn new(address: u64, bytes: u64, used: u64) -> Self {
        Self { address, bytes, used, is_whole: false, is_data: false, link: None, owner: NO_OWNER }
    }
}

/// Size of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes of its block, with its prefix.
    pub block: u64,
    /// Bytes as `sys.getsizeof` reports them: with prefix and tables.
    pub reported: u64,
    /// Its tables.
    pub tables: [Option<Table>; 2],
}

impl Size {
    /// Size of an instance of a type without `ob_size`, or whose `ob_size` counts something else.
    pub fn plain(of: &Type) -> Self {
        let bytes = of.basic_bytes + of.before;
        Self { block: bytes, reported: bytes, ..Self::default() }
    }
}

/// Like [`in_block`], for a block of a heap of objects in builds without a global lock. These have
/// no collector's links, and count the references of the object's own thread and of other threads
/// separately.
pub fn in_heap_block(types: &mut Types<'_>, block: &[u8]) -> Option<Found> {
    let guard = if word_at(block, 8).is_some_and(is_guard) { GUARD_BYTES as usize } else { 0 };
    PREFIX_BYTES.into_iter().take(2).map(|before| guard + before).find_map(|before| {
        let of = types.number_at(word_at(block, before + AHEAD_BYTES as usize + TYPE as usize)?)?;
        let is_one = types.all.get(of as usize)?.before == (before - guard) as u64;
        let local = half_word_at(block, before + LOCAL_REFERENCES)?;
        let shared = word_at(block, before + SHARED_REFERENCES)? >> SHARED_SHIFT;
        is_one.then_some(Found { of, is_dead: local == 0 && shared == 0, before })
    })
}

/// Computes the size of the object that begins with `head`.
pub fn size(pages: &mut PageCache<'_>, release: &Release, of: &Type, head: &[u8]) -> Size {
    let word = |offset: usize| word_at(head, offset).unwrap_or(0);
    let items = if of.item_bytes > 0 { (word(SIZE) as i64).unsigned_abs() } else { 0 };
    let plain = of.basic_bytes.saturating_add(items.saturating_mul(of.item_bytes));
    let mut size = Size { block: plain, reported: plain, ..Size::default() };
    let mut add = |table: Table, is_reported: bool| {
        if table.address != 0 && table.bytes > 0 {
            let free = size.tables.iter_mut().find(|table| table.is_none());
            let used = table.used.min(table.bytes);
            free.into_iter().for_each(|free| *free = Some(Table { used, ..table }));
            size.reported = size.reported.saturating_add(if is_reported { table.bytes } else { 0 });
        }
    };
    match of.kind {
        Kind::Plain | Kind::Module | Kind::Weak => {}
        Kind::Array | Kind::NumpyArray | Kind::Buffered | Kind::CData => {
            size.tables[0] =
                data::owned_data(pages, release, of.kind, head).map(|of| Table { is_data: true, ..of });
        }
        Kind::Deque => {
            let places = word(DEQUE_INDEX).saturating_add(items.max(word(SIZE)));
            let blocks = places.div_ceil(DEQUE_BLOCK_ITEMS).saturating_mul(DEQUE_BLOCK_BYTES);
            size.reported = size.reported.saturating_add(blocks);
            let first = Table::new(word(DEQUE_LEFT), DEQUE_BLOCK_BYTES, DEQUE_BLOCK_BYTES);
            size.tables[0] = Some(Table { link: Some(DEQUE_LINK), ..first });
        }
        Kind::Generator => (size.block, size.reported) = (of.basic_bytes, of.basic_bytes),
        Kind::Int => {
            // A subclass of int has more fields behind.
            let digits = if release.has_int_tags { (word(SIZE) >> 3).max(1) } else { items };
            size.reported =
                (INT_DIGITS + release.header_prefix_bytes).saturating_add(digits.saturating_mul(4));
            size.block = size.reported.max(of.basic_bytes);
        }
        Kind::String => {
            let text = string(release, head);
            size.reported = text.own_bytes.saturating_add(text.other.map_or(0, |table| table.bytes));
            // A subclass of str has more fields behind.
            size.block = text.own_bytes.max(of.basic_bytes);
            size.tables[0] = text.other;
        }
        Kind::List => {
            list_table(release, head).into_iter().for_each(|table| add(table, false));
            let room = word(LIST_ALLOCATED).saturating_mul(8);
            size.reported = size.reported.saturating_add(if word(LIST_ITEMS) == 0 { 0 } else { room });
        }
        Kind::Set => {
            let bytes = word(SET_MASK).saturating_add(1).saturating_mul(SET_ENTRY_BYTES);
            // A small set contains its table.
            let is_small = word(SET_MASK) < 8 && of.basic_bytes >= SET_SMALL_TABLE;
            add(Table::new(if is_small { 0 } else { word(SET_TABLE) }, bytes, bytes), true);
        }
        Kind::ByteArray => add(Table::new(word(BYTEARRAY_BYTES), word(BYTEARRAY_ALLOCATED), 0), true),
        Kind::Dict => {
            if let Some(keys) = keys(pages, release, word(DICT_KEYS)) {
                let values = keys.usable.saturating_mul(8);
                add(Table::new(word(DICT_KEYS), keys.bytes, keys.bytes), !keys.is_shared);
                add(Table::new(word(DICT_VALUES), values, values), true);
            }
        }
        Kind::Class => size.block = size.block.max(release.class_bytes),
    }
    size.block = size.block.saturating_add(of.before);
    size.reported = size.reported.saturating_add(of.before);
    size
}

/// The table of a list: its items, in a block that begins with a header; `None` without room.
fn list_table(release: &Release, head: &[u8]) -> Option<Table> {
    let before = release.list_header_bytes;
    let bytes = |offset: usize| Some(word_at(head, offset)?.saturating_mul(8));
    let room = bytes(LIST_ALLOCATED).filter(|&room| room > 0)?.saturating_add(before);
    let used = bytes(SIZE)?.saturating_add(before);
    Some(Table::new(word_at(head, LIST_ITEMS)?.saturating_sub(before), room, used))
}

/// Memory of a str.
struct Text {
    own_bytes: u64,
    other: Option<Table>,
}

fn string(release: &Release, head: &[u8]) -> Text {
    let word = |offset: usize| word_at(head, offset).unwrap_or(0);
    let state = half_word_at(head, STRING_STATE).unwrap_or(0) >> release.kind_shift;
    let (character, is_compact, is_ascii) = (u64::from(state & 7), state & 8 != 0, state & 16 != 0);
    let [ascii, compact, whole] = release.string_bytes;
    let bytes = word(STRING_LENGTH).saturating_add(1).saturating_mul(character);
    let own_bytes = match (is_compact, is_ascii) {
        (true, true) => ascii.saturating_add(bytes),
        (true, false) => compact.saturating_add(bytes),
        (false, _) => whole,
    };
    // A `PyCompactUnicodeObject` without inline characters is followed by a pointer to them.
    let (data, utf8) = (
        (compact - release.header_prefix_bytes) as usize,
        release.utf8 - release.header_prefix_bytes as usize,
    );
    let other = if is_compact { (!is_ascii).then(|| word(utf8)) } else { Some(word(data)) };
    let other_bytes = if is_compact { word(utf8 - 8).saturating_add(1) } else { bytes };
    let other = other.filter(|&address| address != 0);
    Text { own_bytes, other: other.map(|address| Table::new(address, other_bytes, 0)) }
}

/// Returns the offset, with the bytes ahead of the object, of its characters, digits or
/// instructions, rounded to 16 bytes; behind it there are no pointers. It is rounded down only if
/// the bytes before hold no pointer either. Instructions contain inline caches, which hold no
/// references.
pub fn raw_data_offset(release: &Release, of: &Type, head: &[u8]) -> Option<u64> {
    let state = half_word_at(head, STRING_STATE)? >> release.kind_shift;
    let [ascii, compact, _] = release.string_bytes;
    match (of.kind, state >> 3 & 3) {
        (Kind::String, 3) => Some(ascii & !15),
        // The pointer to its UTF-8 form is right before.
        (Kind::String, 1) => Some(compact.next_multiple_of(16)),
        (Kind::Plain, _) if of.flags & flags::BYTES != 0 => Some(release.header_prefix_bytes + BYTES_DATA),
        (Kind::Plain, _) if of.item_bytes == INSTRUCTION_BYTES => Some(of.basic_bytes.next_multiple_of(16)),
        // The upper half of a stale pointer may follow a digit.
        (Kind::Int, _) => Some((INT_DIGITS + release.header_prefix_bytes) & !15),
        _ => None,
    }
}

/// Whether a str is interned.
pub fn is_interned(head: &[u8]) -> bool {
    let state = half_word_at(head, STRING_STATE).unwrap_or(0);
    state & INTERNED != 0
}

/// An allocator's block, with the guards of debug hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardedBlock {
    /// First byte.
    pub begin: u64,
    /// Size.
    pub bytes: u64,
}

/// The keys of a dict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyTable {
    /// Size in bytes.
    pub bytes: u64,
    /// Capacity in entries.
    pub usable: u64,
    /// Whether it is shared by several dicts, or belongs to none.
    pub is_shared: bool,
    /// Address of its entries.
    pub entries: u64,
    /// Number of entries written.
    pub written: u64,
    /// Bytes per entry.
    pub entry_bytes: u64,
}

/// Reads the keys of a dict.
pub fn keys(pages: &mut PageCache<'_>, release: &Release, address: u64) -> Option<KeyTable> {
    if address == 0 || !address.is_multiple_of(8) {
        return None;
    }
    let head: [u8; 40] = pages.array(address)?;
    let word = |offset: usize| word_at(&head, offset).unwrap_or(0);
    let mut is_split = false;
    let (header, index_bytes, places, written, entry_bytes) = match release.keys {
        Keys::Sized => {
            let places = word(8);
            let each = match places {
                0..=0xff => 1,
                0x100..=0xffff => 2,
                0x1_0000..=0xffff_ffff => 4,
                _ => 8,
            };
            (40, places.checked_mul(each)?, places, word(32), 24)
        }
        Keys::Logged => {
            let [log2_places, log2_bytes, kind] = [head[8], head[9], head[10]];
            is_split = kind == 2;
            if log2_places > MAX_LOG2_PLACES || log2_bytes > MAX_LOG2_PLACES + 3 || kind > 2 {
                return None;
            }
            (32, 1 << log2_bytes, 1 << log2_places, word(24), if kind == 0 { 24 } else { 16 })
        }
    };
    // `USABLE_FRACTION`. Tables have at least 8 places; all empty dicts share one.
    let usable = places.checked_mul(2)? / 3;
    if !places.is_power_of_two() || places >> MAX_LOG2_PLACES != 0 || written > usable {
        return None;
    }
    let entries = address.checked_add(header)?.checked_add(index_bytes)?;
    let bytes = header.checked_add(index_bytes)?.checked_add(usable.checked_mul(entry_bytes)?)?;
    // `shared_keys_usable_size`: shared keys have room for at most 30 entries.
    let usable = if is_split { word(16).saturating_add(written).min(usable) } else { usable };
    Some(KeyTable { bytes, usable, is_shared: word(0) != 1, entries, written, entry_bytes })
}
