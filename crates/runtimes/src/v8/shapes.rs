//! V8's hidden classes (`Map`), and the sizes of their objects.
//!
//! The first word of an object is a pointer to its hidden class, which has its instance type and
//! its size, or 0 if that is in the object. A word counts as such a pointer if it leads to an
//! object whose own hidden class is that of hidden classes.

use std::collections::HashMap;

use super::instance_types::{FIRST_NONSTRING, InstanceTypes};
use super::layout::{
    DispatchTable, IS_ONE_BYTE, MAP_BIT_FIELD3, MAP_INSTANCE_TYPE, MAP_SIZE_IN_WORDS, ObjectLayout,
    STRING_LENGTH,
};
use super::references::References;
use crate::batch::PageCache;
use strandline_process::memory::{half_word_at, word_at};

/// `WasmByte1` and `WasmByte2` in a `Map`: the words of a `WasmStruct`; the former, the bytes of an
/// element of a `WasmArray`.
const MAP_WASM_SIZE: u64 = 9;
/// Bytes before the elements of a `WasmArray`.
const WASM_ARRAY_HEADER: u64 = 24;
/// Offset of the number of these elements.
const WASM_ARRAY_LENGTH: usize = 16;
/// `prototype_` in a `Map`.
const MAP_PROTOTYPE: u64 = 24;
/// `IsPrototypeMapBit` in `bit_field3_`.
const IS_PROTOTYPE: u32 = 1 << 20;
/// Offset of the length of an array, a small integer in the upper half of its word.
const SMI_LENGTH: usize = 12;
/// Offset of a 32-bit length, or of the first of two.
const LENGTH_32: usize = 8;
/// Bits of the length in a word that also has a hash, in a `PropertyArray`
/// (`src/objects/property-array.h`).
const PROPERTY_LENGTH_MASK: u64 = 0x3ff;
/// Offset of the capacity, a small integer, of a table with keys and values.
const TABLE_CAPACITY: u64 = 32;
/// Offset of the first pair of such a table.
const TABLE_PAIRS: u64 = 40;
/// Bytes of a pair.
const PAIR_BYTES: u64 = 16;
/// Maximum pairs of a table that are read; [`TableEntries::is_cut`] is set if it has more.
const MAX_TABLE_PAIRS: u64 = 1 << 16;
/// Bytes of an object that are read for its size.
pub const HEAD_BYTES: usize = 16;
/// Number of entries of the cache of hidden classes found last (a power of two).
const RECENT_SHAPES: usize = 4096;
/// Maximum number of hidden classes; programs with many have a hundred thousand. Objects of further
/// ones count as unread.
const MAX_SHAPES: usize = 1 << 19;

/// How the size of an object is determined; headers, entries and units are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizeRule {
    /// By the hidden class.
    Fixed(u64),
    /// A header, and as many entries as its length field, a small integer, states.
    Array { header: u64, entry: u64 },
    /// A header, and as many entries as a 32-bit length states.
    Vector { header: u64, entry: u64 },
    /// A header, and as many entries of a word as the last word of the header states.
    Counted { header: u64 },
    /// A string with its characters: one or two bytes each.
    Text { character: u64 },
    /// `DescriptorArray`: a 16-bit length.
    Descriptors,
    /// `PropertyArray`.
    Properties,
    /// `FeedbackMetadata`: bits for each slot, six slots in 32 bits, and 16 bits for each closure.
    Metadata { has_closures: bool },
    /// `PreparseData`: bytes, then children.
    Preparse,
    /// `BigInt`: the number of digits above the sign.
    Digits,
    /// `FreeSpace`: bytes or words.
    Free { unit: u64 },
    /// `WasmArray`: a 32-bit length after the properties.
    WasmArray { entry: u64 },
    /// Up to the next object (`ScopeInfo`, none of whose fields points to a hidden class).
    ToNext,
    /// Not known.
    Unknown,
}

/// A hidden class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The pointer to it.
    pub map: u64,
    pub instance_type: u16,
    size_rule: SizeRule,
    /// What the bytes of its objects are.
    pub content: Content,
    /// Whether its objects are prototypes of others.
    pub is_prototype: bool,
    /// Which words of its objects are references.
    pub references: References,
}

impl Shape {
    /// Whether the size of its objects is known only if all of an object and the next are read.
    pub fn is_sized_by_scan(self) -> bool {
        self.size_rule == SizeRule::ToNext
    }
}

/// The hidden class and the size of an object, by its first words.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The number of its hidden class in [`Shapes::all`].
    pub number: u32,
    /// Its hidden class.
    pub shape: Shape,
    /// Its size in bytes.
    pub size: u64,
}

/// What the bytes of an object are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// An object.
    Object,
    /// A function, which is counted by its name.
    Function,
    /// A view of an ArrayBuffer, as Buffers are.
    TypedArray,
    /// A DataView.
    DataView,
    /// Free memory.
    Free,
}

/// An entry of a table: a key and a value, as the words of the table or as addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEntry {
    pub key: u64,
    pub value: u64,
}

/// The entries of a table that were read.
#[derive(Debug)]
pub struct TableEntries {
    pub entries: Vec<TableEntry>,
    /// Whether the table has more than [`MAX_TABLE_PAIRS`].
    pub is_cut: bool,
}

/// A word that was looked up, and the number of the hidden class that it leads to.
#[derive(Clone, Copy, Default)]
struct RecentShape {
    word: u64,
    number: Option<u32>,
}

/// The hidden classes that were found.
pub struct Shapes<'a> {
    types: &'a InstanceTypes,
    layout: &'a ObjectLayout,
    /// Reads what is outside the page that is walked.
    pub cache: PageCache<'a>,
    /// Numbers of hidden classes by the pointer to them.
    numbers: HashMap<u64, u32>,
    /// Cache of answers of [`Shapes::number`], by bits of the word.
    recent: Vec<RecentShape>,
    /// The hidden classes by number.
    pub all: Vec<Shape>,
}

impl<'a> Shapes<'a> {
    /// Creates an empty set, which reads with `cache`.
    pub fn new(types: &'a InstanceTypes, layout: &'a ObjectLayout, cache: PageCache<'a>) -> Self {
        Self {
            types,
            layout,
            cache,
            numbers: HashMap::new(),
            recent: vec![RecentShape::default(); RECENT_SHAPES],
            all: Vec::new(),
        }
    }

    /// The numbers of V8's classes.
    pub fn types(&self) -> &'a InstanceTypes {
        self.types
    }

    /// Returns the number of the hidden class that `word` leads to; `None` if it leads to none, or
    /// at the limit.
    #[inline]
    pub fn number(&mut self, word: u64) -> Option<u32> {
        let entry = (word >> 3) as usize & (RECENT_SHAPES - 1);
        match self.recent.get(entry) {
            Some(recent) if recent.word == word => recent.number,
            _ => self.look_up(word, entry),
        }
    }

    /// Finds or reads the hidden class, and keeps the answer in an entry of the cache.
    fn look_up(&mut self, word: u64, entry: usize) -> Option<u32> {
        let number = self.numbers.get(&word).copied().or_else(|| self.read(word));
        if let Some(recent) = self.recent.get_mut(entry) {
            *recent = RecentShape { word, number };
        }
        number
    }

    /// The address of the object that a pointer leads to; `None` for a small integer or a weak
    /// pointer.
    pub fn object_at(word: u64) -> Option<u64> {
        (word & 7 == 1).then_some(word & !7)
    }

    /// The word at an offset of an object; `None` if it cannot be read.
    pub fn field(&mut self, object: u64, offset: u64) -> Option<u64> {
        self.cache.word(object.checked_add(offset)?)
    }

    /// The object to which an object refers at an offset; `None` if there is no strong reference.
    pub fn target(&mut self, object: u64, offset: u64) -> Option<u64> {
        self.field(object, offset).and_then(Self::object_at)
    }

    /// Whether the object at `address` is of V8's class `class`, which has one instance type.
    pub fn is_of_class(&mut self, address: u64, class: &str) -> bool {
        self.type_at(address).is_some_and(|number| self.types.number(class) == Some(number))
    }

    /// The name of V8's class of the object at `address`.
    pub fn class_at(&mut self, address: u64) -> Option<&'a str> {
        self.types.name(self.type_at(address)?)
    }

    /// Returns the entries of a table of V8's with keys and values
    /// (`src/objects/hash-table.h`), in no order, empty ones included: the first
    /// [`MAX_TABLE_PAIRS`], and only those before one that cannot be read.
    pub fn entries_of_table(&mut self, table: u64) -> TableEntries {
        let capacity = self.field(table, TABLE_CAPACITY).unwrap_or(0) >> 32;
        let entry = |number: u64| {
            let (key, value) = self.cache.pair(table.checked_add(TABLE_PAIRS + number * PAIR_BYTES)?)?;
            Some(TableEntry { key, value })
        };
        let entries = (0..capacity.min(MAX_TABLE_PAIRS)).map_while(entry).collect();
        TableEntries { entries, is_cut: capacity > MAX_TABLE_PAIRS }
    }

    /// The prototype of the objects of a hidden class.
    pub fn prototype(&mut self, map: u64) -> Option<u64> {
        self.field(Self::object_at(map)?, MAP_PROTOTYPE)
    }

    /// The instance type of the object at `address`.
    pub fn type_at(&mut self, address: u64) -> Option<u16> {
        let map = self.target(address, 0)?;
        self.instance_type(map)
    }

    /// The instance type in the hidden class at `map`.
    fn instance_type(&mut self, map: u64) -> Option<u16> {
        Some(u16::from_le_bytes(self.cache.array(map.checked_add(MAP_INSTANCE_TYPE)?)?))
    }

    /// Reads the hidden class that a pointer leads to; returns its number.
    fn read(&mut self, word: u64) -> Option<u32> {
        let map = Self::object_at(word)?;
        let meta_map = self.target(map, 0)?;
        // The hidden class of hidden classes is its own, one for each context from 13 on.
        let is_map = self.instance_type(meta_map).is_some_and(|number| self.types.is_map(number))
            && self.type_at(meta_map).is_some_and(|number| self.types.is_map(number));
        if !is_map {
            return None;
        }
        let instance_type = self.instance_type(map)?;
        let [words] = self.cache.array(map.checked_add(MAP_SIZE_IN_WORDS)?)?;
        let size_rule = match (words, self.types.name(instance_type)) {
            // Their hidden classes have sizes in two bytes for other purposes
            // (`src/wasm/wasm-objects.h`).
            (0, Some("WasmStruct")) => {
                let bytes: [u8; 2] = self.cache.array(map.checked_add(MAP_WASM_SIZE)?)?;
                SizeRule::Fixed(u64::from(u16::from_le_bytes(bytes)) * 8)
            }
            (0, Some("WasmArray")) => {
                let [entry] = self.cache.array(map.checked_add(MAP_WASM_SIZE)?)?;
                SizeRule::WasmArray { entry: u64::from(entry) }
            }
            (0, _) => size_rule(instance_type, self.types, self.layout),
            (words, _) => SizeRule::Fixed(u64::from(words) * 8),
        };
        let content = match self.types.name(instance_type) {
            Some("FreeSpace" | "Filler") => Content::Free,
            Some("JSTypedArray") => Content::TypedArray,
            Some("JSDataView" | "JSRabGsabDataView") => Content::DataView,
            _ if self.types.is_function(instance_type) => Content::Function,
            _ => Content::Object,
        };
        let is_prototype = self.cache.word32(map.checked_add(MAP_BIT_FIELD3)?)? & IS_PROTOTYPE != 0;
        let number = u32::try_from(self.all.len()).ok().filter(|_| self.all.len() < MAX_SHAPES)?;
        let references = References::of_type(instance_type, self.types, self.layout);
        self.numbers.insert(word, number);
        self.all.push(Shape { map: word, instance_type, size_rule, content, is_prototype, references });
        Some(number)
    }

    /// Returns the hidden class of the object at `address`.
    pub fn of_object(&mut self, address: u64) -> Option<Shape> {
        let word = self.cache.word(address)?;
        let number = self.number(word)?;
        self.all.get(number as usize).copied()
    }

    /// Decodes an object that begins with `bytes`, which reach up to where objects end; `None` if
    /// its hidden class or its size is not known.
    #[inline]
    pub fn head(&mut self, bytes: &[u8]) -> Option<Head> {
        let number = self.number(word_at(bytes, 0)?)?;
        let shape = *self.all.get(number as usize)?;
        let size = self.object_size(shape, bytes)?;
        Some(Head { number, shape, size })
    }

    /// Returns the size of an object with this hidden class that begins with `bytes`.
    fn object_size(&mut self, shape: Shape, bytes: &[u8]) -> Option<u64> {
        let half = |at: usize| half_word_at(bytes, at).map(u64::from);
        let length = || half(SMI_LENGTH);
        let array = |header: u64, count: u64, entry: u64| Some((header + count * entry).next_multiple_of(8));
        match shape.size_rule {
            SizeRule::Fixed(bytes) => Some(bytes),
            SizeRule::Array { header, entry } => array(header, length()?, entry),
            SizeRule::Vector { header, entry } => array(header, half(LENGTH_32)?, entry),
            SizeRule::Counted { header } => array(header, half(usize::try_from(header).ok()? - 4)?, 8),
            SizeRule::WasmArray { entry } => array(WASM_ARRAY_HEADER, half(WASM_ARRAY_LENGTH)?, entry),
            SizeRule::Text { character } => array(16, half(STRING_LENGTH)?, character),
            SizeRule::Descriptors => array(self.layout.descriptor_header, half(LENGTH_32)? & 0xffff, 24),
            SizeRule::Properties => array(16, length()? & PROPERTY_LENGTH_MASK, 8),
            SizeRule::Metadata { has_closures } => {
                let closures = if has_closures { half(SMI_LENGTH)? } else { 0 };
                array(16 + half(LENGTH_32)?.div_ceil(6) * 4, closures, 2)
            }
            SizeRule::Preparse => Some((16 + half(LENGTH_32)?).next_multiple_of(8) + half(SMI_LENGTH)? * 8),
            SizeRule::Digits => array(16, half(LENGTH_32)? >> 1 & 0x3fff_ffff, 8),
            SizeRule::Free { unit } => Some(length()? * unit),
            SizeRule::ToNext => Some(self.size_to_next(bytes)),
            SizeRule::Unknown => None,
        }
    }

    /// Returns the distance to the next pointer to a hidden class, or to the end of `bytes`.
    fn size_to_next(&mut self, bytes: &[u8]) -> u64 {
        let mut offsets = (HEAD_BYTES..bytes.len()).step_by(8);
        let next = offsets.find(|&at| word_at(bytes, at).is_some_and(|word| self.number(word).is_some()));
        next.unwrap_or(bytes.len()) as u64
    }
}

/// Returns how the size of an object is determined whose hidden class does not have it, by the
/// definitions of its class in `src/objects/*.tq` and `*.h`.
fn size_rule(instance_type: u16, types: &InstanceTypes, layout: &ObjectLayout) -> SizeRule {
    if instance_type < FIRST_NONSTRING {
        let character = if u32::from(instance_type) & IS_ONE_BYTE != 0 { 1 } else { 2 };
        return SizeRule::Text { character };
    }
    let array = |header| SizeRule::Array { header, entry: 8 };
    // Up to V8 11 also ArrayList, ScriptContextTable and others.
    if types.is_fixed_array(instance_type) {
        return array(16);
    }
    match types.name(instance_type).unwrap_or_default() {
        "ByteArray" | "TrustedByteArray" => SizeRule::Array { header: 16, entry: 1 },
        "BytecodeArray" => SizeRule::Array { header: layout.bytecode_header, entry: 1 },
        "FixedDoubleArray"
        | "WeakFixedArray"
        | "TransitionArray"
        | "ClosureFeedbackCellArray"
        | "EmbedderDataArray"
        | "TrustedFixedArray"
        | "ProtectedFixedArray"
        | "TrustedWeakFixedArray"
        | "ProtectedWeakFixedArray"
        | "Context" => array(16),
        "NativeContext" | "WeakArrayList" | "DependentCode" | "ArrayList" => array(24),
        "ObjectBoilerplateDescription" | "ScriptContextTable" | "SloppyArgumentsElements" => array(32),
        "RegExpMatchInfo" => array(40),
        "DoubleStringCache" | "CoverageInfo" => SizeRule::Vector { header: 16, entry: 16 },
        "WasmDispatchTable" => {
            let DispatchTable { header, entry } = layout.dispatch_table;
            SizeRule::Array { header, entry }
        }
        "WasmDispatchTableForImports" => SizeRule::Vector { header: 24, entry: 16 },
        "WasmTypeInfo" => SizeRule::Counted { header: layout.type_info_header },
        "DescriptorArray" | "StrongDescriptorArray" => SizeRule::Descriptors,
        "PropertyArray" => SizeRule::Properties,
        "FeedbackVector" => SizeRule::Vector { header: layout.feedback_header, entry: 8 },
        "FeedbackMetadata" => SizeRule::Metadata { has_closures: layout.has_closure_counts },
        "PreparseData" => SizeRule::Preparse,
        "BigInt" => SizeRule::Digits,
        "FreeSpace" => SizeRule::Free { unit: layout.free_unit },
        "ScopeInfo" => SizeRule::ToNext,
        _ => SizeRule::Unknown,
    }
}
