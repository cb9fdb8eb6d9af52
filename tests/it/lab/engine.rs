//! The engine of the lab with hostile commands: whatever they do, and whenever the lab is killed,
//! no process keeps running and no finished run is repeated.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;

use serde_json::Value;

use crate::support::lab::{Lab, complains, subject};
use crate::support::recording::{Ended, children, command, finish, has, is_root, list, signal, until};
use crate::support::waiting::until_true;
use crate::support::{Outcome, Result, here};

/// Whether a document has a caveat with this code.
fn has_caveat(document: &Value, code: &str) -> bool {
    list(document, "caveats").iter().any(|caveat| caveat["code"] == code)
}

#[test]
fn hanging_commands_are_ended_whatever_signals_they_ignore() -> Outcome {
    let lab = Lab::new()?;
    let token = &lab.token;
    let hang = [
        format!("sleep {token}"),
        format!("sh -c 'trap \"\" TERM INT HUP; sleep {token}; sleep {token}'"),
        format!("sh -c 'kill -STOP $$; sleep {token}'"),
        format!("sh -c 'sleep {token} & sleep {token} | sleep {token}'"),
    ];
    for command in &hang {
        // Both hang: on a busy machine any command may exceed so short a timeout. With this seed A
        // runs first.
        let ended =
            lab.run(&["compare", "--seed", "1", "--repeat", "1", "--timeout", "200ms", command, command])?;
        complains(&ended, 3, &["A: ", "timeout"])?;
        assert_eq!(lab.running(), [""; 0], "{command}");
    }
    let ignored = ["compare", "--ignore-failure", "--warm-up", "0", "--repeat", "1", "--timeout", "200ms"];
    let found = lab.document(&[&ignored[..], &[&hang[0], &hang[0]]].concat())?;
    let failed = list(&found, "caveats").iter().filter(|caveat| caveat["code"] == "failed_runs");
    assert_eq!(failed.count(), 2, "{}", found["caveats"]);
    Ok(())
}

#[test]
fn daemons_are_ended_with_the_run_that_left_them() -> Outcome {
    let lab = Lab::new()?;
    let token = &lab.token;
    let leave = [
        format!("sh -c 'setsid sleep {token} & exit 0'"),
        format!("sh -c '(sleep {token} &) ; exit 0'"),
        format!("{} daemon {token}", subject()?),
        format!("sh -c 'for i in 1 2 3 4 5 6 7 8; do setsid nohup sleep {token} & done; exit 0'"),
    ];
    for command in &leave {
        let found = lab.document(&["compare", "--repeat", "2", command, "true"])?;
        assert!(has_caveat(&found, "left_behind"), "{command}: {}", found["caveats"]);
        assert_eq!(lab.running(), [""; 0], "{command}");
    }
    Ok(())
}

#[test]
fn commands_have_no_input_and_may_remove_their_folder() -> Outcome {
    let lab = Lab::new()?;
    let words = ["compare", "--repeat", "2", "sh -c 'test -z \"$(cat)\"'", "cat"];
    let ended = finish(lab.command(&words), b"not for them\n")?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    let removed = lab.folder.0.join("removed");
    std::fs::create_dir(&removed)?;
    let remove = format!("rm -rf {}", removed.display());
    let mut command = lab.command(&["compare", "--repeat", "3", &remove, "true"]);
    command.current_dir(&removed);
    let ended = finish(command, b"")?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    Ok(())
}

#[test]
fn the_end_of_long_output_is_kept() -> Outcome {
    let lab = Lab::new()?;
    let writes = "sh -c 'head -c 100000000 /dev/zero; echo the end; echo so it is >&2'";
    let kept = lab.path("kept");
    let words = ["compare", "--repeat", "1", "--warm-up", "0", "--dir", &kept, writes, "true"];
    assert_eq!(lab.run(&words)?.how(), 0);
    let cells: Vec<_> = std::fs::read_dir(lab.folder.0.join("kept/cells"))?.flatten().collect();
    let outputs: Vec<_> =
        cells.iter().map(|cell| cell.path().join("stdout")).filter(|path| path.exists()).collect();
    assert_eq!(outputs.len(), 1, "a run without output has no file");
    let output = std::fs::read(&outputs[0])?;
    assert!(output.len() <= 16 << 20 && output.ends_with(b"the end\n"), "{} bytes", output.len());
    let bytes: u64 = finish(command(&["du", "-s", "-B1", &kept]), b"")?
        .text()
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .ok_or("no figure")?;
    assert!(bytes < 24 << 20, "{bytes} bytes are left in {kept}");
    Ok(())
}

/// Number of the first run that waits for the file `go`.
const WAITING_FROM: usize = 8;

/// Arguments for a lab of 40 runs that each append a line to a file and leave a daemon. Runs from
/// the [`WAITING_FROM`] one on wait for the file `go`, so that the lab does not end before it is
/// interrupted. The command names it `$PWD/go`, which the lab does not find as a file: files named
/// in a command are part of the lab's identity.
fn busy(lab: &Lab) -> Vec<String> {
    let wait =
        format!("[ $(wc -l < runs) -lt {WAITING_FROM} ] || until test -e $PWD/go; do sleep 0.01; done");
    let run = |name: &str| {
        format!("sh -c 'echo {name} >> runs; setsid sleep {} & {wait}; : {}'", lab.token, lab.token)
    };
    let words = ["--json", "compare", "--repeat", "20", "--warm-up", "0"].map(str::to_owned);
    [words.to_vec(), vec![run("a"), run("b")]].concat()
}

/// Waits until a busy lab has reached the run that waits for `go`.
fn until_waiting(lab: &Lab) -> Outcome {
    until_true("the run that waits", || lab.text("runs").lines().count() >= WAITING_FROM)
}

/// Starts a busy lab, calls `interrupt` in the middle, and runs the same lab again to its end.
fn interrupted(interrupt: impl Fn(i32)) -> Result<(Lab, Option<i32>, Ended)> {
    let lab = Lab::new()?;
    let words = busy(&lab);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut started = lab.start(&words)?;
    until_waiting(&lab)?;
    interrupt(started.pid());
    let status = until("the end of the lab", || Ok(started.child.try_wait()?))?;
    until("the end of all its processes", || Ok(lab.running().is_empty().then_some(())))?;
    std::fs::write(lab.path("go"), "")?;
    let ended = lab.run(&words)?;
    if ended.how() != 0 {
        return Err(format!("the resumed lab ended with {}: {}", ended.how(), ended.complaint()).into());
    }
    if !ended.complaint().contains("resuming after") {
        return Err(format!("the lab did not resume: {}", ended.complaint()).into());
    }
    let runs = lab.text("runs").lines().count();
    // Only the interrupted run is repeated.
    if runs != 41 {
        return Err(format!("{runs} runs for 40").into());
    }
    if !lab.running().is_empty() {
        return Err(format!("left behind: {:?}", lab.running()).into());
    }
    Ok((lab, status.signal(), ended))
}

#[test]
fn a_killed_lab_leaves_no_process_and_resumes() -> Outcome {
    let (_, by, ended) = interrupted(|pid| signal(pid, 9))?;
    assert_eq!(by, Some(9));
    let found: Value = serde_json::from_slice(&ended.stdout)?;
    assert_eq!(found["runs"], 20);
    Ok(())
}

#[test]
fn an_interrupted_lab_ends_by_the_signal() -> Outcome {
    for number in [2, 15, 1] {
        let (_, by, _) = interrupted(|pid| signal(pid, number))?;
        assert_eq!(by, Some(number));
    }
    Ok(())
}

#[test]
fn a_killed_launcher_is_reported() -> Outcome {
    let lab = Lab::new()?;
    let words = busy(&lab);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let started = lab.start(&words)?;
    until_waiting(&lab)?;
    let launchers = children(started.pid());
    assert_eq!(launchers.len(), 1, "{launchers:?}");
    signal(launchers[0], 9);
    complains(&started.finish()?, 3, &["launcher", "again"])?;
    assert_eq!(lab.running(), [""; 0]);
    Ok(())
}

#[test]
fn a_folder_holds_the_results_of_one_lab() -> Outcome {
    let lab = Lab::new()?;
    let kept = lab.path("kept");
    let compare = |second: &str, more: &[&str]| {
        lab.run(&[&["compare", "--repeat", "2", "--dir", &kept][..], more, &["true", second]].concat())
    };
    assert_eq!(compare("true", &[])?.how(), 0);
    complains(&compare("sh -c true", &[])?, 3, &["another lab", "--fresh"])?;
    assert_eq!(compare("sh -c true", &["--fresh"])?.how(), 0);
    let other = lab.folder.0.join("other");
    std::fs::create_dir(&other)?;
    std::fs::write(other.join("journal.jsonl"), "my own journal\n")?;
    let other = other.display().to_string();
    complains(&lab.run(&["compare", "--dir", &other, "true", "true"])?, 3, &["holds no lab"])?;
    assert_eq!(lab.text("other/journal.jsonl"), "my own journal\n");
    Ok(())
}

#[test]
fn a_second_strandline_cannot_run_the_same_lab() -> Outcome {
    let lab = Lab::new()?;
    let words = ["compare", "--repeat", "1", "true", &format!("sh -c 'echo x >> runs; sleep {}'", lab.token)];
    let started = lab.start(&words)?;
    until("the lab's run", || Ok((!lab.text("runs").is_empty()).then_some(())))?;
    complains(&lab.run(&words)?, 3, &["another strandline is at work"])?;
    // Dropping it kills its process group; the launcher is in another.
    drop(started);
    until("the end of its processes", || Ok(lab.running().is_empty().then_some(())))
}

#[test]
fn parallel_runs_are_all_run_and_leave_no_process() -> Outcome {
    let lab = Lab::new()?;
    let leave = format!("sh -c 'echo x >> runs; setsid sleep {} & exit 0'", lab.token);
    let words = ["compare", "-j", "4", "--repeat", "10", "--warm-up", "0", &leave, &format!("{leave} ")];
    let found = lab.document(&words)?;
    assert_eq!(lab.text("runs").lines().count(), 20);
    assert!(has_caveat(&found, "left_behind"));
    assert_eq!(lab.running(), [""; 0]);
    Ok(())
}

/// A small file system, unmounted on drop.
struct Small(String);

impl Small {
    fn mount(folder: &str, mebibytes: u32) -> Result<Option<Self>> {
        std::fs::create_dir_all(folder)?;
        let size = format!("size={mebibytes}M");
        let mounted =
            finish(command(&["mount", "-t", "tmpfs", "-o", &size, "strandline-test", folder]), b"")?;
        Ok((mounted.how() == 0).then(|| Self(folder.to_owned())))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = finish(command(&["umount", "-l", &self.0]), b"");
    }
}

#[test]
fn a_full_disk_is_reported_with_its_path() -> Outcome {
    let test = here!();
    if !is_root(test) {
        return Ok(());
    }
    let lab = Lab::new()?;
    let Some(small) = Small::mount(&lab.path("small"), 1)? else {
        crate::support::skipped(test, "no tmpfs can be mounted");
        return Ok(());
    };
    let dir = format!("{}/lab", small.0);
    let words =
        ["compare", "--repeat", "30", "--ignore-failure", "--dir", &dir, "head -c 300000 /dev/zero", "true"];
    let ended = lab.run(&words)?;
    complains(&ended, 3, &["No space left"])?;
    assert!(ended.complaint().contains("small/lab"), "{}", ended.complaint());
    // With free space again, the same lab resumes.
    let grown = finish(command(&["mount", "-o", "remount,size=64M", &small.0]), b"")?;
    assert_eq!(grown.how(), 0);
    let ended = lab.run(&words)?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    assert!(ended.complaint().contains("resuming after"), "{}", ended.complaint());
    assert!(
        std::fs::metadata(&dir)?.is_dir() && std::fs::metadata(&dir)?.dev() != std::fs::metadata("/")?.dev()
    );
    Ok(())
}

#[test]
fn endless_output_does_not_fill_the_disk() -> Outcome {
    let test = here!();
    if !is_root(test) || !has(test, "python3") {
        return Ok(());
    }
    let lab = Lab::new()?;
    let Some(small) = Small::mount(&lab.path("small"), 256)? else {
        crate::support::skipped(test, "no tmpfs can be mounted");
        return Ok(());
    };
    // 400 MiB in total: with more than 64 MiB on disk the script waits for the lab to free some.
    let script = "import os, sys, time\nfor _ in range(50):\n    sys.stdout.buffer.write(bytes(8 << 20))\n    while \
                  os.fstat(1).st_blocks * 512 > 64 << 20: time.sleep(0.01)\nprint('the end')\n";
    std::fs::write(lab.path("writes.py"), script)?;
    let dir = format!("{}/lab", small.0);
    let words = ["compare", "--repeat", "1", "--warm-up", "0", "--dir", &dir, "python3 writes.py", "true"];
    let ended = lab.run(&words)?;
    assert_eq!(ended.how(), 0, "{}", ended.complaint());
    Ok(())
}

#[test]
fn many_runs_need_confirmation() -> Outcome {
    let lab = Lab::new()?;
    let ended = lab.run(&["compare", "--repeat", "1000000", "sh -c 'echo x >> runs'", "true"])?;
    complains(&ended, 3, &["2000002 runs", "--yes"])?;
    assert!(lab.text("runs").lines().count() <= 1);
    Ok(())
}
