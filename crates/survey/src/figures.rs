//! What the kernel counts of one process: a few files of /proc, none of which stops it.

use std::time::{Duration, Instant};

use strandline_process::error::Error;
use strandline_process::procfs::Process;
use strandline_process::smaps;

use crate::select::Seen;

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

/// The most bytes read of /proc/PID/statm: seven numbers.
const MAX_STATM_BYTES: u64 = 256;

/// What is known of a process, and when it has to be asked for again.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its figures as they were last.
    pub figures: Figures,
    /// Its proportional set size.
    pub pss: Pss,
    /// Its control group.
    pub group: Option<String>,
    /// statm as it was then: while it says the same, the longer files are not read.
    statm: Vec<u8>,
    /// When all was read last.
    read: Instant,
}

/// All is read again after this, whatever statm says: what is shared, and with whom, may change without it.
const GOOD_FOR: Duration = Duration::from_secs(60);

impl Known {
    /// What is known of `seen` now, from what was known `before`; `None` where it has ended.
    pub fn now(seen: &Seen, before: Option<Self>) -> Option<Self> {
        let statm = seen.process.read_file("statm", MAX_STATM_BYTES).ok()?;
        let faults = (seen.minor_faults, seen.major_faults);
        match before {
            Some(mut known) if known.statm == statm && known.read.elapsed() < GOOD_FOR => {
                (known.figures.minor_faults, known.figures.major_faults) = faults;
                Some(known)
            }
            before => {
                let figures = Figures::read(&seen.process, faults)?;
                let pss = before.map_or(Pss::Unknown, |known| known.pss);
                Some(Self { figures, pss, group: seen.group(), statm, read: Instant::now() })
            }
        }
    }

    /// Whether its proportional set size may be another by now, and since when it is known; the unknown come first.
    pub fn wants_pss(&self) -> Option<Option<Instant>> {
        match self.pss {
            Pss::Known(_, at) => (at <= self.read || at.elapsed() >= GOOD_FOR).then_some(Some(at)),
            Pss::NotAllowed | Pss::Unknown => Some(None),
        }
    }
}

impl Figures {
    /// Reads them; `None` where it has ended. Its faults are known already.
    fn read(process: &Process, (minor_faults, major_faults): (u64, u64)) -> Option<Self> {
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
