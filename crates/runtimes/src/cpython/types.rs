//! Types: which words point to one, and what it states about its instances.

use std::collections::HashMap;

use super::layout::{
    GC_HEAD_BYTES, Release, TYPE, TYPE_BASE, TYPE_BASIC_SIZE, TYPE_BYTES, TYPE_FLAGS, TYPE_ITEM_SIZE,
    TYPE_NAME, flags,
};
use super::names::c_string;
use crate::batch::PageCache;
use strandline_process::memory::word_at;
use strandline_process::pages::USER_ADDRESS_END;

/// Limit on words remembered, types or not; beyond it ([`Types::is_full`]), new words are no types.
const MAX_KNOWN_WORDS: usize = 1 << 20;
/// Limit on the length of a chain of metatypes; what has a longer one is no type.
const MAX_DEPTH: usize = 8;
/// Bytes of the smallest instance: `ob_refcnt` and `ob_type`.
const MIN_BASIC_BYTES: u64 = 16;
/// Upper bound on plausible sizes of an instance without its items.
const MAX_BASIC_BYTES: u64 = 1 << 20;
/// Upper bound on plausible sizes of an item.
const MAX_ITEM_BYTES: u64 = 1 << 16;
/// Bytes of the two words before instances of types with [`Release::extra_prefix_flags`].
const EXTRA_PREFIX_BYTES: u64 = 16;
/// Limit on base classes followed; beyond, a type counts as [`Kind::Plain`].
const MAX_BASES: usize = 64;
/// Upper bound on the bytes of the names of these kinds, with their 0.
const NAME_BYTES: usize = 28;
/// Entries of the cache of words looked up last.
const RECENT_WORDS: usize = 4096;

/// Kinds of objects, by how their size is computed and what memory they own outside their block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sized as the type states.
    Plain,
    Int,
    String,
    List,
    Dict,
    /// A set or frozenset.
    Set,
    /// A bytearray.
    ByteArray,
    Deque,
    Class,
    /// A generator, coroutine or async generator: it contains a frame and has no `ob_size`.
    Generator,
    Module,
    /// A weak reference, which retains nothing.
    Weak,
    Array,
    /// A numpy.ndarray.
    NumpyArray,
    /// A buffered file of the io module.
    Buffered,
    /// An instance of a ctypes type.
    CData,
}

/// What a type states about its instances.
#[derive(Clone, Copy, Debug)]
pub struct Type {
    /// Address of the type.
    pub address: u64,
    /// Kind of its instances.
    pub kind: Kind,
    /// `tp_flags`
    pub flags: u64,
    /// Bytes of an instance, without items.
    pub basic_bytes: u64,
    /// Bytes of an item; 0 if instances have none.
    pub item_bytes: u64,
    /// Bytes in front of an instance in its block (`_PyType_PreHeaderSize`).
    pub prefix_bytes: u64,
}

/// A word that was looked up.
#[derive(Clone, Copy)]
struct RecentWord {
    word: u64,
    /// Number of the type that it points to, if any.
    number: Option<u32>,
}

/// All types found.
pub struct Types<'a> {
    release: &'static Release,
    pages: PageCache<'a>,
    /// Numbers of types by address; `None` for words that point to no type.
    numbers_by_address: HashMap<u64, Option<u32>>,
    /// Cache of the words looked up last.
    recent_words: Vec<RecentWord>,
    /// The types, by number.
    pub by_number: Vec<Type>,
    /// Whether there were words beyond the limit, which may point to further types.
    pub is_full: bool,
}

impl<'a> Types<'a> {
    /// No types yet.
    pub fn new(pages: PageCache<'a>, release: &'static Release) -> Self {
        Self {
            release,
            pages,
            numbers_by_address: HashMap::new(),
            recent_words: vec![RecentWord { word: 0, number: None }; RECENT_WORDS],
            by_number: Vec::new(),
            is_full: false,
        }
    }

    /// Returns the number of the type at `address`; `None` if no type is there or can be read.
    #[inline]
    pub fn number_at(&mut self, address: u64) -> Option<u32> {
        let recent_index = (address >> 4) as usize % RECENT_WORDS;
        match self.recent_words.get(recent_index) {
            Some(recent) if recent.word == address => recent.number,
            _ => self.look_up(address, recent_index),
        }
    }

    /// Returns the type with a number.
    #[inline]
    pub fn get(&self, number: u32) -> Option<Type> {
        self.by_number.get(number as usize).copied()
    }

    fn look_up(&mut self, address: u64, recent_index: usize) -> Option<u32> {
        if address == 0 || !address.is_multiple_of(8) || address >= USER_ADDRESS_END {
            return None;
        }
        let number = match self.numbers_by_address.get(&address) {
            Some(&number) => number,
            None if self.numbers_by_address.len() >= MAX_KNOWN_WORDS => {
                self.is_full = true;
                None
            }
            None => {
                let number = self.read(address).map(|object_type| {
                    self.by_number.push(object_type);
                    self.by_number.len() as u32 - 1
                });
                self.numbers_by_address.insert(address, number);
                number
            }
        };
        if let Some(entry) = self.recent_words.get_mut(recent_index) {
            *entry = RecentWord { word: address, number };
        }
        number
    }

    /// Reads the type at `address`; `None` if no type begins there.
    fn read(&mut self, address: u64) -> Option<Type> {
        let bytes: [u8; TYPE_BYTES] =
            self.pages.array(address.checked_add(self.release.header_prefix_bytes)?)?;
        let type_flags = word_at(&bytes, TYPE_FLAGS)?;
        let basic_bytes = word_at(&bytes, TYPE_BASIC_SIZE)?;
        let item_bytes = word_at(&bytes, TYPE_ITEM_SIZE)?;
        let is_type = type_flags & flags::READY != 0
            && (MIN_BASIC_BYTES..MAX_BASIC_BYTES).contains(&basic_bytes)
            && item_bytes < MAX_ITEM_BYTES
            && self.is_metatype(word_at(&bytes, TYPE)?, 0);
        if !is_type {
            return None;
        }
        let extra_bytes =
            if type_flags & self.release.extra_prefix_flags != 0 { EXTRA_PREFIX_BYTES } else { 0 };
        let has_links = type_flags & flags::HAVE_GC != 0 && self.release.has_links();
        let prefix_bytes = extra_bytes + if has_links { GC_HEAD_BYTES } else { 0 };
        let kind = self.kind(address, type_flags);
        Some(Type { address, kind, flags: type_flags, basic_bytes, item_bytes, prefix_bytes })
    }

    /// Whether instances of the type at `address` are types: the chain of its types ends in one
    /// that is its own type.
    fn is_metatype(&mut self, address: u64, depth: usize) -> bool {
        let (Some(type_flags), Some(metatype)) =
            (self.head_word(address, TYPE_FLAGS), self.head_word(address, TYPE))
        else {
            return false;
        };
        type_flags & flags::TYPE != 0
            && type_flags & flags::READY != 0
            && (metatype == address || depth < MAX_DEPTH && self.is_metatype(metatype, depth + 1))
    }

    /// Reads a word of the type at `address`, by its offset in [`super::layout`].
    fn head_word(&mut self, address: u64, offset: usize) -> Option<u64> {
        self.pages.word(address.wrapping_add(self.release.header_prefix_bytes).wrapping_add(offset as u64))
    }

    fn kind(&mut self, address: u64, type_flags: u64) -> Kind {
        let by_flag = [
            (flags::LONG, Kind::Int),
            (flags::UNICODE, Kind::String),
            (flags::LIST, Kind::List),
            (flags::DICT, Kind::Dict),
            (flags::TYPE, Kind::Class),
        ];
        let flagged = by_flag.into_iter().find(|(flag, _)| type_flags & flag != 0);
        flagged.map_or_else(|| self.kind_by_base(address), |(_, kind)| kind)
    }

    /// Finds the kind of a set or another type without a flag: by the name of the built-in type
    /// itself or of a base class.
    fn kind_by_base(&mut self, address: u64) -> Kind {
        let mut class = address;
        for _ in 0..MAX_BASES {
            let (Some(type_flags), Some(name)) =
                (self.head_word(class, TYPE_FLAGS), self.head_word(class, TYPE_NAME))
            else {
                break;
            };
            // A class defined by the program may be named `set`, but its name has no dot.
            let is_built_in = type_flags & flags::HEAP_TYPE == 0;
            match c_string(&mut self.pages, name, NAME_BYTES).unwrap_or_default().as_slice() {
                b"set" | b"frozenset" if is_built_in => return Kind::Set,
                b"bytearray" if is_built_in => return Kind::ByteArray,
                b"generator" | b"coroutine" | b"async_generator" if is_built_in => {
                    return Kind::Generator;
                }
                b"module" if is_built_in => return Kind::Module,
                // Names without a dot are those up to 3.9; proxies have the same structure.
                b"weakref" | b"weakproxy" | b"weakcallableproxy" if is_built_in => return Kind::Weak,
                b"weakref.ReferenceType" | b"weakref.ProxyType" | b"weakref.CallableProxyType" => {
                    return Kind::Weak;
                }
                b"collections.deque" => return Kind::Deque,
                b"array.array" => return Kind::Array,
                b"numpy.ndarray" => return Kind::NumpyArray,
                b"_io.BufferedReader" | b"_io.BufferedWriter" | b"_io.BufferedRandom" => {
                    return Kind::Buffered;
                }
                b"_ctypes._CData" => return Kind::CData,
                // A longer name, or one that cannot be read, is none of these.
                _ => {}
            }
            match self.head_word(class, TYPE_BASE) {
                Some(base) if base != 0 => class = base,
                _ => break,
            }
        }
        Kind::Plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpython::layout::RELEASES;
    use crate::fabricated::Unreadable;

    #[test]
    fn words_beyond_the_limit_are_noted() {
        let mut types = Types::new(PageCache::new(&Unreadable), &RELEASES[0]);
        types.numbers_by_address.extend((1..MAX_KNOWN_WORDS as u64).map(|index| (8 * index, None)));
        assert_eq!((types.number_at(8 << 30), types.is_full), (None, false));
        assert_eq!((types.number_at(8 << 31), types.is_full), (None, true));
    }
}
