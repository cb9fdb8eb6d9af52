//! Findings about Go: idle spans, and free places between objects.

use strandline_claims::finding::{Finding, LedgerView};
use strandline_claims::units::bytes;

/// Returns the findings, in no particular order.
pub fn findings(view: &LedgerView<'_>) -> Vec<Finding> {
    let free = view.sum(&["go.free.purge", "go.free.kept", "go.free.pinned"]);
    let idle = view.row("go.free.purge");
    let mut headline = format!(
        "{} is free in Go's heap: {} of idle spans that it has not given back",
        view.of_rss(free),
        bytes(idle)
    );
    let places = free - idle;
    if places > 0 {
        headline +=
            &format!(" and {} of free places between objects, which only other objects take", bytes(places));
    }
    headline += &view.released_by("go_free_os_memory", "debug.FreeOSMemory gives back");
    if let Some(limit) = view.remedy("go_memory_limit") {
        headline += &view.released_by("go_memory_limit", &format!("{} would keep", limit.how));
        headline += " of it away";
    }
    vec![Finding { class: "idle_spans", bytes: free, headline }]
}
