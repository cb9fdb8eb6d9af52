//! The remedies that apply to a process, with what each is predicted to give back.

use super::Findings;
use crate::facts::{Arena, ArenaKind, Remedy, RemedyKind};

/// What is known beyond the findings.
pub struct Means<'a> {
    /// The process, for the commands to paste.
    pub pid: i32,
    /// What the zero_pages remedy would free.
    pub zero_bytes: u64,
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
        remedies.push(Remedy::call(
            "malloc_trim",
            trim,
            format!("strandline reclaim {pid}"),
            "one call in one thread, which holds each arena's lock in turn; later growth faults pages in again",
        ));
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
        let cost = if means.swap {
            "a fault for each page when it is written again"
        } else {
            "a fault for each page when it is written again; refused without swap, unless its small risk is \
             allowed (--allow-lost-write-risk)"
        };
        remedies.push(Remedy::call("zero_pages", means.zero_bytes, how, cost));
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
    remedies.sort_by_key(|remedy| {
        std::cmp::Reverse(remedy.predicted_bytes.map_or((0, false), |bytes| (bytes, true)))
    });
    remedies
}
