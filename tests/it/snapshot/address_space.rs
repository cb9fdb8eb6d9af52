//! Mappings and page states with known answers, and real programs: every resident byte is on one
//! row.

use std::process::Command;

use crate::support::recording::has;
use crate::support::strandline::kept_bytes;
use crate::support::waiting::until_true;
use crate::support::{Outcome, Result, Subject, for_any, here, skipped, strandline};

/// Figures of smaps_rollup, in bytes: the kernel's own sums over the page tables, from one moment.
fn rollup_bytes<const N: usize>(pid: i32, fields: [&str; N]) -> Result<[u64; N]> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let mut all = [0; N];
    for (bytes, field) in all.iter_mut().zip(fields) {
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let line = line.ok_or_else(|| format!("no line {field}"))?;
        *bytes = line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024;
    }
    Ok(all)
}

/// The clean pages of files whose path contains `name`, in bytes.
fn clean_bytes(pid: i32, name: &str) -> Result<u64> {
    let (mut bytes, mut is_it) = (0, false);
    for line in std::fs::read_to_string(format!("/proc/{pid}/smaps"))?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Rss:", kib, _] if is_it => bytes += kib.parse::<u64>()? * 1024,
            ["Anonymous:", kib, _] if is_it => bytes -= kib.parse::<u64>()? * 1024,
            // START-END PERMISSIONS OFFSET DEVICE INODE PATH: other lines start with the name of a
            // figure.
            [range, _, _, _, _, ..] if !range.ends_with(':') => is_it = line.contains(name),
            _ => {}
        }
    }
    Ok(bytes)
}

/// Explains a sleeping subject. Its memory is the same before and after, except pages that the
/// kernel may drop at any time and pages that khugepaged may merge into a huge page.
fn explain_at_rest(subject: &Subject) -> Result<serde_json::Value> {
    subject.at_rest()?;
    let anonymous = || -> Result<u64> {
        let [all, given_up] = rollup_bytes(subject.pid(), ["Anonymous", "LazyFree"])?;
        Ok(all - given_up)
    };
    let before = anonymous()?;
    let document = strandline::explain(subject.pid())?;
    let after = anonymous()?;
    let shmem = document["kernel"]["shmem_bytes"].as_u64().ok_or("no shmem_bytes")?;
    let kept = kept_bytes(&document).and_then(|kept| kept.checked_sub(shmem)).ok_or("no anonymous_bytes")?;
    if !(before.min(after)..=before.max(after)).contains(&kept) {
        return Err(format!("{kept} anonymous bytes, smaps_rollup {before} before and {after} after").into());
    }
    Ok(document)
}

#[test]
fn zeroed_buffers_are_on_the_row_of_zero_pages() -> Outcome {
    for arguments in [&["32"][..], &["32", "mmap"]] {
        let mut subject = Subject::start("zeroed_buffer", arguments)?;
        let document = explain_at_rest(&subject)?;
        let zero = strandline::row(&document, "kernel.zero");
        // A malloc block's first page holds its header.
        assert!(zero >= subject.number("zero_bytes")? - 4096, "{arguments:?}: {zero}");
        assert_eq!(subject.ask(b'c')?["wrong_bytes"], 0);
        subject.ask(b'w')?;
        let fewer = strandline::row(&explain_at_rest(&subject)?, "kernel.zero");
        assert!(fewer <= zero, "the written page still counts as zero: {fewer} after {zero}");
        assert_eq!(subject.ask(b'c')?["wrong_bytes"], 0);
    }
    Ok(())
}

#[test]
fn stack_pages_below_the_stack_pointer_have_a_row() -> Outcome {
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
    // The array is on rows of the SBCL reader, or on the row of anonymous memory.
    let of_lisp = ["anonymous", "sbcl.live", "sbcl.allocated"].map(|id| strandline::row(&document, id));
    assert!(of_lisp.iter().sum::<u64>() >= 100_000_000, "{of_lisp:?}");
    Ok(())
}

#[test]
fn pages_freed_lazily_have_a_row() -> Outcome {
    let subject = Subject::start("lazyfree", &["16"])?;
    let document = explain_at_rest(&subject)?;
    let lazyfree = strandline::row(&document, "kernel.lazyfree");
    assert_eq!(Some(lazyfree), document["kernel"]["lazyfree_bytes"].as_u64());
    // Under memory pressure the kernel takes some of the unlocked pages; it never adds any.
    assert!(lazyfree <= subject.number("lazyfree_bytes")?, "{lazyfree}");
    assert!(lazyfree >= subject.number("locked_bytes")?, "{lazyfree}");
    Ok(())
}

#[test]
fn shared_memory_has_a_row_and_its_copies_are_anonymous() -> Outcome {
    let subject = Subject::start("shmem", &["8"])?;
    let document = explain_at_rest(&subject)?;
    let shmem = strandline::row(&document, "kernel.shmem");
    assert!(shmem >= subject.number("least_shmem_bytes")?, "{shmem}");
    let anonymous = document["kernel"]["anonymous_bytes"].as_u64().ok_or("no anonymous_bytes")?;
    assert!(anonymous >= subject.number("copied_bytes")?, "copied pages are anonymous: {anonymous}");
    Ok(())
}

#[test]
fn copied_pages_of_a_file_are_anonymous() -> Outcome {
    let subject = Subject::start("cow_file", &["16"])?;
    // The kernel may have dropped some of them before or between the reads.
    let clean_bytes = || clean_bytes(subject.pid(), "/strandline-subject-");
    let before = clean_bytes()?;
    let document = explain_at_rest(&subject)?;
    let least = before.min(clean_bytes()?);
    let clean = strandline::row(&document, "kernel.file");
    assert!(
        clean >= least && before <= subject.number("clean_bytes")?,
        "{clean}, {before} before, least {least}"
    );
    let anonymous = document["kernel"]["anonymous_bytes"].as_u64().ok_or("no anonymous_bytes")?;
    assert!(anonymous >= subject.number("copied_bytes")?, "{anonymous}");
    Ok(())
}

#[test]
fn huge_pages_are_counted_until_they_are_split() -> Outcome {
    let subject = Subject::start("thp", &["16"])?;
    if subject.number("huge_bytes")? == 0 {
        skipped(here!(), "this kernel gave no huge page");
    }
    // khugepaged may merge split pages, and reclaim may split huge ones.
    let [before] = rollup_bytes(subject.pid(), ["AnonHugePages"])?;
    let document = explain_at_rest(&subject)?;
    let [after] = rollup_bytes(subject.pid(), ["AnonHugePages"])?;
    let huge = document["kernel"]["huge_bytes"].as_u64().ok_or("no huge_bytes")?;
    assert!(
        (before.min(after)..=before.max(after)).contains(&huge),
        "{huge}: {before} before, {after} after"
    );
    Ok(())
}

#[test]
fn real_programs_sum_to_rss() -> Outcome {
    // Each prints a line and waits for input.
    let programs: [(&str, &[&str]); 4] = [
        ("bash", &["--norc", "-c", "x=$(seq 1 1000); echo ready; read x"]),
        ("perl", &["-e", r#"my @a = map { "x$_" } 1..100000; undef @a; $| = 1; print "ready\n"; <STDIN>"#]),
        (
            "python3",
            &[
                "-c",
                "import sys; a=[str(i) for i in range(300000)]; del a; print('ready', flush=True); sys.stdin.read()",
            ],
        ),
        (
            "node",
            &[
                "-e",
                "let a=[]; for(let i=0;i<1e5;i++)a.push({i}); console.log('ready'); \
                 process.stdin.on('end',()=>a.length).resume()",
            ],
        ),
    ];
    let test = here!();
    for_any(programs.into_iter().filter(|(name, _)| has(test, name)), |(name, arguments)| {
        let mut command = Command::new(name);
        command.args(*arguments);
        let subject = Subject::start_command(command)?;
        subject.at_rest()?;
        strandline::explain(subject.pid()).map(drop)
    })
}

#[test]
fn a_program_that_sleeps_sums_to_rss() -> Outcome {
    let subject = Subject::shell("echo ready; exec sleep 1000")?;
    let file =
        |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", subject.pid())).unwrap_or_default();
    // In nanosleep or clock_nanosleep.
    let sleeps = || ["35 ", "230 "].iter().any(|number| file("syscall").starts_with(number));
    until_true("sleep to sleep", || file("comm").trim_end() == "sleep" && sleeps())?;
    strandline::explain(subject.pid()).map(drop)
}
