//! `holders` of Rust programs: trait objects are named by their types.

#![cfg(test)]

use std::path::Path;
use std::process::Command;

use crate::support::{Outcome, Result, Subject, here, skipped, strandline};

/// Returns the subject, compiled with `options`; `None`, reported for `test`, without a compiler.
fn program(test: &str, options: &[&str]) -> Result<Option<Command>> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("subjects");
    std::fs::create_dir_all(&folder)?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/trait_objects.rs");
    let program = folder.join(format!("trait_objects{}", options.concat()));
    let mut compiler = Command::new("rustc");
    compiler.args(["-O", "-Dwarnings"]).args(options).arg(&source).arg("-o").arg(&program);
    match compiler.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skipped(test, "no rustc here");
            Ok(None)
        }
        Err(error) => Err(error.into()),
        Ok(output) if output.status.success() => Ok(Some(Command::new(&program))),
        Ok(output) => Err(format!("{compiler:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

fn instances(document: &serde_json::Value, name: &str) -> u64 {
    let types = document["types"].as_array().into_iter().flatten();
    types.filter(|of| of["name"] == name).filter_map(|of| of["instances"].as_u64()).sum()
}

#[test]
fn trait_objects_are_named_by_symbols_of_either_kind() -> Outcome {
    for mangling in ["-Csymbol-mangling-version=v0", "-Cdebuginfo=0", "-Copt-level=0"] {
        let Some(command) = program(here!(), &[mangling])? else { return Ok(()) };
        let subject = Subject::start_command(command)?;
        let document = strandline::json(&["holders", "--json", &subject.pid_text()])?;
        let each = subject.ready["each"].as_u64();
        for name in ["Round", "Labelled", "Common"] {
            let found = instances(&document, &format!("trait_objects::{name}"));
            assert_eq!(Some(found), each, "{mangling}: {name}");
        }
        assert!(subject.finish()?.success());
    }
    Ok(())
}

/// Without symbols a type is reported by its size, and not by a guessed name.
#[test]
fn types_of_a_stripped_program_are_sizes() -> Outcome {
    let Some(command) = program(here!(), &["-Cstrip=symbols"])? else {
        return Ok(());
    };
    let subject = Subject::start_command(command)?;
    let document = strandline::json(&["holders", "--json", &subject.pid_text()])?;
    let types = document["types"].as_array().ok_or("no types")?;
    let is_size = |name: &str| name.ends_with("-byte blocks");
    assert!(types.iter().all(|of| of["name"].as_str().is_some_and(is_size)), "{types:?}");
    let each = subject.ready["each"].as_u64().ok_or("the subject printed no number")?;
    // The size includes the counts that Arc adds before its value.
    assert!(instances(&document, "152-byte blocks") >= each, "{types:?}");
    assert!(subject.finish()?.success());
    Ok(())
}
