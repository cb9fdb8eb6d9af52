//! The remedy `malloc_trim`: has a thread of the process call `malloc_trim(0)`, and counts what that
//! gave back.
//!
//! The caller has found the function, the arenas' locks and the heaps' ranges; nothing of the heap
//! is read here but lock words. It refuses rather than risks: see `choose` and `inject`.

use std::fs::File;
use std::ops::Range;
use std::time::Duration;

use strandline_sys::ptrace::Event;

use super::choose::{self, Fences};
use super::{Applied, Refusal, malloc_code, precheck};
use strandline_process::call::code;
use strandline_process::call::inject::{self, Call, CallError, Injected};
use strandline_process::elf::Object;
use strandline_process::pages;
use strandline_process::procfs::Process;
use strandline_process::smaps;
use strandline_process::target::admission;
use strandline_process::target::live::Live;
use strandline_process::target::tracee::Tracee;

/// How long the call itself may take before it is left to end by itself.
pub const CALL_LIMIT: Duration = Duration::from_secs(120);

/// What to call, and where to be careful.
#[derive(Debug)]
pub struct TrimRequest<'a> {
    /// The address of `malloc_trim` in the target; it must lie in `libc`'s text.
    pub function: u64,
    /// The object that the function is in.
    pub libc: &'a Object,
    /// Addresses of the 32-bit lock word of each arena and of the list of arenas.
    pub locks: Vec<u64>,
    /// The address ranges in which pages are counted.
    pub heaps: Vec<Range<u64>>,
    /// How long to look for a safe thread.
    pub wait: Duration,
    /// How long to count minor faults afterwards; zero for not at all.
    pub watch: Duration,
    /// Through this thread only, if any; `None` chooses the one that notices least.
    pub thread: Option<i32>,
}

/// Has process `pid` call `malloc_trim(0)` once.
///
/// Blocks for at most `wait`, the call, and `watch`. A [`Refusal`] that does not say otherwise
/// ([`Refusal::touched`]) means that nothing in the target was changed.
pub fn apply(pid: i32, request: &TrimRequest<'_>) -> Result<Applied, Refusal> {
    let process = &admission::admit(pid)?;
    precheck::check(process)?;
    if !request.libc.text_contains(request.function) {
        let detail = format!("{:#x} is not in the text of {}", request.function, request.libc.name());
        return Err(Refusal::NoFunction { pid, function: "malloc_trim", detail });
    }
    let memory = Live::new(pid);
    let trampoline =
        code::find(&memory, request.libc.text(), &inject::TRAMPOLINE).ok_or_else(|| no_trampoline(pid))?;
    let code = malloc_code::ranges(request.libc).ok_or_else(|| Refusal::NoFunction {
        pid,
        function: "malloc",
        detail: format!("not in the symbols of {}", request.libc.name()),
    })?;
    let pagemap = process.open_file("pagemap")?;
    let heaps = pages::whole_pages(&request.heaps);
    let rss_before_bytes = rss_bytes(process);
    let stack_bytes = inject::CALL_STACK_BYTES + code::FRAME_BYTES + inject::xstate_bytes();
    let fences = Fences { locks: &request.locks, code: &code, stack_bytes, thread: request.thread };
    let call = Call {
        function: request.function,
        rax: 0,
        arguments: [0; 3],
        trampoline,
        reserved_bytes: 0,
        blocks_faults: false,
    };
    let mut act = |tracee: Tracee<'_>| {
        // The thread's id may have passed to another process since it was looked at.
        process.task_stat(tracee.tid)?;
        run(tracee, &call, &pagemap, &heaps)
    };
    let applied = choose::with_safe_thread(process, &fences, request.wait, &mut act)??;
    let mut applied = Applied { rss_before_bytes, rss_after_bytes: rss_bytes(process), ..applied };
    applied.watch_faults(process, request.watch);
    Ok(applied)
}

/// The RSS of a process in bytes as its page tables have it.
pub(crate) fn rss_bytes(process: &Process) -> Option<u64> {
    smaps::read_rollup(process.open_file("smaps_rollup").ok()?).ok().map(|counts| counts.rss_bytes)
}

/// The refusal of a libc without the return from a signal handler that the call needs.
pub(crate) fn no_trampoline(pid: i32) -> Refusal {
    Refusal::Unsafe {
        pid,
        what: "has a C library without the known return from signal handlers".into(),
        advice: "restart it to give its memory back",
    }
}

/// The call, with the pages counted right before and right after.
fn run(tracee: Tracee<'_>, call: &Call, pagemap: &File, heaps: &[Range<u64>]) -> Result<Applied, Refusal> {
    let (process, tid) = (tracee.process, tracee.tid);
    let count =
        || pages::read_ranges(pagemap, heaps).map_err(|e| Refusal::from_io(process, "reading pagemap", e));
    let before = count()?;
    let mut injected = inject::begin(tracee, call).map_err(|e| refusal(process, tid, e))?;
    let began = injected.began;
    if let Err(error) = injected.run(began + CALL_LIMIT) {
        return Err(leave(process, tid, injected, error));
    }
    let call_seconds = began.elapsed().as_secs_f64();
    let after = count();
    let held = injected.finish(CALL_LIMIT).map_err(|e| refusal(process, tid, e))?;
    Ok(Applied {
        actual_bytes: before.saturating_sub(after?),
        resident_before_bytes: before,
        call_seconds,
        stopped_seconds: held.as_secs_f64(),
        stops: 1,
        ..Applied::default()
    })
}

/// Leaves a call that did not come to its end, and says so.
pub(crate) fn leave(process: &Process, tid: i32, injected: Injected<'_>, error: CallError) -> Refusal {
    if matches!(error, CallError::Late) {
        injected.abandon();
    }
    refusal(process, tid, error)
}

/// What a failed call means for the caller.
pub(crate) fn refusal(process: &Process, tid: i32, error: CallError) -> Refusal {
    let pid = process.pid();
    match error {
        CallError::NotBegun(source) => Refusal::from_io(process, format!("calling in thread {tid}"), source),
        CallError::Late => Refusal::Abandoned { pid, tid, seconds: CALL_LIMIT.as_secs_f64() },
        CallError::Died(Event::Exited { status: Some(status), .. }) => {
            Refusal::Died { pid, how: format!("exit status {status}") }
        }
        CallError::Died(Event::Exited { signal: Some(signal), .. }) => {
            Refusal::Died { pid, how: format!("signal {signal}") }
        }
        CallError::Died(_) => Refusal::Died { pid, how: "in an unknown way".into() },
        CallError::Lost(source) if matches!(source.raw_os_error(), Some(3 | 10)) => {
            Refusal::Died { pid, how: "the thread is gone".into() }
        }
        CallError::Lost(source) => Refusal::Interrupted { pid, tid, source },
    }
}
