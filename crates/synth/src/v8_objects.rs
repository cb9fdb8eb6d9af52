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
const STRING: u16 = 40;
const FILLER: u16 = 259;
const FREE: u16 = 260;

/// Where a version has what.
#[derive(Clone, Copy)]
pub struct Fields {
    /// In a function: its `SharedFunctionInfo`.
    pub shared: u64,
    /// In that: the name, or a `ScopeInfo` with it.
    pub name: u64,
    /// In a `ScopeInfo`: where names of variables are, and how far its flags are shifted.
    pub scope: (u64, u32),
    /// Bytes that free memory counts as one.
    pub free: u64,
}

/// Hidden classes, and the counts of what was written.
pub struct Objects {
    fields: Fields,
    base: u64,
    /// The objects of each type.
    pub types: BTreeMap<String, Tally>,
}

/// Numbers of the hidden classes; each has 0x80 bytes.
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
/// Addresses after them: two prototypes, two `SharedFunctionInfo`s, a function, names.
const PROTOTYPES: [u64; 2] = [0x800, 0x840];
const SHARED_INFOS: [u64; 2] = [0x900, 0x980];
const CONSTRUCTOR: u64 = 0xa00;
const NAMES: [u64; 2] = [0xb00, 0xb40];
const SCOPE_INFO: u64 = 0xc00;

impl Objects {
    /// Writes the hidden classes from `base` on.
    pub fn new(image: &mut Image, base: u64, fields: Fields) -> Self {
        let number = |name: &str| TYPES.iter().find(|of| of.0 == name).map_or(0, |of| of.1);
        let objects = Self { fields, base, types: BTreeMap::new() };
        for (map, kind, words) in [
            (META, number("Map"), 9),
            (TEXT, STRING, 0),
            (ARRAY, number("FixedArray"), 0),
            (FREE_SPACE, FREE, 0),
            (ONE_WORD, FILLER, 1),
            (FUNCTION, number("JSFunction"), 8),
            (BASE, number("JSObject"), 6),
            (DERIVED, number("JSObject"), 7),
            (PROTOTYPE, number("JSObject"), 4),
            (SHARED, number("SharedFunctionInfo"), 12),
            (SCOPE, number("ScopeInfo"), 0),
        ] {
            let at = objects.map(map) - 1;
            image.put_word(at, objects.map(META));
            image.put_word(at + 8, words | u64::from(kind) << 32);
        }
        // Both have the constructor of the base class.
        for (map, prototype) in [(BASE, PROTOTYPES[0]), (DERIVED, PROTOTYPES[1])] {
            image.put_word(objects.map(map) - 1 + 24, base + prototype + 1);
            image.put_word(objects.map(map) - 1 + 32, base + CONSTRUCTOR + 1);
            image.put_word(base + prototype, objects.map(PROTOTYPE));
        }
        // A prototype's hidden class is flagged as such.
        image.put_word(objects.map(PROTOTYPE) - 1 + 16, 1 << 20);
        image.put_word(base + CONSTRUCTOR, objects.map(FUNCTION));
        image.put_word(base + CONSTRUCTOR + fields.shared, base + SHARED_INFOS[0] + 1);
        for (number, name) in ["Base", "Derived"].into_iter().enumerate() {
            let (at, info) = (base + NAMES[number], base + SHARED_INFOS[number]);
            image.put_word(at, objects.map(TEXT));
            image.put_word(at + 8, (name.len() as u64) << 32);
            image.put(at + 16, name.as_bytes());
            image.put_word(info, objects.map(SHARED));
            image.put_word(info + fields.name, if number == 0 { at } else { base + SCOPE_INFO } + 1);
        }
        // Two variables: their names, a word for each, the class's variable, then the name.
        let (names, shift) = fields.scope;
        image.put_word(base + SCOPE_INFO, objects.map(SCOPE));
        image.put_word(base + SCOPE_INFO + 8, (1 << 10 | 1 << 12) << shift);
        image.put_word(base + SCOPE_INFO + 24, 2 << 32);
        image.put_row(base + SCOPE_INFO + names, [base + NAMES[0] + 1; 2]);
        image.put_word(base + SCOPE_INFO + names + 40, base + NAMES[1] + 1);
        objects
    }

    /// The pointer to a hidden class.
    fn map(&self, number: u64) -> u64 {
        self.base + 0x80 * number + 1
    }

    /// Fills memory with objects: first a function of each class, if there is room.
    pub fn fill(&mut self, image: &mut Image, dice: &mut Rng, start: u64, end: u64) {
        let mut at = start;
        let mut functions = 0;
        while at < end {
            let left = end - at;
            let kind = if functions < 2 && left >= 64 { 4 } else { dice.below(6) };
            let (name, map, bytes, word) = match kind {
                0 => ("Base", BASE, 48, 0),
                1 => ("Derived", DERIVED, 56, 0),
                2 => {
                    let length = dice.below(200);
                    ("(string)", TEXT, (16 + length).next_multiple_of(8), length << 32 | 3)
                }
                3 => {
                    let length = dice.below(40);
                    ("system / FixedArray", ARRAY, 16 + 8 * length, length << 32)
                }
                4 => (["function Base", "function Derived"][functions % 2], FUNCTION, 64, 0),
                _ => ("", FREE_SPACE, 16 + 8 * dice.below(200), 0),
            };
            let fits = bytes <= left;
            let (name, map, bytes) = match fits {
                true => (name, map, bytes),
                false if left == 8 => ("", ONE_WORD, 8),
                false => ("", FREE_SPACE, left),
            };
            image.put_word(at, self.map(map));
            match map {
                ONE_WORD => {}
                FREE_SPACE => image.put_word(at + 8, (bytes / self.fields.free) << 32),
                FUNCTION => {
                    let number = functions % 2;
                    image.put_word(at + self.fields.shared, self.base + SHARED_INFOS[number] + 1);
                    image.put_word(at + 56, self.map(if number == 0 { BASE } else { DERIVED }));
                    functions += 1;
                }
                _ => image.put_word(at + 8, word),
            }
            self.count(name, bytes);
            at += bytes;
        }
    }

    /// Writes an array of at most `bytes` at `at`.
    pub fn array(&mut self, image: &mut Image, at: u64, bytes: u64) {
        let length = (bytes - 16) / 8;
        image.put_word(at, self.map(ARRAY));
        image.put_word(at + 8, length << 32);
        self.count("system / FixedArray", 16 + 8 * length);
    }

    fn count(&mut self, name: &str, bytes: u64) {
        if !name.is_empty() {
            self.types.entry(name.to_owned()).or_default().add(bytes);
        }
    }
}
