//! Shared by the tests of the JVM reader: the compiled subject, its commands, and reports about it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::support::jdks::{self, Jdk};
use crate::support::jvm_histogram;
use crate::support::waiting::{threads, until, until_true};
use crate::support::{Outcome, Result, Subject, full, invariants, skipped, strandline};

/// The oldest version that is read.
pub const OLDEST: u32 = 11;
/// Release for which the subject is compiled: the oldest version.
const RELEASE: &str = "11";
/// Number of direct buffers, of a MiB each.
pub const DIRECT_MIB: u64 = 20;
/// Number of class loaders that the subject creates.
pub const LOADERS: u64 = 50;

/// Returns the folder of the compiled subject; `None`, reported for `test`, without a compiler.
pub fn classes(test: &str) -> Result<Option<PathBuf>> {
    static FOLDER: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    let built = FOLDER.get_or_init(|| build().map_err(|error| error.to_string()));
    match built {
        Ok(folder) => Ok(Some(folder.clone())),
        Err(error) if error == NO_COMPILER => {
            skipped(test, NO_COMPILER);
            Ok(None)
        }
        Err(error) => Err(error.clone().into()),
    }
}

const NO_COMPILER: &str = "no javac here (make deps)";

fn build() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("subjects/jvm");
    std::fs::create_dir_all(&folder)?;
    let sources = ["Subject", "Dropped"]
        .map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/subjects/jvm/{name}.java")));
    let mut javac = Command::new("javac");
    javac.args(["--release", RELEASE, "-Xlint:all,-options", "-Werror", "-d"]).arg(&folder).args(sources);
    let output = match javac.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(NO_COMPILER.into()),
        output => output?,
    };
    if output.status.success() {
        return Ok(folder);
    }
    Err(format!("{javac:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// All JDKs that can be read in full mode, otherwise only the oldest.
pub fn some(test: &str) -> Vec<Jdk> {
    let jdks = jdks::all(test).into_iter().filter(|jdk| jdk.major >= OLDEST);
    jdks.take(if full() { usize::MAX } else { 1 }).collect()
}

/// Runs `reclaim` with `remedy`, and returns the status and the document.
pub fn reclaim(subject: &Subject, remedy: &str) -> Result<(Option<i32>, Value)> {
    let run = strandline::run(&["reclaim", "--json", "--remedy", remedy, &subject.pid_text()])?;
    Ok((run.status, run.document()?))
}

pub fn start(jdk: &Jdk, classes: &Path, options: &[&str]) -> Result<Subject> {
    started(command(jdk, classes, options))
}

/// The command that runs the subject.
pub fn command(jdk: &Jdk, classes: &Path, options: &[&str]) -> Command {
    command_of(jdk, classes, options, &["Subject"])
}

/// The command that runs a class, with its arguments.
pub fn command_of(jdk: &Jdk, classes: &Path, options: &[&str], class: &[&str]) -> Command {
    let mut command = Command::new(&jdk.java);
    // Warnings would go to standard output, among the answers.
    command.args(["-Xmx300m", "-Xlog:disable", "-XX:+UnlockExperimentalVMOptions"]);
    command.args(options).arg("-cp").arg(classes).args(class);
    command
}

/// Starts the subject by a command that ends in running it.
pub fn started(mut command: Command) -> Result<Subject> {
    for name in ["JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "LD_PRELOAD", "GLIBC_TUNABLES"] {
        command.env_remove(name);
    }
    Subject::start_command(command)
}

/// Makes the subject allocate memory of each kind and drop a part of its objects.
pub fn fill(subject: &mut Subject) -> Outcome {
    for order in
        ["hold 60000", "large 4", "drop", &format!("direct {DIRECT_MIB}"), &format!("load {LOADERS}")]
    {
        subject.order(order)?;
    }
    // The first request to the beans loads classes.
    for _ in 0..3 {
        subject.order("pools")?;
    }
    Ok(())
}

/// Used and committed bytes by pool name.
pub type Pools = BTreeMap<String, [u64; 2]>;

/// Other counts of the subject's beans: collections, and classes loaded and unloaded.
const COUNTS: [&str; 2] = ["collections", "classes"];

/// Figures of the subject's beans.
struct Beans {
    pools: Pools,
    /// By name in `COUNTS`.
    counts: [Option<[u64; 2]>; 2],
}

/// Requests the figures of the subject's beans.
fn beans(subject: &mut Subject) -> Result<Beans> {
    let pool = |line: String| -> Result<(String, [u64; 2])> {
        let mut words = line.split('\t');
        let mut word = || words.next().ok_or_else(|| format!("no pool: {line}"));
        Ok((word()?.to_owned(), [word()?.parse()?, word()?.parse()?]))
    };
    let mut pools: Pools = subject.order("pools")?.into_iter().map(pool).collect::<Result<_>>()?;
    let counts = COUNTS.map(|name| pools.remove(name));
    if counts.contains(&None) {
        Err(format!("no counts: {counts:?}").into())
    } else {
        Ok(Beans { pools, counts })
    }
}

/// The ledger of a process, which holds every invariant, and its entry for the JVM.
#[derive(Debug)]
pub struct Seen {
    pub document: Value,
    /// Its `runtimes[]` entry.
    pub jvm: Value,
}

/// Explains a process with a JVM that can be read.
pub fn explain_jvm(subject: &Subject) -> Result<Seen> {
    explain_jvm_with(subject, &[])
}

/// Explains a process with a JVM that can be read, with more options of `explain`.
pub fn explain_jvm_with(subject: &Subject, options: &[&str]) -> Result<Seen> {
    let pid = subject.pid_text();
    let document =
        strandline::complete(|| strandline::json(&[&["explain", "--json", &pid], options].concat()))?;
    invariants::check(&document)?;
    let all = document["runtimes"].as_array().ok_or("no runtimes")?;
    let jvm = all.iter().find(|runtime| runtime["name"] == "jvm").ok_or("no jvm")?.clone();
    if jvm["read"] != true {
        return Err(format!("not read: {}", document["caveats"]).into());
    }
    Ok(Seen { document, jvm })
}

impl Seen {
    pub fn pools(&self) -> Result<Pools> {
        let pool = |pool: &Value| {
            let figure = |key: &str| pool[key].as_u64().ok_or("no figure");
            let name = pool["name"].as_str().ok_or("no name")?.to_owned();
            Ok((name, [figure("used_bytes")?, figure("committed_bytes")?]))
        };
        self.jvm["own"]["pools"].as_array().ok_or("no pools")?.iter().map(pool).collect()
    }

    /// Its objects by class: instances and bytes.
    pub fn types(&self) -> jvm_histogram::Classes {
        let types = self.jvm["types"].as_array().map(Vec::as_slice).unwrap_or_default();
        let class = |entry: &Value| {
            let figures = [entry["instances"].as_u64()?, entry["bytes"].as_u64()?];
            Some((entry["name"].as_str()?.to_owned(), figures))
        };
        types.iter().filter_map(class).collect()
    }
}

/// Waits until each thread of a JVM sleeps in some system call: the thread that printed the answer
/// still allocates before it sleeps, and others compile the code that it ran.
pub fn until_asleep(pid: i32) -> Outcome {
    until_true("the threads of the JVM to sleep", || {
        threads(pid).into_iter().all(|tid| {
            let call = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"));
            call.is_ok_and(|call| !call.starts_with("running") && !call.starts_with('-'))
        })
    })
}

/// Checks that every pool agrees with the beans, read before and after, and, if `is_counted`, that
/// the objects equal the JVM's own histogram. Meanwhile the JVM compiles, loads classes and may
/// collect: a figure of the beans that changed must lie between both values, or the comparison is
/// repeated. A figure that did not change must be equal at once.
pub fn check_agreement(subject: &mut Subject, is_counted: bool) -> Result<Seen> {
    until("constant figures of the JVM", || {
        let before = beans(subject)?;
        until_asleep(subject.pid())?;
        let seen = explain_jvm(subject)?;
        let expected = if is_counted { Some(jvm_histogram::of_jcmd(subject.pid())?) } else { None };
        let after = beans(subject)?;
        let PoolDifferences { mut wrong, changed } =
            compare_pools(&before.pools, &seen.pools()?, &after.pools);
        let mut other_differences = caveats(&seen.document);
        if seen.jvm["own"]["collector"] == "Z" {
            // Objects of ZGC are not walked, which is said in one caveat.
            let about_objects = |caveat: &String| caveat.contains("\"jvm_objects\"");
            let index = other_differences.iter().position(about_objects).ok_or("no caveat about objects")?;
            other_differences.remove(index);
            if seen.jvm["types"] != serde_json::json!([]) {
                return Err(seen.jvm["types"].to_string().into());
            }
        }
        let differences =
            |expected: jvm_histogram::Classes| jvm_histogram::differences(&seen.types(), &expected);
        other_differences.extend(expected.map(differences).unwrap_or_default());
        // A collection removes dead objects, and a new class creates some.
        if before.counts == after.counts {
            wrong.append(&mut other_differences);
        }
        if !wrong.is_empty() {
            return Err(wrong.join("; ").into());
        }
        Ok((changed.is_empty() && other_differences.is_empty()).then_some(seen))
    })
}

/// Caveats about the JVM.
pub fn caveats(document: &Value) -> Vec<String> {
    let all = document["caveats"].as_array().map(Vec::as_slice).unwrap_or_default();
    let concerns = |caveat: &&Value| caveat["code"].as_str().is_some_and(|code| code.starts_with("jvm"));
    all.iter().filter(concerns).map(ToString::to_string).collect()
}

/// Pools that differ from the beans' figures.
#[derive(Default)]
struct PoolDifferences {
    /// Figures that were the same before and after but differ from those found, and pools that only
    /// one side has.
    wrong: Vec<String>,
    /// Figures that changed, where the one found lies outside both values.
    changed: Vec<String>,
}

/// Compares pools with the beans' figures before and after.
fn compare_pools(before: &Pools, found: &Pools, after: &Pools) -> PoolDifferences {
    let mut differences = PoolDifferences::default();
    for name in before.keys().chain(found.keys().filter(|name| !before.contains_key(*name))) {
        let figures = |pools: &Pools| pools.get(name).copied();
        let (old, now, new) = (figures(before), figures(found), figures(after));
        let (Some(old), Some(now), Some(new)) = (old, now, new) else {
            differences.wrong.push(format!("{name}: found {now:?}, expected {old:?} to {new:?}"));
            continue;
        };
        let is_between = (0..2).all(|n| (old[n].min(new[n])..=old[n].max(new[n])).contains(&now[n]));
        let equals_constants = (0..2).all(|n| old[n] != new[n] || now[n] == old[n]);
        let text = format!("{name}: found {now:?}, expected {old:?} to {new:?}");
        match (equals_constants, is_between) {
            (_, true) => {}
            (false, false) => differences.wrong.push(text),
            (true, false) => differences.changed.push(text),
        }
    }
    differences
}

/// Checks everything else that must hold for the subject in one JVM.
pub fn check_subject(seen: &Seen, collector: &str, jdk: &Jdk) -> Outcome {
    let found = seen.jvm["own"]["collector"].as_str().ok_or("no collector")?;
    let version = seen.jvm["version"].as_str().ok_or("no version")?;
    if found != collector || !version.starts_with(&jdk.major.to_string()) {
        return Err(format!("{found} of {version}").into());
    }
    let loaders = seen.jvm["jvm"]["class_loader_count"].as_u64().ok_or("no loaders")?;
    // The JVM's own loaders: three, and those of hidden classes.
    if !(LOADERS + 2..LOADERS + 50).contains(&loaders) {
        return Err(format!("{loaders} class loaders").into());
    }
    let live = seen.jvm["jvm"]["live_bytes"].as_u64();
    let kinds = seen.jvm["jvm"]["kinds"].as_array().ok_or("no kinds")?;
    let live_by_kind = kinds.iter().map(|kind| kind["live_bytes"].as_u64()).sum::<Option<u64>>();
    if live != live_by_kind.filter(|_| live.is_some()) {
        return Err(format!("{live:?} B live, in regions {live_by_kind:?}").into());
    }
    check_explained(seen)
}

/// Checks that rows explain all but 3 % of RSS.
fn check_explained(seen: &Seen) -> Outcome {
    // Objects of ZGC are not walked.
    let direct = strandline::row(&seen.document, "jvm.direct");
    let expected = if seen.jvm["own"]["collector"] == "Z" { 0 } else { DIRECT_MIB << 20 };
    if !(expected..=expected + (64 << 10)).contains(&direct) {
        return Err(format!("{direct} B of direct buffers, not {expected}").into());
    }
    let rss = seen.document["kernel"]["rss_bytes"].as_u64().ok_or("no RSS")?;
    let unattributed_bytes = seen.document["totals"]["unattributed"].as_u64().ok_or("no total")?;
    if unattributed_bytes * 100 <= rss * 3 {
        Ok(())
    } else {
        Err(format!("{unattributed_bytes} of {rss} bytes are not explained").into())
    }
}
