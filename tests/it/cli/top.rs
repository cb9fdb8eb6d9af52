//! `top`: what stands on the screen, what keys do, and that it ends cleanly, however it ends.

use std::process::Command;
use std::time::Duration;

use crate::support::Subject;
use crate::support::terminal::Terminal;
use crate::support::{Folder, Outcome, Result, strandline};

/// `top` of one process in a terminal.
fn top(arguments: &[&str]) -> Result<Terminal> {
    Terminal::start(strandline::command(&[&["top"], arguments].concat()))
}

/// RSS in kibibytes as the kernel has it.
fn rss_kib(pid: i32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// A process with tens of mebibytes that were freed and kept.
fn subject() -> Result<Subject> {
    Subject::start("fragmented", &[])
}

#[test]
fn the_table_leads_to_a_ledger_and_a_dry_run() -> Outcome {
    let subject = subject()?;
    let pid = subject.pid_text();
    let mut top = top(&["--pid", &pid])?;
    let table = top.shows(&["1 processes", &pid, "▼RSS", "GROWTH/MIN", "q quit"])?;
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    // Nothing was stopped for it: no ledger is there.
    let row = table.lines().find(|line| line.contains(&pid)).ok_or("no row")?.to_owned();
    assert!(row.contains(" - "), "{row}");
    top.press("\r")?;
    let ledger = top.shows(&[&format!("ledger of process {pid}"), "stranded", "Esc back"])?;
    assert!(ledger.contains("RSS"), "{ledger}");
    top.press("\x1b")?;
    // How old it is stands beside what it said.
    let table = top.shows(&["▼RSS", "MiB", "s "])?;
    let row = table.lines().find(|line| line.contains(&pid)).ok_or("no row")?.to_owned();
    assert!(!row.contains(" - "), "{row}");
    top.press("r")?;
    top.shows(&[&format!("dry run of process {pid}"), "predicted"])?;
    top.press("\x1b")?;
    top.shows(&["▼RSS"])?;
    top.press("?")?;
    top.shows(&["Ctrl-Z"])?;
    top.press("qq")?;
    assert_eq!(top.end()?.code(), Some(0));
    assert!(top.is_given_back());
    Ok(())
}

#[test]
fn processes_are_filtered_sorted_and_shown_as_a_tree_or_by_group() -> Outcome {
    let subject = subject()?;
    let pid = subject.pid_text();
    let mut top = top(&["--sort", "pid"])?;
    top.shows(&["▼PID"])?;
    top.press("/")?;
    top.shows(&["filter:"])?;
    top.press(&format!("{pid}\r"))?;
    top.shows(&[&format!("1 processes with “{pid}”"), "q quit"])?;
    top.press("R")?;
    top.shows(&["▲PID"])?;
    top.press(">")?;
    top.shows(&["▲RSS"])?;
    // Its ancestors are there too: this test is one.
    top.press("t")?;
    let own = std::process::id().to_string();
    top.shows(&[&pid, &own])?;
    top.press("\x1bc")?;
    top.shows(&["COUNT", "control groups"])?;
    top.press("\x03")?;
    assert_eq!(top.end()?.code(), Some(0));
    assert!(top.is_given_back());
    Ok(())
}

#[test]
fn a_process_that_may_not_be_looked_at_is_a_line() -> Outcome {
    let mut top = top(&["--interval", "1s", "--name", "^strandline$", "--no-children"])?;
    let own = top.child.id().to_string();
    top.shows(&[&own])?;
    top.press(&format!("/{own}\r"))?;
    top.shows(&["1 processes with"])?;
    top.press("\r")?;
    let screen = top.shows(&["itself"])?;
    assert!(screen.contains("▼RSS"), "{screen}");
    Ok(())
}

#[test]
fn it_ends_with_its_terminal_and_with_a_signal() -> Outcome {
    let pid = std::process::id().to_string();
    // The terminal goes, which it hears of by a signal where it is its own, and by a word where it is not.
    for own in [false, true] {
        let mut command = strandline::command(&["top", "--pid", &pid]);
        if own {
            command = Command::new("setsid");
            command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_strandline"), "top", "--pid", &pid]);
        }
        let mut top = Terminal::start(command)?;
        top.shows(&["▼RSS"])?;
        top.hang_up();
        let status = top.end()?;
        assert!(own || status.code() == Some(0), "{status}");
    }
    let mut top = top(&["--pid", &pid])?;
    top.shows(&["▼RSS"])?;
    let ended = Command::new("kill").args(["-TERM", &top.child.id().to_string()]).status()?;
    assert!(ended.success());
    assert_eq!(top.end()?.code(), Some(0));
    assert!(top.is_given_back());
    Ok(())
}

#[test]
fn once_is_a_table_of_what_the_kernel_counts() -> Outcome {
    let subject = subject()?;
    let run = strandline::run(&["top", "--once", "--pid", &subject.pid_text()])?;
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", run.stdout);
    let words: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(words[0], subject.pid_text());
    let shown: f64 = words[1].parse()?;
    let rss = rss_kib(subject.pid())? as f64 / 1024.0;
    assert!(words[2] == "MiB" && (shown - rss).abs() <= rss / 50.0, "{shown} shown, {rss} MiB");
    // It stood still, and that is known.
    assert_eq!(words[5], "0", "{}", lines[2]);
    Ok(())
}

#[test]
fn names_of_any_bytes_do_no_harm() -> Outcome {
    let folder = Folder::new("top-names")?;
    let program = folder.0.join("a\x1b[2Jb\nc\u{202e}");
    std::fs::copy("/bin/sleep", &program)?;
    let mut child = Command::new(&program).arg("300").spawn()?;
    let ran = strandline::run(&["top", "--once", "--pid", &child.id().to_string()]);
    child.kill()?;
    child.wait()?;
    let ran = ran?;
    assert_eq!(ran.status, Some(0));
    assert!(!ran.stdout.contains('\x1b') && !ran.stdout.contains('\u{202e}'), "{:?}", ran.stdout);
    assert_eq!(ran.stdout.lines().count(), 3, "{:?}", ran.stdout);
    Ok(())
}

#[test]
fn without_a_terminal_it_says_what_to_do() -> Outcome {
    strandline::run(&["top"])?.complains(3, &["terminal", "--once"])?;
    strandline::run(&["top", "--json"])?.complains(2, &["--json"])?;
    strandline::run(&["top", "--pid", "2147483647"])?.complains(3, &["no process"])
}

/// Processes that come and go by the hundred: it goes on, and shows whoever is there.
#[test]
fn processes_that_come_and_go_are_no_trouble() -> Outcome {
    let mut storm = Command::new("sh").args(["-c", "while :; do /bin/true; done"]).spawn()?;
    let result = (|| {
        let mut top = top(&["--interval", "1s"])?;
        top.shows(&["▼RSS"])?;
        top.press("t")?;
        std::thread::sleep(Duration::from_secs(3));
        top.press("q")?;
        Ok(top.end()?.code())
    })();
    storm.kill()?;
    storm.wait()?;
    result.map(|code: Option<i32>| assert_eq!(code, Some(0)))
}
