//! What a reader contributes to a report on its runtime: a title, sentences and tables. The report
//! lays them out.

use crate::facts::{Runtime, TypeFacts};
use crate::units::{bytes, maybe_bytes, thousands};

/// Maximum number of types, or similar rows, listed one by one.
pub const MAX_SHOWN: usize = 10;

/// The part of a report that describes one runtime. Names in it may come from the process, so the
/// report escapes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// `perl 5.36.0: 1 interpreter, 12,345 values`.
    pub title: String,
    /// Sentences.
    pub lines: Vec<String>,
    /// Tables, one below the other.
    pub tables: Vec<Table>,
}

/// A table of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its columns.
    pub head: &'static [Column],
    /// Its rows.
    pub rows: Vec<Vec<String>>,
    /// Index of the column that is truncated if the table is too wide.
    pub flexible: usize,
}

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its heading.
    pub title: &'static str,
    /// Whether its cells are figures, aligned at the right.
    pub holds_figures: bool,
}

/// Makes a column of figures.
pub const fn figures(title: &'static str) -> Column {
    Column { title, holds_figures: true }
}

/// Makes a column of words.
pub const fn words(title: &'static str) -> Column {
    Column { title, holds_figures: false }
}

const TYPE_HEAD: [Column; 3] = [figures("bytes"), figures("instances"), words("type")];

/// Makes the section that every runtime can have: its objects and their types.
pub fn common(runtime: &Runtime) -> Section {
    let title = format!(
        "{}: {} of objects in {}; {} of free slots",
        name_and_version(runtime),
        maybe_bytes(runtime.used_bytes),
        maybe_bytes(runtime.committed_bytes),
        maybe_bytes(runtime.free_bytes)
    );
    let row = |facts: &TypeFacts| vec![bytes(facts.bytes), thousands(facts.instances), facts.name.clone()];
    let rows: Vec<_> = runtime.types.iter().take(MAX_SHOWN).map(row).collect();
    let has_types = !rows.is_empty();
    // The names of types are the column that may be truncated.
    let table = Table { head: &TYPE_HEAD, rows, flexible: 2 };
    Section { title, lines: Vec::new(), tables: if has_types { vec![table] } else { Vec::new() } }
}

/// `cpython 3.12.1`.
pub fn name_and_version(runtime: &Runtime) -> String {
    match &runtime.version {
        Some(version) => format!("{} {version}", runtime.name),
        None => runtime.name.clone(),
    }
}
