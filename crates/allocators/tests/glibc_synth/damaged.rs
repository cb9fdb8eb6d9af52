//! Damaged heaps: reading always ends, reads no more than it may, and its claims still add up.

use proptest::prelude::*;
use strandline_claims::allocator::Reading;
use strandline_synth::{Heap, Recipe, VERSIONS, fabricate};

use crate::adapter::{FrozenProcess, mallinfo, total};

/// Maximum bytes that a reading may read: every page twice by the walk (once as a segment with a
/// wrong start, once more if fastbin members have to be separated), links page by page, and a
/// constant for the searches for places where the chain continues.
fn max_bytes_read(subject: &FrozenProcess) -> u64 {
    32 * subject.image_bytes() + (16 << 20)
}

fn check(heap: &Heap, threads: usize) -> Vec<Reading> {
    check_subject(&FrozenProcess::of(heap), threads)
}

/// Reads, and checks what holds for every heap.
pub fn check_subject(subject: &FrozenProcess, threads: usize) -> Vec<Reading> {
    let readings = subject.read(threads);
    let max_bytes = max_bytes_read(subject);
    assert!(subject.bytes_read() <= max_bytes, "{} bytes read, {max_bytes} allowed", subject.bytes_read());
    assert!(subject.calls() <= max_bytes / 64, "{} reads of {max_bytes} bytes", subject.calls());
    for reading in &readings {
        check_sums(subject, reading);
    }
    readings
}

fn check_sums(subject: &FrozenProcess, reading: &Reading) {
    let claimed_bytes: u64 = reading.claims.iter().map(|claim| total(&claim.sums)).sum();
    let ranges: Vec<_> = reading.claims.iter().map(|claim| (claim.start, claim.end)).collect();
    assert_eq!(claimed_bytes, subject.resident_bytes(&ranges));
    let trim = reading.call.as_ref().expect("a glibc can be trimmed");
    assert!(trim.predicted_bytes <= claimed_bytes);
}

/// Whether the undamaged heap of this recipe is read correctly; if not, a difference is not due to
/// damage.
fn is_read_correctly(heap: &Heap) -> bool {
    let readings = FrozenProcess::of(heap).read(1);
    readings.first().is_some_and(|reading| reading.allocator.mallinfo == Some(mallinfo(heap)))
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 10, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_reader_survives_damaged_words(
        version in prop::sample::select(&VERSIONS[..]), seed: u64, words in 1..200usize, threads in 1..=4usize,
    ) {
        let mut heap = fabricate(&Recipe::from_seed(version, seed));
        let was_correct = is_read_correctly(&heap);
        heap.damage(seed, words);
        let readings = check(&heap, threads);
        if let Some(reading) = readings.first().filter(|_| was_correct) {
            let is_same = reading.allocator.mallinfo == Some(mallinfo(&heap));
            prop_assert!(is_same || !reading.caveats.is_empty(), "{:?}", reading.allocator.mallinfo);
        }
    }

    #[test]
    fn overwritten_heaps_never_hurt_the_reader(
        version in prop::sample::select(&VERSIONS[..]), seed: u64, percent in 1..=100u64, threads in 1..=4usize,
    ) {
        let mut heap = fabricate(&Recipe::from_seed(version, seed));
        heap.overwrite_randomly(seed, percent);
        check(&heap, threads);
    }
}
