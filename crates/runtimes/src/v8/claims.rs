//! Classifies each byte of V8's pages: headers, objects, free and wasted bytes.
//!
//! A page's header has the number of bytes of its objects, not their places: in a page of 256 KiB
//! the resident bytes count as objects from the start, then as dead ones, as wasted, and as free.
//! The sums of each page are exact.

use std::collections::HashMap;

use super::forecast::TracedPages;
use super::heap::{Heaps, Kind, Space};
use super::pages::Page;
use super::rows;
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::RangeClaim;
use strandline_claims::palette::SlotTable;
use strandline_claims::range::{MAX_BYTES, RangePages};
use strandline_claims::rows::RowRef;
use strandline_claims::runtime::Context;
use strandline_process::range::{AddressRange, RangeSet};

/// Claims, and the resident bytes in some of them.
#[derive(Debug, Default)]
pub struct Claimed {
    /// All claims.
    pub claims: Vec<RangeClaim>,
    /// Resident bytes without objects, by the address of the heap. Pooled pages of isolates that
    /// have ended are under the heaps that these had.
    pub idle: HashMap<u64, Idle>,
    /// Resident bytes of the read-only space.
    pub read_only: u64,
}

/// Resident bytes of a heap that hold no object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Idle {
    /// Pooled pages.
    pub pool: u64,
    /// The new space.
    pub young: u64,
}

impl Claimed {
    /// Returns the sums of all heaps.
    pub fn all_idle(&self) -> Idle {
        self.idle.values().fold(Idle::default(), |sum, of| Idle {
            pool: sum.pool.saturating_add(of.pool),
            young: sum.young.saturating_add(of.young),
        })
    }
}

/// The classes of the bytes of a page.
#[derive(Clone, Copy, Debug)]
struct Classes {
    used: Class,
    dead: Class,
    wasted: Class,
    free: Class,
}

/// Claims all pages, and the rest of the code range, without what other runtimes claimed (`taken`).
pub fn claim(
    context: &Context<'_>,
    palette: &mut SlotTable,
    heaps: &Heaps,
    traced: &TracedPages,
    taken: &RangeSet,
) -> Claimed {
    let mut claimed = Claimed::default();
    // There are few slots: those without a space come first.
    let pool = class(palette, &rows::POOL, None);
    let dead = class(palette, &rows::DEAD, None);
    let wasted = class(palette, &rows::WASTED, None);
    let with_pages = |space: &&Space| !(space.pages.is_empty() && space.idle.is_empty());
    for space in heaps.spaces.iter().filter(with_pages) {
        let used = class(palette, &rows::OBJECT, Some(space.name));
        let is_paged = space.kind == Kind::Paged;
        let free = if is_paged { class(palette, &rows::FREE, Some(space.name)) } else { Class::Live };
        let classes = Classes { used, dead, wasted, free };
        let dead_in = |page: &Page| traced.get(&page.start).map_or(0, |objects| objects.dead);
        let in_use = space.pages.iter().map(|page| claim_page(context, space, page, dead_in(page), classes));
        let idle = space.idle.iter().map(|page| claim_all(context, page, Class::Cached));
        for claim in in_use.chain(idle) {
            claimed.idle.entry(space.heap).or_default().young += claim.sums.resident.of(Class::Cached);
            claimed.claims.push(claim);
        }
    }
    for page in &heaps.pool {
        let claim = context.claim_whole(page.range(), pool);
        claimed.idle.entry(page.heap).or_default().pool += claim.sums.resident.total();
        claimed.claims.push(claim);
    }
    for page in &heaps.read_only {
        let claim = context.claim_whole(page.range(), Class::Mmapped);
        claimed.read_only += claim.sums.resident.total();
        claimed.claims.push(claim);
    }
    claimed.claims.sort_unstable_by_key(|claim| claim.start);
    let mut known: RangeSet = claimed.claims.iter().map(RangeClaim::range).collect();
    known.extend(taken.iter().copied());
    let code = code_ranges(context, heaps, &known);
    claimed.claims.extend(code);
    claimed
}

/// Returns the class of a row, with the space as its holder if there is one.
fn class(palette: &mut SlotTable, row: RowRef, space: Option<&str>) -> Class {
    let holder = space.map(|name| name.replace('_', " "));
    palette.add(row, holder.as_deref()).map_or(Class::Live, Class::Refined)
}

fn claim_page(context: &Context<'_>, space: &Space, page: &Page, dead: u64, classes: Classes) -> RangeClaim {
    let pages = context.pages(page.start, page.end);
    let mut accumulator = Accumulator::new(page.start, &pages);
    accumulator.claim_to(page.area_start, Class::Header);
    let here = space.buffer.filter(|buffer| page.area_start <= buffer.top && buffer.limit <= page.area_end);
    let area = page.area_end - page.area_start;
    match space.kind {
        Kind::Young => {
            let top = here.map_or(page.area_end, |buffer| buffer.top);
            let live = (top - page.area_start).saturating_sub(dead);
            accumulator.claim_to(page.area_start + live, classes.used);
            accumulator.claim_to(top, classes.dead);
            accumulator.claim_to(page.area_end, Class::Cached);
        }
        Kind::Large => {
            let live = page.allocated.saturating_sub(dead);
            claim_resident(&mut accumulator, &pages, page.area_end, live, classes.used);
            claim_resident(&mut accumulator, &pages, page.area_end, page.allocated - live, classes.dead);
            accumulator.claim_to(page.area_end, classes.wasted);
        }
        Kind::Paged => {
            let buffer = here.map_or(0, |buffer| buffer.limit - buffer.top);
            let used = page.allocated.saturating_sub(buffer);
            let wasted = page.wasted.min(area - used);
            let live = used.saturating_sub(dead);
            claim_resident(&mut accumulator, &pages, page.area_end, live, classes.used);
            claim_resident(&mut accumulator, &pages, page.area_end, used - live, classes.dead);
            claim_resident(&mut accumulator, &pages, page.area_end, wasted, classes.wasted);
            accumulator.claim_to(page.area_end, classes.free);
        }
    }
    accumulator.claim_to(page.end, classes.wasted);
    RangeClaim { start: page.start, end: page.end, sums: accumulator.cut().finish(&pages) }
}

/// Claims a page whose header is in use and whose other bytes have one class.
fn claim_all(context: &Context<'_>, page: &Page, class: Class) -> RangeClaim {
    let pages = context.pages(page.start, page.end);
    let mut accumulator = Accumulator::new(page.start, &pages);
    accumulator.claim_to(page.area_start, Class::Header);
    accumulator.claim_to(page.end, class);
    RangeClaim { start: page.start, end: page.end, sums: accumulator.cut().finish(&pages) }
}

/// Claims the next `bytes` resident bytes, up to `end` at most; bytes between that are not resident
/// do not count.
fn claim_resident(accumulator: &mut Accumulator<'_>, pages: &RangePages, end: u64, bytes: u64, class: Class) {
    let mut rest = bytes;
    for run in pages.runs_in(accumulator.cursor(), end) {
        let until = run.start.saturating_add(rest).min(run.end);
        rest -= until - run.start;
        if until > run.start {
            accumulator.claim_to(until, class);
        }
        if rest == 0 {
            return;
        }
    }
}

/// Claims what is resident in the code range and not in `known`: V8 reserves one range of addresses
/// for code (`src/heap/code-range.h`), and copies its built-in functions there.
fn code_ranges(context: &Context<'_>, heaps: &Heaps, known: &RangeSet) -> Vec<RangeClaim> {
    let of_code = heaps.spaces.iter().filter(|space| space.name.starts_with("code_"));
    let starts = of_code.flat_map(|space| &space.pages).map(|page| page.start);
    let mut mappings: Vec<AddressRange> = starts
        .filter_map(|at| context.space.find(at))
        .filter(|mapping| mapping.permissions.execute && mapping.end - mapping.start <= MAX_BYTES)
        .map(|mapping| mapping.range())
        .collect();
    mappings.sort_unstable();
    mappings.dedup();
    let mut rest = Vec::new();
    for run in mappings.into_iter().flat_map(|mapping| context.resident_runs(mapping)) {
        rest.extend(known.gaps_in(run).map(|gap| context.claim_whole(gap, Class::Metadata)));
    }
    rest
}
