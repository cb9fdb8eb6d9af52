//! Finds and holds the thread that owns a heap, while another thread makes a call for that heap.
//!
//! Only its owner ends a heap. The owner is held in its event loop: there it holds no lock, so that
//! the call never waits for it, and the heap is complete.

use std::time::Duration;

use super::Refusal;
use super::runtime_code::RuntimeCode;
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::{Process, ThreadActivity};
use strandline_process::target::live::ByPid;
use strandline_process::target::tracee::{NotStopped, Tracee};
use strandline_process::unwind::{End, Frame, Objects, Unwinder};

/// Maximum time for a thread to stop.
const STOP_LIMIT: Duration = Duration::from_millis(100);
/// Calls in which an event loop sleeps: epoll_wait, epoll_pwait.
const EVENT_WAITS: [i64; 2] = [232, 281];
/// Bytes that are searched around a thread's pointer: static thread-local storage below it (node
/// has 0x2a0), and glibc's thread structure (nptl/descr.h, `struct pthread`), which has the values
/// of the first 32 keys of pthread_key_create at 0x310.
const STORAGE_BYTES: u64 = 2 << 10;
const STRUCTURE_BYTES: u64 = 0x900;
/// Frames that are looked at: the C library's, those of the loop.
const MAX_FRAMES: usize = 8;

/// The owner of a heap, over several attempts.
pub struct Owner<'a> {
    process: &'a Process,
    code: &'a RuntimeCode,
    /// The value that only the owner has in its thread-local storage.
    value: u64,
    /// The thread, once it is known.
    tid: Option<i32>,
    objects: Objects,
}

/// Result of an attempt to hold the owner.
pub enum Search<'a> {
    /// The owner, stopped in its event loop.
    Held(Box<Tracee<'a>>),
    /// It is not in its event loop now.
    Busy,
    /// Unwinding needs the object at this address.
    Missing(u64),
}

impl<'a> Owner<'a> {
    /// The thread of which the thread-local storage contains `value`.
    pub fn new(process: &'a Process, code: &'a RuntimeCode, value: u64) -> Self {
        Self { process, code, value, tid: None, objects: Objects::default() }
    }

    /// Loads the object at `address`, for the next attempt.
    pub fn load(&mut self, space: &AddressSpace, address: u64) {
        self.objects.load(self.process, space, address);
    }

    /// Whether it may be in its event loop; stops nothing.
    pub fn may_sleep(&self) -> bool {
        self.tid.is_none_or(|tid| self.waits_for_events(tid))
    }

    fn waits_for_events(&self, tid: i32) -> bool {
        matches!(self.process.task_doing(tid), Some(ThreadActivity::Call(call)) if EVENT_WAITS.contains(&call.number))
    }

    /// Stops threads that wait for events, until one is the owner. Call it on a thread of its own.
    pub fn hold(&mut self, space: &AddressSpace) -> Result<Search<'a>, Refusal> {
        let tids = self.tid.map_or_else(|| self.process.tasks(), |tid| Ok(vec![tid]))?;
        for tid in tids.into_iter().filter(|&tid| self.waits_for_events(tid)) {
            let tracee = match Tracee::stop(self.process, tid, STOP_LIMIT) {
                Ok(tracee) => tracee,
                Err(NotStopped::Gone) => continue,
                Err(NotStopped::GroupStop) => return Err(Refusal::Stopped { pid: self.process.pid() }),
                Err(NotStopped::TimedOut | NotStopped::Replaced) => return Ok(Search::Busy),
                Err(NotStopped::Refused(error)) => return Err(error.into()),
                Err(NotStopped::Io(error)) => {
                    return Err(Refusal::from_io(self.process, format!("stopping thread {tid}"), error));
                }
            };
            if self.has_value(&tracee) {
                self.tid = Some(tid);
                return Ok(self.judge(space, tracee));
            }
        }
        Ok(Search::Busy)
    }

    fn has_value(&self, tracee: &Tracee<'_>) -> bool {
        let base = tracee.registers.fs_base;
        let below = base.checked_sub(STORAGE_BYTES).map(|start| (start, STORAGE_BYTES));
        let memory = ByPid::new(self.process.pid());
        below.into_iter().chain([(base, STRUCTURE_BYTES)]).any(|(start, bytes)| {
            let mut words = vec![0; bytes as usize];
            let is_read = memory.read(start, &mut words).is_ok();
            is_read && words.chunks_exact(8).any(|word| word == self.value.to_le_bytes())
        })
    }

    fn judge(&self, space: &AddressSpace, tracee: Tracee<'a>) -> Search<'a> {
        if !EVENT_WAITS.contains(&tracee.registers.orig_rax.cast_signed()) {
            return Search::Busy;
        }
        let memory = ByPid::new(self.process.pid());
        let unwinder = Unwinder { memory: &memory, space, objects: &self.objects };
        let mut frames = Vec::new();
        let end = unwinder.walk(Frame::of(&tracee.registers), &mut |frame| {
            frames.push(frame.instruction);
            frames.len() < MAX_FRAMES && !self.code.is_in_event_loop(space, &frames)
        });
        match end {
            End::Missing(address) => Search::Missing(address),
            _ if self.code.is_in_event_loop(space, &frames) => Search::Held(Box::new(tracee)),
            _ => Search::Busy,
        }
    }
}
