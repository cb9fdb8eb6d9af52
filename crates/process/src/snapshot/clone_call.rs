//! The injected call that makes the child, with memory that the program excludes from its children.

use std::io;
use std::time::{Duration, Instant};

use strandline_sys::memory;

use super::{CLONE, CLONE_FILES, CLOSE_RANGE, CLOSE_RANGE_UNSHARE, EXIT_GROUP, MADVISE, NANOSLEEP};
use crate::call::code::CallSites;
use crate::call::frame::{self, RED_ZONE_BYTES, SystemCall};
use crate::call::inject::{self, CallError, Injected, RT_SIGRETURN};
use crate::procfs::signal_bit;
use crate::range::AddressRange;
use crate::target::tracee::Tracee;

/// Includes memory in a child.
const MADV_DOFORK: u64 = 11;
/// Excludes memory from a child.
const MADV_DONTFORK: u64 = 10;
/// Size of `struct timespec`.
const TIMESPEC_BYTES: u64 = 16;
/// Alignment of the sleeping time, and so of the end of the frames below it.
const ALIGNMENT_BYTES: u64 = 16;
/// Results of a system call that a signal or the freezer interrupted before it had an effect
/// (`-ERESTART*` of `include/linux/errno.h`); it is restarted.
const INTERRUPTED: std::ops::RangeInclusive<i64> = -516..=-512;

/// A thread that makes the child by an injected clone, and includes hidden memory in it.
pub(super) struct CloneCall<'a> {
    /// The thread in its call.
    pub(super) injected: Injected<'a>,
    /// Number of hidden ranges that are included before the clone and excluded after it.
    hidden_count: usize,
    /// The signal that the chain unblocks at the clone and at its last call, to stop there only;
    /// `None` to stop at every call, which takes about ten milliseconds each on a busy machine.
    stop_signal: Option<i32>,
}

impl<'a> CloneCall<'a> {
    /// Starts the call in a thread. With `hidden` ranges it is a chain of calls: the thread makes
    /// all of them even if strandline dies in between. Unless `all_are_stopped`, another thread
    /// could discard the signal to stop at, by setting its action.
    pub(super) fn begin(
        tracee: Tracee<'a>,
        code: CallSites,
        lifetime: Duration,
        hidden: &[AddressRange],
        all_are_stopped: bool,
    ) -> Result<Self, String> {
        let pid = tracee.process.pid();
        let registers = tracee.registers;
        let no_room = || "no room below the stack pointer".to_owned();
        // The sleeping time is stored above the frames.
        let time_address = registers
            .rsp
            .checked_sub(RED_ZONE_BYTES + TIMESPEC_BYTES + ALIGNMENT_BYTES)
            .ok_or_else(no_room)?
            & !(ALIGNMENT_BYTES - 1);
        let make_chain = |calls: &[SystemCall], top: u64, frame_after: Option<u64>| {
            frame::chain(calls, &code, &registers, top, frame_after).ok_or_else(no_room)
        };
        let mut child_frames = make_chain(&child_calls(time_address), time_address, None)?;
        child_frames.bytes.resize((time_address - child_frames.address) as usize, 0);
        child_frames.bytes.extend(lifetime.as_secs().to_le_bytes());
        child_frames.bytes.extend(u64::from(lifetime.subsec_nanos()).to_le_bytes());
        memory::write(pid, child_frames.address, &child_frames.bytes)
            .map_err(|error| format!("the frames cannot be written: {error}"))?;
        let clone = all_blocked(CLONE, [CLONE_FILES, child_frames.address, 0]);
        // The chain replaces this call before the thread makes it.
        let placeholder = all_blocked(MADVISE, [0, 0, MADV_DONTFORK]);
        let first_call = if hidden.is_empty() { clone } else { placeholder };
        let reserved_bytes = registers.rsp - RED_ZONE_BYTES - child_frames.address;
        let call = code.bare_system_call(first_call.number, first_call.arguments, reserved_bytes);
        let injected = inject::begin(tracee, &call).map_err(describe)?;
        let mut stop_signal = None;
        if !hidden.is_empty() {
            stop_signal = if all_are_stopped { injected.send_harmless() } else { None };
            let calls = calls_with_hidden(clone, hidden, stop_signal);
            // Below the frame that restores the thread, so that a handler that runs in the chain
            // overwrites only frames that are used up.
            let restoring_frame = injected.frame_address;
            let chain = make_chain(&calls, restoring_frame, Some(restoring_frame))?;
            injected.enter_chain(&chain).map_err(|error| describe(CallError::Failed(error)))?;
        }
        Ok(Self { injected, hidden_count: hidden.len(), stop_signal })
    }

    /// Makes the child; returns its id, or the kernel's error.
    pub(super) fn clone(&mut self, limit: Duration) -> Result<i64, CallError> {
        let deadline = self.injected.begun_at + limit;
        match self.stop_signal {
            Some(signal) => self.injected.run_to_frame(signal, deadline)?,
            None => self.advise(self.hidden_count, deadline)?,
        }
        run_system_call(&mut self.injected, CLONE, deadline)
    }

    /// Excludes the hidden memory again, and restores the thread.
    pub(super) fn finish(mut self, limit: Duration) -> Result<Duration, String> {
        let deadline = Instant::now() + limit;
        match self.exclude_hidden(deadline) {
            Ok(()) => self.injected.finish(limit).map_err(describe),
            Err(error) => Err(abandon_if_unfinished(self.injected, error)),
        }
    }

    fn exclude_hidden(&mut self, deadline: Instant) -> Result<(), CallError> {
        // The chain unblocks this signal only; another may fit now.
        let sent_signal = self.stop_signal.filter(|&signal| self.injected.send(signal));
        match sent_signal {
            Some(signal) => {
                self.injected.run_to_frame(signal, deadline)?;
                self.advise(1, deadline)
            }
            None => self.advise(self.hidden_count, deadline),
        }
    }

    /// Runs through the next `count` calls of madvise.
    fn advise(&mut self, count: usize, deadline: Instant) -> Result<(), CallError> {
        (0..count).try_for_each(|_| run_system_call(&mut self.injected, MADVISE, deadline).map(drop))
    }
}

/// What the child does: closes its descriptors, sleeps for the time at `time_address`, and ends.
fn child_calls(time_address: u64) -> [SystemCall; 3] {
    [
        all_blocked(CLOSE_RANGE, [0, u64::from(u32::MAX), CLOSE_RANGE_UNSHARE]),
        all_blocked(NANOSLEEP, [time_address, 0, 0]),
        all_blocked(EXIT_GROUP, [0; 3]),
    ]
}

/// The clone, between calls that include the hidden memory and exclude it again. It and the last
/// one unblock `stop_signal`.
fn calls_with_hidden(
    clone: SystemCall,
    hidden: &[AddressRange],
    stop_signal: Option<i32>,
) -> Vec<SystemCall> {
    let unblocked = stop_signal.map_or(0, signal_bit);
    let advise =
        |advice| hidden.iter().map(move |range| all_blocked(MADVISE, [range.start, range.len(), advice]));
    let clone = SystemCall { unblocked, ..clone };
    let mut calls: Vec<SystemCall> =
        advise(MADV_DOFORK).chain([clone]).chain(advise(MADV_DONTFORK)).collect();
    if let Some(last) = calls.last_mut() {
        last.unblocked = unblocked;
    }
    calls
}

/// A system call with all signals blocked.
const fn all_blocked(number: u64, arguments: [u64; 3]) -> SystemCall {
    SystemCall { number, arguments, unblocked: 0 }
}

/// Leaves a call that did not end in time to its thread; returns the error text.
pub(super) fn abandon_if_unfinished(injected: Injected<'_>, error: CallError) -> String {
    if matches!(error, CallError::TimedOut) {
        injected.abandon();
    }
    describe(error)
}

/// The reason, from the negative result of a system call.
pub(super) fn refused_by_kernel(result: i64) -> String {
    format!("the kernel refuses it: {}", io::Error::from_raw_os_error(-result as i32))
}

/// Lets the thread make system call `number`, perhaps after its return from a frame; returns the
/// result of the call.
pub(super) fn run_system_call(
    injected: &mut Injected<'_>,
    number: u64,
    deadline: Instant,
) -> Result<i64, CallError> {
    loop {
        let entry = injected.next_system_call(deadline)?.orig_rax;
        if entry != number && entry != RT_SIGRETURN {
            let error = io::Error::other("another system call than the injected one");
            return Err(CallError::Failed(error));
        }
        let result = injected.next_system_call(deadline)?.rax as i64;
        // The kernel restarts an interrupted call by itself.
        if entry == number && !INTERRUPTED.contains(&result) {
            return Ok(result);
        }
        if Instant::now() >= deadline {
            return Err(CallError::TimedOut);
        }
    }
}

/// The error as the end of a sentence.
fn describe(error: CallError) -> String {
    match error {
        CallError::NotStarted(source) => format!("the call cannot be made: {source}"),
        CallError::TimedOut => "the call did not end in time; the thread finishes it alone".to_owned(),
        CallError::Died(_) => "the process ended".to_owned(),
        CallError::Failed(source) => {
            format!("the call could not be followed ({source}); the thread finishes it alone")
        }
    }
}
