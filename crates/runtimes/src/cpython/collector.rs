//! The collector's state of each interpreter: its generations and their statistics.
//!
//! `struct _gc_runtime_state` (`pycore_gc.h`) is in the interpreter's state (3.8: `pycore_pymem.h`,
//! in `_PyRuntime`), at a different offset in each release. Its lists identify it: each generation
//! begins with a list head, to which the first and the last object of the list link back. Builds
//! without a global lock have no lists, but a table of offsets that contains that of the state.

use std::time::Instant;

use super::arenas::MAX_STATE_BYTES;
use super::facts::{Collector, Generation};
use super::layout::{GC_LINK_MASK, Release};
use super::locate::Program;
use strandline_claims::range::PAGE_BYTES;
use strandline_process::memory::{Memory, half_word_at, word_at};
use strandline_process::pages::USER_ADDRESS_END;

/// Bytes of `struct gc_generation`: a list head (`PyGC_Head`), `threshold`, `count`.
const GENERATION_BYTES: usize = 24;
/// `threshold` in a generation (32 bits).
const THRESHOLD: usize = 16;
/// `count` in a generation (32 bits).
const COUNT: usize = 20;
/// Number of generations (`NUM_GENERATIONS`).
const GENERATIONS: usize = 3;
/// Distance from `enabled` to the first generation; `debug` and a gap are between.
const ENABLED_DISTANCE: usize = 12;
/// Offset of the generations in the state.
const GENERATIONS_OFFSET: usize = 24;
/// Bytes of `generation0`, a pointer to the first generation that follows them; in 3.14 it is
/// elsewhere. Then come `permanent_generation` and the statistics.
const POINTER_BYTES: usize = 8;
/// Bytes of `struct gc_generation_stats`: `collections`, `collected`, `uncollectable`. `collecting`
/// follows the last one.
const STATISTICS_BYTES: usize = 24;
/// `collected` in a generation's statistics.
const COLLECTED: usize = 8;
/// `uncollectable` in a generation's statistics.
const UNCOLLECTABLE: usize = 16;
/// Upper bound on the bytes from the first generation to the end of `collecting`.
const STATE_BYTES: usize =
    (GENERATIONS + 1) * GENERATION_BYTES + 4 + POINTER_BYTES + GENERATIONS * STATISTICS_BYTES + 4;
/// Valid targets of links: neither the first page nor the kernel's half.
const LINK_TARGETS: std::ops::Range<u64> = PAGE_BYTES..USER_ADDRESS_END;

/// Returns the collectors of all `interpreters` in whose state one is found before `deadline`. With
/// lists, the last interpreter is read first: it is the main one, unless the list was cut.
pub fn find(
    memory: &dyn Memory,
    program: &Program,
    release: &Release,
    interpreters: &[u64],
    deadline: Instant,
) -> Vec<Collector> {
    // 3.8 has one for all interpreters.
    let states = if release.minor == 8 { std::slice::from_ref(&program.runtime) } else { interpreters };
    if !release.has_links() {
        let offset = program.collector_offset(memory, release);
        let at_offset = |state: &u64| read_at_offset(memory, state.checked_add(offset?)?, release);
        return states.iter().filter_map(at_offset).collect();
    }
    let in_time = states.iter().rev().take_while(|_| Instant::now() < deadline);
    let mut collectors: Vec<Collector> =
        in_time.filter_map(|&state| find_in_state(memory, state, deadline)).collect();
    collectors.reverse();
    collectors
}

/// Reads the collector whose state is at `at`.
fn read_at_offset(memory: &dyn Memory, at: u64, release: &Release) -> Option<Collector> {
    let mut bytes = [0; GENERATIONS_OFFSET + STATE_BYTES];
    memory.read(at, &mut bytes).ok()?;
    let pointer_bytes = if release.minor == 13 { POINTER_BYTES } else { 0 };
    read(&bytes, GENERATIONS_OFFSET, (GENERATIONS + 1) * GENERATION_BYTES + pointer_bytes)
}

/// Searches the state of an interpreter for its collector, until the deadline.
fn find_in_state(memory: &dyn Memory, state: u64, deadline: Instant) -> Option<Collector> {
    let bytes = read_state(memory, state);
    let last_offset = bytes.len().checked_sub(STATE_BYTES)?;
    // Offsets of 4 modulo 8 occur in Debian's 3.13: no gap follows `debug`.
    (ENABLED_DISTANCE.next_multiple_of(8)..=last_offset).step_by(4).find_map(|at| {
        let address = state.checked_add(at as u64)?;
        let lists_bytes = GENERATIONS * GENERATION_BYTES;
        let pointer_at = (at + lists_bytes).next_multiple_of(8);
        let has_pointer = word_at(&bytes, pointer_at) == Some(address);
        let statistics_offset = if has_pointer { pointer_at + POINTER_BYTES - at } else { lists_bytes };
        let mut heads = (0..GENERATIONS).map(|number| number * GENERATION_BYTES).chain([statistics_offset]);
        // Most words are not links. All are checked before any is followed: following costs a read
        // while the target is stopped.
        let is_collector = heads.clone().all(|head| links(&bytes, at + head).is_some())
            && Instant::now() < deadline
            && heads.all(|head| is_list(memory, &bytes, at + head, address.saturating_add(head as u64)));
        if is_collector { read(&bytes, at, statistics_offset + GENERATION_BYTES) } else { None }
    })
}

/// Reads the state of an interpreter; zeros where it was never written.
fn read_state(memory: &dyn Memory, state: u64) -> Vec<u8> {
    let mut bytes = vec![0; MAX_STATE_BYTES as usize];
    let mut at = 0;
    while let Some(unread) = bytes.get_mut(at..).filter(|unread| !unread.is_empty()) {
        let Some(address) = state.checked_add(at as u64) else { break };
        let read_bytes = memory.read_some(address, unread);
        // Continues with the next page.
        at += if read_bytes > 0 { read_bytes } else { (PAGE_BYTES - address % PAGE_BYTES) as usize };
    }
    bytes
}

/// The links of a list head.
struct Links {
    /// To the first object.
    first: u64,
    /// To the last object.
    last: u64,
}

/// Returns the links of the possible list head at `bytes[at]`.
fn links(bytes: &[u8], at: usize) -> Option<Links> {
    let link = |at: usize| {
        let link = word_at(bytes, at)? & GC_LINK_MASK;
        (link.is_multiple_of(8) && LINK_TARGETS.contains(&link)).then_some(link)
    };
    Some(Links { first: link(at)?, last: link(at + 8)? })
}

/// Whether there is a list head at `bytes[at]`, whose address is `head`. An empty list links to
/// itself.
fn is_list(memory: &dyn Memory, bytes: &[u8], at: usize, head: u64) -> bool {
    let Some(Links { first, last }) = links(bytes, at) else { return false };
    let leads_back = |link: u64| memory.read_word(link).is_ok_and(|word| word & GC_LINK_MASK == head);
    leads_back(first + 8) && leads_back(last)
}

/// Reads the collector in the state of an interpreter. Its generations are at `bytes[at]`, its
/// statistics `statistics_offset` bytes behind.
fn read(bytes: &[u8], at: usize, statistics_offset: usize) -> Option<Collector> {
    let read_generation = |number: usize| {
        let generation = at + number * GENERATION_BYTES;
        let own_statistics = at + statistics_offset + number * STATISTICS_BYTES;
        Some(Generation {
            threshold: half_word_at(bytes, generation + THRESHOLD)?,
            count: half_word_at(bytes, generation + COUNT)?,
            collections: word_at(bytes, own_statistics)?,
            collected_objects: word_at(bytes, own_statistics + COLLECTED)?,
            uncollectable_objects: word_at(bytes, own_statistics + UNCOLLECTABLE)?,
        })
    };
    Some(Collector {
        enabled: half_word_at(bytes, at - ENABLED_DISTANCE + at % 8)? != 0,
        collecting: half_word_at(bytes, at + statistics_offset + GENERATIONS * STATISTICS_BYTES)? != 0,
        generations: (0..GENERATIONS).map(read_generation).collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fabricated::EqualWords;

    /// Searches memory of equal words for a collector; returns the number of words read to follow
    /// links.
    fn words_read(word: u64, deadline: Instant) -> usize {
        let memory = EqualWords::new(word);
        assert!(find_in_state(&memory, 0x5555_0000_0000, deadline).is_none());
        memory.read_lengths().into_iter().filter(|&length| length == 8).count()
    }

    #[test]
    fn words_that_are_no_links_are_not_followed() {
        let deadline = Instant::now() + Duration::from_secs(600);
        // None of these is a link at any multiple of 4.
        for word in [0, 0x4_0000_1004, 0x7f04_0000_1004, 0x8000_0008_8000_0008, u64::MAX] {
            assert_eq!(words_read(word, deadline), 0, "{word:x}");
        }
    }

    #[test]
    fn links_are_followed_until_the_deadline() {
        assert_ne!(words_read(0x5555_0000_1000, Instant::now() + Duration::from_secs(600)), 0);
        assert_eq!(words_read(0x5555_0000_1000, Instant::now()), 0);
    }
}
