//! Makes an idle helper thread call a runtime function that is safe on any thread, then waits until
//! the runtime has done the work.
//!
//! The call gets the address of a heap, which must exist when the function uses it. So the thread
//! that owns the heap, and is the only one that can destroy it, is stopped in its event loop from
//! the last check of the heap's words until the function has returned (see `owner`). Neither thread
//! holds a lock: one waits for events, the other for work in a condition variable (see
//! `runtime_code`).

use std::ops::Range;
use std::time::{Duration, Instant};

use super::call::{self, CALL_LIMIT, no_trampoline};
use super::choose::{self, ThreadConditions};
use super::owner::{HeapOwner, HoldResult};
use super::runtime_code::RuntimeCode;
use super::{Applied, Footprint, Refusal, precheck, stop_handlers};
use strandline_claims::remedy::{Notification, NotifyCall, Word};
use strandline_process::call::code::{self, CallSites};
use strandline_process::call::filters::WAKING_CALLS;
use strandline_process::call::inject;
use strandline_process::elf::Object;
use strandline_process::error::Error;
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_process::target::admission;
use strandline_process::target::live::ByPid;
use strandline_process::target::tracee::Tracee;

/// Pause before another attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Maximum time for which the helper is stopped until the owner of the heap sleeps.
const MAX_OWNER_WAIT: Duration = Duration::from_millis(10);
/// Interval of the checks whether the owner sleeps: the sleeps of a busy program are short.
const OWNER_CHECK_INTERVAL: Duration = Duration::from_micros(50);
/// Maximum time for the runtime to do the work after the calls.
pub const WORK_LIMIT: Duration = Duration::from_secs(5);
/// Interval of the checks whether it is done.
const WORK_CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// After the work, threads of the runtime give memory back: they are done once the process's
/// private memory has not dropped for this time.
const SETTLED_FOR: Duration = Duration::from_millis(400);
/// Interval of the checks whether it has dropped.
const SETTLE_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum drop that counts.
const MIN_DROP_BYTES: u64 = 256 << 10;

/// The calls, and conditions for them.
pub struct NotifyRequest<'a> {
    /// The calls.
    pub plan: &'a Notification,
    /// Addresses of the lock words of the allocators, which the thread must not hold.
    pub locks: &'a [u64],
    /// How long to search for a safe moment, for each call.
    pub wait: Duration,
    /// How long to count minor faults afterwards; zero to count none.
    pub watch: Duration,
}

/// What was done.
pub struct Notified {
    /// Effect and cost.
    pub applied: Applied,
    /// Number of heaps whose work was not done within [`WORK_LIMIT`]: their threads are blocked.
    pub unfinished_heaps: usize,
    /// The last refusal of a call, if other calls were made.
    pub refused: Option<Refusal>,
    /// Lower bound on the bytes released by the heaps whose work was done.
    pub least_bytes: u64,
    /// Largest drop of the process's private bytes.
    pub largest_drop_bytes: u64,
    /// Drop of its private bytes at the end.
    pub final_drop_bytes: u64,
}

/// Makes all calls in process `pid`, and waits until the work is done.
///
/// # Errors
/// The last refusal if no call was made; or the process ended, or cannot be read any more.
pub fn apply(pid: i32, request: &NotifyRequest<'_>) -> Result<Notified, Refusal> {
    let process = &admission::open_target(pid)?;
    let target = Target::find(process, request)?;
    // Before any call: an effect that cannot be measured would not be reported.
    let before = Footprint::read(process)?;
    let mut applied = Applied { before: Some(before), stopped_seconds: Some(0.0), ..Applied::default() };
    let (mut made_calls, mut refused) = (Vec::new(), None);
    for call in &request.plan.calls {
        match target.make(call) {
            Ok(Some(cost)) => {
                applied.call_seconds += cost.call.as_secs_f64();
                let longest = applied.stopped_seconds.unwrap_or(0.0).max(cost.stop.as_secs_f64());
                applied.stopped_seconds = Some(longest);
                applied.stops += 1;
                made_calls.push(call);
            }
            // The heap is gone.
            Ok(None) => {}
            Err(refusal) => {
                let has_begun = refusal.has_begun();
                refused = Some(refusal);
                if has_begun {
                    break;
                }
            }
        }
    }
    if made_calls.is_empty() {
        return Err(refused.unwrap_or_else(|| heaps_changed(pid)));
    }
    let work = match wait_until_done(process, &made_calls) {
        Ok(work) => work,
        // How the process died in a call says more.
        Err(Error::Ended { .. } | Error::NoSuchProcess { .. } | Error::Zombie { .. }) => {
            let how = "before the runtime had done the work".to_owned();
            return Err(refused.filter(Refusal::has_begun).unwrap_or(Refusal::Died { pid, how }));
        }
        Err(error) => return Err(refused.filter(Refusal::has_begun).unwrap_or_else(|| error.into())),
    };
    let drop_to = |private_bytes: u64| before.private_bytes.saturating_sub(private_bytes);
    let final_drop_bytes = drop_to(work.after.private_bytes);
    applied.after = Some(work.after);
    applied.actual_bytes = Some(final_drop_bytes);
    applied.resident_before_bytes = before.private_bytes;
    applied.watch_faults(process, request.watch);
    Ok(Notified {
        applied,
        unfinished_heaps: work.unfinished_heaps,
        refused,
        least_bytes: work.least_bytes,
        largest_drop_bytes: drop_to(work.lowest_bytes),
        final_drop_bytes,
    })
}

/// Checks whether process `pid` could make one of the calls now: chooses threads as [`apply`] does,
/// and releases them.
///
/// # Errors
/// The last refusal.
pub fn check(pid: i32, request: &NotifyRequest<'_>) -> Result<(), Refusal> {
    let process = &admission::open_target(pid)?;
    let target = Target { is_dry_run: true, ..Target::find(process, request)? };
    let mut refused = None;
    for call in &request.plan.calls {
        match target.make(call) {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => {}
            Err(refusal) => refused = Some(refusal),
        }
    }
    Err(refused.unwrap_or_else(|| heaps_changed(pid)))
}

/// Returns the refusal for a process whose heaps are not those that were read.
fn heaps_changed(pid: i32) -> Refusal {
    Refusal::Unsafe { pid, what: "no longer has the heaps that were read".to_owned(), advice: "try again" }
}

/// A process and what the calls need of it.
struct Target<'a> {
    process: &'a Process,
    request: &'a NotifyRequest<'a>,
    space: AddressSpace,
    /// Address of the function to call.
    function: u64,
    /// Code through which the call goes.
    sites: CallSites,
    /// Functions in which the helper and the owner wait.
    code: RuntimeCode,
    /// Code of handlers that stop threads.
    stop_handlers: Vec<Range<u64>>,
    /// Whether everything but the calls is done: a check.
    is_dry_run: bool,
}

/// What a call cost.
#[derive(Default)]
struct CallCost {
    /// Duration of the call.
    call: Duration,
    /// How long the calling thread, and the owner of the heap, were stopped: the longer of both.
    stop: Duration,
}

/// How an attempt ended.
enum Attempt {
    /// The call was made.
    Made(CallCost),
    /// The heap is gone.
    Gone,
    /// Following the owner's stack needs the object at this address.
    Missing(u64),
    /// It may be possible later.
    Later(Obstacle),
    /// The owner waits outside of the runtime's event loop.
    OwnerElsewhere,
}

/// A temporary obstacle to a call.
#[derive(Clone, Copy)]
enum Obstacle {
    Collection,
    BusyOwner,
    UnreadableCode,
}

impl Obstacle {
    fn text(self) -> &'static str {
        match self {
            Self::Collection => "its heap is being collected, or an earlier request is not done yet",
            Self::BusyOwner => "the heap's own thread was busy or blocked, not waiting in its event loop",
            Self::UnreadableCode => "the stack of the heap's own thread has code of too many files",
        }
    }
}

impl<'a> Target<'a> {
    /// Finds the function to call, and the code that the calls need.
    fn find(process: &'a Process, request: &'a NotifyRequest<'a>) -> Result<Self, Refusal> {
        precheck::check(process)?;
        let pid = process.pid();
        let plan = request.plan;
        let space = process.address_space()?;
        let no_function = |detail: String| Refusal::NoFunction { pid, function: plan.function, detail };
        let mapping = space.find(plan.object).ok_or_else(|| heaps_changed(pid))?;
        let object =
            Object::open(process, &space, mapping).map_err(|error| no_function(error.to_string()))?;
        let function = object.symbol_address(plan.function).filter(|&at| object.text_contains(at));
        let function =
            function.ok_or_else(|| no_function(format!("not in the symbols of {}", object.name())))?;
        let code = RuntimeCode::find(process, &space, plan, &object);
        for (found, names, purpose) in [
            (&code.waits, plan.idle_in, "a helper thread would wait"),
            (&code.loops, plan.loops_in, "the heap's thread would wait"),
        ] {
            if found.is_empty() {
                return Err(Refusal::Unsafe {
                    pid,
                    what: format!("has no function {}, where {purpose}", names.join(", ")),
                    advice: "restart it to give its memory back",
                });
            }
        }
        let sites = CallSites::find(process, &space).ok_or_else(|| no_trampoline(pid))?;
        let stop_handlers = stop_handlers::find(process, &space);
        Ok(Self { process, request, space, function, sites, code, stop_handlers, is_dry_run: false })
    }

    /// Finds a helper thread that waits for work, and passes it, stopped, to `act`.
    fn with_thread<T: Send>(&self, act: &mut (dyn FnMut(Tracee<'_>) -> T + Send)) -> Result<T, Refusal> {
        let handler_stack_bytes = if self.stop_handlers.is_empty() { 0 } else { call::HANDLER_STACK_BYTES };
        let conditions = ThreadConditions {
            locks: self.request.locks,
            stack_bytes: self.request.plan.stack_bytes + code::FRAME_AND_GAP_BYTES + handler_stack_bytes,
            helper_of: Some(&self.code),
            more_calls: WAKING_CALLS,
            release: self.sites.release,
            ..ThreadConditions::default()
        };
        choose::with_safe_thread(self.process, &conditions, self.request.wait, act)
    }

    /// Makes one call, and returns its cost; `None` if the heap is gone.
    fn make(&self, call: &NotifyCall) -> Result<Option<CallCost>, Refusal> {
        let deadline = Instant::now() + self.request.wait;
        let owner = call.owner.ok_or_else(|| Refusal::Unsafe {
            pid: self.process.pid(),
            what: "has a heap that belongs to no thread".to_owned(),
            advice: "let the program collect it",
        })?;
        let mut owner = HeapOwner::new(self.process, &self.code, owner);
        let mut loads = 0;
        loop {
            if !heap_exists(self.process, call) {
                return Ok(None);
            }
            let attempt = match self.obstacle(call, &owner) {
                Some(obstacle) => Attempt::Later(obstacle),
                None => self.with_thread(&mut |tracee| self.attempt(tracee, call, &owner))??,
            };
            match attempt {
                Attempt::Made(cost) => return Ok(Some(cost)),
                Attempt::Gone => return Ok(None),
                Attempt::OwnerElsewhere => return Err(self.not_safe(Obstacle::BusyOwner)),
                Attempt::Later(obstacle) if Instant::now() >= deadline => return Err(self.not_safe(obstacle)),
                Attempt::Missing(address) if loads < choose::MAX_LOADS => {
                    loads += 1;
                    owner.load(&self.space, address);
                }
                Attempt::Missing(_) => return Err(self.not_safe(Obstacle::UnreadableCode)),
                Attempt::Later(_) => std::thread::sleep(RETRY_PAUSE),
            }
        }
    }

    /// Returns the refusal for an obstacle that remained for the whole wait, or that waiting does
    /// not remove.
    fn not_safe(&self, obstacle: Obstacle) -> Refusal {
        let (pid, seconds) = (self.process.pid(), self.request.wait.as_secs_f64());
        Refusal::NoSafeThread { pid, seconds, detail: obstacle.text().to_owned() }
    }

    /// Returns a temporary obstacle to the call, if one is visible while all threads run.
    fn obstacle(&self, call: &NotifyCall, owner: &HeapOwner<'_>) -> Option<Obstacle> {
        if !words_match(self.process, &call.idle) {
            Some(Obstacle::Collection)
        } else if !owner.sleeps() {
            Some(Obstacle::BusyOwner)
        } else {
            None
        }
    }

    /// While a suitable thread is stopped: stops the heap's owner too, checks the heap, and makes
    /// the call.
    fn attempt(
        &self,
        tracee: Tracee<'_>,
        call: &NotifyCall,
        owner: &HeapOwner<'_>,
    ) -> Result<Attempt, Refusal> {
        let (process, tid) = (self.process, tracee.tid);
        // The thread's id may have been reused by another process since it was read.
        process.task_stat(tid)?;
        let deadline = tracee.since + MAX_OWNER_WAIT;
        while !owner.sleeps() {
            if Instant::now() >= deadline {
                return Ok(Attempt::Later(Obstacle::BusyOwner));
            }
            std::thread::sleep(OWNER_CHECK_INTERVAL);
        }
        let owner = match owner.hold(&self.space)? {
            HoldResult::Held(owner) => owner,
            HoldResult::Missing(address) => return Ok(Attempt::Missing(address)),
            HoldResult::Elsewhere => return Ok(Attempt::OwnerElsewhere),
            HoldResult::Busy => return Ok(Attempt::Later(Obstacle::BusyOwner)),
        };
        if !heap_exists(process, call) {
            return Ok(Attempt::Gone);
        }
        if !words_match(process, &call.idle) {
            return Ok(Attempt::Later(Obstacle::Collection));
        }
        if self.is_dry_run {
            return Ok(Attempt::Made(CallCost::default()));
        }
        let [first, second] = call.arguments;
        let injected_call = self.sites.function_call(self.function, [first, second, 0], &self.stop_handlers);
        let refused = |error| call::refusal(process, tid, error);
        let owner_since = owner.since;
        let mut injected = inject::begin(tracee, &injected_call).map_err(refused)?;
        injected.hold_other(*owner);
        let began = injected.begun_at;
        if let Err(error) = injected.run(began + CALL_LIMIT) {
            return Err(call::leave(process, tid, injected, error));
        }
        injected.release_other();
        let owner_stop = owner_since.elapsed();
        let call_time = began.elapsed();
        let caller_stop = injected.finish(CALL_LIMIT).map_err(refused)?;
        Ok(Attempt::Made(CallCost { call: call_time, stop: caller_stop.max(owner_stop) }))
    }
}

/// Whether the heap of a call exists and has its owner.
fn heap_exists(process: &Process, call: &NotifyCall) -> bool {
    let proof = call.owner.map(|owner| owner.proof);
    words_match(process, &call.identity) && words_match(process, proof.as_slice())
}

/// Whether words of the process have their values.
fn words_match(process: &Process, words: &[Word]) -> bool {
    let memory = ByPid::new(process.pid());
    words.iter().all(|word| {
        let mut bytes = [0; 8];
        let part = bytes.get_mut(..word.bytes);
        part.is_some_and(|part| memory.read(word.at, part).is_ok()) && u64::from_le_bytes(bytes) == word.value
    })
}

/// Whether the runtime has work to do for a call that was made.
fn has_open_work(process: &Process, call: &NotifyCall) -> bool {
    heap_exists(process, call) && !words_match(process, &call.idle)
}

/// How the work ended.
struct WorkResult {
    /// Number of heaps whose work was not done.
    unfinished_heaps: usize,
    /// Lower bound on the bytes released by the other heaps.
    least_bytes: u64,
    /// The fewest private bytes seen.
    lowest_bytes: u64,
    /// The footprint at the end.
    after: Footprint,
}

/// Waits until the runtime has done the work and the process's private memory no longer drops.
///
/// # Errors
/// The process ended, or its footprint cannot be read.
fn wait_until_done(process: &Process, made_calls: &[&NotifyCall]) -> Result<WorkResult, Error> {
    let deadline = Instant::now() + WORK_LIMIT;
    let private_bytes = || Footprint::read(process).map(|footprint| footprint.private_bytes);
    let mut lowest_bytes = private_bytes()?;
    let (unfinished_heaps, least_bytes) = loop {
        let (pending, done): (Vec<&NotifyCall>, Vec<&NotifyCall>) =
            made_calls.iter().copied().partition(|call| has_open_work(process, call));
        lowest_bytes = lowest_bytes.min(private_bytes()?);
        if pending.is_empty() || Instant::now() >= deadline {
            break (pending.len(), done.iter().map(|call| call.least_bytes).sum::<u64>());
        }
        std::thread::sleep(WORK_CHECK_INTERVAL);
    };
    let deadline = Instant::now() + WORK_LIMIT;
    let (mut settled_bytes, mut since) = (lowest_bytes, Instant::now());
    while since.elapsed() < SETTLED_FOR && Instant::now() < deadline {
        std::thread::sleep(SETTLE_CHECK_INTERVAL);
        let current_bytes = private_bytes()?;
        lowest_bytes = lowest_bytes.min(current_bytes);
        let has_dropped = current_bytes.saturating_add(MIN_DROP_BYTES) < settled_bytes;
        if has_dropped || made_calls.iter().any(|call| has_open_work(process, call)) {
            (settled_bytes, since) = (current_bytes.min(settled_bytes), Instant::now());
        }
    }
    Ok(WorkResult { unfinished_heaps, least_bytes, lowest_bytes, after: Footprint::read(process)? })
}
