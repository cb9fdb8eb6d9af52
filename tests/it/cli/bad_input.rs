//! Processes that cannot be read, and heaps built to harm their reader: the result is a clear line
//! or a caveat, never a panic, a hang or unbounded memory.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::recording::{has, is_root};
use crate::support::strandline::{self, Run};
use crate::support::{
    Folder, Outcome, Result, Subject, copy_program, for_each, here, invariants, repetitions, skipped,
};

/// Checks that strandline failed with one line that contains `words`.
fn check_refused(run: &Run, words: &[&str]) -> Outcome {
    if !run.stdout.is_empty() {
        return Err(format!("stdout {:?}: {}", run.stdout, run.summary()).into());
    }
    run.complains(3, words)
}

const MODES: [&str; 12] = [
    "random",
    "words",
    "cycle",
    "huge",
    "zero",
    "misaligned",
    "wild",
    "self",
    "arena",
    "ring",
    "top",
    "secondary",
];

#[test]
fn trapped_heaps_end_in_a_report_or_an_error() -> Outcome {
    let seeds = repetitions(2, 12);
    let cases = MODES.into_iter().flat_map(|mode| (1..=seeds).map(move |seed| (mode, seed.to_string())));
    let has_refused = AtomicBool::new(false);
    for_each(cases, |(mode, seed)| {
        let subject = Subject::start("trap_heap", &[mode, seed])?;
        let run = strandline::run(&["explain", "--json", &subject.pid_text()])?;
        if run.stderr.contains("panicked") || !matches!(run.status, Some(0 | 3)) {
            return Err(run.summary().into());
        }
        if run.status == Some(3) {
            return check_refused(&run, &[]);
        }
        let document: serde_json::Value = serde_json::from_str(&run.stdout)?;
        invariants::check(&document)?;
        let peak = document["cost"]["peak_rss_bytes"].as_u64().unwrap_or(0);
        if peak > 256 << 20 {
            return Err(format!("a heap of a few MiB made strandline {peak} bytes large").into());
        }
        if strandline::caveats(&document).is_empty() {
            return Err("a damaged heap was read without a caveat".into());
        }
        // strandline must make no call in a process with a damaged heap: in most of these modes
        // malloc_trim would abort it or never return.
        let call = ["reclaim", "--remedy", "malloc_trim", "--wait", "1", &subject.pid_text()];
        if strandline::run(&call)?.stderr.contains("its heap is inconsistent") {
            has_refused.store(true, Ordering::Relaxed);
        }
        if !subject.finish()?.success() {
            return Err("reclaim called into a damaged heap and the process died".into());
        }
        Ok(())
    })?;
    // kernels/settings/swap.py requires that this text is missing for a heap in swap.
    assert!(has_refused.into_inner(), "no call was refused for an inconsistent heap");
    Ok(())
}

#[test]
fn a_missing_process_is_refused() -> Outcome {
    check_refused(&strandline::run(&["explain", "4194303"])?, &["4194303"])?;
    check_refused(&strandline::run(&["reclaim", "4194303"])?, &["4194303"])
}

#[test]
fn invalid_process_ids_are_refused() -> Outcome {
    for_each(["0", "-1", "99999999999999999999", "12x", ""], |text| {
        let run = strandline::run(&["explain", "--", text])?;
        match run.status {
            Some(2 | 3) if !run.stderr.contains("panicked") && !run.stderr.is_empty() => Ok(()),
            _ => Err(run.summary().into()),
        }
    })
}

#[test]
fn a_zombie_is_refused() -> Outcome {
    let subject = Subject::start("zombie", &[])?;
    let child = subject.number("child")?.to_string();
    check_refused(&strandline::run(&["explain", &child])?, &[&child, "zombie", &subject.pid_text()])
}

#[test]
fn a_traced_process_is_refused_with_its_tracer() -> Outcome {
    let subject = Subject::start("tracer", &[])?;
    let child = subject.number("child")?.to_string();
    check_refused(&strandline::run(&["explain", &child])?, &[&child, &subject.pid_text(), "tracer"])
}

#[test]
fn a_kernel_thread_is_refused() -> Outcome {
    let is_kernel_thread = std::fs::read("/proc/2/cmdline").is_ok_and(|line| line.is_empty())
        && std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd");
    if !is_kernel_thread {
        skipped(here!(), "process 2 is none here (a pid namespace)");
        return Ok(());
    }
    check_refused(&strandline::run(&["explain", "2"])?, &["kernel thread"])
}

/// Runs `sh -c SCRIPT` with strandline as $0; `$$` is the shell's id, and after exec strandline's
/// own.
fn in_shell(script: &str) -> crate::support::Result<Run> {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_strandline")]);
    strandline::run_command(shell)
}

#[test]
fn strandline_refuses_to_read_itself() -> Outcome {
    check_refused(&in_shell("exec \"$0\" explain $$")?, &["itself"])
}

#[test]
fn strandline_reads_its_parent_shell() -> Outcome {
    let run = in_shell("\"$0\" explain --json $$; exit $?")?;
    if run.status != Some(0) {
        return Err(run.summary().into());
    }
    invariants::check(&serde_json::from_str(&run.stdout)?)
}

#[test]
fn a_process_of_another_user_is_refused() -> Outcome {
    if strandline_sys::host::effective_user() != 0 {
        skipped(here!(), "not root: cannot become another user");
        return Ok(());
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    if mounts.lines().any(|line| line.starts_with("proc /proc ") && line.contains("hidepid=")) {
        skipped(here!(), "/proc is mounted with hidepid: processes of other users are hidden");
        return Ok(());
    }
    let subject = Subject::start("fragmented", &["1000"])?;
    let folder = Folder::new("another-user")?;
    let mut command = Command::new(copy_for_all_users(&folder)?);
    command.args(["explain", &subject.pid_text()]).uid(65534).gid(65534);
    check_refused(&strandline::run_command(command)?, &[&subject.pid_text(), "root"])
}

/// A user who may start no further thread gets one line that says so.
#[test]
fn a_refused_thread_is_named() -> Outcome {
    let test = here!();
    if !is_root(test) || !has(test, "prlimit") {
        return Ok(());
    }
    let mut command = Command::new("sh");
    command.args(["-c", "echo {}; cat"]).uid(65534).gid(65534);
    let subject = Subject::start_command(command)?;
    let folder = Folder::new("no-threads")?;
    let copy = copy_for_all_users(&folder)?;
    for options in [&["explain"][..], &["explain", "--snapshot=always"], &["holders"]] {
        let mut command = Command::new("prlimit");
        command.arg("--nproc=1").arg(&copy).args(options).arg(subject.pid_text()).uid(65534).gid(65534);
        check_refused(&strandline::run_command(command)?, &[&subject.pid_text(), "thread", "RLIMIT_NPROC"])?;
    }
    Ok(())
}

/// Copies strandline into a folder that all users may read, as they may not the build folder.
fn copy_for_all_users(folder: &Folder) -> Result<PathBuf> {
    let copy = folder.0.join("strandline");
    copy_program(env!("CARGO_BIN_EXE_strandline"), &copy)?;
    for path in [&folder.0, &copy] {
        set_permissions(path, Permissions::from_mode(0o755))?;
    }
    Ok(copy)
}
