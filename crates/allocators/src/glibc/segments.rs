//! Walks regions with several threads.
//!
//! A long region is cut into segments. Only the first starts at a known chunk. In each other
//! segment the walk searches a plausible chunk and starts there. Its parts of about a megabyte
//! count only from the first one whose start the walk of the previous segment reaches exactly;
//! until then that walk continues. So a wrong start, such as an old header inside a free chunk,
//! costs a little time and never makes a figure wrong.

use std::time::Instant;

use super::walk::Walker;
use super::walk_context::{Counts, Part, WalkContext};
use strandline_claims::accumulator::{AccumulatedPart, OutOfOrder, Sums};
use strandline_claims::range::PAGE_BYTES;
use strandline_process::range::AddressRange;
use strandline_process::work::in_order;

/// Minimum size of a segment: the search for a first chunk costs time in each of them.
const MIN_SEGMENT_BYTES: u64 = 2 << 20;
/// Maximum size of a segment, so that all threads share a heap.
const MAX_SEGMENT_BYTES: u64 = 32 << 20;
/// Segments per thread, so that a slow segment does not delay the end of the walk.
const SEGMENTS_PER_THREAD: u64 = 4;
/// Minimum size of a part, except for the last part of a segment.
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

/// The parts that a thread walked in one segment.
#[derive(Default)]
struct Segment {
    parts: Vec<Part>,
    /// Where the walk ended; the start of the segment if no plausible chunk was found.
    end: u64,
    bytes_read: u64,
    unreadable_bytes: u64,
}

/// Walks all `contexts` with `threads` threads. Calls `progress` with the bytes of each segment
/// after its walk.
pub fn walk(
    contexts: &[WalkContext<'_>],
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Vec<RegionParts> {
    let total_bytes: u64 = contexts.iter().map(|walk_context| walk_context.region.range().len()).sum();
    let share_bytes = total_bytes / (threads.max(1) as u64 * SEGMENTS_PER_THREAD);
    let bytes = share_bytes.clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES).next_multiple_of(PAGE_BYTES);
    let tasks: Vec<Task> = contexts
        .iter()
        .enumerate()
        .flat_map(|(index, walk_context)| segment_tasks(index, walk_context, bytes))
        .collect();
    // The last eighth of the time is for joining: what was read counts only in joined segments.
    let now = Instant::now();
    let segments = in_order(tasks.len(), threads, |task| {
        let Task { region, range } = tasks[task];
        let remaining_time = contexts[region].deadline.saturating_duration_since(now);
        let deadline = now + remaining_time / 8 * 7;
        let segment = walk_segment(WalkContext { deadline, ..contexts[region] }, range);
        progress(range.len());
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
    range: AddressRange,
}

/// Divides the region with this index into segments of about `bytes`.
fn segment_tasks(index: usize, walk_context: &WalkContext<'_>, bytes: u64) -> Vec<Task> {
    let region = walk_context.region;
    let mut tasks = Vec::new();
    let mut start = region.start;
    while start < region.end {
        let end = start.saturating_add(bytes).min(region.end);
        // A short remainder, or one without pages, is not worth a segment.
        let is_short = region.end - end < bytes / 4;
        let is_last = is_short || walk_context.pages.runs_in(end, region.end).next().is_none();
        let end = if is_last { region.end } else { end };
        tasks.push(Task { region: index, range: AddressRange::new(start, end) });
        start = end;
    }
    tasks
}

fn walk_segment(walk_context: WalkContext<'_>, range: AddressRange) -> Segment {
    let AddressRange { start, end } = range;
    let walker = if start == walk_context.region.start {
        Some(Walker::from_start(walk_context))
    } else if walk_context.pages.runs_in(start, end).next().is_none() {
        None
    } else {
        Walker::from_plausible_start(walk_context, start, end)
    };
    let mut segment = Segment { end: start, ..Segment::default() };
    let Some(mut walker) = walker else { return segment };
    segment.end = walker.position();
    while !walker.is_done() && walker.position() < end && Instant::now() < walk_context.deadline {
        let remaining_bytes = end - walker.position();
        let part = walker.walk(PART_BYTES.min(remaining_bytes), 0);
        if walker.has_given_up() || part.counts.is_late {
            break;
        }
        segment.end = part.claims.end;
        segment.parts.push(part);
    }
    segment.bytes_read = walker.bytes_read();
    segment.unreadable_bytes = walker.unreadable_bytes();
    segment
}

/// Joins the segments of one region.
fn join(walk_context: WalkContext<'_>, segments: Vec<Segment>) -> RegionParts {
    let mut joined = RegionParts::default();
    for segment in segments {
        joined.bytes_read += segment.bytes_read;
        joined.unreadable_bytes += segment.unreadable_bytes;
        for part in segment.parts {
            if part.claims.end <= joined.end(walk_context) {
                continue;
            }
            // Walks to the start of this part, or past it.
            joined.continue_walk(walk_context, part.claims.start);
            if part.claims.start == joined.end(walk_context) {
                joined.parts.push(part);
            }
        }
        // If the start of no part was reached, the segment had a wrong start.
        joined.continue_walk(walk_context, segment.end);
    }
    joined.continue_walk(walk_context, walk_context.region.end);
    joined
}

impl RegionParts {
    /// Returns the end of the last part; without parts, the start of the region.
    fn end(&self, walk_context: WalkContext<'_>) -> u64 {
        self.parts.last().map_or(walk_context.region.start, |part| part.claims.end)
    }

    /// Walks from the end of the last part to the first boundary at or after `until`.
    fn continue_walk(&mut self, walk_context: WalkContext<'_>, until: u64) {
        let mut end = self.end(walk_context);
        if end >= until {
            return;
        }
        let mut walker = walker_at(walk_context, end);
        while end < until {
            let is_late = Instant::now() >= walk_context.deadline;
            let part = if is_late {
                walker.abandon(walk_context.region.end)
            } else {
                walker.walk(PART_BYTES.min(until - end), 0)
            };
            end = part.claims.end;
            self.parts.push(part);
        }
        self.bytes_read += walker.bytes_read();
        self.unreadable_bytes += walker.unreadable_bytes();
    }

    /// Adds the parts up.
    ///
    /// # Errors
    /// The parts have a gap or overlap, or do not end at the end of the region.
    pub fn sum(self, walk_context: &WalkContext<'_>) -> Result<RegionTotals, OutOfOrder> {
        let mut counts = Counts::default();
        let mut claims = AccumulatedPart::empty(walk_context.region.start);
        for part in self.parts {
            counts.add(part.counts);
            claims.join(part.claims, walk_context.pages)?;
        }
        if claims.end != walk_context.region.end {
            return Err(OutOfOrder { at: claims.end, expected: walk_context.region.end });
        }
        Ok(RegionTotals { sums: claims.finish(walk_context.pages), counts })
    }
}

/// Walks `part` again, now that its special chunks are known. If the deadline passes, or passed in
/// the walk of `part`, the whole part stays unread: which of its chunks are free is then unknown.
pub fn walk_again(walk_context: WalkContext<'_>, part: &Part) -> Part {
    let (start, end) = (part.claims.start, part.claims.end);
    let mut is_late = part.counts.is_late || Instant::now() >= walk_context.deadline;
    if !is_late {
        let new_part = walker_at(walk_context, start).walk(0, end);
        if new_part.claims.end == end {
            return new_part;
        }
        is_late = new_part.counts.is_late;
    }
    let mut unread_part = Walker::new(walk_context, start).abandon(end);
    unread_part.counts.is_late = is_late;
    unread_part
}

/// Returns a walk from the boundary `at`. At the region's start it includes the metadata, without
/// which the sums would be wrong.
fn walker_at(walk_context: WalkContext<'_>, at: u64) -> Walker<'_> {
    if at == walk_context.region.start {
        Walker::from_start(walk_context)
    } else {
        Walker::new(walk_context, at)
    }
}
