//! The collectors of HotSpot, and with which JDKs they are tested.

use crate::support::jdks::{self, Jdk};
use crate::support::jvm::OLDEST;
use crate::support::{full, skipped};

/// A collector.
#[derive(Clone, Copy, Debug)]
pub struct Collector {
    /// Its name in `own.collector`.
    pub name: &'static str,
    /// Options that select it.
    pub options: &'static [&'static str],
    /// First and last version that have it.
    versions: (u32, u32),
    /// Whether its objects are counted by class.
    pub counts: bool,
    /// Versions it is tested with outside of full mode.
    short_versions: &'static [u32],
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
        short_versions: &'static [u32],
    ) -> Self {
        Self { name, options, versions: (0, u32::MAX), counts, short_versions }
    }

    /// Whether it is tested with a JDK.
    fn is_due(&self, jdk: &Jdk) -> bool {
        let (first, last) = self.versions;
        (first..=last).contains(&jdk.major) && (full() || self.short_versions.contains(&jdk.major))
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
