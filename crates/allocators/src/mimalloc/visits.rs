//! The order in which a collection of mimalloc 2.x visits pages (`heap.c`, `mi_heap_collect_ex`):
//! those with blocks that other threads freed, retired ones, then all pages of the heap.
//!
//! In 1.x and 3.x the order has no effect: there are no spans of slices to release on the way.

use std::collections::{HashMap, HashSet};

use super::collect::Collection;
use super::layout::PageWords;
use super::parts::{Heap, Part};

/// A larger block has a page of its own, and all such pages are in one queue
/// (`MI_MEDIUM_OBJ_SIZE_MAX`, `MI_BIN_HUGE`).
const MEDIUM_BYTES: u64 = 128 << 10;

/// When a collection visits a page, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VisitPhase {
    /// During the freeing of the blocks that other threads freed (`_mi_heap_delayed_free_all`).
    DelayedBlocks,
    /// As a retired page (`_mi_heap_collect_retired`).
    Retired,
    /// With all pages of its heap (`mi_heap_visit_pages`).
    AllPages,
}

/// Position of a page in the order of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VisitOrder {
    /// The step that visits it.
    pub phase: VisitPhase,
    /// Full pages are in the last queue of a heap; the others are ordered by block size.
    is_full: bool,
    /// Bytes of its blocks.
    block_bytes: u64,
    /// Position in its queue; of a delayed page, in the list of blocks.
    queue_position: usize,
}

/// A page of a live thread.
struct ThreadPage<'a> {
    part: &'a Part,
    words: PageWords,
}

/// The visit of a page.
pub struct PageVisit<'a> {
    /// The page.
    pub page: &'a Part,
    /// When a collection visits it.
    pub order: VisitOrder,
}

/// Returns the pages of live threads in the order in which collections visit them.
pub fn pages_in_visit_order<'a>(heap: &'a Heap, collection: &Collection) -> Vec<PageVisit<'a>> {
    let parts = heap.parts.iter().filter(|part| part.thread.is_some() && collection.is_visited(part));
    let mut pages: Vec<ThreadPage<'_>> =
        parts.filter_map(|part| Some(ThreadPage { part, words: part.page()? })).collect();
    let position_in_queue = queue_positions(&pages);
    let mut seen_structures = HashSet::new();
    pages.retain(|page| seen_structures.insert(page.words.structure));
    let delayed_phase_of = phases_of_delayed_pages(&pages, collection);
    let order_of = |&ThreadPage { part, words }: &ThreadPage<'a>| {
        let list_positions = collection.list_positions(part);
        let phase = match delayed_phase_of.get(&words.structure) {
            Some(&phase) => phase,
            None if words.is_retired && words.used == 0 && words.previous.is_none() => VisitPhase::Retired,
            None => VisitPhase::AllPages,
        };
        let queue_position = match &list_positions {
            Some(positions) if phase == VisitPhase::DelayedBlocks => Some(*positions.end()),
            // A full page moves to the end of the queue of its size with the first of its blocks:
            // behind all positions in queues, which are below the number of pages.
            Some(positions) if words.is_full => Some(pages.len() + positions.start()),
            _ => position_in_queue.get(&words.structure).copied(),
        };
        let is_ordered_by_size = phase != VisitPhase::DelayedBlocks;
        VisitOrder {
            phase,
            is_full: is_ordered_by_size && words.is_full && list_positions.is_none(),
            block_bytes: match words.block_bytes {
                _ if !is_ordered_by_size => 0,
                bytes if bytes > MEDIUM_BYTES => u64::MAX,
                bytes => bytes,
            },
            queue_position: queue_position.unwrap_or(usize::MAX),
        }
    };
    let mut visits: Vec<PageVisit<'_>> =
        pages.iter().map(|page| PageVisit { page: page.part, order: order_of(page) }).collect();
    visits.sort_by_key(|visit| visit.order);
    visits
}

/// Numbers the pages of all queues in order, by the addresses of their structures.
fn queue_positions(pages: &[ThreadPage<'_>]) -> HashMap<u64, usize> {
    let next_of: HashMap<u64, Option<u64>> =
        pages.iter().map(|page| (page.words.structure, page.words.next)).collect();
    let mut positions: HashMap<u64, usize> = HashMap::new();
    for first_page in pages.iter().filter(|page| page.words.previous.is_none()) {
        let mut structure = Some(first_page.words.structure);
        // A page that already has a position closes a cycle.
        while let Some(at) = structure.filter(|at| !positions.contains_key(at))
            && let Some(&next) = next_of.get(&at)
        {
            positions.insert(at, positions.len());
            structure = next;
        }
    }
    positions
}

/// What the freeing of a block in a delayed list changes. The lists are simulated in order, and
/// each position is that of one block.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// A full page joins the queue of its size with the first of its blocks.
    JoinsQueue,
    /// The last block of a page in the queue of its size is freed.
    LastBlockFreed,
    /// The last block of a page that is still in the queue of full pages is freed.
    LastBlockOfFullFreed,
}

/// Simulates the first step of a collection, which frees the blocks that other threads freed, one
/// by one (`_mi_free_delayed_block`). For the pages whose last block is among them, returns when
/// the collection frees them: at once, or as a retired page if the page is alone in its queue at
/// that moment (`_mi_page_retire`).
fn phases_of_delayed_pages(pages: &[ThreadPage<'_>], collection: &Collection) -> HashMap<u64, VisitPhase> {
    let queue_of = |words: &PageWords| (words.thread_heap(), words.block_bytes);
    let mut queue_lengths: HashMap<(u64, u64), usize> = HashMap::new();
    let mut changes = Vec::new();
    for (index, ThreadPage { part, words }) in pages.iter().enumerate() {
        if !words.is_full {
            *queue_lengths.entry(queue_of(words)).or_default() += 1;
        }
        let Some(positions) = collection.list_positions(part) else { continue };
        let (first, last) = positions.into_inner();
        let is_dead = collection.is_dead(part);
        if words.is_full && is_dead && first == last {
            changes.push((last, Change::LastBlockOfFullFreed, index));
            continue;
        }
        if words.is_full {
            changes.push((first, Change::JoinsQueue, index));
        }
        if is_dead {
            changes.push((last, Change::LastBlockFreed, index));
        }
    }
    changes.sort_unstable();
    let mut phases = HashMap::new();
    for (_, change, index) in changes {
        let Some(ThreadPage { words, .. }) = pages.get(index) else { continue };
        let queue_length = queue_lengths.entry(queue_of(words)).or_default();
        let phase = match change {
            Change::JoinsQueue => {
                *queue_length += 1;
                continue;
            }
            // The length stays the same: a retired page stays in its queue.
            Change::LastBlockFreed if *queue_length == 1 && words.block_bytes <= MEDIUM_BYTES => {
                VisitPhase::Retired
            }
            Change::LastBlockFreed => {
                *queue_length = queue_length.saturating_sub(1);
                VisitPhase::DelayedBlocks
            }
            Change::LastBlockOfFullFreed => VisitPhase::DelayedBlocks,
        };
        phases.insert(words.structure, phase);
    }
    phases
}

#[cfg(test)]
mod tests {
    use super::super::layout::SLICE_BYTES;
    use super::super::parts::PartKind;
    use super::*;

    const START: u64 = 0x200_0000_0000;
    const THREAD: u64 = 0x7f00_0000_1000;

    /// A page whose last block another thread freed is retired if it is alone in its queue when
    /// that block is freed: a full page joins the queue with the first of its blocks.
    #[test]
    fn the_only_page_of_a_queue_is_retired() {
        let page = |number: u64, is_full: bool| {
            let start = START + number * SLICE_BYTES;
            let words = PageWords {
                block_bytes: 8192,
                used: 2,
                is_full,
                structure: START + number,
                ..PageWords::default()
            };
            (
                Part {
                    start,
                    end: start + SLICE_BYTES,
                    kind: PartKind::Page(words),
                    release_unit: Some(START),
                    thread: Some(THREAD),
                },
                words,
            )
        };
        let parts = [page(1, false), page(2, true)];
        let pages = parts.each_ref().map(|(part, words)| ThreadPage { part, words: *words });
        let [alone, full] = [1, 2].map(|number| START + number * SLICE_BYTES);
        let phases = |dead: &[u64], delayed: &[u64]| {
            let phases = phases_of_delayed_pages(&pages, &Collection::new(dead, delayed));
            [1, 2].map(|number| phases.get(&(START + number)).copied())
        };
        let (retired, delayed) = (Some(VisitPhase::Retired), Some(VisitPhase::DelayedBlocks));
        assert_eq!(phases(&[alone], &[alone]), [retired, None]);
        assert_eq!(phases(&[alone], &[alone, full]), [retired, None]);
        assert_eq!(phases(&[alone], &[full, alone]), [delayed, None]);
        // With its only block a page is freed as a full one; with the second of two it has joined
        // its queue before.
        assert_eq!(phases(&[alone, full], &[full, alone]), [retired, delayed]);
        assert_eq!(phases(&[alone, full], &[full, alone, full + 8192]), [delayed, retired]);
        assert_eq!(phases(&[alone, full], &[full, full + 8192, alone]), [retired, delayed]);
        assert_eq!(phases(&[], &[full, alone]), [None, None]);
    }
}
