//! The V8 reader over fabricated heaps with arbitrary words overwritten and pages missing: it
//! terminates, stays within its read limit, and claims no byte twice.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use strandline_claims::refinements::Refinements;
use strandline_claims::runtime::Context;
use strandline_fuzz::{Target, patch, this_process};
use strandline_process::map::AddressSpace;
use strandline_runtimes::v8;
use strandline_synth::{V8_FIRST_CONTEXT, V8_TYPES, V8Image, fabricate_v8};

/// Images that inputs start from.
fn images() -> &'static Vec<V8Image> {
    static IMAGES: OnceLock<Vec<V8Image>> = OnceLock::new();
    IMAGES.get_or_init(|| (0..20).map(fabricate_v8).collect())
}

fuzz_target!(|data: &[u8]| {
    let Some((&[choice], data)) = data.split_first_chunk() else { return };
    let Some((absent, patches)) = data.split_first_chunk() else { return };
    let mut machine = images()[usize::from(choice) % 20].clone();
    patch(&mut machine.image, patches);
    let mut program = v8::locate::Program {
        path: "/usr/bin/node".to_owned(),
        version: Some(machine.version),
        ..v8::locate::Program::default()
    };
    program.set_types(V8_TYPES.iter().map(|(name, number)| ((*name).to_owned(), *number)), V8_FIRST_CONTEXT);
    let target = Target::resident_only(&machine.image, u64::from_le_bytes(*absent));
    let (space, _) = AddressSpace::parse(machine.maps.as_bytes());
    let process = this_process();
    let resident = |range| target.resident(range);
    let context = Context::of_image(&target, &process, &space, &resident);
    let Ok(reading) =
        v8::read(&context, &program, &Default::default(), &Refinements::new(target.runs.iter().copied()))
    else {
        return;
    };
    let mut claims: Vec<(u64, u64)> = reading.claims.iter().map(|claim| (claim.start, claim.end)).collect();
    claims.sort_unstable();
    assert!(claims.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    target.assert_read_at_most(64 * target.resident_bytes() + (64 << 20));
});
