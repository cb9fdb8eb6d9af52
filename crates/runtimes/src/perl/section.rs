//! The section of a report on Perl.

use strandline_claims::facts::Runtime;
use strandline_claims::section::{Column, MAX_SHOWN, Section, Table, figures, name_and_version, words};
use strandline_claims::units::{bytes, counted, thousands};

use super::facts::{Interpreter, Perl};

const RETAINED_HEAD: [Column; 2] = [figures("bytes"), words("retained by")];

/// Returns the section; `None` if the details of `runtime` are not for Perl.
pub fn section(runtime: &Runtime) -> Option<Section> {
    let facts: Perl = runtime.details("perl")?;
    let title = format!(
        "{}: {}, {} values",
        name_and_version(runtime),
        counted(facts.interpreters.len() as u64, "interpreter"),
        thousands(sum(&facts, |one| one.heads.live))
    );
    let repeated = sum(&facts, |one| one.strings.equal.repeated_bytes);
    let repeated = (repeated > 0)
        .then(|| format!("equal strings: {} repeat the content of another string", bytes(repeated)));
    let lines = [Some(strings(&facts)), repeated, Some(retained(&facts))];
    let tables = retained_table(&facts).into_iter().collect();
    Some(Section { title, lines: lines.into_iter().flatten().collect(), tables })
}

fn sum(perl: &Perl, figure: impl Fn(&Interpreter) -> u64) -> u64 {
    perl.interpreters.iter().fold(0, |sum: u64, one| sum.saturating_add(figure(one)))
}

fn strings(facts: &Perl) -> String {
    format!(
        "strings: {} with {} of text in {} of buffers; {} of at most 15 bytes take {}",
        thousands(sum(facts, |one| one.strings.values)),
        bytes(sum(facts, |one| one.strings.payload_bytes)),
        bytes(sum(facts, |one| one.strings.capacity_bytes)),
        thousands(sum(facts, |one| one.strings.short.strings)),
        bytes(sum(facts, |one| one.strings.short.chunk_bytes)),
    )
}

fn retained(facts: &Perl) -> String {
    format!(
        "retained and unused: {} in {}",
        bytes(sum(facts, |one| one.retained.total.bytes)),
        counted(sum(facts, |one| one.retained.total.buffers), "buffer")
    )
}

/// Returns the largest retained buffers; `None` if there are none.
fn retained_table(facts: &Perl) -> Option<Table> {
    let mut top: Vec<_> = facts.interpreters.iter().flat_map(|one| &one.retained.top).collect();
    top.sort_by_key(|buffer| std::cmp::Reverse(buffer.bytes));
    let row = |bytes_of: u64, holder: String| vec![bytes(bytes_of), holder];
    let mut rows: Vec<_> =
        top.iter().take(MAX_SHOWN).map(|buffer| row(buffer.bytes, buffer.holder.clone())).collect();
    if let Some(rest) = top.get(MAX_SHOWN..).filter(|rest| !rest.is_empty()) {
        let sum = rest.iter().fold(0, |sum: u64, buffer| sum.saturating_add(buffer.bytes));
        rows.push(row(sum, format!("{} more (--json lists them)", counted(rest.len() as u64, "buffer"))));
    }
    (!rows.is_empty()).then_some(Table { head: &RETAINED_HEAD, rows, flexible: 1 })
}
