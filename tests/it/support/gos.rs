//! The Go toolchains of this machine: the one in PATH, Debian's (`/usr/lib/go-1.*`), and toolchains
//! that `scripts/fetch-gos` unpacked to the folder named by STRANDLINE_GOS.

use std::path::PathBuf;
use std::process::Command;

/// The version of a toolchain, such as 1.26.8; `None` if there is none.
pub fn version(go: &str) -> Option<String> {
    let output = Command::new(go).args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local").output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().strip_prefix("go")?.to_owned())
}

/// Returns every toolchain, each version once, as version and command; reports missing ones, as
/// skipped by `test`.
pub fn all(test: &str) -> Vec<(String, String)> {
    let folders = ["/usr/lib".to_owned()].into_iter().chain(std::env::var("STRANDLINE_GOS"));
    let entries = folders.flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let is_toolchain =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("go-1."));
    let paths = entries.map(|entry| entry.path()).filter(is_toolchain);
    let mut commands: Vec<String> = paths.map(|path| path.join("bin/go").display().to_string()).collect();
    commands.push("go".to_owned());
    let mut found: Vec<(String, String)> =
        commands.into_iter().filter_map(|go| Some((version(&go)?, go))).collect();
    found.sort();
    found.dedup_by(|(release, _), (previous, _)| release == previous);
    if found.is_empty() {
        super::skipped(test, "no go (apt-get install golang-go)");
    }
    if std::env::var_os("STRANDLINE_GOS").is_none() {
        super::skipped(
            &format!("{test} with other Gos"),
            "STRANDLINE_GOS does not name a folder of scripts/fetch-gos",
        );
    }
    found
}
