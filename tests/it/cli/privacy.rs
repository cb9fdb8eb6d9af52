//! Contents of the target's memory reach no output: a marker is placed everywhere in one subject,
//! and in the damaged words of another subject's heap, and no byte of it may appear.

use crate::support::{Libc, Outcome, Subject, for_each, strandline};

const MARKER: &str = "STRANDSECRETLINE";

/// The marker, its halves (a word each), and these words in the number formats of a reader.
fn traces() -> Vec<String> {
    let mut traces = vec![MARKER.to_owned()];
    for half in [&MARKER[..8], &MARKER[8..]] {
        traces.push(half.to_owned());
        let bytes: Vec<u8> = half.bytes().collect();
        let mut word = 0u64;
        for byte in bytes.iter().rev() {
            word = word << 8 | u64::from(*byte);
        }
        traces.push(format!("{word:x}"));
        // chunk sizes are read without their low bits
        traces.push(format!("{:x}", word & !7));
        traces.push(word.to_string());
        traces.push((word & !7).to_string());
    }
    traces
}

/// All outputs of strandline about a process.
fn outputs(pid: &str) -> crate::support::Result<Vec<(String, String)>> {
    let commands: [&[&str]; 6] = [
        &["explain", pid],
        &["explain", "--rows", "all", pid],
        &["explain", "--json", pid],
        &["reclaim", "--dry-run", pid],
        &["reclaim", "--json", pid],
        &["reclaim", "--remedy", "zero_pages", pid],
    ];
    let mut outputs = Vec::new();
    for command in commands {
        let run = strandline::run(command)?;
        if run.stdout.is_empty() && run.stderr.is_empty() {
            return Err(format!("`strandline {}` printed nothing", command.join(" ")).into());
        }
        outputs.push((command.join(" "), format!("{}{}", run.stdout, run.stderr)));
    }
    Ok(outputs)
}

fn check_no_trace(subject: &Subject) -> Outcome {
    let traces = traces();
    for (command, text) in outputs(&subject.pid_text())? {
        let lower = text.to_lowercase();
        if let Some(trace) = traces.iter().find(|trace| lower.contains(&trace.to_lowercase())) {
            return Err(format!("`strandline {command}` printed {trace:?}, which is target memory").into());
        }
    }
    Ok(())
}

#[test]
fn payload_stays_private() -> Outcome {
    check_no_trace(&Subject::start("secret_heap", &[])?)
}

#[test]
fn messages_on_a_damaged_heap_contain_none_of_its_words() -> Outcome {
    for_each(["random", "words", "cycle", "arena", "secondary"], |mode| {
        let subject =
            Subject::start_with(&Libc::system(), "trap_heap", &[mode, "7"], &[("MARKER", &MARKER[..8])])?;
        check_no_trace(&subject)
    })
}

#[test]
fn the_traces_are_what_a_reader_would_print() {
    assert!(traces().contains(&"4553444e41525453".to_owned()), "STRANDSE, little-endian");
}
