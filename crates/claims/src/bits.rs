//! Sets of numbers, as one bit each in words.

/// Whether a number is in the set.
#[inline]
pub fn has(words: &[u64], number: usize) -> bool {
    words.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 != 0)
}

/// Adds a number, unless it is past the last word.
#[inline]
pub fn set(words: &mut [u64], number: usize) {
    if let Some(word) = words.get_mut(number / 64) {
        *word |= 1 << (number % 64);
    }
}
