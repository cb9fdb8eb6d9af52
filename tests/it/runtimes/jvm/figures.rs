//! Pools match the beans, and objects by class match `jcmd`, with every JDK and collector.

use crate::support::jdks;
use crate::support::jvm::{OLDEST, caveats, check_agreement, check_subject, classes, fill, start};
use crate::support::jvm_collectors::cases;
use crate::support::jvm_histogram::has_jcmd;
use crate::support::{Outcome, for_any, here, skipped, some_of, strandline};

#[test]
fn pools_and_classes_equal_those_of_the_beans() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    let has_jcmd = has_jcmd(&format!("{test}, by class"));
    for_any(some_of(cases(test), 2), |(jdk, collector)| {
        let mut subject = start(jdk, &classes, collector.options)?;
        fill(&mut subject)?;
        let seen = check_agreement(&mut subject, collector.counts && has_jcmd)?;
        check_subject(&seen, collector.name, jdk)
    })
}

/// Two collectors of JDK 11 lack the descriptions a reader needs: this is reported, and none of
/// their memory is claimed.
#[test]
fn an_unread_collector_has_a_caveat() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    let jdks = jdks::all(test).into_iter().filter(|jdk| (OLDEST..17).contains(&jdk.major));
    let options = ["-XX:+UseZGC", "-XX:+UseShenandoahGC"];
    let cases: Vec<_> = jdks.flat_map(|jdk| options.map(|option| (jdk.clone(), option))).collect();
    if cases.is_empty() {
        skipped(test, "no JDK from 11 to 16 here");
    }
    for_any(cases, |(jdk, option)| {
        if !jdk.takes(&["-XX:+UnlockExperimentalVMOptions", option]) {
            skipped(&format!("{test}, {option} of java {}", jdk.major), "it was built without");
            return Ok(());
        }
        let subject = start(jdk, &classes, &[option])?;
        let document = strandline::explain(subject.pid())?;
        let found = caveats(&document);
        if found.len() != 1 || !found.iter().all(|caveat| caveat.contains("jvm_unknown_version")) {
            return Err(format!("{option} of java {}: {found:?}", jdk.major).into());
        }
        Ok(())
    })
}
