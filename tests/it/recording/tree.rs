//! Recorded process trees: forks, execs, threads, daemons, other namespaces, and more processes
//! than can be measured.

use serde_json::Value;

use crate::support::recording::{
    Place, Started, caveats, column, command, finish, has, is_root, list, mark_names, number, program,
    recorded, recording, signal, status_line, until,
};
use crate::support::{Outcome, Result, copy_program, here, skipped};

/// The process whose command line contains all of `words`.
fn process<'a>(report: &'a Value, words: &[&str]) -> Result<&'a Value> {
    let is_it = |one: &&Value| {
        let execs = list(one, "execs").iter().map(|exec| exec["command"].to_string()).collect::<String>();
        let command = one["command"].to_string() + &execs;
        words.iter().all(|word| command.contains(word))
    };
    list(report, "processes")
        .iter()
        .find(is_it)
        .ok_or_else(|| format!("no process {words:?} in {}", report["processes"]).into())
}

#[test]
fn each_process_has_its_own_series() -> Outcome {
    let (subject, place) = (recorded()?, Place::new()?);
    // One is at its peak while the other reaches its own. They send their marks one after the
    // other: of two processes that wait at once, one may read the answer meant for the other and
    // continue unmeasured.
    let script = format!(
        "{subject} steps 2 4 {0} & until [ -e {0}.full ]; do sleep 0.01; done; {subject} steps 2 20; : > {0}; wait; {1} mark last",
        place.folder.0.join("end").display(),
        program()
    );
    let ended = place.run(&["--ledger", "none"], &["sh", "-c", &script])?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    let report = place.report()?;
    assert_eq!(mark_names(&report), ["full", "full", "last"]);
    let of = column(&report, "process")?;
    let rss = column(&report, "rss_bytes")?;
    let shell = process(&report, &["sh", "-c"])?;
    assert_eq!((&shell["process"], &shell["status"]), (&Value::from(0), &Value::from(0)));
    for (megabytes, last) in [(8.0, "4"), (40.0, "20")] {
        let one = process(&report, &["\"steps\"", &format!("\"{last}\"")])?;
        assert_eq!((&one["parent"], &one["status"]), (&shell["pid"], &Value::from(0)));
        let number = number(one, "process")? as f64;
        let own = of.iter().zip(&rss).filter(|(process, _)| **process == number).map(|(_, rss)| *rss);
        let most = own.fold(0.0, f64::max);
        let excess = most - megabytes * 1048576.0;
        assert!((0.0..4e6).contains(&excess), "steps of {last} MiB: {most}");
    }
    Ok(())
}

#[test]
fn an_exec_changes_the_command_of_a_series() -> Outcome {
    let place = Place::new()?;
    let end = place.folder.0.join("end");
    let script = format!("exec {} steps 1 2 {}", recorded()?, end.display());
    let started = Started::new(place.command(&["--ledger", "none"], &["sh", "-c", &script]))?;
    place.until_reported("the new command", |report| {
        Ok(process(report, &["\"steps\""]).is_ok().then_some(()))
    })?;
    std::fs::write(&end, "")?;
    let ended = started.finish()?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    let report = place.report()?;
    assert_eq!(list(&report, "processes").len(), 1);
    assert!(process(&report, &["\"steps\""]).is_ok());
    Ok(())
}

#[test]
fn a_grandchild_marks_in_its_own_name() -> Outcome {
    let subject = recorded()?;
    let script = format!("sh -c '{subject} grow 8 > /dev/null; :'; :");
    let (_, report) = recording(&["--ledger", "marks"], &["sh", "-c", &script])?;
    assert_eq!(mark_names(&report), ["begun", "grown", "freed"]);
    let one = process(&report, &["\"grow\""])?;
    for mark in list(&report, "marks") {
        assert_eq!((&mark["pid"], &mark["process"]), (&one["pid"], &one["process"]));
        // Three processes share the pages of their C library: less than the sum of all, more than a
        // single one.
        assert!(number(mark, "tree_pss_bytes")? > number(mark, "anonymous_bytes")?);
    }
    Ok(())
}

#[test]
fn a_daemon_lives_on_unharmed() -> Outcome {
    let place = Place::new()?;
    let end = place.folder.0.join("end");
    let script = format!(
        "setsid sleep 300 > /dev/null 2>&1 < /dev/null & echo $!; until [ -e {} ]; do sleep 0.01; done; exit 6",
        end.display()
    );
    let started = Started::new(place.command(&["--ledger", "marks,exit"], &["sh", "-c", &script]))?;
    let is_daemon = |report: &Value| Ok(process(report, &["\"sleep\"", "\"300\""]).is_ok().then_some(()));
    place.until_reported("the daemon", is_daemon)?;
    std::fs::write(&end, "")?;
    let ended = started.finish()?;
    assert_eq!(ended.how(), 6, "{}", ended.complaint());
    let pid: i32 = ended.text().trim().parse()?;
    let state = status_line(pid, "State").unwrap_or_default();
    let tracer = status_line(pid, "TracerPid");
    signal(pid, 9);
    assert!(state.starts_with(['S', 'R', 'D']), "the daemon is {state:?}");
    assert_eq!(tracer.as_deref(), Some("0"));
    let report = place.report()?;
    assert_eq!((&report["exit"]["status"], &report["exit"]["why"]), (&Value::from(6), &Value::from("ended")));
    let daemon = process(&report, &["\"sleep\"", "\"300\""])?;
    assert_eq!((&daemon["status"], &daemon["signal"]), (&Value::Null, &Value::Null));
    Ok(())
}

/// Starts strandline with `unshare FLAGS`; `None` if that is not allowed.
fn unshared(test: &str, flags: &[&str], place: &Place, script: &str) -> Result<Option<Started>> {
    let unshare = [&["unshare"], flags].concat();
    let allowed = finish(command(&[&unshare[..], &["true"]].concat()), b"")?;
    if allowed.how() != 0 {
        skipped(test, &format!("{unshare:?}: {}", allowed.complaint().trim()));
        return Ok(None);
    }
    let file = place.file.display().to_string();
    let run = [program(), "run", "--ledger", "marks,exit", "-o", &file, "--", "sh", "-c", script];
    Ok(Some(Started::new(command(&[&unshare[..], &run].concat()))?))
}

#[test]
fn children_are_searched_without_kernel_events() -> Outcome {
    let test = here!();
    if !is_root(test) || !has(test, "unshare") {
        return Ok(());
    }
    let subject = recorded()?;
    // Another network namespace has no connector; in another pid namespace the connector reports
    // different ids.
    for flags in [&["-n"][..], &["-pf", "--mount-proc"]] {
        let place = Place::new()?;
        // Polling may miss a short-lived process: the second one waits until the recording has it.
        let end = place.folder.0.join("end");
        let script = format!("{subject} grow 16; {subject} steps 2 4 {}; exit 8", end.display());
        let Some(started) = unshared(test, flags, &place, &script)? else { continue };
        place.until_reported("the second process", |report| {
            Ok(process(report, &["\"steps\""]).is_ok().then_some(()))
        })?;
        std::fs::write(&end, "")?;
        let ended = started.finish()?;
        assert_eq!(ended.how(), 8, "{flags:?}: {}", ended.complaint());
        let report = place.report()?;
        assert_eq!(report["recording"]["followed_by"], "polling", "{flags:?}");
        assert_eq!(caveats(&report), ["polling"], "{flags:?}: {}", report["caveats"]);
        assert_eq!(mark_names(&report), ["begun", "grown", "freed", "full"]);
        assert_eq!(report["exit"]["status"], 8);
    }
    Ok(())
}

#[test]
fn another_namespaces_proc_is_refused() -> Outcome {
    let test = here!();
    if !is_root(test) || !has(test, "unshare") {
        return Ok(());
    }
    let place = Place::new()?;
    let Some(started) = unshared(test, &["-pf"], &place, "echo never")? else { return Ok(()) };
    let ended = started.finish()?;
    assert_eq!((ended.how(), ended.text().as_str()), (125, ""));
    assert!(ended.complaint().contains("--mount-proc"), "{}", ended.complaint());
    // Its process 1 is not that of /proc.
    let file = place.file.display().to_string();
    for words in [&["record", "-o", &file, "1"][..], &["explain", "1"]] {
        let ended = finish(command(&[&["unshare", "-pf", program()], words].concat()), b"")?;
        assert_eq!((ended.how(), ended.text().as_str()), (3, ""), "{words:?}");
        assert!(ended.complaint().contains("--mount-proc"), "{}", ended.complaint());
    }
    Ok(())
}

#[test]
fn another_user_can_record_its_own() -> Outcome {
    let test = here!();
    if !is_root(test) || !has(test, "setpriv") {
        return Ok(());
    }
    let place = Place::new()?;
    let subject = place.folder.0.join("recorded");
    copy_program(recorded()?, &subject)?;
    let own = place.folder.0.join("strandline");
    copy_program(program(), &own)?;
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&own);
    let script = format!("{0} grow 16 & wait; {0} steps 2 4; exit 8", subject.display());
    command.args(["run", "--ledger", "marks,exit", "-o"]).arg(&place.file).args(["--", "sh", "-c", &script]);
    let ended = finish(command, b"")?;
    assert_eq!(ended.how(), 8, "{}", ended.complaint());
    let report = place.report()?;
    assert_eq!(mark_names(&report), ["begun", "grown", "freed", "full"]);
    assert!(process(&report, &["\"steps\""]).is_ok());
    let grown = &list(&report, "marks")[1];
    assert!(number(grown, "anonymous_bytes")? >= 16 << 20);
    Ok(())
}

#[test]
fn commands_in_other_namespaces_are_recorded() -> Outcome {
    let test = here!();
    if !is_root(test) || !has(test, "unshare") {
        return Ok(());
    }
    let subject = recorded()?;
    for flags in [&["-pf", "--mount-proc"][..], &["-U"]] {
        let allowed = finish(command(&[&["unshare"], flags, &["true"]].concat()), b"")?;
        if allowed.how() != 0 {
            skipped(test, &format!("unshare {flags:?}: {}", allowed.complaint().trim()));
            continue;
        }
        let words = [&["unshare"], flags, &[subject.as_str(), "grow", "16"]].concat();
        let (ended, report) = recording(&["--ledger", "marks,exit"], &words)?;
        assert_eq!(mark_names(&report), ["begun", "grown", "freed"], "{flags:?}");
        assert!(ended.lines()?.iter().all(|line| line["answered"] == 1));
        let marks = list(&report, "marks");
        let growth = number(&marks[1], "anonymous_bytes")? - number(&marks[0], "anonymous_bytes")?;
        assert!(growth.abs_diff(16 << 20) <= 1 << 20, "{flags:?}: {growth}");
    }
    Ok(())
}

#[test]
fn hundreds_of_processes_within_a_limit_are_survived() -> Outcome {
    let place = Place::new()?;
    let end = place.folder.0.join("end");
    let (subject, path) = (recorded()?, end.display().to_string());
    let started = Started::new(place.command(&[], &[subject.as_str(), "bomb", "250", path.as_str()]))?;
    // The children live until all of them are in the table, however many descriptors strandline can
    // open.
    let forked = place.until_reported("all processes", |report| {
        let forked = mark_names(report).first().map(|name| name.parse::<usize>()).transpose()?;
        Ok(forked.filter(|forked| list(report, "processes").len() == forked + 1))
    })?;
    std::fs::write(&end, "")?;
    let ended = started.finish()?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    assert!(forked > 1, "{forked} children");
    let report = place.report()?;
    assert_eq!(list(&report, "processes").len(), forked + 1);
    let cost = &report["cost"];
    assert_eq!((number(cost, "brief_processes")?, number(cost, "unsampled_processes")?), (0, 0));
    Ok(())
}

#[test]
fn threads_are_counted() -> Outcome {
    let (_, report) = recording(&["--ledger", "none"], &[&recorded()?, "threads", "5"])?;
    let most = column(&report, "threads")?.into_iter().fold(0.0, f64::max);
    assert_eq!(most, 6.0);
    Ok(())
}

#[test]
fn the_run_ends_with_the_command_though_a_child_marks_on() -> Outcome {
    let place = Place::new()?;
    let flag = place.folder.0.join("end");
    let subject = recorded()?;
    let script = format!(
        "{subject} mark-until {} > /dev/null 2>&1 & echo $!; {} mark one; exit 3",
        flag.display(),
        program()
    );
    let ended = place.run(&["--ledger", "marks"], &["sh", "-c", &script])?;
    assert_eq!(ended.how(), 3);
    let pid: i32 = ended.text().trim().parse()?;
    std::fs::write(&flag, "")?;
    // The recorder no longer answers, and the child runs to its end.
    until("the child's end", || {
        let state = status_line(pid, "State");
        Ok(state.is_none_or(|state| state.starts_with('Z')).then_some(()))
    })?;
    assert!(mark_names(&place.report()?).contains(&"one"));
    Ok(())
}
