//! Estimates how many strings are equal, in bounded memory: each string is reduced to a 64-bit
//! hash, and of many strings only the hashes that end in zeros are kept.

use std::collections::HashMap;

use super::facts::Equal;
use strandline_claims::add_fields;

/// Maximum number of distinct hashes per thread.
const MAX_KEPT: usize = 1 << 16;
/// Maximum number of bits that select strings. Strings of equal length and ends share them: all or
/// none are kept.
const MAX_MASK_BITS: u32 = 20;
/// Mask with this number of bits.
const MAX_MASK: u64 = (1 << MAX_MASK_BITS) - 1;

/// Sample of strings, by hash.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Hashes with one of these bits set are left out.
    mask: u64,
    /// The strings selected, by hash.
    kept: HashMap<u64, StringSum, IdentityHasher>,
    /// Strings that are not compared.
    skipped: StringSum,
}

/// A number of strings and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct StringSum {
    strings: u64,
    bytes: u64,
}

impl StringSum {
    /// Adds another sum; the lengths come from the target and may be anything.
    fn add(&mut self, other: &Self) {
        add_fields!(saturating self, other: strings, bytes);
    }
}

/// Passes keys through unchanged: they are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct IdentityHasher(u64);

impl std::hash::BuildHasher for IdentityHasher {
    type Hasher = Self;
    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl std::hash::Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash(bytes);
    }
    fn write_u64(&mut self, value: u64) {
        // Kept keys all have the same low bits, which a hash table must not index by.
        self.0 = value.rotate_right(MAX_MASK_BITS);
    }
}

impl Sample {
    /// Adds a string of `bytes` bytes.
    pub fn add(&mut self, text: &[u8], bytes: u64) {
        if hash_of_ends(text) & self.mask != 0 {
            return;
        }
        // The low bits are those tested above, so that `retain` selects the same strings.
        let key = hash(text) << MAX_MASK_BITS | hash_of_ends(text) & MAX_MASK;
        if self.mask == MAX_MASK && self.kept.len() > MAX_KEPT && !self.kept.contains_key(&key) {
            return self.skip(bytes);
        }
        self.kept.entry(key).or_default().add(&StringSum { strings: 1, bytes });
        self.shrink();
    }

    /// Selects fewer strings until at most [`MAX_KEPT`] hashes are kept.
    fn shrink(&mut self) {
        while self.kept.len() > MAX_KEPT && self.mask < MAX_MASK {
            self.mask = self.mask << 1 | 1;
            let mask = self.mask;
            self.kept.retain(|hash, _| hash & mask == 0);
        }
    }

    /// Counts a string that is not compared.
    pub fn skip(&mut self, bytes: u64) {
        self.skipped.add(&StringSum { strings: 1, bytes });
    }

    /// Adds the sample of another thread. The sum does not depend on which thread added which
    /// strings.
    pub fn join(&mut self, other: Self) {
        self.mask |= other.mask;
        let mask = self.mask;
        self.kept.retain(|hash, _| hash & mask == 0);
        for (hash, theirs) in other.kept.into_iter().filter(|(hash, _)| hash & mask == 0) {
            self.kept.entry(hash).or_default().add(&theirs);
        }
        self.shrink();
        self.skipped.add(&other.skipped);
    }

    /// Returns the figures, extrapolated to all strings.
    pub fn figures(&self) -> Equal {
        let interval = self.mask + 1;
        let mut equal = Equal { sampled_one_in: interval, ..Equal::default() };
        for equal_strings in self.kept.values() {
            equal.strings += equal_strings.strings;
            equal.distinct += 1;
            equal.repeated_bytes += equal_strings.bytes - equal_strings.bytes / equal_strings.strings.max(1);
        }
        for figure in [&mut equal.strings, &mut equal.distinct, &mut equal.repeated_bytes] {
            *figure = figure.saturating_mul(interval);
        }
        (equal.skipped, equal.skipped_bytes) = (self.skipped.strings, self.skipped.bytes);
        equal
    }
}

/// Hashes the length and the first and last eight bytes: enough to leave out most strings without
/// reading them whole.
fn hash_of_ends(bytes: &[u8]) -> u64 {
    let first = bytes.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
    let last = bytes.last_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
    if bytes.len() < 8 {
        return hash(bytes);
    }
    mix(mix(first, bytes.len() as u64), last)
}

fn mix(state: u64, word: u64) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let product = u128::from(state ^ word.rotate_left(32)) * u128::from(FACTOR);
    (product as u64) ^ (product >> 64) as u64
}

/// A 64-bit hash: multiplies in eight bytes at a time, then the length.
fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut state = 0x2545_f491_4f6c_dd1d ^ bytes.len() as u64;
    for word in words {
        state = mix(state, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    mix(mix(state, u64::from_le_bytes(last)), bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_do_not_depend_on_how_threads_share_the_work() {
        let figures = |threads: usize| {
            let mut samples = vec![Sample::default(); threads];
            for number in 0..200_000_usize {
                let text = format!("string {}", number / 2);
                // The first thread gets more than the others.
                samples[(number % 7).min(threads - 1)].add(text.as_bytes(), 16);
            }
            samples.into_iter().reduce(|mut all, sample| {
                all.join(sample);
                all
            })
        };
        let by_one_thread = figures(1).unwrap().figures();
        assert!(by_one_thread.sampled_one_in > 1);
        for threads in [2, 3, 7] {
            assert_eq!(figures(threads).unwrap().figures(), by_one_thread, "{threads}");
        }
    }

    #[test]
    fn equal_strings_are_counted() {
        let mut sample = Sample::default();
        for text in ["a", "bb", "a", "a", "ccccccccccccccccccccccc", ""] {
            sample.add(text.as_bytes(), 16);
        }
        sample.skip(5000);
        let equal = sample.figures();
        assert_eq!((equal.strings, equal.distinct, equal.repeated_bytes), (6, 4, 32));
        assert_eq!((equal.sampled_one_in, equal.skipped, equal.skipped_bytes), (1, 1, 5000));
    }

    #[test]
    fn lengths_may_be_anything() {
        let mut samples = [Sample::default(), Sample::default()];
        for sample in &mut samples {
            (0..3).for_each(|_| sample.skip(u64::MAX / 2));
        }
        let [mut all, other] = samples;
        all.join(other);
        assert_eq!((all.figures().skipped, all.figures().skipped_bytes), (6, u64::MAX));
    }

    #[test]
    fn of_many_a_part_is_kept_and_the_rest_estimated() {
        let mut samples = [Sample::default(), Sample::default()];
        for n in 0..400_000u64 {
            samples[(n % 2) as usize].add(format!("{}", n / 4).as_bytes(), 24);
        }
        let [mut all, other] = samples;
        all.join(other);
        assert!(all.kept.len() <= MAX_KEPT && all.mask > 0);
        let equal = all.figures();
        let near = |figure: u64, truth: f64| (figure as f64 / truth - 1.0).abs() < 0.05;
        assert!(near(equal.strings, 400_000.0) && near(equal.distinct, 100_000.0), "{equal:?}");
        assert!(near(equal.repeated_bytes, 300_000.0 * 24.0), "{equal:?}");
    }
}
