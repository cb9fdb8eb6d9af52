//! Perls that do not sleep in a known state: running, stopped, with several threads, several in one
//! process.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::perl::{PerlLedger, command, folder, list, number, start, start_command};
use crate::support::recording::signal;
use crate::support::waiting::{is_traced, state, until, until_true};
use crate::support::{Outcome, Result, Subject, full, here, perls, repetitions, skipped, strandline};

#[test]
fn a_busy_perl_is_counted_correctly() -> Outcome {
    for perl in perls::all(here!()) {
        let subject = Subject::start_command(command(&perl, "hot"))?;
        let (mut read, wanted) = (0, repetitions(20, 300));
        until("enough documents with the perl's figures", || {
            // The invariants hold in any state.
            let document = strandline::explain(subject.pid())?;
            let runtimes = list(&document["runtimes"]);
            let perl = runtimes.iter().find(|one| one["name"] == "perl").ok_or("no perl")?;
            let main = list(&perl["perl"]["interpreters"]).iter().find(|one| one["main"] == true);
            if let Some(main) = main.filter(|main| main["read"] == true) {
                read += 1;
                let (live, count) = (number(main, "heads.live")?, number(main, "sv_count")?);
                assert!(live.abs_diff(count) <= 64, "{live} heads, the perl has {count}");
            } else {
                // The perl was within an operation.
                let codes = strandline::caveats(&document);
                assert!(codes.iter().any(|code| code == "perl_disagrees"), "{codes:?}");
            }
            Ok((read == wanted).then_some(()))
        })?;
    }
    Ok(())
}

#[test]
fn a_stopped_perl_is_read_and_stays_stopped() -> Outcome {
    let Some(perl) = perls::all(here!()).into_iter().next() else { return Ok(()) };
    let subject = start(&perl, "functions")?;
    let pid = subject.pid();
    signal(pid, 19);
    until_true("the stop", || state(pid, pid) == Some('T'))?;
    let seen = PerlLedger::of(pid)?;
    assert!(number(seen.main()?, "retained.lexicals.bytes")? >= 16_000_000);
    // A released thread runs for a moment until the group stop holds it again.
    until_true("the stop, without a tracer", || state(pid, pid) == Some('T') && !is_traced(pid))?;
    signal(pid, 18);
    subject.at_rest()
}

#[test]
fn each_thread_has_its_own_interpreter() -> Outcome {
    for perl in perls::all(here!()) {
        if !has_threads(&perl) {
            skipped(here!(), &format!("{perl} was built without ithreads"));
            continue;
        }
        let mut subject = start(&perl, "threads")?;
        let theirs = crate::support::perl::own_figures(&mut subject)?;
        let seen = PerlLedger::of(subject.pid())?;
        let main = seen.main()?;
        assert_eq!(number(main, "heads.live")?, number(&theirs, "live_heads")?, "{perl}");
        let interpreters = list(&seen.perl["interpreters"]);
        let others: Vec<&Value> = interpreters.iter().filter(|one| one["main"] != true).collect();
        // threads::shared has one more, in which no thread runs.
        assert!(others.len() >= 3, "{perl}: {} interpreters", interpreters.len());
        let keeps = |one: &&&Value| {
            let top = list(&one["retained"]["top"]);
            top.iter().any(|buffer| buffer["sub"] == "main::thread_text" && buffer["lexical"] == "$threaded")
        };
        assert_eq!(others.iter().filter(keeps).count(), 3, "{perl}");
        assert!(others.iter().filter(keeps).all(|one| one["thread"].is_i64()), "{perl}: {others:?}");
        let sum: u64 = seen.rows("perl.pad.retained").iter().map(|row| row.1).sum();
        assert!(sum >= 3 * 500_000, "{perl}: {sum}");
    }
    Ok(())
}

fn has_threads(perl: &str) -> bool {
    let output = Command::new(perl).args(["-V:useithreads"]).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("'define'"))
}

/// Builds a C program linked with libperl; `None`, reported for `name`, if it cannot be built here.
fn embedded(name: &str) -> Result<Option<PathBuf>> {
    let output_of_perl = |arguments: &[&str]| -> Option<String> {
        let output = Command::new("perl").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(flags) = output_of_perl(&["-MExtUtils::Embed", "-e", "ccopts"]) else {
        skipped(name, "no perl with ExtUtils::Embed (apt install perl)");
        return Ok(None);
    };
    let library = output_of_perl(&["-MConfig", "-e", "print $Config{libperl}"]).unwrap_or_default();
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("embedded-{}", std::process::id()));
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(flags.split_whitespace()).arg("-O1").arg(folder().join("embedded.c")).arg("-o").arg(&place);
    cc.arg(format!("-l:{library}"));
    let output = cc.output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let first = errors
            .lines()
            .find(|line| line.contains("error") || line.contains("cannot"))
            .unwrap_or("cc failed");
        skipped(name, &format!("{first} (apt install libperl-dev)"));
        return Ok(None);
    }
    Ok(Some(place))
}

#[test]
fn each_perl_embedded_in_a_program_is_read() -> Outcome {
    let Some(program) = embedded(here!())? else { return Ok(()) };
    for count in [1_u64, 3] {
        let mut command = Command::new(&program);
        command.arg(count.to_string());
        let subject = start_command(command)?;
        let seen = PerlLedger::of(subject.pid())?;
        let interpreters = list(&seen.perl["interpreters"]);
        let mut kept: Vec<u64> = interpreters
            .iter()
            .flat_map(|one| list(&one["retained"]["top"]))
            .filter(|buffer| buffer["sub"] == "main::inner" && buffer["lexical"] == "$kept")
            .filter_map(|buffer| buffer["bytes"].as_u64())
            .collect();
        kept.sort_unstable();
        // The interpreter in PL_curinterp, and interpreters in which threads run. Perl keeps no
        // list of the others.
        assert!(kept.len() as u64 >= count.min(2), "{kept:?} of {count}");
        for bytes in kept {
            assert!((100_001..=310_000).contains(&bytes), "{bytes}");
        }
    }
    std::fs::remove_file(program)?;
    Ok(())
}

/// A 1 GiB heap of 5 million values, in full mode; a tenth of it otherwise.
#[test]
fn a_large_heap_is_counted_to_the_value() -> Outcome {
    let Some(perl) = perls::all(here!()).into_iter().next() else { return Ok(()) };
    let count = if full() { 5_000_000_u64 } else { 300_000 };
    let mut command = command(&perl, "big");
    command.arg(count.to_string());
    let subject = start_command(command)?;
    let seen = PerlLedger::of(subject.pid())?;
    let main = seen.main()?;
    assert_eq!(number(main, "heads.live")?, number(main, "sv_count")?);
    assert!(number(main, "strings.buffers")? >= count);
    Ok(())
}
