//! Runs of strandline's own studies, and their results.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::lab::Lab;
use crate::support::{Result, full, skipped};

/// Results of a study.
#[derive(Debug)]
pub struct Studied {
    /// Whether all of it was run, not the short form.
    pub is_full: bool,
    pub document: Value,
    /// Claims by id: the verdict, and the reason.
    pub verdicts: BTreeMap<String, (String, String)>,
}

/// The folder of the study `name`.
pub fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("studies").join(name)
}

/// Runs the study `name` with more arguments: its short form, or all of it in full mode.
pub fn short(name: &str, arguments: &[&str]) -> Result<Studied> {
    run(name, arguments, full())
}

/// Runs the study `name` with more arguments: its short form, and all of it in full mode.
pub fn forms(name: &str, arguments: &[&str]) -> Result<Vec<Studied>> {
    let forms: &[bool] = if full() { &[false, true] } else { &[false] };
    forms.iter().map(|&is_full| run(name, arguments, is_full)).collect()
}

/// Runs one form of a study, without a time limit: a study has its own.
fn run(name: &str, arguments: &[&str], is_full: bool) -> Result<Studied> {
    let lab = Lab::new()?;
    let path = folder(name).display().to_string();
    let form: &[&str] = if is_full { &["--yes"] } else { &["--short", "--yes"] };
    let output = lab.command(&[&["--json", "study", &path], form, arguments].concat()).output()?;
    if !output.status.success() {
        return Err(format!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into());
    }
    let document: Value = serde_json::from_slice(&output.stdout)?;
    let mut verdicts = BTreeMap::new();
    for claim in document["claims"].as_array().ok_or("no claims")? {
        let text = |key: &str| claim[key].as_str().unwrap_or_default().to_owned();
        verdicts.insert(text("id"), (text("verdict"), text("reason")));
    }
    Ok(Studied { is_full, document, verdicts })
}

/// Tools without which none of a group of claims can be judged.
pub type Tools<'a> = &'a [&'a str];

impl Studied {
    /// Returns the claims of `ids` that were judged, and reports others as skipped by `test` if
    /// something that can be installed is missing. It is an error if none was judged, unless one of
    /// `tools` is missing.
    pub fn judged<'a>(&self, test: &str, ids: &[&'a str], tools: Tools<'_>) -> Result<Vec<&'a str>> {
        let mut judged = Vec::new();
        for id in ids {
            match self.verdicts.get(*id) {
                Some((verdict, reason)) if verdict == "not_run" && reason.contains("install") => {
                    skipped(&format!("{test}, {id}"), reason);
                }
                _ => judged.push(*id),
            }
        }
        let is_missing = |tool: &&str| Command::new(tool).arg("--version").output().is_err();
        if judged.is_empty() && !tools.iter().any(is_missing) {
            return Err(format!("none of {ids:?} was judged, and all of {tools:?} are here").into());
        }
        Ok(judged)
    }

    /// Asserts that each of these claims has this verdict; lists those with another.
    pub fn assert(&self, verdict: &str, ids: &[&str]) {
        let has_other_verdict =
            |id: &&&str| self.verdicts.get(**id).is_none_or(|(found, _)| found != verdict);
        let others: Vec<String> = ids
            .iter()
            .filter(has_other_verdict)
            .map(|id| match self.verdicts.get(*id) {
                Some((found, reason)) => format!("{id}: {found}: {reason}"),
                None => format!("{id}: no such claim"),
            })
            .collect();
        assert!(others.is_empty(), "not {verdict}:\n{}", others.join("\n"));
    }

    /// Asserts that no other claims exist, so that a new claim cannot lack an expected verdict.
    pub fn assert_no_others(&self, lists: &[&[&str]]) {
        let known: Vec<&str> = lists.concat();
        let others: Vec<&String> = self.verdicts.keys().filter(|id| !known.contains(&id.as_str())).collect();
        assert!(others.is_empty(), "claims without an assertion: {others:?}");
    }
}
