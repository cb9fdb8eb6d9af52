//! Faults around a recording: strandline is killed, or the disk is full. They have no effect on the
//! command.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::support::groups::Group;
use crate::support::recording::{
    Place, Started, caveats, children, column, command, finish, has, is_root, list, mark_names, program,
    recorded, report, signal, status_line, until,
};
use crate::support::waiting::{PATIENCE, is_traced, state, threads, until_traced, until_true};
use crate::support::{Outcome, Result, for_each, here, repetitions};

/// Instant at which the recorder is killed.
#[derive(Clone, Copy, Debug)]
enum When {
    /// A time after the recorder's start: before or while the command starts, or later on a fast
    /// machine.
    After(Duration),
    /// A time after the command has begun.
    Running(Duration),
    /// While the recorder traces the command to catch its exit.
    WatchingExit,
    /// While the recorder takes a ledger of the command's child, at a mark.
    TakingLedger,
}

/// A pseudo-random number below `range` that depends on the turn only.
fn scattered(turn: u64, range: u64) -> u64 {
    (turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % range.max(1)
}

/// Waits for the instant at which to kill the recorder; the command writes its id to `pid_file`.
fn wait_for(when: When, pid_file: &Path) -> Outcome {
    let begun = || {
        until("the command", || {
            let text = std::fs::read_to_string(pid_file).unwrap_or_default();
            Ok(text.strip_suffix('\n').map(str::parse::<i32>).transpose()?)
        })
    };
    match when {
        When::After(pause) => std::thread::sleep(pause),
        When::Running(pause) => {
            begun()?;
            std::thread::sleep(pause);
        }
        When::WatchingExit => assert!(until_traced(begun()?), "the recorder did not trace the command"),
        When::TakingLedger => {
            let shell = begun()?;
            let child = until("the command's child", || Ok(children(shell).first().copied()))?;
            assert!(until_traced(child), "the recorder did not trace the command's child");
        }
    }
    Ok(())
}

/// The exit status that a command wrote to a file as it ended.
fn own_status(done: &Path, recorder: i32) -> Result<String> {
    let status = until("the command's own end", || {
        let text = std::fs::read_to_string(done).unwrap_or_default();
        Ok(text.ends_with('\n').then_some(text))
    });
    let states =
        || group(recorder).into_iter().map(|pid| (status_line(pid, "State"), status_line(pid, "TracerPid")));
    status.map_err(|error| format!("{error}; {:?}", states().collect::<Vec<_>>()).into())
}

/// Kills the recorder; the command must run to its own end, which it writes to a file.
fn check_command_survives(flags: &[&str], when: When) -> Outcome {
    let place = Place::new()?;
    let (go, done) = (place.folder.0.join("go"), place.folder.0.join("done"));
    let pid_file = done.with_extension("pid");
    let script = format!(
        "echo $$ > {0}.pid; {1} mark-until {2} > {0}.out; echo $? > {0}",
        done.display(),
        recorded()?,
        go.display()
    );
    let mut started = Started::new(place.command(flags, &["sh", "-c", &script]))?;
    let recorder = started.pid();
    wait_for(when, &pid_file)?;
    signal(recorder, 9);
    started.child.wait()?;
    // Either the recorder was killed before it started the command, or the command is starting.
    let begun = until("the command", || {
        let has_begun = std::fs::exists(&pid_file)?;
        Ok((has_begun || group_is_empty(recorder)).then_some(has_begun))
    })?;
    if !begun {
        return Ok(());
    }
    std::fs::write(&go, "")?;
    assert_eq!(own_status(&done, recorder)?, "3\n");
    if std::fs::metadata(&place.file).is_ok_and(|data| data.len() > 0) {
        let report = report(&place.file)?;
        assert_eq!(report["exit"]["status"], serde_json::Value::Null);
        assert!(!caveats(&report).is_empty(), "no caveat says that the recording has no end");
    }
    Ok(())
}

/// The live processes of a process group.
fn group(leader: i32) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_member = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
        let (state, group) = (fields.next(), fields.nth(1));
        state.is_some_and(|state| state != "Z" && state != "X") && group == Some(leader.to_string().as_str())
    };
    pids.filter(is_member).collect()
}

fn group_is_empty(leader: i32) -> bool {
    group(leader).is_empty()
}

#[test]
fn the_command_survives_a_killed_recorder() -> Outcome {
    for_each(0..repetitions(48, 400), |turn| {
        let pause = |range| Duration::from_micros(scattered(turn + 1, range));
        let (flags, running) = match turn % 3 {
            0 => (&["--ledger", "marks,exit", "--quiet-for", "0"][..], When::TakingLedger),
            1 => (&["--ledger", "none"][..], When::Running(pause(20_000))),
            _ => (&["--ledger", "exit"][..], When::WatchingExit),
        };
        // On a slow machine the command may not have started after a fixed time: half of the kills
        // come while it runs.
        let when = match turn % 4 {
            0 => When::After(pause(8_000)),
            2 => When::After(pause(120_000)),
            _ => running,
        };
        check_command_survives(flags, when).map_err(|error| format!("{when:?}: {error}").into())
    })
}

/// Waits until its tracer has stopped process `pid` at its exit, or it has ended; true if it is
/// stopped. Polls without a pause, to return early in the stop.
fn until_stopped_at_exit(pid: i32) -> bool {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        match state(pid, pid) {
            Some('t') => return true,
            None | Some('Z' | 'X') => return false,
            Some(_) => {}
        }
    }
    false
}

/// Kills the recorder while it holds a process at its exit; returns whether it held it. A recorder
/// that was stopped before cannot release the process; a running one is killed `pause` after the
/// exit stop.
fn killed_at_the_exit(subject: &str, is_stopped: bool, pause: Duration) -> Result<bool> {
    let place = Place::new()?;
    let (go, done) = (place.folder.0.join("go"), place.folder.0.join("done"));
    let script = format!("{subject} end when {}; echo $? > {}", go.display(), done.display());
    let mut started = Started::new(place.command(&["--ledger", "exit"], &["sh", "-c", &script]))?;
    let recorder = started.pid();
    let pid = until("the watch for the subject's end", || {
        let shell = children(recorder).first().copied();
        let pid = shell.and_then(|shell| children(shell).first().copied());
        Ok(pid.filter(|&pid| is_traced(pid)))
    })?;
    if is_stopped {
        signal(recorder, 19);
        until_true("the recorder to be stopped", || {
            threads(recorder).into_iter().all(|tid| state(recorder, tid) == Some('T'))
        })?;
    }
    std::fs::write(&go, "")?;
    if until_stopped_at_exit(pid) {
        std::thread::sleep(pause);
    }
    let is_held = state(pid, pid) == Some('t');
    signal(recorder, 9);
    started.child.wait()?;
    assert_eq!(own_status(&done, recorder)?, "4\n");
    Ok(is_held)
}

#[test]
fn a_recorder_killed_at_the_exit_does_not_block_the_process() -> Outcome {
    let subject = recorded()?;
    let (mut turn, mut caught) = (0, 0);
    // The number of kills that hit a ledger depends on the machine: at least one must.
    while turn < repetitions(8, 100) || caught == 0 {
        let is_stopped = turn % 2 == 0;
        // The duration of a ledger depends on the machine: half of these kills are immediate.
        let at_once = is_stopped || turn % 4 == 1;
        let pause = Duration::from_micros(if at_once { 0 } else { scattered(turn, 2_000) });
        let was_held = killed_at_the_exit(&subject, is_stopped, pause)?;
        assert!(
            was_held || !is_stopped,
            "the process was not held at its exit although its tracer was stopped"
        );
        caught += u32::from(was_held && !is_stopped);
        turn += 1;
    }
    Ok(())
}

/// Time of the last sample.
fn last_second(report: &serde_json::Value) -> Result<f64> {
    Ok(column(report, "seconds")?.last().copied().unwrap_or(0.0))
}

#[test]
fn a_killed_recorder_loses_at_most_the_last_second() -> Outcome {
    let place = Place::new()?;
    let mut started = Started::new(place.command(&["--ledger", "none"], &["sleep", "300"]))?;
    let shown = place.until_reported("a second of samples", |report| {
        Ok(Some(last_second(report)?).filter(|&last| last >= 1.0))
    })?;
    signal(started.pid(), 9);
    started.child.wait()?;
    let report = place.report()?;
    let last = last_second(&report)?;
    assert!(last >= shown, "samples up to {last} s, and up to {shown} s before the kill");
    assert_eq!(report["exit"]["why"], serde_json::Value::Null);
    Ok(())
}

/// A small file system, unmounted on drop.
struct Disk(std::path::PathBuf);

impl Disk {
    fn new(test: &str, place: &Place, size: &str) -> Result<Option<Self>> {
        let path = place.folder.0.join("disk");
        std::fs::create_dir(&path)?;
        let mount =
            ["mount", "-t", "tmpfs", "-o", &format!("size={size}"), "none", &path.display().to_string()];
        let mounted = finish(command(&mount), b"")?;
        if mounted.how() != 0 {
            crate::support::skipped(test, mounted.complaint().trim());
            return Ok(None);
        }
        Ok(Some(Self(path)))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_command() -> Outcome {
    if !is_root(here!()) {
        return Ok(());
    }
    let mut place = Place::new()?;
    let Some(disk) = Disk::new(here!(), &place, "64k")? else { return Ok(()) };
    place.file = disk.0.join("a.strandline");
    // Only a little space is left, and each ledger with its page map uses part of it.
    std::fs::write(disk.0.join("ballast"), vec![1; 60 << 10])?;
    let ended = place.run(&["--ledger", "marks"], &[&recorded()?, "storm", "1", "60"])?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    assert!(ended.complaint().contains("the command runs on"), "{}", ended.complaint());
    assert_eq!(ended.complaint().lines().count(), 1);
    let report = place.report()?;
    assert!(mark_names(&report).len() < 60);
    assert!(!caveats(&report).is_empty());
    Ok(())
}

#[test]
fn recording_resumes_once_the_disk_has_space_and_reports_the_loss() -> Outcome {
    if !is_root(here!()) {
        return Ok(());
    }
    let mut place = Place::new()?;
    let Some(disk) = Disk::new(here!(), &place, "256k")? else { return Ok(()) };
    place.file = disk.0.join("a.strandline");
    let [ballast, fill, room, stderr] = [
        disk.0.join("ballast"),
        place.folder.0.join("fill"),
        place.folder.0.join("room"),
        place.folder.0.join("stderr"),
    ];
    let script = format!(
        "{0} mark first; until test -e {1}; do sleep 0.01; done; dd if=/dev/zero of={2} bs=4k 2> /dev/null; until test -e {3}; do sleep 0.01; done; {0} mark last; exit 4",
        program(),
        fill.display(),
        ballast.display(),
        room.display()
    );
    let (file, stderr_path) = (place.file.display().to_string(), stderr.display().to_string());
    let shell = ["sh", "-c", "exec \"$@\" 2> \"$0\"", stderr_path.as_str()];
    let run = [
        program(),
        "run",
        "--ledger",
        "none",
        "--interval",
        "1ms",
        "-o",
        file.as_str(),
        "--",
        "sh",
        "-c",
        script.as_str(),
    ];
    let started = Started::new(command(&[&shell[..], &run].concat()))?;
    let has_first = |report: &serde_json::Value| Ok(mark_names(report).contains(&"first").then_some(()));
    place.until_reported("the first mark", has_first)?;
    std::fs::write(&fill, "")?;
    until_true("a frame that cannot be written", || {
        std::fs::read_to_string(&stderr).is_ok_and(|text| text.contains("the command runs on"))
    })?;
    std::fs::remove_file(&ballast)?;
    std::fs::write(&room, "")?;
    let ended = started.finish()?;
    assert_eq!(ended.how(), 4, "{}", ended.complaint());
    let report = place.report()?;
    assert_eq!(report["exit"]["status"], 4);
    assert_eq!(mark_names(&report), ["first", "last"]);
    assert!(caveats(&report).contains(&"recording_lost".to_owned()), "{:?}", report["caveats"]);
    Ok(())
}

#[test]
fn the_command_runs_if_no_recording_can_be_written() -> Outcome {
    let place = Place { file: "/dev/full".into(), ..Place::new()? };
    let ended = place.run(&[], &["sh", "-c", "echo printed; exit 5"])?;
    assert_eq!((ended.how(), ended.text().as_str()), (5, "printed\n"));
    assert!(
        ended.complaint().contains("/dev/full") && ended.complaint().lines().count() == 1,
        "{}",
        ended.complaint()
    );
    Ok(())
}

/// A pipe that is full: a write to it blocks until the other end is read.
fn full_pipe() -> Result<[OwnedFd; 2]> {
    let (reader, writer) = std::io::pipe()?;
    let (reader, writer) = (OwnedFd::from(reader), File::from(OwnedFd::from(writer)));
    let set_flags = |flags| fcntl(&writer, FcntlArg::F_SETFL(flags)).map(drop);
    set_flags(OFlag::O_NONBLOCK)?;
    while (&writer).write(&[b'\n'; 4096]).is_ok() {}
    set_flags(OFlag::empty())?;
    Ok([reader, writer.into()])
}

#[test]
fn a_warning_that_standard_error_does_not_take_keeps_no_program_at_its_mark() -> Outcome {
    let place = Place::new()?;
    let [go, done] = ["go", "done"].map(|name| place.folder.0.join(name));
    let script = format!(
        "until test -e {1}; do sleep 0.01; done; {0} mark reached && echo answered > {2}; exit 4",
        program(),
        go.display(),
        done.display()
    );
    let [reader, writer] = full_pipe()?;
    // Nothing can be written to the recording: strandline warns of that.
    let mut run =
        command(&[program(), "run", "--ledger", "none", "-o", "/dev/full", "--", "sh", "-c", &script]);
    let mut child = run.stderr(writer).process_group(0).spawn()?;
    let mut group = Group::of(child.id());
    drop(run);
    let pid = child.id().cast_signed();
    let is_blocked = |tid: i32| {
        let call = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
        // write(2) to standard error.
        call.starts_with("1 0x2 ")
    };
    until_true("the warning to block", || threads(pid).into_iter().any(is_blocked))?;
    std::fs::write(&go, "")?;
    until_true("the answer to the mark", || done.exists())?;
    let mut text = String::new();
    File::from(reader).read_to_string(&mut text)?;
    group.end();
    assert_eq!(child.wait()?.code(), Some(4));
    assert!(text.trim_start().contains("the command runs on"), "{}", text.trim_start());
    Ok(())
}

#[test]
fn a_recording_to_a_pipe_is_refused() -> Outcome {
    if !has(here!(), "mkfifo") {
        return Ok(());
    }
    let place = Place::new()?;
    finish(command(&["mkfifo", &place.file.display().to_string()]), b"")?;
    let ended = place.run(&[], &["echo", "never"])?;
    assert_eq!((ended.how(), ended.text().as_str()), (125, ""));
    assert!(ended.complaint().contains("is a pipe"), "{}", ended.complaint());
    Ok(())
}

#[test]
fn a_broken_pipe_ends_the_command_and_not_the_recording() -> Outcome {
    // The command's output goes to a pipe without a reader: the command itself gets the error.
    let place = Place::new()?;
    let file = place.file.display();
    let line = format!("{{ {} run -o {file} -- yes; echo $? >&2; }} | head -1", program());
    let ended = finish(command(&["sh", "-c", &line]), b"")?;
    assert_eq!((ended.text().as_str(), ended.complaint().trim()), ("y\n", "141"));
    assert_eq!(place.report()?["exit"]["signal"], 13);
    Ok(())
}

#[test]
fn orphans_of_a_killed_recorder_are_not_traced() -> Outcome {
    let place = Place::new()?;
    let mut started = Started::new(place.command(&["--ledger", "exit"], &["sh", "-c", "sleep 300 & wait"]))?;
    let recorder = started.pid();
    let shell = until("a traced command", || {
        let child = children(recorder).first().copied();
        Ok(child.filter(|&pid| {
            status_line(pid, "TracerPid").is_some_and(|tracer| tracer != "0") && !children(pid).is_empty()
        }))
    })?;
    signal(recorder, 9);
    started.child.wait()?;
    let now = [shell]
        .into_iter()
        .chain(children(shell))
        .map(|pid| (status_line(pid, "State"), status_line(pid, "TracerPid")));
    for (state, tracer) in now.collect::<Vec<_>>() {
        assert_eq!(tracer.as_deref(), Some("0"));
        assert!(state.as_deref().is_some_and(|state| !state.to_lowercase().starts_with('t')), "{state:?}");
    }
    assert!(list(&place.report().unwrap_or_default(), "ledgers").is_empty());
    Ok(())
}
