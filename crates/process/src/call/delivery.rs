//! Signals of the program that arrive during an injected call: which are delivered, and when.

use std::time::{Duration, Instant};

use strandline_sys::ptrace::{self, Event};

use super::inject::{FAULTS, Injected, UNBLOCKABLE};
use crate::procfs::{ThreadActivity, signal_bit};
use crate::target::tracee;

/// The number of futex(2) on x86-64.
const FUTEX: i64 = 202;
/// Interval of the checks for a signal pending for a thread that sleeps in the call; the second
/// such check in a row delivers it.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time for which another thread is held for the call ([`Injected::hold_other`]).
const MAX_OTHER_HELD: Duration = Duration::from_secs(2);
/// The same while the calling thread sleeps: it may wait for a lock.
const MAX_OTHER_HELD_ASLEEP: Duration = Duration::from_millis(100);

impl Injected<'_> {
    /// Waits for the next event of the thread, which `resume` has resumed. Delivers signals that
    /// are pending while it sleeps.
    pub(super) fn next_event(
        &mut self,
        resume: fn(i32, i32) -> std::io::Result<()>,
        deadline: Instant,
    ) -> std::io::Result<Option<Event>> {
        let tid = self.tracee.tid;
        loop {
            let event = tracee::next_event(tid, deadline.min(Instant::now() + SIGNAL_CHECK_INTERVAL))?;
            self.release_other_if_late();
            if event.is_some() || Instant::now() >= deadline {
                self.slept_with_pending_signal = false;
                return Ok(event);
            }
            if self.has_lost_announcement() {
                ptrace::interrupt(tid)?;
                return tracee::next_event(tid, deadline);
            }
            if self.is_delivering {
                // Another thread has taken the signal.
                ptrace::interrupt(tid)?;
                let event = tracee::next_event(tid, deadline)?;
                if event != Some(Event::Stopped) {
                    return Ok(event);
                }
                self.is_delivering = false;
                if !self.is_outside()? {
                    ptrace::set_signal_mask(tid, self.call_mask)?;
                }
                resume(tid, 0)?;
                continue;
            }
            let sleeps_with_signal = self.sleeps_with_pending_signal();
            let slept_before = std::mem::replace(&mut self.slept_with_pending_signal, sleeps_with_signal);
            if !(slept_before && sleeps_with_signal) {
                continue;
            }
            ptrace::interrupt(tid)?;
            match tracee::next_event(tid, deadline)? {
                Some(Event::Stopped) => {
                    self.deliver_pending()?;
                    resume(tid, 0)?;
                }
                // A stop at a system call cancels the interrupt, so the signal is delivered from
                // here, when the caller resumes the thread.
                Some(Event::Syscall) => {
                    self.deliver_pending()?;
                    return Ok(Some(Event::Syscall));
                }
                other => return Ok(other),
            }
        }
    }

    /// Releases the other thread once it was held for too long: then the call may be waiting for
    /// it. A calling thread that waits for a processor may not have begun the call yet, so the
    /// limit is longer while it is not known to sleep.
    fn release_other_if_late(&mut self) {
        let Some(other) = &self.other_thread else { return };
        let held_time = other.since.elapsed();
        let sleeps =
            || self.tracee.process.task_stat(self.tracee.tid).is_ok_and(|stat| stat.state == Some('S'));
        if held_time >= MAX_OTHER_HELD || held_time >= MAX_OTHER_HELD_ASLEEP && sleeps() {
            self.other_thread = None;
        }
    }

    /// Makes the stopped thread, if it is in the call, handle its pending signals when it is
    /// resumed. A handler, and the program after the call, have their own masks.
    fn deliver_pending(&mut self) -> std::io::Result<()> {
        if !self.is_in_call()? {
            return Ok(());
        }
        self.is_delivering = true;
        ptrace::set_signal_mask(self.tracee.tid, self.delivery_mask())
    }

    /// Whether the thread waits for a lock while a signal is pending by which a runtime may stop
    /// it. A thread in a delivered signal's handler waits differently (sigsuspend), and signals
    /// blocked there stay blocked.
    fn sleeps_with_pending_signal(&self) -> bool {
        let (process, tid) = (self.tracee.process, self.tracee.tid);
        if !matches!(process.task_activity(tid), Some(ThreadActivity::InCall(call)) if call.number == FUTEX) {
            return false;
        }
        let Ok(status) = process.task_status(tid) else { return false };
        // Without these sets the call is not interrupted: it ends, or its time limit does.
        let (Some(of_thread), Some(of_process), Some(caught)) =
            (status.thread_pending_signals, status.process_pending_signals, status.caught_signals)
        else {
            return false;
        };
        (of_thread | of_process) & caught & self.stop_signals.likely_signals & !self.original_mask != 0
    }

    /// In the stop before the delivery of a signal within the call: decides whether its handler
    /// runs now. The kernel puts a signal back that is blocked when the thread continues.
    pub(super) fn prepare_delivery(&mut self, signal: i32) -> std::io::Result<()> {
        let bit = signal_bit(signal);
        if std::mem::take(&mut self.is_delivering) {
            // All others stay blocked for when the handler returns to the call.
            self.has_run_handler = true;
            return self.set_call_mask(self.call_mask & !bit);
        }
        if bit & (FAULTS | UNBLOCKABLE) != 0 || !self.is_in_call()? {
            return Ok(());
        }
        if self.stop_signals.known_signals & bit != 0 {
            self.has_run_handler = true;
            return Ok(());
        }
        // It has been delivered once; the next one comes after the call.
        self.set_call_mask(self.call_mask | bit)
    }
}
