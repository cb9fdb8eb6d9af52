//! What `doctor --readers` shows: which allocators and runtimes are read, and which are only
//! recognised.

use serde::Serialize;
use strandline_claims::reader::{FileName, ReaderInfo};

use super::paint::{Paint, Surface};
use super::terminal::joined;
use super::text::{hanging, wrap};

/// An allocator or a runtime, as the document and the tables of `doctor --readers` contain it.
#[derive(Clone, Debug, Serialize)]
pub struct ReaderView {
    /// Its name in documents.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// `allocator` or `runtime`.
    pub kind: &'static str,
    /// Whether its structures are read; otherwise it is only recognised.
    #[serde(rename = "read")]
    pub is_read: bool,
    /// The versions that are read; `None` if none is.
    pub versions: Option<&'static str>,
    /// Evidence by which it is recognised: files, symbols, sections, executables. Empty if its
    /// structures are recognised directly.
    #[serde(rename = "told_by")]
    pub evidence: Vec<String>,
    /// The ledger rows filled by its reader.
    pub rows: Vec<&'static str>,
    /// Its own remedies.
    pub remedies: Vec<&'static str>,
    /// Those of its remedies that `reclaim` applies; the others are advice. For tables only.
    #[serde(skip)]
    pub applied_remedies: Vec<&'static str>,
    /// What is not read of it, and why.
    pub not_read: &'static str,
}

impl ReaderView {
    /// Makes the view of a table entry of this `kind`.
    pub fn new(about: &'static ReaderInfo, kind: &'static str) -> Self {
        let clues = &about.evidence;
        let file_pattern = |name: &FileName| match name {
            FileName::Contains(start, part) => format!("{start}*{part}*"),
            FileName::Versioned(start) => format!("{start}[0-9.]*"),
            FileName::Exact(name) => (*name).to_owned(),
        };
        let mut evidence: Vec<String> =
            clues.files.iter().map(|name| format!("file {}", file_pattern(name))).collect();
        evidence.extend(clues.symbols.iter().map(|symbol| format!("symbol {symbol}")));
        evidence.extend(clues.section.iter().map(|section| format!("section {section}")));
        evidence.extend(clues.strings.iter().map(|(start, end)| format!("string {start}{}", end.trim_end())));
        evidence.extend(clues.executables.iter().map(|name| format!("executable {}", file_pattern(name))));
        let applied = about.remedies.iter().filter(|spec| spec.is_applied());
        Self {
            name: about.name,
            title: about.title,
            kind,
            is_read: !about.versions.is_empty(),
            versions: Some(about.versions).filter(|versions| !versions.is_empty()),
            evidence,
            rows: about.rows.iter().map(|row| row.id).collect(),
            remedies: about.remedies.iter().map(|spec| spec.id).collect(),
            applied_remedies: applied.map(|spec| spec.id).collect(),
            not_read: about.not_read,
        }
    }
}

/// Indent of the facts on a reader.
const INDENT: &str = "    ";

/// The whole view, with a final newline.
pub fn readers(views: &[ReaderView], surface: Surface) -> String {
    let mut lines = vec![surface.paint(Paint::Strong, "read: each byte counts for one of their rows")];
    for reader in views.iter().filter(|reader| reader.is_read) {
        let label = format!("  {} ({}) ", reader.title, reader.name);
        lines.extend(hanging(&label, reader.versions.unwrap_or_default(), surface.columns));
        let mut facts = vec![("rows: ", reader.rows.join(", ")), ("not read: ", reader.not_read.to_owned())];
        if !reader.remedies.is_empty() {
            facts.insert(1, ("remedies: ", reader.remedies.join(", ")));
        }
        for (label, text) in facts {
            let columns = surface.columns.saturating_sub(INDENT.len());
            lines.extend(hanging(label, &text, columns).into_iter().map(|line| format!("{INDENT}{line}")));
        }
    }
    lines.push(String::new());
    lines.push(surface.paint(Paint::Strong, "named only: their memory is on the row anonymous"));
    for (kind, label) in [("allocator", "allocators: "), ("runtime", "runtimes: ")] {
        lines.extend(hanging(&format!("  {label}"), &named_only(views, kind), surface.columns));
    }
    let note = "recognised by mapped files, symbols and strings; --json lists these for each";
    lines.extend(wrap(note, surface.columns));
    joined(&lines)
}

/// The titles of the readers of this kind that are only recognised.
fn named_only(views: &[ReaderView], kind: &str) -> String {
    let titles =
        views.iter().filter(|reader| reader.kind == kind && !reader.is_read).map(|reader| reader.title);
    titles.collect::<Vec<_>>().join(", ")
}

/// The versions and remedies as a Markdown table, for README.md.
pub fn markdown(views: &[ReaderView]) -> String {
    let mut text = format!("{MARKDOWN_HEAD}\n|---|---|---|---|\n");
    for reader in views.iter().filter(|reader| reader.is_read) {
        text += &format!("{}\n", markdown_row(reader));
    }
    text
}

/// The same with what is not read, and the entries that are named only, for docs/supported.md.
pub fn markdown_details(views: &[ReaderView]) -> String {
    let mut text = format!("{MARKDOWN_HEAD} not read of it |\n|---|---|---|---|---|\n");
    for reader in views.iter().filter(|reader| reader.is_read) {
        text += &format!("{} {} |\n", markdown_row(reader), reader.not_read);
    }
    text += &format!("\nNamed only, allocators: {}.\n", named_only(views, "allocator"));
    text += &format!("\nNamed only, runtimes: {}.\n", named_only(views, "runtime"));
    text
}

const MARKDOWN_HEAD: &str = "| read | versions | `reclaim` applies | advice only |";

/// The cells that both tables have.
fn markdown_row(reader: &ReaderView) -> String {
    let advice: Vec<&str> =
        reader.remedies.iter().copied().filter(|id| !reader.applied_remedies.contains(id)).collect();
    let versions = reader.versions.unwrap_or_default();
    format!(
        "| {} | {versions} | {} | {} |",
        reader.title,
        markdown_ids(&reader.applied_remedies),
        markdown_ids(&advice)
    )
}

/// Names of remedies as code; a dash for an empty list.
fn markdown_ids(ids: &[&str]) -> String {
    if ids.is_empty() {
        return "–".to_owned();
    }
    ids.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use strandline_claims::remedy::Spec;

    use super::*;

    static READ: ReaderInfo = ReaderInfo {
        name: "one",
        title: "One",
        versions: "1 to 3",
        remedies: &[Spec::next_start("one_trim", "")],
        ..ReaderInfo::NONE
    };
    static NAMED: ReaderInfo = ReaderInfo { name: "two", title: "Two", ..ReaderInfo::NONE };

    #[test]
    fn read_and_named_programs_are_separate_lists() {
        let all = [ReaderView::new(&READ, "allocator"), ReaderView::new(&NAMED, "runtime")];
        let text = readers(&all, Surface { columns: 60, has_colour: false });
        let (read, named) = text.split_once("named only").unwrap();
        assert!(read.contains("One (one) 1 to 3") && read.contains("remedies: one_trim"), "{text}");
        assert!(named.contains("runtimes: Two") && !read.contains("Two"), "{text}");
        assert!(text.lines().all(|line| crate::text::width(line) <= 60), "{text}");
        assert!(markdown(&all).ends_with("| One | 1 to 3 | – | `one_trim` |\n"));
        assert!(markdown_details(&all).contains("| One | 1 to 3 | – | `one_trim` | its structures"));
        assert!(markdown_details(&all).ends_with("Named only, runtimes: Two.\n"));
    }
}
