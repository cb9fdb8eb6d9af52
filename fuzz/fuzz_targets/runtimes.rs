//! CPython's and Go's readers over fabricated ones with any words of them overwritten and pages missing: they end, read no more
//! than they may, and claim no byte twice.
#![no_main]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use libfuzzer_sys::fuzz_target;
use strandline_claims::refinements::Refinements;
use strandline_claims::runtime::{Context, Reading};
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_runtimes::{cpython, go};
use strandline_synth::{CPythonImage, GoImage, Image, fabricate_cpython, fabricate_go};

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

/// Those that inputs start from.
fn images() -> &'static (Vec<CPythonImage>, Vec<GoImage>) {
    static IMAGES: OnceLock<(Vec<CPythonImage>, Vec<GoImage>)> = OnceLock::new();
    IMAGES.get_or_init(|| ((0..8).map(fabricate_cpython).collect(), (0..8).map(fabricate_go).collect()))
}

/// Words are overwritten with words: 3 bytes say where, one how, 8 with what.
fn patch(image: &mut Image, mut patches: &[u8]) {
    let ranges: Vec<(u64, u64)> = image.ranges().map(|(at, bytes)| (at, bytes.len() as u64)).collect();
    while let Some((first, rest)) = patches.split_first_chunk::<12>() {
        patches = rest;
        let range = ranges[usize::from(first[0]) % ranges.len()];
        let at = range.0 + u64::from(u16::from_le_bytes([first[1], first[2]])) * 8 % range.1;
        let word = u64::from_le_bytes(first[4..].try_into().unwrap_or_default());
        let before = image.word(at).unwrap_or(0);
        let other = ranges[(word % ranges.len() as u64) as usize];
        image.put_word(at, match first[3] % 4 {
            0 => word,
            1 => before ^ word,
            2 => before.wrapping_add(word),
            _ => other.0 + (word >> 8) % other.1,
        });
    }
}

/// The image without the pages that a bit of `absent` names.
fn without(image: &Image, absent: u64) -> (Image, Vec<(u64, u64)>) {
    let (mut left, mut runs) = (Image::default(), Vec::new());
    for (start, bytes) in image.ranges() {
        for (index, page) in bytes.chunks(PAGE as usize).enumerate() {
            let at = start + index as u64 * PAGE;
            if absent >> (at / PAGE % 64) & 1 == 0 {
                left.map(at, page.len());
                left.put(at, page);
                runs.push((at, at + PAGE));
            }
        }
    }
    (left, runs)
}

fn look(image: &Image, maps: &str, absent: u64, read: impl Fn(&Context<'_>, &[(u64, u64)]) -> Reading) {
    let (image, runs) = without(image, absent);
    let resident_bytes = runs.len() as u64 * PAGE;
    let (space, _) = AddressSpace::parse(maps.as_bytes());
    let memory = Target { image, bytes_read: AtomicU64::new(0) };
    let process = Process::open(std::process::id() as i32).expect("this process is there");
    let resident = |from: u64, to: u64| {
        let cut = runs.iter().map(|run| (run.0.max(from), run.1.min(to)));
        cut.filter(|run| run.0 < run.1).collect()
    };
    let context = Context {
        memory: &memory,
        process: &process,
        space: &space,
        resident: &resident,
        threads: &[],
        deadline: std::time::Instant::now() + std::time::Duration::from_secs(600),
        workers: 1,
        cell_bytes: None,
        progress: &|_| {},
    };
    let reading = read(&context, &runs);
    let mut claims: Vec<(u64, u64)> = reading.claims.iter().map(|claim| (claim.start, claim.end)).collect();
    claims.sort_unstable();
    assert!(claims.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    assert!(reading.facts.types.iter().all(|of| of.name.len() <= 500 && !of.name.chars().any(char::is_control)));
    assert!(memory.bytes_read.into_inner() <= 64 * resident_bytes + (64 << 20));
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
            version: Some((python.minor, None)),
            runtime: python.runtime,
            data: python.data,
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
            symbols: [Some(of_go.heap).filter(|_| choice & 16 == 0), None, None],
            data: of_go.data,
            is_alone: choice & 32 == 0,
        };
        look(&of_go.image, &of_go.maps, absent, |context, _| go::read(context, &program, &[]));
    }
});
