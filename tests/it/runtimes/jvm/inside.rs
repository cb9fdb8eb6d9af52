//! A JVM embedded in another program, which has its own memory.

use std::path::Path;
use std::process::Command;

use crate::support::jdks::{self, Jdk};
use crate::support::jvm::{OLDEST, check_agreement, check_subject, classes, fill, started};
use crate::support::jvm_histogram::has_jcmd;
use crate::support::{Folder, Outcome, Result, for_any, full, here, skipped, strandline};

/// malloc memory of the program beside its JVM.
const OWN_BYTES: u64 = 4_000_000;

/// Compiles the program against the headers in `home`.
fn build(folder: &Folder, home: &Path) -> Result<std::path::PathBuf> {
    let program = folder.0.join("embedded");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/jvm/embedded.c");
    let mut cc = Command::new("cc");
    for include in ["include", "include/linux"] {
        cc.arg("-I").arg(home.join(include));
    }
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror"]).arg(source).arg("-o").arg(&program).arg("-ldl");
    let output = cc.output()?;
    if output.status.success() {
        return Ok(program);
    }
    Err(format!("{cc:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

#[test]
fn a_jvm_inside_another_program_is_read() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    let jdks: Vec<Jdk> = jdks::all(test).into_iter().filter(|jdk| jdk.major >= OLDEST).collect();
    let Some(headers) =
        jdks.iter().filter_map(Jdk::home).find(|home| home.join("include/linux/jni_md.h").is_file())
    else {
        skipped(test, "no jni.h in /usr/lib/jvm (apt-get install default-jdk-headless)");
        return Ok(());
    };
    let folder = Folder::new("jvm-inside")?;
    let program = build(&folder, headers)?;
    let has_jcmd = has_jcmd(test);
    // A JDK built for another C library cannot be loaded into the program.
    let can = |jdk: &&Jdk| jdk.home().is_some_and(|home| home.starts_with("/usr/lib/jvm"));
    let most = if full() { usize::MAX } else { 1 };
    for_any(jdks.iter().filter(can).take(most), |jdk| {
        let mut command = Command::new(&program);
        command.arg(jdk.home().ok_or("no home")?.join("lib/server/libjvm.so")).arg(&classes);
        command.args(["-Xmx300m", "-XX:+UseSerialGC"]);
        let mut subject = started(command)?;
        fill(&mut subject)?;
        let seen = check_agreement(&mut subject, has_jcmd)?;
        check_subject(&seen, "Serial", jdk)?;
        let live = strandline::row(&seen.document, "glibc.live");
        if live < OWN_BYTES { Err(format!("{live} bytes of malloc's are live").into()) } else { Ok(()) }
    })
}
