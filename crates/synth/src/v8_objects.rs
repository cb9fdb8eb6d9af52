//! Objects on fabricated pages of V8, and the hidden classes that describe them.
//!
//! Hidden classes, prototypes, and the strings and `ScopeInfo`s that name functions are on the
//! read-only page; all else is on the pages that are walked. Offsets that are the same in all
//! versions follow V8's src/objects: map.h, js-function.h, scope-info.tq.

use std::collections::BTreeMap;

use crate::{Image, Rng, Tally};

/// Instance types of V8's classes, as its build exports them. Those of 12.4 serve for all versions.
pub const TYPES: [(&str, u16); 13] = [
    ("FixedArray", 174),
    ("ByteArray", 186),
    ("TrustedFixedArray", 213),
    ("InterpreterData", 207),
    ("WeakFixedArray", 247),
    ("FeedbackVector", 258),
    ("Map", 264),
    ("ScopeInfo", 272),
    ("SharedFunctionInfo", 275),
    ("JSProxy", 291),
    ("JSObject", 1057),
    ("JSFunction", 2066),
    ("JSMap", 2100),
];
/// The first instance type of a context.
pub const FIRST_CONTEXT: u16 = 190;
/// Instance type of strings of one byte per character.
const STRING_TYPE: u64 = 40;
/// Instance type of fillers of one word.
const FILLER_TYPE: u64 = 259;
/// Instance type of free memory.
const FREE_TYPE: u64 = 260;

/// Pointers to objects have this bit.
const TAG: u64 = 1;
/// Small integers and lengths are in the upper half of a word.
const SMI_SHIFT: u32 = 32;
/// In a hidden class (`Map`): the words of an instance, and its type.
const MAP_WORDS: u64 = 8;
/// Where the type is in that word.
const MAP_TYPE_SHIFT: u32 = 32;
/// In a hidden class: `bit_field3`.
const MAP_FLAGS: u64 = 16;
/// In a hidden class: the prototype.
const MAP_PROTOTYPE: u64 = 24;
/// In a hidden class: the constructor.
const MAP_CONSTRUCTOR: u64 = 32;
/// `Map::Bits3::IsPrototypeMapBit`.
const IS_PROTOTYPE: u64 = 1 << 20;
/// In a function: the hidden class of its instances.
const FUNCTION_INITIAL_MAP: u64 = 56;
/// In a string, an array and free memory: the word with the length.
const LENGTH: u64 = 8;
/// Bytes of a string or an array before its characters or elements.
const HEADER_BYTES: u64 = 16;
/// The hash of a string without one (`HashFieldType::kEmpty`).
const EMPTY_HASH: u64 = 3;
/// In a `ScopeInfo`: the flags.
const SCOPE_INFO_FLAGS: u64 = 8;
/// In a `ScopeInfo`: the number of variables.
const SCOPE_INFO_VARIABLES: u64 = 24;
/// Number of variables of the `ScopeInfo`.
const VARIABLES: u64 = 2;
/// `ScopeInfo`'s flags: it has a class's variable, and a function's name.
const SCOPE_FLAGS: u64 = 1 << 10 | 1 << 12;

/// Number of the hidden class of hidden classes.
const META_MAP: u64 = 0;
/// Number of the hidden class of strings.
const STRING_MAP: u64 = 1;
/// Number of the hidden class of arrays.
const ARRAY_MAP: u64 = 2;
/// Number of the hidden class of free memory.
const FREE_SPACE_MAP: u64 = 3;
/// Number of the hidden class of fillers of one word.
const ONE_WORD_MAP: u64 = 4;
/// Number of the hidden class of functions.
const FUNCTION_MAP: u64 = 5;
/// Number of the hidden class of instances of `Base`.
const BASE_MAP: u64 = 6;
/// Number of the hidden class of instances of `Derived`.
const DERIVED_MAP: u64 = 7;
/// Number of the hidden class of prototypes.
const PROTOTYPE_MAP: u64 = 8;
/// Number of the hidden class of `SharedFunctionInfo`s.
const SHARED_INFO_MAP: u64 = 9;
/// Number of the hidden class of `ScopeInfo`s.
const SCOPE_INFO_MAP: u64 = 10;
/// Distance between two hidden classes.
const MAP_BYTES: u64 = 0x80;
/// Words of an instance of `Base`.
const BASE_WORDS: u64 = 6;
/// Words of an instance of `Derived`.
const DERIVED_WORDS: u64 = 7;
/// Words of a function.
const FUNCTION_WORDS: u64 = 8;
/// Offsets from the first hidden class: the prototypes of `Base` and `Derived`.
const PROTOTYPES: [u64; 2] = [0x800, 0x840];
/// From there: the `SharedFunctionInfo`s of both.
const SHARED_INFOS: [u64; 2] = [0x900, 0x980];
/// From there: the function `Base`.
const CONSTRUCTOR: u64 = 0xa00;
/// From there: the names of both.
const NAMES: [u64; 2] = [0xb00, 0xb40];
/// From there: the `ScopeInfo` with the name `Derived`.
const SCOPE_INFO: u64 = 0xc00;

/// Offsets in the objects of a version.
#[derive(Clone, Copy)]
pub struct ObjectOffsets {
    /// In a function: its `SharedFunctionInfo`.
    pub shared_info: u64,
    /// In that: the name, or a `ScopeInfo` with it.
    pub name: u64,
    /// In a `ScopeInfo`: where names of variables are.
    pub scope_names: u64,
    /// How far the flags of a `ScopeInfo` are shifted.
    pub scope_flags_shift: u32,
    /// Bytes that free memory counts as one.
    pub free_unit_bytes: u64,
}

/// Hidden classes, and the counts of the objects that were written.
pub struct Objects {
    offsets: ObjectOffsets,
    /// Address of the first hidden class.
    first_map: u64,
    /// The objects of each type.
    pub types: BTreeMap<String, Tally>,
}

/// What `fill` draws.
#[derive(Clone, Copy)]
enum Kind {
    Base,
    Derived,
    Text,
    Array,
    Function,
    FreeSpace,
}

const KINDS: [Kind; 6] =
    [Kind::Base, Kind::Derived, Kind::Text, Kind::Array, Kind::Function, Kind::FreeSpace];

/// An object to write.
struct ObjectSpec {
    /// The name of its type; `None` for free memory, which is not counted.
    name: Option<&'static str>,
    /// The number of its hidden class.
    map: u64,
    bytes: u64,
    /// Its second word.
    word: u64,
}

impl ObjectSpec {
    const fn counted(name: &'static str, map: u64, bytes: u64, word: u64) -> Self {
        Self { name: Some(name), map, bytes, word }
    }

    const fn free(map: u64, bytes: u64) -> Self {
        Self { name: None, map, bytes, word: 0 }
    }
}

impl Objects {
    /// Writes the hidden classes from `first_map` on, and what they refer to.
    pub fn new(image: &mut Image, first_map: u64, offsets: ObjectOffsets) -> Self {
        let objects = Self { offsets, first_map, types: BTreeMap::new() };
        objects.write_maps(image);
        objects.write_prototypes(image);
        objects.write_names(image);
        objects
    }

    /// Writes the hidden classes.
    fn write_maps(&self, image: &mut Image) {
        let instance_type = |name: &str| {
            let listed = TYPES.iter().find(|(type_name, _)| *type_name == name);
            listed.map_or_else(|| panic!("no instance type {name}"), |(_, number)| u64::from(*number))
        };
        for [map, type_number, words] in [
            [META_MAP, instance_type("Map"), 9],
            [STRING_MAP, STRING_TYPE, 0],
            [ARRAY_MAP, instance_type("FixedArray"), 0],
            [FREE_SPACE_MAP, FREE_TYPE, 0],
            [ONE_WORD_MAP, FILLER_TYPE, 1],
            [FUNCTION_MAP, instance_type("JSFunction"), FUNCTION_WORDS],
            [BASE_MAP, instance_type("JSObject"), BASE_WORDS],
            [DERIVED_MAP, instance_type("JSObject"), DERIVED_WORDS],
            [PROTOTYPE_MAP, instance_type("JSObject"), 4],
            [SHARED_INFO_MAP, instance_type("SharedFunctionInfo"), 12],
            [SCOPE_INFO_MAP, instance_type("ScopeInfo"), 0],
        ] {
            let address = self.map_pointer(map) - TAG;
            image.put_word(address, self.map_pointer(META_MAP));
            image.put_word(address + MAP_WORDS, words | type_number << MAP_TYPE_SHIFT);
        }
        // A prototype's hidden class is flagged as such.
        image.put_word(self.map_pointer(PROTOTYPE_MAP) - TAG + MAP_FLAGS, IS_PROTOTYPE);
    }

    /// Writes the prototypes of both classes, and the base class's constructor, which both have.
    fn write_prototypes(&self, image: &mut Image) {
        let constructor = self.first_map + CONSTRUCTOR;
        for (map, prototype) in [(BASE_MAP, PROTOTYPES[0]), (DERIVED_MAP, PROTOTYPES[1])] {
            let (address, prototype) = (self.map_pointer(map) - TAG, self.first_map + prototype);
            image.put_word(address + MAP_PROTOTYPE, prototype + TAG);
            image.put_word(address + MAP_CONSTRUCTOR, constructor + TAG);
            image.put_word(prototype, self.map_pointer(PROTOTYPE_MAP));
        }
        image.put_word(constructor, self.map_pointer(FUNCTION_MAP));
        image.put_word(constructor + self.offsets.shared_info, self.first_map + SHARED_INFOS[0] + TAG);
    }

    /// Writes what names the functions: strings, `SharedFunctionInfo`s, a `ScopeInfo`.
    fn write_names(&self, image: &mut Image) {
        let scope_info = self.first_map + SCOPE_INFO;
        for (number, name) in ["Base", "Derived"].into_iter().enumerate() {
            let (text, info) = (self.first_map + NAMES[number], self.first_map + SHARED_INFOS[number]);
            image.put_word(text, self.map_pointer(STRING_MAP));
            image.put_word(text + LENGTH, (name.len() as u64) << SMI_SHIFT);
            image.put(text + HEADER_BYTES, name.as_bytes());
            image.put_word(info, self.map_pointer(SHARED_INFO_MAP));
            let name_holder = if number == 0 { text } else { scope_info };
            image.put_word(info + self.offsets.name, name_holder + TAG);
        }
        // Names of the variables, a word for each, the class's variable, then the function's name.
        let names = scope_info + self.offsets.scope_names;
        image.put_word(scope_info, self.map_pointer(SCOPE_INFO_MAP));
        image.put_word(scope_info + SCOPE_INFO_FLAGS, SCOPE_FLAGS << self.offsets.scope_flags_shift);
        image.put_word(scope_info + SCOPE_INFO_VARIABLES, VARIABLES << SMI_SHIFT);
        image.put_row(names, [self.first_map + NAMES[0] + TAG; VARIABLES as usize]);
        image.put_word(names + 8 * (2 * VARIABLES + 1), self.first_map + NAMES[1] + TAG);
    }

    /// The pointer to a hidden class.
    fn map_pointer(&self, number: u64) -> u64 {
        self.first_map + MAP_BYTES * number + TAG
    }

    /// Fills memory with objects: first a function of each class, if there is room.
    pub fn fill(&mut self, image: &mut Image, rng: &mut Rng, start: u64, end: u64) {
        let mut next = start;
        let mut functions = 0;
        while next < end {
            let room_bytes = end - next;
            let must_be_function = functions < 2 && room_bytes >= 8 * FUNCTION_WORDS;
            let kind = if must_be_function { Kind::Function } else { rng.one_of(&KINDS) };
            let drawn = match kind {
                Kind::Base => ObjectSpec::counted("Base", BASE_MAP, 8 * BASE_WORDS, 0),
                Kind::Derived => ObjectSpec::counted("Derived", DERIVED_MAP, 8 * DERIVED_WORDS, 0),
                Kind::Text => {
                    let length = rng.below(200);
                    let bytes = (HEADER_BYTES + length).next_multiple_of(8);
                    ObjectSpec::counted("(string)", STRING_MAP, bytes, length << SMI_SHIFT | EMPTY_HASH)
                }
                Kind::Array => {
                    let length = rng.below(40);
                    let bytes = HEADER_BYTES + 8 * length;
                    ObjectSpec::counted("system / FixedArray", ARRAY_MAP, bytes, length << SMI_SHIFT)
                }
                Kind::Function => {
                    let name = ["function Base", "function Derived"][functions % 2];
                    ObjectSpec::counted(name, FUNCTION_MAP, 8 * FUNCTION_WORDS, 0)
                }
                Kind::FreeSpace => ObjectSpec::free(FREE_SPACE_MAP, 16 + 8 * rng.below(200)),
            };
            // If the object does not fit, a filler takes the rest.
            let ObjectSpec { name, map, bytes, word } = match room_bytes {
                _ if drawn.bytes <= room_bytes => drawn,
                8 => ObjectSpec::free(ONE_WORD_MAP, 8),
                _ => ObjectSpec::free(FREE_SPACE_MAP, room_bytes),
            };
            image.put_word(next, self.map_pointer(map));
            match map {
                ONE_WORD_MAP => {}
                FREE_SPACE_MAP => {
                    let length = bytes / self.offsets.free_unit_bytes;
                    image.put_word(next + LENGTH, length << SMI_SHIFT);
                }
                FUNCTION_MAP => {
                    let number = functions % 2;
                    let class = if number == 0 { BASE_MAP } else { DERIVED_MAP };
                    let info = self.first_map + SHARED_INFOS[number];
                    image.put_word(next + self.offsets.shared_info, info + TAG);
                    image.put_word(next + FUNCTION_INITIAL_MAP, self.map_pointer(class));
                    functions += 1;
                }
                _ => image.put_word(next + 8, word),
            }
            if let Some(name) = name {
                self.count(name, bytes);
            }
            next += bytes;
        }
    }

    /// Writes an array of at most `bytes`.
    pub fn write_array(&mut self, image: &mut Image, address: u64, bytes: u64) {
        let length = (bytes - HEADER_BYTES) / 8;
        image.put_word(address, self.map_pointer(ARRAY_MAP));
        image.put_word(address + LENGTH, length << SMI_SHIFT);
        self.count("system / FixedArray", HEADER_BYTES + 8 * length);
    }

    /// Counts an object of the type `name`.
    fn count(&mut self, name: &str, bytes: u64) {
        self.types.entry(name.to_owned()).or_default().add(bytes);
    }
}
