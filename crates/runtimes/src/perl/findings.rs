//! Findings about Perl: buffers of unused variables, and free slots for values.

use strandline_claims::finding::{Finding, LedgerView};
use strandline_claims::units::bytes;

use super::rows::{ARENA_FREE, BUFFER_RETAINED, PAD_RETAINED};

/// Returns the findings, in no particular order.
pub fn findings(view: &LedgerView<'_>) -> Vec<Finding> {
    vec![retained_buffers(view), free_slots(view)]
}

fn retained_buffers(view: &LedgerView<'_>) -> Finding {
    let rows = [&PAD_RETAINED, &BUFFER_RETAINED];
    let retained = view.rows_bytes(&rows.map(|row| row.id));
    let mut headline = format!("{} is buffers that Perl retains for unused variables", view.of_rss(retained));
    // Rows whose holder is not the general one belong to one variable.
    let named = rows.iter().flat_map(|row| view.rows_of(row.id).filter(|line| line.holder != row.holder));
    // Among equals, the first.
    if let Some(largest) = named.rev().max_by_key(|row| row.bytes) {
        headline += &format!("; the largest is {}, {}", largest.holder, bytes(largest.bytes));
    }
    headline += &view.released_by("perl_undef", "undef of these variables releases");
    Finding { class: "retained_buffers", bytes: retained, headline }
}

fn free_slots(view: &LedgerView<'_>) -> Finding {
    let slots = view.row_bytes(ARENA_FREE.id);
    let headline = format!(
        "{} is free slots in Perl's arenas: perl reuses them for new values; only a restart releases them",
        view.of_rss(slots)
    );
    Finding { class: "free_slots", bytes: slots, headline }
}
