//! Ledgers are taken at the requested moments, and no process is traced at others.

use serde_json::Value;

use crate::support::recording::{
    Place, Started, caveats, children, column, command, finish, has, ledgers_of, list, mark_names, number,
    recorded, recording, signal, status_line, until,
};
use crate::support::waiting::state;
use crate::support::{Libc, Outcome, Result, for_each, here, invariants, repetitions, subject};

const MIB: u64 = 1 << 20;

#[test]
fn an_ending_process_has_a_ledger_however_it_ends() -> Outcome {
    let subject = recorded()?;
    for_each([("exit", 4), ("segv", 1011), ("kill", 1009), ("abort", 1006), ("group", 5)], |(ending, how)| {
        let place = Place::new()?;
        let ended = place.run(&["--ledger", "exit"], &[&subject, "end", ending])?;
        assert_eq!(ended.how(), *how, "{}", ended.complaint());
        let report = place.report()?;
        let ledgers = ledgers_of(&report, "exit");
        assert_eq!(ledgers.len(), 1, "{:?}", caveats(&report));
        invariants::check(&ledgers[0]["explain"])?;
        assert!(number(&ledgers[0]["explain"]["kernel"], "rss_bytes")? >= 32 * MIB);
        assert!(number(&report["exit"], "high_water_bytes")? >= 32 * MIB);
        Ok(())
    })
}

fn restless() -> Result<String> {
    Ok(subject::compile("restless", &Libc::system())?.display().to_string())
}

/// Returns the process id of a recorded subject that has filled its 32 MiB.
fn filled(started: &Started) -> Result<i32> {
    until("a command that has filled its memory", || {
        let has_filled = |pid: &i32| {
            let anonymous = status_line(*pid, "RssAnon");
            anonymous
                .is_some_and(|kib| kib.trim_end_matches(" kB").parse().is_ok_and(|kib: u64| kib >= 32 << 10))
        };
        if matches!(state(started.pid(), started.pid()), None | Some('Z')) {
            return Err("the recorder has ended".into());
        }
        Ok(children(started.pid()).into_iter().find(has_filled))
    })
}

#[test]
fn a_process_killed_from_outside_has_a_ledger_at_its_end() -> Outcome {
    let place = Place::new()?;
    let started = Started::new(place.command(&["--ledger", "exit"], &[&recorded()?, "end", "wait"]))?;
    signal(filled(&started)?, 9);
    assert_eq!(started.finish()?.how(), 1009);
    let report = place.report()?;
    let ledgers = ledgers_of(&report, "exit");
    assert_eq!(ledgers.len(), 1, "{:?}", caveats(&report));
    assert!(number(&ledgers[0]["explain"]["kernel"], "rss_bytes")? >= 31 * MIB);
    Ok(())
}

#[test]
fn a_main_thread_that_ends_first_has_a_caveat() -> Outcome {
    let place = Place::new()?;
    let end = place.folder.0.join("end");
    let words = [recorded()?, "end".to_owned(), "main_first".to_owned(), end.display().to_string()];
    let started = Started::new(place.command(&["--ledger", "exit"], &words.each_ref().map(String::as_str)))?;
    // The recorder continues to sample it by its other thread, which grew.
    place.until_reported("the growth", |report| {
        let most = column(report, "rss_bytes")?.into_iter().fold(0.0, f64::max);
        Ok((most >= (40 * MIB) as f64).then_some(()))
    })?;
    std::fs::write(&end, "")?;
    let ended = started.finish()?;
    assert_eq!(ended.how(), 6, "{}", ended.complaint());
    let report = place.report()?;
    assert_eq!(ledgers_of(&report, "exit").len(), 0);
    assert_eq!(caveats(&report), ["ledger_failed"]);
    Ok(())
}

/// Records a subject that grows by `count` blocks of `mebibytes` and stays at its peak until
/// `is_reached` accepts the growing report; returns the report of the whole run.
fn recorded_until(
    flags: &[&str],
    (count, mebibytes): (&str, &str),
    is_reached: impl Fn(&Value) -> Result<bool>,
) -> Result<Value> {
    let place = Place::new()?;
    let end = place.folder.0.join("end");
    let (subject, path) = (recorded()?, end.display().to_string());
    let words = [subject.as_str(), "steps", count, mebibytes, path.as_str()];
    let started = Started::new(place.command(flags, &words))?;
    place.until_reported("the subject's ledgers", |report| Ok(is_reached(report)?.then_some(())))?;
    std::fs::write(&end, "")?;
    let ended = started.finish()?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    place.report()
}

#[test]
fn a_ledger_is_taken_within_a_tenth_of_the_peak() -> Outcome {
    // After a ledger, none is taken for ten times its duration: the subject waits for the ledger of
    // its peak.
    let rss = |ledger: &Value| number(&ledger["explain"]["kernel"], "rss_bytes");
    let report = recorded_until(&["--ledger", "peak"], ("12", "6"), |report| {
        let last = ledgers_of(report, "peak").last().map(|ledger| rss(ledger)).transpose()?;
        Ok(last.is_some_and(|bytes| bytes * 11 >= 72 * MIB * 10))
    })?;
    let peaks = ledgers_of(&report, "peak");
    let last = peaks.last().ok_or("no ledger at a peak")?;
    let rss = rss(last)? as f64;
    let high_water = number(&report["exit"], "high_water_bytes")? as f64;
    let share = last["share_of_peak"].as_f64().ok_or("no share")?;
    assert!((share - rss / high_water).abs() < 0.02, "{share}, {rss} of {high_water}");
    assert!(share * 1.1 >= 1.0, "{share}");
    invariants::check(&last["explain"])
}

#[test]
fn there_are_ledgers_at_the_peak_and_at_the_end() -> Outcome {
    let report = recorded_until(&["--ledger", "peak,exit"], ("12", "6"), |report| {
        let peaks = ledgers_of(report, "peak");
        let last = peaks.last().map(|ledger| number(&ledger["explain"]["kernel"], "rss_bytes"));
        Ok(last.transpose()?.is_some_and(|bytes| bytes * 11 >= 72 * MIB * 10))
    })?;
    let exits = ledgers_of(&report, "exit");
    assert_eq!(exits.len(), 1, "{:?}", caveats(&report));
    // The subject freed everything before its end.
    assert!(number(&exits[0]["explain"]["kernel"], "rss_bytes")? < 24 * MIB);
    Ok(())
}

/// At its exit stop, all threads but the main one have ended.
#[test]
fn a_process_killed_during_a_ledger_has_a_ledger_at_its_end() -> Outcome {
    let (one, several) = (recorded()?, restless()?);
    let commands = [vec![one.as_str(), "end", "never"], vec![several.as_str(), "threads"]];
    for_each((0..repetitions(5, 50)).flat_map(|_| commands.clone()), |command| {
        let place = Place::new()?;
        let flags = ["--ledger", "every=100ms,exit", "--quiet-for", "0"];
        let started = Started::new(place.command(&flags, command))?;
        let pid = filled(&started)?;
        // No pause between two reads: a stop takes milliseconds.
        while state(pid, pid).ok_or("it has ended")? != 't' {}
        signal(pid, 9);
        assert_eq!(started.finish()?.how(), 1009);
        let report = place.report()?;
        let exits = ledgers_of(&report, "exit");
        assert_eq!(exits.len(), 1, "{}", report["caveats"]);
        invariants::check(&exits[0]["explain"])
    })
}

/// The kernel makes a tracer wait for execve, and execve wait for dead threads that the tracer has
/// not reaped. The watchdog kills a recorder in this deadlock.
#[test]
fn a_program_that_executes_itself_is_not_blocked() -> Outcome {
    let (subject, count) = (restless()?, repetitions(150, 5_000).to_string());
    for_each(["thread", "main"], |by| {
        let flags = ["--ledger", "every=100ms,peak,exit", "--quiet-for", "1ms"];
        let (ended, report) = recording(&flags, &[&subject, "exec", by, &count])?;
        assert_eq!(ended.how(), 0, "{by}: {}", ended.complaint());
        // It may end just after an exec, before the recorder watches it again.
        let is_known = |code: &String| code == "not_watched";
        let ends =
            ledgers_of(&report, "exit").len() + caveats(&report).iter().filter(|it| is_known(it)).count();
        assert_eq!(ends, 1, "{by}: {}", report["caveats"]);
        assert!(!caveats(&report).contains(&"leader_ended".to_owned()), "{by}: {}", report["caveats"]);
        Ok(())
    })
}

#[test]
fn a_program_that_a_thread_started_is_watched() -> Outcome {
    let subject = restless()?;
    for_each(0..repetitions(5, 50), |_| {
        let (ended, report) = recording(&["--ledger", "exit"], &[&subject, "once"])?;
        assert_eq!(ended.how(), 0, "{}", ended.complaint());
        let exits = ledgers_of(&report, "exit");
        assert_eq!((exits.len(), caveats(&report).len()), (1, 0), "{}", report["caveats"]);
        assert!(number(&exits[0]["explain"]["kernel"], "rss_bytes")? >= 24 * MIB);
        Ok(())
    })
}

/// The limit is 64 watched descendants at one time. Each child ends once it is traced, or fails
/// after some 30 s.
#[test]
fn more_children_than_can_be_watched_at_once_are_watched_in_turn() -> Outcome {
    if !has(here!(), "bash") || !has(here!(), "perl") {
        return Ok(());
    }
    let child = r#"my $held = "x" x 9e6; for (1 .. 3000) { open my $status, "<", "/proc/self/status";
        exit 0 if grep /^TracerPid:\s+[1-9]/, <$status>; select undef, undef, undef, 0.01 } exit 1"#;
    let script = r#"failed=0; for round in {1..6}; do pids=
        for child in {1..12}; do perl -e "$1" & pids="$pids $!"; done
        for pid in $pids; do wait $pid || failed=1; done; [ $failed = 0 ] || exit 1; done"#;
    let (ended, report) = recording(&["--ledger", "exit"], &["bash", "-c", script, "bash", child])?;
    assert_eq!(ended.how(), 0, "{} {}", ended.complaint(), report["caveats"]);
    assert_eq!(ledgers_of(&report, "exit").len(), 73, "the shell's too: {}", report["caveats"]);
    Ok(())
}

/// A thread that ends while the process is being stopped does not delay the stop.
#[test]
fn a_program_with_short_threads_is_stopped_completely() -> Outcome {
    let count = repetitions(1_500, 20_000).to_string();
    let flags = ["--ledger", "every=100ms", "--quiet-for", "1ms"];
    let (ended, report) = recording(&flags, &[&restless()?, "pool", &count])?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    assert!(!ledgers_of(&report, "every").is_empty(), "{}", report["caveats"]);
    let failed = caveats(&report).into_iter().filter(|code| code == "ledger_failed").count();
    assert_eq!(failed, 0, "{}", report["caveats"]);
    Ok(())
}

/// Signals reach a watched program while the recorder makes a ledger of its snapshot: the recorder
/// must not treat it as stopped.
#[test]
fn signals_pass_while_a_ledger_is_made() -> Outcome {
    let script = "
import signal, sys
count = 0
def handler(*_):
    global count
    count += 1
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
kept = [str(number) * 3 for number in range(300_000)]
while count < int(sys.argv[1]):
    pass
signal.setitimer(signal.ITIMER_REAL, 0)
";
    let flags = ["--ledger", "every=500ms,exit", "--snapshot=try"];
    let count = repetitions(300, 3_000).to_string();
    let (ended, report) = recording(&flags, &["python3", "-c", script, &count])?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    let every = ledgers_of(&report, "every");
    assert!(!every.is_empty(), "{}", report["caveats"]);
    for_each(every, |ledger| {
        let text = ledger["explain"]["caveats"].to_string();
        if text.contains("stopped by a signal") { Err(text.into()) } else { Ok(()) }
    })
}

/// A program that ends as soon as the ledger at its peak releases it.
#[test]
fn by_default_both_the_peak_and_the_end_have_a_ledger() -> Outcome {
    let script = "
import mmap
for _ in range(40):
    kept = mmap.mmap(-1, 1 << 20)
    kept[::4096] = bytes(256)
    globals().setdefault('held', []).append(kept)
";
    for_each(0..10, |_| {
        let (ended, report) = recording(&[], &["python3", "-c", script])?;
        assert_eq!(ended.how(), 0, "{}", ended.complaint());
        assert_eq!(ledgers_of(&report, "exit").len(), 1, "{}", report["caveats"]);
        Ok(())
    })?;
    // The first ledger may be of its start; a later one follows when it has grown.
    let report = recorded_until(&[], ("12", "6"), |report| {
        let rss = |ledger: &Value| number(&ledger["explain"]["kernel"], "rss_bytes");
        let last = ledgers_of(report, "peak").last().map(|ledger| rss(ledger)).transpose()?;
        Ok(last.is_some_and(|bytes| bytes > 6 * MIB))
    })?;
    assert_eq!(ledgers_of(&report, "exit").len(), 1, "{:?}", caveats(&report));
    Ok(())
}

/// Ticks of processor time that a process has used in its program.
fn processor_time(pid: i32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok(stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(12)).ok_or("no time")?.parse()?)
}

#[test]
fn a_watched_process_survives_stop_and_continue() -> Outcome {
    let place = Place::new()?;
    let flags = ["--ledger", "every=100ms,exit", "--quiet-for", "0"];
    let started = Started::new(place.command(&flags, &[&recorded()?, "end", "never"]))?;
    let pid = filled(&started)?;
    let of_every = |report: &Value| ledgers_of(report, "every").len();
    let wait_for_more = |than: usize| {
        place
            .until_reported("more ledgers", |report| Ok(Some(of_every(report)).filter(|&count| count > than)))
    };
    let mut taken = wait_for_more(0)?;
    // The recorder reads it while it is stopped; it stays stopped, and runs when it is continued.
    for _ in 0..3 {
        signal(pid, 19);
        taken = wait_for_more(taken + 1)?;
        assert!(matches!(state(pid, pid), Some('T' | 't')));
        let before = processor_time(pid)?;
        taken = wait_for_more(taken)?;
        assert_eq!(processor_time(pid)?, before, "the process ran while it was stopped");
        signal(pid, 18);
        until("the process to continue", || Ok(matches!(state(pid, pid), Some('S' | 'R')).then_some(())))?;
    }
    signal(pid, 9);
    assert_eq!(started.finish()?.how(), 1009);
    assert_eq!(ledgers_of(&place.report()?, "exit").len(), 1);
    Ok(())
}

#[test]
fn ledgers_are_taken_at_the_requested_interval() -> Outcome {
    let has_two = |report: &Value| Ok(ledgers_of(report, "every").len() >= 2);
    let report = recorded_until(&["--ledger", "every=100ms"], ("20", "1"), has_two)?;
    let every = ledgers_of(&report, "every");
    let lasted = report["exit"]["seconds"].as_f64().ok_or("no end")?;
    assert!((2..=(lasted / 0.1) as usize + 1).contains(&every.len()), "{} in {lasted} s", every.len());
    for_each(every, |ledger| invariants::check(&ledger["explain"]))
}

/// Returns the tracer of a recorded process.
fn tracer(flags: &[&str]) -> Result<u64> {
    let (ended, _) = recording(flags, &["sed", "-n", "s/TracerPid:.//p", "/proc/self/status"])?;
    Ok(ended.text().trim().parse()?)
}

#[test]
fn no_process_is_traced_without_a_request() -> Outcome {
    assert_eq!(tracer(&["--ledger", "none"])?, 0);
    assert_eq!(tracer(&["--ledger", "marks"])?, 0);
    assert_ne!(tracer(&["--ledger", "exit"])?, 0);
    let (_, report) = recording(&["--ledger", "none"], &[&recorded()?, "grow", "4"])?;
    assert_eq!(list(&report, "ledgers").len(), 0);
    assert_eq!(mark_names(&report).len(), 3);
    Ok(())
}

#[test]
fn signals_that_a_watched_program_ignores_interrupt_no_call_of_it() -> Outcome {
    let (ended, _) = recording(&["--ledger", "exit"], &[&recorded()?, "ignored"])?;
    assert_eq!((ended.how(), ended.text().trim()), (0, "{\"interrupted\": 0}"), "{}", ended.complaint());
    Ok(())
}

#[test]
fn a_debugger_can_attach_while_only_marks_have_ledgers() -> Outcome {
    let test = here!();
    if !has(test, "gdb") {
        return Ok(());
    }
    let place = Place::new()?;
    let started = Started::new(place.command(&["--ledger", "marks"], &[&recorded()?, "end", "wait"]))?;
    let pid = until("the mark's answer", || {
        let asleep = |pid: &i32| {
            std::fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|call| call.starts_with("34 "))
        };
        Ok(children(started.pid()).into_iter().find(asleep))
    })?;
    let gdb = finish(command(&["gdb", "-batch", "-nx", "-p", &pid.to_string(), "-ex", "print 40 + 2"]), b"")?;
    assert!(gdb.text().contains("$1 = 42"), "{} {}", gdb.text(), gdb.complaint());
    signal(started.pid(), 15);
    assert_eq!(started.finish()?.how(), 1015);
    assert_eq!(ledgers_of(&place.report()?, "mark").len(), 1);
    Ok(())
}

#[test]
fn a_command_that_is_a_tracer_traces() -> Outcome {
    let test = here!();
    if !has(test, "strace") {
        return Ok(());
    }
    let subject = recorded()?;
    let words = ["strace", "-f", "-qq", "-e", "trace=exit_group", &subject, "grow", "16"];
    let (ended, report) = recording(&[], &words)?;
    assert!(ended.complaint().contains("exit_group(0)"), "{}", ended.complaint());
    assert_eq!(mark_names(&report), ["begun", "grown", "freed"]);
    // strace traces the marked process: its ledgers are refused with the reason, without any
    // waiting.
    assert_eq!(ledgers_of(&report, "mark").len(), 0);
    assert!(caveats(&report).contains(&"ledger_failed".to_owned()));
    assert_eq!(ledgers_of(&report, "exit").len(), 1);
    Ok(())
}

#[test]
fn the_last_sample_is_the_one_at_the_end() -> Outcome {
    let (_, report) =
        recording(&["--ledger", "exit", "--interval", "1s"], &["sh", "-c", "x=$(seq 100000); exit 0"])?;
    let last = column(&report, "rss_bytes")?.last().copied().ok_or("no samples")?;
    let exit = ledgers_of(&report, "exit");
    let rss = number(&exit.first().ok_or("no ledger")?["explain"]["kernel"], "rss_bytes")? as f64;
    assert!((last - rss).abs() <= 1e6, "{last} {rss}");
    Ok(())
}
