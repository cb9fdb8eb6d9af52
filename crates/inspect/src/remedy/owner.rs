//! Holds the thread that owns a heap, while another thread makes a call for that heap.
//!
//! Only its owner ends a heap. The owner is held in its event loop: there it holds no lock, so that
//! the call never waits for it, and the heap is complete.

use std::time::Duration;

use super::Refusal;
use super::runtime_code::RuntimeCode;
use strandline_claims::remedy::Owner;
use strandline_process::map::AddressSpace;
use strandline_process::procfs::{Process, ThreadActivity};
use strandline_process::target::live::ByPid;
use strandline_process::target::tracee::{NotStopped, Tracee};
use strandline_process::unwind::{End, Frame, Objects, Unwinder};

/// Maximum time for a thread to stop.
const STOP_LIMIT: Duration = Duration::from_millis(100);
/// Calls in which an event loop sleeps: epoll_wait, epoll_pwait.
const EVENT_WAITS: [i64; 2] = [232, 281];
/// Maximum number of frames followed on the owner's stack; the caller of its loop is among the
/// first four to six.
const MAX_FRAMES: usize = 12;

/// The owner of a heap, over several attempts.
pub struct HeapOwner<'a> {
    process: &'a Process,
    code: &'a RuntimeCode,
    thread: Owner,
    objects: Objects,
}

/// Result of an attempt to hold the owner.
pub enum HoldResult<'a> {
    /// The owner, stopped in its event loop.
    Held(Box<Tracee<'a>>),
    /// The owner woke before it stopped.
    Busy,
    /// The owner waits for events outside of the runtime's own loop.
    Elsewhere,
    /// Unwinding needs the object at this address.
    Missing(u64),
}

impl<'a> HeapOwner<'a> {
    /// The owner `thread` of a heap of `process`, whose runtime has `code`.
    pub fn new(process: &'a Process, code: &'a RuntimeCode, thread: Owner) -> Self {
        Self { process, code, thread, objects: Objects::default() }
    }

    /// Loads the object at `address`, for the next attempt.
    pub fn load(&mut self, space: &AddressSpace, address: u64) {
        self.objects.load(self.process, space, address);
    }

    /// Whether the owner sleeps until an event, as in its loop; stops nothing.
    pub fn sleeps(&self) -> bool {
        let activity = self.process.task_activity(self.thread.tid);
        matches!(activity, Some(ThreadActivity::InCall(call)) if EVENT_WAITS.contains(&call.number))
    }

    /// Stops the owner, once. A stop has the kernel repeat its wait with the whole timeout, so that
    /// stops in quick succession would delay its timers. Call this on a separate thread.
    pub fn hold(&self, space: &AddressSpace) -> Result<HoldResult<'a>, Refusal> {
        let (pid, tid) = (self.process.pid(), self.thread.tid);
        match Tracee::stop(self.process, tid, STOP_LIMIT) {
            // A thread's id may have been reused.
            Ok(tracee) if tracee.registers.fs_base == self.thread.thread_pointer => {
                Ok(self.check_stopped(space, tracee))
            }
            Ok(_) | Err(NotStopped::Gone | NotStopped::TimedOut | NotStopped::Replaced) => {
                Ok(HoldResult::Busy)
            }
            Err(NotStopped::GroupStop) => Err(Refusal::Stopped { pid }),
            Err(NotStopped::Refused(error)) => Err(error.into()),
            Err(NotStopped::Io(error)) => {
                Err(Refusal::from_io(self.process, format!("stopping thread {tid}"), error))
            }
        }
    }

    /// Checks whether the owner was stopped in its event loop; otherwise releases it.
    fn check_stopped(&self, space: &AddressSpace, tracee: Tracee<'a>) -> HoldResult<'a> {
        if !EVENT_WAITS.contains(&tracee.registers.orig_rax.cast_signed()) {
            return HoldResult::Busy;
        }
        let memory = ByPid::new(self.process.pid());
        let unwinder = Unwinder { memory: &memory, space, objects: &self.objects };
        let mut frames = Vec::new();
        let end = unwinder.walk(Frame::of(&tracee.registers), &mut |frame| {
            frames.push(frame.instruction);
            frames.len() < MAX_FRAMES && !self.code.is_in_event_loop(space, &frames)
        });
        match end {
            End::Missing(address) => HoldResult::Missing(address),
            _ if self.code.is_in_event_loop(space, &frames) => HoldResult::Held(Box::new(tracee)),
            _ => HoldResult::Elsewhere,
        }
    }
}
