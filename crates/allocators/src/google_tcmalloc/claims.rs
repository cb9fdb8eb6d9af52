//! Classifies each byte of a piece: objects in use, cached or free, blocks, free pages.

use std::collections::BTreeMap;

use super::caches::CacheContents;
use super::layout::{FreeList, LIST_END, UNIT_BYTES};
use super::locate::{Heap, read_span};
use super::pieces::{Piece, PieceKind};
use super::spans::Span;
use crate::blocks::{BlockState, SpanClaimer};
use crate::parallel::{Claimed, claim_in_parts, impl_totals};
use crate::scan::within;
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::Context;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::facts::SizeClass;
use strandline_claims::refinements::Matches;
use strandline_process::page_cache::PageCache;

/// Maximum bytes of an object in a list. Objects of at least the page size divided by the bits of
/// the bitmap are in a bitmap instead (span.h, `UseBitmapForSize`): the largest quotient is
/// 256 KiB / 64.
const MAX_LISTED_BYTES: usize = 4096;
/// Bytes of an entry of a list: the place of an object in its span, in units.
const UNIT_ENTRY_BYTES: u64 = 2;
/// Pages of the target's memory that each thread caches.
const CACHED_PAGES: usize = 32;

/// Totals of the pieces of one part of memory, or of all.
#[derive(Default)]
pub struct Counts {
    /// By size class.
    pub classes: BTreeMap<u16, SizeClass>,
    /// Number of blocks with their own span.
    pub large_blocks: u64,
    /// Bytes of blocks with their own span.
    pub large_bytes: u64,
    /// Bytes of the spans of these blocks.
    pub large_span_bytes: u64,
    /// Bytes of proxies, the objects allocated in place of samples.
    pub proxy_bytes: u64,
    /// Bytes of free pages that are still backed.
    pub backed_bytes: u64,
    /// Bytes of free pages that were released or never used.
    pub unbacked_bytes: u64,
    /// Refinements found.
    pub matched: Matches,
    /// Invalid spans, and where the deadline passed.
    pub doubts: ReadProblems,
    /// Cached objects that matched an object in use.
    pub matched_objects: u64,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Claims all of `pieces`; `proxies` are in address order.
pub fn claim(
    context: &Context<'_>,
    heap: &Heap,
    pieces: &[Piece],
    caches: &CacheContents,
    proxies: &[u64],
) -> Claimed<Counts> {
    // Free ranges can be very long and are mostly not resident.
    let is_free = |piece: &Piece| matches!(piece.kind, PieceKind::Unbacked | PieceKind::Backed { .. });
    let is_to_claim = |piece: &&Piece| !is_free(piece) || !context.resident_runs(piece.range()).is_empty();
    let pieces_to_claim: Vec<Piece> = pieces.iter().filter(is_to_claim).copied().collect();
    let mut claimed = claim_in_parts(context, &pieces_to_claim, &Piece::range, &|pieces, accumulator| {
        let spans = SpanClaimer::new(context, PageCache::with_capacity(context.memory, CACHED_PAGES));
        let mut claimer = Claimer { context, heap, caches, proxies, spans, counts: Counts::default() };
        for piece in pieces {
            claimer.claim_piece(piece, accumulator);
        }
        claimer.spans.finish(claimer.counts)
    });
    for piece in pieces {
        match piece.kind {
            PieceKind::Unbacked => claimed.counts.unbacked_bytes += piece.end - piece.start,
            PieceKind::Backed { .. } => claimed.counts.backed_bytes += piece.end - piece.start,
            PieceKind::Span(_) | PieceKind::Unknown => {}
        }
    }
    claimed
}

struct Claimer<'a> {
    context: &'a Context<'a>,
    heap: &'a Heap,
    caches: &'a CacheContents,
    proxies: &'a [u64],
    spans: SpanClaimer<'a>,
    counts: Counts,
}

impl Claimer<'_> {
    fn claim_piece(&mut self, piece: &Piece, accumulator: &mut Accumulator<'_>) {
        let bytes = piece.end - piece.start;
        match piece.kind {
            PieceKind::Backed { is_releasable } => {
                let is_releasable = is_releasable && !self.context.is_locked(piece.range());
                let releasable_end = if is_releasable { piece.end } else { piece.start };
                accumulator.claim_free(piece.end, piece.start, releasable_end);
            }
            PieceKind::Unbacked => accumulator.claim_to(piece.end, Class::Free),
            PieceKind::Unknown => accumulator.claim_to(piece.end, Class::Unread),
            PieceKind::Span(span) => match span.class {
                Some(class) => self.claim_span(&span, class, accumulator),
                None => {
                    self.counts.large_blocks += 1;
                    self.counts.large_bytes += span.block_bytes;
                    self.counts.large_span_bytes += bytes;
                    self.spans.blocks.claim(span.start + span.block_bytes, accumulator);
                    accumulator.claim_to(span.end, Class::Header);
                }
            },
        }
    }

    /// Claims a span of objects of this class; as unread if it is invalid, or after the deadline.
    fn claim_span(&mut self, span: &Span, class: u16, accumulator: &mut Accumulator<'_>) {
        if self.context.deadline_passed() {
            self.counts.doubts.note_timeout(span.start);
        } else if self.claim_objects(span, class, accumulator).is_some() {
            return;
        } else {
            self.counts.doubts.note_damage(span.start, span.end - accumulator.cursor());
        }
        accumulator.claim_to(span.end, Class::Unread);
    }

    /// Claims a span of objects. `None` if it is invalid; then nothing is claimed.
    fn claim_objects(&mut self, span: &Span, class: u16, accumulator: &mut Accumulator<'_>) -> Option<()> {
        let bytes = self.heap.class_bytes(class)?;
        let object_count = (span.end - span.start) / bytes;
        let mut totals =
            SizeClass { bytes, spans: 1, span_bytes: span.end - span.start, ..SizeClass::default() };
        self.spans.start_span(span.start, bytes, object_count)?;
        totals.free_blocks = self.mark_free_objects(span, bytes, object_count)?;
        totals.cached_blocks = self.spans.mark_cached(&self.caches.blocks, span.range(), class);
        self.counts.matched_objects += totals.cached_blocks;
        let proxies = within(self.proxies, span.range(), |&proxy| proxy);
        let mark_proxy = |&&proxy: &&u64| self.spans.mark(proxy, BlockState::Own).is_some();
        let proxy_count = proxies.iter().filter(mark_proxy).count() as u64;
        self.counts.proxy_bytes += proxy_count * bytes;
        totals.live_blocks = object_count - totals.free_blocks - totals.cached_blocks - proxy_count;
        if totals.live_blocks == object_count && !self.spans.blocks.are_refined() {
            accumulator.claim_to(span.start + object_count * bytes, Class::Live);
        } else {
            self.spans.claim_span(span.end, accumulator);
        }
        accumulator.claim_to(span.end, Class::Header);
        self.counts.classes.entry(class).or_default().add(&totals);
        Some(())
    }

    /// Marks the free objects of a span; returns their number. `None` if the span counts another
    /// number.
    fn mark_free_objects(&mut self, span: &Span, bytes: u64, object_count: u64) -> Option<u64> {
        // A single object is in use, and the span does not track it.
        if object_count == 1 {
            return Some(0);
        }
        let (layout, page_shift) = (self.heap.layout, self.heap.page_shift);
        let structure = read_span(&mut self.spans.cache, layout, span.structure)?;
        let fields = layout.span(&structure, page_shift)?;
        let free_count = object_count.checked_sub(fields.allocated_objects.into())?;
        if !layout.has_bitmap(bytes, page_shift) {
            let marked_count = self.mark_listed(span, &structure, fields.list, bytes, free_count)?;
            return (marked_count == free_count).then_some(free_count);
        }
        let mut marked_count = 0;
        for object in 0..object_count {
            if layout.is_free(&structure, object as usize)? {
                self.spans.mark_nth(object, BlockState::Free)?;
                marked_count += 1;
            }
        }
        (marked_count == free_count).then_some(free_count)
    }

    /// Marks the free objects of a list; returns their number. Some are in the span's structure,
    /// the others in free objects, each of which points to the next and is full, except the first.
    fn mark_listed(
        &mut self,
        span: &Span,
        structure: &[u8],
        list: FreeList,
        bytes: u64,
        free_count: u64,
    ) -> Option<u64> {
        let mut marked_count = 0;
        for index in 0..list.objects_in_span {
            let unit = self.heap.layout.list_entry(structure, index)?;
            self.mark_free(span, unit)?;
            marked_count += 1;
        }
        // The free object that holds the places of `count` others.
        let (mut host, mut count) = (list.first_host, u64::from(list.objects_in_first_host));
        while host != LIST_END {
            if marked_count + 1 + count > free_count {
                return None;
            }
            self.mark_free(span, host)?;
            let at = span.start + u64::from(host) * UNIT_BYTES;
            let mut object = [0; MAX_LISTED_BYTES];
            let object = object.get_mut(..bytes as usize)?;
            self.spans.cache.read(at, object).ok()?;
            let unit = |index: usize| {
                object.get(2 * index..2 * index + 2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            };
            let units: Vec<u16> = (0..=count as usize).map(unit).collect::<Option<_>>()?;
            for &unit in &units[1..] {
                self.mark_free(span, unit)?;
            }
            marked_count += 1 + count;
            host = units[0];
            count = bytes / UNIT_ENTRY_BYTES - 1;
        }
        Some(marked_count)
    }

    /// Marks the object at `unit` of a span as free; `None` if no object begins there, or if it is
    /// marked already.
    fn mark_free(&mut self, span: &Span, unit: u16) -> Option<()> {
        self.spans.mark(span.start + u64::from(unit) * UNIT_BYTES, BlockState::Free)
    }
}

impl_totals! { Counts: large_blocks, large_bytes, large_span_bytes, proxy_bytes, backed_bytes, unbacked_bytes, matched_objects }
