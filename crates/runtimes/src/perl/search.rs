//! Finds interpreters that no exported variable points to: those of a program with several Perls
//! inside, or of modules (threads::shared has one that no thread runs in).
//!
//! Every interpreter contains its undefined value (`PL_sv_undef`), a head without a body that is
//! never changed or freed. The interpreter begins at a fixed distance before it and has a chain of
//! arenas. The search reads all resident memory, so it only runs if there may be such interpreters.

use super::locate::MAX_INTERPRETERS;
use super::spaces::ARENA_SLOTS;
use crate::batch::PageCache;
use crate::perl::layout::{HEAD_ANY, HEAD_BYTES, HEAD_FLAGS, HEAD_REFERENCES, Layout};
use crate::work;
use strandline_claims::runtime::Context;
use strandline_process::memory::{Memory, half_word_at, word_at};
use strandline_process::range::AddressRange;

/// Bytes searched at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// Limit on the bytes searched.
const MAX_BYTES: u64 = 8 << 30;
/// Upper bound on the values of an interpreter.
const MAX_SV_COUNT: u64 = 1 << 40;
/// Alignment of malloc's blocks: an interpreter is at the start of one.
const INTERPRETER_ALIGNMENT: u64 = 16;
/// A worker that has listed more addresses than this stops: most would be left out anyway.
const MAX_LISTED: usize = 2 * MAX_INTERPRETERS;
/// Reference counts of immortal values: `SvREFCNT_IMMORTAL` (sv.h) is 0x7fff_ffff; code that does
/// not know that a value is immortal still counts up and down.
const IMMORTAL_REFERENCES: std::ops::Range<u32> = 0x7000_0000..0x9000_0000;

/// One worker of the search.
struct Searcher<'a> {
    pages: PageCache<'a>,
    buffer: Vec<u8>,
    /// Addresses of possible interpreters.
    interpreters: Vec<u64>,
    /// Whether all its pieces were searched to their ends.
    is_complete: bool,
}

/// Interpreters that a search found.
pub struct PossibleInterpreters {
    /// Addresses of possible interpreters, ascending.
    pub interpreters: Vec<u64>,
    /// Whether all resident memory was searched.
    pub is_complete: bool,
}

/// Searches resident memory for interpreters.
pub fn search(context: &Context<'_>, memory: &dyn Memory, release: &Layout) -> PossibleInterpreters {
    let mut pieces = Vec::new();
    let mut searched_bytes = 0;
    for AddressRange { start, end } in context.resident_runs((0, u64::MAX)) {
        let mut at = start;
        while at < end && searched_bytes < MAX_BYTES {
            let next = (at + PIECE_BYTES).min(end);
            // A head may begin in one piece and end in the next.
            pieces.push(AddressRange::new(at, (next + HEAD_BYTES).min(end)));
            searched_bytes += next - at;
            at = next;
        }
    }
    let searcher = || Searcher {
        pages: PageCache::new(memory),
        buffer: Vec::new(),
        interpreters: Vec::new(),
        is_complete: true,
    };
    let (workers, deadline) = (context.workers, context.deadline);
    let job = |Searcher { pages, buffer, interpreters, is_complete }: &mut Searcher<'_>, index: usize| {
        let Some(&piece) = pieces.get(index) else { return };
        let mut at = piece.start;
        while at < piece.end {
            if interpreters.len() > MAX_LISTED {
                *is_complete = false;
                return;
            }
            buffer.resize((piece.end - at) as usize, 0);
            let read_bytes = memory.read_some(at, buffer);
            let bytes = buffer.get(..read_bytes).unwrap_or(&[]);
            let candidates = undef_heads(bytes, at, release).map(|head| head.wrapping_sub(release.sv_undef));
            interpreters
                .extend(candidates.filter(|&interpreter| is_interpreter(pages, interpreter, release)));
            let unread = at + read_bytes as u64;
            let Some(end) = end_of_unreadable(context, unread).filter(|_| unread < piece.end) else {
                *is_complete &= unread == piece.end;
                break;
            };
            at = end;
        }
    };
    let (searchers, unfinished_jobs) = work::run_jobs(workers, pieces.len(), deadline, searcher, job);
    let is_read = searchers.iter().all(|searcher| searcher.is_complete);
    let is_complete = is_read && unfinished_jobs == 0 && searched_bytes < MAX_BYTES;
    let mut interpreters: Vec<u64> =
        searchers.into_iter().flat_map(|searcher| searcher.interpreters).collect();
    interpreters.sort_unstable();
    interpreters.dedup();
    PossibleInterpreters { interpreters, is_complete }
}

/// The end of the mapping at an address, if it is no memory of perl's and may be unreadable: clocks
/// of the kernel, memory without access, registers of a device.
fn end_of_unreadable(context: &Context<'_>, address: u64) -> Option<u64> {
    let mapping = context.space.find(address)?;
    let is_device = mapping.has_file() && mapping.name.starts_with("/dev/");
    let is_other = mapping.name.starts_with("[vvar") || !mapping.permissions.read || is_device;
    is_other.then_some(mapping.end)
}

/// Addresses in `bytes`, which begin at `start`, of heads that look like the undefined value.
fn undef_heads<'a>(bytes: &'a [u8], start: u64, release: &Layout) -> impl Iterator<Item = u64> + 'a {
    let flags = release.undef_flags().to_le_bytes();
    // The iterator owns the needle.
    let finder = memchr::memmem::Finder::new(&flags).into_owned();
    let mut from = 0;
    std::iter::from_fn(move || {
        loop {
            let at = from + finder.find(bytes.get(from..)?)?;
            from = at + 1;
            let Some(head_at) = at.checked_sub(HEAD_FLAGS) else { continue };
            let head = bytes.get(head_at..)?;
            let is_immortal = half_word_at(head, HEAD_REFERENCES)
                .is_some_and(|references| IMMORTAL_REFERENCES.contains(&references));
            if is_immortal && word_at(head, HEAD_ANY) == Some(0) {
                return Some(start + head_at as u64);
            }
        }
    })
}

/// Whether an interpreter may be at `interpreter`, by the values and the first arena that it has.
fn is_interpreter(pages: &mut PageCache<'_>, interpreter: u64, release: &Layout) -> bool {
    if !interpreter.is_multiple_of(INTERPRETER_ALIGNMENT) {
        return false;
    }
    let mut word = |offset: u64| pages.word(interpreter.checked_add(offset)?);
    let (Some(count), Some(strtab), Some(root)) =
        (word(release.sv_count), word(release.strtab), word(release.sv_arenaroot))
    else {
        return false;
    };
    let is_plausible =
        root.is_multiple_of(8) && root != 0 && strtab != 0 && (1..MAX_SV_COUNT).contains(&count);
    let slots = root.checked_add(HEAD_REFERENCES as u64).and_then(|address| pages.word32(address));
    is_plausible && slots.is_some_and(|slots| ARENA_SLOTS.contains(&slots))
}
