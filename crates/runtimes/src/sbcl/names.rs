//! Names of types, from layouts; no other text of the target is read.
//!
//! A layout (a wrapper in 2.1 to 2.2) points to a classoid, that to a symbol, its name, and that to
//! a string (early-classoid.lisp, objdef.lisp). Characters that no Lisp identifier has are
//! replaced, and such names are counted.

use super::census::TypeKey;
use super::objects::Kinds;
use super::store::HeapCopy;
use crate::sbcl::layout::{
    BASE_STRING, CHARACTER_STRING, CLASSOID_NAME, INSTANCE_LOWTAG, LOWTAG_MASK, Layout, OTHER_LOWTAG,
    ObjectKind, Release,
};

/// Limit on the length of a reported name; the rest is left out.
const MAX_NAME_BYTES: usize = 200;
/// Limit on the length of a string: longer ones are not names, or damaged.
const MAX_CHARACTERS: usize = 1024;

/// Reads names of types, and counts those that it changes.
pub struct Names<'a> {
    /// The copied objects.
    pub store: &'a HeapCopy,
    /// Kinds of objects.
    pub kinds: &'a Kinds,
    /// The structures of the release.
    pub layout: &'static Layout,
    /// The release.
    pub release: Release,
    /// Number of names that had characters replaced, or are not reported.
    pub replaced_names: u64,
}

/// The name of a type in reports.
pub struct TypeName {
    pub text: String,
    /// Whether it is the name of a structure or class of the program.
    pub is_program_type: bool,
}

impl Names<'_> {
    /// The name of the type whose layout `layout` points to; `None` if it is not found, or no name.
    pub fn type_name(&mut self, layout: u64) -> Option<String> {
        let classoid_word = self.layout.layout_classoid.index(self.release);
        let classoid = self.word_of_object(layout, classoid_word, INSTANCE_LOWTAG, ObjectKind::Instance)?;
        let symbol = self.word_of_object(classoid, CLASSOID_NAME, INSTANCE_LOWTAG, ObjectKind::Instance)?;
        let name_word = self.layout.symbol_name;
        let string = self.word_of_object(symbol, name_word.word, OTHER_LOWTAG, ObjectKind::Symbol)?;
        let name = self.string(string & name_word.mask);
        self.replaced_names += u64::from(name.is_none());
        name
    }

    /// The name of a type by its key in the census.
    pub fn name_of_key(&mut self, key: TypeKey) -> TypeName {
        let name = match key {
            TypeKey::Widetag(widetag) => {
                let text = self.kinds.name(widetag.into()).to_owned();
                return TypeName { text, is_program_type: false };
            }
            TypeKey::Layout(address) => self.type_name(address.into()),
            TypeKey::OtherLayouts => None,
        };
        let is_program_type = name.is_some();
        TypeName { text: name.unwrap_or_else(|| "instance".to_owned()), is_program_type }
    }

    /// Word `index` of the object of `kind` that `pointer` points to.
    fn word_of_object(&self, pointer: u64, index: usize, lowtag: u64, kind: ObjectKind) -> Option<u64> {
        let address = pointer & !LOWTAG_MASK;
        let is_match =
            pointer & LOWTAG_MASK == lowtag && self.kinds.kind_of(self.store.word(address)?) == Some(kind);
        is_match.then(|| self.store.word(address + index as u64 * 8)).flatten()
    }

    /// The name in the string that `pointer` points to; `None` if it is no string, or no name.
    fn string(&mut self, pointer: u64) -> Option<String> {
        let characters = self.characters(pointer)?;
        let mut name = String::with_capacity(characters.len());
        let mut replaced_characters = 0;
        for &character in &characters {
            let character = char::from_u32(character).filter(|&character| is_name_character(character));
            replaced_characters += usize::from(character.is_none());
            let character = character.unwrap_or('?');
            if name.len() + character.len_utf8() > MAX_NAME_BYTES {
                break;
            }
            name.push(character);
        }
        // Text in which much was replaced may be anything: it is not reported.
        if name.is_empty() || replaced_characters * 4 > characters.len() {
            return None;
        }
        self.replaced_names += u64::from(replaced_characters > 0);
        Some(name)
    }

    /// The characters of the string that `pointer` points to.
    fn characters(&self, pointer: u64) -> Option<Vec<u32>> {
        if pointer & LOWTAG_MASK != OTHER_LOWTAG {
            return None;
        }
        let address = pointer & !LOWTAG_MASK;
        let header = self.store.word(address)?;
        let length = usize::try_from(self.store.word(address + 8)? >> 1).ok()?;
        if length == 0 || length > MAX_CHARACTERS {
            return None;
        }
        match (self.kinds.kind_of(header)?, self.kinds.name(header)) {
            // With a damaged length, bytes after the name would be reported: the string must end
            // with a zero byte and have none before.
            (BASE_STRING, _) => {
                let bytes = self.store.bytes_at(address + 16, length + 1);
                let (&final_byte, bytes) = bytes.split_last().filter(|(_, bytes)| bytes.len() == length)?;
                let is_printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
                let is_text = final_byte == 0 && bytes.iter().all(is_printable);
                is_text.then(|| bytes.iter().map(|&byte| u32::from(byte)).collect())
            }
            (_, CHARACTER_STRING) => {
                let bytes = self.store.bytes_at(address + 16, length * 4);
                let characters: Vec<u32> =
                    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
                let is_graphic = |&c: &u32| char::from_u32(c).is_some_and(|c| !c.is_control());
                (characters.len() == length && characters.iter().all(is_graphic)).then_some(characters)
            }
            _ => None,
        }
    }
}

/// Whether names of types may contain the character.
fn is_name_character(character: char) -> bool {
    character.is_alphanumeric() || "-+*/@$%^&_=<>.!?:~#[]{}".contains(character)
}
