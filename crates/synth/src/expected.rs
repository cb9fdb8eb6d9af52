//! Expected figures of a planned heap: those of `mallinfo2()` and the pages that `malloc_trim(0)`
//! releases, computed from the plan and not from the bytes.

use crate::plan::{Arena, Chunk, ChunkState, Ending, Plan, Stretch};
use crate::{PAGE, round_down};

/// Bytes at the start of a free chunk that malloc_trim keeps: `struct malloc_chunk`, which is
/// the header and four links.
const MALLOC_CHUNK_BYTES: u64 = 48;
/// Bytes of the main top that malloc_trim(0) keeps: the smallest chunk and one byte (`systrim`).
const KEPT_TOP_BYTES: u64 = 33;

/// The figures of `mallinfo2()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mallinfo {
    /// Bytes taken by arenas.
    pub arena: u64,
    /// Free chunks, tops included.
    pub ordblks: u64,
    /// Fastbin chunks.
    pub smblks: u64,
    /// Mmapped chunks.
    pub hblks: u64,
    /// Bytes in mmapped chunks.
    pub hblkhd: u64,
    /// Bytes in fastbin chunks.
    pub fsmblks: u64,
    /// Bytes in use.
    pub uordblks: u64,
    /// Bytes free.
    pub fordblks: u64,
    /// Bytes in the main arena's top chunk.
    pub keepcost: u64,
}

/// Expected figures of one arena.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedArena {
    /// The address of its malloc_state.
    pub address: u64,
    /// Whether it is main_arena.
    pub is_main: bool,
    /// Bytes taken from the system.
    pub mapped_bytes: u64,
    /// Bytes in live chunks, headers included.
    pub live_bytes: u64,
    /// Number of live chunks.
    pub live_chunks: u64,
    /// Bytes in bins, fastbins and top.
    pub free_bytes: u64,
    /// Bytes in chunks of thread caches.
    pub tcache_bytes: u64,
    /// Bytes in fastbin chunks.
    pub fastbin_bytes: u64,
    /// Bytes in the top chunk.
    pub top_bytes: u64,
    /// Bytes that malloc_trim(0) releases.
    pub trim_bytes: u64,
}

/// Expected figures of a heap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// What mallinfo2() would return.
    pub mallinfo: Mallinfo,
    /// Its arenas, main_arena first.
    pub arenas: Vec<ExpectedArena>,
    /// The whole pages that malloc_trim(0) releases, as [start, end), in address order.
    pub trimmed_ranges: Vec<(u64, u64)>,
    /// The mappings that hold one chunk each, as [start, end), in address order.
    pub mmapped_ranges: Vec<(u64, u64)>,
}

/// Computes the expected figures of a plan.
pub fn expected(plan: &Plan) -> Expected {
    let mut expected = Expected::default();
    for arena in &plan.arenas {
        let arena_ranges = trimmed_ranges(arena, plan.system_break);
        let mut figures = arena_figures(arena);
        add_to_mallinfo(arena, &figures, &mut expected.mallinfo);
        figures.trim_bytes = arena_ranges.iter().map(|(start, end)| end - start).sum();
        expected.arenas.push(figures);
        expected.trimmed_ranges.extend(arena_ranges);
    }
    expected.mmapped_ranges =
        plan.mmapped.iter().map(|chunk| (chunk.base, chunk.base + chunk.bytes)).collect();
    let mallinfo = &mut expected.mallinfo;
    mallinfo.hblks = plan.mmapped.len() as u64;
    mallinfo.hblkhd = plan.mmapped_bytes();
    mallinfo.uordblks = mallinfo.arena - mallinfo.fordblks;
    mallinfo.keepcost = expected.arenas.first().map_or(0, |arena| arena.top_bytes);
    expected
}

/// Adds up the chunks of an arena. What trim releases of it is not included.
fn arena_figures(arena: &Arena) -> ExpectedArena {
    let mut figures = ExpectedArena {
        address: arena.address,
        is_main: arena.is_main,
        mapped_bytes: arena.system_bytes(),
        top_bytes: arena.top().bytes,
        ..ExpectedArena::default()
    };
    figures.free_bytes = figures.top_bytes;
    for chunk in arena.stretches.iter().flat_map(|stretch| &stretch.chunks) {
        match chunk.state {
            ChunkState::Live => {
                figures.live_bytes += chunk.size;
                figures.live_chunks += 1;
            }
            ChunkState::Cached(_) => figures.tcache_bytes += chunk.size,
            ChunkState::Fast => {
                figures.fastbin_bytes += chunk.size;
                figures.free_bytes += chunk.size;
            }
            ChunkState::Free => figures.free_bytes += chunk.size,
        }
    }
    figures
}

/// Adds an arena to the figures of all. Its top is one of the free chunks.
fn add_to_mallinfo(arena: &Arena, figures: &ExpectedArena, mallinfo: &mut Mallinfo) {
    mallinfo.ordblks += 1;
    for chunk in arena.stretches.iter().flat_map(|stretch| &stretch.chunks) {
        mallinfo.smblks += u64::from(chunk.state == ChunkState::Fast);
        mallinfo.ordblks += u64::from(chunk.state == ChunkState::Free);
    }
    mallinfo.arena += figures.mapped_bytes;
    mallinfo.fordblks += figures.free_bytes;
    mallinfo.fsmblks += figures.fastbin_bytes;
}

/// The ranges that malloc_trim(0) releases. It first merges adjacent fastbin and free chunks, also
/// into top. Then it releases the whole pages of each free chunk after its header and links. If the
/// main top ends at the break, it lowers the break by whole pages.
fn trimmed_ranges(arena: &Arena, system_break: u64) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    for stretch in &arena.stretches {
        let mut top = stretch.chunks_end;
        for (start, end) in free_runs(stretch) {
            if stretch.ending == Ending::Top && end == stretch.chunks_end {
                top = start;
                continue;
            }
            let pages_start = (start + MALLOC_CHUNK_BYTES).next_multiple_of(PAGE);
            let pages_end = round_down(end, PAGE);
            if pages_start < pages_end {
                ranges.push((pages_start, pages_end));
            }
        }
        if stretch.is_from_break && stretch.ending == Ending::Top && stretch.end == system_break {
            let released_bytes = round_down((stretch.end - top).saturating_sub(KEPT_TOP_BYTES), PAGE);
            if released_bytes > 0 {
                ranges.push((stretch.end - released_bytes, stretch.end));
            }
        }
    }
    ranges
}

/// The longest runs of fastbin and free chunks, as [start, end).
fn free_runs(stretch: &Stretch) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let is_free = |chunk: &&Chunk| matches!(chunk.state, ChunkState::Fast | ChunkState::Free);
    for chunk in stretch.chunks.iter().filter(is_free) {
        match runs.last_mut() {
            Some((_, end)) if *end == chunk.at => *end += chunk.size,
            _ => runs.push((chunk.at, chunk.at + chunk.size)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(states: &[(u64, ChunkState)], top: u64, ending: Ending) -> Stretch {
        let mut at = 0x10000;
        let chunks = states
            .iter()
            .map(|&(size, state)| {
                at += size;
                Chunk { at: at - size, size, state }
            })
            .collect();
        Stretch {
            base: 0x10000,
            chunks,
            chunks_end: at,
            end: at + top,
            ending,
            is_from_break: true,
            foreign_end: at + top,
        }
    }

    #[test]
    fn a_fast_chunk_joins_two_free_ones_and_a_cached_one_does_not() {
        let joined = [
            (0x1000, ChunkState::Free),
            (0x80, ChunkState::Fast),
            (0x1f80, ChunkState::Free),
            (0x1000, ChunkState::Live),
        ];
        let arena = |stretch| Arena { address: 0, is_main: false, stretches: vec![stretch] };
        assert_eq!(trimmed_ranges(&arena(stretch(&joined, 0x1000, Ending::Top)), 0), [(0x11000, 0x13000)]);
        let parted = [
            (0x1000, ChunkState::Free),
            (0x80, ChunkState::Cached(0)),
            (0x1f80, ChunkState::Free),
            (0x1000, ChunkState::Live),
        ];
        assert_eq!(trimmed_ranges(&arena(stretch(&parted, 0x1000, Ending::Top)), 0), [(0x12000, 0x13000)]);
    }

    #[test]
    fn top_goes_back_only_at_the_break() {
        let stretch = stretch(&[(0x1000, ChunkState::Live), (0x40, ChunkState::Fast)], 0x2fc0, Ending::Top);
        let arena = Arena { address: 0, is_main: true, stretches: vec![stretch] };
        assert_eq!(trimmed_ranges(&arena, 0x14000), [(0x12000, 0x14000)], "the last page keeps 33 bytes");
        assert!(trimmed_ranges(&arena, 0x15000).is_empty());
    }
}
