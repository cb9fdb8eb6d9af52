//! Demangles names of types and variables. Names come from the target: the length of each is
//! bounded.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, Symbol};

/// Maximum length of a mangled name, and of a demangled one.
pub const MAX_BYTES: usize = 512;

/// A text of at most [`MAX_BYTES`]: a short mangled name can expand to a very long one that repeats
/// earlier parts.
#[derive(Default)]
struct BoundedText(String);

impl fmt::Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Returns a name of at most [`MAX_BYTES`]. A longer one is cut, and ends with a hash of all of it:
/// otherwise two with the same start would be one root.
pub fn bounded(name: &[u8]) -> Vec<u8> {
    if name.len() <= MAX_BYTES {
        return name.to_vec();
    }
    let end = format!("…#{:016x}", hash(name));
    let start = name.get(..MAX_BYTES - end.len()).unwrap_or_default();
    [start, end.as_bytes()].concat()
}

/// Returns the 64-bit FNV-1a hash, which is the same in every run of every build: documents of
/// several runs are compared.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Demangles a C++ symbol.
fn demangle_cpp(mangled: &[u8]) -> Option<String> {
    let mangled = mangled.get(..mangled.len().min(MAX_BYTES))?;
    let symbol = Symbol::new(mangled).ok()?;
    let mut text = BoundedText::default();
    symbol.structured_demangle(&mut text, &DemangleOptions::default()).ok()?;
    Some(text.0)
}

/// Demangles the name of a type in its `std::type_info`.
pub fn demangle_type(mangled: &str) -> Option<String> {
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if mangled.is_empty() || mangled.len() >= MAX_BYTES || !mangled.chars().all(is_name_char) {
        return None;
    }
    let name = demangle_cpp(format!("_ZTS{mangled}").as_bytes())?;
    name.strip_prefix("typeinfo name for ").map(str::to_owned)
}

/// Demangles a Rust symbol, without the hash that distinguishes two crates of the same name.
fn demangle_rust(name: &[u8]) -> Option<String> {
    let symbol = rustc_demangle::try_demangle(std::str::from_utf8(name).ok()?).ok()?;
    let mut text = BoundedText::default();
    write!(text, "{symbol:#}").ok()?;
    Some(text.0)
}

/// Demangles the name of a symbol.
pub fn demangle_symbol(name: &[u8]) -> String {
    // A C name may look like a mangled type.
    let is_mangled = name.starts_with(b"_Z") || name.starts_with(b"__Z");
    demangle_rust(name)
        .or_else(|| Some(name).filter(|_| is_mangled).and_then(demangle_cpp))
        .unwrap_or_else(|| String::from_utf8_lossy(name).into_owned())
}

/// Returns the Rust type of a vtable; `None` unless exactly one type is possible. Functions with
/// identical code are merged and have several names. So the types in the names of the drop function
/// are possible, or, if nothing needs to be dropped, those in the names of the methods; each method
/// whose names agree with some of them excludes the others.
pub fn vtable_type<'a>(drops: &'a [String], methods: impl Iterator<Item = &'a [String]>) -> Option<String> {
    let mut possible: BTreeSet<&str> = drops.iter().filter_map(|name| dropped_type(name)).collect();
    if !drops.is_empty() && possible.is_empty() {
        return None;
    }
    for names in methods.take_while(|names| !names.is_empty()) {
        let implementors = names.iter().filter_map(|name| implementor(name)).filter(|name| is_concrete(name));
        let implementors: BTreeSet<&str> = implementors.collect();
        let both: BTreeSet<&str> = possible.intersection(&implementors).copied().collect();
        if possible.is_empty() {
            possible = implementors;
        } else if !both.is_empty() {
            possible = both;
        }
    }
    possible.first().filter(|_| possible.len() == 1).map(|name| (*name).to_owned())
}

/// Whether all paths of a type are written in full; otherwise it may be a parameter of an
/// implementation (`impl<T> Trait for T`).
fn is_concrete(type_name: &str) -> bool {
    const LANGUAGE_WORDS: &str = " u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 bool char str dyn mut const fn extern unsafe as ";
    let is_word_char = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = type_name.split(|c| !is_word_char(c)).filter(|word| !word.is_empty());
    words.into_iter().all(|word| {
        word.contains("::")
            || word.bytes().all(|byte| byte.is_ascii_digit())
            || LANGUAGE_WORDS.contains(&format!(" {word} "))
    })
}

/// Returns the type of `core::ptr::drop_in_place<TYPE>`.
fn dropped_type(function: &str) -> Option<&str> {
    let type_argument = function.strip_prefix("core::ptr::drop_in_place")?.trim_start_matches(':');
    type_argument.strip_prefix('<')?.strip_suffix('>')
}

/// Returns the type of `<TYPE as TRAIT>::method`.
fn implementor(method: &str) -> Option<&str> {
    let text = method.strip_prefix('<')?;
    let mut depth = 0_u32;
    let (end, _) = text.char_indices().find(|&(index, c)| {
        match c {
            '<' | '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            // Except in an arrow.
            '>' if !text[..index].ends_with('-') => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && text[index..].starts_with(" as ")
    })?;
    text.get(..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_with_the_same_start_stay_different() {
        let long = |last: &[u8]| [b"_ZN".as_slice(), &[b'a'; 2 * MAX_BYTES], last].concat();
        let names = [long(b"x"), long(b"y")].map(|name| bounded(&name));
        assert!(names.iter().all(|name| name.len() <= MAX_BYTES), "{names:?}");
        assert_ne!(demangle_symbol(&names[0]), demangle_symbol(&names[1]));
        assert_eq!((bounded(&long(b"x")), bounded(b"x")), (names[0].clone(), b"x".to_vec()));
        // Test vectors of FNV-1a.
        assert_eq!((hash(b""), hash(b"foobar")), (0xcbf2_9ce4_8422_2325, 0x8594_4171_f739_67e8));
    }

    #[test]
    fn names_are_as_their_author_wrote_them() {
        assert_eq!(demangle_type("7Session").as_deref(), Some("Session"));
        assert_eq!(demangle_type("N3net5CacheIiEE").as_deref(), Some("net::Cache<int>"));
        assert_eq!((demangle_type(""), demangle_type("7Ses\nion"), demangle_type("99")), (None, None, None));
        let rust = b"_ZN4core3ptr13drop_in_place17h0123456789abcdefE";
        assert_eq!(demangle_symbol(rust), "core::ptr::drop_in_place");
        assert_eq!((demangle_symbol(b"x"), demangle_symbol(b"v")), ("x".into(), "v".into()));
        let rust =
            b"_ZN4core3ptr54drop_in_place$LT$alloc..vec..Vec$LT$app..Shape$GT$$GT$17h0123456789abcdefE";
        assert_eq!(dropped_type(&demangle_symbol(rust)), Some("alloc::vec::Vec<app::Shape>"));
        assert_eq!(
            (demangle_symbol(b"g_all"), demangle_symbol(b"_ZL7g_cache")),
            ("g_all".into(), "g_cache".into())
        );
    }

    #[test]
    fn a_table_is_of_the_one_type_that_all_functions_may_be_of() {
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        let drops =
            strings(&["core::ptr::drop_in_place<app::Round>", "core::ptr::drop_in_place::<app::Flat>"]);
        let methods = [strings(&["<app::Flat as app::Shape>::area", "<app::Wide as app::Shape>::area"])];
        let other = [strings(&["app::helper"])];
        let of =
            |drops: &[String], methods: &[Vec<String>]| vtable_type(drops, methods.iter().map(Vec::as_slice));
        assert_eq!(of(&drops, &methods).as_deref(), Some("app::Flat"));
        assert_eq!(of(&drops[..1], &other).as_deref(), Some("app::Round"));
        assert_eq!((of(&drops, &other), of(&[], &methods)), (None, None));
        // Methods of a generic implementation are named after its parameters.
        let general =
            [strings(&["<alloc::vec::Vec<T,A> as app::Shape>::area"]), strings(&["<T as app::Shape>::name"])];
        assert_eq!((of(&drops[..1], &general).as_deref(), of(&[], &general)), (Some("app::Round"), None));
        let single = [strings(&["<app::Wide<u8, [f64; 4]> as app::Shape>::area"])];
        assert_eq!(of(&[], &single).as_deref(), Some("app::Wide<u8, [f64; 4]>"));
        assert_eq!(implementor("<fn(u8) -> u8 as app::Call<(u8,)>>::call"), Some("fn(u8) -> u8"));
        assert_eq!(
            implementor("<app::Map<K, <V as app::Of>::T> as app::Shape>::area"),
            Some("app::Map<K, <V as app::Of>::T>")
        );
        assert_eq!(
            (implementor("<app::Map<K>"), implementor("app::f"), implementor("<é<€")),
            (None, None, None)
        );
    }

    /// Each level repeats the previous one three times.
    #[test]
    fn a_short_name_for_a_very_long_one_is_not_written_out() {
        let mut name = "1AI1BIiiE".to_owned();
        for level in 0..40 {
            let last = ["", "0", "1", "2"][level % 4];
            name += &format!("1CIS{last}_S{last}_S{last}_E");
        }
        name += "E";
        assert!(demangle_type(&name).is_none_or(|name| name.len() <= MAX_BYTES));
        assert!(demangle_symbol(format!("_ZTS{name}").as_bytes()).len() <= MAX_BYTES + 64);
    }
}
