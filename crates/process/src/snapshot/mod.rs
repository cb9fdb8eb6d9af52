//! A snapshot of a process: a copy-on-write child that never executes any of its code, from which
//! everything that takes long is read while the process runs on.
//!
//! An injected clone makes the child while all threads are stopped, so its memory is of one
//! instant. The child starts on frames of its own ([`frame::chain`]): it closes the file
//! descriptors that it shares, sleeps, and exits, with every signal blocked. No process needs to
//! hold it: if strandline dies, the child ends by itself (if it was stopped by SIGSTOP, once it is
//! continued). As long as the target runs the same program, the child's exit sends no signal and a
//! wait for any child does not return it (exit signal 0); a second injected call reaps it.
//!
//! In Linux:
//! - `kernel/fork.c`: a clone without flags copies private memory. Shared mappings, and file
//!   mappings that were never written to, are filled in only when they are touched.
//! - `kernel/exit.c`, `eligible_child`: a child with an exit signal other than SIGCHLD is waited
//!   for with `__WALL` or `__WCLONE` only; `reparent_leader`: the end of its parent sets SIGCHLD.
//! - `kernel/signal.c`, `do_notify_parent`: after an exec of its parent, its end sends SIGCHLD.
//! - `fs/file.c`, `CLOSE_RANGE_UNSHARE` (Linux 5.9): makes a table of its own, which briefly holds
//!   at most the lowest 64 descriptors.
//!
//! This module neither decides whether to take a snapshot nor interprets its contents.

mod child;
mod clone_call;

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use strandline_sys::process as sys;
use strandline_sys::ptrace::{self, Registers};

use crate::call::code::{CallSites, can_call};
use crate::call::filters::{self, RequiredCall};
use crate::call::frame;
use crate::call::inject::{self, UNBLOCKABLE};
use crate::map::AddressSpace;
use crate::procfs::Process;
use crate::range::AddressRange;
use crate::target::budget;
use crate::target::exit_watch;
use crate::target::hold::on_own_thread;
use crate::target::live::ByPid;
use crate::target::stop::Stopped;
use crate::target::tracee::Tracee;

use self::clone_call::{CloneCall, abandon_if_unfinished, refused_by_kernel, run_system_call};

pub use self::child::SnapshotMemory;

/// Numbers of system calls (x86-64).
const MADVISE: u64 = 28;
const NANOSLEEP: u64 = 35;
const CLONE: u64 = 56;
const WAIT4: u64 = 61;
const EXIT_GROUP: u64 = 231;
const CLOSE_RANGE: u64 = 436;
/// Shares the descriptor table: a copy would keep open what the program closes meanwhile.
const CLONE_FILES: u64 = 0x400;
/// Unshares the descriptor table first, so that the program's descriptors stay open.
const CLOSE_RANGE_UNSHARE: u64 = 2;
/// System calls that take a snapshot, in the target and in the child, and reap the child. Only the
/// last one, which includes hidden memory in the child, may be unneeded.
static SNAPSHOT_CALLS: [RequiredCall; 7] = [
    RequiredCall { name: "clone", number: CLONE as u32, arguments: [Some(CLONE_FILES), None, Some(0)] },
    RequiredCall {
        name: "close_range",
        number: CLOSE_RANGE as u32,
        arguments: [Some(0), Some(u32::MAX as u64), Some(CLOSE_RANGE_UNSHARE)],
    },
    RequiredCall::with_any_arguments("nanosleep", NANOSLEEP as u32),
    RequiredCall::with_any_arguments("exit_group", EXIT_GROUP as u32),
    filters::SIGNAL_RETURN,
    REAP_CALLS[0],
    RequiredCall::with_any_arguments("madvise", MADVISE as u32),
];
/// Maximum number of hidden ranges that are included in the child: each takes two frames on the
/// stack. Node.js has about ten.
pub const MAX_HIDDEN: usize = 32;
/// System calls that reap the child.
const REAP_CALLS: [RequiredCall; 2] =
    [RequiredCall::with_any_arguments("wait4", WAIT4 as u32), filters::SIGNAL_RETURN];
/// `__WALL | WNOHANG`
const WAIT_OPTIONS: u64 = 0x4000_0000 | 1;
/// `PTRACE_O_EXITKILL`
const KILL_AT_EXIT: i32 = 1 << 20;
/// Stack for the frames of the child, its sleeping time, and alignment.
const CHILD_STACK_BYTES: u64 = 2048;
/// A clone takes 25 ms per GiB, and on a busy machine the thread first waits for a processor. One
/// that takes far longer waits for something else, with all threads stopped.
const MIN_CLONE_LIMIT: Duration = Duration::from_secs(1);
/// Further time for each GiB of anonymous memory.
const CLONE_LIMIT_PER_GIB: Duration = Duration::from_millis(200);
/// Maximum time for a killed child to end: its memory is freed page by page.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Maximum time for a thread to stop, and for its injected call, in one attempt to reap the child.
const REAP_LIMIT: Duration = Duration::from_millis(200);
/// Maximum time to hold a thread while reaping. Attempts begin in the first half of it.
const MAX_REAPING: Duration = Duration::from_secs(1);
/// Time for the program to run before another attempt.
const REAP_RETRY_PAUSE: Duration = Duration::from_millis(3);
/// Maximum number of threads tried for taking the snapshot, and in each attempt to reap it.
const MAX_CALLERS: usize = 64;
/// Memory that must be available for pages that the program writes to meanwhile: this much, and one
/// in [`RESERVE_DIVISOR`] bytes of its anonymous memory.
const MIN_RESERVE_BYTES: u64 = 256 << 20;
const RESERVE_DIVISOR: u64 = 16;
/// Maximum bytes read of /proc/PID/task/TID/children.
const MAX_CHILDREN_BYTES: u64 = 1 << 20;
/// The child's signal mask.
const ALL_BLOCKED: u64 = !UNBLOCKABLE;

/// Why there is no snapshot, with one that was made and must be dropped once the process runs
/// again.
#[derive(Debug)]
pub struct NotTaken {
    /// The reason, as the end of a sentence.
    pub reason: String,
    /// The snapshot to drop; see the type.
    pub snapshot_to_drop: Option<Box<Snapshot>>,
}

impl From<String> for NotTaken {
    fn from(reason: String) -> Self {
        Self { reason, snapshot_to_drop: None }
    }
}

/// The child process; dropping this ends it. See the module.
#[derive(Debug)]
pub struct Snapshot {
    target: Process,
    child: Process,
    /// Its cost, once it has ended.
    cost: Mutex<Option<SnapshotCost>>,
    /// Its id in the target's pid namespace.
    inner_pid: i32,
    /// A pidfd of it.
    handle: OwnedFd,
    /// The thread whose injected call made it.
    tid: i32,
    /// Minor faults of the target before it was made; `None` if unknown.
    faults_before: Option<u64>,
    /// When it ends by itself.
    ends_at: Instant,
    /// It is too costly while less memory than this is available.
    min_available_bytes: u64,
}

/// The cost of a snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub struct SnapshotCost {
    /// Minor faults of the target meanwhile: pages that were copied because it wrote to them, and
    /// others that it touched first. `None` if unknown.
    pub copied_pages: Option<u64>,
    /// Whether the child is gone; otherwise it runs until [`Snapshot::ends_at`], or its zombie
    /// remains until the target ends.
    pub is_reaped: bool,
    /// How long a thread of the target was stopped for reaping.
    pub stopped_time: Duration,
}

/// The child, found by its id.
struct Child {
    process: Process,
    /// A pidfd of it.
    handle: OwnedFd,
}

/// The result of reaping the child.
#[derive(Clone, Copy, Debug, Default)]
struct Reaping {
    is_gone: bool,
    /// How long threads were stopped.
    stopped_time: Duration,
}

/// Memory that must be available for a snapshot of a process with `anonymous_bytes`.
pub fn needed_bytes(anonymous_bytes: u64) -> u64 {
    MIN_RESERVE_BYTES + anonymous_bytes / RESERVE_DIVISOR
}

impl Snapshot {
    /// Takes a snapshot of a process whose threads are all `stopped`. Calls `before_it_runs` with
    /// the child while the thread that made it is still stopped.
    ///
    /// # Errors
    /// Returns [`NotTaken`]; the target is unchanged.
    pub fn take<T>(
        stopped: &mut Stopped<'_>,
        process: &Process,
        request: &SnapshotRequest<'_>,
        before_it_runs: impl FnOnce(&Process) -> Result<T, String>,
    ) -> Result<(Self, T), NotTaken> {
        let SnapshotRequest { code, lifetime, .. } = *request;
        if request.hidden.len() > MAX_HIDDEN {
            return Err("it keeps too many ranges of memory from its children".to_owned().into());
        }
        let all_are_stopped = stopped.in_transfer().next().is_none();
        let (target, tracee) = prepare(stopped, process, request)?;
        let tid = tracee.tid;
        let faults_before = process.stat().ok().map(|stat| stat.minor_faults);
        let Some(anonymous_bytes) = process.status().ok().and_then(|status| status.anonymous_bytes) else {
            return Err("the size of its memory cannot be read".to_owned().into());
        };
        let gibibytes = anonymous_bytes as f64 / (1_u64 << 30) as f64;
        let limit = MIN_CLONE_LIMIT + CLONE_LIMIT_PER_GIB.mul_f64(gibibytes);
        let ends_at = Instant::now() + lifetime;
        let mut clone_call = CloneCall::begin(tracee, code, lifetime, &request.hidden, all_are_stopped)?;
        let inner_pid = match clone_call.clone(limit) {
            Ok(inner_pid) => inner_pid,
            Err(error) => return Err(abandon_if_unfinished(clone_call.injected, error).into()),
        };
        // Look it up while its parent thread is stopped.
        let child = if inner_pid > 0 { child_of(&target, inner_pid as i32) } else { None };
        let Some(child) = child else {
            let reason = if inner_pid < 0 {
                refused_by_kernel(inner_pid)
            } else {
                format!("the child {inner_pid} was made and is not found in /proc; it ends by itself")
            };
            // If that fails too, the thread finishes the call by itself.
            drop(clone_call.finish(limit));
            return Err(reason.into());
        };
        let snapshot = Self {
            target,
            child: child.process,
            cost: Mutex::new(None),
            inner_pid: inner_pid as i32,
            handle: child.handle,
            tid,
            faults_before,
            ends_at,
            min_available_bytes: needed_bytes(anonymous_bytes) / 2,
        };
        let result_of_caller = before_it_runs(&snapshot.child);
        let finished = clone_call.finish(limit);
        match finished.and(result_of_caller) {
            Ok(result_of_caller) => Ok((snapshot, result_of_caller)),
            Err(reason) => Err(NotTaken { reason, snapshot_to_drop: Some(Box::new(snapshot)) }),
        }
    }

    /// The child, whose memory is read.
    pub fn process(&self) -> &Process {
        &self.child
    }

    /// When the child ends by itself.
    pub fn ends_at(&self) -> Instant {
        self.ends_at
    }

    /// Whether the child still exists. Check it after reading: data from one that has ended must
    /// not be used.
    pub fn is_alive(&self) -> bool {
        sys::ends_within(&self.handle, Duration::ZERO).is_ok_and(|ended| !ended)
    }

    /// Whether available memory is known to be too low to keep the snapshot.
    pub fn is_too_costly(&self) -> bool {
        budget::available_bytes(&self.target).is_some_and(|bytes| bytes < self.min_available_bytes)
    }

    /// Ends the child early, from any thread; further reads of it fail.
    pub fn kill(&self) {
        // EPERM: of another user, without CAP_KILL.
        if sys::kill(&self.handle).is_err() && is_snapshot(&self.child) {
            kill_by_tracing(self.child.pid());
        }
    }

    /// Whether [`Snapshot::end`] has ended it.
    pub fn has_ended(&self) -> bool {
        self.cost.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Ends the child, and has the target reap it unnoticed. A repeated call only returns the cost.
    pub fn end(&self) -> SnapshotCost {
        let mut cost = self.cost.lock().unwrap_or_else(PoisonError::into_inner);
        *cost.get_or_insert_with(|| self.finish())
    }

    /// Ends and reaps the child.
    fn finish(&self) -> SnapshotCost {
        let faults = self.target.stat().ok().map(|stat| stat.minor_faults);
        let copied_pages = faults.zip(self.faults_before).map(|(now, before)| now.saturating_sub(before));
        self.kill();
        // A child that may still run is not reaped: the wait would fail.
        let has_ended = sys::ends_within(&self.handle, END_LIMIT).unwrap_or(false);
        let reaping = if has_ended { on_own_thread(MAX_REAPING, || self.reap()) } else { None };
        let Reaping { is_gone, stopped_time } = reaping.unwrap_or_default();
        SnapshotCost { copied_pages, is_reaped: is_gone, stopped_time }
    }

    /// Makes a thread of the target wait for the child, in several attempts.
    fn reap(&self) -> Reaping {
        let mut stopped_time = Duration::ZERO;
        let deadline = Instant::now() + MAX_REAPING / 2;
        loop {
            let attempt = self.reap_once(deadline);
            stopped_time += attempt.stopped_time;
            if attempt.is_gone || Instant::now() >= deadline {
                return Reaping { stopped_time, ..attempt };
            }
            // Its threads may have been in signal handlers.
            exit_watch::sleep_while_watching(REAP_RETRY_PAUSE);
        }
    }

    /// Makes one of the first threads that can make a call wait for the child. Tries no further
    /// thread after `deadline`.
    fn reap_once(&self, deadline: Instant) -> Reaping {
        let is_gone = || !self.child.path("stat").exists();
        let mut stopped_time = Duration::ZERO;
        // The target may have ended, or run another program by now.
        let space_and_code = self.target.address_space().ok().and_then(|space| {
            let code = CallSites::find(&self.target, &space)?;
            Some((space, code))
        });
        let Some((space, code)) = space_and_code else { return Reaping { is_gone: is_gone(), stopped_time } };
        let memory = ByPid::new(self.target.pid());
        // If its threads cannot be listed, the next attempt may succeed.
        let mut tids = self.target.tasks().unwrap_or_default();
        tids.sort_by_key(|&tid| tid != self.tid);
        let in_time = |_: &i32| Instant::now() < deadline;
        for tid in tids.into_iter().take(MAX_CALLERS).take_while(in_time) {
            if self.target.task_stat(tid).is_ok_and(|stat| stat.state == Some('D')) {
                continue;
            }
            let Ok(tracee) = Tracee::stop(&self.target, tid, REAP_LIMIT) else { continue };
            let since = tracee.since;
            // If the program reaped it meanwhile, its id may belong to another child.
            if is_gone() {
                return Reaping { is_gone: true, stopped_time: stopped_time + since.elapsed() };
            }
            if !can_call(&tracee, &space, &code, 0, &REAP_CALLS) || !code.is_still_present(&memory) {
                stopped_time += since.elapsed();
                continue;
            }
            let arguments = [self.inner_pid as u64, 0, WAIT_OPTIONS];
            let call = code.bare_system_call(WAIT4, arguments, 0);
            let Ok(mut waiting) = inject::begin(tracee, &call) else {
                stopped_time += since.elapsed();
                continue;
            };
            let call_deadline = waiting.begun_at + REAP_LIMIT;
            match run_system_call(&mut waiting, WAIT4, call_deadline) {
                Ok(_) => drop(waiting.finish(REAP_LIMIT)),
                Err(error) => drop(abandon_if_unfinished(waiting, error)),
            }
            return Reaping { is_gone: is_gone(), stopped_time: stopped_time + since.elapsed() };
        }
        Reaping { is_gone: false, stopped_time }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.end();
    }
}

/// Checks that the seccomp filters of a process, if any, allow the calls that take a snapshot,
/// `with_hidden` or without memory that the program excludes from its children.
///
/// # Errors
/// The objection, as the end of a sentence.
pub fn filters_allow(process: &Process, with_hidden: bool) -> Result<(), String> {
    filters::check(process, calls_to_take(with_hidden)).map_err(|why| format!("it runs under {why}"))
}

/// The system calls that take and reap a snapshot, with or without hidden memory.
fn calls_to_take(with_hidden: bool) -> &'static [RequiredCall] {
    let [without_hidden @ .., _] = &SNAPSHOT_CALLS;
    if with_hidden { &SNAPSHOT_CALLS } else { without_hidden }
}

/// Kills a process that strandline may trace but not signal: the kernel kills a tracee with
/// [`KILL_AT_EXIT`] when its tracing thread ends (kernel/ptrace.c, exit_ptrace).
fn kill_by_tracing(pid: i32) {
    // If no thread can be started, the process ends by itself.
    let tracer = std::thread::Builder::new().spawn(move || ptrace::seize(pid, KILL_AT_EXIT));
    drop(tracer.map(std::thread::JoinHandle::join));
}

/// Whether a process is known to be the snapshot of any strandline: a child with exit signal 0 and
/// all signals blocked.
pub fn is_snapshot(process: &Process) -> bool {
    process.stat().is_ok_and(|stat| stat.exit_signal == Some(0))
        && process.status().is_ok_and(|status| status.blocked_signals == Some(ALL_BLOCKED))
}

/// The options of [`Snapshot::take`].
#[derive(Debug)]
pub struct SnapshotRequest<'a> {
    /// The mappings of the process.
    pub space: &'a AddressSpace,
    /// Addresses of the instructions that the injected calls use.
    pub code: CallSites,
    /// Time after which the child ends by itself.
    pub lifetime: Duration,
    /// Ranges that the snapshot includes although the program excludes all mappings in them from
    /// its children (MADV_DONTFORK); later children do not get them. A range may have unmapped
    /// gaps, which madvise(2) skips.
    pub hidden: Vec<AddressRange>,
}

/// Checks the preconditions, and takes a thread out of `stopped` that can make the call.
fn prepare<'a>(
    stopped: &mut Stopped<'a>,
    process: &Process,
    request: &SnapshotRequest<'_>,
) -> Result<(Process, Tracee<'a>), String> {
    let SnapshotRequest { code, .. } = *request;
    let calls = calls_to_take(!request.hidden.is_empty());
    let stack_bytes = CHILD_STACK_BYTES + 2 * (frame::FRAME_BYTES * request.hidden.len()) as u64;
    if stopped.threads().any(|tracee| tracee.is_group_stopped) {
        return Err("the process is stopped by a signal".to_owned());
    }
    // Such a thread may be in the middle of a read into its memory, which the copy would miss, or
    // may delay the call.
    if !stopped.uninterruptible_threads().is_empty() {
        return Err("a thread is in an uninterruptible sleep".to_owned());
    }
    let Ok(target) = Process::open(process.pid()) else { return Err("the process ended".to_owned()) };
    if !code.is_still_present(&ByPid::new(process.pid())) {
        return Err("its code has moved".to_owned());
    }
    let Some(tracee) = calling_thread(stopped, request, calls, stack_bytes) else {
        return Err("none of the threads tried can make the call: each is under a seccomp filter that may \
             not let it through or under Syscall User Dispatch, runs 32-bit code, has a shadow stack or too \
             little of its own stack left, may be handling a signal, starts its children in another pid \
             namespace, is in the middle of a restartable sequence, or is in a sleep that the call would end"
            .to_owned());
    };
    Ok((target, tracee))
}

/// Takes a thread out of `stopped` that can make the call, preferring one that notices least.
fn calling_thread<'a>(
    stopped: &mut Stopped<'a>,
    request: &SnapshotRequest<'_>,
    calls: &[RequiredCall],
    stack_bytes: u64,
) -> Option<Tracee<'a>> {
    let SnapshotRequest { space, code, .. } = request;
    let mut candidates: Vec<(Disturbance, i32)> =
        stopped.threads().map(|tracee| (disturbance(&tracee.registers), tracee.tid)).collect();
    // A chain of frames discards the rest of a sleep even if strandline lives.
    candidates.retain(|&(disturbance, _)| disturbance != Disturbance::EndsSleep || request.hidden.is_empty());
    candidates.sort_unstable();
    candidates.into_iter().take(MAX_CALLERS).find_map(|(_, tid)| {
        stopped.take_out(|tracee| {
            tracee.tid == tid && has_own_children(tracee) && can_call(tracee, space, code, stack_bytes, calls)
        })
    })
}

/// Whether children of a thread are in its own pid namespace. Otherwise the first child would be
/// the init of a new one, whose end kills everything in it. `false` if unknown.
fn has_own_children(tracee: &Tracee<'_>) -> bool {
    let link = |name: &str| std::fs::read_link(tracee.process.path(format!("task/{}/ns/{name}", tracee.tid)));
    match (link("pid"), link("pid_for_children")) {
        (Ok(own), Ok(children)) => own == children,
        _ => false,
    }
}

/// How much a thread may notice if strandline dies during the call, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Disturbance {
    /// Nothing: the kernel restarts its system call.
    RestartsCall,
    /// Its system call has returned.
    AfterCall,
    /// It may be in a restartable sequence that an old kernel does not report.
    OutsideCall,
    /// It is in nanosleep, poll, or a futex with a timeout, and loses the rest of its sleep: it
    /// sees EINTR.
    EndsSleep,
    /// The stop has interrupted its system call: it sees EINTR.
    InterruptedCall,
}

/// What a thread with these registers at its stop may notice.
fn disturbance(registers: &Registers) -> Disturbance {
    // `-ERESTART*` of include/linux/errno.h, and `-EINTR`.
    match registers.rax as i64 {
        _ if (registers.orig_rax as i64) < 0 => Disturbance::OutsideCall,
        -514..=-512 => Disturbance::RestartsCall,
        -516 => Disturbance::EndsSleep,
        -4 => Disturbance::InterruptedCall,
        _ => Disturbance::AfterCall,
    }
}

/// The child of `target` that has the id `inner_pid` in the target's namespace; `None` if it is not
/// found.
fn child_of(target: &Process, inner_pid: i32) -> Option<Child> {
    let matching_child = |pid: i32| {
        let handle = sys::open_pidfd(pid).ok()?;
        let process = Process::open(pid).ok()?;
        let status = process.status().ok()?;
        // Without namespaces the kernel has one id for it.
        let own_pid = status.namespace_pids.last().copied().unwrap_or(pid);
        let is_child = status.parent == Some(target.pid()) && own_pid == inner_pid;
        (is_child && process.stat().ok()?.exit_signal == Some(0)).then_some(Child { process, handle })
    };
    if !target.status().is_ok_and(|status| status.is_in_inner_pid_namespace()) {
        return matching_child(inner_pid);
    }
    let children_of_thread = |tid: i32| {
        let text = target.read_text(&format!("task/{tid}/children"), MAX_CHILDREN_BYTES).unwrap_or_default();
        text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<i32>>()
    };
    target.tasks().ok()?.into_iter().flat_map(children_of_thread).find_map(matching_child)
}
