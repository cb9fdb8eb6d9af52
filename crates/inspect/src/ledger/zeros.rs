//! Finds all-zero pages in memory that no allocator's reader walked.
//!
//! The target runs meanwhile: the result is not worth a stop as long as it takes to read all these
//! pages. A page counts only if it was resident at the stop and is still resident afterwards: a
//! page that the program gave back in between would read as zeros too.

use std::fs::File;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use strandline_claims::range::{PAGE_BYTES, is_all_zero};
use strandline_process::memory::Memory;

/// Bytes that one thread reads at once.
const PIECE_BYTES: u64 = 1 << 20;

/// The result.
#[derive(Clone, Debug, Default)]
pub struct Zeros {
    /// All-zero pages, as runs in address order.
    pub runs: Vec<(u64, u64)>,
    /// Bytes of target memory read.
    pub bytes_read: u64,
}

/// Searches the page-aligned `runs` with `threads` threads. `progress` is called with the number of
/// bytes done.
pub fn find(
    memory: &dyn Memory,
    runs: &[(u64, u64)],
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Zeros {
    let pieces: Vec<(u64, u64)> = runs
        .iter()
        .flat_map(|&(from, to)| {
            (from..to).step_by(PIECE_BYTES as usize).map(move |at| (at, to.min(at + PIECE_BYTES)))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let bytes_read = AtomicU64::new(0);
    let found: Mutex<Vec<(u64, u64)>> = Mutex::default();
    let one = |buffer: &mut Vec<u8>| {
        let Some(&(from, to)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) else { return false };
        buffer.resize((to - from) as usize, 0);
        let got = memory.read_some(from, buffer);
        bytes_read.fetch_add(got as u64, Ordering::Relaxed);
        let pages =
            buffer[..got].chunks_exact(PAGE_BYTES as usize).zip((from..).step_by(PAGE_BYTES as usize));
        let zeros: Vec<_> =
            pages.filter(|(page, _)| is_all_zero(page)).map(|(_, at)| (at, at + PAGE_BYTES)).collect();
        if !zeros.is_empty()
            && let Ok(mut all) = found.lock()
        {
            all.extend(merged(zeros));
        }
        progress(to - from);
        true
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(pieces.len()) {
            scope.spawn(|| {
                let mut buffer = Vec::new();
                while one(&mut buffer) {}
            });
        }
        let mut buffer = Vec::new();
        while one(&mut buffer) {}
    });
    let mut runs = found.into_inner().unwrap_or_default();
    runs.sort_unstable();
    Zeros { runs: merged(runs), bytes_read: bytes_read.into_inner() }
}

/// Joins adjacent runs.
fn merged(runs: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (from, to) in runs {
        match merged.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// Returns those of `runs` that are still entirely resident.
pub fn still_resident(pagemap: &File, runs: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let bytes: u64 = runs.iter().map(|run| run.1 - run.0).sum();
    let ranges: Vec<_> = runs.iter().map(|run| run.0..run.1).collect();
    let now = |ranges: &[std::ops::Range<u64>]| {
        strandline_process::pages::anonymous_bytes_in(pagemap, ranges).unwrap_or(0)
    };
    if now(&ranges) == bytes {
        return runs;
    }
    runs.into_iter().filter(|&(from, to)| now(std::slice::from_ref(&(from..to))) == to - from).collect()
}
