//! Builds the command that measures a subject, and reads the figures of the ended job.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use strandline_recording::{Reader, Record};

use super::cell::{End, Figures, Measure, Outcome, Subject};
use super::executable::executable_path;
use super::path_error::AtPath;
use super::protocol::Ended;
use super::trial::program;

/// File name of the recording of a job.
pub const RECORDING: &str = "recording.strandline";
/// File name prefix of the output of cachegrind.
const CACHEGRIND_PREFIX: &str = "cachegrind.out.";
/// Larger output files of cachegrind are rejected.
const MAX_CACHEGRIND_BYTES: u64 = 256 << 20;
/// Exit status of `strandline run` if it failed itself.
const RECORDER_FAILED_STATUS: u8 = 125;
/// Microseconds, the unit of times in a recording, in a second.
pub(crate) const US_PER_SECOND: f64 = 1e6;

/// Returns the command that measures `subject` and writes into `folder`.
///
/// # Errors
/// One line that names what is missing.
pub fn command(subject: &Subject, folder: &Path) -> Result<Vec<String>, String> {
    let mut command = match &subject.measure {
        Measure::Figures => Vec::new(),
        Measure::Cachegrind => {
            if !is_in_path("valgrind") {
                return Err(
                    "valgrind, which counts the instructions, is not here: apt install valgrind".to_owned()
                );
            }
            remove_cachegrind_files(folder)?;
            let output = format!("--cachegrind-out-file={}%p", folder.join(CACHEGRIND_PREFIX).display());
            let options = ["--tool=cachegrind", "--cache-sim=no", "--trace-children=yes", &output, "--"];
            ["valgrind", "--quiet"].iter().chain(&options).map(|&word| word.to_owned()).collect()
        }
        Measure::Recording { interval, ledgers, uses_snapshot } => {
            let file = folder.join(RECORDING);
            // A killed recorder leaves its file, which must not be taken for that of the next run.
            // One that cannot be removed is replaced by the recorder, which fails if it cannot.
            drop(std::fs::remove_file(&file));
            let mut words =
                vec![path_text(&executable_path()), "run".to_owned(), "-o".to_owned(), path_text(&file)];
            words.extend(["--interval".to_owned(), format!("{}ms", interval.as_millis().max(1))]);
            words.extend(["--progress", "never", "--ledger"].map(str::to_owned));
            words.push(ledgers.clone());
            words.extend(uses_snapshot.then(|| "--snapshot=try".to_owned()));
            words.extend(recorder_options(subject));
            words.push("--".to_owned());
            words
        }
    };
    command.extend(subject.command.iter().cloned());
    Ok(command)
}

/// Options by which the recorder starts the command of `subject` in its environment and limits,
/// which must not apply to the recorder itself.
fn recorder_options(subject: &Subject) -> Vec<String> {
    let limits = [
        ("--limit-address-space", subject.limits.address_space_bytes),
        ("--limit-data", subject.limits.data_bytes),
        ("--limit-memory", subject.limits.memory_bytes),
    ];
    let limits = limits.into_iter().filter_map(|(option, bytes)| Some(format!("{option}={}", bytes?)));
    let variables = subject.environment.iter().map(|(name, value)| match value {
        Some(value) => format!("--env={name}={value}"),
        None => format!("--unset-env={name}"),
    });
    let no_huge_pages = subject.no_huge_pages.then(|| "--no-huge-pages".to_owned());
    limits.chain(variables).chain(no_huge_pages).collect()
}

/// The outcome of an ended job, without its output files.
pub fn outcome(subject: &Subject, ended: &Ended, folder: &Path) -> Outcome {
    let mut outcome = Outcome { end: end_of(ended.status), ..Outcome::not_started(String::new()) };
    outcome.leftover_processes = ended.leftover_processes;
    outcome.unended_processes = ended.unended_processes;
    match &subject.measure {
        Measure::Figures => outcome.figures = ended.figures.clone(),
        Measure::Cachegrind => {
            outcome.figures.instructions = instructions(folder);
            // A file that is left makes the next job fail.
            drop(remove_cachegrind_files(folder));
        }
        Measure::Recording { .. } => read_recording(&folder.join(RECORDING), &mut outcome),
    }
    outcome
}

/// Decodes a status of `wait` (bits/waitstatus.h): the low 7 bits are the signal that ended the
/// process, and without one the next byte is its exit status.
fn end_of(status: i32) -> End {
    match status & 0x7f {
        0 => End::Exited((status >> 8 & 0xff) as u8),
        signal => End::Signalled(signal),
    }
}

/// Reads the figures of the command (not of its recorder) from the recording.
fn read_recording(path: &Path, outcome: &mut Outcome) {
    if !path.exists() && outcome.end == End::Exited(RECORDER_FAILED_STATUS) {
        outcome.end = End::NotStarted("it could not be recorded: see its standard error".to_owned());
    }
    // The figures of a recording that is missing, or lacks its end, stay unknown.
    let Ok(mut reader) = Reader::open(path) else { return };
    let (mut process_high_water_kib, mut high_water_kib) = (None, None);
    let mut stopped_seconds = 0.0;
    while let Ok(Some(record)) = reader.next_record() {
        match record {
            // Only the first process: a pause of another one delays the command only if it waits
            // for that process.
            Record::Ledger(ledger) if ledger.process == 0 => {
                stopped_seconds += ledger.explain.cost.stopped_seconds;
            }
            Record::Caveat(record) if record.caveat.code == "swap_not_limited" => {
                outcome.swap_problem = Some(record.caveat.text);
            }
            Record::ProcessEnd(end) => {
                process_high_water_kib = process_high_water_kib.max(end.high_water_kib);
            }
            Record::End(end) => {
                high_water_kib = process_high_water_kib.max(end.high_water_kib);
                outcome.out_of_memory_kills = end.out_of_memory_kills;
                let Some(usage) = end.usage else { continue };
                let seconds = |us: u64| Some(us as f64 / US_PER_SECOND);
                outcome.figures = Figures {
                    // Excludes the time for which ledgers stopped the process.
                    wall_seconds: Some((usage.wall_us as f64 / US_PER_SECOND - stopped_seconds).max(0.0)),
                    user_seconds: seconds(usage.user_us),
                    system_seconds: seconds(usage.system_us),
                    minor_faults: Some(usage.minor_faults),
                    major_faults: Some(usage.major_faults),
                    ..Figures::default()
                };
            }
            _ => {}
        }
    }
    outcome.figures.high_water_bytes = high_water_kib.map(|kib| kib.saturating_mul(1024));
}

/// Instructions of all processes of a job: the last line of each output file of cachegrind is
/// `summary: N`. `None` if one of the files lacks it or cannot be read, or without files.
fn instructions(folder: &Path) -> Option<u64> {
    let mut total = None;
    for path in cachegrind_files(folder).ok()? {
        if path.metadata().ok()?.len() > MAX_CACHEGRIND_BYTES {
            return None;
        }
        let text = std::fs::read(&path).ok()?;
        let summary = memchr::memmem::rfind(&text, b"summary:")?;
        let number = text.get(summary..)?.split(|&byte| byte == b' ' || byte == b'\n').nth(1)?;
        let number: u64 = std::str::from_utf8(number).ok()?.parse().ok()?;
        total = Some(total.unwrap_or(0u64).saturating_add(number));
    }
    total
}

fn cachegrind_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(CACHEGRIND_PREFIX) {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

/// Removes the output files of an earlier job, which would be added to the next count.
fn remove_cachegrind_files(folder: &Path) -> Result<(), String> {
    let paths = cachegrind_files(folder).at(folder)?;
    paths.iter().try_for_each(|path| std::fs::remove_file(path).at(path))
}

/// Whether a program of this name is found as the shell would find it.
pub fn is_in_path(name: &str) -> bool {
    find_in_path(name).is_some()
}

/// The file of the program `name`, found as the shell would find it.
pub fn find_in_path(name: &str) -> Option<PathBuf> {
    // A folder whose name is not UTF-8 is not searched; the others are.
    let search = std::env::var_os("PATH").map(|search| search.to_string_lossy().into_owned());
    program::find(OsStr::new(name), None, search.as_deref()).ok().filter(|path| program::is_executable(path))
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
