//! The perls of this machine: the system's, and perls that `scripts/fetch-perls` unpacked to the
//! folder named by STRANDLINE_PERLS.

use std::path::PathBuf;
use std::process::Command;

/// The version of a perl, such as 5.36.0; `None` if there is none.
pub fn version(perl: &str) -> Option<String> {
    let output = Command::new(perl).args(["-e", "printf '%vd', $^V"]).output().ok()?;
    String::from_utf8(output.stdout).ok().filter(|_| output.status.success())
}

/// The series of a perl, such as `(5, 36)`; `None` if there is none.
pub fn series(perl: &str) -> Option<(u32, u32)> {
    let text = version(perl)?;
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Paths of all perls of `scripts/fetch-perls`; reports missing ones, as skipped by `test`.
pub fn fetched(test: &str) -> Vec<PathBuf> {
    let reason = match std::env::var_os("STRANDLINE_PERLS") {
        _ if !super::full() => "STRANDLINE_FULL=1 is not set (make test-full)".to_owned(),
        None => "STRANDLINE_PERLS does not name a folder of scripts/fetch-perls".to_owned(),
        Some(folder) => {
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let is_perl = |path: &PathBuf| path.to_string_lossy().contains("/perl-5.");
            let perls: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_perl).collect();
            if !perls.is_empty() {
                return perls;
            }
            format!("no perl in {}", PathBuf::from(folder).display())
        }
    };
    super::skipped(&format!("{test} with other perls"), &reason);
    Vec::new()
}

/// The system's perl, if it has its core modules, and the fetched ones.
pub fn all(test: &str) -> Vec<String> {
    let mut perls = Vec::new();
    let has_modules = Command::new("perl").args(["-MB", "-MDynaLoader", "-e", "1"]).output();
    if has_modules.is_ok_and(|output| output.status.success()) {
        perls.push("perl".to_owned());
    } else {
        super::skipped(test, "no perl with its core modules here (apt install perl)");
    }
    perls.extend(fetched(test).iter().map(|path| path.display().to_string()));
    perls
}
