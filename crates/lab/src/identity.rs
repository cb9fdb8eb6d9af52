//! Identity of the files of a command: a rebuilt program is another program, and its runs must not
//! be mixed with those of the old one.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::cell::Subject;
use super::figures::find_in_path;

/// A file's current state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct File {
    path: PathBuf,
    bytes: u64,
    modified_ns: i64,
    inode: u64,
}

/// Maximum number of parts examined in one word.
const MAX_PARTS: usize = 256;

/// The files named by `subjects`: programs, and every word of the commands, of shell text in them
/// and of variables that is a file or contains one after `=` or between `:`. Files that a program
/// opens by itself are unknown.
pub fn files(subjects: &[Subject]) -> Vec<File> {
    let mut words = BTreeSet::new();
    for subject in subjects {
        let values = subject.environment.iter().filter_map(|(_, value)| value.as_deref());
        let all = subject.command.iter().map(String::as_str).chain(values);
        words.extend(all.map(|word| (subject.directory.as_deref(), word)));
    }
    let mut paths = BTreeSet::new();
    for (folder, word) in words {
        let written = redirect_targets(word);
        for part in std::iter::once(word).chain(parts(word)) {
            if part.is_empty() || part.len() > 4096 || written.contains(part) {
                continue;
            }
            paths.insert(folder.map_or_else(|| PathBuf::from(part), |folder| folder.join(part)));
            paths.extend(find_in_path(part));
        }
    }
    paths.iter().filter_map(|path| file(path)).collect()
}

/// The parts of a word that may be file names.
fn parts(word: &str) -> impl Iterator<Item = &str> {
    let is_apart = |c: char| c.is_whitespace() || "=:,;|&<>()'\"`".contains(c);
    word.split(is_apart).take(MAX_PARTS)
}

/// Targets of shell redirections: runs change these files, which must not invalidate earlier runs.
fn redirect_targets(word: &str) -> BTreeSet<&str> {
    let after = word.split('>').skip(1).take(MAX_PARTS);
    after.filter_map(|after| parts(after.trim_start_matches('&')).find(|part| !part.is_empty())).collect()
}

/// The machine that runs: kernel release, boot id, and the file of strandline itself.
pub fn machine() -> Vec<String> {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let own = file(Path::new("/proc/self/exe")).map(|file| format!("{} {}", file.modified_ns, file.bytes));
    vec![text("/proc/sys/kernel/osrelease"), text("/proc/sys/kernel/random/boot_id"), own.unwrap_or_default()]
}

fn file(path: &Path) -> Option<File> {
    let data = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let modified_ns = data.mtime().wrapping_mul(1_000_000_000).wrapping_add(data.mtime_nsec());
    Some(File { path: path.to_owned(), bytes: data.len(), modified_ns, inode: data.ino() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_seen_wherever_a_command_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prog");
        std::fs::write(&path, "one").unwrap();
        let name = path.to_str().unwrap();
        let of = |command: &[&str], value: Option<&str>| {
            let environment = value.map(|value| ("X".to_owned(), Some(value.to_owned())));
            let command = command.iter().map(ToString::to_string).collect();
            let subject =
                Subject { command, environment: environment.into_iter().collect(), ..Subject::default() };
            files(&[subject]).iter().any(|file| file.path == path)
        };
        assert!(of(&[name], None));
        assert!(of(&["sh", "-c", &format!("cd / && {name} > /dev/null")], None));
        assert!(of(&["x", &format!("--config={name}")], None));
        assert!(of(&["x"], Some(&format!("/nowhere:{name}"))));
        assert!(!of(&["x", "prog"], None));
        assert!(!of(&["sh", "-c", &format!("echo x >> {name}; wait")], None), "runs write it");
        assert!(!of(&["sh", "-c", &format!("echo x >{name}")], None));
        let before = files(&[Subject { command: vec![name.to_owned()], ..Subject::default() }]);
        std::fs::write(&path, "other").unwrap();
        assert_ne!(before, files(&[Subject { command: vec![name.to_owned()], ..Subject::default() }]));
    }
}
