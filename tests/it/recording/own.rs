//! A recorded command has the same streams, signals, terminal, limits, environment and exit status
//! as without strandline.

use std::io::Write;
use std::process::Command;

use serde_json::Value;

use crate::support::recording::{
    Ended, Place, Started, children, command, finish, has, list, number, program, recorded, signal,
    status_line, until,
};
use crate::support::waiting::until_true;
use crate::support::{Outcome, Result, for_each, here};

/// Runs `words` unrecorded and recorded, both in a shell that leads their process group.
fn both(prefix: &[&str], words: &[&str], flags: &[&str]) -> Result<(Ended, Ended)> {
    let place = Place::new()?;
    let file = place.file.display().to_string();
    let shell = ["sh", "-c", "export OUTER=$$; \"$@\"; exit $?", "sh"];
    let run: Vec<&str> =
        [program(), "run"].into_iter().chain(flags.iter().copied()).chain(["-o", &file, "--"]).collect();
    let with = |middle: &[&str]| finish(command(&[&shell, prefix, middle, words].concat()), b"");
    Ok((with(&[])?, with(&run)?))
}

fn same(prefix: &[&str], words: &[&str]) -> Outcome {
    let (alone, recorded) = both(prefix, words, &["--ledger", "marks,exit"])?;
    assert!(!alone.stdout.is_empty(), "{}", alone.complaint());
    assert_eq!(alone.how(), recorded.how(), "{}", recorded.complaint());
    assert_eq!(alone.text(), recorded.text());
    assert_eq!(alone.complaint(), recorded.complaint());
    Ok(())
}

#[test]
fn the_commands_streams_pass_unchanged() -> Outcome {
    let all: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let place = Place::new()?;
    let ended = finish(place.command(&[], &["sh", "-c", "tee /dev/stderr"]), &all)?;
    assert_eq!(ended.how(), 0);
    assert!(ended.stdout == all && ended.stderr == all, "{} {}", ended.stdout.len(), ended.stderr.len());
    Ok(())
}

#[test]
fn strandline_has_the_commands_exit_status() -> Outcome {
    let place = Place::new()?;
    for_each([0, 1, 2, 3, 77, 124, 125, 126, 127, 128, 137, 255], |status| {
        let ended = place.run(&["--ledger", "none"], &["sh", "-c", &format!("exit {status}")])?;
        assert_eq!((ended.how(), ended.complaint()), (*status, String::new()));
        assert_eq!(place.report()?["exit"]["status"], *status);
        Ok(())
    })
}

#[test]
fn a_signal_that_ends_the_command_ends_strandline() -> Outcome {
    let place = Place::new()?;
    for_each([1, 2, 3, 6, 9, 10, 11, 13, 14, 15, 24, 31], |number| {
        let script = format!("ulimit -c 0; kill -{number} $$; sleep 60");
        let ended = place.run(&["--ledger", "exit"], &["sh", "-c", &script])?;
        assert_eq!(ended.how(), 1000 + number, "{}", ended.complaint());
        let exit = &place.report()?["exit"];
        assert_eq!((&exit["status"], &exit["signal"]), (&Value::Null, &Value::from(*number)));
        Ok(())
    })
}

#[test]
fn signals_to_strandline_reach_the_command() -> Outcome {
    for_each(["HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "WINCH"], |name| {
        let place = Place::new()?;
        let number = nix::sys::signal::Signal::iterator()
            .find(|signal| signal.as_str().strip_prefix("SIG") == Some(*name))
            .ok_or("no such signal")?;
        let ready = place.folder.0.join("ready");
        let script = format!(
            "trap 'echo received; exit 9' {name}; : > {}; while :; do sleep 0.01; done",
            ready.display()
        );
        let started = Started::new(place.command(&[], &["sh", "-c", &script]))?;
        until("the trap", || Ok(ready.exists().then_some(())))?;
        signal(started.pid(), number as i32);
        let ended = started.finish()?;
        assert_eq!((ended.how(), ended.text().as_str()), (9, "received\n"), "{}", ended.complaint());
        Ok(())
    })
}

#[test]
fn signal_dispositions_and_masks_are_inherited() -> Outcome {
    // Signals 32 and 33 are reserved by the C library.
    let script = "while read -r name mask; do case $name in Sig[BI]*) echo $name $((0x$mask & ~0x180000000));; esac; done < /proc/self/status";
    let show = ["bash", "-c", script];
    if !has(here!(), "bash") {
        return Ok(());
    }
    same(&[], &show)?;
    let traps: String = (1..=64).filter(|n| ![9, 19, 32, 33].contains(n)).map(|n| format!("{n} ")).collect();
    let ignoring = format!("trap '' {traps}2>/dev/null; exec \"$@\"");
    same(&["sh", "-c", &ignoring, "sh"], &show)?;
    if has(here!(), "perl") {
        let blocking = "sigprocmask(SIG_BLOCK, POSIX::SigSet->new(1 .. 31, 34 .. 64)); exec @ARGV";
        let blocked = ["perl", "-MPOSIX", "-e", blocking];
        same(&blocked, &show)?;
        // The recorder itself needs signals for marks and ledgers.
        same(&blocked, &["sh", "-c", &format!("echo a; {} mark one", program())])?;
    }
    Ok(())
}

#[test]
fn everything_else_is_inherited_too() -> Outcome {
    let script = r#"
        set -- $(cat /proc/$$/stat)
        [ "$5" = "$OUTER" ] && echo 'the group of its caller'
        [ "$6" = "$(cut -d' ' -f6 /proc/$OUTER/stat)" ] && echo 'the session of its caller'
        echo "terminal $7 priority ${18} nice ${19} policy ${41}"
        grep -E '^(Umask|Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Cpus_allowed|Mems_allowed|TracerPid:.0)' /proc/$$/status | grep -v Tracer
        pwd; ulimit -a; cat /proc/$$/limits /proc/$$/oom_score_adj /proc/$$/cgroup /proc/$$/timerslack_ns
        for number in /proc/$$/fd/*; do
            [ "${number##*/}" = "$STRANDLINE_MARK_FD" ] || echo "${number##*/} $(readlink "$number" | cut -d: -f1) $(cat "/proc/$$/fdinfo/${number##*/}" 2>&1 | grep flags)"
        done
        unset STRANDLINE_MARK_FD; env | grep -v '^_=' | grep -v ^OUTER | sort; readlink /proc/$$/ns/*"#;
    let prefix = ["sh", "-c", "ulimit -n 777; umask 027; cd /usr; exec nice -n 3 \"$@\"", "sh"];
    same(&prefix, &["sh", "-c", script])
}

#[test]
fn only_the_mark_socket_is_added() -> Outcome {
    let (alone, recorded) = both(&[], &["ls", "/proc/self/fd"], &[])?;
    let (alone, recorded) = (alone.text(), recorded.text());
    let added: Vec<&str> =
        recorded.lines().filter(|number| !alone.lines().any(|one| one == *number)).collect();
    let script = "echo $STRANDLINE_MARK_FD; readlink /proc/self/fd/$STRANDLINE_MARK_FD | cut -d: -f1";
    let (_, ended) = both(&[], &["sh", "-c", script], &[])?;
    assert_eq!(ended.text(), format!("{}\nsocket\n", added.join(" ")));
    Ok(())
}

#[test]
fn a_command_that_cannot_run_has_the_exit_status_of_timeout() -> Outcome {
    let place = Place::new()?;
    let plain = place.folder.0.join("plain");
    std::fs::write(&plain, "echo never\n")?;
    let plain = plain.display().to_string();
    for (words, status, reason) in [
        (["no-such-command-anywhere"], 127, "not found"),
        (["/no/such/path"], 127, "not found"),
        ([plain.as_str()], 126, "make it executable (chmod +x)"),
        (["/"], 126, "cannot be run"),
        ([""], 127, "not found"),
    ] {
        let ended = place.run(&[], &words)?;
        assert_eq!(ended.how(), status, "{words:?}: {}", ended.complaint());
        assert!(
            ended.complaint().contains(reason) && ended.complaint().lines().count() == 1,
            "{}",
            ended.complaint()
        );
        assert!(!place.file.exists(), "{words:?} left a recording");
    }
    let ended = Place::run(&Place { file: "/no/such/folder/a".into(), ..Place::new()? }, &[], &["true"])?;
    assert_eq!(ended.how(), 125, "{}", ended.complaint());
    for flags in [&["--interval", "1us"][..], &["--ledger", "now"], &["--limit-memory", "much"]] {
        assert_eq!(place.run(flags, &["true"])?.how(), 2, "{flags:?}");
    }
    assert_eq!(finish(command(&[program(), "run"]), b"")?.how(), 2);
    Ok(())
}

#[test]
fn other_files_are_not_overwritten() -> Outcome {
    let place = Place::new()?;
    std::fs::write(&place.file, "a letter")?;
    let ended = place.run(&[], &["echo", "never"])?;
    assert_eq!((ended.how(), ended.text().as_str()), (125, ""));
    assert_eq!(std::fs::read(&place.file)?, b"a letter");
    Ok(())
}

/// Runs `line` in a shell on its own terminal; bytes written to its input are typed.
fn on_a_terminal(line: &str) -> Result<Started> {
    let mut script = Command::new("script");
    script.args(["-qefc", line, "/dev/null"]).env("TERM", "dumb").env("PS1", "$ ").env("SHELL", "/bin/sh");
    Started::new(script)
}

/// The first descendant of `pid` whose command line has `part`.
fn descendant(pid: i32, part: &str) -> Option<i32> {
    let mut open = vec![pid];
    while let Some(one) = open.pop() {
        let line = std::fs::read(format!("/proc/{one}/cmdline")).unwrap_or_default();
        let first = line.split(|&byte| byte == 0).take(2).collect::<Vec<_>>().join(&b' ');
        if String::from_utf8_lossy(&first).contains(part) {
            return Some(one);
        }
        open.extend(children(one));
    }
    None
}

#[test]
fn the_command_gets_the_terminal() -> Outcome {
    if !has(here!(), "script") {
        return Ok(());
    }
    let place = Place::new()?;
    let file = place.file.display();
    let line = format!(
        "{} run -o {file} -- sh -c 'tty; stty size; test -t 0 -a -t 1 -a -t 2; exit $((40 + $?))'",
        program()
    );
    let ended = on_a_terminal(&line)?.finish()?;
    assert_eq!(ended.how(), 40, "{}", ended.text());
    assert!(ended.text().contains("/dev/pts/") && ended.text().contains("recorded"), "{}", ended.text());
    Ok(())
}

/// Whether the recorder has handled all its signals: none is pending, and it waits in ppoll for the
/// next event.
fn has_taken_its_signals(recorder: i32) -> bool {
    let is_empty =
        |name| status_line(recorder, name).is_some_and(|mask| mask.bytes().all(|digit| digit == b'0'));
    let waits = || {
        let call = std::fs::read_to_string(format!("/proc/{recorder}/syscall"));
        call.is_ok_and(|call| call.starts_with("271 "))
    };
    // In this order: the recorder forwards a signal before it waits again.
    is_empty("SigPnd") && is_empty("ShdPnd") && waits()
}

#[test]
fn a_keyboard_interrupt_reaches_the_command_once() -> Outcome {
    if !has(here!(), "script") {
        return Ok(());
    }
    let place = Place::new()?;
    let subject = recorded()?;
    let (report, received) = (place.folder.0.join("report"), place.folder.0.join("report.received"));
    let run = format!("{} run", program());
    let line = format!("exec {run} -o {} -- {subject} interrupts {}", place.file.display(), report.display());
    let mut terminal = on_a_terminal(&line)?;
    let caught = |pid| status_line(pid, "SigCgt").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    until("the subject's handler", || {
        let pid = descendant(terminal.pid(), &format!("{subject} interrupts"));
        Ok(pid.and_then(caught).filter(|mask| mask & 2 != 0))
    })?;
    let recorder = descendant(terminal.pid(), &run).ok_or("no recorder")?;
    let mut typed = terminal.child.stdin.take().ok_or("no pipe")?;
    typed.write_all(b"\x03")?;
    typed.flush()?;
    until_true("the interrupt", || received.exists())?;
    // A second one would come from the recorder, which the terminal also interrupts.
    until_true("the recorder to handle its interrupt", || has_taken_its_signals(recorder))?;
    std::fs::write(&report, "")?;
    until("the command's end", || Ok(terminal.child.try_wait()?.is_some().then_some(())))?;
    drop(typed);
    let ended = terminal.finish()?;
    assert!(ended.text().contains("{\"interrupts\": 1}"), "{}", ended.text());
    assert_eq!(ended.how(), 0);
    Ok(())
}

#[test]
fn a_recording_can_be_stopped_and_continued_from_the_keyboard() -> Outcome {
    let test = here!();
    if !has(test, "script") || !has(test, "bash") {
        return Ok(());
    }
    let place = Place::new()?;
    let go = place.folder.0.join("go");
    let mut terminal = on_a_terminal("bash --norc --noprofile -i")?;
    let mut typed = terminal.child.stdin.take().ok_or("no pipe")?;
    let file = place.file.display();
    writeln!(
        typed,
        "{} run -o {file} -- sh -c 'while ! test -e {}; do sleep 0.01; done; exit 5'",
        program(),
        go.display()
    )?;
    let recorder = until("the recorder", || Ok(descendant(terminal.pid(), &format!("{} run", program()))))?;
    let subject = until("the command", || {
        Ok(children(recorder).into_iter().find(|&pid| descendant(pid, "sh -c").is_some()))
    })?;
    typed.write_all(b"\x1a")?;
    let state = |pid| status_line(pid, "State").unwrap_or_default();
    // A shell whose child was stopped between vfork and exec sleeps in the kernel.
    let stopped = until("both to be stopped", || {
        let are_stopped = state(recorder).starts_with('T') && state(subject).starts_with(['T', 't', 'D']);
        Ok(are_stopped.then_some(()))
    });
    stopped.map_err(|error| format!("{error}: {:?} and {:?}", state(recorder), state(subject)))?;

    writeln!(typed, "fg")?;
    until("both to continue", || {
        let is_stopped = |pid: &i32| state(*pid).to_lowercase().starts_with('t');
        Ok((![recorder, subject].iter().any(is_stopped)).then_some(()))
    })?;
    std::fs::write(&go, "")?;
    until("the recorder's end", || Ok(state(recorder).is_empty().then_some(())))?;
    writeln!(typed, "echo status=$?; exit")?;
    drop(typed);
    let ended = terminal.finish()?;
    assert!(ended.text().contains("status=5"), "{}", ended.text());
    assert_eq!(place.report()?["exit"]["status"], 5);
    Ok(())
}

#[test]
fn a_command_that_ends_at_once_is_recorded_each_time() -> Outcome {
    let place = Place::new()?;
    for_each(0..100, |turn| {
        let flags: &[&str] = if turn % 2 == 0 { &[] } else { &["--ledger", "none"] };
        let ended = place.run(flags, &["true"])?;
        assert_eq!((ended.how(), ended.complaint()), (0, String::new()));
        if turn % 10 < 2 {
            let report = place.report()?;
            assert_eq!(report["exit"]["status"], 0);
            assert_eq!(list(&report, "processes").len(), 1);
            assert!(number(&report["cost"], "samples").is_ok());
        }
        Ok(())
    })
}
