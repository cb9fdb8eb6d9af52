//! What makes V8 keep less: a call now, and settings for the next start.
//!
//! Neither setting has a prediction. Measured with a program that makes garbage, and some of it
//! survives:
//! under `--max-semi-space-size=4` Node.js 20 held 20 MiB in place of 46, 24 189 in place of 244,
//! 26 159 in place of 198, and 22 151 in place of 137; a limit of 1 MiB made all hold more, as
//! objects then move to the old space while they are young. `--optimize-for-size` left 17 to 32 MiB
//! in all of them.

use std::collections::HashSet;

use super::claims::Claimed;
use super::heap::{Heaps, Isolate, Kind};
use super::layout::{MIN_YOUNG_BYTES, PAGE_ALIGNMENT};
use strandline_claims::facts::{Remedy, RemedyKind};
use strandline_claims::remedy::Notification;

/// The name of the remedy that calls V8's function (see `notification`).
pub const MEMORY_PRESSURE: &str = "v8_memory_pressure";

/// Bytes without objects from which a remedy is worthwhile.
const MIN_WORTHWHILE_BYTES: u64 = 8 << 20;

/// Returns the remedies for what was claimed; the call only if it can be made.
pub fn remedies(
    pid: i32,
    heaps: &Heaps,
    claimed: &Claimed,
    notification: Option<&Notification>,
) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    let idle = claimed.all_idle();
    if idle.pool.saturating_add(idle.young) < MIN_WORTHWHILE_BYTES {
        return remedies;
    }
    let least = |plan: &&Notification| plan.calls.iter().map(|call| call.least_bytes).sum::<u64>();
    if let Some(plan) = notification.filter(|plan| least(plan) >= MIN_WORTHWHILE_BYTES) {
        remedies.push(memory_pressure(pid, heaps, claimed, least(&plan)));
    }
    remedies.push(Remedy::setting(
        "v8_optimize_for_size",
        "node --optimize-for-size",
        "V8 collects more often and compiles less: programs that make much garbage took 1.4 to 3.5 times as long",
    ));
    if idle.young >= MIN_WORTHWHILE_BYTES {
        remedies.push(Remedy::setting(
            "v8_semi_space",
            "node --max-semi-space-size=4",
            "the young generation is collected more often; with too low a limit short-lived objects reach the old space, and \
             the process may hold more: 1 MiB did that in every version tried, 4 MiB in Node.js 22",
        ));
    }
    remedies
}

/// Returns what a collection under memory pressure releases of an isolate at least. V8 empties its
/// pool, and shrinks its young generation to the initial size. Young objects that live move to
/// other pages, which may be new ones for each space.
pub fn least_bytes(heaps: &Heaps, claimed: &Claimed, isolate: &Isolate) -> u64 {
    let idle = claimed.idle.get(&isolate.heap).copied().unwrap_or_default();
    let spaces = || heaps.spaces.iter().filter(|space| space.heap == isolate.heap);
    let young = spaces().filter(|space| space.kind == Kind::Young);
    // A space of which this is unknown has pages full of objects.
    let young_objects = young.map(|space| space.used.unwrap_or(space.committed)).sum::<u64>();
    let partial_pages = (spaces().count() as u64).saturating_mul(PAGE_ALIGNMENT);
    let kept = MIN_YOUNG_BYTES.saturating_add(young_objects).saturating_add(partial_pages);
    idle.pool.saturating_add(idle.young).saturating_sub(kept)
}

/// What is released of pages with objects depends on which objects are live, which is not known
/// without marking: all of them, at most. Pooled pages of isolates that have ended stay.
fn memory_pressure(pid: i32, heaps: &Heaps, claimed: &Claimed, least: u64) -> Remedy {
    let living: HashSet<u64> = heaps.isolates.iter().map(|isolate| isolate.heap).collect();
    let of_ended = claimed.idle.iter().filter(|(heap, _)| !living.contains(heap));
    let of_ended = of_ended.map(|(_, idle)| idle.pool).sum::<u64>();
    let of_spaces = claimed.claims.iter().map(|claim| claim.sums.resident.total()).sum::<u64>();
    let most = of_spaces.saturating_sub(claimed.read_only).saturating_sub(of_ended).max(least);
    let off = most - least;
    let predicted_bytes = (off <= most / 100).then_some(most - off / 2);
    let unknown_because =
        "garbage among the objects comes on top of the lower bound, and is not known without marking";
    Remedy {
        id: MEMORY_PRESSURE.to_owned(),
        kind: RemedyKind::Call,
        predicted_bytes,
        predicted_least_bytes: Some(least).filter(|_| predicted_bytes.is_none()),
        unknown_because: predicted_bytes.is_none().then(|| unknown_because.to_owned()),
        how: format!("strandline reclaim {pid} --remedy {MEMORY_PRESSURE}"),
        cost: "each isolate stops its program for one or two full collections, and compiles functions again when they are next \
               called; malloc_trim afterwards releases what its Buffers leave free"
            .to_owned(),
        ..Remedy::default()
    }
}
