//! Recognises objects: whether a block holds one, its size, and its tables.

use super::data;
use super::layout::{
    BYTEARRAY_ALLOCATED, BYTEARRAY_BYTES, BYTES_DATA, DEQUE_BLOCK_BYTES, DEQUE_BLOCK_ITEMS, DEQUE_LEFT_BLOCK,
    DEQUE_LEFT_INDEX, DEQUE_RIGHT_LINK, DICT_ENTRY_BYTES, DICT_KEYS, DICT_STRING_ENTRY_BYTES, DICT_VALUES,
    FREE_THREADED_PREFIX_BYTES, INSTRUCTION_BYTES, INT_DIGIT_BYTES, INT_DIGITS, INT_TAG_SHIFT, INTERNED,
    KEYS_HEAD_BYTES, KEYS_REFERENCES, KeysForm, LIST_ALLOCATED, LIST_ITEMS, LOCAL_REFERENCES, Release,
    SET_ENTRY_BYTES, SET_MASK, SET_SMALL_ENTRIES, SET_SMALL_TABLE, SET_TABLE, SHARED_REFERENCES,
    SHARED_SHIFT, SIZE, STRING_ASCII, STRING_COMPACT, STRING_KIND, STRING_LENGTH, STRING_STATE, STRING_WIDE,
    STRING_WIDE_LAST_MINOR, STRING_WIDE_LENGTH, StringBytes, TYPE, WIDE_BYTES, counted_keys, flags,
    log2_keys,
};
use super::types::{Kind, Type, Types};
use crate::batch::PageCache;
use strandline_process::memory::{WordPair, half_word_at, word_at};

/// Limit on the indices of a dict's keys: 2^40.
const MAX_LOG2_INDEX_COUNT: u8 = 40;
/// Logarithm of the bytes of the largest index (`DK_IXSIZE`).
const MAX_LOG2_BYTES_PER_INDEX: u8 = 3;
/// Bytes read of an object to compute its size.
pub const HEAD_BYTES: usize = 80;
const POINTER_BYTES: u64 = 8;
/// Unit of offsets of raw data.
const RAW_UNIT_BYTES: u64 = 16;

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

/// Bytes of the guard at the start of a block; 0 without a guard.
fn guard_bytes(block: &[u8]) -> usize {
    let has_guard = word_at(block, GUARD_BYTES as usize / 2).is_some_and(is_guard);
    if has_guard { GUARD_BYTES as usize } else { 0 }
}

/// Whether a word may be `ob_refcnt`. A pointer cannot be; immortal objects have all lower bits set
/// from 3.12 on, and flags in the highest bits from 3.14 on.
pub fn is_reference_count(word: u64) -> bool {
    word >> 32 & 0xffff == 0
}

/// An object, as recognised by the first bytes of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundObject {
    pub type_number: u32,
    /// Whether it has no references: it is on a free list.
    pub is_free_listed: bool,
    /// Offset of the object in the block.
    pub offset: usize,
}

/// Returns the object that a block holds; `None` if it holds none.
#[inline]
pub fn in_block(types: &mut Types<'_>, block: &[u8]) -> Option<FoundObject> {
    let guard = guard_bytes(block);
    PREFIX_BYTES.into_iter().find_map(|prefix| {
        let offset = guard + prefix;
        let references = word_at(block, offset)?;
        let type_address = word_at(block, offset + TYPE)?;
        if !is_reference_count(references) {
            return None;
        }
        let type_number = type_with_prefix(types, type_address, prefix)?;
        Some(FoundObject { type_number, is_free_listed: references as u32 == 0, offset })
    })
}

/// Like [`in_block`], for a block of a heap of objects in builds without a global lock. These have
/// no collector's links, and count the references of the object's own thread and of other threads
/// separately.
pub fn in_heap_block(types: &mut Types<'_>, block: &[u8]) -> Option<FoundObject> {
    let guard = guard_bytes(block);
    PREFIX_BYTES.into_iter().take(2).find_map(|prefix| {
        let offset = guard + prefix;
        let type_address = word_at(block, offset + FREE_THREADED_PREFIX_BYTES as usize + TYPE)?;
        let type_number = type_with_prefix(types, type_address, prefix)?;
        let local = half_word_at(block, offset + LOCAL_REFERENCES)?;
        let shared = word_at(block, offset + SHARED_REFERENCES)? >> SHARED_SHIFT;
        Some(FoundObject { type_number, is_free_listed: local == 0 && shared == 0, offset })
    })
}

/// Returns the number of the type at an address; `None` without a type there, or if the prefix of
/// its instances has another size.
#[inline]
fn type_with_prefix(types: &mut Types<'_>, address: u64, prefix: usize) -> Option<u32> {
    let number = types.number_at(address)?;
    (types.get(number)?.prefix_bytes == prefix as u64).then_some(number)
}

/// A table that belongs to one object, in its own block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Address of the table.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Bytes in use; stale words may follow.
    pub used_bytes: u64,
    /// Whether the table takes all of its block, whose size may exceed `bytes`.
    pub is_whole: bool,
    /// Whether it is data rather than a table of objects.
    pub is_data: bool,
    /// Offset of the link to the next table of the same kind, if it has one.
    pub link: Option<u64>,
    /// Number of the type of its object, or [`NO_OWNER`].
    pub owner: u32,
}

/// No type: reached from no object, or from one of unknown type.
pub const NO_OWNER: u32 = u32::MAX;

impl Table {
    /// A table without a link.
    pub fn new(address: u64, bytes: u64, used_bytes: u64) -> Self {
        Self { address, bytes, used_bytes, is_whole: false, is_data: false, link: None, owner: NO_OWNER }
    }
}

/// The size of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectSize {
    /// Bytes of its block, with its prefix.
    pub block_bytes: u64,
    /// Bytes as `sys.getsizeof` reports them: with prefix and tables.
    pub reported_bytes: u64,
    pub tables: [Option<Table>; 3],
}

impl ObjectSize {
    /// Size of an object without tables.
    fn of_bytes(bytes: u64) -> Self {
        Self { block_bytes: bytes, reported_bytes: bytes, ..Self::default() }
    }

    /// Size of an instance of a type without `ob_size`, or whose `ob_size` counts something else.
    pub fn plain(object_type: &Type) -> Self {
        Self::of_bytes(object_type.basic_bytes + object_type.prefix_bytes)
    }

    /// Adds a table that `sys.getsizeof` does not report, unless it is empty.
    fn add_table(&mut self, table: Table) {
        let unused = self.tables.iter_mut().find(|table| table.is_none());
        if let Some(unused) = unused.filter(|_| table.address != 0 && table.bytes > 0) {
            *unused = Some(Table { used_bytes: table.used_bytes.min(table.bytes), ..table });
        }
    }

    /// Adds a table that `sys.getsizeof` reports, unless it is empty.
    fn add_reported_table(&mut self, table: Table) {
        self.add_reported(if table.address == 0 { 0 } else { table.bytes });
        self.add_table(table);
    }

    fn add_reported(&mut self, bytes: u64) {
        self.reported_bytes = self.reported_bytes.saturating_add(bytes);
    }
}

/// The word at an offset in the first bytes of an object; 0 past their end, where a smaller object
/// has no such field.
fn word(head: &[u8], offset: usize) -> u64 {
    word_at(head, offset).unwrap_or(0)
}

/// Number of items of an object; 0 if those of its type have none.
fn item_count(object_type: &Type, head: &[u8]) -> u64 {
    if object_type.item_bytes > 0 { word(head, SIZE).cast_signed().unsigned_abs() } else { 0 }
}

/// Computes the size of the object that begins with `head`.
pub fn size(pages: &mut PageCache<'_>, release: &Release, object_type: &Type, head: &[u8]) -> ObjectSize {
    let item_bytes = item_count(object_type, head).saturating_mul(object_type.item_bytes);
    let mut size = ObjectSize::of_bytes(object_type.basic_bytes.saturating_add(item_bytes));
    match object_type.kind {
        Kind::Plain | Kind::Module | Kind::Weak => {}
        Kind::Array | Kind::NumpyArray | Kind::Buffered | Kind::CData => {
            let data = data::owned_data(pages, release, object_type.kind, head);
            size.tables[0] = data.map(|data| Table { is_data: true, ..data });
        }
        Kind::Generator => size = ObjectSize::of_bytes(object_type.basic_bytes),
        Kind::Class => size.block_bytes = size.block_bytes.max(release.class_bytes),
        Kind::Int => size = int_size(release, object_type, head),
        Kind::String => size = string_size(release, object_type, head),
        Kind::List => add_list_items(&mut size, release, head),
        Kind::Deque => add_deque_blocks(&mut size, head),
        Kind::Set => add_set_table(&mut size, object_type, head),
        Kind::ByteArray => {
            let bytes = word(head, BYTEARRAY_ALLOCATED);
            size.add_reported_table(Table::new(word(head, BYTEARRAY_BYTES), bytes, 0));
        }
        Kind::Dict => add_dict_tables(&mut size, pages, release, head),
    }
    size.block_bytes = size.block_bytes.saturating_add(object_type.prefix_bytes);
    size.add_reported(object_type.prefix_bytes);
    size
}

fn int_size(release: &Release, object_type: &Type, head: &[u8]) -> ObjectSize {
    // `int.__sizeof__` counts at least one digit from 3.12 on.
    let digits = if release.has_int_tags {
        (word(head, SIZE) >> INT_TAG_SHIFT).max(1)
    } else {
        item_count(object_type, head)
    };
    let before_digits = INT_DIGITS + release.header_prefix_bytes;
    let bytes = before_digits.saturating_add(digits.saturating_mul(INT_DIGIT_BYTES));
    // A subclass of int has more fields behind.
    ObjectSize { block_bytes: bytes.max(object_type.basic_bytes), ..ObjectSize::of_bytes(bytes) }
}

fn string_size(release: &Release, object_type: &Type, head: &[u8]) -> ObjectSize {
    let StringMemory { own_bytes, buffers } = string_memory(release, head);
    let add_buffer = |sum: u64, buffer: &Table| sum.saturating_add(buffer.bytes);
    ObjectSize {
        // A subclass of str has more fields behind.
        block_bytes: own_bytes.max(object_type.basic_bytes),
        reported_bytes: buffers.iter().flatten().fold(own_bytes, add_buffer),
        tables: buffers,
    }
}

fn add_list_items(size: &mut ObjectSize, release: &Release, head: &[u8]) {
    if let Some(table) = list_table(release, head) {
        size.add_table(table);
    }
    // `list.__sizeof__` leaves out the header of the block of items.
    if word(head, LIST_ITEMS) != 0 {
        size.add_reported(word(head, LIST_ALLOCATED).saturating_mul(POINTER_BYTES));
    }
}

fn add_deque_blocks(size: &mut ObjectSize, head: &[u8]) {
    // Slots of the items, and before them of those that were removed on the left.
    let slots = word(head, DEQUE_LEFT_INDEX).saturating_add(word(head, SIZE));
    size.add_reported(slots.div_ceil(DEQUE_BLOCK_ITEMS).saturating_mul(DEQUE_BLOCK_BYTES));
    let first = Table::new(word(head, DEQUE_LEFT_BLOCK), DEQUE_BLOCK_BYTES, DEQUE_BLOCK_BYTES);
    size.tables[0] = Some(Table { link: Some(DEQUE_RIGHT_LINK), ..first });
}

fn add_set_table(size: &mut ObjectSize, object_type: &Type, head: &[u8]) {
    let mask = word(head, SET_MASK);
    // A small set contains its table.
    let is_small = mask < SET_SMALL_ENTRIES && object_type.basic_bytes >= SET_SMALL_TABLE;
    if !is_small {
        let bytes = mask.saturating_add(1).saturating_mul(SET_ENTRY_BYTES);
        size.add_reported_table(Table::new(word(head, SET_TABLE), bytes, bytes));
    }
}

fn add_dict_tables(size: &mut ObjectSize, pages: &mut PageCache<'_>, release: &Release, head: &[u8]) {
    let address = word(head, DICT_KEYS);
    let Some(keys) = read_keys(pages, release, address) else { return };
    let table = Table::new(address, keys.bytes, keys.bytes);
    if keys.is_shared {
        size.add_table(table);
    } else {
        size.add_reported_table(table);
    }
    let values_bytes = keys.entry_capacity.saturating_mul(POINTER_BYTES);
    size.add_reported_table(Table::new(word(head, DICT_VALUES), values_bytes, values_bytes));
}

/// The table of a list: its items, in a block that begins with a header; `None` if it has none.
fn list_table(release: &Release, head: &[u8]) -> Option<Table> {
    let header_bytes = release.list_header_bytes;
    let bytes = |offset: usize| Some(word_at(head, offset)?.saturating_mul(POINTER_BYTES));
    let allocated_bytes =
        bytes(LIST_ALLOCATED).filter(|&allocated_bytes| allocated_bytes > 0)?.saturating_add(header_bytes);
    let used_bytes = bytes(SIZE)?.saturating_add(header_bytes);
    Some(Table::new(word_at(head, LIST_ITEMS)?.saturating_sub(header_bytes), allocated_bytes, used_bytes))
}

/// The state of a str.
#[derive(Clone, Copy, Debug, Default)]
struct StringState {
    character_bytes: u64,
    /// Whether its characters are in its own block.
    is_compact: bool,
    is_ascii: bool,
}

impl StringState {
    fn read(release: &Release, head: &[u8]) -> Option<Self> {
        let state = half_word_at(head, STRING_STATE)? >> release.kind_shift;
        Some(Self {
            character_bytes: u64::from(state & STRING_KIND),
            is_compact: state & STRING_COMPACT != 0,
            is_ascii: state & STRING_ASCII != 0,
        })
    }
}

/// Memory of a str.
struct StringMemory {
    /// Bytes of its own block, without prefix.
    own_bytes: u64,
    /// What it has in other blocks: its characters, their UTF-8 form, their `wchar_t` form.
    buffers: [Option<Table>; 3],
}

fn string_memory(release: &Release, head: &[u8]) -> StringMemory {
    // A block that ends before the state holds no str: the caller replaces its size.
    let StringState { character_bytes, is_compact, is_ascii } =
        StringState::read(release, head).unwrap_or_default();
    let StringBytes { ascii, compact, not_compact } = release.string_bytes;
    let characters_bytes = word(head, STRING_LENGTH).saturating_add(1).saturating_mul(character_bytes);
    let is_compact_ascii = is_compact && is_ascii;
    let own_bytes = match (is_compact, is_ascii) {
        (true, true) => ascii.saturating_add(characters_bytes),
        (true, false) => compact.saturating_add(characters_bytes),
        (false, _) => not_compact,
    };
    // A `PyCompactUnicodeObject` without inline characters is followed by a pointer to them.
    let data_offset = (compact - release.header_prefix_bytes) as usize;
    let data = if is_compact { 0 } else { word(head, data_offset) };
    // `utf8_length` precedes `utf8`.
    let utf8_offset = release.utf8 - release.header_prefix_bytes as usize;
    let utf8_bytes = word(head, utf8_offset - 8).saturating_add(1);
    let utf8 = if is_compact_ascii { 0 } else { word(head, utf8_offset) };
    let wide_length = if is_compact_ascii { STRING_LENGTH } else { STRING_WIDE_LENGTH };
    let wide_bytes = word(head, wide_length).saturating_add(1).saturating_mul(WIDE_BYTES);
    // `PyUnicode_New` lets it point to inline characters of the same size.
    let has_wide = release.minor <= STRING_WIDE_LAST_MINOR && !(is_compact && character_bytes == WIDE_BYTES);
    let wide = if has_wide { word(head, STRING_WIDE) } else { 0 };
    // Forms may share the characters (`_PyUnicode_HAS_UTF8_MEMORY` and `_PyUnicode_HAS_WSTR_MEMORY`
    // in Objects/unicodeobject.c, by which `unicode_sizeof` counts).
    let buffer =
        |address: u64, bytes: u64| (address != 0 && bytes > 0).then(|| Table::new(address, bytes, 0));
    let is_separate = |buffer: &Table| buffer.address != data;
    let buffers = [
        buffer(data, characters_bytes),
        buffer(utf8, utf8_bytes).filter(is_separate),
        buffer(wide, wide_bytes).filter(is_separate),
    ];
    StringMemory { own_bytes, buffers }
}

/// Returns the offset, with the bytes ahead of the object, of its characters, digits or
/// instructions, rounded to [`RAW_UNIT_BYTES`]; behind it there are no pointers. It is rounded down
/// only if the bytes before hold no pointer either. Instructions contain inline caches, which hold
/// no references.
pub fn raw_data_offset(release: &Release, object_type: &Type, head: &[u8]) -> Option<u64> {
    let StringBytes { ascii, compact, .. } = release.string_bytes;
    let rounded_down = |offset: u64| offset / RAW_UNIT_BYTES * RAW_UNIT_BYTES;
    match object_type.kind {
        Kind::String => match StringState::read(release, head)? {
            StringState { is_compact: false, .. } => None,
            StringState { is_ascii: true, .. } => Some(rounded_down(ascii)),
            // The pointer to its UTF-8 form is right before.
            _ => Some(compact.next_multiple_of(RAW_UNIT_BYTES)),
        },
        Kind::Plain if object_type.flags & flags::BYTES != 0 => {
            Some(release.header_prefix_bytes + BYTES_DATA)
        }
        Kind::Plain if object_type.item_bytes == INSTRUCTION_BYTES => {
            Some(object_type.basic_bytes.next_multiple_of(RAW_UNIT_BYTES))
        }
        // The upper half of a stale pointer may follow a digit.
        Kind::Int => Some(rounded_down(INT_DIGITS + release.header_prefix_bytes)),
        _ => None,
    }
}

/// Whether a str is interned.
pub fn is_interned(head: &[u8]) -> bool {
    half_word_at(head, STRING_STATE).is_some_and(|state| state & INTERNED != 0)
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
    pub entry_capacity: u64,
    /// Whether it is shared by several dicts, or belongs to none.
    pub is_shared: bool,
    /// Address of its entries.
    pub entries: u64,
    /// Number of entries written.
    pub written_entries: u64,
    /// Bytes per entry.
    pub entry_bytes: u64,
}

impl KeyTable {
    /// Reads key and value of an entry, for tables that are not split: they are its last two words,
    /// after the hash that keys of any type have.
    pub fn key_and_value(&self, pages: &mut PageCache<'_>, index: u64) -> Option<WordPair> {
        pages.pair(self.entries.checked_add(index * self.entry_bytes + self.entry_bytes - 16)?)
    }
}

/// What the header of a dict's keys states.
struct KeysHeader {
    /// Offset of the indices, which end the header.
    indices: u64,
    /// Bytes of the indices; the entries follow.
    index_bytes: u64,
    /// Number of indices: the slots of the hash table.
    index_count: u64,
    /// Number of entries written.
    written_entries: u64,
    /// Bytes per entry.
    entry_bytes: u64,
    /// Number of entries that can still be written, if dicts share the keys.
    unwritten_shared: Option<u64>,
}

impl KeysHeader {
    /// Parses the first bytes of a dict's keys; `None` if they are something else.
    fn new(form: KeysForm, head: &[u8; KEYS_HEAD_BYTES]) -> Option<Self> {
        match form {
            KeysForm::IndexCount => {
                let index_count = word(head, counted_keys::INDEX_COUNT);
                // `DK_IXSIZE` in Objects/dictobject.c.
                let bytes_per_index = match index_count {
                    0..=0xff => 1,
                    0x100..=0xffff => 2,
                    0x1_0000..=0xffff_ffff => 4,
                    _ => 8,
                };
                Some(Self {
                    indices: counted_keys::INDICES,
                    index_bytes: index_count.checked_mul(bytes_per_index)?,
                    index_count,
                    written_entries: word(head, counted_keys::ENTRIES_WRITTEN),
                    entry_bytes: DICT_ENTRY_BYTES,
                    unwritten_shared: None,
                })
            }
            KeysForm::Log2Sizes => {
                let log2_index_count = head[log2_keys::LOG2_INDEX_COUNT];
                let log2_index_bytes = head[log2_keys::LOG2_INDEX_BYTES];
                let kind = head[log2_keys::KIND];
                let is_known = log2_index_count <= MAX_LOG2_INDEX_COUNT
                    && log2_index_bytes <= MAX_LOG2_INDEX_COUNT + MAX_LOG2_BYTES_PER_INDEX
                    && kind <= log2_keys::SPLIT;
                let has_hashes = kind == log2_keys::GENERAL;
                let is_split = kind == log2_keys::SPLIT;
                is_known.then(|| Self {
                    indices: log2_keys::INDICES,
                    index_bytes: 1 << log2_index_bytes,
                    index_count: 1 << log2_index_count,
                    written_entries: word(head, log2_keys::ENTRIES_WRITTEN),
                    entry_bytes: if has_hashes { DICT_ENTRY_BYTES } else { DICT_STRING_ENTRY_BYTES },
                    unwritten_shared: is_split.then(|| word(head, log2_keys::ENTRIES_LEFT)),
                })
            }
        }
    }
}

/// Reads the keys of a dict; `None` if there are none at `address`, or they are invalid.
pub fn read_keys(pages: &mut PageCache<'_>, release: &Release, address: u64) -> Option<KeyTable> {
    if address == 0 || !address.is_multiple_of(8) {
        return None;
    }
    let head: [u8; KEYS_HEAD_BYTES] = pages.array(address)?;
    let header = KeysHeader::new(release.keys, &head)?;
    let KeysHeader { indices, index_bytes, index_count, written_entries, entry_bytes, unwritten_shared } =
        header;
    // `USABLE_FRACTION` in Objects/dictobject.c.
    let entry_capacity = index_count.checked_mul(2)? / 3;
    if !index_count.is_power_of_two()
        || index_count >> MAX_LOG2_INDEX_COUNT != 0
        || written_entries > entry_capacity
    {
        return None;
    }
    let entries = address.checked_add(indices)?.checked_add(index_bytes)?;
    let bytes = indices.checked_add(index_bytes)?.checked_add(entry_capacity.checked_mul(entry_bytes)?)?;
    // Shared keys have room for at most 30 (`SHARED_KEYS_MAX_SIZE` in pycore_dict.h).
    let entry_capacity = unwritten_shared
        .map_or(entry_capacity, |unwritten| unwritten.saturating_add(written_entries).min(entry_capacity));
    let is_shared = word(&head, KEYS_REFERENCES) != 1;
    Some(KeyTable { bytes, entry_capacity, is_shared, entries, written_entries, entry_bytes })
}

#[cfg(test)]
mod tests {
    use super::super::layout::RELEASES;
    use super::*;

    const ADDRESS: u64 = 0x7f00_0000_0000;

    /// The buffers of a str of five characters with this state, of `3.minor`: the distance of each
    /// from [`ADDRESS`] in pages of 4 KiB, and its bytes. `words` are other fields.
    fn buffers(minor: u8, state: u32, words: &[(usize, u64)]) -> Vec<(u64, u64)> {
        let release = RELEASES.iter().find(|release| release.minor == minor).unwrap();
        let mut head = [0; HEAD_BYTES];
        let state = state << release.kind_shift;
        head[STRING_STATE..STRING_STATE + 4].copy_from_slice(&state.to_le_bytes());
        for &(offset, word) in [(STRING_LENGTH, 5)].iter().chain(words) {
            head[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
        }
        let object_type =
            Type { address: 0, kind: Kind::String, flags: 0, basic_bytes: 0, item_bytes: 0, prefix_bytes: 0 };
        let (text, size) = (string_memory(release, &head), string_size(release, &object_type, &head));
        let buffer_bytes: u64 = text.buffers.iter().flatten().map(|buffer| buffer.bytes).sum();
        assert_eq!((size.tables, size.reported_bytes), (text.buffers, text.own_bytes + buffer_bytes));
        let found = text.buffers.into_iter().flatten();
        found.map(|buffer| ((buffer.address - ADDRESS) >> 12, buffer.bytes)).collect()
    }

    fn at(number: u64) -> u64 {
        ADDRESS + (number << 12)
    }

    #[test]
    fn digits_of_a_small_int_are_raw_data() {
        let int = Type {
            address: 0,
            kind: Kind::Int,
            flags: flags::LONG,
            basic_bytes: 24,
            item_bytes: 4,
            prefix_bytes: 0,
        };
        // The block ends where the state of a str is.
        assert_eq!(raw_data_offset(&RELEASES[3], &int, &[0; 32]), Some(16));
    }

    #[test]
    fn a_str_of_two_blocks_has_its_characters_and_their_other_forms() {
        // `utf8_length`, `utf8`, then `wstr_length` up to 3.11, and `data`.
        let of_3_10 = [(48, 7), (56, at(2)), (64, 5), (72, at(1)), (40, at(3))];
        assert_eq!(buffers(10, 1, &of_3_10), [(1, 6), (2, 8), (3, 24)]);
        assert_eq!(buffers(13, 1, &[(40, 7), (48, at(2)), (56, at(1))]), [(1, 6), (2, 8)]);
        let shared = [(48, 5), (56, at(1)), (72, at(1))];
        assert_eq!(buffers(10, 1 | STRING_ASCII, &shared), [(1, 6)], "the characters are its UTF-8 form");
        let shared = [(64, 5), (72, at(1)), (40, at(1))];
        assert_eq!(buffers(8, 4, &shared), [(1, 24)], "the characters are of the size of wchar_t");
        assert_eq!(buffers(8, 0, &[(16, 0), (64, 9), (40, at(3))]), [(3, 40)], "not ready");
    }

    #[test]
    fn a_str_of_one_block_has_other_forms_alone() {
        let state = 2 | STRING_COMPACT;
        assert_eq!(buffers(11, state, &[(48, 15), (56, at(2)), (64, 5), (40, at(3))]), [(2, 16), (3, 24)]);
        assert_eq!(buffers(12, state, &[(40, 15), (48, at(2))]), [(2, 16)]);
        let shared = buffers(11, 4 | STRING_COMPACT, &[(64, 5), (40, at(0) + 72)]);
        assert!(shared.is_empty(), "its own characters");
        let ascii = 1 | STRING_COMPACT | STRING_ASCII;
        assert_eq!(buffers(9, ascii, &[(40, at(3)), (56, at(2))]), [(3, 24)]);
        let characters = buffers(12, ascii, &[(40, at(3)), (48, at(2))]);
        assert!(characters.is_empty(), "these are characters");
    }
}
