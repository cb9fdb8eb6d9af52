//! The study `sbcl-actor` in its short form, and its actor by itself.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::recording::finish;
use crate::support::studied::{Studied, folder, forms, short};
use crate::support::{Outcome, Result, full, here, runs_long_studies, skipped};

/// Effects of collections and contents of the heap: independent of the machine's load.
const HOLD: &[&str] = &[
    "gc-gen-2-frees",
    "rule-tells-what-gc-leaves",
    "samples-tell-the-share",
    "survivors-are-dead",
    "no-path",
    "ledger-agrees-with-sbcl",
    "ledger-calls-it-dead",
    "ledger-finds-the-dead-in-older-generations",
    "ledger-predicts-gc-full",
];

/// Contradicts the author: SBCL collects older generations in a program whose objects survive.
const FAIL: &[&str] = &["working-programs-do-not-reach-it"];

/// May hold or fail: they depend on times, the version of SBCL, the length of the queue, or which
/// collection came last, which differ in each run. `rule-tells-what-gc-leaves` asserts the deciding
/// rule.
const EITHER: &[&str] = &[
    "gc-full-frees",
    "survivors-are-messages-to-the-byte",
    "queue-grows",
    "message-size",
    "memory-stays",
    "memory-stays-as-published",
    "gc-alone-does-not",
    "regular-collections-do-not-reach-it",
    "rule-tells-what-regular-collections-leave",
    "samples-are-messages",
    "survivors-are-messages",
    "survivors-are-old",
    "pauses-keep-memory-low",
    "bound-keeps-memory-low",
    "pauses-cut-gc-time",
    "pauses-cut-gc-time-by-far",
    "bound-cuts-gc-time",
    "pauses-are-faster",
    "pauses-are-not-slower",
    "pauses-take-less-time",
    "some-pause-is-faster",
    "bound-is-faster",
    "pauses-cost-elsewhere",
    "pauses-cut-cpu-time",
    "same-bytes",
    "ledger-predicts-what-is-given-back",
];

/// Depends on figures that SBCLs before 2.3.7 do not count.
const BY_VERSION: &[&str] = &["pauses-cut-gc-real-time"];

fn has_sbcl(test: &str) -> bool {
    let found = Command::new("sbcl").arg("--version").output().is_ok();
    if !found {
        skipped(test, "no sbcl (apt-get install sbcl)");
    }
    found
}

/// Asserts the verdict of each claim.
fn check_verdicts(studied: &Studied) {
    studied.assert("holds", HOLD);
    studied.assert("fails", FAIL);
    studied.assert_no_others(&[HOLD, FAIL, EITHER, BY_VERSION]);
    let is_unjudged = |id: &&&str| studied.verdicts.get(**id).is_none_or(|(verdict, _)| verdict == "not_run");
    let unjudged: Vec<_> = EITHER.iter().filter(is_unjudged).collect();
    assert!(unjudged.is_empty(), "not judged: {unjudged:?}");
}

/// Paths of all SBCLs of `scripts/fetch-sbcls`; reports why there are none.
fn fetched(test: &str) -> Vec<PathBuf> {
    let reason = match std::env::var_os("STRANDLINE_SBCLS") {
        _ if !full() => "STRANDLINE_FULL=1 is not set (make test-full)".to_owned(),
        None => "STRANDLINE_SBCLS does not name a folder of scripts/fetch-sbcls".to_owned(),
        Some(folder) => {
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let sbcls = entries.map(|entry| entry.path().join("sbcl")).filter(|path| path.is_file());
            let sbcls: Vec<PathBuf> = sbcls.collect();
            if !sbcls.is_empty() {
                return sbcls;
            }
            format!("no SBCL in {}", folder.display())
        }
    };
    skipped(&format!("{test} with other SBCLs"), &reason);
    Vec::new()
}

/// The median of a metric in the cell of a subject and a mode.
fn median(studied: &Studied, subject: &str, mode: &str, metric: &str) -> Result<f64> {
    let cells = studied.document["cells"].as_array().ok_or("no cells")?;
    let is_it = |cell: &&Value| cell["axes"]["subject"] == subject && cell["axes"]["mode"] == mode;
    let cell = cells.iter().find(is_it).ok_or_else(|| format!("no cell {subject} {mode}"))?;
    let value = cell["metrics"][metric]["median"].as_f64();
    value.ok_or_else(|| format!("no {metric} in {subject} {mode}: {}", cell["not_run"]).into())
}

#[test]
fn claims_have_their_expected_verdicts() -> Outcome {
    if !has_sbcl(here!()) || !runs_long_studies(here!()) {
        return Ok(());
    }
    for studied in forms("sbcl-actor", &[])? {
        check_form(&studied)?;
    }
    Ok(())
}

/// Asserts the verdicts and figures of one form.
fn check_form(studied: &Studied) -> Outcome {
    check_verdicts(studied);
    // The share that gc-full-frees reports depends on the length of the queue; the bytes do not.
    for mode in ["unthrottled", "paused", "bounded"] {
        let left = median(studied, "remedies", mode, "left_by_gc_full_bytes")?;
        assert!(left < 1e6, "{mode}: {left} bytes of dynamic space");
        let of_rss = |metric: &str| median(studied, "remedies", mode, metric);
        let left = of_rss("rss_left_by_gc_full")? * of_rss("grown_rss_bytes")?;
        assert!(left < 4e6, "{mode}: {left} bytes of RSS");
    }
    // The number of messages that survive to an older generation depends on its last collection;
    // the bytes of each there do not.
    let beyond = median(studied, "look", "unthrottled", "older_bytes_beyond_messages")?;
    assert!(beyond.abs() < 2e6, "{beyond} bytes beyond 144 a message");

    // Each of eight producers may have checked the queue before the others sent.
    let longest = median(studied, "times", "bounded", "longest_queue_messages")?;
    assert!(longest <= 1008.0, "{longest} messages in a queue for 1,000");
    // Equal bytes with and without pauses, except for what threads leave behind: an absolute
    // amount, not a share.
    let with_pauses = median(studied, "times", "paused", "consed_bytes")?;
    let without = median(studied, "times", "unthrottled", "consed_bytes")?;
    assert!((with_pauses - without).abs() < 1e7, "{with_pauses} bytes with pauses, {without} without");
    // Back at the starting size: the objects of the core, and little else.
    let start = median(studied, "remedies", "unthrottled", "start.dynamic_bytes")?;
    let full = median(studied, "remedies", "unthrottled", "gc_full.dynamic_bytes")?;
    assert!((full - start).abs() < 1e6, "{start} at the start, {full} after a full collection");
    Ok(())
}

#[test]
fn claims_of_other_sbcls_have_their_expected_verdicts() -> Outcome {
    for sbcl in fetched(here!()) {
        eprintln!("{}", sbcl.display());
        check_verdicts(&short("sbcl-actor", &["--axis", &format!("sbcl={}", sbcl.display())])?);
    }
    Ok(())
}

/// Runs the actor with these arguments and returns its output.
fn actor(arguments: &[&str]) -> Result<Value> {
    let mut command = Command::new("sbcl");
    command.args(["--dynamic-space-size", "1GB", "--script"]);
    command.arg(folder("sbcl-actor").join("actor.lisp"));
    command.arg(format!("probe={}", folder("../probes/lisp/strandline.lisp").display()));
    command.args(arguments);
    let ended = finish(command, b"")?;
    if ended.how() != 0 {
        return Err(format!("{arguments:?} ended with {}: {}", ended.how(), ended.complaint()).into());
    }
    Ok(serde_json::from_slice(&ended.stdout)?)
}

/// A queue bound so small that all producers wait in turn: none waits for ever, and no message is
/// lost.
#[test]
fn the_smallest_bound_loses_no_message() -> Outcome {
    if !has_sbcl(here!()) {
        return Ok(());
    }
    for bound in [1, 2, 3] {
        let printed = actor(&["mode=bounded", &format!("bound={bound}"), "messages=8000"])?;
        assert_eq!(printed["messages"], 8_000, "{bound}");
        let longest = printed["longest_queue_messages"].as_u64().unwrap_or(u64::MAX);
        assert!(longest <= bound + 8, "{bound}: {longest}");
    }
    Ok(())
}

/// Every message is handled once, in every mode, and none is left.
#[test]
fn every_message_is_handled_once_in_every_mode() -> Outcome {
    if !has_sbcl(here!()) {
        return Ok(());
    }
    for mode in ["unthrottled", "paused", "paused-unscaled", "bounded"] {
        let printed = actor(&[&format!("mode={mode}"), "messages=40000", "bound=100", "then=look"])?;
        assert_eq!(printed["messages"], 40_000, "{mode}");
        assert_eq!(printed["found_paths"], 0, "{mode}");
        assert_eq!(printed["searched_messages"], printed["sampled_messages"], "{mode}");
        assert_eq!(printed["found_paths_to_a_kept_message"], 1, "{mode}");
        assert_eq!(printed["heap_after_gc_full"]["messages"], 0, "{mode}");
        let longest = printed["longest_queue_messages"].as_u64().unwrap_or(u64::MAX);
        assert!(mode != "bounded" || longest <= 108, "{mode}: {longest}");
    }
    Ok(())
}
