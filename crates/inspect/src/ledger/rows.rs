//! The rows that exist: name, stratum, state and holder of each. `docs/accounting.md` defines them.

use std::collections::BTreeMap;

use crate::facts::{Row, State, Stratum, Totals};

/// A row of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Perl: string buffers in use.
    PerlString,
    /// Perl: string buffers that several values share.
    PerlStringShared,
    /// Perl: constants in op trees.
    PerlConstant,
    /// Perl: storage of arrays and hashes, and their keys.
    PerlContainer,
    /// Perl: heads and bodies of values in use.
    PerlArena,
    /// Perl: free places in arenas.
    PerlArenaFree,
    /// Perl: buffers kept by lexicals and temporaries out of use.
    PerlPadRetained,
    /// Perl: buffers kept by other variables without a value.
    PerlBufferRetained,
    /// SBCL: objects in use.
    SbclLive,
    /// SBCL: objects that nothing reaches.
    SbclDead,
    /// SBCL: objects, in use or not.
    SbclAllocated,
    /// SBCL: the unused rest of pages in use.
    SbclWaste,
    /// SBCL: free pages.
    SbclFree,
    /// SBCL: compiled code.
    SbclCode,
    /// SBCL: its static space.
    SbclStatic,
    /// SBCL: its immobile spaces.
    SbclImmobile,
    /// SBCL: its threads' own structures.
    SbclThread,
    /// SBCL: its collector's tables.
    SbclTables,
}

/// All rows, in the order of their discriminants.
const ROWS: [(Id, &str, Stratum, State, &str); 37] = [
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
    (Id::PerlString, "perl.string", Stratum::Values, State::Live, "perl, string buffers in use"),
    (
        Id::PerlStringShared,
        "perl.string.shared",
        Stratum::Values,
        State::Live,
        "perl, string buffers that several values share (copy-on-write), counted once",
    ),
    (Id::PerlConstant, "perl.constant", Stratum::Values, State::Live, "perl, constants in op trees"),
    (
        Id::PerlContainer,
        "perl.container",
        Stratum::Values,
        State::Live,
        "perl, storage of arrays and hashes, and their keys",
    ),
    (Id::PerlArena, "perl.arena", Stratum::Values, State::Live, "perl, heads and bodies of values"),
    (
        Id::PerlArenaFree,
        "perl.arena.free",
        Stratum::Runtime,
        State::Pinned,
        "perl, free places for heads and bodies, which perl keeps",
    ),
    (
        Id::PerlPadRetained,
        "perl.pad.retained",
        Stratum::Runtime,
        State::Stranded,
        "perl, buffers kept by lexicals and temporaries out of use",
    ),
    (
        Id::PerlBufferRetained,
        "perl.buffer.retained",
        Stratum::Runtime,
        State::Stranded,
        "perl, buffers kept by other variables without a value",
    ),
    (Id::SbclLive, "sbcl.live", Stratum::Values, State::Live, "sbcl, objects in use"),
    (
        Id::SbclDead,
        "sbcl.dead",
        Stratum::Collector,
        State::Stranded,
        "sbcl, objects that nothing reaches, not collected yet",
    ),
    (
        Id::SbclAllocated,
        "sbcl.allocated",
        Stratum::Collector,
        State::Unattributed,
        "sbcl, objects, in use or not",
    ),
    (Id::SbclWaste, "sbcl.waste", Stratum::Collector, State::Pinned, "sbcl, unused rest of pages in use"),
    (Id::SbclFree, "sbcl.free", Stratum::Collector, State::Stranded, "sbcl, free pages"),
    (Id::SbclCode, "sbcl.code", Stratum::Runtime, State::Live, "sbcl, compiled code"),
    (Id::SbclStatic, "sbcl.static", Stratum::Runtime, State::Live, "sbcl, static space"),
    (Id::SbclImmobile, "sbcl.immobile", Stratum::Runtime, State::Live, "sbcl, immobile spaces"),
    (Id::SbclThread, "sbcl.thread", Stratum::Runtime, State::Live, "sbcl, threads' own structures"),
    (Id::SbclTables, "sbcl.tables", Stratum::Runtime, State::Live, "sbcl, the collector's tables"),
];

/// Who holds a row, in general: what it says where no holder has a name of its own.
pub fn holder(id: &str) -> Option<&'static str> {
    ROWS.iter().find(|row| row.1 == id).map(|row| row.4)
}

/// The name of every row that a ledger may have.
pub fn ids() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.1)
}

/// Every row, in the order of [`Id`]'s discriminants, by name and state.
pub fn legend() -> impl Iterator<Item = (&'static str, State)> {
    ROWS.iter().map(|row| (row.1, row.3))
}

/// Bytes by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally([u64; ROWS.len()]);

impl Default for Tally {
    fn default() -> Self {
        Self([0; ROWS.len()])
    }
}

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

    /// The rows that hold something, largest first. What `holders` hold of one is a row of its own, each; what
    /// they say beyond what there is is left out.
    pub fn rows(&self, holders: &Holders) -> Vec<Row> {
        let mut rows = Vec::new();
        for &(id, name, stratum, state, holder) in &ROWS {
            let mut rest = self.of(id);
            let mut push = |holder: &str, bytes| {
                if bytes > 0 {
                    let (id, holder) = (name.to_owned(), holder.to_owned());
                    rows.push(Row { id, stratum, state, holder, bytes });
                }
            };
            for (holder, &bytes) in holders.of(id) {
                let bytes = bytes.min(rest);
                rest -= bytes;
                push(holder, bytes);
            }
            push(holder, rest);
        }
        rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| (&a.id, &a.holder).cmp(&(&b.id, &b.holder))));
        rows
    }
}

/// Bytes of rows that have holders with names of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders(BTreeMap<Id, BTreeMap<String, u64>>);

impl Holders {
    /// Adds what `holder` holds of a row.
    pub fn add(&mut self, id: Id, holder: &str, bytes: u64) {
        let of_row = self.0.entry(id).or_default();
        match of_row.get_mut(holder) {
            Some(sum) => *sum += bytes,
            None => drop(of_row.insert(holder.to_owned(), bytes)),
        }
    }

    fn of(&self, id: Id) -> impl Iterator<Item = (&String, &u64)> {
        self.0.get(&id).into_iter().flatten()
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
