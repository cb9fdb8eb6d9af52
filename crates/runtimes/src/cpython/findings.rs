//! Findings about CPython: free memory in its arenas, and what pins the arenas.

use strandline_claims::finding::{Finding, LedgerView};
use strandline_claims::units::thousands;

use super::counted::MIN_OBJECTS_NOT_SPARSE;
use super::facts::CPython;

/// Returns the findings, in no particular order.
pub fn findings(view: &LedgerView<'_>) -> Vec<Finding> {
    let free = view.rows_bytes(&["cpython.free.kept", "cpython.free.pinned", "cpython.free_list"]);
    let headline = format!(
        "{} is free inside CPython's arenas: an arena is released when its last object dies{}",
        view.of_rss(free),
        sparse_arenas(view).unwrap_or_default()
    );
    vec![Finding { class: "free_arenas", bytes: free, headline }]
}

/// Returns a clause with the number of arenas that few objects pin, and the most frequent type of
/// these objects.
fn sparse_arenas(view: &LedgerView<'_>) -> Option<String> {
    let runtime = view.runtime("cpython")?;
    let arenas = runtime.own_figure("arenas_allocated_current")?;
    let facts: CPython = runtime.details("cpython")?;
    let sparse = facts.sparse_arenas.filter(|sparse| sparse.arenas > 0)?;
    let first = sparse.kept_by.first();
    let type_clause = first.map_or_else(String::new, |kept_by| format!(", most of them {}", kept_by.name));
    let pinned = match (sparse.arenas, arenas) {
        (1, 1) => "the only arena is pinned".to_owned(),
        (1, _) => format!("1 of the {} arenas is pinned", thousands(arenas)),
        _ => format!("{} of the {} arenas are pinned", thousands(sparse.arenas), thousands(arenas)),
    };
    let each = if sparse.arenas == 1 { "" } else { " each" };
    Some(format!("; {pinned} by fewer than {MIN_OBJECTS_NOT_SPARSE} objects{each}{type_clause}"))
}
