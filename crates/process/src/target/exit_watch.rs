//! Catches a process at its exit, while its memory is still there.
//!
//! The kernel stops a traced thread just before it releases its memory (`PTRACE_O_TRACEEXIT`),
//! whatever ends it: a return from `main`, a signal, a SIGKILL from outside. Until then the process
//! runs at full speed, except that each signal to its main thread passes through the watcher. It is
//! seized without EXITKILL: if the watcher dies, the process runs on. Meanwhile no other thread can
//! trace it: the watching thread itself takes ledgers ([`ExitWatch::while_reading`]), so that the
//! process is watched throughout. What needs no stop runs in another thread meanwhile
//! ([`run_while_watching`]), so that signals pass.
//!
//! A watch belongs to the thread that began it and ends with that thread: the kernel then detaches
//! without a stop, which would cut a transfer of the main thread short.

use std::cell::Cell;
use std::time::{Duration, Instant};

use strandline_sys::ptrace::{self, Event, Registers};

use super::{admission, quiet, tracee};
use crate::error::{Error, Result};
use crate::procfs::{Process, ThreadActivity};
use crate::work;

/// The calls execve and execveat of x86-64.
const EXEC_CALLS: [i64; 2] = [59, 322];

/// `PTRACE_O_TRACEEXIT`, and the event it reports.
const TRACE_EXIT: i32 = 0x40;
const EVENT_EXIT: i32 = 6;

thread_local! {
    /// The process that this thread watches and reads at the same time.
    static READING: Cell<Option<Reading>> = const { Cell::new(None) };
}

/// A process that is watched and read at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    pid: i32,
    /// What has happened to its main thread since reading began.
    main_thread: MainThread,
}

/// What a watching thread knows about the main thread of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MainThread {
    Runs,
    /// A signal has stopped it; it reports when it is continued.
    GroupStopped,
    /// It is stopped at its exit.
    AtExit,
}

/// Whether the calling thread reads a process that it watches for its exit.
pub(super) fn is_reading() -> bool {
    READING.get().is_some()
}

/// Whether the calling thread watches `tid`, the main thread of a process, for its exit, and reads
/// it.
pub(super) fn is_watched(tid: i32) -> bool {
    READING.get().is_some_and(|reading| reading.pid == tid)
}

/// Interval at which signals are passed on while another thread works.
const PASS_ON_INTERVAL: Duration = Duration::from_micros(500);

/// Runs `work`, which must neither stop nor release anything in the target. A thread that watches
/// and reads a process runs `work` in another thread, and passes on the signals of the process
/// meanwhile.
pub fn run_while_watching<T: Send>(mut work: impl FnMut() -> T + Send) -> T {
    let Some(reading) = READING.get() else { return work() };
    let Ok(process) = Process::open(reading.pid) else { return work() };
    let result = std::thread::scope(|scope| {
        let working = std::thread::Builder::new().spawn_scoped(scope, &mut work).ok()?;
        while !working.is_finished() {
            pass_on(&process);
            std::thread::sleep(PASS_ON_INTERVAL);
        }
        Some(work::result_of(working))
    });
    // Without another thread, signals wait.
    result.unwrap_or_else(work)
}

/// Sleeps; a thread that watches and reads a process passes on the signals of the process
/// meanwhile.
pub fn sleep_while_watching(time: Duration) {
    let deadline = Instant::now() + time;
    let process = READING.get().and_then(|reading| Process::open(reading.pid).ok());
    let Some(process) = process else { return std::thread::sleep(time) };
    while Instant::now() < deadline {
        pass_on(&process);
        std::thread::sleep(PASS_ON_INTERVAL.min(deadline.saturating_duration_since(Instant::now())));
    }
}

/// Time for a signal handler to run before a stop: in a handler a thread can make few calls.
const HANDLER_TIME: Duration = Duration::from_millis(1);

/// Passes on signals that have waited, if this thread watches and reads `process`, before it stops
/// the process.
pub(super) fn pass_on_before_stop(process: &Process) {
    if is_watched(process.pid()) && pass_on(process) {
        sleep_while_watching(HANDLER_TIME);
    }
}

/// Handles the events of the main thread of the process that this thread watches and reads; returns
/// whether there was one.
fn pass_on(process: &Process) -> bool {
    let mut has_passed = false;
    while let Some(mut reading) = READING.get().filter(|reading| reading.main_thread != MainThread::AtExit) {
        let Ok(Some(event)) = ptrace::poll(process.pid()) else { break };
        has_passed = true;
        let outcome = reading.main_thread.handle(process, Ok(Some(event)));
        READING.set(Some(reading));
        if !matches!(outcome, Ok(WatchEvent::Woken)) {
            break;
        }
    }
    has_passed
}

/// Whether `event` is the exit of a main thread that this thread watches; keeps it for
/// [`ExitWatch::poll`].
pub(super) fn is_exit(tid: i32, event: Event) -> bool {
    let is_exit = event == Event::Other(EVENT_EXIT) && is_watched(tid);
    if is_exit {
        READING.set(Some(Reading { pid: tid, main_thread: MainThread::AtExit }));
    }
    is_exit
}

/// Whether the process that this thread watches and reads was found at its exit.
pub(super) fn is_at_exit(tid: i32) -> bool {
    READING.get() == Some(Reading { pid: tid, main_thread: MainThread::AtExit })
}

/// What a thread does after its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterRelease {
    /// It runs.
    Runs,
    /// It receives this signal.
    Receives(i32),
    /// It stays stopped by the signal that has stopped its process.
    StaysStopped,
}

impl AfterRelease {
    /// What the thread does without a tracer after the stop of `event`.
    pub fn of(event: Event) -> Self {
        match event {
            Event::Signal(signal) => Self::Receives(signal),
            Event::GroupStop(_) => Self::StaysStopped,
            Event::Stopped | Event::Syscall | Event::Exited { .. } | Event::Other(_) => Self::Runs,
        }
    }

    /// The signal that the kernel delivers at the release; 0 for none (ptrace(2)).
    fn signal(self) -> i32 {
        if let Self::Receives(signal) = self { signal } else { 0 }
    }
}

/// Releases a stopped thread: detaches from it, unless this thread watches it.
///
/// # Errors
/// If it is gone, or not stopped.
pub(crate) fn release(tid: i32, after: AfterRelease) -> std::io::Result<()> {
    if !is_watched(tid) {
        return ptrace::detach(tid, after.signal());
    }
    // Only SIGKILL ends the stop of a thread, which then stops at its exit.
    if is_at_exit(tid) || ptrace::poll(tid)?.is_some_and(|event| is_exit(tid, event)) {
        return Ok(());
    }
    let stays_stopped = after == AfterRelease::StaysStopped;
    let main_thread = if stays_stopped { MainThread::GroupStopped } else { MainThread::Runs };
    READING.set(Some(Reading { pid: tid, main_thread }));
    if stays_stopped { ptrace::listen(tid) } else { ptrace::resume(tid, after.signal()) }
}

/// Maximum time to wait until the kernel detaches the tracees of an ended thread: microseconds,
/// unless the machine is busy.
const MAX_RELEASE_TIME: Duration = Duration::from_millis(500);
/// Interval of the checks while this thread waits.
const CHECK_INTERVAL: Duration = Duration::from_micros(50);
/// Maximum time to find out why a main thread ends.
const MAX_EXIT_CAUSE_TIME: Duration = Duration::from_millis(200);

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

/// Whether a watch continues after its thread has read the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continued {
    /// It continues.
    Yes,
    /// After reading, this thread still traces other threads of the process: it must end now, which
    /// releases them. Another thread can begin a new watch.
    No,
}

/// A process that is watched for its exit. Dropping this releases a process stopped at its exit;
/// otherwise the watch lasts as long as its thread.
#[derive(Debug)]
pub struct ExitWatch {
    process: Process,
    main_thread: MainThread,
}

impl ExitWatch {
    /// Starts to watch process `pid`, without stopping it.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`], [`Error::Permission`], [`Error::Traced`] or [`Error::Ended`].
    pub fn begin(pid: i32) -> Result<Self> {
        let process = Process::open(pid)?;
        if ptrace::seize(pid, TRACE_EXIT | tracee::TRACE_SYSTEM_CALLS).is_ok() {
            return Ok(Self { process, main_thread: MainThread::Runs });
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
        if self.is_at_exit() {
            return Ok(WatchEvent::AtExit);
        }
        let slept = ptrace::sleep_until_event(self.process.pid());
        self.main_thread.handle(&self.process, slept.and_then(|()| self.event()))
    }

    /// Like [`ExitWatch::sleep`], for an event that has already occurred; does not block.
    ///
    /// # Errors
    /// Fails if the kernel refuses a step.
    pub fn poll(&mut self) -> std::io::Result<WatchEvent> {
        if self.is_at_exit() {
            return Ok(WatchEvent::AtExit);
        }
        self.main_thread.handle(&self.process, self.event())
    }

    fn is_at_exit(&self) -> bool {
        self.main_thread == MainThread::AtExit
    }

    /// Whether the main thread ends because another thread replaces the program (execve) and waits
    /// for that end. The process then runs on: call [`ExitWatch::follow`]. `false` if that stays
    /// unclear.
    pub fn is_replaced_by_exec(&self) -> bool {
        let pid = self.process.pid();
        let deadline = Instant::now() + MAX_EXIT_CAUSE_TIME;
        while self.is_at_exit() && Instant::now() < deadline {
            // An empty list is not complete, so that a failure leaves it unclear.
            let tids = self.process.tasks().unwrap_or_default();
            let mut is_unclear = !self.process.lists_all(&tids);
            for tid in tids.into_iter().filter(|tid| *tid != pid) {
                // A thread in execve sleeps uninterruptibly, once it has ended the others.
                match self.process.task_stat(tid).map(|stat| stat.state) {
                    Ok(Some('R' | 'D')) => {}
                    Ok(_) => continue,
                    Err(_) => {
                        is_unclear = true;
                        continue;
                    }
                }
                match self.process.task_activity(tid) {
                    Some(ThreadActivity::InCall(call)) if EXEC_CALLS.contains(&call.number) => return true,
                    _ => is_unclear = true,
                }
            }
            if !is_unclear {
                return false;
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        false
    }

    /// Lets the main thread end after [`ExitWatch::is_replaced_by_exec`], and watches the process,
    /// whose main thread the other thread becomes.
    ///
    /// # Errors
    /// Those of [`ExitWatch::begin`].
    pub fn follow(self) -> Result<Self> {
        let pid = self.process.pid();
        drop(self);
        let deadline = Instant::now() + MAX_RELEASE_TIME;
        loop {
            match Self::begin(pid) {
                // The old main thread is still there.
                Err(Error::Ended { .. } | Error::Permission { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(CHECK_INTERVAL);
                }
                result => return result,
            }
        }
    }

    /// Runs `work`, which stops and reads the process in this thread, while the watch runs on: the
    /// exit of the main thread ends `work` with [`Error::Ended`], and the next call of
    /// [`ExitWatch::poll`] reports it.
    pub fn while_reading<T>(&mut self, work: impl FnOnce() -> T) -> (T, Continued) {
        READING.set(Some(Reading { pid: self.process.pid(), main_thread: self.main_thread }));
        let result = work();
        self.main_thread = READING.take().map_or(MainThread::Runs, |reading| reading.main_thread);
        (result, if self.holds_only_the_watch() { Continued::Yes } else { Continued::No })
    }

    /// Whether this thread traces no other thread of the process, and the main thread is in no
    /// unexpected stop. Handles its next events.
    fn holds_only_the_watch(&mut self) -> bool {
        let pid = self.process.pid();
        let own_tid = strandline_sys::signal::own_thread();
        let is_traced_here = |tid: i32| match self.process.task_status(tid) {
            Ok(status) if tid != pid && status.tracer == Some(own_tid) => {
                // An ended thread needs no release, but its tracer has to collect it.
                !(status.is_zombie() && ptrace::reap(tid).is_ok())
            }
            _ => false,
        };
        // If its threads cannot be listed, the process is gone, and none is left to release.
        if self.process.tasks().is_ok_and(|tids| tids.into_iter().any(is_traced_here)) {
            return false;
        }
        loop {
            // The state is read before the events: a stop without an event was left by the reader.
            let is_stopped = self.process.task_stat(pid).is_ok_and(|stat| stat.state == Some('t'));
            if !is_stopped || self.main_thread != MainThread::Runs {
                return true;
            }
            match self.event() {
                Ok(None) => return false,
                event => match self.main_thread.handle(&self.process, event) {
                    Ok(WatchEvent::Woken) => {}
                    // The caller's next poll returns the same.
                    Ok(WatchEvent::AtExit | WatchEvent::Gone) | Err(_) => return true,
                },
            }
        }
    }

    /// The next event of the main thread, if it has already occurred.
    fn event(&self) -> std::io::Result<Option<Event>> {
        ptrace::poll(self.process.pid())
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

impl MainThread {
    /// Resumes the main thread of `process` after an event, unless it is at its exit.
    fn handle(
        &mut self,
        process: &Process,
        event: std::io::Result<Option<Event>>,
    ) -> std::io::Result<WatchEvent> {
        let tid = process.pid();
        if !matches!(event, Ok(None)) {
            *self = Self::Runs;
        }
        let step = match event {
            Ok(None) => return Ok(WatchEvent::Woken),
            Ok(Some(Event::Other(EVENT_EXIT))) => {
                *self = Self::AtExit;
                return Ok(WatchEvent::AtExit);
            }
            Ok(Some(Event::Exited { .. })) => return Ok(WatchEvent::Gone),
            Ok(Some(Event::Signal(signal))) => {
                repeat_call_despite(process, signal);
                ptrace::resume(tid, signal).map(|()| WatchEvent::Woken)
            }
            // It stays stopped as its user wants, and reports when it is continued.
            Ok(Some(Event::GroupStop(_))) => {
                *self = Self::GroupStopped;
                return ptrace::listen(tid).map(|()| WatchEvent::Woken);
            }
            Ok(Some(Event::Stopped | Event::Syscall | Event::Other(_))) => {
                ptrace::resume(tid, 0).map(|()| WatchEvent::Woken)
            }
            Err(error) => Err(error),
        };
        match step {
            // It was killed meanwhile, or its parent has reaped it.
            Err(error) if tracee::means_ended(&error) => {
                // If SIGKILL ended a stop, the exit stop follows; only another wait shows it.
                let may_stop = error.raw_os_error() == Some(tracee::ESRCH);
                if may_stop && process.status().is_ok_and(|status| !status.is_zombie()) {
                    return Ok(WatchEvent::Woken);
                }
                Ok(WatchEvent::Gone)
            }
            other => other,
        }
    }
}

/// Makes the main thread repeat a call that `signal` interrupted, if the program ignores that
/// signal: the kernel queues ignored signals for traced threads (kernel/signal.c, sig_ignored).
fn repeat_call_despite(process: &Process, signal: i32) {
    let tid = process.pid();
    if process.task_status(tid).is_ok_and(|status| quiet::is_ignored(&status, signal))
        && let Ok(registers) = ptrace::registers(tid)
    {
        // Fails only if the process was killed.
        drop(quiet::repeat_interrupted_call(process, tid, &registers));
    }
}

impl Drop for ExitWatch {
    fn drop(&mut self) {
        if self.is_at_exit() {
            // Fails only if the process was killed; then nothing holds it.
            drop(ptrace::detach(self.process.pid(), 0));
        }
    }
}

/// Waits until the kernel has detached `pid` from the ended thread `tracer`, which happens a moment
/// after other threads observe its end. Returns false if it has not within half a second.
pub fn wait_until_released(pid: i32, tracer: i32) -> bool {
    let deadline = Instant::now() + MAX_RELEASE_TIME;
    let is_traced = || {
        let status = Process::open(pid).and_then(|process| process.status());
        status.is_ok_and(|status| status.tracer == Some(tracer))
    };
    while is_traced() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    /// Starts a shell for a script, and waits until it runs it: its exec is over then.
    fn shell(script: &str) -> std::process::Child {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo; {script}")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    }

    fn watch(script: &str) -> (std::process::Child, ExitWatch) {
        let child = shell(script);
        let watch = ExitWatch::begin(child.id() as i32).unwrap();
        (child, watch)
    }

    fn wait_for_end(watch: &mut ExitWatch) -> WatchEvent {
        loop {
            match watch.sleep().unwrap() {
                WatchEvent::Woken => {}
                event => return event,
            }
        }
    }

    #[test]
    fn a_process_is_caught_with_its_memory_whatever_ends_it() {
        for (script, status) in [("read x; exit 3", "exit status: 3"), ("read x; kill -9 $$", "signal: 9")] {
            let (mut child, mut watch) = watch(script);
            drop(child.stdin.take());
            assert_eq!(wait_for_end(&mut watch), WatchEvent::AtExit);
            assert!(watch.process().status().unwrap().rss_bytes.is_some_and(|rss| rss > 0));
            assert!(watch.registers().is_ok());
            drop(watch);
            assert!(child.wait().unwrap().to_string().starts_with(status));
        }
    }

    #[test]
    fn signals_pass_and_a_stopped_process_stays_stopped() {
        const SIGCONT: i32 = 18;
        let script = "trap 'exit 5' USR1; read x; kill -STOP $$; kill -USR1 $$; exit 1";
        let (mut child, mut watch) = watch(script);
        let pid = child.id() as i32;
        drop(child.stdin.take());
        let stat = || Process::open(pid).unwrap().stat().unwrap().state;
        while !matches!(stat(), Some('T' | 't')) {
            std::thread::sleep(Duration::from_millis(1));
        }
        strandline_sys::signal::send(pid, SIGCONT).unwrap();
        assert_eq!(wait_for_end(&mut watch), WatchEvent::AtExit);
        drop(watch);
        assert_eq!(child.wait().unwrap().code(), Some(5));
    }

    #[test]
    fn with_its_thread_a_watch_ends_and_another_can_begin() {
        let mut child = shell("read x; exit 4");
        let pid = child.id() as i32;
        let first = std::thread::spawn(move || {
            let _watch = ExitWatch::begin(pid).unwrap();
            strandline_sys::signal::own_thread()
        });
        let tracer = first.join().unwrap();
        // On a busy machine it may take longer than one wait.
        while !wait_until_released(pid, tracer) {}
        assert_ne!(Process::open(pid).unwrap().status().unwrap().tracer, Some(tracer));
        let mut second = ExitWatch::begin(pid).unwrap();
        drop(child.stdin.take());
        assert_eq!(wait_for_end(&mut second), WatchEvent::AtExit);
        drop(second);
        assert_eq!(child.wait().unwrap().code(), Some(4));
    }
}
