//! `reclaim` is killed while it asks a JVM: that lives on, has printed nothing, and can be asked again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::reclaim::{reclaim, some};
use crate::support::jdks::Jdk;
use crate::support::jvm::{classes, command, started};
use crate::support::strandline;
use crate::support::{Folder, Outcome, Result, Subject, for_any, here, repetitions, skipped};

const REMEDIES: [&str; 2] = ["jvm_gc", "jvm_trim"];
/// How long after what it is killed at most: of a run of seconds the file, the signal, the connection and the answer lie within some
/// tens of milliseconds.
const MICROSECONDS: [u64; 3] = [1, 300, 40_000];

/// Kills that are tried besides, until one comes while the JVM is asked to listen.
const MOST_TRIES: u32 = 20;

/// What a kill waits for first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Start,
    File,
    Connection,
}

/// A JVM, what it has said of itself, and what asking it leaves in its folder for temporary files.
struct Machine {
    subject: Subject,
    errors: PathBuf,
    file: PathBuf,
    socket: PathBuf,
}

impl Machine {
    fn start(jdk: &Jdk, classes: &Path, folder: &Path) -> Result<Self> {
        let errors = folder.join("errors");
        let mut command = command(jdk, classes, &["-XX:+UseSerialGC"]);
        command.stderr(File::create(&errors)?);
        let subject = started(command)?;
        let path = |name: &str| Path::new("/tmp").join(format!("{name}{}", subject.pid()));
        let (file, socket) = (path(".attach_pid"), path(".java_pid"));
        // Of a process that had this number.
        for left in [&file, &socket] {
            let _ = std::fs::remove_file(left);
        }
        Ok(Self { subject, errors, file, socket })
    }

    /// Runs `remedy`, and kills it so long after `first`.
    fn kill(&self, remedy: &str, first: First, after: Duration) -> Outcome {
        let arguments = ["reclaim", "--json", "--remedy", remedy, &self.subject.pid_text()];
        let mut run = strandline::command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        while !self.has_come(first, run.id()) && run.try_wait()?.is_none() {
            std::hint::spin_loop();
        }
        std::thread::sleep(after);
        run.kill()?;
        run.wait()?;
        Ok(())
    }

    fn has_come(&self, first: First, run: u32) -> bool {
        let is_socket = |path: PathBuf| path.to_string_lossy().starts_with("socket:");
        match first {
            First::Start => true,
            First::File => self.file.exists(),
            First::Connection => {
                let opened = std::fs::read_dir(format!("/proc/{run}/fd")).into_iter().flatten().flatten();
                opened.filter_map(|file| std::fs::read_link(file.path()).ok()).any(is_socket)
            }
        }
    }

    /// Whether it goes on, and has said nothing but what it was asked: a thread dump has lines of other kinds.
    fn goes_on(&mut self) -> Outcome {
        let said = self.subject.order("pools")?;
        let errors = std::fs::read_to_string(&self.errors)?;
        if said.iter().all(|line| line.split('\t').count() == 3) && errors.is_empty() {
            return Ok(());
        }
        Err(format!("it said {said:?}, {errors:?}").into())
    }

    /// Whether it does what it is asked once more, and nothing is left of those that were killed.
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
fn killed_at_any_instant_of_asking_the_jvm_goes_on() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    for_any(some(test), |jdk| {
        let folder = Folder::new("jvm-kills")?;
        let start = || Machine::start(jdk, &classes, &folder.0);
        let mut machine = start()?;
        let took = Instant::now();
        machine.is_whole(REMEDIES[0])?;
        let took = took.elapsed().as_micros() as u64;
        let mut seed = 0x5851_f42d_4c95_7f2d_u64;
        let mut left = 0;
        for turn in 0..repetitions(8, 80) {
            // Every other one asks a JVM that never listened, which then has a whole run ask it.
            let (is_new, remedy) = (turn % 2 == 0, REMEDIES[(turn / 2 % 2) as usize]);
            if is_new {
                // What the last one says late it says by now.
                machine.goes_on()?;
                machine = start()?;
            }
            let first = match turn % 8 {
                0 | 2 | 4 => First::File,
                1 | 5 => First::Connection,
                _ => First::Start,
            };
            let most = if first == First::Start { took } else { MICROSECONDS[(turn / 2 % 3) as usize] };
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let after = Duration::from_micros((seed >> 33) % most);
            let context = |error| format!("turn {turn}, {after:?} after {first:?}: {error}");
            machine.kill(remedy, first, after)?;
            left += u64::from(machine.file.exists());
            machine.goes_on().map_err(context)?;
            if is_new {
                machine.is_whole(remedy).map_err(context)?;
            }
        }
        machine.is_whole(REMEDIES[1])?;
        // Where the processors are busy with others none may have come while it was asked to listen.
        for _ in 0..MOST_TRIES {
            if left > 0 {
                return Ok(());
            }
            machine = start()?;
            machine.kill(REMEDIES[0], First::File, Duration::ZERO)?;
            left += u64::from(machine.file.exists());
            machine.goes_on()?;
            machine.is_whole(REMEDIES[0])?;
        }
        if left > 0 {
            Ok(())
        } else {
            Err("no kill left the file: none came while it was asked to listen".into())
        }
    })
}

/// What a run that was killed before its signal leaves, and what anybody may put there.
#[test]
fn a_file_that_is_there_is_believed_where_the_jvm_believes_it() -> Outcome {
    let test = here!();
    let Some(classes) = classes(test)? else { return Ok(()) };
    for_any(some(test), |jdk| {
        let folder = Folder::new("jvm-files")?;
        let mut machine = Machine::start(jdk, &classes, &folder.0)?;
        File::create(&machine.file)?;
        // With another user's file it would print a thread dump.
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
        // It listens now, and the file is of no use.
        File::create(&machine.file)?;
        machine.is_whole("jvm_trim")
    })
}
