//! What makes Go give memory back.

use strandline_claims::facts::{Remedy, RemedyKind};

/// So much in idle spans is worth a remedy.
const WORTH_BYTES: u64 = 1 << 20;

/// The remedies where idle spans are resident, and so many bytes are held besides.
pub fn remedies(idle_resident: u64, held: u64) -> Vec<Remedy> {
    if idle_resident < WORTH_BYTES {
        return Vec::new();
    }
    let call = Remedy {
        id: "go_free_os_memory".to_owned(),
        kind: RemedyKind::Program,
        predicted_bytes: Some(idle_resident),
        how: "debug.FreeOSMemory() in the program after its peak (package runtime/debug)".to_owned(),
        cost: "a collection, at which the program waits; what that frees goes back besides; later growth faults pages in again"
            .to_owned(), ..Remedy::default() };
    // A quarter more than what is in use, structures and stacks among it, in whole MiB: less has the collector run without end.
    let room = ((held / 4 * 5) >> 20) + 1;
    let mut limit = Remedy::setting(
        "go_memory_limit",
        &format!("GOMEMLIMIT={room}MiB"),
        "idle spans go back while the runtime holds more than that; where the program needs more, it collects more often",
    );
    limit.predicted_bytes = Some((held + idle_resident).saturating_sub(room << 20));
    if limit.predicted_bytes == Some(0) { vec![call] } else { vec![call, limit] }
}
