//! Walks regions with several threads.
//!
//! A long region is cut into segments. Only the first starts at a known chunk; the others look for a
//! believable one and walk on from there, in parts of about a megabyte. What they found counts only
//! where the walk from before arrives at exactly the start of one of their parts; until then it walks
//! on itself. A wrong start (old headers inside a free chunk look real) thus costs a little time and
//! never a wrong figure.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::lists::Lists;
use super::walk::{Counts, Part, Region, Walker};
use crate::ledger::fold::{Block, OutOfOrder, Sums};
use crate::ledger::range::RangePages;
use crate::memory::Memory;

const SEGMENT_BYTES: u64 = 32 << 20;
const PART_BYTES: u64 = 1 << 20;

/// A region with its pages and its special chunks.
pub struct Job<'a> {
    /// The region.
    pub region: &'a Region,
    /// Its pages.
    pub pages: &'a RangePages,
    /// Its special chunks.
    pub lists: &'a Lists,
}

/// What a region came to.
#[derive(Clone, Debug, Default)]
pub struct Walked {
    /// Resident bytes.
    pub sums: Sums,
    /// Address space.
    pub counts: Counts,
    /// Target memory read.
    pub bytes_read: u64,
    /// Resident bytes that could not be read.
    pub unreadable_bytes: u64,
}

/// What a thread found in one segment.
#[derive(Default)]
struct Segment {
    parts: Vec<Part>,
    end: u64,
    bytes_read: u64,
    unreadable_bytes: u64,
}

/// Walks all `jobs` with `threads` threads; `progress` hears of bytes of regions done.
pub fn walk(
    jobs: &[Job<'_>],
    memory: &dyn Memory,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Vec<Result<Walked, OutOfOrder>> {
    let tasks: Vec<(usize, u64, u64)> =
        jobs.iter().enumerate().flat_map(|(job, j)| cut(job, j.region)).collect();
    let results: Vec<Mutex<Segment>> = tasks.iter().map(|_| Mutex::default()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((&(job, from, to), result)) = {
            let task = next.fetch_add(1, Ordering::Relaxed);
            tasks.get(task).zip(results.get(task))
        } {
            let segment = walk_segment(&jobs[job], memory, from, to);
            if let Ok(mut slot) = result.lock() {
                *slot = segment;
            }
            progress(to - from);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(tasks.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut segments = results.into_iter().map(|slot| slot.into_inner().unwrap_or_default());
    jobs.iter()
        .enumerate()
        .map(|(index, job)| {
            let count = tasks.iter().filter(|task| task.0 == index).count();
            join(job, memory, segments.by_ref().take(count).collect())
        })
        .collect()
}

/// The segments of a region, none where nothing of it is resident.
fn cut(job: usize, region: &Region) -> Vec<(usize, u64, u64)> {
    let mut segments = Vec::new();
    let mut from = region.start;
    while from < region.end {
        let to = from.saturating_add(SEGMENT_BYTES).min(region.end);
        // A short rest is not worth a segment of its own.
        let to = if region.end - to < SEGMENT_BYTES / 4 { region.end } else { to };
        segments.push((job, from, to));
        from = to;
    }
    segments
}

fn walk_segment(job: &Job<'_>, memory: &dyn Memory, from: u64, to: u64) -> Segment {
    let walker = if from == job.region.start {
        Some(Walker::from_start(job.region, job.lists, memory, job.pages))
    } else if job.pages.runs_in(from, to).next().is_none() {
        None
    } else {
        Walker::somewhere_behind(job.region, job.lists, memory, job.pages, from)
    };
    let mut segment = Segment { end: from, ..Segment::default() };
    let Some(mut walker) = walker else { return segment };
    while !walker.is_done() && walker.position() < to {
        let rest = to - walker.position();
        segment.parts.push(walker.walk(PART_BYTES.min(rest), 0));
    }
    segment.end = walker.position();
    segment.bytes_read = walker.bytes_read();
    segment.unreadable_bytes = walker.unreadable_bytes();
    segment
}

/// Puts the segments of one region together.
fn join(job: &Job<'_>, memory: &dyn Memory, segments: Vec<Segment>) -> Result<Walked, OutOfOrder> {
    let mut walked = Walked::default();
    let mut block = Block::empty(job.region.start);
    for segment in segments {
        walked.bytes_read += segment.bytes_read;
        walked.unreadable_bytes += segment.unreadable_bytes;
        let mut parts = segment.parts.into_iter().peekable();
        while let Some(part) = parts.next() {
            if part.block.end <= block.end {
                continue;
            }
            if part.block.start > block.end {
                // Walk on to this part's start, or past it.
                bridge(job, memory, &mut block, &mut walked, part.block.start)?;
            }
            if part.block.start == block.end {
                walked.counts.add(&part.counts);
                block.join(part.block, job.pages)?;
            } else if parts.peek().is_none() && block.end < segment.end {
                // None of its parts was met: it was on a wrong track all along.
                bridge(job, memory, &mut block, &mut walked, segment.end)?;
            }
        }
    }
    if block.end < job.region.end {
        bridge(job, memory, &mut block, &mut walked, job.region.end)?;
    }
    walked.sums = block.finish(job.pages);
    Ok(walked)
}

fn bridge(
    job: &Job<'_>,
    memory: &dyn Memory,
    block: &mut Block,
    walked: &mut Walked,
    until: u64,
) -> Result<(), OutOfOrder> {
    let mut walker = if block.end == job.region.start {
        Walker::from_start(job.region, job.lists, memory, job.pages)
    } else {
        Walker::new(job.region, job.lists, memory, job.pages, block.end)
    };
    let part = walker.walk(0, until);
    walked.counts.add(&part.counts);
    walked.bytes_read += walker.bytes_read();
    walked.unreadable_bytes += walker.unreadable_bytes();
    block.join(part.block, job.pages)
}
