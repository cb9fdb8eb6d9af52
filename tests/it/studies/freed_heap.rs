//! The study `freed-heap` (short, or whole in full mode), and its subject programs by themselves.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::studied::{Studied, folder, forms};
use crate::support::{Folder, Libc, Outcome, Result, here, runs_long_studies, skipped, write_script};

/// Hold with any glibc since 2.26 on x86-64 without another allocator installed; tested with 2.36.
const HOLD: &[&str] = &[
    "c1-small-blocks-stay",
    "c1-one-on-top-keeps",
    "c2-large-go-ascending",
    "c3-trim-gives-back",
    "c3-trim-keeps-pages",
    "c3-ledger-foretells",
    "c4-mmapped-ascending",
    "memory-comes-with-use",
    "under-100kB-stays",
    "cutoff-is-128KiB",
    "figures-tell-order",
    "published-order-rerun",
    "new-vector-as-malloc",
    "stuck-block-has-row",
    "settings-hold-still",
    "top-has-to-be-small",
    "mmap-gives-all-back",
    "operators-give-back",
];

/// Hold with the layouts of the glibcs of [`LAYOUTS_TRIED`]. With 2.43 the first and the last two
/// fail, for the reasons in their notes.
const HOLD_WITH_LAYOUT: &[&str] = &[
    "c1-oldest-first-goes",
    "rule-gives-cutoff",
    "rule-predicts",
    "rule-is-exact",
    "rule-exact-settings",
    "cutoff-moves",
    "libstdcxx-takes-72kB",
];

/// Fail with these layouts, because of the sizes that small blocks merge to, and the place of
/// libstdc++'s pool.
const FAIL_WITH_LAYOUT: &[&str] = &["c1-many-small-stay", "published-heap-growth"];

/// The whole study was run with the first; `blocks`, `cutoff` and the rule also with the second.
const LAYOUTS_TRIED: &[&str] = &["2.36", "2.41"];

/// Fail with any of them: the article omits that the threshold moves, and that there is room on the
/// top.
const FAIL: &[&str] = &[
    "c2-large-blocks-go",
    "c4-large-are-mmapped",
    "cutoff-is-100kB",
    "cutoff-200kB-to-2MB",
    "size-alone-decides",
    "tunables-no-effect",
    "threshold-suffices",
    "mallopt-returns-0",
];

/// Holds in the whole study if there is memory for it; the short form omits its subject.
const HOLD_IN_FULL: &[&str] = &["c2-2GB-goes"];

/// Fails since glibc 2.35.
const FAIL_WITH_GLIBC_2_36: &[&str] = &["mallopt-limit-32MiB"];

/// Hold with jemalloc 5.3.0.
const HOLD_WITH_JEMALLOC: &[&str] = &[
    "c3-trim-is-glibcs",
    "c5-purge-foretold",
    "jemalloc-larger-start",
    "jemalloc-no-decay",
    "jemalloc-keeps-vm",
    "jemalloc-takes-conf",
];

/// Fail with jemalloc 5.3.0: the article used an older one; the last is the expected effect of the
/// option.
const FAIL_WITH_JEMALLOC: &[&str] =
    &["jemalloc-200kB-goes", "jemalloc-large-go", "jemalloc-refuses-conf", "jemalloc-conf-decides"];

/// Holds with jemalloc 5.3.0, tcmalloc of gperftools 2.10 and mimalloc 2.0.
const HOLD_WITH_ALL: &[&str] =
    &["c5-allocators-differ", "c5-where-it-lies", "c5-release-foretold", "c5-pinned"];

#[test]
fn claims_have_the_verdicts_that_the_readme_explains() -> Outcome {
    if !has_tools(here!()) || !runs_long_studies(here!()) {
        return Ok(());
    }
    for studied in forms("freed-heap", &[])? {
        check_verdicts(here!(), &studied)?;
    }
    Ok(())
}

/// Asserts the verdicts of one form.
fn check_verdicts(test: &str, studied: &Studied) -> Outcome {
    studied.assert_no_others(&[
        HOLD,
        FAIL,
        HOLD_WITH_LAYOUT,
        FAIL_WITH_LAYOUT,
        HOLD_IN_FULL,
        FAIL_WITH_GLIBC_2_36,
        HOLD_WITH_JEMALLOC,
        FAIL_WITH_JEMALLOC,
        HOLD_WITH_ALL,
    ]);
    studied.assert("holds", HOLD);
    studied.assert("fails", FAIL);
    if !studied.is_full {
        studied.assert("not_run", HOLD_IN_FULL);
    } else if figure(studied, "two gigabytes", &[("allocator", "glibc")], "2GB.freed_physical_bytes")
        .is_some()
    {
        studied.assert("holds", HOLD_IN_FULL);
    } else {
        skipped(test, "it needs 3 GiB of available memory");
    }
    let version = |library: &str| text(studied, "said", &[("asked", library)], "version");
    match version("glibc").as_deref() {
        Some(version) if LAYOUTS_TRIED.contains(&version) => {
            studied.assert("holds", HOLD_WITH_LAYOUT);
            studied.assert("fails", FAIL_WITH_LAYOUT);
        }
        other => skipped(test, &format!("glibc here is {other:?}")),
    }
    match version("glibc").as_deref() {
        Some("2.36") => studied.assert("fails", FAIL_WITH_GLIBC_2_36),
        other => skipped(test, &format!("glibc here is {other:?}")),
    }
    match version("jemalloc") {
        Some(version) if version.starts_with("5.3.0-") => {
            studied.assert("holds", HOLD_WITH_JEMALLOC);
            studied.assert("fails", FAIL_WITH_JEMALLOC);
        }
        other => skipped(test, &format!("jemalloc here is {other:?}")),
    }
    let others = [("heap", "tcmalloc"), ("heap", "mimalloc")];
    if others.iter().all(|choice| figure(studied, "sweep", &[*choice], "2MB.freed_share").is_some()) {
        studied.assert("holds", HOLD_WITH_ALL);
    } else {
        skipped(test, "libtcmalloc_minimal.so.4 or libmimalloc.so.2 is not installed");
    }
    figures_are_plausible(studied);
    Ok(())
}

/// Checks that the figures behind the verdicts exist and are plausible.
fn figures_are_plausible(studied: &Studied) {
    let rule = |name: &str| figure(studied, "rule", &[], name).unwrap_or(f64::NAN);
    assert!(rule("frees") >= 80.0, "few frees: {}", rule("frees"));
    assert!(rule("size_alone_share") > 0.3 && rule("size_alone_share") < 0.95);
    let published = [("heap", "glibc"), ("order", "published")];
    let taken = figure(studied, "sweep", &published, "200MB.allocated_anonymous_bytes");
    assert_eq!(taken, Some(204_804.0 * 1024.0), "200 MB and the page of the chunk's header");
    let after = [("allocator", "glibc"), ("order", "published")];
    let stuck = figure(studied, "ledger", &after, "after-200kB.glibc.free.trim");
    assert!(stuck.is_some_and(|bytes| bytes > 180.0 * 1024.0), "stuck: {stuck:?}");
    let none = [("allocator", "glibc"), ("block_bytes", "1000"), ("survivors", "one-in-500")];
    assert_eq!(figure(studied, "blocks", &none, "survivors"), Some(128.0));
}

#[test]
fn a_rule_with_other_thresholds_fails() -> Outcome {
    if !runs_long_studies(here!()) {
        return Ok(());
    }
    let Some(built) = build("freed-heap-rule")? else { return Ok(()) };
    let script = built.0.join("plain");
    let steps = built.0.join("steps");
    write_script(&script, &format!("#!/bin/sh\nexec env -u GLIBC_TUNABLES '{}'\n", steps.display()))?;
    let tunables = "glibc.malloc.mmap_threshold=16384";
    for (program, exact) in [(&steps, true), (&script, false)] {
        let mut command = rule(&["check", &program.display().to_string(), "5"]);
        let found = json(command.env("GLIBC_TUNABLES", tunables))?;
        let number = |key: &str| found[key].as_u64().unwrap_or(0);
        assert!(number("steps") >= 200, "{found}");
        assert_eq!(number("steps_exact") == number("steps"), exact, "{found}");
        assert_eq!(number("frees_right") == number("frees"), exact, "{found}");
    }
    Ok(())
}

/// Debian's other glibcs: 2.31, 2.41, and the one of unstable, with other sizes of mapped chunks.
#[test]
fn the_rule_is_exact_with_other_glibcs() -> Outcome {
    if !has_tools(here!()) {
        return Ok(());
    }
    for libc in Libc::foreign().iter().filter(|libc| !libc.is_static) {
        let built = Folder::new(&format!("freed-heap-{}", libc.name))?;
        let steps = compile(libc, &built, "steps")?;
        let found = json(&mut rule(&["check", &steps, "20"]))?;
        let number = |key: &str| found[key].as_u64().unwrap_or(0);
        assert!(number("steps") >= 800, "{}: {found}", libc.name);
        assert_eq!(number("steps_exact"), number("steps"), "{}: {found}", libc.name);
        // The compiler's libstdc++ needs a newer glibc than bullseye's.
        if libc.name == "bullseye" {
            continue;
        }
        let cutoff = compile(libc, &built, "cutoff")?;
        for before in ["0", "20971520", "33550313"] {
            let found = json(&mut rule(&["cutoff", &cutoff, before]))?;
            let predicted = &found["predicted_physical_bytes"];
            assert_eq!(&found["cutoff_physical_bytes"], predicted, "{} after {before}", libc.name);
        }
    }
    Ok(())
}

/// Builds a program of the study with this C library, and returns its path.
fn compile(libc: &Libc, built: &Folder, name: &str) -> Result<String> {
    let program = built.0.join(name);
    let mut cxx = Command::new("c++");
    cxx.args(["-std=c++11", "-O2"]).arg(folder("freed-heap").join(format!("{name}.cpp")));
    cxx.arg("-o").arg(&program).arg("-Wl,--as-needed");
    libc.link(&mut cxx);
    let ended = cxx.output()?;
    if !ended.status.success() {
        return Err(String::from_utf8_lossy(&ended.stderr).into_owned().into());
    }
    Ok(program.display().to_string())
}

#[test]
fn the_orders_are_permutations_and_the_same_for_the_same_seed() -> Outcome {
    if !runs_long_studies(here!()) {
        return Ok(());
    }
    let Some(built) = build("freed-heap-orders")? else { return Ok(()) };
    let order = |name: &str| -> Result<Vec<String>> {
        let found = json(Command::new(built.0.join("sweep")).args(["mmap", name]))?;
        let text = found["order"].as_str().ok_or("no order")?;
        Ok(text.split(' ').map(str::to_owned).collect())
    };
    let given = order("given")?;
    let mut seen = std::collections::BTreeSet::new();
    for name in ["published", "published-jemalloc", "largest-first", "shuffled-1", "shuffled-2", "shuffled-3"]
    {
        let once = order(name)?;
        let mut sorted = once.clone();
        sorted.sort_by_key(|size| given.iter().position(|other| other == size));
        assert_eq!(sorted, given, "{name}");
        assert_eq!(once, order(name)?, "{name} twice");
        assert!(seen.insert(once), "{name} is another one's order");
    }
    let unknown = Command::new(built.0.join("sweep")).args(["mmap", "descending"]).output()?;
    assert_eq!(unknown.status.code(), Some(2));
    Ok(())
}

/// Builds the study's programs; `None`, reported, without the compiler.
fn build(name: &str) -> Result<Option<Folder>> {
    if !has_tools(name) {
        return Ok(None);
    }
    let built = Folder::new(name)?;
    let probes = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("probes");
    let study = folder("freed-heap");
    let mut command = Command::new("sh");
    command.arg(study.join("build.sh")).args([&study, &probes]).current_dir(&built.0);
    let ended = command.output()?;
    if !ended.status.success() {
        return Err(String::from_utf8_lossy(&ended.stderr).into_owned().into());
    }
    Ok(Some(built))
}

fn has_tools(name: &str) -> bool {
    let missing =
        ["c++", "python3"].into_iter().find(|tool| Command::new(tool).arg("--version").output().is_err());
    if let Some(tool) = missing {
        skipped(name, &format!("{tool} is not installed"));
    }
    missing.is_none()
}

fn rule(arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.arg(folder("freed-heap").join("rule.py")).args(arguments);
    command
}

fn json(command: &mut Command) -> Result<Value> {
    let ended = command.output()?;
    if !ended.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&ended.stderr)).into());
    }
    Ok(serde_json::from_slice(&ended.stdout)?)
}

/// The first cell of a subject that has these choices.
fn cell<'a>(studied: &'a Studied, subject: &str, choices: &[(&str, &str)]) -> Option<&'a Value> {
    let is = |cell: &Value, axis: &str, choice: &str| cell["axes"][axis].as_str() == Some(choice);
    let fits = |cell: &&Value| {
        is(cell, "subject", subject) && choices.iter().all(|(axis, choice)| is(cell, axis, choice))
    };
    studied.document["cells"].as_array()?.iter().find(fits)
}

fn figure(studied: &Studied, subject: &str, choices: &[(&str, &str)], metric: &str) -> Option<f64> {
    cell(studied, subject, choices)?["metrics"][metric]["median"].as_f64()
}

fn text(studied: &Studied, subject: &str, choices: &[(&str, &str)], name: &str) -> Option<String> {
    Some(cell(studied, subject, choices)?["texts"][name].as_str()?.to_owned())
}
