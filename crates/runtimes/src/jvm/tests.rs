//! Tests on fabricated Java virtual machines, intact and damaged.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use strandline_claims::facts::TypeFacts;
use strandline_synth::{JvmImage, Tally, Usage, fabricate_jvm};

use super::facts::Jvm;
use super::*;
use crate::fabricated::{self, assert_sound, damage};

/// An unnamed file with these bytes.
fn file_of(bytes: &[u8]) -> File {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("strandline-jvm-{}-{number}", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(bytes).unwrap();
    file
}

const PATH: &str = "/usr/lib/jvm/lib/server/libjvm.so";

/// Reads a fabricated JVM. A page is not resident if `absent` has the bit of its number modulo 64.
fn read_jvm(jvm: &JvmImage, absent: u64) -> Reading {
    let program = Program::new(PATH, file_of(&jvm.file), jvm.tables, jvm.bias, jvm.data.into());
    read_program(jvm, &program, absent)
}

fn read_program(jvm: &JvmImage, program: &Program, absent: u64) -> Reading {
    fabricated::read_image(&jvm.image, &jvm.maps, absent, |context, _| {
        read(context, program, &Default::default(), &Refinements::default()).unwrap_or_default()
    })
}

fn by_name(types: &[TypeFacts]) -> BTreeMap<&str, Tally> {
    let tally = |facts: &TypeFacts| Tally { count: facts.instances, bytes: facts.bytes };
    types.iter().map(|facts| (facts.name.as_str(), tally(facts))).collect()
}

/// Number of seeds that includes every collector of every release.
const SEEDS: u64 = 64;

/// Returns the first image of each collector and release.
fn one_of_each() -> Vec<JvmImage> {
    let mut releases = BTreeSet::new();
    let is_first = |jvm: &JvmImage| releases.insert((jvm.expected.collector, jvm.expected.release));
    (0..SEEDS).map(fabricate_jvm).filter(is_first).collect()
}

#[test]
fn there_is_one_of_each_collector() {
    // Four of JDK 11, and six each of 17 and 25.
    assert_eq!(one_of_each().len(), 16);
}

#[test]
fn intact_images_match_expected_figures() {
    for seed in 0..SEEDS {
        let jvm = fabricate_jvm(seed);
        let (expected, reading) = (&jvm.expected, read_jvm(&jvm, 0));
        // Objects of ZGC are not read.
        let codes: Vec<&str> = reading.caveats.iter().map(|caveat| caveat.code.as_str()).collect();
        let expected_codes: &[&str] = if reading.facts.types.is_empty() { &["jvm_objects"] } else { &[] };
        assert!(reading.facts.read && codes == expected_codes, "{seed}: {:?}", reading.caveats);
        assert_eq!(reading.facts.version.as_deref(), Some(expected.release), "{seed}");
        assert_eq!(reading.facts.own["collector"], expected.collector, "{seed}");
        let pools: Vec<heap::Pool> = serde_json::from_value(reading.facts.own["pools"].clone()).unwrap();
        let usage = |pool: &heap::Pool| Usage::of(pool.used_bytes, pool.committed_bytes);
        let pools: BTreeMap<_, _> = pools.iter().map(|pool| (pool.name.as_str(), usage(pool))).collect();
        assert_eq!(pools, expected.pools, "{seed}");
        assert_eq!(by_name(&reading.facts.types), expected.types, "{seed}");
        let details: Jvm = reading.facts.details(ABOUT.name).unwrap();
        assert_eq!(by_name(&details.live_types), expected.live_types, "{seed}");
        // Objects of ZGC are not walked.
        let live: u64 = expected.live_types.values().map(|tally| tally.bytes).sum();
        assert_eq!(details.live_bytes, (expected.collector != "Z").then_some(live), "{seed}");
        // The image does not state where references are: nothing that only a stack holds is
        // certain.
        assert!(details.live_at_least_bytes <= details.live_bytes, "{seed}");
        assert_eq!(details.live_at_least_bytes.is_some(), details.live_bytes.is_some(), "{seed}");
        let live_of_kinds: u64 = details.kinds.iter().filter_map(|kind| kind.live_bytes).sum();
        assert_eq!(live_of_kinds, live, "{seed}");
        assert_eq!(details.class_loader_count, Some(expected.loader_count), "{seed}");
        let usage = |kind: &facts::KindFigures| Usage::of(kind.used_bytes, kind.bytes);
        let kinds: BTreeMap<_, _> =
            details.kinds.iter().map(|kind| (kind.kind.as_str(), usage(kind))).collect();
        assert_eq!(kinds, expected.usage_by_kind, "{seed}");
        let heap: u64 = details.kinds.iter().map(|kind| kind.bytes).sum();
        let (shared, in_use) = (expected.shared_heap.committed_bytes, expected.shared_heap.used_bytes);
        assert_eq!((heap, details.resident_bytes), (expected.heap_bytes, heap + shared), "{seed}");
        let free: u64 = details.kinds.iter().map(|kind| kind.free_resident_bytes).sum();
        assert_eq!(details.free_resident_bytes, free + shared - in_use, "{seed}");
        let claimed: u64 = reading.shared_claims.iter().map(|claim| claim.end - claim.start).sum();
        assert_eq!(claimed, shared, "{seed}");
        assert_sound(&reading);
    }
}

/// A JVM with incomplete tables is named, with what is missing and where; nothing of it is claimed.
#[test]
fn an_incomplete_jvm_has_a_caveat() {
    let jvm = fabricate_jvm(0);
    let data: AddressRange = jvm.data.into();
    let without_a_symbol = Program::incomplete(PATH, "it does not export gHotSpotVMTypes", data);
    let [fields, _, ints, longs] = jvm.tables;
    let without_a_table = Program::new(PATH, file_of(&jvm.file), [fields, 0, ints, longs], jvm.bias, data);
    for program in [without_a_symbol, without_a_table] {
        let reading = read_program(&jvm, &program, 0);
        assert!(!reading.facts.read && reading.claims.is_empty());
        let [caveat] = reading.caveats.as_slice() else { panic!("{:?}", reading.caveats) };
        assert_eq!((caveat.code.as_str(), caveat.place.as_str()), ("jvm_unknown_version", PATH));
        assert!(caveat.text.contains("gHotSpotVMTypes") && caveat.bytes.is_none(), "{}", caveat.text);
    }
}

/// If a flag that decides on a full collection cannot be read, the remedy is listed with that
/// reason, and predicts nothing.
#[test]
fn unread_flags_leave_no_prediction() {
    let mut tried = BTreeSet::new();
    for mut jvm in one_of_each() {
        let program = Program::new(PATH, file_of(&jvm.file), jvm.tables, jvm.bias, jvm.data.into());
        let of_collection =
            |reading: Reading| reading.remedies.into_iter().find(|remedy| remedy.id == "jvm_gc");
        let before = of_collection(read_program(&jvm, &program, 0));
        let structs = program.structs(&fabricated::Unreadable).unwrap();
        for flag in ["DisableExplicitGC", "ExplicitGCInvokesConcurrent"] {
            let value_at = structs.flag(flag);
            let is_entry = |at: &u64| jvm.image.word(*at) == value_at;
            let entry = (jvm.data.0..jvm.data.1).step_by(8).find(is_entry).unwrap();
            jvm.image.put_word(entry, 8);
        }
        let after = of_collection(read_jvm(&jvm, 0));
        let (collector, is_old) = (jvm.expected.collector, !jvm.expected.release.starts_with("25"));
        assert_eq!(after.is_some(), before.is_some(), "{collector}");
        if let Some(remedy) = after.filter(|_| is_old || collector == "G1") {
            assert_eq!(remedy.predicted_bytes, None);
            assert!(remedy.unknown_because.unwrap().contains("flags of the JVM that could not be read"));
            tried.insert(collector);
        }
    }
    assert_eq!(tried, BTreeSet::from(["G1", "Parallel", "Serial", "Shenandoah"]));
}

proptest! {
    #[test]
    fn reading_a_damaged_jvm_terminates(seed in 0..SEEDS, (absent, patches) in damage()) {
        let mut jvm = fabricate_jvm(seed);
        fabricated::patch(&mut jvm.image, seed, &patches);
        assert_sound(&read_jvm(&jvm, absent));
    }

    /// The file is controlled by the target, too: it may differ from what is mapped, or be
    /// truncated.
    #[test]
    fn reading_a_damaged_file_terminates(
        seed in 0..SEEDS,
        patches in prop::collection::vec((any::<u16>(), any::<u8>()), 0..20),
        length: u16,
    ) {
        let mut jvm = fabricate_jvm(seed);
        for (place, byte) in patches {
            let place = usize::from(place) % jvm.file.len();
            jvm.file[place] = byte;
        }
        jvm.file.truncate(usize::from(length).max(120));
        assert_sound(&read_jvm(&jvm, 0));
    }
}

/// Replaces pointers with the largest value: no computation on them overflows.
#[test]
fn reads_of_oversized_words_terminate() {
    for jvm in one_of_each() {
        fabricated::with_pointers_maximized(&jvm.image, |image| {
            assert_sound(&read_jvm(&JvmImage { image, ..jvm.clone() }, 0));
        });
    }
}

#[test]
fn a_library_that_loads_a_jvm_is_no_jvm() {
    let matches = |file: &str| ABOUT.evidence.files.iter().any(|name| name.matches(file));
    assert!(matches("libjvm.so") && !matches("libjvmfwklo.so"), "LibreOffice's has that name");
}
