//! The HotSpot reader over fabricated JVMs with arbitrary words and arbitrary bytes of the library
//! file overwritten and pages missing: it terminates, stays within its read limit, and claims no
//! byte twice.
#![no_main]

use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use strandline_claims::refinements::Refinements;
use strandline_claims::runtime::Context;
use strandline_fuzz::{Target, patch, this_process};
use strandline_process::map::AddressSpace;
use strandline_process::range::{AddressRange, RangeSet};
use strandline_runtimes::jvm;
use strandline_synth::{JvmImage, clipped, fabricate_jvm};

/// Images that inputs start from.
fn images() -> &'static Vec<JvmImage> {
    static IMAGES: OnceLock<Vec<JvmImage>> = OnceLock::new();
    IMAGES.get_or_init(|| (0..64).map(fabricate_jvm).collect())
}

/// Returns an unlinked temporary file with these bytes.
fn file_of(bytes: &[u8]) -> Option<File> {
    let path = std::env::temp_dir().join(format!("strandline-fuzz-jvm-{}", std::process::id()));
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).ok()?;
    std::fs::remove_file(&path).ok()?;
    file.write_all(bytes).ok()?;
    Some(file)
}

fuzz_target!(|data: &[u8]| {
    let Some((&[choice, in_file], data)) = data.split_first_chunk() else { return };
    let Some((absent, patches)) = data.split_first_chunk() else { return };
    let mut machine = images()[usize::from(choice) % 64].clone();
    // The first `in_file % 16` patches change one byte of the file each.
    let (of_file, patches) = patches.split_at(patches.len().min(3 * usize::from(in_file % 16)));
    for patch in of_file.as_chunks::<3>().0 {
        let place = usize::from(u16::from_le_bytes([patch[0], patch[1]])) % machine.file.len();
        machine.file[place] = patch[2];
    }
    patch(&mut machine.image, patches);
    let Some(file) = file_of(&machine.file) else { return };
    let path = "/usr/lib/jvm/lib/libjvm.so";
    let program = jvm::locate::Program::new(path, file, machine.tables, machine.bias, machine.data.into());
    let target = Target::resident_only(&machine.image, u64::from_le_bytes(*absent));
    let (space, _) = AddressSpace::parse(machine.maps.as_bytes());
    let process = this_process();
    let is_shared = |run: &(u64, u64)| space.find(run.0).is_some_and(|mapping| mapping.permissions.shared);
    let (shared, private): (Vec<_>, Vec<_>) = target.runs.iter().copied().partition(is_shared);
    let resident = |range: AddressRange| {
        clipped(&private, range.start, range.end).into_iter().map(AddressRange::from).collect()
    };
    let context = Context {
        shared: &|range: AddressRange| {
            clipped(&shared, range.start, range.end).into_iter().map(AddressRange::from).collect()
        },
        ..Context::of_image(&target, &process, &space, &resident)
    };
    let Ok(reading) = jvm::read(&context, &program, &RangeSet::default(), &Refinements::default()) else {
        return;
    };
    let mut claims: Vec<(u64, u64)> =
        reading.claims.iter().chain(&reading.shared_claims).map(|claim| (claim.start, claim.end)).collect();
    claims.sort_unstable();
    assert!(claims.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    assert!(
        reading.facts.types.iter().all(|of| of.name.len() <= 500 && !of.name.chars().any(char::is_control))
    );
    target.assert_read_at_most(64 * target.resident_bytes() + (64 << 20));
});
