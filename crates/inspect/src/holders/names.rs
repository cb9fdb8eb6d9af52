//! Names of types and variables as their authors wrote them. They come from the target: what is made of one is bounded.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, Symbol};

/// The longest that is read, and the longest that is written.
pub const MOST_BYTES: usize = 512;

/// Takes so many bytes, and no more: a short name can stand for a very long one, in which earlier parts are repeated.
#[derive(Default)]
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MOST_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

fn demangled(mangled: &[u8]) -> Option<String> {
    let mangled = mangled.get(..mangled.len().min(MOST_BYTES))?;
    let symbol = Symbol::new(mangled).ok()?;
    let mut text = Bounded::default();
    symbol.structured_demangle(&mut text, &DemangleOptions::default()).ok()?;
    Some(text.0)
}

/// The name of a type, as it stands in its `std::type_info`.
pub fn of_type(mangled: &str) -> Option<String> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if mangled.is_empty() || mangled.len() >= MOST_BYTES || !mangled.chars().all(is_of_name) {
        return None;
    }
    let name = demangled(format!("_ZTS{mangled}").as_bytes())?;
    name.strip_prefix("typeinfo name for ").map(str::to_owned)
}

/// The name of a symbol: Rust's without what tells two crates of one name apart.
fn of_rust(name: &[u8]) -> Option<String> {
    let symbol = rustc_demangle::try_demangle(std::str::from_utf8(name).ok()?).ok()?;
    let mut text = Bounded::default();
    write!(text, "{symbol:#}").ok()?;
    Some(text.0)
}

/// The name of a symbol.
pub fn of_symbol(name: &[u8]) -> String {
    // A name of C's may be what stands for a type in a mangled one.
    let is_mangled = name.starts_with(b"_Z") || name.starts_with(b"__Z");
    of_rust(name)
        .or_else(|| demangled(name).filter(|_| is_mangled))
        .unwrap_or_else(|| String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_their_author_wrote_them() {
        assert_eq!(of_type("7Session").as_deref(), Some("Session"));
        assert_eq!(of_type("N3net5CacheIiEE").as_deref(), Some("net::Cache<int>"));
        assert_eq!((of_type(""), of_type("7Ses\nion"), of_type("99")), (None, None, None));
        let rust = b"_ZN4core3ptr13drop_in_place17h0123456789abcdefE";
        assert_eq!(of_symbol(rust), "core::ptr::drop_in_place");
        assert_eq!((of_symbol(b"x"), of_symbol(b"v")), ("x".into(), "v".into()));
        assert_eq!((of_symbol(b"g_all"), of_symbol(b"_ZL7g_cache")), ("g_all".into(), "g_cache".into()));
    }

    /// Each level names the one before three times.
    #[test]
    fn a_short_name_for_a_very_long_one_is_not_written_out() {
        let mut name = "1AI1BIiiE".to_owned();
        for level in 0..40 {
            let last = ["", "0", "1", "2"][level % 4];
            name += &format!("1CIS{last}_S{last}_S{last}_E");
        }
        name += "E";
        assert!(of_type(&name).is_none_or(|name| name.len() <= MOST_BYTES));
        assert!(of_symbol(format!("_ZTS{name}").as_bytes()).len() <= MOST_BYTES + 64);
    }
}
