//! The section of a report on Go.

use strandline_claims::facts::Runtime;
use strandline_claims::section::{Column, MAX_SHOWN, Section, Table, figures, name_and_version, words};
use strandline_claims::units::{bytes, maybe_bytes, thousands};

use super::facts::{Go, SizeClass};

const SPAN_HEAD: [Column; 5] =
    [figures("free"), figures("span bytes"), figures("spans"), figures("objects"), words("object size")];

/// Returns the section; `None` if the details of `runtime` are not for Go.
pub fn section(runtime: &Runtime) -> Option<Section> {
    let facts: Go = runtime.details("go")?;
    let figure = |name: &str| maybe_bytes(runtime.own_figure(name));
    let title = format!(
        "{}: {} of objects in {} of spans; {} idle, {} of it released",
        name_and_version(runtime),
        figure("HeapAlloc"),
        figure("HeapInuse"),
        figure("HeapIdle"),
        figure("HeapReleased")
    );
    let row = |class: &SizeClass| {
        let size = if class.object_bytes == 0 { "large".to_owned() } else { bytes(class.object_bytes) };
        let free = bytes(class.free_places.saturating_mul(class.object_bytes));
        vec![free, bytes(class.span_bytes), thousands(class.spans), thousands(class.objects), size]
    };
    let rows: Vec<_> = facts.size_classes.iter().take(MAX_SHOWN).map(row).collect();
    let table = Some(Table { head: &SPAN_HEAD, rows, flexible: 4 }).filter(|table| !table.rows.is_empty());
    Some(Section { title, lines: vec![collector(&facts)], tables: table.into_iter().collect() })
}

fn collector(facts: &Go) -> String {
    let percent = facts.gogc_percent.map_or("not known".to_owned(), |percent| match percent {
        ..0 => "off".to_owned(),
        percent => percent.to_string(),
    });
    let no_limit = if facts.gogc_percent.is_some() { "none" } else { "not known" };
    let limit = facts.memory_limit_bytes.map_or(no_limit.to_owned(), bytes);
    format!(
        "live after the last mark: {}; heap at the end of the next collection: {} (GOGC {percent}, GOMEMLIMIT {limit})",
        maybe_bytes(facts.live_after_last_mark_bytes),
        maybe_bytes(facts.next_gc_bytes)
    )
}
