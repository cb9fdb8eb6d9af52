//! Findings about Go: idle spans, and free slots between objects.

use strandline_claims::finding::{Finding, LedgerView};
use strandline_claims::units::bytes;

/// Returns the findings, in no particular order.
pub fn findings(view: &LedgerView<'_>) -> Vec<Finding> {
    let free = view.rows_bytes(&["go.free.purge", "go.free.kept", "go.free.pinned"]);
    let idle = view.row_bytes("go.free.purge");
    let mut headline =
        format!("{} is free in Go's heap: {} in idle spans not yet released", view.of_rss(free), bytes(idle));
    let slots = free - idle;
    if slots > 0 {
        headline += &format!(" and {} in free slots that only new objects can use", bytes(slots));
    }
    headline += &view.released_by("go_free_os_memory", "debug.FreeOSMemory releases");
    if let Some(limit) = view.remedy("go_memory_limit") {
        headline += &view.released_by("go_memory_limit", &format!("{} would save", limit.how));
    }
    vec![Finding { class: "idle_spans", bytes: free, headline }]
}
