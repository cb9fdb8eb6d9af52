//! On-disk record of the finished runs of a lab, so that a killed or interrupted lab can resume.
//!
//! A folder holds `lab.json` (verb and key of the lab), `journal.jsonl` (one line for each finished
//! run) and `cells/` (output and recordings of runs). Only whole lines count: a line cut off when
//! the lab was killed can only be the last, and its run is repeated.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::atomic_file;
use super::cell::{Node, Outcome};
use super::json_lines::{JsonLines, write_line};
use super::path_error::{AtPath, path_error};

/// Labs in the cache that were not resumed for this long are removed.
const MAX_IDLE_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// How long a lock held by another process is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_millis(300);
/// Interval between attempts to lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(5);

/// Access for the user only.
const PRIVATE_MODE: u32 = 0o700;
/// Permission of the group and of others to write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Maximum length of the part of a subject's name in the name of its folder.
const MAX_FOLDER_NAME_CHARS: usize = 64;
/// Length of the part of a subject's hash in the name of its folder, in hexadecimal digits.
const FOLDER_HASH_DIGITS: usize = 8;
/// The same for the hash of a lab in the name of its folder in the cache.
const LAB_HASH_DIGITS: usize = 16;

/// Name of the file with the finished runs.
const JOURNAL_FILE: &str = "journal.jsonl";
/// Name of the file with verb and key of a lab.
const LAB_FILE: &str = "lab.json";

/// Subfolder of a lab for rounds that run elsewhere.
pub const REMOTE_FOLDER: &str = "slurm";
/// Subfolder staged before a lab is opened, with the files that other machines need.
pub const STAGED_FOLDER: &str = "staged";

/// Name prefix of the folder that the jobs of an executor write into; its number follows.
const WORK_PREFIX: &str = "work-";
/// How files that are being written begin, in this version and in earlier ones.
const TEMPORARY_PREFIXES: [&str; 2] = [atomic_file::TEMPORARY_PREFIX, ".lab.json."];

/// A run in the journal.
#[derive(Debug)]
struct JournaledRun {
    outcome: Outcome,
    /// Whether this lab made the run or took it from the journal: an earlier one may have made more
    /// runs, or those of other subjects.
    is_used: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RunKey {
    /// Name of its subject.
    subject: String,
    round: u32,
}

/// The folder of a lab.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    /// Whether the user chose the folder; it is then not removed.
    is_user_folder: bool,
    file: LockedFile,
    runs: BTreeMap<RunKey, JournaledRun>,
    /// Number of runs found when it was opened.
    resumed_runs: usize,
    /// Hash that identifies the lab.
    key: String,
}

/// Where and how to open a journal.
#[derive(Clone, Debug, Default)]
pub struct JournalOptions {
    /// Folder chosen by the user; `None`: a folder in the user's cache, removed when the lab is
    /// done.
    pub folder: Option<PathBuf>,
    /// Whether to discard earlier runs.
    pub is_fresh: bool,
}

#[derive(Serialize, Deserialize)]
struct LabFile {
    /// Its verb.
    lab: String,
    /// Hash that identifies the lab.
    key: String,
}

/// A line of the journal: a finished run.
#[derive(Serialize, Deserialize)]
struct Line {
    subject: String,
    round: u32,
    outcome: Outcome,
}

impl Journal {
    /// Number of runs that the folder holds for this lab; 0 if it belongs to another lab, cannot be
    /// read, which [`Journal::open`] reports, or if `options.is_fresh`.
    pub fn peek(verb: &str, description: &impl Serialize, options: &JournalOptions) -> usize {
        let Ok(key) = lab_key(verb, description) else { return 0 };
        let folder = options.folder.clone().unwrap_or_else(|| cache().join(folder_name(verb, &key)));
        let lab = LabFile::read(&folder).ok().flatten();
        if options.is_fresh || lab.is_none_or(|lab| lab.key != key) {
            return 0;
        }
        let runs = File::open(folder.join(JOURNAL_FILE)).and_then(|file| FinishedRuns::read(&file));
        runs.map_or(0, |runs| runs.outcomes.len())
    }

    /// Opens the folder of the lab of `verb` and `description`, which must contain everything that
    /// determines its runs. A folder with the same description is resumed.
    ///
    /// # Errors
    /// One line that names the folder: it belongs to another lab, is in use, or is not writable.
    pub fn open(verb: &str, description: &impl Serialize, options: &JournalOptions) -> Result<Self, String> {
        let key = lab_key(verb, description)?;
        let is_user_folder = options.folder.is_some();
        let folder = match &options.folder {
            // Absolute, because jobs may run in other working directories.
            Some(folder) => std::path::absolute(folder).at(folder)?,
            None => prepare_cache()?.join(folder_name(verb, &key)),
        };
        std::fs::DirBuilder::new().recursive(true).mode(PRIVATE_MODE).create(&folder).at(&folder)?;
        let path = folder.join(JOURNAL_FILE);
        // Rejects a foreign folder before anything is created in it.
        LabFile::read(&folder)?;
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path).at(&path)?;
        let mut file = LockedFile::lock(file).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => format!(
                "{}: another strandline is at work on this lab; wait for it, or give this one another --dir",
                folder.display()
            ),
            _ => path_error(&path, &error),
        })?;
        // Read again under the lock: the previous holder may have written in the meantime.
        match LabFile::read(&folder)? {
            Some(lab) => {
                // A journal without runs holds nothing to lose.
                let journal_bytes = file.0.metadata().at(&path)?.len();
                if lab.key != key && !options.is_fresh && journal_bytes > 0 {
                    return Err(lab.refuse_takeover(&folder));
                }
                if lab.key != key {
                    file.0.set_len(0).at(&path)?;
                    write_lab(&folder, verb, &key)?;
                }
            }
            None => write_lab(&folder, verb, &key)?,
        }
        if options.is_fresh {
            file.0.set_len(0).at(&path)?;
            // What cannot be removed is not read: outcomes name the files of their own run, and the
            // files of rounds their lab.
            drop(std::fs::remove_dir_all(folder.join("cells")));
            drop(std::fs::remove_dir_all(folder.join(REMOTE_FOLDER).join("rounds")));
        }
        let outcomes = resume(&mut file.0).at(&path)?;
        let resumed_runs = outcomes.len();
        let resumed = |(key, outcome)| (key, JournaledRun { outcome, is_used: false });
        let runs = outcomes.into_iter().map(resumed).collect();
        Ok(Self { folder, is_user_folder, file, runs, resumed_runs, key })
    }

    /// Number of runs finished before this process opened the journal.
    pub fn resumed_runs(&self) -> usize {
        self.resumed_runs
    }

    /// Hash that identifies the lab.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Folder that the jobs of an executor write into while they run.
    pub fn work_folder(&self, executor: usize) -> PathBuf {
        self.folder.join(format!("{WORK_PREFIX}{executor}"))
    }

    /// Folder for the output of a run.
    pub fn cell(&self, subject: &str, round: u32) -> PathBuf {
        cell_folder(&self.folder, subject, round)
    }

    /// The machines of all runs made elsewhere.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.runs.values().filter_map(|run| run.outcome.node.as_ref())
    }

    /// Number of runs of this lab whose outcome has a property.
    pub fn count_runs(&self, has_property: impl Fn(&Outcome) -> bool) -> usize {
        self.runs.values().filter(|run| run.is_used && has_property(&run.outcome)).count()
    }

    /// The outcome of a run, if it was done; it counts as one of this lab from here on.
    pub fn outcome(&mut self, subject: &str, round: u32) -> Option<&Outcome> {
        let run = self.runs.get_mut(&RunKey { subject: subject.to_owned(), round })?;
        run.is_used = true;
        Some(&run.outcome)
    }

    /// Appends the outcome of a run to the journal.
    pub fn keep(&mut self, subject: &str, round: u32, outcome: &Outcome) -> Result<(), String> {
        let line = Line { subject: subject.to_owned(), round, outcome: outcome.clone() };
        write_line(&mut self.file.0, &line).at(&self.folder.join(JOURNAL_FILE))?;
        let run = JournaledRun { outcome: line.outcome, is_used: true };
        self.runs.insert(RunKey { subject: line.subject, round }, run);
        Ok(())
    }

    /// Discards all runs, then does the same as [`Journal::finish`].
    pub fn abandon(self) {
        // If the journal cannot be truncated, the next open reports the old lab.
        drop(self.file.0.set_len(0));
        drop(std::fs::remove_dir_all(self.folder.join(REMOTE_FOLDER).join("rounds")));
        self.finish();
    }

    /// Ends the lab: removes the work folders, or the whole folder if it is in the cache.
    pub fn finish(self) {
        if !self.is_user_folder {
            drop(std::fs::remove_dir_all(&self.folder));
            return;
        }
        // Work folders that cannot be removed only take space.
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let number = name.strip_prefix(WORK_PREFIX).map(str::parse::<usize>);
            if number.is_some_and(|number| number.is_ok()) {
                drop(std::fs::remove_dir_all(entry.path()));
            }
        }
    }
}

/// Folder for the output of a run, below the folder of its lab.
pub fn cell_folder(folder: &Path, subject: &str, round: u32) -> PathBuf {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = subject.chars().map(safe).take(MAX_FOLDER_NAME_CHARS).collect();
    // Distinguishes names that are equal after replacement and truncation.
    let digest = hex(&Sha256::digest(subject.as_bytes()));
    let digest = digest.get(..FOLDER_HASH_DIGITS).unwrap_or_default();
    folder.join("cells").join(format!("{name}-{digest}-{round}"))
}

impl LabFile {
    /// Reads `lab.json` of `folder`; `None` if the folder is empty, except for staged files and an
    /// empty journal.
    ///
    /// # Errors
    /// One line: the folder holds something else, which is never touched.
    fn read(folder: &Path) -> Result<Option<Self>, String> {
        let path = folder.join(LAB_FILE);
        let advice = "it is not changed: repair or remove it, or give another --dir";
        match std::fs::read(&path) {
            Ok(text) => match serde_json::from_slice(&text) {
                Ok(lab) => Ok(Some(lab)),
                Err(error) => Err(format!("{} is not a lab's ({error}); {advice}", path.display())),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => match has_files(folder) {
                Ok(false) => Ok(None),
                Ok(true) => {
                    Err(format!("{} is not empty and holds no lab; give another --dir", folder.display()))
                }
                Err(error) => Err(path_error(folder, &error)),
            },
            Err(error) => Err(format!("{}: {error}; {advice}", path.display())),
        }
    }

    /// The error of a lab that finds this other one in its folder.
    fn refuse_takeover(&self, folder: &Path) -> String {
        format!(
            "{} holds another lab ({}, or the same with other commands, files, settings or variables); give another --dir, or \
             --fresh to replace it",
            folder.display(),
            self.lab
        )
    }
}

/// Whether a folder holds anything except staged files and the leftovers of a lab killed at its
/// start: an empty journal, a partly written `lab.json`.
fn has_files(folder: &Path) -> std::io::Result<bool> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_new = TEMPORARY_PREFIXES.iter().any(|prefix| name.to_string_lossy().starts_with(prefix));
        if name != STAGED_FOLDER && !is_new && (name != JOURNAL_FILE || entry.metadata()?.len() > 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn write_lab(folder: &Path, verb: &str, key: &str) -> Result<(), String> {
    let lab = LabFile { lab: verb.to_owned(), key: key.to_owned() };
    let text = serde_json::to_vec_pretty(&lab).map_err(|error| error.to_string())?;
    atomic_file::write(&folder.join(LAB_FILE), &text)
}

fn lab_key(verb: &str, description: &impl Serialize) -> Result<String, String> {
    let text = serde_json::to_vec(&(verb, env!("CARGO_PKG_VERSION"), description));
    Ok(hex(&Sha256::digest(text.map_err(|error| error.to_string())?)))
}

/// Name of the folder of a lab in the cache.
fn folder_name(verb: &str, key: &str) -> String {
    format!("{verb}-{}", key.get(..LAB_HASH_DIGITS).unwrap_or(key))
}

/// The file of a journal, locked against other labs.
#[derive(Debug)]
struct LockedFile(File);

impl Drop for LockedFile {
    /// Unlocks: a child that was just forked has the file open until its exec, and would keep the
    /// lock.
    fn drop(&mut self) {
        drop(strandline_sys::files::unlock(&self.0));
    }
}

impl LockedFile {
    /// Locks the journal, with a short wait: a process forked a moment ago may hold the descriptor
    /// until it execs.
    fn lock(file: File) -> std::io::Result<Self> {
        let begin = Instant::now();
        loop {
            match strandline_sys::files::lock(&file) {
                Err(error)
                    if error.kind() == std::io::ErrorKind::WouldBlock && begin.elapsed() < LOCK_TIMEOUT =>
                {
                    std::thread::sleep(LOCK_INTERVAL);
                }
                locked => return locked.map(|()| Self(file)),
            }
        }
    }
}

/// The runs in the valid lines of a journal, up to the first line that is damaged or cut off: runs
/// after it are made again.
struct FinishedRuns {
    outcomes: BTreeMap<RunKey, Outcome>,
    /// Size of these lines.
    bytes: u64,
}

impl FinishedRuns {
    fn read(file: &File) -> std::io::Result<Self> {
        let mut outcomes = BTreeMap::new();
        let mut lines = JsonLines::of(file);
        while let Some(Line { subject, round, outcome }) = lines.next()? {
            outcomes.insert(RunKey { subject, round }, outcome);
        }
        Ok(Self { outcomes, bytes: lines.valid_bytes })
    }
}

/// Reads the finished runs and truncates the file after the last valid line, so that the next line
/// starts at the beginning of a line.
fn resume(file: &mut File) -> std::io::Result<BTreeMap<RunKey, Outcome>> {
    let runs = FinishedRuns::read(file)?;
    file.set_len(runs.bytes)?;
    file.seek(SeekFrom::End(0))?;
    Ok(runs.outcomes)
}

/// Folder for unfinished labs of this user: `strandline/lab` below the user's cache, else below a
/// folder of the user in the system's temporary folder.
pub fn cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let base = base.filter(|base| base.is_absolute());
    let temporary =
        || std::env::temp_dir().join(format!("strandline-{}", strandline_sys::host::effective_user()));
    base.map_or_else(temporary, |base| base.join("strandline")).join("lab")
}

/// Creates the cache with access for this user only, and removes labs that were not resumed for
/// [`MAX_IDLE_AGE`].
fn prepare_cache() -> Result<PathBuf, String> {
    let cache = cache();
    let advice = "give --dir, or set XDG_CACHE_HOME to a folder of your own";
    let named = |error: std::io::Error| format!("{}: {error}; {advice}", cache.display());
    for folder in [cache.parent().unwrap_or(&cache), &cache] {
        std::fs::DirBuilder::new().recursive(true).mode(PRIVATE_MODE).create(folder).map_err(named)?;
        let metadata = std::fs::symlink_metadata(folder).map_err(named)?;
        let is_own = metadata.is_dir() && metadata.uid() == strandline_sys::host::effective_user();
        if !is_own || metadata.mode() & WRITABLE_BY_OTHERS != 0 {
            return Err(format!(
                "{} is another user's, or others may write there: it is not used; {advice}",
                folder.display()
            ));
        }
        // A folder made by an earlier version may be readable by others.
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(PRIVATE_MODE)).map_err(named)?;
    }
    // An old lab whose age cannot be read stays.
    for entry in std::fs::read_dir(&cache).into_iter().flatten().flatten() {
        let journal = entry.path().join(JOURNAL_FILE);
        let age =
            journal.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|at| at.elapsed().ok());
        if age.is_some_and(|age| age > MAX_IDLE_AGE) {
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
    Ok(cache)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::cell::End;
    use super::*;

    fn outcome(status: u8) -> Outcome {
        Outcome { end: End::Exited(status), ..Outcome::not_started(String::new()) }
    }

    #[test]
    fn existing_runs_are_counted_without_opening_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let options = JournalOptions { folder: Some(folder.path().join("lab")), is_fresh: false };
        assert_eq!(Journal::peek("study", &"x", &options), 0);
        assert!(!folder.path().join("lab").exists());
        let mut journal = Journal::open("study", &"x", &options).unwrap();
        assert_eq!(Journal::peek("study", &"x", &options), 0);
        journal.keep("a", 0, &outcome(0)).unwrap();
        assert_eq!(Journal::peek("study", &"x", &options), 1);
        let mut file = OpenOptions::new().append(true).open(folder.path().join("lab/journal.jsonl")).unwrap();
        file.write_all(b"{\"subject\"").unwrap();
        assert_eq!(Journal::peek("study", &"x", &options), 1, "a line that was cut off is no run");
        assert_eq!(Journal::peek("study", &"y", &options), 0, "another's");
        assert_eq!(Journal::peek("study", &"x", &JournalOptions { is_fresh: true, ..options.clone() }), 0);
    }

    #[test]
    fn a_journal_resumes_after_its_last_complete_line() {
        let folder = tempfile::tempdir().unwrap();
        let options = JournalOptions { folder: Some(folder.path().to_owned()), is_fresh: false };
        let mut journal = Journal::open("compare", &"x", &options).unwrap();
        journal.keep("a", 0, &outcome(0)).unwrap();
        journal.keep("b", 0, &outcome(1)).unwrap();
        assert!(Journal::open("compare", &"x", &options).unwrap_err().contains("at work"), "one at a time");
        drop(journal);
        let path = folder.path().join("journal.jsonl");
        let journal_bytes = std::fs::read(&path).unwrap();
        for cut in 0..=journal_bytes.len() {
            std::fs::write(&path, &journal_bytes[..cut]).unwrap();
            let mut journal = Journal::open("compare", &"x", &options).unwrap();
            let lines = journal_bytes[..cut].iter().filter(|&&byte| byte == b'\n').count();
            assert_eq!(journal.resumed_runs(), lines);
            journal.keep("c", 7, &outcome(2)).unwrap();
            drop(journal);
            let mut journal = Journal::open("compare", &"x", &options).unwrap();
            assert_eq!(journal.resumed_runs(), lines + 1);
            assert_eq!(journal.count_runs(|_| true), 0, "none was taken from it yet");
            assert_eq!(journal.outcome("c", 7), Some(&outcome(2)));
            assert_eq!(journal.count_runs(|_| true), 1);
        }
        let mut fresh =
            Journal::open("compare", &"x", &JournalOptions { is_fresh: true, ..options.clone() }).unwrap();
        assert_eq!(fresh.resumed_runs(), 0);
        fresh.keep("a", 0, &outcome(0)).unwrap();
        drop(fresh);
        assert!(Journal::open("compare", &"y", &options).unwrap_err().contains("another lab"));
        Journal::open("compare", &"x", &options).unwrap().abandon();
        assert_eq!(Journal::open("compare", &"y", &options).unwrap().resumed_runs(), 0, "nothing is lost");
    }

    /// All files and folders below a folder, with contents.
    fn contents(folder: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let mut files = Vec::new();
        let mut waiting = vec![folder.to_owned()];
        while let Some(path) = waiting.pop() {
            if path.is_dir() {
                waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            files.push((path.clone(), std::fs::read(&path).ok()));
        }
        files.sort();
        files
    }

    #[test]
    fn foreign_folders_are_never_changed() {
        let theirs: [&[(&str, &str)]; 4] = [
            &[("cells/mine.txt", "dear"), ("journal.jsonl", "my own journal\n")],
            &[("letter.txt", "dear")],
            // Damaged, or read from a failing disk.
            &[("lab.json", ""), ("journal.jsonl", "{}\n")],
            &[("lab.json", "{\"lab\": \"compare\"}"), ("journal.jsonl", "{}\n"), ("cells/a/out", "1")],
        ];
        for files in theirs {
            let folder = tempfile::tempdir().unwrap();
            for (name, text) in files {
                let path = folder.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            let before = contents(folder.path());
            for is_fresh in [false, true] {
                let options = JournalOptions { folder: Some(folder.path().to_owned()), is_fresh };
                let why = Journal::open("compare", &"x", &options).unwrap_err();
                assert!(why.contains("--dir"), "{why}");
                assert_eq!(contents(folder.path()), before, "{why}");
            }
        }
    }

    #[test]
    fn only_what_a_lab_made_goes_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let options = JournalOptions { folder: Some(folder.path().to_owned()), is_fresh: false };
        let journal = Journal::open("compare", &"x", &options).unwrap();
        let names = ["work-0", "work-17", "work-in-progress", "work-"];
        for name in names {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        journal.finish();
        let remaining: Vec<_> = names.iter().filter(|name| folder.path().join(name).exists()).collect();
        assert_eq!(remaining, [&"work-in-progress", &"work-"]);
    }

    #[test]
    fn similar_names_have_separate_folders() {
        let folder = tempfile::tempdir().unwrap();
        let options = JournalOptions { folder: Some(folder.path().to_owned()), is_fresh: false };
        let journal = Journal::open("compare", &"x", &options).unwrap();
        assert_ne!(journal.cell("a/b", 1), journal.cell("a_b", 1));
        assert!(journal.cell("../../etc", 1).starts_with(folder.path().join("cells")));
    }
}
