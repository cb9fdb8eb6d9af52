//! The section of a report on V8.

use strandline_claims::facts::Runtime;
use strandline_claims::section::{Column, Section, Table, common, figures, name_and_version, words};
use strandline_claims::units::{bytes, counted, maybe_bytes};

use super::facts::{SpaceFigures, V8};

const SPACE_HEAD: [Column; 4] = [words("space"), figures("committed"), figures("used"), figures("free")];

/// Returns the section; `None` if the details of `runtime` are not for V8.
pub fn section(runtime: &Runtime) -> Option<Section> {
    let facts: V8 = runtime.details("v8")?;
    let title = format!(
        "{}: {} of objects in {} of pages; {} in its pool, {} in the idle young generation",
        name_and_version(runtime),
        maybe_bytes(runtime.used_bytes),
        maybe_bytes(runtime.committed_bytes),
        bytes(facts.pool_resident_bytes),
        bytes(facts.young_idle_resident_bytes)
    );
    let spaces = runtime.own.get("spaces").cloned().unwrap_or_default();
    let spaces: Vec<SpaceFigures> = serde_json::from_value(spaces).unwrap_or_default();
    let row = |space: &SpaceFigures| {
        let free = space.space_used_size.map(|used| space.space_size.saturating_sub(used));
        vec![
            space.space_name.clone(),
            bytes(space.space_size),
            maybe_bytes(space.space_used_size),
            maybe_bytes(free),
        ]
    };
    let rows: Vec<_> = spaces.iter().filter(|space| space.space_size > 0).map(row).collect();
    let table = Some(Table { head: &SPACE_HEAD, rows, flexible: 0 }).filter(|table| !table.rows.is_empty());
    let isolates = format!("{}, as v8.getHeapSpaceStatistics() counts", counted(facts.isolates, "isolate"));
    let outside = [
        ("ArrayBuffer", facts.buffers),
        ("mapped ArrayBuffer", facts.mapped_buffers),
        ("external string", facts.external_strings),
    ];
    let outside = outside.into_iter().filter_map(|(name, held)| {
        let held = held.filter(|held| held.bytes > 0)?;
        Some(format!("{}: {} outside the heap", counted(held.count, name), bytes(held.bytes)))
    });
    let objects =
        facts.objects.map(|objects| format!("{} with garbage, without code", counted(objects, "object")));
    let lines = std::iter::once(isolates).chain(outside).chain(objects).collect();
    Some(Section { title, lines, tables: table.into_iter().chain(common(runtime).tables).collect() })
}
