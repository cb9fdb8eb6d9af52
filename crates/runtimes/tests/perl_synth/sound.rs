//! Sound perls: every figure is that of the recipe, with any number of threads.

use strandline_runtimes::perl::locate::{Program, Variables};
use strandline_synth::{PerlImage, PerlRecipe, fabricate_perl};

use crate::adapter::{Build, Read, Subject};

fn check(perl: &PerlImage, read: &Read) {
    let main = read.main().expect("a main interpreter");
    let expected = &perl.expected;
    assert!(main.read, "{:?}", read.reading.caveats);
    assert_eq!(main.sv_count, expected.live_heads);
    assert_eq!(main.heads.live, expected.live_heads);
    assert_eq!(main.heads.free, expected.free_heads);
    assert_eq!(main.heads.arenas, expected.arenas);
    let counts = |values: Vec<u64>| {
        let mut counts: Vec<u64> = values.into_iter().filter(|&count| count > 0).collect();
        counts.sort_unstable();
        counts
    };
    assert_eq!(
        counts(main.heads.by_type.values().copied().collect()),
        counts(expected.by_type.values().copied().collect())
    );
    assert_eq!(main.strings.values, expected.strings);
    assert_eq!(main.strings.buffers, expected.buffers);
    assert_eq!(main.strings.payload_bytes, expected.payload_bytes);
    let cow = &main.strings.cow;
    let shared = expected.shared_buffers;
    assert_eq!((cow.buffers, cow.shared_bytes), (shared.count, shared.bytes));
    let constants = &main.strings.constants;
    assert_eq!(constants.buffers, expected.constant_buffers.count);
    assert_eq!(constants.capacity_bytes, expected.constant_buffers.bytes);
    assert_eq!(main.retained.lexicals.bytes, expected.kept_bytes(true));
    assert_eq!(main.retained.temporaries.bytes, expected.kept_bytes(false));
    let large = expected.kept_buffers.iter().filter(|kept| kept.bytes > 4096).count();
    assert_eq!(main.retained.top.iter().filter(|buffer| buffer.sub.is_some()).count(), large);
    for kept in expected.kept_buffers.iter().filter(|kept| kept.bytes > 4096) {
        let address = format!("{:#x}", kept.address);
        let found =
            main.retained.top.iter().find(|buffer| buffer.address == address).expect("every large one");
        assert_eq!(found.bytes, kept.bytes);
        assert_eq!(found.depth, Some(kept.depth));
        assert_eq!(found.sub.as_deref(), Some(kept.sub.as_str()));
        assert_eq!(found.lexical, kept.lexical);
    }
}

#[test]
fn valid_perls_are_read_to_the_byte() {
    for seed in 0..60 {
        let perl = fabricate_perl(&PerlRecipe::from_seed(seed));
        for build in [Build::Threads, Build::Globals] {
            let subject = Subject::of(&perl, build);
            let read = subject.read(1);
            check(&perl, &read);
            assert_eq!(read.perl().ithreads, build == Build::Threads);
            let by_three_threads = subject.read(3);
            assert_eq!(read.perl(), by_three_threads.perl(), "seed {seed}: threads change nothing");
        }
    }
}

#[test]
fn the_thread_of_an_interpreter_is_known() {
    let perl = fabricate_perl(&PerlRecipe::from_seed(4));
    let read = Subject::of(&perl, Build::Threads).read(1);
    assert_eq!(read.perl().interpreters.len(), 1, "the thread's own is the main one");
    assert_eq!(read.main().and_then(|main| main.thread), Some(4711));
}

#[test]
fn an_interpreter_that_two_files_lead_to_is_read_once() {
    let perl = fabricate_perl(&PerlRecipe::from_seed(4));
    let mut subject = Subject::of(&perl, Build::Threads);
    // A library that has no interpreter, and whose key was not set.
    let thr_key = Some(perl.variables.thr_key);
    let variables = Variables::Interpreters { curinterp: 0, thr_key };
    let path = "/usr/lib/libperl.so.5.36".to_owned();
    subject.programs.push(Program { path, variables, ..subject.programs[0].clone() });
    let read = subject.read(1);
    assert_eq!(read.perl().interpreters.len(), 1);
    assert_eq!(read.reading.facts.found_by, "/usr/bin/perl");
}

#[test]
fn an_interpreter_is_read_with_the_layout_that_fits_it() {
    let perl = fabricate_perl(&PerlRecipe::from_seed(4));
    let mut subject = Subject::of(&perl, Build::Threads);
    // A library of another release, first in memory, whose key was not set.
    let variables = Variables::Interpreters { curinterp: 0, thr_key: Some(perl.variables.thr_key) };
    let path = "/usr/lib/libperl.so.5.18".to_owned();
    subject.programs.insert(0, Program { path, version: Some([5, 18, 0]), variables });
    let read = subject.read(1);
    assert_eq!(read.perl().interpreters.len(), 1);
    assert!(read.main().is_some_and(|main| main.read), "{:?}", read.reading.caveats);
    assert_eq!(read.reading.facts.found_by, "/usr/bin/perl");
    assert_eq!(read.reading.facts.version, subject.programs[1].version_text());
    assert!(read.reading.caveats.iter().all(|caveat| caveat.code != "perl_damaged"));
}

#[test]
fn large_perls_are_read_in_few_reads() {
    let recipe = PerlRecipe { seed: 1, values: 60_000, subs: 50, depth: 20, max_string_bytes: 100 };
    let perl = fabricate_perl(&recipe);
    let read = Subject::of(&perl, Build::Threads).read(2);
    check(&perl, &read);
    let values = perl.expected.live_heads;
    assert!(read.calls < values, "{} reads of {values} values", read.calls);
}
