//! One thread, stopped briefly and released without a visible effect.
//!
//! The kernel detaches a tracee when the tracing thread ends; before that, only a stopped tracee
//! can be detached. So a thread is stopped from a new thread ([`super::hold::on_own_thread`]),
//! whose end releases a target thread that could not be stopped in time.

use std::io;
use std::time::{Duration, Instant};

use strandline_sys::ptrace::{self, Event, Registers};
use strandline_sys::seize::Limit;

use super::exit_watch::{self, AfterRelease};
use super::hold::Hold;
use super::{admission, quiet};
use crate::error::Error;
use crate::procfs::Process;

/// `PTRACE_O_TRACESYSGOOD`: distinguishes system call stops from a SIGTRAP.
pub(super) const TRACE_SYSTEM_CALLS: i32 = 1;
/// Number of checks without sleeping: the next stop is often microseconds away.
const SPIN_CHECKS: u32 = 100;
/// Bounds of the sleep between two further checks, which doubles each time.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);
/// Maximum wait for a process that runs execve(2).
const MAX_SEIZE_WAIT: Duration = Duration::from_millis(20);
/// Maximum number of attempts to seize a thread that the kernel refuses without a visible cause.
const MAX_ATTEMPTS: u32 = 3;

/// Why a thread could not be stopped.
#[derive(Debug)]
pub enum NotStopped {
    /// It ended.
    Gone,
    /// A signal has stopped its process, which stays stopped.
    GroupStop,
    /// It did not stop in time (uninterruptible sleep).
    TimedOut,
    /// The kernel refuses, or another process traces it.
    Refused(Error),
    /// Another thread of its process runs execve(2).
    Replaced,
    /// The kernel refused a step.
    Io(io::Error),
}

/// No such process or thread, or it is not traced by this thread.
pub(super) const ESRCH: i32 = 3;
/// No such tracee to wait for.
const ECHILD: i32 = 10;

/// Whether an error of ptrace(2) or a wait means that the thread has ended.
pub fn means_ended(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(ESRCH | ECHILD))
}

impl From<io::Error> for NotStopped {
    fn from(error: io::Error) -> Self {
        if means_ended(&error) { Self::Gone } else { Self::Io(error) }
    }
}

/// A stopped thread. Dropping it releases it.
#[derive(Debug)]
pub struct Tracee<'a> {
    /// The process.
    pub process: &'a Process,
    /// The thread.
    pub tid: i32,
    /// The thread's registers at the stop.
    pub registers: Registers,
    /// When its stop was observed.
    pub since: Instant,
    /// Whether a signal had stopped its process before. After the release it stays stopped.
    pub is_group_stopped: bool,
    /// Whether dropping this releases the thread: see [`Tracee::set_restore`].
    restores_on_drop: bool,
    _hold: Hold,
}

/// Waits until `tid` has an event; `None` if it has none by `deadline`. The exit of a main thread
/// that this thread watches counts as its end.
///
/// # Errors
/// Those of [`ptrace::poll`].
pub fn next_event(tid: i32, deadline: Instant) -> io::Result<Option<Event>> {
    let mut pause = SHORTEST_SLEEP;
    let mut spin_checks = SPIN_CHECKS;
    loop {
        if let Some(event) = ptrace::poll(tid)? {
            let is_gone = exit_watch::is_exit(tid, event);
            return Ok(Some(if is_gone { Event::Exited { status: None, signal: None } } else { event }));
        }
        if spin_checks > 0 {
            spin_checks -= 1;
            std::thread::yield_now();
            continue;
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_SLEEP);
    }
}

/// Limits the waits of [`seize`] in this thread, as long as the result exists; `None` if no limit
/// can be set. A thread that holds other threads of the process must not wait for its execve.
pub(super) fn limit_seizes() -> Option<Limit> {
    Limit::new(MAX_SEIZE_WAIT).ok()
}

/// Becomes the tracer of `tid` and requests its stop; [`Tracee::wait_stopped`] waits for the stop.
pub(super) fn seize(process: &Process, tid: i32) -> Result<(), NotStopped> {
    for attempt in 0..MAX_ATTEMPTS {
        // Seizing the main thread that this thread watches would fail, after the same wait.
        let is_watched = exit_watch::is_watched(tid);
        match if is_watched { Ok(()) } else { ptrace::seize(tid, TRACE_SYSTEM_CALLS) } {
            Ok(()) => {
                // It can end between the two; the wait then reports that.
                let _ = ptrace::interrupt(tid);
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(NotStopped::Replaced),
            Err(_) => {}
        }
        // The kernel accepts this only from the tracer: this thread seized it earlier, when it was
        // in an uninterruptible sleep, and could not release it.
        if ptrace::interrupt(tid).is_ok() {
            return Ok(());
        }
        // Find the cause: it ends, or another process traces it, or the kernel refuses.
        let is_ending = process.task_stat(tid).is_ok_and(|stat| stat.is_ending());
        match process.task_status(tid) {
            Ok(status) if !status.is_zombie() && !is_ending => {
                let traced = admission::traced(process, &status);
                if traced.is_some() || attempt + 1 == MAX_ATTEMPTS {
                    let refused = traced.unwrap_or_else(|| admission::refused(process));
                    return Err(NotStopped::Refused(refused));
                }
            }
            _ => return Err(NotStopped::Gone),
        }
        // Another tracer may have released it just now, or it began to end.
        std::thread::sleep(LONGEST_SLEEP);
    }
    Err(NotStopped::Gone)
}

/// Leaves a stop that strandline did not request: delivers `signal` to the thread at once, because
/// a withheld signal is lost if strandline dies, and requests the stop again, because any stop
/// cancels the first request.
fn redeliver(tid: i32, signal: i32, deadline: Instant) -> Result<(), NotStopped> {
    ptrace::interrupt(tid)?;
    ptrace::resume(tid, signal)?;
    if Instant::now() < deadline { Ok(()) } else { Err(NotStopped::TimedOut) }
}

impl<'a> Tracee<'a> {
    /// Seizes and stops thread `tid` of `process`, within `limit`. Signals that arrive meanwhile
    /// are passed on. A thread in a group stop is released at once. Call it on a separate thread.
    pub fn stop(process: &'a Process, tid: i32, limit: Duration) -> Result<Self, NotStopped> {
        exit_watch::pass_on_before_stop(process);
        let hold = Hold::begin();
        let seize_limit = limit_seizes();
        seize(process, tid)?;
        drop(seize_limit);
        let stopped = Self::wait_stopped_not_group(process, tid, Instant::now() + limit);
        drop(hold);
        stopped
    }

    /// Waits for the requested stop of a seized thread, in a group stop or not.
    pub(super) fn wait_stopped(
        process: &'a Process,
        tid: i32,
        deadline: Instant,
    ) -> Result<Self, NotStopped> {
        while let Some(event) = next_event(tid, deadline)? {
            let is_group_stopped = match event {
                Event::Stopped => false,
                Event::GroupStop(_) => true,
                // It is still listed: another search for its threads would find it again.
                Event::Exited { .. } if exit_watch::is_at_exit(tid) => {
                    return Err(NotStopped::Refused(Error::Ended { pid: process.pid() }));
                }
                Event::Exited { .. } => return Err(NotStopped::Gone),
                Event::Signal(signal) => {
                    redeliver(tid, signal, deadline)?;
                    continue;
                }
                Event::Syscall | Event::Other(_) => {
                    redeliver(tid, 0, deadline)?;
                    continue;
                }
            };
            let registers = ptrace::registers(tid)?;
            let since = Instant::now();
            return Ok(Self {
                process,
                tid,
                registers,
                since,
                is_group_stopped,
                restores_on_drop: true,
                _hold: Hold::begin(),
            });
        }
        Err(NotStopped::TimedOut)
    }

    /// Like [`Tracee::wait_stopped`]; a thread in a group stop is released, and so returns to the
    /// stop that its user wants.
    fn wait_stopped_not_group(process: &'a Process, tid: i32, deadline: Instant) -> Result<Self, NotStopped> {
        let tracee = Self::wait_stopped(process, tid, deadline)?;
        if tracee.is_group_stopped { Err(NotStopped::GroupStop) } else { Ok(tracee) }
    }

    /// Lets the thread run for `pause` and stops it again, within `limit`.
    pub fn run_for(mut self, pause: Duration, limit: Duration) -> Result<Self, NotStopped> {
        quiet::repeat_interrupted_call(self.process, self.tid, &self.registers)?;
        ptrace::resume(self.tid, 0)?;
        self.set_restore(false);
        std::thread::sleep(pause);
        ptrace::interrupt(self.tid)?;
        Self::wait_stopped_not_group(self.process, self.tid, Instant::now() + limit)
    }

    /// Releases the thread, and prevents an EINTR caused only by this stop.
    pub fn let_go(mut self) {
        self.release();
    }

    /// Sets whether dropping this releases the thread with its original registers. An active
    /// injected call turns that off, because those registers belong to the time before it.
    pub(crate) fn set_restore(&mut self, restores: bool) {
        self.restores_on_drop = restores;
    }

    /// Releases the thread once, unless an injected call is active.
    fn release(&mut self) {
        if std::mem::take(&mut self.restores_on_drop) {
            // A failure cannot be handled here: a thread that is gone needs no release, and any
            // other is released when this tracer ends.
            let after = if self.is_group_stopped {
                AfterRelease::StaysStopped
            } else {
                let _ = quiet::repeat_interrupted_call(self.process, self.tid, &self.registers);
                AfterRelease::Runs
            };
            let _ = exit_watch::release(self.tid, after);
        }
    }
}

impl Drop for Tracee<'_> {
    fn drop(&mut self) {
        self.release();
    }
}
