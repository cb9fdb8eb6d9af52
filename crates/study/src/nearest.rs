//! The known name nearest to a misspelt one.

/// Returns the name that is most similar to `wrong`; `None` if none of them is similar enough.
pub fn nearest<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let max_distance = wrong.chars().count().max(3) / 3 + 1;
    names
        // A prefix counts as similar, however much is missing.
        .map(|name| (if name.starts_with(wrong) { 1 } else { distance(wrong, name) }, name))
        .filter(|&(distance, _)| distance <= max_distance)
        .min()
        .map(|(_, name)| name)
}

/// Levenshtein distance between two words, truncated to 40 characters.
fn distance(a: &str, b: &str) -> usize {
    const MAX: usize = 40;
    let b: Vec<char> = b.chars().take(MAX).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(MAX).enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (&above, &y) in row.iter().skip(1).zip(&b) {
            left = (diagonal + usize::from(x != y)).min(above + 1).min(left + 1);
            diagonal = above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
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
