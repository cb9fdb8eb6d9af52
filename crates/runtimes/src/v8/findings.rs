//! Findings about V8: unreachable objects, pages without objects, and a young generation larger
//! than what is in it; if there are few, the parts of RSS outside the heap.

use super::facts::V8;
use super::rows::{BUFFER, DEAD, EXTERNAL_STRING, HEAP, MAPPED_BUFFER, POOL, SHARED_BUFFER, YOUNG_IDLE};
use strandline_claims::facts::Runtime;
use strandline_claims::finding::{Finding, LedgerView};
use strandline_claims::units::bytes;

/// A part of the heap without live objects.
struct Part {
    bytes: u64,
    name: String,
}

/// Returns the findings, in no particular order.
pub fn findings(view: &LedgerView<'_>) -> Vec<Finding> {
    let (pool, idle) = (view.row_bytes(POOL.id), view.row_bytes(YOUNG_IDLE.id));
    let dead = view.row_bytes(DEAD.id);
    // Less is what every program has between two collections.
    let dead = if view.matters(dead) { dead } else { 0 };
    let program = program_name(view);
    let mut parts = vec![
        Part { bytes: dead, name: format!("unreachable objects of {program}") },
        Part { bytes: pool, name: format!("heap pages that {program} has freed and keeps in its pool") },
        Part { bytes: idle, name: "young generation without objects".to_owned() },
    ];
    parts.retain(|part| part.bytes > 0);
    let total = dead + pool + idle;
    let mut headline = match parts.as_slice() {
        [Part { name, .. }] if idle == total => format!("{} is {name}, of {program}", view.of_rss(total)),
        [Part { name, .. }] => format!("{} is {name}", view.of_rss(total)),
        parts => {
            let each: Vec<String> =
                parts.iter().map(|part| format!("{} {}", bytes(part.bytes), part.name)).collect();
            format!("{} holds no live object: {}", view.of_rss(total), each.join(", "))
        }
    };
    if let Some(objects) = view.runtime("v8").and_then(object_sizes) {
        headline += &format!("; objects use {objects}");
    }
    headline += &view.released_by("v8_memory_pressure", "v8_memory_pressure releases");
    if dead == 0 {
        // Measured for four minutes in all five versions: an event loop with little to do returns
        // it after 60 to 120 s (Node.js 26 the pool often within 20 s). A blocked thread returns
        // none, nor does Node.js 26 of an isolate that has ended, nor Node.js 22 under load.
        headline += "; V8 may return it after one to two minutes with little to do";
    }
    let class = if dead > pool + idle { "dead_objects" } else { "idle_heap_pages" };
    vec![Finding { class, bytes: total, headline }]
}

/// Returns the parts of RSS if much of it is outside the heap.
pub fn beside_heap(view: &LedgerView<'_>) -> Option<Finding> {
    let (rss, heap) = (view.rss_bytes, view.rows_bytes(&HEAP));
    let runtime = view.runtime("v8").filter(|runtime| runtime.read)?;
    if !view.matters(rss.saturating_sub(heap)) {
        return None;
    }
    let slab_bytes = runtime.details::<V8>("v8").and_then(|facts| facts.unviewed_buffer_bytes);
    let parts = [
        ("Buffers", view.row_bytes(BUFFER.id)),
        ("SharedArrayBuffers", view.row_bytes(SHARED_BUFFER.id)),
        ("external strings", view.row_bytes(EXTERNAL_STRING.id)),
        ("WebAssembly and resizable buffers", view.row_bytes(MAPPED_BUFFER.id)),
        ("static data", view.row_bytes("program.data")),
    ];
    let used = object_sizes(runtime).map_or_else(String::new, |objects| format!(" (objects {objects})"));
    let start = format!("RSS {} of {}: heap {}{used}", bytes(rss), program_name(view), bytes(heap));
    let mut headline = start + &view.outside_heap(&parts);
    if let Some(unused) = slab_bytes.filter(|&unused| view.matters(unused)) {
        headline += &format!("; {} of Buffers is the unused rest of slabs", bytes(unused));
    }
    Some(Finding { class: "live", bytes: rss, headline })
}

/// Returns the size of the objects, `13.1 MiB, 5.20 MiB of it garbage`; without garbage if that is
/// less than a tenth, or not known.
fn object_sizes(runtime: &Runtime) -> Option<String> {
    let used = runtime.used_bytes?;
    let garbage = runtime.details::<V8>("v8").and_then(|facts| facts.garbage);
    Some(match garbage.filter(|garbage| garbage.bytes >= used / 10) {
        Some(garbage) => format!("{}, {} of it garbage", bytes(used), bytes(garbage.bytes)),
        None => bytes(used),
    })
}

/// Returns what users call the program: `Node.js 24`, or `V8 13` where another program contains it.
fn program_name(view: &LedgerView<'_>) -> String {
    let major_version = |runtime: &str| {
        let version = view.runtime(runtime)?.version.as_deref()?;
        version.split('.').next().map(ToOwned::to_owned)
    };
    match (major_version("node"), major_version("v8")) {
        (Some(node), _) => format!("Node.js {node}"),
        (None, Some(v8)) => format!("V8 {v8}"),
        (None, None) => "V8".to_owned(),
    }
}
