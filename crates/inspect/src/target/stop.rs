//! Stopping all threads of a process for a moment, and letting them go as if nothing had been.
//!
//! Threads are seized, never attached, and without EXITKILL: if strandline dies, the kernel lets all
//! of them run on by itself. A signal that was on its way to a thread is delivered when it is let go;
//! a process that was stopped by SIGSTOP stays stopped. A thread in an uninterruptible sleep cannot
//! be stopped; it cannot run its program either before it meets the stop that waits for it, so it is
//! left out, and said. The kernel lets it pass as soon as the tracing thread ends: so stop a process on
//! a thread of its own, and end that thread with the look.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use strandline_sys::ptrace::{self, Event, Registers};

use crate::error::{Error, Result};
use crate::procfs::Process;

/// How long all threads together may take to stop.
const PATIENCE: Duration = Duration::from_secs(3);
/// After this, a thread that still did not stop is asked what it is doing.
const SUSPICION: Duration = Duration::from_millis(50);

/// One stopped thread.
#[derive(Clone, Copy, Debug)]
pub struct Thread {
    /// Its id.
    pub tid: i32,
    /// Its registers; `None` for a thread in an uninterruptible sleep.
    pub registers: Option<Registers>,
    /// The signal it was about to receive; 0 for none.
    signal: i32,
    /// Whether it stands in a stop that `PTRACE_INTERRUPT` made, where a system call may be repeated.
    interrupted: bool,
}

/// A process whose threads are all stopped. Dropping it lets them go.
#[derive(Debug)]
pub struct Stopped {
    pid: i32,
    threads: BTreeMap<i32, Thread>,
    asleep: Vec<i32>,
    since: Instant,
}

impl Stopped {
    /// Stops all threads of `process`.
    ///
    /// Fails with [`Error::Permission`], [`Error::Traced`], [`Error::Ended`] or [`Error::DidNotStop`];
    /// then everything that was stopped runs again.
    pub fn stop(process: &Process) -> Result<Self> {
        let since = Instant::now();
        let mut stopped = Self { pid: process.pid(), threads: BTreeMap::new(), asleep: Vec::new(), since };
        let mut waiting: Vec<i32> = Vec::new();
        loop {
            let mut found_new = false;
            for tid in process.tasks()? {
                if stopped.threads.contains_key(&tid)
                    || stopped.asleep.contains(&tid)
                    || waiting.contains(&tid)
                {
                    continue;
                }
                if seize(process, tid)? {
                    waiting.push(tid);
                    found_new = true;
                }
            }
            if !found_new && waiting.is_empty() {
                break;
            }
            stopped.collect(process, &mut waiting)?;
        }
        if stopped.threads.is_empty() && stopped.asleep.is_empty() {
            return Err(Error::Ended { pid: process.pid() });
        }
        Ok(stopped)
    }

    /// Waits until each of `waiting` has stopped, ended, or is asleep in the kernel.
    fn collect(&mut self, process: &Process, waiting: &mut Vec<i32>) -> Result<()> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(10);
        while !waiting.is_empty() {
            waiting.retain(|&tid| self.take_event(tid));
            if waiting.is_empty() {
                break;
            }
            if start.elapsed() > SUSPICION {
                waiting.retain(|&tid| {
                    let asleep = process.task_stat(tid).is_ok_and(|stat| stat.state == Some('D'));
                    if asleep {
                        self.asleep.push(tid);
                    }
                    !asleep
                });
            }
            if self.since.elapsed() > PATIENCE {
                let detail = format!("thread {} runs on", waiting.first().copied().unwrap_or(0));
                return Err(Error::DidNotStop { pid: self.pid, seconds: PATIENCE.as_secs_f64(), detail });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Takes news of `tid`; true where there is none yet.
    fn take_event(&mut self, tid: i32) -> bool {
        let (signal, interrupted) = match ptrace::wait(tid, false) {
            Ok(None) => return true,
            Ok(Some(Event::Exited { .. })) | Err(_) => return false,
            Ok(Some(Event::Signal(signal))) => (signal, false),
            Ok(Some(Event::Stopped)) => (0, true),
            Ok(Some(Event::GroupStop(_) | Event::Syscall | Event::Other(_))) => (0, false),
        };
        if let Ok(registers) = ptrace::registers(tid) {
            self.threads.insert(tid, Thread { tid, registers: Some(registers), signal, interrupted });
        }
        false
    }

    /// The stopped threads, by id.
    pub fn threads(&self) -> impl Iterator<Item = &Thread> {
        self.threads.values()
    }

    /// Threads in an uninterruptible sleep, which could not be asked.
    pub fn asleep(&self) -> &[i32] {
        &self.asleep
    }

    /// Lets all threads go; returns how long they were stopped.
    pub fn resume(mut self) -> Duration {
        self.release();
        self.since.elapsed()
    }

    fn release(&mut self) {
        for thread in std::mem::take(&mut self.threads).into_values() {
            if let Some(registers) = thread.registers.filter(|_| thread.interrupted) {
                let memory = super::live::Live::new(self.pid);
                // A thread that is gone meanwhile has nothing to repair.
                let _ = super::quiet::repair(self.pid, thread.tid, &registers, &memory);
            }
            let _ = ptrace::detach(thread.tid, thread.signal);
        }
        // A thread that was asleep meets its stop when it wakes; the end of the tracing thread frees it.
        self.asleep.clear();
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.release();
    }
}

/// Seizes and interrupts `tid`; false where it is gone or going.
fn seize(process: &Process, tid: i32) -> Result<bool> {
    if ptrace::seize(tid, 0).is_ok() {
        // It can end between the two; the wait then says so.
        let _ = ptrace::interrupt(tid);
        return Ok(true);
    }
    // Why not? It ended, or somebody traces it, or we may not.
    let Ok(status) = process.task_status(tid) else { return Ok(false) };
    if status.is_zombie() {
        return Ok(false);
    }
    if let Some(tracer) = status.tracer.filter(|&tracer| tracer != 0) {
        let tracer_name = Process::open(tracer).and_then(|p| p.status()).ok().and_then(|s| s.name);
        return Err(Error::Traced {
            pid: process.pid(),
            tracer,
            tracer_name: tracer_name.unwrap_or_else(|| "unknown".to_owned()),
        });
    }
    Err(crate::target::admission::refused(process))
}
