//! `explain PID`: one process.

use std::io::IsTerminal;
use std::time::Duration;

use serde::Serialize;

use strandline_claims::runtime::PathAnswer;
use strandline_inspect::explain::{Options, explain};
use strandline_inspect::facts::{Explanation, Runtime};
use strandline_inspect::holders::facts::Holders;
use strandline_inspect::inspection::inspect;
use strandline_inspect::readers::{self, FoundReaders};
use strandline_process::map::AddressSpace;
use strandline_process::procfs::Process;

use super::arguments::Explain;
use super::arguments_reading::SnapshotChoice;
use super::condition::{Condition, Outcome};
use super::output::{Output, print_message};
use super::progress::Progress;
use super::{CommandResult, Result};
use strandline_report::model::{Rows, View};
use strandline_report::terminal;
use strandline_report::text::{clean, wrap};
use strandline_report::units::{bytes, seconds};

pub const SCHEMA: &str = "strandline/explain/1";

/// Label of the lines with a requested path; further lines are indented as far.
const PATH_LABEL: &str = "path   ";

/// Heap bytes that one processor reads per second while the process is stopped, with a margin
/// (benches/RESULTS.md).
const READ_BYTES_PER_SECOND: u64 = 3 << 30;
/// Stop time of a snapshot (benches/RESULTS.md).
const SNAPSHOT_SECONDS_PER_GIB: f64 = 0.03;
/// Maximum number of processors for the expected stop: more hardly shorten it.
const MAX_PROCESSORS: u64 = 8;
/// Shorter expected stops cause no warning.
const MIN_WARNED_STOP: Duration = Duration::from_secs(1);

/// The document of `explain --json`, in which the fields of the explanation are at the top.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    explanation: &'a Explanation,
    #[serde(skip_serializing_if = "Option::is_none")]
    holders: Option<&'a Holders>,
}

/// Returns when to take a snapshot. By default --holders takes one if possible, because the search
/// for references would stop the process for long.
fn snapshot_choice(arguments: &Explain) -> SnapshotChoice {
    match arguments.snapshot {
        SnapshotChoice::Auto if arguments.holders => SnapshotChoice::Try,
        requested => requested,
    }
}

/// Explains one process and evaluates the conditions.
pub fn run(arguments: &Explain, output: &mut Output) -> Result<CommandResult> {
    let pid = arguments.pid()?;
    if !output.is_json {
        warn_of_long_stop(pid, arguments);
    }
    if arguments.holders {
        strandline_sys::own_memory::map_large_arrays();
    }
    let choice = snapshot_choice(arguments);
    let snapshot = if arguments.holders {
        super::holders::snapshot_mode(choice, arguments.max_stop)
    } else {
        choice.mode()
    };
    let progress = Progress::new(!output.is_json);
    let inspection = inspect(
        pid,
        &Options {
            keeps_blocks: arguments.holders,
            progress: Some(&|step, done, total| progress.set_bytes(step, done, total)),
            reads_runtimes: !arguments.no_runtimes,
            path_to: arguments.path_to.as_deref(),
            max_stop: arguments.max_stop,
            snapshot,
            quiet_for: arguments.quiet.limit,
            ..Options::default()
        },
    )?;
    drop(progress);
    let (explanation, holders) = (inspection.explanation, inspection.holders);
    let path = arguments.path_to.as_ref().and_then(|type_name| requested_path(type_name, &explanation));
    if output.is_json {
        let body = Body { explanation: &explanation, holders: holders.as_ref() };
        output.document(SCHEMA, Some(&explanation), &body)?;
    } else {
        print_screen(arguments, &explanation, holders.as_ref(), path.as_deref(), output)?;
    }
    Ok(test_conditions(&arguments.fail_if, |condition| condition.test(&explanation)))
}

/// Prints the default screen, or the one with all details, then the holders.
fn print_screen(
    arguments: &Explain,
    explanation: &Explanation,
    holders: Option<&Holders>,
    path: Option<&str>,
    output: &mut Output,
) -> Result<()> {
    let verbose = arguments.detail.verbose;
    let rows = if verbose { Rows::All } else { Rows::Large };
    let view = View::new(explanation, arguments.rows.unwrap_or(rows));
    let write_screen = if verbose { terminal::details } else { terminal::explanation };
    output.print(&write_screen(&view, output.surface))?;
    // The details already include the path.
    if let Some(path) = path.filter(|_| !verbose) {
        let lines = wrap(&clean(path), output.surface.columns.saturating_sub(PATH_LABEL.len()));
        let indent = " ".repeat(PATH_LABEL.len());
        output.print(&format!("\n{PATH_LABEL}{}\n", lines.join(&format!("\n{indent}"))))?;
    }
    if let Some(holders) = holders {
        output.print("\n")?;
        let write_holders = super::holders::screen(verbose);
        output.print(&write_holders(holders, None, output.surface))?;
    }
    Ok(())
}

/// Returns the approximate stop time of a process with `anonymous_bytes`.
fn expected_stop(anonymous_bytes: u64, processors: u64) -> Duration {
    let bytes_per_second = READ_BYTES_PER_SECOND * processors.clamp(1, MAX_PROCESSORS);
    Duration::from_secs_f64(anonymous_bytes as f64 / bytes_per_second as f64)
}

/// Warns a user at a terminal before a long stop, and mentions the options that limit it.
fn warn_of_long_stop(pid: i32, arguments: &Explain) {
    if arguments.max_stop.is_some()
        || matches!(arguments.snapshot, SnapshotChoice::Always | SnapshotChoice::Try)
        || !std::io::stderr().is_terminal()
    {
        return;
    }
    // If the process cannot be read, the inspection reports why.
    let process = Process::open(pid).ok();
    let Some(anonymous_bytes) = process.and_then(|process| process.status().ok()?.anonymous_bytes) else {
        return;
    };
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let expected = expected_stop(anonymous_bytes, processors);
    if expected >= MIN_WARNED_STOP && !takes_snapshot(pid, arguments) {
        print_message(&format!(
            "process {pid} has {} of its own and will be stopped for about {}; --snapshot would stop it for about {}, --max-stop \
             200ms would resume it after that time and leave the rest unread",
            bytes(anonymous_bytes),
            seconds(expected.as_secs_f64()),
            seconds(SNAPSHOT_SECONDS_PER_GIB * anonymous_bytes as f64 / (1_u64 << 30) as f64)
        ));
    }
}

/// Whether the inspection takes a snapshot by default, because reading would stop the process for
/// longer.
fn takes_snapshot(pid: i32, arguments: &Explain) -> bool {
    let is_slow = || {
        let process = Process::open(pid).ok()?;
        let (space, _) = AddressSpace::parse(&process.maps_text().ok()?);
        Some(FoundReaders::find(&process, &space, !arguments.no_runtimes).is_slow())
    };
    // Where that is not known, the warning is shown.
    arguments.snapshot == SnapshotChoice::Auto && is_slow().unwrap_or(false)
}

/// Explains process `pid` with the default options.
pub fn explain_process(pid: i32, shows_progress: bool) -> Result<Explanation> {
    let line = Progress::new(shows_progress);
    let set_bytes = |step: &str, done, total| line.set_bytes(step, done, total);
    let options = Options { progress: Some(&set_bytes), ..Options::default() };
    Ok(explain(pid, &options)?)
}

/// Returns the path for --path-to, or prints why strandline found no path.
fn requested_path(type_name: &str, explanation: &Explanation) -> Option<String> {
    let answer = |runtime: &Runtime| (readers::runtime_reader(&runtime.name)?.path)(runtime);
    let name = clean(type_name);
    let text = match explanation.runtimes.iter().find_map(answer) {
        Some(PathAnswer::Found(path)) => return Some(path),
        Some(PathAnswer::NotTraced) => "its objects were not traced".to_owned(),
        Some(PathAnswer::NoPath(why)) => format!("no path to a live object of the type {name}: {why}"),
        Some(PathAnswer::NoObject) => format!("no live object of the type {name} was found"),
        None => "it has no runtime with traceable objects (SBCL or V8) that was read".to_owned(),
    };
    print_message(&format!("--path-to: {text}"));
    None
}

/// Evaluates the conditions with `test`, and prints those that hold or are undecided on standard
/// error. Fails if one is undecided, even if another one holds: a script must not take an unknown
/// figure for a judged one.
pub fn test_conditions(conditions: &[Condition], test: impl Fn(&Condition) -> Outcome) -> CommandResult {
    let mut result = CommandResult::Done;
    for condition in conditions {
        match test(condition) {
            Outcome::No => {}
            Outcome::Yes(sentence) => {
                print_message(&sentence);
                if result == CommandResult::Done {
                    result = CommandResult::ConditionHolds;
                }
            }
            Outcome::Unknown(sentence) => {
                print_message(&sentence);
                result = CommandResult::Failed;
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use strandline_report::fabricated;

    #[test]
    fn an_undecided_condition_outweighs_one_that_holds() {
        let mut java = fabricated::java();
        java.kernel.pss_bytes = None;
        let conditions =
            |texts: &[&str]| texts.iter().map(|text| Condition::parse(text).unwrap()).collect::<Vec<_>>();
        let result = |texts: &[&str]| test_conditions(&conditions(texts), |condition| condition.test(&java));
        assert_eq!(result(&[]), CommandResult::Done);
        assert_eq!(result(&["rss < 1"]), CommandResult::Done);
        assert_eq!(result(&["rss < 1", "rss > 1"]), CommandResult::ConditionHolds);
        assert_eq!(result(&["pss > 1", "rss > 1"]), CommandResult::Failed);
    }
}
