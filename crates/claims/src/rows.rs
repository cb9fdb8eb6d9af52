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

/// A row, as readers and the ledger refer to it.
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

/// Defines one static `RowKind` per line, `NAME = (id, stratum, state, label)`, and a list of all,
/// whose name comes first.
#[macro_export]
macro_rules! row_table {
    ($list:ident: $($name:ident = ($id:expr, $stratum:ident, $state:ident, $label:literal),)+) => {
        $(
            #[doc = concat!("`", $id, "`: ", $label, ".")]
            pub static $name: $crate::rows::RowKind = $crate::rows::RowKind::new(
                $id,
                $crate::facts::HolderKind::$stratum,
                $crate::facts::State::$state,
                $label,
            );
        )+
        /// All rows of this table.
        pub static $list: [$crate::rows::RowRef; [$($id),+].len()] = [$(&$name),+];
    };
}

// The rows that need only the kernel's information.
row_table! { KERNEL_ROWS:
    PROGRAM_TEXT = ("program.text", Program, Evictable, "code of mapped files"),
    // Written data pages of programs and libraries, and their bss.
    PROGRAM_DATA = ("program.data", Program, Live, "static data of mapped files"),
    PROGRAM_STACK = ("program.stack", Program, Live, "thread stacks in use"),
    STACK_BELOW_SP = ("kernel.stack_below_sp", Kernel, Stranded, "thread stacks below the stack pointer"),
    FILE = ("kernel.file", Kernel, Evictable, "pages of mapped files"),
    SHMEM = ("kernel.shmem", Kernel, Live, "shared memory"),
    LAZY_FREE = ("kernel.lazyfree", Kernel, Evictable, "released with MADV_FREE"),
    // Of private anonymous memory.
    ZERO = ("kernel.zero", Kernel, Stranded, "pages that hold only zeros"),
    DEVICE = ("kernel.device", Kernel, Live, "pages of devices and of the kernel"),
}

/// Anonymous memory that no reader explains.
pub static ANONYMOUS: RowKind =
    RowKind::new("anonymous", HolderKind::Kernel, State::Unattributed, "anonymous memory no reader explains");
