//! One sample: figures of a process's memory at one instant.

use serde::{Deserialize, Serialize};

/// The figures of a sample, in the order of the fields of [`Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Column {
    /// VmRSS.
    Rss,
    /// VmSize.
    Virtual,
    /// VmData: private writable address space, without the stack.
    Data,
    /// RssAnon.
    Anonymous,
    /// RssFile.
    File,
    /// RssShmem.
    Shmem,
    /// VmSwap.
    Swap,
    /// Minor faults since the start.
    MinorFaults,
    /// Major faults since the start.
    MajorFaults,
    /// User time since the start.
    User,
    /// System time since the start.
    System,
    /// Number of threads.
    Threads,
}

impl Column {
    /// Number of columns.
    pub const COUNT: usize = 12;
    /// All columns, in order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Rss,
        Self::Virtual,
        Self::Data,
        Self::Anonymous,
        Self::File,
        Self::Shmem,
        Self::Swap,
        Self::MinorFaults,
        Self::MajorFaults,
        Self::User,
        Self::System,
        Self::Threads,
    ];

    /// Its name in tables and documents, which ends in the unit shown.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rss => "rss_bytes",
            Self::Virtual => "virtual_bytes",
            Self::Data => "data_bytes",
            Self::Anonymous => "anonymous_bytes",
            Self::File => "file_bytes",
            Self::Shmem => "shmem_bytes",
            Self::Swap => "swap_bytes",
            Self::MinorFaults => "minor_faults",
            Self::MajorFaults => "major_faults",
            Self::User => "user_seconds",
            Self::System => "system_seconds",
            Self::Threads => "threads",
        }
    }

    /// The column with this [`Self::name`]; `None` if no column has it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|column| column.name() == name)
    }

    /// Converts a figure of [`Sample`] to the unit in [`Self::name`].
    pub fn shown(self, figure: u64) -> ColumnValue {
        match self {
            Self::Rss
            | Self::Virtual
            | Self::Data
            | Self::Anonymous
            | Self::File
            | Self::Shmem
            | Self::Swap => ColumnValue::Whole(figure.saturating_mul(1024)),
            Self::User | Self::System => ColumnValue::Micros(figure.saturating_mul(1000)),
            Self::MinorFaults | Self::MajorFaults | Self::Threads => ColumnValue::Whole(figure),
        }
    }
}

/// A figure in the unit shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnValue {
    /// Bytes, or a count.
    Whole(u64),
    /// A time in microseconds, which is shown in seconds.
    Micros(u64),
}

impl ColumnValue {
    /// The figure as a number: bytes, a count, or seconds.
    pub fn number(self) -> f64 {
        match self {
            Self::Whole(figure) => figure as f64,
            Self::Micros(micros) => micros as f64 / 1e6,
        }
    }
}

/// Figures of a process at one instant, from the kernel's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// VmRSS, in KiB.
    pub rss_kib: u64,
    /// VmSize, in KiB.
    pub virtual_kib: u64,
    /// VmData, in KiB.
    pub data_kib: u64,
    /// RssAnon, in KiB.
    pub anonymous_kib: u64,
    /// RssFile, in KiB.
    pub file_kib: u64,
    /// RssShmem, in KiB.
    pub shmem_kib: u64,
    /// VmSwap, in KiB.
    pub swap_kib: u64,
    /// Minor faults since the start.
    pub minor_faults: u64,
    /// Major faults since the start.
    pub major_faults: u64,
    /// User time since the start, in milliseconds.
    pub user_ms: u64,
    /// System time since the start, in milliseconds.
    pub system_ms: u64,
    /// Number of threads.
    pub threads: u64,
}

/// Implements the conversions of a [`Sample`] from and to its figures, with the fields in the order
/// of [`Column`].
macro_rules! impl_figures {
    ($($field:ident),* $(,)?) => {
        impl Sample {
            /// The figures, by [`Column`].
            pub fn figures(&self) -> [u64; Column::COUNT] {
                [$(self.$field),*]
            }

            /// A sample with these figures.
            pub fn from_figures(figures: [u64; Column::COUNT]) -> Self {
                let [$($field),*] = figures;
                Self { $($field),* }
            }
        }
    };
}

impl_figures! {
    rss_kib, virtual_kib, data_kib, anonymous_kib, file_kib, shmem_kib,
    swap_kib, minor_faults, major_faults, user_ms, system_ms, threads,
}

impl Sample {
    /// The figure of a column, in the unit shown.
    pub fn shown(&self, column: Column) -> ColumnValue {
        column.shown(self.figures()[column as usize])
    }
}
