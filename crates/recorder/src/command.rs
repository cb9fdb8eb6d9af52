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
use super::ledgers::{Ledgers, WatchRequest};
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
    surroundings: &CommandSettings,
    options: &Options<'_>,
) -> Result<(Recorded, i32), NotStarted> {
    let failed = NotStarted::Failed;
    let io = |error: io::Error| failed(format!("cannot prepare to run a command: {error}"));
    let (signals, signal_mask) = session::take_signals().map_err(failed)?;
    check_proc().map_err(failed)?;
    let open_files = session::raise_open_files();
    let (mut setup, named, group) = prepare(&surroundings.limits).map_err(failed)?;
    setup.no_huge_pages = surroundings.no_huge_pages;
    setup.signal_mask = signal_mask;
    setup.limits.extend(open_files.map(|(soft, hard)| (Resource::OpenFiles, soft, hard)));
    let sink = Sink::create(&options.file).map_err(failed)?;
    let followed = ProcessEvents::best();
    let (marks, end) = Marks::new().map_err(io)?;
    let environment = Environment::read();
    let clock = Clock::start();
    let ledgers = Ledgers::start(clock, &environment, options.looks).map_err(io)?;
    let threads = Arc::new(AtomicU64::new(1));
    let watch = WatchRequest { process: 0, threads: Arc::clone(&threads) };
    let why_not = command.first().and_then(|program| watchable::why_not_command(Path::new(program)));
    let is_watched = options.plan.exit && why_not.is_none();
    let begin = Instant::now();
    let started =
        start(command, &surroundings.environment, setup, end, is_watched.then_some((&ledgers, watch)));
    // Even if it did not start: the watch on the process that tried to start it must end.
    let prepared = Ledgers::prepare_to_end_watches();
    let mut child = started.inspect_err(|_| sink.discard())?;
    let root = child.id().cast_signed();
    let root_end = prepared.and_then(|()| strandline_sys::process::open_pidfd(root)).map_err(io);
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
        forwards: true,
        signals,
        followed,
        environment,
        limits: named,
        group: group.as_ref().map(|group| group.folder().to_owned()),
        command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
    })
    .map_err(io);
    let mut session = session.inspect_err(|_| drop(child.wait()))?;
    if let Some(why) = why_not.filter(|_| options.plan.exit) {
        session.warn_not_watched(root, why);
    }
    let why = session.work();
    let ended = reap(root, true).map_err(io)?;
    let Some(ReapedChild { status, usage, .. }) = ended else {
        return Err(failed("the command's end is not known".to_owned()));
    };
    session.root_usage = Some(CommandUsage {
        wall_us: u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX),
        user_us: usage.user_us,
        system_us: usage.system_us,
        minor_faults: usage.minor_faults,
        major_faults: usage.major_faults,
    });
    session.end_group(session::ending_signal(status));
    let kills = group.and_then(|group| end_group(&group, &mut session, options));
    Ok((session.finish(why, Some(status), kills), status))
}

/// Removes the command's control group. Returns how many processes the kernel killed in it because
/// its memory was full.
fn end_group(group: &Group, session: &mut Session<'_>, options: &Options<'_>) -> Option<u64> {
    let kills = group.out_of_memory_kills();
    if let Err(text) = group.remove() {
        session.caution("cgroup_left", "control group", text.clone());
        (options.warn)(&text);
    }
    kills
}

/// The limits that the new process sets, their names in the recording, and the control group.
fn prepare(limits: &Limits) -> Result<(Setup, Vec<Limit>, Option<Group>), String> {
    let (resources, mut named) = limits.resources()?;
    let instead = |why| format!("{why} (--limit-address-space and --limit-data need no privileges)");
    let group = limits.memory.map(Group::new).transpose().map_err(instead)?;
    named.extend(group.as_ref().map(|group| group.limit.clone()));
    let join = group.as_ref().map(Group::open_procs).transpose()?;
    Ok((Setup { limits: resources, join, ..Setup::default() }, named, group))
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

/// Starts the command. Its end is watched from before its first instruction on.
fn start(
    command: &[OsString],
    environment: &[(String, Option<String>)],
    mut setup: Setup,
    end: CommandEnd,
    watch: Option<(&Ledgers, WatchRequest)>,
) -> Result<Child, NotStarted> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(NotStarted::Failed("no command was given".to_owned()));
    };
    let mut starting = Command::new(program);
    for (name, value) in environment {
        match value {
            Some(value) => starting.env(name, value),
            None => starting.env_remove(name),
        };
    }
    starting.args(arguments).env(marks::VARIABLE, end.number.to_string());
    setup.inherit = Some(end.descriptor);
    if let Some((ledgers, request)) = watch
        && let Ok((own, theirs)) = UnixStream::pair()
        && theirs.set_read_timeout(Some(GATE_TIMEOUT)).is_ok()
    {
        setup.gate = Some(theirs);
        ledgers.watch_first(own, request);
    }
    let program = program.to_string_lossy().into_owned();
    spawn::spawn(starting, setup).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            NotStarted::NotFound(format!("{program}: not found; give a path, or a name that is in PATH"))
        }
        _ => NotStarted::NotExecutable(format!("{program}: cannot be run: {error}")),
    })
}
