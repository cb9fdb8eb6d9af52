//! Marks from real processes: order, sender, hostile names, many at once, and no endless wait.

use serde_json::Value;

use crate::support::recording::{
    Place, Started, caveats, column, has, is_root, ledgers_of, list, mark_names, number, program, recorded,
    recording,
};
use crate::support::{Outcome, check_no_control_characters, for_each, here, repetitions, strandline};

#[test]
fn a_shell_marks_itself() -> Outcome {
    let script = format!("{0} mark 'the first one'; x=$(seq 1000); {0} mark second", program());
    let (_, report) = recording(&["--ledger", "marks"], &["sh", "-c", &script])?;
    assert_eq!(mark_names(&report), ["the first one", "second"]);
    // The mark belongs to the script, not to its helper.
    for mark in list(&report, "marks") {
        assert_eq!(mark["process"], 0);
        assert!(number(mark, "tree_pss_bytes")? > 0);
    }
    assert_eq!(ledgers_of(&report, "mark").len(), 2);
    assert!(ledgers_of(&report, "mark").iter().all(|ledger| ledger["process"] == 0));
    Ok(())
}

/// A message with descriptors has no place for its sender's id.
#[test]
fn marks_sent_with_descriptors_are_answered() -> Outcome {
    let script = "
import array, os, socket
marks = socket.socket(fileno=int(os.environ['STRANDLINE_MARK_FD']))
rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0, 1]))
for name in [b'first', b'second']:
    marks.sendmsg([name + b'\\n'], [rights])
    assert marks.recv(1)
";
    let (ended, report) = recording(&["--ledger", "marks"], &["python3", "-c", script])?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    assert_eq!(mark_names(&report), ["first", "second"]);
    Ok(())
}

#[test]
fn a_mark_without_a_recording_does_nothing() -> Outcome {
    let run = strandline::run(&["mark", "name"])?;
    assert_eq!((run.status, run.stdout.as_str(), run.stderr.as_str()), (Some(0), "", ""));
    strandline::run_with(&["mark", "name"], &[("STRANDLINE_MARK_FD", "no")])?
        .complains(3, &["STRANDLINE_MARK_FD"])
}

#[test]
fn hostile_names_are_harmless() -> Outcome {
    let place = Place::new()?;
    let ended = place.run(&["--ledger", "none"], &[&recorded()?, "names"])?;
    assert_eq!(ended.how(), 0, "wrong answers: {}", ended.complaint());
    let report = place.report()?;
    let names = mark_names(&report);
    let long = "x".repeat(200);
    let wanted = [
        "",
        "a?[2Jb?c?d",
        "\u{fffd}\u{fffd}",
        &long,
        "first",
        "second",
        "in parts",
        "\"quoted\", </script><b>&amp;",
    ];
    assert_eq!(names, wanted);
    assert_eq!(caveats(&report), ["mark_name_cut"]);
    let file = place.file.display().to_string();
    check_no_control_characters(&strandline::run(&["report", &file])?.stdout)?;
    let html = strandline::run(&["report", "--format", "html", &file])?.stdout;
    assert!(!html.contains("</script><b>"), "a name ends the page's script");
    let svg = strandline::run(&["report", "--format", "svg", &file])?.stdout;
    check_no_control_characters(&svg)?;
    assert!(!svg.contains("<b>"), "a name is markup");
    let csv = strandline::run(&["report", "--format", "csv", &file])?.stdout;
    assert!(
        csv.lines().any(|line| line.ends_with("\"\"\"quoted\"\", </script><b>&amp;\"")),
        "a quote ends a field"
    );
    Ok(())
}

/// Checks that each of `processes` has its `count` marks in order. A process that reads the answer
/// meant for another may end before its last mark can be measured; a caveat must then name the
/// mark.
fn all_recorded(report: &Value, processes: u64, count: u64) -> Outcome {
    let caveats = list(report, "caveats").iter().filter(|caveat| caveat["code"] == "mark_without_sample");
    let caveat_text = caveats.filter_map(|caveat| caveat["text"].as_str()).collect::<String>();
    for process in 0..processes {
        let prefix = format!("p{process}-");
        let is_its = |mark: &&Value| mark["name"].as_str().is_some_and(|name| name.starts_with(&prefix));
        let marks: Vec<_> = list(report, "marks").iter().filter(is_its).collect();
        let names: Vec<_> = marks.iter().filter_map(|mark| mark["name"].as_str()).collect();
        let wanted = (0..count).map(|one| format!("{prefix}{one}"));
        let missing: Vec<_> = wanted.clone().filter(|name| !names.contains(&name.as_str())).collect();
        assert!(missing.iter().all(|name| caveat_text.contains(&format!("{name:?}"))), "lost: {missing:?}");
        assert!(names.iter().copied().eq(
            wanted.filter(|name| !missing.contains(name)).collect::<Vec<_>>().iter().map(String::as_str)
        ));
        assert!(
            marks.iter().all(|mark| mark["pid"] == marks[0]["pid"] && mark["process"] == marks[0]["process"])
        );
    }
    assert!(list(report, "marks").is_sorted_by(|a, b| a["seconds"].as_f64() <= b["seconds"].as_f64()));
    Ok(())
}

#[test]
fn simultaneous_marks_of_two_processes_are_all_recorded() -> Outcome {
    let (_, report) = recording(&["--ledger", "none"], &[&recorded()?, "storm", "2", "1000"])?;
    all_recorded(&report, 2, 1000)
}

#[test]
fn simultaneous_marks_with_ledgers_are_all_answered() -> Outcome {
    // No process ends while a mark waits for its ledger.
    let (_, report) = recording(&["--ledger", "marks"], &[&recorded()?, "storm", "8", "10", "stay"])?;
    all_recorded(&report, 8, 10)?;
    assert_eq!(mark_names(&report).len(), 80);
    assert_eq!(ledgers_of(&report, "mark").len(), 80, "{:?}", caveats(&report));
    Ok(())
}

#[test]
fn a_flood_of_marks_stops_no_process() -> Outcome {
    // More marks than the recorder keeps track of for answers.
    let count = repetitions(6_000, 20_000).to_string();
    for_each(["none", "marks"], |ledger| {
        let (_, report) = recording(&["--ledger", ledger], &[&recorded()?, "flood", &count])?;
        let orderly = mark_names(&report).into_iter().filter(|name| *name == "orderly").count();
        assert_eq!(orderly, 10);
        Ok(())
    })
}

/// The mark exceeds the number of answers that the recorder keeps track of, and the process that
/// sent the others has ended.
#[test]
fn a_mark_after_a_flood_is_answered() -> Outcome {
    let (ended, report) = recording(&["--ledger", "marks"], &[&recorded()?, "after-flood", "6000"])?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    assert!(mark_names(&report).contains(&"orderly"));
    Ok(())
}

#[test]
fn marks_of_processes_that_do_not_wait_leave_nothing_behind() -> Outcome {
    if !has(here!(), "bash") {
        return Ok(());
    }
    // Each process sends a mark and ends before it can be measured. The shell continues until the
    // recording has all of them.
    let script = "for ((i = 0; i < 300; i++)); do (echo ended >&$STRANDLINE_MARK_FD) & done; wait; echo all >&$STRANDLINE_MARK_FD; read end";
    let place = Place::new()?;
    let started = Started::new(place.command(&["--ledger", "none"], &["bash", "-c", script]))?;
    place.until_reported("the ends of all but the shell", |report| {
        let have_ended = list(report, "processes").iter().skip(1).all(|one| !one["end_seconds"].is_null());
        Ok((have_ended && mark_names(report).contains(&"all")).then_some(()))
    })?;
    // This closes the shell's input.
    assert_eq!(started.finish()?.how(), 1);
    let report = place.report()?;
    let processes = list(&report, "processes");
    let endless: Vec<_> = processes.iter().filter(|one| one["end_seconds"].is_null()).collect();
    assert!(endless.is_empty(), "{} processes without an end: {:?}", endless.len(), endless.first());
    let cost = &report["cost"];
    if report["recording"]["followed_by"] == "connector" {
        // The table contains or counts each of them.
        let counted = number(cost, "brief_processes")? + number(cost, "unsampled_processes")?;
        assert_eq!(processes.len() as u64 + counted, 301);
    }
    // The shell has a sample at each instant up to its last one. After that the kernel takes a
    // while to report the end, and the instants in between have no sample of the shell. The report
    // spreads the times of equal samples evenly, so the samples are counted.
    let samples = column(&report, "seconds")?.into_iter().zip(column(&report, "process")?);
    let own: Vec<f64> = samples.filter(|sample| sample.1 == 0.0).map(|sample| sample.0).collect();
    let last = own.last().ok_or("no sample of the shell")?;
    let end = report["exit"]["seconds"].as_f64().ok_or("no end")?;
    let interval = cost["interval_seconds"].as_f64().ok_or("no interval")?;
    let instant = |seconds: f64| ((seconds * 1e6).round() / (interval * 1e6).round()).floor();
    let behind = instant(end) - instant(*last);
    let instants = number(cost, "samples")?;
    assert!(
        own.len() as f64 + behind >= instants as f64,
        "{} at {instants} instants, {behind} behind",
        own.len()
    );
    Ok(())
}

#[test]
fn a_program_that_closes_the_socket_is_still_recorded() -> Outcome {
    let place = Place::new()?;
    let ended = place.run(&[], &[&recorded()?, "close"])?;
    assert_eq!(ended.how(), 7, "{}", ended.complaint());
    let report = place.report()?;
    let high_water = number(&report["exit"], "high_water_bytes")?;
    let sampled = column(&report, "rss_bytes")?.into_iter().fold(0.0, f64::max);
    assert!(high_water >= 8 << 20 && high_water as f64 >= sampled, "{high_water}, sampled {sampled}");
    assert_eq!(ledgers_of(&report, "exit").len(), 1);
    Ok(())
}

#[test]
fn a_program_that_changes_its_user_is_followed() -> Outcome {
    if !is_root(here!()) {
        return Ok(());
    }
    let (_, report) = recording(&["--ledger", "marks,exit"], &[&recorded()?, "user"])?;
    assert_eq!(mark_names(&report), ["before", "after"]);
    let marks = list(&report, "marks");
    assert!(number(&marks[1], "rss_bytes")? >= number(&marks[0], "rss_bytes")? + (7 << 20));
    assert_eq!((ledgers_of(&report, "mark").len(), ledgers_of(&report, "exit").len()), (2, 1));
    Ok(())
}
