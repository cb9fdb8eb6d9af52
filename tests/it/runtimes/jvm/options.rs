//! Command-line options that change the layout of objects and the mappings.

use crate::support::jdks;
use crate::support::jvm::{OLDEST, check_agreement, check_subject, classes, fill, start};
use crate::support::jvm_histogram::has_jcmd;
use crate::support::{Outcome, for_any, full, here};

/// Options, the collector, the versions that have them, and whether they are tested outside of full
/// mode, with the oldest of these.
type Case = (&'static [&'static str], &'static str, (u32, u32), bool);

const CASES: [Case; 14] = [
    (&["-XX:+UseG1GC", "-XX:-UseCompressedOops"], "G1", (11, 99), false),
    (&["-XX:+UseSerialGC", "-XX:-UseCompressedOops"], "Serial", (11, 99), false),
    (&["-XX:+UseG1GC", "-XX:-UseCompressedClassPointers"], "G1", (11, 24), false),
    (
        &["-XX:+UseParallelGC", "-XX:-UseCompressedOops", "-XX:-UseCompressedClassPointers"],
        "Parallel",
        (11, 24),
        true,
    ),
    (&["-XX:+UseG1GC", "-XX:+UseCompactObjectHeaders"], "G1", (24, 99), true),
    (&["-XX:+UseSerialGC", "-XX:+UseCompactObjectHeaders"], "Serial", (24, 99), false),
    (&["-XX:+UseG1GC", "-XX:+AlwaysPreTouch"], "G1", (11, 99), false),
    (&["-XX:+UseG1GC", "-XX:+UseTransparentHugePages"], "G1", (11, 99), false),
    (&["-XX:+UseSerialGC", "-XX:+UseTransparentHugePages", "-XX:+AlwaysPreTouch"], "Serial", (11, 99), false),
    (&["-XX:+UseG1GC", "-XX:ObjectAlignmentInBytes=16"], "G1", (11, 99), false),
    (&["-XX:+UseG1GC", "-Xshare:off"], "G1", (11, 99), false),
    (&["-XX:+UseSerialGC", "-XX:NativeMemoryTracking=summary"], "Serial", (11, 99), false),
    (&["-XX:+UseG1GC", "-Xint"], "G1", (11, 99), false),
    (&["-XX:+UseG1GC", "-XX:G1HeapRegionSize=4m", "-XX:ParallelGCThreads=1"], "G1", (11, 99), false),
];

#[test]
fn options_do_not_change_the_figures() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    let has_jcmd = has_jcmd(test);
    let jdks: Vec<_> = jdks::all(test).into_iter().filter(|jdk| jdk.major >= OLDEST).collect();
    let mut cases = Vec::new();
    for (options, collector, (first, last), is_short) in CASES {
        let most = if full() { usize::MAX } else { usize::from(is_short) };
        let jdks = jdks.iter().filter(|jdk| (first..=last).contains(&jdk.major)).take(most);
        cases.extend(jdks.map(|jdk| (jdk.clone(), options, collector)));
    }
    for_any(cases, |(jdk, options, collector)| {
        let mut subject = start(jdk, &classes, options)?;
        fill(&mut subject)?;
        let seen = check_agreement(&mut subject, has_jcmd)?;
        check_subject(&seen, collector, jdk)
    })
}
