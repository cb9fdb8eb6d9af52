//! Objects on fabricated pages of V8, and the hidden classes that describe them.
//!
//! Hidden classes, prototypes and what has the names of functions are in the read-only page; all
//! else is on the pages that are walked.

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
/// Instance types of strings of one byte per character, of fillers of one word, and of free memory.
const STRING_TYPE: u64 = 40;
const FILLER_TYPE: u64 = 259;
const FREE_TYPE: u64 = 260;

/// Pointers to objects have this bit.
const TAG: u64 = 1;
/// Small integers and lengths are in the upper half of a word.
const SMI_SHIFT: u32 = 32;
/// Offsets in a hidden class (`Map`).
const MAP_WORDS: u64 = 8;
const MAP_TYPE_SHIFT: u32 = 32;
const MAP_FLAGS: u64 = 16;
const MAP_PROTOTYPE: u64 = 24;
const MAP_CONSTRUCTOR: u64 = 32;
/// `Map::Bits3::IsPrototypeMapBit`.
const IS_PROTOTYPE: u64 = 1 << 20;
/// In a function: the hidden class of its instances.
const FUNCTION_INITIAL_MAP: u64 = 56;
/// `ScopeInfo`'s flags: it has a class's variable, and a function's name.
const SCOPE_FLAGS: u64 = 1 << 10 | 1 << 12;

/// Numbers of the hidden classes, and the distance between two.
const META: u64 = 0;
const TEXT: u64 = 1;
const ARRAY: u64 = 2;
const FREE_SPACE: u64 = 3;
const ONE_WORD: u64 = 4;
const FUNCTION: u64 = 5;
const BASE: u64 = 6;
const DERIVED: u64 = 7;
const PROTOTYPE: u64 = 8;
const SHARED: u64 = 9;
const SCOPE: u64 = 10;
const MAP_BYTES: u64 = 0x80;
/// Offsets from the first hidden class: two prototypes, two `SharedFunctionInfo`s, a function,
/// names, a `ScopeInfo`.
const PROTOTYPES: [u64; 2] = [0x800, 0x840];
const SHARED_INFOS: [u64; 2] = [0x900, 0x980];
const CONSTRUCTOR: u64 = 0xa00;
const NAMES: [u64; 2] = [0xb00, 0xb40];
const SCOPE_INFO: u64 = 0xc00;

/// Offsets in the objects of a version.
#[derive(Clone, Copy)]
pub struct Fields {
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
    fields: Fields,
    /// Address of the first hidden class.
    base: u64,
    /// The objects of each type.
    pub types: BTreeMap<String, Tally>,
}

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
    const fn of_type(name: &'static str, map: u64, bytes: u64, word: u64) -> Self {
        Self { name: Some(name), map, bytes, word }
    }

    const fn free(map: u64, bytes: u64) -> Self {
        Self { name: None, map, bytes, word: 0 }
    }
}

impl Objects {
    /// Writes the hidden classes from `base` on.
    pub fn new(image: &mut Image, base: u64, fields: Fields) -> Self {
        let instance_type = |name: &str| {
            let listed = TYPES.iter().find(|(type_name, _)| *type_name == name);
            listed.map_or_else(|| panic!("no instance type {name}"), |(_, number)| u64::from(*number))
        };
        let objects = Self { fields, base, types: BTreeMap::new() };
        for [map, type_number, words] in [
            [META, instance_type("Map"), 9],
            [TEXT, STRING_TYPE, 0],
            [ARRAY, instance_type("FixedArray"), 0],
            [FREE_SPACE, FREE_TYPE, 0],
            [ONE_WORD, FILLER_TYPE, 1],
            [FUNCTION, instance_type("JSFunction"), 8],
            [BASE, instance_type("JSObject"), 6],
            [DERIVED, instance_type("JSObject"), 7],
            [PROTOTYPE, instance_type("JSObject"), 4],
            [SHARED, instance_type("SharedFunctionInfo"), 12],
            [SCOPE, instance_type("ScopeInfo"), 0],
        ] {
            let address = objects.map_pointer(map) - TAG;
            image.put_word(address, objects.map_pointer(META));
            image.put_word(address + MAP_WORDS, words | type_number << MAP_TYPE_SHIFT);
        }
        // Both have the constructor of the base class.
        for (map, prototype) in [(BASE, PROTOTYPES[0]), (DERIVED, PROTOTYPES[1])] {
            let address = objects.map_pointer(map) - TAG;
            image.put_word(address + MAP_PROTOTYPE, base + prototype + TAG);
            image.put_word(address + MAP_CONSTRUCTOR, base + CONSTRUCTOR + TAG);
            image.put_word(base + prototype, objects.map_pointer(PROTOTYPE));
        }
        // A prototype's hidden class is flagged as such.
        image.put_word(objects.map_pointer(PROTOTYPE) - TAG + MAP_FLAGS, IS_PROTOTYPE);
        image.put_word(base + CONSTRUCTOR, objects.map_pointer(FUNCTION));
        image.put_word(base + CONSTRUCTOR + fields.shared_info, base + SHARED_INFOS[0] + TAG);
        for (number, name) in ["Base", "Derived"].into_iter().enumerate() {
            let (text, info) = (base + NAMES[number], base + SHARED_INFOS[number]);
            image.put_word(text, objects.map_pointer(TEXT));
            image.put_word(text + 8, (name.len() as u64) << SMI_SHIFT);
            image.put(text + 16, name.as_bytes());
            image.put_word(info, objects.map_pointer(SHARED));
            // The name itself, or a `ScopeInfo` with it.
            image.put_word(info + fields.name, if number == 0 { text } else { base + SCOPE_INFO } + TAG);
        }
        // Two variables: their names, a word for each, the class's variable, then the name.
        let names = fields.scope_names;
        image.put_word(base + SCOPE_INFO, objects.map_pointer(SCOPE));
        image.put_word(base + SCOPE_INFO + 8, SCOPE_FLAGS << fields.scope_flags_shift);
        image.put_word(base + SCOPE_INFO + 24, 2 << SMI_SHIFT);
        image.put_row(base + SCOPE_INFO + names, [base + NAMES[0] + TAG; 2]);
        image.put_word(base + SCOPE_INFO + names + 40, base + NAMES[1] + TAG);
        objects
    }

    /// The pointer to a hidden class.
    fn map_pointer(&self, number: u64) -> u64 {
        self.base + MAP_BYTES * number + TAG
    }

    /// Fills memory with objects: first a function of each class, if there is room.
    pub fn fill(&mut self, image: &mut Image, rng: &mut Rng, start: u64, end: u64) {
        let mut next = start;
        let mut functions = 0;
        while next < end {
            let room_bytes = end - next;
            let kind = if functions < 2 && room_bytes >= 64 { 4 } else { rng.below(6) };
            let drawn = match kind {
                0 => ObjectSpec::of_type("Base", BASE, 48, 0),
                1 => ObjectSpec::of_type("Derived", DERIVED, 56, 0),
                2 => {
                    let length = rng.below(200);
                    let bytes = (16 + length).next_multiple_of(8);
                    ObjectSpec::of_type("(string)", TEXT, bytes, length << SMI_SHIFT | 3)
                }
                3 => {
                    let length = rng.below(40);
                    ObjectSpec::of_type("system / FixedArray", ARRAY, 16 + 8 * length, length << SMI_SHIFT)
                }
                4 => {
                    ObjectSpec::of_type(["function Base", "function Derived"][functions % 2], FUNCTION, 64, 0)
                }
                _ => ObjectSpec::free(FREE_SPACE, 16 + 8 * rng.below(200)),
            };
            // If the object does not fit, a filler takes the rest.
            let ObjectSpec { name, map, bytes, word } = match room_bytes {
                _ if drawn.bytes <= room_bytes => drawn,
                8 => ObjectSpec::free(ONE_WORD, 8),
                _ => ObjectSpec::free(FREE_SPACE, room_bytes),
            };
            image.put_word(next, self.map_pointer(map));
            match map {
                ONE_WORD => {}
                FREE_SPACE => image.put_word(next + 8, (bytes / self.fields.free_unit_bytes) << SMI_SHIFT),
                FUNCTION => {
                    let number = functions % 2;
                    let class = if number == 0 { BASE } else { DERIVED };
                    image.put_word(next + self.fields.shared_info, self.base + SHARED_INFOS[number] + TAG);
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
        let length = (bytes - 16) / 8;
        image.put_word(address, self.map_pointer(ARRAY));
        image.put_word(address + 8, length << SMI_SHIFT);
        self.count("system / FixedArray", 16 + 8 * length);
    }

    /// Counts an object of the type `name`.
    fn count(&mut self, name: &str, bytes: u64) {
        self.types.entry(name.to_owned()).or_default().add(bytes);
    }
}
