//! Findings about a JVM: dead objects and free regions; if there are few, the parts of RSS outside
//! the heap.

use strandline_claims::facts::Runtime;
use strandline_claims::finding::{Finding, LedgerView};
use strandline_claims::units::bytes;

use super::facts::Jvm;

fn jvm<'a>(view: &LedgerView<'a>) -> Option<(&'a Runtime, Jvm)> {
    let runtime = view.runtime("jvm")?;
    Some((runtime, runtime.details("jvm")?))
}

/// Returns the findings, in no particular order.
pub fn findings(view: &LedgerView<'_>) -> Vec<Finding> {
    let free = view.sum(&["jvm.dead", "jvm.free.purge", "jvm.free.kept", "jvm.shmem.free"]);
    vec![Finding { class: "free_regions", bytes: free, headline: free_regions(view, free) }]
}

fn free_regions(view: &LedgerView<'_>, free: u64) -> String {
    let Some((runtime, known)) = jvm(view) else {
        return format!("{} is free in the JVM's heap", view.of_rss(free));
    };
    let collector = runtime.own.get("collector").and_then(|name| name.as_str()).unwrap_or("?");
    let what = if known.region_bytes.is_some() { "regions" } else { "space" };
    // Dead objects become free regions only when they are collected.
    let dead = view.row("jvm.dead");
    let what = match dead {
        dead if view.matters(dead) => format!("dead objects ({}) and free {what}", bytes(dead)),
        _ => format!("free {what}"),
    };
    let used = bytes(runtime.used_bytes.unwrap_or(0));
    let start = view.of_rss(free);
    format!("{start} is {what} in the JVM's heap ({collector}; objects use {used})")
        + &view.released_by("jvm_gc", "GC.run releases")
        + &may_live(&known)
        + &mapped_views(&known)
}

/// Returns a clause with the bounds of the live bytes, if they differ.
fn may_live(known: &Jvm) -> String {
    let bounds =
        known.live_bytes.zip(known.live_at_least_bytes).filter(|_| known.uncertain_bytes().is_some());
    bounds.map_or_else(String::new, |(most, least)| {
        format!("; {1} to {0} of its objects are live", bytes(most), bytes(least))
    })
}

/// Returns the parts of RSS if much of it is outside the heap.
pub fn beside_heap(view: &LedgerView<'_>) -> Option<Finding> {
    let (_, known) = jvm(view)?;
    let (rss, heap) = (view.rss_bytes, known.resident_bytes);
    if !view.matters(rss.saturating_sub(heap)) {
        return None;
    }
    let own = [
        ("direct buffers", view.sum(&["jvm.direct"])),
        ("metaspace", view.sum(&["jvm.metaspace", "jvm.class_space", "jvm.metaspace.free"])),
        ("code cache", view.sum(&["jvm.code", "jvm.code.free"])),
        ("the collector's tables", view.sum(&["jvm.collector"])),
        ("static data and class data archive", view.sum(&["program.data"])),
    ];
    let limit =
        known.max_heap_bytes.map_or_else(String::new, |most| format!(" against -Xmx {}", bytes(most)));
    let mut headline = format!("RSS {}{limit}: heap {}", bytes(rss), bytes(heap)) + &view.outside_heap(&own);
    headline += &(may_live(&known) + &mapped_views(&known));
    Some(Finding { class: "live", bytes: rss, headline })
}

/// Returns a clause if RSS may count the heap several times.
fn mapped_views(known: &Jvm) -> String {
    known.views.filter(|&views| views > 1).map_or_else(String::new, |views| {
        format!("; the heap is mapped {views} times: RSS may count it as often, PSS counts it once")
    })
}
