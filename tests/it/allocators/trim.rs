//! The predicted effect of `malloc_trim(0)`, compared with the subject's own call as counted by the
//! kernel, and with `reclaim`: equal to the byte.

use std::process::{Command, Stdio};

use crate::support::mallinfo::{Case, SETTINGS, same, seeds};
use crate::support::{Folder, Libc, Outcome, Subject, for_any, for_each, here, skipped, strandline, subject};

/// strandline predicts, and the subject trims itself.
fn check_prediction(case: &Case) -> Outcome {
    let mut subject = case.start()?;
    let document = strandline::explain(subject.pid())?;
    let predicted = strandline::predicted(&document, "malloc_trim").unwrap_or(0);
    let report = subject.ask(b't')?;
    subject.at_rest()?;
    let actual = subject::number(&report, "given_back_bytes")?;
    if predicted != actual {
        let caveats = strandline::caveats(&document);
        return Err(format!("predicted {predicted}, given back {actual} (caveats {caveats:?})").into());
    }
    let after = strandline::explain(subject.pid())?;
    same(&strandline::glibcs(&after).first().ok_or("no glibc")?["mallinfo"], &report["after"])?;
    match strandline::predicted(&after, "malloc_trim").unwrap_or(0) {
        0 => Ok(()),
        more => Err(format!("{more} more predicted after the trim").into()),
    }
}

#[test]
fn random_programs() -> Outcome {
    for_each(seeds(10_000, 12, 120).map(|seed| Case::new(&Libc::system(), seed, &[])), check_prediction)
}

#[test]
fn foreign_sbrk_and_blocked_break() -> Outcome {
    let cases = seeds(11_000, 3, 30).flat_map(|seed| {
        [&["sbrk=1", "block=0"][..], &["sbrk=0", "block=1"], &["sbrk=1", "block=1"]]
            .map(|options| Case::new(&Libc::system(), seed, options))
    });
    for_each(cases, check_prediction)
}

#[test]
fn settings() -> Outcome {
    let cases = seeds(12_000, 1, 5).flat_map(|seed| {
        SETTINGS.map(|(name, value)| Case::new(&Libc::system(), seed, &[]).set(name, value))
    });
    for_each(cases, check_prediction)
}

#[test]
fn other_glibcs() -> Outcome {
    let cases = Libc::foreign().into_iter().flat_map(|libc| {
        seeds(13_000, 1, 30).map(move |seed| Case::new(&libc, seed, &[])).collect::<Vec<_>>()
    });
    for_any(cases, check_prediction)
}

/// strandline predicts and calls; the subject's mallinfo afterwards is the same as after its own
/// call.
#[test]
fn reclaim_releases_the_predicted_bytes() -> Outcome {
    for_each(seeds(14_000, 4, 40).map(|seed| Case::new(&Libc::system(), seed, &[])), |case| {
        let mut subject = case.start()?;
        let document = strandline::json(&["reclaim", "--json", &subject.pid_text()])?;
        let (predicted, actual) = (&document["predicted_bytes"], &document["actual_bytes"]);
        if predicted.as_u64().is_none() || predicted != actual {
            return Err(format!("predicted {predicted}, actual {actual}: {}", document["reason"]).into());
        }
        let report = subject.ask(b't')?;
        assert_eq!(subject::number(&report, "given_back_bytes")?, 0, "its own trim finds nothing more");
        if !subject.finish()?.success() {
            return Err("the subject did not end well".into());
        }
        Ok(())
    })
}

#[test]
fn a_second_reclaim_releases_nothing() -> Outcome {
    let mut subject = Subject::start("fragmented", &[])?;
    subject.at_rest()?;
    let pid = subject.pid_text();
    let dry = strandline::json(&["reclaim", "--json", "--dry-run", &pid])?;
    let first = strandline::json(&["reclaim", "--json", "--remedy", "malloc_trim", &pid])?;
    assert_eq!(first["outcome"], "done", "{}", first["reason"]);
    assert_eq!(dry["predicted_bytes"], first["predicted_bytes"], "a dry run touches nothing");
    assert_eq!(first["predicted_bytes"], first["actual_bytes"]);
    let given_back = first["actual_bytes"].as_u64().ok_or("no actual_bytes")?;
    assert!(given_back > 30 << 20, "40 MiB, 1 block in 500 survives: {given_back}");
    let second = strandline::json(&["reclaim", "--json", "--remedy", "malloc_trim", &pid])?;
    assert_eq!(second["outcome"], "nothing_to_give_back");
    assert_eq!(subject::number(&subject.ask(b't')?, "given_back_bytes")?, 0);
    assert!(subject.finish()?.success());
    Ok(())
}

#[test]
fn survivors_pin_their_pages() -> Outcome {
    // A survivor every 4 KiB or so: free bytes share almost every page with a live one.
    let subject = Subject::start("fragmented", &["100000", "200", "20"])?;
    let document = strandline::explain(subject.pid())?;
    assert!(strandline::row(&document, "glibc.free.pinned") > 10 << 20, "{}", document["rows"]);
    Ok(())
}

/// Without symbols in a static program the function cannot be found: only the program can call it,
/// and no command is offered that would be refused.
#[test]
fn a_call_that_cannot_be_made_is_not_promised() -> Outcome {
    let test = here!();
    let folder = Folder::new("static")?;
    let program = folder.0.join("fragmented");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/subjects/fragmented.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-static", "-s", "-pthread", source, "-ldl", "-o"]).arg(&program);
    if !compiler.stderr(Stdio::null()).status()?.success() {
        skipped(test, "no static C library");
        return Ok(());
    }
    let subject = Subject::start_command(Command::new(&program))?;
    subject.at_rest()?;
    let document = strandline::explain(subject.pid())?;
    assert!(strandline::row(&document, "glibc.free.trim") > 30 << 20, "{}", document["rows"]);
    let remedies = document["remedies"].as_array().ok_or("no remedies")?;
    let trim = remedies.iter().find(|remedy| remedy["id"] == "malloc_trim").ok_or("not listed")?;
    let how = trim["how"].as_str().ok_or("no text")?;
    assert!(trim["kind"] == "program" && how.contains("no symbol malloc_trim"), "{trim}");
    let headline = document["verdict"]["headline"].as_str().ok_or("no headline")?;
    assert!(headline.contains("free heap") && !headline.contains("malloc_trim"), "{headline}");
    let refused = strandline::run(&["reclaim", &subject.pid_text()])?;
    refused.complains(3, &["no symbol malloc_trim to call"])
}
