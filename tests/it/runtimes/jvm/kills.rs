//! `reclaim` is killed during a request to a JVM: the JVM continues, prints nothing, and executes
//! the next request.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::jdks::Jdk;
use crate::support::jvm::{classes, command, reclaim, some, started};
use crate::support::recording::signal;
use crate::support::strandline;
use crate::support::waiting::{state, threads, until, until_true};
use crate::support::{Folder, Outcome, Result, Subject, for_any, here, repetitions, skipped};

const REMEDIES: [&str; 2] = ["jvm_gc", "jvm_trim"];
/// Upper bounds of the delay between an event and the kill: the file, the signal and the connection
/// are within some tens of milliseconds of a run that takes seconds.
const MICROSECONDS: [u64; 3] = [1, 300, 40_000];

/// Event that a kill waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The start of the run.
    Start,
    /// Any instant of a whole run.
    Any,
    File,
    Connection,
    /// The end of the connection: the JVM has answered.
    Answer,
    /// A call in which the run is blocked (`tests/subjects/jvm/hold.c`), so that the kill hits it
    /// there.
    Blocked(&'static str),
}

impl Event {
    /// Event that the kill of this turn waits for. Every other turn uses a JVM that never listened,
    /// for which the run creates the attach file. There the kills hit the run before it removes the
    /// file, before its first step, before it gives the file to the JVM's user (the next test
    /// covers the file that remains then), and soon after it created the file.
    fn of_turn(turn: u64) -> Self {
        match turn % 8 {
            0 => Self::Blocked("unlink"),
            2 if turn % 16 == 2 => Self::Start,
            4 => Self::Blocked("fchown"),
            6 => Self::File,
            1 | 5 => Self::Connection,
            3 => Self::Answer,
            _ => Self::Any,
        }
    }

    /// Largest delay after the event in microseconds, for a whole run of `took` microseconds.
    fn max_microseconds(self, turn: u64, took: u64) -> u64 {
        match self {
            Self::Any => took,
            Self::Start | Self::Answer | Self::Blocked(_) => 1,
            Self::File | Self::Connection => MICROSECONDS[(turn / 2 % 3) as usize],
        }
    }
}

/// The last step of a killed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LastStep {
    /// The run had not yet changed anything for a JVM that does not listen.
    Before,
    /// The attach file existed.
    File,
    /// The run was connected to the JVM.
    Connected,
    /// The run had received the answer.
    After,
}

impl LastStep {
    const ALL: [Self; 4] = [Self::Before, Self::File, Self::Connected, Self::After];
}

/// Whether process `pid` has a socket: a run has none but its connection to a JVM.
fn is_connected(pid: i32) -> bool {
    let is_socket = |path: PathBuf| path.to_string_lossy().starts_with("socket:");
    let opened = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    opened.filter_map(|file| std::fs::read_link(file.path()).ok()).any(is_socket)
}

/// Builds the library that blocks a run in a call.
fn build(folder: &Path) -> Result<PathBuf> {
    let library = folder.join("hold.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/jvm/hold.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    let output = cc.output()?;
    if output.status.success() {
        return Ok(library);
    }
    Err(format!("{cc:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// A JVM, its standard error, and the files that a request leaves in the folder for temporary
/// files.
struct Machine {
    subject: Subject,
    errors: PathBuf,
    file: PathBuf,
    socket: PathBuf,
    /// The library that blocks a run, and the file that it creates then.
    hold: PathBuf,
    held: PathBuf,
}

impl Machine {
    fn start(jdk: &Jdk, classes: &Path, folder: &Path) -> Result<Self> {
        let errors = folder.join("errors");
        let mut command = command(jdk, classes, &["-XX:+UseSerialGC"]);
        command.stderr(File::create(&errors)?);
        let subject = started(command)?;
        let path = |name: &str| Path::new("/tmp").join(format!("{name}{}", subject.pid()));
        let (file, socket) = (path(".attach_pid"), path(".java_pid"));
        // An earlier process with this id may have left them.
        for left in [&file, &socket] {
            let _ = std::fs::remove_file(left);
        }
        let [hold, held] = ["hold.so", "held"].map(|name| folder.join(name));
        Ok(Self { subject, errors, file, socket, hold, held })
    }

    /// Runs `remedy`, and kills the run `after` the `event`; returns its last step, if that is
    /// known and the run had not ended.
    fn kill(&self, remedy: &str, event: Event, after: Duration) -> Result<Option<LastStep>> {
        let arguments = ["reclaim", "--json", "--remedy", remedy, &self.subject.pid_text()];
        let mut command = strandline::command(&arguments);
        if let Event::Blocked(call) = event {
            // An earlier run may have left it.
            let _ = std::fs::remove_file(&self.held);
            command.env("LD_PRELOAD", &self.hold).env("HOLD_CALL", call).env("HOLD_FILE", &self.held);
        }
        let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let pid = run.id().cast_signed();
        let mut was_connected = false;
        while !self.has_happened(event, pid, &mut was_connected) && run.try_wait()?.is_none() {
            std::hint::spin_loop();
        }
        std::thread::sleep(after);
        // Stopped, the run shows its last step before the kill.
        signal(pid, 19);
        let is_stopped = |tid| matches!(state(pid, tid), None | Some('T' | 'Z'));
        until_true("the run to stop", || threads(pid).into_iter().all(is_stopped))?;
        let last_step = self.last_step(event, pid);
        run.kill()?;
        run.wait()?;
        match event {
            Event::Blocked(call) if !self.held.exists() => {
                Err(format!("the run was not blocked in {call}").into())
            }
            // At both calls the attach file exists.
            Event::Blocked(call) if !self.file.exists() => {
                Err(format!("no attach file during {call}").into())
            }
            _ => Ok(last_step),
        }
    }

    fn has_happened(&self, event: Event, run: i32, was_connected: &mut bool) -> bool {
        let is_connected = is_connected(run);
        *was_connected |= is_connected;
        match event {
            Event::Start | Event::Any => true,
            Event::File => self.file.exists(),
            Event::Blocked(_) => self.held.exists(),
            Event::Connection => is_connected,
            Event::Answer => *was_connected && !is_connected,
        }
    }

    /// The last step of a run that is stopped after the `event`.
    fn last_step(&self, event: Event, run: i32) -> Option<LastStep> {
        match event {
            _ if !matches!(state(run, run), Some('T')) => None,
            _ if is_connected(run) => Some(LastStep::Connected),
            _ if self.file.exists() => Some(LastStep::File),
            Event::Answer => Some(LastStep::After),
            _ => (!self.socket.exists()).then_some(LastStep::Before),
        }
    }

    /// Checks that the JVM continues and has printed only its answers: lines of a thread dump
    /// differ.
    fn check_continues(&mut self) -> Outcome {
        let pools = self.subject.order("pools")?;
        let errors = std::fs::read_to_string(&self.errors)?;
        if pools.iter().all(|line| line.split('\t').count() == 3) && errors.is_empty() {
            return Ok(());
        }
        Err(format!("the JVM printed {pools:?}, {errors:?}").into())
    }

    /// Checks that the JVM executes another request, and that no attach file remains.
    fn check_request(&mut self, remedy: &str) -> Outcome {
        let (status, document) = reclaim(&self.subject, remedy)?;
        if status != Some(0) || document["outcome"] != "done" {
            return Err(format!("{:?}: {}", status, document["reason"]).into());
        }
        if self.file.exists() {
            return Err(format!("{} still exists", self.file.display()).into());
        }
        self.check_continues()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for left in [&self.file, &self.socket] {
            let _ = std::fs::remove_file(left);
        }
    }
}

#[test]
fn the_jvm_survives_an_attach_killed_at_any_instant() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    for_any(some(test), |jdk| {
        let folder = Folder::new("jvm-kills")?;
        build(&folder.0)?;
        let start = || Machine::start(jdk, &classes, &folder.0);
        let mut machine = start()?;
        // Duration of the last complete run.
        let mut took = MICROSECONDS[2];
        let mut seed = 0x5851_f42d_4c95_7f2d_u64;
        let (turns, mut turn) = (repetitions(2, 80), 0);
        let mut last_steps = BTreeSet::new();
        until("kills of each kind", || {
            // Every other turn uses a JVM that never listened; a complete run attaches afterwards.
            let (is_new, remedy) = (turn % 2 == 0, REMEDIES[(turn / 2 % 2) as usize]);
            if is_new && turn > 0 {
                // Late output of the previous JVM has arrived by now.
                machine.check_continues()?;
                machine = start()?;
            }
            let event = Event::of_turn(turn);
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let after = Duration::from_micros((seed >> 33) % event.max_microseconds(turn, took));
            let context = |error| format!("turn {turn}, {after:?} after {event:?}: {error}");
            last_steps.extend(machine.kill(remedy, event, after).map_err(context)?);
            machine.check_continues().map_err(context)?;
            if is_new {
                let since = Instant::now();
                machine.check_request(remedy).map_err(context)?;
                took = since.elapsed().as_micros() as u64;
            }
            turn += 1;
            Ok((turn >= turns && LastStep::ALL.iter().all(|kind| last_steps.contains(kind))).then_some(()))
        })?;
        machine.check_request(REMEDIES[1])
    })
}

/// A run that was killed before its signal leaves this file, and any user can create it.
#[test]
fn an_existing_attach_file_is_used_if_the_jvm_accepts_it() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    for_any(some(test), |jdk| {
        let folder = Folder::new("jvm-files")?;
        let mut machine = Machine::start(jdk, &classes, &folder.0)?;
        File::create(&machine.file)?;
        // With another user's file the JVM would print a thread dump.
        if std::os::unix::fs::chown(&machine.file, Some(12345), None).is_ok() {
            let (status, document) = reclaim(&machine.subject, "jvm_gc")?;
            let reason = document["reason"].as_str().unwrap_or_default();
            if status != Some(3) || !reason.contains("another user") || !machine.file.exists() {
                return Err(format!("{status:?}: {reason}").into());
            }
            machine.check_continues()?;
            std::fs::remove_file(&machine.file)?;
            File::create(&machine.file)?;
        } else {
            skipped(&format!("{test}, of another user"), "only root can give a file away");
        }
        machine.check_request("jvm_gc")?;
        // The JVM listens by now and ignores the file.
        File::create(&machine.file)?;
        machine.check_request("jvm_trim")
    })
}
