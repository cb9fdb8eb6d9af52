//! What readers derive from a whole ledger: findings for the verdict, and remedies that depend on
//! other readers' figures.

use crate::facts::{Allocator, HolderKind, Remedy, Row, Runtime, State};
use crate::units::bytes;

/// Memory that is of no use, or of unknown use, described in one sentence. The verdict takes the
/// largest finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// `verdict.class` of the document: `dead_objects`.
    pub class: &'static str,
    /// Resident bytes that it describes.
    pub bytes: u64,
    /// `verdict.headline` of the document.
    pub headline: String,
}

/// Maximum number of parts named in a sentence.
const MAX_PARTS: usize = 5;
/// Minimum bytes of a part that is worth a sentence or a place in one.
const MIN_PART_BYTES: u64 = 1 << 20;
/// A part worth a sentence has at least the bytes of RSS divided by this.
const MIN_PART_DIVISOR: u64 = 10;
/// A sentence names malloc's free bytes if they are more than all of malloc's divided by this.
const MIN_FREE_DIVISOR: u64 = 4;

/// A complete ledger, as readers see it.
#[derive(Clone, Copy, Debug, Default)]
pub struct LedgerView<'a> {
    /// The process, for commands to paste.
    pub pid: i32,
    /// All rows.
    pub rows: &'a [Row],
    /// The kernel's RSS in bytes.
    pub rss_bytes: u64,
    /// Number of threads of the process.
    pub threads: u64,
    /// Allocators that were read.
    pub allocators: &'a [Allocator],
    /// Language runtimes that were found.
    pub runtimes: &'a [Runtime],
    /// Remedies of the readings, predicted from the structures alone.
    pub remedies: &'a [Remedy],
    /// Whether libc reads settings from the environment at the next start (the program is not
    /// set-user-ID).
    pub reads_settings: bool,
    /// Whether a library can be preloaded at the next start.
    pub takes_preloads: bool,
}

impl<'a> LedgerView<'a> {
    /// Resident bytes of all rows `id`.
    pub fn row_bytes(&self, id: &str) -> u64 {
        self.rows_of(id).map(|row| row.bytes).sum()
    }

    /// Resident bytes of all rows `ids`.
    pub fn rows_bytes(&self, ids: &[&str]) -> u64 {
        ids.iter().map(|id| self.row_bytes(id)).sum()
    }

    /// The rows `id`, one per holder.
    pub fn rows_of(&self, id: &str) -> impl DoubleEndedIterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.id == id)
    }

    /// Resident bytes of all rows in `state`.
    pub fn state_bytes(&self, state: State) -> u64 {
        self.rows.iter().filter(|row| row.state == state).map(|row| row.bytes).sum()
    }

    /// The runtime `name`, if it was found.
    pub fn runtime(&self, name: &str) -> Option<&'a Runtime> {
        self.runtimes.iter().find(|runtime| runtime.name == name)
    }

    /// The remedy `id`, if a reading offers it.
    pub fn remedy(&self, id: &str) -> Option<&'a Remedy> {
        self.remedies.iter().find(|remedy| remedy.id == id)
    }

    /// Bytes that remedy `id` is predicted to release, as the end of a sentence that `words` begin;
    /// empty if unknown or 0.
    pub fn released_by(&self, id: &str, words: &str) -> String {
        let predicted = self.remedy(id).and_then(|remedy| remedy.predicted_bytes).filter(|&bytes| bytes > 0);
        predicted.map_or_else(String::new, |predicted| format!("; {words} {}", bytes(predicted)))
    }

    /// Whether a part of RSS is worth a sentence: at least a tenth of RSS, and at least one MiB.
    pub fn matters(&self, part_bytes: u64) -> bool {
        part_bytes >= self.rss_bytes / MIN_PART_DIVISOR && part_bytes >= MIN_PART_BYTES
    }

    /// Returns the largest parts of RSS outside a runtime's heap, as the end of a sentence: `own`
    /// and what every program has, without parts below a MiB.
    pub fn outside_heap(&self, own: &[(&'static str, u64)]) -> String {
        let malloc_rows = || self.rows.iter().filter(|row| row.stratum == HolderKind::Allocator);
        let malloc_bytes: u64 = malloc_rows().map(|row| row.bytes).sum();
        let common = [
            ("malloc", malloc_bytes),
            ("files", self.rows_bytes(&["program.text", "kernel.file"])),
            ("stacks", self.rows_bytes(&["program.stack", "kernel.stack_below_sp"])),
        ];
        let mut parts: Vec<_> =
            own.iter().copied().chain(common).filter(|&(_, size)| size >= MIN_PART_BYTES).collect();
        parts.sort_by_key(|&(_, size)| std::cmp::Reverse(size));
        let list = parts.iter().take(MAX_PARTS).map(|&(name, size)| format!(", {name} {}", bytes(size)));
        let is_free = |row: &&Row| matches!(row.state, State::Stranded | State::Pinned);
        let free_bytes: u64 = malloc_rows().filter(is_free).map(|row| row.bytes).sum();
        let mut text: String = list.collect();
        if free_bytes > malloc_bytes / MIN_FREE_DIVISOR {
            text.push_str(&format!(" ({} of malloc's free)", bytes(free_bytes)));
        }
        text
    }

    /// `81.0 MiB of 100 MiB RSS`, the start of each headline.
    pub fn of_rss(&self, part_bytes: u64) -> String {
        format!("{} of {} RSS", bytes(part_bytes), bytes(self.rss_bytes))
    }
}
