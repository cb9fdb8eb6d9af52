//! Stops all threads of a process briefly, and releases them without a visible effect.
//!
//! Threads are seized, never attached, and without EXITKILL: if strandline dies, the kernel lets
//! all of them run on. A signal on its way to a thread is delivered at once, and its handler runs
//! when the thread is released; a process that was stopped by SIGSTOP stays stopped. A thread in an
//! uninterruptible sleep cannot be stopped; but it cannot run its program before it reaches the
//! pending stop, so it is left out and reported. A thread that sleeps in a transfer, which a stop
//! would cut short, can be left asleep on request: the reader checks afterwards that it slept
//! throughout ([`Stopped::slept_throughout`]).
//!
//! Run this on a separate thread ([`super::hold::on_own_thread`]): a thread that does not stop in
//! time is released only when its tracer ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use strandline_sys::ptrace::{self, Event};

use super::asleep::Asleep;
use super::exit_watch::{self, AfterRelease};
use super::hold::Hold;
use super::tracee::{self, NotStopped, Tracee};
use super::transfers;
use crate::error::{Error, Result};
use crate::procfs::Process;
use crate::stacks::ThreadFacts;
use crate::target::live::ByPid;

/// Default time limit in which all threads must stop.
pub const STOP_LIMIT: Duration = Duration::from_secs(3);
/// Time after which the state of a thread that has not stopped is checked first, and interval of
/// the further checks.
const FIRST_STATE_CHECK: Duration = Duration::from_millis(50);
const STATE_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A process whose threads are all stopped. Dropping it releases them.
#[derive(Debug)]
pub struct Stopped<'a> {
    process: &'a Process,
    /// The stopped threads, by id.
    threads: BTreeMap<i32, Tracee<'a>>,
    /// Threads in an uninterruptible sleep, and those whose stop was not awaited after an error.
    unstopped: BTreeSet<i32>,
    /// Threads that were left asleep in a transfer, by id.
    in_transfer: BTreeMap<i32, InTransfer>,
    /// Threads that [`Stopped::take_out`] has removed.
    taken_out: Vec<i32>,
    /// When the first stop was requested.
    since: Instant,
    _hold: Hold,
}

/// A thread that was left asleep in a transfer.
#[derive(Clone, Copy, Debug)]
struct InTransfer {
    /// How it slept before the stop.
    asleep: Asleep,
    facts: ThreadFacts,
}

/// A thread whose system call returned less than requested because of the stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortTransfer {
    /// The thread.
    pub tid: i32,
    /// The call's name.
    pub call: &'static str,
}

/// How to treat threads that sleep in a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfers {
    /// Leave them asleep.
    LeaveAsleep,
    /// Stop them like all others.
    Stop,
}

impl<'a> Stopped<'a> {
    /// Stops all threads of `process`, within `limit`.
    ///
    /// # Errors
    /// [`Error::Permission`], [`Error::Traced`], [`Error::Ended`] or [`Error::DidNotStop`]; then
    /// all stopped threads run again.
    pub fn stop_within(process: &'a Process, limit: Duration, transfers: Transfers) -> Result<Self> {
        // Listing thousands of threads takes milliseconds, so do it before the first stop. New
        // threads are found below.
        exit_watch::pass_on_before_stop(process);
        let mut tids = process.tasks()?;
        let in_transfer = match transfers {
            Transfers::LeaveAsleep => {
                tids.iter().filter_map(|&tid| Some((tid, find_transfer(process, tid)?))).collect()
            }
            Transfers::Stop => BTreeMap::new(),
        };
        let hold = Hold::begin();
        let since = Instant::now();
        let mut stopped = Self {
            process,
            threads: BTreeMap::new(),
            unstopped: BTreeSet::new(),
            in_transfer,
            taken_out: Vec::new(),
            since,
            _hold: hold,
        };
        loop {
            // Every stop is requested before the first wait, so that all threads stop together.
            let seize_limit = tracee::limit_seizes();
            let mut waiting: Vec<i32> = Vec::new();
            for &tid in &tids {
                if stopped.is_known(tid) {
                    continue;
                }
                match tracee::seize(process, tid) {
                    Ok(()) => waiting.push(tid),
                    Err(NotStopped::Gone) => {}
                    Err(other) => {
                        // These threads may have stopped meanwhile: the release checks them.
                        stopped.unstopped.extend(waiting);
                        return Err(stopped.error(tid, other, limit));
                    }
                }
            }
            drop(seize_limit);
            // A list that ended early may lack threads that run.
            if waiting.is_empty() && process.lists_all(&tids) {
                break;
            }
            stopped.collect(&waiting, limit)?;
            // Stopped threads start no others: if the count matches, all are known.
            let known_count = stopped.count();
            if stopped.unstopped.is_empty() && process.status()?.threads == Some(known_count) {
                break;
            }
            tids = process.tasks()?;
        }
        if stopped.count() == 0 {
            return Err(Error::Ended { pid: process.pid() });
        }
        Ok(stopped)
    }

    /// Waits until each of `waiting` has stopped, ended, or is asleep in the kernel.
    fn collect(&mut self, waiting: &[i32], limit: Duration) -> Result<()> {
        let first_check = Instant::now() + FIRST_STATE_CHECK.min(limit / 2);
        for (index, &tid) in waiting.iter().enumerate() {
            if let Err(error) = self.collect_thread(tid, first_check, limit) {
                // These threads may have stopped meanwhile: the release checks them.
                self.unstopped.extend(&waiting[index..]);
                return Err(error);
            }
        }
        // Give up on a process that starts threads faster than they are stopped.
        if self.since.elapsed() > limit {
            return Err(self.did_not_stop("not all of its threads stopped".to_owned(), limit));
        }
        Ok(())
    }

    /// Waits for one thread; checks its state from `first_check` on.
    fn collect_thread(&mut self, tid: i32, first_check: Instant, limit: Duration) -> Result<()> {
        let deadline = self.since + limit;
        let mut until = first_check.min(deadline);
        loop {
            match Tracee::wait_stopped(self.process, tid, until) {
                Ok(tracee) => {
                    self.threads.insert(tid, tracee);
                    return Ok(());
                }
                Err(NotStopped::Gone) => {
                    self.remove_ended(tid);
                    return Ok(());
                }
                Err(NotStopped::TimedOut)
                    if self.process.task_stat(tid).is_ok_and(|stat| stat.state == Some('D')) =>
                {
                    self.unstopped.insert(tid);
                    return Ok(());
                }
                Err(NotStopped::TimedOut) if Instant::now() < deadline => {
                    until = (Instant::now() + STATE_CHECK_INTERVAL).min(deadline);
                }
                Err(other) => return Err(self.error(tid, other, limit)),
            }
        }
    }

    /// Makes the kernel remove a thread that ended while it was traced. Until then it would be
    /// listed and counted, and keep an execve of another thread waiting.
    fn remove_ended(&self, tid: i32) {
        if tid != self.process.pid() {
            // Fails only if it is gone.
            drop(ptrace::reap(tid));
        }
    }

    /// The error if thread `tid` was not stopped.
    fn error(&self, tid: i32, not_stopped: NotStopped, limit: Duration) -> Error {
        let pid = self.process.pid();
        match not_stopped {
            NotStopped::Gone => Error::Ended { pid },
            NotStopped::Refused(error) => error,
            NotStopped::Replaced => Error::Replaced { pid },
            NotStopped::Io(source) => Error::Io { pid, what: format!("stopping thread {tid}"), source },
            NotStopped::TimedOut | NotStopped::GroupStop => {
                self.did_not_stop(format!("thread {tid} runs on"), limit)
            }
        }
    }

    fn did_not_stop(&self, detail: String, limit: Duration) -> Error {
        Error::DidNotStop { pid: self.process.pid(), seconds: limit.as_secs_f64(), detail }
    }

    fn is_known(&self, tid: i32) -> bool {
        self.threads.contains_key(&tid)
            || self.unstopped.contains(&tid)
            || self.in_transfer.contains_key(&tid)
            || self.taken_out.contains(&tid)
    }

    /// Number of threads, without those that were taken out.
    pub fn count(&self) -> u64 {
        (self.threads.len() + self.unstopped.len() + self.in_transfer.len()) as u64
    }

    /// Threads that were left asleep in a transfer.
    pub fn in_transfer(&self) -> impl Iterator<Item = &ThreadFacts> {
        self.in_transfer.values().map(|thread| &thread.facts)
    }

    /// Whether the threads in a transfer slept throughout; otherwise what was read meanwhile is not
    /// of one instant.
    pub fn slept_throughout(&self) -> bool {
        let slept = |(&tid, thread): (&i32, &InTransfer)| {
            Asleep::check(self.process, tid).as_ref() == Some(&thread.asleep)
        };
        self.in_transfer.is_empty()
            || self.in_transfer.iter().all(slept)
                && self.process.tasks().is_ok_and(|tids| tids.iter().all(|&tid| self.is_known(tid)))
    }

    /// Whether the process was killed since: then what was read may not be of it. Only SIGKILL ends
    /// the stop of a thread; one in a frozen control group is in state D.
    pub fn was_killed(&self) -> bool {
        let was_killed = |tid: i32| match self.process.task_stat(tid) {
            Ok(stat) => !matches!(stat.state, Some('t' | 'D')) || stat.is_ending(),
            Err(error) => matches!(error, Error::Ended { .. }),
        };
        self.threads.keys().next().is_some_and(|&tid| was_killed(tid))
    }

    /// Threads whose transfer the stop may have cut short.
    pub fn cut_short(&self) -> Vec<ShortTransfer> {
        let memory = ByPid::new(self.process.pid());
        let short_transfer = |thread: &Tracee<'_>| {
            let call = transfers::short_call(&thread.registers, &memory)?;
            Some(ShortTransfer { tid: thread.tid, call })
        };
        self.threads().filter_map(short_transfer).collect()
    }

    /// When the first stop was requested.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// The stopped threads, by id.
    pub fn threads(&self) -> impl Iterator<Item = &Tracee<'a>> {
        self.threads.values()
    }

    /// Threads in an uninterruptible sleep, which could not be stopped.
    pub fn uninterruptible_threads(&self) -> &BTreeSet<i32> {
        &self.unstopped
    }

    /// Removes the first thread that `is_wanted`; it is released separately.
    pub fn take_out(&mut self, is_wanted: impl Fn(&Tracee<'a>) -> bool) -> Option<Tracee<'a>> {
        let tid = self.threads().find(|tracee| is_wanted(tracee))?.tid;
        self.taken_out.push(tid);
        self.threads.remove(&tid)
    }

    /// Releases all threads; returns how long they were stopped.
    pub fn resume(mut self) -> Duration {
        self.release();
        self.since.elapsed()
    }

    fn release(&mut self) {
        self.threads.clear();
        for tid in std::mem::take(&mut self.unstopped) {
            // If it woke meanwhile, it is in its stop; otherwise the kernel releases it when the
            // tracing thread ends. A failure cannot be handled.
            match ptrace::poll(tid) {
                Ok(Some(event)) if exit_watch::is_exit(tid, event) => {}
                Ok(Some(Event::Exited { .. })) => self.remove_ended(tid),
                Ok(Some(event)) => drop(exit_watch::release(tid, AfterRelease::of(event))),
                Ok(None) | Err(_) => {}
            }
        }
    }
}

/// Thread `tid`, if it sleeps in a transfer and can be read without a stop.
fn find_transfer(process: &Process, tid: i32) -> Option<InTransfer> {
    let asleep = Asleep::check(process, tid).filter(|asleep| transfers::is_transfer(&asleep.call))?;
    Some(InTransfer { asleep, facts: asleep.facts(process, tid)? })
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.release();
    }
}
