//! Totals of the walked ranges per arena: the allocator's statistics, and whether they match
//! malloc's own figures.

use std::collections::BTreeMap;

use super::locate::{Arena, Parameters};
use super::objects::Object;
use super::regions::ArenaRegion;
use super::segments::Walked;
use super::walk_context::RegionKind;
use strandline_claims::allocator::Reading;
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::{Allocator, ArenaKind, Figures, Mallinfo};
use strandline_claims::range::PAGE_BYTES;

/// Groups the regions and their totals by arena.
pub fn by_arena<'a>(
    arenas: &[Arena],
    owned: &'a [ArenaRegion],
    walked: &'a [Walked],
) -> Vec<Vec<(&'a ArenaRegion, &'a Walked)>> {
    let mut grouped: Vec<Vec<_>> = arenas.iter().map(|_| Vec::new()).collect();
    for (owned, walked) in owned.iter().zip(walked) {
        grouped[owned.arena].push((owned, walked));
    }
    grouped
}

/// Bytes that `malloc_trim(0)` releases of a range, less the pages that it brings in.
pub fn trim_bytes(walked: &Walked) -> u64 {
    walked.sums.trimmable.saturating_sub(walked.counts.touched_pages * PAGE_BYTES)
}

/// Bounds on the bytes that regions contribute to their arena's `system_mem`.
#[derive(Clone, Copy, Debug, Default)]
struct SystemBytes {
    min: u64,
    max: u64,
}

/// Returns the bounds on what a region can contribute to its arena's `system_mem`.
///
/// What other users of sbrk took between two sections counts while the arena is contiguous
/// (malloc.c, sysmalloc: "Count foreign sbrk as system_mem"), but not after brk was blocked; what
/// follows the last section never counts.
fn spanned(owned: &ArenaRegion, walked: &Walked, is_contiguous: bool) -> SystemBytes {
    let counts = &walked.counts;
    let bytes = owned.region.end - owned.region.start;
    let chunks = bytes.saturating_sub(counts.foreign_bytes + counts.mmapped_bytes);
    match owned.region.kind {
        RegionKind::Pieces => SystemBytes { min: chunks, max: chunks },
        RegionKind::Heap => SystemBytes { min: bytes, max: bytes },
        RegionKind::Brk => {
            let max = bytes.saturating_sub(counts.trailing_bytes);
            SystemBytes { min: if is_contiguous { max } else { chunks }, max }
        }
    }
}

/// Code of the caveat for an arena whose size differs from what was found.
pub const SUM_DIFFERS: &str = "arena_sum_differs";

/// Adds a caveat for each arena whose ranges do not match its own figure for them.
pub fn check_sums(arenas: &[Arena], by_arena: &[Vec<(&ArenaRegion, &Walked)>], reading: &mut Reading) {
    for (arena, regions) in arenas.iter().zip(by_arena) {
        let SystemBytes { min, max } =
            regions.iter().map(|(owned, walked)| spanned(owned, walked, !arena.noncontiguous)).fold(
                SystemBytes::default(),
                |sum, part| SystemBytes { min: sum.min + part.min, max: sum.max + part.max },
            );
        if !(min..=max).contains(&arena.system_mem) {
            let text = format!(
                "the arena counts {} bytes taken from the kernel; {max} were found",
                arena.system_mem
            );
            let place = format!("{:#x}", arena.address);
            let bytes = max.abs_diff(arena.system_mem);
            reading.caveats.push(Caveat::new(SUM_DIFFERS, place, Some(bytes), text));
        }
    }
}

/// Returns the allocator's statistics.
pub fn facts(
    object: &Object,
    arenas: &[Arena],
    by_arena: &[Vec<(&ArenaRegion, &Walked)>],
    parameters: Option<&Parameters>,
) -> Allocator {
    let mut allocator = Allocator {
        name: "glibc".to_owned(),
        found_by: format!("main_arena in {}", object.name),
        read: true,
        ..Allocator::default()
    };
    let mut mallinfo = Mallinfo::default();
    for (arena, parts) in arenas.iter().zip(by_arena) {
        let sum = |field: fn(&Walked) -> u64| parts.iter().map(|(_, walked)| field(walked)).sum::<u64>();
        let (fast_bytes, top_bytes) = (sum(|w| w.counts.fast_bytes), sum(|w| w.counts.top_bytes));
        let free_bytes = sum(|w| w.counts.bin_bytes) + fast_bytes + top_bytes;
        let cached_bytes = sum(|w| w.counts.cached_bytes);
        allocator.arenas.push(strandline_claims::facts::Arena {
            id: format!("{:#x}", arena.address),
            kind: if arena.main { ArenaKind::Main } else { ArenaKind::Secondary },
            mapped_bytes: arena.system_mem,
            used_bytes: arena.system_mem.saturating_sub(free_bytes + cached_bytes),
            free_bytes,
            tcache_bytes: cached_bytes,
            fastbin_bytes: fast_bytes,
            top_bytes,
            trim_bytes: sum(trim_bytes),
        });
        // malloc.c, int_mallinfo: "top always exists", also before the first allocation.
        mallinfo.ordblks += sum(|w| w.counts.bin_chunks) + 1;
        mallinfo.smblks += sum(|w| w.counts.fast_chunks);
        mallinfo.fsmblks += fast_bytes;
        mallinfo.fordblks += free_bytes;
        mallinfo.uordblks = mallinfo.uordblks.saturating_add(arena.system_mem.saturating_sub(free_bytes));
        mallinfo.arena = mallinfo.arena.saturating_add(arena.system_mem);
        if arena.main {
            mallinfo.keepcost = top_bytes;
        }
    }
    if let Some(parameters) = parameters {
        mallinfo.hblks = parameters.n_mmaps;
        mallinfo.hblkhd = parameters.mmapped_mem;
        allocator.settings = settings(parameters);
    }
    set_totals(&mut allocator, &mallinfo, arenas, by_arena);
    allocator.own = own_figures(&mallinfo);
    allocator.mallinfo = Some(mallinfo);
    allocator
}

/// Sets the totals over all arenas; they are unknown if the heap was not read completely.
fn set_totals(
    allocator: &mut Allocator,
    mallinfo: &Mallinfo,
    arenas: &[Arena],
    by_arena: &[Vec<(&ArenaRegion, &Walked)>],
) {
    let all = || by_arena.iter().flatten().map(|(_, walked)| &walked.counts);
    if !all().all(|counts| counts.unread_bytes == 0) {
        return;
    }
    let live_bytes = all().map(|counts| counts.payload_bytes).sum::<u64>();
    let cached_bytes = all().map(|counts| counts.cached_bytes).sum::<u64>();
    allocator.live_bytes = Some(live_bytes);
    allocator.live_blocks = Some(all().map(|counts| counts.blocks).sum());
    allocator.cached_bytes = Some(cached_bytes);
    allocator.free_bytes = Some(mallinfo.fordblks);
    // What mallinfo counts as in use but is in no block or cache: size words, heads of heaps,
    // caches' own structures.
    let mmapped = all().map(|counts| counts.mmapped_bytes).sum::<u64>();
    let used = mallinfo.uordblks.saturating_add(mmapped);
    // Foreign bytes count while an arena is contiguous (see `spanned`).
    let foreign = arenas
        .iter()
        .zip(by_arena)
        .filter(|(arena, _)| !arena.noncontiguous)
        .flat_map(|(_, parts)| parts)
        .map(|(_, walked)| walked.counts.foreign_bytes.saturating_sub(walked.counts.trailing_bytes))
        .sum::<u64>();
    let known = live_bytes.saturating_add(cached_bytes).saturating_add(foreign);
    allocator.metadata_bytes = Some(used.saturating_sub(known));
}

/// The fields of `mallinfo2()`.
fn own_figures(mallinfo: &Mallinfo) -> Figures {
    let figures = [
        ("arena", mallinfo.arena),
        ("ordblks", mallinfo.ordblks),
        ("smblks", mallinfo.smblks),
        ("hblks", mallinfo.hblks),
        ("hblkhd", mallinfo.hblkhd),
        ("fsmblks", mallinfo.fsmblks),
        ("uordblks", mallinfo.uordblks),
        ("fordblks", mallinfo.fordblks),
        ("keepcost", mallinfo.keepcost),
    ];
    figures.into_iter().map(|(name, figure)| (name.to_owned(), figure.into())).collect()
}

fn settings(parameters: &Parameters) -> BTreeMap<String, u64> {
    [
        ("trim_threshold_bytes", parameters.trim_threshold),
        ("top_pad_bytes", parameters.top_pad),
        ("mmap_threshold_bytes", parameters.mmap_threshold),
        ("arena_max", parameters.arena_max),
        ("thp_page_bytes", parameters.thp_pagesize),
        ("huge_page_bytes", parameters.hp_pagesize),
        ("tcache_count", parameters.tcache_count),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
