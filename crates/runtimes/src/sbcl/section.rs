//! The section of a report on SBCL.

use strandline_claims::facts::Runtime;
use strandline_claims::section::{Column, MAX_SHOWN, Section, Table, figures, name_and_version, words};
use strandline_claims::units::{bytes, maybe_bytes, thousands};

use super::facts::{Generation, Path, Sbcl, TypeBytes};

const GENERATION_HEAD: [Column; 7] = [
    words("generation"),
    figures("allocated"),
    figures("live"),
    figures("dead"),
    figures("waste"),
    figures("pages"),
    words("next collected after"),
];
const TYPE_HEAD: [Column; 5] =
    [words(""), figures("bytes"), figures("instances"), words("type"), words("mostly in")];

/// Returns the section; `None` if the details of `runtime` are not for SBCL.
pub fn section(runtime: &Runtime) -> Option<Section> {
    let facts: Sbcl = runtime.details("sbcl")?;
    let title = format!(
        "{}: {} of {} of dynamic space in use",
        name_and_version(runtime),
        bytes(facts.dynamic_usage_bytes),
        bytes(facts.dynamic_space_bytes)
    );
    let mut lines = vec![traced(&facts)];
    lines.extend(
        facts.path.as_ref().map(|path| format!("a path from a root to one of them: {}", path_text(path))),
    );
    let used = facts.generations.iter().filter(|generation| generation.pages > 0);
    let rows = used.map(generation_row).collect();
    let mut tables = vec![Table { head: &GENERATION_HEAD, rows, flexible: 6 }];
    let mut rows = type_rows("dead", &facts.dead_by_type, MAX_SHOWN);
    rows.extend(type_rows("live", &facts.live_by_type, MAX_SHOWN / 2));
    if !rows.is_empty() {
        tables.push(Table { head: &TYPE_HEAD, rows, flexible: 3 });
    }
    Some(Section { title, lines, tables })
}

fn traced(facts: &Sbcl) -> String {
    match facts.dead_bytes.zip(facts.usage_after_full_gc_bytes) {
        Some((dead, after)) => {
            format!("unreachable: {}; in use after (gc :full t), predicted: {}", bytes(dead), bytes(after))
        }
        None => "not traced: live and dead objects are not distinguished".to_owned(),
    }
}

/// Writes a path: `thread 4711's control stack → cons 0x1001234560, word 0 → MESSAGE 0x1001234580`.
pub fn path_text(path: &Path) -> String {
    let mut parts = vec![path.root.clone()];
    for (index, step) in path.steps.iter().enumerate() {
        let word = step.word.map_or_else(String::new, |word| format!(", word {word}"));
        parts.push(format!("{} {:#x}{word}", step.type_name, step.address));
        parts.extend(path.gap(index + 1).map(|step_count| format!("({} more)", thousands(step_count))));
    }
    parts.join(" → ")
}

fn generation_row(generation: &Generation) -> Vec<String> {
    let name =
        if generation.is_pseudo_static { "pseudo-static".to_owned() } else { generation.number.to_string() };
    vec![
        name,
        bytes(generation.bytes_allocated),
        maybe_bytes(generation.live_bytes),
        maybe_bytes(generation.dead_bytes),
        bytes(generation.waste_bytes),
        thousands(generation.pages),
        generation.waits_for.clone(),
    ]
}

fn type_rows(state: &str, types: &[TypeBytes], max_rows: usize) -> Vec<Vec<String>> {
    let row = |entry: &TypeBytes| {
        vec![
            state.to_owned(),
            bytes(entry.bytes),
            thousands(entry.instances),
            entry.type_name.clone(),
            format!("generation {}", entry.generation),
        ]
    };
    types.iter().take(max_rows).map(row).collect()
}
