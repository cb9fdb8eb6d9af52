//! The rows of a group's ledger: each kind of memory, divided among processes and files.

use std::collections::BTreeMap;

use strandline_claims::Caveat;
use strandline_claims::rows::RowRef;
use strandline_claims::units::counted;
use strandline_process::group::Memory;
use strandline_process::group::files::{CachedFile, Files};

use super::facts::{GroupExplanation, GroupRow};
use super::parts::{self, Estimates, Part, Parts};
use super::processes::{GroupProcesses, OneProcess};
use super::shares::{Basis, Want, share_out};
use crate::facts::{State, Totals};

/// Maximum files of a kind with their own rows; smaller ones are summed by folder.
const MAX_FILE_ROWS: usize = 50;
/// A file has its own row if it has at least this fraction of its kind: 1/200.
const MIN_FILE_DIVISOR: u64 = 200;
/// Maximum folders of a kind with rows; the others are summed.
const MAX_FOLDER_ROWS: usize = 50;
/// Maximum processes with their own rows; the smaller ones are summed.
const MAX_PROCESS_ROWS: usize = 1000;

/// Name and state of all rows that a group's ledger may have, beside those of processes.
pub fn legend() -> impl Iterator<Item = (&'static str, State)> {
    parts::ALL.iter().map(|kind| (kind.id, kind.state))
}

/// What the rows are made of.
pub(super) struct Inputs<'a> {
    pub memory: &'a Memory,
    pub processes: &'a GroupProcesses,
    pub files: &'a Files,
    pub processors: u64,
}

/// Fills in rows, totals and the caveats about them.
pub(super) fn fill_in(explanation: &mut GroupExplanation, inputs: &Inputs<'_>) {
    let estimates = Estimates {
        page_tables: inputs.processes.page_tables_bytes(),
        kernel_stacks: inputs.processes.kernel_stacks_bytes(),
    };
    let parts = Parts::new(inputs.memory, estimates, inputs.processors);
    let mut rows = Vec::new();
    for &Part { kind, bytes, .. } in &parts.all {
        if kind == &parts::ANON {
            anonymous(&mut rows, bytes, inputs, &mut explanation.caveats);
        } else if kind == &parts::SHMEM {
            of_files(&mut rows, kind, bytes, &shared(inputs.files));
        } else if [&parts::CLEAN, &parts::DIRTY, &parts::WRITEBACK].contains(&kind) {
            of_files(&mut rows, kind, bytes, &cached(inputs.files, kind));
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

fn caveats_about(parts: &Parts) -> Vec<Caveat> {
    let mut caveats = Vec::new();
    if parts.excess > 0 {
        caveats.push(Caveat::new("counters_exceed_charge", "memory.stat", Some(parts.excess),
        "the kernel's counters of kinds exceed its counter of the charge, as it updates them in batches: taken off page cache"));
    }
    if parts.is_estimated {
        caveats.push(Caveat::new("kernel_parts_estimated", "memory.stat", None,
            "version 1 of control groups does not count page tables or kernel stacks by group: taken from the processes, up to the kernel's memory"));
    }
    caveats
}

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

/// The rows of anonymous memory: by process, and what no process of the group has.
fn anonymous(rows: &mut Vec<GroupRow>, bytes: u64, inputs: &Inputs<'_>, caveats: &mut Vec<Caveat>) {
    let all = &inputs.processes.all;
    // What is only estimated gets what is left: pages that processes share would count for each.
    let want = |one: &OneProcess| Want {
        basis: if one.shares.is_some() { Basis::Sampled } else { Basis::Used },
        bytes: one.anonymous(),
    };
    let wants: Vec<Want> = all.iter().map(want).collect();
    let (shares, left) = share_out(bytes, &wants);
    let known = wants.iter().filter(|want| want.basis == Basis::Sampled);
    let wanted = known.fold(0_u64, |sum, want| sum.saturating_add(want.bytes));
    // A difference due to batched counters or the time between two reads is no finding.
    let tolerance = parts::STOCK_BYTES.saturating_mul(inputs.processors).saturating_add(bytes / 100);
    if wanted.saturating_sub(bytes) > tolerance {
        caveats.push(Caveat::new(
            "anonymous_charged_elsewhere",
            "its processes",
            Some(wanted - bytes),
            "its processes have more anonymous memory than is charged to it: they first used the rest in another group, before they were moved",
        ));
    }
    for (one, share) in all.iter().zip(&shares).take(MAX_PROCESS_ROWS) {
        let lazy = one.lazy_free().min(*share);
        for (kind, bytes) in [(&parts::ANON, share - lazy), (&parts::LAZYFREE, lazy)] {
            rows.push(GroupRow { pid: Some(one.pid), ..row(kind, one.label(), bytes) });
        }
    }
    let smaller: u64 = shares.iter().skip(MAX_PROCESS_ROWS).sum();
    let count = all.len().saturating_sub(MAX_PROCESS_ROWS);
    rows.push(row(&parts::ANON, counted(count as u64, "smaller process"), smaller));
    rows.push(row(&parts::ELSEWHERE, parts::ELSEWHERE.holder.to_owned(), left));
}

/// A file and what it would like to have of a kind.
struct OfFile<'a> {
    file: &'a CachedFile,
    want: Want,
}

fn shared(files: &Files) -> Vec<OfFile<'_>> {
    let shared = files.files.iter().filter(|file| file.is_shared_memory);
    shared.map(|file| OfFile { file, want: Want { basis: basis(file), bytes: charged(file) } }).collect()
}

/// The files of the page cache, with all bytes in one state. A sample does not distinguish states,
/// so that what is charged elsewhere is taken to be clean.
fn cached(files: &Files, kind: RowRef) -> Vec<OfFile<'_>> {
    let cached = files.files.iter().filter(|file| !file.is_shared_memory);
    let of = |file| {
        let charged = charged(file);
        let dirty = file.dirty_bytes.min(charged);
        let writeback = file.writeback_bytes.min(charged - dirty);
        let bytes = if kind == &parts::DIRTY {
            dirty
        } else if kind == &parts::WRITEBACK {
            writeback
        } else {
            charged - dirty - writeback
        };
        OfFile { file, want: Want { basis: basis(file), bytes } }
    };
    cached.map(of).collect()
}

fn charged(file: &CachedFile) -> u64 {
    file.charged_bytes.unwrap_or(file.cached_bytes)
}

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

/// The rows of a kind: the largest by file, the others by folder.
fn of_files(rows: &mut Vec<GroupRow>, kind: RowRef, bytes: u64, files: &[OfFile<'_>]) {
    let wants: Vec<Want> = files.iter().map(|of| of.want).collect();
    let (shares, left) = share_out(bytes, &wants);
    // Hard links and mount namespaces may give two files one name.
    let mut by_name: BTreeMap<FileName<'_>, u64> = BTreeMap::new();
    for (of, share) in files.iter().zip(&shares).filter(|(_, share)| **share > 0) {
        let name = FileName { path: &of.file.path, is_deleted: of.file.is_deleted };
        *by_name.entry(name).or_default() += share;
    }
    let mut named: Vec<(FileName<'_>, u64)> = by_name.into_iter().collect();
    named.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let least = bytes / MIN_FILE_DIVISOR;
    let count = named.iter().take(MAX_FILE_ROWS).take_while(|(_, bytes)| *bytes >= least).count();
    let small = named.split_off(count);
    for (FileName { path, is_deleted }, bytes) in named {
        let holder = if is_deleted { format!("{path} (deleted)") } else { path.to_owned() };
        rows.push(GroupRow { file: Some(path.to_owned()), ..row(kind, holder, bytes) });
    }
    let others = of_folders(rows, kind, &small);
    rows.push(row(kind, kind.holder.to_owned(), others.saturating_add(left)));
}

/// What a small file is called, and its folder. The kernel shows memory that has neither name nor
/// folder as a deleted file, and many of them by one name.
fn place<'a>(name: &FileName<'a>) -> (&'static str, Option<&'a str>) {
    let nameless = [
        ("/memfd:", "small memfds"),
        ("/SYSV", "small System V shared memory"),
        ("/dev/zero", "small shared anonymous mappings"),
    ];
    match nameless.into_iter().find(|(start, _)| name.is_deleted && name.path.starts_with(start)) {
        Some((_, what)) => (what, None),
        None => ("small file", Some(name.path.rsplit_once('/').map_or("", |(folder, _)| folder))),
    }
}

/// Adds rows of small files by folder, for the largest; returns the bytes in other folders.
fn of_folders(rows: &mut Vec<GroupRow>, kind: RowRef, files: &[(FileName<'_>, u64)]) -> u64 {
    let mut by_folder: BTreeMap<(&str, Option<&str>), Folder> = BTreeMap::new();
    for (name, bytes) in files {
        let folder = by_folder.entry(place(name)).or_default();
        folder.files += 1;
        folder.bytes = folder.bytes.saturating_add(*bytes);
    }
    let mut folders: Vec<((&str, Option<&str>), Folder)> = by_folder.into_iter().collect();
    folders.sort_by_key(|(_, folder)| std::cmp::Reverse(folder.bytes));
    let others = folders.split_off(folders.len().min(MAX_FOLDER_ROWS));
    for ((what, path), folder) in folders {
        let holder = match path {
            Some(path) => format!("{} in {path}/", counted(folder.files, what)),
            None => what.to_owned(),
        };
        let file = path.map(|path| format!("{path}/"));
        rows.push(GroupRow { file, ..row(kind, holder, folder.bytes) });
    }
    others.iter().fold(0, |sum, (_, folder)| sum.saturating_add(folder.bytes))
}

/// The small files of a folder, or of one kind.
#[derive(Default)]
struct Folder {
    files: u64,
    bytes: u64,
}

/// Sorts rows, the largest first.
pub(super) fn sort(rows: &mut [GroupRow]) {
    rows.sort_by(|a, b| {
        b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)).then_with(|| a.holder.cmp(&b.holder))
    });
}

/// The rows, added up by state.
pub fn totals(rows: &[GroupRow]) -> Totals {
    let mut totals = Totals::default();
    for row in rows {
        let sum = match row.state {
            State::Live => &mut totals.live,
            State::Stranded => &mut totals.stranded,
            State::Pinned => &mut totals.pinned,
            State::Evictable => &mut totals.evictable,
            State::Unattributed => &mut totals.unattributed,
        };
        *sum = sum.saturating_add(row.bytes);
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_are_summed_by_folder_or_by_what_they_are() {
        let name = |path, is_deleted| FileName { path, is_deleted };
        let files = [
            (name("/memfd:a", true), 1),
            (name("/SYSV00000000", true), 20),
            (name("/memfd:b", true), 3),
            (name("/memfd:kept", false), 100),
            (name("/dev/zero", true), 2000),
            (name("/srv/x", true), 30_000),
            (name("/srv/y", false), 10_000),
        ];
        let mut rows = Vec::new();
        assert_eq!(of_folders(&mut rows, &parts::SHMEM, &files), 0);
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
