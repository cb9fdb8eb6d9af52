//! `run -- COMMAND` and `record PID`: recordings.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use strandline_process::procfs::Process;

use super::arguments::{Record, Recording, Run, When};
use super::output::{Output, print_message};
use super::progress::max_columns;
use super::{CommandResult, Failure, Result};
use strandline_recorder::{
    CommandSettings, LedgerSettings, Limits, NotStarted, Options, Plan, Progress, Recorded, RecordedCommand,
};
use strandline_report::text::{argument_line, clean, counted, shorten};
use strandline_report::units::{bytes, maybe_bytes, percent, seconds};

const SCHEMA: &str = "strandline/record/1";
/// Exit statuses as of timeout(1): the recorder failed, the command cannot be run, the command does
/// not exist.
const EXIT_FAILED: u8 = 125;
const EXIT_NOT_EXECUTABLE: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;
/// Shorter recordings show no progress.
const SHOW_AFTER: Duration = Duration::from_secs(1);

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
    let line = ProgressLine::new(arguments.recording.progress, may_draw);
    let update = |progress: &Progress| line.update(progress);
    let may_trace = strandline_sys::capabilities::SYS_PTRACE.is_held();
    let plan = if may_trace { Plan::RUN } else { Plan::RUN_UNPRIVILEGED };
    let ended = strandline_recorder::run(
        &arguments.command,
        &settings,
        &options(&arguments.recording, file, plan, &update),
    );
    line.erase();
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
    let line = ProgressLine::new(arguments.recording.progress, !output.is_json);
    let update = |progress: &Progress| line.update(progress);
    let settings = options(&arguments.recording, file, Plan::RECORD, &update);
    let recorded =
        strandline_recorder::record(arguments.pid, &Options { duration: arguments.duration, ..settings });
    line.erase();
    let recorded = recorded.map_err(Failure)?;
    if output.is_json {
        output.document(SCHEMA, None, &RecordDocument::new(&recorded))?;
    } else {
        print_summary(&recorded, " since its start");
    }
    Ok(CommandResult::Done)
}

/// The recorder's options; `default_plan` applies without --ledger.
fn options<'a>(
    recording: &Recording,
    file: PathBuf,
    default_plan: Plan,
    progress: &'a dyn Fn(&Progress),
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
        progress,
        warn: &print_message,
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

/// Whether strandline may write to standard error unasked: it is no terminal, or strandline is in
/// its foreground.
fn may_write() -> bool {
    !std::io::stderr().is_terminal() || strandline_sys::host::is_in_foreground()
}

/// Whether standard error takes a line now: a terminal stopped by Ctrl-S, or a full pipe, would
/// block the recorder, its samples and the programs that wait at marks.
fn can_write_now() -> bool {
    let stderr = std::io::stderr();
    let mut sources = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut sources, PollTimeout::ZERO).is_ok_and(|count| count > 0)
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
        let stopped = seconds(us_to_seconds(end.stopped_us));
        parts.push(format!("{}, stopped {stopped}", counted(progress.ledgers, "ledger")));
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

/// The progress line of a recording, shown after [`SHOW_AFTER`].
struct ProgressLine {
    is_shown: bool,
    /// Whether a line is on the terminal now.
    is_drawn: Cell<bool>,
}

impl ProgressLine {
    /// A line that is shown as `when` says; for `Auto`, on a terminal and only if `may_draw`.
    fn new(when: When, may_draw: bool) -> Self {
        let is_shown = match when {
            When::Always => true,
            When::Never => false,
            When::Auto => std::io::stderr().is_terminal() && may_draw,
        };
        Self { is_shown, is_drawn: Cell::new(false) }
    }

    fn update(&self, progress: &Progress) {
        // In the background a line would stop the whole job (stty tostop), or disturb a prompt.
        if !self.is_shown || progress.elapsed < SHOW_AFTER || !may_write() || !can_write_now() {
            return;
        }
        let missed = percent(progress.missed, progress.samples + progress.missed);
        let mut line = format!(
            "{} · RSS {} · peak {} · {} missed",
            seconds(progress.elapsed.as_secs_f64()),
            bytes(progress.rss_bytes),
            bytes(progress.peak_bytes),
            missed
        );
        if progress.processes > 1 {
            line += &format!(" · {}", counted(progress.processes as u64, "process"));
        }
        for (count, noun) in [(progress.marks, "mark"), (progress.ledgers, "ledger")] {
            if count > 0 {
                line += &format!(" · {}", counted(count, noun));
            }
        }
        self.is_drawn.set(true);
        drop(write!(std::io::stderr(), "\r\x1b[K{}", shorten(&clean(&line), max_columns())));
    }

    fn erase(&self) {
        if self.is_drawn.replace(false) {
            drop(write!(std::io::stderr(), "\r\x1b[K"));
        }
    }
}
