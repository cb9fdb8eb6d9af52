//! The study `zeroed-buffers` in its short form.

use std::fs::{File, read_to_string};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::support::studied::{Studied, folder, forms};
use crate::support::{Folder, Outcome, Result, here, runs_long_studies, skipped};

/// True of every kernel, C library and D compiler that the study runs on.
const HOLD_ANYWHERE: [&str; 21] = [
    "new-is-resident",
    "gc-calloc-is-resident",
    "malloc-is-not",
    "malloc-and-zero-is-resident",
    "calloc-is-not",
    "peak-as-published",
    "contents-are-zero",
    "a-fault-a-page",
    "reading-maps-the-page-of-zeros",
    "writing-copies",
    "lazy-is-not-cheaper-when-all-is-used",
    "as-written-without-optimiser",
    "the-collector-writes-zeros",
    "ledger-names-the-zeros",
    "ledger-finds-none-in-lazy-ones",
    "ledger-after-writing",
    "zeros-come-back",
    "written-pages-stay",
    "prediction-is-kept",
    "contents-are-intact",
    "lazy-ones-have-nothing-to-give",
];

/// True of the compilers, runtimes and C library of Debian 12 (and Go 1.26, Node 20).
const HOLD_HERE: [&str; 17] = [
    "gc-calloc-pays-for-collections",
    "calloc-clears-used-memory",
    "optimiser-makes-calloc",
    "optimiser-drops-what-nobody-uses",
    "ldc-drops-new",
    "the-collector-takes-back-what-is-dropped",
    "lazy-or-eager",
    "all-give-zeros",
    "c",
    "cpp",
    "go",
    "java",
    "node",
    "python",
    "numpy",
    "perl",
    "sbcl",
];

/// Not or no longer as published: their notes give the reason.
const FAIL: [&str; 3] =
    ["malloc-and-zero-is-resident-optimised", "references-are-given-at-once", "no-caveats"];

/// May hold or fail: times of some milliseconds, and a claim that depends on the version of rustc.
const EITHER: [&str; 5] = [
    "eager-ways-cost-the-same-system-time",
    "lazy-ways-cost-next-to-nothing",
    "zeroing-malloc-costs-less-user-time-than-new",
    "zeroing-malloc-costs-less-user-time-than-gc-calloc",
    "rust",
];

/// Without these tools no claim of [`HOLD_ANYWHERE`] can be judged.
const TOOLS: &[&str] = &["cc", "gdc"];

/// The median of `metric` in the cell of these axes.
fn median(studied: &Studied, metric: &str, axes: &[(&str, &str)]) -> Option<f64> {
    let cells = studied.document["cells"].as_array()?;
    let is_it = |cell: &&serde_json::Value| axes.iter().all(|(axis, choice)| cell["axes"][*axis] == **choice);
    cells.iter().find(is_it)?["metrics"][metric]["median"].as_f64()
}

#[test]
fn claims_have_their_expected_verdicts() -> Outcome {
    if !runs_long_studies(here!()) {
        return Ok(());
    }
    for studied in forms("zeroed-buffers", &[])? {
        check_verdicts(here!(), &studied)?;
    }
    Ok(())
}

/// Asserts the verdicts and figures of one form.
fn check_verdicts(test: &str, studied: &Studied) -> Outcome {
    studied.assert_no_others(&[&HOLD_ANYWHERE, &HOLD_HERE, &FAIL, &EITHER]);
    studied.assert("holds", &studied.judged(test, &HOLD_ANYWHERE, TOOLS)?);
    studied.assert("holds", &studied.judged(test, &HOLD_HERE, TOOLS)?);
    studied.assert("fails", &studied.judged(test, &FAIL, TOOLS)?);
    for id in studied.judged(test, &EITHER, TOOLS)? {
        assert_ne!(studied.verdicts[id].0, "not_run", "{id}: {}", studied.verdicts[id].1);
    }

    // Each buffer is on 257 pages; calloc touches only the first, which contains malloc's size
    // field.
    let d = |way, optimisation, metric| {
        let axes = [
            ("subject", "D"),
            ("compiler", "gdc"),
            ("use", "kept"),
            ("way", way),
            ("optimisation", optimisation),
        ];
        median(studied, metric, &axes)
    };
    if let Some(grown) = d("malloc and zero", "-O0", "grown_kib_of_512") {
        assert!((grown - 512.0 * 257.0 * 4.0).abs() < 1024.0, "512 zeroed buffers grow by {grown} KiB");
        let faults = d("malloc and zero", "-O2", "faults_a_buffer");
        assert!(
            faults.is_some_and(|faults| (1.0..1.25).contains(&faults)),
            "{faults:?} faults of each calloc"
        );
    }
    let reclaim = [("subject", "D reclaim"), ("reclaimed", "gdc"), ("way", "new ubyte[]")];
    if let Some(returned) = median(studied, "touched.returned_part", &reclaim) {
        let kept = median(studied, "untouched.returned_part", &reclaim).unwrap_or_default() - returned;
        assert!((kept * 256.0 - 2.5).abs() < 0.6, "three bytes of each buffer kept {kept} of it");
    }
    Ok(())
}

/// A program of the study that holds its buffers and answers; killed on drop.
struct Holder {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Holder {
    /// Starts the program in `built`, with four buffers from malloc that it clears, three bytes
    /// written in each.
    fn start(built: &Folder) -> Result<Self> {
        let mut child = Command::new(built.0.join("buffers"))
            .args(["malloc_zero", "hold", "4", "3"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let answers = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        Ok(Self { child, answers })
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Number of wrong bytes according to the program.
    fn wrong_bytes(&mut self) -> Result<String> {
        self.child.stdin.as_mut().ok_or("no standard input")?.write_all(b"check\n")?;
        self.answer()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The claim that all contents are intact depends on the program's own check: it detects one byte
/// written by another process.
#[test]
fn one_wrong_byte_is_detected() -> Outcome {
    let built = Folder::new("zeroed-buffers")?;
    let root = folder("zeroed-buffers");
    let probe = root.join("../../probes/d");
    let mut build = Command::new("sh");
    build.arg(root.join("build.sh")).args(["gdc", "-O0"]).arg(probe).current_dir(&built.0);
    if Command::new("gdc").arg("--version").output().is_err() {
        skipped(here!(), "gdc is not installed (make deps)");
        return Ok(());
    }
    assert!(build.status()?.success());

    let mut holder = Holder::start(&built)?;
    assert_eq!(holder.answer()?, "ready");
    assert_eq!(holder.wrong_bytes()?, "0");

    // The four buffers are adjacent, in one anonymous mapping.
    let proc = format!("/proc/{}", holder.child.id());
    let maps = read_to_string(format!("{proc}/maps"))?;
    let start = maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
        let is_plain = rest.starts_with("rw-p") && rest.split_whitespace().count() == 4;
        (is_plain && to - from >= 4 * 257 * 4096).then_some(from)
    });
    let start = start.ok_or("no mapping of the buffers")?;
    let memory = File::options().write(true).open(format!("{proc}/mem"))?;
    memory.write_all_at(&[7], start + 16 + 12_345)?;
    assert_eq!(holder.wrong_bytes()?, "1");
    // A byte written by the program itself: the first of a buffer.
    memory.write_all_at(&[0], start + 16)?;
    assert_eq!(holder.wrong_bytes()?, "2");
    Ok(())
}
