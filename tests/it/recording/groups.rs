//! The control group of a recorded process: its rows over time, and its rows at a kill.

#![cfg(test)]

use std::io::Write;
use std::process::Command;

use serde_json::Value;

use crate::support::group_rows::{RowBytes, of, other_than_explained};
use crate::support::memory_group::{MemoryGroup, batch_bytes};
use crate::support::recording::{Place, Started, caveats, is_root, list, number, program, signal};
use crate::support::strandline::json;
use crate::support::{Outcome, Result, here, skipped, strandline};

const MIB: u64 = 1 << 20;

/// Makes a file in shared memory, and after a line of input allocates anonymous memory without end.
const HUNGRY: &str = "\
import os, sys
file = os.memfd_create('held')
os.write(file, b'x' * (16 << 20))
sys.stdin.readline()
blocks = []
while True:
    blocks.append(bytearray(b'x' * (1 << 20)))";

/// Holds anonymous memory.
const STEADY: &str = "\
heap = bytearray(30 << 20)
print('ready', flush=True)
input()";

/// The rows of a group at its last sample, and the charge.
fn last(group: &Value) -> Result<(Vec<RowBytes>, u64)> {
    let samples = &group["samples"];
    let end = |column: &Value| column.as_array().and_then(|values| values.last()?.as_u64());
    let row = |row: &Value| {
        let id = row["id"].as_str().ok_or("a row without an id")?.to_owned();
        Ok(RowBytes { id, bytes: end(&row["bytes"]).ok_or("a row without bytes")? })
    };
    let rows = list(samples, "rows").iter().map(row).collect::<Result<Vec<RowBytes>>>()?;
    Ok((rows, end(&samples["current_bytes"]).ok_or("no charge")?))
}

/// Fails unless the rows of every sample add up to its charge.
fn check_sums(group: &Value) -> Outcome {
    let samples = &group["samples"];
    for (index, charge) in list(samples, "current_bytes").iter().enumerate() {
        let bytes = list(samples, "rows").iter().filter_map(|row| row["bytes"][index].as_u64());
        assert_eq!(Some(bytes.sum::<u64>()), charge.as_u64(), "sample {index}: {group:#}");
    }
    assert!(!list(samples, "seconds").is_empty());
    Ok(())
}

#[test]
fn a_kill_at_the_limit_has_the_group_s_rows() -> Outcome {
    let test = here!();
    if !is_root(test) {
        return Ok(());
    }
    let place = Place::new()?;
    let mut started = Started::new(place.command(&["--limit-memory", "48MiB"], &["python3", "-c", HUNGRY]))?;
    let held = place.until_reported("the file in shared memory", |report| {
        let Some(group) = list(report, "groups").first() else { return Ok(None) };
        let (rows, _) = last(group)?;
        Ok((of(&rows, "group.shmem") + batch_bytes() >= 16 * MIB).then_some(()))
    });
    if held.is_err() && MemoryGroup::new("probe").is_none() {
        skipped(test, "no control group with a memory controller can be made here");
        return Ok(());
    }
    held?;
    started.child.stdin.take().ok_or("no pipe")?.write_all(b"go\n")?;
    let ended = started.finish()?;
    assert_eq!(ended.how(), 1009, "{}", ended.complaint());
    let report = place.report()?;
    check_sums(&list(&report, "groups")[0])?;
    let kill = &report["exit"]["group_kill"];
    assert!(number(kill, "kills")? >= 1, "{kill:#}");
    assert_eq!(number(kill, "effective_limit_bytes")?, 48 * MIB);
    let rows = list(kill, "rows");
    let bytes = |id: &str| {
        rows.iter().filter(|row| row["id"] == id).filter_map(|row| row["bytes"].as_u64()).sum::<u64>()
    };
    assert!(bytes("group.shmem") + batch_bytes() >= 16 * MIB, "{kill:#}");
    assert!(bytes("group.anon") > 0, "{kill:#}");
    let sum: u64 = rows.iter().filter_map(|row| row["bytes"].as_u64()).sum();
    assert_eq!(sum, number(kill, "current_bytes")?);
    assert!(kill["sample_seconds"].as_f64() <= kill["noticed_seconds"].as_f64(), "{kill:#}");
    let unknown = kill["unknown"].as_str().ok_or("no sentence on what is not known")?;
    assert!(unknown.contains("which limit was met"), "{kill:#}");
    check_shown(&place, kill, unknown)
}

/// Fails unless the rows of each line of the table add up to its charge.
fn check_table_sums(place: &Place) -> Outcome {
    let made = strandline::run(&["report", &place.file.display().to_string(), "--format", "groups-csv"])?;
    assert_eq!(made.status, Some(0), "{}", made.summary());
    let mut lines = made.stdout.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().ok_or("no head")?;
    assert_eq!(head[3], "current_bytes", "{head:?}");
    let mut samples = 0;
    for cells in lines {
        let rows = head.iter().zip(&cells).filter(|(name, _)| name.starts_with("\"group."));
        let sum: u64 = rows.filter_map(|(_, cell)| cell.parse::<u64>().ok()).sum();
        assert_eq!((cells.len(), sum.to_string().as_str()), (head.len(), cells[3]), "{cells:?}");
        samples += 1;
    }
    if samples == 0 { Err("no samples".into()) } else { Ok(()) }
}

/// Fails unless page and terminal have the figures of the document.
fn check_shown(place: &Place, kill: &Value, unknown: &str) -> Outcome {
    check_table_sums(place)?;
    let file = place.file.display().to_string();
    let page = place.folder.0.join("a.html").display().to_string();
    let made = strandline::run(&["report", &file, "--format", "html", "-o", &page])?;
    assert_eq!(made.status, Some(0), "{}", made.summary());
    let page = std::fs::read_to_string(page)?;
    assert!(page.contains(unknown) && page.contains("class=\"limit\"") && page.contains("class=\"kill\""));
    for row in list(kill, "rows") {
        let (id, bytes) = (row["id"].as_str().unwrap_or_default(), number(row, "bytes")?);
        assert!(page.contains(&format!(">{id}<")), "{id}");
        assert!(page.contains(&format!("data-exact=\"{bytes}\"")), "{id}: {bytes}");
    }
    let shown = strandline::run(&["report", &file])?;
    let words: Vec<&str> = shown.stdout.split_whitespace().collect();
    let text = words.join(" ");
    assert!(text.contains("(limit 48.0 MiB)") && text.contains("of this group for lack of memory"), "{text}");
    assert!(text.contains("before the kill") && text.contains("group.shmem"), "{text}");
    Ok(())
}

#[test]
fn a_recorded_process_has_the_rows_of_its_group() -> Outcome {
    let Some(group) = MemoryGroup::new("recorded") else {
        skipped(here!(), "no control group with a memory controller can be made here");
        return Ok(());
    };
    group.limit(512 * MIB)?;
    let subject = group.python(STEADY, &[])?;
    subject.at_rest()?;
    let place = Place::new()?;
    let mut command = Command::new(program());
    command.args(["record", "--ledger", "none", "-o"]).arg(&place.file).arg(subject.pid_text());
    let recorder = Started::new(command)?;
    place.until_reported("a sample", |report| {
        let group = list(report, "groups").first();
        Ok(group.filter(|group| group["effective_limit_bytes"] == 512 * MIB).map(|_| ()))
    })?;
    group.limit(256 * MIB)?;
    place.until_reported("the new limit", |report| {
        Ok((list(report, "groups")[0]["effective_limit_bytes"] == 256 * MIB).then_some(()))
    })?;
    let document = json(&["explain", "--json", "--cgroup", &group.path()])?;
    signal(recorder.pid(), 2);
    assert_eq!(recorder.finish()?.how(), 0);
    let report = place.report()?;
    let [recorded] = list(&report, "groups") else { return Err(format!("{:#}", report["groups"]).into()) };
    check_sums(recorded)?;
    assert_eq!(recorded["path"], document["cgroup"]["path"]);
    assert_eq!(list(recorded, "limits").len(), 2, "{recorded:#}");
    let (rows, charge) = last(recorded)?;
    let other = other_than_explained(&rows, &document);
    assert!(other.is_none(), "{other:?}: {document:#}");
    assert!(of(&rows, "group.anon") + batch_bytes() >= 30 * MIB && charge < 120 * MIB, "{rows:?}");
    assert!(report["exit"]["group_kill"].is_null());
    assert!(!caveats(&report).iter().any(|code| code.starts_with("group_")), "{:?}", caveats(&report));
    Ok(())
}
