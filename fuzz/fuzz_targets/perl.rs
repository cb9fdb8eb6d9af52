//! The Perl reader over fabricated interpreters with arbitrary words overwritten and pages missing:
//! it terminates, stays within its read limit, and reports what it does not understand.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use strandline_claims::refinements::Refinements;
use strandline_claims::runtime::Context;
use strandline_fuzz::{Target, patch, this_process};
use strandline_process::map::AddressSpace;
use strandline_process::stacks::ThreadFacts;
use strandline_runtimes::perl;
use strandline_runtimes::perl::locate::{Addresses, Program, Variables};
use strandline_synth::{PerlImage, PerlRecipe, Trap, fabricate_perl};

/// Images that inputs start from.
fn perls() -> &'static [PerlImage] {
    static PERLS: OnceLock<Vec<PerlImage>> = OnceLock::new();
    PERLS.get_or_init(|| {
        let recipe = |seed| PerlRecipe { values: 40, subs: 3, ..PerlRecipe::from_seed(seed) };
        (0..8).map(|seed| fabricate_perl(&recipe(seed))).collect()
    })
}

fuzz_target!(|data: &[u8]| {
    let Some((&[choice, how], data)) = data.split_first_chunk() else { return };
    let Some((absent, patches)) = data.split_first_chunk() else { return };
    let mut perl = perls()[usize::from(choice) % perls().len()].clone();
    if let Some(trap) = Trap::ALL.get(usize::from(how >> 2)) {
        perl.trap(*trap);
    }
    patch(&mut perl.image, patches);
    let target = Target::resident_only(&perl.image, u64::from_le_bytes(*absent));
    let at = &perl.variables;
    let variables = match how & 1 {
        0 => Variables::Interpreters { curinterp: at.curinterp, thr_key: Some(at.thr_key) },
        _ => Variables::Globals(Addresses {
            strtab: at.strtab,
            sv_count: at.sv_count,
            sv_arenaroot: at.sv_arenaroot,
            main_cv: at.main_cv,
            body_roots: at.body_roots,
            body_arenas: at.body_arenas,
        }),
    };
    let program = Program { path: "/usr/bin/perl".to_owned(), version: Some([5, 36, 0]), variables };
    let (space, _) = AddressSpace::parse(perl.maps.as_bytes());
    let refinements = Refinements::new(target.runs.iter().copied());
    let process = this_process();
    let resident = |range| target.resident(range);
    let context = Context {
        threads: &[ThreadFacts { tid: 1, stack_pointer: 0, fs_base: perl.fs_base, general: [Some(0); 16] }],
        workers: usize::from(how >> 1 & 1) + 1,
        ..Context::of_image(&target, &process, &space, &resident)
    };
    let reading = perl::read(&context, &[program], &refinements);
    assert!(reading.claims.is_empty());
    let read: strandline_runtimes::perl::facts::Perl =
        reading.facts.details("perl").expect("a perl that was found has facts");
    for one in &read.interpreters {
        let heads: u64 = one.heads.by_type.values().sum();
        assert!(!one.read || heads == one.heads.live);
        assert!(one.read || !reading.caveats.is_empty());
        for buffer in &one.retained.top {
            assert!(buffer.holder.len() <= 700 && !buffer.holder.chars().any(char::is_control));
        }
    }
    if read.interpreters.iter().all(|one| !one.read) {
        assert!(refinements.is_empty());
    }
    target.assert_read_at_most(64 * target.resident_bytes() + (16 << 20));
});
