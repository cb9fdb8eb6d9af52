//! Damaged perls: reading always ends, reads no more than it may, and claims nothing that is in
//! doubt.

use proptest::prelude::*;
use strandline_synth::{PerlRecipe, Trap, fabricate_perl};

use crate::adapter::{Build, PAGE, Subject};

fn builds() -> impl Strategy<Value = Build> {
    prop::sample::select(&[Build::Threads, Build::Globals][..])
}

fn check_trap(seed: u64, trap: Trap, build: Build) {
    let recipe = PerlRecipe { subs: 6, depth: 4, max_string_bytes: 20_000, ..PerlRecipe::from_seed(seed) };
    let mut perl = fabricate_perl(&recipe);
    let sound = Subject::of(&perl, build).read(1);
    perl.trap(trap);
    let read = Subject::of(&perl, build).read(2);
    let is_noticed = !read.reading.caveats.is_empty()
        || read.main().is_none_or(|main| sound.main().is_none_or(|before| main != before));
    // With globals the interpreter's address is not read; keys and lists of free bodies may look
    // valid in all that is read of them.
    let may_be_missed = matches!(trap, Trap::InterpreterOfTheKernel | Trap::BodyListCycle | Trap::KeyCycle);
    assert!(is_noticed || may_be_missed, "neither figures nor a caveat tell of it");
    if matches!(trap, Trap::ArenaCycle | Trap::ArenaOfItself | Trap::EndlessArena | Trap::ChainToNowhere) {
        assert!(read.main().is_none_or(|main| !main.read), "the heads cannot be counted");
    }
}

#[test]
fn reads_of_traps_terminate_with_a_caveat() {
    let mut failed = Vec::new();
    for trap in Trap::ALL {
        for seed in 0..3 {
            for build in [Build::Threads, Build::Globals] {
                if std::panic::catch_unwind(|| check_trap(seed, trap, build)).is_err() {
                    failed.push((trap, seed, build));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} failed: {failed:?}", failed.len());
}

#[test]
fn names_without_bounds_are_cut_and_counted() {
    for trap in [Trap::EndlessNames, Trap::HostileNames] {
        let recipe = PerlRecipe { seed: 5, values: 10, subs: 4, depth: 2, max_string_bytes: 30_000 };
        let mut perl = fabricate_perl(&recipe);
        perl.trap(trap);
        let read = Subject::of(&perl, Build::Threads).read(1);
        if let Some(main) = read.main().filter(|main| main.read) {
            assert!(
                main.subs.names_replaced > 0 || main.retained.top.iter().all(|buffer| buffer.sub.is_none()),
                "{trap:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 10, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_reader_survives_damaged_words(seed: u64, words in 1..200usize, workers in 1..=3usize, build in builds()) {
        let mut perl = fabricate_perl(&PerlRecipe::from_seed(seed));
        perl.damage(seed, words);
        Subject::of(&perl, build).read(workers);
    }

    #[test]
    fn the_reader_survives_a_single_damaged_word(seed in 0..64u64, choice: u64, build in builds()) {
        let mut perl = fabricate_perl(&PerlRecipe::from_seed(seed));
        perl.damage(choice, 1);
        Subject::of(&perl, build).read(1);
    }

    #[test]
    fn pages_that_are_not_there_never_hurt_the_reader(seed: u64, one_in in 1..40u64, build in builds()) {
        let perl = fabricate_perl(&PerlRecipe::from_seed(seed));
        let mut subject = Subject::of(&perl, build);
        subject.evict(|page| (page / PAGE).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed) >> 32 < (u64::from(u32::MAX) / one_in));
        subject.read(2);
    }
}
