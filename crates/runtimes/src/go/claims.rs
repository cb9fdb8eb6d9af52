//! Classifies each byte of the heap: objects, free slots, stacks, idle spans.

use super::heap::{ChunkBits, Heap, Instance, Span, SpanKind};
use super::layout::{CHUNK_BYTES, Layout, MAX_OBJECTS, RUNTIME_PAGE_BYTES};
use crate::batch::PageCache;
use crate::work;
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::RangeClaim;
use strandline_claims::bits;
use strandline_claims::class::Slot;
use strandline_claims::range::MAX_BYTES;
use strandline_claims::runtime::Context;
use strandline_claims::words;
use strandline_process::memory::Memory;
use strandline_process::range::AddressRange;

/// Bytes of heap that a worker claims at a time: a part. A span that crosses the end of the part in
/// which it begins belongs to that part.
const PART_BYTES: u64 = 16 << 20;

/// Whether a span can be claimed: the claim, from the start of its part to the end of the span, may
/// have at most [`MAX_BYTES`].
pub fn is_claimable(start: u64, end: u64) -> bool {
    end - (start - start % PART_BYTES) <= MAX_BYTES
}

/// A span in use, or memory between two spans.
#[derive(Clone, Copy, Debug)]
struct Piece<'a> {
    /// First byte.
    start: u64,
    /// End address (exclusive).
    end: u64,
    /// The span; `None` between spans.
    span: Option<&'a Span>,
}

/// The claims on a heap, or on the parts that one worker claimed.
#[derive(Default)]
pub struct HeapClaims {
    pub claims: Vec<RangeClaim>,
    /// Resident bytes of spans and idle memory whose bitmaps could not be read, and of parts that
    /// were left out for lack of time.
    pub unread_bytes: u64,
}

/// A worker and its claims.
struct Worker<'a> {
    pages: PageCache<'a>,
    claimed: HeapClaims,
}

/// Claims the whole heap; `stack_slot` is for stacks and other memory managed by hand.
pub fn claim(
    context: &Context<'_>,
    memory: &dyn Memory,
    instance: Instance<'_>,
    stack_slot: Slot,
) -> HeapClaims {
    let Instance { heap, layout, spans, .. } = instance;
    let claimer = Claimer {
        context,
        heap,
        layout,
        stack_slot,
        is_idle_known: spans.doubts.is_empty(),
        may_be_swapped: context.may_be_swapped(),
    };
    let pieces = pieces_of(context, heap, &spans.by_address);
    let is_same_part = |piece: &Piece<'_>, next: &Piece<'_>| {
        piece.end == next.start && piece.start / PART_BYTES == next.start / PART_BYTES
    };
    let parts: Vec<&[Piece<'_>]> = pieces.chunk_by(is_same_part).collect();
    let state = || Worker { pages: PageCache::new(memory), claimed: HeapClaims::default() };
    let job = |worker: &mut Worker<'_>, part: usize| claimer.claim_part(parts[part], worker);
    let (workers, unfinished_jobs) =
        work::run_jobs(context.workers, parts.len(), context.deadline, state, job);
    let mut total = HeapClaims::default();
    for Worker { claimed, .. } in workers {
        total.claims.extend(claimed.claims);
        total.unread_bytes += claimed.unread_bytes;
    }
    if unfinished_jobs > 0 {
        let heap_bytes: u64 = heap.ranges.iter().map(|&range| context.resident_bytes(range)).sum();
        let claimed_bytes = total.claims.iter().map(|claim| claim.sums.resident.total()).sum();
        total.unread_bytes += heap_bytes.saturating_sub(claimed_bytes);
    }
    total
}

/// Returns the spans, and the resident memory between them, in address order.
fn pieces_of<'a>(context: &Context<'_>, heap: &Heap, spans: &'a [Span]) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    let mut later_spans = spans;
    for &AddressRange { start, end } in &heap.ranges {
        let mut at = start;
        while let Some((span, spans_after)) = later_spans.split_first()
            && span.start < end
        {
            if at < span.start {
                add_idle_pieces(context, at, span.start, &mut pieces);
            }
            pieces.push(Piece { start: span.start, end: span.end, span: Some(span) });
            at = span.end;
            later_spans = spans_after;
        }
        if at < end {
            add_idle_pieces(context, at, end, &mut pieces);
        }
    }
    pieces
}

/// Adds memory between spans in pieces of at most [`PART_BYTES`], only where pages are resident:
/// idle memory may be most of a large heap.
fn add_idle_pieces(context: &Context<'_>, start: u64, end: u64, pieces: &mut Vec<Piece<'_>>) {
    let mut added_end = start;
    for run in context.resident_runs((start, end)) {
        let mut at = run.start.max(added_end);
        while at < run.end {
            let part = at - at % PART_BYTES;
            added_end = (part + PART_BYTES).min(end);
            pieces.push(Piece { start: part.max(start), end: added_end, span: None });
            at = added_end;
        }
    }
}

/// What all workers need.
struct Claimer<'a> {
    context: &'a Context<'a>,
    heap: &'a Heap,
    layout: &'a Layout,
    stack_slot: Slot,
    /// Whether memory without a span is idle: all spans were read, and all are valid.
    is_idle_known: bool,
    may_be_swapped: bool,
}

impl Claimer<'_> {
    /// Claims a part, unless none of its pages is resident.
    fn claim_part(&self, part: &[Piece<'_>], worker: &mut Worker<'_>) {
        let Some((first, last)) = part.first().zip(part.last()) else { return };
        if self.context.resident_runs((first.start, last.end)).is_empty() {
            return;
        }
        let range_pages = self.context.pages(first.start, last.end);
        let mut accumulator = Accumulator::new(first.start, &range_pages);
        for piece in part {
            match piece.span {
                None if self.is_idle_known => self.claim_idle(*piece, worker, &mut accumulator),
                // It may belong to a span that was left out.
                None => accumulator.claim_to(piece.end, Class::Unread),
                Some(span) if span.kind == SpanKind::Manual => {
                    accumulator.claim_to(span.end, Class::Refined(self.stack_slot));
                }
                Some(span) => {
                    if self.claim_objects(&mut worker.pages, span, &mut accumulator).is_none() {
                        self.claim_unread(span.end, worker, &mut accumulator);
                    }
                }
            }
        }
        let sums = accumulator.cut().finish(&range_pages);
        worker.claimed.claims.push(RangeClaim { start: first.start, end: last.end, sums });
        (self.context.progress)(last.end - first.start);
    }

    /// Claims memory up to `end` whose bitmap could not be read.
    fn claim_unread(&self, end: u64, worker: &mut Worker<'_>, accumulator: &mut Accumulator<'_>) {
        worker.claimed.unread_bytes += self.context.resident_bytes((accumulator.cursor(), end));
        accumulator.claim_to(end, Class::Unread);
    }

    /// Claims idle memory as returnable, except the pages that the chunk's bitmap marks in use:
    /// processors keep these in their caches (`pageCache`).
    fn claim_idle(&self, piece: Piece<'_>, worker: &mut Worker<'_>, accumulator: &mut Accumulator<'_>) {
        let mut at = piece.start;
        while at < piece.end {
            let chunk = at - at % CHUNK_BYTES;
            let end = piece.end.min(chunk + CHUNK_BYTES);
            let bits = self.heap.chunk_bits(&mut worker.pages, self.layout, chunk);
            let Some(ChunkBits { used_pages, .. }) = bits else {
                self.claim_unread(end, worker, accumulator);
                at = end;
                continue;
            };
            let is_used = |at: u64| bits::has(&used_pages, ((at - chunk) / RUNTIME_PAGE_BYTES) as usize);
            while at < end {
                let run_start = at;
                let is_run_used = is_used(at);
                while at < end && is_used(at) == is_run_used {
                    at += RUNTIME_PAGE_BYTES;
                }
                let trim_end = if is_run_used { run_start } else { at };
                accumulator.claim_free(at, run_start, trim_end);
            }
        }
    }

    /// Claims a span of objects. `None`, with nothing claimed, if its bits cannot be read.
    fn claim_objects(
        &self,
        pages: &mut PageCache<'_>,
        span: &Span,
        accumulator: &mut Accumulator<'_>,
    ) -> Option<()> {
        let end = span.start + span.object_capacity * span.object_bytes;
        if span.used_objects == span.object_capacity || span.free_index >= span.object_capacity {
            accumulator.claim_to(end, Class::Live);
            accumulator.claim_to(span.end, Class::Header);
            return Some(());
        }
        let mut buffer = [0; (MAX_OBJECTS / 8) as usize];
        let used_bits = buffer.get_mut(..span.object_capacity.div_ceil(8) as usize)?;
        let bitmap = span.bitmap_address;
        if pages.read(bitmap, used_bits).is_err() {
            let is_mapped = words::is_process_memory(self.context.space, bitmap, bitmap.saturating_add(1));
            if self.may_be_swapped || !is_mapped {
                return None;
            }
            // Bits that were never set may be on a page that was never written.
            used_bits.fill(0);
        }
        for index in 0..span.object_capacity {
            let is_used = index < span.free_index || used_bits[index as usize / 8] >> (index % 8) & 1 != 0;
            let class = if is_used { Class::Live } else { Class::Free };
            accumulator.claim_to(span.start + (index + 1) * span.object_bytes, class);
        }
        accumulator.claim_to(span.end, Class::Header);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_no_larger_than_a_claim() {
        assert!(is_claimable(0, MAX_BYTES) && is_claimable(PART_BYTES, PART_BYTES + MAX_BYTES));
        assert!(!is_claimable(0, MAX_BYTES + 1));
        // The bytes before the span in its part belong to the same claim.
        assert!(!is_claimable(RUNTIME_PAGE_BYTES, RUNTIME_PAGE_BYTES + MAX_BYTES));
    }
}
