//! Rights: what strandline's file capabilities do for its user and must not do, and what strandline
//! reports if some are missing.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::support::recording::{has, is_root};
use crate::support::strandline::{Run, run_command};
use crate::support::waiting::until_true;
use crate::support::{Folder, Outcome, Result, Subject, copy_program, for_each, here, invariants, skipped};

/// An ordinary user (`nobody`), and another.
const ORDINARY: u32 = 65534;
const OTHER: u32 = 65533;
/// Content of files that the user may not read; must not appear in any output.
const SECRET: &str = "top_secret_value";

/// A copy of strandline with file capabilities. `None`, reported, if they cannot be set or have no
/// effect.
struct Marked {
    folder: Folder,
    program: PathBuf,
}

impl Marked {
    fn new(test: &str, capabilities: &str) -> Result<Option<Self>> {
        if !is_root(test) || !has(test, "setcap") {
            return Ok(None);
        }
        let folder = Folder::new("rights")?;
        fs::set_permissions(&folder.0, Permissions::from_mode(0o755))?;
        let program = folder.0.join("strandline");
        copy_program(env!("CARGO_BIN_EXE_strandline"), &program)?;
        fs::set_permissions(&program, Permissions::from_mode(0o755))?;
        let mut command = Command::new("setcap");
        command.arg(format!("{capabilities}+ep")).arg(&program);
        let done = run_command(command)?;
        if done.status != Some(0) {
            skipped(test, &format!("setcap: {}", done.stderr.trim()));
            return Ok(None);
        }
        let marked = Self { folder, program };
        // A file system may be mounted nosuid, and the bounding set of this process may be reduced.
        let found = marked.run(&["doctor", "--json"]).and_then(|run| Ok(line(&run, "capabilities")?.0));
        if found.as_deref().is_ok_and(|status| status == "ok") {
            return Ok(Some(marked));
        }
        skipped(test, &format!("the kernel ignores capabilities of files here: {found:?}"));
        Ok(None)
    }

    fn run(&self, arguments: &[&str]) -> Result<Run> {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(&self.folder.0).uid(ORDINARY).gid(ORDINARY);
        command.env("STRANDLINE_STUDIES", self.folder.0.join("studies"));
        run_command(command)
    }

    /// Creates a file that only root may read.
    fn secret(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.0.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, format!("{SECRET} = {SECRET}\n"))?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok(path)
    }
}

/// Status, finding and fix of a check of doctor.
fn line(run: &Run, id: &str) -> Result<(String, String, String)> {
    let document = run.document()?;
    let checks = document["checks"].as_array().ok_or("no checks")?;
    let check = checks.iter().find(|check| check["id"] == id).ok_or("no such check")?;
    let text = |name: &str| check[name].as_str().unwrap_or_default().to_owned();
    Ok((text("status"), text("found"), text("fix")))
}

#[test]
fn file_capabilities_open_no_file_that_the_user_names() -> Outcome {
    let test = here!();
    // More than the documents recommend: with these strandline could also write the user's files.
    let all = "cap_sys_ptrace,cap_dac_read_search,cap_dac_override,cap_fowner";
    let Some(marked) = Marked::new(test, all)? else { return Ok(()) };
    for name in ["secret", "study/study.toml", "studies/one/study.toml"] {
        marked.secret(name)?;
    }
    let subject = Subject::idle()?;
    let pid = subject.pid_text();
    let reading: [&[&str]; 5] = [
        &["try", "--catalogue", "secret", "--", "true"],
        &["report", "secret"],
        &["report", "/proc/1/environ"],
        &["holders", "--since", "secret", &pid],
        &["study", "study/study.toml"],
    ];
    for_each(reading, |words| {
        let run = marked.run(words)?;
        if run.status == Some(0) || (run.stdout.clone() + &run.stderr).contains(SECRET) {
            return Err(format!("{:?} {}", run.stdout, run.summary()).into());
        }
        if words[0] == "study" { Ok(()) } else { run.complains(3, &["Permission denied"]) }
    })?;
    // A study found by an environment variable, and one by name.
    for words in [&["study"][..], &["study", "one"]] {
        let run = marked.run(words)?;
        assert!(!(run.stdout.clone() + &run.stderr).contains(SECRET), "{:?} {}", run.stdout, run.summary());
    }
    let writing: [&[&str]; 5] = [
        &["run", "-o", "secret", "--", "true"],
        &["run", "-o", "new", "--", "true"],
        &["record", "-o", "new", &pid],
        &["man", "new"],
        &["export", "--textfile", ".", "--pid", &pid],
    ];
    for_each(writing, |words| {
        let run = marked.run(words)?;
        if run.status == Some(0) || !run.stderr.contains("Permission denied") {
            return Err(run.summary().into());
        }
        Ok(())
    })?;
    assert_eq!(fs::read_to_string(marked.folder.0.join("secret"))?, format!("{SECRET} = {SECRET}\n"));
    assert!(!marked.folder.0.join("new").exists());
    Ok(())
}

#[test]
fn file_capabilities_show_other_users_processes() -> Outcome {
    let test = here!();
    let Some(marked) = Marked::new(test, "cap_sys_ptrace,cap_dac_read_search")? else { return Ok(()) };
    // Processes of root, of another user, and of a user whose program is in a folder of mode
    // 0700.
    let private = marked.folder.0.join("private");
    fs::create_dir(&private)?;
    copy_program("/bin/sleep", private.join("sleeper"))?;
    fs::set_permissions(private.join("sleeper"), Permissions::from_mode(0o755))?;
    std::os::unix::fs::chown(&private, Some(OTHER), Some(OTHER))?;
    fs::set_permissions(&private, Permissions::from_mode(0o700))?;
    let mut sleeper = Command::new(private.join("sleeper"));
    sleeper.arg("1000").uid(OTHER).gid(OTHER);
    let mut sleeper = sleeper.spawn()?;
    let subject = Subject::idle()?;
    let check_both = || -> Outcome {
        // Once it sleeps in nanosleep or clock_nanosleep, its libc is mapped.
        let call = format!("/proc/{}/syscall", sleeper.id());
        let call = || fs::read_to_string(&call).unwrap_or_default();
        until_true("the sleeper", || ["35 ", "230 "].iter().any(|number| call().starts_with(number)))?;
        for pid in [sleeper.id().to_string(), subject.pid_text()] {
            let run = marked.run(&["explain", "--json", "--snapshot=never", &pid])?;
            let document = run.document()?;
            invariants::check(&document)?;
            let known = document["allocators"].as_array().is_some_and(|all| !all.is_empty());
            if run.status != Some(0) || !known {
                return Err(format!("{pid}: {}", run.summary()).into());
            }
        }
        let run = marked.run(&["reclaim", "--remedy", "malloc_trim", "--json", &subject.pid_text()])?;
        run.document().map(drop)
    };
    let result = check_both();
    sleeper.kill()?;
    sleeper.wait()?;
    result
}

#[test]
fn doctor_prints_one_setcap_for_reading_and_names_the_further_capabilities() -> Outcome {
    let test = here!();
    let two = "cap_sys_ptrace,cap_dac_read_search";
    let Some(marked) = Marked::new(test, two)? else { return Ok(()) };
    let mut plain = Command::new(env!("CARGO_BIN_EXE_strandline"));
    plain.args(["doctor", "--json"]).uid(ORDINARY).gid(ORDINARY);
    let plain = run_command(plain)?;
    let fixes = |run: &Run| -> Result<Vec<String>> {
        let document = run.document()?;
        let checks = document["checks"].as_array().ok_or("no checks")?;
        Ok(checks.iter().filter_map(|check| Some(check["fix"].as_str()?.to_owned())).collect())
    };
    let fixes_of_plain = fixes(&plain)?;
    let commands =
        fixes_of_plain.iter().filter_map(|fix| fix.split('`').find(|part| part.starts_with("chgrp ")));
    let commands: BTreeSet<&str> = commands.collect();
    // It can be pasted.
    let path = fs::canonicalize(env!("CARGO_BIN_EXE_strandline"))?.display().to_string();
    let command = format!("chgrp GROUP {path} && chmod 750 {path} && setcap {two}+ep {path}");
    assert_eq!(commands.into_iter().collect::<Vec<_>>(), [command]);
    let (_, _, fix) = line(&plain, "capabilities")?;
    for further in ["cap_net_admin", "cap_sys_nice", "cap_checkpoint_restore"] {
        assert!(fix.contains(further), "{further}: {fix}");
    }
    // Who has the two is not told to set them again.
    let run = marked.run(&["doctor", "--json"])?;
    let repeated: Vec<String> = fixes(&run)?.into_iter().filter(|fix| fix.contains(two)).collect();
    assert!(repeated.is_empty(), "{repeated:?}");
    Ok(())
}

#[test]
fn a_setuid_strandline_refuses_to_run() -> Outcome {
    let Some(marked) = Marked::new(here!(), "cap_sys_ptrace,cap_dac_read_search")? else {
        return Ok(());
    };
    fs::set_permissions(&marked.program, Permissions::from_mode(0o4755))?;
    marked.run(&["doctor"])?.complains(3, &["setuid", "chmod u-s"])
}

/// Runs strandline as root with a bounding set reduced by `setpriv`, as in a container.
fn bounded(without: &str, arguments: &[&str]) -> Result<Run> {
    let mut command = Command::new("setpriv");
    command.arg(format!("--bounding-set={without}")).arg(format!("--inh-caps={without}"));
    command.arg(env!("CARGO_BIN_EXE_strandline")).args(arguments);
    run_command(command)
}

/// With the capabilities to trace and read, but not to signal (CAP_KILL), as the documented setcap
/// has them.
#[test]
fn a_snapshot_of_another_user_is_ended_without_the_right_to_signal_it() -> Outcome {
    let test = here!();
    if !is_root(test) || !has(test, "setpriv") || !has(test, "perl") {
        return Ok(());
    }
    let mut command = Command::new("perl");
    command.args(["-e", "my @kept = map { 'x' x 1000 } 1 .. 20_000; sleep 1 while 1"]).uid(OTHER).gid(OTHER);
    let mut other = command.spawn()?;
    let pid = other.id();
    let check = || -> Outcome {
        let is_large =
            || fs::read_to_string(format!("/proc/{pid}/statm")).is_ok_and(|text| resident(&text) > 5000);
        until_true("the values", is_large)?;
        let run = bounded("-kill", &["explain", "--json", "--snapshot=always", &pid.to_string()])?;
        let caveats = run.document()?["caveats"].to_string();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        if caveats.contains("photograph_left") || !children.is_empty() {
            return Err(format!("a child is left: {children:?}, {caveats}").into());
        }
        Ok(())
    };
    let result = check();
    other.kill()?;
    other.wait()?;
    result
}

/// Resident pages, from /proc/PID/statm.
fn resident(statm: &str) -> u64 {
    statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

#[test]
fn root_of_a_container_gets_the_missing_capabilities_in_the_error() -> Outcome {
    let test = here!();
    if !is_root(test) || !has(test, "setpriv") {
        return Ok(());
    }
    let own = Subject::idle()?;
    let mut command = Command::new("sleep");
    command.arg("1000").uid(ORDINARY).gid(ORDINARY);
    let mut other = command.spawn()?;
    let checked = check_own_and_other(&own.pid_text(), &other.id().to_string());
    other.kill()?;
    other.wait()?;
    checked
}

fn check_own_and_other(own: &str, other: &str) -> Outcome {
    const ONE: &str = "start it with --cap-add SYS_PTRACE (Kubernetes: securityContext.capabilities.add)";
    const TWO: &str = "--cap-add SYS_PTRACE --cap-add DAC_READ_SEARCH (Kubernetes";
    let lacks = "this container's root lacks CAP_SYS_PTRACE";
    for (without, pid, words) in [
        ("-sys_ptrace", own, [lacks, ONE]),
        ("-sys_ptrace", other, [lacks, ONE]),
        ("-sys_ptrace,-dac_override,-dac_read_search", own, [lacks, ONE]),
        ("-sys_ptrace,-dac_override,-dac_read_search", other, [lacks, TWO]),
        (
            "-dac_override,-dac_read_search",
            other,
            ["root lacks CAP_DAC_READ_SEARCH", "--cap-add DAC_READ_SEARCH"],
        ),
    ] {
        let run = bounded(without, &["explain", pid])?;
        run.complains(3, &words)?;
        assert!(!run.stderr.contains("run as root") && !run.stderr.contains("setcap"), "{}", run.stderr);
    }
    let run = bounded("-sys_ptrace", &["doctor", "--json"])?;
    for id in ["capabilities", "rights"] {
        let (status, found, fix) = line(&run, id)?;
        assert_eq!(status, "limited", "{id}");
        assert!(found.contains(lacks) && fix == ONE, "{id}: {found}: {fix}");
    }
    let run = bounded("-dac_override,-dac_read_search", &["explain", "--json", own])?;
    invariants::check(&run.document()?)
}
