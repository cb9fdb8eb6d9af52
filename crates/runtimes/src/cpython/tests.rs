//! Tests on fabricated CPythons, intact and damaged.

use proptest::prelude::*;
use strandline_synth::{CPythonImage, fabricate_cpython, fabricate_free_threaded_cpython};

use super::*;
use crate::fabricated::{self, assert_sound, damage};

fn program(python: &CPythonImage) -> Program {
    Program {
        path: "/usr/bin/python3".to_owned(),
        version: Some(locate::Version { minor: python.minor, micro: None }),
        runtime: python.runtime,
        data: python.data.into(),
        is_free_threaded: python.minor > 12,
    }
}

fn read_fabricated(python: &CPythonImage, absent: u64) -> Reading {
    fabricated::read_image(&python.image, &python.maps, absent, |context, runs| {
        read(context, &program(python), &Refinements::new(runs.iter().copied()))
    })
}

/// Codes of the caveats of a reading.
fn codes(reading: &Reading) -> Vec<&str> {
    // The process of the tests may itself be swapped out.
    let codes = reading.caveats.iter().map(|caveat| caveat.code.as_str());
    codes.filter(|&code| code != "cpython_swapped").collect()
}

#[test]
fn undamaged_images_have_the_built_figures() {
    for seed in 0..40 {
        let python = fabricate_cpython(seed);
        let reading = read_fabricated(&python, 0);
        assert!(reading.facts.read, "{seed}");
        // They have no `sys.modules`.
        assert_eq!(codes(&reading), ["cpython_names"], "{seed}: {:?}", reading.caveats);
        for (name, figure) in &python.expected.debug_stats {
            assert_eq!(reading.facts.own_figure(name), Some(*figure), "{seed}: {name}");
        }
        let instances =
            reading.facts.types.iter().map(|facts| (facts.name.as_str(), facts.instances)).collect();
        assert_eq!(python.expected.instances, instances, "{seed}");
        let details: CPython = reading.facts.details("cpython").unwrap();
        assert_eq!(details.free_lists.map(|dead| dead.objects), Some(python.expected.dead_objects), "{seed}");
    }
}

#[test]
fn undamaged_images_without_a_global_lock_have_the_built_figures() {
    for seed in 0..40 {
        let python = fabricate_free_threaded_cpython(seed);
        let reading = read_fabricated(&python, 0);
        assert!(reading.facts.read, "{seed}");
        // They have no `sys.modules`.
        assert_eq!(codes(&reading), ["cpython_names"], "{seed}: {:?}", reading.caveats);
        let expected = |name: &str| python.expected.debug_stats.get(name).copied();
        assert_eq!(reading.facts.used_bytes, expected("used_bytes"), "{seed}");
        assert_eq!(reading.facts.committed_bytes, expected("committed_bytes"), "{seed}");
        let instances =
            reading.facts.types.iter().map(|facts| (facts.name.as_str(), facts.instances)).collect();
        assert_eq!(python.expected.instances, instances, "{seed}");
        let details: CPython = reading.facts.details("cpython").unwrap();
        assert_eq!(details.free_lists.map(|dead| dead.objects), Some(python.expected.dead_objects), "{seed}");
        assert!(details.arena_bytes.is_none() && !details.heaps.is_empty(), "{seed}");
    }
}

#[test]
fn a_list_of_interpreters_that_leads_nowhere_has_a_caveat() {
    let mut python = fabricate_cpython(0);
    let release = program(&python).release().unwrap();
    let layout::Interpreters::HeadAt(offset) = release.interpreters else { panic!("an unexpected release") };
    let first = python.image.word(python.runtime + offset).unwrap();
    python.image.put_word(first, 0x10);
    let reading = read_fabricated(&python, 0);
    assert!(codes(&reading).contains(&"cpython_interpreters"), "{:?}", reading.caveats);
}

/// The image of `python` without the pages of this range, as if they were swapped out.
fn without(mut python: CPythonImage, range: AddressRange) -> CPythonImage {
    python.image = python.image.within(&python.image.pages_without(|page| range.contains(page)));
    python
}

#[test]
fn figures_of_memory_without_any_resident_arena_or_heap_are_unknown() {
    // Arenas and heaps are the last mapping.
    let last = AddressRange::new(0x7f20_0000_0000, u64::MAX);
    for (python, code) in [
        (fabricate_cpython(0), "cpython_damaged"),
        (fabricate_free_threaded_cpython(0), "cpython_arenas_not_found"),
    ] {
        let reading = read_fabricated(&without(python, last), 0);
        assert!(codes(&reading).contains(&code), "{:?}", reading.caveats);
        assert_eq!((reading.facts.used_bytes, reading.facts.committed_bytes), (None, None));
        assert!(reading.facts.own.is_empty());
    }
}

#[test]
fn without_time_there_is_a_caveat() {
    for python in [fabricate_cpython(0), fabricate_free_threaded_cpython(0)] {
        let reading = fabricated::read_image(&python.image, &python.maps, 0, |context, runs| {
            let late = Context { deadline: std::time::Instant::now(), ..*context };
            read(&late, &program(&python), &Refinements::new(runs.iter().copied()))
        });
        assert!(codes(&reading).contains(&"cpython_too_slow"), "{:?}", reading.caveats);
    }
}

proptest! {
    #[test]
    fn damaged_ones_are_read_to_an_end(seed in 0..64_u64, (absent, patches) in damage()) {
        let mut python = fabricate_cpython(seed);
        fabricated::patch(&mut python.image, seed, &patches);
        assert_sound(&read_fabricated(&python, absent));
    }

    #[test]
    fn damaged_ones_without_a_global_lock_are_read_to_an_end(seed in 0..64_u64, (absent, patches) in damage()) {
        let mut python = fabricate_free_threaded_cpython(seed);
        fabricated::patch(&mut python.image, seed, &patches);
        assert_sound(&read_fabricated(&python, absent));
    }
}

/// Replaces pointers with the largest value: no computation on them overflows.
#[test]
fn reads_of_oversized_words_terminate() {
    let images = (0..4).flat_map(|seed| [fabricate_cpython(seed), fabricate_free_threaded_cpython(seed)]);
    for python in images {
        fabricated::with_pointers_maximized(&python.image, |image| {
            assert_sound(&read_fabricated(&CPythonImage { image, ..python.clone() }, 0));
        });
    }
}
