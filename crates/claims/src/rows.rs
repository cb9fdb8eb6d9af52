//! Rows of the ledger, and the rows that belong to no reader. `docs/accounting.md` defines each.
//!
//! A reader names its rows in its own folder (`rows.rs`) and lists them in its
//! [`crate::reader::ReaderInfo`].

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use crate::facts::{HolderKind, State};

/// A row that a ledger may have. Rows with the same name are equal.
#[derive(Debug)]
pub struct RowKind {
    /// Its name in every document: `glibc.free.trim`.
    pub id: &'static str,
    /// Kind of holder of the bytes.
    pub stratum: HolderKind,
    /// What can happen to the bytes.
    pub state: State,
    /// Holder of the bytes, for a person; shown if no holder has its own name.
    pub holder: &'static str,
}

/// How a row is passed around.
pub type RowRef = &'static RowKind;

impl RowKind {
    /// Makes a row.
    pub const fn new(id: &'static str, stratum: HolderKind, state: State, holder: &'static str) -> Self {
        Self { id, stratum, state, holder }
    }

    /// Whether a row's bytes are shared memory, which other processes may map, or one process
    /// several times; recognised by its name.
    pub fn is_shared(id: &str) -> bool {
        id == SHMEM.id || id.contains(".shmem.")
    }

    /// A row for an allocator.
    pub const fn of_allocator(id: &'static str, state: State, holder: &'static str) -> Self {
        Self::new(id, HolderKind::Allocator, state, holder)
    }
}

impl PartialEq for RowKind {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || self.id == other.id
    }
}

impl Eq for RowKind {}

impl PartialOrd for RowKind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RowKind {
    fn cmp(&self, other: &Self) -> Ordering {
        self.id.cmp(other.id)
    }
}

impl Hash for RowKind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// Code and constants of mapped programs and libraries.
pub static PROGRAM_TEXT: RowKind =
    RowKind::new("program.text", HolderKind::Program, State::Evictable, "code of mapped files");
/// Static data: written data pages of programs and libraries, and their bss.
pub static PROGRAM_DATA: RowKind =
    RowKind::new("program.data", HolderKind::Program, State::Live, "static data of mapped files");
/// Thread stacks in use.
pub static PROGRAM_STACK: RowKind =
    RowKind::new("program.stack", HolderKind::Program, State::Live, "thread stacks in use");
/// Thread stacks below the stack pointer.
pub static STACK_BELOW_SP: RowKind = RowKind::new(
    "kernel.stack_below_sp",
    HolderKind::Kernel,
    State::Stranded,
    "thread stacks below the stack pointer",
);
/// Other file pages.
pub static FILE: RowKind =
    RowKind::new("kernel.file", HolderKind::Kernel, State::Evictable, "pages of mapped files");
/// Shared memory.
pub static SHMEM: RowKind = RowKind::new("kernel.shmem", HolderKind::Kernel, State::Live, "shared memory");
/// Pages given up with MADV_FREE.
pub static LAZY_FREE: RowKind =
    RowKind::new("kernel.lazyfree", HolderKind::Kernel, State::Evictable, "released with MADV_FREE");
/// All-zero pages of private anonymous memory.
pub static ZERO: RowKind =
    RowKind::new("kernel.zero", HolderKind::Kernel, State::Stranded, "pages that hold only zeros");
/// Pages of devices and of the kernel itself.
pub static DEVICE: RowKind =
    RowKind::new("kernel.device", HolderKind::Kernel, State::Live, "pages of devices and of the kernel");
/// Anonymous memory that no reader explains.
pub static ANONYMOUS: RowKind =
    RowKind::new("anonymous", HolderKind::Kernel, State::Unattributed, "anonymous memory no reader explains");

/// The rows that need only the kernel's information.
pub static KERNEL_ROWS: [RowRef; 9] = [
    &PROGRAM_TEXT,
    &PROGRAM_DATA,
    &PROGRAM_STACK,
    &STACK_BELOW_SP,
    &FILE,
    &SHMEM,
    &LAZY_FREE,
    &ZERO,
    &DEVICE,
];
