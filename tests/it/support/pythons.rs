//! The CPythons of this machine: the system's, those under STRANDLINE_PYTHONS, by default pyenv's
//! (`VERSION/bin/python3`; scripts/fetch-pythons has Debian's), and one without a global lock,
//! named by STRANDLINE_FREE_THREADED.

use std::path::PathBuf;
use std::process::Command;

/// Minor versions that are read.
const READ: std::ops::RangeInclusive<u8> = 8..=14;

/// The minor version of a CPython with a global lock; `None` if there is none.
pub fn minor(python: &str) -> Option<u8> {
    let script = "import sys; print(sys.version_info[1], 't' in sys.abiflags)";
    let output = Command::new(python).args(["-S", "-E", "-c", script]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().strip_suffix(" False")?.parse().ok()
}

/// A CPython without a global lock; reports the test as skipped if there is none.
pub fn free_threaded(test: &str) -> Option<String> {
    let python = std::env::var("STRANDLINE_FREE_THREADED").ok();
    if python.is_none() {
        let reason =
            "STRANDLINE_FREE_THREADED names no python3.13t or later (Debian has none; scripts/build-python)";
        super::skipped(test, reason);
    }
    python
}

/// Paths of all CPythons of the versions that are read; reports missing ones, as skipped by `test`.
pub fn all(test: &str) -> Vec<String> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv/versions"));
    let folder = std::env::var_os("STRANDLINE_PYTHONS").map(PathBuf::from).or_else(home).unwrap_or_default();
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut found: Vec<String> =
        entries.map(|entry| entry.path().join("bin/python3").display().to_string()).collect();
    found.push("/usr/bin/python3".to_owned());
    found.sort();
    found.retain(|python| minor(python).is_some_and(|minor| READ.contains(&minor)));
    let missing: Vec<String> = READ
        .filter(|version| !found.iter().any(|python| minor(python) == Some(*version)))
        .map(|version| format!("3.{version}"))
        .collect();
    if !missing.is_empty() {
        let reason = format!("not in /usr/bin or {} (STRANDLINE_PYTHONS)", folder.display());
        super::skipped(&format!("{test} with CPython {}", missing.join(", ")), &reason);
    }
    found
}

/// One of them, preferably the system's.
pub fn one(test: &str) -> Option<String> {
    all(test).into_iter().min_by_key(|python| python != "/usr/bin/python3")
}
