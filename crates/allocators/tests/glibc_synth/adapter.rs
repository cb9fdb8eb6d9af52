//! Presents a fabricated heap to the reader as a stopped process, and counts what it reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strandline_allocators::glibc;
use strandline_claims::accumulator::Sums;
use strandline_claims::allocator::{Context, Reading};
use strandline_claims::facts::Mallinfo;
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::range::AddressRange;
use strandline_synth::{Heap, Image, Rng, clipped};

pub const PAGE: u64 = 4096;

/// A frozen process: memory, mappings, resident pages, threads.
pub struct FrozenProcess {
    pub image: Image,
    /// In the format of /proc/PID/maps.
    pub maps: String,
    /// Resident anonymous runs, page-aligned, in address order.
    pub runs: Vec<(u64, u64)>,
    pub fs_bases: Vec<u64>,
    pub start_brk: Option<u64>,
    /// The mappings with swapped-out pages.
    pub swapped_mappings: Vec<AddressRange>,
    bytes_read: AtomicU64,
    calls: AtomicU64,
    absent_reads: AtomicU64,
}

impl Memory for FrozenProcess {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let read_length = self.image.read_some(address, buffer);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(read_length as u64, Ordering::Relaxed);
        let resident = clipped(&self.runs, address, address.saturating_add(read_length as u64));
        if resident.iter().map(|(from, to)| to - from).sum::<u64>() < read_length as u64 {
            self.absent_reads.fetch_add(1, Ordering::Relaxed);
        }
        read_length
    }
}

impl FrozenProcess {
    /// A process with all pages of `image` resident.
    pub fn new(image: Image, maps: String) -> Self {
        Self {
            runs: image.pages_without(|_| false),
            image,
            maps,
            fs_bases: Vec::new(),
            start_brk: None,
            swapped_mappings: Vec::new(),
            bytes_read: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            absent_reads: AtomicU64::new(0),
        }
    }

    /// The process of a fabricated heap, all of it resident.
    pub fn of(heap: &Heap) -> Self {
        Self {
            fs_bases: heap.threads.iter().map(|thread| thread.fs_base).collect(),
            start_brk: Some(heap.recipe.places.heap),
            ..Self::new(heap.image.clone(), heap.maps())
        }
    }

    /// Evicts `percent` percent of `pages`, chosen by `seed`.
    pub fn evict(&mut self, pages: &[u64], seed: u64, percent: u64) {
        let mut dice = Rng::new(seed);
        let evicted: Vec<u64> = pages.iter().copied().filter(|_| dice.chance(percent)).collect();
        self.runs = self.image.pages_without(|page| evicted.binary_search(&page).is_ok());
    }

    /// Reads its heaps with `threads` threads, after resetting the counters.
    pub fn read(&self, threads: usize) -> Vec<Reading> {
        for counter in [&self.bytes_read, &self.calls, &self.absent_reads] {
            counter.store(0, Ordering::Relaxed);
        }
        self.read_from(self, threads, Instant::now() + Duration::from_secs(600))
    }

    /// Reads its heaps from `memory` until `deadline`.
    pub fn read_from(&self, memory: &dyn Memory, threads: usize, deadline: Instant) -> Vec<Reading> {
        let (space, invalid_lines) = AddressSpace::parse(self.maps.as_bytes());
        assert_eq!(invalid_lines, 0, "{}", self.maps);
        let resident_runs = |range: AddressRange| {
            let runs = clipped(&self.runs, range.start, range.end);
            runs.into_iter().map(AddressRange::from).collect()
        };
        let context = Context {
            fs_bases: &self.fs_bases,
            start_brk: self.start_brk,
            swapped_mappings: &self.swapped_mappings,
            deadline,
            checks_free_lists: true,
            cell_bytes: Some(0x4000),
            workers: threads,
            ..Context::of_image(memory, &space, &resident_runs)
        };
        let (readings, _) = glibc::read(&context).expect("claims follow each other");
        for reading in &readings {
            self.check_claims(reading, &space);
            let call = reading.call.as_ref().map(|call| call.spec.id);
            assert!(call.is_none_or(|call| glibc::ABOUT.remedies.iter().any(|spec| spec.id == call)));
        }
        readings
    }

    /// Checks what holds for every reading, even of a damaged heap: claims and mmapped chunks do
    /// not overlap and are in private anonymous memory, all resident bytes are claimed, and pages
    /// reported as zero are zero.
    fn check_claims(&self, reading: &Reading, space: &AddressSpace) {
        let mut taken: Vec<(u64, u64)> =
            reading.claims.iter().map(|claim| (claim.start, claim.end)).collect();
        taken.extend(reading.mapped_blocks.iter().map(|block| (block.start, block.end)));
        taken.sort_unstable();
        assert!(
            taken.is_sorted_by(|(_, end), (next_start, _)| end <= next_start),
            "overlap: {taken:x?}\n{}",
            self.maps
        );
        for claim in &reading.claims {
            let is_anonymous = |at| space.find(at).is_none_or(|mapping| mapping.is_private_anonymous());
            let mut foreign_runs = clipped(&self.runs, claim.start, claim.end);
            foreign_runs.retain(|&(from, to)| !is_anonymous(from) || !is_anonymous(to - 1));
            assert!(foreign_runs.is_empty(), "claims memory that is not malloc's: {foreign_runs:x?}");
            let resident_bytes: u64 =
                clipped(&self.runs, claim.start, claim.end).iter().map(|(from, to)| to - from).sum();
            assert_eq!(total(&claim.sums), resident_bytes, "{:#x}-{:#x}", claim.start, claim.end);
            let cells = &claim.sums.cells;
            let bytes_in_cells: u64 = cells.iter().map(|cell| cell.resident.total()).sum();
            assert_eq!(bytes_in_cells, resident_bytes, "{:#x}-{:#x}", claim.start, claim.end);
            assert!(cells.iter().all(|cell| cell.resident.total() <= cell.end - cell.start));
            assert!(cells.is_sorted_by(|cell, next| cell.end <= next.start));
        }
        for &AddressRange { start: from, end: to } in &reading.zero_runs {
            assert!(
                from.is_multiple_of(PAGE) && to.is_multiple_of(PAGE),
                "{from:#x}-{to:#x}: no whole pages"
            );
            let mut bytes = vec![1; (to - from) as usize];
            assert_eq!(self.image.read_some(from, &mut bytes), bytes.len(), "zeros that are not mapped");
            assert!(bytes.iter().all(|&byte| byte == 0), "{from:#x}-{to:#x} is not all zero");
        }
    }

    /// Resident bytes in `ranges`.
    pub fn resident_bytes(&self, ranges: &[(u64, u64)]) -> u64 {
        let runs = ranges.iter().flat_map(|&(from, to)| clipped(&self.runs, from, to));
        runs.map(|(from, to)| to - from).sum()
    }

    /// All bytes of memory.
    pub fn image_bytes(&self) -> u64 {
        self.image.ranges().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Bytes read by the last reading.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Reads made by the last reading; each is a system call on a real process.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Reads of the last reading that touched a page that is not resident.
    pub fn absent_reads(&self) -> u64 {
        self.absent_reads.load(Ordering::Relaxed)
    }
}

/// All bytes of `sums`, each once.
pub fn total(sums: &Sums) -> u64 {
    sums.resident.total()
}

/// Result of the program's own mallinfo2(), as the reader's type.
pub fn mallinfo(heap: &Heap) -> Mallinfo {
    let figures = heap.expected.mallinfo;
    Mallinfo {
        arena: figures.arena,
        ordblks: figures.ordblks,
        smblks: figures.smblks,
        hblks: figures.hblks,
        hblkhd: figures.hblkhd,
        fsmblks: figures.fsmblks,
        uordblks: figures.uordblks,
        fordblks: figures.fordblks,
        keepcost: figures.keepcost,
    }
}

/// The content of a reading, as text; two readings of one state must have the same.
pub fn report_text(reading: &Reading) -> String {
    format!(
        "{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}",
        reading.allocator,
        reading.claims,
        reading.mapped_blocks,
        reading.call,
        reading.zero_runs,
        reading.caveats
    )
}
