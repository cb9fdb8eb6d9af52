//! Recordings that are damaged or missing: every format complains in one line, or shows what is
//! left with a caveat.

use std::path::Path;

use serde_json::Value;

use crate::support::recording::{Place, caveats, command, finish, list, program, recorded, report};
use crate::support::{Outcome, Result, for_each, full, repetitions, strandline};

const FORMATS: [&str; 5] = ["json", "csv", "html", "svg", "png"];
/// `make test` renders only every fourth damaged file as an image, which takes longer than all
/// other formats together.
const IMAGE_EVERY: usize = 4;

/// Whether `report` prints a result or one line of complaint for damaged file number `turn`, with
/// every format and without one.
fn is_reported(file: &Path, turn: usize) -> Outcome {
    let file = file.display().to_string();
    let has_image = full() || turn.is_multiple_of(IMAGE_EVERY);
    let formats = FORMATS.iter().filter(|format| has_image || **format != "png");
    let formats = formats.map(|format| vec!["--format", format]).chain([vec![]]);
    let mut statuses = Vec::new();
    for format in formats {
        let words = [&[program(), "report", &file], &format[..]].concat();
        let ended = finish(command(&words), b"")?;
        let stderr = ended.complaint();
        match ended.how() {
            0 => assert!(!ended.stdout.is_empty(), "{format:?} is empty"),
            3 => assert!(stderr.lines().count() == 1 && ended.stdout.is_empty(), "{format:?}: {stderr}"),
            other => return Err(format!("{format:?} ended with {other}: {stderr}").into()),
        }
        statuses.push(ended.how());
    }
    assert!(statuses.iter().all(|status| *status == statuses[0]), "{statuses:?}");
    Ok(())
}

fn example(place: &Place) -> Result<Vec<u8>> {
    let ended = place.run(&["--ledger", "marks,exit"], &[&recorded()?, "grow", "1"])?;
    assert_eq!(ended.how(), 0);
    Ok(std::fs::read(&place.file)?)
}

#[test]
fn cut_recordings_are_reported_up_to_the_cut() -> Outcome {
    let place = Place::new()?;
    let whole = example(&place)?;
    let cuts = [0, 1, 3, 4, 20, whole.len() / 3, whole.len() / 2, whole.len() * 9 / 10, whole.len() - 1];
    // The last cut, with most to draw, includes an image.
    for_each(cuts.into_iter().enumerate(), |(turn, cut)| {
        std::fs::write(&place.file, &whole[..*cut])?;
        is_reported(&place.file, *turn)?;
        if let Ok(report) = report(&place.file) {
            assert!(!caveats(&report).is_empty(), "cut at {cut} without a caveat");
            assert_eq!(report["exit"]["status"], Value::Null);
        }
        Ok(())
    })
}

#[test]
fn flipped_bits_are_survived_in_every_format() -> Outcome {
    let place = Place::new()?;
    let whole = example(&place)?;
    let flips = usize::try_from(repetitions(8, 32))?;
    for_each(0..flips, |turn| {
        let mut damaged = whole.clone();
        let at = whole.len() * turn / flips;
        damaged[at] ^= 1 << (turn % 8);
        std::fs::write(&place.file, damaged)?;
        is_reported(&place.file, *turn)
    })
}

#[test]
fn files_that_are_no_recordings_are_refused_by_name() -> Outcome {
    let place = Place::new()?;
    let folder = place.folder.0.display().to_string();
    let text = place.folder.0.join("text");
    std::fs::write(&text, "a letter\n")?;
    let empty = place.folder.0.join("empty");
    std::fs::write(&empty, "")?;
    for path in [
        folder.as_str(),
        "/no/such/file",
        &text.display().to_string(),
        &empty.display().to_string(),
        "/dev/null",
    ] {
        strandline::run(&["report", path])?.complains(3, &[path, "strandline run -o FILE"])?;
        strandline::run(&["report", "--format", "html", path])?.complains(3, &[path])?;
    }
    assert_eq!(strandline::run(&["report"])?.status, Some(2));
    Ok(())
}

#[test]
fn several_recordings_are_overlaid() -> Outcome {
    let place = Place::new()?;
    example(&place)?;
    let other = Place::new()?;
    other.run(&["--ledger", "none"], &["true"])?;
    let files = [place.file.display().to_string(), other.file.display().to_string()];
    let both = |format: &[&str]| {
        finish(command(&[&[program(), "report", &files[0], &files[1]], format].concat()), b"")
    };
    for format in ["html", "svg", "png"] {
        let ended = both(&["--format", format])?;
        assert!(ended.how() == 0 && !ended.stdout.is_empty(), "{format}: {}", ended.complaint());
    }
    assert_eq!(both(&[])?.how(), 0);
    Ok(())
}

/// Scripts get every recording: JSON as the documents of each, CSV with a column that names them.
#[test]
fn several_recordings_are_written_for_scripts() -> Outcome {
    let (one, other) = (Place::new()?, Place::new()?);
    example(&one)?;
    other.run(&["--ledger", "none"], &["true"])?;
    let files = [one.file.display().to_string(), other.file.display().to_string()];
    let written = |files: &[String], format: &str| -> Result<String> {
        let files = files.iter().map(String::as_str);
        let words: Vec<&str> = [program(), "report", "--format", format].into_iter().chain(files).collect();
        let ended = finish(command(&words), b"")?;
        if ended.how() == 0 { Ok(ended.text()) } else { Err(ended.complaint().into()) }
    };
    let both: Value = serde_json::from_str(&written(&files, "json")?)?;
    assert_eq!(both["schema"], "strandline/reports/1");
    assert!(both["version"].is_string() && both["environment"]["kernel"].is_string());
    assert_eq!(both["recordings"], Value::Array(vec![report(&one.file)?, report(&other.file)?]));
    for format in ["csv", "groups-csv"] {
        let table = written(&files, format)?;
        let mut lines = table.lines();
        let head = lines.next().ok_or("no head")?;
        let columns = head.strip_prefix("recording,").ok_or("no column recording")?;
        let mut expected = Vec::new();
        for file in &files {
            let alone = written(std::slice::from_ref(file), format)?;
            // Of `groups-csv` the columns are the rows of all recordings.
            assert!(format == "groups-csv" || alone.starts_with(&format!("{columns}\n")), "{columns}");
            expected.extend(alone.lines().skip(1).map(|line| format!("\"{file}\",{line}")));
        }
        let lines: Vec<&str> = lines.collect();
        assert!(lines.len() == expected.len(), "{format}: {} lines, not {}", lines.len(), expected.len());
        assert!(format == "groups-csv" || lines == expected, "{table}");
    }
    Ok(())
}

#[test]
fn csv_and_the_chart_come_from_a_pipe_too() -> Outcome {
    let place = Place::new()?;
    let whole = example(&place)?;
    let ended = finish(command(&[program(), "report", "/dev/stdin"]), &whole)?;
    assert!(ended.how() == 0 && ended.text().contains("grown"), "{}", ended.complaint());
    for format in ["csv", "json"] {
        // A format that reads its input twice cannot read a pipe: the complaint is one line.
        let ended = finish(command(&[program(), "report", "--format", format, "/dev/stdin"]), &whole)?;
        let is_whole = ended.how() == 0 && ended.text().contains("grown");
        assert!(
            is_whole || ended.how() == 3 && ended.complaint().lines().count() == 1,
            "{format}: {} {}",
            ended.how(),
            ended.complaint()
        );
    }
    Ok(())
}

#[test]
fn nothing_of_the_targets_memory_is_recorded() -> Outcome {
    let place = Place::new()?;
    let secret = "s3cr3t-in-the-heap-";
    let script = format!("x={secret}; y=$x$x$x; {} mark one; : $y", program());
    // The command line is recorded, so the secret is passed on standard input.
    let ended = finish(place.command(&["--ledger", "marks,exit"], &["sh"]), script.as_bytes())?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    let report = place.report()?;
    assert_eq!(list(&report, "marks").len(), 1);
    assert!(!report.to_string().contains(secret));
    Ok(())
}
