//! The rows that exist: name, stratum, state and holder of each. `docs/accounting.md` defines them.

use crate::facts::{Row, State, Stratum, Totals};

/// A row of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Id {
    /// Code and constants of mapped programs and libraries.
    ProgramText,
    /// Static data: what programs and libraries wrote of their data, and their bss.
    ProgramData,
    /// Thread stacks in use.
    ProgramStack,
    /// Thread stacks below the stack pointer.
    StackBelowSp,
    /// Other file pages.
    File,
    /// Shared memory.
    Shmem,
    /// Pages given up with MADV_FREE.
    LazyFree,
    /// All-zero pages of private anonymous memory.
    Zero,
    /// Pages of devices and of the kernel itself.
    Device,
    /// Chunks in use.
    GlibcLive,
    /// The word in front of each chunk in use.
    GlibcHeader,
    /// malloc's own structures.
    GlibcMetadata,
    /// Chunks in threads' caches.
    GlibcTcache,
    /// Free, given back by malloc_trim(0).
    GlibcFreeTrim,
    /// Free, on free pages that malloc_trim(0) leaves.
    GlibcFreeKept,
    /// Free, on pages with live bytes.
    GlibcFreePinned,
    /// Chunks with a mapping of their own.
    GlibcMmapped,
    /// Within an arena, but not understood.
    GlibcUnread,
    /// Anonymous memory that nobody explains.
    Anonymous,
}

/// All rows, in the order of their discriminants.
const ROWS: [(Id, &str, Stratum, State, &str); 19] = [
    (
        Id::ProgramText,
        "program.text",
        Stratum::Program,
        State::Evictable,
        "code and constants of mapped programs",
    ),
    (
        Id::ProgramData,
        "program.data",
        Stratum::Program,
        State::Live,
        "static data, written pages of mapped files",
    ),
    (Id::ProgramStack, "program.stack", Stratum::Program, State::Live, "thread stacks in use"),
    (
        Id::StackBelowSp,
        "kernel.stack_below_sp",
        Stratum::Kernel,
        State::Stranded,
        "thread stacks below the stack pointer",
    ),
    (Id::File, "kernel.file", Stratum::Kernel, State::Evictable, "pages of mapped files"),
    (Id::Shmem, "kernel.shmem", Stratum::Kernel, State::Live, "shared memory"),
    (Id::LazyFree, "kernel.lazyfree", Stratum::Kernel, State::Evictable, "given up with MADV_FREE"),
    (Id::Zero, "kernel.zero", Stratum::Kernel, State::Stranded, "pages that hold only zeros"),
    (Id::Device, "kernel.device", Stratum::Kernel, State::Live, "pages of devices and of the kernel"),
    (Id::GlibcLive, "glibc.live", Stratum::Allocator, State::Live, "malloc, chunks in use"),
    (Id::GlibcHeader, "glibc.header", Stratum::Allocator, State::Live, "malloc, size words of chunks in use"),
    (Id::GlibcMetadata, "glibc.metadata", Stratum::Allocator, State::Live, "malloc, its own structures"),
    (
        Id::GlibcTcache,
        "glibc.tcache",
        Stratum::Allocator,
        State::Stranded,
        "malloc, free chunks in threads' caches",
    ),
    (
        Id::GlibcFreeTrim,
        "glibc.free.trim",
        Stratum::Allocator,
        State::Stranded,
        "malloc, free pages that malloc_trim gives back",
    ),
    (
        Id::GlibcFreeKept,
        "glibc.free.kept",
        Stratum::Allocator,
        State::Stranded,
        "malloc, free pages that malloc_trim leaves",
    ),
    (
        Id::GlibcFreePinned,
        "glibc.free.pinned",
        Stratum::Allocator,
        State::Pinned,
        "malloc, free bytes on pages with live ones",
    ),
    (
        Id::GlibcMmapped,
        "glibc.mmapped",
        Stratum::Allocator,
        State::Live,
        "malloc, chunks with a mapping of their own",
    ),
    (
        Id::GlibcUnread,
        "glibc.unread",
        Stratum::Allocator,
        State::Unattributed,
        "malloc, damaged or caught in motion",
    ),
    (Id::Anonymous, "anonymous", Stratum::Kernel, State::Unattributed, "anonymous memory nobody explains"),
];

/// The name of every row that a ledger may have.
pub fn ids() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.1)
}

/// Every row, in the order of [`Id`]'s discriminants, by name and state.
pub fn legend() -> impl Iterator<Item = (&'static str, State)> {
    ROWS.iter().map(|row| (row.1, row.3))
}

/// Bytes by row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally([u64; ROWS.len()]);

impl Tally {
    /// Adds bytes to a row.
    pub fn add(&mut self, id: Id, bytes: u64) {
        self.0[id as usize] += bytes;
    }

    /// Takes up to `bytes` from a row, and returns how many it had to give.
    pub fn take(&mut self, id: Id, bytes: u64) -> u64 {
        let taken = self.0[id as usize].min(bytes);
        self.0[id as usize] -= taken;
        taken
    }

    /// The bytes of a row.
    pub fn of(&self, id: Id) -> u64 {
        self.0[id as usize]
    }

    /// Adds another tally.
    pub fn add_all(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// The rows that hold something, by their discriminants, in that order.
    pub fn parts(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        self.0.iter().enumerate().filter(|(_, bytes)| **bytes > 0).map(|(row, &bytes)| (row as u8, bytes))
    }

    /// Adds bytes to the row of discriminant `row`; what has none is not a row.
    pub fn add_part(&mut self, row: u8, bytes: u64) {
        if let Some(sum) = self.0.get_mut(usize::from(row)) {
            *sum += bytes;
        }
    }

    /// The sum of all rows.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The rows that hold something, largest first.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = ROWS
            .iter()
            .map(|&(id, name, stratum, state, holder)| Row {
                id: name.to_owned(),
                stratum,
                state,
                holder: holder.to_owned(),
                bytes: self.of(id),
            })
            .filter(|row| row.bytes > 0)
            .collect();
        rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
        rows
    }
}

/// Adds rows up by state.
pub fn totals(rows: &[Row]) -> Totals {
    let of = |state| rows.iter().filter(|row| row.state == state).map(|row| row.bytes).sum();
    Totals {
        live: of(State::Live),
        stranded: of(State::Stranded),
        pinned: of(State::Pinned),
        evictable: of(State::Evictable),
        unattributed: of(State::Unattributed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_stands_in_the_order_of_the_names() {
        for (index, row) in ROWS.iter().enumerate() {
            assert_eq!(row.0 as usize, index, "{}", row.1);
        }
    }
}
