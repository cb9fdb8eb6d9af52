//! jemalloc's statistics, computed from what was found.

use super::base::Block;
use super::caches::Cached;
use super::claims::{ArenaBytes, ClassTotals, Counts, Regions};
use super::layout::{Layout, class_bytes};
use super::locate::PageMap;
use strandline_claims::facts::{Allocator, Arena, ArenaKind, SizeClass, figures};
use strandline_claims::range::PAGE_BYTES;

/// Describes one jemalloc; `is_whole` if all of it was read.
pub fn facts(
    tree: &PageMap,
    layout: &Layout,
    counts: &Counts,
    blocks: &[Block],
    is_whole: bool,
) -> Allocator {
    let sum =
        |of: fn(&ClassTotals) -> Regions| -> u64 { counts.classes.values().map(|sums| of(sums).bytes).sum() };
    let pages = |of: fn(&ArenaBytes) -> u64| -> u64 { counts.arenas.values().map(of).sum() };
    let base: u64 = blocks.iter().map(|block| block.used_bytes).sum();
    let live_blocks = counts.classes.values().map(|of| of.live.count).sum();
    let mut allocator = Allocator {
        name: "jemalloc".to_owned(),
        found_by: format!("map of extents in {} (laid out as in {})", tree.name, layout.releases),
        read: true,
        arenas: counts.arenas.iter().map(|(&number, of)| arena(number, of)).collect(),
        ..Allocator::default()
    };
    if is_whole {
        allocator.live_bytes = Some(sum(|of| of.live));
        allocator.live_blocks = Some(live_blocks);
        allocator.cached_bytes = Some(sum(|of| of.cached));
        allocator.free_bytes = Some(sum(|of| of.free));
        allocator.metadata_bytes = Some(base + sum(|of| of.own));
        allocator.own = figures(&[
            ("stats.allocated", sum(|of| of.live) + sum(|of| of.cached) + sum(|of| of.own)),
            ("stats.active", pages(|of| of.active)),
            ("stats.retained", pages(|of| of.retained)),
            ("stats.arenas.4096.pdirty", pages(|of| of.dirty) / PAGE_BYTES),
            ("stats.arenas.4096.pmuzzy", pages(|of| of.muzzy) / PAGE_BYTES),
        ]);
        allocator.size_classes = counts.classes.iter().map(size_class).collect();
    }
    allocator
}

fn arena(number: u64, of: &ArenaBytes) -> Arena {
    Arena {
        id: number.to_string(),
        kind: if number == 0 { ArenaKind::Main } else { ArenaKind::Secondary },
        mapped_bytes: of.active + of.dirty + of.muzzy + of.retained,
        used_bytes: of.active,
        free_bytes: of.dirty + of.muzzy + of.retained,
        ..Arena::default()
    }
}

fn size_class((&class, of): (&usize, &ClassTotals)) -> SizeClass {
    SizeClass {
        bytes: class_bytes(class).unwrap_or(0),
        spans: of.extents,
        span_bytes: of.bytes,
        live_blocks: of.live.count + of.own.count,
        cached_blocks: of.cached.count,
        free_blocks: of.free.count,
    }
}

/// Number of cached regions that match no region in use of that size.
pub fn unmatched(cached: &Cached, counts: &Counts) -> u64 {
    (cached.items.len() as u64).saturating_sub(counts.matched_items)
}
