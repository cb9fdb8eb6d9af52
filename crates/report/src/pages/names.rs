//! Names for files and anchors, derived from titles: stable between runs, and unique.

use std::collections::BTreeSet;

/// Maximum length of a name without its number.
const MAX_SLUG_BYTES: usize = 60;

/// Converts `text` to lowercase letters, digits and hyphens: "Peak memory, MiB" becomes
/// `peak-memory-mib`.
pub fn slug(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars() {
        if name.len() >= MAX_SLUG_BYTES {
            break;
        }
        match c.to_ascii_lowercase() {
            c if c.is_ascii_alphanumeric() => name.push(c),
            _ if !name.is_empty() && !name.ends_with('-') => name.push('-'),
            _ => {}
        }
    }
    let name = name.trim_end_matches('-');
    if name.is_empty() { "x".to_owned() } else { name.to_owned() }
}

/// The names in use, to keep them unique.
#[derive(Debug, Default)]
pub struct Names(BTreeSet<String>);

impl Names {
    /// Returns `name`, or the first of `name-2`, `name-3`, … that is not in use.
    pub fn unique(&mut self, name: &str) -> String {
        let mut candidate = name.to_owned();
        let mut number = 1u64;
        while !self.0.insert(candidate.clone()) {
            number += 1;
            candidate = format!("{name}-{number}");
        }
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_and_unlike_each_other() {
        assert_eq!(slug("Peak memory, MiB (perl=5.36)"), "peak-memory-mib-perl-5-36");
        assert_eq!((slug("../../etc"), slug("漢字"), slug("")), ("etc".into(), "x".into(), "x".into()));
        assert!(slug(&"long ".repeat(100)).len() <= MAX_SLUG_BYTES);
        let mut names = Names::default();
        assert_eq!(
            ["a", "a", "a-2", "b", "a"].map(|name| names.unique(name)),
            ["a", "a-2", "a-2-2", "b", "a-3"]
        );
    }
}
