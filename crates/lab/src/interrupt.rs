//! Ctrl-C and its kin while a lab runs: nothing is lost, nothing is left running.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, OnceLock};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

const SIGNALS: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// What was blocked when this process began.
static MASK_BEFORE: OnceLock<u64> = OnceLock::new();

/// The signals that end a lab, held back until it asks for them.
#[derive(Debug)]
pub struct Interrupt {
    signals: SignalFd,
    taken: Mutex<Option<i32>>,
    /// Readable from the first signal on, for every thread that waits: the signal itself is read by one.
    told: EventFd,
    before: u64,
}

impl Interrupt {
    /// Holds the signals back in this thread and those it starts. To be called before any other thread is.
    ///
    /// # Errors
    /// One line where the kernel refuses.
    pub fn new() -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("signals cannot be taken over: {error}");
        // A parent may have ignored SIGCHLD, and then nobody hears of ends.
        strandline_sys::spawn::dispose_for_recording();
        let bits = SIGNALS.into_iter().fold(0u64, |bits, signal| bits | 1 << (signal as i32 - 1));
        let before = strandline_sys::spawn::block_signals(bits).map_err(failed)?;
        // A second lab of this process finds them blocked by the first.
        let before = *MASK_BEFORE.get_or_init(|| before);
        let before_and_ours = before | bits;
        if before_and_ours != bits {
            strandline_sys::spawn::block_signals(before_and_ours).map_err(failed)?;
        }
        let set: SigSet = SIGNALS.into_iter().collect();
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&set, flags).map_err(|errno| failed(errno.into()))?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let told = EventFd::from_flags(flags).map_err(|errno| failed(errno.into()))?;
        Ok(Self { signals, taken: Mutex::new(None), told, before })
    }

    /// One of them is readable once there is a signal.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.signals.as_fd(), self.told.as_fd()]
    }

    /// The signal that came, if one did. It stays.
    pub fn signal(&self) -> Option<i32> {
        let mut taken = self.taken.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if taken.is_none()
            && let Ok(Some(signal)) = self.signals.read_signal()
        {
            *taken = Some(signal.ssi_signo.cast_signed());
            // Where that fails, threads hear of it as their jobs end.
            let _ = self.told.write(1);
        }
        *taken
    }

    /// Whether another one came after the first.
    pub fn again(&self) -> bool {
        matches!(self.signals.read_signal(), Ok(Some(_)))
    }

    /// The blocked signals that this process was started with.
    pub fn mask_before(&self) -> u64 {
        self.before
    }
}
