//! jemalloc's statistics, computed from what was found.

use super::base::Block;
use super::claims::{ArenaBytes, Counts};
use super::locate::PageMap;
use strandline_claims::facts::{Allocator, Arena, ArenaKind, figures};
use strandline_claims::range::PAGE_BYTES;

/// Describes one jemalloc; `is_whole` if all of it was read.
pub fn facts(page_map: &PageMap, counts: &Counts, base_blocks: &[Block], is_whole: bool) -> Allocator {
    let arena_bytes = |state: fn(&ArenaBytes) -> u64| -> u64 { counts.arenas.values().map(state).sum() };
    let base_bytes: u64 = base_blocks.iter().map(|block| block.used_bytes).sum();
    let mut allocator = Allocator {
        name: "jemalloc".to_owned(),
        found_by: format!(
            "map of extents in {} (laid out as in {})",
            page_map.name, page_map.layout.releases
        ),
        read: true,
        ..Allocator::default()
    };
    if is_whole {
        allocator.arenas = counts.arenas.iter().map(|(&number, bytes)| arena(number, bytes)).collect();
        allocator.live_bytes = Some(counts.live.bytes);
        allocator.live_blocks = Some(counts.live.count);
        allocator.cached_bytes = Some(counts.cached.bytes);
        allocator.free_bytes = Some(counts.free_bytes);
        allocator.metadata_bytes = Some(base_bytes + counts.internal.bytes);
        allocator.own = figures(&[
            ("stats.allocated", counts.live.bytes + counts.cached.bytes + counts.internal.bytes),
            ("stats.active", arena_bytes(|arena| arena.active_bytes)),
            ("stats.retained", arena_bytes(|arena| arena.retained_bytes)),
            ("stats.arenas.4096.pdirty", arena_bytes(|arena| arena.dirty_bytes) / PAGE_BYTES),
            ("stats.arenas.4096.pmuzzy", arena_bytes(|arena| arena.muzzy_bytes) / PAGE_BYTES),
        ]);
        allocator.size_classes = counts.classes.values().cloned().collect();
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
