//! The study `perl-lexicals` in its short form, and its programs.

#![cfg(test)]

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use crate::support::perls::{fetched, series, version};
use crate::support::studied::{Studied, folder, forms, short};
use crate::support::{Folder, Outcome, Result, here, runs_long_studies, skipped};

/// Hold in every tested perl from 5.20 on (5.28 to 5.42).
const ALWAYS: [&str; 40] = [
    "assigning-undef-keeps-20",
    "calling-undef-releases",
    "closure-cleared",
    "closure-own-storage",
    "closure-takes-over",
    "closures-released",
    "closures-ten-and-ten",
    "constant-before-call",
    "constant-costs",
    "constant-function-two",
    "constant-not-shared",
    "function-one-string",
    "function-value-not-reused",
    "functions-add-up",
    "kept-expression",
    "ledger-closures",
    "ledger-constants",
    "ledger-figures",
    "ledger-kept",
    "ledger-recursion",
    "ledger-undef",
    "limit-in-sub-9",
    "limit-kills",
    "limit-message-begins",
    "limit-own-script",
    "limit-own-script-fits",
    "local-frees",
    "local-one-constant",
    "no-temporary",
    "not-a-leak",
    "recursion-retained-variable",
    "recursion-shrinks",
    "reference-hands-over",
    "reference-in-block",
    "sizes-half",
    "sizes-quarter-fixed",
    "value-in-block-less",
    "value-may-release",
    "value-shares-buffer",
    "walk-fixed",
];

/// True of 5.18, or of the 32-bit machine in the talk; fail since.
const NO_LONGER: [&str; 9] = [
    "constant-function-least",
    "expression-reuses",
    "function-1568-kib",
    "len-of-80000",
    "limit-in-sub-5",
    "limit-own-script-in-sub-5",
    "sizes-quarter",
    "undef-temporary",
    "value-keeps-buffer",
];

/// Fail from 5.42 on, where constants folded by perl are shared.
const UNTIL_SHARED_CONSTANTS: [&str; 10] = [
    "assigning-undef-keeps",
    "depends-on-source",
    "kept-between-calls",
    "len-after-undef",
    "number-keeps",
    "recursion-defined-after",
    "recursion-each-depth",
    "recursion-retained",
    "shorter-keeps",
    "side-by-side",
];

/// Fails from 5.40 on, where the message is longer.
const UNTIL_NEW_MESSAGE: [&str; 1] = ["limit-message"];

/// The walk's sizes interact with malloc on all tested systems.
const OF_MALLOC: [&str; 1] = ["walk-not-size-alone"];

/// Asserts the verdict of each claim for that perl.
fn check_verdicts(studied: &Studied, series: (u32, u32)) {
    studied.assert_no_others(&[&ALWAYS, &NO_LONGER, &UNTIL_SHARED_CONSTANTS, &UNTIL_NEW_MESSAGE, &OF_MALLOC]);
    studied.assert("holds", &[&ALWAYS[..], &OF_MALLOC[..]].concat());
    studied.assert("fails", &NO_LONGER);
    let until = |last: u32| if series <= (5, last) { "holds" } else { "fails" };
    studied.assert(until(40), &UNTIL_SHARED_CONSTANTS);
    studied.assert(until(38), &UNTIL_NEW_MESSAGE);
}

/// The cell of a subject; null if there is none.
fn cell<'a>(studied: &'a Studied, subject: &str) -> &'a Value {
    static NULL: Value = Value::Null;
    let cells = studied.document["cells"].as_array();
    let cell = cells.and_then(|cells| cells.iter().find(|cell| cell["axes"]["subject"] == subject));
    cell.unwrap_or(&NULL)
}

/// The median of a metric of a subject.
fn median(studied: &Studied, subject: &str, metric: &str) -> f64 {
    cell(studied, subject)["metrics"][metric]["median"].as_f64().unwrap_or(f64::NAN)
}

#[test]
fn claims_have_their_expected_verdicts() -> Outcome {
    let Some(series) = series("perl") else {
        skipped(here!(), "no perl here (apt install perl)");
        return Ok(());
    };
    if !runs_long_studies(here!()) {
        return Ok(());
    }
    forms("perl-lexicals", &[])?.iter().try_for_each(|studied| check_figures(studied, series))
}

/// Asserts the verdicts, and figures that do not depend on the machine.
fn check_figures(studied: &Studied, series: (u32, u32)) -> Outcome {
    check_verdicts(studied, series);

    // 800,000 bytes are 196 pages with malloc's header.
    let each = median(studied, "vanilla", "per_function_bytes");
    assert!((800_000.0..830_000.0).contains(&each), "{each}");
    assert_eq!(median(studied, "limit", "completed"), 8.0);
    let started = median(studied, "limit", "start_peak_bytes");
    assert_eq!(median(studied, "limit", "limit_bytes"), started + 6_669_312.0);
    // Each cell has the version of the perl that ran.
    let ran = version("perl").ok_or("no version")?;
    for subject in ["kept", "closures", "vanilla", "recursion", "walk", "limit", "limit-absolute"] {
        assert_eq!(cell(studied, subject)["texts"]["version"], ran.as_str(), "{subject}");
    }
    let shown = studied.document["cells"].to_string();
    assert!(!shown.contains("aaaa") && !shown.contains("bbbb"), "what the strings hold is in the output");
    Ok(())
}

#[test]
fn other_perls_differ_where_their_versions_do() -> Outcome {
    for perl in fetched(here!()) {
        let path = perl.display().to_string();
        let series = series(&path).ok_or_else(|| format!("{path} does not run"))?;
        check_verdicts(&short("perl-lexicals", &["--axis", &format!("perl={path}")])?, series);
    }
    Ok(())
}

/// Scalars dumped by Devel::Peek, in order: addresses of head and buffer, CUR and LEN.
fn dumped(text: &str) -> Vec<[u64; 4]> {
    let number = |text: &str, radix| {
        let digits = text.trim_start_matches("0x");
        let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
        u64::from_str_radix(&digits[..end], radix).unwrap_or(0)
    };
    let mut states: Vec<[u64; 4]> = Vec::new();
    for line in text.lines() {
        if let Some((_, at)) = line.strip_prefix("SV = ").and_then(|rest| rest.split_once(") at ")) {
            states.push([number(at, 16), 0, 0, 0]);
        }
        let Some(state) = states.last_mut() else { continue };
        match line.trim().split_once(" = ") {
            Some(("PV", value)) => state[1] = number(value, 16),
            Some(("CUR", value)) => state[2] = number(value, 10),
            Some(("LEN", value)) => state[3] = number(value, 10),
            _ => {}
        }
    }
    states
}

/// Replaces addresses by the order of their first appearance; 0 stays 0.
fn numbered(addresses: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut seen = BTreeMap::new();
    let number = |address| match (address, seen.len() as u64 + 1) {
        (0, _) => 0,
        (_, next) => *seen.entry(address).or_insert(next),
    };
    addresses.map(number).collect()
}

#[test]
fn figures_equal_the_dump_of_devel_peek() -> Outcome {
    if series("perl").is_none() {
        skipped(here!(), "no perl here (apt install perl)");
        return Ok(());
    }
    let study = folder("perl-lexicals");
    let probes = study.join("../../probes/perl");
    // Not `code`: Devel::Peek gets copies of the values in the code.
    let experiments =
        ["kept", "value", "reference", "assign", "call", "shorter", "local", "function", "own", "closures"];
    for experiment in experiments {
        let program = study.join("peek.pl");
        let output = Command::new("perl")
            .arg(format!("-I{}", probes.display()))
            .args([program.as_os_str(), experiment.as_ref(), "--dump".as_ref()])
            .output()?;
        let dumps = dumped(&String::from_utf8_lossy(&output.stderr));
        let states = in_order(&String::from_utf8(output.stdout)?)?;
        assert!(states.len() >= 4, "{experiment}: {states:?}");
        let of = |at: usize| states.iter().map(|state| state[at]).collect::<Vec<_>>();
        assert_eq!(of(0), numbered(dumps.iter().map(|dump| dump[0])), "{experiment}: heads");
        assert_eq!(of(1), numbered(dumps.iter().map(|dump| dump[1])), "{experiment}: buffers");
        assert_eq!(of(2), dumps.iter().map(|dump| dump[2]).collect::<Vec<_>>(), "{experiment}: CUR");
        assert_eq!(of(3), dumps.iter().map(|dump| dump[3]).collect::<Vec<_>>(), "{experiment}: LEN");
    }
    Ok(())
}

/// The states in peek.pl's line in their order: sv, buffer, cur, len.
fn in_order(line: &str) -> Result<Vec<[u64; 4]>> {
    let document: Value = serde_json::from_str(line)?;
    let object = document.as_object().ok_or("no object")?;
    let mut states: Vec<(usize, [u64; 4])> = Vec::new();
    for (name, state) in object.iter().filter(|(_, state)| state.is_object()) {
        let at = line.find(&format!("\"{name}\":")).ok_or("a name that is not in the line")?;
        let number = |key: &str| state[key].as_u64().unwrap_or(u64::MAX);
        states.push((at, [number("sv"), number("buffer"), number("cur"), number("len")]));
    }
    states.sort_unstable();
    Ok(states.into_iter().map(|(_, state)| state).collect())
}

#[test]
fn the_generator_writes_valid_programs_and_refuses_unknown_options() -> Outcome {
    if series("perl").is_none() {
        skipped(here!(), "no perl here (apt install perl)");
        return Ok(());
    }
    let study = folder("perl-lexicals");
    let probes = format!("-I{}", study.join("../../probes/perl").display());
    let own = format!("-I{}", study.display());
    let place = Folder::new("perl-lexicals-generator")?;
    let program = place.0.join("program.pl");
    let generate = |options: &str| {
        let mut command = Command::new("perl");
        command.arg(study.join("generate.pl")).args(options.split_whitespace()).arg("--output").arg(&program);
        command.output()
    };
    let mut several: Vec<String> =
        ["closures --second clear", "closures --second empty", "recursion", "walk", "talk"]
            .map(|shape| format!("--shape {shape}"))
            .into();
    for value in ["variable", "constant", "function"] {
        for rest in [
            "--undef call --cycles 2",
            "--undef assign --storage local --say",
            "--return value",
            "--size 9,8",
        ] {
            several.push(format!("--functions 3 --value {value} {rest}"));
        }
    }
    several.extend(
        ["before", "after", "shrinking"].map(|define| format!("--shape recursion --define {define}")),
    );
    several.push("--functions 2 --size 1000 --inside".to_owned());
    for options in &several {
        assert!(generate(options)?.status.success(), "{options}");
        // The program runs to its end, and its marks do nothing without strandline.
        let output = Command::new("perl").arg(&probes).arg(&own).arg("-w").arg(&program).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{options}: {errors}");
    }
    for options in ["--value other", "--size 0", "--size 1x", "--cycles 3 --size 1,2", "--shape", "--none"] {
        assert!(!generate(options)?.status.success(), "{options}");
    }
    Ok(())
}
