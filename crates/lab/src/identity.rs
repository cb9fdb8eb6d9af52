//! Identity of the files of a command: a rebuilt program is another program, and its runs must not
//! be mixed with those of the old one.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::cell::Subject;
use super::figures::find_in_path;

/// Identity of a file: a replaced or changed file differs in one of these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FileIdentity {
    path: PathBuf,
    bytes: u64,
    modified_ns: i64,
    inode: u64,
}

/// Maximum number of parts examined in one word. A change of a file named beyond them is not
/// noticed.
const MAX_PARTS: usize = 256;
/// A longer word is no path: `PATH_MAX` of the kernel (include/uapi/linux/limits.h).
const MAX_PATH_BYTES: usize = 4096;
const NS_PER_SECOND: i64 = 1_000_000_000;

/// The files named by `subjects`: programs, and every word of the commands, of shell text in them
/// and of variables that is a file or contains one after `=` or between `:`. Files that a program
/// opens by itself are unknown.
pub fn files(subjects: &[Subject]) -> Vec<FileIdentity> {
    let mut words = BTreeSet::new();
    for subject in subjects {
        let values = subject.environment.iter().filter_map(|(_, value)| value.as_deref());
        let subject_words = subject.command.iter().map(String::as_str).chain(values);
        words.extend(subject_words.map(|word| (subject.directory.as_deref(), word)));
    }
    let mut paths = BTreeSet::new();
    for (folder, word) in words {
        let targets = redirect_targets(word);
        for part in std::iter::once(word).chain(parts(word)) {
            if part.is_empty() || part.len() > MAX_PATH_BYTES || targets.contains(part) {
                continue;
            }
            paths.insert(folder.map_or_else(|| PathBuf::from(part), |folder| folder.join(part)));
            paths.extend(find_in_path(part));
        }
    }
    paths.iter().filter_map(|path| FileIdentity::of(path)).collect()
}

/// The parts of a word that may be file names.
fn parts(word: &str) -> impl Iterator<Item = &str> {
    let is_separator = |c: char| c.is_whitespace() || "=:,;|&<>()'\"`".contains(c);
    word.split(is_separator).take(MAX_PARTS)
}

/// Targets of shell redirections: runs change these files, which must not invalidate earlier runs.
fn redirect_targets(word: &str) -> BTreeSet<&str> {
    let targets = word.split('>').skip(1).take(MAX_PARTS);
    targets.filter_map(|text| parts(text.trim_start_matches('&')).find(|part| !part.is_empty())).collect()
}

/// Identity of the machine that runs a lab, and of strandline; `None`: unknown.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    kernel_release: Option<String>,
    boot_id: Option<String>,
    program_modified_ns: Option<i64>,
    program_bytes: Option<u64>,
}

impl Machine {
    /// Reads the identity of this machine and program.
    pub fn read() -> Self {
        let text = |path: &str| std::fs::read_to_string(path).ok();
        let program = FileIdentity::of(Path::new("/proc/self/exe"));
        Self {
            kernel_release: text("/proc/sys/kernel/osrelease"),
            boot_id: text("/proc/sys/kernel/random/boot_id"),
            program_modified_ns: program.as_ref().map(|file| file.modified_ns),
            program_bytes: program.as_ref().map(|file| file.bytes),
        }
    }

    /// The identity of strandline alone.
    pub fn only_program(self) -> Self {
        Self { kernel_release: None, boot_id: None, ..self }
    }
}

impl FileIdentity {
    /// The identity of the file at `path`; `None` if it is no regular file, or cannot be examined.
    fn of(path: &Path) -> Option<Self> {
        let metadata = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
        let modified_ns = metadata.mtime().wrapping_mul(NS_PER_SECOND).wrapping_add(metadata.mtime_nsec());
        Some(Self { path: path.to_owned(), bytes: metadata.len(), modified_ns, inode: metadata.ino() })
    }
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
        let names_file = |command: &[&str], value: Option<&str>| {
            let environment = value.map(|value| ("X".to_owned(), Some(value.to_owned())));
            let command = command.iter().map(ToString::to_string).collect();
            let subject =
                Subject { command, environment: environment.into_iter().collect(), ..Subject::default() };
            files(&[subject]).iter().any(|file| file.path == path)
        };
        assert!(names_file(&[name], None));
        assert!(names_file(&["sh", "-c", &format!("cd / && {name} > /dev/null")], None));
        assert!(names_file(&["x", &format!("--config={name}")], None));
        assert!(names_file(&["x"], Some(&format!("/nowhere:{name}"))));
        assert!(!names_file(&["x", "prog"], None));
        assert!(!names_file(&["sh", "-c", &format!("echo x >> {name}; wait")], None), "runs write it");
        assert!(!names_file(&["sh", "-c", &format!("echo x >{name}")], None));
        let before = files(&[Subject { command: vec![name.to_owned()], ..Subject::default() }]);
        std::fs::write(&path, "other").unwrap();
        assert_ne!(before, files(&[Subject { command: vec![name.to_owned()], ..Subject::default() }]));
    }
}
