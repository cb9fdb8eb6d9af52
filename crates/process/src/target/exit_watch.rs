//! Catches a process at its exit, while its memory is still there.
//!
//! The kernel stops a traced thread just before it releases its memory (`PTRACE_O_TRACEEXIT`),
//! whatever ends it: a return from `main`, a signal, a SIGKILL from outside. Until then the process
//! runs at full speed, except that each signal to its main thread passes through the watcher. It is
//! seized without EXITKILL: if the watcher dies, the process runs on. Meanwhile no other thread can
//! trace it.
//!
//! A watch belongs to the thread that began it and ends with that thread: the kernel then detaches
//! without a stop, which would cut a transfer of the main thread short.

use std::time::{Duration, Instant};

use strandline_sys::ptrace::{self, Event, Registers};

use super::{admission, quiet};
use crate::error::{Error, Result};
use crate::procfs::Process;

/// `PTRACE_O_TRACEEXIT`, and the event it reports.
const TRACE_EXIT: i32 = 0x40;
const EVENT_EXIT: i32 = 6;
/// The kernel detaches the tracees of an ended thread within microseconds, unless the machine is
/// busy.
const RELEASED_WITHIN: Duration = Duration::from_millis(500);
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// The result of waiting on a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// The main thread is stopped at its exit, and so is the process unless other threads run on;
    /// its memory is still there.
    AtExit,
    /// It is gone.
    Gone,
    /// Neither: a signal was passed on, or a signal handler ran in the watching thread.
    Woken,
}

/// A process that is watched for its exit. Dropping this releases a process stopped at its exit;
/// otherwise the watch lasts as long as its thread.
#[derive(Debug)]
pub struct ExitWatch {
    process: Process,
    is_at_exit: bool,
}

impl ExitWatch {
    /// Starts to watch process `pid`, without stopping it.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`], [`Error::Permission`], [`Error::Traced`] or [`Error::Ended`].
    pub fn begin(pid: i32) -> Result<Self> {
        let process = Process::open(pid)?;
        if ptrace::seize(pid, TRACE_EXIT).is_ok() {
            return Ok(Self { process, is_at_exit: false });
        }
        match process.status() {
            Ok(status) if !status.is_zombie() => {
                Err(admission::traced(&process, &status).unwrap_or_else(|| admission::refused(&process)))
            }
            _ => Err(Error::Ended { pid }),
        }
    }

    /// Sleeps until the process is stopped at its exit or gone, or a signal wakes this thread.
    /// Passes on every signal to the process meanwhile.
    ///
    /// # Errors
    /// Fails if the kernel refuses a step.
    pub fn sleep(&mut self) -> std::io::Result<WatchEvent> {
        let slept = ptrace::sleep_until_event(self.process.pid());
        self.after(slept.and_then(|()| self.event()))
    }

    /// Like [`ExitWatch::sleep`], for an event that has already occurred; does not block.
    ///
    /// # Errors
    /// Fails if the kernel refuses a step.
    pub fn poll(&mut self) -> std::io::Result<WatchEvent> {
        let event = self.event();
        self.after(event)
    }

    fn event(&self) -> std::io::Result<Option<Event>> {
        ptrace::wait(self.process.pid(), false)
    }

    /// Resumes the process after an event.
    fn after(&mut self, event: std::io::Result<Option<Event>>) -> std::io::Result<WatchEvent> {
        let tid = self.process.pid();
        let step = match event {
            Ok(None) => return Ok(WatchEvent::Woken),
            Ok(Some(Event::Other(EVENT_EXIT))) => {
                self.is_at_exit = true;
                return Ok(WatchEvent::AtExit);
            }
            Ok(Some(Event::Exited { .. })) => return Ok(WatchEvent::Gone),
            Ok(Some(Event::Signal(signal))) => {
                self.repair(signal);
                ptrace::resume(tid, signal).map(|()| WatchEvent::Woken)
            }
            // It stays stopped as its user wants, and reports when it is continued.
            Ok(Some(Event::GroupStop(_))) => ptrace::listen(tid).map(|()| WatchEvent::Woken),
            Ok(Some(Event::Stopped | Event::Syscall | Event::Other(_))) => {
                ptrace::resume(tid, 0).map(|()| WatchEvent::Woken)
            }
            Err(error) => Err(error),
        };
        match step {
            // ESRCH and ECHILD: killed meanwhile, or reaped by its parent.
            Err(error) if matches!(error.raw_os_error(), Some(3 | 10)) => {
                // If SIGKILL ended a stop, the exit stop follows; only another wait can tell.
                if error.raw_os_error() == Some(3) && self.process.status().is_ok_and(|s| !s.is_zombie()) {
                    return Ok(WatchEvent::Woken);
                }
                Ok(WatchEvent::Gone)
            }
            other => other,
        }
    }

    /// Restarts a call that `signal` interrupted, if the program ignores that signal: the kernel
    /// queues ignored signals for traced threads (kernel/signal.c, sig_ignored).
    fn repair(&self, signal: i32) {
        let tid = self.process.pid();
        if self.process.task_status(tid).is_ok_and(|status| quiet::is_ignored(&status, signal))
            && let Ok(registers) = ptrace::registers(tid)
        {
            // Fails only if the process was killed.
            drop(quiet::repeat_interrupted_call(&self.process, tid, &registers));
        }
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The main thread's registers, if it is stopped at its exit.
    ///
    /// # Errors
    /// Fails if it is not, or was killed there.
    pub fn registers(&self) -> std::io::Result<Registers> {
        ptrace::registers(self.process.pid())
    }
}

impl Drop for ExitWatch {
    fn drop(&mut self) {
        if self.is_at_exit {
            // Fails only if the process was killed; then nothing holds it.
            drop(ptrace::detach(self.process.pid(), 0));
        }
    }
}

/// Waits until the kernel has detached `pid` from the ended thread `tracer`, which happens a moment
/// after other threads observe its end.
pub fn wait_until_released(pid: i32, tracer: i32) {
    let until = Instant::now() + RELEASED_WITHIN;
    let is_traced = || {
        let status = Process::open(pid).and_then(|process| process.status());
        status.is_ok_and(|status| status.tracer == Some(tracer))
    };
    while is_traced() && Instant::now() < until {
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn watch(script: &str) -> (std::process::Child, ExitWatch) {
        let child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let watch = ExitWatch::begin(child.id() as i32).unwrap();
        (child, watch)
    }

    fn until_news(watch: &mut ExitWatch) -> WatchEvent {
        loop {
            match watch.sleep().unwrap() {
                WatchEvent::Woken => {}
                news => return news,
            }
        }
    }

    #[test]
    fn a_process_is_caught_with_its_memory_whatever_ends_it() {
        for (script, status) in [("read x; exit 3", "exit status: 3"), ("read x; kill -9 $$", "signal: 9")] {
            let (mut child, mut watch) = watch(script);
            drop(child.stdin.take());
            assert_eq!(until_news(&mut watch), WatchEvent::AtExit);
            assert!(watch.process().status().unwrap().rss_bytes.is_some_and(|rss| rss > 0));
            assert!(watch.registers().is_ok());
            drop(watch);
            assert!(child.wait().unwrap().to_string().starts_with(status));
        }
    }

    #[test]
    fn signals_pass_and_a_stopped_process_stays_stopped() {
        let (mut child, mut watch) = watch("trap 'exit 5' USR1; kill -STOP $$; kill -USR1 $$; exit 1");
        let pid = child.id() as i32;
        let stat = || Process::open(pid).unwrap().stat().unwrap().state;
        // Stopped in the watcher, or before it.
        while !matches!(stat(), Some('T' | 't')) {
            std::thread::sleep(Duration::from_millis(1));
        }
        strandline_sys::signal::send(pid, 18).unwrap();
        assert_eq!(until_news(&mut watch), WatchEvent::AtExit);
        drop(watch);
        assert_eq!(child.wait().unwrap().code(), Some(5));
    }

    #[test]
    fn with_its_thread_a_watch_ends_and_another_can_begin() {
        let mut child =
            Command::new("sh").args(["-c", "read x; exit 4"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        let first = std::thread::spawn(move || {
            let _watch = ExitWatch::begin(pid).unwrap();
            strandline_sys::signal::own_thread()
        });
        wait_until_released(pid, first.join().unwrap());
        let mut second = ExitWatch::begin(pid).unwrap();
        drop(child.stdin.take());
        assert_eq!(until_news(&mut second), WatchEvent::AtExit);
        drop(second);
        assert_eq!(child.wait().unwrap().code(), Some(4));
    }
}
