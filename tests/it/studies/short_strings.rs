//! The study `short-strings` in its short form, and a test that its property tests detect errors.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::studied::{Studied, folder, forms};
use crate::support::{Folder, Outcome, Result, here, repetitions, runs_long_studies, skipped};

/// Counted by the programs, or memory of a million strings: independent of the machine's load.
const HOLD: [&str; 23] = [
    "sound-in-all-layouts",
    "sharing-is-tested",
    "promoted-and-demoted",
    "same-texts",
    "short-needs-no-buffer",
    "short-is-48-bytes",
    "one-word-more",
    "upgraded-saves-nothing",
    "integer-first-saves",
    "uncowable-lengths",
    "no-uncowable-lengths",
    "byte-is-full",
    "byte-is-full-in-perl",
    "read-only-is-shared",
    "counters-for-three",
    "ring-is-quadratic",
    "hybrid-is-linear",
    "keys-need-only-heads",
    "goal-memory-c",
    "memory-d-as-published",
    "memory-e-at-most",
    "thirty-per-cent-memory",
    "others-pay-memory",
];

/// Differs from the published result: the notes give the reason.
const FAIL: [&str; 1] = ["goal-memory-d"];

/// Counted by cachegrind, and at least a tenth away from the bound: a few per cent between
/// compilers do not matter.
const COUNTED_HOLD: [&str; 2] = ["goal-instructions-c", "e-instructions"];
const COUNTED_FAIL: [&str; 1] = ["thirty-per-cent-instructions"];

/// A few per cent away from the bound: holds with gcc 12.
const HOLD_WITH_GCC_12: [&str; 5] = [
    "goal-instructions-a",
    "goal-instructions-b",
    "goal-instructions-d",
    "others-pay-instructions-b",
    "others-pay-instructions-d",
];

/// Depends on perl's sv_grow, which changed in 5.37; and a ratio at the edge of its tolerance.
const EITHER: [&str; 2] = ["uncowable-as-in-perl", "memory-c-as-published"];

/// About two perls that the user of the study has to name.
const NOT_RUN: [&str; 14] = [
    "perls-instructions-a",
    "perls-instructions-b",
    "perls-instructions-c",
    "perls-instructions-d",
    "perls-cycles-a",
    "perls-cycles-b",
    "perls-cycles-c",
    "perls-cycles-d",
    "perls-cycles-e",
    "perls-memory-a",
    "perls-memory-b",
    "perls-memory-c",
    "perls-memory-d",
    "perls-memory-e",
];

/// Without the first no claim can be judged, without the second no count.
const TOOLS: &[&str] = &["cc"];
const COUNTED_TOOLS: &[&str] = &["cc", "valgrind"];

/// The median of `metric` in the cell of these axes.
fn median(studied: &Studied, axes: &[(&str, &str)], metric: &str) -> Result<f64> {
    let cells = studied.document["cells"].as_array().ok_or("no cells")?;
    let is_it = |cell: &&Value| axes.iter().all(|(name, value)| cell["axes"][*name] == **value);
    let cell = cells.iter().find(is_it).ok_or_else(|| format!("no cell {axes:?}"))?;
    let value = cell["metrics"][metric]["median"].as_f64();
    value.ok_or_else(|| format!("no {metric} in {axes:?}: {}", cell["not_run"]).into())
}

/// The first line of the compiler's version output: "cc (Debian 12.2.0-14) 12.2.0".
fn compiler() -> String {
    let version =
        Command::new("cc").arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&version).lines().next().unwrap_or("no compiler").to_owned()
}

#[test]
fn claims_have_their_expected_verdicts() -> Outcome {
    if !runs_long_studies(here!()) {
        return Ok(());
    }
    for studied in forms("short-strings", &[])? {
        check_verdicts(here!(), &studied)?;
    }
    Ok(())
}

/// Asserts the verdicts and figures of one form.
fn check_verdicts(test: &str, studied: &Studied) -> Outcome {
    let hold = studied.judged(test, &HOLD, TOOLS)?;
    studied.assert("holds", &hold);
    studied.assert("fails", &studied.judged(test, &FAIL, TOOLS)?);
    studied.assert("not_run", &NOT_RUN);
    studied.assert_no_others(&[
        &HOLD,
        &FAIL,
        &COUNTED_HOLD,
        &COUNTED_FAIL,
        &HOLD_WITH_GCC_12,
        &EITHER,
        &NOT_RUN,
    ]);
    let compiler = compiler();
    eprintln!("short_strings: instructions of what {compiler} makes");
    studied.assert("holds", &studied.judged(test, &COUNTED_HOLD, COUNTED_TOOLS)?);
    studied.assert("fails", &studied.judged(test, &COUNTED_FAIL, COUNTED_TOOLS)?);
    let is_gcc_12 = compiler.starts_with("cc (Debian 12.");
    if is_gcc_12 {
        studied.assert("holds", &studied.judged(test, &HOLD_WITH_GCC_12, COUNTED_TOOLS)?);
    }
    for id in studied.judged(test, &[&EITHER[..], &HOLD_WITH_GCC_12[..]].concat(), COUNTED_TOOLS)? {
        let verdict = studied.verdicts.get(id).map(|(verdict, _)| verdict.as_str());
        assert!(matches!(verdict, Some("holds" | "fails")), "{id}: {verdict:?}");
    }
    if hold.len() < HOLD.len() {
        return Ok(());
    }

    // A head of 24 bytes, a body of 16 or 24, and a malloc chunk of 32 if there is a buffer; arenas
    // add to it.
    let bytes = |layout| median(studied, &[("subject", "census"), ("layout", layout)], "bytes.8");
    for (layout, least) in [("classic", 72.0), ("cow-byte", 72.0), ("short", 48.0), ("cow3", 48.0)] {
        let bytes = bytes(layout)?;
        assert!((least..least * 1.03).contains(&bytes), "{layout}: {bytes} bytes for a text of 8");
    }
    // When an integer gets a text, its body exists already: 24 and 24 or 32 bytes, and a chunk of
    // 32 if it needs one.
    let written = |layout| median(studied, &[("subject", "census"), ("layout", layout)], "written");
    for (layout, least) in [("classic", 80.0), ("cow-byte", 80.0), ("short", 56.0), ("cow3", 56.0)] {
        let bytes = written(layout)?;
        assert!(
            (least..least * 1.03).contains(&bytes),
            "{layout}: {bytes} bytes for an integer and its text"
        );
    }
    // A million strings, their array of eight bytes each and up to a fifth more, and the process.
    for (layout, least) in [("classic", 80e6), ("cow3", 56e6)] {
        let axes = [("subject", "strings"), ("layout", layout), ("benchmark", "C")];
        let peak = median(studied, &axes, "high_water_bytes")?;
        assert!((least..least + 8e6).contains(&peak), "{layout}: {peak} bytes at most");
    }
    // Each member that leaves walks the ring; 999 join, and 999 leave while others remain.
    let steps = |sharing| median(studied, &[("subject", "chain"), ("sharing", sharing)], "steps.1");
    assert!((steps("pairs and counters")? - 2.0 * 999.0).abs() < 1.0);
    assert!((steps("one ring")? - 500_499.0).abs() < 1.0);
    Ok(())
}

/// Builds the property tests from the sources in `from` and runs them; returns whether they passed,
/// and their output.
fn check(from: &Path, layout: &str, seeds: u64, first: u64) -> Result<(bool, String)> {
    let program = from.join(format!("check-{layout}"));
    let mut cc = Command::new("cc");
    cc.args([
        "-g0",
        "-O1",
        "-fno-strict-aliasing",
        "-DCOUNT",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ]);
    cc.arg(format!("-DLAYOUT_{layout}")).arg("-o").arg(&program);
    cc.args(["check.c", "scalar.c", "key.c", "arena.c"].map(|name| from.join(name)));
    let built = cc.output()?;
    if !built.status.success() {
        return Err(format!("cc: {}", String::from_utf8_lossy(&built.stderr)).into());
    }
    let mut run = Command::new(&program);
    run.args([seeds.to_string(), "2000".to_owned(), first.to_string()]).env("ASAN_OPTIONS", "detect_leaks=0");
    let output = run.output()?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// Copies the study's sources, so that a test can change them.
fn sources(name: &str) -> Result<(Folder, PathBuf)> {
    let copy = Folder::new(name)?;
    for entry in fs::read_dir(folder("short-strings"))?.flatten() {
        let name = entry.file_name();
        if matches!(Path::new(&name).extension().and_then(|end| end.to_str()), Some("c" | "h")) {
            fs::copy(entry.path(), copy.0.join(name))?;
        }
    }
    let path = copy.0.clone();
    Ok((copy, path))
}

fn has_cc(test: &str) -> bool {
    let found = Command::new("cc").arg("--version").output().is_ok();
    if !found {
        skipped(test, "no cc (apt-get install gcc libc6-dev)");
    }
    found
}

/// Different seeds from the study's: many of them in full mode.
#[test]
fn scalars_pass_the_property_tests() -> Outcome {
    if !has_cc(here!()) {
        return Ok(());
    }
    let (_kept, path) = sources("short-strings")?;
    for layout in ["CLASSIC", "COW_BYTE", "SHORT", "COW3", "COW3_EAGER"] {
        let (is_sound, complaint) = check(&path, layout, repetitions(10, 2000), 1_000_000)?;
        assert!(is_sound, "{layout}: {complaint}");
    }
    Ok(())
}

/// The property tests fail if a sharer is not counted, a body is lost, another scalar's text is
/// overwritten, or a number is not copied.
#[test]
fn property_tests_detect_errors() -> Outcome {
    if !has_cc(here!()) || !runs_long_studies(here!()) {
        return Ok(());
    }
    let changes = [
        ("SHORT", "share_byte.h", "    --*share_byte(s);\n", ""),
        ("COW3", "share_pair.h", "        share_counter(s)->sharers--;\n", ""),
        ("COW3", "share_pair.h", "        share_counter(s)->all ^= (uintptr_t)s;\n", ""),
        ("COW3", "buffers.h", "        old->cur = old_type;", "        "),
        ("COW3", "copy.h", "        BODY(to)->number = BODY(from)->number;\n", ""),
        (
            "COW3",
            "copy.h",
            "    if (from->flags & (HAS_INTEGER | HAS_NUMBER))\n        copy_numbers(to, from);\n",
            "",
        ),
        ("COW3", "scalar.c", "} else if (s->flags & IS_NOT_MUTABLE) {", "} else if (0) {"),
    ];
    for (layout, file, text, by) in changes {
        let (_kept, path) = sources("short-strings-wrong")?;
        let source = fs::read_to_string(path.join(file))?;
        assert!(source.contains(text), "{file} has no {text:?} any more");
        fs::write(path.join(file), source.replacen(text, by, 1))?;
        let (is_sound, _) = check(&path, layout, 20, 1)?;
        assert!(!is_sound, "{layout}: without {text:?} in {file} nothing is found");
    }
    Ok(())
}
