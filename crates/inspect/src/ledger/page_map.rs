//! The page map: which rows the bytes of each cell of the address space are on.
//!
//! A [`Plan`] is made before the heaps are read: the mappings to list, and a cell size that bounds
//! the number of cells. A [`PageMapWriter`] puts the same bytes as the ledger on cells. The size of
//! the result does not depend on the process: mappings that do not fit are left out, and counted.

use std::collections::BTreeMap;

use super::rows::{self, Tally};
use crate::facts::{LeftOut, MapCell, MapRow, MappedCells, PageMap};
use strandline_claims::range::PAGE_BYTES;
use strandline_claims::rows::RowRef;
use strandline_process::map::Mapping;
use strandline_process::pages::Residency;
use strandline_process::range::AddressRange;
use strandline_process::smaps::SmapsEntry;

/// Maximum number of cells with resident bytes.
const MAX_CELLS: u64 = 8192;
/// Maximum number of mappings listed.
const MAX_MAPPINGS: usize = 1000;
/// Approximate maximum bytes of text of the mappings listed, without their cells.
const MAX_MAPPING_TEXT_BYTES: usize = 80_000;
/// Approximate maximum bytes of text of mappings and cells together.
const MAX_TEXT_BYTES: usize = 190_000;
/// Maximum bits of an address within a cell: with such cells, a process on x86-64 (47 address bits,
/// 56 with five levels) has few.
const MAX_CELL_SHIFT: u32 = 56;
/// Maximum bits to which cells grow when their text is too long.
const MAX_COARSE_SHIFT: u32 = 62;
/// Bytes of a mapping in JSON, without its name and cells.
const MAPPING_TEXT_BYTES: usize = 115;
/// Bytes of punctuation of a row in JSON: two commas.
const ROW_PUNCTUATION_BYTES: usize = 2;
/// Bytes of punctuation of a cell in JSON: brackets and a comma.
const CELL_PUNCTUATION_BYTES: usize = 3;
/// Names are paths of up to 4 KiB: this many characters at their end are kept.
const MAX_NAME_CHARS: usize = 120;

/// The mappings that a page map lists, and the size of its cells.
#[derive(Clone, Debug)]
pub struct Plan {
    cell_bytes: u64,
    /// Whether each mapping is listed, in the order of smaps.
    is_listed: Vec<bool>,
    /// Approximate maximum bytes of text of the cells.
    cell_text_bytes: usize,
}

impl Plan {
    /// Plans the page map of the mappings `smaps_entries` with these resident pages.
    pub fn new(smaps_entries: &[SmapsEntry], residency: &Residency) -> Self {
        let mut by_size: Vec<usize> =
            (0..smaps_entries.len()).filter(|&index| smaps_entries[index].counts.rss_bytes > 0).collect();
        by_size.sort_by_key(|&index| std::cmp::Reverse(smaps_entries[index].counts.rss_bytes));
        let mut is_listed = vec![false; smaps_entries.len()];
        let mut text_bytes = 0;
        for index in by_size.into_iter().take(MAX_MAPPINGS) {
            let mapping_bytes = MAPPING_TEXT_BYTES + json_bytes(&shown_name(&smaps_entries[index].mapping));
            if text_bytes + mapping_bytes > MAX_MAPPING_TEXT_BYTES {
                break;
            }
            text_bytes += mapping_bytes;
            is_listed[index] = true;
        }
        let listed =
            || smaps_entries.iter().zip(&is_listed).filter(|(_, listed)| **listed).map(|(entry, _)| entry);
        let rss_bytes: u64 = listed().map(|entry| entry.counts.rss_bytes).sum();
        let cell_count =
            |shift: u32| listed().map(|entry| count_cells(residency, &entry.mapping, shift)).sum::<u64>();
        // The smallest power of two with at most `MAX_CELLS` cells. Full cells give a lower bound.
        let min_shift = (rss_bytes / MAX_CELLS).max(PAGE_BYTES).next_power_of_two().trailing_zeros();
        let shift = (min_shift..MAX_CELL_SHIFT).find(|&shift| cell_count(shift) <= MAX_CELLS);
        let shift = shift.unwrap_or(MAX_CELL_SHIFT);
        Self { cell_bytes: 1 << shift, is_listed, cell_text_bytes: MAX_TEXT_BYTES - text_bytes }
    }

    /// Returns the size of the cells.
    pub fn cell_bytes(&self) -> u64 {
        self.cell_bytes
    }

    /// Whether the mapping with this index in smaps is listed.
    pub fn lists(&self, index: usize) -> bool {
        self.is_listed.get(index).copied().unwrap_or(false)
    }
}

/// Returns how many cells of `1 << shift` bytes of a mapping contain resident pages.
fn count_cells(residency: &Residency, mapping: &Mapping, shift: u32) -> u64 {
    let mut count = 0;
    let mut last_cell = None;
    for run in residency.runs_in(mapping.start..mapping.end) {
        let (first, end) = (run.start >> shift, (run.end - 1) >> shift);
        count += end - first + u64::from(last_cell != Some(first));
        last_cell = Some(end);
    }
    count
}

/// Returns the name of a mapping, cut to its end. The target chooses it.
fn shown_name(mapping: &Mapping) -> String {
    let count = mapping.name.chars().count();
    if count <= MAX_NAME_CHARS {
        return mapping.name.clone();
    }
    let end = mapping.name.chars().skip(count - MAX_NAME_CHARS + 1);
    std::iter::once('…').chain(end).collect()
}

/// Returns the maximum length of a text in JSON: a control character takes six bytes.
fn json_bytes(text: &str) -> usize {
    text.chars()
        .map(|c| match c {
            c if c.is_control() => 6,
            '"' | '\\' => 2,
            c => c.len_utf8(),
        })
        .sum()
}

/// The mapping to which bytes are added now.
struct OpenMapping {
    mapping: MappedCells,
    /// The rows of the other cells, as in the result: there may be thousands of cells.
    cells: BTreeMap<u64, Vec<(u8, u64)>>,
    /// The current cell, which most additions are for.
    current: CurrentCell,
}

/// A cell by its number, with its bytes.
#[derive(Default)]
struct CurrentCell {
    number: u64,
    tally: Tally,
}

/// Puts bytes on cells, mapping by mapping.
pub struct PageMapWriter {
    /// Bits of an address within a cell.
    shift: u32,
    /// Approximate maximum bytes of text of the cells.
    max_text_bytes: usize,
    open: Option<OpenMapping>,
    /// The finished mappings.
    mappings: Vec<MappedCells>,
    /// Bytes of the mappings that are not listed.
    left_out: Tally,
    left_out_mappings: u64,
}

impl PageMapWriter {
    /// Starts an empty page map.
    pub fn new(plan: &Plan) -> Self {
        Self {
            shift: plan.cell_bytes.trailing_zeros(),
            max_text_bytes: plan.cell_text_bytes,
            open: None,
            mappings: Vec::new(),
            left_out: Tally::default(),
            left_out_mappings: 0,
        }
    }

    /// Begins the mapping `entry`, to which the following bytes belong.
    pub fn open(&mut self, is_listed: bool, entry: &SmapsEntry) {
        self.close();
        let mapping = &entry.mapping;
        if !is_listed {
            self.left_out_mappings += u64::from(entry.counts.rss_bytes > 0);
            return;
        }
        let mapping = MappedCells {
            start: mapping.start,
            end: mapping.end,
            permissions: mapping.permissions.to_string(),
            name: shown_name(mapping),
            rss_bytes: entry.counts.rss_bytes,
            cells: Vec::new(),
        };
        let current = CurrentCell { number: mapping.start >> self.shift, tally: Tally::default() };
        self.open = Some(OpenMapping { mapping, cells: BTreeMap::new(), current });
    }

    /// Adds the resident bytes of `range`, which is in the mapping.
    pub fn add(&mut self, row: RowRef, range: AddressRange) {
        let Some(open) = &mut self.open else {
            self.left_out.add(row, range.len());
            return;
        };
        let mut at = range.start;
        while at < range.end {
            let last_byte = at | ((1 << self.shift) - 1);
            let end = last_byte.saturating_add(1).min(range.end);
            open.cell(at >> self.shift).add(row, end - at);
            at = end;
        }
    }

    /// Adds bytes to the cell that contains `address`.
    pub fn add_tally(&mut self, address: u64, tally: &Tally) {
        match &mut self.open {
            Some(open) => open.cell(address >> self.shift).add_all(tally),
            None => self.left_out.add_all(tally),
        }
    }

    /// Moves `bytes` of the mapping from one row to another, lowest addresses first.
    pub fn move_bytes(&mut self, from: RowRef, to: RowRef, bytes: u64) {
        let mut remaining_bytes = bytes;
        let mut move_in = |tally: &mut Tally| {
            let taken = tally.take(from, remaining_bytes);
            tally.add(to, taken);
            remaining_bytes -= taken;
        };
        match &mut self.open {
            Some(open) => {
                open.store_current();
                for rows in open.cells.values_mut().filter(|_| bytes > 0) {
                    let mut tally = to_tally(rows);
                    move_in(&mut tally);
                    *rows = to_parts(&tally);
                }
            }
            None => move_in(&mut self.left_out),
        }
    }

    /// Ends the mapping.
    pub fn close(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        open.store_current();
        let first = open.mapping.start >> self.shift;
        let cells = open.cells.into_iter().map(|(cell, rows)| MapCell { index: cell - first, rows });
        open.mapping.cells = cells.collect();
        self.mappings.push(open.mapping);
    }

    /// Returns the page map.
    pub fn finish(mut self) -> PageMap {
        self.close();
        let mut map = PageMap {
            cell_bytes: 1 << self.shift,
            rows: rows::legend().map(|(id, state)| MapRow { id: id.to_owned(), state }).collect(),
            mappings: self.mappings,
            left_out: LeftOut { mappings: self.left_out_mappings, rows: self.left_out.parts().collect() },
        };
        while text_bytes(&map) > self.max_text_bytes && map.cell_bytes < 1 << MAX_COARSE_SHIFT {
            coarsen(&mut map);
        }
        map
    }
}

impl OpenMapping {
    /// The bytes of the cell with this number.
    fn cell(&mut self, number: u64) -> &mut Tally {
        if self.current.number != number {
            self.store_current();
            self.current = CurrentCell { number, tally: Tally::default() };
        }
        &mut self.current.tally
    }

    /// Adds the bytes of the current cell to `cells`.
    fn store_current(&mut self) {
        let CurrentCell { number, mut tally } = std::mem::take(&mut self.current);
        self.current.number = number;
        if tally.sum() > 0 {
            let rows = self.cells.entry(number).or_default();
            tally.add_all(&to_tally(rows));
            *rows = to_parts(&tally);
        }
    }
}

/// Returns the rows of a cell, without spare capacity.
fn to_parts(tally: &Tally) -> Vec<(u8, u64)> {
    let mut rows = Vec::with_capacity(tally.parts().count());
    rows.extend(tally.parts());
    rows
}

/// Returns the bytes of a cell by row.
fn to_tally(rows: &[(u8, u64)]) -> Tally {
    let mut tally = Tally::default();
    rows.iter().for_each(|&(row, bytes)| tally.add_part(row, bytes));
    tally
}

/// Returns the bytes of text of all cells.
fn text_bytes(map: &PageMap) -> usize {
    let digits = |number: u64| number.checked_ilog10().unwrap_or(0) as usize + 1;
    let cells = map.mappings.iter().flat_map(|mapping| &mapping.cells);
    let of_cell = |cell: &MapCell| {
        let rows =
            cell.rows.iter().map(|&(row, bytes)| digits(row.into()) + digits(bytes) + ROW_PUNCTUATION_BYTES);
        digits(cell.index) + rows.sum::<usize>() + CELL_PUNCTUATION_BYTES
    };
    cells.map(of_cell).sum()
}

/// Doubles the size of the cells.
fn coarsen(map: &mut PageMap) {
    let shift = map.cell_bytes.trailing_zeros();
    for mapping in &mut map.mappings {
        let (first, new_first) = (mapping.start >> shift, mapping.start >> (shift + 1));
        let mut cells: Vec<MapCell> = Vec::with_capacity(mapping.cells.len() / 2 + 1);
        for cell in std::mem::take(&mut mapping.cells) {
            let index = ((first + cell.index) >> 1) - new_first;
            match cells.last_mut() {
                Some(last) if last.index == index => {
                    let mut tally = to_tally(&last.rows);
                    tally.add_all(&to_tally(&cell.rows));
                    last.rows = to_parts(&tally);
                }
                _ => cells.push(MapCell { index, rows: cell.rows }),
            }
        }
        mapping.cells = cells;
    }
    map.cell_bytes *= 2;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use strandline_claims::rows::{ANONYMOUS, FILE, LAZY_FREE, ZERO};

    fn map(cells: &[(u64, u64)]) -> PageMap {
        let cell = |&(index, bytes): &(u64, u64)| MapCell { index, rows: vec![(9, bytes), (18, 1)] };
        let mapping = MappedCells {
            start: 0x7000,
            end: 0x7000 + (64 << 20),
            cells: cells.iter().map(cell).collect(),
            ..MappedCells::default()
        };
        PageMap { cell_bytes: 0x1000, mappings: vec![mapping], ..PageMap::default() }
    }

    #[test]
    fn coarser_cells_hold_the_same_at_the_same_place() {
        let mut map = map(&[(0, 10), (1, 20), (2, 30), (9, 40)]);
        coarsen(&mut map);
        // The mapping starts on page 7: its first cell is now that of pages 6 and 7.
        let cell = |index, live, unknown| MapCell { index, rows: vec![(9, live), (18, unknown)] };
        assert_eq!(map.mappings[0].cells, [cell(0, 10, 1), cell(1, 50, 2), cell(5, 40, 1)]);
        assert_eq!(map.cell_bytes, 0x2000);
    }

    #[test]
    fn long_names_lose_their_beginning() {
        let name = format!("/{}/libpq.so.5", "é".repeat(4000));
        let shown = shown_name(&Mapping { name, ..Mapping::default() });
        assert_eq!(shown.chars().count(), MAX_NAME_CHARS);
        assert!(shown.starts_with('…') && shown.ends_with("/libpq.so.5"));
    }

    #[test]
    fn cells_in_json_are_flat_lists() {
        let cell = MapCell { index: 7, rows: vec![(9, 4000), (13, 96)] };
        let text = serde_json::to_string(&cell).unwrap();
        assert_eq!(text, "[7,9,4000,13,96]");
        assert_eq!(serde_json::from_str::<MapCell>(&text).unwrap(), cell);
        for bad in ["[]", "[1,2]", "[1,256,4096]", "[-1,2,3]"] {
            assert!(serde_json::from_str::<MapCell>(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn added_ranges_add_up(
            shift in 12u32..24,
            ranges in proptest::collection::vec((0u64..2000, 1u64..50, 0usize..3), 0..60),
            moved_bytes in 0u64..200_000,
        ) {
            let plan = Plan { cell_bytes: 1 << shift, is_listed: vec![true], cell_text_bytes: 2000 };
            let entry = SmapsEntry {
                mapping: Mapping { start: 0x7f00_0000_3000, end: 0x7f10_0000_0000, ..Mapping::default() },
                ..SmapsEntry::default()
            };
            let mut writer = PageMapWriter::new(&plan);
            writer.open(true, &entry);
            let mut expected = Tally::default();
            for (page, pages, row) in ranges {
                let id = [&ANONYMOUS as RowRef, &ZERO, &FILE][row];
                let start = entry.mapping.start + page * 4096;
                writer.add(id, AddressRange::sized(start, pages * 4096));
                expected.add(id, pages * 4096);
            }
            let taken = expected.take(&ZERO, moved_bytes);
            expected.add(&LAZY_FREE, taken);
            writer.move_bytes(&ZERO, &LAZY_FREE, taken);
            let map = writer.finish();
            prop_assert_eq!(map.totals(), expected.parts().collect::<Vec<_>>());
            let cells = &map.mappings[0].cells;
            prop_assert!(cells.is_sorted_by(|a, b| a.index < b.index));
        }
    }
}
