//! malloc's settings for the next start, with their predicted effect.

use super::layout::DEFAULT_THRESHOLD_BYTES;
use super::parameters::Parameters;
use super::segments::RegionTotals;
use super::{ABOUT, rows};
use strandline_claims::allocator::Reading;
use strandline_claims::facts::{Arena, ArenaKind, Remedy, RemedyKind};
use strandline_claims::finding::LedgerView;
use strandline_claims::units::bytes;
use strandline_process::procfs::Process;

/// Id of the setting that makes malloc return free memory at the end of the heap at once.
const TRIM_THRESHOLD: &str = "trim_threshold";
/// The variable for tunables, from glibc 2.26 on (`elf/dl-tunables.c`).
const TUNABLES: &str = "GLIBC_TUNABLES";
/// The same setting for earlier releases (`malloc/arena.c`, `ptmalloc_init`).
const SETTING_BEFORE_TUNABLES: &str = "MALLOC_TRIM_THRESHOLD_=131072";
/// Number of arenas that the setting `MALLOC_ARENA_MAX=2` leaves.
const PROPOSED_ARENAS: usize = 2;
/// First release with tunables.
const FIRST_WITH_TUNABLES: [u32; 2] = [2, 26];
/// Minimum bytes for which a setting for the next start is proposed.
const MIN_BYTES_FOR_SETTING: u64 = 1 << 20;

/// Returns the setting that keeps both thresholds at 128 KiB, if they have grown: setting one ends
/// their growth (malloc.c, do_set_trim_threshold), so larger blocks get their own mappings again,
/// too. What that releases of a free run within the heap is unknown: it may be small blocks that
/// merged. Only the effect on the top is certain.
pub fn trim_threshold(parameters: Option<&Parameters>, walked: &[RegionTotals]) -> Option<Remedy> {
    let is_grown = |parameters: &&Parameters| {
        parameters.has_dynamic_thresholds && parameters.trim_threshold_bytes > DEFAULT_THRESHOLD_BYTES
    };
    parameters.filter(is_grown)?;
    let top_bytes = walked.iter().map(|walked| walked.counts.over_threshold_bytes).sum::<u64>();
    let run_bytes = walked.iter().map(|walked| walked.counts.large_run_bytes).sum::<u64>();
    if top_bytes + run_bytes < MIN_BYTES_FOR_SETTING {
        return None;
    }
    let cost = "each block of 128 KiB or more, and each new growth of the heap, costs two system calls and page faults";
    let setting = Remedy::setting(TRIM_THRESHOLD, SETTING_BEFORE_TUNABLES, cost);
    if run_bytes == 0 {
        return Some(setting.predicting(top_bytes));
    }
    let reason = format!(
        "it releases the free end of the heap ({}), and of free memory between live blocks ({}) only what was in blocks of \
         128 KiB or more, which is not known once they have merged",
        bytes(top_bytes),
        bytes(run_bytes)
    );
    let predicted_least_bytes = (top_bytes >= MIN_BYTES_FOR_SETTING).then_some(top_bytes);
    Some(Remedy { predicted_least_bytes, ..setting.unknown_because(&reason) })
}

/// Writes the setting [`TRIM_THRESHOLD`] in the form that this release of glibc reads, added to
/// what is already set; removes it if the program reads no settings, because it has privileges.
pub fn finish(process: &Process, reading: &mut Reading) {
    if process.start_facts().is_some_and(|facts| facts.is_secure) {
        reading.remedies.retain(|remedy| remedy.id != TRIM_THRESHOLD);
    }
    if reading.allocator.version.as_deref().is_some_and(is_before_tunables) {
        return;
    }
    for remedy in reading.remedies.iter_mut().filter(|remedy| remedy.id == TRIM_THRESHOLD) {
        remedy.how = process.with_setting(TUNABLES, "glibc.malloc.trim_threshold=131072", ':');
    }
}

/// Returns the setting of two arenas for all threads, if the free memory of the other arenas
/// matters.
pub fn arena_max(view: &LedgerView<'_>) -> Option<Remedy> {
    let arenas: Vec<&Arena> = view
        .allocators
        .iter()
        .filter(|allocator| allocator.name == ABOUT.name)
        .flat_map(|allocator| &allocator.arenas)
        .collect();
    let secondary = arenas.iter().filter(|arena| arena.kind == ArenaKind::Secondary);
    let secondary_free_bytes: u64 =
        secondary.map(|arena| arena.free_bytes.saturating_sub(arena.trim_bytes.unwrap_or(0))).sum();
    // Bytes of address space: the resident part is at most the resident free bytes of all arenas.
    let free_bytes = secondary_free_bytes.min(view.rows_bytes(&[
        rows::FREE_PINNED.id,
        rows::FREE_KEPT.id,
        rows::TCACHE.id,
    ]));
    let setting = Remedy::setting(
        "arena_max",
        "MALLOC_ARENA_MAX=2",
        "threads share arenas and contend for their locks",
    );
    let reason = "how much memory two arenas need depends on when each thread allocates";
    (arenas.len() > PROPOSED_ARENAS && view.matters(free_bytes) && view.reads_settings)
        .then(|| setting.unknown_because(reason))
}

/// Returns the setting of another allocator, if much free memory is pinned.
pub fn other_allocator(view: &LedgerView<'_>) -> Option<Remedy> {
    let is_useful = view.matters(view.row_bytes(rows::FREE_PINNED.id)) && view.takes_preloads;
    is_useful.then(|| Remedy {
        id: "jemalloc".to_owned(),
        kind: RemedyKind::Allocator,
        unknown_because: Some("another allocator lays out blocks differently".to_owned()),
        how: "LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0".to_owned(),
        cost: "another allocator: measure time and faults, not only memory".to_owned(),
        ..Remedy::default()
    })
}

/// Whether a release has no tunables.
fn is_before_tunables(version: &str) -> bool {
    let numbers: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).collect();
    numbers.as_slice() < &FIRST_WITH_TUNABLES[..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_releases_have_no_tunables() {
        for (version, is_before) in
            [("2.17", true), ("2.25", true), ("2.26", false), ("2.41", false), ("3.0", false)]
        {
            assert_eq!(is_before_tunables(version), is_before, "{version}");
        }
    }
}
