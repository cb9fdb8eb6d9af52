//! Cores saved by a program: alone, with the runtime in one file, and compressed.

use crate::support::sbcl::{Sbcl, explain, figures, figures_after, of_type, same, started};
use crate::support::subject::number;
use crate::support::{Folder, Outcome, Subject, for_any, for_each, here, skipped, some_of, strandline};

const FORMS: [(&str, &[&str]); 4] = [
    ("core", &[]),
    ("executable", &["executable=1"]),
    ("compressed", &["compression=1"]),
    ("compressed-executable", &["executable=1", "compression=1"]),
];

#[test]
fn saved_cores_are_read() -> Outcome {
    for_any(Sbcl::all(here!()), |sbcl| {
        for_each(some_of(FORMS, 2), |(form, arguments)| {
            let is_executable = form.ends_with("executable");
            if is_executable && sbcl.is_of_a_loader() {
                let test = format!("{}, {form}", here!());
                skipped(&test, &format!("{} runs by a loader", sbcl.path.display()));
                return Ok(());
            }
            let folder = Folder::new(&format!("sbcl-{form}"))?;
            let core = folder.0.join("saved");
            let save = format!("save={}", core.display());
            let mut arguments = arguments.to_vec();
            arguments.extend([save.as_str(), "count=30000"]);
            let saved = strandline::run_command(sbcl.subject("promoted", &arguments))?;
            if saved.status != Some(0) {
                return Err(format!("saving: {}", saved.summary()).into());
            }
            let command = if is_executable {
                let mut command = std::process::Command::new(&core);
                command.arg("kind=promoted");
                command
            } else {
                sbcl.with_core(&core, "promoted")
            };
            is_read(started(command)?)
        })
    })
}

/// Saved objects are pseudo-static and live; the new process made and dropped the same number.
fn is_read(mut subject: Subject) -> Outcome {
    let printed = figures_after(&mut subject, b'f')?;
    let document = explain(&subject)?;
    let ours = figures(&document)?;
    same("", ours, &printed, "dynamic_usage_bytes")?;
    let generations = ours["generations"].as_array().ok_or("no generations")?;
    let theirs = printed["generations"].as_array().ok_or("no generations")?;
    for (ours, theirs) in generations.iter().zip(theirs) {
        same("", ours, theirs, "bytes_allocated")?;
    }
    let (live, dead) =
        (of_type(ours, "live_by_type", "MESSAGE").0, of_type(ours, "dead_by_type", "MESSAGE").0);
    // Saved objects are part of the core, which is not reported by type.
    if (live, dead) != (0, 30_000) && (live, dead) != (1, 29_999) {
        return Err(format!("{live} messages live and {dead} dead, 30000 were dropped").into());
    }
    let predicted = number(ours, "usage_after_full_gc_bytes")?;
    let after = number(&subject.ask(b'g')?, "dynamic_usage_bytes")?;
    if predicted.abs_diff(after) > after / 50 {
        return Err(format!("{predicted} bytes of use predicted, {after} after a full collection").into());
    }
    Ok(())
}
