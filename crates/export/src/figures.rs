//! What the kernel counts of one process: a few files of /proc, none of which stops it.

use std::time::Instant;

use strandline_process::error::Error;
use strandline_process::procfs::Process;
use strandline_process::smaps;

/// The kernel's figures of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// VmRSS.
    pub rss_bytes: u64,
    /// RssAnon.
    pub anonymous_bytes: Option<u64>,
    /// VmSwap.
    pub swap_bytes: Option<u64>,
    /// VmHWM.
    pub high_water_bytes: Option<u64>,
    /// Faults since its start.
    pub minor_faults: u64,
    /// Those that read from a disk.
    pub major_faults: u64,
}

impl Figures {
    /// Reads them; `None` where it has ended. Its faults are known already.
    pub fn read(process: &Process, (minor_faults, major_faults): (u64, u64)) -> Option<Self> {
        let status = process.status().ok()?;
        Some(Self {
            rss_bytes: status.rss_bytes?,
            anonymous_bytes: status.anonymous_bytes,
            swap_bytes: status.swap_bytes,
            high_water_bytes: status.high_water_bytes,
            minor_faults,
            major_faults,
        })
    }
}

/// The proportional set size, for which the kernel walks the page tables: 7 ms a GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pss {
    /// It was so large then.
    Known(u64, Instant),
    /// This user may not ask.
    NotAllowed,
    /// Not asked for yet, or it could not be told.
    Unknown,
}

impl Pss {
    /// Asks the kernel.
    pub fn read(process: &Process) -> Self {
        let rollup = process.open_file("smaps_rollup").map(smaps::read_rollup);
        match rollup {
            Ok(Ok(sums)) => Self::Known(sums.pss_bytes, Instant::now()),
            Err(Error::Permission { .. }) => Self::NotAllowed,
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => Self::NotAllowed,
            Ok(Err(_)) | Err(_) => Self::Unknown,
        }
    }

    /// The figure, where it is known.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Known(bytes, _) => Some(bytes),
            Self::NotAllowed | Self::Unknown => None,
        }
    }
}
