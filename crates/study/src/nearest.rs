//! The known name nearest to a misspelt one.

/// Words are compared up to this length.
const MAX_COMPARED_CHARS: usize = 40;

/// Returns the name that is most similar to `misspelt`; `None` if none of them is similar enough.
pub fn nearest<'n>(misspelt: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    // Two mistakes, and one more for each further three letters.
    let max_distance = misspelt.chars().count().max(3) / 3 + 1;
    names
        // A prefix counts as similar, however much is missing.
        .map(|name| (if name.starts_with(misspelt) { 1 } else { distance(misspelt, name) }, name))
        .filter(|&(distance, _)| distance <= max_distance)
        .min()
        .map(|(_, name)| name)
}

/// Levenshtein distance between two words, truncated to [`MAX_COMPARED_CHARS`].
fn distance(a: &str, b: &str) -> usize {
    let letters = |word: &str| word.chars().take(MAX_COMPARED_CHARS).collect::<Vec<char>>();
    strsim::generic_levenshtein(&letters(a), &letters(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let names = ["repeats", "command", "axes"];
        assert_eq!(nearest("repeat", names.into_iter()), Some("repeats"));
        assert_eq!(nearest("comand", names.into_iter()), Some("command"));
        assert_eq!(nearest("wholly-other", names.into_iter()), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
