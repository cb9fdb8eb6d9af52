//! Default screens are short, and `-v` shows the omitted parts.

#![cfg(test)]

use std::process::Command;

use serde_json::Value;

use crate::support::perl::start as start_perl;
use crate::support::{Outcome, Result, Subject, here, perls, pythons, strandline};

const PYTHON: &str = "kept = [{'a': str(n), 'b': [n, n + 1]} for n in range(20000)]; \
                      freed = [str(n) * 9 for n in range(99999)]; del freed; print('{}', flush=True); input()";

/// Processes with different allocators and runtimes.
fn subjects() -> Result<Vec<Subject>> {
    let mut all = vec![Subject::idle()?, Subject::demo(16)?];
    if let Some(python) = pythons::all(here!()).into_iter().next() {
        let mut command = Command::new(python);
        command.args(["-c", PYTHON]);
        all.push(Subject::start_command(command)?);
    }
    if let Some(perl) = perls::all(here!()).into_iter().next() {
        all.push(start_perl(&perl, "functions")?);
    }
    Ok(all)
}

/// Runs a command, checks that its output fits into `lines` lines of 80 columns, and returns it.
fn screen(arguments: &[&str], lines: usize) -> Result<String> {
    let run = strandline::run(arguments)?;
    let is_wide = run.stdout.lines().any(|line| line.chars().count() > 80);
    let is_right = run.status == Some(0) && !is_wide && run.stdout.lines().count() <= lines;
    if is_right { Ok(run.stdout) } else { Err(format!("{arguments:?}: {}", run.stdout).into()) }
}

/// The values of `field` in a list of a document, except rows of pages that the kernel may drop
/// between two reads, and remedies without effect.
fn each<'a>(document: &'a Value, list: &str, field: &str) -> Vec<&'a str> {
    let items = document[list].as_array().map_or(&[][..], Vec::as_slice);
    let lasting = items.iter().filter(|item| item["state"] != "evictable" && item["predicted_bytes"] != 0);
    lasting.filter_map(|item| item[field].as_str()).collect()
}

#[test]
fn a_screen_of_explain_is_short_and_verbose_has_the_rest() -> Outcome {
    for subject in subjects()? {
        subject.at_rest()?;
        let pid = subject.pid_text();
        let document = strandline::json(&["explain", "--json", &pid])?;
        let text = screen(&["explain", &pid], 40)?;
        let last = text.lines().last().unwrap_or_default();
        if !last.contains("stopped") || !last.contains(" read") || !text.contains("\nnext   strandline ") {
            return Err(text.into());
        }
        let details = screen(&["explain", "--verbose", &pid], usize::MAX)?;
        let parts = [("rows", "id"), ("remedies", "id"), ("caveats", "code"), ("allocators", "name")];
        let wanted = parts.iter().flat_map(|(list, field)| each(&document, list, field));
        let missing = wanted.filter(|word| !details.contains(word)).collect::<Vec<_>>();
        if !missing.is_empty() || !details.contains("arena") || !details.contains("PSS") {
            return Err(format!("no {missing:?}: {details}").into());
        }
    }
    Ok(())
}

#[test]
fn a_screen_of_holders_is_short_and_verbose_has_the_rest() -> Outcome {
    for subject in subjects()? {
        let pid = subject.pid_text();
        let text = screen(&["holders", &pid], 40)?;
        if !text.contains("retained") || !text.contains(&format!("strandline holders -v {pid}")) {
            return Err(text.into());
        }
        let details = screen(&["holders", "-v", &pid], usize::MAX)?;
        if !details.contains("retained: what a root alone holds") {
            return Err(details.into());
        }
        screen(&["holders", "--top", "3", &pid], 40)?;
    }
    Ok(())
}

#[test]
fn a_screen_of_reclaim_is_short_and_verbose_has_exact_figures() -> Outcome {
    let subject = Subject::demo(16)?;
    let pid = subject.pid_text();
    let predicted = strandline::json(&["reclaim", "--dry-run", "--json", &pid])?["predicted_bytes"].as_u64();
    let details = screen(&["reclaim", "--dry-run", "-v", &pid], usize::MAX)?.replace(',', "");
    if !predicted.is_some_and(|bytes| details.contains(&format!("{bytes} bytes"))) {
        return Err(format!("no {predicted:?}: {details}").into());
    }
    let text = screen(&["reclaim", &pid], 8)?;
    let is_right = text.starts_with("malloc_trim released ") && text.contains(" predicted (");
    if is_right && text.contains("\nRSS ") { Ok(()) } else { Err(text.into()) }
}
