//! Java's threads: what they have of eden for themselves, their allocation buffers; and their stacks.

use std::collections::HashSet;
use std::time::Instant;

use strandline_process::memory::word_at;

use super::view::View;

/// The most threads that are asked.
const MAX_THREADS: u32 = 1 << 17;
/// How many threads the reader reads between two looks at the clock.
const THREADS_AT_ONCE: usize = 256;
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
/// read, or not before the deadline.
pub fn buffers(view: &View<'_>, deadline: Instant) -> Option<Vec<Buffer>> {
    let reserve = reserve(view)?;
    let buffers = each(&all(view)?, deadline, |thread| buffer(view, thread, reserve))?;
    Some(apart(buffers.into_iter().flatten().collect()))
}

/// Sorts buffers, and drops those whose free part overlaps that of the one before: so their ends are in order too.
fn apart(mut buffers: Vec<Buffer>) -> Vec<Buffer> {
    buffers.sort_unstable();
    let mut end = 0;
    buffers.retain(|buffer| {
        let is_apart = buffer.top >= end;
        end = if is_apart { buffer.end } else { end };
        is_apart
    });
    buffers
}

/// Reads something of each thread; `None` at the deadline.
fn each<T>(threads: &[u64], deadline: Instant, read: impl Fn(u64) -> T) -> Option<Vec<T>> {
    let mut all = Vec::new();
    for some in threads.chunks(THREADS_AT_ONCE) {
        if Instant::now() >= deadline {
            return None;
        }
        all.extend(some.iter().map(|&thread| read(thread)));
    }
    Some(all)
}

/// Java's threads (`JavaThread`), each once.
fn all(view: &View<'_>) -> Option<Vec<u64>> {
    let Some(list) = view.fixed(&["ThreadsSMRSupport::_java_thread_list"]) else { return linked(view) };
    let count = view.half_field(list, &["ThreadsList::_length"])?.min(MAX_THREADS);
    let table = view.field(list, &["ThreadsList::_threads"])?;
    let mut threads = vec![0; count as usize * 8];
    view.memory.read(table, &mut threads).ok()?;
    let mut seen = HashSet::new();
    let threads = (0..count as usize).filter_map(|index| word_at(&threads, index * 8));
    Some(threads.filter(|&thread| seen.insert(thread)).collect())
}

/// The same up to JDK 11, where they are in a list.
fn linked(view: &View<'_>) -> Option<Vec<u64>> {
    let (mut threads, mut seen) = (Vec::new(), HashSet::new());
    let mut at = view.fixed(&["Threads::_thread_list"])?;
    while at != 0 && threads.len() < MAX_THREADS as usize && seen.insert(at) {
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

/// All of them; `None` at the deadline. One whose stack is not known has an empty one.
pub fn threads(view: &View<'_>, deadline: Instant) -> Option<Vec<Thread>> {
    let thread = |address: u64| {
        let stack = || {
            let high = view.field(address, &["JavaThread::_stack_base", "Thread::_stack_base"])?;
            let bytes = view.field(address, &["JavaThread::_stack_size", "Thread::_stack_size"])?;
            high.checked_sub(bytes).filter(|_| bytes <= MAX_STACK_BYTES).map(|low| (low, high))
        };
        let (stack, state) = (stack(), view.half_field(address, &["JavaThread::_thread_state"]));
        Thread { address, stack: stack.unwrap_or_default(), state: stack.and(state) }
    };
    each(&all(view)?, deadline, thread)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_lie_apart() {
        let buffer = |start, top, end| Buffer { top, end, start };
        let good =
            [buffer(0x1000, 0x1800, 0x2000), buffer(0x2000, 0x2000, 0x3000), buffer(0x3000, 0x4000, 0x4000)];
        let bad = [buffer(0x1000, 0x1900, 0x1a00), buffer(0x1000, 0x2800, u64::MAX)];
        let all = [good[2], bad[1], good[0], bad[0], good[1], good[0]].to_vec();
        assert_eq!(apart(all), good);
    }
}
