//! Predicts what an isolate holds after a collection under memory pressure, from a trace of its
//! objects.
//!
//! V8 collects twice if the first collection leaves much garbage
//! (`Heap::CollectGarbageOnMemoryPressure` in `src/heap/heap.cc`). Each collection frees the pages
//! without live objects. It also empties pages with a fifth free, those with fewest objects
//! first, up to a limit for each space (`CollectEvacuationCandidates` and
//! `ComputeEvacuationHeuristics` in `src/heap/mark-compact.cc`). When it chooses them it does not
//! know yet which objects are dead. Their objects move to free places of other pages, then to new
//! pages.

use std::collections::HashMap;

use super::claims::Claimed;
use super::heap::{AllocationBuffer, Heaps, Space, SpaceKind};
use super::layout::{MAX_HEADER_BYTES, MIN_YOUNG_BYTES, OLD_SPACE, PAGE_ALIGNMENT};
use super::pages::Page;
use strandline_claims::range::PAGE_BYTES;

/// Minimum share of free bytes, in percent, of a page that a collection may empty.
const MIN_FREE_PERCENT: u64 = 20;
/// Maximum bytes of objects that a collection moves out of pages of one space.
const MAX_MOVED_BYTES: u64 = 12 << 20;
/// Minimum bytes that may be garbage after the first collection for V8 to collect again.
const MIN_GARBAGE_BYTES: u64 = 8 << 20;
/// For V8 to collect again, garbage must also be at least the committed bytes divided by this.
const MIN_GARBAGE_DIVISOR: u64 = 10;

/// Bytes of the objects of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectBytes {
    /// Objects to which nothing leads.
    pub dead: u64,
    /// Objects to which certain roots lead.
    pub reachable: u64,
    /// Objects to which only uncertain roots lead.
    pub uncertain: u64,
}

/// Traced objects by the address of their page; empty if objects were not traced.
pub type TracedPages = HashMap<u64, ObjectBytes>;

/// What a collection releases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Bytes released if all uncertain objects are alive.
    pub low_bytes: u64,
    /// Bytes released if all of them are garbage.
    pub high_bytes: u64,
    /// Bytes of pages without any object that may be alive.
    pub dead_page_bytes: u64,
}

/// A page of a space of [`SpaceKind::Paged`].
#[derive(Clone, Copy, Debug)]
struct PageState {
    resident_bytes: u64,
    /// Bytes for objects.
    area_bytes: u64,
    /// Bytes of objects as V8 counts them, dead ones included until they are swept.
    used_bytes: u64,
    /// Bytes of live objects.
    live_bytes: u64,
}

/// Forecasts by the address of the heap; empty if objects were not traced.
pub type Forecasts = HashMap<u64, Forecast>;

/// Predicts for each isolate what collections release, its pool included. `external_bytes` is the
/// size of buffers outside of the heaps: if it is not known, any size is possible.
pub fn forecasts(
    heaps: &Heaps,
    claimed: &Claimed,
    traced: &TracedPages,
    external_bytes: Option<u64>,
) -> Forecasts {
    if traced.is_empty() {
        return Forecasts::new();
    }
    let resident: HashMap<u64, u64> =
        claimed.claims.iter().map(|claim| (claim.start, claim.sums.resident.total())).collect();
    let forecast = |heap: u64| {
        let isolate = TracedIsolate { heaps, resident: &resident, traced, heap };
        let before_bytes =
            isolate.resident_before() + claimed.idle_bytes.get(&heap).map_or(0, |idle| idle.pool_bytes);
        let released = |external_bytes: u64, live_of: fn(ObjectBytes) -> u64| {
            before_bytes.saturating_sub(isolate.resident_after(external_bytes, live_of))
        };
        let all_live = |objects: ObjectBytes| objects.reachable.saturating_add(objects.uncertain);
        Forecast {
            low_bytes: released(external_bytes.unwrap_or(0), all_live),
            high_bytes: released(external_bytes.unwrap_or(u64::MAX), |objects| objects.reachable),
            dead_page_bytes: isolate.dead_page_bytes(),
        }
    };
    heaps.isolates.iter().map(|isolate| (isolate.heap, forecast(isolate.heap))).collect()
}

/// An isolate and what was read of it.
struct TracedIsolate<'a> {
    heaps: &'a Heaps,
    /// Resident bytes by the address of the page.
    resident: &'a HashMap<u64, u64>,
    traced: &'a TracedPages,
    /// Address of its heap.
    heap: u64,
}

impl TracedIsolate<'_> {
    /// The spaces of the isolate.
    fn spaces(&self) -> impl Iterator<Item = &Space> {
        self.heaps.spaces.iter().filter(|space| space.heap == self.heap)
    }

    /// Resident bytes of a page; all pages were claimed.
    fn resident(&self, page: &Page) -> u64 {
        self.resident.get(&page.start).copied().unwrap_or(0)
    }

    /// The objects of a page; none for those with code, which are not traced.
    fn objects(&self, page: &Page) -> ObjectBytes {
        self.traced.get(&page.start).copied().unwrap_or_default()
    }

    /// Returns the resident bytes of all spaces now.
    fn resident_before(&self) -> u64 {
        self.spaces()
            .flat_map(|space| space.pages.iter().chain(&space.idle_pages))
            .map(|page| self.resident(page))
            .sum()
    }

    /// Returns the resident bytes of pages whose objects are all dead, without one page of each
    /// paged space, which V8 keeps.
    fn dead_page_bytes(&self) -> u64 {
        let dead_bytes_of = |space: &Space| {
            let is_dead = |page: &&Page| {
                let objects = self.objects(page);
                objects.dead > 0 && objects.reachable == 0 && objects.uncertain == 0
            };
            let dead = space.pages.iter().filter(is_dead).map(|page| self.resident(page));
            match space.kind {
                SpaceKind::Large => dead.sum(),
                SpaceKind::Paged => dead.skip(1).sum(),
                SpaceKind::Young => 0,
            }
        };
        self.spaces().map(dead_bytes_of).sum::<u64>()
    }

    /// Returns the resident bytes of all spaces after the collections. `external_bytes` is the size
    /// of buffers outside of the heaps; `live_of` returns the bytes of the objects of a page that
    /// count as live.
    fn resident_after(&self, external_bytes: u64, live_of: fn(ObjectBytes) -> u64) -> u64 {
        let young =
            self.spaces().filter(|space| space.kind == SpaceKind::Young).flat_map(|space| &space.pages);
        let young_bytes: u64 = young.map(|page| live_of(self.objects(page))).sum();
        let (mut kept_bytes, mut committed_bytes, mut live_bytes) = (MIN_YOUNG_BYTES, MIN_YOUNG_BYTES, 0);
        let mut compacted = Vec::new();
        for space in self.spaces().filter(|space| space.kind != SpaceKind::Young) {
            let is_code = space.is_code();
            if space.kind == SpaceKind::Paged && !is_code {
                // Young objects that live move to the old space.
                let moved_bytes = if space.name == OLD_SPACE { young_bytes } else { 0 };
                compacted.push(collect_space(self.pages(space, live_of), moved_bytes));
                continue;
            }
            for page in space.pages.iter().filter(|page| is_code || live_of(self.objects(page)) > 0) {
                kept_bytes += self.resident(page);
                committed_bytes += page.bytes();
                live_bytes += page.allocated_bytes;
            }
        }
        committed_bytes += compacted.iter().map(|pages| pages.len() as u64 * PAGE_ALIGNMENT).sum::<u64>();
        live_bytes += compacted.iter().flatten().map(|page| page.live_bytes).sum::<u64>();
        let garbage_bytes = committed_bytes.saturating_sub(live_bytes).saturating_add(external_bytes);
        if garbage_bytes >= MIN_GARBAGE_BYTES && garbage_bytes >= committed_bytes / MIN_GARBAGE_DIVISOR {
            compacted = compacted.into_iter().map(|pages| collect_space(pages, 0)).collect();
        }
        kept_bytes + compacted.iter().flatten().map(|page| page.resident_bytes).sum::<u64>()
    }

    /// Returns the states of the pages of a space before a collection.
    fn pages(&self, space: &Space, live_of: fn(ObjectBytes) -> u64) -> Vec<PageState> {
        let state = |page: &Page| {
            let unused_bytes: u64 = space.buffers_on(page).map(AllocationBuffer::free_bytes).sum();
            let used_bytes = page.allocated_bytes.saturating_sub(unused_bytes);
            PageState {
                resident_bytes: self.resident(page),
                area_bytes: page.area_bytes(),
                used_bytes,
                live_bytes: live_of(self.objects(page)).min(used_bytes),
            }
        };
        space.pages.iter().map(state).collect()
    }
}

/// Returns the pages of a space after a collection, which moves `moved_bytes` of objects into it
/// from elsewhere.
fn collect_space(mut pages: Vec<PageState>, mut moved_bytes: u64) -> Vec<PageState> {
    // A new page is no smaller than this, whatever the others of a damaged space state.
    let area_bytes = pages.iter().map(|page| page.area_bytes).max().filter(|bytes| *bytes > 0);
    let Some(area_bytes) = area_bytes.map(|bytes| bytes.max(PAGE_ALIGNMENT - MAX_HEADER_BYTES)) else {
        return pages;
    };
    pages.sort_unstable_by_key(|page| page.used_bytes);
    let mut chosen_bytes = 0;
    let (mut chosen, mut others): (Vec<_>, Vec<_>) = pages.into_iter().partition(|page| {
        let is_free =
            page.area_bytes.saturating_sub(page.used_bytes) >= page.area_bytes / 100 * MIN_FREE_PERCENT;
        let is_chosen = is_free && chosen_bytes + page.used_bytes <= MAX_MOVED_BYTES;
        chosen_bytes += if is_chosen { page.used_bytes } else { 0 };
        is_chosen
    });
    // V8 moves no objects if that frees no page.
    if chosen_bytes.div_ceil(area_bytes) >= chosen.len() as u64 {
        others.append(&mut chosen);
    }
    moved_bytes += chosen.iter().map(|page| page.live_bytes).sum::<u64>();
    let mut pages = others;
    // V8 keeps one page without objects.
    let unused = pages.iter().find(|page| page.live_bytes == 0).copied();
    pages.retain(|page| page.live_bytes > 0);
    pages.iter_mut().for_each(|page| page.used_bytes = page.live_bytes);
    pages.extend(unused.map(|page| PageState { used_bytes: 0, ..page }));
    pages.sort_unstable_by_key(|page| page.live_bytes);
    for page in &mut pages {
        let bytes = moved_bytes.min(page.area_bytes.saturating_sub(page.live_bytes));
        (page.used_bytes, page.live_bytes) = (page.used_bytes + bytes, page.live_bytes + bytes);
        moved_bytes -= bytes;
    }
    while moved_bytes > 0 {
        let bytes = moved_bytes.min(area_bytes);
        let resident_bytes = bytes.next_multiple_of(PAGE_BYTES);
        pages.push(PageState { resident_bytes, area_bytes, used_bytes: bytes, live_bytes: bytes });
        moved_bytes -= bytes;
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: u64 = 250_000;
    const RESIDENT: u64 = 256 << 10;

    fn pages(count: usize, used_bytes: u64, live_bytes: u64) -> Vec<PageState> {
        vec![PageState { resident_bytes: RESIDENT, area_bytes: AREA, used_bytes, live_bytes }; count]
    }

    fn resident(pages: &[PageState]) -> u64 {
        pages.iter().map(|page| page.resident_bytes).sum()
    }

    #[test]
    fn one_dead_page_is_kept() {
        let mut all = pages(10, AREA, 0);
        all.extend(pages(5, AREA, AREA));
        assert_eq!(resident(&collect_space(all, 0)), 6 * RESIDENT);
    }

    #[test]
    fn objects_move_to_free_places_first() {
        // Five halves fit into the other five, and none is left over.
        let mut all = pages(5, AREA / 2, AREA / 2);
        all.extend(pages(5, AREA / 10 * 9, AREA / 2));
        let after = collect_space(all, 0);
        assert_eq!((after.len(), resident(&after)), (5, 5 * RESIDENT));
        assert_eq!(after.iter().map(|page| page.live_bytes).sum::<u64>(), 5 * AREA);
    }

    #[test]
    fn a_collection_moves_a_limited_number_of_bytes() {
        let moved = MAX_MOVED_BYTES / (AREA / 2);
        let after = collect_space(pages(1000, AREA / 2, AREA / 2), 0);
        assert_eq!(after.len() as u64, 1000 - moved);
        // What is dead counts until it is swept.
        assert_eq!(collect_space(pages(1000, AREA, AREA / 2), 0).len(), 1000);
    }

    #[test]
    fn young_objects_need_new_pages() {
        let after = collect_space(pages(4, AREA, AREA), 3 * AREA + 1);
        assert_eq!(after.len(), 8);
        assert_eq!(resident(&after), 4 * RESIDENT + 3 * AREA.next_multiple_of(PAGE_BYTES) + PAGE_BYTES);
    }
}
