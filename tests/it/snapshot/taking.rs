//! `explain --snapshot`: a snapshot gives the same figures as a stop, and has no effect on the
//! process, whatever happens to strandline, to the process, or to the whole process group.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::recording::has;
use crate::support::strandline::{caveats, command, json, kept_bytes, kept_rows, run};
use crate::support::subject::compile;
use crate::support::waiting::{is_traced, state, threads, until, until_true};
use crate::support::{
    Libc, Outcome, Result, Subject, for_each, full, here, invariants, perl, perls, repetitions, subject,
};

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// A child of a process.
#[derive(Debug, PartialEq, Eq)]
struct Child {
    pid: i32,
    state: char,
    /// The signal that the kernel sends to its parent when it ends; 0 for a snapshot.
    exit_signal: i32,
}

/// The children of process `pid`.
fn children(pid: i32) -> Vec<Child> {
    let list = |tid| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    let lists: Vec<String> = threads(pid).into_iter().map(list).collect();
    // A child that has ended by now is skipped.
    lists
        .iter()
        .flat_map(|list| list.split_whitespace())
        .filter_map(|child| read_child(child.parse().ok()?))
        .collect()
}

fn read_child(pid: i32) -> Option<Child> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The fields begin with the state, the third one; the exit signal is the 38th.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
    let state = fields.first()?.chars().next()?;
    Some(Child { pid, state, exit_signal: fields.get(35)?.parse().ok()? })
}

/// The snapshots of a process, asleep or dead.
fn snapshots(pid: i32) -> Vec<Child> {
    let mut all = children(pid);
    all.retain(|child| child.exit_signal == 0);
    all
}

fn read_snapshot(pid: &str) -> Result<Value> {
    let document = json(&["explain", "--json", "--snapshot", pid])?;
    invariants::check(&document)?;
    assert_eq!(document["target"]["kind"], "photograph", "{}", document["caveats"]);
    assert!(document["cost"]["copied_pages"].is_u64(), "{}", document["cost"]);
    Ok(document)
}

#[test]
fn the_old_name_of_the_option_still_works() -> Outcome {
    let subject = Subject::idle()?;
    for old in ["--photograph", "--photograph=always"] {
        let document = json(&["explain", "--json", "--quiet-for=0", old, &subject.pid_text()])?;
        assert_eq!(document["target"]["kind"], "photograph", "{}", document["caveats"]);
    }
    let help = run(&["explain", "--help"])?.stdout;
    assert!(help.contains("--snapshot") && !help.contains("--photograph"), "{help}");
    Ok(())
}

/// Bytes of each row that stays the same while a process sleeps, summed over the holders of a row.
fn rows(document: &Value) -> BTreeMap<String, u64> {
    let mut rows = BTreeMap::new();
    for row in kept_rows(document) {
        *rows.entry(row["id"].as_str().unwrap_or_default().to_owned()).or_default() +=
            row["bytes"].as_u64().unwrap_or(0);
    }
    rows
}

/// The first difference between two documents, ignoring trace times.
fn difference(path: &str, left: &Value, right: &Value) -> Option<String> {
    match (left, right) {
        (Value::Object(one), Value::Object(other)) if one.len() == other.len() => {
            one.iter().filter(|(key, _)| *key != "trace_seconds").find_map(|(key, value)| {
                difference(&format!("{path}.{key}"), value, other.get(key).unwrap_or(&Value::Null))
            })
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let pairs = one.iter().zip(other).enumerate();
            pairs.into_iter().find_map(|(n, (one, other))| difference(&format!("{path}[{n}]"), one, other))
        }
        _ if left == right => None,
        _ => Some(format!("{path}: {:.200} {:.200}", left.to_string(), right.to_string())),
    }
}

/// Checks that a snapshot and a stop of the same sleeping process give the same rows, except stack
/// pages below the stack pointer, which the injected call uses, and pages that the kernel may drop
/// between the reads.
fn check_equals_a_stop(subject: &Subject) -> Outcome {
    subject.at_rest()?;
    let pid = subject.pid_text();
    // The first call may touch a page of the stack for the first time.
    read_snapshot(&pid)?;
    let stopped = json(&["explain", "--json", "--quiet-for=0", "--snapshot=never", &pid])?;
    let shown = read_snapshot(&pid)?;
    let again = json(&["explain", "--json", "--quiet-for=0", "--snapshot=never", &pid])?;
    assert_eq!(rows(&stopped), rows(&again), "the process does not change");
    assert_eq!(rows(&shown), rows(&stopped));
    for key in ["allocators", "runtimes", "remedies"] {
        assert_eq!(difference(key, &shown[key], &stopped[key]), None);
    }
    for state in ["live", "stranded", "pinned", "unattributed"] {
        assert_eq!(shown["totals"][state], stopped["totals"][state], "{state}");
    }
    // The headline contains the evictable bytes.
    if ["file_bytes", "lazyfree_bytes"].iter().all(|key| shown["kernel"][*key] == stopped["kernel"][*key]) {
        assert_eq!(difference("verdict", &shown["verdict"], &stopped["verdict"]), None);
        assert_eq!(shown["totals"], stopped["totals"]);
    }
    assert_eq!(kept_bytes(&shown), kept_bytes(&stopped));
    assert_eq!(children(subject.pid()), [], "no snapshot remains");
    Ok(())
}

#[test]
fn rows_of_a_snapshot_equal_those_of_a_stop() -> Outcome {
    let heap = |libc: &Libc| Subject::start_with(libc, "big_heap", &["0.06", "300", "random", "40"], &[]);
    check_equals_a_stop(&heap(&Libc::system())?)?;
    check_equals_a_stop(&heap(&Libc::system_static())?)?;
    for_each(["11", "12", "13"], |seed| {
        check_equals_a_stop(&Subject::start("random_heap", &[seed, "threads=4"])?)
    })
}

#[test]
fn a_perl_is_read_while_it_runs() -> Outcome {
    if !has(here!(), "perl") {
        return Ok(());
    }
    let script = "my %h; $h{$_} = [$_, \"x$_\"] for 1 .. 50_000; delete @h{1 .. 20_000}; $| = 1; print \"{}\\n\"; <STDIN>";
    let mut command = Command::new("perl");
    command.args(["-e", script]).env("PERL_HASH_SEED", "0");
    check_equals_a_stop(&Subject::start_command(command)?)
}

#[test]
fn an_sbcl_is_read_while_it_runs() -> Outcome {
    if !has(here!(), "sbcl") {
        return Ok(());
    }
    let script = "(progn (defvar *all* (loop for i below 100000 collect (make-string 20))) (format t \"{}~%\") (finish-output) (read-line))";
    let mut command = Command::new("sbcl");
    command.args(["--noinform", "--no-sysinit", "--no-userinit", "--eval", script]);
    check_equals_a_stop(&Subject::start_command(command)?)
}

/// Waits until more children of a subject have ended, and checks that the subject counted no wrong
/// result.
fn children_continue(subject: &mut Subject) -> Outcome {
    let before = subject::number(&subject.ask(b'c')?, "ended")?;
    let after = until("more children to end", || {
        let now = subject.ask(b'c')?;
        Ok((subject::number(&now, "ended")? > before).then_some(now))
    })?;
    assert_eq!(after["wrong"], 0, "{after}");
    Ok(())
}

#[test]
fn a_parent_that_waits_for_any_child_does_not_see_the_snapshot() -> Outcome {
    for_each([&[][..], &["dont"], &["wipe"]], |arguments| {
        let mut subject = Subject::start("parent", arguments)?;
        for _ in 0..repetitions(10, 100) {
            let document = read_snapshot(&subject.pid_text())?;
            let found = caveats(&document);
            assert!(!found.iter().any(|code| code.starts_with("heap_damaged")), "{found:?}");
        }
        children_continue(&mut subject)?;
        assert!(subject.finish()?.success());
        Ok(())
    })
}

#[test]
fn the_process_survives_a_snapshot_killed_at_any_instant() -> Outcome {
    check_survives_kills(Subject::start("parent", &[])?, repetitions(40, 1000))
}

/// glibc's sigaction(2) leaves the address that handlers return to on the stack: such a thread is
/// in no handler.
#[test]
fn an_old_address_of_a_return_does_not_prevent_a_snapshot() -> Outcome {
    let subject = Subject::start("stale_return", &[])?;
    subject.at_rest()?;
    read_snapshot(&subject.pid_text()).map(drop)
}

#[test]
fn a_signal_that_ends_strandline_ends_its_snapshot_first() -> Outcome {
    if !has(here!(), "perl") {
        return Ok(());
    }
    let mut script = Command::new("perl");
    script.arg(perl::folder().join("hash.pl")).arg("300000");
    let subject = perl::start_command(script)?;
    let pid = subject.pid();
    for signal in [SIGINT, SIGTERM] {
        let mut command = command(&["holders", "--json", &subject.pid_text()]);
        let mut reader = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        until_true("a snapshot", || !snapshots(pid).is_empty())?;
        // timeout(1) signals its child, and then its group: the second signal ends nothing by itself.
        strandline_sys::signal::send(reader.id().cast_signed(), signal)?;
        let status = format!("/proc/{}/status", reader.id());
        let is_pending = || {
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            text.lines().any(|line| line.starts_with("ShdPnd:") && !line.ends_with("0000000000000000"))
        };
        until_true("the delivery", || !is_pending())?;
        strandline_sys::signal::send(reader.id().cast_signed(), signal)?;
        assert_eq!(reader.wait()?.signal(), Some(signal));
        assert_eq!(snapshots(pid), [], "after signal {signal}");
    }
    Ok(())
}

#[test]
fn the_process_survives_under_the_filter_of_containers() -> Outcome {
    let mut contained = Command::new(compile("contained", &Libc::system())?);
    contained.arg(compile("parent", &Libc::system())?);
    check_survives_kills(Subject::start_command(contained)?, repetitions(20, 1000))
}

fn check_survives_kills(mut subject: Subject, turns: u64) -> Outcome {
    let (pid, pid_text) = (subject.pid(), subject.pid_text());
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let took = Instant::now();
    read_snapshot(&pid_text)?;
    let took = took.elapsed().as_micros() as u64;
    let (mut known, mut left_behind, mut turn) = (BTreeSet::new(), 0, 0);
    // The number of kills that leave a snapshot depends on the machine: at least one must.
    while turn < turns || left_behind == 0 {
        turn += 1;
        known.extend(snapshots(pid).iter().map(|one| one.pid));
        let is_new = |one: &Child| !known.contains(&one.pid);
        let mut command = command(&["explain", "--json", "--snapshot", &pid_text]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()?;
        // Half of the kills come while there is a snapshot, the others at random instants.
        let is_aimed = turn % 2 == 1;
        if is_aimed {
            // The kernel wakes a sleeping thread at once, even beside busy ones.
            while !snapshots(pid).iter().any(is_new) && child.try_wait()?.is_none() {
                std::thread::sleep(Duration::from_micros(200));
            }
        } else {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            std::thread::sleep(Duration::from_micros((seed >> 33) % took));
        }
        if turn % 4 == 0 {
            // A Ctrl-C at a terminal reaches the whole group; the process's handler must run only
            // in the process, and not in a snapshot.
            for snapshot in snapshots(pid) {
                let _ = strandline_sys::signal::send(snapshot.pid, SIGINT);
            }
            strandline_sys::signal::send(pid, SIGINT)?;
        }
        child.kill()?;
        child.wait()?;
        left_behind += u64::from(is_aimed && snapshots(pid).iter().any(is_new));
    }
    children_continue(&mut subject)?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    assert!(status.lines().any(|line| line == "TracerPid:\t0"), "{status}");
    until_remaining_snapshots_end(pid)?;
    assert!(subject.finish()?.success());
    Ok(())
}

/// Waits until the remaining snapshots sleep without descriptors; in a full run also until they
/// end.
fn until_remaining_snapshots_end(pid: i32) -> Outcome {
    let descriptors =
        |one: &Child| std::fs::read_dir(format!("/proc/{}/fd", one.pid)).map_or(0, Iterator::count);
    let is_asleep = |one: &Child| matches!(one.state, 'S' | 'Z') && descriptors(one) == 0;
    until_true("snapshots to sleep", || snapshots(pid).iter().all(is_asleep))?;
    if full() {
        // A snapshot of a small process lives for some seconds.
        until_true("snapshots to end", || snapshots(pid).iter().all(|one| one.state == 'Z'))?;
    }
    Ok(())
}

/// Explains a changing process repeatedly: from a snapshot if possible, else stopped.
fn explain_often(subject: &Subject, times: u64) -> Outcome {
    for _ in 0..times {
        let document = json(&["explain", "--json", "--quiet-for=0", "--snapshot=try", &subject.pid_text()])?;
        invariants::check(&document)?;
    }
    Ok(())
}

#[test]
fn processes_that_fork_start_threads_and_exec_survive() -> Outcome {
    // Eight busy threads share the processors, so each stop takes a while.
    let programs: [(&str, &[&str], u64); 4] =
        [("forker", &[], 8), ("thread_spawner", &[], 8), ("malloc_loop", &["8"], 3), ("execer", &[], 8)];
    for_each(programs, |(name, arguments, times)| {
        let mut subject = Subject::start(name, arguments)?;
        explain_often(&subject, repetitions(*times, 60))?;
        if *name != "execer" {
            assert_eq!(subject.ask(b'c')?["wrong"], 0);
        }
        assert!(subject.finish()?.success());
        Ok(())
    })
}

/// Checks that strandline refuses a snapshot for a reason that contains `why`, and reads the
/// process stopped with `--snapshot=try`.
fn check_refused(pid: i32, why: &str) -> Outcome {
    let pid_text = pid.to_string();
    run(&["explain", "--snapshot", &pid_text])?.complains(3, &[why, "--snapshot=try"])?;
    let tried = json(&["explain", "--json", "--quiet-for=0", "--snapshot=try", &pid_text])?;
    invariants::check(&tried)?;
    assert!(caveats(&tried).contains(&"no_photograph".to_owned()), "{:?}", caveats(&tried));
    assert_eq!(children(pid), []);
    Ok(())
}

#[test]
fn a_harmful_snapshot_is_refused_and_memory_missing_in_a_copy_is_read() -> Outcome {
    let refused = [
        ("seccomp", "a seccomp filter that may not let clone through", "seccomp filters"),
        ("dispatch", "Syscall User Dispatch", "Syscall User Dispatch and a kernel that says so (6.4)"),
        ("watched", "userfaultfd", "a userfaultfd for this user"),
        ("apart", "userfaultfd", "a userfaultfd for this user"),
        ("huge", "hugetlb", "reserved huge pages (vm.nr_hugepages)"),
        ("few", "RLIMIT_NPROC", "a second user"),
    ];
    for_each(refused, |(what, why, needed)| {
        let Ok(subject) = Subject::start("guarded", &[what]) else {
            crate::support::skipped(here!(), &format!("not here: {needed}"));
            return Ok(());
        };
        check_refused(subject.pid(), why)
    })?;
    match Subject::start("guarded", &["ring"]) {
        Ok(subject) => check_equals_a_stop(&subject)?,
        Err(_) => crate::support::skipped(here!(), "not here: io_uring"),
    }
    // Only smaps shows locked and freed memory; a seccomp filter like that of containers allows the
    // snapshot.
    for_each(["locked", "freed", "filtered"], |what| {
        check_equals_a_stop(&Subject::start("guarded", &[what])?)
    })
}

#[test]
fn vfork_children_and_their_parents_are_not_copied() -> Outcome {
    let subject = Subject::start("guarded", &["vfork"])?;
    let child = i32::try_from(subject.number("pid")?)?;
    assert_ne!(child, subject.pid());
    // The child prints its line before its parent sleeps.
    until_true("the parent to sleep", || state(subject.pid(), subject.pid()) == Some('D'))?;
    check_refused(child, "shares its memory with its parent")?;
    run(&["explain", "--snapshot", &subject.pid_text()])?.complains(3, &["uninterruptible sleep"])?;
    assert!(subject.finish()?.success(), "both end as they would");
    Ok(())
}

#[test]
fn no_snapshot_is_taken_without_enough_memory_or_processes() -> Outcome {
    let name = here!();
    let groups =
        [("pids", "pids.max", "10", "more process"), ("memory", "memory.limit_in_bytes", "100M", "may take")];
    for_each(groups, |(controller, limit, most, why)| {
        let Some(group) = Group::new(controller, limit, most) else {
            crate::support::skipped(
                name,
                &format!("no control group ({controller}, version 1) can be made here"),
            );
            return Ok(());
        };
        let subject = Subject::start("big_heap", &["0.09", "100"])?;
        std::fs::write(group.0.join("cgroup.procs"), subject.pid_text())?;
        std::fs::write(group.0.join(limit), most)?;
        check_refused(subject.pid(), why)
    })
}

/// A control group, removed on drop.
struct Group(std::path::PathBuf);

impl Group {
    /// Creates a group with a limit, below our own group.
    fn new(controller: &str, limit: &str, most: &str) -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let own =
            own.lines().find_map(|line| line.split_once(&format!(":{controller}:")).map(|(_, path)| path))?;
        let whole = std::path::Path::new("/sys/fs/cgroup").join(controller);
        let folder = format!("strandline-test-{}", std::process::id());
        let places = [whole.join(own.trim_start_matches('/')), whole];
        let path = places
            .into_iter()
            .map(|place| place.join(&folder))
            .find(|path| std::fs::create_dir(path).is_ok())?;
        let group = Self(path);
        std::fs::write(group.0.join(limit), most).ok()?;
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_runtime_is_read_from_a_snapshot_by_default() -> Outcome {
    let Some(perl) = perls::all(here!()).into_iter().next() else { return Ok(()) };
    let mut script = Command::new(perl);
    script.args(["-e", r#"@a = map { { n => $_ } } 1 .. 100_000; $| = 1; print "{\"pid\":$$}\n"; <STDIN>"#]);
    let subject = Subject::start_command(script)?;
    let pid = subject.pid_text();
    let kind = |arguments: &[&str]| -> Result<Value> {
        let document = json(&[&["explain", "--json", "--quiet-for=0"], arguments, &[pid.as_str()]].concat())?;
        invariants::check(&document)?;
        Ok(document["target"]["kind"].clone())
    };
    assert_eq!(kind(&[])?, "photograph");
    assert_eq!(kind(&["--snapshot=never"])?, "live");
    assert_eq!(kind(&["--no-runtimes"])?, "live");
    // The snapshot was not requested, so its absence is not reported.
    let guarded = Subject::start("guarded", &["seccomp"])?;
    let document = json(&["explain", "--json", "--quiet-for=0", &guarded.pid_text()])?;
    assert_eq!(document["target"]["kind"], "live");
    assert!(!caveats(&document).contains(&"no_photograph".to_owned()));
    Ok(())
}

#[test]
fn a_harmful_snapshot_is_refused_with_always_and_a_stop_with_try() -> Outcome {
    let subject = Subject::start("fragmented", &["20000"])?;
    let pid = subject.pid_text();
    strandline_sys::signal::send(subject.pid(), SIGSTOP)?;
    let is_stopped = || state(subject.pid(), subject.pid()) == Some('T') && !is_traced(subject.pid());
    until_true("the stop", is_stopped)?;
    run(&["explain", "--snapshot", &pid])?.complains(3, &["stopped by a signal", "--snapshot=try"])?;
    let tried = json(&["explain", "--json", "--quiet-for=0", "--snapshot=try", &pid])?;
    invariants::check(&tried)?;
    assert_eq!(tried["target"]["kind"], "live");
    assert!(caveats(&tried).contains(&"no_photograph".to_owned()), "{:?}", caveats(&tried));
    // A released process runs for a moment, within the kernel, until it is back in the group stop.
    until_true("the stop again", is_stopped)?;
    assert_eq!(children(subject.pid()), []);
    strandline_sys::signal::send(subject.pid(), SIGCONT)?;
    // The limit is too short for a snapshot.
    let bounded = run(&["explain", "--snapshot", "--max-stop", "1us", &pid])?;
    assert_eq!(bounded.status, Some(3), "{}", bounded.summary());
    Ok(())
}
