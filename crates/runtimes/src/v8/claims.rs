//! Classifies each byte of V8's pages: headers, objects, free and wasted bytes.
//!
//! A page's header has the number of bytes of its objects, not their places. So the resident bytes
//! of a page count in this order: live objects, dead ones, wasted bytes, free bytes. The sums of
//! each page are exact.

use std::collections::HashMap;

use super::forecast::TracedPages;
use super::heap::{Heaps, Space, SpaceKind};
use super::pages::Page;
use super::rows;
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::RangeClaim;
use strandline_claims::palette::SlotTable;
use strandline_claims::range::{MAX_BYTES, RangePages};
use strandline_claims::rows::RowRef;
use strandline_claims::runtime::Context;
use strandline_process::range::{AddressRange, RangeSet};

/// The claims, and the resident bytes without objects and of the read-only space.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The claims, those on pages first.
    pub claims: Vec<RangeClaim>,
    /// Resident bytes without objects, by the address of the heap. Pooled pages of isolates that
    /// have ended are under the heaps that these had.
    pub idle_bytes: HashMap<u64, IdleBytes>,
    /// Resident bytes of the read-only space.
    pub read_only_bytes: u64,
}

/// Resident bytes of a heap that hold no object.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdleBytes {
    /// Those of pooled pages.
    pub pool_bytes: u64,
    /// Those of the new space.
    pub young_bytes: u64,
}

impl Claimed {
    /// Returns the sums of all heaps.
    pub fn total_idle_bytes(&self) -> IdleBytes {
        self.idle_bytes.values().fold(IdleBytes::default(), |sum, idle| IdleBytes {
            pool_bytes: sum.pool_bytes.saturating_add(idle.pool_bytes),
            young_bytes: sum.young_bytes.saturating_add(idle.young_bytes),
        })
    }
}

/// The classes of the bytes of a page.
#[derive(Clone, Copy, Debug)]
struct Classes {
    /// Objects not known to be dead.
    used: Class,
    /// Objects to which nothing leads.
    dead: Class,
    /// Bytes that no object can use.
    wasted: Class,
    /// Bytes for further objects.
    free: Class,
}

/// Claims all pages, and the rest of the code range, without what other runtimes claimed
/// (`foreign_ranges`).
pub fn claim(
    context: &Context<'_>,
    palette: &mut SlotTable,
    heaps: &Heaps,
    traced: &TracedPages,
    foreign_ranges: &RangeSet,
) -> Claimed {
    let mut claimed = Claimed::default();
    // Slots are few: the rows without a space take theirs first.
    let pool = refined(palette, &rows::POOL, None);
    let dead = refined(palette, &rows::DEAD, None);
    let wasted = refined(palette, &rows::WASTED, None);
    let has_pages = |space: &&Space| !(space.pages.is_empty() && space.idle_pages.is_empty());
    for space in heaps.spaces.iter().filter(has_pages) {
        let used = refined(palette, &rows::OBJECT, Some(space.name));
        let is_paged = space.kind == SpaceKind::Paged;
        let free = if is_paged { refined(palette, &rows::FREE, Some(space.name)) } else { Class::Live };
        let classes = Classes { used, dead, wasted, free };
        // Without a trace no object is known to be dead.
        let dead_bytes = |page: &Page| traced.get(&page.start).map_or(0, |objects| objects.dead);
        let in_use =
            space.pages.iter().map(|page| claim_page(context, space, page, dead_bytes(page), classes));
        let idle = space.idle_pages.iter().map(|page| claim_idle_page(context, page));
        for claim in in_use.chain(idle) {
            claimed.idle_bytes.entry(space.heap).or_default().young_bytes +=
                claim.sums.resident.of(Class::Cached);
            claimed.claims.push(claim);
        }
    }
    for page in &heaps.pool {
        let claim = context.claim_whole(page.range(), pool);
        claimed.idle_bytes.entry(page.heap).or_default().pool_bytes += claim.sums.resident.total();
        claimed.claims.push(claim);
    }
    for page in &heaps.read_only {
        let claim = context.claim_whole(page.range(), Class::Mmapped);
        claimed.read_only_bytes += claim.sums.resident.total();
        claimed.claims.push(claim);
    }
    claimed.claims.sort_unstable_by_key(|claim| claim.start);
    let mut all_claimed: RangeSet = claimed.claims.iter().map(RangeClaim::range).collect();
    all_claimed.extend(foreign_ranges.iter().copied());
    let code = code_ranges(context, heaps, &all_claimed);
    claimed.claims.extend(code);
    claimed
}

/// Returns the class of a row, with the space as its holder if there is one. Once no slot is left,
/// bytes count as objects: nothing is offered for release that may be in use.
fn refined(palette: &mut SlotTable, row: RowRef, space: Option<&str>) -> Class {
    let holder = space.map(|name| name.replace('_', " "));
    palette.add(row, holder.as_deref()).map_or(Class::Live, Class::Refined)
}

/// Claims a page with objects; `dead_bytes` of them are dead.
fn claim_page(
    context: &Context<'_>,
    space: &Space,
    page: &Page,
    dead_bytes: u64,
    classes: Classes,
) -> RangeClaim {
    let pages = context.pages(page.start, page.end);
    let mut accumulator = Accumulator::new(page.start, &pages);
    accumulator.claim_to(page.area_start, Class::Header);
    let buffer = space.buffer.filter(|buffer| buffer.is_on(page));
    match space.kind {
        SpaceKind::Young => {
            let top = buffer.map_or(page.area_end, |buffer| buffer.top);
            let live_bytes = (top - page.area_start).saturating_sub(dead_bytes);
            accumulator.claim_to(page.area_start + live_bytes, classes.used);
            accumulator.claim_to(top, classes.dead);
            accumulator.claim_to(page.area_end, Class::Cached);
        }
        SpaceKind::Large => {
            let live_bytes = page.allocated_bytes.saturating_sub(dead_bytes);
            let dead_bytes = page.allocated_bytes - live_bytes;
            claim_resident(&mut accumulator, &pages, page.area_end, live_bytes, classes.used);
            claim_resident(&mut accumulator, &pages, page.area_end, dead_bytes, classes.dead);
            accumulator.claim_to(page.area_end, classes.wasted);
        }
        SpaceKind::Paged => {
            let buffer_bytes = buffer.map_or(0, |buffer| buffer.free_bytes());
            let used_bytes = page.allocated_bytes.saturating_sub(buffer_bytes);
            let wasted_bytes = page.wasted_bytes.min(page.area_bytes() - used_bytes);
            let live_bytes = used_bytes.saturating_sub(dead_bytes);
            claim_resident(&mut accumulator, &pages, page.area_end, live_bytes, classes.used);
            claim_resident(&mut accumulator, &pages, page.area_end, used_bytes - live_bytes, classes.dead);
            claim_resident(&mut accumulator, &pages, page.area_end, wasted_bytes, classes.wasted);
            accumulator.claim_to(page.area_end, classes.free);
        }
    }
    accumulator.claim_to(page.end, classes.wasted);
    RangeClaim { start: page.start, end: page.end, sums: accumulator.cut().finish(&pages) }
}

/// Claims a page of the new space that holds no object.
fn claim_idle_page(context: &Context<'_>, page: &Page) -> RangeClaim {
    let pages = context.pages(page.start, page.end);
    let mut accumulator = Accumulator::new(page.start, &pages);
    accumulator.claim_to(page.area_start, Class::Header);
    accumulator.claim_to(page.end, Class::Cached);
    RangeClaim { start: page.start, end: page.end, sums: accumulator.cut().finish(&pages) }
}

/// Claims the next `bytes` resident bytes, up to `end` at most. Bytes between them that are not
/// resident do not count.
fn claim_resident(accumulator: &mut Accumulator<'_>, pages: &RangePages, end: u64, bytes: u64, class: Class) {
    let mut remaining_bytes = bytes;
    for run in pages.runs_in(accumulator.cursor(), end) {
        let until = run.start.saturating_add(remaining_bytes).min(run.end);
        remaining_bytes -= until - run.start;
        if until > run.start {
            accumulator.claim_to(until, class);
        }
        if remaining_bytes == 0 {
            return;
        }
    }
}

/// Claims what is resident in the code range and not in `claimed`: V8 reserves one range of
/// addresses for code (`src/heap/code-range.h`), and copies its built-in functions there.
fn code_ranges(context: &Context<'_>, heaps: &Heaps, claimed: &RangeSet) -> Vec<RangeClaim> {
    let code_spaces = heaps.spaces.iter().filter(|space| space.is_code());
    let starts = code_spaces.flat_map(|space| &space.pages).map(|page| page.start);
    let mut mappings: Vec<AddressRange> = starts
        .filter_map(|at| context.space.find(at))
        .filter(|mapping| mapping.permissions.execute && mapping.end - mapping.start <= MAX_BYTES)
        .map(|mapping| mapping.range())
        .collect();
    mappings.sort_unstable();
    mappings.dedup();
    let mut claims = Vec::new();
    for run in mappings.into_iter().flat_map(|mapping| context.resident_runs(mapping)) {
        claims.extend(claimed.gaps_in(run).map(|gap| context.claim_whole(gap, Class::Metadata)));
    }
    claims
}
