//! `reclaim PID`: predicted and actual bytes, and refusals with their reason.

#![cfg(test)]

use std::process::Command;

use serde_json::Value;

use crate::support::recording::{has, is_root, program};
use crate::support::{
    Folder, Outcome, Result, Subject, for_any, gos, here, polars, skipped, strandline, subject,
};

#[test]
fn a_fragmented_heap_releases_the_predicted_bytes() {
    let subject = Subject::demo(48).unwrap();
    subject.at_rest().unwrap();
    let run =
        strandline::run(&["reclaim", "--remedy", "malloc_trim", "--json", &subject.pid_text()]).unwrap();
    let document = run.document().unwrap();
    assert_eq!(document["schema"], "strandline/reclaim/1");
    assert_eq!((run.status, document["outcome"].as_str()), (Some(0), Some("done")), "{document:#}");
    let bytes = |field: &str| document[field].as_u64().unwrap();
    assert!(bytes("predicted_bytes") > 30 << 20, "most of 48 MiB was freed");
    assert_eq!(bytes("predicted_bytes"), bytes("actual_bytes"));
    assert!(bytes("rss_after_bytes") < bytes("rss_before_bytes"));
    for moment in ["before", "after"] {
        assert!(document[moment]["kernel"]["rss_bytes"].is_u64(), "{moment}");
    }
}

#[test]
fn a_dry_run_releases_nothing() {
    let subject = Subject::demo(8).unwrap();
    subject.at_rest().unwrap();
    let anonymous = || {
        let document =
            strandline::run(&["explain", "--json", &subject.pid_text()]).unwrap().document().unwrap();
        document["kernel"]["anonymous_bytes"].as_u64().unwrap()
    };
    let before = anonymous();
    let run = strandline::run(&["reclaim", "--dry-run", "--json", &subject.pid_text()]).unwrap();
    assert_eq!(run.document().unwrap()["dry_run"], true);
    assert!(anonymous() >= before);
}

/// Releasing pages shared with children frees no memory of the machine, and zero pages in free heap
/// memory are counted for one remedy only.
#[test]
fn sharing_and_overlap_are_reported() -> Outcome {
    let subject = Subject::start("shared_zeros", &[])?;
    let (shared, own, others) =
        (subject.number("shared")?, subject.number("own")?, subject.number("others")?);
    let offered = |id: &str| -> Result<Value> {
        let document = strandline::explain(subject.pid())?;
        let all = document["remedies"].as_array().ok_or("no remedies")?;
        all.iter().find(|remedy| remedy["id"] == id).cloned().ok_or_else(|| format!("{document:#}").into())
    };
    let reclaim = |arguments: &[&str]| -> Result<Value> {
        let pid = subject.pid_text();
        let document =
            strandline::run(&[&["reclaim", "--json"], arguments, &[pid.as_str()]].concat())?.document()?;
        if document["outcome"] == "done" { Ok(document) } else { Err(document.to_string().into()) }
    };
    let number = subject::number;
    let zeros = offered("zero_pages")?;
    let (predicted, of_machine) =
        (number(&zeros, "predicted_bytes")?, number(&zeros, "predicted_pss_bytes")?);
    let after_trim = number(&zeros, "predicted_after_better_bytes");
    let trim = offered("malloc_trim")?;
    let after_zeros = number(&trim, "predicted_after_better_bytes")?;
    assert!(predicted >= shared + own && predicted - of_machine >= shared, "{zeros:#}");
    let cost = zeros["cost"].as_str().unwrap_or_default();
    assert!(cost.contains(&format!("shared with {others} other processes")), "{cost}");
    assert_eq!(after_trim?, predicted, "it is the best");

    let done = reclaim(&["--remedy", "zero_pages", "--allow-lost-write-risk"])?;
    assert_eq!(number(&done, "actual_bytes")?, number(&done, "predicted_bytes")?, "{done:#}");
    let (predicted, actual) = (number(&done, "predicted_pss_bytes")?, number(&done, "actual_pss_bytes")?);
    assert!(predicted.abs_diff(actual) <= predicted / 50, "{predicted} of the machine's, {actual} in fact");
    let done = reclaim(&["--remedy", "malloc_trim"])?;
    assert_eq!(number(&done, "actual_bytes")?, after_zeros, "{done:#}");
    assert!(after_zeros < number(&trim, "predicted_bytes")?, "half of the free heap was zeros");
    Ok(())
}

/// Threads of a Go program wait inside Go's code, which has no unwind tables: a dry run refuses for
/// this reason too, and does not advise a longer wait.
#[test]
fn a_program_of_go_and_c_is_refused_by_a_dry_run_too() -> Outcome {
    let folder = Folder::new("cgo")?;
    let source = folder.0.join("cgo.go");
    std::fs::write(&source, CGO)?;
    for_any(gos::all(here!()), |(version, go)| {
        let program = folder.0.join(format!("cgo-{version}"));
        let mut build = Command::new(go);
        build.arg("build").arg("-o").arg(&program).arg(&source).current_dir(&folder.0);
        build.envs([("GOTOOLCHAIN", "local"), ("CGO_ENABLED", "1"), ("GOFLAGS", "-mod=mod")]);
        if !build.status()?.success() {
            return Err("cgo.go cannot be built".into());
        }
        let subject = Subject::start_command(Command::new(&program))?;
        let pid = subject.pid_text();
        for words in [
            &["reclaim", "--remedy", "malloc_trim"][..],
            &["reclaim", "--dry-run", "--remedy", "malloc_trim"],
        ] {
            let run = strandline::run(&[words, &["--wait", "600", &pid]].concat())?;
            run.complains(3, &["unwind tables", "C.malloc_trim(0)"])?;
            if run.stderr.contains("--wait") {
                return Err(format!("waiting does not help: {}", run.stderr).into());
            }
        }
        Ok(())
    })
}

/// Threads wait in C on stacks that start in Go code; C has freed 50 MB.
const CGO: &str = r#"package main

/*
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void hold(void) { for (;;) pause(); }
static void fill(void) {
  static char *all[50000];
  for (int i = 0; i < 50000; i++) all[i] = memset(malloc(1000), 7, 1000);
  for (int i = 0; i < 50000; i++) if (i % 1000) free(all[i]);
}
*/
import "C"

import (
	"fmt"
	"os"
)

func main() {
	for i := 0; i < 20; i++ {
		go C.hold()
	}
	C.fill()
	fmt.Println("ready")
	os.Stdin.Read(make([]byte, 1))
}
"#;

/// The thread variables of polars' jemalloc are placed by the linker, so no thread's state is
/// known: the main thread makes the call.
#[test]
fn an_allocator_without_readable_thread_state_is_purged_by_the_main_thread() -> Outcome {
    let Some(subject) = polars::start(here!(), None)? else { return Ok(()) };
    subject.at_rest()?;
    let pid = subject.pid_text();
    let words = ["reclaim", "--remedy", "jemalloc_purge", "--json"];
    let dry = strandline::json(&[&words[..], &["--dry-run", &pid]].concat())?;
    let done = strandline::json(&[&words[..], &[&pid]].concat())?;
    let bytes = |document: &Value, field: &str| {
        document[field].as_u64().ok_or_else(|| format!("{field}: {document}"))
    };
    let (predicted, actual) = (bytes(&done, "predicted_bytes")?, bytes(&done, "actual_bytes")?);
    if bytes(&dry, "predicted_bytes")? < 50 << 20 || predicted.abs_diff(actual) > predicted / 100 {
        return Err(format!("{} and {predicted} predicted, {actual} in fact", dry["predicted_bytes"]).into());
    }
    if subject.finish()?.success() { Ok(()) } else { Err("the subject found an error".into()) }
}

#[test]
fn a_missing_process_is_status_3() {
    strandline::run(&["reclaim", "2147483647"]).unwrap().complains(3, &["2147483647"]).unwrap();
}

/// Under a filter like the default one of Docker and Kubernetes, strandline makes the call only
/// after it has read that the filter allows it.
#[test]
fn a_seccomp_filter_is_read_before_it_is_called_through() {
    let reclaim = ["reclaim", "--remedy", "malloc_trim", "--json"];
    let subject = Subject::start("guarded", &["filtered"]).unwrap();
    subject.at_rest().unwrap();
    let document =
        strandline::run(&[&reclaim[..], &[&subject.pid_text()]].concat()).unwrap().document().unwrap();
    let bytes = |field: &str| document[field].as_u64().unwrap();
    assert_eq!(document["outcome"], "done", "{document:#}");
    assert!(bytes("actual_bytes") > 0 && bytes("predicted_bytes") == bytes("actual_bytes"), "{document:#}");

    let deadly = Subject::start("guarded", &["seccomp"]).unwrap();
    for words in [&["reclaim"][..], &["reclaim", "--dry-run"]] {
        let pid = deadly.pid_text();
        let words = [words, &["--remedy", "malloc_trim", &pid]].concat();
        let refused = strandline::run(&words).unwrap();
        refused.complains(3, &["a seccomp filter that may not let madvise through"]).unwrap();
    }
    assert!(deadly.finish().unwrap().success(), "the filter would have killed the process");
}

#[test]
fn a_thread_under_syscall_user_dispatch_makes_no_call() {
    let Ok(subject) = Subject::start("guarded", &["dispatch"]) else {
        return skipped(here!(), "not here: Syscall User Dispatch");
    };
    let run = strandline::run(&["reclaim", "--remedy", "malloc_trim", &subject.pid_text()]).unwrap();
    run.complains(3, &["Syscall User Dispatch"]).unwrap();
    assert!(subject.finish().unwrap().success());
}

#[test]
fn a_seccomp_filter_that_cannot_be_read_is_not_called_through() {
    let test = here!();
    if !is_root(test) || !has(test, "setpriv") {
        return;
    }
    let subject = Subject::start("guarded", &["filtered"]).unwrap();
    for words in [["reclaim", "--remedy", "malloc_trim"], ["explain", "--snapshot", "--json"]] {
        let mut without = std::process::Command::new("setpriv");
        without.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]).arg(program());
        without.args(words).arg(subject.pid_text());
        let run = strandline::run_command(without).unwrap();
        run.complains(3, &["a seccomp filter that cannot be read", "CAP_SYS_ADMIN"]).unwrap();
    }
    assert!(subject.finish().unwrap().success());
}

#[test]
fn nothing_is_written_below_an_alternate_stack_among_live_frames() -> Outcome {
    let mut subject = Subject::start("alternate_inside", &[])?;
    let pid = subject.pid_text();
    let unharmed = |subject: &mut Subject| -> Outcome {
        let report = subject.ask(b'c')?;
        if report["wrong"] == 0 {
            Ok(())
        } else {
            Err(format!("the subject's frames have changed: {report}").into())
        }
    };
    for _ in 0..3 {
        let call = strandline::run(&["reclaim", "--remedy", "malloc_trim", "--wait", "0.3", &pid])?;
        unharmed(&mut subject)?;
        call.complains(3, &["no safe thread"])?;
        let snapshot = strandline::run(&["explain", "--snapshot=always", &pid])?;
        unharmed(&mut subject)?;
        snapshot.complains(3, &["--snapshot=try"])?;
    }
    // The process can be read.
    strandline::explain(subject.pid())?;
    unharmed(&mut subject)
}
