//! Limits on a recorded command: they act as without strandline, and the recording has the
//! command's exit status or signal.

use serde_json::Value;

use crate::support::recording::{
    Ended, Place, Started, command, finish, has, is_root, list, number, program, recorded,
};
use crate::support::{Outcome, Result, copy_program, here};

const MIB: u64 = 1 << 20;

fn limit<'a>(report: &'a Value, kind: &str) -> Option<&'a Value> {
    list(&report["recording"], "limits").iter().find(|limit| limit["kind"] == kind)
}

#[test]
fn an_address_space_is_limited_as_by_ulimit() -> Outcome {
    let test = here!();
    if !has(test, "perl") {
        return Ok(());
    }
    let script = "my $x = 'a' x (300 << 20); print length $x";
    let alone =
        finish(command(&["sh", "-c", "ulimit -v 131072; exec \"$@\"", "sh", "perl", "-e", script]), b"")?;
    let place = Place::new()?;
    let ended = place.run(&["--limit-address-space", "128MiB"], &["perl", "-e", script])?;
    assert_ne!(ended.how(), 0);
    assert_eq!(
        (ended.how(), ended.complaint(), ended.text()),
        (alone.how(), alone.complaint(), alone.text())
    );
    let report = place.report()?;
    assert_eq!(report["exit"]["status"], ended.how());
    let limit = limit(&report, "address_space").ok_or("the limit is not recorded")?;
    assert_eq!((number(limit, "bytes")?, &limit["by"]), (128 * MIB, &Value::from("RLIMIT_AS")));
    Ok(())
}

#[test]
fn a_data_segment_is_limited() -> Outcome {
    let place = Place::new()?;
    let ended = place.run(&["--limit-data", "32MiB"], &[&recorded()?, "grow", "64"])?;
    // The subject's exit status when it gets no memory.
    assert_eq!(ended.how(), 93, "{}", ended.complaint());
    let report = place.report()?;
    assert!(limit(&report, "data").is_some());
    let (soft, inner) = ("ulimit -d; ulimit -v", &["--limit-data", "32MiB", "--limit-address-space", "1GiB"]);
    assert_eq!(place.run(inner, &["sh", "-c", soft])?.text(), "32768\n1048576\n");
    Ok(())
}

#[test]
fn a_limit_above_the_hard_one_is_refused() -> Outcome {
    let place = Place::new()?;
    let file = place.file.display().to_string();
    let shell = format!(
        "ulimit -v 4000000; exec {} run --limit-address-space 8GiB -o {file} -- echo never",
        program()
    );
    let ended = finish(command(&["sh", "-c", &shell]), b"")?;
    assert_eq!((ended.how(), ended.text().as_str()), (125, ""));
    assert!(ended.complaint().contains("hard limit"), "{}", ended.complaint());
    Ok(())
}

/// Runs a command under a memory limit. Returns how it ended, and the control groups left behind by
/// this recorder only: other tests make and remove such groups at the same time.
fn in_a_group(place: &Place, words: &[&str]) -> Result<(Ended, String)> {
    let started = Started::new(place.command(&["--limit-memory", "48MiB"], words))?;
    let name = format!("strandline-{}-*", started.pid());
    let ended = started.finish()?;
    let left = finish(command(&["find", "/sys/fs/cgroup", "-type", "d", "-name", &name]), b"")?;
    Ok((ended, left.text()))
}

#[test]
fn a_memory_limit_is_set_on_a_control_group() -> Outcome {
    let test = here!();
    if !is_root(test) {
        return Ok(());
    }
    let place = Place::new()?;
    let (ended, left) = in_a_group(&place, &[&recorded()?, "grow", "256"])?;
    if ended.how() == 125 && ended.complaint().contains("cannot be set here") {
        crate::support::skipped(test, ended.complaint().trim());
        return Ok(());
    }
    assert_eq!(ended.how(), 1009, "{}", ended.complaint());
    let report = place.report()?;
    assert_eq!(report["exit"]["signal"], 9);
    assert!(number(&report["exit"], "out_of_memory_kills")? >= 1);
    let limit = limit(&report, "memory").ok_or("the limit is not recorded")?;
    assert_eq!(number(limit, "bytes")?, 48 * MIB);
    assert_eq!(left, "");
    // A command within the limit is not killed, and its group is removed.
    let (ended, left) = in_a_group(&place, &[&recorded()?, "grow", "8"])?;
    assert_eq!((ended.how(), left.as_str()), (0, ""), "{}", ended.complaint());
    assert_eq!(place.report()?["exit"]["out_of_memory_kills"], 0);
    Ok(())
}

#[test]
fn a_limit_that_cannot_be_set_is_refused_with_the_reason() -> Outcome {
    let test = here!();
    if !is_root(test) || !has(test, "setpriv") {
        return Ok(());
    }
    let place = Place::new()?;
    let own = place.folder.0.join("strandline");
    copy_program(program(), &own)?;
    let (own, file) = (own.display().to_string(), place.file.display().to_string());
    let user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let run = [own.as_str(), "run", "--limit-memory", "64MiB", "-o", &file, "--", "echo", "never"];
    let ended = finish(command(&[&user[..], &run].concat()), b"")?;
    assert_eq!((ended.how(), ended.text().as_str()), (125, ""));
    let stderr = ended.complaint();
    assert!(stderr.contains("--limit-address-space") && stderr.lines().count() == 1, "{stderr}");
    assert!(!place.file.exists());
    Ok(())
}
