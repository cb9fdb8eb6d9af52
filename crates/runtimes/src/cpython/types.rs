//! Types: which words lead to one, and what it says of its instances.

use std::collections::HashMap;

use super::layout::{
    GC_HEAD_BYTES, Release, TYPE, TYPE_BASE, TYPE_BASIC_SIZE, TYPE_BYTES, TYPE_FLAGS, TYPE_ITEM_SIZE,
    TYPE_NAME, flags,
};
use crate::batch::Pages;
use strandline_process::memory::word_at;

/// Words that are looked up, types or not; beyond that many others are taken for none.
const MAX_KNOWN: usize = 1 << 20;
/// Types of types of types.
const MAX_DEPTH: usize = 8;
/// The largest instance without its items, and the largest item, that are believed.
const MAX_BASIC_BYTES: u64 = 1 << 20;
const MAX_ITEM_BYTES: u64 = 1 << 16;
/// Base classes that are looked at.
const MAX_BASES: usize = 64;
/// The longest name of a built-in type that is asked for.
const NAME_BYTES: usize = 28;
/// Of words looked up last, so many are kept at hand.
const NEAR: usize = 4096;

/// What an object has besides its own block, and how its size is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As its type says.
    Plain,
    /// An int.
    Int,
    /// A str.
    String,
    /// A list.
    List,
    /// A dict.
    Dict,
    /// A set or frozenset.
    Set,
    /// A bytearray.
    ByteArray,
    /// A deque.
    Deque,
    /// A class.
    Class,
    /// A generator or the like, which has a frame in itself, and no `ob_size`.
    Generator,
    /// A module.
    Module,
    /// A weak reference, which holds nothing.
    Weak,
    /// An array.array.
    Array,
    /// A numpy.ndarray.
    NumpyArray,
    /// A file of the io module with a buffer.
    Buffered,
    /// An instance of a ctypes type.
    CData,
}

/// A type.
#[derive(Clone, Copy, Debug)]
pub struct Type {
    /// Where it is.
    pub address: u64,
    /// Of what kind its instances are.
    pub kind: Kind,
    /// `tp_flags`
    pub flags: u64,
    /// Bytes of an instance without its items.
    pub basic_bytes: u64,
    /// Bytes of an item; 0 where it has none.
    pub item_bytes: u64,
    /// Bytes of its block that stand before an instance (`_PyType_PreHeaderSize`).
    pub before: u64,
}

/// All types that were met.
pub struct Types<'a> {
    release: &'static Release,
    pages: Pages<'a>,
    known: HashMap<u64, Option<u32>>,
    near: Vec<(u64, Option<u32>)>,
    /// By number.
    pub all: Vec<Type>,
}

impl<'a> Types<'a> {
    /// None yet.
    pub fn new(pages: Pages<'a>, release: &'static Release) -> Self {
        Self { release, pages, known: HashMap::new(), near: vec![(0, None); NEAR], all: Vec::new() }
    }

    /// The number of the type at `address`, if there is one.
    #[inline]
    pub fn at(&mut self, address: u64) -> Option<u32> {
        let place = (address >> 4) as usize % NEAR;
        match self.near.get(place) {
            Some(&(known, number)) if known == address => number,
            _ => self.look_up(address, place),
        }
    }

    fn look_up(&mut self, address: u64, place: usize) -> Option<u32> {
        if address == 0 || !address.is_multiple_of(8) || address >= 1 << 47 {
            return None;
        }
        let number = match self.known.get(&address) {
            Some(&number) => number,
            None if self.known.len() >= MAX_KNOWN => None,
            None => {
                let number = self.read(address).map(|of| {
                    self.all.push(of);
                    self.all.len() as u32 - 1
                });
                self.known.insert(address, number);
                number
            }
        };
        if let Some(near) = self.near.get_mut(place) {
            *near = (address, number);
        }
        number
    }

    fn read(&mut self, address: u64) -> Option<Type> {
        let bytes: [u8; TYPE_BYTES] = self.pages.array(address.checked_add(self.release.ahead)?)?;
        let word = |offset: usize| word_at(&bytes, offset).unwrap_or(0);
        let of = word(TYPE_FLAGS);
        let (basic_bytes, item_bytes) = (word(TYPE_BASIC_SIZE), word(TYPE_ITEM_SIZE));
        let is_one = of & flags::READY != 0
            && (16..MAX_BASIC_BYTES).contains(&basic_bytes)
            && item_bytes < MAX_ITEM_BYTES
            && self.is_metatype(word(TYPE as usize), 0);
        if !is_one {
            return None;
        }
        let two_more = if of & self.release.two_more != 0 { 16 } else { 0 };
        let has_links = of & flags::HAVE_GC != 0 && self.release.has_links();
        let before = two_more + if has_links { GC_HEAD_BYTES } else { 0 };
        let kind = self.kind(address, of);
        Some(Type { address, kind, flags: of, basic_bytes, item_bytes, before })
    }

    /// Whether instances of it are types: that goes back to one that is its own type.
    fn is_metatype(&mut self, address: u64, depth: usize) -> bool {
        let head = address.wrapping_add(self.release.ahead);
        let Some(of) = self.pages.word(head.wrapping_add(TYPE_FLAGS as u64)) else { return false };
        let Some(its) = self.pages.word(head.wrapping_add(TYPE)) else { return false };
        of & flags::TYPE != 0
            && of & flags::READY != 0
            && (its == address || depth < MAX_DEPTH && self.is_metatype(its, depth + 1))
    }

    fn kind(&mut self, address: u64, of: u64) -> Kind {
        let by_flag = [
            (flags::LONG, Kind::Int),
            (flags::UNICODE, Kind::String),
            (flags::LIST, Kind::List),
            (flags::DICT, Kind::Dict),
            (flags::TYPE, Kind::Class),
        ];
        let found = by_flag.into_iter().find(|(flag, _)| of & flag != 0);
        found.map_or_else(|| self.kind_by_base(address), |(_, kind)| kind)
    }

    /// Sets and others have no flag: they, and what is derived from them, are told by their built-in type's name.
    fn kind_by_base(&mut self, address: u64) -> Kind {
        let mut at = address;
        for _ in 0..MAX_BASES {
            let head = at.wrapping_add(self.release.ahead);
            let word = |pages: &mut Pages<'_>, offset: usize| pages.word(head.wrapping_add(offset as u64));
            let (Some(of), Some(name)) =
                (word(&mut self.pages, TYPE_FLAGS), word(&mut self.pages, TYPE_NAME))
            else {
                break;
            };
            // A class of the program's own may be called `set`, but has no dot in its name.
            let is_built_in = of & flags::HEAP_TYPE == 0;
            let mut text = [0; NAME_BYTES];
            if self.pages.read(name, &mut text).is_ok() {
                match text.split(|&byte| byte == 0).next().unwrap_or_default() {
                    b"set" | b"frozenset" if is_built_in => return Kind::Set,
                    b"bytearray" if is_built_in => return Kind::ByteArray,
                    b"generator" | b"coroutine" | b"async_generator" if is_built_in => {
                        return Kind::Generator;
                    }
                    b"module" if is_built_in => return Kind::Module,
                    // Up to 3.8 without a dot; proxies are no other.
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
                    _ => {}
                }
            }
            match word(&mut self.pages, TYPE_BASE) {
                Some(base) if base != 0 => at = base,
                _ => break,
            }
        }
        Kind::Plain
    }
}
