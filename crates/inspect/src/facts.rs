//! What is known about a process, as data: the shapes of `explain --json` and `reclaim --json`.
//!
//! Field names are an interface that others rely on (`docs/schema.md`): fields may be added, never
//! renamed. Sizes are bytes, times are seconds, unknown is `None`, never 0.

use serde::{Deserialize, Serialize};

use strandline_claims::Caveat;
pub use strandline_claims::facts::{
    Allocator, Arena, ArenaKind, Figures, HolderKind, Mallinfo, Remedy, RemedyKind, Row, Runtime, State,
    TypeFacts,
};

/// What `explain` reports about one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Explanation {
    /// The process.
    pub target: Target,
    /// The kernel's own figures.
    pub kernel: Kernel,
    /// The ledger: every resident byte on exactly one row, largest first.
    pub rows: Vec<Row>,
    /// The rows, added up by state.
    pub totals: Totals,
    /// The allocators found in the process.
    pub allocators: Vec<Allocator>,
    /// The language runtimes found in the process.
    pub runtimes: Vec<Runtime>,
    /// What releases memory, best first.
    pub remedies: Vec<Remedy>,
    /// The conclusion.
    pub verdict: Verdict,
    /// What was not read, and why.
    pub caveats: Vec<Caveat>,
    /// Cost of the inspection.
    pub cost: Cost,
    /// The page map, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_map: Option<PageMap>,
    /// The memory-related settings in the target's environment, by name; empty if that cannot be
    /// read.
    pub settings: std::collections::BTreeMap<String, String>,
}

/// How the target's memory was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetKind {
    /// A process, stopped while it was read.
    #[default]
    Live,
    /// A copy-on-write copy of a process.
    #[serde(rename = "photograph")]
    Snapshot,
}

/// The inspected process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Target {
    /// How its memory was read.
    pub kind: TargetKind,
    /// Its process id.
    pub pid: i32,
    /// The path of its executable, from /proc/PID/exe.
    pub executable: Option<String>,
    /// Its command line; empty if it cannot be read.
    pub command: Vec<String>,
    /// Number of threads.
    pub threads: u64,
}

/// The kernel's own figures, from the same frozen state as the rows unless stated otherwise.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Kernel {
    /// Resident bytes by the page tables, as Rss in smaps_rollup. The rows add up to it.
    pub rss_bytes: u64,
    /// Proportional set size: each page divided by the number of processes that map it. Read during
    /// the stop or right after it; `None` if it cannot be read.
    pub pss_bytes: Option<u64>,
    /// The parts of `pss_bytes` by kind of page; unknown before Linux 5.3.
    #[serde(default)]
    pub pss_parts: Option<PssParts>,
    /// Resident anonymous bytes.
    pub anonymous_bytes: u64,
    /// Resident bytes of files, without shared memory.
    pub file_bytes: u64,
    /// Resident bytes of shared memory.
    pub shmem_bytes: u64,
    /// Bytes swapped out.
    pub swap_bytes: u64,
    /// Resident anonymous bytes given up with MADV_FREE.
    pub lazyfree_bytes: u64,
    /// Resident bytes of transparent huge pages that are mapped as a whole.
    pub huge_bytes: u64,
    /// Bytes of hugetlb pages, which RSS does not count.
    pub hugetlb_bytes: u64,
    /// Bytes of the process's page tables.
    pub page_tables_bytes: Option<u64>,
    /// Peak RSS (VmHWM).
    pub high_water_bytes: Option<u64>,
    /// VmRSS of /proc/PID/status, approximate before Linux 6.16.
    pub status_rss_bytes: Option<u64>,
}

/// The proportional set size by kind of page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PssParts {
    /// Anonymous pages.
    pub anonymous_bytes: u64,
    /// Pages of files.
    pub file_bytes: u64,
    /// Shared memory.
    pub shmem_bytes: u64,
}

/// A map of the address space: which rows the bytes of each cell are on.
///
/// The cells and `left_out` add up to the ledger, row by row. The JSON has at most about 200 KB for
/// any process: cells are as small as that allows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageMap {
    /// Size of all cells: a power of two, at least a page. Cells start at multiples of it; the last
    /// cell of a mapping ends where the mapping ends.
    pub cell_bytes: u64,
    /// The rows, to which cells and `left_out` refer by index.
    pub rows: Vec<MapRow>,
    /// The mappings with the most resident bytes, in address order.
    pub mappings: Vec<MappedCells>,
    /// All other mappings with resident bytes.
    pub left_out: LeftOut,
}

impl PageMap {
    /// Returns the bytes of each row that has any; they equal the ledger.
    pub fn totals(&self) -> Vec<(u8, u64)> {
        let cells = self.mappings.iter().flat_map(|mapping| &mapping.cells).flat_map(|cell| &cell.rows);
        let mut sums = std::collections::BTreeMap::new();
        for &(row, bytes) in cells.chain(&self.left_out.rows) {
            *sums.entry(row).or_default() += bytes;
        }
        sums.into_iter().collect()
    }
}

/// A row of a page map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapRow {
    /// Its name, as [`Row::id`].
    pub id: String,
    /// What can happen to its bytes.
    pub state: State,
}

/// One mapping of a page map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedCells {
    /// First byte.
    pub start: u64,
    /// First byte past the end.
    pub end: u64,
    /// As in maps: `rw-p`.
    pub permissions: String,
    /// As in maps: a file path or a name from the kernel; empty if anonymous. Long names lose their
    /// beginning.
    pub name: String,
    /// Resident bytes; the sum of its cells.
    pub rss_bytes: u64,
    /// Cells with resident bytes, in ascending order.
    pub cells: Vec<MapCell>,
}

/// One cell of a page map. In JSON a flat list: `[index, row, bytes, row, bytes, …]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<u64>", try_from = "Vec<u64>")]
pub struct MapCell {
    /// Index of the cell in its mapping. Cell 0 contains the start of the mapping, rounded down to
    /// a multiple of `cell_bytes`.
    pub index: u64,
    /// Resident bytes by row (an index in [`PageMap::rows`]), in the order of rows.
    pub rows: Vec<(u8, u64)>,
}

impl From<MapCell> for Vec<u64> {
    fn from(cell: MapCell) -> Self {
        let parts = cell.rows.iter().flat_map(|&(row, bytes)| [u64::from(row), bytes]);
        std::iter::once(cell.index).chain(parts).collect()
    }
}

impl TryFrom<Vec<u64>> for MapCell {
    type Error = &'static str;

    fn try_from(words: Vec<u64>) -> Result<Self, Self::Error> {
        let (&index, rest) = words.split_first().ok_or("a cell without an index")?;
        let (pairs, []) = rest.as_chunks::<2>() else { return Err("a cell with half a row") };
        let pair = |&[row, bytes]: &[u64; 2]| Some((u8::try_from(row).ok()?, bytes));
        let rows = pairs.iter().map(pair).collect::<Option<_>>().ok_or("a cell with an impossible row")?;
        Ok(Self { index, rows })
    }
}

/// Mappings that a page map does not list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Number of mappings.
    pub mappings: u64,
    /// Their resident bytes by row, as in a cell: `[row, bytes]`.
    pub rows: Vec<(u8, u64)>,
}

/// The rows, added up by state. The sum is the kernel's RSS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Bytes in use.
    pub live: u64,
    /// Bytes that something can release.
    pub stranded: u64,
    /// Free bytes on pages with live data.
    pub pinned: u64,
    /// Bytes that the kernel drops under memory pressure.
    pub evictable: u64,
    /// Bytes that are not explained.
    pub unattributed: u64,
}

impl FromIterator<(State, u64)> for Totals {
    fn from_iter<I: IntoIterator<Item = (State, u64)>>(rows: I) -> Self {
        let mut totals = Self::default();
        for (state, bytes) in rows {
            let sum = match state {
                State::Live => &mut totals.live,
                State::Stranded => &mut totals.stranded,
                State::Pinned => &mut totals.pinned,
                State::Evictable => &mut totals.evictable,
                State::Unattributed => &mut totals.unattributed,
            };
            *sum = sum.saturating_add(bytes);
        }
        totals
    }
}

/// The conclusion from the ledger.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// One sentence for a person to act on.
    pub headline: String,
    /// The kind of memory that it is about: `free_heap`. `docs/schema.md` lists all.
    pub class: String,
}

/// Cost of an inspection.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Wall-clock time.
    pub wall_seconds: f64,
    /// How long the target's threads were stopped.
    pub stopped_seconds: f64,
    /// Peak RSS of strandline itself.
    pub peak_rss_bytes: Option<u64>,
    /// Bytes of target memory read.
    pub bytes_read: u64,
    /// Minor faults of the target while a snapshot of it was read: pages copied on write, and pages
    /// touched for the first time. `None` without a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_pages: Option<u64>,
}

/// How an applied remedy ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was applied.
    #[default]
    Done,
    /// There was nothing to apply it to.
    NothingToGiveBack,
    /// It was not applied; nothing was touched, unless the reason says that a call had begun.
    Refused,
}

/// What `reclaim` reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Reclamation {
    /// Name of the remedy.
    pub remedy: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it was refused, or another remark.
    pub reason: Option<String>,
    /// Bytes predicted just before; `None` if unknown.
    pub predicted_bytes: Option<u64>,
    /// A lower bound of the released bytes, if `predicted_bytes` is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_least_bytes: Option<u64>,
    /// Bytes released by the process: pages of the predicted kind, counted in the page tables
    /// before and after.
    pub actual_bytes: Option<u64>,
    /// Predicted bytes that the machine gets back: pages that no other process has mapped. `None`
    /// if not known.
    pub predicted_pss_bytes: Option<u64>,
    /// Bytes that the machine got back: the decrease of the bytes that only this process maps, by
    /// which the sum of the PSS of all processes fell.
    pub actual_pss_bytes: Option<u64>,
    /// RSS just before.
    pub rss_before_bytes: Option<u64>,
    /// RSS just after.
    pub rss_after_bytes: Option<u64>,
    /// Duration of the call inside the target.
    pub call_seconds: Option<f64>,
    /// Longest time that any thread was stopped.
    pub stopped_seconds: Option<f64>,
    /// Minor faults of the target in the seconds after the call.
    pub minor_faults_after: Option<u64>,
    /// Number of seconds over which these faults were counted.
    pub minor_faults_seconds: Option<f64>,
    /// Whether this was a prediction only.
    pub dry_run: bool,
    /// The ledger before.
    pub before: Option<Explanation>,
    /// The ledger after.
    pub after: Option<Explanation>,
    /// What was not read, and why.
    pub caveats: Vec<Caveat>,
}
