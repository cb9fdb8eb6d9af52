//! Pools match the beans, and objects by class match `jcmd`, with every JDK and collector.

use crate::support::jdks::{self, Jdk};
use crate::support::jvm::{OLDEST, agrees, caveats, classes, fill, holds, start};
use crate::support::jvm_histogram::has_jcmd;
use crate::support::{Outcome, for_any, full, here, skipped, strandline};

/// A collector.
#[derive(Clone, Copy, Debug)]
pub struct Collector {
    /// Its name in `own.collector`.
    name: &'static str,
    /// Options that select it.
    pub options: &'static [&'static str],
    /// First and last version that have it.
    versions: (u32, u32),
    /// Whether its objects are counted by class.
    counts: bool,
    /// Versions it is tested with outside of full mode.
    short: &'static [u32],
}

const COLLECTORS: [Collector; 7] = [
    Collector::new("Serial", &["-XX:+UseSerialGC"], true, &[17]),
    Collector::new("Parallel", &["-XX:+UseParallelGC"], true, &[25]),
    Collector::new("G1", &["-XX:+UseG1GC"], true, &[17, 25]),
    Collector { versions: (17, u32::MAX), ..Collector::new("Z", &["-XX:+UseZGC"], false, &[25]) },
    Collector {
        versions: (21, 23),
        ..Collector::new("Z", &["-XX:+UseZGC", "-XX:+ZGenerational"], false, &[])
    },
    Collector {
        versions: (17, u32::MAX),
        ..Collector::new("Shenandoah", &["-XX:+UseShenandoahGC"], false, &[17])
    },
    Collector::new("Epsilon", &["-XX:+UseEpsilonGC"], true, &[]),
];

impl Collector {
    const fn new(
        name: &'static str,
        options: &'static [&'static str],
        counts: bool,
        short: &'static [u32],
    ) -> Self {
        Self { name, options, versions: (0, u32::MAX), counts, short }
    }

    /// Whether it is tested with a JDK.
    fn is_due(&self, jdk: &Jdk) -> bool {
        let (first, last) = self.versions;
        (first..=last).contains(&jdk.major) && (full() || self.short.contains(&jdk.major))
    }
}

/// Each JDK with the collectors that it is tested with.
pub fn cases(test: &str) -> Vec<(Jdk, Collector)> {
    let mut cases = Vec::new();
    for jdk in jdks::all(test).into_iter().filter(|jdk| jdk.major >= OLDEST) {
        for collector in COLLECTORS.iter().filter(|collector| collector.is_due(&jdk)) {
            let options = [&["-XX:+UnlockExperimentalVMOptions"], collector.options].concat();
            if jdk.takes(&options) {
                cases.push((jdk.clone(), *collector));
            } else {
                skipped(&format!("{test}, {} of java {}", collector.name, jdk.major), "it was built without");
            }
        }
    }
    cases
}

#[test]
fn pools_and_classes_are_those_of_the_beans() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    let has_jcmd = has_jcmd(&format!("{test}, by class"));
    for_any(cases(test), |(jdk, collector)| {
        let mut subject = start(jdk, &classes, collector.options)?;
        fill(&mut subject)?;
        let seen = agrees(&mut subject, collector.counts && has_jcmd)?;
        holds(&seen, collector.name, jdk)
    })
}

/// Two collectors of JDK 11 lack the descriptions a reader needs: this is reported, and none of
/// their memory is claimed.
#[test]
fn a_collector_that_is_not_read_is_said_to_be() -> Outcome {
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
        let said = caveats(&document);
        if said.len() != 1 || !said.iter().all(|caveat| caveat.contains("jvm_unknown_version")) {
            return Err(format!("{option} of java {}: {said:?}", jdk.major).into());
        }
        Ok(())
    })
}
