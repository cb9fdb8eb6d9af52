//! `reclaim` has a listening JVM collect and trim; it sends nothing to a JVM that does not listen.

use serde_json::Value;

use crate::support::jdks::Jdk;
use crate::support::jvm::{classes, reclaim, some, start};
use crate::support::{Outcome, Result, Subject, for_any, full, here, subject};

/// During a request, the JVM touches a page or two and starts threads.
const SLACK_BYTES: u64 = 2 << 20;

fn figures(document: &Value) -> Result<[u64; 4]> {
    let of = |key: &str| subject::number(document, key);
    // Without a figure, nothing is predicted.
    let predicted = if document["predicted_bytes"].is_null() { 0 } else { of("predicted_bytes")? };
    Ok([predicted, of("actual_bytes")?, of("rss_before_bytes")?, of("rss_after_bytes")?])
}

/// A subject that allocated 20 arrays of 5 MiB and dropped 18.
fn dropped(jdk: &Jdk, classes: &std::path::Path, options: &[&str]) -> Result<Subject> {
    let mut subject = start(jdk, classes, options)?;
    for order in ["large 20", "drop"] {
        subject.order(order)?;
    }
    Ok(subject)
}

#[test]
fn a_collection_releases_dropped_objects() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    // Options, whether they are tested in this mode, and the least bytes given back.
    let collectors: [(&[&str], bool, u64); 3] = [
        (&["-XX:+UseG1GC", "-Xms8m"], true, 40 << 20),
        (&["-XX:+UseShenandoahGC", "-Xms8m"], full(), 60 << 20),
        // The initial size equals the maximum: nothing is uncommitted, and nothing may be
        // predicted.
        (&["-XX:+UseShenandoahGC", "-XX:InitialHeapSize=300m", "-XX:MinHeapSize=8m"], full(), 0),
    ];
    let mut cases = Vec::new();
    for jdk in some(test) {
        // Shenandoah of JDK 11 is not read.
        let is_read = |options: &[&str]| jdk.major >= 17 || !options.contains(&"-XX:+UseShenandoahGC");
        let due = collectors.iter().filter(|case| case.1 && is_read(case.0) && jdk.takes(&case.0[..1]));
        cases.extend(due.map(|case| (jdk.clone(), *case)));
    }
    for_any(cases, |(jdk, (options, _, wanted))| {
        let subject = dropped(jdk, &classes, options)?;
        let (status, document) = reclaim(&subject, "jvm_gc")?;
        if status != Some(0) || document["outcome"] != "done" {
            return Err(document.to_string().into());
        }
        let [predicted, actual, before, after] = figures(&document)?;
        // From JDK 27 on G1 shrinks according to its load, and not at once.
        let is_later = options.contains(&"-XX:+UseG1GC") && jdk.major >= 27;
        let is_less = *wanted == 0 || is_later || after < before && actual >= *wanted;
        if predicted > actual + SLACK_BYTES || !is_less {
            return Err(format!("predicted {predicted}, actual {actual}, {before} to {after}").into());
        }
        Ok(())
    })
}

#[test]
fn a_trim_runs_in_the_jvm() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    for_any(some(test), |jdk| {
        let mut subject = start(jdk, &classes, &["-XX:+UseSerialGC"])?;
        subject.order("load 20")?;
        let (status, document) = reclaim(&subject, "jvm_trim")?;
        if status != Some(0) || document["outcome"] != "done" {
            return Err(document.to_string().into());
        }
        // The JVM still answers, and accepts another request.
        subject.order("pools")?;
        let [predicted, actual, ..] = figures(&document)?;
        if predicted > actual + SLACK_BYTES {
            return Err(format!("predicted {predicted}, actual {actual}").into());
        }
        Ok(())
    })
}

/// A JVM that does not listen would end on SIGQUIT (-Xrs), or print a thread dump.
#[test]
fn a_jvm_that_does_not_listen_is_not_attached() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    let options = ["-XX:+DisableAttachMechanism", "-Xrs"];
    let cases = some(test).into_iter().flat_map(|jdk| options.map(|option| (jdk.clone(), option)));
    for_any(cases, |(jdk, option)| {
        let mut subject = start(jdk, &classes, &["-XX:+UseSerialGC", option])?;
        for remedy in ["jvm_gc", "jvm_trim"] {
            let (status, document) = reclaim(&subject, remedy)?;
            let reason = document["reason"].as_str().unwrap_or_default();
            if status != Some(3) || document["outcome"] != "refused" || !reason.contains("-Xrs") {
                return Err(document.to_string().into());
            }
        }
        let lines = subject.order("pools")?;
        if lines.iter().all(|line| line.contains('\t')) { Ok(()) } else { Err(format!("{lines:?}").into()) }
    })
}

#[test]
fn without_a_jvm_jvm_remedies_are_refused() -> Outcome {
    let subject = Subject::idle()?;
    for remedy in ["jvm_gc", "jvm_trim"] {
        let (status, document) = reclaim(&subject, remedy)?;
        assert_eq!((status, document["outcome"].as_str()), (Some(3), Some("refused")), "{document}");
        assert!(document["reason"].as_str().is_some_and(|reason| reason.contains("no JVM")), "{document}");
    }
    Ok(())
}
