//! Walks regions with several threads.
//!
//! A long region is cut into segments. Only the first starts at a known chunk; in each other a
//! plausible chunk is searched and walked from, in parts of about a megabyte. These results count
//! only if the walk of the previous segment arrives at exactly the start of one of these parts;
//! until then that walk continues. So a wrong start (old headers inside a free chunk look real)
//! costs a little time and never a wrong figure.

use std::time::Instant;

use super::walk::Walker;
use super::walk_context::{Counts, Part, WalkContext};
use strandline_claims::accumulator::{AccumulatedPart, OutOfOrder, Sums};
use strandline_claims::range::PAGE_BYTES;
use strandline_process::work::in_order;

/// Minimum and maximum segment: long ones cost less at their borders, short ones let all threads
/// share a small heap.
const MIN_SEGMENT_BYTES: u64 = 2 << 20;
const MAX_SEGMENT_BYTES: u64 = 32 << 20;
/// Segments per thread, so that a slow one does not delay the others.
const SEGMENTS_PER_THREAD: u64 = 4;
const PART_BYTES: u64 = 1 << 20;

/// Totals of a region.
#[derive(Clone, Debug, Default)]
pub struct RegionTotals {
    /// Sums of resident bytes.
    pub sums: Sums,
    /// Counts of address space.
    pub counts: Counts,
}

/// The parts of one region, in address order and without gap, from its start to its end.
#[derive(Clone, Debug, Default)]
pub struct RegionParts {
    /// The parts.
    pub parts: Vec<Part>,
    /// Bytes read from the target.
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

/// Walks all `contexts` with `threads` threads; calls `progress` with the bytes of regions done.
pub fn walk(
    contexts: &[WalkContext<'_>],
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Vec<RegionParts> {
    let total: u64 =
        contexts.iter().map(|walk_context| walk_context.region.end - walk_context.region.start).sum();
    let share = total / (threads.max(1) as u64 * SEGMENTS_PER_THREAD);
    let bytes = share.clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES).next_multiple_of(PAGE_BYTES);
    let tasks: Vec<Task> = contexts
        .iter()
        .enumerate()
        .flat_map(|(index, walk_context)| cut(index, walk_context, bytes))
        .collect();
    let segments = in_order(tasks.len(), threads, |task| {
        let Task { region, start, end } = tasks[task];
        let segment = walk_segment(contexts[region], start, end);
        progress(end - start);
        segment
    });
    let mut by_region: Vec<Vec<Segment>> = contexts.iter().map(|_| Vec::new()).collect();
    for (task, segment) in tasks.iter().zip(segments) {
        by_region[task.region].push(segment);
    }
    contexts.iter().zip(by_region).map(|(walk_context, segments)| join(*walk_context, segments)).collect()
}

/// A segment to walk.
#[derive(Clone, Copy)]
struct Task {
    /// Index of its region.
    region: usize,
    start: u64,
    end: u64,
}

/// Cuts a region into segments of about `bytes`.
fn cut(index: usize, walk_context: &WalkContext<'_>, bytes: u64) -> Vec<Task> {
    let region = walk_context.region;
    let mut tasks = Vec::new();
    let mut start = region.start;
    while start < region.end {
        let end = start.saturating_add(bytes).min(region.end);
        // A short remainder, or one without pages, is not worth a segment.
        let is_short = region.end - end < bytes / 4;
        let is_last = is_short || walk_context.pages.runs_in(end, region.end).next().is_none();
        let end = if is_last { region.end } else { end };
        tasks.push(Task { region: index, start, end });
        start = end;
    }
    tasks
}

fn walk_segment(walk_context: WalkContext<'_>, from: u64, to: u64) -> Segment {
    let walker = if from == walk_context.region.start {
        Some(Walker::from_start(walk_context))
    } else if walk_context.pages.runs_in(from, to).next().is_none() {
        None
    } else {
        Walker::from_plausible_start(walk_context, from, to)
    };
    let mut segment = Segment { end: from, ..Segment::default() };
    let Some(mut walker) = walker else { return segment };
    segment.end = walker.position();
    while !walker.is_done() && walker.position() < to && Instant::now() < walk_context.deadline {
        let remaining = to - walker.position();
        let part = walker.walk(PART_BYTES.min(remaining), 0);
        if walker.gave_up() {
            break;
        }
        segment.end = part.block.end;
        segment.parts.push(part);
    }
    segment.bytes_read = walker.bytes_read();
    segment.unreadable_bytes = walker.unreadable_bytes();
    segment
}

/// Joins the segments of one region.
fn join(walk_context: WalkContext<'_>, segments: Vec<Segment>) -> RegionParts {
    let mut joined = RegionParts::default();
    let mut end = walk_context.region.start;
    for segment in segments {
        joined.bytes_read += segment.bytes_read;
        joined.unreadable_bytes += segment.unreadable_bytes;
        for part in segment.parts {
            if part.block.end <= end {
                continue;
            }
            // Walks on to the start of this part, or past it.
            joined.continue_walk(walk_context, &mut end, part.block.start);
            if part.block.start == end {
                end = part.block.end;
                joined.parts.push(part);
            }
        }
        // If none of its parts was reached, the whole segment had a wrong start.
        joined.continue_walk(walk_context, &mut end, segment.end);
    }
    joined.continue_walk(walk_context, &mut end, walk_context.region.end);
    joined
}

impl RegionParts {
    /// Walks from `end` to the first boundary at or after `until`.
    fn continue_walk(&mut self, walk_context: WalkContext<'_>, end: &mut u64, until: u64) {
        if *end >= until {
            return;
        }
        let is_at_start = *end == walk_context.region.start;
        let is_late = || Instant::now() >= walk_context.deadline;
        // The walk from the region's start claims its metadata, without which the sums are wrong.
        let mut walker =
            if is_at_start { Walker::from_start(walk_context) } else { Walker::new(walk_context, *end) };
        while *end < until {
            let part =
                if is_late() { walker.abandon() } else { walker.walk(PART_BYTES.min(until - *end), 0) };
            *end = part.block.end;
            self.parts.push(part);
        }
        self.bytes_read += walker.bytes_read();
        self.unreadable_bytes += walker.unreadable_bytes();
    }

    /// Adds the parts up.
    pub fn sum(self, walk_context: &WalkContext<'_>) -> Result<RegionTotals, OutOfOrder> {
        let mut counts = Counts::default();
        let mut block = AccumulatedPart::empty(walk_context.region.start);
        for part in self.parts {
            counts.add(part.counts);
            block.join(part.block, walk_context.pages)?;
        }
        if block.end != walk_context.region.end {
            return Err(OutOfOrder { at: block.end, expected: walk_context.region.end });
        }
        Ok(RegionTotals { sums: block.finish(walk_context.pages), counts })
    }
}

/// Walks the part `start..end` again, now that its special chunks are known.
pub fn walk_again(walk_context: WalkContext<'_>, start: u64, end: u64) -> Part {
    let is_at_start = start == walk_context.region.start;
    let mut walker =
        if is_at_start { Walker::from_start(walk_context) } else { Walker::new(walk_context, start) };
    walker.walk(0, end)
}
