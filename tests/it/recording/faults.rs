//! What goes wrong around a recording: strandline is killed, the disk is full. The command never notices.

use std::process::Command;
use std::time::Duration;

use crate::support::recording::{
    Place, Started, caveats, children, command, finish, has, is_root, list, mark_names, program, recorded,
    report, signal, status_line, until,
};
use crate::support::{Outcome, Result, for_each, here, repetitions};

/// Starts `command` in a shell that waits for nobody but keeps what is orphaned in its group; the recorder's id is
/// the answer.
fn started_to_be_killed(place: &Place, flags: &[&str], words: &[&str]) -> Result<Started> {
    Started::new(place.command(flags, words))
}

/// A number that differs from turn to turn and spreads over a range, the same in every run.
fn scattered(turn: u64, range: u64) -> u64 {
    (turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % range.max(1)
}

/// Kills the recorder after a while; the command must come to its own end, which it notes in a file.
fn killed_after(flags: &[&str], pause: Duration) -> Outcome {
    let place = Place::new()?;
    let (go, done) = (place.folder.0.join("go"), place.folder.0.join("done"));
    let script = format!(
        "echo $$ > {0}.pid; {1} mark-until {2} > {0}.out; echo $? > {0}",
        done.display(),
        recorded()?,
        go.display()
    );
    let mut started = started_to_be_killed(&place, flags, &["sh", "-c", &script])?;
    let recorder = started.pid();
    // Any instant will do: what is tested is that none matters.
    std::thread::sleep(pause);
    signal(recorder, 9);
    started.child.wait()?;
    if !std::fs::exists(done.with_extension("pid"))? {
        // It was killed before there was a command; or the command is on its way.
        let begun = until("the command", || {
            let is_there = std::fs::exists(done.with_extension("pid"))?;
            Ok((is_there || group_is_empty(recorder)).then_some(is_there))
        })?;
        if !begun {
            return Ok(());
        }
    }
    std::fs::write(&go, "")?;
    let status = until("the command's own end", || {
        let text = std::fs::read_to_string(&done).unwrap_or_default();
        Ok(text.ends_with('\n').then_some(text))
    });
    let states: Vec<_> = group(recorder)
        .iter()
        .map(|&pid| (status_line(pid, "State"), status_line(pid, "TracerPid")))
        .collect();
    let status = status.map_err(|error| format!("{error}; {states:?}"))?;
    assert_eq!(status, "3\n");
    if std::fs::metadata(&place.file).is_ok_and(|data| data.len() > 0) {
        let report = report(&place.file)?;
        assert_eq!(report["exit"]["status"], serde_json::Value::Null);
        assert!(!caveats(&report).is_empty(), "that it has no end is not said");
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
fn a_killed_recorder_leaves_the_command_alone() -> Outcome {
    let turns = repetitions(48, 400);
    for_each(0..turns, |turn| {
        let flags = [&["--ledger", "marks,exit"][..], &["--ledger", "none"], &["--ledger", "exit"]];
        let flags = flags[usize::try_from(turn % 3)?];
        // The first milliseconds are those of the start.
        let range = if turn % 2 == 0 { 8_000 } else { 120_000 };
        killed_after(flags, Duration::from_micros(scattered(turn + 1, range)))
    })
}

#[test]
fn a_recorder_killed_at_the_exit_does_not_hold_it() -> Outcome {
    let subject = recorded()?;
    for_each(0..repetitions(12, 100), |turn| {
        let place = Place::new()?;
        let done = place.folder.0.join("done");
        let script = format!("{subject} end exit; echo $? > {}", done.display());
        let mut started =
            started_to_be_killed(&place, &["--ledger", "exit,every=100ms"], &["sh", "-c", &script])?;
        std::thread::sleep(Duration::from_millis(100 + scattered(*turn, 60)));
        signal(started.pid(), 9);
        started.child.wait()?;
        let status = until("the command's own end", || {
            let text = std::fs::read_to_string(&done).unwrap_or_default();
            Ok(text.ends_with('\n').then_some(text))
        })?;
        assert_eq!(status, "4\n");
        Ok(())
    })
}

#[test]
fn what_a_killed_recorder_wrote_is_there_but_for_the_last_second() -> Outcome {
    let place = Place::new()?;
    let mut started = Started::new(place.command(&["--ledger", "none"], &["sleep", "30"]))?;
    let size = || std::fs::metadata(&place.file).map_or(0, |data| data.len());
    let mut growths = 0;
    let mut last = 0;
    until("some seconds of recording", || {
        growths += u32::from(size() > last);
        last = size();
        Ok((growths >= 5).then_some(()))
    })?;
    signal(started.pid(), 9);
    started.child.wait()?;
    let report = place.report()?;
    let seconds = crate::support::recording::column(&report, "seconds")?;
    let last = seconds.last().copied().unwrap_or(0.0);
    // Five writes, half a second apart at least where nothing else is due.
    assert!(last >= 1.0, "samples up to {last} s");
    assert_eq!(report["exit"]["why"], serde_json::Value::Null);
    Ok(())
}

/// A small file system; unmounted when it is dropped.
struct Disk(std::path::PathBuf);

impl Disk {
    fn new(place: &Place, size: &str) -> Result<Option<Self>> {
        let path = place.folder.0.join("disk");
        std::fs::create_dir(&path)?;
        let mount =
            ["mount", "-t", "tmpfs", "-o", &format!("size={size}"), "none", &path.display().to_string()];
        let mounted = finish(command(&mount), b"")?;
        if mounted.how() != 0 {
            crate::support::skipped("a full disk", mounted.complaint().trim());
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
fn a_full_disk_costs_the_recording_and_not_the_command() -> Outcome {
    if !is_root(here!()) {
        return Ok(());
    }
    let mut place = Place::new()?;
    let Some(disk) = Disk::new(&place, "64k")? else { return Ok(()) };
    place.file = disk.0.join("a.strandline");
    // One page is left, and each ledger with its page map takes a part of it.
    std::fs::write(disk.0.join("ballast"), vec![1; 60 << 10])?;
    let ended = place.run(&["--ledger", "marks"], &[&recorded()?, "storm", "1", "60"])?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    assert!(ended.complaint().contains("the command goes on"), "{}", ended.complaint());
    assert_eq!(ended.complaint().lines().count(), 1);
    let report = place.report()?;
    assert!(mark_names(&report).len() < 60);
    assert!(!caveats(&report).is_empty());
    Ok(())
}

#[test]
fn a_disk_with_room_again_goes_on_and_says_what_it_lost() -> Outcome {
    if !is_root(here!()) {
        return Ok(());
    }
    let mut place = Place::new()?;
    let Some(disk) = Disk::new(&place, "256k")? else { return Ok(()) };
    place.file = disk.0.join("a.strandline");
    let (ballast, full, room) =
        (disk.0.join("ballast"), place.folder.0.join("full"), place.folder.0.join("room"));
    let script = format!(
        "{0} mark first; sleep 0.7; dd if=/dev/zero of={1} bs=4k 2> /dev/null; : > {2}; until test -e {3}; do sleep 0.01; done; sleep 0.7; {0} mark last; exit 4",
        program(),
        ballast.display(),
        full.display(),
        room.display()
    );
    let started =
        Started::new(place.command(&["--ledger", "none", "--interval", "1ms"], &["sh", "-c", &script]))?;
    until("the full disk", || Ok(full.exists().then_some(())))?;
    // Some flushes fail: the file does not grow, whoever looks at it.
    std::thread::sleep(Duration::from_millis(1500));
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
fn nothing_can_be_written_at_all() -> Outcome {
    let place = Place { file: "/dev/full".into(), ..Place::new()? };
    let ended = place.run(&[], &["sh", "-c", "echo said; exit 5"])?;
    assert_eq!((ended.how(), ended.text().as_str()), (5, "said\n"));
    assert!(
        ended.complaint().contains("/dev/full") && ended.complaint().lines().count() == 1,
        "{}",
        ended.complaint()
    );
    Ok(())
}

#[test]
fn a_pipe_is_no_place_for_a_recording() -> Outcome {
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
fn a_closed_reader_ends_nothing() -> Outcome {
    // The command's output goes to a pipe that nobody reads any more: it is the command that notices.
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
