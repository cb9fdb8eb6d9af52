//! Documents stay within their length, and describe every field of the JSON documents.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::memory_group::MemoryGroup;
use crate::support::{Folder, Outcome, Result, Subject, strandline};

/// Bounds in words.
const MAX_README: usize = 1_600;
const MAX_GUIDE: usize = 5_000;
const MAX_ALL: usize = 30_000;
/// Documents whose tables are generated, or compared by a test.
const GENERATED_TABLES: [&str; 4] = ["kernels.md", "replay.md", "supported.md", "survey.md"];
/// The document in which a test compares only tables of rows, whose lines begin with a row's name.
const ROW_TABLES: &str = "accounting.md";
/// A generated document.
const REFERENCE: &str = "cli.md";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

/// Words outside of transcripts and generated tables.
fn own_words(name: &str, text: &str) -> usize {
    let mut is_fenced = false;
    let own = text.lines().filter(|line| {
        let is_fence = line.starts_with("```");
        is_fenced ^= is_fence;
        let is_generated = line.starts_with('|') && GENERATED_TABLES.contains(&name)
            || line.starts_with("| `") && name == ROW_TABLES;
        !is_fence && !is_fenced && !is_generated
    });
    own.map(words).sum()
}

#[test]
fn documents_are_short() -> Outcome {
    let readme = words(&fs::read_to_string(root().join("README.md"))?);
    assert!(readme <= MAX_README, "README.md has {readme} words, at most {MAX_README}");
    let guide = fs::read_to_string(root().join("GUIDE.md"))?;
    assert!(words(&guide) <= MAX_GUIDE, "GUIDE.md has {} words, at most {MAX_GUIDE}", words(&guide));
    let mut all = own_words("GUIDE.md", &guide);
    for entry in fs::read_dir(root().join("docs"))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".md") && name != REFERENCE {
            all += own_words(name, &fs::read_to_string(&path)?);
        }
    }
    assert!(all <= MAX_ALL, "GUIDE.md and docs have {all} words, at most {MAX_ALL}");
    Ok(())
}

/// Fields whose own fields are named by data: variables, types, metrics, axes.
const BY_DATA: [&str; 6] = ["settings", "by_type", "metrics", "axes", "published", "texts"];

fn names(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                found.insert(name.clone());
                if !BY_DATA.contains(&name.as_str()) {
                    names(value, found);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| names(value, found)),
        _ => {}
    }
}

#[test]
fn every_field_of_json_is_described() -> Outcome {
    let description = include_str!("../../../docs/schema.md");
    let is_part = |c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-';
    let described: BTreeSet<&str> = description.split(is_part).collect();
    let subject = Subject::start("fragmented", &["20000"])?;
    let pid = subject.pid_text();
    let folder = Folder::new("documents")?;
    let recording = folder.0.join("recording");
    let recording = recording.to_str().ok_or("a folder's name")?;
    strandline::run(&["run", "-o", recording, "--", "sleep", "0.2"])?;
    let before = folder.0.join("before");
    fs::write(&before, strandline::run(&["holders", "--json", &pid])?.stdout)?;
    let since = before.to_str().ok_or("a folder's name")?;
    let lines: [&[&str]; 14] = [
        &["explain", "--holders", &pid],
        &["explain", "--tree", &pid],
        &["holders", "--since", since, &pid],
        &["reclaim", "--dry-run", &pid],
        &["reclaim", &pid],
        &["report", recording],
        &["compare", "--repeat", "2", "true", "true"],
        &["try", "--list"],
        &["study"],
        &["study", "--short", "freed-or-not"],
        &["doctor"],
        &["doctor", "--readers"],
        &["top", "--once"],
        &["top", "--once", "--groups"],
    ];
    let group = MemoryGroup::new("documents");
    let _process = match &group {
        Some(group) => Some(
            group.python("blocks = [bytes(4000) for _ in range(999)]; print(1, flush=True); input()", &[])?,
        ),
        None => None,
    };
    let folder = group.as_ref().map(MemoryGroup::path).unwrap_or_default();
    let of_group: [&[&str]; 2] =
        [&["explain", "--ledgers", "--cgroup", &folder], &["reclaim", "--cgroup", &folder]];
    let of_group = of_group.into_iter().filter(|_| group.is_some());
    for line in lines.into_iter().chain(of_group) {
        let document: Value = described_by(line)?;
        let mut found = BTreeSet::new();
        names(&document, &mut found);
        let missing: Vec<&String> = found.iter().filter(|name| !is_described(name, &described)).collect();
        assert!(missing.is_empty(), "docs/schema.md does not describe {missing:?} of {line:?}");
    }
    Ok(())
}

fn described_by(line: &[&str]) -> Result<Value> {
    strandline::json(&[line, &["--json"]].concat())
}

/// Statistics under an allocator's or runtime's own names have dots.
fn is_described(name: &str, described: &BTreeSet<&str>) -> bool {
    name.split('.').all(|part| described.contains(part))
}
