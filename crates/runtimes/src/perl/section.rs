//! The section of a report on Perl.

use strandline_claims::facts::Runtime;
use strandline_claims::section::{Column, MAX_SHOWN, Section, Table, figures, name_and_version, words};
use strandline_claims::units::{bytes, counted, thousands};

use super::facts::{Interpreter, Perl};

/// Columns of the table of retained buffers.
const RETAINED_HEAD: [Column; 2] = [figures("bytes"), words("retained by")];

/// Returns the section; `None` if the details of `runtime` are not for Perl.
pub fn section(runtime: &Runtime) -> Option<Section> {
    let facts: Perl = runtime.details("perl")?;
    let title = format!(
        "{}: {}, {} values",
        name_and_version(runtime),
        counted(facts.interpreters.len() as u64, "interpreter"),
        thousands(sum(&facts, |interpreter| interpreter.heads.live))
    );
    let repeated = sum(&facts, |interpreter| interpreter.strings.equal.repeated_bytes);
    let repeated = (repeated > 0)
        .then(|| format!("equal strings: {} repeat the content of another string", bytes(repeated)));
    let lines = [Some(strings(&facts)), repeated, Some(retained(&facts))];
    let tables = retained_table(&facts).into_iter().collect();
    Some(Section { title, lines: lines.into_iter().flatten().collect(), tables })
}

fn sum(perl: &Perl, figure: impl Fn(&Interpreter) -> u64) -> u64 {
    perl.interpreters.iter().fold(0, |sum: u64, interpreter| sum.saturating_add(figure(interpreter)))
}

fn strings(facts: &Perl) -> String {
    format!(
        "strings: {} with {} of text in {} of buffers; {} of at most 15 bytes take {}",
        thousands(sum(facts, |interpreter| interpreter.strings.values)),
        bytes(sum(facts, |interpreter| interpreter.strings.payload_bytes)),
        bytes(sum(facts, |interpreter| interpreter.strings.capacity_bytes)),
        thousands(sum(facts, |interpreter| interpreter.strings.short.strings)),
        bytes(sum(facts, |interpreter| interpreter.strings.short.chunk_bytes)),
    )
}

fn retained(facts: &Perl) -> String {
    format!(
        "retained and unused: {} in {}",
        bytes(sum(facts, |interpreter| interpreter.retained.total.bytes)),
        counted(sum(facts, |interpreter| interpreter.retained.total.buffers), "buffer")
    )
}

/// Returns the largest retained buffers; `None` if there are none.
fn retained_table(facts: &Perl) -> Option<Table> {
    let mut top: Vec<_> =
        facts.interpreters.iter().flat_map(|interpreter| &interpreter.retained.top).collect();
    top.sort_by_key(|buffer| std::cmp::Reverse(buffer.bytes));
    let row = |retained_bytes: u64, holder: String| vec![bytes(retained_bytes), holder];
    let mut rows: Vec<_> =
        top.iter().take(MAX_SHOWN).map(|buffer| row(buffer.bytes, buffer.holder.clone())).collect();
    if let Some(others) = top.get(MAX_SHOWN..).filter(|others| !others.is_empty()) {
        let sum = others.iter().fold(0, |sum: u64, buffer| sum.saturating_add(buffer.bytes));
        rows.push(row(sum, format!("{} more (--json lists them)", counted(others.len() as u64, "buffer"))));
    }
    (!rows.is_empty()).then_some(Table { head: &RETAINED_HEAD, rows, flexible: 1 })
}
