//! Remedies that make Go release memory.

use strandline_claims::facts::Remedy;

/// Bytes in idle spans from which a remedy is worthwhile.
const MIN_WORTHWHILE_BYTES: u64 = 1 << 20;

/// Returns the remedies for `idle_bytes` resident in idle spans; none if they are few. The runtime
/// has `in_use_bytes` in use, its own structures included.
pub fn remedies(idle_bytes: u64, in_use_bytes: u64) -> Vec<Remedy> {
    if idle_bytes < MIN_WORTHWHILE_BYTES {
        return Vec::new();
    }
    let call = Remedy::advice(
        "go_free_os_memory",
        Some(idle_bytes),
        "call debug.FreeOSMemory() in the program after its peak (package runtime/debug)",
        "a collection, during which the program waits; it also releases what it frees; later growth faults pages in again",
    );
    // A quarter above what is in use (structures and stacks included), in whole MiB: a lower limit
    // keeps the collector running all the time.
    let limit_mib = ((in_use_bytes / 4 * 5) >> 20) + 1;
    let mut limit = Remedy::setting(
        "go_memory_limit",
        &format!("GOMEMLIMIT={limit_mib}MiB"),
        "Go releases idle spans while it holds more than the limit; if the program needs more, it collects more often",
    );
    limit.predicted_bytes = Some((in_use_bytes + idle_bytes).saturating_sub(limit_mib << 20));
    if limit.predicted_bytes == Some(0) { vec![call] } else { vec![call, limit] }
}
