//! The terminal output about a JVM.

use crate::support::jdks;
use crate::support::jvm::{OLDEST, classes, fill, start};
use crate::support::waiting::until;
use crate::support::{Outcome, here, strandline};

#[test]
fn the_terminal_shows_the_parts_of_the_heap() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    let Some(jdk) = jdks::all(test).into_iter().find(|jdk| jdk.major >= OLDEST) else { return Ok(()) };
    let mut subject = start(&jdk, &classes, &["-XX:+UseG1GC", "-Xmx600m"])?;
    fill(&mut subject)?;
    let run = until("a read with time for the objects", || {
        let run = strandline::run(&["explain", "-v", &subject.pid_text()])?;
        Ok((!run.stdout.contains("objects not known to be dead")).then_some(run))
    })?;
    let words = ["G1", "-Xmx 600 MiB", "class loaders", "eden", "old", "live", "[B", "GC.run"];
    match words.iter().find(|word| !run.stdout.contains(**word)) {
        None if run.status == Some(0) => Ok(()),
        missing => Err(format!("{missing:?}: {}", run.stdout).into()),
    }
}
