//! Java threads: their allocation buffers in eden, and their stacks.

use std::collections::HashSet;
use std::time::Instant;

use strandline_process::range::AddressRange;

use super::view::View;

/// Limit on threads; beyond it, none is read.
const MAX_THREADS: u32 = 1 << 17;
/// Threads read between two checks of the deadline.
const THREADS_AT_ONCE: usize = 256;
/// Words of an object's header (`oopDesc::header_size`).
const OBJECT_HEADER_WORDS: u64 = 2;
/// Limit on words kept free for an object that fills the end of a buffer.
const MAX_FILLER_WORDS: u64 = 64;
/// Limit on words kept free at the end of a buffer, also for prefetching.
const MAX_RESERVE_WORDS: u64 = 1 << 16;
/// Largest stack; with a larger one, the threads count as not known.
const MAX_STACK_BYTES: u64 = 1 << 30;

/// Allocation buffer of a thread: objects up to `top`, free behind. The order is that of `top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tlab {
    /// End of the objects.
    pub top: u64,
    /// End of the buffer.
    pub end: u64,
    /// Start of the buffer.
    pub start: u64,
}

impl Tlab {
    /// Whether a thread has the buffer: its addresses are in order. A thread without one has zeros.
    fn is_in_use(&self) -> bool {
        let Self { top, end, start } = *self;
        start != 0 && start <= top && top <= end && start.is_multiple_of(8) && top.is_multiple_of(8)
    }
}

/// Returns the buffers of all Java threads (`ThreadLocalAllocBuffer`), in address order; `None` if
/// they cannot be read, or not before the deadline.
pub fn buffers(view: &View<'_>, deadline: Instant) -> Option<Vec<Tlab>> {
    let reserve_bytes = end_reserve_bytes(view)?;
    let buffers = read_each(&addresses(view)?, deadline, |thread| read_buffer(view, thread))?;
    let in_use = buffers.into_iter().filter(Tlab::is_in_use);
    let with_reserve = in_use.map(|buffer| Tlab { end: buffer.end.saturating_add(reserve_bytes), ..buffer });
    Some(drop_overlapping(with_reserve.collect()))
}

/// Sorts buffers, and drops those whose free part overlaps the previous one's. The ends of the
/// others are in order, too.
fn drop_overlapping(mut buffers: Vec<Tlab>) -> Vec<Tlab> {
    buffers.sort_unstable();
    let mut end = 0;
    buffers.retain(|buffer| {
        let is_apart = buffer.top >= end;
        end = if is_apart { buffer.end } else { end };
        is_apart
    });
    buffers
}

/// Reads something of each thread; `None` if it cannot be read of one, or at the deadline.
fn read_each<T>(threads: &[u64], deadline: Instant, read: impl Fn(u64) -> Option<T>) -> Option<Vec<T>> {
    let read_in_time = |(index, &thread): (usize, &u64)| {
        let is_late = index.is_multiple_of(THREADS_AT_ONCE) && Instant::now() >= deadline;
        if is_late { None } else { read(thread) }
    };
    threads.iter().enumerate().map(read_in_time).collect()
}

/// Returns the addresses of the Java threads (`JavaThread`), each once; `None` if some are unknown.
fn addresses(view: &View<'_>) -> Option<Vec<u64>> {
    let Some(list) = view.static_field(&["ThreadsSMRSupport::_java_thread_list"]) else {
        return linked_threads(view);
    };
    let count = view.half_field(list, &["ThreadsList::_length"]).filter(|&count| count <= MAX_THREADS)?;
    let table = view.field(list, &["ThreadsList::_threads"])?;
    let threads = view.words(table, count as usize)?;
    let mut visited = HashSet::new();
    Some(threads.into_iter().filter(|&thread| visited.insert(thread)).collect())
}

/// Returns their addresses in JDK 11, where threads are in a linked list.
fn linked_threads(view: &View<'_>) -> Option<Vec<u64>> {
    let (mut threads, mut visited) = (Vec::new(), HashSet::new());
    let mut at = view.static_field(&["Threads::_thread_list"])?;
    while at != 0 {
        if threads.len() >= MAX_THREADS as usize || !visited.insert(at) {
            return None;
        }
        threads.push(at);
        at = view.field(at, &["JavaThread::_next"])?;
    }
    Some(threads)
}

/// A Java thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Address of its `JavaThread`.
    pub address: u64,
    pub stack: AddressRange,
    /// `JavaThreadState`; `None` if it is not known.
    pub state: Option<u32>,
}

/// Returns all Java threads; `None` at the deadline, or if the stack of one is not known: it may
/// hold references.
pub fn threads(view: &View<'_>, deadline: Instant) -> Option<Vec<Thread>> {
    let thread = |address: u64| {
        let high = view.field(address, &["JavaThread::_stack_base", "Thread::_stack_base"])?;
        let bytes = view.field(address, &["JavaThread::_stack_size", "Thread::_stack_size"])?;
        let low = high.checked_sub(bytes).filter(|_| bytes <= MAX_STACK_BYTES)?;
        let state = view.half_field(address, &["JavaThread::_thread_state"]);
        Some(Thread { address, stack: AddressRange::new(low, high), state })
    };
    read_each(&addresses(view)?, deadline, thread)
}

/// Returns the bytes kept free at each buffer's end, for an array that fills the rest
/// (`ThreadLocalAllocBuffer::end_reserve`).
fn end_reserve_bytes(view: &View<'_>) -> Option<u64> {
    // In words. Removed in JDK 27: nothing is reserved for it there.
    let prefetch_words = match view.address(&["ThreadLocalAllocBuffer::_reserve_for_allocation_prefetch"]) {
        Some(at) => view.half_word(at)?,
        None => 0,
    };
    // JDK 21 and earlier ones have no entry for it: the size of an object's header is reserved.
    let filler_words = match view.address(&["CollectedHeap::_lab_alignment_reserve"]) {
        Some(at) => view.word(at)?,
        None => OBJECT_HEADER_WORDS,
    };
    Some(u64::from(prefetch_words).max(filler_words.min(MAX_FILLER_WORDS)).min(MAX_RESERVE_WORDS) * 8)
}

/// Reads the buffer of a thread, without the bytes kept free at its end.
fn read_buffer(view: &View<'_>, thread: u64) -> Option<Tlab> {
    let buffer = view.field_address(thread, &["Thread::_tlab"])?;
    let field = |name: &str| view.field(buffer, &[&format!("ThreadLocalAllocBuffer::{name}")]);
    // `_allocation_end`, which has no entry, precedes this field.
    let size = view.field_address(buffer, &["ThreadLocalAllocBuffer::_desired_size"])?;
    let end = view.word(size.checked_sub(8)?)?;
    Some(Tlab { top: field("_top")?, end, start: field("_start")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_buffers_do_not_overlap() {
        let buffer = |start, top, end| Tlab { top, end, start };
        let good =
            [buffer(0x1000, 0x1800, 0x2000), buffer(0x2000, 0x2000, 0x3000), buffer(0x3000, 0x4000, 0x4000)];
        let bad = [buffer(0x1000, 0x1900, 0x1a00), buffer(0x1000, 0x2800, u64::MAX)];
        let all = [good[2], bad[1], good[0], bad[0], good[1], good[0]].to_vec();
        assert_eq!(drop_overlapping(all), good);
    }
}
