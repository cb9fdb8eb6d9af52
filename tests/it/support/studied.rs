//! Runs of the studies that come with strandline, and what came of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::lab::Lab;
use crate::support::{Result, full, skipped};

/// What came of a study's run.
#[derive(Debug)]
pub struct Studied {
    /// The document.
    pub document: Value,
    /// Claims by id: the verdict, and the reason.
    pub verdicts: BTreeMap<String, (String, String)>,
}

/// The folder of the study `name`.
pub fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("studies").join(name)
}

/// Runs the study `name`, with more arguments: its short form, or all of it where all is tested. However long that
/// takes: a study has time limits of its own.
pub fn short(name: &str, arguments: &[&str]) -> Result<Studied> {
    let lab = Lab::new()?;
    let path = folder(name).display().to_string();
    let form: &[&str] = if full() { &["--yes"] } else { &["--short", "--yes"] };
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
    Ok(Studied { document, verdicts })
}

/// What has to be installed for any of some claims to be judged.
pub type Tools<'a> = &'a [&'a str];

impl Studied {
    /// Those of `ids` that were judged, of which `test` names the others, where something is missing here that can be installed.
    /// That none was judged is an error, but where one of `tools` is missing, without which none can be.
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

    /// Asserts that each of these claims has this verdict; names all that have not.
    pub fn assert(&self, verdict: &str, ids: &[&str]) {
        let is_other = |id: &&&str| self.verdicts.get(**id).is_none_or(|(found, _)| found != verdict);
        let others: Vec<String> = ids
            .iter()
            .filter(is_other)
            .map(|id| match self.verdicts.get(*id) {
                Some((found, reason)) => format!("{id}: {found}: {reason}"),
                None => format!("{id}: no such claim"),
            })
            .collect();
        assert!(others.is_empty(), "not {verdict}:\n{}", others.join("\n"));
    }

    /// Asserts that no claims but these exist, so that none is added without a word on what it should say here.
    pub fn assert_no_others(&self, lists: &[&[&str]]) {
        let known: Vec<&str> = lists.concat();
        let others: Vec<&String> = self.verdicts.keys().filter(|id| !known.contains(&id.as_str())).collect();
        assert!(others.is_empty(), "claims nobody asserts anything of: {others:?}");
    }
}
