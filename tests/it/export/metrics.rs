//! `export`: the page is valid, agrees with /proc and explain, and no client or process makes it
//! wrong or blocks it.

#![cfg(test)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::exporter::{Exporter, Page, SOON};
use crate::support::recording::{Started, signal};
use crate::support::waiting::{PATIENCE, until_free, until_traced, until_true};
use crate::support::{
    Folder, Outcome, Result, Subject, copy_program, here, repetitions, skipped, strandline,
};

/// States of anonymous memory. File pages are evictable: the number of mapped ones may change
/// between two reads.
const ANONYMOUS_STATES: [&str; 4] = ["live", "stranded", "pinned", "unattributed"];

fn with<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [arguments, &SOON].concat()
}

/// Runs promtool on `input` and returns its output; `None` without promtool.
fn promtool(arguments: &[&str], input: &str) -> Result<Option<String>> {
    let child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    child.stdin.take().ok_or("no pipe")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let output_bytes = [output.stdout, output.stderr].concat();
    let output_text = String::from_utf8_lossy(&output_bytes).into_owned();
    if output.status.success() {
        Ok(Some(output_text))
    } else {
        Err(format!("promtool {arguments:?}: {output_text}").into())
    }
}

fn check_valid(page: &Page, test: &str) -> Outcome {
    match promtool(&["check", "metrics"], &page.text)? {
        None => skipped(test, "no promtool here (make deps)"),
        Some(output_text) if output_text.is_empty() => {}
        Some(output_text) => return Err(output_text.into()),
    }
    Ok(())
}

fn has_ledger(pid: i32) -> impl Fn(&Page) -> bool {
    move |page| page.value("strandline_ledger_rss_bytes", pid).is_some()
}

/// Fails unless states and rows of a process's ledger each add up to its RSS.
fn check_sums(page: &Page, pid: i32) -> Outcome {
    let whole = page.value("strandline_ledger_rss_bytes", pid).ok_or("no ledger")?;
    for name in ["strandline_state_bytes", "strandline_row_bytes"] {
        let sum: f64 = page.of(name, pid).iter().map(|sample| sample.value).sum();
        if sum != whole {
            return Err(format!("{name}: {sum} of {whole}").into());
        }
    }
    match page.samples.iter().filter(|sample| sample.labels.get("pid") == Some(&pid.to_string())).count() {
        ..=40 => Ok(()),
        many => Err(format!("{many} series").into()),
    }
}

#[test]
fn a_page_equals_proc_and_explain() -> Outcome {
    let subject = Subject::start("fragmented", &[])?;
    // The exporter, the kernel and explain read one after another: nothing may change in between.
    subject.at_rest()?;
    let pid = subject.pid();
    let exporter = Exporter::start(&with(&["--pid", &subject.pid_text()]))?;
    let page = exporter.page_when("a ledger", has_ledger(pid))?;
    check_valid(&page, here!())?;
    check_sums(&page, pid)?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |name: &str| -> Option<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.parse::<f64>().ok().map(|kib| kib * 1024.0)
    };
    for (metric, name) in [
        ("strandline_anonymous_bytes", "RssAnon"),
        ("strandline_swap_bytes", "VmSwap"),
        ("strandline_high_water_bytes", "VmHWM"),
    ] {
        assert_eq!(page.value(metric, pid), kib(name), "{metric}");
    }
    // RSS is at least the anonymous pages and at most the high-water mark: the number of mapped
    // file pages may change.
    let rss = page.value("strandline_rss_bytes", pid).ok_or("no RSS")?;
    assert!(Some(rss) >= kib("RssAnon") && Some(rss) <= kib("VmHWM"), "{rss}");
    let explained = strandline::explain(pid)?;
    for state in ANONYMOUS_STATES {
        let exported = page.labelled("strandline_state_bytes", pid, ("state", state));
        assert_eq!(exported, explained["totals"][state].as_u64().map(|bytes| bytes as f64), "{state}");
    }
    assert!(page.labelled("strandline_state_bytes", pid, ("state", "stranded")) > Some(20e6));
    let predicted = strandline::predicted(&explained, "malloc_trim").map(|bytes| bytes as f64);
    assert_eq!(page.labelled("strandline_reclaimable_bytes", pid, ("remedy", "malloc_trim")), predicted);
    let pss = page.value("strandline_pss_bytes", pid).ok_or("no PSS")?;
    assert!(Some(pss) <= kib("VmHWM") && pss > 0.0);
    assert!(page.value("strandline_minor_faults_total", pid) > Some(1000.0));
    assert!(page.value("strandline_ledger_age_seconds", pid).is_some_and(|age| age >= 0.0));
    assert_eq!(page.of("strandline_process_info", pid)[0].labels["process"], "fragmented");
    assert_eq!(exporter.end(Signal::SIGTERM)?, Some(0));
    Ok(())
}

#[test]
fn answers_have_the_requested_format() -> Outcome {
    let subject = Subject::idle()?;
    let exporter = Exporter::start(&with(&["--pid", &subject.pid_text()]))?;
    let open = exporter.ask(
        "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n\r\n",
    )?;
    assert!(
        open.contains("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
        "{open}"
    );
    assert!(
        open.ends_with("\n# EOF\n") && open.contains("# TYPE strandline_minor_faults counter\n"),
        "{open}"
    );
    assert!(open.contains("strandline_minor_faults_total{"));
    let plain = exporter.ask("GET /metrics HTTP/1.1\r\n\r\n")?;
    assert!(
        plain.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n")
            && !plain.contains("# EOF")
    );
    assert!(exporter.ask("GET / HTTP/1.1\r\n\r\n")?.ends_with("see /metrics\n"));
    assert!(exporter.ask("GET /../etc/passwd HTTP/1.1\r\n\r\n")?.starts_with("HTTP/1.1 404 "));
    assert!(exporter.ask("POST /metrics HTTP/1.1\r\n\r\n")?.starts_with("HTTP/1.1 405 "));
    assert!(exporter.ask("\u{16}\u{3}\u{1}\r\n\r\n")?.starts_with("HTTP/1.1 400 "));
    assert!(exporter.ask("HEAD /metrics HTTP/1.1\r\n\r\n")?.ends_with("\r\n\r\n"));
    Ok(())
}

#[test]
fn names_with_arbitrary_bytes_are_valid_labels() -> Outcome {
    let mut command = Command::new("python3");
    let script = "import sys\nopen('/proc/self/comm', 'wb').write(b'a\"\\\\\\nb\\xff\\x1b[2J}')\nprint('{}', flush=True)\nsys.stdin.read()";
    command.args(["-c", script]);
    let subject = Subject::start_command(command)?;
    let exporter = Exporter::start(&with(&["--name", "^a\"", "--no-children"]))?;
    let page = exporter.page_when("a ledger", has_ledger(subject.pid()))?;
    check_valid(&page, here!())?;
    check_sums(&page, subject.pid())?;
    let name = &page.of("strandline_rss_bytes", subject.pid())[0].labels["process"];
    assert_eq!(name, "a\"\\\nb\u{fffd}\\u{1b}[2J}");
    assert!(!page.text.contains('\u{1b}'), "a terminal would obey it");
    Ok(())
}

#[test]
fn hanging_clients_and_storms_delay_no_other_client() -> Outcome {
    let subject = Subject::idle()?;
    let exporter = Exporter::start(&["--pid", &subject.pid_text()])?;
    // More connections than the exporter serves at once: silent, not reading the answer,
    // or sending half a request.
    let mut hanging = Vec::new();
    for turn in 0..260 {
        let mut stream = TcpStream::connect(exporter.address)?;
        let request: &[u8] = [&b""[..], b"GET /metrics HTTP/1.1\r\n\r\n", b"GET /metr"][turn % 3];
        stream.write_all(request)?;
        hanging.push(stream);
    }
    // They stay connected: the exporter must drop the slowest of them to answer.
    assert!(exporter.page()?.value("strandline_rss_bytes", subject.pid()).is_some());
    let storm: Vec<_> = (0..200)
        .map(|_| {
            let address = exporter.address;
            std::thread::spawn(move || -> std::io::Result<String> {
                let mut stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer)?;
                Ok(answer)
            })
        })
        .collect();
    let mut answered = 0;
    for client in storm {
        let answer = client.join().map_err(|_| "a client panicked")??;
        answered += usize::from(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("strandline_rss_bytes{"),
        );
    }
    assert_eq!(answered, 200);
    drop(hanging);
    // The exporter renews its page only after a while.
    exporter.page_when("with all scrapes counted", |page| {
        page.own("strandline_exporter_scrapes_total") >= Some(201.0)
            && page.own("strandline_exporter_dropped_clients_total") >= Some(1.0)
    })?;
    Ok(())
}

#[test]
fn the_first_ledger_does_not_wait_for_the_budget() -> Outcome {
    let subject = Subject::idle()?;
    let since = Instant::now();
    // Ten seconds of such a budget do not allow a stop of a millisecond.
    let budgets = ["--stop-budget=10ms/h", "--cpu-budget=0.01%", "--quiet-for=0", "--no-children"];
    let exporter = Exporter::start(&[&budgets[..], &["--pid", &subject.pid_text()]].concat())?;
    let page = exporter.page_when("a ledger", has_ledger(subject.pid()))?;
    let stopped = page.value("strandline_stopped_seconds_total", subject.pid()).ok_or("no stops")?;
    let accrued = since.elapsed().as_secs_f64() * 0.010 / 3600.0;
    assert!(stopped > accrued, "{stopped} s of {accrued} s: the budget had accrued before");
    Ok(())
}

#[test]
fn the_page_follows_starting_and_ending_processes() -> Outcome {
    // A parent whose children live for some milliseconds.
    let subject = Subject::shell("echo ready; while :; do sleep 0.01 & sleep 0.01; wait; done")?;
    let exporter = Exporter::start(&with(&["--pid", &subject.pid_text()]))?;
    let others = |page: &Page| {
        page.samples.iter().any(|s| s.name == "strandline_rss_bytes" && s.labels["process"] == "sleep")
    };
    let page = exporter.page_when("a child", others)?;
    check_valid(&page, here!())?;
    exporter.page_when("a ledger", has_ledger(subject.pid()))?;
    let pid = subject.pid();
    // The shell does not read its input, so closing that does not end it.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL)?;
    drop(subject);
    let page_without_it =
        exporter.page_when("without it", |page| page.of("strandline_rss_bytes", pid).is_empty())?;
    assert!(!page_without_it.samples.iter().any(|sample| sample.labels.get("pid") == Some(&pid.to_string())));
    Ok(())
}

/// Fails unless the stops of process `pid` kept to a budget of `rate` seconds in each second. Each
/// page has the time since a moment before the exporter started. The first stop may use the budget
/// of one second. A later stop may begin only if the sum of the earlier ones is within the budget
/// accrued so far; so an overrun delays it. Without a counted overrun, the stop itself is within
/// the budget too.
fn check_budget(pages: &[(Duration, Page)], pid: i32, rate: f64) -> Outcome {
    let mut before = 0.0;
    for (elapsed, page) in pages {
        let Some(total) = page.value("strandline_stopped_seconds_total", pid) else { continue };
        let overruns = page.own("strandline_exporter_overrun_stops_total").ok_or("no count of overruns")?;
        let within = if overruns == 0.0 { total } else { before };
        // Pages have a resolution of a microsecond.
        let accrued_seconds = (elapsed.as_secs_f64() * rate).max(rate) + 1e-6;
        if total > before && within > accrued_seconds {
            return Err(
                format!("stopped for {within} s of {accrued_seconds} s, with {overruns} overruns").into()
            );
        }
        before = total;
    }
    Ok(())
}

#[test]
fn a_process_is_stopped_for_no_longer_than_its_budget() -> Outcome {
    // Reading the large process takes a hundred milliseconds, the small one a thousandth of that.
    let large = Subject::start("big_heap", &["0.25", "300", "random", "40"])?;
    let small = Subject::idle()?;
    let budget = [
        "--stop-budget=10ms/s",
        "--cpu-budget=100%",
        "--ledger-interval=1s",
        "--snapshot=never",
        "--quiet-for=0",
    ];
    let since = Instant::now();
    let chosen = ["--no-children", "--pid", &large.pid_text(), &small.pid_text()];
    let exporter = Exporter::start(&[&chosen[..], &budget].concat())?;
    let (mut pages, mut totals) = (Vec::new(), Vec::new());
    let page = exporter.page_when("two stops of the small one, and the large one cut short", |page| {
        pages.push((since.elapsed(), page.clone()));
        totals.extend(page.value("strandline_stopped_seconds_total", small.pid()));
        totals.dedup();
        let reason = ("reason", "stop_budget");
        // The exporter serves the first pages before any stop.
        totals.len() > 2 && page.labelled("strandline_process_error", large.pid(), reason).is_some()
    })?;
    check_sums(&page, large.pid())?;
    assert!(page.value("strandline_stopped_seconds_total", large.pid()) > Some(0.0));
    check_budget(&pages, large.pid(), 0.010)?;
    check_budget(&pages, small.pid(), 0.010)
}

#[test]
fn a_killed_exporter_leaves_no_process_traced_or_stopped() -> Outcome {
    let subject = Subject::start("malloc_loop", &[])?;
    let arguments = ["--pid", &subject.pid_text(), "--ledger-interval", "1s"];
    for _ in 0..repetitions(4, 20) {
        let exporter = Exporter::start(&with(&arguments))?;
        // The exporter takes a ledger each second.
        assert!(until_traced(subject.pid()), "the process has ended, or was never traced");
        // `end` returns after the exporter has ended.
        exporter.end(Signal::SIGKILL)?;
        until_free(subject.pid())?;
    }
    strandline::explain(subject.pid())?;
    Ok(())
}

#[test]
fn processes_are_chosen_by_name_group_and_parent() -> Outcome {
    let subject = Subject::shell("sleep 1000 & echo ready; read end; kill $!")?;
    let pid = subject.pid();
    let children = |page: &Page| page.samples.iter().filter(|s| s.name == "strandline_rss_bytes").count();
    let text = subject.pid_text();
    let one = Exporter::start(&["--no-ledgers", "--no-children", "--pid", &text])?;
    assert_eq!(children(&one.page()?), 1);
    let all = Exporter::start(&["--no-ledgers", "--pid", &text])?.page()?;
    assert_eq!(children(&all), 2);
    assert!(
        all.value("strandline_ledger_rss_bytes", pid).is_none()
            && all.value("strandline_pss_bytes", pid).is_some()
    );
    let group = all.of("strandline_process_info", pid)[0].labels["cgroup"].clone();
    let by_group = Exporter::start(&["--no-ledgers", "--cgroup", &group])?.page()?;
    assert!(by_group.value("strandline_rss_bytes", pid).is_some());
    let no_group =
        Exporter::start(&["--no-ledgers", "--cgroup", "/no/such/group", "--unit", "no-such-unit"])?.page()?;
    assert_eq!(children(&no_group), 0);
    let top = Exporter::start(&["--no-ledgers", "--top", "1", "--pid", &text])?.page()?;
    assert_eq!(children(&top), 2, "the largest, and the others");
    let other =
        top.samples.iter().find(|s| s.name == "strandline_rss_bytes" && s.labels["process"] == "other");
    assert!(other.is_some_and(|other| other.labels["pid"].is_empty() && other.value > 0.0));
    assert_eq!(top.own("strandline_exporter_summed_processes"), Some(1.0));
    let none = strandline::run(&["export", "--pid", "2147483647"])?;
    none.complains(3, &["no process 2147483647"])
}

#[test]
fn a_selection_that_matches_nothing_is_reported_until_it_does() -> Outcome {
    let folder = Folder::new("later")?;
    let program = folder.0.join("strandline-later");
    copy_program("/bin/sleep", &program)?;
    let exporter = Exporter::start(&["--no-ledgers", "--name", "^strandline-late"])?;
    let nothing = "no process matches --name ^strandline-late yet";
    until_true("the message", || exporter.messages().contains(nothing))?;
    assert_eq!(exporter.page()?.own("strandline_exporter_processes"), Some(0.0));
    let mut process = Command::new(&program).arg("1000").spawn()?;
    let found =
        exporter.page_when("the process", |page| page.own("strandline_exporter_processes") == Some(1.0));
    process.kill()?;
    process.wait()?;
    found?;
    until_true("the other message", || exporter.messages().contains("match --name ^strandline-late: 1"))?;
    assert_eq!(exporter.messages().matches(nothing).count(), 1, "{}", exporter.messages());
    Ok(())
}

#[test]
fn an_unreadable_process_is_reported() -> Outcome {
    if strandline_sys::host::effective_user() != 0 {
        skipped(here!(), "needs root, to become another user");
        return Ok(());
    }
    let subject = Subject::idle()?;
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        env!("CARGO_BIN_EXE_strandline"),
    ]);
    command.args(["export", "--listen", "127.0.0.1:0", "--pid", &subject.pid_text()]).args(SOON);
    let exporter = Exporter::start_command(&mut command)?;
    let pid = subject.pid();
    let page = exporter.page_when("refused", |page| {
        page.labelled("strandline_process_error", pid, ("reason", "permission")).is_some()
    })?;
    check_valid(&page, here!())?;
    assert!(
        page.value("strandline_rss_bytes", pid) > Some(0.0)
            && page.value("strandline_pss_bytes", pid).is_none()
    );
    assert_eq!(page.value("strandline_stopped_seconds_total", pid), Some(0.0));
    Ok(())
}

#[test]
fn a_file_for_node_exporter_is_replaced_and_removed() -> Outcome {
    let subject = Subject::idle()?;
    let folder = Folder::new("textfile")?;
    let file = folder.0.join("strandline.prom");
    let name = folder.0.display().to_string();
    let command = strandline::command(&[
        "export",
        "--no-ledgers",
        "--textfile",
        &name,
        "--interval",
        "1s",
        "--pid",
        &subject.pid_text(),
    ]);
    let exporter = Started::new(command)?;
    until_true("the file", || file.exists())?;
    let page = Page::parse(&std::fs::read_to_string(&file)?)?;
    assert!(page.value("strandline_rss_bytes", subject.pid()).is_some());
    assert_eq!(page.own("strandline_exporter_scrapes_total"), Some(0.0), "it does not listen");
    signal(exporter.pid(), 2);
    assert_eq!(exporter.finish()?.how(), 0);
    assert_eq!(std::fs::read_dir(&folder.0)?.count(), 0);
    strandline::run(&["export", "--all", "--textfile", "/no/such/folder"])?
        .complains(3, &["/no/such/folder", "--textfile"])
}
