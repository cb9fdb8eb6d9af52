//! What makes V8 keep less: a call now, and settings for the next start.
//!
//! Neither setting has a prediction. Measured with a program some of whose garbage lives through a
//! few collections: with `--max-semi-space-size=4` it held 20 MiB instead of 46 MiB in Node.js 20,
//! 151 instead of 137 in Node.js 22, 189 instead of 244 in Node.js 24, and 159 instead of 198 in
//! Node.js 26. A limit of 1 MiB made it hold more in each version, because objects then reach the
//! old space while they are young. With `--optimize-for-size` it held 17 to 32 MiB. With either
//! setting, a program that drops all its objects at once may keep most of their pages in the pool
//! (`studies/pooled-pages`).

use std::collections::HashSet;

use super::claims::Claimed;
use super::forecast::Forecasts;
use super::heap::{Heaps, Isolate, SpaceKind};
use super::layout::{MIN_YOUNG_BYTES, PAGE_ALIGNMENT};
use strandline_claims::facts::Remedy;
use strandline_claims::remedy::Notification;
use strandline_claims::units::bytes;

/// The name of the remedy that calls V8's function (see `notification`).
pub const MEMORY_PRESSURE: &str = "v8_memory_pressure";

/// Minimum bytes without objects for which a remedy is worthwhile.
const MIN_WORTHWHILE_BYTES: u64 = 8 << 20;
/// A figure is predicted if its bounds differ by at most the higher one divided by this.
const MAX_RANGE_DIVISOR: u64 = 50;

/// Returns the remedies for what was claimed; the call only if it can be made.
pub fn remedies(
    pid: i32,
    heaps: &Heaps,
    claimed: &Claimed,
    notification: Option<&Notification>,
    forecasts: &Forecasts,
) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    if let Some(plan) = notification {
        let effect = Effect::new(heaps, claimed, plan, forecasts);
        if effect.least_bytes.max(effect.low_bytes) >= MIN_WORTHWHILE_BYTES {
            remedies.push(memory_pressure(pid, &effect));
        }
    }
    let idle = claimed.total_idle_bytes();
    if idle.pool_bytes.saturating_add(idle.young_bytes) < MIN_WORTHWHILE_BYTES {
        return remedies;
    }
    remedies.push(Remedy::setting(
        "v8_optimize_for_size",
        "node --optimize-for-size",
        "V8 collects more often and compiles less: programs that make much garbage took 1.4 to 3.5 times as long; \
         pages of many objects dropped at once may stay in the pool",
    ));
    if idle.young_bytes >= MIN_WORTHWHILE_BYTES {
        remedies.push(Remedy::setting(
            "v8_semi_space",
            "node --max-semi-space-size=4",
            "the young generation is collected more often; with too low a limit short-lived objects reach the old space, and \
             the process may hold more: 1 MiB did that in every version tried, 4 MiB in Node.js 22",
        ));
    }
    remedies
}

/// Returns the bytes that a collection under memory pressure releases of an isolate at least. V8
/// empties its pool, shrinks its young generation to [`MIN_YOUNG_BYTES`], and frees pages without
/// live objects. Young objects that live move to other pages, of which each space may need a new
/// one.
pub fn least_bytes(heaps: &Heaps, claimed: &Claimed, forecasts: &Forecasts, isolate: &Isolate) -> u64 {
    let idle = claimed.idle_bytes.get(&isolate.heap).copied().unwrap_or_default();
    let spaces = || heaps.spaces.iter().filter(|space| space.heap == isolate.heap);
    let young = spaces().filter(|space| space.kind == SpaceKind::Young);
    // If this is unknown, all of the space may be objects.
    let young_bytes = young.map(|space| space.used_bytes.unwrap_or(space.committed_bytes)).sum::<u64>();
    let partial_page_bytes = (spaces().count() as u64).saturating_mul(PAGE_ALIGNMENT);
    let kept_bytes = MIN_YOUNG_BYTES.saturating_add(young_bytes).saturating_add(partial_page_bytes);
    let dead_bytes = forecasts.get(&isolate.heap).map_or(0, |forecast| forecast.dead_page_bytes);
    idle.pool_bytes.saturating_add(idle.young_bytes).saturating_add(dead_bytes).saturating_sub(kept_bytes)
}

/// What the calls of a plan release.
struct Effect {
    /// Lower bound that needs no trace.
    least_bytes: u64,
    /// Bytes released if all objects that may be alive are.
    low_bytes: u64,
    /// Bytes released if none of them is.
    high_bytes: u64,
    /// Whether the objects of all isolates that are called were traced.
    is_traced: bool,
}

impl Effect {
    /// Adds up the forecasts of the isolates that are called. Without a trace, all objects may be
    /// garbage. The calls do not release pooled pages of isolates that have ended.
    fn new(heaps: &Heaps, claimed: &Claimed, plan: &Notification, forecasts: &Forecasts) -> Self {
        let least_bytes = plan.calls.iter().map(|call| call.least_bytes).sum();
        // There is one call for each isolate.
        let called = heaps.isolates.iter().zip(&plan.calls).filter(|(_, call)| call.owner.is_some());
        let called_forecasts: Option<Vec<_>> =
            called.map(|(isolate, _)| forecasts.get(&isolate.heap).copied()).collect();
        if let Some(called_forecasts) = called_forecasts {
            let low_bytes = called_forecasts.iter().map(|forecast| forecast.low_bytes).sum();
            let high_bytes = called_forecasts.iter().map(|forecast| forecast.high_bytes).sum();
            return Self { least_bytes, low_bytes, high_bytes, is_traced: true };
        }
        let living_heaps: HashSet<u64> = heaps.isolates.iter().map(|isolate| isolate.heap).collect();
        let ended = claimed.idle_bytes.iter().filter(|(heap, _)| !living_heaps.contains(heap));
        let ended_pool_bytes = ended.map(|(_, idle)| idle.pool_bytes).sum::<u64>();
        let claimed_bytes = claimed.claims.iter().map(|claim| claim.sums.resident.total()).sum::<u64>();
        let high_bytes = claimed_bytes
            .saturating_sub(claimed.read_only_bytes)
            .saturating_sub(ended_pool_bytes)
            .max(least_bytes);
        Self { least_bytes, low_bytes: least_bytes, high_bytes, is_traced: false }
    }
}

/// Returns the remedy that calls V8's function.
fn memory_pressure(pid: i32, effect: &Effect) -> Remedy {
    let Effect { least_bytes, low_bytes, high_bytes, is_traced } = *effect;
    let is_close = high_bytes.saturating_sub(low_bytes) <= high_bytes / MAX_RANGE_DIVISOR;
    let unknown_because = if is_traced {
        format!(
            "{} of objects may be garbage: only words outside the heap lead to them, handles or stale ones; about {} if they \
             are, {} if not",
            bytes(high_bytes.saturating_sub(low_bytes)),
            bytes(high_bytes),
            bytes(low_bytes)
        )
    } else {
        "garbage among the objects comes on top of the lower bound, and is not known without a trace"
            .to_owned()
    };
    let cost = "each isolate stops its program for one or two full collections, and compiles functions again when they are next \
                called; malloc_trim afterwards releases what its Buffers leave free";
    Remedy {
        predicted_least_bytes: (!is_close).then_some(least_bytes),
        unknown_because: (!is_close).then_some(unknown_because),
        ..Remedy::call(MEMORY_PRESSURE, is_close.then_some(low_bytes), pid, cost)
    }
}
