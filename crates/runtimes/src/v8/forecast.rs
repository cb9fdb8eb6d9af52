//! Predicts what an isolate holds after a collection under memory pressure, from a trace of its
//! objects.
//!
//! V8 collects twice if the first collection leaves much garbage
//! (`Heap::CollectGarbageOnMemoryPressure` in `src/heap/heap.cc`). Each collection frees the pages
//! without live objects. It also empties pages of which a fifth is free, those with fewest objects
//! first, up to a limit for each space (`CollectEvacuationCandidates` and
//! `ComputeEvacuationHeuristics` in `src/heap/mark-compact.cc`). When it chooses them it does not
//! know yet which objects are dead. Their objects move to free places of other pages, then to new
//! pages.

use std::collections::HashMap;

use super::claims::Claimed;
use super::heap::{Heaps, Kind, Space};
use super::layout::{MIN_YOUNG_BYTES, PAGE_ALIGNMENT};
use super::pages::Page;
use strandline_claims::range::PAGE_BYTES;

/// A page with this share of free bytes is emptied, in percent.
const MIN_FREE_PERCENT: u64 = 20;
/// Maximum bytes of objects that a collection moves out of pages of one space.
const MAX_MOVED_BYTES: u64 = 12 << 20;
/// The second collection runs if this much, and this part of the committed memory, may be garbage.
const MIN_GARBAGE_BYTES: u64 = 8 << 20;
const MIN_GARBAGE_DIVISOR: u64 = 10;
/// Where objects that survive go.
const OLD_SPACE: &str = "old_space";

/// Bytes of the objects of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectBytes {
    /// Objects to which nothing leads.
    pub dead: u64,
    /// Objects to which certain roots lead.
    pub reachable: u64,
    /// Objects to which only other words lead.
    pub uncertain: u64,
}

/// Traced objects by the address of their page; empty if objects were not traced.
pub type TracedPages = HashMap<u64, ObjectBytes>;

/// What a collection releases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Bytes released if all uncertain objects are alive.
    pub low: u64,
    /// Bytes released if all of them are garbage.
    pub high: u64,
    /// Bytes of pages without any object that may be alive.
    pub dead_pages: u64,
}

/// A page of a space in which objects of many sizes are beside each other.
#[derive(Clone, Copy, Debug)]
struct PageState {
    /// Resident bytes.
    resident: u64,
    /// Bytes for objects.
    area: u64,
    /// Bytes of objects as V8 counts them, dead ones included until they are swept.
    used: u64,
    /// Bytes of live objects.
    live: u64,
}

/// Forecasts by the address of the heap; empty if objects were not traced.
pub type Forecasts = HashMap<u64, Forecast>;

/// Predicts for each isolate what collections release, its pool included. `external` are the bytes
/// of buffers outside of the heaps.
pub fn forecasts(heaps: &Heaps, claimed: &Claimed, traced: &TracedPages, external: u64) -> Forecasts {
    if traced.is_empty() {
        return Forecasts::new();
    }
    let resident: HashMap<u64, u64> =
        claimed.claims.iter().map(|claim| (claim.start, claim.sums.resident.total())).collect();
    let forecast = |heap: u64| {
        let isolate = Isolate { heaps, resident: &resident, traced, heap, external };
        let before = isolate.before() + claimed.idle.get(&heap).map_or(0, |idle| idle.pool);
        let released = |live: fn(ObjectBytes) -> u64| before.saturating_sub(isolate.after(live));
        Forecast {
            low: released(|objects| objects.reachable.saturating_add(objects.uncertain)),
            high: released(|objects| objects.reachable),
            dead_pages: isolate.dead_pages(),
        }
    };
    heaps.isolates.iter().map(|isolate| (isolate.heap, forecast(isolate.heap))).collect()
}

struct Isolate<'a> {
    heaps: &'a Heaps,
    resident: &'a HashMap<u64, u64>,
    traced: &'a TracedPages,
    heap: u64,
    external: u64,
}

impl Isolate<'_> {
    fn spaces(&self) -> impl Iterator<Item = &Space> {
        self.heaps.spaces.iter().filter(|space| space.heap == self.heap)
    }

    fn resident(&self, page: &Page) -> u64 {
        self.resident.get(&page.start).copied().unwrap_or(0)
    }

    fn objects(&self, page: &Page) -> ObjectBytes {
        self.traced.get(&page.start).copied().unwrap_or_default()
    }

    fn before(&self) -> u64 {
        self.spaces()
            .flat_map(|space| space.pages.iter().chain(&space.idle))
            .map(|page| self.resident(page))
            .sum()
    }

    /// Returns the resident bytes of pages all of whose objects are dead, but for one page a space,
    /// which V8 keeps.
    fn dead_pages(&self) -> u64 {
        let of_space = |space: &Space| {
            let is_dead = |page: &&Page| {
                let objects = self.objects(page);
                objects.dead > 0 && objects.reachable == 0 && objects.uncertain == 0
            };
            let dead = space.pages.iter().filter(is_dead).map(|page| self.resident(page));
            match space.kind {
                Kind::Large => dead.sum(),
                Kind::Paged => dead.skip(1).sum(),
                Kind::Young => 0,
            }
        };
        self.spaces().map(of_space).sum::<u64>()
    }

    /// Returns the resident bytes of all spaces after the collections.
    fn after(&self, live: fn(ObjectBytes) -> u64) -> u64 {
        let young = self.spaces().filter(|space| space.kind == Kind::Young).flat_map(|space| &space.pages);
        let young: u64 = young.map(|page| live(self.objects(page))).sum();
        let (mut kept, mut committed, mut live_bytes) = (MIN_YOUNG_BYTES, MIN_YOUNG_BYTES, 0);
        let mut compacted = Vec::new();
        for space in self.spaces().filter(|space| space.kind != Kind::Young) {
            let is_code = space.name.starts_with("code_");
            if space.kind == Kind::Paged && !is_code {
                // Young objects that live move to the old space.
                let moved = if space.name == OLD_SPACE { young } else { 0 };
                compacted.push(collect(self.pages(space, live), moved));
                continue;
            }
            for page in space.pages.iter().filter(|page| is_code || live(self.objects(page)) > 0) {
                kept += self.resident(page);
                committed += page.bytes();
                live_bytes += page.allocated;
            }
        }
        committed += compacted.iter().map(|pages| pages.len() as u64 * PAGE_ALIGNMENT).sum::<u64>();
        live_bytes += compacted.iter().flatten().map(|page| page.live).sum::<u64>();
        let garbage = committed.saturating_sub(live_bytes).saturating_add(self.external);
        if garbage >= MIN_GARBAGE_BYTES && garbage >= committed / MIN_GARBAGE_DIVISOR {
            compacted = compacted.into_iter().map(|pages| collect(pages, 0)).collect();
        }
        kept + compacted.iter().flatten().map(|page| page.resident).sum::<u64>()
    }

    fn pages(&self, space: &Space, live: fn(ObjectBytes) -> u64) -> Vec<PageState> {
        let state = |page: &Page| {
            let buffers = space.buffer.iter().chain(&space.local_buffer);
            let here =
                buffers.filter(|buffer| page.area_start <= buffer.top && buffer.limit <= page.area_end);
            let unused: u64 = here.map(|buffer| buffer.limit - buffer.top).sum();
            let used = page.allocated.saturating_sub(unused);
            PageState {
                resident: self.resident(page),
                area: page.area_end - page.area_start,
                used,
                live: live(self.objects(page)).min(used),
            }
        };
        space.pages.iter().map(state).collect()
    }
}

/// Returns the pages of a space after a collection, which moves `moved` bytes of objects into it
/// from elsewhere.
fn collect(mut pages: Vec<PageState>, mut moved: u64) -> Vec<PageState> {
    let Some(area) = pages.iter().map(|page| page.area).max().filter(|area| *area > 0) else { return pages };
    pages.sort_unstable_by_key(|page| page.used);
    let mut used = 0;
    let (mut chosen, mut others): (Vec<_>, Vec<_>) = pages.into_iter().partition(|page| {
        let is_free = page.area.saturating_sub(page.used) >= page.area / 100 * MIN_FREE_PERCENT;
        let is_chosen = is_free && used + page.used <= MAX_MOVED_BYTES;
        used += if is_chosen { page.used } else { 0 };
        is_chosen
    });
    if used.div_ceil(area) >= chosen.len() as u64 {
        others.append(&mut chosen);
    }
    moved += chosen.iter().map(|page| page.live).sum::<u64>();
    let mut pages = others;
    // V8 keeps one page without objects.
    let unused = pages.iter().find(|page| page.live == 0).copied();
    pages.retain(|page| page.live > 0);
    pages.iter_mut().for_each(|page| page.used = page.live);
    pages.extend(unused.map(|page| PageState { used: 0, ..page }));
    pages.sort_unstable_by_key(|page| page.live);
    for page in &mut pages {
        let bytes = moved.min(page.area.saturating_sub(page.live));
        (page.used, page.live) = (page.used + bytes, page.live + bytes);
        moved -= bytes;
    }
    while moved > 0 {
        let bytes = moved.min(area);
        let resident = bytes.next_multiple_of(PAGE_BYTES);
        pages.push(PageState { resident, area, used: bytes, live: bytes });
        moved -= bytes;
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: u64 = 250_000;
    const RESIDENT: u64 = 256 << 10;

    fn pages(count: usize, used: u64, live: u64) -> Vec<PageState> {
        vec![PageState { resident: RESIDENT, area: AREA, used, live }; count]
    }

    fn resident(pages: &[PageState]) -> u64 {
        pages.iter().map(|page| page.resident).sum()
    }

    #[test]
    fn of_dead_pages_one_is_kept() {
        let mut all = pages(10, AREA, 0);
        all.extend(pages(5, AREA, AREA));
        assert_eq!(resident(&collect(all, 0)), 6 * RESIDENT);
    }

    #[test]
    fn objects_move_to_free_places_first() {
        // Five halves fit into the other five, and none is left over.
        let mut all = pages(5, AREA / 2, AREA / 2);
        all.extend(pages(5, AREA / 10 * 9, AREA / 2));
        let after = collect(all, 0);
        assert_eq!((after.len(), resident(&after)), (5, 5 * RESIDENT));
        assert_eq!(after.iter().map(|page| page.live).sum::<u64>(), 5 * AREA);
    }

    #[test]
    fn a_collection_moves_a_limited_number_of_bytes() {
        let moved = MAX_MOVED_BYTES / (AREA / 2);
        let after = collect(pages(1000, AREA / 2, AREA / 2), 0);
        assert_eq!(after.len() as u64, 1000 - moved);
        // What is dead counts until it is swept.
        assert_eq!(collect(pages(1000, AREA, AREA / 2), 0).len(), 1000);
    }

    #[test]
    fn young_objects_need_new_pages() {
        let after = collect(pages(4, AREA, AREA), 3 * AREA + 1);
        assert_eq!(after.len(), 8);
        assert_eq!(resident(&after), 4 * RESIDENT + 3 * AREA.next_multiple_of(PAGE_BYTES) + PAGE_BYTES);
    }
}
