//! An SBCL that allocates and collects endlessly, and one that was stopped in the middle of a
//! collection.

use std::os::unix::fs::FileExt;

use crate::support::recording::signal;
use crate::support::sbcl::{Sbcl, figures};
use crate::support::subject::number;
use crate::support::waiting::{state, threads, until, until_free, until_true};
use crate::support::{Outcome, Result, Subject, for_any, here, repetitions, strandline};

/// Number of context switches of all threads of the process, which shows that it continues.
fn switches(pid: i32) -> u64 {
    let of_thread = |tid: i32| -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
        lines.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
    };
    threads(pid).into_iter().map(of_thread).sum()
}

/// Starts threads that allocate endlessly, so that the process never sleeps.
fn hot(sbcl: &Sbcl, arguments: &[&str]) -> Result<Subject> {
    Subject::start_command(sbcl.subject("hot", arguments))
}

#[test]
fn a_busy_process_is_read_repeatedly() -> Outcome {
    for_any(Sbcl::all(here!()), |sbcl| {
        let subject = hot(sbcl, &["threads=4", "count=20000"])?;
        let is_system = sbcl.path.as_os_str() == "sbcl";
        let wanted = if is_system { repetitions(2, 100) } else { repetitions(2, 25) };
        let (mut read, mut documents) = (0, 0);
        until("enough documents with SBCL's figures", || {
            documents += 1;
            let is_read =
                is_read_or_busy(subject.pid()).map_err(|error| format!("document {documents}: {error}"))?;
            read += u64::from(is_read);
            Ok((read == wanted).then_some(()))
        })?;
        check_continues(&subject)
    })
}

/// Explains the process once, with sums checked, and returns whether the SBCL was read; if not, a
/// caveat must say that it was within a collection or an allocation.
fn is_read_or_busy(pid: i32) -> Result<bool> {
    let document = strandline::explain(pid)?;
    let Ok(figures) = figures(&document) else {
        let codes = strandline::caveats(&document);
        assert!(codes.iter().any(|code| code == "runtime_busy"), "{codes:?}");
        return Ok(false);
    };
    let usage = number(figures, "dynamic_usage_bytes")?;
    let space = number(figures, "dynamic_space_bytes")?;
    assert!(usage <= space, "{usage} bytes used of {space}");
    Ok(true)
}

/// Checks that no thread is left traced or stopped, and that the process is scheduled again.
fn check_continues(subject: &Subject) -> Outcome {
    let pid = subject.pid();
    until_free(pid)?;
    let before = switches(pid);
    until_true("the process to be scheduled", || switches(pid) > before + 20)
}

/// Whether the runtime's flag at `address` is set: a collection is under way.
fn is_collecting(pid: i32, address: u64) -> Result<bool> {
    let memory = std::fs::File::open(format!("/proc/{pid}/mem"))?;
    let mut word = [0; 4];
    memory.read_exact_at(&mut word, address)?;
    Ok(word[0] != 0)
}

/// Stops the process, and waits for each thread to stop: a collecting thread may still finish its
/// collection until then.
fn stop(pid: i32) -> Outcome {
    signal(pid, 19);
    let is_stopped = |tid| matches!(state(pid, tid), None | Some('T'));
    until_true("all threads to stop", || threads(pid).into_iter().all(is_stopped))
}

#[test]
fn a_process_stopped_in_a_collection_has_a_caveat() -> Outcome {
    for_any(Sbcl::all(here!()), |sbcl| {
        let subject = hot(sbcl, &["threads=3", "count=100000"])?;
        let (pid, address) = (subject.pid(), subject.number("gc_active_address")?);
        let (mut caught, mut read, wanted) = (0, 0, repetitions(2, 10));
        until("stops in and outside of a collection", || {
            stop(pid)?;
            if is_collecting(pid, address)? {
                caught += 1;
                check_reports_collection(pid)?;
            } else if read < wanted {
                read += u64::from(is_read_or_busy(pid)?);
            }
            signal(pid, 18);
            Ok((caught >= wanted && read == wanted).then_some(()))
        })?;
        check_continues(&subject)
    })
}

/// Checks that the collection is reported, and no figure that it changes.
fn check_reports_collection(pid: i32) -> Outcome {
    let document = strandline::explain(pid)?;
    let caveats = strandline::caveats(&document);
    assert!(caveats.iter().any(|code| code == "runtime_busy"), "{caveats:?}");
    for id in ["sbcl.live", "sbcl.dead"] {
        let bytes = strandline::row(&document, id);
        assert_eq!(bytes, 0, "{id} in the middle of a collection: {caveats:?}");
    }
    Ok(())
}
