//! The CPython and Go readers over fabricated images with arbitrary words overwritten and pages
//! missing: they terminate, stay within their read limits, and claim no byte twice.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use strandline_claims::refinements::Refinements;
use strandline_claims::runtime::{Context, Reading};
use strandline_fuzz::{Target, patch, this_process};
use strandline_process::map::AddressSpace;
use strandline_process::range::RangeSet;
use strandline_runtimes::{cpython, go};
use strandline_synth::{CPythonImage, GoImage, Image, fabricate_cpython, fabricate_go};

/// Images that inputs start from.
fn images() -> &'static (Vec<CPythonImage>, Vec<GoImage>) {
    static IMAGES: OnceLock<(Vec<CPythonImage>, Vec<GoImage>)> = OnceLock::new();
    IMAGES.get_or_init(|| ((0..8).map(fabricate_cpython).collect(), (0..8).map(fabricate_go).collect()))
}

fn look(image: &Image, maps: &str, absent: u64, read: impl Fn(&Context<'_>, &[(u64, u64)]) -> Reading) {
    let target = Target::resident_only(image, absent);
    let (space, _) = AddressSpace::parse(maps.as_bytes());
    let process = this_process();
    let resident = |range| target.resident(range);
    let context = Context::of_image(&target, &process, &space, &resident);
    let reading = read(&context, &target.runs);
    let mut claims: Vec<(u64, u64)> = reading.claims.iter().map(|claim| (claim.start, claim.end)).collect();
    claims.sort_unstable();
    assert!(claims.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    assert!(
        reading.facts.types.iter().all(|of| of.name.len() <= 500 && !of.name.chars().any(char::is_control))
    );
    target.assert_read_at_most(64 * target.resident_bytes() + (64 << 20));
}

fuzz_target!(|data: &[u8]| {
    let Some((&[choice], data)) = data.split_first_chunk() else { return };
    let Some((absent, patches)) = data.split_first_chunk() else { return };
    let (pythons, gos) = images();
    let (which, absent) = (usize::from(choice >> 1) % 8, u64::from_le_bytes(*absent));
    if choice & 1 == 0 {
        let mut python = pythons[which].clone();
        patch(&mut python.image, patches);
        let program = cpython::locate::Program {
            path: "/usr/bin/python3".to_owned(),
            version: Some(cpython::locate::Version { minor: python.minor, micro: None }),
            runtime: python.runtime,
            data: python.data.into(),
            is_free_threaded: false,
        };
        look(&python.image, &python.maps, absent, |context, runs| {
            cpython::read(context, &program, &Refinements::new(runs.iter().copied()))
        });
    } else {
        let mut of_go = gos[which].clone();
        patch(&mut of_go.image, patches);
        let program = go::locate::Program {
            path: "/srv/server".to_owned(),
            version: Some("1.23.4".to_owned()),
            symbols: go::locate::Symbols {
                heap: Some(of_go.mheap).filter(|_| choice & 16 == 0),
                ..Default::default()
            },
            data: of_go.data.into(),
            is_only_module: choice & 32 == 0,
        };
        look(&of_go.image, &of_go.maps, absent, |context, _| {
            go::read(context, &program, &RangeSet::default())
        });
    }
});
