//! `compare` against commands with a known difference: none, 1 MiB, 2 % of the instructions. How
//! often an interval misses by chance is tested with drawn samples in `crates/lab/src/statistics`.

use std::process::Command;

use serde_json::Value;

use crate::support::lab::{Lab, complains, subject};
use crate::support::recording::{finish, has, list, status_line};
use crate::support::subject::compile;
use crate::support::{Libc, Outcome, Result, Subject, here, repetitions};

/// The subject, built and started so that all its runs have the same number of resident pages. It
/// is linked statically, because the resident pages of a library depend on its other users; another
/// process locks its file in memory; and it runs on one processor, because the kernel batches page
/// counts per processor.
struct Steady {
    lab: Lab,
    program: String,
    cpu: String,
    /// Keeps the file in memory.
    _pin: Subject,
}

impl Steady {
    fn new() -> Result<Self> {
        let program = compile("lab", &Libc::system_static())?.display().to_string();
        let mut pin = Command::new(&program);
        pin.arg("pin");
        let own = std::process::id().cast_signed();
        let cpus = status_line(own, "Cpus_allowed_list").ok_or("no list of processors")?;
        let cpu = cpus.split(['-', ',']).next().unwrap_or_default().to_owned();
        Ok(Self { lab: Lab::new()?, program, cpu, _pin: Subject::start_command(pin)? })
    }

    /// High-water marks in a comparison of two programs that need `mebibytes`.
    fn high_water(&self, seed: u64, mebibytes: [u64; 2]) -> Result<Value> {
        let [a, b] = mebibytes.map(|size| format!("{} need {size} exit", self.program));
        let lab =
            self.lab.command(&["--json", "compare", "--repeat", "5", "--seed", &seed.to_string(), &a, &b]);
        let mut command = Command::new("taskset");
        command.args(["-c", &self.cpu]).arg(lab.get_program()).args(lab.get_args());
        command.current_dir(&self.lab.folder.0).env("XDG_CACHE_HOME", self.lab.cache());
        let ended = finish(command, b"")?;
        if ended.how() != 0 {
            return Err(format!("{mebibytes:?} ended with {}: {}", ended.how(), ended.complaint()).into());
        }
        let found: Value = serde_json::from_slice(&ended.stdout)?;
        Ok(found["metrics"]["high_water_bytes"].clone())
    }
}

#[test]
fn a_command_does_not_differ_from_itself() -> Outcome {
    if !has(here!(), "taskset") {
        return Ok(());
    }
    let steady = Steady::new()?;
    for seed in 1..=repetitions(2, 10) {
        let found = steady.high_water(seed, [40, 40])?;
        assert_eq!(found["verdict"], "same", "seed {seed}: {found}");
    }
    Ok(())
}

/// Whether the whole interval of a ratio is above 1, and its median between `least` and `most`.
fn is_more(found: &Value, least: f64, most: f64) -> bool {
    let ratio = &found["ratio"];
    ratio["low"].as_f64().is_some_and(|low| low > 1.0)
        && ratio["median"].as_f64().is_some_and(|median| (least..most).contains(&median))
}

#[test]
fn a_mebibyte_more_is_found() -> Outcome {
    if !has(here!(), "taskset") {
        return Ok(());
    }
    let steady = Steady::new()?;
    for seed in 1..=repetitions(2, 10) {
        let found = steady.high_water(seed, [40, 41])?;
        assert!(is_more(&found, 1.01, 1.04), "seed {seed}: {found}");
    }
    Ok(())
}

#[test]
fn two_per_cent_more_instructions_are_found() -> Outcome {
    if !has(here!(), "valgrind") {
        return Ok(());
    }
    let (lab, subject) = (Lab::new()?, subject()?);
    let commands = [format!("{subject} work 1000"), format!("{subject} work 1020")];
    // Each run has the same instructions, so every comparison must find the difference.
    for seed in 1..=repetitions(1, 5) {
        let flags = ["compare", "--seed", &seed.to_string(), "--instructions", "--repeat", "5"];
        let found = lab.document(&[&flags[..], &[&commands[0], &commands[1]]].concat())?;
        let instructions = &found["metrics"]["instructions"];
        assert!(is_more(instructions, 1.015, 1.025), "seed {seed}: {instructions}");
    }
    Ok(())
}

#[test]
fn a_document_has_reasons_for_unknown_figures() -> Outcome {
    let lab = Lab::new()?;
    let found = lab.document(&["compare", "--repeat", "3", "true", "sh -c 'exit 0'"])?;
    let metrics = &found["metrics"];
    for name in ["wall_seconds", "user_seconds", "system_seconds", "high_water_bytes", "minor_faults"] {
        for side in ["a", "b"] {
            let samples = metrics[name][side]["samples"].as_array().map(Vec::len);
            assert_eq!(samples, Some(3), "{name} of {side}: {}", metrics[name]);
            let mut figures = list(&metrics[name][side], "samples").to_vec();
            figures.push(metrics[name][side]["median"].clone());
            let is_size_or_count = !name.ends_with("_seconds");
            let are_integers = figures.iter().all(|figure| !is_size_or_count || figure.is_u64());
            assert!(are_integers, "{name} of {side}: {}", metrics[name]);
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
fn failures_are_reported_unless_ignored() -> Outcome {
    let lab = Lab::new()?;
    let fails = "sh -c 'echo no luck >&2; exit 6'";
    complains(&lab.run(&["compare", "true", fails])?, 3, &["B", "6", "no luck", "--ignore-failure"])?;
    complains(&lab.run(&["compare", fails, fails])?, 3, &["A", "6", "--ignore-failure"])?;
    complains(&lab.run(&["compare", "true", "sh -c 'kill -SEGV $$'"])?, 3, &["B", "SIGSEGV"])?;
    complains(&lab.run(&["compare", "true", "no-such-program"])?, 3, &["no-such-program", "not found"])?;
    complains(&lab.run(&["compare", "/etc/passwd", "true"])?, 3, &["/etc/passwd"])?;
    complains(&lab.run(&["compare", "--json", "true"])?, 2, &["one command", "--env"])?;
    complains(&lab.run(&["compare", "true", "'x"])?, 2, &["quote"])?;
    let found = lab.document(&["compare", "--ignore-failure", "--repeat", "3", "true", fails])?;
    assert!(found["caveats"].to_string().contains("fail"), "{}", found["caveats"]);
    Ok(())
}

#[test]
fn reports_have_the_requested_format() -> Outcome {
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
    crate::support::check_no_control_characters(&of("terminal")?)
}
