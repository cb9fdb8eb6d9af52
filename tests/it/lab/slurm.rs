//! Labs on Slurm: a real cluster of one node from Debian's packages, and a fake one with a thousand
//! nodes.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::lab::{Lab, complains};
use crate::support::recording::{Ended, Started, signal, until};
use crate::support::slurm::{Cluster, Fake};
use crate::support::waiting::until_true;
use crate::support::{Outcome, Result, full, here, skipped};

const TWO: [&str; 6] = ["compare", "--on=slurm", "--dir=lab", "--warm-up=0", "sleep 0.02", "sleep 0.01"];

/// Returns the document of a lab that succeeded.
fn document(ended: &Ended) -> Result<Value> {
    if ended.how() != 0 {
        return Err(format!("strandline ended with {}: {}", ended.how(), ended.complaint()).into());
    }
    Ok(serde_json::from_slice(&ended.stdout)?)
}

/// Returns the text of the document's caveats with this code; empty without any.
fn caveat(document: &Value, code: &str) -> String {
    let of_code = |caveat: &&Value| caveat["code"] == code;
    let all = document["caveats"].as_array().into_iter().flatten();
    all.filter(of_code).filter_map(|caveat| caveat["text"].as_str()).collect::<Vec<_>>().join("\n")
}

fn contains_all(text: &str, words: &[&str]) -> Outcome {
    match words.iter().find(|word| !text.contains(**word)) {
        None => Ok(()),
        Some(word) => Err(format!("{text:?} does not contain {word:?}").into()),
    }
}

/// Waits until a lab has recorded the job of its array `number`.
fn until_submitted(lab: &Lab, number: u32) -> Outcome {
    let job = PathBuf::from(lab.path(&format!("lab/slurm/arrays/{number}.job")));
    until_true("the job", || job.exists())
}

#[test]
fn a_thousand_nodes_are_one_array() -> Outcome {
    let Some(fake) = Fake::new(here!())? else { return Ok(()) };
    fake.set("nodes", "1000")?;
    fake.set("unlike", "")?;
    let words =
        [&["--json"], &TWO[..], &["--repeat=1000", "--partition=long", "--sbatch=--qos=low"]].concat();
    let document = document(&fake.run(&words)?)?;
    assert_eq!(document["runs"], 1000);
    let ratio = document["metrics"]["wall_seconds"]["ratio"]["median"].as_f64().ok_or("no ratio")?;
    assert!((1.45..1.55).contains(&ratio), "{ratio}: pairs are of one node each");
    let submitted = fake.calls("sbatch");
    assert_eq!(submitted.len(), 1, "{submitted:?}");
    contains_all(
        &submitted.concat(),
        &["--array=0-999 ", "--exclusive", "--partition=long", "--qos=low", "--nodes=1"],
    )?;
    contains_all(
        &caveat(&document, "nodes_unlike"),
        &["2 unlike kinds", "blocks in the statistics", "500 nodes"],
    )?;
    assert_eq!(document["nodes"].as_array().map(Vec::len), Some(2));
    assert_eq!(document["environment"]["nodes"], document["nodes"]);
    assert_eq!(fake.lab.text("lab/journal.jsonl").lines().count(), 2000);
    // For a scheduler with a smaller array limit, the lab submits more arrays.
    fake.set("most", "300")?;
    let again = [&words[..], &["--fresh", "--at-once=50"]].concat();
    crate::lab::slurm::document(&fake.run(&again)?)?;
    let more = fake.calls("sbatch");
    assert_eq!(more.len(), 5, "{more:?}");
    contains_all(&more.concat(), &["--array=0-299%50", "--array=0-99%50"])
}

#[test]
fn a_scheduler_that_is_down_is_reported_and_no_result_is_lost() -> Outcome {
    let Some(fake) = Fake::new(here!())? else {
        return Ok(());
    };
    fake.set("down", "")?;
    let words = [&["--json"], &TWO[..], &["--repeat=3"]].concat();
    complains(
        &fake.run(&words)?,
        3,
        &["slurm: ", "Unable to contact slurm controller", "run the same command to resume"],
    )?;
    fake.unset("down")?;
    assert_eq!(document(&fake.run(&words)?)?["runs"], 3);
    // All results are present: the scheduler is not queried.
    fake.set("down", "")?;
    assert_eq!(document(&fake.run(&words)?)?["runs"], 3);
    assert_eq!(fake.calls("sbatch --").len(), 1);
    Ok(())
}

#[test]
fn lost_and_damaged_rounds_are_run_again() -> Outcome {
    let Some(fake) = Fake::new(here!())? else { return Ok(()) };
    fake.set("lose", "1")?;
    fake.set("damage", "2")?;
    let ended = fake.run(&[&["--json"], &TWO[..], &["--repeat=4"]].concat())?;
    let document = document(&ended)?;
    assert_eq!(document["metrics"]["wall_seconds"]["a"]["samples"].as_array().map(Vec::len), Some(4));
    contains_all(
        &caveat(&document, "rounds_again"),
        &["round 2: task 1_1", "round 3: ", "it was run again"],
    )?;
    contains_all(&caveat(&document, "damaged"), &["-2.json", "set aside"])?;
    contains_all(&fake.calls("sbatch").concat(), &["--array=0-3 ", "--array=0-1 "])
}

#[test]
fn the_work_of_a_killed_submitter_resumes() -> Outcome {
    let Some(fake) = Fake::new(here!())? else { return Ok(()) };
    fake.set("hold", "")?;
    let words = [&["--json"], &TWO[..], &["--repeat=3"]].concat();
    let mut started = Started::new(fake.command(&words))?;
    until_submitted(&fake.lab, 0)?;
    // A second strandline is refused while one is running.
    complains(&fake.run(&words)?, 3, &["another strandline is at work on this lab"])?;
    signal(started.pid(), 9);
    started.child.wait()?;
    // A missing job file does not matter either.
    std::fs::remove_file(fake.lab.path("lab/slurm/arrays/0.job"))?;
    let next = Started::new(fake.command(&words))?;
    // It finds its job by name, and then the tasks of the job.
    until_true("a second query of squeue", || fake.calls("squeue").len() >= 2)?;
    fake.release()?;
    assert_eq!(document(&next.finish()?)?["runs"], 3);
    assert_eq!(fake.calls("sbatch").len(), 1);
    Ok(())
}

#[test]
fn a_job_whose_submission_was_not_answered_is_found_by_its_name() -> Outcome {
    let Some(fake) = Fake::new(here!())? else { return Ok(()) };
    fake.set("hold", "")?;
    fake.set("mute", "")?;
    let words = [&["--json"], &TWO[..], &["--repeat=3"]].concat();
    complains(
        &fake.run(&words)?,
        3,
        &["Unable to contact slurm controller", "run the same command to resume"],
    )?;
    fake.unset("mute")?;
    fake.unset("down")?;
    let next = Started::new(fake.command(&words))?;
    until_true("a second query of squeue", || {
        fake.calls("squeue").iter().filter(|call| *call == "squeue").count() >= 2
    })?;
    fake.release()?;
    assert_eq!(document(&next.finish()?)?["runs"], 3);
    assert_eq!(fake.calls("sbatch --").len(), 1, "the job was submitted again");
    Ok(())
}

#[test]
fn a_signal_cancels_the_submitted_jobs() -> Outcome {
    let Some(fake) = Fake::new(here!())? else { return Ok(()) };
    fake.set("hold", "")?;
    let words = [&TWO[..], &["--repeat=3"]].concat();
    let started = Started::new(fake.command(&words))?;
    until_submitted(&fake.lab, 0)?;
    signal(started.pid(), 2);
    let ended = started.finish()?;
    assert_eq!(ended.how(), 1002, "{}", ended.complaint());
    contains_all(&ended.complaint(), &["slurm: cancelled: job 1", "run the same command to resume"])?;
    assert_eq!(fake.calls("scancel"), ["scancel 1"]);
    // A hangup is handled like a crash of the machine: the job is left running.
    let started = Started::new(fake.command(&words))?;
    until_submitted(&fake.lab, 1)?;
    signal(started.pid(), 1);
    let ended = started.finish()?;
    contains_all(&ended.complaint(), &["slurm: job 2 keeps running"])?;
    assert_eq!(fake.calls("scancel").len(), 1);
    Ok(())
}

#[test]
fn flags_that_make_no_sense_on_slurm_are_refused() -> Outcome {
    let Some(fake) = Fake::new(here!())? else { return Ok(()) };
    let refused = |more: &[&str], words: &[&str]| complains(&fake.run(&[&TWO[..], more].concat())?, 2, words);
    refused(&["--sbatch=--array=1-3"], &["--array", "strandline sets that itself"])?;
    refused(&["--jobs=2"], &["--at-once"])?;
    complains(&fake.run(&["compare", "--on=slurm", "true", "false"])?, 2, &["--dir ~/strandline-lab"])?;
    complains(&fake.run(&["compare", "--partition=x", "true", "false"])?, 2, &["--on"])?;
    assert!(fake.calls("").is_empty());
    Ok(())
}

#[test]
fn a_comparison_runs_on_a_real_node() -> Outcome {
    let Some(cluster) = Cluster::start(here!())? else { return Ok(()) };
    let ended = cluster.run(&[&["--json"], &TWO[..], &["--repeat=3"]].concat())?;
    let document = document(&ended)?;
    assert_eq!(document["runs"], 3);
    contains_all(&caveat(&document, "nodes"), &["run on 1 node"])?;
    let rounds = std::fs::read_dir(cluster.lab.path("lab/slurm/rounds"))?.flatten().count();
    assert_eq!(rounds, 3, "a file each, and no part of one is left");
    Ok(())
}

/// Starts a cluster for a long test.
fn cluster(test: &str) -> Result<Option<Cluster>> {
    if full() {
        return Cluster::start(test);
    }
    skipped(test, "STRANDLINE_FULL=1 is not set (make test-full)");
    Ok(None)
}

#[test]
fn a_study_has_the_same_results_as_a_local_run() -> Outcome {
    let Some(cluster) = cluster(here!())? else { return Ok(()) };
    let words = ["--json", "study", "freed-or-not", "--short", "--repeat=3"];
    let there = document(&cluster.run(&[&words[..], &["--on=slurm", "--dir=lab"]].concat())?)?;
    let here = document(&cluster.run(&words)?)?;
    let verdicts = |document: &Value| -> Vec<Value> {
        document["claims"].as_array().into_iter().flatten().map(|claim| claim["verdict"].clone()).collect()
    };
    assert_eq!(verdicts(&there), verdicts(&here));
    assert!(!verdicts(&here).is_empty());
    for (one, other) in
        there["cells"].as_array().into_iter().flatten().zip(here["cells"].as_array().ok_or("")?)
    {
        for (name, metric) in one["metrics"].as_object().into_iter().flatten() {
            let medians = [metric, &other["metrics"][name]].map(|metric| metric["median"].as_f64());
            if let [Some(a), Some(b)] = medians.filter_bytes(name) {
                assert!(
                    (a - b).abs() <= b.abs() * 0.02 + 65_536.0,
                    "{name}: {a} on the cluster, {b} locally"
                );
            }
        }
    }
    let round: Value = serde_json::from_str(&first_round(&cluster)?)?;
    assert!(round["environment"]["kernel"].is_string() && round["node"]["kind"].is_string(), "{round}");
    Ok(())
}

/// Filters medians to metrics in bytes of memory.
trait FilterBytes {
    fn filter_bytes(self, name: &str) -> Self;
}

impl FilterBytes for [Option<f64>; 2] {
    fn filter_bytes(self, name: &str) -> Self {
        if name.contains("seconds") || name.contains("faults") { [None, None] } else { self }
    }
}

fn first_round(cluster: &Cluster) -> Result<String> {
    let entries = std::fs::read_dir(cluster.lab.path("lab/slurm/rounds"))?.flatten();
    let path =
        entries.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "json"));
    Ok(std::fs::read_to_string(path.ok_or("no round")?)?)
}

/// A comparison whose commands note in `ran` that they ran, and wait for the file `go`. They name
/// `go` by a path that is not a file before the shell expands it: files named in a command are part
/// of the lab's identity.
fn logging_comparison(cluster: &Cluster) -> Vec<String> {
    let ran = cluster.lab.path("ran");
    let line = |name: &str| {
        format!("sh -c 'echo {name} >> {ran}; until test -e $(dirname {ran})/go; do sleep 0.05; done'")
    };
    [&["--json", "compare", "--on=slurm", "--dir=lab", "--warm-up=0", "--repeat=3"][..]]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .chain([line("a"), line("b")])
        .collect()
}

#[test]
fn a_killed_submitter_loses_nothing() -> Outcome {
    let Some(cluster) = cluster(here!())? else { return Ok(()) };
    let words = logging_comparison(&cluster);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut started = cluster.begin(&words)?;
    until_true("a run", || !cluster.lab.text("ran").is_empty())?;
    signal(started.pid(), 9);
    started.child.wait()?;
    std::fs::write(cluster.lab.path("go"), "")?;
    assert_eq!(document(&cluster.run(&words)?)?["runs"], 3);
    assert_eq!(cluster.lab.text("ran").lines().count(), 6, "nothing was run twice");
    Ok(())
}

#[test]
fn cancelled_or_requeued_tasks_are_rerun_or_reported() -> Outcome {
    let Some(cluster) = cluster(here!())? else {
        return Ok(());
    };
    let words = logging_comparison(&cluster);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let started = cluster.begin(&words)?;
    until_true("a run", || !cluster.lab.text("ran").is_empty())?;
    // First the lab must have read from squeue that the other tasks wait.
    cluster.until_looked()?;
    cluster.ask(&["scontrol", "requeue", "1_0"])?;
    cluster.ask(&["scancel", "1_2"])?;
    until("the second task to run", || {
        Ok(cluster.queue()?.contains(&"1_1 RUNNING".to_owned()).then_some(()))
    })?;
    // First the lab must have read from squeue that the task runs.
    cluster.until_looked()?;
    cluster.ask(&["scancel", "1_1"])?;
    until("the end of the second task", || {
        let has_ended = !cluster.queue()?.iter().any(|line| line.starts_with("1_1 "));
        Ok(has_ended.then_some(()))
    })?;
    std::fs::write(cluster.lab.path("go"), "")?;
    // Slurm delays a requeued task by two minutes unless its start time is set.
    until("the first task to run again", || {
        cluster.ask(&["scontrol", "update", "JobId=1_0", "StartTime=now"])?;
        let queue = cluster.queue()?;
        Ok((queue.is_empty() || queue.iter().any(|line| line == "1_0 RUNNING")).then_some(()))
    })?;
    let document = document(&started.finish()?)?;
    contains_all(&caveat(&document, "rounds_lost"), &["round 2: task 1_1", "was cancelled"])?;
    contains_all(&caveat(&document, "rounds_again"), &["round 3: task 1_2", "was taken out of the queue"])?;
    let samples = document["metrics"]["wall_seconds"]["a"]["samples"].as_array().map(Vec::len);
    assert_eq!(samples, Some(2), "{document}");
    let entries = std::fs::read_dir(cluster.lab.path("lab/slurm/rounds"))?.flatten();
    let requeued = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with("-0.json"));
    let text =
        requeued.map(|entry| std::fs::read_to_string(entry.path())).collect::<std::io::Result<String>>()?;
    assert_eq!(serde_json::from_str::<Value>(&text)?["restarts"], 1);
    Ok(())
}

#[test]
fn a_trial_and_a_squeeze_run_on_a_real_node() -> Outcome {
    let Some(cluster) = cluster(here!())? else { return Ok(()) };
    let python = ["--only=arena_max_2", "--repeat=2", "--pairs=0", "--", "python3", "-c", "print(1)"];
    let tried =
        document(&cluster.run(&[&["--json", "try", "--on=slurm", "--dir=lab"], &python[..]].concat())?)?;
    assert_eq!(tried["runs"], 2);
    let round: Value = serde_json::from_str(&first_round(&cluster)?)?;
    assert_eq!(round["runs"][0]["allocators"][0], "glibc", "{round}");
    let serving =
        ["--ready=seconds=0.2", "--settle=0", "--only=arena_max_2", "--repeat=2", "--", "sleep", "30"];
    let served =
        document(&cluster.run(&[&["--json", "try", "--on=slurm", "--dir=serve"], &serving[..]].concat())?)?;
    assert_eq!((&served["mode"], &served["runs"]), (&"server".into(), &2.into()));
    let words = ["--kind=address_space", "--repeat=1", "--rounds=0", "--resolution=1MiB", "--", "true"];
    let squeezed = document(
        &cluster.run(&[&["--json", "squeeze", "--on=slurm", "--dir=squeeze"], &words[..]].concat())?,
    )?;
    assert!(squeezed["smallest_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{squeezed}");
    assert_eq!(squeezed["environment"]["nodes"].as_array().map(Vec::len), Some(1), "{squeezed}");
    Ok(())
}

#[test]
fn a_killed_task_leaves_no_process_and_is_run_again() -> Outcome {
    let Some(cluster) = cluster(here!())? else {
        return Ok(());
    };
    let sleep = format!("sh -c 'echo x >> {}; sleep $(wc -l < {0})'", cluster.lab.path("ran"));
    let long = format!("sh -c '[ -e {0} ] || exec sleep {1}'", cluster.lab.path("killed"), cluster.lab.token);
    let words = ["--json", "compare", "--on=slurm", "--dir=lab", "--warm-up=0", "--repeat=1", &long, &sleep];
    let started = cluster.begin(&words)?;
    let runs = || cluster.lab.running().iter().any(|line| line.starts_with("sleep"));
    until("the run", || Ok(runs().then_some(())))?;
    std::fs::write(cluster.lab.path("killed"), "")?;
    let folder = cluster.lab.path("lab");
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&format!("lab-round --folder {folder}")) && !line.contains("sh -c") {
            signal(entry.file_name().to_string_lossy().parse()?, 9);
        }
    }
    until("the end of the killed task", || Ok((!runs()).then_some(())))?;
    let document = document(&started.finish()?)?;
    contains_all(&caveat(&document, "rounds_again"), &["round 1: task 1_0", "it was run again"])
}

#[test]
fn a_signal_ends_the_commands_on_the_node() -> Outcome {
    let Some(cluster) = cluster(here!())? else { return Ok(()) };
    let sleep = format!("sleep {}", cluster.lab.token);
    let words = ["compare", "--on=slurm", "--dir=lab", "--repeat=3", sleep.as_str(), "true"];
    let started = cluster.begin(&words)?;
    until(
        "a run",
        || Ok((cluster.lab.running().iter().any(|line| line.starts_with("sleep"))).then_some(())),
    )?;
    signal(started.pid(), 2);
    let ended = started.finish()?;
    assert_eq!(ended.how(), 1002, "{}", ended.complaint());
    until("the end of the commands on the node", || {
        let runs = cluster.lab.running().iter().any(|line| line.starts_with("sleep"));
        Ok((!runs && cluster.queue()?.is_empty()).then_some(()))
    })
}
