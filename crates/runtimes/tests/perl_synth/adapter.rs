//! Makes a fabricated perl look like a stopped process to the reader, and counts what it reads.

use std::sync::atomic::{AtomicU64, Ordering};

use strandline_claims::refinements::Refinements;
use strandline_claims::runtime::{Context, Reading};
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;
use strandline_process::stacks::ThreadFacts;
use strandline_runtimes::perl;
use strandline_runtimes::perl::facts::{Interpreter, Perl};
use strandline_runtimes::perl::locate::{Addresses, Program, Variables};
use strandline_synth::{Image, PerlImage, clipped};

pub const PAGE: u64 = 4096;

/// Where the reader finds the program's variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// In an interpreter.
    Threads,
    /// In globals.
    Globals,
}

/// A frozen process.
pub struct Subject {
    image: Image,
    maps: String,
    runs: Vec<(u64, u64)>,
    /// The files that hold a Perl.
    pub programs: Vec<Program>,
    fs_base: u64,
    bytes_read: AtomicU64,
    calls: AtomicU64,
}

impl Memory for Subject {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let read_bytes = self.image.read_some(address, buffer);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(read_bytes as u64, Ordering::Relaxed);
        read_bytes
    }
}

/// The result of reading a subject.
pub struct Read {
    pub reading: Reading,
    /// Bytes of the target that were read.
    pub bytes: u64,
    /// Number of reads.
    pub calls: u64,
}

impl Read {
    /// Facts about the Perl.
    pub fn perl(&self) -> Perl {
        self.reading.facts.details("perl").expect("a perl was found: it has facts")
    }

    /// The main interpreter, if there is one.
    pub fn main(&self) -> Option<Interpreter> {
        self.perl().interpreters.into_iter().find(|interpreter| interpreter.main)
    }
}

impl Subject {
    /// The process of a fabricated perl, all of it resident.
    pub fn of(perl: &PerlImage, build: Build) -> Self {
        let at = &perl.variables;
        let variables = match build {
            Build::Threads => Variables::Interpreters { curinterp: at.curinterp, thr_key: Some(at.thr_key) },
            Build::Globals => Variables::Globals(Addresses {
                strtab: at.strtab,
                sv_count: at.sv_count,
                sv_arenaroot: at.sv_arenaroot,
                main_cv: at.main_cv,
                body_roots: at.body_roots,
                body_arenas: at.body_arenas,
            }),
        };
        let runs = perl.image.pages_without(|_| false);
        Self {
            image: perl.image.clone(),
            maps: perl.maps.clone(),
            runs,
            programs: vec![Program {
                path: "/usr/bin/perl".to_owned(),
                version: Some([5, 36, 0]),
                variables,
            }],
            fs_base: perl.fs_base,
            bytes_read: AtomicU64::new(0),
            calls: AtomicU64::new(0),
        }
    }

    /// Removes the pages for which `is_missing` is true.
    pub fn evict(&mut self, is_missing: impl Fn(u64) -> bool) {
        let runs = self.image.pages_without(is_missing);
        self.image = self.image.within(&runs);
        self.runs = runs;
    }

    /// Bytes of all pages.
    pub fn image_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.1 - run.0).sum()
    }

    /// Reads it with `workers` threads, and checks what must hold for every reading.
    pub fn read(&self, workers: usize) -> Read {
        self.bytes_read.store(0, Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
        let (space, bad) = AddressSpace::parse(self.maps.as_bytes());
        assert_eq!(bad, 0, "{}", self.maps);
        let resident = |range: AddressRange| {
            clipped(&self.runs, range.start, range.end).into_iter().map(AddressRange::from).collect()
        };
        let threads = [ThreadFacts { tid: 4711, fs_base: self.fs_base, ..ThreadFacts::default() }];
        let process = Process::open(std::process::id().cast_signed()).expect("this process is there");
        let context =
            Context { threads: &threads, workers, ..Context::of_image(self, &process, &space, &resident) };
        let refinements = Refinements::new(self.runs.iter().copied());
        let reading = perl::read(&context, &self.programs, &refinements);
        let read = Read {
            reading,
            bytes: self.bytes_read.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
        };
        self.check(&read, &refinements);
        read
    }

    /// Checks what must hold for every reading, even of a damaged perl.
    fn check(&self, read: &Read, refinements: &Refinements) {
        // A pass over all of it, a few reads for each value, and a constant.
        let bound = 64 * self.image_bytes() + (16 << 20);
        assert!(read.bytes <= bound, "{} bytes read, {bound} allowed", read.bytes);
        assert!(read.calls <= bound / 16, "{} reads, {bound} bytes allowed", read.calls);
        assert!(read.reading.claims.is_empty(), "Perl has no memory that is not malloc's");
        let perl = read.perl();
        for interpreter in &perl.interpreters {
            assert!(
                interpreter.read || interpreter.retained.top.is_empty(),
                "what is not read names nothing"
            );
            let heads: u64 = interpreter.heads.by_type.values().sum();
            assert!(!interpreter.read || heads == interpreter.heads.live, "{:?}", interpreter.heads);
            assert!(interpreter.retained.top.len() <= 4096);
            for buffer in &interpreter.retained.top {
                for name in
                    [Some(&buffer.holder), buffer.sub.as_ref(), buffer.lexical.as_ref()].into_iter().flatten()
                {
                    assert!(name.len() <= 700, "{} bytes of name", name.len());
                    assert!(!name.chars().any(char::is_control), "{name:?}");
                }
            }
        }
        let is_whole =
            perl.interpreters.iter().all(|interpreter| interpreter.read) && !perl.interpreters.is_empty();
        assert!(is_whole || !read.reading.caveats.is_empty(), "what is not read has a caveat");
        if perl.interpreters.iter().all(|interpreter| !interpreter.read) {
            assert!(
                refinements.is_empty() && read.reading.named_blocks.is_empty(),
                "nothing is claimed of what is in doubt"
            );
        }
    }
}
