//! The section of a report on a Java virtual machine.

use strandline_claims::facts::Runtime;
use strandline_claims::section::{Column, Section, Table, common, figures, name_and_version, words};
use strandline_claims::units::{bytes, counted, maybe_bytes, thousands};

use super::facts::{Jvm, KindFigures};

/// Columns of the table of heap parts, by kind.
const KIND_HEAD: [Column; 6] = [
    words("heap"),
    figures("resident"),
    figures("objects"),
    figures("live"),
    figures("free"),
    figures("regions or spaces"),
];
/// Limit on class loaders that are named.
const MAX_LOADERS: usize = 3;

/// Returns the section; `None` if the details of `runtime` are not for a JVM.
pub fn section(runtime: &Runtime) -> Option<Section> {
    let facts: Jvm = runtime.details("jvm")?;
    let mut section = common(runtime);
    section.title = title(runtime, &facts);
    section.lines.extend(class_loaders(&facts));
    let row = |kind: &KindFigures| {
        vec![
            kind.kind.clone(),
            bytes(kind.resident_bytes),
            bytes(kind.used_bytes),
            maybe_bytes(kind.live_bytes),
            bytes(kind.free_resident_bytes),
            thousands(kind.areas),
        ]
    };
    let rows: Vec<_> = facts.kinds.iter().filter(|kind| kind.resident_bytes > 0).map(row).collect();
    if !rows.is_empty() {
        section.tables.insert(0, Table { head: &KIND_HEAD, rows, flexible: 0 });
    }
    Some(section)
}

fn title(runtime: &Runtime, facts: &Jvm) -> String {
    let collector =
        runtime.own.get("collector").and_then(|name| name.as_str()).unwrap_or("unknown collector");
    // Some objects may be dead: live_bytes is then an upper bound.
    let at_most = if facts.uncertain_bytes().is_some() { "at most " } else { "" };
    let live =
        facts.live_bytes.map_or(String::new(), |live| format!(", {at_most}{} of them live", bytes(live)));
    let limit = facts.max_heap_bytes.map_or(String::new(), |max| format!("; -Xmx {}", bytes(max)));
    format!(
        "{}, {collector}: {} of objects{live}; {} of the heap is resident{limit}",
        name_and_version(runtime),
        maybe_bytes(runtime.used_bytes),
        bytes(facts.resident_bytes)
    )
}

fn class_loaders(facts: &Jvm) -> Option<String> {
    let largest = facts.class_loaders.iter().take(MAX_LOADERS).map(|loader| {
        let name = loader.name.as_deref().unwrap_or("an unnamed loader");
        format!("{name} {}", bytes(loader.used_bytes))
    });
    let largest = largest.collect::<Vec<_>>().join(", ");
    let largest = if largest.is_empty() { largest } else { format!(", the largest: {largest}") };
    let count = facts.class_loader_count.filter(|&count| count > 0)?;
    Some(format!("{} in metaspace{largest}", counted(count, "class loader")))
}
