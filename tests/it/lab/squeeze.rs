//! `squeeze` with programs whose smallest sufficient limit is known from their own peak sizes or
//! from the shell's `ulimit`.

use serde_json::Value;

use crate::support::lab::{HANG_GUARD, Lab, complains, subject};
use crate::support::recording::{command, finish, has, is_root, list, number, signal, until};
use crate::support::waiting::until_true;
use crate::support::{Outcome, Result, check_no_control_characters, here, skipped};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// A field of the subject's own memory figures, printed once it has allocated everything.
fn own_figure(words: &[&str], field: &str) -> Result<u64> {
    let figures: Value = serde_json::from_slice(&finish(command(words), b"")?.stdout)?;
    number(&figures, field)
}

/// The smallest sufficient limit and the largest that fails.
fn edge(found: &Value) -> Result<(u64, u64)> {
    Ok((number(found, "smallest_bytes")?, number(found, "largest_failing_bytes")?))
}

#[test]
fn an_edge_is_at_the_programs_own_peak_size() -> Outcome {
    let lab = Lab::new()?;
    let words = [subject()?, "need".into(), "50".into(), "exit".into()];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for (kind, field) in [("address_space", "VmPeak"), ("data", "VmData")] {
        let known = own_figure(&words, field)?;
        let flags = ["squeeze", "--kind", kind, "--resolution", "4KiB", "--rounds", "2", "--"];
        let found = lab.document(&[&flags[..], &words].concat())?;
        let (smallest, failing) = edge(&found)?;
        assert_eq!(smallest - failing, PAGE, "{kind}");
        assert!(smallest.abs_diff(known) <= 4 * PAGE, "{kind}: {smallest}, its own peak is {known}");
        assert_eq!((found["kind"].as_str(), found["band"].is_null()), (Some(kind), true));
        let failure = &found["failure"];
        assert_eq!((&failure["status"], &failure["signal"]), (&Value::from(3), &Value::Null));
        let tail = failure["stderr_tail"].as_str().ok_or("no tail")?;
        assert!(tail.contains("lab: out of memory"), "{tail}");
        check_no_control_characters(tail)?;
        let levels = list(&found, "slowdown_near_limit");
        assert_eq!(levels.len(), 4);
        assert_eq!(number(&levels[0], "limit_bytes")?, smallest);
        assert!(levels.iter().all(|level| level["wall_seconds"]["median"].as_f64().is_some()));
        let trials = list(&found, "trials");
        // The last 10 trials, 2 rounds of 5 runs, are not part of the search.
        assert!(trials.len() <= 40, "{} trials", trials.len());
        let of = |limit: u64| trials.iter().filter(move |trial| trial["limit_bytes"] == limit);
        assert!(of(smallest).count() >= 3 && of(smallest).all(|trial| trial["failure"].is_null()));
        assert!(of(failing).count() >= 3 && of(failing).all(|trial| !trial["failure"].is_null()));
    }
    assert!(
        !lab.cache().join("strandline/lab").read_dir()?.any(|_| true),
        "a lab that is done leaves nothing"
    );
    Ok(())
}

#[test]
fn limits_found_for_interpreters_agree_with_ulimit() -> Outcome {
    let test = here!();
    let programs = [("python3", ["-c", "x = [0] * 3_000_000"]), ("perl", ["-e", "@a = (1 .. 400_000)"])];
    // Address layout, hash order and environment variables change the memory that these programs
    // need.
    let path = format!("PATH={}", std::env::var("PATH").unwrap_or_default());
    let alike = ["setarch", "-R", "env", "-i", &path, "PYTHONHASHSEED=0", "PERL_HASH_SEED=0"];
    if !has(test, "setarch") || finish(command(&["setarch", "-R", "true"]), b"")?.how() != 0 {
        skipped(test, "addresses cannot be kept the same here (setarch -R)");
        return Ok(());
    }
    for (program, arguments) in programs {
        if !has(test, program) {
            continue;
        }
        let lab = Lab::new()?;
        let words = [&alike[..], &[program], &arguments].concat();
        for (kind, flag) in [("address_space", "-v"), ("data", "-d")] {
            let flags = ["squeeze", "--kind", kind, "--rounds", "0", "--"];
            let found = lab.document(&[&flags[..], &words].concat())?;
            let (smallest, failing) = edge(&found)?;
            let under = |limit: u64| -> Result<i32> {
                let script = format!("ulimit {flag} {} && exec \"$@\"", limit / 1024);
                let mut shell = command(&[&["sh", "-c", &script, "sh"][..], &words].concat());
                shell.current_dir(&lab.folder.0);
                Ok(finish(shell, b"")?.how())
            };
            assert_eq!(under(smallest)?, 0, "{program} under {kind} of {smallest}");
            assert_eq!(under(failing)?, 1, "{program} under {kind} of {failing}");
            let words = found["failure"]["words"].as_str().ok_or("no words")?;
            assert_eq!(words, "it reported no memory and exited with status 1");
        }
    }
    Ok(())
}

#[test]
fn a_program_that_hangs_without_memory_is_ended() -> Outcome {
    let lab = Lab::new()?;
    let flags = ["squeeze", "--kind", "data", "--timeout", HANG_GUARD, "--repeat", "1", "--rounds", "0"];
    // Each run that hangs takes the whole timeout. Below a data limit of 40,000 KiB the run fails
    // at once instead, so that only one run hangs.
    let script = format!(
        "[ $(ulimit -d) != unlimited ] && [ $(ulimit -d) -lt 40000 ] && exec {0} need 50 exit; exec {0} need 50 hang {1}",
        subject()?,
        lab.token
    );
    let found = lab.document(&[&flags[..], &["--resolution", "25%", "--", "sh", "-c", &script]].concat())?;
    assert_eq!(found["failure"]["timed_out"], true);
    let words = found["failure"]["words"].as_str().ok_or("no words")?;
    assert!(words.starts_with("hung: did not end within 30 s"), "{words}");
    assert!(edge(&found)?.0 > 50 * MIB);
    assert_eq!(lab.running(), [""; 0]);
    Ok(())
}

#[test]
fn a_run_that_stalls_once_does_not_count() -> Outcome {
    let lab = Lab::new()?;
    let script = format!(
        "echo >> turns; [ $(wc -l < turns) = 3 ] && exec sleep 100000; exec {} need 20 exit",
        subject()?
    );
    let flags = ["squeeze", "--kind", "data", "--repeat", "1", "--rounds", "0"];
    let found = lab.document(&[&flags[..], &["--resolution", "25%", "--", "sh", "-c", &script]].concat())?;
    let trials = found["trials"].as_array().ok_or("no trials")?;
    let repeated: Vec<&Value> = trials.iter().filter(|trial| trial["repeats_timeout"] == true).collect();
    assert_eq!(repeated.len(), 1, "{trials:#?}");
    assert!(trials.iter().all(|trial| trial["failure"]["timed_out"] != true), "{trials:#?}");
    assert!(edge(&found)?.0 > 20 * MIB);
    Ok(())
}

#[test]
fn an_edge_that_varies_is_reported_as_a_band() -> Outcome {
    let lab = Lab::new()?;
    let flags = ["squeeze", "--kind", "data", "--rounds", "2", "--"];
    let words = [&subject()?, "alternate", &lab.path("turn"), "40", "8"];
    let found = lab.document(&[&flags[..], &words].concat())?;
    let (smallest, failing) = edge(&found)?;
    assert!(failing < smallest && (48 * MIB..50 * MIB).contains(&smallest), "{failing} {smallest}");
    let (low, high) = (number(&found["band"], "low_bytes")?, number(&found["band"], "high_bytes")?);
    assert_eq!(high, smallest);
    assert!((39 * MIB..=42 * MIB).contains(&low), "{low}");
    assert!(number(&found["band"], "failed")? > 0);
    let shown = lab.run(&[&flags[..], &words].concat())?;
    assert!(shown.text().contains("flaky"), "{}", shown.text());
    Ok(())
}

#[test]
fn a_success_command_judges_runs() -> Outcome {
    let lab = Lab::new()?;
    // The subject exits with 0 in both cases, and prints its figures only if it got its memory.
    let words = ["--", &subject()?, "need", "30", "succeed"];
    let flags = ["squeeze", "--kind", "data", "--rounds", "1", "--success"];
    let judge = "echo \"$STRANDLINE_STATUS\" >> seen; grep -q VmPeak";
    let found = lab.document(&[&flags[..], &[judge], &words].concat())?;
    let (smallest, failing) = edge(&found)?;
    assert!(smallest > 30 * MIB && failing > 29 * MIB, "{smallest} {failing}");
    assert_eq!((&found["failure"]["status"], &found["failure"]["refused_by_status"]), (&0.into(), &1.into()));
    let seen = lab.text("seen");
    assert_eq!(seen.lines().count(), list(&found, "trials").len());
    assert!(seen.lines().all(|line| line == "0"), "{seen}");
    // Without `--success` any limit passes, down to where the program cannot be loaded.
    let found = lab.document(&[&flags[..5], &words].concat())?;
    assert!(number(&found, "smallest_bytes")? < MIB);
    Ok(())
}

#[test]
fn failing_without_a_limit_is_an_error_of_one_line() -> Outcome {
    let lab = Lab::new()?;
    for kind in ["address_space", "data", "cgroup"] {
        if kind == "cgroup" && !is_root(here!()) {
            continue;
        }
        let squeeze = |words: &[&str]| lab.run(&[&["squeeze", "--kind", kind, "--"][..], words].concat());
        let ended = squeeze(&["sh", "-c", "echo no such option >&2; exit 5"])?;
        complains(&ended, 3, &["without a limit", "status 5", "no such option"])?;
        complains(&squeeze(&["no-such-program"])?, 3, &["no-such-program", "not found"])?;
        complains(&squeeze(&["/etc/passwd"])?, 3, &["/etc/passwd", "cannot be run"])?;
    }
    complains(
        &lab.run(&["squeeze", "--kind", "stack", "--", "true"])?,
        2,
        &["address_space", "data", "cgroup"],
    )?;
    complains(&lab.run(&["squeeze", "--resolution", "0%", "--", "true"])?, 2, &["--resolution"])?;
    Ok(())
}

#[test]
fn a_control_group_is_squeezed_and_removed() -> Outcome {
    let test = here!();
    if !is_root(test) {
        return Ok(());
    }
    let lab = Lab::new()?;
    let flags = ["--json", "squeeze", "--kind", "cgroup", "--rounds", "2", "--"];
    let started = lab.start(&[&flags[..], &[&subject()?, "need", "40", "exit"]].concat())?;
    let group = format!("strandline-{}", started.pid());
    let ended = started.finish()?;
    if ended.how() == 3 && ended.complaint().contains("cannot be set here") {
        skipped(test, ended.complaint().trim_end());
        return Ok(());
    }
    let found: Value = serde_json::from_slice(&ended.stdout)?;
    let (smallest, failing) = edge(&found)?;
    assert!(failing < smallest && smallest > 40 * MIB && smallest < 48 * MIB, "{failing} {smallest}");
    // The group has one process, which the kernel can kill once.
    assert_eq!(
        (&found["failure"]["signal"], &found["failure"]["out_of_memory_kills"]),
        (&9.into(), &1.into())
    );
    assert_eq!(found["failure"]["words"], "killed by the kernel at the limit");
    let left =
        finish(command(&["find", "/sys/fs/cgroup", "-type", "d", "-name", &format!("{group}*")]), b"")?;
    assert_eq!(left.text(), "");
    Ok(())
}

#[test]
fn a_child_that_the_kernel_kills_is_a_failure() -> Outcome {
    let test = here!();
    if !is_root(test) {
        return Ok(());
    }
    let lab = Lab::new()?;
    let careless = format!("{} need 40 exit; exit 0", subject()?);
    let squeeze = |more: &[&str]| {
        let flags = ["--json", "squeeze", "--kind", "cgroup", "--rounds", "0"];
        lab.run(&[&flags[..], more, &["--", "sh", "-c", &careless]].concat())
    };
    let ended = squeeze(&[])?;
    if ended.how() == 3 && ended.complaint().contains("cannot be set here") {
        skipped(test, ended.complaint().trim_end());
        return Ok(());
    }
    let found: Value = serde_json::from_slice(&ended.stdout)?;
    assert!(edge(&found)?.0 > 40 * MIB, "{}", found["smallest_bytes"]);
    let failure = &found["failure"];
    // Under the largest failing limit the kernel kills the child, which has nearly all the memory;
    // the rest suffices for the shell.
    assert_eq!((&failure["status"], &failure["out_of_memory_kills"]), (&0.into(), &1.into()));
    // `--success` accepts runs that survive the kill.
    let found: Value =
        serde_json::from_slice(&squeeze(&["--success", "test $STRANDLINE_STATUS = 0"])?.stdout)?;
    assert!(number(&found, "smallest_bytes")? < 8 * MIB, "{}", found["smallest_bytes"]);
    Ok(())
}

#[test]
fn without_permission_for_groups_another_limit_is_advised() -> Outcome {
    let test = here!();
    if !is_root(test) || !has(test, "setpriv") {
        return Ok(());
    }
    let lab = Lab::new()?;
    let mut as_nobody = command(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    as_nobody.arg(crate::support::recording::program()).args(["squeeze", "--", "true"]).current_dir("/");
    as_nobody.env("XDG_CACHE_HOME", lab.cache());
    complains(&finish(as_nobody, b"")?, 3, &["--kind address_space", "--kind data"])
}

#[test]
fn a_killed_squeeze_resumes() -> Outcome {
    let lab = Lab::new()?;
    // Each run adds a line to `runs`; from the fifth on they wait for the file `go`, so that the
    // squeeze does not end before it is killed. Under such a small limit the shell cannot start a
    // program, so it counts with builtins. A squeeze does not take `$PWD/go` for a file of the
    // command.
    let wait = "n=0; while read x; do n=$((n + 1)); done < runs; [ $n -lt 5 ] || until test -e $PWD/go; do sleep 0.01; done";
    let script = format!("echo x >> runs; {wait}; : {}; exec {} need 30 exit", lab.token, subject()?);
    let words = ["squeeze", "--kind", "data", "--rounds", "1", "--json", "--", "sh", "-c", &script];
    for number in [9, 2] {
        for name in ["runs", "go"] {
            // At first neither file exists.
            let _ = std::fs::remove_file(lab.path(name));
        }
        let mut started = lab.start(&words)?;
        until_true("some runs", || lab.text("runs").lines().count() >= 5)?;
        signal(started.pid(), number);
        let status = until("the end of the squeeze", || Ok(started.child.try_wait()?))?;
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(number));
        until("the end of its processes", || Ok(lab.running().is_empty().then_some(())))?;
        assert_eq!(lab.text("runs").lines().count(), 5);
        std::fs::write(lab.path("go"), "")?;
        let ended = lab.run(&words)?;
        assert!(ended.complaint().contains("resuming after"), "{}", ended.complaint());
        let found: Value = serde_json::from_slice(&ended.stdout)?;
        // Only the interrupted run is repeated.
        let (all, after) = (list(&found, "trials").len(), lab.text("runs").lines().count());
        assert_eq!(after, all + 1, "{after} runs; {all} are needed");
    }
    Ok(())
}
