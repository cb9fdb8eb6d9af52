//! Makes a thread of the process call one function of its allocator, and counts the pages that the
//! call released.
//!
//! The caller has found the function and the code that must not be on the thread's stack; of a
//! heap, only lock words are read here. Refuses rather than taking a risk: see `choose` and
//! `inject`.

use std::fs::File;
use std::ops::Range;
use std::time::Duration;

use strandline_sys::memory;
use strandline_sys::ptrace::Event;

use super::choose::{self, ThreadConditions};
use super::{Applied, Footprint, Refusal, precheck, stop_handlers};
use strandline_claims::allocator::Argument;
use strandline_process::call::code::{self, CallSites};
use strandline_process::call::frame::RED_ZONE_BYTES;
use strandline_process::call::inject::{self, Call, CallError, Injected};
use strandline_process::pages;
use strandline_process::procfs::Process;
use strandline_process::target::admission;
use strandline_process::target::tracee::{Tracee, means_ended};

/// Maximum time for the call itself before it is left to end by itself.
pub const CALL_LIMIT: Duration = Duration::from_secs(120);
/// Stack for a signal handler that runs during the call: its signal frame, with at most 11 KiB of
/// extended state (AMX), and its functions.
pub(super) const HANDLER_STACK_BYTES: u64 = 20 << 10;
/// Alignment of a text on the thread's stack, in bytes.
const TEXT_ALIGNMENT: u64 = 16;

/// The call, and conditions for it.
#[derive(Debug)]
pub struct CallRequest<'a> {
    /// The function's address in the target.
    pub function: u64,
    /// The argument; a text is put on the thread's stack.
    pub argument: Argument,
    /// Code of the target through which the call goes.
    pub sites: CallSites,
    /// Code that must not be on the stack of the thread.
    pub code: &'a [Range<u64>],
    /// Addresses of 32-bit lock words that the thread must not hold.
    pub locks: &'a [u64],
    /// Bytes of stack that the function may use.
    pub stack_bytes: u64,
    /// FS bases of the threads that may make the call; empty for any.
    pub fs_bases: &'a [u64],
    /// The address ranges in which pages are counted.
    pub heaps: &'a [Range<u64>],
    /// How long to search for a safe thread.
    pub wait: Duration,
    /// How long to count minor faults afterwards; zero to count none.
    pub watch: Duration,
    /// The only thread that may make the call; `None` chooses the one that is disturbed least.
    pub thread: Option<i32>,
    /// Whether the thread must be asleep in a call that waits for something outside of the process.
    pub must_wait: bool,
}

/// Makes the call once in process `pid`.
///
/// Blocks for at most `wait`, the call, and `watch`. A [`Refusal`] means that nothing in the target
/// was changed, unless [`Refusal::has_begun`] is true.
pub fn apply(pid: i32, request: &CallRequest<'_>) -> Result<Applied, Refusal> {
    let process = &admission::open_target(pid)?;
    precheck::check(process)?;
    let pagemap = process.open_file("pagemap")?;
    let heaps = pages::whole_pages(request.heaps);
    let stop_handlers = stop_handlers::find(process, &process.address_space()?);
    let before = Footprint::of(process);
    let mut act = |tracee: Tracee<'_>| {
        // The thread's id may have been reused by another process since it was read.
        process.task_stat(tracee.tid)?;
        let call = prepare(&tracee, request, &stop_handlers)
            .map_err(|error| refusal(process, tracee.tid, CallError::NotStarted(error)))?;
        run(tracee, &call, &pagemap, &heaps)
    };
    let applied = with_safe_thread(process, request, &stop_handlers, &mut act)??;
    let mut applied = Applied { before, after: Footprint::of(process), ..applied };
    applied.watch_faults(process, request.watch);
    Ok(applied)
}

/// Checks whether process `pid` could make the call now: chooses a thread as [`apply`] does, and
/// releases it.
pub fn check(pid: i32, request: &CallRequest<'_>) -> Result<(), Refusal> {
    let process = &admission::open_target(pid)?;
    precheck::check(process)?;
    let stop_handlers = stop_handlers::find(process, &process.address_space()?);
    with_safe_thread(process, request, &stop_handlers, &mut |tracee| drop(tracee))
}

/// Finds a thread that may make the call of `request`, and passes it, stopped, to `act`.
fn with_safe_thread<T: Send>(
    process: &Process,
    request: &CallRequest<'_>,
    stop_handlers: &[Range<u64>],
    act: &mut (dyn FnMut(Tracee<'_>) -> T + Send),
) -> Result<T, Refusal> {
    let handler_stack_bytes = if stop_handlers.is_empty() { 0 } else { HANDLER_STACK_BYTES };
    let conditions = ThreadConditions {
        locks: request.locks,
        code: request.code,
        stack_bytes: request.stack_bytes + code::FRAME_AND_GAP_BYTES + handler_stack_bytes,
        thread: request.thread,
        fs_bases: request.fs_bases,
        must_wait: request.must_wait,
        release: request.sites.release,
        ..ThreadConditions::default()
    };
    choose::with_safe_thread(process, &conditions, request.wait, act)
}

/// Puts the argument where the call finds it: on unused stack, below the thread's red zone.
fn prepare<'a>(
    tracee: &Tracee<'_>,
    request: &CallRequest<'_>,
    stop_handlers: &'a [Range<u64>],
) -> std::io::Result<Call<'a>> {
    let mut call = request.sites.function_call(request.function, [0; 3], stop_handlers);
    match request.argument {
        Argument::Number(number) => call.arguments[0] = number,
        Argument::Text(text) => {
            let mut bytes = text.as_bytes().to_vec();
            bytes.push(0);
            let no_room = || std::io::Error::new(std::io::ErrorKind::InvalidData, "no room on its stack");
            let top = tracee.registers.rsp.checked_sub(RED_ZONE_BYTES).ok_or_else(no_room)?;
            let start = top.checked_sub(bytes.len() as u64).ok_or_else(no_room)?;
            let address = start & !(TEXT_ALIGNMENT - 1);
            memory::write(tracee.process.pid(), address, &bytes)?;
            call.arguments[0] = address;
            call.reserved_bytes = top - address;
        }
    }
    Ok(call)
}

/// Returns the refusal for a libc without the return from a signal handler that the call needs.
pub(crate) fn no_trampoline(pid: i32) -> Refusal {
    Refusal::Unsafe {
        pid,
        what: "has a C library without the known return from signal handlers".into(),
        advice: "restart it to give its memory back",
    }
}

/// Makes the call, and counts the pages right before and right after.
fn run(
    tracee: Tracee<'_>,
    call: &Call<'_>,
    pagemap: &File,
    heaps: &[Range<u64>],
) -> Result<Applied, Refusal> {
    let (process, tid) = (tracee.process, tracee.tid);
    let before = pages::anonymous_bytes_in(pagemap, heaps)
        .map_err(|error| Refusal::from_io(process, "reading pagemap", error))?;
    let mut injected = inject::begin(tracee, call).map_err(|error| refusal(process, tid, error))?;
    let began = injected.begun_at;
    if let Err(error) = injected.run(began + CALL_LIMIT) {
        return Err(leave(process, tid, injected, error));
    }
    let call_seconds = began.elapsed().as_secs_f64();
    let after = pages::anonymous_bytes_in(pagemap, heaps);
    let stop_time = injected.finish(CALL_LIMIT).map_err(|error| refusal(process, tid, error))?;
    Ok(Applied {
        // The call was made: an effect that cannot be counted is no refusal.
        actual_bytes: after.ok().map(|after| before.saturating_sub(after)),
        resident_before_bytes: before,
        call_seconds,
        stopped_seconds: Some(stop_time.as_secs_f64()),
        stops: 1,
        ..Applied::default()
    })
}

/// Leaves a call that did not end, and returns the refusal.
pub(crate) fn leave(process: &Process, tid: i32, injected: Injected<'_>, error: CallError) -> Refusal {
    if matches!(error, CallError::TimedOut) {
        injected.abandon();
    }
    refusal(process, tid, error)
}

/// Returns the refusal for a failed call.
pub(crate) fn refusal(process: &Process, tid: i32, error: CallError) -> Refusal {
    let pid = process.pid();
    match error {
        CallError::NotStarted(source) => {
            Refusal::from_io(process, format!("calling in thread {tid}"), source)
        }
        CallError::TimedOut => Refusal::Abandoned { pid, tid, seconds: CALL_LIMIT.as_secs_f64() },
        CallError::Died(Event::Exited { status: Some(status), .. }) => {
            Refusal::Died { pid, how: format!("exit status {status}") }
        }
        CallError::Died(Event::Exited { signal: Some(signal), .. }) => {
            Refusal::Died { pid, how: format!("signal {signal}") }
        }
        CallError::Died(_) => Refusal::Died { pid, how: "in an unknown way".into() },
        CallError::Failed(source) if means_ended(&source) => {
            Refusal::Died { pid, how: "the thread is gone".into() }
        }
        CallError::Failed(source) => Refusal::Interrupted { pid, tid, source },
    }
}
