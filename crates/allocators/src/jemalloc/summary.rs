//! jemalloc's statistics, computed from what was found.

use super::base::Block;
use super::claims::{ArenaBytes, ClassTotals, Counts, Regions};
use super::layout::{Layout, class_bytes};
use super::locate::PageMap;
use strandline_claims::facts::{Allocator, Arena, ArenaKind, SizeClass, figures};
use strandline_claims::range::PAGE_BYTES;

/// Describes one jemalloc; `is_whole` if all of it was read.
pub fn facts(
    page_map: &PageMap,
    layout: &Layout,
    counts: &Counts,
    base_blocks: &[Block],
    is_whole: bool,
) -> Allocator {
    let sum = |kind: fn(&ClassTotals) -> Regions| -> u64 {
        counts.classes.values().map(|class| kind(class).bytes).sum()
    };
    let arena_bytes = |state: fn(&ArenaBytes) -> u64| -> u64 { counts.arenas.values().map(state).sum() };
    let base_bytes: u64 = base_blocks.iter().map(|block| block.used_bytes).sum();
    let live_blocks = counts.classes.values().map(|class| class.live.count).sum();
    let mut allocator = Allocator {
        name: "jemalloc".to_owned(),
        found_by: format!("map of extents in {} (laid out as in {})", page_map.name, layout.releases),
        read: true,
        ..Allocator::default()
    };
    if is_whole {
        allocator.arenas = counts.arenas.iter().map(|(&number, bytes)| arena(number, bytes)).collect();
        allocator.live_bytes = Some(sum(|class| class.live));
        allocator.live_blocks = Some(live_blocks);
        allocator.cached_bytes = Some(sum(|class| class.cached));
        allocator.free_bytes = Some(sum(|class| class.free));
        allocator.metadata_bytes = Some(base_bytes + sum(|class| class.internal));
        allocator.own = figures(&[
            (
                "stats.allocated",
                sum(|class| class.live) + sum(|class| class.cached) + sum(|class| class.internal),
            ),
            ("stats.active", arena_bytes(|arena| arena.active_bytes)),
            ("stats.retained", arena_bytes(|arena| arena.retained_bytes)),
            ("stats.arenas.4096.pdirty", arena_bytes(|arena| arena.dirty_bytes) / PAGE_BYTES),
            ("stats.arenas.4096.pmuzzy", arena_bytes(|arena| arena.muzzy_bytes) / PAGE_BYTES),
        ]);
        allocator.size_classes = counts.classes.iter().filter_map(size_class).collect();
    }
    allocator
}

fn arena(number: u64, bytes: &ArenaBytes) -> Arena {
    Arena {
        id: number.to_string(),
        kind: if number == 0 { ArenaKind::Main } else { ArenaKind::Secondary },
        mapped_bytes: bytes.active_bytes + bytes.dirty_bytes + bytes.muzzy_bytes + bytes.retained_bytes,
        used_bytes: bytes.active_bytes,
        free_bytes: bytes.dirty_bytes + bytes.muzzy_bytes + bytes.retained_bytes,
        ..Arena::default()
    }
}

/// Describes a size class; `None` if its size is not known, which `claims` never counts.
fn size_class((&class, totals): (&usize, &ClassTotals)) -> Option<SizeClass> {
    Some(SizeClass {
        bytes: class_bytes(class)?,
        spans: totals.extents,
        span_bytes: totals.extent_bytes,
        live_blocks: totals.live.count + totals.internal.count,
        cached_blocks: totals.cached.count,
        free_blocks: totals.free.count,
    })
}
