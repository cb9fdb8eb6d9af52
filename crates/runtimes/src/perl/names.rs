//! Names of code: subs, packages and lexicals. No other text of the target is reported.

use super::objects::Head;
use crate::batch::PageCache;
use crate::perl::layout::{self as layout, Layout, flags, padname, sub};
use std::borrow::Cow;
use strandline_process::memory::{half_word_at, word_at};

/// Limit on the length of a reported name; the rest is left out.
const MAX_NAME_BYTES: usize = 200;

pub struct Names<'a> {
    pages: PageCache<'a>,
    release: &'static Layout,
    /// `PL_main_cv`: the program's file.
    main_cv: u64,
    /// Number of names that were too long or had characters that no name has.
    pub replaced_count: u64,
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
            let package = self.package(stash).unwrap_or_else(|| "main".to_owned());
            return Some(Sub { name: format!("{package} (file scope)"), is_closure });
        }
        let name_or_glob = word_at(&body, sub::GLOB)?;
        let (name, stash) = if sub_flags & sub::NAMED != 0 {
            (self.key(name_or_glob)?, stash)
        } else if name_or_glob == 0 {
            ("__ANON__".to_owned(), stash)
        } else {
            self.glob(name_or_glob)?
        };
        let package = self.package(stash).unwrap_or_else(|| "__ANON__".to_owned());
        Some(Sub { name: format!("{package}::{name}"), is_closure })
    }

    /// The name of a lexical, with its sigil; `name` is the address of its pad name.
    pub fn lexical(&mut self, name: u64) -> Option<String> {
        let (text, length) = if self.release.has_padnames() {
            let mut bytes = [0; padname::BYTES];
            let flags_offset = usize::try_from(self.release.padname_flags()).ok()?;
            self.pages.read(name, bytes.get_mut(..flags_offset)?).ok()?;
            (word_at(&bytes, 0)?, usize::from(*bytes.get(flags_offset - 1)?))
        } else {
            let head = self.head(name)?;
            let (length, _) = self.pages.pair(head.any.checked_add(layout::CUR)?)?;
            (head.u, usize::try_from(length).ok()?)
        };
        self.text(text, length)
    }

    /// The name of the scalar of the glob at `address`. Programs can make globs from any text
    /// (`${"user_$name"}`), so that only globs are passed that compiled code refers to.
    pub fn global(&mut self, address: u64) -> Option<String> {
        let (name, stash) = self.glob(address)?;
        let package = self.package(stash)?;
        Some(format!("${package}::{name}"))
    }

    fn glob(&mut self, address: u64) -> Option<(String, u64)> {
        let glob = self.head(address)?;
        let (name, stash) = self.pages.pair(glob.any.checked_add(layout::GLOB_NAME)?)?;
        Some((self.key(name)?, stash))
    }

    fn head(&mut self, address: u64) -> Option<Head> {
        Head::read(&mut self.pages, address)
    }

    /// The name of a package, by its stash.
    fn package(&mut self, stash: u64) -> Option<String> {
        let head = self.head(stash)?;
        (stash != 0 && head.has_flags(flags::OOK)).then_some(())?;
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

    fn text(&mut self, address: u64, length: usize) -> Option<String> {
        let mut bytes = vec![0; length.min(MAX_NAME_BYTES)];
        self.pages.read(address, &mut bytes).ok()?;
        let (text, is_changed) = clean(&bytes, length);
        self.replaced_count += u64::from(is_changed);
        Some(text)
    }
}

/// Replaces all characters that identifiers, packages and sigils do not have; also returns whether
/// the name was changed, or is shorter than its `length`. Names are Latin-1 or UTF-8.
fn clean(bytes: &[u8], length: usize) -> (String, bool) {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        // The limit is within a character.
        Err(error) if error.error_len().is_none() && length > bytes.len() => String::from_utf8_lossy(bytes),
        // Perl keeps keys as Latin-1 if possible.
        Err(_) => bytes.iter().map(|&byte| char::from(byte)).collect(),
    };
    let is_name = |character: char| character.is_alphanumeric() || "_:'$@%&*".contains(character);
    let mut is_changed = length > bytes.len();
    let name = text
        .chars()
        .map(|character| {
            let is_kept = is_name(character);
            is_changed |= !is_kept;
            if is_kept { character } else { '?' }
        })
        .collect();
    (name, is_changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_nothing_else_in_them() {
        assert_eq!(clean(b"$buf", 4), ("$buf".to_owned(), false));
        assert_eq!(clean("$größe".as_bytes(), 8), ("$größe".to_owned(), false));
        assert_eq!(clean(b"gr\xf6\xdfe", 5), ("größe".to_owned(), false));
        assert_eq!(clean(b"a b\x1b[0m\x9b", 8), ("a?b??0m?".to_owned(), true));
        assert!(clean(&[b'x'; 200], 4000).1, "too long");
    }
}
