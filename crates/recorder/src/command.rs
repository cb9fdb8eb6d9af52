//! Runs a command and records it. Its streams, signals, terminal, limits and exit status are the
//! same as without the recorder.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use strandline_inspect::environment::Environment;
use strandline_process::target::admission::check_proc_mount;
use strandline_recording::{CommandUsage, Limit};
use strandline_sys::process::{ReapedChild, reap};
use strandline_sys::spawn::{self, Resource, ResourceLimit, Setup};

use super::clock::{Clock, micros};
use super::ledgers::{Guard, Ledgers, WatchRequest};
use super::limits::{LimitedGroup, Limits, ResourceLimits};
use super::marks::{self, CommandEnd, Marks};
use super::session::{self, Session, SessionParameters, TakenSignals};
use super::sink::Sink;
use super::tree::ProcessEvents;
use super::watchable;
use super::{Options, Recorded};

/// How long a command waits to be watched before it starts anyway. The new process also has a copy
/// of the recorder's end of the gate, so only this limit ends the wait if the recorder is killed.
const GATE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a command was not started, or could not be recorded, in one line.
#[derive(Debug)]
pub enum NotStarted {
    /// There is no such command.
    NotFound(String),
    /// It exists but cannot be run.
    NotExecutable(String),
    /// The recorder itself failed.
    Failed(String),
}

/// Settings to start a command with.
#[derive(Clone, Debug, Default)]
pub struct CommandSettings {
    /// Limits on its memory.
    pub limits: Limits,
    /// Variables of it, and not of the recorder: name and value; without a value it is removed.
    pub environment: Vec<(String, Option<String>)>,
    /// Whether transparent huge pages are disabled for it.
    pub no_huge_pages: bool,
}

/// A command that was recorded until its end.
#[derive(Debug)]
pub struct RecordedCommand {
    /// The recording.
    pub recorded: Recorded,
    /// How the command ended, as wait(2) gives it.
    pub wait_status: i32,
}

/// Runs `command` and records it until it ends.
///
/// # Errors
/// See [`NotStarted`].
pub fn run(
    command: &[OsString],
    settings: &CommandSettings,
    options: &Options<'_>,
) -> Result<RecordedCommand, NotStarted> {
    let failed = NotStarted::Failed;
    let io_failed =
        |error: io::Error| NotStarted::Failed(format!("cannot prepare to run a command: {error}"));
    let TakenSignals { signals, blocked_before } = session::take_over_signals().map_err(failed)?;
    check_proc_mount().map_err(|error| failed(error.to_string()))?;
    let open_files = session::raise_open_files();
    let PreparedLimits { mut setup, limits, group } = prepare_limits(&settings.limits).map_err(failed)?;
    setup.no_huge_pages = settings.no_huge_pages;
    setup.signal_mask = blocked_before;
    let resource = Resource::OpenFiles;
    setup.limits.extend(open_files.map(|limits| ResourceLimit { resource, limits }));
    let sink = Sink::create(&options.file).map_err(failed)?;
    let process_events = ProcessEvents::best_available();
    let (marks, command_end) = Marks::new().map_err(io_failed)?;
    let environment = Environment::read();
    let clock = Clock::start();
    let ledgers =
        Ledgers::start(clock, &environment, options.ledger_settings, Guard::None).map_err(io_failed)?;
    let root_threads = Arc::new(AtomicU64::new(1));
    let program = command.first().filter(|_| options.plan.at_exits);
    let obstacle =
        program.and_then(|program| watchable::command_obstacle(Path::new(program), &settings.environment));
    let is_root_watched = options.plan.at_exits && obstacle.is_none();
    let request = WatchRequest { process: 0, threads: Arc::clone(&root_threads) };
    let watch = is_root_watched.then_some((&ledgers, request));
    let started_at = Instant::now();
    let started = start(command, &settings.environment, setup, command_end, watch);
    // Also needed if the command did not start: the watch on its process has begun, and must end.
    let prepared = Ledgers::prepare_to_end_watches();
    let mut child = started.inspect_err(|_| sink.discard())?;
    let root = child.id().cast_signed();
    let root_pidfd = prepared.and_then(|()| strandline_sys::process::open_pidfd(root)).map_err(io_failed);
    // A recorder that fails here still ends after its command, which runs on.
    let root_pidfd = root_pidfd.inspect_err(|_| drop(child.wait()))?;
    let session = Session::begin(SessionParameters {
        options,
        clock,
        sink,
        ledgers,
        marks: Some(marks),
        root,
        root_pidfd,
        root_threads,
        is_root_watched,
        forwards_signals: true,
        signals,
        process_events,
        environment,
        limits,
        group: group.as_ref().map(|group| group.folder().to_owned()),
        command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
    })
    .map_err(io_failed);
    let mut session = session.inspect_err(|_| drop(child.wait()))?;
    if let Some(obstacle) = obstacle {
        session.add_caveat_not_watched(root, obstacle);
    }
    record(session, root, started_at, group, options)
}

/// Records the command whose process is `root` until it ends.
fn record(
    mut session: Session<'_>,
    root: i32,
    started_at: Instant,
    group: Option<LimitedGroup>,
    options: &Options<'_>,
) -> Result<RecordedCommand, NotStarted> {
    if let Some(problem) = group.as_ref().and_then(|group| group.swap_problem.as_ref()) {
        let text = format!("memory may move to swap at the limit ({problem})");
        session.add_caveat("swap_not_limited", "control group", text.clone());
        (options.warn)(&text);
    }
    let stop_reason = session.run();
    let ended =
        reap(root).map_err(|error| NotStarted::Failed(format!("cannot wait for the command: {error}")))?;
    session.root_usage = Some(command_usage(&ended, started_at));
    session.end_group(session::ending_signal(ended.status));
    let kill_count = group.and_then(|group| remove_group(&group, &mut session, options));
    let recorded = session.finish(stop_reason, Some(ended.status), kill_count);
    Ok(RecordedCommand { recorded, wait_status: ended.status })
}

/// Resources that a command used.
fn command_usage(ended: &ReapedChild, started_at: Instant) -> CommandUsage {
    CommandUsage {
        wall_us: micros(started_at.elapsed()),
        user_us: ended.usage.user_us,
        system_us: ended.usage.system_us,
        minor_faults: ended.usage.minor_faults,
        major_faults: ended.usage.major_faults,
    }
}

/// Removes the command's control group. Returns how many processes the kernel killed in it because
/// its memory was full.
fn remove_group(group: &LimitedGroup, session: &mut Session<'_>, options: &Options<'_>) -> Option<u64> {
    let kill_count = group.out_of_memory_kills();
    if let Err(text) = group.remove() {
        session.add_caveat("cgroup_left", "control group", text.clone());
        (options.warn)(&text);
    }
    kill_count
}

/// The limits of a command, before it starts.
struct PreparedLimits {
    /// What the new process sets.
    setup: Setup,
    /// The limits for the recording.
    limits: Vec<Limit>,
    /// The control group that limits resident memory.
    group: Option<LimitedGroup>,
}

/// Prepares the limits of a command, with a control group if they have one on memory.
///
/// # Errors
/// One line if a limit is above the user's, or if no control group can be made.
fn prepare_limits(requested: &Limits) -> Result<PreparedLimits, String> {
    let ResourceLimits { to_set: resources, recorded: mut limits } = requested.resources()?;
    let with_alternative =
        |refusal| format!("{refusal} (--limit-address-space and --limit-data need no privileges)");
    let group = requested.memory_bytes.map(LimitedGroup::new).transpose().map_err(with_alternative)?;
    limits.extend(group.as_ref().map(|group| group.limit.clone()));
    let group_to_join = group.as_ref().map(LimitedGroup::open_procs).transpose()?;
    Ok(PreparedLimits {
        setup: Setup { limits: resources, group_to_join, ..Setup::default() },
        limits,
        group,
    })
}

/// Starts the command. With `watch`, the watch for its end begins before its first instruction.
fn start(
    command: &[OsString],
    environment: &[(String, Option<String>)],
    mut setup: Setup,
    command_end: CommandEnd,
    watch: Option<(&Ledgers, WatchRequest)>,
) -> Result<Child, NotStarted> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(NotStarted::Failed("no command was given".to_owned()));
    };
    let mut builder = Command::new(program);
    for (name, value) in environment {
        match value {
            Some(value) => builder.env(name, value),
            None => builder.env_remove(name),
        };
    }
    builder.args(arguments).env(marks::VARIABLE, command_end.number.to_string());
    setup.inherited_descriptor = Some(command_end.descriptor);
    if let Some((ledgers, request)) = watch
        && let Ok((recorder_gate, child_gate)) = UnixStream::pair()
        && child_gate.set_read_timeout(Some(GATE_TIMEOUT)).is_ok()
    {
        setup.gate = Some(child_gate);
        ledgers.watch_first(recorder_gate, request);
    }
    let program = program.to_string_lossy().into_owned();
    spawn::spawn(builder, setup).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            NotStarted::NotFound(format!("{program}: not found; give a path, or a name that is in PATH"))
        }
        io::ErrorKind::PermissionDenied => NotStarted::NotExecutable(format!(
            "{program}: cannot be run: {error}; make it executable (chmod +x), or name its interpreter before it"
        )),
        _ => NotStarted::NotExecutable(format!("{program}: cannot be run: {error}")),
    })
}
