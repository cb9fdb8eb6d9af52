//! One segment of mimalloc 1.6 to 2.4: recognises and reads the structures at its start, and
//! divides it into parts.

use super::layout::{PageLayout, SLICE_BYTES};
use super::parts::{Heap, Part, PartKind};
use super::segment_layout::{
    HEADER_BYTES, HUGE_PAGE_KIND, HUGE_SEGMENT_KIND, MAX_ALIGNED_PAGE_BYTES, NO_PAGE_BLOCK_BYTES,
    NORMAL_SEGMENT_KIND, PAGE_SHIFTS, SLICE_COUNT, SLICE_OFFSET, SegmentDivision, SegmentLayout,
};
use super::spans::{Expire, Mask, PurgeSchedule};
use strandline_claims::allocator::Context;
use strandline_process::memory::{half_word_at, word_at};
use strandline_process::pages::{PAGE_BYTES, USER_ADDRESS_END};
use strandline_process::range::AddressRange;

/// Maximum bytes of a segment's own structures: 1,025 pages of 96 bytes, and more.
const MAX_INFO_BYTES: u64 = 1 << 20;
/// Purges that are due within this time, as after a program's last frees, count as due, because
/// `reclaim` waits that long.
const SOON_MILLISECONDS: u64 = 500;

/// The word at an offset of `structures`, which have at least [`HEADER_BYTES`] bytes: all words of
/// every layout are among them.
fn word(structures: &[u8], at: usize) -> u64 {
    word_at(structures, at).unwrap_or(0)
}

/// A possible segment.
pub struct Candidate {
    /// Its first byte.
    pub start: u64,
    /// Its layout.
    pub layout: &'static SegmentLayout,
    /// Index of its layout in [`super::segment_layout::SEGMENTS`].
    pub layout_index: usize,
    /// The key of its mimalloc, if it is a segment.
    pub key: u64,
}

/// Returns the size of a segment from its first [`HEADER_BYTES`] bytes.
pub fn segment_bytes(layout: &SegmentLayout, header: &[u8; HEADER_BYTES]) -> u64 {
    match layout.division {
        SegmentDivision::Pages { segment_bytes, .. } => word(header, segment_bytes),
        SegmentDivision::Slices { slices, .. } => word(header, slices).saturating_mul(SLICE_BYTES),
    }
}

/// Whether the first bytes may be a segment's.
pub fn may_be_segment(layout: &SegmentLayout, bytes: &[u8; HEADER_BYTES]) -> bool {
    let word = |at: usize| word(bytes, at);
    // A slice whose structure is not among these bytes is no first one.
    let half = |at: usize| half_word_at(bytes, at).unwrap_or(u32::MAX);
    match layout.division {
        SegmentDivision::Pages { capacity, page_shift, page_kind, segment_bytes, info_bytes, .. } => {
            let is_huge = half(page_kind) == HUGE_PAGE_KIND;
            let pages = layout.bytes >> word(page_shift).min(63);
            (is_huge && word(capacity) == 1
                || PAGE_SHIFTS.contains(&word(page_shift)) && word(capacity) == pages)
                && word(segment_bytes).is_multiple_of(PAGE_BYTES)
                && word(segment_bytes) > 0
                && word(segment_bytes) < USER_ADDRESS_END
                && (1..=MAX_INFO_BYTES).contains(&word(info_bytes))
        }
        SegmentDivision::Slices { slices, info_slices, kind, entries, structures } => {
            let max_slices = layout.bytes / SLICE_BYTES;
            let info = word(info_slices);
            let field =
                |slice: u64, offset: usize| half(structures + slice as usize * layout.page.bytes + offset);
            half(kind) <= HUGE_SEGMENT_KIND
                && layout.size.is_none_or(|at| Some(word(at)) == word(slices).checked_mul(SLICE_BYTES))
                && (1..=max_slices + 1).contains(&word(entries))
                && (1..1 << 31).contains(&word(slices))
                && info > 0
                && info <= MAX_INFO_BYTES / SLICE_BYTES
                // The first slices are its own; after them a span begins.
                && field(0, SLICE_COUNT) == info as u32
                && (1..=word(slices) as u32).contains(&field(info, SLICE_COUNT))
                && field(info, SLICE_OFFSET) == 0
        }
    }
}

/// The structures at the start of a segment.
pub struct Structures<'a> {
    candidate: &'a Candidate,
    /// End of the segment.
    pub end: u64,
    /// Number of their bytes, up to [`MAX_INFO_BYTES`].
    pub info_bytes: u64,
    /// Their bytes; zeros where a page was never written or is swapped out.
    bytes: Vec<u8>,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

impl<'a> Structures<'a> {
    /// Reads the structures; `None` if they are unreadable, or their recorded size is impossible.
    pub fn read(context: &Context<'_>, candidate: &'a Candidate) -> Option<Self> {
        let mut header = [0; HEADER_BYTES];
        context.memory.read(candidate.start, &mut header).ok()?;
        let info_bytes = match candidate.layout.division {
            SegmentDivision::Pages { info_bytes, .. } => word(&header, info_bytes),
            SegmentDivision::Slices { info_slices, .. } => {
                word(&header, info_slices).saturating_mul(SLICE_BYTES)
            }
        };
        let end = candidate.start.saturating_add(segment_bytes(candidate.layout, &header));
        if info_bytes > MAX_INFO_BYTES || candidate.start + info_bytes > end {
            return None;
        }
        // Only the first slice of a span has a structure; pages in between may never have been
        // written.
        let mut bytes = vec![0; (info_bytes as usize).max(HEADER_BYTES)];
        let mut bytes_read = 0;
        for run in context.resident_runs(AddressRange::sized(candidate.start, bytes.len() as u64)) {
            let range = (run.start - candidate.start) as usize..(run.end - candidate.start) as usize;
            bytes_read += context.memory.read_some(run.start, bytes.get_mut(range)?) as u64;
        }
        Some(Self { candidate, end, info_bytes, bytes, bytes_read })
    }

    fn word(&self, at: usize) -> u64 {
        word(&self.bytes, at)
    }

    /// Its thread; `None` if the thread ended, or if the segment was freed.
    pub fn thread(&self) -> Option<u64> {
        Some(self.word(self.candidate.layout.thread_id)).filter(|&thread| thread != 0)
    }

    /// Whether the segment was freed; its header still describes its former pages.
    pub fn is_freed(&self) -> bool {
        self.thread().is_none() && self.word(self.candidate.layout.used) == 0
    }

    /// Whether the segment holds a single block.
    pub fn is_one_block(&self) -> bool {
        match self.candidate.layout.division {
            SegmentDivision::Pages { page_kind, .. } => self.kind(page_kind) == HUGE_PAGE_KIND,
            SegmentDivision::Slices { kind, .. } => self.kind(kind) == HUGE_SEGMENT_KIND,
        }
    }

    /// Whether the segment has as many pages as it records, or up to `tolerance` fewer; in a wrong
    /// layout the two differ. A segment of one block has one page; up to 2.0.7 it records another
    /// number.
    pub fn has_all_pages(&self, parts: &[Part], tolerance: u64) -> bool {
        let pages = parts.iter().filter(|part| matches!(part.kind, PartKind::Page(_))).count() as u64;
        let recorded_pages = if self.is_one_block() { 1 } else { self.word(self.candidate.layout.used) };
        pages <= recorded_pages && recorded_pages <= pages.saturating_add(tolerance)
    }

    /// Returns when its free slices are released; `None` for a segment of one block, and in layouts
    /// without [`SegmentLayout::masks`].
    pub fn purge_schedule(&self, now: u64) -> Option<PurgeSchedule> {
        let SegmentDivision::Slices { kind, .. } = self.candidate.layout.division else { return None };
        let is_normal = self.kind(kind) == NORMAL_SEGMENT_KIND;
        let masks = self.candidate.layout.masks.as_ref().filter(|_| is_normal)?;
        let mask = |from: usize| Mask::new((0..masks.words).map(|word| self.word(from + 8 * word)));
        let due_milliseconds = self.word(masks.expire);
        Some(PurgeSchedule {
            is_allowed: self.bytes.get(masks.allow).is_some_and(|byte| *byte != 0),
            expire: match due_milliseconds {
                0 => Expire::Never,
                due if due >= now.saturating_add(SOON_MILLISECONDS) => Expire::Later,
                _ => Expire::Due,
            },
            due_milliseconds,
            scheduled_slices: mask(masks.slices),
            committed_slices: mask(masks.slices + 8 * masks.words),
        })
    }

    /// Returns a part of the segment.
    pub fn part(&self, start: u64, end: u64, kind: PartKind) -> Part {
        Part { start, end, kind, release_unit: Some(self.candidate.start), thread: self.thread() }
    }

    /// Returns the kind of pages or segment at this offset, of 32 bits.
    fn kind(&self, at: usize) -> u32 {
        self.word(at) as u32
    }

    /// Adds the parts of the segment after its own structures.
    pub fn divide(&self, heap: &mut Heap) {
        match self.candidate.layout.division {
            SegmentDivision::Pages { capacity, page_shift, pages, .. } => {
                self.add_pages(self.word(capacity), self.word(page_shift), pages, heap);
            }
            SegmentDivision::Slices { entries, structures, .. } => {
                self.add_slices(self.word(entries), structures, heap);
            }
        }
    }

    /// Adds the `page_count` pages of a segment of 1.x, whose structures are at the offset `pages`.
    fn add_pages(&self, page_count: u64, page_shift: u64, pages: usize, heap: &mut Heap) {
        let Candidate { start: segment, layout: SegmentLayout { page: layout, .. }, .. } = *self.candidate;
        let is_huge = self.is_one_block();
        let page_bytes = if is_huge { self.end - segment } else { 1 << page_shift.min(PAGE_SHIFTS[2]) };
        for index in 0..page_count {
            let start = segment + if index == 0 { self.info_bytes } else { index * page_bytes };
            let part_end = segment + (index + 1) * page_bytes;
            if start >= part_end || part_end > self.end {
                return heap.doubts.note_damage(start, 0);
            }
            let at = pages + index as usize * layout.bytes;
            let structure = self.bytes.get(at..at + layout.bytes);
            let is_in_use = structure.is_some_and(PageLayout::is_in_use);
            let page = structure.and_then(|bytes| layout.read(bytes, segment + at as u64));
            // If a freed page is scheduled for purging, the time replaces its list
            // (`mi_page_set_expire`).
            let is_due = page.is_some_and(|page| page.lists.free != 0) && heap.collect_rules.frees_pages;
            let free_kind = if is_due { PartKind::PurgePending } else { PartKind::Free };
            let page = page.filter(|page| is_in_use && page.block_bytes > NO_PAGE_BLOCK_BYTES);
            let kind = page.map_or(free_kind, |mut page| {
                page.block_bytes = page.block_bytes.min(part_end - start);
                let area = AddressRange::new(start, part_end);
                let is_first = index == 0 && !is_huge;
                page.start = page.start.or_else(|| first_aligned(area, page.block_bytes, is_first));
                PartKind::Page(page)
            });
            heap.parts.push(self.part(start, part_end, kind));
        }
    }

    /// Adds the spans of a segment of 2.x with `slice_count` slices, whose structures are at the
    /// offset `structures`.
    fn add_slices(&self, slice_count: u64, structures: usize, heap: &mut Heap) {
        let Candidate { start: segment, layout: SegmentLayout { page: layout, .. }, .. } = *self.candidate;
        let is_huge = self.is_one_block();
        let mut index = self.info_bytes / SLICE_BYTES;
        while index < slice_count {
            let start = segment + index * SLICE_BYTES;
            let at = structures + index as usize * layout.bytes;
            let structure = self.bytes.get(at..at + layout.bytes);
            let count = structure.and_then(|bytes| half_word_at(bytes, SLICE_COUNT)).map_or(0, u64::from);
            let part_end = if is_huge { self.end } else { start + count * SLICE_BYTES };
            if structure.is_none() || part_end <= start || part_end > self.end {
                return heap.doubts.note_damage(start, 0);
            }
            let page = structure.and_then(|bytes| layout.read(bytes, segment + at as u64));
            // A span without a block size is free.
            let page = page.filter(|page| page.block_bytes > NO_PAGE_BLOCK_BYTES);
            let kind = page.map_or(PartKind::Free, |mut page| {
                page.block_bytes = page.block_bytes.min(part_end - start);
                PartKind::Page(page)
            });
            heap.parts.push(self.part(start, part_end, kind));
            index = (part_end - segment) / SLICE_BYTES;
        }
    }
}

/// Returns the first block of a page of 1.6 to 1.8.2. `is_first` if it is the first page of a
/// segment that is not huge.
fn first_aligned(page: AddressRange, block_bytes: u64, is_first: bool) -> Option<u64> {
    let is_aligned = is_first && page.len() <= MAX_ALIGNED_PAGE_BYTES;
    let aligned_start = page.start.checked_next_multiple_of(block_bytes)?;
    Some(if is_aligned && aligned_start.checked_add(block_bytes)? <= page.end {
        aligned_start
    } else {
        page.start
    })
}
