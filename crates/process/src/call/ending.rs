//! How strandline observes the end of a function call.
//!
//! 1. A signal that the program ignores is pending for the thread, blocked like all signals during
//!    the call: rt_sigreturn unblocks it, and the kernel stops the thread.
//! 2. But rt_sigreturn discards the restart state of nanosleep, poll and timed futexes. A thread in
//!    one of these returns from the function into libc's sigrelse(3) first, which unblocks the
//!    signal before the rt_sigreturn.
//! 3. Where neither is possible, it is stopped at every system call of the function, and the
//!    rt_sigreturn is cancelled at its entry: malloc_trim may make a hundred thousand calls.
//!
//! To a seccomp filter a cancelled system call is call number -1, which may kill. So nothing is
//! cancelled under a filter, and a thread that would need it is not used ([`can_end_by_signal`]).
//!
//! If strandline dies, the kernel drops the signal, and rt_sigreturn restores the thread.

use std::time::Instant;

use strandline_sys::memory;
use strandline_sys::ptrace::{self, Event, Registers};

use super::code::SignalRelease;
use super::filters::{self, RequiredCall};
use super::frame;
use super::handlers::{self, StopSignals};
use super::inject::{CallError, Injected};
use crate::procfs::signal_bit;
use crate::target::tracee::Tracee;

/// Signals that are ignored by default: SIGURG, SIGWINCH, SIGCHLD.
const HARMLESS_SIGNALS: [i32; 3] = [23, 28, 17];
/// The system call of sigrelse(3), with its number.
const UNBLOCKING_CALL: RequiredCall = RequiredCall::with_any_arguments("rt_sigprocmask", 14);
/// The length of the instruction `pop %rdi`.
const POP_BYTES: u64 = 1;

/// Whether the end of a function call in this stopped thread can be observed under a seccomp filter
/// without the program noticing it; `false` if unknown. `release` is code of the target, if it is
/// known.
pub fn can_end_by_signal(tracee: &Tracee<'_>, release: Option<SignalRelease>) -> bool {
    let Ok(mask) = ptrace::signal_mask(tracee.tid) else { return false };
    if harmless_signal(tracee, mask).is_none() {
        return false;
    }
    let runs_no_handler =
        || tracee.process.task_status(tracee.tid).is_ok_and(|status| !handlers::may_stop_threads(&status));
    !loses_restart_state(tracee) || release.is_some() && runs_no_handler() && may_unblock(tracee)
}

/// Whether rt_sigreturn would discard how the thread's system call continues.
fn loses_restart_state(tracee: &Tracee<'_>) -> bool {
    let registers = &tracee.registers;
    (registers.orig_rax as i64) >= 0 && registers.rax as i64 == frame::RESTART_BLOCK
}

/// Whether no seccomp filter forbids [`UNBLOCKING_CALL`].
fn may_unblock(tracee: &Tracee<'_>) -> bool {
    filters::objection(tracee, &[UNBLOCKING_CALL]).is_none()
}

/// Finds a signal that the program ignores and does not block, and that is not pending; `None` if
/// no signal qualifies, or the thread's signals cannot be read.
fn harmless_signal(tracee: &Tracee<'_>, mask: u64) -> Option<i32> {
    let status = tracee.process.task_status(tracee.tid).ok()?;
    let pending = status.thread_pending_signals? | status.process_pending_signals?;
    // It must not be caught (the handler would run if strandline died), and the original mask must
    // not block it.
    let unfit = status.caught_signals? | pending | mask;
    HARMLESS_SIGNALS.into_iter().find(|&signal| unfit & signal_bit(signal) == 0)
}

impl Injected<'_> {
    /// Runs the call of a function to its end and leaves the thread stopped there.
    pub fn run(&mut self, deadline: Instant) -> Result<(), CallError> {
        let release = if loses_restart_state(&self.tracee) {
            match self.sites.release.filter(|_| self.can_release()) {
                Some(release) => Some(release),
                None => return self.run_to_return(deadline),
            }
        } else {
            None
        };
        self.announcement = self.send_harmless();
        let Some(signal) = self.announcement else { return self.run_to_return(deadline) };
        if let Some(release) = release {
            self.return_through(release, signal)?;
        }
        self.run_to_announcement(signal, deadline)
    }

    /// Whether the function may return through sigrelse. A handler that runs in the call could
    /// leave it otherwise.
    fn can_release(&self) -> bool {
        self.stop_signals == StopSignals::default()
            && self.registers().is_ok_and(|registers| registers.rsp == self.frame_address)
            && may_unblock(&self.tracee)
    }

    /// Makes the function return into sigrelse, which unblocks `signal`, and then into the frame.
    fn return_through(&self, release: SignalRelease, signal: i32) -> std::io::Result<()> {
        let words = [
            // Only a `ret`, for an even number of words: it keeps the stack aligned.
            release.load_rdi + POP_BYTES,
            release.load_rdi,
            signal as u64,
            release.function,
        ];
        let bytes = words.map(u64::to_le_bytes).concat();
        let mut registers = self.registers()?;
        registers.rsp = self.frame_address.wrapping_sub(bytes.len() as u64);
        memory::write(self.tracee.process.pid(), registers.rsp, &bytes)?;
        self.set_registers(&registers)
    }

    /// Whether the stopped thread is in the sigrelse of [`Self::return_through`], which has
    /// unblocked `signal`.
    fn is_released(&self, signal: i32, now: &Registers) -> std::io::Result<bool> {
        let mask = ptrace::signal_mask(self.tracee.tid)?;
        Ok(loses_restart_state(&self.tracee)
            && mask == self.call_mask & !signal_bit(signal)
            && now.rsp < self.frame_address)
    }

    /// Runs to the entry of the rt_sigreturn, stopping at each system call. Under a filter, where
    /// it cannot be cancelled, runs through it.
    fn run_to_return(&mut self, deadline: Instant) -> Result<(), CallError> {
        loop {
            let registers = self.next_system_call(deadline)?;
            if self.is_returning(&registers) {
                break;
            }
            // A handler that has run in the call can leave it for the program (siglongjmp).
            if self.has_run_handler && self.is_outside()? {
                self.has_left = true;
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(CallError::TimedOut);
            }
        }
        if self.may_be_filtered {
            self.next_system_call(deadline)?;
        }
        Ok(())
    }

    /// Sends a blocked signal that the program ignores, whose delivery stops the thread; `None` if
    /// none fits, or it cannot be sent.
    pub fn send_harmless(&self) -> Option<i32> {
        harmless_signal(&self.tracee, self.original_mask).filter(|&signal| self.send(signal))
    }

    /// Sends `signal` to the thread; false if that fails.
    pub fn send(&self, signal: i32) -> bool {
        strandline_sys::process::signal_thread(self.tracee.process.pid(), self.tracee.tid, signal).is_ok()
    }

    /// Runs to the stop caused by `announcement`: in sigrelse, or once the rt_sigreturn has
    /// restored everything.
    fn run_to_announcement(&mut self, announcement: i32, deadline: Instant) -> Result<(), CallError> {
        let mut signal = 0;
        loop {
            ptrace::resume(self.tracee.tid, signal)?;
            signal = 0;
            match self.next_event(ptrace::resume, deadline)? {
                Some(Event::Signal(number)) if number == announcement => {
                    // A handler that runs within the call has unblocked it otherwise.
                    let has_ended = self.has_ended_at(announcement)?;
                    return if has_ended { Ok(()) } else { self.run_to_return(deadline) };
                }
                Some(Event::Signal(number)) => {
                    self.prepare_signal(number)?;
                    signal = number;
                }
                Some(event @ Event::Exited { .. }) => return Err(CallError::Died(event)),
                Some(Event::Stopped) if self.has_lost_announcement() => {
                    self.announcement = None;
                    self.has_left = self.is_outside()?;
                    return if self.has_left { Ok(()) } else { self.run_to_return(deadline) };
                }
                Some(Event::Stopped | Event::GroupStop(_) | Event::Syscall | Event::Other(_)) => {}
                None => return Err(CallError::TimedOut),
            }
            if Instant::now() >= deadline {
                return Err(CallError::TimedOut);
            }
        }
    }

    /// Whether the function has ended at the stop caused by `announcement`.
    fn has_ended_at(&mut self, announcement: i32) -> Result<bool, CallError> {
        let now = self.registers()?;
        if self.has_returned(&now) || self.has_delivered_signal {
            return Ok(true);
        }
        // From here on strandline restores the thread itself.
        self.announcement = None;
        Ok(self.is_released(announcement, &now)?)
    }

    /// Prepares the thread for a signal of the program, which its next start delivers: within the
    /// call, or after it to the program's own state, so that the kernel ends or restarts its system
    /// call as usual.
    fn prepare_signal(&mut self, number: i32) -> Result<(), CallError> {
        if !self.has_returned(&self.registers()?) {
            return Ok(self.prepare_delivery(number)?);
        }
        self.set_registers(&self.tracee.registers)?;
        self.has_delivered_signal = true;
        Ok(())
    }

    /// Whether the announcing signal is known to be gone without a stop: another thread set its
    /// action, which drops it wherever it is pending.
    pub(super) fn has_lost_announcement(&self) -> bool {
        let Some(signal) = self.announcement else { return false };
        let status = self.tracee.process.task_status(self.tracee.tid).ok();
        let pending = status.and_then(|status| status.thread_pending_signals);
        pending.is_some_and(|pending| pending & signal_bit(signal) == 0)
    }

    /// Whether the thread is back where it was stopped before the call.
    fn has_returned(&self, now: &Registers) -> bool {
        let returned = frame::restarting(&self.tracee.registers);
        (now.rip, now.rsp) == (returned.rip, returned.rsp)
    }
}
