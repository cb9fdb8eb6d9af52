//! Makes a fabricated SBCL look like a stopped process to the reader, and counts what it reads.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use strandline_claims::range::{PAGE_BYTES, page_of};
use strandline_claims::refinements::Matches;
use strandline_claims::runtime::{Busy, Context, FinishContext, Reading};
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;
use strandline_process::stacks::ThreadFacts;
use strandline_runtimes::sbcl;
use strandline_runtimes::sbcl::locate::Program;
use strandline_synth::{Image, Rng, SbclHeap, SbclSymbol, SbclThread, clipped};

/// A frozen process: memory, mappings, resident pages, threads.
pub struct Subject {
    pub image: Image,
    maps: String,
    runs: Vec<(u64, u64)>,
    /// Resident pages that cannot be read.
    unreadable: BTreeSet<u64>,
    threads: Vec<ThreadFacts>,
    program: Program,
    bytes_read: AtomicU64,
    calls: AtomicU64,
}

impl Memory for Subject {
    /// Reads only resident pages, like the reader of a live process.
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let resident = self.runs.iter().find(|run| (run.0..run.1).contains(&address));
        let unreadable = self.unreadable.range(page_of(address)..).next().copied().unwrap_or(u64::MAX);
        let end = resident.map_or(0, |run| run.1).min(unreadable);
        let readable_bytes = end.saturating_sub(address).min(buffer.len() as u64);
        let read_bytes = self.image.read_some(address, &mut buffer[..readable_bytes as usize]);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(read_bytes as u64, Ordering::Relaxed);
        read_bytes
    }
}

impl Subject {
    /// The process of a fabricated heap, all of it resident.
    pub fn of(heap: &SbclHeap) -> Self {
        let facts = |thread: &SbclThread| ThreadFacts {
            tid: thread.tid,
            stack_pointer: thread.stack_pointer,
            fs_base: thread.address,
            general: Default::default(),
        };
        let symbol = |symbol: &SbclSymbol| (symbol.name, AddressRange::sized(symbol.address, symbol.bytes));
        let symbols = heap.symbols.iter().map(symbol);
        let version = heap.recipe.release.name();
        Self {
            image: heap.image.clone(),
            maps: heap.maps(),
            runs: heap.image.pages_without(|_| false),
            unreadable: BTreeSet::new(),
            threads: heap.threads.iter().map(facts).collect(),
            program: Program::with_symbols("/usr/bin/fabricated", version, symbols),
            bytes_read: AtomicU64::new(0),
            calls: AtomicU64::new(0),
        }
    }

    /// Makes `percent` percent of the pages of dynamic space absent.
    pub fn evict(&mut self, heap: &SbclHeap, seed: u64, percent: u64) {
        let mut dice = Rng::new(seed);
        let (start, end) = heap.dynamic_range;
        self.runs = self.image.pages_without(|page| (start..end).contains(&page) && dice.chance(percent));
    }

    /// Makes the pages of dynamic space unreadable, though they stay resident.
    pub fn hide(&mut self, heap: &SbclHeap) {
        let (start, end) = heap.dynamic_range;
        self.unreadable = (start..end).step_by(PAGE_BYTES as usize).collect();
    }

    /// Reads all of it, and checks what must hold for every heap, even a damaged one.
    pub fn read(&self, workers: usize) -> Result<Reading, Busy> {
        let (space, malformed_lines) = AddressSpace::parse(self.maps.as_bytes());
        assert_eq!(malformed_lines, 0, "{}", self.maps);
        let process = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let resident = |range: AddressRange| {
            clipped(&self.runs, range.start, range.end).into_iter().map(AddressRange::from).collect()
        };
        let context = Context {
            threads: &self.threads,
            workers,
            cell_bytes: Some(0x10000),
            ..Context::of_image(self, &process, &space, &resident)
        };
        let mut reading = sbcl::read(&context, &self.program)?;
        reading.finish(&FinishContext {
            workers,
            path_to: None,
            matched: &Matches::default(),
            by_allocator: &[],
            progress: &|_, _, _| {},
        });
        assert!(reading.pending.is_none());
        self.check(&reading);
        Ok(reading)
    }

    /// Checks that claims do not overlap, and that each counts the resident bytes in it once.
    fn check(&self, reading: &Reading) {
        let mut ranges: Vec<(u64, u64)> =
            reading.claims.iter().map(|claim| (claim.start, claim.end)).collect();
        ranges.sort_unstable();
        assert!(ranges.is_sorted_by(|a, b| a.1 <= b.0), "overlap: {ranges:x?}");
        for claim in &reading.claims {
            let resident: u64 =
                clipped(&self.runs, claim.start, claim.end).iter().map(|(from, to)| to - from).sum();
            assert_eq!(claim.sums.resident.total(), resident, "{:#x}-{:#x}", claim.start, claim.end);
            let in_cells: u64 = claim.sums.cells.iter().map(|cell| cell.resident.total()).sum();
            assert_eq!(in_cells, resident, "{:#x}-{:#x}", claim.start, claim.end);
        }
        for &AddressRange { start: from, end: to } in &reading.zero_runs {
            let mut bytes = vec![1; (to - from) as usize];
            assert_eq!(self.image.read_some(from, &mut bytes), bytes.len());
            assert!(bytes.iter().all(|&byte| byte == 0), "{from:#x}-{to:#x} is not all zero");
        }
        let image_bytes: u64 = self.image.ranges().map(|(_, bytes)| bytes.len() as u64).sum();
        let bound = 16 * image_bytes + (16 << 20);
        let (bytes, calls) = (self.bytes_read.load(Ordering::Relaxed), self.calls.load(Ordering::Relaxed));
        assert!(bytes <= bound, "{bytes} bytes read, {bound} allowed");
        assert!(calls <= 200_000, "{calls} reads");
    }
}
