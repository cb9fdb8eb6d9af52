//! `run -- COMMAND` and `record PID`: recordings.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use strandline_process::procfs::Process;

use super::arguments::{Record, Recording, Run};
use super::live::{LiveOutput, may_write};
use super::output::{Output, print_message};
use super::{CommandResult, Failure, Result};
use strandline_recorder::{
    CommandSettings, LedgerSettings, Limits, NotStarted, Options, Plan, Progress, Recorded, RecordedCommand,
};
use strandline_report::text::{argument_line, clean, counted};
use strandline_report::units::{bytes, maybe_bytes, percent, seconds, stopped};

const SCHEMA: &str = "strandline/record/1";
/// Exit statuses as of timeout(1): the recorder failed, the command cannot be run, the command does
/// not exist.
const EXIT_FAILED: u8 = 125;
const EXIT_NOT_EXECUTABLE: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;

/// Runs a command, records it, and returns how it ended.
pub fn run(arguments: &Run) -> Result<CommandResult> {
    // The parser requires a command.
    let program =
        arguments.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let file = arguments.output.clone().unwrap_or_else(|| strandline_recorder::default_path(&program));
    let limits = Limits {
        address_space_bytes: arguments.limit_address_space,
        data_bytes: arguments.limit_data,
        memory_bytes: arguments.limit_memory,
    };
    let set = arguments.env.iter().map(|(name, value)| (name.clone(), Some(value.clone())));
    let removed = arguments.unset_env.iter().map(|name| (name.clone(), None));
    let environment = set.chain(removed).collect();
    let settings = CommandSettings { limits, environment, no_huge_pages: arguments.no_huge_pages };
    // If the command writes to the terminal, a progress line would disturb its output.
    let may_draw = !std::io::stdout().is_terminal();
    let live = LiveOutput::new(arguments.recording.progress, may_draw);
    let (update, warn) = (|progress: &Progress| live.update(progress), |line: &str| live.warn(line));
    let may_trace = strandline_sys::capabilities::SYS_PTRACE.is_held();
    let plan = if may_trace { Plan::RUN } else { Plan::RUN_UNPRIVILEGED };
    let ended = strandline_recorder::run(
        &arguments.command,
        &settings,
        &options(&arguments.recording, file, plan, Callbacks { progress: &update, warn: &warn }),
    );
    live.finish();
    match ended {
        Ok(RecordedCommand { recorded, wait_status }) => {
            if std::io::stderr().is_terminal() && may_write() {
                print_summary(&recorded, "");
            }
            Ok(CommandResult::WaitStatus(wait_status))
        }
        Err(not_started) => {
            let (status, text) = match not_started {
                NotStarted::NotFound(text) => (EXIT_NOT_FOUND, text),
                NotStarted::NotExecutable(text) => (EXIT_NOT_EXECUTABLE, text),
                NotStarted::Failed(text) => (EXIT_FAILED, text),
            };
            print_message(&text);
            Ok(CommandResult::ExitStatus(status))
        }
    }
}

/// Records a running process and its descendants until it ends, or until a signal.
pub fn record(arguments: &Record, output: &mut Output) -> Result<CommandResult> {
    let name = || {
        // If the process cannot be opened, the recorder reports why.
        let process = Process::open(arguments.pid).ok();
        process.and_then(|process| process.executable()).unwrap_or_default()
    };
    let file = arguments.output.clone().unwrap_or_else(|| strandline_recorder::default_path(&name()));
    let live = LiveOutput::new(arguments.recording.progress, !output.is_json);
    let (update, warn) = (|progress: &Progress| live.update(progress), |line: &str| live.warn(line));
    let callbacks = Callbacks { progress: &update, warn: &warn };
    let settings = options(&arguments.recording, file, Plan::RECORD, callbacks);
    let recorded =
        strandline_recorder::record(arguments.pid, &Options { duration: arguments.duration, ..settings });
    live.finish();
    let recorded = recorded.map_err(Failure)?;
    if output.is_json {
        output.document(SCHEMA, None, &RecordDocument::new(&recorded))?;
    } else {
        print_summary(&recorded, " since its start");
    }
    Ok(CommandResult::Done)
}

/// What the recorder calls while it records.
#[derive(Clone, Copy)]
struct Callbacks<'a> {
    progress: &'a dyn Fn(&Progress),
    warn: &'a dyn Fn(&str),
}

/// The recorder's options; `default_plan` applies without --ledger.
fn options<'a>(
    recording: &Recording,
    file: PathBuf,
    default_plan: Plan,
    callbacks: Callbacks<'a>,
) -> Options<'a> {
    Options {
        file,
        interval: recording.interval,
        duration: None,
        plan: recording.ledger.unwrap_or(default_plan),
        ledger_settings: LedgerSettings {
            max_stop: recording.max_stop,
            snapshot: recording.snapshot.mode(),
            quiet_for: recording.quiet.limit,
        },
        progress: callbacks.progress,
        warn: callbacks.warn,
    }
}

/// Ends this process as the command ended. In a wait status the low 7 bits are the signal, and the
/// next byte is the exit status (wait(2), `bits/waitstatus.h`).
pub fn end_as(wait_status: i32) -> ExitCode {
    let signal = wait_status & 0x7f;
    if signal == 0 {
        return ExitCode::from((wait_status >> 8 & 0xff) as u8);
    }
    strandline_sys::signal::die_by(signal);
    // Reached only if the signal does not end a process; use the convention of shells.
    ExitCode::from(128u8.saturating_add(signal as u8))
}

/// The document of `record --json`.
#[derive(Serialize)]
struct RecordDocument {
    file: String,
    file_bytes: u64,
    /// Duration of the recording.
    seconds: f64,
    samples: u64,
    /// Number of samples that were not taken in time.
    missed: u64,
    processes: u32,
    ledgers: u64,
    /// How long ledgers stopped processes, in total.
    stopped_seconds: f64,
    /// Why the recording ended.
    why: String,
}

/// Converts microseconds to seconds.
fn us_to_seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

impl RecordDocument {
    fn new(recorded: &Recorded) -> Self {
        Self {
            file: recorded.file.display().to_string(),
            file_bytes: recorded.file_bytes,
            seconds: us_to_seconds(recorded.end.at_us),
            samples: recorded.end.samples,
            missed: recorded.end.missed,
            processes: recorded.processes,
            ledgers: recorded.progress.ledgers,
            stopped_seconds: us_to_seconds(recorded.end.stopped_us),
            why: recorded.end.why.clone(),
        }
    }
}

/// Prints on standard error what was recorded and the cost. `peak_period` follows the peak: the
/// time that it covers, with a leading space, or nothing.
fn print_summary(recorded: &Recorded, peak_period: &str) {
    let Recorded { file, file_bytes, end, progress, processes, max_high_water_kib } = recorded;
    let has_several = *processes > 1 || end.brief_processes > 0;
    let peak_owner = if has_several { " of one process" } else { "" };
    let mut parts = vec![
        format!("recorded {}", seconds(us_to_seconds(end.at_us))),
        format!(
            "{} ({} missed)",
            counted(end.samples, "sample"),
            percent(end.missed, end.samples + end.missed)
        ),
        format!(
            "peak RSS{peak_owner}{peak_period} {}",
            maybe_bytes(max_high_water_kib.map(|kib| kib * 1024))
        ),
    ];
    if has_several {
        parts.push(counted(u64::from(*processes) + end.brief_processes, "process"));
    }
    if progress.marks > 0 {
        parts.push(format!(
            "{}, waited {}",
            counted(progress.marks, "mark"),
            seconds(us_to_seconds(end.waited_us))
        ));
    }
    if progress.ledgers > 0 {
        let stopped = stopped(us_to_seconds(end.stopped_us));
        parts.push(format!("{}, {stopped}", counted(progress.ledgers, "ledger")));
    }
    if progress.caveats > 0 {
        parts.push(counted(progress.caveats, "caveat"));
    }
    parts.push(format!("own CPU {}", percent(end.own_cpu_us, end.at_us)));
    print_message(&parts.join(" · "));
    if let Some(kill) = &end.group_kill {
        print_message(&format!(
            "a process was killed; {} before, control group {} held {} of {}",
            seconds(us_to_seconds(kill.age_us)),
            clean(&kill.path),
            bytes(kill.current_bytes),
            maybe_bytes(kill.effective_limit_bytes)
        ));
    }
    let path = file.display().to_string();
    let next = argument_line(std::slice::from_ref(&path));
    print_message(&format!("{path} ({}); next: strandline report {next}", bytes(*file_bytes)));
}
