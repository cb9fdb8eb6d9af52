//! The rows of a group's ledger: each kind of memory, divided among processes and files.

use std::collections::BTreeMap;

use strandline_claims::Caveat;
use strandline_claims::rows::RowRef;
use strandline_claims::units::counted;
use strandline_process::group::Memory;
use strandline_process::group::files::{CachedFile, Files};

use super::facts::{GroupExplanation, GroupRow};
use super::parts::{self, Estimates, Part, Parts};
use super::processes::{GroupProcesses, ProcessCounts};
use super::shares::{Basis, Division, Want, share_out};
use crate::facts::{State, Totals};

/// Maximum files of a kind with their own rows; smaller ones are summed by folder.
const MAX_FILE_ROWS: usize = 50;
/// A file has its own row if it has at least the bytes of its kind divided by this.
const MIN_FILE_DIVISOR: u64 = 200;
/// Maximum folders of a kind with rows; the others are summed.
const MAX_FOLDER_ROWS: usize = 50;
/// Maximum processes with their own rows; the smaller ones are summed.
const MAX_PROCESS_ROWS: usize = 1000;
/// The processes' counts and the charge may differ by the charge divided by this, because they are
/// read one after the other.
const TOLERANCE_DIVISOR: u64 = 100;

/// Name and state of all rows that a group's ledger may have, beside those of processes.
pub fn legend() -> impl Iterator<Item = (&'static str, State)> {
    parts::ALL.iter().map(|kind| (kind.id, kind.state))
}

/// What the rows are made of.
pub(super) struct Inputs<'a> {
    /// The kernel's counters of the group.
    pub memory: &'a Memory,
    /// The group's processes.
    pub processes: &'a GroupProcesses,
    /// The files that they use or can see, with their pages in memory.
    pub files: &'a Files,
    /// Number of processors, each of which charges some memory in advance.
    pub processors: u64,
}

/// Fills in rows, totals and the caveats about them.
pub(super) fn fill_in(explanation: &mut GroupExplanation, inputs: &Inputs<'_>) {
    let estimates = Estimates {
        page_tables_bytes: inputs.processes.page_tables_bytes(),
        kernel_stacks_bytes: inputs.processes.kernel_stacks_bytes(),
    };
    let parts = Parts::new(inputs.memory, estimates, inputs.processors);
    let mut rows = Vec::new();
    for &Part { kind, bytes, .. } in &parts.all {
        if kind == &parts::ANON {
            add_anonymous_rows(&mut rows, bytes, inputs);
            explanation.caveats.extend(charged_elsewhere(bytes, inputs));
        } else if kind == &parts::SHMEM {
            add_file_rows(&mut rows, kind, bytes, &shared_memory_files(inputs.files));
        } else if [&parts::CLEAN, &parts::DIRTY, &parts::WRITEBACK].contains(&kind) {
            add_file_rows(&mut rows, kind, bytes, &page_cache_files(inputs.files, kind));
        } else {
            rows.push(row(kind, kind.holder.to_owned(), bytes));
        }
    }
    rows.retain(|row| row.bytes > 0);
    sort(&mut rows);
    explanation.totals = totals(&rows);
    explanation.rows = rows;
    explanation.caveats.extend(caveats_about(&parts));
}

/// What is inexact about the kinds as a whole.
fn caveats_about(parts: &Parts) -> Vec<Caveat> {
    let mut caveats = Vec::new();
    let mut add_caveat = |code: &str, bytes: Option<u64>, text: &str| {
        caveats.push(Caveat::new(code, "memory.stat", bytes, text));
    };
    if parts.excess_bytes > 0 {
        let text = "the kernel's counters of kinds exceed its counter of the charge, because it updates them in batches: the \
                    rows of page cache are smaller by the difference";
        add_caveat("counters_exceed_charge", Some(parts.excess_bytes), text);
    }
    if parts.is_estimated {
        let text = "version 1 of control groups does not count page tables or kernel stacks by group: strandline estimates them \
                    from the processes, up to the kernel's memory";
        add_caveat("kernel_parts_estimated", None, text);
    }
    caveats
}

/// A row that belongs to no process and no file.
fn row(kind: RowRef, holder: String, bytes: u64) -> GroupRow {
    GroupRow {
        id: kind.id.to_owned(),
        stratum: kind.stratum,
        state: kind.state,
        holder,
        bytes,
        pid: None,
        file: None,
    }
}

/// What each process seems to have of the anonymous memory.
fn anonymous_wants(processes: &[ProcessCounts]) -> Vec<Want> {
    // What is only estimated gets what is left: pages that processes share would count for each.
    let want = |process: &ProcessCounts| Want {
        basis: if process.anonymous_share_bytes().is_some() { Basis::Sampled } else { Basis::Used },
        bytes: process.anonymous_or_share_bytes(),
    };
    processes.iter().map(want).collect()
}

/// Adds the rows of anonymous memory: by process, and what no process of the group has.
fn add_anonymous_rows(rows: &mut Vec<GroupRow>, bytes: u64, inputs: &Inputs<'_>) {
    let processes = &inputs.processes.all;
    let Division { shares, unclaimed_bytes } = share_out(bytes, &anonymous_wants(processes));
    for (process, &share) in processes.iter().zip(&shares).take(MAX_PROCESS_ROWS) {
        let lazy_free = process.lazy_free_bytes().min(share);
        for (kind, bytes) in [(&parts::ANON, share - lazy_free), (&parts::LAZYFREE, lazy_free)] {
            rows.push(GroupRow { pid: Some(process.pid), ..row(kind, process.label(), bytes) });
        }
    }
    let smaller_bytes: u64 = shares.iter().skip(MAX_PROCESS_ROWS).sum();
    let smaller_count = processes.len().saturating_sub(MAX_PROCESS_ROWS);
    rows.push(row(&parts::ANON, counted(smaller_count as u64, "smaller process"), smaller_bytes));
    rows.push(row(&parts::ELSEWHERE, parts::ELSEWHERE.holder.to_owned(), unclaimed_bytes));
}

/// The caveat that the group's processes have more anonymous memory than the `bytes` charged to it.
fn charged_elsewhere(bytes: u64, inputs: &Inputs<'_>) -> Option<Caveat> {
    let wants = anonymous_wants(&inputs.processes.all);
    let known = wants.iter().filter(|want| want.basis == Basis::Sampled);
    let wanted = known.fold(0_u64, |sum, want| sum.saturating_add(want.bytes));
    // A difference due to batched counters or the time between two reads is no finding.
    let stock = parts::STOCK_BYTES.saturating_mul(inputs.processors);
    let tolerance = stock.saturating_add(bytes / TOLERANCE_DIVISOR);
    let excess = wanted.saturating_sub(bytes);
    let text = "its processes have more anonymous memory than is charged to it: they first used the rest in another group, before they were moved";
    (excess > tolerance)
        .then(|| Caveat::new("anonymous_charged_elsewhere", "its processes", Some(excess), text))
}

/// A file and what it seems to have of a kind.
struct FileWant<'a> {
    file: &'a CachedFile,
    want: Want,
}

impl<'a> FileWant<'a> {
    fn new(file: &'a CachedFile, bytes: u64) -> Self {
        Self { file, want: Want { basis: basis(file), bytes } }
    }
}

/// The files of shared memory, with all their bytes.
fn shared_memory_files(files: &Files) -> Vec<FileWant<'_>> {
    let shared = files.files.iter().filter(|file| file.is_shared_memory);
    shared.map(|file| FileWant::new(file, charged_bytes(file))).collect()
}

/// The files of the page cache, with their bytes of one kind: clean, dirty or being written. A
/// sample does not distinguish these, so that what is charged elsewhere is taken to be clean.
fn page_cache_files(files: &Files, kind: RowRef) -> Vec<FileWant<'_>> {
    let cached = files.files.iter().filter(|file| !file.is_shared_memory);
    let want = |file| {
        let charged = charged_bytes(file);
        // Kernels before 6.5 do not report these: then all of the file counts as clean.
        let dirty = file.dirty_bytes.unwrap_or(0).min(charged);
        let writeback = file.writeback_bytes.unwrap_or(0).min(charged - dirty);
        let bytes = if kind == &parts::DIRTY {
            dirty
        } else if kind == &parts::WRITEBACK {
            writeback
        } else {
            charged - dirty - writeback
        };
        FileWant::new(file, bytes)
    };
    cached.map(want).collect()
}

/// Bytes of a file that are charged to the group, or all of it in memory if that is unknown.
fn charged_bytes(file: &CachedFile) -> u64 {
    file.charged_bytes.unwrap_or(file.cached_bytes)
}

/// How well the bytes of a file are known.
fn basis(file: &CachedFile) -> Basis {
    match file.charged_bytes {
        Some(_) => Basis::Sampled,
        None if file.is_used => Basis::Used,
        None => Basis::Visible,
    }
}

/// The name of a file in rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FileName<'a> {
    path: &'a str,
    is_deleted: bool,
}

/// The bytes of all files of one name.
struct NamedBytes<'a> {
    name: FileName<'a>,
    bytes: u64,
}

/// Adds the rows of a kind: the largest by file, the others by folder.
fn add_file_rows(rows: &mut Vec<GroupRow>, kind: RowRef, bytes: u64, files: &[FileWant<'_>]) {
    let wants: Vec<Want> = files.iter().map(|file| file.want).collect();
    let Division { shares, unclaimed_bytes } = share_out(bytes, &wants);
    let mut named = by_name(files, &shares);
    let min_bytes = bytes / MIN_FILE_DIVISOR;
    let count = named.iter().take(MAX_FILE_ROWS).take_while(|file| file.bytes >= min_bytes).count();
    let small = named.split_off(count);
    for NamedBytes { name: FileName { path, is_deleted }, bytes } in named {
        let holder = if is_deleted { format!("{path} (deleted)") } else { path.to_owned() };
        rows.push(GroupRow { file: Some(path.to_owned()), ..row(kind, holder, bytes) });
    }
    let others = add_folder_rows(rows, kind, &small);
    rows.push(row(kind, kind.holder.to_owned(), others.saturating_add(unclaimed_bytes)));
}

/// Adds up the shares of files by name, the largest first. Hard links and mount namespaces may give
/// two files one name.
fn by_name<'a>(files: &[FileWant<'a>], shares: &[u64]) -> Vec<NamedBytes<'a>> {
    let mut sums: BTreeMap<FileName<'_>, u64> = BTreeMap::new();
    for (FileWant { file, .. }, &share) in files.iter().zip(shares).filter(|(_, share)| **share > 0) {
        let name = FileName { path: &file.path, is_deleted: file.is_deleted };
        *sums.entry(name).or_default() += share;
    }
    let mut named: Vec<NamedBytes<'_>> =
        sums.into_iter().map(|(name, bytes)| NamedBytes { name, bytes }).collect();
    named.sort_by_key(|file| std::cmp::Reverse(file.bytes));
    named
}

/// The small files of a folder, or of one kind.
#[derive(Default)]
struct Folder {
    files: u64,
    bytes: u64,
}

/// What a small file is called, and its folder.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place<'a> {
    label: &'static str,
    folder: Option<&'a str>,
}

impl<'a> Place<'a> {
    /// The kernel shows memory that has neither name nor folder as a deleted file, and many of them
    /// by one name.
    fn of_file(name: &FileName<'a>) -> Self {
        let nameless = [
            ("/memfd:", "small memfds"),
            ("/SYSV", "small System V shared memory"),
            ("/dev/zero", "small shared anonymous mappings"),
        ];
        match nameless.into_iter().find(|(start, _)| name.is_deleted && name.path.starts_with(start)) {
            Some((_, label)) => Self { label, folder: None },
            None => {
                let folder = name.path.rsplit_once('/').map_or("", |(folder, _)| folder);
                Self { label: "small file", folder: Some(folder) }
            }
        }
    }
}

/// Adds rows of small files by folder, for the largest; returns the bytes in other folders.
fn add_folder_rows(rows: &mut Vec<GroupRow>, kind: RowRef, files: &[NamedBytes<'_>]) -> u64 {
    let mut by_place: BTreeMap<Place<'_>, Folder> = BTreeMap::new();
    for file in files {
        let folder = by_place.entry(Place::of_file(&file.name)).or_default();
        folder.files += 1;
        folder.bytes = folder.bytes.saturating_add(file.bytes);
    }
    let mut folders: Vec<(Place<'_>, Folder)> = by_place.into_iter().collect();
    folders.sort_by_key(|(_, folder)| std::cmp::Reverse(folder.bytes));
    let others = folders.split_off(folders.len().min(MAX_FOLDER_ROWS));
    for (Place { label, folder: path }, folder) in folders {
        let holder = match path {
            Some(path) => format!("{} in {path}/", counted(folder.files, label)),
            None => label.to_owned(),
        };
        let file = path.map(|path| format!("{path}/"));
        rows.push(GroupRow { file, ..row(kind, holder, folder.bytes) });
    }
    others.iter().fold(0, |sum, (_, folder)| sum.saturating_add(folder.bytes))
}

/// Sorts rows, the largest first.
pub(super) fn sort(rows: &mut [GroupRow]) {
    rows.sort_by(|a, b| {
        b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)).then_with(|| a.holder.cmp(&b.holder))
    });
}

/// The rows, added up by state.
pub fn totals(rows: &[GroupRow]) -> Totals {
    rows.iter().map(|row| (row.state, row.bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_are_summed_by_folder_or_by_what_they_are() {
        let file = |path, is_deleted, bytes| NamedBytes { name: FileName { path, is_deleted }, bytes };
        let files = [
            file("/memfd:a", true, 1),
            file("/SYSV00000000", true, 20),
            file("/memfd:b", true, 3),
            file("/memfd:kept", false, 100),
            file("/dev/zero", true, 2000),
            file("/srv/x", true, 30_000),
            file("/srv/y", false, 10_000),
        ];
        let mut rows = Vec::new();
        assert_eq!(add_folder_rows(&mut rows, &parts::SHMEM, &files), 0);
        let seen: Vec<_> = rows.iter().map(|row| (&*row.holder, row.file.as_deref(), row.bytes)).collect();
        let expected = [
            ("2 small files in /srv/", Some("/srv/"), 40_000),
            ("small shared anonymous mappings", None, 2000),
            ("1 small file in /", Some("/"), 100),
            ("small System V shared memory", None, 20),
            ("small memfds", None, 4),
        ];
        assert_eq!(seen, expected);
    }
}
