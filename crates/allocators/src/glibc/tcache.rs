//! Finds the cache of free chunks of each thread.
//!
//! The pointer to it is a thread-local variable of libc, a little below the thread's FS base, at
//! the same distance in all threads of one libc. A vote determines the distance: the one where most
//! threads hold a pointer to a complete `tcache_perthread_struct`.

use std::collections::BTreeMap;

use super::layout;
use super::lists::{List, Ranges};
use strandline_claims::allocator::Context;
use strandline_process::memory::{Memory, half_word_at, word_at};

/// Bytes searched below the FS base.
const TLS_BYTES: u64 = 4096;

/// The caches found.
#[derive(Clone, Debug, Default)]
pub struct Caches {
    /// The chunks that hold the structures themselves.
    pub structures: Vec<u64>,
    /// All non-empty lists.
    pub lists: Vec<List>,
}

struct Candidate {
    thread: usize,
    address: u64,
    lists: Vec<List>,
}

/// Finds the caches of the context's threads.
pub fn find(context: &Context<'_>, ranges: &Ranges<'_>, large: bool) -> Caches {
    let memory = context.whole_memory;
    let shape = if large { layout::LARGE_THREAD_CACHE } else { layout::THREAD_CACHE };
    let mut by_distance: BTreeMap<u64, Vec<Candidate>> = BTreeMap::new();
    let mut bytes = vec![0; TLS_BYTES as usize];
    for (thread, &fs_base) in context.fs_bases.iter().enumerate() {
        let Some(start) = fs_base.checked_sub(TLS_BYTES) else { continue };
        // Memory below the thread's own may be a file's: reading it would bring its pages in.
        bytes.fill(0);
        for run in context.resident_runs((start, fs_base)) {
            if let Some(part) = bytes.get_mut((run.start - start) as usize..(run.end - start) as usize) {
                memory.read_some(run.start, part);
            }
        }
        for offset in (0..bytes.len()).step_by(8) {
            let Some(pointer) = word_at(&bytes, offset) else { continue };
            let Some(lists) = structure_at(memory, ranges, pointer, &shape) else { continue };
            let candidate = Candidate { thread, address: pointer, lists };
            by_distance.entry(TLS_BYTES - offset as u64).or_default().push(candidate);
        }
    }
    // Filled caches count more: an empty one is only zeros of the right length.
    let weight = |candidates: &Vec<Candidate>| {
        let filled = candidates.iter().filter(|c| !c.lists.is_empty()).count();
        (filled, candidates.len())
    };
    let best = by_distance.into_values().max_by_key(weight).unwrap_or_default();
    let mut caches = Caches::default();
    let mut last_thread = None;
    for candidate in best {
        if last_thread == Some(candidate.thread) || caches.structures.contains(&(candidate.address - 16)) {
            continue;
        }
        last_thread = Some(candidate.thread);
        caches.structures.push(candidate.address - 16);
        caches.lists.extend(candidate.lists);
    }
    caches
}

/// Returns the lists of the cache at `pointer`; `None` if it is not one.
fn structure_at(
    memory: &dyn Memory,
    ranges: &Ranges<'_>,
    pointer: u64,
    shape: &layout::ThreadCacheLayout,
) -> Option<Vec<List>> {
    let chunk = pointer.checked_sub(16)?;
    if !ranges.holds(chunk) {
        return None;
    }
    // request2size of the structure; some releases round it up to a cache line.
    let size = memory.read_word(chunk + 8).ok()? & !layout::SIZE_BITS;
    let min_bytes = (shape.bytes + 8).next_multiple_of(layout::ALIGNMENT);
    if !(min_bytes..=min_bytes + 0x30).contains(&size) {
        return None;
    }
    let mut bytes = vec![0; shape.bytes as usize];
    memory.read(pointer, &mut bytes).ok()?;
    let mut lists = Vec::new();
    for bin in 0..shape.bins {
        let head = word_at(&bytes, shape.entries as usize + 8 * bin)?;
        let count = half_word_at(&bytes, 2 * (bin & !1))? >> (16 * (bin & 1)) & 0xffff;
        // Up to 2.41 the count is the number of entries; from 2.42 on, of free slots.
        if shape.bins == layout::SMALL_THREAD_CACHE_BINS && (count == 0) != (head == 0) {
            return None;
        }
        if head == 0 {
            continue;
        }
        let entry = head.checked_sub(16).filter(|&entry| ranges.holds(entry))?;
        let size = memory.read_word(entry + 8).ok()? & !layout::SIZE_BITS;
        let smallest = layout::MIN_CHUNK_BYTES + 16 * bin as u64;
        let is_size_valid =
            if bin < layout::SMALL_THREAD_CACHE_BINS { size == smallest } else { size >= 1024 };
        if !is_size_valid {
            return None;
        }
        lists.push(List::thread_cache(head));
    }
    Some(lists)
}
