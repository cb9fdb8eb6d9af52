//! Signals sent to the recorder: meant for the command under `run`, for the recorder under
//! `record`.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use strandline_sys::signal::signal_bit;

use super::Session;

/// Signals that are passed on to a command, or that end a recording.
const SIGNALS: [Signal; 9] = [
    Signal::SIGCONT,
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGTSTP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];
/// Signals that end a recording of a process that is not our command.
const STOP_SIGNALS: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];
/// `si_code` of a signal from the terminal, which signals the command as well (`SI_KERNEL` of
/// asm-generic/siginfo.h).
const SI_KERNEL: i32 = 0x80;

/// The signals that the recorder takes over.
pub(crate) struct TakenSignals {
    /// The descriptor that they are read from.
    pub signals: SignalFd,
    /// Mask of the signals that were blocked before.
    pub blocked_before: u64,
}

/// Blocks [`SIGNALS`] and reads them from a descriptor instead. Call it before any thread starts.
///
/// # Errors
/// One line, if the kernel refuses.
pub(crate) fn take_over_signals() -> Result<TakenSignals, String> {
    let failed = |error: std::io::Error| format!("signals cannot be taken over: {error}");
    strandline_sys::spawn::set_recording_dispositions();
    let set: SigSet = SIGNALS.into_iter().collect();
    let mask = SIGNALS.iter().fold(0, |mask, &signal| mask | signal_bit(signal as i32));
    let blocked_before = strandline_sys::signal::block(mask).map_err(failed)?;
    // What was blocked stays blocked, except the signal that ends a watch.
    let wake_mask = signal_bit(strandline_sys::signal::wake_signal());
    if blocked_before & wake_mask != 0 {
        strandline_sys::signal::replace_mask((blocked_before | mask) & !wake_mask).map_err(failed)?;
    }
    let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
    Ok(TakenSignals { signals: signals.map_err(|errno| failed(errno.into()))?, blocked_before })
}

impl Session<'_> {
    /// Reads the signals that have arrived, and passes them on to the command. Returns whether one
    /// ends a recording of a process that is not our command.
    pub(super) fn handle_signals(&mut self) -> bool {
        let mut has_stop_signal = false;
        while let Ok(Some(signal)) = self.signals.read_signal() {
            let number = signal.ssi_signo.cast_signed();
            if number == Signal::SIGCONT as i32 {
                // The user stopped the recorder for a while, with the command or alone.
                self.state.paused_us += self.grid.skip_pause(self.clock.now_us());
                continue;
            }
            if number == Signal::SIGTSTP as i32 {
                // Ctrl-Z takes effect when no process is held: a stopped recorder releases none.
                self.ledgers.while_nothing_is_held(strandline_sys::signal::stop_own_process);
                continue;
            }
            has_stop_signal |= STOP_SIGNALS.iter().any(|&signal| signal as i32 == number);
            if self.forwards_signals && signal.ssi_code != SI_KERNEL {
                // A command that is gone needs no signal.
                drop(strandline_sys::signal::send(self.root, number));
            }
        }
        has_stop_signal
    }
}
