//! What a collection would give back, by which thread makes it.
//!
//! `mi_collect(true)` frees the pages of the calling thread's heaps in which nothing is live, and what threads that ended left
//! behind where the main thread calls it. A segment goes back when none of its pages is left; so does what arenas have free.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use super::layout::{PageWords, RUN_BYTES};
use super::parts::{Arenas, Collect, Heap, Kind, Part};
use crate::page_cache::PageCache;
use strandline_claims::allocator::Context;

/// Blocks of heaps' lists, which a damaged one must not make more.
const MOST_DELAYED: u64 = 1 << 22;

/// What other threads freed, and what that leaves.
#[derive(Default)]
pub struct Left {
    /// Heaps of threads.
    pub owners: Vec<u64>,
    /// Blocks that other threads freed and that no page's list has, in address order.
    pub delayed: Vec<u64>,
    /// What can go back as a whole: a segment, or a page of 3.x.
    dead: HashSet<u64>,
    /// Pages in which nothing is live, by their first byte.
    dead_pages: HashSet<u64>,
    /// What a collection gives back of these.
    collect: Collect,
    /// Runs of slices that are purged as a whole, by their first byte, that stay.
    staying_runs: HashSet<u64>,
    in_runs: Vec<(u64, u64)>,
    /// The thread whose collection gives back most.
    pub thread: Option<u64>,
    /// Whether that is the one that collects what ended threads left too.
    is_main: bool,
    /// Target memory read.
    pub bytes_read: u64,
}

impl Left {
    /// Whether a collection by the chosen thread gives back a part.
    pub fn is_given(&self, part: &Part) -> bool {
        self.is_given_by(part, self.thread, self.is_main)
            && runs(&self.in_runs, part).all(|run| !self.staying_runs.contains(&run))
    }

    fn is_given_by(&self, part: &Part, thread: Option<u64>, is_main: bool) -> bool {
        if matches!(part.kind, Kind::Waiting) {
            return match self.collect.arenas {
                Arenas::ByNone => false,
                Arenas::ByMain => is_main,
                Arenas::ByAny => true,
            };
        }
        let is_its = match part.thread {
            0 => self.collect.ended && is_main,
            owner => Some(owner) == thread,
        };
        let is_dead = || match part.kind {
            Kind::Page(_) => self.dead_pages.contains(&part.start),
            // A page that was freed before mostly is purged by now.
            Kind::Own | Kind::Free | Kind::Waiting => false,
        };
        part.whole != 0 && is_its && (self.dead.contains(&part.whole) || self.collect.pages && is_dead())
    }
}

/// Looks at what other threads freed, and for the thread that best collects.
pub fn find(context: &Context<'_>, heap: &Heap) -> Left {
    let mut left = Left::default();
    let mut cache = PageCache::new(context.memory);
    left.owners = heap.parts.iter().flat_map(owners).collect();
    left.owners.sort_unstable();
    left.owners.dedup();
    left.delayed = delayed(context, &mut cache, heap, &left.owners);
    left.collect = heap.collect;
    let mut alive: HashSet<u64> = HashSet::new();
    for part in heap.parts.iter().filter(|part| part.whole != 0) {
        left.dead.insert(part.whole);
        let Kind::Page(page) = part.kind else { continue };
        // A heap that a program made itself (mi_heap_new) lies in a block of mimalloc's: no collection of the thread's has it.
        if !is_made(heap, page.heaps[0]) && is_dead(context, &mut cache, part, (&page, &left.delayed)) {
            left.dead_pages.insert(part.start);
        } else {
            alive.insert(part.whole);
        }
    }
    left.dead.retain(|whole| !alive.contains(whole));
    choose(context, heap, &mut left);
    left.bytes_read = cache.bytes_read;
    left
}

/// Whether a heap lies in a page.
fn is_made(heap: &Heap, owner: u64) -> bool {
    let next = heap.parts.partition_point(|part| part.end <= owner);
    heap.parts.get(next).is_some_and(|part| part.start <= owner && matches!(part.kind, Kind::Page(_)))
}

/// Chooses the thread whose collection gives back most; of several that give the same, the first.
fn choose(context: &Context<'_>, heap: &Heap, left: &mut Left) {
    // The first thread is the main one.
    let main = context.fs_bases.first().copied();
    // In a forked child other threads' heaps stand still for ever, in the middle of anything: no call is made.
    let is_alive = |part: &Part| part.thread == 0 || context.fs_bases.contains(&part.thread);
    if !heap.parts.iter().all(is_alive) {
        return;
    }
    let mut of_thread: HashMap<u64, u64> = HashMap::new();
    for part in &heap.parts {
        let owner = if part.thread == 0 { main } else { Some(part.thread) };
        if left.is_given_by(part, owner, owner == main) {
            let resident = (context.resident)(part.start, part.end);
            let bytes: u64 = resident.iter().map(|run| run.1 - run.0).sum();
            *of_thread.entry(owner.unwrap_or(0)).or_default() += bytes;
        }
    }
    let bytes = |thread: &u64| of_thread.get(thread).copied().unwrap_or(0);
    left.thread = context.fs_bases.iter().copied().rev().max_by_key(bytes);
    left.is_main = left.thread.is_some() && left.thread == main;
    let stays = heap.parts.iter().filter(|part| !left.is_given_by(part, left.thread, left.is_main));
    left.staying_runs = stays.flat_map(|part| runs(&heap.in_runs, part)).collect();
    left.in_runs.clone_from(&heap.in_runs);
}

/// The runs that a part reaches into, by their first bytes.
fn runs<'a>(in_runs: &'a [(u64, u64)], part: &Part) -> impl Iterator<Item = u64> + use<'a> {
    let (start, end) = (part.start, part.end);
    let arena = in_runs.iter().find(move |arena| (arena.0..arena.1).contains(&start));
    arena.into_iter().flat_map(move |arena| {
        let first = start - (start - arena.0) % RUN_BYTES;
        (first..end).step_by(RUN_BYTES as usize)
    })
}

/// Whether nothing in a page is live.
fn is_dead(
    context: &Context<'_>,
    cache: &mut PageCache<'_>,
    part: &Part,
    (page, delayed): (&PageWords, &[u64]),
) -> bool {
    let from = delayed.partition_point(|&pointer| pointer < part.start);
    let to = delayed.partition_point(|&pointer| pointer < part.end).max(from);
    let mut left = page.used.saturating_sub((to - from) as u64);
    let mut at = page.lists[2];
    while left > 0 && at != 0 && Instant::now() < context.deadline {
        if !(part.start..part.end).contains(&at) {
            return false;
        }
        left -= 1;
        at = cache.word(at).unwrap_or(0);
    }
    // As many as are in use, and no more.
    left == 0 && at == 0
}

/// The blocks that other threads freed and left for a page's thread in its heap, in address order.
fn delayed(context: &Context<'_>, cache: &mut PageCache<'_>, heap: &Heap, owners: &[u64]) -> Vec<u64> {
    let mut blocks = Vec::new();
    let used = |part: &Part| match part.kind {
        Kind::Page(page) => page.used.min(page.capacity),
        Kind::Own | Kind::Free | Kind::Waiting => 0,
    };
    // No more than are in use: a circle ends.
    let most = heap.parts.iter().map(used).sum::<u64>().min(MOST_DELAYED);
    for owner in heap.delayed_free.iter().flat_map(|offset| owners.iter().map(move |owner| owner + offset)) {
        let mut at = cache.word(owner).unwrap_or(0);
        while at != 0
            && at.is_multiple_of(8)
            && (blocks.len() as u64) < most
            && Instant::now() < context.deadline
        {
            blocks.push(at);
            at = cache.word(at).unwrap_or(0);
        }
    }
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

/// The heaps that a page belongs to.
fn owners(part: &Part) -> impl Iterator<Item = u64> + use<> {
    let heaps = match part.kind {
        Kind::Page(page) => page.heaps,
        Kind::Own | Kind::Free | Kind::Waiting => [0; 2],
    };
    heaps.into_iter().filter(|&heap| heap > 1 << 16 && heap.is_multiple_of(8) && heap < 1 << 47)
}
