//! Fabricated heaps, checked by glibc itself: a program adopts one, and its own `mallinfo` and
//! `malloc_trim` must agree with `strandline-synth`. This shows that the readers' tests use heaps
//! that the real allocator accepts.

use std::path::{Path, PathBuf};
use std::process::Command;

use strandline_synth::{Heap, Places, Recipe, Version, fabricate};

use crate::support::{Libc, Outcome, Result, Subject, for_each, here, repetitions, skipped, subject};

/// Starts the program, linked statically, without address randomisation.
fn adopt(program: &Path, file: Option<&Path>) -> Result<Subject> {
    let mut command = Command::new("setarch");
    command.arg("-R").arg(program).args(file);
    Subject::start_command(command)
}

/// Addresses of main_arena and mp_ in the program's own data.
fn symbols(program: &Path) -> Result<(u64, u64)> {
    let output = Command::new("nm").arg(program).output()?;
    let text = String::from_utf8(output.stdout)?;
    let address = |name: &str| -> Result<u64> {
        let line = text.lines().find(|line| line.ends_with(&format!(" {name}")));
        let hex = line.and_then(|line| line.split(' ').next()).ok_or_else(|| format!("no {name}"))?;
        Ok(u64::from_str_radix(hex, 16)?)
    };
    Ok((address("main_arena")?, address("mp_")?))
}

/// Writes the heap in adopt.c's format.
fn write(heap: &Heap, path: &Path) -> Outcome {
    let mut file = Vec::new();
    let mut record = |what: u64, address: u64, bytes: &[u8]| {
        for word in [what, address, bytes.len() as u64] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(bytes);
    };
    for (start, bytes) in heap.image.ranges() {
        let end = start + bytes.len() as u64;
        if start == heap.recipe.places.heap {
            let used = (heap.system_break - start) as usize;
            record(1, start, bytes.get(..used).ok_or("the break is outside the heap")?);
        } else if !(start..end).contains(&heap.main_arena) {
            record(0, start, bytes);
        }
    }
    let mut arena = vec![0; heap.recipe.version.arena_bytes() as usize];
    heap.image.read_some(heap.main_arena, &mut arena);
    record(2, heap.main_arena, &arena);
    Ok(std::fs::write(path, file)?)
}

fn check(program: &Path, places: Places, version: Version, seed: u64) -> Outcome {
    // Mappings of single chunks are counted in mp_, which keeps the program's values.
    let heap = fabricate(&Recipe { places, mmapped_chunks: 0, ..Recipe::from_seed(version, seed) });
    let path = PathBuf::from(format!("{}.{seed}.heap", program.display()));
    write(&heap, &path)?;
    let adopted = adopt(program, Some(&path));
    std::fs::remove_file(&path)?;
    let mut subject = adopted?;
    let ours = &heap.expected.mallinfo;
    let figures = [
        ("arena", ours.arena),
        ("ordblks", ours.ordblks),
        ("smblks", ours.smblks),
        ("fsmblks", ours.fsmblks),
        ("uordblks", ours.uordblks),
        ("fordblks", ours.fordblks),
        ("keepcost", ours.keepcost),
    ];
    for (field, expected) in figures {
        let theirs = subject::number(&subject.ready["mallinfo"], field)?;
        if theirs != expected {
            return Err(format!("{field}: fabricated {expected}, glibc {theirs}").into());
        }
    }
    let expected: u64 = heap.expected.trimmed_ranges.iter().map(|(start, end)| end - start).sum();
    let given_back = subject::number(&subject.ask(b't')?, "given_back_bytes")?;
    if given_back == expected {
        return Ok(());
    }
    Err(format!("malloc_trim: fabricated {expected}, glibc {given_back}").into())
}

/// The heap layout of a library; `None` for an unknown one.
fn version(libc: &Libc) -> Option<Version> {
    match libc.name.as_str() {
        "bullseye" => Some(Version::V2_31),
        "trixie" => Some(Version::V2_41),
        "sid" => Some(Version::V2_43),
        _ => {
            let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            (text.trim() == "glibc 2.36").then_some(Version::V2_36)
        }
    }
}

#[test]
fn glibc_accepts_fabricated_heaps() -> Outcome {
    let mut libcs = vec![Libc { keeps_symbols: true, ..Libc::system_static() }];
    let foreign = Libc::foreign().into_iter().filter(|libc| libc.is_static);
    libcs.extend(foreign.map(|libc| Libc { keeps_symbols: true, ..libc }));
    for libc in libcs {
        let Some(version) = version(&libc) else {
            skipped(here!(), "it is not 2.36, and no other layout is known for it");
            continue;
        };
        let program = subject::compile("adopt", &libc)?;
        let (main_arena, parameters) = symbols(&program)?;
        let heap = adopt(&program, None)?.number("break_address")?;
        let places = Places { heap, main_arena, parameters };
        for_each(1..=repetitions(12, 100), |seed| check(&program, places, version, *seed))
            .map_err(|error| format!("{}: {error}", libc.label()))?;
    }
    Ok(())
}
