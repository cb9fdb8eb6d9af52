//! The section of a report on Go.

use strandline_claims::facts::Runtime;
use strandline_claims::section::{Column, MAX_SHOWN, Section, Table, figures, name_and_version, words};
use strandline_claims::units::{bytes, maybe_bytes, thousands};

use super::facts::{Go, SizeClass};

/// Columns of the table of size classes.
const SPAN_HEAD: [Column; 5] =
    [figures("free"), figures("span bytes"), figures("spans"), figures("objects"), words("object size")];

/// Returns the section; `None` if the details of `runtime` are not for Go.
pub fn section(runtime: &Runtime) -> Option<Section> {
    let facts: Go = runtime.details("go")?;
    let own_bytes = |name: &str| maybe_bytes(runtime.own_figure(name));
    let title = format!(
        "{}: {} of objects in {} of spans; {} idle, {} of it released",
        name_and_version(runtime),
        own_bytes("HeapAlloc"),
        own_bytes("HeapInuse"),
        own_bytes("HeapIdle"),
        own_bytes("HeapReleased")
    );
    let size_class_row = |class: &SizeClass| {
        let size = if class.object_bytes == 0 { "large".to_owned() } else { bytes(class.object_bytes) };
        let free = bytes(class.free_places.saturating_mul(class.object_bytes));
        vec![free, bytes(class.span_bytes), thousands(class.spans), thousands(class.objects), size]
    };
    let rows: Vec<_> = facts.size_classes.iter().take(MAX_SHOWN).map(size_class_row).collect();
    let table = Some(Table { head: &SPAN_HEAD, rows, flexible: 4 }).filter(|table| !table.rows.is_empty());
    Some(Section { title, lines: vec![collector_line(&facts)], tables: table.into_iter().collect() })
}

/// Returns a line on the collector. A limit is known only with `GOGC` ([`Go::memory_limit_bytes`]).
fn collector_line(facts: &Go) -> String {
    let settings = match (facts.gogc_percent, facts.memory_limit_bytes) {
        (None, _) => "GOGC and GOMEMLIMIT not known".to_owned(),
        (Some(percent), limit) => {
            let gogc = if percent < 0 { "off".to_owned() } else { percent.to_string() };
            format!("GOGC {gogc}, GOMEMLIMIT {}", limit.map_or("none".to_owned(), bytes))
        }
    };
    format!(
        "live after the last mark: {}; heap at the end of the next collection: {} ({settings})",
        maybe_bytes(facts.live_after_last_mark_bytes),
        maybe_bytes(facts.next_gc_bytes)
    )
}
