//! Names of types: module and class name. No other text of the target is output.

use super::layout::{
    DICT_KEYS, Release, STRING_ASCII, STRING_COMPACT, STRING_KIND, STRING_LENGTH, STRING_STATE, TYPE_DICT,
    TYPE_NAME, flags,
};
use super::objects;
use super::types::Type;
use crate::batch::PageCache;
use strandline_process::map::AddressSpace;
use strandline_process::memory::{half_word_at, word_at};

/// Limit on the length of a name; longer ones are not read.
const MAX_NAME_BYTES: usize = 200;
/// Limit on entries of a class searched for its module; beyond, its name has none.
const MAX_ENTRIES: u64 = 4096;
/// Bytes read of a str before its characters: up to its state.
const STRING_HEAD_BYTES: usize = 40;
/// Key of the module in a class's dict.
const MODULE: &[u8] = b"__module__";

/// Reads names of types.
pub struct Names<'a> {
    /// The pages that names are read from.
    pub pages: PageCache<'a>,
    release: &'static Release,
    space: &'a AddressSpace,
}

impl<'a> Names<'a> {
    /// A reader that reads with `pages`.
    pub fn new(pages: PageCache<'a>, release: &'static Release, space: &'a AddressSpace) -> Self {
        Self { pages, release, space }
    }

    /// Returns the name of a type: `module.qualname`, without a module for built-in types.
    pub fn type_name(&mut self, object_type: &Type) -> String {
        let name = if object_type.flags & flags::HEAP_TYPE != 0 {
            self.class_name(object_type)
        } else {
            self.built_in_name(object_type)
        };
        name.unwrap_or_else(|| format!("type at {:#x}", object_type.address))
    }

    fn class_name(&mut self, object_type: &Type) -> Option<String> {
        let name = self.pages.word(object_type.address.checked_add(self.release.qualname)?)?;
        let name = self.read_text(name)?;
        Some(match self.module_name(object_type).as_deref() {
            None | Some("builtins") => name,
            Some(module) => format!("{module}.{name}"),
        })
    }

    /// Reads the C string that a built-in type names; `None` unless it is in a mapped file.
    fn built_in_name(&mut self, object_type: &Type) -> Option<String> {
        let at = self.head_word(object_type.address, TYPE_NAME)?;
        self.space.find(at).filter(|mapping| mapping.has_file())?;
        checked_name(&c_string(&mut self.pages, at, MAX_NAME_BYTES)?)
    }

    /// Reads a word of the object at `at`, by its offset in [`super::layout`].
    pub fn head_word(&mut self, at: u64, offset: usize) -> Option<u64> {
        self.pages.word(at.checked_add(self.release.header_prefix_bytes)?.checked_add(offset as u64)?)
    }

    /// Reads the name of a class's module; `None` if it was not found.
    fn module_name(&mut self, object_type: &Type) -> Option<String> {
        let dict = self.head_word(object_type.address, TYPE_DICT)?;
        let keys = self.head_word(dict, DICT_KEYS)?;
        let table = objects::read_keys(&mut self.pages, self.release, keys)?;
        for index in 0..table.written_entries.min(MAX_ENTRIES) {
            let (key, value) = table.key_and_value(&mut self.pages, index)?;
            if key != 0 && self.read_characters(key).as_deref() == Some(MODULE) {
                return self.read_text(value);
            }
        }
        None
    }

    /// Reads a str that could be a name; `None` for any other.
    pub fn read_text(&mut self, at: u64) -> Option<String> {
        checked_name(&self.read_characters(at)?)
    }

    /// Reads the characters of a str of at most [`MAX_NAME_BYTES`] in ASCII; `None` for any other.
    fn read_characters(&mut self, at: u64) -> Option<Vec<u8>> {
        let head: [u8; STRING_HEAD_BYTES] =
            self.pages.array(at.checked_add(self.release.header_prefix_bytes)?)?;
        let length = usize::try_from(word_at(&head, STRING_LENGTH)?).ok()?;
        let state = half_word_at(&head, STRING_STATE)? >> self.release.kind_shift;
        // One byte a character, in its own block, ASCII.
        let is_plain =
            state & (STRING_KIND | STRING_COMPACT | STRING_ASCII) == 1 | STRING_COMPACT | STRING_ASCII;
        if !is_plain || length > MAX_NAME_BYTES {
            return None;
        }
        let mut bytes = vec![0; length];
        self.pages.read(at.checked_add(self.release.string_bytes.ascii)?, &mut bytes).ok()?;
        Some(bytes)
    }
}

/// Reads the C string at `at`; `None` if it cannot be read to its end, or if it has `max_bytes` or
/// more. What follows it may be on a page that is not resident.
pub fn c_string(pages: &mut PageCache<'_>, at: u64, max_bytes: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; max_bytes];
    let read_bytes = pages.read(at, &mut bytes).map_or_else(|error| error.read_bytes, |()| max_bytes);
    let length = bytes.get(..read_bytes)?.iter().position(|&byte| byte == 0)?;
    bytes.truncate(length);
    Some(bytes)
}

/// Returns `bytes` as a name; `None` if they contain other characters than class names have
/// (`Outer.<locals>.Inner`).
fn checked_name(bytes: &[u8]) -> Option<String> {
    let is_name_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.<>-[], ".contains(byte);
    (!bytes.is_empty() && bytes.iter().all(is_name_byte)).then(|| String::from_utf8_lossy(bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use strandline_process::memory::Memory;

    /// A readable page at 0 that ends with a name and its 0.
    struct NameAtEnd;

    impl Memory for NameAtEnd {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            let mut page = [b'x'; 4096];
            page[4092..].copy_from_slice(b"set\0");
            let readable = page.get(address as usize..).unwrap_or_default();
            let length = readable.len().min(buffer.len());
            buffer[..length].copy_from_slice(&readable[..length]);
            length
        }
    }

    #[test]
    fn a_name_before_a_page_that_cannot_be_read_is_read() {
        let name = |at: u64| c_string(&mut PageCache::new(&NameAtEnd), at, 28);
        assert_eq!(name(4092).as_deref(), Some(b"set".as_slice()));
        assert_eq!((name(0), name(4096)), (None, None));
    }
}
