//! What the kernel counts for one process: from a few files in /proc, without stopping it.

use std::time::{Duration, Instant};

use strandline_process::error::{Error, Result};
use strandline_process::procfs::Process;
use strandline_process::smaps;

use crate::select::FoundProcess;

/// The kernel's figures of a process; `None` is one that it does not report.
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
    /// Its figures when everything was last read, with its current page faults.
    pub figures: Figures,
    /// Its proportional set size.
    pub pss: Pss,
    /// Its control group, if known.
    pub group: Option<String>,
    /// Content of statm at that time: the longer files are not read while it stays the same.
    statm: Vec<u8>,
    /// When everything was last read.
    read_at: Instant,
}

/// Everything is read again after this time, whatever statm contains: sharing may change without
/// it.
const VALID_FOR: Duration = Duration::from_secs(60);

impl CachedFacts {
    /// Current facts about a process, given the facts of the last survey; `None` if it has no
    /// memory any more.
    ///
    /// # Errors
    /// It has ended, or its files cannot be read.
    pub fn refresh(found: &FoundProcess, cached: Option<Self>) -> Result<Option<Self>> {
        let statm = found.process.read_file("statm", MAX_STATM_BYTES)?;
        Ok(match cached {
            Some(mut facts) if facts.statm == statm && facts.read_at.elapsed() < VALID_FOR => {
                facts.figures.minor_faults = found.minor_faults;
                facts.figures.major_faults = found.major_faults;
                Some(facts)
            }
            cached => {
                let pss = cached.map_or(Pss::Unknown, |facts| facts.pss);
                let (group, read_at) = (found.group(), Instant::now());
                Figures::read(found)?.map(|figures| Self { figures, pss, group, statm, read_at })
            }
        })
    }

    /// The turn of the process to have its proportional set size read; `None` if the size cannot
    /// have changed. Turns are in ascending order: unknown sizes come first, then the oldest one.
    pub fn pss_turn(&self) -> Option<PssTurn> {
        match self.pss {
            Pss::Read { at, .. } => {
                (at <= self.read_at || at.elapsed() >= VALID_FOR).then_some(PssTurn(Some(at)))
            }
            Pss::NotAllowed | Pss::Unknown => Some(PssTurn(None)),
        }
    }
}

/// When a proportional set size was last read; `None` if the size is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PssTurn(Option<Instant>);

impl Figures {
    /// Reads the figures of a process; `None` if it has no memory any more.
    fn read(found: &FoundProcess) -> Result<Option<Self>> {
        let status = found.process.status()?;
        Ok(status.rss_bytes.map(|rss_bytes| Self {
            rss_bytes,
            anonymous_bytes: status.anonymous_bytes,
            swap_bytes: status.swap_bytes,
            high_water_bytes: status.peak_rss_bytes,
            minor_faults: found.minor_faults,
            major_faults: found.major_faults,
        }))
    }
}

/// The proportional set size, for which the kernel walks the page tables: about 7 ms per GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pss {
    /// The kernel reported it.
    Read {
        /// The size.
        bytes: u64,
        /// When it was read.
        at: Instant,
    },
    /// This user may not read it.
    NotAllowed,
    /// Not read yet, or reading failed.
    Unknown,
}

impl Pss {
    /// Reads the size of a process.
    pub fn read(process: &Process) -> Self {
        let rollup = process.open_file("smaps_rollup").map(smaps::read_rollup);
        match rollup {
            Ok(Ok(sums)) => Self::Read { bytes: sums.pss_bytes, at: Instant::now() },
            Err(Error::Permission { .. }) => Self::NotAllowed,
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => Self::NotAllowed,
            Ok(Err(_)) | Err(_) => Self::Unknown,
        }
    }

    /// The size, if known.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Read { bytes, .. } => Some(bytes),
            Self::NotAllowed | Self::Unknown => None,
        }
    }
}
