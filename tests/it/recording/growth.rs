//! A recorded program with a known answer: its marks, ledgers, samples and tables.

use serde_json::Value;

use crate::support::recording::{
    Place, caveats, column, ledgers_of, list, mark_names, number, recorded, recording, report,
};
use crate::support::{Outcome, Result, invariants, strandline};

const MIB: u64 = 1 << 20;
const COLUMNS: [&str; 15] = [
    "seconds",
    "pid",
    "process",
    "rss_bytes",
    "virtual_bytes",
    "data_bytes",
    "anonymous_bytes",
    "file_bytes",
    "shmem_bytes",
    "swap_bytes",
    "minor_faults",
    "major_faults",
    "user_seconds",
    "system_seconds",
    "threads",
];

fn check_near(what: &str, got: i64, wanted: i64) -> Outcome {
    if (got - wanted).unsigned_abs() <= MIB {
        Ok(())
    } else {
        Err(format!("{what}: {got}, not {wanted}").into())
    }
}

fn signed(mark: &Value, key: &str) -> Result<i64> {
    Ok(i64::try_from(number(mark, key)?)?)
}

#[test]
fn growth_and_release_appear_at_their_marks() -> Outcome {
    let (ended, report) = recording(&[], &[&recorded()?, "grow", "64"])?;
    assert_eq!(mark_names(&report), ["begun", "grown", "freed"]);
    let marks = list(&report, "marks");
    for (pair, wanted) in marks.windows(2).zip([64i64 << 20, -64 << 20]) {
        for key in ["rss_bytes", "anonymous_bytes", "data_bytes", "virtual_bytes"] {
            check_near(key, signed(&pair[1], key)? - signed(&pair[0], key)?, wanted)?;
        }
    }
    // The program prints values that it read one system call before it sent the mark.
    for (mark, own) in marks.iter().zip(ended.lines()?) {
        assert_eq!(own["answered"], 1);
        for field in ["VmData", "VmSize", "RssAnon"] {
            assert_eq!(mark["status_bytes"][field], own[field], "{field} at {}", mark["name"]);
        }
        assert_eq!(mark["data_bytes"], own["VmData"]);
        assert!(mark["waited_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
    }
    assert_eq!(caveats(&report), Vec::<String>::new());
    Ok(())
}

#[test]
fn ledgers_at_marks_and_exit_keep_the_invariants() -> Outcome {
    let (_, report) = recording(&["--ledger", "marks,exit"], &[&recorded()?, "grow", "64"])?;
    let moments: Vec<_> = list(&report, "ledgers").iter().filter_map(|one| one["at"].as_str()).collect();
    assert_eq!(moments, ["begun", "grown", "freed", "exit"]);
    for ledger in list(&report, "ledgers") {
        invariants::check(&ledger["explain"])?;
        assert!(ledger["seconds"].as_f64().is_some() && number(ledger, "pid")? > 0);
    }
    let rss = |index: usize| number(&list(&report, "ledgers")[index]["explain"]["kernel"], "rss_bytes");
    check_near("the ledgers' growth", i64::try_from(rss(1)?)? - i64::try_from(rss(0)?)?, 64 << 20)?;
    let live = strandline::row(&list(&report, "ledgers")[1]["explain"], "glibc.mmapped");
    check_near("glibc.mmapped", i64::try_from(live)?, 64 << 20)?;
    Ok(())
}

#[test]
fn samples_are_columns_of_one_length_in_order() -> Outcome {
    let (_, report) = recording(&["--ledger", "none"], &[&recorded()?, "steps", "3", "4"])?;
    let seconds = column(&report, "seconds")?;
    assert!(!seconds.is_empty() && seconds.is_sorted());
    for name in COLUMNS {
        assert_eq!(column(&report, name)?.len(), seconds.len(), "{name}");
    }
    let parts = ["anonymous_bytes", "file_bytes", "shmem_bytes"].map(|name| column(&report, name));
    let [anonymous, file, shmem] = parts;
    let (anonymous, file, shmem) = (anonymous?, file?, shmem?);
    for (index, rss) in column(&report, "rss_bytes")?.into_iter().enumerate() {
        assert_eq!(rss, anonymous[index] + file[index] + shmem[index], "sample {index}");
    }
    for name in ["minor_faults", "user_seconds", "system_seconds"] {
        assert!(column(&report, name)?.is_sorted(), "{name}");
    }
    let cost = &report["cost"];
    assert_eq!(cost["interval_seconds"], 0.001);
    assert!(number(cost, "samples")? > 0 && cost["missed"].is_u64());
    assert!(cost["own_cpu_seconds"].is_f64() && number(cost, "own_peak_rss_bytes")? > 0);
    assert_eq!(report["exit"]["status"], 0);
    check_near("the exit's high water", signed(&report["exit"], "high_water_bytes")?, 13 << 20)?;
    Ok(())
}

#[test]
fn the_interval_is_the_requested_one() -> Outcome {
    let flags = ["--ledger", "none", "--interval", "50ms"];
    let (_, report) = recording(&flags, &[&recorded()?, "steps", "2", "1"])?;
    assert_eq!(report["cost"]["interval_seconds"], 0.05);
    let instants = number(&report["cost"], "samples")? + number(&report["cost"], "missed")?;
    let lasted = report["exit"]["seconds"].as_f64().ok_or("no end")?;
    assert!(instants as f64 <= lasted / 0.05 + 2.0, "{instants} instants in {lasted} s");
    Ok(())
}

#[test]
fn csv_equals_json() -> Outcome {
    let place = Place::new()?;
    place.run(&["--ledger", "none"], &[&recorded()?, "grow", "8"])?;
    let json = place.report()?;
    let csv = strandline::run(&["report", "--format", "csv", &place.file.display().to_string()])?;
    let mut lines = csv.stdout.lines();
    let header: Vec<&str> = lines.next().ok_or("no header")?.split(',').collect();
    assert_eq!(header[..COLUMNS.len()], COLUMNS);
    assert_eq!(header[COLUMNS.len()..], ["mark"]);
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut marked = Vec::new();
    for line in lines {
        let fields: Vec<String> = line.split(',').map(str::to_owned).collect();
        assert_eq!(fields.len(), header.len(), "{line}");
        match fields.last().map(String::as_str) {
            Some("") => rows.push(fields),
            _ => marked.push(fields),
        }
    }
    for (index, name) in COLUMNS.iter().enumerate() {
        let wanted = column(&json, name)?;
        let got: Vec<f64> =
            rows.iter().map(|row| row[index].parse()).collect::<std::result::Result<_, _>>()?;
        assert_eq!(got, wanted, "{name}");
    }
    let names: Vec<_> =
        marked.iter().filter_map(|row| row.last()).map(|name| name.trim_matches('"')).collect();
    assert_eq!(names, mark_names(&json));
    for (row, mark) in marked.iter().zip(list(&json, "marks")) {
        assert_eq!(row[3].parse::<u64>()?, number(mark, "rss_bytes")?);
        assert_eq!(row[5].parse::<u64>()?, number(mark, "data_bytes")?);
    }
    Ok(())
}

#[test]
fn a_running_process_is_recorded_until_the_recorder_is_stopped() -> Outcome {
    use crate::support::Subject;
    use crate::support::recording::{Started, command, program, signal, until};
    let target = Subject::shell("echo ready; read end; exit 0")?;
    let place = Place::new()?;
    let file = place.file.display().to_string();
    let flags = ["record", "--json", "-o", &file, &target.pid_text()];
    let words: Vec<&str> = [program()].into_iter().chain(flags).collect();
    let recorder = Started::new(command(&words))?;
    until("samples in the file", || {
        let has = std::fs::metadata(&place.file).is_ok_and(|data| data.len() > 0);
        Ok((has && report(&place.file).is_ok_and(|now| !ledgers_of(&now, "start").is_empty())).then_some(()))
    })?;
    signal(recorder.pid(), 2);
    let ended = recorder.finish()?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    let document: Value = serde_json::from_str(&ended.text())?;
    assert_eq!((&document["why"], document["ledgers"].as_u64()), (&Value::from("interrupted"), Some(2)));
    let report = place.report()?;
    assert_eq!(report["recording"]["attached"], true);
    assert_eq!(report["exit"]["why"], "interrupted");
    assert_eq!((ledgers_of(&report, "start").len(), ledgers_of(&report, "end").len()), (1, 1));
    assert_eq!(crate::support::recording::status_line(target.pid(), "TracerPid").as_deref(), Some("0"));
    assert!(target.finish()?.success());
    Ok(())
}

#[test]
fn a_recording_ends_after_its_duration() -> Outcome {
    let target = crate::support::Subject::shell("echo ready; read end; exit 0")?;
    let place = Place::new()?;
    let file = place.file.display().to_string();
    let flags = ["record", "--json", "--duration", "300ms", "-o", &file, &target.pid_text()];
    let document = strandline::json(&flags)?;
    assert_eq!((&document["why"], document["ledgers"].as_u64()), (&Value::from("interrupted"), Some(2)));
    assert!(document["seconds"].as_f64().is_some_and(|seconds| seconds >= 0.3), "{document}");
    assert!(target.finish()?.success());
    Ok(())
}
