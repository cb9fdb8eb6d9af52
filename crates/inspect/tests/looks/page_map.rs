//! The page map agrees with the ledger, wherever the bytes are.

use strandline_inspect::explain::{Options, explain};
use strandline_inspect::facts::{Explanation, MappedCells, PageMap};
use strandline_process::procfs::Process;

use crate::subject::{Subject, ending, layout, until};

/// Maximum bytes of JSON of a page map.
const MAX_JSON_BYTES: usize = 200 << 10;

fn look(pid: i32, makes_page_map: bool) -> Explanation {
    explain(pid, &Options { makes_page_map, ..Options::default() }).unwrap()
}

/// Explains a process with and without the page map, and checks what holds for every page map.
fn checked_page_map(pid: i32) -> (Explanation, PageMap) {
    // It has printed that it is ready; now all its threads must go to sleep, in pause or read.
    let process = Process::open(pid).unwrap();
    let path = |tid: i32| format!("/proc/{pid}/task/{tid}/syscall");
    let sleeps = |tid: i32| {
        std::fs::read_to_string(path(tid)).is_ok_and(|call| call.starts_with("34 ") || call.starts_with("0 "))
    };
    until("the subject sleeps", || process.tasks().unwrap().into_iter().all(sleeps));
    let without_map = look(pid, false);
    assert!(without_map.page_map.is_none());
    let mut explanation = look(pid, true);
    let map = explanation.page_map.take().unwrap();
    assert_eq!(steady(&explanation), steady(&without_map), "the page map changes no row");
    let mut expected: Vec<(String, u64)> =
        explanation.rows.iter().map(|row| (row.id.clone(), row.bytes)).collect();
    let id = |row: u8| map.rows[usize::from(row)].id.clone();
    let mut totals: Vec<(String, u64)> =
        map.totals().into_iter().map(|(row, bytes)| (id(row), bytes)).collect();
    expected.sort();
    totals.sort();
    assert_eq!(totals, expected);
    assert_eq!(totals.iter().map(|total| total.1).sum::<u64>(), explanation.kernel.rss_bytes);
    for row in &explanation.rows {
        let legend = map.rows.iter().find(|named| named.id == row.id).unwrap();
        assert_eq!(legend.state, row.state);
    }
    assert!(map.cell_bytes >= 4096 && map.cell_bytes.is_power_of_two());
    assert!(map.mappings.is_sorted_by(|a, b| a.end <= b.start));
    map.mappings.iter().for_each(|mapping| assert_consistent(mapping, map.cell_bytes));
    let text = serde_json::to_string(&map).unwrap();
    assert!(text.len() <= MAX_JSON_BYTES, "{} bytes", text.len());
    assert_eq!(serde_json::from_str::<PageMap>(&text).unwrap(), map);
    (explanation, map)
}

/// Returns the rows that do not change between two inspections of a sleeping process. The kernel
/// may drop clean file pages at any time, and pages that were given up.
fn steady(explanation: &Explanation) -> Vec<(&str, u64)> {
    const DROPPED: [&str; 3] = ["kernel.file", "program.text", "kernel.lazyfree"];
    let rows = explanation.rows.iter().filter(|row| !DROPPED.contains(&row.id.as_str()));
    let mut rows: Vec<_> = rows.map(|row| (row.id.as_str(), row.bytes)).collect();
    rows.sort_unstable();
    rows
}

/// Checks that the cells of a mapping are in order, within it, and add up to its resident bytes.
fn assert_consistent(mapping: &MappedCells, cell_bytes: u64) {
    let first = mapping.start - mapping.start % cell_bytes;
    let mut sum = 0;
    for cell in &mapping.cells {
        let start = first + cell.index * cell_bytes;
        let (from, to) = (start.max(mapping.start), (start + cell_bytes).min(mapping.end));
        let bytes: u64 = cell.rows.iter().map(|row| row.1).sum();
        assert!(from < to && bytes > 0 && bytes <= to - from, "{start:#x} of {}", mapping.name);
        assert!(cell.rows.is_sorted_by(|a, b| a.0 < b.0) && cell.rows.iter().all(|row| row.1 > 0));
        sum += bytes;
    }
    assert_eq!(sum, mapping.rss_bytes, "{:#x} {}", mapping.start, mapping.name);
    assert!(mapping.cells.is_sorted_by(|a, b| a.index < b.index));
}

/// Returns the rows on the cell of `address`, by name.
fn rows_at(map: &PageMap, address: u64) -> Vec<(&str, u64)> {
    let holds = |mapping: &&MappedCells| (mapping.start..mapping.end).contains(&address);
    let mapping = map.mappings.iter().find(holds).unwrap();
    let index = address / map.cell_bytes - mapping.start / map.cell_bytes;
    let cell = mapping.cells.iter().find(|cell| cell.index == index);
    let rows = cell.map(|cell| cell.rows.as_slice()).unwrap_or_default();
    rows.iter().map(|&(row, bytes)| (map.rows[usize::from(row)].id.as_str(), bytes)).collect()
}

/// Starts a subject of this kind; also returns the address that it prints.
fn start(kind: &str) -> (Subject, u64) {
    let subject = Subject::start(layout(), &[kind]);
    let address = u64::from_str_radix(&subject.words[0], 16).unwrap();
    (subject, address)
}

#[test]
fn a_small_process_is_shown_page_by_page() {
    let (subject, _) = start("small");
    let (_, map) = checked_page_map(subject.pid());
    assert_eq!(map.cell_bytes, 4096);
    assert_eq!(map.left_out.mappings, 0);
    let heap = map.mappings.iter().find(|mapping| mapping.name == "[heap]").unwrap();
    assert_eq!(heap.permissions, "rw-p");
    assert!(rows_at(&map, heap.start).iter().any(|row| row.0 == "glibc.live"));
}

#[test]
fn a_heap_of_two_arenas_and_a_heap_of_threads() {
    let (subject, _) = start("heap");
    let (explanation, map) = checked_page_map(subject.pid());
    for id in ["glibc.live", "glibc.header", "glibc.free.trim", "glibc.free.pinned"] {
        assert!(explanation.rows.iter().any(|row| row.id == id && row.bytes > 100_000), "{id}");
    }
    let heaps = map.mappings.iter().filter(|mapping| {
        mapping
            .cells
            .iter()
            .flat_map(|cell| &cell.rows)
            .any(|row| map.rows[usize::from(row.0)].id == "glibc.free.trim")
    });
    assert!(heaps.count() >= 2, "both arenas");
    let subject = Subject::start(ending(), &["hold", "3"]);
    checked_page_map(subject.pid());
}

#[test]
fn pages_freed_with_madv_free_stay_in_their_mapping() {
    let (subject, address) = start("lazy");
    let (explanation, map) = checked_page_map(subject.pid());
    let lazy = explanation.rows.iter().find(|row| row.id == "kernel.lazyfree").unwrap().bytes;
    assert_eq!(lazy, explanation.kernel.lazyfree_bytes);
    let is_there = rows_at(&map, address).iter().any(|row| row.0 == "kernel.lazyfree");
    assert!(is_there, "the kernel does not say where in the mapping, so the first bytes are taken");
}

#[test]
fn more_mappings_than_are_listed_are_counted() {
    let (subject, _) = start("many");
    let (_, map) = checked_page_map(subject.pid());
    assert!(map.mappings.len() <= 1000 && map.left_out.mappings >= 2000, "{}", map.left_out.mappings);
    let anonymous = map.rows.iter().position(|row| row.id == "anonymous").unwrap();
    let anonymous_left_out = map.left_out.rows.iter().find(|row| usize::from(row.0) == anonymous).unwrap();
    assert!(anonymous_left_out.1 >= 2000 * 4096, "{}", anonymous_left_out.1);
}

#[test]
fn a_sparse_address_space_gets_large_cells() {
    let (subject, address) = start("sparse");
    let (_, map) = checked_page_map(subject.pid());
    assert!(map.cell_bytes >= 8 << 20, "{}", map.cell_bytes);
    let pages = map.cell_bytes >> 20;
    assert_eq!(rows_at(&map, address + (2000 << 20)), [("anonymous", pages * 4096)]);
}

#[test]
fn odd_names_are_text_of_bounded_length() {
    let (subject, address) = start("named");
    let (_, map) = checked_page_map(subject.pid());
    let mapping = map.mappings.iter().find(|mapping| mapping.start == address).unwrap();
    assert!(mapping.name.chars().count() <= 120 && mapping.name.starts_with('…'), "{}", mapping.name);
}
