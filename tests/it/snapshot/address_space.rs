//! Mappings and page states of known answer, and real programs: every resident byte on one row.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::{Outcome, Result, Subject, here, skipped, strandline};

/// RSS of smaps_rollup, in bytes: the kernel's own sum over the page tables.
fn rss_bytes(pid: i32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).ok_or("no Rss line")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}

/// Explains a subject that rests, whose RSS is the same before and after.
fn explain_at_rest(subject: &Subject) -> Result<serde_json::Value> {
    let before = rss_bytes(subject.pid())?;
    let document = strandline::explain(subject.pid())?;
    let after = rss_bytes(subject.pid())?;
    let rss = document["kernel"]["rss_bytes"].as_u64().ok_or("no rss_bytes")?;
    // The kernel may drop or map file pages at any time; a resting process makes none resident.
    if !(before.min(after)..=before.max(after)).contains(&rss) {
        return Err(format!("rss_bytes {rss}, smaps_rollup {before} before and {after} after").into());
    }
    Ok(document)
}

#[test]
fn zeroed_buffers_of_malloc_and_of_mmap() -> Outcome {
    for arguments in [&["32"][..], &["32", "mmap"]] {
        let mut subject = Subject::start("zeroed_buffer", arguments)?;
        let document = explain_at_rest(&subject)?;
        let zero = strandline::row(&document, "kernel.zero");
        // A malloc block's first page holds its header.
        assert!(zero >= subject.number("zero_bytes")? - 4096, "{arguments:?}: {zero}");
        assert_eq!(subject.ask(b'c')?["wrong_bytes"], 0);
        subject.ask(b'w')?;
        let fewer = strandline::row(&explain_at_rest(&subject)?, "kernel.zero");
        assert!(fewer <= zero, "a written page is not zero any more: {fewer} after {zero}");
        assert_eq!(subject.ask(b'c')?["wrong_bytes"], 0);
    }
    Ok(())
}

#[test]
fn stack_below_the_stack_pointer() -> Outcome {
    let subject = Subject::start("deep_stack", &["4"])?;
    let document = explain_at_rest(&subject)?;
    let below = strandline::row(&document, "kernel.stack_below_sp");
    assert!(below >= subject.number("least_stranded_bytes")?, "{below}");
    assert_eq!(document["target"]["threads"].as_u64(), Some(2));
    Ok(())
}

#[test]
fn a_heap_behind_a_mapped_image_is_not_called_static_data() -> Outcome {
    if Command::new("sbcl").arg("--version").output().is_err() {
        skipped(here!(), "sbcl is not here");
        return Ok(());
    }
    let kept = "(defvar *kept* (make-array 100000000 :element-type '(unsigned-byte 8) :initial-element 1))";
    let wait = "(progn (format t \"{\\\"ready\\\": 1}~%\") (finish-output) (read-line))";
    let mut command = Command::new("sbcl");
    command.args(["--noinform", "--no-userinit", "--eval", kept, "--eval", wait, "--quit"]);
    let subject = Subject::start_command(command)?;
    let document = explain_at_rest(&subject)?;
    let data = strandline::row(&document, "program.data");
    assert!(data < 90_000_000, "the array is not the program's static data: {data}");
    // SBCL's reader has it, or nobody.
    let of_lisp = ["anonymous", "sbcl.live", "sbcl.allocated"].map(|id| strandline::row(&document, id));
    assert!(of_lisp.iter().sum::<u64>() >= 100_000_000, "{of_lisp:?}");
    Ok(())
}

#[test]
fn lazyfree_is_evictable() -> Outcome {
    let subject = Subject::start("lazyfree", &["16"])?;
    let document = explain_at_rest(&subject)?;
    let lazyfree = strandline::row(&document, "kernel.lazyfree");
    assert_eq!(Some(lazyfree), document["kernel"]["lazyfree_bytes"].as_u64());
    // Under memory pressure the kernel takes some; it never makes more.
    assert!(lazyfree <= subject.number("lazyfree_bytes")? && lazyfree > 0, "{lazyfree}");
    Ok(())
}

#[test]
fn shared_memory_and_copies_of_it() -> Outcome {
    let subject = Subject::start("shmem", &["8"])?;
    let document = explain_at_rest(&subject)?;
    let shmem = strandline::row(&document, "kernel.shmem");
    assert!(shmem >= subject.number("least_shmem_bytes")?, "{shmem}");
    let anonymous = document["kernel"]["anonymous_bytes"].as_u64().ok_or("no anonymous_bytes")?;
    assert!(anonymous >= subject.number("copied_bytes")?, "copied pages are anonymous: {anonymous}");
    Ok(())
}

#[test]
fn private_file_pages_copied_on_write() -> Outcome {
    let subject = Subject::start("cow_file", &["16"])?;
    let document = explain_at_rest(&subject)?;
    let clean = strandline::row(&document, "kernel.file") + strandline::row(&document, "program.text");
    assert!(clean >= subject.number("clean_bytes")?, "{clean}");
    let anonymous = document["kernel"]["anonymous_bytes"].as_u64().ok_or("no anonymous_bytes")?;
    assert!(anonymous >= subject.number("copied_bytes")?, "{anonymous}");
    Ok(())
}

#[test]
fn huge_pages_whole_and_cut() -> Outcome {
    let subject = Subject::start("thp", &["16"])?;
    let document = explain_at_rest(&subject)?;
    let huge = document["kernel"]["huge_bytes"].as_u64().ok_or("no huge_bytes")?;
    if subject.number("huge_bytes")? == 0 {
        skipped(here!(), "this kernel gave no huge page");
    }
    // khugepaged may put cut pages together again, so the subject's figure is a lower bound.
    assert!(huge >= subject.number("huge_bytes")?, "{huge}");
    Ok(())
}

/// A program of the machine, started on a script that prints a line and waits.
fn program(name: &str, arguments: &[&str], input: Option<&str>) -> Outcome {
    let spawned = Command::new(name)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            skipped(name, &error.to_string());
            return Ok(());
        }
    };
    if let (Some(text), Some(stdin)) = (input, child.stdin.as_mut()) {
        stdin.write_all(text.as_bytes())?;
    }
    std::thread::sleep(std::time::Duration::from_millis(400));
    let looked = i32::try_from(child.id()).map_err(Into::into).and_then(strandline::explain);
    child.kill()?;
    child.wait()?;
    looked.map(drop).map_err(|error| format!("{name}: {error}").into())
}

#[test]
fn real_programs_sum_to_rss() -> Outcome {
    program(here!(), &["--norc"], Some("x=$(seq 1 1000)\n"))?;
    program(here!(), &["-e", "my @a = map { \"x$_\" } 1..100000; undef @a; sleep 100"], None)?;
    program(
        here!(),
        &["-c", "import time; a=[str(i) for i in range(300000)]; del a; time.sleep(100)"],
        None,
    )?;
    program(
        here!(),
        &["-e", "let a=[]; for(let i=0;i<1e5;i++)a.push({i}); setInterval(()=>a.length,1000)"],
        None,
    )?;
    program(here!(), &["100"], None)
}
