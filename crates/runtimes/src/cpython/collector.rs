//! The collector's state of each interpreter: its generations, by what they say of themselves.
//!
//! `struct _gc_runtime_state` (`pycore_gc.h`; 3.8: `pycore_pymem.h`, in `_PyRuntime`) stands at another place in each release, and is
//! told by its lists: each generation begins with the head of one, which its first and its last object lead back to. Without a global
//! lock there are no lists, and a table of offsets says where the state is.

use super::arenas::{MAX_STATE_BYTES, interpreters};
use super::facts::{Collector, Generation};
use super::layout::Release;
use super::locate::Program;
use strandline_claims::range::PAGE_BYTES;
use strandline_process::memory::{Memory, half_word_at, word_at};

/// `struct gc_generation`: the head of a list (`PyGC_Head`), `threshold`, `count` (32 bits each).
const GENERATION_BYTES: usize = 24;
const GENERATIONS: usize = 3;
/// `enabled`, in front of the first: there is `debug` between them, and a gap.
const ENABLED: usize = 12;
/// Where they begin in the state.
const GENERATIONS_AT: usize = 24;
/// Behind them stands `generation0`, which leads to the first; in 3.14 elsewhere. Then `permanent_generation`, then the statistics.
const POINTER_BYTES: usize = 8;
/// `struct gc_generation_stats`: `collections`, `collected`, `uncollectable`; behind all of them `collecting`.
const STATISTICS_BYTES: usize = 24;
/// From the first generation to `collecting`, at most.
const STATE_BYTES: usize =
    (GENERATIONS + 1) * GENERATION_BYTES + 4 + POINTER_BYTES + GENERATIONS * STATISTICS_BYTES + 4;
/// The low bits of links are flags.
const LINK: u64 = !3;
/// What they lead to: no program has its first page, nor the kernel's half.
const LINKS: std::ops::Range<u64> = 4096..1 << 47;

/// The collectors of all interpreters; of those in whose state none is found, nothing.
pub fn find(memory: &dyn Memory, program: &Program, release: &Release) -> Vec<Collector> {
    // In 3.8 there is one for all.
    let states =
        if release.minor == 8 { vec![program.runtime] } else { interpreters(memory, program, release) };
    if !release.has_links() {
        let place = program.collector(memory, release);
        let told = states.into_iter().filter_map(|state| told(memory, state.checked_add(place?)?, release));
        return told.collect();
    }
    states.into_iter().filter_map(|state| collector(memory, state)).collect()
}

/// The one whose state is at `at`.
fn told(memory: &dyn Memory, at: u64, release: &Release) -> Option<Collector> {
    let mut bytes = [0; GENERATIONS_AT + STATE_BYTES];
    memory.read(at, &mut bytes).ok()?;
    let pointer = if release.minor == 13 { POINTER_BYTES } else { 0 };
    read(&bytes, GENERATIONS_AT, (GENERATIONS + 1) * GENERATION_BYTES + pointer)
}

fn collector(memory: &dyn Memory, state: u64) -> Option<Collector> {
    let bytes = read_state(memory, state);
    let last = bytes.len().checked_sub(STATE_BYTES)?;
    // At 20 where the heads of lists are packed, as in Debian's 3.13.
    (ENABLED.next_multiple_of(8)..=last).step_by(4).find_map(|at| {
        let address = state.checked_add(at as u64)?;
        let lists = GENERATIONS * GENERATION_BYTES;
        let pointer = (at + lists).next_multiple_of(8);
        let has_pointer = word_at(&bytes, pointer) == Some(address);
        let behind = if has_pointer { pointer + POINTER_BYTES - at } else { lists };
        let mut heads = (0..GENERATIONS).map(|number| number * GENERATION_BYTES).chain([behind]);
        // Most words are no links: that all are is asked before any is followed, as each costs a read while the target stands.
        let is_one = heads.clone().all(|head| links(&bytes, at + head).is_some())
            && heads.all(|head| is_list(memory, &bytes, at + head, address.saturating_add(head as u64)));
        if is_one { read(&bytes, at, behind + GENERATION_BYTES) } else { None }
    })
}

/// The state of an interpreter; zeros where it was never written to.
fn read_state(memory: &dyn Memory, state: u64) -> Vec<u8> {
    let mut bytes = vec![0; MAX_STATE_BYTES as usize];
    let mut at = 0;
    while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
        let Some(address) = state.checked_add(at as u64) else { break };
        let got = memory.read_some(address, rest);
        // On with the next page.
        at += if got > 0 { got } else { (PAGE_BYTES - address % PAGE_BYTES) as usize };
    }
    bytes
}

/// The links of the head of a list that may stand `at` so many bytes, to its first and its last object.
fn links(bytes: &[u8], at: usize) -> Option<(u64, u64)> {
    let link = |at: usize| {
        let link = word_at(bytes, at)? & LINK;
        (link.is_multiple_of(8) && LINKS.contains(&link)).then_some(link)
    };
    Some((link(at)?, link(at + 8)?))
}

/// Whether the head of a list stands `at` so many bytes, at the address `head`: a list that is empty leads to itself.
fn is_list(memory: &dyn Memory, bytes: &[u8], at: usize, head: u64) -> bool {
    let Some((next, last)) = links(bytes, at) else { return false };
    let leads_back = |place: u64| memory.read_word(place).is_ok_and(|word| word & LINK == head);
    leads_back(next + 8) && leads_back(last)
}

fn read(bytes: &[u8], at: usize, statistics: usize) -> Option<Collector> {
    let generation = |number: usize| {
        let own = at + number * GENERATION_BYTES;
        let its = at + statistics + number * STATISTICS_BYTES;
        Some(Generation {
            threshold: half_word_at(bytes, own + 16)?,
            count: half_word_at(bytes, own + 20)?,
            collections: word_at(bytes, its)?,
            collected_objects: word_at(bytes, its + 8)?,
            uncollectable_objects: word_at(bytes, its + 16)?,
        })
    };
    Some(Collector {
        enabled: half_word_at(bytes, at - ENABLED + at % 8)? != 0,
        collecting: half_word_at(bytes, at + statistics + GENERATIONS * STATISTICS_BYTES)? != 0,
        generations: (0..GENERATIONS).map(generation).collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Memory in which each word is the same, and how often one was read.
    struct Same {
        word: u64,
        words_read: AtomicUsize,
    }

    impl Memory for Same {
        fn read_some(&self, _: u64, buffer: &mut [u8]) -> usize {
            for bytes in buffer.chunks_mut(8) {
                bytes.copy_from_slice(&self.word.to_le_bytes()[..bytes.len()]);
            }
            self.words_read.fetch_add(usize::from(buffer.len() == 8), Ordering::Relaxed);
            buffer.len()
        }
    }

    #[test]
    fn words_that_are_no_links_are_not_followed() {
        // Of no alignment by 4 one of these is a link.
        for word in [0, 0x4_0000_1004, 0x7f04_0000_1004, 0x8000_0008_8000_0008, u64::MAX] {
            let memory = Same { word, words_read: AtomicUsize::new(0) };
            assert!(collector(&memory, 0x5555_0000_0000).is_none());
            assert_eq!(memory.words_read.into_inner(), 0, "{word:x}");
        }
    }
}
