//! Merges the page map, trackers, regions and maps of free huge pages into pieces of address space,
//! in order and without overlap, each a span or free. Where the sources disagree, a piece is
//! unknown.

use super::huge::{FreeRange, HugePages, HugeRegion};
use super::layout::{HUGE_BYTES, HUGE_SHIFT, REGION_BYTES, Tracker};
use super::locate::Heap;
use super::spans::{Span, Spans};
use crate::radix::UnclaimedMemory;
use strandline_claims::bits;
use strandline_claims::doubts::ReadProblems;
use strandline_process::range::AddressRange;

/// Kind of a piece.
#[derive(Clone, Copy, Debug)]
pub enum PieceKind {
    /// A span in use.
    Span(Span),
    /// Free pages that are still backed.
    Backed {
        /// Whether a release can give them back.
        is_releasable: bool,
    },
    /// Free pages that were released or never used.
    Unbacked,
    /// In use according to its tracker or region, but in no span.
    Unknown,
}

/// A piece of address space.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Its kind.
    pub kind: PieceKind,
}

impl Piece {
    /// Its addresses.
    pub fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.end)
    }
}

/// All pieces.
#[derive(Default)]
pub struct Pieces {
    /// The pieces, in address order.
    pub all: Vec<Piece>,
    /// Where the sources disagree.
    pub doubts: ReadProblems,
}

/// Merges all sources; pieces outside of spans must be `unclaimed` by others.
pub fn merge_sources(
    heap: &Heap,
    spans: &Spans,
    huge_pages: &HugePages,
    unclaimed: &mut UnclaimedMemory<'_>,
) -> Pieces {
    let mut builder =
        PieceBuilder { heap, spans: &spans.all, pieces: Vec::new(), doubts: ReadProblems::default() };
    builder.pieces.extend(spans.all.iter().map(|&span| Piece {
        start: span.start,
        end: span.end,
        kind: PieceKind::Span(span),
    }));
    for tracker in &spans.trackers {
        builder.add_tracker(tracker);
    }
    for region in &huge_pages.regions {
        builder.add_region(region);
    }
    for &FreeRange { start, end, is_backed } in &huge_pages.free_ranges {
        let kind = if is_backed { PieceKind::Backed { is_releasable: true } } else { PieceKind::Unbacked };
        builder.pieces.push(Piece { start, end, kind });
    }
    builder.pieces.sort_by_key(|piece| piece.start);
    let (mut pieces, mut cursor) = (Pieces { doubts: builder.doubts, ..Pieces::default() }, 0);
    for piece in builder.pieces {
        let is_span = matches!(piece.kind, PieceKind::Span(_));
        if piece.start < cursor || !is_span && !unclaimed.contains(piece.range()) {
            pieces.doubts.note_damage(piece.start, 0);
            continue;
        }
        cursor = piece.end;
        pieces.all.push(piece);
    }
    pieces
}

struct PieceBuilder<'a> {
    heap: &'a Heap,
    spans: &'a [Span],
    pieces: Vec<Piece>,
    doubts: ReadProblems,
}

impl PieceBuilder<'_> {
    /// Returns the spans that overlap a range, cut to it.
    fn spans_in(&self, range: AddressRange) -> impl Iterator<Item = AddressRange> {
        let first = self.spans.partition_point(|span| span.end <= range.start);
        let spans = self.spans[first..].iter().take_while(move |span| span.start < range.end);
        spans.map(move |span| span.range().intersection(range))
    }

    fn add_tracker(&mut self, tracker: &Tracker) {
        let range = AddressRange::sized(tracker.start, HUGE_BYTES);
        self.add_range(range, &tracker.used_pages, &|page| {
            let is_released = bits::has(&tracker.released_pages, page);
            if is_released { PageState::Unbacked } else { PageState::Backed { is_releasable: true } }
        });
    }

    fn add_region(&mut self, region: &HugeRegion) {
        let pages_per_huge_page = 1_usize << (HUGE_SHIFT - self.heap.page_shift);
        let range = AddressRange::sized(region.start, REGION_BYTES);
        self.add_range(range, &region.used_pages, &|page| {
            // Huge pages are released as a whole, by default when their last block is freed.
            let is_backed = region.is_backed.get(page / pages_per_huge_page) == Some(&true);
            if is_backed { PageState::Backed { is_releasable: false } } else { PageState::Unbacked }
        });
    }

    /// Adds the pieces of the memory of a tracker or region outside spans. `used_pages` has a bit
    /// per page, set if it is in use; `free_state` returns the state of a free page by its index.
    fn add_range(
        &mut self,
        range: AddressRange,
        used_pages: &[u64],
        free_state: &dyn Fn(usize) -> PageState,
    ) {
        let page_index = |at: u64| ((at - range.start) >> self.heap.page_shift) as usize;
        let mut span_pages = vec![0_u64; used_pages.len()];
        for span in self.spans_in(range) {
            (page_index(span.start)..page_index(span.end)).for_each(|page| bits::set(&mut span_pages, page));
        }
        self.add_runs(range.start, page_index(range.end), &|page| {
            match (bits::has(&span_pages, page), bits::has(used_pages, page)) {
                (true, true) => PageState::Span,
                // The span counts as in use nevertheless, as its structure is valid.
                (true, false) => PageState::Contradiction,
                (false, true) => PageState::Unknown,
                (false, false) => free_state(page),
            }
        });
    }

    /// Adds a piece for each run of pages from `start` on that have the same state.
    fn add_runs(&mut self, start: u64, pages: usize, state_of: &dyn Fn(usize) -> PageState) {
        let mut first_page = 0;
        for page in 0..pages {
            let (state, next) = (state_of(page), (page + 1 < pages).then(|| state_of(page + 1)));
            if next == Some(state) {
                continue;
            }
            let address_of = |page: usize| start + ((page as u64) << self.heap.page_shift);
            let (from, to) = (address_of(first_page), address_of(page + 1));
            first_page = page + 1;
            let kind = match state {
                PageState::Span => continue,
                PageState::Contradiction => {
                    self.doubts.note_damage(from, 0);
                    continue;
                }
                PageState::Unknown => {
                    self.doubts.note_damage(from, to - from);
                    PieceKind::Unknown
                }
                PageState::Unbacked => PieceKind::Unbacked,
                PageState::Backed { is_releasable } => PieceKind::Backed { is_releasable },
            };
            self.pieces.push(Piece { start: from, end: to, kind });
        }
    }
}

/// State of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageState {
    /// In a span, and in use by its tracker or region.
    Span,
    /// In a span, and free by its tracker or region.
    Contradiction,
    /// In use by its tracker or region, but in no span.
    Unknown,
    /// Free, and released or never used.
    Unbacked,
    /// Free, and still backed.
    Backed { is_releasable: bool },
}
