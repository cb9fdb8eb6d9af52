//! Measures each step on a synthetic heap: `cargo run --release -p strandline-holders --example
//! scale -- 12000000`.
//!
//! Blocks are 16 to 160 bytes, in arenas of 64 MiB with gaps between them. Their words are in
//! memory, so that no system calls are measured. Blocks form binary trees and also refer to a
//! close, a near or any other block, in proportions given as arguments. There are many roots, and a
//! twentieth of all blocks is unreachable. Peaks are the kernel's (`VmHWM`), minus the heap itself.

use std::time::{Duration, Instant};

use strandline_holders::{Builder, KnownBlocks, Limits, Reachability, References, Refused, Roots};
use strandline_process::memory::Memory;
use strandline_process::range::AddressRange;

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

/// The addresses of each block.
fn block_ranges(count: u32) -> impl Iterator<Item = AddressRange> {
    let (mut random, mut offset) = (Random(1), 0);
    (0..count).map(move |_| {
        let bytes = 16 * (1 + random.below(4) + random.below(7) / 6 * random.below(7));
        if offset % ARENA_BYTES + bytes > ARENA_BYTES {
            offset = (offset / ARENA_BYTES + 1) * ARENA_BYTES;
        }
        let start = BASE + offset / ARENA_BYTES * STEP_BYTES + offset % ARENA_BYTES;
        offset += bytes;
        AddressRange::sized(start, bytes)
    })
}

/// Number of blocks in one structure, a binary tree.
const STRUCTURE_BLOCKS: usize = 1000;

/// Fills in the words. Of 100 references other than tree edges, `near_percent` lead to the next 64
/// blocks, `middle_percent` to the next 4096, and the others to any block in the first 95 of 100
/// structures. Those structures form a tree as well; the others are unreachable.
fn heap(count: u32, near_percent: u64, middle_percent: u64) -> Heap {
    let starts: Vec<u64> = block_ranges(count).map(|range| range.start).collect();
    let mut random = Random(2);
    let mut heap = Heap(Vec::new());
    let kept_structures = starts.len() / STRUCTURE_BLOCKS * 19 / 20;
    let kept = kept_structures.max(1) * STRUCTURE_BLOCKS;
    for (block, range) in block_ranges(count).enumerate() {
        let skip = range.start - BASE;
        let first = (skip / STEP_BYTES * ARENA_BYTES + skip % STEP_BYTES) as usize / 8;
        heap.0.resize(first, 0);
        let (structure, within) = (block / STRUCTURE_BLOCKS, block % STRUCTURE_BLOCKS);
        // Leaves have room for references to eight other structures.
        let child = structure * 8 + 1 + within % 8;
        let is_link = within >= STRUCTURE_BLOCKS - 8 && child < kept_structures;
        for word in 0..range.len() as usize / 8 {
            let in_tree = within * 2 + 1 + word;
            let any = match random.below(100) {
                percent if percent < near_percent => block + 1 + random.below(64) as usize,
                percent if percent < near_percent + middle_percent => block + 1 + random.below(4096) as usize,
                _ => random.below(kept as u64) as usize,
            };
            let target = match word {
                0 if is_link => Some(child * STRUCTURE_BLOCKS),
                0 | 1 if in_tree < STRUCTURE_BLOCKS => Some(structure * STRUCTURE_BLOCKS + in_tree),
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
fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // utime and stime, in ticks of 1/100 s (proc_pid_stat(5)).
    let fields = text.rsplit(')').next()?.split(' ').skip(12).take(2);
    Some(fields.map(|ticks| ticks.parse::<f64>().ok()).sum::<Option<f64>>()? / 100.0)
}

/// A size in /proc/self/status, in bytes.
fn status_bytes(key: &str) -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<f64>().ok()? * 1024.0)
}

/// Prints the time of a step, and the memory peak since the previous one.
struct Steps {
    step_start: Instant,
    cpu_seconds: f64,
    heap_bytes: f64,
    block_count: f64,
    total_seconds: f64,
}

impl Steps {
    fn done(&mut self, name: &str) {
        let seconds = self.step_start.elapsed().as_secs_f64();
        self.total_seconds += seconds;
        let cpu_seconds = cpu_seconds().unwrap_or(f64::NAN);
        let step_cpu_seconds = cpu_seconds - std::mem::replace(&mut self.cpu_seconds, cpu_seconds);
        let bytes_per_block =
            |key: &str| (status_bytes(key).unwrap_or(f64::NAN) - self.heap_bytes) / self.block_count;
        let (peak, after) = (bytes_per_block("VmHWM"), bytes_per_block("VmRSS"));
        println!(
            "{name:12} {seconds:6.2} s, at work {step_cpu_seconds:5.2}; peak {peak:5.1}, then {after:5.1} bytes a block"
        );
        // Without permission for this, the peak is that of all steps so far.
        _ = std::fs::write("/proc/self/clear_refs", "5");
        self.step_start = Instant::now();
    }
}

fn main() -> Result<(), Refused> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().ok());
    let mut argument = |default: u64| arguments.next().flatten().unwrap_or(default);
    let (count, near_percent, middle_percent) = (argument(12_000_000) as u32, argument(60), argument(25));
    let heap = heap(count, near_percent, middle_percent);
    _ = std::fs::write("/proc/self/clear_refs", "5");
    let heap_bytes = status_bytes("VmRSS").unwrap_or(f64::NAN);
    println!("{count} blocks, {} MiB; near {near_percent} %, not far {middle_percent} %", heap.0.len() >> 17);
    let deadline = Instant::now() + Duration::from_secs(600);
    let mut steps = Steps {
        step_start: Instant::now(),
        cpu_seconds: cpu_seconds().unwrap_or(f64::NAN),
        heap_bytes,
        block_count: f64::from(count),
        total_seconds: 0.0,
    };

    let mut builder = Builder::default();
    block_ranges(count).for_each(|range| builder.push(range.start, range.len()));
    let blocks = builder.finish()?;
    steps.done("blocks");
    let limits = Limits { max_edges_bytes: 4 << 30, deadline, workers: 2 };
    let references = References::read(&heap, &blocks, KnownBlocks::default(), None, &limits, &|_| ())?;
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
    println!("{:12} {:6.2} s", "all", steps.total_seconds);
    println!("reached {:?}, of several roots {:?}", held.reached(), held.shared());
    println!("unreachable {:?}", held.unreachable());
    Ok(())
}
