//! Names of types, from layouts; no other text of the target is read.
//!
//! A layout (a wrapper in 2.1 to 2.2) points to a classoid, that to a symbol, its name, and that to
//! a string (early-classoid.lisp, objdef.lisp). Characters that no Lisp identifier has are
//! replaced, and such names are counted.

use super::census::TypeKey;
use super::objects::Kinds;
use super::store::HeapCopy;
use crate::sbcl::layout::{
    CLASSOID_NAME, INSTANCE_LOWTAG, LOWTAG_MASK, Layout, OTHER_LOWTAG, ObjectKind, Release,
};

const MAX_NAME_BYTES: usize = 200;

/// Longer strings are not names, or damaged.
const MAX_CHARACTERS: usize = 1024;

/// Reads names.
pub struct Names<'a> {
    /// The copy.
    pub store: &'a HeapCopy,
    /// Kinds of objects.
    pub kinds: &'a Kinds,
    /// The layout of the release.
    pub layout: &'static Layout,
    /// The release.
    pub release: Release,
    /// Number of names that had characters replaced, or are not reported.
    pub replaced: u64,
}

impl Names<'_> {
    /// The name of the type whose layout `layout` points to.
    pub fn type_name(&mut self, layout: u64) -> Option<String> {
        let slot = self.layout.layout_classoid.index(self.release);
        let classoid = self.slot_of(layout, slot, INSTANCE_LOWTAG, ObjectKind::Instance)?;
        let symbol = self.slot_of(classoid, CLASSOID_NAME, INSTANCE_LOWTAG, ObjectKind::Instance)?;
        let name = self.layout.symbol_name;
        let string = self.slot_of(symbol, name.word, OTHER_LOWTAG, ObjectKind::Symbol)? & name.mask;
        let name = self.string(string);
        self.replaced += u64::from(name.is_none());
        name
    }

    /// The name of a type by its key in the census, and whether it is that of a structure or class.
    pub fn of_key(&mut self, key: TypeKey) -> (String, bool) {
        if key <= 0xff {
            return (self.kinds.name(key).to_owned(), false);
        }
        let name = self.type_name(key);
        let is_named = name.is_some();
        (name.unwrap_or_else(|| "instance".to_owned()), is_named)
    }

    /// Word `slot` of the object of `kind` that `pointer` points to.
    fn slot_of(&self, pointer: u64, slot: usize, lowtag: u64, kind: ObjectKind) -> Option<u64> {
        let address = pointer & !LOWTAG_MASK;
        let fits = pointer & LOWTAG_MASK == lowtag && self.kinds.of(self.store.word(address)?) == Some(kind);
        fits.then(|| self.store.word(address + slot as u64 * 8)).flatten()
    }

    fn string(&mut self, pointer: u64) -> Option<String> {
        if pointer & LOWTAG_MASK != OTHER_LOWTAG {
            return None;
        }
        let address = pointer & !LOWTAG_MASK;
        let header = self.store.word(address)?;
        let length = usize::try_from(self.store.word(address + 8)? >> 1).ok()?;
        if length == 0 || length > MAX_CHARACTERS {
            return None;
        }
        let characters: Vec<u32> = match (self.kinds.of(header)?, self.kinds.name(header)) {
            // With a damaged length, bytes after the name would be reported: the string must end
            // with a zero byte and have none before.
            (ObjectKind::Vector(8, 1), _) => {
                let bytes = self.store.bytes_at(address + 16, length + 1);
                let (&last, bytes) = bytes.split_last().filter(|(_, bytes)| bytes.len() == length)?;
                let is_printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
                (last == 0 && bytes.iter().all(is_printable)).then_some(())?;
                bytes.iter().map(|&byte| u32::from(byte)).collect()
            }
            (_, "simple-character-string") => {
                let bytes = self.store.bytes_at(address + 16, length * 4);
                let characters: Vec<u32> =
                    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
                let is_graphic = |&c: &u32| char::from_u32(c).is_some_and(|c| !c.is_control());
                (characters.len() == length && characters.iter().all(is_graphic)).then_some(())?;
                characters
            }
            _ => return None,
        };
        let mut name = String::with_capacity(length);
        let mut replaced = 0;
        for character in characters {
            let character = char::from_u32(character).filter(|&character| is_name_character(character));
            replaced += usize::from(character.is_none());
            let character = character.unwrap_or('?');
            if name.len() + character.len_utf8() > MAX_NAME_BYTES {
                break;
            }
            name.push(character);
        }
        // Text in which much was replaced may be anything: it is not reported.
        if name.is_empty() || replaced * 4 > length {
            return None;
        }
        self.replaced += u64::from(replaced > 0);
        Some(name)
    }
}

/// Whether names of types may contain the character.
fn is_name_character(character: char) -> bool {
    character.is_alphanumeric() || "-+*/@$%^&_=<>.!?:~#[]{}".contains(character)
}
