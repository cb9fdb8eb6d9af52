//! `top`: contents of the screen, effects of keys, and a restored terminal at every end.

use std::path::Path;
use std::process::Command;

use crate::support::subject::{compile, number};
use crate::support::terminal::{Terminal, ask};
use crate::support::waiting::until;
use crate::support::{Folder, Libc, Outcome, Result, Subject, copy_program, repetitions, strandline};

/// Starts `top` in a terminal.
fn top(arguments: &[&str]) -> Result<Terminal> {
    Terminal::start(strandline::command(&[&["top"], arguments].concat()))
}

/// RSS in mebibytes according to the kernel.
fn rss_mebibytes(pid: i32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

/// A process with tens of mebibytes of free heap memory.
fn subject() -> Result<Subject> {
    let subject = Subject::start("fragmented", &[])?;
    subject.at_rest()?;
    Ok(subject)
}

/// A command that runs `program` under a unique name of at most the 15 bytes that the kernel keeps:
/// a link in a folder.
fn renamed(program: impl AsRef<Path>) -> Result<(Folder, Command, String)> {
    let folder = Folder::new("top")?;
    // The folder's number makes the name unique. The last letter keeps it from being a prefix of
    // another such name.
    let unique = folder.0.file_name().unwrap_or_default().to_string_lossy().replace("strandline-top-", "t");
    let name = unique.replace('-', "x") + "e";
    let link = folder.0.join(&name);
    std::os::unix::fs::symlink(program, &link)?;
    Ok((folder, Command::new(link), name))
}

/// The words of the row of process `pid`, named `name`, once the row is drawn completely: its last
/// word is the name.
fn row<'a>(screen: &'a str, pid: &str, name: &str) -> Option<Vec<&'a str>> {
    let mut rows = screen.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|words| words.first() == Some(&pid) && words.last() == Some(&name))
}

#[test]
fn the_table_leads_to_a_ledger_and_a_dry_run() -> Outcome {
    const NAME: &str = "fragmented";
    let subject = subject()?;
    let pid = subject.pid_text();
    let mut top = top(&["--pid", &pid])?;
    top.shows(&["1 process", "▼RSS", "GROWTH/MIN", "q quit"])?;
    let table = top.shows_where("the row", |screen| row(screen, &pid, NAME).is_some())?;
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    // No process was stopped for the table: it has no ledger.
    let words = row(&table, &pid, NAME).ok_or("no row")?;
    assert_eq!(words.iter().filter(|word| **word == "-").count(), 2, "{words:?}");
    let ledger = ask(&mut top, "\r", &[&format!("ledger of process {pid}"), "stranded", "Esc back"])?;
    assert!(ledger.contains("RSS"), "{ledger}");
    top.press("\x1b")?;
    // The row shows the age of the ledger.
    let is_age = |word: &&str| word.strip_suffix('s').is_some_and(|seconds| seconds.parse::<u64>().is_ok());
    top.shows_where("a row with a ledger's age", |screen| {
        let words = row(screen, &pid, NAME).unwrap_or_default();
        screen.contains("▼RSS") && words.iter().any(is_age) && !words.contains(&"-")
    })?;
    ask(&mut top, "r", &[&format!("dry run of process {pid}"), "predicted"])?;
    top.press("\x1b")?;
    top.shows(&["▼RSS"])?;
    top.press("?")?;
    top.shows(&["Ctrl-Z"])?;
    top.press("qq")?;
    assert_eq!(top.end()?.code(), Some(0));
    assert!(top.is_restored());
    Ok(())
}

#[test]
fn processes_are_filtered_sorted_and_shown_as_a_tree_or_by_group() -> Outcome {
    let (_folder, command, name) = renamed(compile("fragmented", &Libc::system())?)?;
    let subject = Subject::start_command(command)?;
    let pid = subject.pid_text();
    let mut top = top(&["--sort", "pid"])?;
    top.shows(&["▼PID"])?;
    top.press("/")?;
    top.shows(&["filter:"])?;
    top.press(&format!("{name}\r"))?;
    top.shows(&[&format!("1 process with “{name}”"), "q quit"])?;
    top.press("R")?;
    top.shows(&["▲PID"])?;
    top.press(">")?;
    top.shows(&["▲RSS"])?;
    // The tree shows ancestors too, such as this test.
    top.press("t")?;
    let own = std::process::id().to_string();
    let is_there =
        |screen: &str, pid: &str| screen.lines().any(|line| line.split_whitespace().next() == Some(pid));
    top.shows_where("the subject below this test", |screen| {
        is_there(screen, &pid) && is_there(screen, &own)
    })?;
    // Esc and a key that arrive together would be read as one key.
    top.press("\x1b")?;
    top.shows_where("no filter", |screen| !screen.contains('“'))?;
    top.press("c")?;
    top.shows(&["COUNT", "control groups"])?;
    top.press("\x03")?;
    assert_eq!(top.end()?.code(), Some(0));
    assert!(top.is_restored());
    Ok(())
}

#[test]
fn an_unreadable_process_has_a_line() -> Outcome {
    let (_folder, mut command, name) = renamed(env!("CARGO_BIN_EXE_strandline"))?;
    command.args(["top", "--interval", "1s", "--name", &format!("^{name}$"), "--no-children"]);
    let mut top = Terminal::start(command)?;
    let own = top.child.id().to_string();
    top.shows_where("itself alone", |screen| {
        screen.contains(" 1 process") && row(screen, &own, &name).is_some()
    })?;
    let screen = ask(&mut top, "\r", &["itself"])?;
    assert!(screen.contains("▼RSS"), "{screen}");
    Ok(())
}

#[test]
fn top_ends_with_its_terminal() -> Outcome {
    let pid = std::process::id().to_string();
    let program = env!("CARGO_BIN_EXE_strandline");
    for turn in 0..repetitions(8, 100) {
        // The kernel sends SIGHUP only to processes whose controlling terminal it is. Keys that top
        // reads meanwhile must not keep it from detecting the closed terminal.
        let (own, keys) = (turn % 2 == 0, if turn % 4 < 2 { 0 } else { 2000 });
        let mut command = strandline::command(&["top", "--pid", &pid]);
        if own {
            command = Command::new("setsid");
            command.args(["--ctty", program, "top", "--pid", &pid]);
        }
        let mut top = Terminal::start(command)?;
        top.shows(&["▼RSS"])?;
        top.press(&"j".repeat(keys))?;
        top.hang_up();
        let status = top.end()?;
        assert_eq!(status.code(), Some(0), "turn {turn}: {status}");
    }
    Ok(())
}

#[test]
fn top_ends_with_a_signal() -> Outcome {
    let pid = std::process::id().to_string();
    for signal in ["-TERM", "-HUP", "-INT", "-QUIT"] {
        let mut top = top(&["--pid", &pid])?;
        top.shows(&["▼RSS"])?;
        let ended = Command::new("kill").args([signal, &top.child.id().to_string()]).status()?;
        assert!(ended.success());
        assert_eq!(top.end()?.code(), Some(0), "{signal}");
        assert!(top.is_restored(), "{signal}");
    }
    Ok(())
}

#[test]
fn once_prints_a_table_of_the_kernels_figures() -> Outcome {
    let subject = subject()?;
    let before = rss_mebibytes(subject.pid())?;
    let run = strandline::run(&["top", "--once", "--interval", "1s", "--pid", &subject.pid_text()])?;
    let after = rss_mebibytes(subject.pid())?;
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", run.stdout);
    let words: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(words[0], subject.pid_text());
    let shown: f64 = words[1].parse()?;
    // The value is rounded. RSS may shrink only by file pages that the kernel drops.
    let is_between = (after * 0.98..=before * 1.02).contains(&shown);
    assert!(words[2] == "MiB" && is_between, "{shown} shown, {before} MiB before, {after} after");
    // RSS did not change, and top must show that.
    let is_still = words[5] == "0" || after < before && words[5].starts_with('-');
    assert!(is_still, "{before} MiB before, {after} after: {}", lines[2]);
    Ok(())
}

#[test]
fn once_prints_a_document_of_the_same_figures() -> Outcome {
    let subject = subject()?;
    let select = ["top", "--once", "--interval", "1s", "--json", "--pid", &subject.pid_text()];
    let document = strandline::json(&select)?;
    assert_eq!(document["schema"], "strandline/top/1");
    let [process] = document["processes"].as_array().ok_or("no processes")?.as_slice() else {
        return Err(format!("not one process: {document}").into());
    };
    assert_eq!(process["pid"], subject.pid());
    let shown = number(process, "rss_bytes")? as f64 / f64::from(1 << 20);
    let read = rss_mebibytes(subject.pid())?;
    assert!((shown - read).abs() < read * 0.02, "{shown} MiB shown, {read} MiB read");
    assert!(number(process, "pss_bytes")? <= number(process, "rss_bytes")?, "{process}");
    assert!(number(process, "anonymous_bytes")? <= number(process, "rss_bytes")?, "{process}");
    assert!(process["growth_bytes_per_minute"].is_i64() && process["ledger"].is_null(), "{process}");
    let groups = strandline::json(&[&select[..], &["--groups"]].concat())?;
    assert_eq!(groups["processes"].as_array().map(Vec::len), Some(0));
    assert_eq!(groups["groups"][0]["cgroup"], process["cgroup"]);
    assert_eq!(groups["groups"][0]["processes"], 1);
    Ok(())
}

#[test]
fn names_with_arbitrary_bytes_are_harmless() -> Outcome {
    let folder = Folder::new("top-names")?;
    let program = folder.0.join("a\x1b[2Jb\nc\u{202e}");
    copy_program("/bin/sleep", &program)?;
    let mut child = Command::new(&program).arg("300").spawn()?;
    let ran = strandline::run(&["top", "--once", "--interval", "1s", "--pid", &child.id().to_string()]);
    child.kill()?;
    child.wait()?;
    let ran = ran?;
    assert_eq!(ran.status, Some(0));
    assert!(!ran.stdout.contains('\x1b') && !ran.stdout.contains('\u{202e}'), "{:?}", ran.stdout);
    assert_eq!(ran.stdout.lines().count(), 3, "{:?}", ran.stdout);
    Ok(())
}

#[test]
fn without_a_terminal_it_gives_advice() -> Outcome {
    strandline::run(&["top"])?.complains(3, &["terminal", "--once"])?;
    strandline::run(&["top", "--json"])?.complains(2, &["--json"])?;
    strandline::run(&["top", "--pid", "2147483647"])?.complains(3, &["no process"])
}

/// Hundreds of processes that start and end: top continues and shows the current ones.
#[test]
fn starting_and_ending_processes_do_not_disturb_top() -> Outcome {
    let folder = Folder::new("top-storm")?;
    let ended = folder.0.join("ended");
    // The file gets a line for each process that has ended.
    let mut storm = Command::new("sh");
    storm.args(["-c", r#"while :; do /bin/true; echo; done > "$0""#]).arg(&ended);
    let mut storm = storm.spawn()?;
    let result = in_a_storm(&|| std::fs::metadata(&ended).map_or(0, |file| file.len()));
    storm.kill()?;
    storm.wait()?;
    assert_eq!(result?, Some(0));
    Ok(())
}

/// The exit status of top after frames of new data and a hundred processes that started and ended,
/// as `ended` counts them.
fn in_a_storm(ended: &dyn Fn() -> u64) -> Result<Option<i32>> {
    let mut top = top(&["--interval", "1s"])?;
    top.shows(&["▼RSS", "processes"])?;
    top.press("t")?;
    let (frames, before) = (top.frames(), ended());
    // At least two of these frames have new data: the key accounts for one frame only.
    top.draws(frames + 3)?;
    until("a hundred processes to end", || Ok((ended() >= before + 100).then_some(())))?;
    top.press("q")?;
    Ok(top.end()?.code())
}
