//! `run -- COMMAND` and `record PID`: recordings.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use strandline_process::procfs::Process;

use super::arguments::{Record, Recording, Run, When};
use super::output::{Output, print_message};
use super::{CommandResult, Failure, Result};
use strandline_recorder::{
    CommandSettings, LedgerSettings, Limits, NotStarted, Options, Plan, Progress, Recorded,
};
use strandline_report::text::{clean, counted, shorten};
use strandline_report::units::{bytes, maybe_bytes, percent, seconds};

const SCHEMA: &str = "strandline/record/1";
/// As for timeout(1): the recorder failed, the command cannot be run, the command does not exist.
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Shorter recordings show no progress.
const PATIENCE: Duration = Duration::from_secs(1);

pub fn run(arguments: &Run) -> Result<CommandResult> {
    let program =
        arguments.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let file = arguments.output.clone().unwrap_or_else(|| strandline_recorder::default_path(&program));
    let limits = Limits {
        address_space: arguments.limit_address_space,
        data: arguments.limit_data,
        memory: arguments.limit_memory,
    };
    let set = arguments.env.iter().map(|(name, value)| (name.clone(), Some(value.clone())));
    let removed = arguments.unset_env.iter().map(|name| (name.clone(), None));
    let environment = set.chain(removed).collect();
    let surroundings = CommandSettings { limits, environment, no_huge_pages: arguments.no_huge_pages };
    // The terminal belongs to the command.
    let is_free = !std::io::stdout().is_terminal();
    let line = ProgressLine::new(arguments.recording.progress, is_free);
    let tell = |progress: &Progress| line.tell(progress);
    let may_watch = strandline_sys::spawn::may_trace_privileged();
    let plan = if may_watch { Plan::RUN } else { Plan::RUN_UNPRIVILEGED };
    let ended = strandline_recorder::run(
        &arguments.command,
        &surroundings,
        &options(&arguments.recording, file, plan, &tell),
    );
    line.wipe();
    match ended {
        Ok((recorded, wait_status)) => {
            if std::io::stderr().is_terminal() && may_write() {
                summary(&recorded);
            }
            Ok(CommandResult::Command(wait_status))
        }
        Err(not_started) => {
            let (status, text) = match not_started {
                NotStarted::NotFound(text) => (NOT_FOUND, text),
                NotStarted::NotExecutable(text) => (NOT_EXECUTABLE, text),
                NotStarted::Failed(text) => (FAILED, text),
            };
            print_message(&text);
            Ok(CommandResult::Status(status))
        }
    }
}

pub fn record(arguments: &Record, output: &mut Output) -> Result<CommandResult> {
    let name = || {
        let process = Process::open(arguments.pid).ok();
        process.and_then(|process| process.executable()).unwrap_or_default()
    };
    let file = arguments.output.clone().unwrap_or_else(|| strandline_recorder::default_path(&name()));
    let line = ProgressLine::new(arguments.recording.progress, !output.json);
    let tell = |progress: &Progress| line.tell(progress);
    let options = options(&arguments.recording, file, Plan::RECORD, &tell);
    let recorded = strandline_recorder::record(arguments.pid, &options);
    line.wipe();
    let recorded = recorded.map_err(Failure)?;
    if output.json {
        output.document(SCHEMA, None, &Document::of(&recorded))?;
    } else {
        summary(&recorded);
    }
    Ok(CommandResult::Done)
}

fn options<'a>(
    recording: &Recording,
    file: PathBuf,
    plan: Plan,
    progress: &'a dyn Fn(&Progress),
) -> Options<'a> {
    let plan = recording.ledger.unwrap_or(plan);
    Options {
        file,
        interval: recording.interval,
        plan,
        ledger_settings: LedgerSettings {
            max_stop: recording.max_stop,
            snapshot: recording.snapshot.mode(),
            quiet_for: recording.quiet.limit,
        },
        progress,
        warn: &print_message,
    }
}

/// Ends this process as the command ended.
pub fn end_as(wait_status: i32) -> ExitCode {
    let signal = wait_status & 0x7f;
    if signal == 0 {
        return ExitCode::from((wait_status >> 8 & 0xff) as u8);
    }
    strandline_sys::spawn::die_by(signal);
    // Reached only if the signal does not end a process; use the convention of shells.
    ExitCode::from(128u8.saturating_add(signal as u8))
}

#[derive(Serialize)]
struct Document {
    file: String,
    file_bytes: u64,
    seconds: f64,
    samples: u64,
    missed: u64,
    processes: u32,
    ledgers: u64,
    stopped_seconds: f64,
    why: String,
}

impl Document {
    fn of(recorded: &Recorded) -> Self {
        Self {
            file: recorded.file.display().to_string(),
            file_bytes: recorded.file_bytes,
            seconds: recorded.end.at_us as f64 / 1e6,
            samples: recorded.end.samples,
            missed: recorded.end.missed,
            processes: recorded.processes,
            ledgers: recorded.progress.ledgers,
            stopped_seconds: recorded.end.stopped_us as f64 / 1e6,
            why: recorded.end.why.clone(),
        }
    }
}

/// Whether strandline may write to standard error unasked: it is no terminal, or strandline is in
/// its foreground.
fn may_write() -> bool {
    !std::io::stderr().is_terminal() || strandline_sys::host::is_in_foreground()
}

/// Prints on standard error what was recorded and the cost.
fn summary(recorded: &Recorded) {
    let Recorded { file, file_bytes, end, progress, processes } = recorded;
    let elapsed = end.at_us as f64 / 1e6;
    let mut parts = vec![
        format!("recorded {}", seconds(elapsed)),
        format!(
            "{} ({} missed)",
            counted(end.samples, "sample"),
            percent(end.missed, end.samples + end.missed)
        ),
        format!("high water {}", maybe_bytes(end.high_water_kib.map(|kib| kib * 1024))),
    ];
    if *processes > 1 || end.brief_processes > 0 {
        parts.push(counted(u64::from(*processes) + end.brief_processes, "process"));
    }
    if progress.marks > 0 {
        parts.push(format!(
            "{}, waited {}",
            counted(progress.marks, "mark"),
            seconds(end.waited_us as f64 / 1e6)
        ));
    }
    if progress.ledgers > 0 {
        let stopped = seconds(end.stopped_us as f64 / 1e6);
        parts.push(format!("{}, stopped {stopped}", counted(progress.ledgers, "ledger")));
    }
    if progress.caveats > 0 {
        parts.push(counted(progress.caveats, "caveat"));
    }
    parts.push(format!("own cpu {}", percent(end.own_cpu_us, end.at_us)));
    print_message(&parts.join(" · "));
    if let Some(kill) = &end.group_kill {
        print_message(&format!(
            "a process was killed; {} before, control group {} held {} of {}",
            seconds(kill.age_us as f64 / 1e6),
            clean(&kill.path),
            bytes(kill.current_bytes),
            maybe_bytes(kill.effective_limit_bytes)
        ));
    }
    let path = file.display().to_string();
    print_message(&format!("{} ({}); next: strandline report {path}", path, bytes(*file_bytes)));
}

/// The progress line, shown only on a terminal and after a while.
struct ProgressLine {
    shown: bool,
    drawn: Cell<bool>,
}

impl ProgressLine {
    fn new(when: When, is_free: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let shown = match when {
            When::Always => true,
            When::Never => false,
            When::Auto => terminal && is_free,
        };
        Self { shown, drawn: Cell::new(false) }
    }

    fn tell(&self, progress: &Progress) {
        // In the background a line would stop the whole job (stty tostop), or disturb a prompt.
        if !self.shown || progress.elapsed < PATIENCE || !may_write() {
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
        for (count, thing) in
            [(progress.processes as u64, "process"), (progress.marks, "mark"), (progress.ledgers, "ledger")]
        {
            if count > u64::from(thing == "process") {
                line += &format!(" · {}", counted(count, thing));
            }
        }
        self.drawn.set(true);
        drop(write!(std::io::stderr(), "\r\x1b[K{}", shorten(&clean(&line), 78)));
    }

    fn wipe(&self) {
        if self.drawn.replace(false) {
            drop(write!(std::io::stderr(), "\r\x1b[K"));
        }
    }
}
