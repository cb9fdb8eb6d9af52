//! Classifies each byte of a span: objects in use, cached or free, blocks, free pages.
//!
//! A span in full use is one claim; in other spans each object is checked.

use std::collections::BTreeMap;

use super::caches::CacheContents;
use super::layout::{Classes, SpanState};
use super::spans::Span;
use crate::blocks::{BlockState, CachedBlock, SpanClaimer};
use crate::parallel::{Claimed, claim_in_parts, impl_totals};
use crate::scan::within;
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::Context;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::facts::SizeClass;
use strandline_claims::refinements::Matches;
use strandline_process::page_cache::PageCache;
use strandline_process::range::AddressRange;

/// Totals of the spans of one part of memory, or of all.
#[derive(Default)]
pub struct Counts {
    /// By size class.
    pub classes: BTreeMap<u8, SizeClass>,
    /// Number of blocks with their own span.
    pub large_blocks: u64,
    /// Bytes of blocks with their own span.
    pub large_bytes: u64,
    /// Bytes of free spans that are still backed.
    pub backed_bytes: u64,
    /// Bytes of free spans that were returned to the kernel.
    pub returned_bytes: u64,
    /// Refinements found.
    pub matched: Matches,
    /// Invalid spans, and where the deadline passed.
    pub doubts: ReadProblems,
    /// Cached objects that matched an object in use.
    pub matched_objects: u64,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Claims all of `spans`.
pub fn claim(
    context: &Context<'_>,
    classes: &Classes,
    spans: &[Span],
    caches: &CacheContents,
) -> Claimed<Counts> {
    let are_releasable = free_spans_are_releasable(context, spans);
    claim_in_parts(context, spans, &Span::range, &|spans, accumulator| {
        let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return Counts::default() };
        let range = AddressRange::new(first.start, last.end);
        let cached_objects = within(&caches.blocks, range, |object| object.address);
        let mut claimer = Claimer {
            classes,
            cached_objects,
            are_releasable,
            spans: SpanClaimer::new(context, PageCache::new(context.memory)),
            counts: Counts::default(),
        };
        for span in spans {
            claimer.claim_span(span, accumulator);
        }
        claimer.spans.finish(claimer.counts)
    })
}

/// Whether a release returns free spans to the kernel: it stops at the first span that the kernel
/// refuses, as it refuses locked pages (`page_heap.cc`, `ReleaseAtLeastNPages`).
pub fn free_spans_are_releasable(context: &Context<'_>, spans: &[Span]) -> bool {
    let is_locked = |span: &Span| context.is_locked(span.range());
    context.locked_mappings.is_empty()
        || !spans.iter().any(|span| span.state == SpanState::Normal && is_locked(span))
}

struct Claimer<'a> {
    classes: &'a Classes,
    /// Cached objects in the spans to claim.
    cached_objects: &'a [CachedBlock],
    are_releasable: bool,
    spans: SpanClaimer<'a>,
    counts: Counts,
}

impl Claimer<'_> {
    fn claim_span(&mut self, span: &Span, accumulator: &mut Accumulator<'_>) {
        let bytes = span.end - span.start;
        match span.state {
            SpanState::Normal => {
                self.counts.backed_bytes += bytes;
                let releasable_end = if self.are_releasable { span.end } else { span.start };
                accumulator.claim_free(span.end, span.start, releasable_end);
            }
            SpanState::Returned => {
                self.counts.returned_bytes += bytes;
                accumulator.claim_to(span.end, Class::Free);
            }
            SpanState::InUse => match span.class {
                Some(class) if self.claim_objects(span, class, accumulator).is_some() => {}
                Some(_) => {
                    if !self.counts.doubts.timed_out() {
                        self.counts.doubts.note_damage(span.start, span.end - accumulator.cursor());
                    }
                    accumulator.claim_to(span.end, Class::Unread);
                }
                None => {
                    self.counts.large_blocks += 1;
                    self.counts.large_bytes += bytes;
                    self.spans.blocks.claim(span.end, accumulator);
                }
            },
        }
    }

    /// Claims a span of objects. `None` if it is invalid, or if the deadline has passed; then
    /// nothing is claimed.
    fn claim_objects(&mut self, span: &Span, class: u8, accumulator: &mut Accumulator<'_>) -> Option<()> {
        let bytes = self.classes.get(class)?.object_bytes;
        let object_count = (span.end - span.start) / bytes;
        // `allocated_objects` has 16 bits.
        let object_count = Some(object_count).filter(|&count| count <= u16::MAX.into())?;
        let free_count = object_count.checked_sub(span.allocated_objects.into())?;
        let cached_objects = within(self.cached_objects, span.range(), |object| object.address);
        let mut totals = SizeClass {
            bytes,
            spans: 1,
            span_bytes: span.end - span.start,
            free_blocks: free_count,
            ..SizeClass::default()
        };
        if free_count == 0 && cached_objects.is_empty() && !self.spans.blocks.are_refined() {
            totals.live_blocks = object_count;
            accumulator.claim_to(span.start + object_count * bytes, Class::Live);
        } else {
            self.spans.start_span(span.start, bytes, object_count)?;
            self.mark_free_objects(span, free_count)?;
            totals.cached_blocks = self.spans.mark_cached(cached_objects, span.range(), class.into());
            self.counts.matched_objects += totals.cached_blocks;
            totals.live_blocks = object_count - totals.free_blocks - totals.cached_blocks;
            self.spans.claim_span(span.end, accumulator);
        }
        accumulator.claim_to(span.end, Class::Header);
        self.counts.classes.entry(class).or_default().add(&totals);
        Some(())
    }

    /// Marks the `free_count` free objects of a span, which are linked through their first words.
    /// `None` if the list leaves them early, or has one twice.
    fn mark_free_objects(&mut self, span: &Span, free_count: u64) -> Option<()> {
        if free_count > 1 {
            self.spans.read_span(span.range().len());
        }
        let mut at = span.first_free_object;
        for remaining in (0..free_count).rev() {
            self.spans.mark(at, BlockState::Free)?;
            if remaining > 0 {
                at = self.spans.word(at, &mut self.counts.doubts)?;
            }
        }
        Some(())
    }
}

impl_totals! { Counts: large_blocks, large_bytes, backed_bytes, returned_bytes, matched_objects }
