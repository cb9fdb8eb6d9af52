//! Estimates how many strings are equal, in bounded memory: each string is reduced to a 64-bit
//! hash, and of many strings only the hashes that end in zeros are kept.

use std::collections::HashMap;

use super::facts::EqualStrings;
use strandline_claims::add_fields;

/// Maximum number of distinct hashes in a sample.
const MAX_HASHES: usize = 1 << 16;
/// Maximum number of bits that select strings. Strings of equal length and equal ends have the same
/// bits: all or none of them are kept.
const MAX_MASK_BITS: u32 = 20;
/// Mask with this number of bits.
const MAX_MASK: u64 = (1 << MAX_MASK_BITS) - 1;

/// Sample of strings, by hash.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// A string is in the sample if its hash has none of these bits.
    excluded_bits: u64,
    /// The strings selected, by hash.
    strings_by_hash: HashMap<u64, StringSum, RotatingHasher>,
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
    /// The sum times `factor`.
    fn times(self, factor: u64) -> Self {
        Self { strings: self.strings.saturating_mul(factor), bytes: self.bytes.saturating_mul(factor) }
    }

    /// Adds another sum; the lengths come from the target and may be anything.
    fn add(&mut self, other: &Self) {
        add_fields!(saturating self, other: strings, bytes);
    }
}

/// Hashes keys by a rotation: they are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct RotatingHasher(u64);

impl std::hash::BuildHasher for RotatingHasher {
    type Hasher = Self;
    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl std::hash::Hasher for RotatingHasher {
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
        if hash_of_ends(text) & self.excluded_bits != 0 {
            return;
        }
        // The low bits are those tested above, so that `retain` selects the same strings.
        let key = hash(text) << MAX_MASK_BITS | hash_of_ends(text) & MAX_MASK;
        self.insert(key, StringSum { strings: 1, bytes });
    }

    /// Adds strings with one hash. Those that no longer fit count as skipped, with all strings that
    /// they stand for.
    fn insert(&mut self, key: u64, strings: StringSum) {
        if key & self.excluded_bits != 0 {
            return;
        }
        let is_full = self.excluded_bits == MAX_MASK && self.strings_by_hash.len() >= MAX_HASHES;
        if is_full && !self.strings_by_hash.contains_key(&key) {
            let skipped = strings.times(self.interval());
            return self.skipped.add(&skipped);
        }
        self.strings_by_hash.entry(key).or_default().add(&strings);
        self.shrink();
    }

    /// Number of strings that each one in the sample stands for.
    fn interval(&self) -> u64 {
        self.excluded_bits + 1
    }

    /// Selects fewer strings until at most [`MAX_HASHES`] hashes are kept.
    fn shrink(&mut self) {
        while self.strings_by_hash.len() > MAX_HASHES && self.excluded_bits < MAX_MASK {
            self.exclude(self.excluded_bits << 1 | 1);
        }
    }

    /// Leaves out the strings whose hashes have one of these `bits`, too.
    fn exclude(&mut self, bits: u64) {
        self.excluded_bits |= bits;
        let excluded_bits = self.excluded_bits;
        self.strings_by_hash.retain(|key, _| key & excluded_bits == 0);
    }

    /// Counts a string that is not compared.
    pub fn skip(&mut self, bytes: u64) {
        self.skipped.add(&StringSum { strings: 1, bytes });
    }

    /// Adds the sample of another thread. The sum does not depend on which thread added which
    /// strings.
    pub fn join(&mut self, other: Self) {
        self.exclude(other.excluded_bits);
        for (key, strings) in other.strings_by_hash {
            self.insert(key, strings);
        }
        self.skipped.add(&other.skipped);
    }

    /// Returns the figures, extrapolated to all strings.
    pub fn figures(&self) -> EqualStrings {
        let interval = self.interval();
        let mut equal = EqualStrings { sampled_one_in: interval, ..EqualStrings::default() };
        for equal_strings in self.strings_by_hash.values() {
            equal.strings = equal.strings.saturating_add(equal_strings.strings);
            equal.distinct += 1;
            let repeated_bytes = equal_strings.bytes - equal_strings.bytes / equal_strings.strings.max(1);
            equal.repeated_bytes = equal.repeated_bytes.saturating_add(repeated_bytes);
        }
        for figure in [&mut equal.strings, &mut equal.distinct, &mut equal.repeated_bytes] {
            *figure = figure.saturating_mul(interval);
        }
        (equal.skipped, equal.skipped_bytes) = (self.skipped.strings, self.skipped.bytes);
        equal
    }
}

/// Hashes the length and the first and last eight bytes, so that a string that is left out need not
/// be hashed whole.
fn hash_of_ends(bytes: &[u8]) -> u64 {
    let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) else {
        return hash(bytes);
    };
    mix(mix(u64::from_le_bytes(*first), bytes.len() as u64), u64::from_le_bytes(*last))
}

/// Multiplies and folds, as wyhash does. Not resistant to a target that chooses its strings: it can
/// only falsify its own figures.
fn mix(state: u64, word: u64) -> u64 {
    /// 2^64 by the golden ratio, as in Fibonacci hashing.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let product = u128::from(state ^ word.rotate_left(32)) * u128::from(FACTOR);
    (product as u64) ^ (product >> 64) as u64
}

/// A 64-bit hash: multiplies in eight bytes at a time, then the length.
fn hash(bytes: &[u8]) -> u64 {
    /// An arbitrary start (the multiplier of xorshift64*): from 0, zeros would hash to 0.
    const SEED: u64 = 0x2545_f491_4f6c_dd1d;
    let (words, rest) = bytes.as_chunks::<8>();
    let mut state = SEED ^ bytes.len() as u64;
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
    fn a_full_sample_skips_further_strings_also_when_joined() {
        let full = |first: u64, count: u64| {
            let mut sample = Sample { excluded_bits: MAX_MASK, ..Sample::default() };
            for number in first..first + count {
                sample.insert(number << MAX_MASK_BITS, StringSum { strings: 1, bytes: 16 });
            }
            sample
        };
        let mut all = full(0, MAX_HASHES as u64 + 1);
        assert_eq!((all.strings_by_hash.len(), all.skipped.strings), (MAX_HASHES, MAX_MASK + 1));
        all.join(full(1, MAX_HASHES as u64));
        assert_eq!((all.strings_by_hash.len(), all.skipped.strings), (MAX_HASHES, 2 * (MAX_MASK + 1)));
    }

    #[test]
    fn large_samples_are_thinned_and_extrapolated() {
        let mut samples = [Sample::default(), Sample::default()];
        for n in 0..400_000u64 {
            samples[(n % 2) as usize].add(format!("{}", n / 4).as_bytes(), 24);
        }
        let [mut all, other] = samples;
        all.join(other);
        assert!(all.strings_by_hash.len() <= MAX_HASHES && all.excluded_bits > 0);
        let equal = all.figures();
        let near = |figure: u64, truth: f64| (figure as f64 / truth - 1.0).abs() < 0.05;
        assert!(near(equal.strings, 400_000.0) && near(equal.distinct, 100_000.0), "{equal:?}");
        assert!(near(equal.repeated_bytes, 300_000.0 * 24.0), "{equal:?}");
    }
}
