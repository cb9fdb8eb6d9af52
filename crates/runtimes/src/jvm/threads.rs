//! Java's threads: what they have of eden for themselves, their allocation buffers; and their stacks.

use std::collections::HashSet;

use strandline_process::memory::word_at;

use super::view::View;

/// The most threads that are asked.
const MOST_THREADS: u32 = 1 << 17;
/// The largest stack that is looked at.
const MAX_STACK_BYTES: u64 = 1 << 30;

/// A buffer that a thread allocates in: objects up to `top`, and behind that nothing yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Buffer {
    /// The first byte without an object.
    pub top: u64,
    /// The first byte behind it.
    pub end: u64,
    /// Its first byte.
    pub start: u64,
}

/// The buffers of all of Java's threads, in the order of addresses (`ThreadLocalAllocBuffer`); `None` where threads cannot be
/// told.
pub fn buffers(view: &View<'_>) -> Option<Vec<Buffer>> {
    let threads = all(view)?;
    let reserve = reserve(view)?;
    let mut buffers: Vec<Buffer> =
        threads.iter().filter_map(|&thread| buffer(view, thread, reserve)).collect();
    buffers.sort_unstable();
    Some(buffers)
}

/// Java's threads (`JavaThread`).
fn all(view: &View<'_>) -> Option<Vec<u64>> {
    let Some(list) = view.fixed(&["ThreadsSMRSupport::_java_thread_list"]) else { return linked(view) };
    let count = view.half_field(list, &["ThreadsList::_length"])?.min(MOST_THREADS);
    let table = view.field(list, &["ThreadsList::_threads"])?;
    let mut threads = vec![0; count as usize * 8];
    view.memory.read(table, &mut threads).ok()?;
    Some((0..count as usize).filter_map(|index| word_at(&threads, index * 8)).collect())
}

/// The same up to JDK 11, where they are in a list.
fn linked(view: &View<'_>) -> Option<Vec<u64>> {
    let (mut threads, mut seen) = (Vec::new(), HashSet::new());
    let mut at = view.fixed(&["Threads::_thread_list"])?;
    while at != 0 && threads.len() < MOST_THREADS as usize && seen.insert(at) {
        threads.push(at);
        at = view.field(at, &["JavaThread::_next"])?;
    }
    Some(threads)
}

/// A thread of Java's, with what says where its frames are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its `JavaThread`.
    pub address: u64,
    /// The first byte of its stack, and the first behind it.
    pub stack: (u64, u64),
    /// Its `JavaThreadState`, where both that and its stack are known.
    pub state: Option<u32>,
}

/// All of them. One whose stack is not known has an empty one.
pub fn threads(view: &View<'_>) -> Option<Vec<Thread>> {
    let thread = |&address: &u64| {
        let stack = || {
            let high = view.field(address, &["JavaThread::_stack_base", "Thread::_stack_base"])?;
            let bytes = view.field(address, &["JavaThread::_stack_size", "Thread::_stack_size"])?;
            high.checked_sub(bytes).filter(|_| bytes <= MAX_STACK_BYTES).map(|low| (low, high))
        };
        let (stack, state) = (stack(), view.half_field(address, &["JavaThread::_thread_state"]));
        Thread { address, stack: stack.unwrap_or_default(), state: stack.and(state) }
    };
    Some(all(view)?.iter().map(thread).collect())
}

/// What is left free at each one's end, for an array that fills it (`ThreadLocalAllocBuffer::end_reserve`).
fn reserve(view: &View<'_>) -> Option<u64> {
    // Gone from JDK 27 on: nothing is kept for it there.
    let prefetch =
        view.fixed_half(&["ThreadLocalAllocBuffer::_reserve_for_allocation_prefetch"]).unwrap_or(0);
    // In words; from JDK 18 on it is told, before that it is the header of an object.
    let filler = view.fixed(&["CollectedHeap::_lab_alignment_reserve"]).unwrap_or(2);
    Some(u64::from(prefetch).max(filler.min(64)).min(1 << 16) * 8)
}

fn buffer(view: &View<'_>, thread: u64, reserve: u64) -> Option<Buffer> {
    let buffer = view.place(thread, &["Thread::_tlab"])?;
    let field = |name: &str| view.field(buffer, &[&format!("ThreadLocalAllocBuffer::{name}")]);
    let (start, top) = (field("_start")?, field("_top")?);
    // `_allocation_end`, which has no entry, stands in front of this one.
    let size = view.place(buffer, &["ThreadLocalAllocBuffer::_desired_size"])?;
    let end = view.word(size.checked_sub(8)?)?;
    let is_sound =
        start != 0 && start <= top && top <= end && start.is_multiple_of(8) && top.is_multiple_of(8);
    is_sound.then_some(Buffer { top, end: end.checked_add(reserve)?, start })
}
