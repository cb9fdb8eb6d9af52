//! Tests on fabricated Go runtimes, intact and damaged.

use proptest::prelude::*;
use strandline_synth::{GoImage, fabricate_go};

use super::locate::Symbols;
use super::*;
use crate::fabricated::{self, assert_sound, damage};

fn read_fabricated(go: &GoImage, absent: u64, is_stripped: bool) -> Reading {
    let program = Program {
        path: "/srv/server".to_owned(),
        version: Some("1.23.4".to_owned()),
        symbols: Symbols { heap: Some(go.mheap).filter(|_| !is_stripped), ..Symbols::default() },
        data: go.data.into(),
        is_only_module: absent & 2 == 0,
    };
    fabricated::read_image(&go.image, &go.maps, absent, |context, _| {
        read(context, &program, &Default::default())
    })
}

#[test]
fn undamaged_images_have_the_built_figures() {
    for seed in 0..40 {
        let go = fabricate_go(seed);
        let reading = read_fabricated(&go, 0, seed % 2 == 0);
        assert!(reading.facts.read && reading.caveats.is_empty(), "{seed}: {:?}", reading.caveats);
        for (name, figure) in &go.expected {
            assert_eq!(reading.facts.own_figure(name), Some(*figure), "{seed}: {name}");
        }
    }
}

proptest! {
    #[test]
    fn damaged_ones_are_read_to_an_end(seed in 0..64_u64, is_stripped: bool, (absent, patches) in damage()) {
        let mut go = fabricate_go(seed);
        fabricated::patch(&mut go.image, seed, &patches);
        assert_sound(&read_fabricated(&go, absent, is_stripped));
    }
}

/// Replaces pointers with the largest value: no computation on them overflows.
#[test]
fn reads_of_oversized_words_terminate() {
    for seed in 0..4 {
        let go = fabricate_go(seed);
        fabricated::with_pointers_maximized(&go.image, |image| {
            assert_sound(&read_fabricated(&GoImage { image, ..go.clone() }, 0, seed % 2 == 0));
        });
    }
}
