//! How strandline observes the end of a function call.
//!
//! 1. A signal that the program ignores is pending for the thread, blocked like all signals during
//!    the call: rt_sigreturn unblocks it, and the kernel stops the thread.
//! 2. But rt_sigreturn discards the restart state of nanosleep, poll and timed futexes. A thread in
//!    one of these returns from the function into a tkill(2) to itself instead, by which it stops
//!    before the rt_sigreturn.
//! 3. Where neither is possible, it is stopped at every system call of the function, and the
//!    rt_sigreturn is cancelled at its entry: malloc_trim may make a hundred thousand calls.
//!
//! To a seccomp filter a cancelled system call is call number -1, which may kill. So nothing is
//! cancelled under a filter, and a thread that would need it is not used ([`can_end_by_signal`]).
//!
//! If strandline dies, the kernel drops the signal, and rt_sigreturn restores the thread.

use std::time::{Duration, Instant};

use strandline_sys::memory;
use strandline_sys::ptrace::{self, Event, Registers};

use super::code::RegisterLoads;
use super::filters::{self, RequiredCall};
use super::frame::{self, SYSCALL_BYTES};
use super::handlers::{self, StopSignals};
use super::inject::{CallError, Injected};
use crate::target::tracee::Tracee;

/// Signals that are ignored by default: URG, WINCH, CHLD.
const HARMLESS_SIGNALS: [i32; 3] = [23, 28, 17];
/// The system call by which a thread sends itself a signal.
const TKILL: RequiredCall = RequiredCall::with_any_arguments("tkill", 200);
/// Interval of the checks whether the thread has left the call without its signal.
const LEFT_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The length of the instruction `pop %rax`.
const POP_BYTES: u64 = 1;

/// Whether the program would not notice the end of a function call in this stopped thread under a
/// seccomp filter. `loads` is code of the target, if it is known.
pub fn can_end_by_signal(tracee: &Tracee<'_>, loads: Option<RegisterLoads>) -> bool {
    let Ok(mask) = ptrace::signal_mask(tracee.tid) else { return false };
    let runs_no_handler =
        || tracee.process.task_status(tracee.tid).is_ok_and(|status| !handlers::may_stop_threads(&status));
    end_signal(tracee, mask).is_some() || runs_no_handler() && OwnSignal::find(tracee, mask, loads).is_some()
}

/// A signal that can announce the end of a call; `None` if none of the harmless ones fits.
fn end_signal(tracee: &Tracee<'_>, mask: u64) -> Option<i32> {
    let registers = &tracee.registers;
    // The return from the frame would discard the restart state of the thread's system call.
    if (registers.orig_rax as i64) >= 0 && registers.rax as i64 == frame::RESTART_BLOCK {
        return None;
    }
    harmless_signal(tracee, mask)
}

/// A signal that the program ignores and does not block, and that is not pending.
fn harmless_signal(tracee: &Tracee<'_>, mask: u64) -> Option<i32> {
    let status = tracee.process.task_status(tracee.tid).ok()?;
    let pending = status.thread_pending_signals? | status.process_pending_signals?;
    // It must not be caught (the handler would run if strandline died), and the original mask must
    // not block it.
    let unfit = status.caught_signals? | pending | mask;
    HARMLESS_SIGNALS.into_iter().find(|signal| unfit >> (signal - 1) & 1 == 0)
}

/// What a thread needs to send itself a signal at the end of a call.
struct OwnSignal {
    loads: RegisterLoads,
    /// Its thread id in its own pid namespace.
    tid: i32,
    /// A signal that the program ignores and does not block.
    signal: i32,
}

impl OwnSignal {
    /// `None` if something is missing, or a seccomp filter may not allow it.
    fn find(tracee: &Tracee<'_>, mask: u64, loads: Option<RegisterLoads>) -> Option<Self> {
        let status = tracee.process.task_status(tracee.tid).ok()?;
        let tid = status.namespace_pids.last().copied()?;
        let own = Self { loads: loads?, tid, signal: harmless_signal(tracee, mask)? };
        filters::objection(tracee, &[TKILL]).is_none().then_some(own)
    }
}

impl Injected<'_> {
    /// Runs the call of a function to its end and leaves the thread stopped there.
    pub fn run(&mut self, deadline: Instant) -> Result<(), CallError> {
        self.announcement = end_signal(&self.tracee, self.original_mask).filter(|&signal| self.send(signal));
        if let Some(signal) = self.announcement {
            return self.run_to_announcement(signal, deadline);
        }
        match self.return_through_signal().map_err(CallError::Failed)? {
            Some(signal) => self.run_to_own_signal(signal, deadline),
            None => self.run_to_return(0, deadline),
        }
    }

    /// Makes the function return into a tkill(2) by which the thread sends itself a signal that the
    /// program ignores, and then into the frame. Returns the signal; `None` if that is not possible.
    fn return_through_signal(&self) -> std::io::Result<Option<i32>> {
        // A handler could leave the call without that signal.
        if self.stop_signals != StopSignals::default() {
            return Ok(None);
        }
        let Some(own) = OwnSignal::find(&self.tracee, self.original_mask, self.sites.loads) else {
            return Ok(None);
        };
        let mut registers = self.registers()?;
        if registers.rsp != self.frame_address {
            return Ok(None);
        }
        let words = [
            own.loads.rdi,
            own.tid as u64,
            own.loads.rsi,
            own.signal as u64,
            own.loads.rax,
            TKILL.number.into(),
            // Only a `ret`, for an even number of words: it keeps the stack aligned.
            own.loads.rax + POP_BYTES,
            self.sites.system_call,
        ];
        let bytes = words.map(u64::to_le_bytes).concat();
        registers.rsp = self.frame_address.wrapping_sub(bytes.len() as u64);
        memory::write(self.tracee.process.pid(), registers.rsp, &bytes)?;
        ptrace::set_signal_mask(self.tracee.tid, self.call_mask & !(1 << (own.signal - 1)))?;
        self.set_registers(&registers)?;
        Ok(Some(own.signal))
    }

    /// Runs to the stop that the signal of [`Self::return_through_signal`] causes.
    fn run_to_own_signal(&mut self, own_signal: i32, deadline: Instant) -> Result<(), CallError> {
        let tid = self.tracee.tid;
        let bit = 1 << (own_signal - 1);
        self.call_mask &= !bit;
        let after_call = self.sites.system_call.wrapping_add(SYSCALL_BYTES);
        let (mut signal, mut is_stopped) = (0, true);
        loop {
            if is_stopped {
                ptrace::resume(tid, signal).map_err(CallError::Failed)?;
            }
            (signal, is_stopped) = (0, true);
            let check_at = deadline.min(Instant::now() + LEFT_CHECK_INTERVAL);
            match self.next_event(ptrace::resume, check_at).map_err(CallError::Failed)? {
                Some(Event::Signal(number)) if number == own_signal => {
                    let now = self.registers().map_err(CallError::Failed)?;
                    if (now.rip, now.rsp) == (after_call, self.frame_address) {
                        return Ok(());
                    }
                    // Another sender's: the program may handle it by now, so it waits, blocked, for
                    // the end of the call, and so does the thread's own.
                    self.set_call_mask(self.call_mask | bit).map_err(CallError::Failed)?;
                    return self.run_to_return(own_signal, deadline);
                }
                Some(Event::Signal(number)) => {
                    self.prepare_delivery(number).map_err(CallError::Failed)?;
                    signal = number;
                }
                Some(event @ Event::Exited { .. }) => return Err(CallError::Died(event)),
                // The thread's own signal is lost if another thread sets its action at that instant.
                Some(Event::Stopped | Event::GroupStop(_) | Event::Syscall | Event::Other(_)) => {
                    self.has_left = self.is_outside().map_err(CallError::Failed)?;
                    if self.has_left {
                        return Ok(());
                    }
                }
                None => {
                    if Instant::now() >= deadline {
                        return Err(CallError::TimedOut);
                    }
                    ptrace::interrupt(tid).map_err(CallError::Failed)?;
                    is_stopped = false;
                }
            }
        }
    }

    /// Runs to the entry of the rt_sigreturn, stopping at each system call. Under a filter, where
    /// it cannot be cancelled, runs through it. `signal` is handed over first, if it is not 0.
    fn run_to_return(&mut self, mut signal: i32, deadline: Instant) -> Result<(), CallError> {
        loop {
            let first = std::mem::take(&mut signal);
            self.run_to_event(ptrace::resume_to_syscall, first, Event::Syscall, deadline)?;
            let registers = self.registers().map_err(CallError::Failed)?;
            if self.is_returning(&registers) {
                break;
            }
            // A handler that has run in the call can leave it for the program (siglongjmp).
            if self.has_run_handler && self.is_outside().map_err(CallError::Failed)? {
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

    /// Sends a blocked signal that the program ignores, for [`Injected::run_to_frame`]; `None` if
    /// none fits.
    pub fn send_harmless(&self) -> Option<i32> {
        harmless_signal(&self.tracee, self.original_mask).filter(|&signal| self.send(signal))
    }

    /// Sends `signal` to the thread; false if that fails.
    pub fn send(&self, signal: i32) -> bool {
        strandline_sys::process::signal_thread(self.tracee.process.pid(), self.tracee.tid, signal).is_ok()
    }

    /// Runs to the stop caused by `announcement` once the rt_sigreturn has restored everything.
    fn run_to_announcement(&mut self, announcement: i32, deadline: Instant) -> Result<(), CallError> {
        let tid = self.tracee.tid;
        let mut signal = 0;
        loop {
            ptrace::resume(tid, signal).map_err(CallError::Failed)?;
            signal = 0;
            match self.next_event(ptrace::resume, deadline).map_err(CallError::Failed)? {
                Some(Event::Signal(number)) => {
                    let now = ptrace::registers(tid).map_err(CallError::Failed)?;
                    let has_returned = self.has_returned(&now);
                    if number == announcement {
                        if has_returned || self.has_delivered_signal {
                            return Ok(());
                        }
                        // A handler that runs within the call has unblocked it.
                        self.announcement = None;
                        return self.run_to_return(0, deadline);
                    }
                    signal = number;
                    if !has_returned {
                        self.prepare_delivery(number).map_err(CallError::Failed)?;
                    } else {
                        // Sent during the call and delivered after it: to the program's own state,
                        // so that the kernel ends or restarts its system call as usual.
                        ptrace::set_registers(tid, &self.tracee.registers).map_err(CallError::Failed)?;
                        self.has_delivered_signal = true;
                    }
                }
                Some(event @ Event::Exited { .. }) => return Err(CallError::Died(event)),
                Some(Event::Stopped) if self.has_lost_announcement() => {
                    self.announcement = None;
                    self.has_left = self.is_outside().map_err(CallError::Failed)?;
                    return if self.has_left { Ok(()) } else { self.run_to_return(0, deadline) };
                }
                Some(Event::Stopped | Event::GroupStop(_) | Event::Syscall | Event::Other(_)) => {}
                None => return Err(CallError::TimedOut),
            }
            if Instant::now() >= deadline {
                return Err(CallError::TimedOut);
            }
        }
    }

    /// Whether the announcing signal is gone without a stop: another thread set its action, which
    /// drops it wherever it is pending.
    pub(super) fn has_lost_announcement(&self) -> bool {
        let Some(signal) = self.announcement else { return false };
        let status = self.tracee.process.task_status(self.tracee.tid).ok();
        status
            .and_then(|status| status.thread_pending_signals)
            .is_some_and(|pending| pending >> (signal - 1) & 1 == 0)
    }

    /// Whether the thread is back where it was stopped before the call.
    fn has_returned(&self, now: &Registers) -> bool {
        let returned = frame::restarting(&self.tracee.registers);
        (now.rip, now.rsp) == (returned.rip, returned.rsp)
    }
}
