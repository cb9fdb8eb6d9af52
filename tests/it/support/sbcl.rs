//! The installed SBCLs, subjects run by them, and their figures in `explain`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::subject::number;
use crate::support::{Outcome, Result, Subject, full, skipped, strandline};

/// An SBCL.
#[derive(Clone, Debug)]
pub struct Sbcl {
    /// The command that runs it.
    pub path: PathBuf,
    /// Text of the script, for an SBCL of `scripts/fetch-sbcls`, which is run by a script.
    script: Option<String>,
}

impl Sbcl {
    /// Returns every SBCL; reports missing ones for the test `name`.
    pub fn all(name: &str) -> Vec<Self> {
        let mut found: Vec<Self> = Self::system(name).into_iter().collect();
        found.extend(Self::fetched(name));
        found
    }

    /// The system's SBCL.
    pub fn system(name: &str) -> Option<Self> {
        if Command::new("sbcl").arg("--version").output().is_err() {
            skipped(name, "no sbcl (apt-get install sbcl)");
            return None;
        }
        Some(Self { path: "sbcl".into(), script: None })
    }

    fn fetched(name: &str) -> Vec<Self> {
        let reason = match std::env::var_os("STRANDLINE_SBCLS") {
            None => {
                "STRANDLINE_SBCLS does not name a folder of scripts/fetch-sbcls (make test-full)".to_owned()
            }
            Some(folder) => {
                let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
                let mut paths: Vec<PathBuf> =
                    entries.map(|entry| entry.path().join("sbcl")).filter(|path| path.is_file()).collect();
                paths.sort();
                if !paths.is_empty() {
                    let sbcl = |path: PathBuf| Self { script: std::fs::read_to_string(&path).ok(), path };
                    return paths.into_iter().map(sbcl).collect();
                }
                format!("no SBCL in {}", folder.display())
            }
        };
        skipped(&format!("{name} with other SBCLs"), &reason);
        Vec::new()
    }

    /// Whether the C library's loader runs it: the kernel then names the loader as its program.
    pub fn is_of_a_loader(&self) -> bool {
        self.script.as_ref().is_some_and(|script| script.contains("--library-path"))
    }

    /// A command that runs it on the subjects' program.
    pub fn subject(&self, kind: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(["--dynamic-space-size", "2GB", "--script"]).arg(program());
        command.arg(format!("kind={kind}")).args(arguments);
        command
    }

    /// Like [`Self::subject`], with another core.
    pub fn with_core(&self, core: &Path, kind: &str) -> Command {
        let mut command = match &self.script {
            None => {
                let mut command = Command::new(&self.path);
                command.arg("--core").arg(core);
                command
            }
            Some(script) => {
                let mut command = Command::new("sh");
                command.arg("-c").arg(replaced_core(script, core)).arg("sbcl");
                command
            }
        };
        command.args(["--noinform", &format!("kind={kind}")]);
        command
    }

    /// Starts a subject and waits until it has made its heap and sleeps.
    pub fn start(&self, kind: &str, arguments: &[&str]) -> Result<Subject> {
        started(self.subject(kind, arguments))
    }

    /// Like [`Self::start`], with its standard error going to a file.
    pub fn start_with_stderr(&self, kind: &str, arguments: &[&str], stderr: File) -> Result<Subject> {
        let subject = Subject::start_with_stderr(self.subject(kind, arguments), stderr.into())?;
        subject.at_rest()?;
        Ok(subject)
    }
}

/// Starts a subject by `command`, and waits until it sleeps.
pub fn started(command: Command) -> Result<Subject> {
    let subject = Subject::start_command(command)?;
    subject.at_rest()?;
    Ok(subject)
}

/// Sends `command` and returns the subject's figures afterwards. They are exact if all its threads
/// were asleep before: threads that end or run finalizers close their allocation regions late.
pub fn figures_after(subject: &mut Subject, command: u8) -> Result<Value> {
    if command != b'f' {
        subject.ask(command)?;
        subject.at_rest()?;
    }
    let printed = subject.ask(b'f')?;
    subject.at_rest()?;
    Ok(printed)
}

/// The script of a fetched SBCL, with its core replaced.
fn replaced_core(script: &str, core: &Path) -> String {
    let (before, rest) = script.split_once("--core '").unwrap_or((script, ""));
    let after = rest.split_once('\'').map_or("", |parts| parts.1);
    format!("{before}--core '{}'{after}", core.display())
}

fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/sbcl/subject.lisp")
}

/// Returns the `explain` document of a subject, which holds every invariant.
pub fn explain(subject: &Subject) -> Result<Value> {
    strandline::explain(subject.pid())
}

/// The figures of the only SBCL in a document.
pub fn figures(document: &Value) -> Result<&Value> {
    let runtimes = document["runtimes"].as_array().ok_or("no runtimes")?;
    let sbcls: Vec<&Value> = runtimes.iter().filter(|runtime| runtime["name"] == "sbcl").collect();
    match sbcls[..] {
        [one] if one["read"] == true && one["sbcl"].is_object() => Ok(&one["sbcl"]),
        _ => {
            Err(format!("not one SBCL that was read: {sbcls:?}, caveats {:?}", strandline::caveats(document))
                .into())
        }
    }
}

/// Fails unless both have the same number under `key`.
pub fn same(what: &str, ours: &Value, theirs: &Value, key: &str) -> Outcome {
    let (ours, theirs) = (number(ours, key)?, number(theirs, key)?);
    if ours == theirs { Ok(()) } else { Err(format!("{what}{key}: {ours}, SBCL prints {theirs}").into()) }
}

/// Instances and bytes of a type in one of the lists by type; 0 if it is not there.
pub fn of_type(figures: &Value, list: &str, name: &str) -> (u64, u64) {
    let types = figures[list].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = types.iter().filter(|entry| entry["type"] == name && entry["is_named"] == true);
    found.fold((0, 0), |(instances, bytes), entry| {
        (instances + entry["instances"].as_u64().unwrap_or(0), bytes + entry["bytes"].as_u64().unwrap_or(0))
    })
}

/// Repetitions and sizes: a small one in `make test`, a large one in `make test-full`.
pub fn size(short: u64, long: u64) -> String {
    format!("count={}", if full() { long } else { short })
}
