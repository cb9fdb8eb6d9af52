//! `reclaim PID`: predicted beside actual, and refusals that say why.

use crate::cli_support::{Subject, skip, strandline};

#[test]
fn a_fragmented_heap_gives_back_what_was_predicted() {
    let subject = Subject::fragmented(48);
    let run = strandline(&["reclaim", "--remedy", "malloc_trim", "--json", &subject.pid()]);
    let document = run.document();
    assert_eq!(document["schema"], "strandline/reclaim/1");
    if document["outcome"] == "refused" {
        run.complains(3, document["reason"].as_str().unwrap());
        skip("a_fragmented_heap_gives_back_what_was_predicted", document["reason"].as_str().unwrap());
        return;
    }
    assert_eq!((run.status, document["outcome"].as_str()), (0, Some("done")), "{document:#}");
    let bytes = |field: &str| document[field].as_u64().unwrap();
    assert!(bytes("predicted_bytes") > 30 << 20, "most of 48 MiB was freed");
    assert_eq!(bytes("predicted_bytes"), bytes("actual_bytes"));
    assert!(bytes("rss_after_bytes") < bytes("rss_before_bytes"));
    for moment in ["before", "after"] {
        assert!(document[moment]["kernel"]["rss_bytes"].is_u64(), "{moment}");
    }
}

#[test]
fn a_dry_run_changes_nothing() {
    let subject = Subject::fragmented(8);
    let rss = || {
        let document = strandline(&["explain", "--json", &subject.pid()]).document();
        document["kernel"]["rss_bytes"].as_u64().unwrap()
    };
    let before = rss();
    let run = strandline(&["reclaim", "--dry-run", "--json", &subject.pid()]);
    assert_eq!(run.document()["dry_run"], true);
    assert_eq!(rss(), before);
}

#[test]
fn a_process_that_is_not_there_is_status_3() {
    strandline(&["reclaim", "2147483647"]).complains(3, "2147483647");
}
