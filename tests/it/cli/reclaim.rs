//! `reclaim PID`: predicted beside actual, and refusals that say why.

#![cfg(test)]

use crate::support::recording::{has, is_root, program};
use crate::support::{Subject, here, strandline};

#[test]
fn a_fragmented_heap_gives_back_what_was_predicted() {
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
fn a_dry_run_gives_nothing_back() {
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

#[test]
fn a_process_that_is_not_there_is_status_3() {
    strandline::run(&["reclaim", "2147483647"]).unwrap().complains(3, &["2147483647"]).unwrap();
}

/// As Docker's and Kubernetes' default is: the call is made where the filter is seen to let it through, and not else.
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
    let refused = strandline::run(&["reclaim", "--remedy", "malloc_trim", &deadly.pid_text()]).unwrap();
    refused.complains(3, &["a seccomp filter that may not let madvise through"]).unwrap();
    assert!(deadly.finish().unwrap().success(), "it would have been killed");
}

#[test]
fn a_seccomp_filter_that_cannot_be_read_is_not_called_through() {
    let test = here!();
    if !is_root(test) || !has(test, "setpriv") {
        return;
    }
    let subject = Subject::start("guarded", &["filtered"]).unwrap();
    for words in [["reclaim", "--remedy", "malloc_trim"], ["explain", "--photograph", "--json"]] {
        let mut without = std::process::Command::new("setpriv");
        without.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]).arg(program());
        without.args(words).arg(subject.pid_text());
        let run = strandline::run_command(without).unwrap();
        run.complains(3, &["a seccomp filter that cannot be read", "CAP_SYS_ADMIN"]).unwrap();
    }
    assert!(subject.finish().unwrap().success());
}
