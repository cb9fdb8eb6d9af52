//! Settings that make V8 keep less.
//!
//! Neither has a prediction. Measured with a program that makes garbage, and some of it survives:
//! under `--max-semi-space-size=4` Node.js 20 held 20 MiB in place of 46, 24 189 in place of 244,
//! 26 159 in place of 198, and 22 151 in place of 137; a limit of 1 MiB made all hold more, as
//! objects then move to the old space while they are young. `--optimize-for-size` left 17 to 32 MiB
//! in all of them.

use strandline_claims::facts::Remedy;

/// Bytes without objects from which a setting is worthwhile.
const MIN_WORTHWHILE_BYTES: u64 = 8 << 20;

/// Returns the remedies for `pool` bytes of pooled pages and `idle` bytes of the young generation
/// without objects.
pub fn remedies(pool: u64, idle: u64) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    if pool.saturating_add(idle) >= MIN_WORTHWHILE_BYTES {
        remedies.push(Remedy::setting(
            "v8_optimize_for_size",
            "node --optimize-for-size",
            "V8 collects more often and compiles less: programs that make much garbage took 1.4 to 3.5 times as long",
        ));
    }
    if idle >= MIN_WORTHWHILE_BYTES {
        remedies.push(Remedy::setting(
            "v8_semi_space",
            "node --max-semi-space-size=4",
            "the young generation is collected more often; with too low a limit short-lived objects reach the old space, and \
             the process may hold more: 1 MiB did that in every version tried, 4 MiB in Node.js 22",
        ));
    }
    remedies
}
