//! Names of code: subs, packages and lexicals. No other text of the target is reported.

use super::objects::Head;
use crate::batch::PageCache;
use crate::perl::layout::{self as layout, Layout, flags, padname, sub};
use std::borrow::Cow;
use strandline_process::memory::{half_word_at, word_at};

/// Limit on the length of a reported name; the rest is left out.
const MAX_NAME_BYTES: usize = 200;

/// Reads names, and counts those that it changes; a name is `None` if it cannot be read.
pub struct Names<'a> {
    pages: PageCache<'a>,
    release: &'static Layout,
    /// `PL_main_cv`: the program's file.
    main_cv: u64,
    /// Number of names that were too long or had characters that no name has.
    pub replaced_count: u64,
}

/// A name and the stash of its package.
struct ScopedName {
    name: String,
    stash: u64,
}

/// The name of a sub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sub {
    /// `main::build_report`, `main (file scope)`.
    pub name: String,
    pub is_closure: bool,
}

impl<'a> Names<'a> {
    /// Creates a reader of names that reads with `pages`.
    pub fn new(pages: PageCache<'a>, release: &'static Layout, main_cv: u64) -> Self {
        Self { pages, release, main_cv, replaced_count: 0 }
    }

    /// The name of the sub whose head is at `address`.
    pub fn sub(&mut self, address: u64) -> Option<Sub> {
        let head = self.head(address)?;
        let body: [u8; sub::BYTES] = self.pages.array(head.any)?;
        let sub_flags = half_word_at(&body, sub::FLAGS)?;
        let is_closure = sub_flags & sub::CLONED != 0;
        let stash = word_at(&body, sub::STASH)?;
        // A file or an eval, but not a BEGIN block, which is marked FAKE.
        let is_file = sub_flags & sub::UNIQUE != 0 && head.flags & flags::FAKE == 0;
        if address == self.main_cv || is_file {
            // The program's own file may have no package.
            let package = self.package(stash).unwrap_or_else(|| "main".to_owned());
            return Some(Sub { name: format!("{package} (file scope)"), is_closure });
        }
        let name_or_glob = word_at(&body, sub::GLOB)?;
        let ScopedName { name, stash } = if sub_flags & sub::NAMED != 0 {
            ScopedName { name: self.key(name_or_glob)?, stash }
        } else if name_or_glob == 0 {
            ScopedName { name: "__ANON__".to_owned(), stash }
        } else {
            self.glob(name_or_glob)?
        };
        // A deleted package has no name; perl prints this one for it (`gv_fullname4`, gv.c).
        let package = self.package(stash).unwrap_or_else(|| "__ANON__".to_owned());
        Some(Sub { name: format!("{package}::{name}"), is_closure })
    }

    /// The name of a lexical, with its sigil; `name` is the address of its pad name.
    pub fn lexical(&mut self, name: u64) -> Option<String> {
        if self.release.has_padnames() {
            let pad_name = PadName::read(&mut self.pages, name, self.release)?;
            return self.text(pad_name.text?, usize::from(pad_name.bytes));
        }
        let head = self.head(name)?;
        let (length, _) = self.pages.pair(head.any.checked_add(layout::CUR)?)?;
        self.text(head.u, usize::try_from(length).ok()?)
    }

    /// The name of the scalar of the glob at `address`. Programs can make globs from any text
    /// (`${"user_$name"}`), so that only globs are passed that compiled code refers to.
    pub fn global(&mut self, address: u64) -> Option<String> {
        let ScopedName { name, stash } = self.glob(address)?;
        let package = self.package(stash)?;
        Some(format!("${package}::{name}"))
    }

    /// The name of the glob at `address`.
    fn glob(&mut self, address: u64) -> Option<ScopedName> {
        let glob = self.head(address)?;
        let (name, stash) = self.pages.pair(glob.any.checked_add(layout::GLOB_NAME)?)?;
        Some(ScopedName { name: self.key(name)?, stash })
    }

    fn head(&mut self, address: u64) -> Option<Head> {
        Head::read(&mut self.pages, address)
    }

    /// The name of a package, by its stash.
    fn package(&mut self, stash: u64) -> Option<String> {
        let head = self.head(stash)?;
        if stash == 0 || !head.has_flags(flags::OOK) {
            return None;
        }
        let aux = if self.release.has_aux_in_body() {
            head.any.checked_add(layout::HASH_AUX)?
        } else {
            let (_, last) = self.pages.pair(head.any.checked_add(layout::HASH_KEYS)?)?;
            head.u.checked_add(last.checked_add(1)?.checked_mul(8)?)?
        };
        let name = self.pages.word(aux)?;
        // With several names, the word points to an array of them.
        let has_several_names = self.pages.word32(aux.checked_add(layout::AUX_NAME_COUNT)?)? != 0;
        let name = if has_several_names { self.pages.word(name)? } else { name };
        self.key(name)
    }

    /// The text of a key.
    fn key(&mut self, key: u64) -> Option<String> {
        let length = self.pages.word32(key.checked_add(layout::KEY_LENGTH)?)?;
        self.text(key.checked_add(layout::KEY_TEXT)?, usize::try_from(length).ok()?)
    }

    /// A name of `length` bytes at `address`, without characters that no name has.
    fn text(&mut self, address: u64, length: usize) -> Option<String> {
        let mut bytes = vec![0; length.min(MAX_NAME_BYTES)];
        self.pages.read(address, &mut bytes).ok()?;
        let name = CleanName::new(&bytes, length);
        self.replaced_count += u64::from(name.is_changed);
        Some(name.text)
    }
}

/// A pad name since 5.22 (`struct padname`, pad.h).
pub struct PadName {
    /// Address of its text; `None` for an operator's target.
    pub text: Option<u64>,
    /// Length of its text.
    pub bytes: u8,
    /// See [`padname`].
    pub flags: u8,
}

impl PadName {
    /// Reads the pad name at `address`; the bytes after its flags may not be readable.
    pub fn read(pages: &mut PageCache<'_>, address: u64, release: &Layout) -> Option<Self> {
        let mut bytes = [0; padname::BYTES];
        let flags_offset = release.padname_flags();
        pages.read(address, bytes.get_mut(..=flags_offset)?).ok()?;
        let [length, flags] = [flags_offset - 1, flags_offset].map(|offset| bytes.get(offset).copied());
        let text = word_at(&bytes, 0)?;
        Some(Self { text: (text != 0).then_some(text), bytes: length?, flags: flags? })
    }
}

/// A name that can be reported.
#[derive(Debug, PartialEq, Eq)]
struct CleanName {
    text: String,
    /// Whether characters were replaced or left out.
    is_changed: bool,
}

impl CleanName {
    /// Replaces all characters that identifiers, packages and sigils do not have. `bytes` are those
    /// of a name of `length` bytes, Latin-1 or UTF-8, up to the limit.
    fn new(bytes: &[u8], length: usize) -> Self {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => Cow::Borrowed(text),
            // The limit is within a character.
            Err(error) if error.error_len().is_none() && length > bytes.len() => {
                String::from_utf8_lossy(bytes)
            }
            // Perl keeps keys as Latin-1 if possible.
            Err(_) => bytes.iter().map(|&byte| char::from(byte)).collect(),
        };
        let is_name = |character: char| character.is_alphanumeric() || "_:'$@%&*".contains(character);
        let is_changed = length > bytes.len() || !text.chars().all(is_name);
        let text = text.chars().map(|character| if is_name(character) { character } else { '?' }).collect();
        Self { text, is_changed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_nothing_else_in_them() {
        let clean = |bytes: &[u8], text: &str, is_changed: bool| {
            let expected = CleanName { text: text.to_owned(), is_changed };
            assert_eq!(CleanName::new(bytes, bytes.len()), expected);
        };
        clean(b"$buf", "$buf", false);
        clean("$größe".as_bytes(), "$größe", false);
        clean(b"gr\xf6\xdfe", "größe", false);
        clean(b"a b\x1b[0m\x9b", "a?b??0m?", true);
        assert!(CleanName::new(&[b'x'; 200], 4000).is_changed, "too long");
    }
}
