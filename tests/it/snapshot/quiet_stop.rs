//! The stop is not seen by the process that is stopped: no EINTR, no changed result, no process
//! left stopped or traced, whatever it does meanwhile.

use std::time::Duration;

use crate::support::{Outcome, Result, Subject, repetitions, strandline, subject};

/// State letter and tracer of a process.
fn state(pid: i32) -> Result<(char, i32)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default().to_owned()
    };
    Ok((field("State:").chars().next().ok_or("no state")?, field("TracerPid:").parse()?))
}

#[test]
fn blocking_calls_see_no_interruption() -> Outcome {
    let mut subject = Subject::start("eintr_watch", &[])?;
    for _ in 0..repetitions(15, 100) {
        strandline::explain(subject.pid())?;
    }
    let report = subject.ask(b'c')?;
    assert_eq!(report["total"], 0, "{report}");
    assert!(subject::number(&report, "returns")? > 0, "the timed calls went on");
    assert_eq!(state(subject.pid())?.1, 0, "not traced any more");
    assert!(subject.finish()?.success());
    Ok(())
}

#[test]
fn a_stopped_process_stays_stopped() -> Outcome {
    const SIGSTOP: i32 = 19;
    const SIGCONT: i32 = 18;
    let mut subject = Subject::start("fragmented", &["20000"])?;
    strandline_sys::signal::send(subject.pid(), SIGSTOP)?;
    let mut turns = 0;
    while state(subject.pid())?.0 != 'T' && turns < 1000 {
        std::thread::sleep(Duration::from_millis(2));
        turns += 1;
    }
    for _ in 0..5 {
        strandline::explain(subject.pid())?;
        assert_eq!(state(subject.pid())?, ('T', 0));
    }
    strandline_sys::signal::send(subject.pid(), SIGCONT)?;
    assert!(subject.ask(b'i')?["mallinfo"].is_object());
    Ok(())
}

/// Looks at a moving process again and again. Its process may be gone or replaced, which is said.
fn look_often(subject: &Subject, times: u64) -> Result<u64> {
    let mut documents = 0;
    for _ in 0..times {
        let run = strandline::run(&["explain", "--json", &subject.pid_text()])?;
        match run.status {
            Some(0) => {
                crate::support::invariants::hold(&serde_json::from_str(&run.stdout)?)?;
                documents += 1;
            }
            Some(3) if run.stderr.lines().count() == 1 && !run.stderr.contains("panicked") => {}
            _ => return Err(run.summary().into()),
        }
    }
    Ok(documents)
}

#[test]
fn a_forking_process() -> Outcome {
    let mut subject = Subject::start("forker", &[])?;
    let times = repetitions(8, 60);
    assert_eq!(look_often(&subject, times)?, times);
    let report = subject.ask(b'c')?;
    assert_eq!(report["wrong"], 0, "{report}");
    assert!(subject.finish()?.success());
    Ok(())
}

#[test]
fn a_process_that_executes_itself() -> Outcome {
    let subject = Subject::start("execer", &[])?;
    let times = repetitions(8, 60);
    assert_eq!(look_often(&subject, times)?, times, "whichever program it is when it stops is looked at");
    assert_eq!(state(subject.pid())?.1, 0);
    assert!(subject.finish()?.success());
    Ok(())
}

#[test]
fn a_process_that_spawns_threads() -> Outcome {
    let mut subject = Subject::start("thread_spawner", &[])?;
    let times = repetitions(8, 60);
    assert_eq!(look_often(&subject, times)?, times);
    let before = subject.ask(b'c')?;
    std::thread::sleep(Duration::from_millis(200));
    let after = subject.ask(b'c')?;
    assert_eq!(after["wrong"], 0, "{after}");
    assert!(subject::number(&after, "ended")? > subject::number(&before, "ended")?, "it goes on");
    assert!(subject.finish()?.success());
    Ok(())
}

#[test]
fn a_tight_malloc_loop_is_explained_and_reclaimed() -> Outcome {
    let mut subject = Subject::start("malloc_loop", &["8"])?;
    let times = repetitions(4, 30);
    assert_eq!(look_often(&subject, times)?, times);
    let document = strandline::json(&["reclaim", "--json", "--wait", "20", &subject.pid_text()])?;
    assert_ne!(document["outcome"], "refused", "{}", document["reason"]);
    let before = subject.ask(b'c')?;
    std::thread::sleep(Duration::from_millis(200));
    let after = subject.ask(b'c')?;
    assert_eq!(after["wrong"], 0, "{after}");
    assert!(subject::number(&after, "rounds")? > subject::number(&before, "rounds")?, "it goes on");
    assert_eq!(state(subject.pid())?.1, 0);
    assert!(subject.finish()?.success());
    Ok(())
}

#[test]
fn a_process_that_ends_meanwhile() -> Outcome {
    for round in 0..repetitions(10, 60) {
        let subject = Subject::start("fragmented", &["60000"])?;
        let pid = subject.pid_text();
        let looker = std::thread::spawn(move || {
            strandline::run(&["explain", "--json", &pid]).map_err(|error| error.to_string())
        });
        std::thread::sleep(Duration::from_micros(400 * round));
        subject.finish()?;
        let run = looker.join().map_err(|_| "the thread failed")??;
        match run.status {
            Some(0) => crate::support::invariants::hold(&serde_json::from_str(&run.stdout)?)?,
            Some(3) if run.stderr.lines().count() == 1 && !run.stderr.contains("panicked") => {}
            _ => return Err(run.summary().into()),
        }
    }
    Ok(())
}

/// The private bytes that a process would have alone if all that share pages with it split them.
fn share_bytes(pid: i32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).ok_or("no Pss_Anon")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// What was forked has its parent's pages until one of both writes to them. To read them in the wrong way copies them.
#[test]
fn pages_that_were_shared_stay_shared() -> Outcome {
    let subject = Subject::start("forked", &["40"])?;
    let child = i32::try_from(subject.number("child")?)?;
    for pid in [child, subject.pid()] {
        for how in [&["--photograph=never"][..], &["--photograph"], &["--no-runtimes", "--rows", "all"]] {
            let before = share_bytes(child)?;
            let pid = pid.to_string();
            strandline::json(&[&["explain", "--json", &pid], how].concat())?;
            let after = share_bytes(child)?;
            // Twice as much would be 40 MiB more; of what the process itself writes meanwhile it is pages.
            assert!(after < before + (1 << 20), "{pid} {how:?}: {before} bytes before, {after} after");
        }
    }
    for remedy in [&["malloc_trim"][..], &["zero_pages", "--allow-lost-write-risk"]] {
        let before = share_bytes(child)?;
        let child_text = child.to_string();
        let words = [&["reclaim", "--json", &child_text, "--remedy"], remedy].concat();
        let run = strandline::run(&words)?;
        let after = share_bytes(child)?;
        assert_eq!(run.status, Some(0), "{remedy:?}: {}", run.summary());
        // What is given back was shared: it does not come back as a copy.
        assert!(after < before + (1 << 20), "{remedy:?}: {before} bytes before, {after} after");
    }
    Ok(())
}
