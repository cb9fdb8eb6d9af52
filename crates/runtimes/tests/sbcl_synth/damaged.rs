//! Damaged heaps: reading always ends, and its figures do not exceed what is possible.

use proptest::prelude::*;
use strandline_runtimes::sbcl::facts::Sbcl;
use strandline_synth::{SBCL_RELEASES, SbclHeap, SbclRecipe, fabricate_sbcl};

use crate::adapter::Subject;

/// Maximum bytes of a type's name in the figures.
const MAX_TYPE_NAME_BYTES: usize = 200;
/// Bytes of the smallest object, a cons.
const MIN_OBJECT_BYTES: u64 = 16;

/// Checks that the figures of a damaged heap do not exceed what is possible.
fn check(heap: &SbclHeap, subject: &Subject, workers: usize) {
    // The only error is `Busy`: damage may set gc_active_p or contradict the page table.
    let Ok(reading) = subject.read(workers) else { return };
    let Some(figures) = reading.facts.details::<Sbcl>("sbcl") else {
        assert!(!reading.caveats.is_empty(), "no figures and no caveat: {:?}", heap.recipe);
        return;
    };
    let space = heap.dynamic_range.1 - heap.dynamic_range.0;
    for generation in &figures.generations {
        assert!(generation.bytes_allocated <= space, "{generation:?}");
        if let (Some(live), Some(dead)) = (generation.live_bytes, generation.dead_bytes) {
            let is_bounded = live.checked_add(dead).is_some_and(|sum| sum <= generation.bytes_allocated);
            assert!(is_bounded, "{generation:?}");
        }
    }
    let lists = figures.live_by_type.iter().chain(&figures.dead_by_type);
    for entry in lists {
        assert!(
            entry.type_name.len() <= MAX_TYPE_NAME_BYTES && entry.type_name.chars().all(|c| !c.is_control()),
            "{entry:?}"
        );
        assert!(entry.bytes <= space && entry.instances <= space / MIN_OBJECT_BYTES, "{entry:?}");
    }
}

#[test]
fn pages_that_cannot_be_read_are_not_zero() {
    for release in SBCL_RELEASES {
        let heap = fabricate_sbcl(&SbclRecipe::from_seed(release, 1));
        let mut subject = Subject::of(&heap);
        subject.hide(&heap);
        let reading = subject.read(2).expect("no collection is under way");
        let codes: Vec<&str> = reading.caveats.iter().map(|caveat| caveat.code.as_str()).collect();
        assert!(codes.contains(&"sbcl_core_not_read"), "{release:?}: {codes:?}");
        assert_eq!(reading.zero_runs, [], "{release:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 10,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn damaged_words_give_bounded_figures(
        release in prop::sample::select(&SBCL_RELEASES[..]),
        seed: u64,
        words in 1..100usize,
        workers in 1..=3usize,
    ) {
        let mut heap = fabricate_sbcl(&SbclRecipe::from_seed(release, seed));
        heap.damage(seed, words);
        check(&heap, &Subject::of(&heap), workers);
    }

    #[test]
    fn overwritten_pages_give_bounded_figures(
        release in prop::sample::select(&SBCL_RELEASES[..]),
        seed: u64,
        percent in 1..=100u64,
        workers in 1..=3usize,
    ) {
        let mut heap = fabricate_sbcl(&SbclRecipe::from_seed(release, seed));
        heap.overwrite_randomly(seed, percent);
        check(&heap, &Subject::of(&heap), workers);
    }

    #[test]
    fn absent_pages_give_bounded_figures(
        release in prop::sample::select(&SBCL_RELEASES[..]),
        seed: u64,
        percent in 1..=100u64,
        words in 0..10usize,
    ) {
        let mut heap = fabricate_sbcl(&SbclRecipe::from_seed(release, seed));
        heap.damage(seed, words);
        let mut subject = Subject::of(&heap);
        subject.evict(&heap, seed, percent);
        check(&heap, &subject, 2);
    }
}
