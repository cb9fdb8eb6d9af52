//! Classifies each byte of the heap: objects, free slots, stacks, idle spans.

use super::heap::{ChunkBits, Heap, Instance, Kind, Span};
use super::layout::{CHUNK_BYTES, Layout, MAX_OBJECTS, PAGE_BYTES};
use crate::batch::PageCache;
use crate::resident::resident_bytes;
use crate::work;
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::RangeClaim;
use strandline_claims::bits;
use strandline_claims::class::Slot;
use strandline_claims::range::MAX_BYTES;
use strandline_claims::runtime::Context;
use strandline_claims::words;
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::range::AddressRange;

/// Bytes of heap that a worker claims at a time; a larger span is claimed whole.
const PART_BYTES: u64 = 16 << 20;

/// Whether a span can be claimed: the claim covers the span and the start of its part, and holds at
/// most [`MAX_BYTES`].
pub fn is_claimable(start: u64, end: u64) -> bool {
    end - (start - start % PART_BYTES) <= MAX_BYTES
}

/// A span in use, or the gap between two.
#[derive(Clone, Copy, Debug)]
struct Piece<'a> {
    start: u64,
    end: u64,
    span: Option<&'a Span>,
}

/// Claims the whole heap. Returns the claims, and the number of bytes that could not be read.
pub fn claim(
    context: &Context<'_>,
    memory: &dyn Memory,
    instance: Instance<'_>,
    stack: Slot,
) -> (Vec<RangeClaim>, u64) {
    let Instance { heap, layout, spans, .. } = instance;
    let is_idle_known = spans.doubts.is_empty();
    let may_be_swapped = context.may_be_swapped();
    let pieces = pieces(context, heap, &spans.all);
    let is_one_part = |one: &Piece<'_>, next: &Piece<'_>| {
        one.end == next.start && one.start / PART_BYTES == next.start / PART_BYTES
    };
    let parts: Vec<&[Piece<'_>]> = pieces.chunk_by(is_one_part).collect();
    let state = || (PageCache::new(memory), Vec::new(), 0);
    let job = |(pages, claims, unread): &mut (PageCache<'_>, Vec<RangeClaim>, u64), part: usize| {
        let Some((first, last)) = parts[part].first().zip(parts[part].last()) else { return };
        if context.resident_runs((first.start, last.end)).is_empty() {
            return;
        }
        let of = context.pages(first.start, last.end);
        let mut accumulator = Accumulator::new(first.start, &of);
        for piece in parts[part] {
            match piece.span {
                // Memory without a span is idle, or belongs to a span that made no sense.
                None if is_idle_known => claim_idle(pages, heap, layout, *piece, &mut accumulator),
                None => accumulator.claim_to(piece.end, Class::Unread),
                Some(span) if span.kind == Kind::Manual => {
                    accumulator.claim_to(span.end, Class::Refined(stack));
                }
                Some(span) => {
                    if claim_objects(pages, span, context.space, may_be_swapped, &mut accumulator).is_none() {
                        *unread += span.end - span.start;
                        accumulator.claim_to(span.end, Class::Unread);
                    }
                }
            }
        }
        claims.push(RangeClaim { start: first.start, end: last.end, sums: accumulator.cut().finish(&of) });
        (context.progress)(last.end - first.start);
    };
    let (states, left) = work::run_jobs(context.workers, parts.len(), context.deadline, state, job);
    let (mut claims, mut unread) = (Vec::new(), 0);
    for (_, some, of_these) in states {
        claims.extend(some);
        unread += of_these;
    }
    if left > 0 {
        let all: u64 = heap.ranges.iter().map(|range| resident_bytes(context, range.start, range.end)).sum();
        let claimed = claims.iter().map(|claim: &RangeClaim| claim.sums.resident.total()).sum();
        unread += all.saturating_sub(claimed);
    }
    (claims, unread)
}

fn pieces<'a>(context: &Context<'_>, heap: &Heap, spans: &'a [Span]) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    let mut rest = spans;
    for &AddressRange { start, end } in &heap.ranges {
        let mut at = start;
        while let Some((span, behind)) = rest.split_first()
            && span.start < end
        {
            if at < span.start {
                add_idle_pieces(context, at, span.start, &mut pieces);
            }
            pieces.push(Piece { start: span.start, end: span.end, span: Some(span) });
            at = span.end;
            rest = behind;
        }
        if at < end {
            add_idle_pieces(context, at, end, &mut pieces);
        }
    }
    pieces
}

/// Adds a gap in pieces of [`PART_BYTES`], only where pages are resident: idle memory may be most
/// of a large heap.
fn add_idle_pieces(context: &Context<'_>, start: u64, end: u64, pieces: &mut Vec<Piece<'_>>) {
    let mut behind = start;
    for run in context.resident_runs((start, end)) {
        let mut at = run.start.max(behind);
        while at < run.end {
            let part = at - at % PART_BYTES;
            behind = (part + PART_BYTES).min(end);
            pieces.push(Piece { start: part.max(start), end: behind, span: None });
            at = behind;
        }
    }
}

/// Claims a gap as returnable, except the pages that the chunk's bitmap marks in use: processors
/// keep these in their caches (`pageCache`).
fn claim_idle(
    pages: &mut PageCache<'_>,
    heap: &Heap,
    layout: &Layout,
    piece: Piece<'_>,
    accumulator: &mut Accumulator<'_>,
) {
    let mut at = piece.start;
    while at < piece.end {
        let chunk = at - at % CHUNK_BYTES;
        let end = piece.end.min(chunk + CHUNK_BYTES);
        let Some(ChunkBits { used, .. }) = heap.chunk(pages, layout, chunk) else {
            accumulator.claim_to(end, Class::Free);
            at = end;
            continue;
        };
        let is_kept = |at: u64| bits::has(&used, ((at - chunk) / PAGE_BYTES) as usize);
        while at < end {
            let kept = is_kept(at);
            let from = at;
            while at < end && is_kept(at) == kept {
                at += PAGE_BYTES;
            }
            let given = if kept { from } else { at };
            accumulator.claim_free(at, from, given);
        }
    }
}

/// Claims a span of objects. `None`, with nothing claimed, if its bits cannot be read.
fn claim_objects(
    pages: &mut PageCache<'_>,
    span: &Span,
    space: &AddressSpace,
    may_be_swapped: bool,
    accumulator: &mut Accumulator<'_>,
) -> Option<()> {
    let end = span.start + span.objects * span.object_bytes;
    if span.alloc_count == span.objects || span.free_index >= span.objects {
        accumulator.claim_to(end, Class::Live);
        accumulator.claim_to(span.end, Class::Header);
        return Some(());
    }
    let mut bits = [0; (MAX_OBJECTS / 8) as usize];
    let bits = bits.get_mut(..span.objects.div_ceil(8) as usize)?;
    // Bits that were never set may be on a page that was never written.
    if pages.read(span.bits, bits).is_err() {
        let is_swapped =
            may_be_swapped || !words::is_process_memory(space, span.bits, span.bits.saturating_add(1));
        if is_swapped {
            return None;
        }
        bits.fill(0);
    }
    for index in 0..span.objects {
        let is_used = index < span.free_index || bits[index as usize / 8] >> (index % 8) & 1 != 0;
        let class = if is_used { Class::Live } else { Class::Free };
        accumulator.claim_to(span.start + (index + 1) * span.object_bytes, class);
    }
    accumulator.claim_to(span.end, Class::Header);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_no_larger_than_a_claim() {
        assert!(is_claimable(0, MAX_BYTES) && is_claimable(PART_BYTES, PART_BYTES + MAX_BYTES));
        assert!(!is_claimable(0, MAX_BYTES + 1));
        // The bytes before the span in its part belong to the same claim.
        assert!(!is_claimable(PAGE_BYTES, PAGE_BYTES + MAX_BYTES));
    }
}
