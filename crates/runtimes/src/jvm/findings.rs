//! Findings about a JVM: dead objects and free regions; if there are few, the parts of RSS outside
//! the heap.

use strandline_claims::finding::{Finding, LedgerView};
use strandline_claims::units::{bytes, maybe_bytes};

use super::facts::Jvm;

/// Returns the facts about the JVM; `None` if none was read.
fn jvm_facts(view: &LedgerView<'_>) -> Option<Jvm> {
    view.runtime("jvm")?.details("jvm")
}

/// Returns the findings, in no particular order.
pub fn findings(view: &LedgerView<'_>) -> Vec<Finding> {
    let free_bytes = view.rows_bytes(&["jvm.dead", "jvm.free.purge", "jvm.free.kept", "jvm.shmem.free"]);
    vec![Finding { class: "free_regions", bytes: free_bytes, headline: free_regions(view, free_bytes) }]
}

/// Returns the headline on free memory in the heap.
fn free_regions(view: &LedgerView<'_>, free_bytes: u64) -> String {
    let Some((runtime, facts)) = view.runtime("jvm").zip(jvm_facts(view)) else {
        return format!("{} is free in the JVM's heap", view.of_rss(free_bytes));
    };
    let collector = runtime.own.get("collector").and_then(|name| name.as_str()).unwrap_or("?");
    let parts = if facts.region_bytes.is_some() { "regions" } else { "space" };
    // Dead objects become free regions only when they are collected.
    let dead_bytes = view.row_bytes("jvm.dead");
    let subject = match view.matters(dead_bytes) {
        true => format!("dead objects ({}) and free {parts}", bytes(dead_bytes)),
        false => format!("free {parts}"),
    };
    let used = maybe_bytes(runtime.used_bytes);
    let share = view.of_rss(free_bytes);
    format!("{share} is {subject} in the JVM's heap ({collector}; objects use {used})")
        + &view.released_by("jvm_gc", "GC.run releases")
        + &live_bounds(&facts)
        + &mapped_views(&facts)
}

/// Returns a clause with the bounds of the live bytes, if they differ.
fn live_bounds(facts: &Jvm) -> String {
    let bounds =
        facts.live_bytes.zip(facts.live_at_least_bytes).filter(|_| facts.uncertain_bytes().is_some());
    bounds.map_or_else(String::new, |(upper, lower)| {
        format!("; {} to {} of its objects are live", bytes(lower), bytes(upper))
    })
}

/// Returns the parts of RSS if much of it is outside the heap.
pub fn beside_heap(view: &LedgerView<'_>) -> Option<Finding> {
    let facts = jvm_facts(view)?;
    let (rss, heap) = (view.rss_bytes, facts.resident_bytes);
    if !view.matters(rss.saturating_sub(heap)) {
        return None;
    }
    let parts = [
        ("direct buffers", view.rows_bytes(&["jvm.direct"])),
        ("metaspace", view.rows_bytes(&["jvm.metaspace", "jvm.class_space", "jvm.metaspace.free"])),
        ("code cache", view.rows_bytes(&["jvm.code", "jvm.code.free"])),
        ("the collector's tables", view.rows_bytes(&["jvm.collector"])),
        ("static data and class data archive", view.rows_bytes(&["program.data"])),
    ];
    let limit = facts.max_heap_bytes.map_or_else(String::new, |max| format!(" against -Xmx {}", bytes(max)));
    let mut headline =
        format!("RSS {}{limit}: heap {}", bytes(rss), bytes(heap)) + &view.outside_heap(&parts);
    headline += &(live_bounds(&facts) + &mapped_views(&facts));
    Some(Finding { class: "live", bytes: rss, headline })
}

/// Returns a clause if RSS may count the heap several times.
fn mapped_views(facts: &Jvm) -> String {
    facts.views.filter(|&views| views > 1).map_or_else(String::new, |views| {
        format!("; the heap is mapped {views} times: RSS may count it as often, PSS counts it once")
    })
}
