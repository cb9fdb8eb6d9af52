//! Finds the lists of free chunks without a symbol: an empty list points to itself, and the first
//! chunk of another list points back to it.

use super::super::layout::PAGE_BYTES;
use super::super::locate::{self, FoundStates, SearchResult};
use super::layout::{
    ALIGNMENT, BIN_BYTES, BIN_HEAD, BINS, CHUNK_PREVIOUS, FIRST_BIN, FIRST_CHUNK_OFFSET, FREE_HEADER_BYTES,
    HEADER_BYTES, STATE_BYTES,
};
use crate::radix::StaticWord;
use crate::scan::{DeadlineCheck, each_word, is_mapped_memory};
use strandline_claims::allocator::Context;
use strandline_process::memory::word_at;
use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::range::AddressRange;

/// Maximum number of candidates for bins that are followed before the first one of musl's malloc:
/// a large table of pointers, in a program with another malloc, may have more.
const MAX_CANDIDATES: usize = 1 << 12;

/// The free lists of one malloc.
pub struct State {
    /// Name of the file that contains them.
    pub name: String,
    /// The first and the last chunk of each list that is not empty.
    pub list_ends: Vec<u64>,
}

/// Finds all states of a process.
pub fn find(context: &Context<'_>) -> FoundStates<State> {
    let mut found_states = FoundStates { states: Vec::new(), first_late_file: None };
    for mappings in locate::candidates(context.space) {
        let name = || mappings[0].name.clone();
        for range in locate::static_data(&mappings) {
            let SearchResult { hit: list_ends, is_late } = find_ends_of_lists(context, range);
            if is_late {
                found_states.first_late_file.get_or_insert_with(name);
            }
            if let Some(list_ends) = list_ends {
                found_states.states.push(State { name: name(), list_ends });
                // A state on the border of two mappings may be found in both.
                break;
            }
        }
    }
    found_states
}

/// Searches `range` for the lists; returns the first and the last chunk of each.
fn find_ends_of_lists(context: &Context<'_>, range: AddressRange) -> SearchResult<Vec<u64>> {
    let mut result = SearchResult { hit: None, is_late: false };
    let (mut candidates, mut deadline) = (0, DeadlineCheck::after_first_steps(context));
    // The last two non-zero words.
    let no_word = StaticWord { address: 0, value: 0 };
    let (mut last_word, mut second_last_word) = (no_word, no_word);
    each_word(context, range, &mut |at, word| {
        let StaticWord { address: head_at, value: head } = last_word;
        // The lock before that pointer is 0 or 1.
        let is_lock = second_last_word.address + 8 != head_at || second_last_word.value as u32 <= 1;
        if head_at + 8 == at && is_lock && may_be_list(context, head_at, head, word) {
            candidates += 1;
            if points_back(context, head_at, head) {
                result.hit = ends_of_lists_around(context, head_at);
            }
            result.is_late = result.hit.is_none() && deadline.passed();
        }
        (second_last_word, last_word) = (last_word, StaticWord { address: at, value: word });
        result.hit.is_none() && candidates < MAX_CANDIDATES && !result.is_late
    });
    result
}

/// Returns the address of the list as a chunk (`BIN_TO_CHUNK`): a list has the layout of a chunk
/// whose neighbours are its first and last chunk.
fn as_chunk(head_at: u64) -> u64 {
    head_at.wrapping_sub(HEADER_BYTES)
}

/// Whether a chunk has the alignment of one with a list.
fn is_aligned(chunk: u64) -> bool {
    chunk % ALIGNMENT == FIRST_CHUNK_OFFSET
}

/// Whether two words may be the first and the last chunk of a list.
fn may_be_list(context: &Context<'_>, head_at: u64, first: u64, last: u64) -> bool {
    let list = as_chunk(head_at);
    let has_address = |chunk: u64| is_aligned(chunk) && chunk < USER_ADDRESS_END;
    let is_mapped = |chunk| context.space.find(chunk).is_some_and(is_mapped_memory);
    (first == list && last == list)
        || [first, last].into_iter().all(|chunk| has_address(chunk) && is_mapped(chunk))
}

/// Whether the first chunk of a list points back to it.
fn points_back(context: &Context<'_>, head_at: u64, first: u64) -> bool {
    let list = as_chunk(head_at);
    let is_resident = || !context.resident_runs(AddressRange::sized(first, FREE_HEADER_BYTES)).is_empty();
    let previous = |chunk: u64| context.memory.read_word(chunk + CHUNK_PREVIOUS);
    first == list || is_resident() && previous(first).is_ok_and(|previous| previous == list)
}

/// Returns the first and the last chunk of each list, given that the pointer to the first chunk of
/// one is at `head_at`; tries each number that its bin may have.
fn ends_of_lists_around(context: &Context<'_>, head_at: u64) -> Option<Vec<u64>> {
    let max_offset = FIRST_BIN + BIN_BYTES * (BINS - 1) + BIN_HEAD;
    let start = head_at.checked_sub(max_offset as u64)?;
    let mut bytes = vec![0; max_offset + STATE_BYTES];
    // The lists may be close to the start or the end of mapped memory: unreadable pages stay 0.
    let mut at = 0;
    while let Some(unread) = bytes.get_mut(at..).filter(|unread| !unread.is_empty()) {
        let read_length = context.memory.read_some(start + at as u64, unread);
        at += if read_length > 0 {
            read_length
        } else {
            (PAGE_BYTES - (start + at as u64) % PAGE_BYTES) as usize
        };
    }
    (0..BINS).rev().find_map(|bin| {
        let at = max_offset - FIRST_BIN - BIN_BYTES * bin - BIN_HEAD;
        ends_of_lists(bytes.get(at..at + STATE_BYTES)?, start + at as u64)
    })
}

/// Returns the first and the last chunk of each list of the state `bytes`, at `address`; `None` if
/// it is no state, or was never used.
fn ends_of_lists(bytes: &[u8], address: u64) -> Option<Vec<u64>> {
    let bin_map = word_at(bytes, 0)?;
    let (mut list_ends, mut is_used) = (Vec::new(), false);
    for bin in 0..BINS {
        let at = FIRST_BIN + BIN_BYTES * bin + BIN_HEAD;
        let (head, tail) = (word_at(bytes, at)?, word_at(bytes, at + 8)?);
        let list = as_chunk(address.checked_add(at as u64)?);
        let is_empty = (head == 0 && tail == 0) || (head == list && tail == list);
        let is_chunk = |chunk: u64| is_aligned(chunk) && chunk != list;
        let has_bit = bin_map >> bin & 1 != 0;
        if is_empty == has_bit || !(is_empty || is_chunk(head) && is_chunk(tail)) {
            return None;
        }
        if !is_empty {
            list_ends.extend([head, tail]);
        }
        is_used |= head != 0;
    }
    is_used.then_some(list_ends)
}
