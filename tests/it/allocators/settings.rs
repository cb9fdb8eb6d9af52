//! Settings offered for the next start: each works with the library that was found.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::libraries::libraries;
use crate::support::strandline::explain;
use crate::support::waiting::until_true;
use crate::support::{Libc, Outcome, Result, Subject, for_any, here, polars, subject};

/// Frees nearly all of 200 MB in blocks of 1,000 bytes; keeps one block in 20,000.
const FREED: [&str; 3] = ["200000", "1000", "20000"];

fn fragmented(preload: &Path, setting: Option<(&str, &str)>) -> Result<Subject> {
    fragmented_by(&FREED, preload, setting)
}

fn fragmented_by(arguments: &[&str], preload: &Path, setting: Option<(&str, &str)>) -> Result<Subject> {
    let mut command = Command::new(subject::compile("fragmented", &Libc::system())?);
    command.args(arguments).env("LD_PRELOAD", preload).envs(setting);
    Subject::start_command(command)
}

/// An offered setting.
#[derive(Debug)]
struct Setting {
    name: String,
    value: String,
    predicted_bytes: Option<u64>,
}

impl Setting {
    fn pair(&self) -> (&str, &str) {
        (&self.name, &self.value)
    }
}

fn settings(document: &Value) -> Result<Vec<Setting>> {
    let remedies = document["remedies"].as_array().ok_or("no remedies")?;
    let setting = |remedy: &Value| {
        let how = remedy["how"].as_str().and_then(|how| how.split_once('='));
        let (name, value) = how.ok_or_else(|| format!("no setting: {remedy}"))?;
        let predicted_bytes = remedy["predicted_bytes"].as_u64();
        if predicted_bytes.is_none() && !remedy["unknown_because"].is_string() {
            return Err(format!("neither a prediction nor a reason for its absence: {remedy}").into());
        }
        Ok(Setting { name: name.to_owned(), value: value.to_owned(), predicted_bytes })
    };
    remedies.iter().filter(|remedy| remedy["kind"] == "setting").map(setting).collect()
}

fn anonymous(document: &Value) -> Result<u64> {
    document["kernel"]["anonymous_bytes"].as_u64().ok_or_else(|| "no anonymous_bytes".into())
}

/// Waits until `subject`, started with `setting`, holds less than `before` by at least nine tenths
/// of the prediction; the setting also changes the layout of the program's other allocations.
fn check_effect(subject: &Subject, setting: &Setting, before: u64) -> Outcome {
    let less = setting.predicted_bytes.ok_or_else(|| format!("{setting:?}"))? / 10 * 9;
    let is_less =
        || explain(subject.pid()).and_then(|now| anonymous(&now)).is_ok_and(|now| now + less <= before);
    until_true(&format!("{setting:?} to hold {less} of {before} bytes less"), is_less)
}

#[test]
fn each_offered_setting_affects_the_library_that_was_found() -> Outcome {
    for_any(libraries(here!()), |library| {
        let before = fragmented(&library.path, None)?;
        before.at_rest()?;
        let document = explain(before.pid())?;
        drop(before);
        let settings = settings(&document)?;
        if library.is_systems && settings.is_empty() {
            return Err(format!("no setting is offered: {}", document["remedies"]).into());
        }
        for setting in &settings {
            let after = fragmented(&library.path, Some(setting.pair()))?;
            check_effect(&after, setting, anonymous(&document)?)?;
        }
        Ok(())
    })
}

/// Only whole free pages of mimalloc wait for its delay. Of free blocks beside live ones that are
/// larger than a kernel page no setting releases anything, and one in force is not offered again.
#[test]
fn mimalloc_offers_its_delay_for_the_memory_that_waits() -> Outcome {
    let mimallocs = libraries(here!()).into_iter().filter(|library| library.name == "mimalloc");
    for_any(mimallocs.collect::<Vec<_>>(), |library| {
        let found = |arguments: &[&str], setting: Option<(&str, &str)>| {
            let subject = fragmented_by(arguments, &library.path, setting)?;
            subject.at_rest()?;
            let document = explain(subject.pid())?;
            let offered = settings(&document)?.into_iter().find(|one| one.name.starts_with("MIMALLOC_"));
            Result::Ok((offered, anonymous(&document)?, document))
        };
        const BESIDE_LIVE: [&str; 3] = ["4000", "5000", "8"];
        let (beside_live, ..) = found(&BESIDE_LIVE, None)?;
        // 2.4.1 has just over 1 MiB that waits, of 16 MiB.
        if let Some(setting) =
            beside_live.filter(|one| one.predicted_bytes.is_none_or(|bytes| bytes > 2 << 20))
        {
            return Err(format!("offered for slots beside live ones: {setting:?}").into());
        }
        let (Some(setting), before, document) = found(&FREED, None)? else {
            return if library.is_systems { Err("no delay is offered".into()) } else { Ok(()) };
        };
        let predicted = setting.predicted_bytes.ok_or_else(|| format!("{}", document["remedies"]))?;
        for (arguments, is_freed) in [(FREED, true), (BESIDE_LIVE, false)] {
            let (again, after, document) = found(&arguments, Some(setting.pair()))?;
            if again.is_some() {
                return Err(format!("offered where it is set: {}", document["remedies"]).into());
            }
            // The setting changes the layout of a few other pages.
            if is_freed && before.saturating_sub(after) < predicted - predicted / 100 {
                return Err(format!("{predicted} predicted, {before} became {after}").into());
            }
        }
        Ok(())
    })
}

/// The offered setting of the trim threshold in `document`.
fn trim_threshold(document: &Value) -> Option<&Value> {
    document["remedies"].as_array()?.iter().find(|remedy| remedy["id"] == "trim_threshold")
}

/// Freeing a large block has raised both thresholds: memory freed later stays resident, and the
/// offered setting would release it. The prediction has only the memory at the ends of the heaps:
/// free memory between live blocks may have been small blocks.
#[test]
fn a_setting_is_offered_for_grown_thresholds() -> Outcome {
    let start =
        |setting: &[(&str, &str)]| Subject::start_with(&Libc::system(), "grown_threshold", &[], setting);
    let explain_at_rest = |subject: &Subject| {
        subject.at_rest()?;
        explain(subject.pid())
    };
    let subject = start(&[])?;
    let document = explain_at_rest(&subject)?;
    let settings = settings(&document)?;
    let setting = settings.first().ok_or_else(|| format!("{}", document["remedies"]))?;
    if setting.name != "GLIBC_TUNABLES" {
        return Err(format!("the best setting is {setting:?}").into());
    }
    if setting.predicted_bytes.is_some() {
        return Err(format!("free blocks between live ones are predicted: {setting:?}").into());
    }
    let least = trim_threshold(&document).and_then(|remedy| remedy["predicted_least_bytes"].as_u64());
    let least = least.ok_or("no lower bound")?;
    let freed_bytes = subject.number("freed_bytes")?;
    drop(subject);
    let with_setting = explain_at_rest(&start(&[setting.pair()])?)?;
    let less = anonymous(&document)?
        .checked_sub(anonymous(&with_setting)?)
        .ok_or("with the setting it holds more")?;
    // The end of the thread's arena has 20 % of the freed bytes; the main arena's is a block of
    // pthread_create.
    if least < freed_bytes / 100 * 19 || least > freed_bytes / 100 * 21 || less < freed_bytes / 100 * 94 {
        return Err(format!("of {freed_bytes} freed, {least} predicted at least, {less} actually").into());
    }
    if trim_threshold(&with_setting).is_some() {
        return Err(format!("the setting is offered again: {}", with_setting["remedies"]).into());
    }
    // Existing settings are kept in the offered value, so that it can be pasted.
    let with_other_setting = explain_at_rest(&start(&[("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")])?)?;
    let how = "GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.trim_threshold=131072";
    if with_other_setting["remedies"]
        .as_array()
        .is_none_or(|remedies| remedies.iter().all(|one| one["how"] != how))
    {
        return Err(format!("{}", with_other_setting["remedies"]).into());
    }
    let steady = Subject::start("fragmented", &["200000", "1000", "20000"])?;
    match trim_threshold(&explain_at_rest(&steady)?) {
        None => Ok(()),
        Some(remedy) => Err(format!("the thresholds of the subject have not grown: {remedy}").into()),
    }
}

/// Polars' own jemalloc has prefixed names: it reads `_RJEM_MALLOC_CONF`, and `MALLOC_CONF` has no
/// effect.
#[test]
fn a_jemalloc_with_a_prefix_is_offered_the_variable_that_it_reads() -> Outcome {
    let Some(before) = polars::start(here!(), None)? else { return Ok(()) };
    before.at_rest()?;
    let document = explain(before.pid())?;
    let settings = settings(&document)?;
    let setting = settings.iter().find(|setting| setting.name.ends_with("MALLOC_CONF"));
    let setting = setting.ok_or_else(|| format!("{}", document["remedies"]))?;
    drop(before);
    if setting.name != "_RJEM_MALLOC_CONF" {
        return Err(format!("{setting:?} is offered").into());
    }
    let after = polars::start(here!(), Some(setting.pair()))?.ok_or("no polars")?;
    check_effect(&after, setting, anonymous(&document)?)
}
