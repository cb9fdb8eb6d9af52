//! Fabricated CPythons, whole and damaged.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use strandline_synth::{CPythonImage, Dice, Image, fabricate_cpython};

use super::*;

const PAGE: u64 = 4096;

struct Target(Image);

impl Memory for Target {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        self.0.read_some(address, buffer)
    }
}

/// Reads one of which only the pages in `runs` are resident.
fn look(python: &CPythonImage, image: Image, runs: &[(u64, u64)]) -> Reading {
    let (space, bad) = AddressSpace::parse(python.maps.as_bytes());
    assert_eq!(bad, 0);
    let process = Process::open(std::process::id() as i32).unwrap();
    let program = Program {
        path: "/usr/bin/python3".to_owned(),
        version: Some((python.minor, None)),
        runtime: python.runtime,
        data: python.data,
        is_free_threaded: false,
    };
    let resident = |from: u64, to: u64| {
        let cut = runs.iter().map(|run| (run.0.max(from), run.1.min(to)));
        cut.filter(|run| run.0 < run.1).collect()
    };
    let context = Context {
        memory: &Target(image),
        process: &process,
        space: &space,
        resident: &resident,
        threads: &[],
        deadline: Instant::now() + Duration::from_secs(600),
        workers: 2,
        cell_bytes: None,
        progress: &|_| {},
    };
    read(&context, &program, &Refinements::new(runs.iter().copied()))
}

/// All pages but those that `absent` names, a bit each of 64.
fn without(image: &Image, absent: u64) -> (Image, Vec<(u64, u64)>) {
    let (mut left, mut runs): (Image, Vec<(u64, u64)>) = (Image::default(), Vec::new());
    for (start, bytes) in image.ranges() {
        for (index, page) in bytes.chunks(PAGE as usize).enumerate() {
            let at = start + index as u64 * PAGE;
            if absent >> (at / PAGE % 64) & 1 == 1 {
                continue;
            }
            left.map(at, page.len());
            left.put(at, page);
            match runs.last_mut().filter(|run| run.1 == at) {
                Some(run) => run.1 = at + PAGE,
                None => runs.push((at, at + PAGE)),
            }
        }
    }
    (left, runs)
}

#[test]
fn whole_ones_hold_what_was_made() {
    for seed in 0..40 {
        let python = fabricate_cpython(seed);
        let (image, runs) = without(&python.image, 0);
        let reading = look(&python, image, &runs);
        assert!(reading.facts.read && reading.caveats.is_empty(), "{seed}: {:?}", reading.caveats);
        for (name, figure) in &python.expected.own {
            assert_eq!(reading.facts.own_figure(name), Some(*figure), "{seed}: {name}");
        }
        let instances = reading.facts.types.iter().map(|of| (of.name.as_str(), of.instances)).collect();
        assert_eq!(python.expected.instances, instances, "{seed}");
        let details: CPython = reading.facts.details("cpython").unwrap();
        assert_eq!(details.free_lists.map(|dead| dead.objects), Some(python.expected.dead), "{seed}");
    }
}

fn is_sound(reading: &Reading) {
    let mut claims: Vec<(u64, u64)> = reading.claims.iter().map(|claim| (claim.start, claim.end)).collect();
    claims.sort_unstable();
    assert!(claims.windows(2).all(|pair| pair[0].1 <= pair[1].0), "claims overlap");
    assert!(reading.facts.types.iter().all(|of| !of.name.chars().any(char::is_control)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damaged_ones_are_read_to_an_end(
        seed in 0..64_u64,
        absent in prop_oneof![Just(0), any::<u64>().prop_map(|bits| bits & bits >> 7 & bits << 3)],
        patches in prop::collection::vec((any::<u64>(), any::<u64>(), 0..5_u8), 0..60),
    ) {
        let mut python = fabricate_cpython(seed);
        let mut dice = Dice::new(seed);
        let ranges: Vec<(u64, u64)> =
            python.image.ranges().map(|(start, bytes)| (start, bytes.len() as u64)).collect();
        for (place, word, how) in patches {
            let range = dice.one_of(&ranges);
            // Structures stand near the begin of each.
            let at = range.0 + place % range.1.min(if how == 4 { range.1 } else { 0x9000 }) / 8 * 8;
            let before = python.image.word(at).unwrap_or(0);
            let other = dice.one_of(&ranges);
            python.image.put_word(at, match how {
                0 => word,
                1 => before ^ 1 << (word % 64),
                2 => before.wrapping_add(word % 4096),
                3 => other.0 + word % other.1,
                _ => u64::MAX >> (word % 64),
            });
        }
        let (image, runs) = without(&python.image, absent);
        is_sound(&look(&python, image, &runs));
    }
}
