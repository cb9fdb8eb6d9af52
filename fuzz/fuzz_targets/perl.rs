//! Perl's reader over fabricated perls with any words of them overwritten and pages missing: it ends, reads no more than
//! it may, and says where it does not understand.
#![no_main]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use libfuzzer_sys::fuzz_target;
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_runtimes::perl::locate::{Addresses, Program, Variables};
use strandline_claims::refinements::Refinements;
use strandline_claims::runtime::Context;
use strandline_runtimes::perl;
use strandline_process::stacks::ThreadFacts;
use strandline_synth::{Image, PerlImage, PerlRecipe, TRAPS, fabricate_perl};

const PAGE: u64 = 4096;

struct Target {
    image: Image,
    bytes_read: AtomicU64,
}

impl Memory for Target {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let got = self.image.read_some(address, buffer);
        self.bytes_read.fetch_add(got as u64, Ordering::Relaxed);
        got
    }
}

/// The perls that inputs start from.
fn perls() -> &'static [PerlImage] {
    static PERLS: OnceLock<Vec<PerlImage>> = OnceLock::new();
    PERLS.get_or_init(|| {
        let recipe = |seed| PerlRecipe { values: 40, subs: 3, ..PerlRecipe::from_seed(seed) };
        (0..8).map(|seed| fabricate_perl(&recipe(seed))).collect()
    })
}

/// Words are overwritten with words: 3 bytes say where, one how, 8 with what.
fn patch(perl: &mut PerlImage, mut patches: &[u8]) {
    let ranges: Vec<(u64, u64)> = perl.image.ranges().map(|(at, bytes)| (at, bytes.len() as u64)).collect();
    let bytes: u64 = ranges.iter().map(|range| range.1).sum();
    while let Some((first, rest)) = patches.split_first_chunk::<12>() {
        patches = rest;
        let mut at = u64::from_le_bytes([first[0], first[1], first[2], 0, 0, 0, 0, 0]) * 8 % bytes;
        let Some(address) = ranges.iter().find_map(|&(start, length)| {
            let found = (at < length).then(|| start + at);
            at = at.saturating_sub(length);
            found
        }) else {
            continue;
        };
        let word = u64::from_le_bytes([
            first[4], first[5], first[6], first[7], first[8], first[9], first[10], first[11],
        ]);
        let before = perl.image.word(address).unwrap_or(0);
        perl.image.put_word(address, match first[3] % 4 {
            0 => word,
            1 => before ^ word,
            2 => before.wrapping_add(word),
            // The address of another word.
            _ => ranges[(word % ranges.len() as u64) as usize].0 + (word >> 8) % ranges[(word % ranges.len() as u64) as usize].1,
        });
    }
}

fn cut(runs: &[(u64, u64)], from: u64, to: u64) -> Vec<(u64, u64)> {
    let cut = runs.iter().map(|run| (run.0.max(from), run.1.min(to)));
    cut.filter(|run| run.0 < run.1).collect()
}

/// The image without the pages that a bit of `absent` names.
fn without(image: &Image, absent: u64) -> (Image, Vec<(u64, u64)>) {
    let (mut left, mut runs) = (Image::default(), Vec::new());
    let mut number = 0;
    for (start, bytes) in image.ranges() {
        for (index, page) in bytes.chunks(PAGE as usize).enumerate() {
            let at = start + index as u64 * PAGE;
            number += 1;
            if absent != 0 && absent >> (number % 64) & 1 == 1 {
                continue;
            }
            left.map(at, page.len());
            left.put(at, page);
            runs.push((at, at + PAGE));
        }
    }
    (left, runs)
}

fuzz_target!(|data: &[u8]| {
    let Some((&[choice, how], data)) = data.split_first_chunk() else { return };
    let Some((absent, patches)) = data.split_first_chunk() else { return };
    let mut target = perls()[usize::from(choice) % perls().len()].clone();
    if let Some(trap) = TRAPS.get(usize::from(how >> 2)) {
        target.trap(*trap);
    }
    patch(&mut target, patches);
    let (image, runs) = without(&target.image, u64::from_le_bytes(*absent));
    let resident_bytes: u64 = runs.iter().map(|run| run.1 - run.0).sum();
    let at = &target.variables;
    let variables = match how & 1 {
        0 => Variables::Interpreters { current: at.curinterp, key: Some(at.thr_key) },
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
    let (space, _) = AddressSpace::parse(target.maps.as_bytes());
    let memory = Target { image, bytes_read: AtomicU64::new(0) };
    let refinements = Refinements::new(runs.iter().copied());
    let process = Process::open(std::process::id() as i32).expect("this process is there");
    let reading = perl::read(
        &Context {
            memory: &memory,
            process: &process,
            space: &space,
            resident: &|from, to| cut(&runs, from, to),
            threads: &[ThreadFacts { tid: 1, stack_pointer: 0, fs_base: target.fs_base, general: [0; 16] }],
            deadline: std::time::Instant::now() + std::time::Duration::from_secs(600),
            workers: usize::from(how >> 1 & 1) + 1,
            cell_bytes: None,
            progress: &|_| {},
        },
        &[program],
        &refinements,
    );
    assert!(reading.claims.is_empty());
    let perl: strandline_runtimes::perl::facts::Perl = reading.facts.details("perl").expect("a perl that was found has facts");
    for one in &perl.interpreters {
        let heads: u64 = one.heads.by_type.values().sum();
        assert!(!one.read || heads == one.heads.live);
        assert!(one.read || !reading.caveats.is_empty());
        for buffer in &one.retained.top {
            assert!(buffer.holder.len() <= 700 && !buffer.holder.chars().any(char::is_control));
        }
    }
    if perl.interpreters.iter().all(|one| !one.read) {
        assert!(refinements.is_empty());
    }
    assert!(memory.bytes_read.into_inner() <= 64 * resident_bytes + (16 << 20));
});
