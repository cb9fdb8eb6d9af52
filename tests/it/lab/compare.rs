//! `compare` against commands whose difference is known: none, 1 MiB, 2 % of the instructions.

use serde_json::Value;

use crate::support::lab::{Lab, complains, subject};
use crate::support::recording::{has, list};
use crate::support::{Outcome, Result, here, repetitions};

/// Of so many comparisons so many may say something else: intervals hold with 95 %.
fn may_miss(count: u64) -> u64 {
    count.div_ceil(20)
}

/// How many of `count` comparisons with other seeds are as `is_right` wants them.
fn right(
    count: u64,
    flags: &[&str],
    commands: [&str; 2],
    is_right: impl Fn(&Value) -> bool,
) -> Result<(u64, String)> {
    let lab = Lab::new()?;
    let (mut right, mut wrong) = (0, String::new());
    for seed in 1..=count {
        let seed = seed.to_string();
        let words = [&["compare", "--seed", &seed][..], flags, &commands].concat();
        let document = lab.document(&words)?;
        if is_right(&document) {
            right += 1;
        } else {
            wrong = format!("seed {seed}: {}", document["metrics"]);
        }
    }
    Ok((right, wrong))
}

#[test]
fn a_command_and_itself_are_the_same() -> Outcome {
    let command = format!("{} need 8 exit", subject()?);
    let count = repetitions(5, 100);
    let (same, wrong) = right(count, &[], [&command, &command], |found| found["verdict"] == "same")?;
    assert!(same >= count - may_miss(count), "same in {same} of {count}: {wrong}");
    Ok(())
}

#[test]
fn a_mebibyte_more_is_found() -> Outcome {
    let subject = subject()?;
    let count = repetitions(3, 100);
    let commands = [format!("{subject} need 40 exit"), format!("{subject} need 41 exit")];
    let (found, wrong) = right(count, &[], [&commands[0], &commands[1]], |found| {
        let ratio = &found["metrics"]["high_water_bytes"]["ratio"];
        ratio["low"].as_f64().is_some_and(|low| low > 1.0)
            && ratio["median"].as_f64().is_some_and(|median| (1.01..1.04).contains(&median))
    })?;
    assert!(found >= count - may_miss(count), "found in {found} of {count}: {wrong}");
    Ok(())
}

#[test]
fn two_per_cent_more_instructions_are_found() -> Outcome {
    let test = here!();
    if !has(test, "valgrind") {
        return Ok(());
    }
    let subject = subject()?;
    let count = repetitions(1, 100);
    let commands = [format!("{subject} work 1000"), format!("{subject} work 1020")];
    let flags = ["--instructions", "--repeat", "5"];
    let (found, wrong) = right(count, &flags, [&commands[0], &commands[1]], |found| {
        let ratio = &found["metrics"]["instructions"]["ratio"];
        ratio["low"].as_f64().is_some_and(|low| low > 1.0)
            && ratio["median"].as_f64().is_some_and(|median| (1.015..1.025).contains(&median))
    })?;
    assert!(found >= count - may_miss(count), "found in {found} of {count}: {wrong}");
    Ok(())
}

#[test]
fn a_document_says_what_it_does_not_know() -> Outcome {
    let lab = Lab::new()?;
    let found = lab.document(&["compare", "--repeat", "3", "true", "sh -c 'exit 0'"])?;
    let metrics = &found["metrics"];
    for name in ["wall_seconds", "user_seconds", "system_seconds", "high_water_bytes", "minor_faults"] {
        for side in ["a", "b"] {
            let samples = metrics[name][side]["samples"].as_array().map(Vec::len);
            assert_eq!(samples, Some(3), "{name} of {side}: {}", metrics[name]);
        }
    }
    for name in ["instructions", "cycles"] {
        if metrics[name].is_null() || metrics[name]["a"].is_null() {
            let caveats = list(&found, "caveats");
            assert!(caveats.iter().any(|caveat| caveat["code"] == "no_counters"), "{name}: {caveats:?}");
        }
    }
    assert!(found["environment"]["kernel"].is_string());
    assert_eq!(found["runs"], 3);
    Ok(())
}

#[test]
fn cases_and_variables_reach_the_commands() -> Outcome {
    let lab = Lab::new()?;
    let case = "echo \"$0 $X $1\" >> seen";
    let words = ["--case", "P=one", "--case", "Q=two", "--repeat", "2", "--warm-up", "0"];
    let commands = [format!("X=7 sh -c '{case}' first"), format!("sh -c '{case}' second")];
    let found = lab.document(&[&["compare"][..], &words, &[&commands[0], &commands[1]]].concat())?;
    assert_eq!(list(&found, "cases").len(), 2);
    let seen = lab.text("seen");
    let mut lines: Vec<&str> = seen.lines().collect();
    lines.sort_unstable();
    let expected = ["first 7 one", "first 7 two", "second  one", "second  two"];
    assert_eq!(lines, expected.map(|line| [line, line]).concat());
    Ok(())
}

#[test]
fn failures_are_told_unless_they_may_be() -> Outcome {
    let lab = Lab::new()?;
    let fails = "sh -c 'echo no luck >&2; exit 6'";
    complains(&lab.run(&["compare", "true", fails])?, 3, &["B", "6", "no luck", "--ignore-failure"])?;
    complains(&lab.run(&["compare", fails, fails])?, 3, &["A", "6", "--ignore-failure"])?;
    complains(&lab.run(&["compare", "true", "sh -c 'kill -SEGV $$'"])?, 3, &["B", "SIGSEGV"])?;
    complains(&lab.run(&["compare", "true", "no-such-program"])?, 3, &["no-such-program", "not found"])?;
    complains(&lab.run(&["compare", "/etc/passwd", "true"])?, 3, &["/etc/passwd"])?;
    complains(&lab.run(&["compare", "true"])?, 3, &["one command", "--env"])?;
    complains(&lab.run(&["compare", "true", "'x"])?, 3, &["quote"])?;
    let found = lab.document(&["compare", "--ignore-failure", "--repeat", "3", "true", fails])?;
    assert!(found["caveats"].to_string().contains("fail"), "{}", found["caveats"]);
    Ok(())
}

#[test]
fn reports_are_what_they_are_called() -> Outcome {
    let lab = Lab::new()?;
    let of = |format| -> Result<String> {
        let ended =
            lab.run(&["compare", "--repeat", "3", "--format", format, "sh -c '<b>'; true", "true"])?;
        if ended.how() != 0 {
            return Err(ended.complaint().into());
        }
        Ok(ended.text())
    };
    let (markdown, html, json) = (of("markdown")?, of("html")?, of("json")?);
    assert!(markdown.lines().any(|line| line.starts_with("| ---") || line.starts_with("|---")), "{markdown}");
    assert!(html.starts_with("<!") && html.contains("<table") && !html.contains("<b>'"), "{html}");
    assert_eq!(serde_json::from_str::<Value>(&json)?["schema"], "strandline/compare/1");
    crate::support::harmless(&of("terminal")?)
}
