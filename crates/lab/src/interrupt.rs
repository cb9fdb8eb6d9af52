//! Handles Ctrl-C and other ending signals while a lab runs: no result is lost, no process is left.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, OnceLock};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use strandline_sys::signal::signal_bit;

const SIGNALS: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// Mask of the signals that were blocked before the first lab of this process (bit n-1 for signal
/// n).
static MASK_BEFORE: OnceLock<u64> = OnceLock::new();

/// The signals that end a lab, blocked and read on request.
#[derive(Debug)]
pub struct Interrupt {
    signals: SignalFd,
    /// The number of the first signal that was read.
    received: Mutex<Option<i32>>,
    /// Readable from the first signal on: one thread reads the signal, but all that wait must wake
    /// up.
    notified: EventFd,
    /// Mask of the signals that were blocked before the first lab of this process (bit n-1 for
    /// signal n).
    pub mask_before: u64,
}

impl Interrupt {
    /// Blocks the signals in this thread and those it starts; call before any other thread starts.
    ///
    /// # Errors
    /// One line, if the kernel refuses.
    pub fn new() -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("signals cannot be taken over: {error}");
        // A parent may have ignored SIGCHLD; then ends of children are not reported.
        strandline_sys::spawn::set_recording_dispositions();
        let bits = SIGNALS.into_iter().fold(0, |bits, signal| bits | signal_bit(signal as i32));
        let previous_mask = strandline_sys::signal::block(bits).map_err(failed)?;
        // A second lab of this process finds the signals blocked by the first.
        let mask_before = *MASK_BEFORE.get_or_init(|| previous_mask);
        let set: SigSet = SIGNALS.into_iter().collect();
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&set, flags).map_err(|errno| failed(errno.into()))?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let notified = EventFd::from_flags(flags).map_err(|errno| failed(errno.into()))?;
        Ok(Self { signals, received: Mutex::new(None), notified, mask_before })
    }

    /// One of these is readable once there is a signal.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.signals.as_fd(), self.notified.as_fd()]
    }

    /// The first signal received; stays set.
    pub fn signal(&self) -> Option<i32> {
        let mut received = self.received.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The file does not block: an error means that no signal can be read.
        if received.is_none()
            && let Ok(Some(signal)) = self.signals.read_signal()
        {
            *received = Some(signal.ssi_signo.cast_signed());
            // If that fails, threads notice the signal when their jobs end.
            let _ = self.notified.write(1);
        }
        *received
    }

    /// Whether a further signal arrived after the first.
    pub fn has_another(&self) -> bool {
        matches!(self.signals.read_signal(), Ok(Some(_)))
    }
}
