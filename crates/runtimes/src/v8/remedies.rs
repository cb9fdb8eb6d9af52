//! What makes V8 keep less: a call now, and settings for the next start.
//!
//! Neither setting has a prediction. Measured with a program that makes garbage, and some of it
//! survives:
//! under `--max-semi-space-size=4` Node.js 20 held 20 MiB in place of 46, 24 189 in place of 244,
//! 26 159 in place of 198, and 22 151 in place of 137; a limit of 1 MiB made all hold more, as
//! objects then move to the old space while they are young. `--optimize-for-size` left 17 to 32 MiB
//! in all of them.

use super::claims::Claimed;
use super::heap::{Heaps, Kind};
use super::layout::{MIN_YOUNG_BYTES, PAGE_ALIGNMENT};
use strandline_claims::facts::{Remedy, RemedyKind};

/// The name of the remedy that calls V8's function (see `notification`).
pub const MEMORY_PRESSURE: &str = "v8_memory_pressure";

/// Bytes without objects from which a remedy is worthwhile.
const MIN_WORTHWHILE_BYTES: u64 = 8 << 20;

/// Returns the remedies for what was claimed; the call only if it can be made.
pub fn remedies(pid: i32, heaps: &Heaps, claimed: &Claimed, can_call: bool) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    if claimed.pool.saturating_add(claimed.young_idle) < MIN_WORTHWHILE_BYTES {
        return remedies;
    }
    if can_call {
        remedies.push(memory_pressure(pid, heaps, claimed));
    }
    remedies.push(Remedy::setting(
        "v8_optimize_for_size",
        "node --optimize-for-size",
        "V8 collects more often and compiles less: programs that make much garbage took 1.4 to 3.5 times as long",
    ));
    if claimed.young_idle >= MIN_WORTHWHILE_BYTES {
        remedies.push(Remedy::setting(
            "v8_semi_space",
            "node --max-semi-space-size=4",
            "the young generation is collected more often; with too low a limit short-lived objects reach the old space, and \
             the process may hold more: 1 MiB did that in every version tried, 4 MiB in Node.js 22",
        ));
    }
    remedies
}

/// V8 empties its pool, and shrinks its young generations to their initial size. Young objects that
/// live move to other pages, which may be new ones for each space. What it releases of the other
/// pages depends on which objects are live, which is not known without marking: all of them, at
/// most.
fn memory_pressure(pid: i32, heaps: &Heaps, claimed: &Claimed) -> Remedy {
    let young = heaps.spaces.iter().filter(|space| space.kind == Kind::Young);
    // A space of which this is unknown has pages full of objects.
    let young_objects = young.map(|space| space.used.unwrap_or(space.committed)).sum::<u64>();
    let kept = (heaps.isolates.len() as u64).saturating_mul(MIN_YOUNG_BYTES);
    let partial_pages = (heaps.spaces.len() as u64).saturating_mul(PAGE_ALIGNMENT);
    let least = claimed.pool.saturating_add(claimed.young_idle);
    let least = least.saturating_sub(kept).saturating_sub(young_objects).saturating_sub(partial_pages);
    let of_spaces = claimed.claims.iter().map(|claim| claim.sums.resident.total()).sum::<u64>();
    let most = of_spaces.saturating_sub(claimed.read_only).max(least);
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
