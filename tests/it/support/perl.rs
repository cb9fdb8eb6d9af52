//! Shared by the tests of the Perl reader: commands for the subjects, and reports about them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{Result, Subject, strandline};

/// Buffers with more bytes than this are reported one by one.
pub const NAMED_BYTES: u64 = 4096;

/// The request to retained.pl for its own figures.
const OWN_FIGURES: u8 = b'o';

/// The folder of the subjects.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/perl")
}

/// A command that runs a case of retained.pl.
pub fn command(perl: &str, case: &str) -> Command {
    let mut command = Command::new(perl);
    command.arg(format!("-I{}", folder().display())).arg(folder().join("retained.pl")).arg(case);
    // The caller's settings for perl and malloc would change the measurement.
    for name in ["PERL5OPT", "PERL5LIB", "PERLLIB", "LD_PRELOAD", "GLIBC_TUNABLES"] {
        command.env_remove(name);
    }
    command.env("PERL_HASH_SEED", "0").env("PERL_PERTURB_KEYS", "0");
    command
}

/// Starts a case of retained.pl that answers commands, and waits until it sleeps: its output line
/// is a live value until it is printed.
pub fn start(perl: &str, case: &str) -> Result<Subject> {
    start_command(command(perl, case))
}

/// Starts a perl by `command`, and waits until it sleeps.
pub fn start_command(command: Command) -> Result<Subject> {
    let subject = Subject::start_command(command)?;
    subject.at_rest()?;
    Ok(subject)
}

/// Requests the subject's own figures twice and waits until it sleeps: the first request changes
/// its memory, the second does not.
pub fn own_figures(subject: &mut Subject) -> Result<Value> {
    subject.ask(OWN_FIGURES)?;
    let figures = subject.ask(OWN_FIGURES)?;
    subject.at_rest()?;
    match figures["error"].as_str() {
        Some(error) => Err(error.to_owned().into()),
        None => Ok(figures),
    }
}

/// The ledger of a process, which holds every invariant, and its entry for Perl.
#[derive(Debug)]
pub struct PerlLedger {
    pub document: Value,
    /// `runtimes[].perl`.
    pub perl: Value,
}

impl PerlLedger {
    /// Explains a process that has a Perl.
    pub fn of(pid: i32) -> Result<Self> {
        let document = strandline::explain(pid)?;
        let runtime = list(&document["runtimes"]).iter().find(|runtime| runtime["name"] == "perl");
        let perl = runtime.ok_or_else(|| format!("no perl in {}", document["runtimes"]))?["perl"].clone();
        if list(&perl["interpreters"]).is_empty() {
            let codes = strandline::caveats(&document);
            return Err(format!("a perl without interpreters; caveats: {codes:?}").into());
        }
        Ok(Self { document, perl })
    }

    /// Its main interpreter, which must have been read.
    pub fn main(&self) -> Result<&Value> {
        let interpreters = list(&self.perl["interpreters"]);
        let main = interpreters.iter().find(|one| one["main"] == true).ok_or("no main interpreter")?;
        if main["read"] != true {
            return Err(format!("the perl is not read: {}", self.document["caveats"]).into());
        }
        Ok(main)
    }

    /// Rows with this id, as holder and bytes.
    pub fn rows(&self, id: &str) -> Vec<(&str, u64)> {
        let rows = list(&self.document["rows"]).iter().filter(|row| row["id"] == id);
        rows.filter_map(|row| Some((row["holder"].as_str()?, row["bytes"].as_u64()?))).collect()
    }
}

/// A list in a document; empty if there is none.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The number at a path of keys.
pub fn number(value: &Value, path: &str) -> Result<u64> {
    let found = path.split('.').fold(value, |value, key| &value[key]);
    found.as_u64().ok_or_else(|| format!("no number {path}: {found}").into())
}

/// The name at a key; `None` if what it belongs to has none.
pub fn name(value: &Value, key: &str) -> Option<String> {
    value[key].as_str().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// A string that a pad retains.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RetainedBuffer {
    pub address: u64,
    pub sub: Option<String>,
    /// `None` for a temporary value.
    pub lexical: Option<String>,
    pub depth: u64,
    pub bytes: u64,
}

/// The buffers of an interpreter, reported one by one, that are strings in pads.
pub fn buffers_in_pads(interpreter: &Value) -> Result<Vec<RetainedBuffer>> {
    let in_pads = |buffer: &&Value| buffer["kind"] == "string" && buffer["keeper"] != "other";
    let top = list(&interpreter["retained"]["top"]).iter().filter(in_pads);
    top.map(|buffer| {
        let address = buffer["address"].as_str().ok_or("a buffer without address")?;
        Ok(RetainedBuffer {
            address: u64::from_str_radix(address.trim_start_matches("0x"), 16)?,
            sub: name(buffer, "sub"),
            lexical: name(buffer, "lexical"),
            depth: number(buffer, "depth")?,
            bytes: number(buffer, "bytes")?,
        })
    })
    .collect()
}
