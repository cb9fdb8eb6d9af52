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
enum First {
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
    Held(&'static str),
}

impl First {
    /// Event that the kill of this turn waits for. Every other turn uses a JVM that never listened,
    /// for which the run creates the attach file. There the kills hit the run before it removes the
    /// file, before its first step, before it gives the file to the JVM's user (the next test
    /// covers the file that remains then), and soon after it created the file.
    fn of_turn(turn: u64) -> Self {
        match turn % 8 {
            0 => Self::Held("unlink"),
            2 if turn % 16 == 2 => Self::Start,
            4 => Self::Held("fchown"),
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
            Self::Start | Self::Answer | Self::Held(_) => 1,
            Self::File | Self::Connection => MICROSECONDS[(turn / 2 % 3) as usize],
        }
    }
}

/// The last step of a killed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Landed {
    /// The run had not yet changed anything for a JVM that does not listen.
    Before,
    /// The attach file existed.
    File,
    /// It was connected to the JVM.
    Connected,
    /// It had the answer.
    After,
}

impl Landed {
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

    /// Runs `remedy`, and kills it `after` the event `first`; returns its last step, if that is
    /// known and the run had not ended.
    fn kill(&self, remedy: &str, first: First, after: Duration) -> Result<Option<Landed>> {
        let arguments = ["reclaim", "--json", "--remedy", remedy, &self.subject.pid_text()];
        let mut command = strandline::command(&arguments);
        if let First::Held(call) = first {
            // An earlier run may have left it.
            let _ = std::fs::remove_file(&self.held);
            command.env("LD_PRELOAD", &self.hold).env("HOLD_CALL", call).env("HOLD_FILE", &self.held);
        }
        let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let pid = run.id().cast_signed();
        let mut was_connected = false;
        while !self.has_come(first, pid, &mut was_connected) && run.try_wait()?.is_none() {
            std::hint::spin_loop();
        }
        std::thread::sleep(after);
        // Stopped, the run shows its last step before the kill.
        signal(pid, 19);
        let stands = |tid| matches!(state(pid, tid), None | Some('T' | 'Z'));
        until_true("the run to stop", || threads(pid).into_iter().all(stands))?;
        let landed = self.landed(first, pid);
        run.kill()?;
        run.wait()?;
        match first {
            First::Held(call) if !self.held.exists() => Err(format!("it was not held at {call}").into()),
            // Killed while the file must still exist for the JVM.
            First::Held(call) if !self.file.exists() => Err(format!("no file is left at {call}").into()),
            _ => Ok(landed),
        }
    }

    fn has_come(&self, first: First, run: i32, was_connected: &mut bool) -> bool {
        let is_connected = is_connected(run);
        *was_connected |= is_connected;
        match first {
            First::Start | First::Any => true,
            First::File => self.file.exists(),
            First::Held(_) => self.held.exists(),
            First::Connection => is_connected,
            First::Answer => *was_connected && !is_connected,
        }
    }

    /// The last step of a run that is stopped after the event `first`.
    fn landed(&self, first: First, run: i32) -> Option<Landed> {
        match first {
            _ if !matches!(state(run, run), Some('T')) => None,
            _ if is_connected(run) => Some(Landed::Connected),
            _ if self.file.exists() => Some(Landed::File),
            First::Answer => Some(Landed::After),
            _ => (!self.socket.exists()).then_some(Landed::Before),
        }
    }

    /// Whether the JVM continues and has printed only its answers: lines of a thread dump differ.
    fn goes_on(&mut self) -> Outcome {
        let pools = self.subject.order("pools")?;
        let errors = std::fs::read_to_string(&self.errors)?;
        if pools.iter().all(|line| line.split('\t').count() == 3) && errors.is_empty() {
            return Ok(());
        }
        Err(format!("the JVM printed {pools:?}, {errors:?}").into())
    }

    /// Whether the JVM executes one more request, and the killed runs have left nothing.
    fn is_whole(&mut self, remedy: &str) -> Outcome {
        let (status, document) = reclaim(&self.subject, remedy)?;
        if status != Some(0) || document["outcome"] != "done" {
            return Err(format!("{:?}: {}", status, document["reason"]).into());
        }
        if self.file.exists() {
            return Err(format!("{} is left", self.file.display()).into());
        }
        self.goes_on()
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
        // Duration of a whole run, once there was one.
        let mut took = MICROSECONDS[2];
        let mut seed = 0x5851_f42d_4c95_7f2d_u64;
        let (turns, mut turn) = (repetitions(2, 80), 0);
        let mut landed = BTreeSet::new();
        until("kills of each kind", || {
            // Every other turn uses a JVM that never listened; a complete run attaches afterwards.
            let (is_new, remedy) = (turn % 2 == 0, REMEDIES[(turn / 2 % 2) as usize]);
            if is_new && turn > 0 {
                // Late output of the previous JVM has arrived by now.
                machine.goes_on()?;
                machine = start()?;
            }
            let first = First::of_turn(turn);
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let after = Duration::from_micros((seed >> 33) % first.max_microseconds(turn, took));
            let context = |error| format!("turn {turn}, {after:?} after {first:?}: {error}");
            landed.extend(machine.kill(remedy, first, after).map_err(context)?);
            machine.goes_on().map_err(context)?;
            if is_new {
                let since = Instant::now();
                machine.is_whole(remedy).map_err(context)?;
                took = since.elapsed().as_micros() as u64;
            }
            turn += 1;
            Ok((turn >= turns && Landed::ALL.iter().all(|kind| landed.contains(kind))).then_some(()))
        })?;
        machine.is_whole(REMEDIES[1])
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
            machine.goes_on()?;
            std::fs::remove_file(&machine.file)?;
            File::create(&machine.file)?;
        } else {
            skipped(&format!("{test}, of another user"), "only root can give a file away");
        }
        machine.is_whole("jvm_gc")?;
        // The JVM listens by now and ignores the file.
        File::create(&machine.file)?;
        machine.is_whole("jvm_trim")
    })
}
