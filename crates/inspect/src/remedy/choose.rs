//! Finds a thread that may run an injected call: one that certainly holds no lock of malloc and is
//! not inside malloc.
//!
//! Two conditions always apply. Every lock word that the caller names was free at some moment after
//! the thread stopped, while all others ran on, so this thread does not hold it. And the thread's
//! stack is followed to its start without meeting malloc, because a process with one thread takes
//! no lock. A thread that fails is released at once and another is tried, until the time is over. A
//! wrong choice hangs the target forever, so every doubt counts against a thread.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use strandline_sys::memory;

use super::runtime_code::RuntimeCode;
use super::{Refusal, precheck};
use strandline_claims::units::thousands;
use strandline_process::call::code::SignalRelease;
use strandline_process::call::filters::{self, RequiredCall};
use strandline_process::call::{ending, inject, stack};
use strandline_process::error::Error;
use strandline_process::map::AddressSpace;
use strandline_process::procfs::{BlockedCall, Process, ThreadActivity};
use strandline_process::target::hold::on_own_thread;
use strandline_process::target::live::ByPid;
use strandline_process::target::quiet;
use strandline_process::target::tracee::{NotStopped, Tracee};
use strandline_process::target::transfers;
use strandline_process::unwind::{End, Frame, Objects, Unwinder};

/// Maximum time for a thread to stop, which one in an uninterruptible sleep exceeds.
const STOP_LIMIT: Duration = Duration::from_millis(100);
/// How long the locks are watched with the thread stopped at first, doubled each time that one was
/// not seen free. A thread that holds a lock and waits for a processor keeps it for as many time
/// slices as there are threads before it.
const SHORTEST_LOCK_WATCH: Duration = Duration::from_millis(50);
/// Maximum of that time.
const LONGEST_LOCK_WATCH: Duration = Duration::from_millis(400);
/// Interval between two checks of the locks: leaves the processor to their holders.
const LOCK_CHECK_INTERVAL: Duration = Duration::from_micros(20);
/// How long a thread that is inside malloc is checked again: a busy thread stops again sooner than
/// the next one gets a processor.
const RECHECK_LIMIT: Duration = Duration::from_millis(20);
/// How long the thread runs between two of these checks.
const RECHECK_PAUSE: Duration = Duration::from_micros(5);
/// Maximum number of threads checked in one round.
const MAX_CANDIDATES: usize = 256;
/// Maximum number of objects loaded for one thread before the next is tried.
pub(super) const MAX_LOADS: usize = 256;
/// Pause after the first round, doubled after each further one.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);
/// Maximum of that pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// futex. This and the following are numbers of system calls on x86-64.
const FUTEX: i64 = 202;
/// Calls that a stop disturbs and that strandline does not repair: close, connect.
const AVOIDED: [i64; 2] = [3, 42];
/// Calls that return EINTR once if strandline dies during the injected call: poll, nanosleep,
/// restart_syscall, clock_nanosleep.
const SENSITIVE: [i64; 4] = [7, 35, 219, 230];
/// Calls in which a thread only waits for something outside of the process, and during which the C
/// library holds no internal lock: read, poll, select, pause, nanosleep, accept, recvfrom, recvmsg,
/// wait4, rt_sigtimedwait, restart_syscall, clock_nanosleep, epoll_wait, pselect6, ppoll,
/// epoll_pwait, accept4, epoll_pwait2.
const PLAIN_WAITS: [i64; 18] =
    [0, 7, 23, 34, 35, 43, 45, 47, 61, 128, 219, 230, 232, 270, 271, 281, 288, 441];
/// Position of the lock word among the arguments of futex.
const FUTEX_WORD_ARGUMENT: usize = 0;
/// Position of the time limit among the arguments of futex.
const FUTEX_TIMEOUT_ARGUMENT: usize = 3;
/// The process is refused after this number of rounds over all threads, in a row, in which each
/// thread was unfit for a reason that waiting does not change.
const LASTING_ROUNDS: usize = 3;

/// What a stop disturbs in a thread, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Disturbance {
    /// A call that goes on.
    None,
    /// A call that may return EINTR if strandline dies.
    Sensitive,
    /// A call that strandline has repeated.
    Repeated,
    /// No known call.
    Running,
    /// A call that strandline does not repair.
    Avoided,
}

/// Order in which threads are tried, the lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// Whether the thread is under a seccomp filter, which outweighs all else.
    is_filtered: bool,
    disturbance: Disturbance,
}

/// Whether a call returns EINTR once if strandline dies during the injected call: one of
/// [`SENSITIVE`], or a futex call with a time limit.
fn is_sensitive(call: &BlockedCall) -> bool {
    SENSITIVE.contains(&call.number) || call.number == FUTEX && call.arguments[FUTEX_TIMEOUT_ARGUMENT] != 0
}

/// Conditions on the thread.
#[derive(Clone, Debug, Default)]
pub struct ThreadConditions<'a> {
    /// Addresses of lock words (glibc: 32 bits, 0 when free) that the thread must not hold.
    pub locks: &'a [u64],
    /// Code that must not be on its stack.
    pub code: &'a [Range<u64>],
    /// Bytes of stack that the call needs in addition to the thread's extended state.
    pub stack_bytes: u64,
    /// The only thread that may be chosen, if there is such a restriction.
    pub thread: Option<i32>,
    /// The FS bases of the threads that may be chosen; empty to allow all.
    pub fs_bases: &'a [u64],
    /// Whether the thread must be in one of `PLAIN_WAITS`.
    pub must_wait: bool,
    /// Code of a runtime; if there is any, the thread must be an idle helper of it.
    pub helper_of: Option<&'a RuntimeCode>,
    /// System calls that the call makes beside those of an allocator.
    pub more_calls: &'a [RequiredCall],
    /// Code of the target; without it, no thread in nanosleep, poll or a timed futex is chosen
    /// under a seccomp filter.
    pub release: Option<SignalRelease>,
}

/// Why a thread is unfit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    Seccomp,
    ShadowStack,
    FilteredSleep,
    Uninterruptible,
    Late,
    InMalloc,
    InHandler,
    LockHeld,
    StackUnclear,
    NoTables,
    NotInPlainWait,
    NotIdle,
    ForeignStack,
    SmallStack,
    Code32Bit,
    InRestartableSequence,
    UnknownToAllocator,
    Ended,
}

impl Reason {
    /// What the thread is or does, after a number of such threads.
    fn text(self) -> &'static str {
        match self {
            Self::Seccomp => "under a seccomp filter that may not let the call through",
            Self::ShadowStack => "with a shadow stack",
            Self::FilteredSleep => "under a seccomp filter in a sleep that the call would cut short",
            Self::Uninterruptible => "in an uninterruptible sleep",
            Self::Late => "that did not stop in time (an uninterruptible sleep, or no free processor)",
            Self::InMalloc => "inside malloc",
            Self::InHandler => "in a signal handler that blocks signals which the program handles",
            Self::LockHeld => "maybe holding an arena's lock",
            Self::StackUnclear => "with a stack that cannot be unwound",
            Self::NoTables => "with code without unwind tables on the stack",
            Self::NotInPlainWait => "not asleep in a call that waits for something outside of the process",
            Self::NotIdle => "not a helper thread that waits for work",
            Self::ForeignStack => "on a stack that is not the thread's own",
            Self::SmallStack => "with too little stack left",
            Self::Code32Bit => "running 32-bit code",
            Self::InRestartableSequence => "in a restartable sequence",
            Self::UnknownToAllocator => "that the allocator does not know",
            Self::Ended => "ended meanwhile",
        }
    }

    /// Whether waiting does not change it. Code without unwind tables is lasting because Go threads
    /// are in Go code wherever they wait.
    fn is_lasting(self) -> bool {
        matches!(self, Self::Seccomp | Self::ShadowStack | Self::NoTables)
    }
}

/// Result of one attempt at one thread.
enum Attempt<T> {
    /// The thread was safe; what the action returned.
    Done(T),
    /// The thread is not safe.
    Unfit(Objection),
    /// The process is stopped by a signal (SIGSTOP, SIGTSTP).
    GroupStop,
    /// The thread may not be traced.
    Refused(Error),
    Io(std::io::Error),
}

/// Why a stopped thread may not run the call.
enum Objection {
    Unfit(Reason),
    /// A seccomp filter, as text.
    Filtered(String),
    /// The object at this address has to be loaded to follow the stack.
    Missing(u64),
}

impl From<Reason> for Objection {
    fn from(reason: Reason) -> Self {
        Self::Unfit(reason)
    }
}

impl<T> From<NotStopped> for Attempt<T> {
    fn from(not_stopped: NotStopped) -> Self {
        match not_stopped {
            NotStopped::Gone | NotStopped::Replaced => Self::Unfit(Reason::Ended.into()),
            NotStopped::GroupStop => Self::GroupStop,
            NotStopped::TimedOut => Self::Unfit(Reason::Late.into()),
            NotStopped::Refused(error) => Self::Refused(error),
            NotStopped::Io(error) => Self::Io(error),
        }
    }
}

/// Finds a thread of `process` that is safe by `conditions`, within `wait`, and passes it, stopped,
/// to `act`, which releases it. `act` runs at most once, on the thread of strandline that traces.
///
/// # Errors
/// [`Refusal::NoSafeThread`] with the reasons if no thread was safe; then nothing was changed.
pub fn with_safe_thread<T: Send>(
    process: &Process,
    conditions: &ThreadConditions<'_>,
    wait: Duration,
    act: &mut (dyn FnMut(Tracee<'_>) -> T + Send),
) -> Result<T, Refusal> {
    let deadline = Instant::now() + wait;
    let mut chooser = Chooser {
        process,
        conditions,
        objects: Objects::default(),
        reasons: BTreeMap::new(),
        late: BTreeSet::new(),
        filter: None,
        lock_watch: SHORTEST_LOCK_WATCH,
        cycle_rounds: 1,
    };
    let mut pause = SHORTEST_PAUSE;
    let mut lasting_rounds = 0;
    for round in 0_usize.. {
        precheck::check(process)?;
        let space = process.address_space()?;
        for tid in chooser.candidates(round)? {
            match chooser.attempt(&space, tid, act)? {
                Some(done) => return Ok(done),
                None if Instant::now() >= deadline => break,
                None => {}
            }
        }
        let refusal = chooser.lasting_refusal();
        lasting_rounds = if refusal.is_some() { lasting_rounds + 1 } else { 0 };
        if let Some(refusal) = refusal.filter(|_| lasting_rounds >= chooser.cycle_rounds * LASTING_ROUNDS) {
            return Err(refusal);
        }
        if Instant::now() >= deadline {
            break;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Err(Refusal::NoSafeThread { pid: process.pid(), seconds: wait.as_secs_f64(), detail: chooser.detail() })
}

/// Tries threads one after the other, and keeps the reason against each.
struct Chooser<'a> {
    process: &'a Process,
    conditions: &'a ThreadConditions<'a>,
    /// The objects that were loaded to follow stacks.
    objects: Objects,
    /// The latest reason against each thread of the current round; [`Reason::Late`] only if it is
    /// the first, because any other explains more.
    reasons: BTreeMap<i32, Reason>,
    /// The threads that did not stop in time at their last check.
    late: BTreeSet<i32>,
    /// What the latest unsuitable seccomp filter does.
    filter: Option<String>,
    /// How long to watch the locks next time.
    lock_watch: Duration,
    /// Number of rounds in which every thread is checked once.
    cycle_rounds: usize,
}

impl Chooser<'_> {
    /// Returns the threads worth trying, best first.
    fn candidates(&mut self, round: usize) -> Result<Vec<i32>, Refusal> {
        let mut threads = self.process.tasks()?;
        threads.retain(|&tid| self.conditions.thread.is_none_or(|only| only == tid));
        let count = threads.len().max(1);
        self.cycle_rounds = count.div_ceil(MAX_CANDIDATES);
        // Each round begins at another thread, so that all are tried even if they are many.
        threads.rotate_left(round.wrapping_mul(MAX_CANDIDATES) % count);
        threads.truncate(MAX_CANDIDATES);
        self.reasons.retain(|tid, _| threads.contains(tid));
        self.late.retain(|tid| threads.contains(tid));
        let mut ranks: BTreeMap<i32, Rank> = BTreeMap::new();
        for &tid in &threads {
            match self.rank(tid) {
                Ok(rank) => _ = ranks.insert(tid, rank),
                Err(reason) => self.note(tid, reason),
            }
        }
        if ranks.is_empty() && count <= MAX_CANDIDATES {
            self.lasting_refusal().map_or(Ok(()), Err)?;
        }
        threads.retain(|tid| ranks.contains_key(tid));
        threads.sort_by_key(|tid| ranks.get(tid));
        Ok(threads)
    }

    /// Returns the refusal if each thread that was checked is unfit for a reason that waiting does
    /// not change.
    fn lasting_refusal(&self) -> Option<Refusal> {
        let mut reasons = self.reasons.values().filter(|reason| **reason != Reason::Ended).peekable();
        reasons.peek()?;
        // A thread that did not stop may be fit by now.
        if !self.late.is_empty() {
            return None;
        }
        // A Go thread is on a stack of Go, or in Go code, wherever it waits.
        let has_no_tables = self.reasons.values().any(|reason| *reason == Reason::NoTables);
        if !reasons.all(|reason| reason.is_lasting() || has_no_tables && *reason == Reason::ForeignStack) {
            return None;
        }
        let pid = self.process.pid();
        if has_no_tables {
            let what = format!(
                "has no thread with a known place in the code ({}), and waiting does not change that",
                self.detail()
            );
            let advice = "call the function in the program itself (from Go: C.malloc_trim(0), debug.FreeOSMemory()), or restart it";
            return Some(Refusal::Unsafe { pid, what, advice });
        }
        let what = match &self.filter {
            Some(filter) => format!("runs under {filter}"),
            None => "runs with shadow stacks, which an injected call's return would not pass".into(),
        };
        Some(Refusal::Unsafe { pid, what, advice: "restart it to give its memory back" })
    }

    /// Ranks a thread before it is stopped; the lowest is best.
    ///
    /// # Errors
    /// The reason if it is not worth a stop.
    fn rank(&self, tid: i32) -> Result<Rank, Reason> {
        let status = self.process.task_status(tid).map_err(|_| Reason::Ended)?;
        match status.state {
            Some('D') => return Err(Reason::Uninterruptible),
            Some('Z' | 'X') => return Err(Reason::Ended),
            _ => {}
        }
        if status.has_shadow_stack() {
            return Err(Reason::ShadowStack);
        }
        // A filter can be read only during a stop, and is never removed.
        if status.is_under_seccomp() && self.reasons.get(&tid) == Some(&Reason::Seccomp) {
            return Err(Reason::Seccomp);
        }
        let rank = |disturbance| Rank { is_filtered: status.is_under_seccomp(), disturbance };
        let Some(ThreadActivity::InCall(call)) = self.process.task_activity(tid) else {
            return Ok(rank(Disturbance::Running));
        };
        if call.number == FUTEX && self.conditions.locks.contains(&call.arguments[FUTEX_WORD_ARGUMENT]) {
            return Err(Reason::LockHeld);
        }
        Ok(rank(if AVOIDED.contains(&call.number) || transfers::is_transfer(&call) {
            Disturbance::Avoided
        } else if quiet::is_repeatable(call.number) {
            Disturbance::Repeated
        } else if is_sensitive(&call) {
            Disturbance::Sensitive
        } else {
            Disturbance::None
        }))
    }

    /// Tries one thread, and loads the objects on its stack while it runs.
    fn attempt<T: Send>(
        &mut self,
        space: &AddressSpace,
        tid: i32,
        act: &mut (dyn FnMut(Tracee<'_>) -> T + Send),
    ) -> Result<Option<T>, Refusal> {
        let (process, pid) = (self.process, self.process.pid());
        for _ in 0..MAX_LOADS {
            let (conditions, objects, lock_watch) = (self.conditions, &self.objects, self.lock_watch);
            let examiner = Examiner { process, conditions, space, objects, lock_watch };
            let attempt = on_own_thread(super::call::CALL_LIMIT * 2, || examiner.attempt(tid, act));
            match attempt {
                Some(Attempt::Done(done)) => return Ok(Some(done)),
                Some(Attempt::Unfit(Objection::Missing(address))) => {
                    self.objects.load(process, space, address);
                }
                Some(Attempt::Unfit(Objection::Unfit(reason))) => {
                    if reason == Reason::LockHeld {
                        self.lock_watch = (self.lock_watch * 2).min(LONGEST_LOCK_WATCH);
                    }
                    self.note(tid, reason);
                    return Ok(None);
                }
                Some(Attempt::Unfit(Objection::Filtered(filter))) => {
                    self.filter = Some(filter);
                    self.note(tid, Reason::Seccomp);
                    return Ok(None);
                }
                Some(Attempt::GroupStop) => return Err(Refusal::Stopped { pid }),
                Some(Attempt::Refused(error)) => return Err(error.into()),
                Some(Attempt::Io(error)) => {
                    return Err(Refusal::from_io(process, format!("stopping thread {tid}"), error));
                }
                None => return Err(no_tracer(process)),
            }
        }
        self.note(tid, Reason::StackUnclear);
        Ok(None)
    }

    /// Keeps the reason against a thread.
    fn note(&mut self, tid: i32, reason: Reason) {
        if reason != Reason::Late {
            self.late.remove(&tid);
            self.reasons.insert(tid, reason);
            return;
        }
        self.late.insert(tid);
        let known_reason = self.reasons.entry(tid).or_insert(reason);
        // The number of a thread that ended belongs to another one now.
        if *known_reason == Reason::Ended {
            *known_reason = reason;
        }
    }

    /// Returns the reasons against the threads, for a person.
    fn detail(&self) -> String {
        let mut counts: BTreeMap<Reason, u64> = BTreeMap::new();
        for &reason in self.reasons.values() {
            *counts.entry(reason).or_default() += 1;
        }
        let parts: Vec<String> =
            counts.iter().map(|(reason, &count)| format!("{} {}", thousands(count), reason.text())).collect();
        if parts.is_empty() { "no thread was seen".into() } else { format!("threads: {}", parts.join(", ")) }
    }
}

/// Returns the refusal if strandline cannot start a thread.
pub(super) fn no_tracer(process: &Process) -> Refusal {
    Refusal::from_io(process, "tracing", std::io::Error::other("no thread to trace from"))
}

/// Stops a thread and checks it. Reads no files meanwhile.
struct Examiner<'a> {
    process: &'a Process,
    conditions: &'a ThreadConditions<'a>,
    space: &'a AddressSpace,
    objects: &'a Objects,
    lock_watch: Duration,
}

impl Examiner<'_> {
    /// Stops the thread and passes it to `act` if it is safe. Checks it again while it is inside
    /// malloc, until `RECHECK_LIMIT`.
    fn attempt<T>(&self, tid: i32, act: &mut (dyn FnMut(Tracee<'_>) -> T + Send)) -> Attempt<T> {
        let mut tracee = match Tracee::stop(self.process, tid, STOP_LIMIT) {
            Ok(tracee) => tracee,
            Err(not_stopped) => return not_stopped.into(),
        };
        let deadline = Instant::now() + RECHECK_LIMIT;
        loop {
            match self.check(&tracee) {
                Ok(()) => return Attempt::Done(act(tracee)),
                Err(Objection::Unfit(Reason::InMalloc)) if Instant::now() < deadline => {}
                Err(objection) => return Attempt::Unfit(objection),
            }
            tracee = match tracee.run_for(RECHECK_PAUSE, STOP_LIMIT) {
                Ok(tracee) => tracee,
                Err(not_stopped) => return not_stopped.into(),
            };
        }
    }

    /// Checks whether the stopped thread may run the call. Cheap checks come first.
    fn check(&self, tracee: &Tracee<'_>) -> Result<(), Objection> {
        self.check_state(tracee)?;
        self.check_stack(tracee)?;
        if self.sees_all_locks_free() { Ok(()) } else { Err(Reason::LockHeld.into()) }
    }

    /// Checks the thread without following its stack.
    fn check_state(&self, tracee: &Tracee<'_>) -> Result<(), Objection> {
        let registers = &tracee.registers;
        if registers.cs != quiet::CS_64_BIT {
            return Err(Reason::Code32Bit.into());
        }
        for calls in [filters::ALLOCATOR_CALLS, self.conditions.more_calls] {
            if let Some(filter) = filters::objection(tracee, calls) {
                return Err(Objection::Filtered(filter));
            }
        }
        // Unknown counts as filtered.
        let is_filtered =
            || tracee.process.task_status(tracee.tid).map_or(true, |status| status.is_under_seccomp());
        if !ending::can_end_by_signal(tracee, self.conditions.release) && is_filtered() {
            return Err(Reason::FilteredSleep.into());
        }
        if !self.conditions.fs_bases.is_empty() && !self.conditions.fs_bases.contains(&registers.fs_base) {
            return Err(Reason::UnknownToAllocator.into());
        }
        let call = registers.orig_rax.cast_signed();
        if self.conditions.must_wait && !PLAIN_WAITS.contains(&call) {
            return Err(Reason::NotInPlainWait.into());
        }
        let wants_helper = self.conditions.helper_of.is_some();
        if wants_helper && (tracee.tid == self.process.pid() || call != FUTEX) {
            return Err(Reason::NotIdle.into());
        }
        if self.is_forbidden(registers.rip) {
            return Err(Reason::InMalloc.into());
        }
        Ok(())
    }

    /// Checks that the thread's stack has room, and follows it to its start.
    fn check_stack(&self, tracee: &Tracee<'_>) -> Result<(), Objection> {
        let registers = &tracee.registers;
        let memory = ByPid::new(self.process.pid());
        let own_stack = stack::own_stack(&memory, self.space, tracee.tid, registers);
        let own_stack = own_stack.ok_or(Reason::ForeignStack)?;
        // A state of unknown size has no room.
        let has_room = inject::extended_state_bytes(tracee.tid).is_ok_and(|state_bytes| {
            stack::has_room(tracee, self.space, &own_stack, self.conditions.stack_bytes + state_bytes)
        });
        if !has_room {
            return Err(Reason::SmallStack.into());
        }
        if stack::is_in_rseq(&memory, tracee.tid) {
            return Err(Reason::InRestartableSequence.into());
        }
        let unwinder = Unwinder { memory: &memory, space: self.space, objects: self.objects };
        // A collector that stops all threads by signals waits for this one, which responds to no
        // signal before its handler ends.
        let blocks_signals = inject::blocks_handled(tracee);
        let mut is_in_handler = false;
        let mut frames: Vec<u64> = Vec::new();
        let mut continues = |frame: &Frame| {
            if self.conditions.helper_of.is_some() {
                frames.push(frame.instruction);
            }
            is_in_handler |= blocks_signals && inject::is_trampoline(&memory, frame.instruction);
            !is_in_handler && !self.is_forbidden(frame.instruction)
        };
        let reason = match unwinder.walk(Frame::of(registers), &mut continues) {
            End::Start => {
                let is_fit = |code: &RuntimeCode| code.is_idle_helper(self.space, &frames);
                if self.conditions.helper_of.is_none_or(is_fit) {
                    return Ok(());
                }
                Reason::NotIdle
            }
            End::Enough if is_in_handler => Reason::InHandler,
            End::Enough => Reason::InMalloc,
            End::Missing(address) => return Err(Objection::Missing(address)),
            End::Failed { has_no_unwind_tables: true, .. } => Reason::NoTables,
            End::Failed { .. } => Reason::StackUnclear,
        };
        Err(reason.into())
    }

    /// Whether `address` is in code that must not be on the thread's stack.
    fn is_forbidden(&self, address: u64) -> bool {
        self.conditions.code.iter().any(|range| range.contains(&address))
    }

    /// Watches the locks until each was free once; returns false after the time limit. A lock that
    /// cannot be read counts as held.
    fn sees_all_locks_free(&self) -> bool {
        let mut not_yet_free = self.conditions.locks.to_vec();
        let deadline = Instant::now() + self.lock_watch;
        loop {
            not_yet_free.retain(|&lock| {
                let mut word = [0; 4];
                !matches!(memory::read(self.process.pid(), lock, &mut word), Ok(4)) || word != [0; 4]
            });
            if not_yet_free.is_empty() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOCK_CHECK_INTERVAL);
        }
    }
}
