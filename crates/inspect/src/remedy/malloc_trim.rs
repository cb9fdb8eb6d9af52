//! The remedy `malloc_trim`: makes a thread of the process call `malloc_trim(0)`, and counts the
//! pages that the call released.
//!
//! The caller has found the function, the locks of the arenas and the ranges of the heaps.

use std::ops::Range;
use std::time::Duration;

use super::call::{self, CallRequest, no_trampoline};
use super::{Applied, Refusal, precheck};
use strandline_claims::allocator::{Argument, CallPlan, CodeRanges};
use strandline_process::call::code::CallSites;
use strandline_process::call::inject;
use strandline_process::elf::Object;
use strandline_process::map::AddressSpace;
use strandline_process::procfs::Process;
use strandline_process::target::admission;

/// The call, and conditions for it.
#[derive(Debug)]
pub struct TrimRequest<'a> {
    /// The address of `malloc_trim` in the target; it must be in `libc`'s text.
    pub function: u64,
    /// The object that the function is in.
    pub libc: &'a Object,
    /// Finds malloc's code in it.
    pub code: CodeRanges,
    /// Addresses of the 32-bit lock word of each arena and of the list of arenas.
    pub locks: Vec<u64>,
    /// The address ranges in which pages are counted.
    pub heaps: Vec<Range<u64>>,
    /// How long to search for a safe thread.
    pub wait: Duration,
    /// How long to count minor faults afterwards; zero to count none.
    pub watch: Duration,
    /// The only thread that may make the call; `None` chooses the one that is disturbed least.
    pub thread: Option<i32>,
}

/// Calls `malloc_trim(0)` once in process `pid`.
///
/// Blocks for at most `wait`, the call, and `watch`. A [`Refusal`] means that nothing in the target
/// was changed, unless [`Refusal::has_begun`] is true.
pub fn apply(pid: i32, request: &TrimRequest<'_>) -> Result<Applied, Refusal> {
    with_call(pid, request, &|call| call::apply(pid, call))
}

/// Checks whether process `pid` could call it now, without calling anything.
pub fn check(pid: i32, request: &TrimRequest<'_>) -> Result<(), Refusal> {
    with_call(pid, request, &|call| call::check(pid, call))
}

/// Returns why the call can never be made in `process`, whatever its threads do; `None` if it can.
pub fn permanent_objection(process: &Process, space: &AddressSpace, plan: &CallPlan) -> Option<String> {
    let mapping = space.find(plan.object)?;
    // A shared C library always exports the function.
    let is_program = process.executable().is_some_and(|program| program == mapping.name);
    let libc = is_program.then(|| Object::open(process, space, mapping).ok()).flatten()?;
    find_function(&libc, plan).err()
}

/// Finds the function to call.
///
/// # Errors
/// The reason why the call cannot be made.
pub fn find_function(libc: &Object, plan: &CallPlan) -> Result<u64, String> {
    libc.symbol_address(plan.function.name).ok_or_else(|| {
        let (program, function) = (libc.name(), plan.function.name);
        format!("{program} has no symbol {function} to call; restart it to give its memory back")
    })
}

/// Passes the call to `act`, once the process and the function were checked.
fn with_call<T>(
    pid: i32,
    request: &TrimRequest<'_>,
    act: &dyn Fn(&CallRequest<'_>) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let process = &admission::open_target(pid)?;
    precheck::check(process)?;
    if !request.libc.text_contains(request.function) {
        let detail = format!("{:#x} is not in the text of {}", request.function, request.libc.name());
        return Err(Refusal::NoFunction { pid, function: "malloc_trim", detail });
    }
    let space = process.address_space()?;
    let sites = CallSites::find(process, &space).ok_or_else(|| no_trampoline(pid))?;
    let code = (request.code)(request.libc).ok_or_else(|| Refusal::NoFunction {
        pid,
        function: "malloc",
        detail: format!("not in the symbols of {}", request.libc.name()),
    })?;
    let call = CallRequest {
        function: request.function,
        argument: Argument::Number(0),
        sites,
        code: &code,
        locks: &request.locks,
        stack_bytes: inject::CALL_STACK_BYTES,
        fs_bases: &[],
        heaps: &request.heaps,
        wait: request.wait,
        watch: request.watch,
        thread: request.thread,
        must_wait: false,
    };
    act(&call)
}
