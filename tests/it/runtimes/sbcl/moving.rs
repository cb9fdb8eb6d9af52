//! An SBCL that allocates and collects without end, and one that was stopped in the middle of a collection.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::support::sbcl::{Sbcl, figures};
use crate::support::subject::number;
use crate::support::{Outcome, Result, Subject, for_any, here, repetitions, strandline};

/// How often the process has been scheduled, all threads together: it goes on.
fn switches(pid: i32) -> Result<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("sched")).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("nr_switches"));
        sum += line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

#[test]
fn a_hot_process_is_looked_at_again_and_again() -> Outcome {
    for_any(Sbcl::all(here!()), |sbcl| {
        let subject = sbcl.start("hot", &["threads=4", "count=20000"])?;
        let mut read = 0;
        let is_system = sbcl.path.as_os_str() == "sbcl";
        let looks = if is_system { repetitions(10, 200) } else { repetitions(5, 50) };
        for look in 0..looks {
            // Sums are checked at each.
            let document =
                strandline::explain(subject.pid()).map_err(|error| format!("look {look}: {error}"))?;
            if let Ok(figures) = figures(&document) {
                read += 1;
                let usage = number(figures, "dynamic_usage_bytes")?;
                let space = number(figures, "dynamic_space_bytes")?;
                assert!(usage <= space, "{usage} bytes used of {space}");
            } else {
                assert!(!strandline::caveats(&document).is_empty(), "not read, and it does not say why");
            }
        }
        eprintln!("{}: read in {read} of {looks} looks", subject.ready["version"]);
        // Where the machine is loaded, it collects most of the time.
        assert!(read * 10 > looks, "read in {read} of {looks} looks");
        goes_on(&subject)
    })
}

fn goes_on(subject: &Subject) -> Outcome {
    let before = switches(subject.pid())?;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
        let state = std::fs::read_to_string(format!("/proc/{}/status", subject.pid()))?;
        assert!(!state.contains("TracerPid:\t0\n") || !state.contains("State:\tT"), "it was left stopped");
        if switches(subject.pid())? > before + 20 {
            return Ok(());
        }
    }
    Err("it does not go on".into())
}

/// Whether the runtime's word at `address` says that a collection is going on.
fn is_collecting(pid: i32, address: u64) -> Result<bool> {
    let memory = std::fs::File::open(format!("/proc/{pid}/mem"))?;
    let mut word = [0; 4];
    memory.read_exact_at(&mut word, address)?;
    Ok(word[0] != 0)
}

fn signal(pid: i32, name: &str) -> Outcome {
    let status = std::process::Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status()?;
    if status.success() { Ok(()) } else { Err(format!("kill -{name}: {status}").into()) }
}

#[test]
fn a_process_stopped_in_its_own_collection_is_told_to_be() -> Outcome {
    for_any(Sbcl::all(here!()), |sbcl| {
        let subject = sbcl.start("hot", &["threads=3", "count=100000"])?;
        let (pid, address) = (subject.pid(), subject.number("gc_active_address")?);
        let mut caught = 0;
        for _ in 0..3000 {
            std::thread::sleep(Duration::from_millis(1));
            signal(pid, "STOP")?;
            // Until each of its threads stands: one that collects may still come to its end.
            if is_collecting(pid, address)? {
                std::thread::sleep(Duration::from_millis(20));
            }
            if is_collecting(pid, address)? {
                caught += 1;
                let document = strandline::explain(pid)?;
                let caveats = strandline::caveats(&document);
                assert!(caveats.iter().any(|code| code == "runtime_busy"), "{caveats:?}");
                // Nothing is said of what moves.
                for id in ["sbcl.live", "sbcl.dead"] {
                    assert_eq!(
                        strandline::row(&document, id),
                        0,
                        "{id} in the middle of a collection: {caveats:?}"
                    );
                }
            }
            signal(pid, "CONT")?;
            if caught == repetitions(2, 10) {
                break;
            }
        }
        eprintln!("{}: caught {caught} times", subject.ready["version"]);
        assert!(caught > 0, "never caught in a collection");
        goes_on(&subject)
    })
}
