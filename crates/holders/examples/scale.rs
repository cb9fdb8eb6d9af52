//! Measures each step on a synthetic heap: `cargo run --release -p strandline-holders --example
//! scale -- 12000000`.
//!
//! Blocks are 16 to 160 bytes, in arenas of 64 MiB with gaps between them. Their words are in
//! memory, so that no system calls are measured. Blocks form binary trees and also refer to a
//! close, a near or any other block, in proportions given as arguments. There are many roots, and a
//! twentieth of all blocks is lost. Peaks are the kernel's (`VmHWM`), minus the heap itself.

use std::time::{Duration, Instant};

use strandline_holders::{Builder, Known, Limits, Reachability, References, Refused, Roots};
use strandline_process::memory::Memory;

const BASE: u64 = 0x7f00_0000_0000;
const ARENA_BYTES: u64 = 64 << 20;
/// Distance from one arena to the next.
const STEP_BYTES: u64 = 256 << 20;

/// Words of all arenas, one after another.
struct Heap(Vec<u64>);

impl Memory for Heap {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let Some(skip) = address.checked_sub(BASE) else { return 0 };
        let (arena, within) = (skip / STEP_BYTES, skip % STEP_BYTES);
        let left = ARENA_BYTES.saturating_sub(within) as usize / 8;
        let first = ((arena * ARENA_BYTES + within) / 8) as usize;
        let words = self.0.get(first..).unwrap_or_default();
        let words = &words[..left.min(words.len())];
        let mut done = 0;
        for (to, word) in buffer.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
            done += 8;
        }
        done
    }
}

/// A random number generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end.max(1)
    }
}

/// Start and size of each block.
fn places(count: u32) -> impl Iterator<Item = (u64, u64)> {
    let (mut random, mut at) = (Random(1), 0);
    (0..count).map(move |_| {
        let bytes = 16 * (1 + random.below(4) + random.below(7) / 6 * random.below(7));
        if at % ARENA_BYTES + bytes > ARENA_BYTES {
            at = (at / ARENA_BYTES + 1) * ARENA_BYTES;
        }
        let start = BASE + at / ARENA_BYTES * STEP_BYTES + at % ARENA_BYTES;
        at += bytes;
        (start, bytes)
    })
}

/// Number of blocks in one structure, a binary tree.
const UNIT: usize = 1000;

/// Fills in the words. Of 100 references other than tree edges, `near` lead to the next 64 blocks,
/// `middle` to the next 4096, and the rest to any block in the first 95 of 100 structures. Those
/// structures form a tree as well; the others are lost.
fn heap(count: u32, near: u64, middle: u64) -> Heap {
    let starts: Vec<u64> = places(count).map(|place| place.0).collect();
    let mut random = Random(2);
    let mut heap = Heap(Vec::new());
    let kept_units = starts.len() / UNIT * 19 / 20;
    let kept = kept_units.max(1) * UNIT;
    for (block, (start, bytes)) in places(count).enumerate() {
        let skip = start - BASE;
        let first = (skip / STEP_BYTES * ARENA_BYTES + skip % STEP_BYTES) as usize / 8;
        heap.0.resize(first, 0);
        let (unit, within) = (block / UNIT, block % UNIT);
        // Leaves have room for references to eight other structures.
        let child = unit * 8 + 1 + within % 8;
        let is_link = within >= UNIT - 8 && child < kept_units;
        for word in 0..bytes as usize / 8 {
            let in_tree = within * 2 + 1 + word;
            let any = match random.below(100) {
                kind if kind < near => block + 1 + random.below(64) as usize,
                kind if kind < near + middle => block + 1 + random.below(4096) as usize,
                _ => random.below(kept as u64) as usize,
            };
            let target = match word {
                0 if is_link => Some(child * UNIT),
                0 | 1 if in_tree < UNIT => Some(unit * UNIT + in_tree),
                2 if random.below(3) < 2 => Some(any).filter(|any| block >= kept || *any < kept),
                _ => None,
            };
            let target = target.and_then(|target| starts.get(target).copied());
            heap.0.push(target.unwrap_or_else(|| random.below(1 << 40)));
        }
    }
    heap
}

/// CPU seconds of all threads.
fn work_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default().split(' ').skip(12).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let kib =
        line.and_then(|line| line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Prints the time of a step, and the memory peak since the previous one.
struct Steps {
    before: Instant,
    work: f64,
    own_bytes: u64,
    blocks: f64,
    seconds: f64,
}

impl Steps {
    fn done(&mut self, name: &str) {
        let seconds = self.before.elapsed().as_secs_f64();
        self.seconds += seconds;
        let work = work_seconds() - std::mem::replace(&mut self.work, work_seconds());
        let each = |key: &str| (status(key).saturating_sub(self.own_bytes)) as f64 / self.blocks;
        let (peak, then) = (each("VmHWM"), each("VmRSS"));
        println!(
            "{name:12} {seconds:6.2} s, at work {work:5.2}; peak {peak:5.1}, then {then:5.1} bytes a block"
        );
        // Without permission for this, the peak is that of all steps so far.
        _ = std::fs::write("/proc/self/clear_refs", "5");
        self.before = Instant::now();
    }
}

fn main() -> Result<(), Refused> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().ok());
    let mut argument = |default: u64| arguments.next().flatten().unwrap_or(default);
    let (count, near, middle) = (argument(12_000_000) as u32, argument(60), argument(25));
    let heap = heap(count, near, middle);
    _ = std::fs::write("/proc/self/clear_refs", "5");
    let own_bytes = status("VmRSS");
    println!("{count} blocks, {} MiB; near {near} %, not far {middle} %", heap.0.len() >> 17);
    let deadline = Instant::now() + Duration::from_secs(600);
    let mut steps = Steps {
        before: Instant::now(),
        work: work_seconds(),
        own_bytes,
        blocks: f64::from(count),
        seconds: 0.0,
    };

    let mut builder = Builder::default();
    places(count).for_each(|(start, bytes)| builder.push(start, bytes));
    let blocks = builder.finish()?;
    steps.done("blocks");
    let limits = Limits { edges_bytes: 4 << 30, deadline, workers: 2 };
    let references = References::read(&heap, &blocks, Known::default(), None, &limits, &|_| ())?;
    steps.done("references");
    println!("{:12} {:.2} references a block", "", references.count() as f64 / f64::from(count));
    let mut roots = Roots::default();
    let mut random = Random(3);
    for _ in 0..10_000 {
        let blocks = (0..20).map(|_| random.below(u64::from(count) * 9 / 10) as u32);
        roots.add(blocks.chain([0]));
    }
    let graph = Reachability::new(blocks, references, roots, deadline)?;
    steps.done("reach");
    let held = graph.held(deadline)?;
    steps.done("dominators");
    println!("{:12} {:6.2} s", "all", steps.seconds);
    println!("reached {:?}, of several roots {:?}, lost {:?}", held.reached(), held.shared(), held.lost());
    Ok(())
}
