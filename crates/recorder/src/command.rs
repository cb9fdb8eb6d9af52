//! Running a command: its streams, signals, terminal, limits and exit status are as if it ran
//! alone.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use strandline_inspect::environment::Environment;
use strandline_recording::{CommandUsage, Limit};
use strandline_sys::process::{ReapedChild, reap};
use strandline_sys::spawn::{self, Resource, Setup};

use super::clock::Clock;
use super::ledgers::{Guard, Ledgers, WatchRequest};
use super::limits::{Group, Limits};
use super::marks::{self, CommandEnd, Marks};
use super::session::{self, Session, SessionParameters};
use super::sink::Sink;
use super::tree::ProcessEvents;
use super::watchable;
use super::{Options, Recorded};

/// How long a command waits to be watched before it starts anyway. The new process also holds a
/// copy of the recorder's end of the gate, so it has no other way to notice that a killed recorder
/// will not open it.
const GATE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a command was not started.
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
    /// Variables to set, or to remove, for it and not for the recorder.
    pub environment: Vec<(String, Option<String>)>,
    /// Whether transparent huge pages are disabled for it.
    pub no_huge_pages: bool,
}

/// Runs `command` and records it until it ends. Returns the result and the wait status of the
/// command.
///
/// # Errors
/// See [`NotStarted`]; nothing was run then.
pub fn run(
    command: &[OsString],
    settings: &CommandSettings,
    options: &Options<'_>,
) -> Result<(Recorded, i32), NotStarted> {
    let failed = NotStarted::Failed;
    let io_failed = |error: io::Error| failed(format!("cannot prepare to run a command: {error}"));
    let (signals, signal_mask) = session::take_signals().map_err(failed)?;
    check_proc().map_err(failed)?;
    let open_files = session::raise_open_files();
    let PreparedLimits { mut setup, named, group } = prepare(&settings.limits).map_err(failed)?;
    setup.no_huge_pages = settings.no_huge_pages;
    setup.signal_mask = signal_mask;
    setup.limits.extend(open_files.map(|limits| (Resource::OpenFiles, limits.soft, limits.hard)));
    let sink = Sink::create(&options.file).map_err(failed)?;
    let process_events = ProcessEvents::best();
    let (marks, command_end) = Marks::new().map_err(io_failed)?;
    let environment = Environment::read();
    let clock = Clock::start();
    let ledgers =
        Ledgers::start(clock, &environment, options.ledger_settings, Guard::None).map_err(io_failed)?;
    let threads = Arc::new(AtomicU64::new(1));
    let watch = WatchRequest { process: 0, threads: Arc::clone(&threads) };
    let not_watched = command.first().and_then(|program| watchable::command_obstacle(Path::new(program)));
    let not_watched = not_watched.filter(|_| options.plan.exit);
    let is_watched = options.plan.exit && not_watched.is_none();
    let started_at = Instant::now();
    let watch = is_watched.then_some((&ledgers, watch));
    let started = start(command, &settings.environment, setup, command_end, watch);
    // Even if it did not start: the watch on the process that tried to start it must end.
    let prepared = Ledgers::prepare_to_end_watches();
    let mut child = started.inspect_err(|_| sink.discard())?;
    let root = child.id().cast_signed();
    let root_end = prepared.and_then(|()| strandline_sys::process::open_pidfd(root)).map_err(io_failed);
    let root_end = root_end.inspect_err(|_| drop(child.wait()))?;
    let session = Session::begin(SessionParameters {
        options,
        clock,
        sink,
        ledgers,
        marks: Some(marks),
        root,
        root_end,
        threads,
        is_watched,
        forwards_signals: true,
        signals,
        process_events,
        environment,
        limits: named,
        group: group.as_ref().map(|group| group.folder().to_owned()),
        command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
    })
    .map_err(io_failed);
    let mut session = session.inspect_err(|_| drop(child.wait()))?;
    if let Some(obstacle) = not_watched {
        session.warn_not_watched(root, obstacle);
    }
    let stop_reason = session.run();
    let Some(ended) = reap(root, true).map_err(io_failed)? else {
        return Err(failed("the command's end is not known".to_owned()));
    };
    session.root_usage = Some(command_usage(&ended, started_at));
    session.end_group(session::ending_signal(ended.status));
    let kills = group.and_then(|group| end_group(&group, &mut session, options));
    Ok((session.finish(stop_reason, Some(ended.status), kills), ended.status))
}

fn command_usage(ended: &ReapedChild, started_at: Instant) -> CommandUsage {
    CommandUsage {
        wall_us: u64::try_from(started_at.elapsed().as_micros()).unwrap_or(u64::MAX),
        user_us: ended.usage.user_us,
        system_us: ended.usage.system_us,
        minor_faults: ended.usage.minor_faults,
        major_faults: ended.usage.major_faults,
    }
}

/// Removes the command's control group. Returns how many processes the kernel killed in it because
/// its memory was full.
fn end_group(group: &Group, session: &mut Session<'_>, options: &Options<'_>) -> Option<u64> {
    let kills = group.out_of_memory_kills();
    if let Err(text) = group.remove() {
        session.add_caveat("cgroup_left", "control group", text.clone());
        (options.warn)(&text);
    }
    kills
}

/// The limits of a command, before it starts.
struct PreparedLimits {
    /// What the new process sets.
    setup: Setup,
    /// The limits as the recording names them.
    named: Vec<Limit>,
    /// The control group that limits resident memory.
    group: Option<Group>,
}

fn prepare(limits: &Limits) -> Result<PreparedLimits, String> {
    let (resources, mut named) = limits.resources()?;
    let with_alternative =
        |reason| format!("{reason} (--limit-address-space and --limit-data need no privileges)");
    let group = limits.memory.map(Group::new).transpose().map_err(with_alternative)?;
    named.extend(group.as_ref().map(|group| group.limit.clone()));
    let join = group.as_ref().map(Group::open_procs).transpose()?;
    Ok(PreparedLimits { setup: Setup { limits: resources, join, ..Setup::default() }, named, group })
}

/// Checks that /proc shows this pid namespace.
///
/// # Errors
/// One line if /proc belongs to another pid namespace: ids in it mean other processes.
fn check_proc() -> Result<(), String> {
    let shown =
        std::fs::read_link("/proc/self").map_err(|error| format!("/proc/self: {error}; mount /proc"))?;
    if shown.as_os_str() == std::process::id().to_string().as_str() {
        return Ok(());
    }
    Err("/proc shows the processes of another pid namespace; mount this one's (mount -t proc proc /proc, or unshare \
         --mount-proc)"
        .to_owned())
}

/// Starts the command. With `watch`, its end is watched from before its first instruction on.
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
    setup.inherit = Some(command_end.descriptor);
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
        _ => NotStarted::NotExecutable(format!("{program}: cannot be run: {error}")),
    })
}
