//! The section of a report on V8.

use strandline_claims::facts::Runtime;
use strandline_claims::section::{Column, Section, Table, common, figures, name_and_version, words};
use strandline_claims::units::{bytes, counted, maybe_bytes, thousands};

use super::facts::{Path, SpaceFigures, V8};

const SPACE_HEAD: [Column; 4] = [words("space"), figures("committed"), figures("used"), figures("free")];

/// Types of objects of which a path shows only the slot, as a part of the object before them.
const PART_TYPES: [&str; 10] = [
    "system / Context",
    "system / FixedArray",
    "system / PropertyArray",
    "system / NameDictionary",
    "system / NumberDictionary",
    "system / GlobalDictionary",
    "system / PropertyCell",
    "system / OrderedHashMap",
    "system / OrderedHashSet",
    "system / EphemeronHashTable",
];

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
    // Figures of another version may have another form: then the table is left out.
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
    Some(Section {
        title,
        lines: lines(&facts),
        tables: table.into_iter().chain(common(runtime).tables).collect(),
    })
}

/// Returns what the section says of isolates and objects, one fact a line.
fn lines(facts: &V8) -> Vec<String> {
    let isolates = format!("{}, as v8.getHeapSpaceStatistics() counts", counted(facts.isolates, "isolate"));
    let outside = [
        ("ArrayBuffer", facts.buffers),
        ("mapped ArrayBuffer", facts.mapped_buffers),
        ("shared ArrayBuffer", facts.shared_buffers),
        ("external string", facts.external_strings),
    ];
    let outside = outside.into_iter().filter_map(|(name, amount)| {
        let amount = amount.filter(|amount| amount.bytes > 0)?;
        Some(format!("{}: {} outside the heap", counted(amount.count, name), bytes(amount.bytes)))
    });
    let slabs = facts.unviewed_buffer_bytes.filter(|unviewed| *unviewed > 0);
    let slabs = slabs.map(|unviewed| {
        format!("{} of ArrayBuffers belongs to no reachable Buffer (the rest of slabs)", bytes(unviewed))
    });
    let objects = facts
        .objects
        .map(|objects| format!("{}, including garbage, not counting code", counted(objects, "object")));
    let traced = facts.reachable.as_ref().zip(facts.uncertain.as_ref()).zip(facts.garbage);
    let live = traced.map(|((reachable, uncertain), garbage)| {
        format!(
            "reachable from globals and stacks: {}; only from words outside the heap, such as handles: {}; garbage: {}",
            bytes(reachable.bytes),
            bytes(uncertain.bytes),
            bytes(garbage.bytes)
        )
    });
    let path = facts.path.as_ref().map(|path| format!("a path to one of them: {}", path_text(path)));
    std::iter::once(isolates).chain(outside).chain(slabs).chain(objects).chain(live).chain(path).collect()
}

/// Writes a path: `V8's contexts → (global object).kept → Array[3] → Parcel`.
pub fn path_text(path: &Path) -> String {
    let mut parts = vec![path.root.clone()];
    for (index, step) in path.steps.iter().enumerate() {
        let slot = step.slot.as_deref().unwrap_or_default();
        match parts.last_mut().filter(|_| index > 0 && PART_TYPES.contains(&step.type_name.as_str())) {
            Some(last) => last.push_str(slot),
            None => parts.push(format!("{}{slot}", step.type_name)),
        }
        parts.extend(path.gap(index + 1).map(|left_out| format!("({} more)", thousands(left_out))));
    }
    parts.join(" → ")
}
