//! The remedies that apply to a process, with what each is predicted to give back.

use super::{Findings, programs};
use crate::explain::sharing::Sharing;
use crate::facts::{Arena, ArenaKind, Remedy, RemedyKind};
use crate::readers;
use strandline_claims::units::bytes;

/// What is known beyond the findings.
pub struct Means<'a> {
    /// The process, for the commands to paste.
    pub pid: i32,
    /// Its executable; empty where that is not known.
    pub executable: &'a str,
    /// What the zero_pages remedy would free.
    pub zero_bytes: u64,
    /// What of that other processes have mapped too; `None` where that was not looked at.
    pub zero_sharing: Option<Sharing>,
    /// What of it malloc_trim gives back too.
    pub trimmed_zero_bytes: u64,
    /// Whether its pages can be paged out, without which zero_pages is refused unless its risk is allowed.
    pub swap: bool,
    /// glibc's arenas.
    pub arenas: &'a [Arena],
    /// Whether libc would heed its settings in the environment, if the program were started again with them.
    pub reads_settings: bool,
    /// Whether a library could be preloaded.
    pub takes_preloads: bool,
}

/// The remedies, those of runtimes among them, best first; those whose effect cannot be told from outside come
/// last.
pub fn remedies(findings: &Findings<'_>, means: &Means<'_>) -> Vec<Remedy> {
    let pid = means.pid;
    let mut remedies = findings.of_readers.to_vec();
    if let Some(trim) = findings.trim_bytes {
        let zeros = match means.trimmed_zero_bytes.min(trim) {
            0 => String::new(),
            zeros => format!("; {} of it are pages of zeros, on the row kernel.zero", bytes(zeros)),
        };
        let cost = format!(
            "one call in one thread, which holds each arena's lock in turn; later growth faults pages in again{zeros}"
        );
        remedies.push(Remedy::call(TRIMS[0], trim, format!("strandline reclaim {pid}"), &cost));
    }
    if let Some(trim) = findings.trim_bytes.filter(|_| findings.has_listening_jvm()) {
        remedies.push(Remedy::call(
            "jvm_trim",
            trim,
            format!("strandline reclaim {pid} --remedy jvm_trim"),
            "as malloc_trim, but the JVM does it itself (System.trim_native_heap, from JDK 17.0.9 and 18 on); no thread is stopped",
        ));
    }
    if means.zero_bytes > 0 {
        let how = format!("strandline reclaim {pid} --remedy zero_pages");
        let mut cost = "a fault for each page when it is written again".to_owned();
        if !means.swap {
            cost.push_str(
                "; refused without swap, unless its small risk is allowed (--allow-lost-write-risk)",
            );
        }
        if let Some(shared) = means.zero_sharing.filter(|sharing| sharing.shared_bytes > 0) {
            cost.push_str("; ");
            cost.push_str(&shared_with(&shared));
        }
        let predicted_pss_bytes =
            means.zero_sharing.map(|sharing| sharing.private_bytes.min(means.zero_bytes));
        let remedy = Remedy::call(ZERO_PAGES, means.zero_bytes, how, &cost);
        remedies.push(Remedy { predicted_pss_bytes, ..remedy });
    }
    let secondary = means.arenas.iter().filter(|arena| arena.kind == ArenaKind::Secondary);
    let secondary_free: u64 = secondary.map(|arena| arena.free_bytes.saturating_sub(arena.trim_bytes)).sum();
    // That is of address space: no more of it can be resident than is free and resident in all.
    let resident_free = ["glibc.free.pinned", "glibc.free.kept", "glibc.tcache"].map(|id| findings.row(id));
    let kept = secondary_free.min(resident_free.iter().sum());
    if means.arenas.len() > 2 && findings.matters(kept) && means.reads_settings {
        let cost = "threads share arenas and wait for each other's locks";
        let reason = "how threads would share the free memory of two arenas depends on when each allocates";
        let setting = Remedy::setting("arena_max", "MALLOC_ARENA_MAX=2", cost);
        remedies.push(setting.unknown_because(reason));
    }
    if findings.matters(findings.row("glibc.free.pinned")) && means.takes_preloads {
        remedies.push(Remedy {
            id: "jemalloc".to_owned(),
            kind: RemedyKind::Allocator,
            unknown_because: Some("another allocator lays blocks out otherwise".to_owned()),
            how: "LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0".to_owned(),
            cost: "another allocator: measure time and faults, not only memory".to_owned(),
            ..Remedy::default()
        });
    }
    remedies.extend(programs::remedy(means.executable));
    remedies.sort_by_key(|remedy| {
        std::cmp::Reverse(remedy.predicted_bytes.map_or((0, false), |bytes| (bytes, true)))
    });
    after_better(&mut remedies, means);
    remedies
}

/// In words, what the machine gets back less for pages that other processes have mapped too.
fn shared_with(sharing: &Sharing) -> String {
    let others = match sharing.others {
        Some(1) => "another process".to_owned(),
        Some(others) => format!("{others} other processes"),
        None => "other processes".to_owned(),
    };
    let (shared, private) = (bytes(sharing.shared_bytes), bytes(sharing.private_bytes));
    format!("{shared} of them are shared with {others} (by fork), so the machine gets back {private}")
}

const ZERO_PAGES: &str = "zero_pages";
/// Both release the same pages.
const TRIMS: [&str; 2] = ["malloc_trim", "jvm_trim"];

/// Says of each remedy for the running process what it would still give back after those that stand before it. Known are the pages that a
/// trim and the pages of zeros have in common; what a collection of a runtime's leaves to others is not.
fn after_better(remedies: &mut [Remedy], means: &Means<'_>) {
    let is_of_allocator = |id: &str| {
        readers::ALLOCATORS.iter().any(|entry| entry.about.remedies.contains(&id)) || TRIMS.contains(&id)
    };
    let (mut has_trim, mut has_zero, mut has_collection, mut is_first) = (false, false, false, true);
    for remedy in remedies.iter_mut().filter(|remedy| remedy.kind == RemedyKind::Call) {
        let (id, predicted) = (remedy.id.as_str(), remedy.predicted_bytes);
        let (is_trim, is_zero) = (TRIMS.contains(&id), id == ZERO_PAGES);
        let is_collection = !is_zero && !is_of_allocator(id);
        let left = |taken: u64| predicted.map(|bytes| bytes.saturating_sub(taken));
        remedy.predicted_after_better_bytes = match () {
            () if is_first => predicted,
            () if is_trim && has_trim => predicted.map(|_| 0),
            () if has_collection || is_collection && has_zero => None,
            () if is_zero && has_trim || is_trim && has_zero => left(means.trimmed_zero_bytes),
            () => predicted,
        };
        is_first = false;
        has_trim |= is_trim;
        has_zero |= is_zero;
        has_collection |= is_collection;
    }
}
