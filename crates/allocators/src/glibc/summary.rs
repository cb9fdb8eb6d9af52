//! Totals of the walked regions per arena: the allocator's statistics, and whether they match
//! malloc's own figures.

use std::collections::BTreeMap;

use super::locate::Arena;
use super::objects::Object;
use super::parameters::Parameters;
use super::regions::ArenaRegion;
use super::segments::RegionTotals;
use super::walk_context::{Region, RegionKind};
use strandline_claims::allocator::Reading;
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::{Allocator, Arena as ArenaFacts, ArenaKind, Figures, Mallinfo, figures};
use strandline_claims::range::PAGE_BYTES;
use strandline_claims::units::thousands;

/// A region of an arena, and its totals.
#[derive(Clone, Copy)]
pub struct WalkedRegion<'a> {
    region: &'a Region,
    totals: &'a RegionTotals,
}

/// Returns the regions of each arena. `totals` has an entry for each region.
pub fn group_by_arena<'a>(
    arenas: &[Arena],
    regions: &'a [ArenaRegion],
    totals: &'a [RegionTotals],
) -> Vec<Vec<WalkedRegion<'a>>> {
    let mut by_arena: Vec<Vec<_>> = arenas.iter().map(|_| Vec::new()).collect();
    for (arena_region, totals) in regions.iter().zip(totals) {
        by_arena[arena_region.arena].push(WalkedRegion { region: &arena_region.region, totals });
    }
    by_arena
}

/// Returns the bytes that `malloc_trim(0)` releases of a region, less the pages that it brings in.
pub fn trim_bytes(totals: &RegionTotals) -> u64 {
    totals.sums.releasable_bytes.saturating_sub(totals.counts.touched_pages * PAGE_BYTES)
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
fn system_bytes(walked: WalkedRegion<'_>, is_contiguous: bool) -> SystemBytes {
    let counts = &walked.totals.counts;
    let bytes = walked.region.range().len();
    let malloc_bytes = bytes.saturating_sub(counts.foreign_bytes + counts.mmapped_bytes);
    match walked.region.kind {
        RegionKind::Pieces => SystemBytes { min: malloc_bytes, max: malloc_bytes },
        RegionKind::Heap => SystemBytes { min: bytes, max: bytes },
        RegionKind::Brk => {
            let max = bytes.saturating_sub(counts.trailing_bytes);
            SystemBytes { min: if is_contiguous { max } else { malloc_bytes }, max }
        }
    }
}

/// Code of the caveat for an arena whose size differs from that of its regions.
pub const SUM_DIFFERS: &str = "arena_sum_differs";

/// Adds a caveat for each arena whose regions do not match its own figure for them.
pub fn check_sums(arenas: &[Arena], by_arena: &[Vec<WalkedRegion<'_>>], reading: &mut Reading) {
    for (arena, regions) in arenas.iter().zip(by_arena) {
        let SystemBytes { min, max } =
            regions.iter().map(|region| system_bytes(*region, !arena.is_noncontiguous)).fold(
                SystemBytes::default(),
                |sum, part| SystemBytes { min: sum.min + part.min, max: sum.max + part.max },
            );
        if !(min..=max).contains(&arena.system_bytes) {
            let text = format!(
                "the arena counts {} bytes taken from the kernel; strandline found {} bytes",
                thousands(arena.system_bytes),
                thousands(max)
            );
            let place = format!("{:#x}", arena.address);
            let (excess_bytes, missing_bytes) =
                (min.saturating_sub(arena.system_bytes), arena.system_bytes.saturating_sub(max));
            let bytes = excess_bytes.max(missing_bytes);
            reading.caveats.push(Caveat::new(SUM_DIFFERS, place, Some(bytes), text));
        }
    }
}

/// Returns the allocator's statistics.
pub fn facts(
    object: &Object,
    arenas: &[Arena],
    by_arena: &[Vec<WalkedRegion<'_>>],
    parameters: Option<&Parameters>,
) -> Allocator {
    let mut allocator = Allocator {
        name: "glibc".to_owned(),
        found_by: format!("main_arena in {}", object.name),
        read: true,
        ..Allocator::default()
    };
    let mut mallinfo = Mallinfo::default();
    for (arena, regions) in arenas.iter().zip(by_arena) {
        let facts = arena_facts(arena, regions);
        add_arena(&mut mallinfo, arena, regions, &facts);
        allocator.arenas.push(facts);
    }
    // Without its parameters it is unknown how many chunks have their own mapping. What the walk
    // left unread is missing in the figures of `mallinfo`; its caveats say so.
    if let Some(parameters) = parameters {
        mallinfo.hblks = parameters.n_mmaps;
        mallinfo.hblkhd = parameters.mmapped_bytes;
        allocator.settings = settings(parameters);
        set_totals(&mut allocator, &mallinfo, arenas, by_arena);
        allocator.own = mallinfo_figures(&mallinfo);
        allocator.mallinfo = Some(mallinfo);
    }
    allocator
}

/// Returns the sum of a figure over `regions`.
fn sum(regions: &[WalkedRegion<'_>], figure: fn(&RegionTotals) -> u64) -> u64 {
    regions.iter().map(|region| figure(region.totals)).sum()
}

/// Returns the statistics of one arena.
fn arena_facts(arena: &Arena, regions: &[WalkedRegion<'_>]) -> ArenaFacts {
    let fastbin_bytes = sum(regions, |totals| totals.counts.fast_bytes);
    let top_bytes = sum(regions, |totals| totals.counts.top_bytes);
    let tcache_bytes = sum(regions, |totals| totals.counts.cached_bytes);
    let free_bytes = sum(regions, |totals| totals.counts.bin_bytes) + fastbin_bytes + top_bytes;
    ArenaFacts {
        id: format!("{:#x}", arena.address),
        kind: if arena.is_main { ArenaKind::Main } else { ArenaKind::Secondary },
        mapped_bytes: arena.system_bytes,
        used_bytes: arena.system_bytes.saturating_sub(free_bytes + tcache_bytes),
        free_bytes,
        tcache_bytes: Some(tcache_bytes),
        fastbin_bytes: Some(fastbin_bytes),
        top_bytes: Some(top_bytes),
        trim_bytes: Some(sum(regions, trim_bytes)),
    }
}

/// Adds one arena to the figures of `mallinfo2()` (malloc.c, int_mallinfo).
fn add_arena(mallinfo: &mut Mallinfo, arena: &Arena, regions: &[WalkedRegion<'_>], facts: &ArenaFacts) {
    // "top always exists", also before the first allocation.
    mallinfo.ordblks += sum(regions, |totals| totals.counts.bin_chunks) + 1;
    mallinfo.smblks += sum(regions, |totals| totals.counts.fast_chunks);
    mallinfo.fsmblks += facts.fastbin_bytes.unwrap_or(0);
    mallinfo.fordblks += facts.free_bytes;
    let used_bytes = arena.system_bytes.saturating_sub(facts.free_bytes);
    mallinfo.uordblks = mallinfo.uordblks.saturating_add(used_bytes);
    mallinfo.arena = mallinfo.arena.saturating_add(arena.system_bytes);
    if arena.is_main {
        mallinfo.keepcost = facts.top_bytes.unwrap_or(0);
    }
}

/// Sets the totals over all arenas, unless part of the heap was not read.
fn set_totals(
    allocator: &mut Allocator,
    mallinfo: &Mallinfo,
    arenas: &[Arena],
    by_arena: &[Vec<WalkedRegion<'_>>],
) {
    let all_counts = || by_arena.iter().flatten().map(|region| &region.totals.counts);
    if !all_counts().all(|counts| counts.unread_bytes == 0) {
        return;
    }
    let live_bytes = all_counts().map(|counts| counts.payload_bytes).sum::<u64>();
    let cached_bytes = all_counts().map(|counts| counts.cached_bytes).sum::<u64>();
    allocator.live_bytes = Some(live_bytes);
    allocator.live_blocks = Some(all_counts().map(|counts| counts.blocks).sum());
    allocator.cached_bytes = Some(cached_bytes);
    allocator.free_bytes = Some(mallinfo.fordblks);
    // The bytes that mallinfo counts as in use but that are in no block or cache: size words,
    // headers of heaps, structures of caches.
    let mmapped_bytes = all_counts().map(|counts| counts.mmapped_bytes).sum::<u64>();
    let used_bytes = mallinfo.uordblks.saturating_add(mmapped_bytes);
    // Foreign bytes count while an arena is contiguous (see `system_bytes`).
    let foreign_bytes = arenas
        .iter()
        .zip(by_arena)
        .filter(|(arena, _)| !arena.is_noncontiguous)
        .flat_map(|(_, regions)| regions)
        .map(|region| &region.totals.counts)
        .map(|counts| counts.foreign_bytes.saturating_sub(counts.trailing_bytes))
        .sum::<u64>();
    let other_bytes = live_bytes.saturating_add(cached_bytes).saturating_add(foreign_bytes);
    allocator.metadata_bytes = Some(used_bytes.saturating_sub(other_bytes));
}

/// Returns the fields of `mallinfo2()` as figures.
fn mallinfo_figures(mallinfo: &Mallinfo) -> Figures {
    figures(&[
        ("arena", mallinfo.arena),
        ("ordblks", mallinfo.ordblks),
        ("smblks", mallinfo.smblks),
        ("hblks", mallinfo.hblks),
        ("hblkhd", mallinfo.hblkhd),
        ("fsmblks", mallinfo.fsmblks),
        ("uordblks", mallinfo.uordblks),
        ("fordblks", mallinfo.fordblks),
        ("keepcost", mallinfo.keepcost),
    ])
}

/// Returns malloc's parameters in force, by their names in JSON.
fn settings(parameters: &Parameters) -> BTreeMap<String, u64> {
    [
        ("trim_threshold_bytes", parameters.trim_threshold_bytes),
        ("top_pad_bytes", parameters.top_pad_bytes),
        ("mmap_threshold_bytes", parameters.mmap_threshold_bytes),
        ("arena_max", parameters.arena_max),
        ("thp_page_bytes", parameters.thp_page_bytes),
        ("huge_page_bytes", parameters.huge_page_bytes),
        ("tcache_count", parameters.tcache_count),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
