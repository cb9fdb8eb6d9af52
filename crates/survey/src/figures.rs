//! What the kernel counts for one process: from a few files in /proc, without stopping it.

use std::time::{Duration, Instant};

use strandline_process::error::Error;
use strandline_process::procfs::Process;
use strandline_process::smaps;

use crate::select::FoundProcess;

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
    /// Page faults since its start that needed no disk.
    pub minor_faults: u64,
    /// Page faults since its start that read from a disk.
    pub major_faults: u64,
}

/// Maximum bytes read from /proc/PID/statm: seven numbers.
const MAX_STATM_BYTES: u64 = 256;

/// What is known about a process, and when it has to be read again.
#[derive(Clone, Debug)]
pub struct CachedFacts {
    /// Its last figures.
    pub figures: Figures,
    /// Its proportional set size.
    pub pss: Pss,
    /// Its control group.
    pub group: Option<String>,
    /// Content of statm then: the longer files are not read while it is the same.
    statm: Vec<u8>,
    /// When everything was last read.
    read: Instant,
}

/// Everything is read again after this, whatever statm contains: sharing may change without it.
const GOOD_FOR: Duration = Duration::from_secs(60);

impl CachedFacts {
    /// Current facts about `seen`, given what was known `before`; `None` if it has ended.
    pub fn now(seen: &FoundProcess, before: Option<Self>) -> Option<Self> {
        let statm = seen.process.read_file("statm", MAX_STATM_BYTES).ok()?;
        match before {
            Some(mut known) if known.statm == statm && known.read.elapsed() < GOOD_FOR => {
                known.figures.minor_faults = seen.minor_faults;
                known.figures.major_faults = seen.major_faults;
                Some(known)
            }
            before => {
                let figures = Figures::read(&seen.process, seen.minor_faults, seen.major_faults)?;
                let pss = before.map_or(Pss::Unknown, |known| known.pss);
                Some(Self { figures, pss, group: seen.group(), statm, read: Instant::now() })
            }
        }
    }

    /// If the proportional set size may have changed: the time of the known value, or `None` if
    /// unknown, which sorts first.
    pub fn wants_pss(&self) -> Option<Option<Instant>> {
        match self.pss {
            Pss::Known(_, at) => (at <= self.read || at.elapsed() >= GOOD_FOR).then_some(Some(at)),
            Pss::NotAllowed | Pss::Unknown => Some(None),
        }
    }
}

impl Figures {
    /// Reads the figures; `None` if the process has ended. Its faults are already known.
    fn read(process: &Process, minor_faults: u64, major_faults: u64) -> Option<Self> {
        let status = process.status().ok()?;
        Some(Self {
            rss_bytes: status.rss_bytes?,
            anonymous_bytes: status.anonymous_bytes,
            swap_bytes: status.swap_bytes,
            high_water_bytes: status.peak_rss_bytes,
            minor_faults,
            major_faults,
        })
    }
}

/// The proportional set size, for which the kernel walks the page tables: 7 ms per GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pss {
    /// The size, and when it was read.
    Known(u64, Instant),
    /// This user may not read it.
    NotAllowed,
    /// Not read yet, or reading failed.
    Unknown,
}

impl Pss {
    /// Reads it.
    pub fn read(process: &Process) -> Self {
        let rollup = process.open_file("smaps_rollup").map(smaps::read_rollup);
        match rollup {
            Ok(Ok(sums)) => Self::Known(sums.pss_bytes, Instant::now()),
            Err(Error::Permission { .. }) => Self::NotAllowed,
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => Self::NotAllowed,
            Ok(Err(_)) | Err(_) => Self::Unknown,
        }
    }

    /// The size, if known.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Known(bytes, _) => Some(bytes),
            Self::NotAllowed | Self::Unknown => None,
        }
    }
}
