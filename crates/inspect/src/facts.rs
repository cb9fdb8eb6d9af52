//! What is known about a process, as data: the shapes of `explain --json` and `reclaim --json`.
//!
//! Field names are an interface that others rely on (`docs/schema.md`): fields may be added, never
//! renamed. Sizes are bytes, times are seconds, unknown is `None`, never 0.

use serde::{Deserialize, Serialize};

use strandline_claims::Caveat;
pub use strandline_claims::facts::{
    Allocator, Arena, ArenaKind, Figures, Mallinfo, Remedy, RemedyKind, Row, Runtime, State, Stratum,
    TypeFacts,
};

/// Everything `explain` says about one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Explanation {
    /// Who was looked at.
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
    /// What gives memory back, best first.
    pub remedies: Vec<Remedy>,
    /// What it comes to.
    pub verdict: Verdict,
    /// What was not read, and why.
    pub caveats: Vec<Caveat>,
    /// What the look itself cost.
    pub cost: Cost,
    /// The address space as a picture, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_map: Option<PageMap>,
    /// The memory-related settings in force in the target's environment, by name.
    pub settings: std::collections::BTreeMap<String, String>,
}

/// How the target was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetKind {
    /// A process, stopped while it was read.
    #[default]
    Live,
    /// A copy-on-write copy of a process.
    #[serde(rename = "photograph")]
    Snapshot,
    /// A core file.
    Core,
}

/// Who was looked at.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Target {
    /// How it was looked at.
    pub kind: TargetKind,
    /// Its process id.
    pub pid: i32,
    /// The path of its executable, as /proc/PID/exe says.
    pub executable: Option<String>,
    /// Its command line.
    pub command: Vec<String>,
    /// How many threads it had.
    pub threads: u64,
}

/// The kernel's own figures, taken over the same frozen state as the rows where nothing else is said.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Kernel {
    /// What the page tables hold: the Rss of smaps_rollup. The rows add up to it.
    pub rss_bytes: u64,
    /// Proportional set size: shared pages divided by their sharers. Read right after the stop.
    pub pss_bytes: Option<u64>,
    /// The parts of `pss_bytes` by kind of page; unknown before Linux 5.4.
    #[serde(default)]
    pub pss_parts: Option<PssParts>,
    /// Resident anonymous bytes.
    pub anonymous_bytes: u64,
    /// Resident bytes of files, shared memory left out.
    pub file_bytes: u64,
    /// Resident bytes of shared memory.
    pub shmem_bytes: u64,
    /// Bytes swapped out.
    pub swap_bytes: u64,
    /// Resident anonymous bytes given up with MADV_FREE.
    pub lazyfree_bytes: u64,
    /// Resident bytes in transparent huge pages mapped whole.
    pub huge_bytes: u64,
    /// Bytes of hugetlb pages, which RSS does not count.
    pub hugetlb_bytes: u64,
    /// Bytes of the process's page tables.
    pub page_tables_bytes: Option<u64>,
    /// The most RSS the process ever had (VmHWM).
    pub high_water_bytes: Option<u64>,
    /// VmRSS of /proc/PID/status, which newer kernels approximate.
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

/// The address space as a picture: where each row's bytes stand.
///
/// The cells and what is left out add up to the ledger, row by row. At most about 200 KB of JSON, whatever
/// the process: cells are as small as that allows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageMap {
    /// How much address space a cell spans, the same for all: a power of two of at least a page. Cells
    /// start at its multiples, and end early where their mapping does.
    pub cell_bytes: u64,
    /// The rows that cells and `left_out` name by their position here.
    pub rows: Vec<MapRow>,
    /// The mappings with most resident bytes, in address order.
    pub mappings: Vec<MappedCells>,
    /// All other mappings with resident bytes.
    pub left_out: LeftOut,
}

impl PageMap {
    /// All bytes by row, of rows that have any: what the ledger says.
    pub fn totals(&self) -> Vec<(u8, u64)> {
        let cells = self.mappings.iter().flat_map(|mapping| &mapping.cells).flat_map(|cell| &cell.rows);
        let mut sums = std::collections::BTreeMap::new();
        for &(row, bytes) in cells.chain(&self.left_out.rows) {
            *sums.entry(row).or_default() += bytes;
        }
        sums.into_iter().collect()
    }
}

/// A row that a page map names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapRow {
    /// Its name, as [`Row::id`].
    pub id: String,
    /// What can become of its bytes.
    pub state: State,
}

/// One mapping of a page map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedCells {
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
    /// As in maps: `rw-p`.
    pub permissions: String,
    /// As in maps: a file's path or the kernel's name; empty where anonymous. Long ones lose their front.
    pub name: String,
    /// Resident bytes; its cells add up to it.
    pub rss_bytes: u64,
    /// The cells that hold resident bytes, ascending.
    pub cells: Vec<MapCell>,
}

/// One cell of a page map. In JSON a flat list: `[index, row, bytes, row, bytes, …]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<u64>", try_from = "Vec<u64>")]
pub struct MapCell {
    /// Which cell of its mapping: that at the mapping's start, rounded down to a multiple of `cell_bytes`,
    /// is 0.
    pub index: u64,
    /// Resident bytes by row (its position in [`PageMap::rows`]), in the order of rows.
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
    /// How many.
    pub mappings: u64,
    /// Their resident bytes by row, as in a cell: `[row, bytes]`.
    pub rows: Vec<(u8, u64)>,
}

/// The rows, added up by state. Together they are the kernel's RSS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Bytes in use.
    pub live: u64,
    /// Bytes that something can give back.
    pub stranded: u64,
    /// Free bytes on pages that a live neighbour keeps.
    pub pinned: u64,
    /// Bytes the kernel drops under pressure.
    pub evictable: u64,
    /// Bytes nobody can say more about.
    pub unattributed: u64,
}

/// What the ledger comes to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// One sentence a person can act on.
    pub headline: String,
    /// `live`, `free_heap`, `pinned_heap`, `retained_buffers`, `dead_objects`, `zero_pages`, `free_slots`, `evictable`, `unattributed`, `mixed`.
    pub class: String,
}

/// What a look cost.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// From start to end.
    pub wall_seconds: f64,
    /// How long the target's threads were stopped.
    pub stopped_seconds: f64,
    /// strandline's own high-water mark.
    pub peak_rss_bytes: Option<u64>,
    /// Target memory read.
    pub bytes_read: u64,
    /// Of a snapshot: pages that the target copied while it was read, and what it touched first meanwhile (its minor
    /// faults).
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
    /// It was not applied, and nothing was touched.
    Refused,
}

/// Everything `reclaim` says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Reclamation {
    /// Which remedy.
    pub remedy: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it was refused, or what else there is to know.
    pub reason: Option<String>,
    /// Predicted just before.
    pub predicted_bytes: Option<u64>,
    /// Given back by the process: the predicted pages' kind, counted in the page tables before and after.
    pub actual_bytes: Option<u64>,
    /// What of the prediction the machine gets back: pages that no other process has mapped. `None` where that is not known.
    pub predicted_pss_bytes: Option<u64>,
    /// What the machine got back, by which the sum of all processes' PSS fell: the fall of the bytes that this process alone has mapped.
    pub actual_pss_bytes: Option<u64>,
    /// RSS just before.
    pub rss_before_bytes: Option<u64>,
    /// RSS just after.
    pub rss_after_bytes: Option<u64>,
    /// How long the call took inside the target.
    pub call_seconds: Option<f64>,
    /// How long any thread was stopped, the longest of them.
    pub stopped_seconds: Option<f64>,
    /// Minor faults of the target in the seconds after the call.
    pub minor_faults_after: Option<u64>,
    /// Over how many seconds they were counted.
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
