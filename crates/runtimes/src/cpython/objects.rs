//! What an object is: whether a block holds one, how large it is, what it has besides.

use super::data;
use super::layout::{
    AHEAD_BYTES, BYTEARRAY_ALLOCATED, BYTEARRAY_BYTES, BYTES_AT, DEQUE_BLOCK_BYTES, DEQUE_BLOCK_ITEMS,
    DEQUE_INDEX, DEQUE_LEFT, DEQUE_LINK, DICT_KEYS, DICT_VALUES, INSTRUCTION_BYTES, INT_DIGITS, INTERNED,
    Keys, LIST_ALLOCATED, LIST_ITEMS, LOCAL_REFERENCES, Release, SET_ENTRY_BYTES, SET_MASK, SET_SMALL_TABLE,
    SET_TABLE, SHARED_REFERENCES, SHARED_SHIFT, SIZE, STRING_LENGTH, STRING_STATE, TYPE, flags,
};
use super::types::{Kind, Type, Types};
use crate::batch::Pages;
use strandline_process::memory::{half_word_at, word_at};

/// Keys of a dict have no more than 2^40 places.
const MAX_LOG2_PLACES: u8 = 40;
/// So much of an object is looked at to tell its size.
pub const HEAD_BYTES: usize = 80;

/// What stands in front of an object in its block: nothing, the collector's links, these and two words more.
pub const BEFORE: [usize; 3] = [0, 16, 32];

/// Seven times `PYMEM_FORBIDDENBYTE`, 0xfd.
const FORBIDDEN: u64 = 0x00fd_fdfd_fdfd_fdfd;

/// What debug hooks (PYTHONMALLOC=debug, -X dev, builds with Py_DEBUG; `_PyMem_DebugRawAlloc`) put before a block: its size, a
/// letter, and seven bytes that nobody may write to. Behind it as many again stand as in a word.
pub const GUARD_BYTES: u64 = 16;
/// Behind it.
pub const GUARD_BEHIND_BYTES: u64 = 8;

/// Whether the second word before a block is a guard's.
pub fn is_guard(word: u64) -> bool {
    word >> 8 == FORBIDDEN
}

/// An object, as the first bytes of its block tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The number of its type.
    pub of: u32,
    /// Whether nobody refers to it: it waits on a free list.
    pub is_dead: bool,
    /// Where in the block it begins.
    pub before: usize,
}

/// What object a block holds, if it holds one.
#[inline]
pub fn in_block(types: &mut Types<'_>, block: &[u8]) -> Option<Found> {
    let guard = if word_at(block, 8).is_some_and(is_guard) { GUARD_BYTES as usize } else { 0 };
    BEFORE.into_iter().map(|before| guard + before).find_map(|before| {
        let (references, of) = (word_at(block, before)?, word_at(block, before + TYPE as usize)?);
        // A pointer is no count of references; from 3.12 on objects that live for ever have all lower bits set, from 3.14 on
        // flags in the highest ones.
        if references >> 32 & 0xffff != 0 {
            return None;
        }
        let of = types.at(of)?;
        let is_one = types.all.get(of as usize)?.before == (before - guard) as u64;
        is_one.then_some(Found { of, is_dead: references as u32 == 0, before })
    })
}

/// A table that an object has for itself, in a block of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Where.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// How many of these are in use: behind them may stand what was in use once.
    pub used: u64,
    /// Whether all of its block is the table, which may be larger.
    pub is_whole: bool,
    /// Whether it is data rather than a table of objects.
    pub is_data: bool,
    /// Where in it stands where another one of the same kind is.
    pub link: Option<u64>,
    /// The number of the type of the object that it is of, or [`NO_OWNER`].
    pub owner: u32,
}

/// No type: what no object leads to, or one of a type that is not known.
pub const NO_OWNER: u32 = u32::MAX;

impl Table {
    /// One without a link.
    pub fn new(address: u64, bytes: u64, used: u64) -> Self {
        Self { address, bytes, used, is_whole: false, is_data: false, link: None, owner: NO_OWNER }
    }
}

/// How large an object is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes of its own block, with what stands before it.
    pub block: u64,
    /// Bytes as `sys.getsizeof` tells: with what stands before it, and with its tables.
    pub told: u64,
    /// Its tables.
    pub tables: [Option<Table>; 2],
}

impl Size {
    /// Of types that have no `ob_size`, or one that counts something else.
    pub fn plain(of: &Type) -> Self {
        let bytes = of.basic_bytes + of.before;
        Self { block: bytes, told: bytes, ..Self::default() }
    }
}

/// The same of a block of a heap of objects, in builds without a global lock: these have no links of the collector's, and count the
/// references of an object's own thread and of others apart.
pub fn in_heap_block(types: &mut Types<'_>, block: &[u8]) -> Option<Found> {
    let guard = if word_at(block, 8).is_some_and(is_guard) { GUARD_BYTES as usize } else { 0 };
    BEFORE.into_iter().take(2).map(|before| guard + before).find_map(|before| {
        let of = types.at(word_at(block, before + AHEAD_BYTES as usize + TYPE as usize)?)?;
        let is_one = types.all.get(of as usize)?.before == (before - guard) as u64;
        let local = half_word_at(block, before + LOCAL_REFERENCES)?;
        let shared = word_at(block, before + SHARED_REFERENCES)? >> SHARED_SHIFT;
        is_one.then_some(Found { of, is_dead: local == 0 && shared == 0, before })
    })
}

/// Tells how large the object is that begins with `head`.
pub fn size(pages: &mut Pages<'_>, release: &Release, of: &Type, head: &[u8]) -> Size {
    let word = |offset: usize| word_at(head, offset).unwrap_or(0);
    let items = if of.item_bytes > 0 { (word(SIZE) as i64).unsigned_abs() } else { 0 };
    let plain = of.basic_bytes.saturating_add(items.saturating_mul(of.item_bytes));
    let mut size = Size { block: plain, told: plain, ..Size::default() };
    let mut add = |address: u64, (bytes, used): (u64, u64), is_told: bool| {
        if address != 0 && bytes > 0 {
            let free = size.tables.iter_mut().find(|table| table.is_none());
            free.into_iter().for_each(|table| *table = Some(Table::new(address, bytes, used.min(bytes))));
            size.told = size.told.saturating_add(if is_told { bytes } else { 0 });
        }
    };
    match of.kind {
        Kind::Plain | Kind::Module | Kind::Weak => {}
        Kind::Array | Kind::NumpyArray | Kind::Buffered | Kind::CData => {
            size.tables[0] = data::of(pages, release, of.kind, head).map(|of| Table { is_data: true, ..of });
        }
        Kind::Deque => {
            let places = word(DEQUE_INDEX).saturating_add(items.max(word(SIZE)));
            let blocks = places.div_ceil(DEQUE_BLOCK_ITEMS).saturating_mul(DEQUE_BLOCK_BYTES);
            size.told = size.told.saturating_add(blocks);
            let first = Table::new(word(DEQUE_LEFT), DEQUE_BLOCK_BYTES, DEQUE_BLOCK_BYTES);
            size.tables[0] = Some(Table { link: Some(DEQUE_LINK), ..first });
        }
        Kind::Generator => (size.block, size.told) = (of.basic_bytes, of.basic_bytes),
        Kind::Int => {
            let digits = if release.has_int_tags { (word(SIZE) >> 3).max(1) } else { items };
            let bytes = (INT_DIGITS + release.ahead).saturating_add(digits.saturating_mul(4));
            // Of one that is derived from int, more stands behind.
            size.told = bytes;
            size.block = bytes.max(of.basic_bytes);
        }
        Kind::String => {
            let text = string(release, head);
            size.told = text.own_bytes.saturating_add(text.other.map_or(0, |table| table.bytes));
            // Of one that is derived from str, more stands behind.
            size.block = text.own_bytes.max(of.basic_bytes);
            size.tables[0] = text.other;
        }
        Kind::List => {
            let bytes = |items: u64| items.saturating_mul(8);
            let (items, before) = (word(LIST_ITEMS), release.before_items);
            let (room, used) = (bytes(word(LIST_ALLOCATED)), bytes(word(SIZE)));
            if room > 0 {
                let all = (room.saturating_add(before), used.saturating_add(before));
                add(items.saturating_sub(before), all, false);
            }
            size.told = size.told.saturating_add(if items == 0 { 0 } else { room });
        }
        Kind::Set => {
            let bytes = word(SET_MASK).saturating_add(1).saturating_mul(SET_ENTRY_BYTES);
            // A small one has its table in itself.
            let is_small = word(SET_MASK) < 8 && of.basic_bytes >= SET_SMALL_TABLE;
            add(if is_small { 0 } else { word(SET_TABLE) }, (bytes, bytes), true);
        }
        Kind::ByteArray => add(word(BYTEARRAY_BYTES), (word(BYTEARRAY_ALLOCATED), 0), true),
        Kind::Dict => {
            if let Some(keys) = keys(pages, release, word(DICT_KEYS)) {
                let values = keys.usable.saturating_mul(8);
                add(word(DICT_KEYS), (keys.bytes, keys.bytes), !keys.is_shared);
                add(word(DICT_VALUES), (values, values), true);
            }
        }
        Kind::Class => size.block = size.block.max(release.class_bytes),
    }
    size.block = size.block.saturating_add(of.before);
    size.told = size.told.saturating_add(of.before);
    size
}

/// What a str is.
struct Text {
    own_bytes: u64,
    other: Option<Table>,
}

fn string(release: &Release, head: &[u8]) -> Text {
    let word = |offset: usize| word_at(head, offset).unwrap_or(0);
    let state = half_word_at(head, STRING_STATE).unwrap_or(0) >> release.kind_shift;
    let (character, is_compact, is_ascii) = (u64::from(state & 7), state & 8 != 0, state & 16 != 0);
    let [ascii, compact, whole] = release.string;
    let bytes = word(STRING_LENGTH).saturating_add(1).saturating_mul(character);
    let own_bytes = match (is_compact, is_ascii) {
        (true, true) => ascii.saturating_add(bytes),
        (true, false) => compact.saturating_add(bytes),
        (false, _) => whole,
    };
    // Behind a `PyCompactUnicodeObject` without characters in it stands where they are.
    let (data, utf8) = ((compact - release.ahead) as usize, release.utf8 - release.ahead as usize);
    let other = if is_compact { (!is_ascii).then(|| word(utf8)) } else { Some(word(data)) };
    let other_bytes = if is_compact { word(utf8 - 8).saturating_add(1) } else { bytes };
    let other = other.filter(|&address| address != 0);
    Text { own_bytes, other: other.map(|address| Table::new(address, other_bytes, 0)) }
}

/// How far into an object, with what stands ahead of it, its characters, digits or instructions begin, in pieces of 16 bytes: before
/// them stands no address. Instructions have inline caches, which hold nothing.
pub fn text(release: &Release, of: &Type, head: &[u8]) -> Option<u64> {
    let state = half_word_at(head, STRING_STATE)? >> release.kind_shift;
    let [ascii, compact, _] = release.string;
    match (of.kind, state >> 3 & 3) {
        (Kind::String, 3) => Some(ascii & !15),
        // Just before stands where its UTF-8 is.
        (Kind::String, 1) => Some(compact.next_multiple_of(16)),
        (Kind::Plain, _) if of.flags & flags::BYTES != 0 => Some(release.ahead + BYTES_AT),
        (Kind::Plain, _) if of.item_bytes == INSTRUCTION_BYTES => Some(of.basic_bytes.next_multiple_of(16)),
        // Behind a digit may stand the upper half of an address that was there before.
        (Kind::Int, _) => Some((INT_DIGITS + release.ahead) & !15),
        _ => None,
    }
}

/// Whether a str is interned.
pub fn is_interned(head: &[u8]) -> bool {
    let state = half_word_at(head, STRING_STATE).unwrap_or(0);
    state & INTERNED != 0
}

/// Keys of a dict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyTable {
    /// All bytes.
    pub bytes: u64,
    /// Entries that there is room for.
    pub usable: u64,
    /// Whether several dicts have it, or none.
    pub is_shared: bool,
    /// Where its entries begin, and how many are written.
    pub entries: (u64, u64),
    /// Bytes of one.
    pub entry_bytes: u64,
}

/// Reads the keys of a dict.
pub fn keys(pages: &mut Pages<'_>, release: &Release, address: u64) -> Option<KeyTable> {
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
    // `USABLE_FRACTION`; the first that is believed has 8 places, of empty ones there is one for all dicts.
    let usable = places.checked_mul(2)? / 3;
    if !places.is_power_of_two() || places >> MAX_LOG2_PLACES != 0 || written > usable {
        return None;
    }
    let entries = address.checked_add(header)?.checked_add(index_bytes)?;
    let bytes = header.checked_add(index_bytes)?.checked_add(usable.checked_mul(entry_bytes)?)?;
    // `shared_keys_usable_size`: shared keys have room for no more than 30.
    let usable = if is_split { word(16).saturating_add(written).min(usable) } else { usable };
    Some(KeyTable { bytes, usable, is_shared: word(0) != 1, entries: (entries, written), entry_bytes })
}
