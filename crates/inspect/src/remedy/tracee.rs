//! One thread, stopped for a moment, and let go again as if nothing had been.
//!
//! The kernel lets a tracee go when the tracing thread ends, and only a stopped one can be let go
//! before that. So whoever stops a thread does it on a thread of its own ([`on_own_thread`]): a
//! target's thread that cannot be stopped in time is let go by that one's end.

use std::io;
use std::time::{Duration, Instant};

use strandline_sys::ptrace::{self, Event, Registers};

use super::process::ProcessMemory;
use crate::target::quiet;

/// `PTRACE_O_TRACESYSGOOD`: tells stops at system calls from a SIGTRAP.
pub(crate) const TRACE_SYSTEM_CALLS: i32 = 1;
/// Looks without sleeping between them: the next stop is often microseconds away.
const EAGER_LOOKS: u32 = 100;
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// Why a thread could not be stopped.
#[derive(Debug)]
pub enum NotStopped {
    /// It ended.
    Gone,
    /// Its process is stopped by a signal, and stays so.
    GroupStop,
    /// It did not stop in time (uninterruptible sleep).
    Late,
    /// The kernel refused.
    Io(io::Error),
}

impl From<io::Error> for NotStopped {
    fn from(error: io::Error) -> Self {
        // ESRCH and ECHILD: it ended meanwhile.
        if matches!(error.raw_os_error(), Some(3 | 10)) { Self::Gone } else { Self::Io(error) }
    }
}

/// A stopped thread. Dropped, it is let go.
#[derive(Debug)]
pub struct Tracee {
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// The registers with which it stopped.
    pub registers: Registers,
    /// When it had stopped.
    pub since: Instant,
    held: bool,
}

/// Runs `work` on a thread of its own, which is the tracer of what it stops; with its end the kernel
/// lets go whatever it still traces. `None` where no thread could be started or it panicked.
pub fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| std::thread::Builder::new().spawn_scoped(scope, work).ok()?.join().ok())
}

/// Waits until `tid` reports something, at most until `deadline`.
pub fn next_event(tid: i32, deadline: Instant) -> io::Result<Option<Event>> {
    let mut pause = SHORTEST_SLEEP;
    for look in 0_u64.. {
        if let Some(event) = ptrace::wait(tid, false)? {
            return Ok(Some(event));
        }
        if look < EAGER_LOOKS.into() {
            std::thread::yield_now();
            continue;
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_SLEEP);
    }
    Ok(None)
}

impl Tracee {
    /// Seizes and stops thread `tid` of process `pid`, within `limit`. Signals that arrive meanwhile
    /// are passed on. Call it on a thread of its own.
    pub fn stop(pid: i32, tid: i32, limit: Duration) -> Result<Self, NotStopped> {
        ptrace::seize(tid, TRACE_SYSTEM_CALLS)?;
        ptrace::interrupt(tid)?;
        Self::stopped(pid, tid, Instant::now() + limit)
    }

    /// Waits for the stop of a thread that was seized and interrupted.
    pub fn stopped(pid: i32, tid: i32, deadline: Instant) -> Result<Self, NotStopped> {
        while let Some(event) = next_event(tid, deadline)? {
            match event {
                Event::Stopped => {
                    let registers = ptrace::registers(tid)?;
                    return Ok(Self { pid, tid, registers, since: Instant::now(), held: true });
                }
                Event::GroupStop(_) => {
                    // Let go, it goes back into the stop its user wants.
                    ptrace::detach(tid, 0)?;
                    return Err(NotStopped::GroupStop);
                }
                Event::Exited { .. } => return Err(NotStopped::Gone),
                Event::Signal(signal) => ptrace::resume(tid, signal)?,
                Event::Syscall | Event::Other(_) => ptrace::resume(tid, 0)?,
            }
        }
        Err(NotStopped::Late)
    }

    /// Lets it run for `pause` and stops it again, within `limit`.
    pub fn run_for(mut self, pause: Duration, limit: Duration) -> Result<Self, NotStopped> {
        let (pid, tid) = (self.pid, self.tid);
        quiet::repair(pid, tid, &self.registers, &ProcessMemory(pid))?;
        ptrace::resume(tid, 0)?;
        self.hold(false);
        std::thread::sleep(pause);
        ptrace::interrupt(tid)?;
        Self::stopped(pid, tid, Instant::now() + limit)
    }

    /// Lets it go, and keeps it from reporting an EINTR that only this stop caused.
    pub fn let_go(mut self) {
        self.release();
    }

    /// Whether dropping it lets it go with its first registers. A call that is under way turns that
    /// off: those registers belong to the time before it.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    fn release(&mut self) {
        if std::mem::take(&mut self.held) {
            // Nothing can be done about a failure here: a thread that is gone needs no letting go,
            // and any other is let go by the end of this tracer.
            let _ = quiet::repair(self.pid, self.tid, &self.registers, &ProcessMemory(self.pid));
            let _ = ptrace::detach(self.tid, 0);
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        self.release();
    }
}
