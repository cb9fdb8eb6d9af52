//! Counts the heads, and checks their number, types and bodies before anything is claimed.

use super::objects::{Head, TYPE_COUNT, Type};
use super::spaces::{BodyArena, BodySpaces, HeadArena, split_by_page};
use crate::perl::layout::{HEAD_BYTES, Layout};
use crate::{push_within, work};
use strandline_claims::add_fields;
use strandline_claims::runtime::Context;
use strandline_claims::units::{counted, thousands};
use strandline_process::memory::Memory;

/// Arenas of heads that a worker reads at a time.
pub const ARENAS_PER_JOB: usize = 16;
/// Upper bound on the subs that are read: a list of their addresses is kept.
const MAX_SUBS: usize = 2 << 20;

/// Counts of the heads.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// Whether all arenas were counted before the deadline.
    pub is_complete: bool,
    /// Number of heads in use, by type.
    pub by_type: [u64; TYPE_COUNT],
    /// Number of heads in use.
    pub live_heads: u64,
    pub free_heads: u64,
    /// Heads of an unknown type.
    pub unknown_heads: u64,
    /// Heads on pages that could not be read.
    pub unread_heads: u64,
    /// Heads whose bodies were looked up in the arenas.
    pub checked_bodies: u64,
    /// Number of these bodies that were missing.
    pub missing_bodies: u64,
    /// Subs and formats, sorted.
    pub subs: Vec<u64>,
    /// Subs beyond `MAX_SUBS`.
    pub subs_left_out: u64,
    /// The arenas with free heads.
    pub arenas_with_free_heads: Vec<FreeHeads>,
}

/// Free heads of an arena.
#[derive(Clone, Copy, Debug)]
pub struct FreeHeads {
    /// Index of the arena.
    pub arena: usize,
    /// Bytes of its free heads on its first page, and behind it.
    pub bytes_on_pages: [u16; 2],
}

/// Reads the heads of an arena into `heads`, except the first, which links arenas. Returns the
/// number of heads that could not be read.
pub fn read_heads(
    memory: &dyn Memory,
    arena: &HeadArena,
    buffer: &mut Vec<u8>,
    heads: &mut Vec<Head>,
) -> u64 {
    heads.clear();
    // `head_arenas` admits at most 1.5 MiB.
    buffer.resize(arena.bytes() as usize, 0);
    let read_bytes = memory.read_some(arena.address, buffer);
    let mut unread_heads = 0;
    for (index, bytes) in buffer.chunks_exact_mut(HEAD_BYTES as usize).enumerate().skip(1) {
        let offset = index * HEAD_BYTES as usize;
        let address = arena.address + offset as u64;
        // Heads behind a page that is not resident are read one by one.
        if offset + HEAD_BYTES as usize > read_bytes && memory.read(address, bytes).is_err() {
            unread_heads += 1;
            continue;
        }
        heads.extend(Head::parse(address, bytes));
    }
    unread_heads
}

/// One worker of the census, with buffers that are reused.
#[derive(Default)]
struct Counter {
    census: Census,
    buffer: Vec<u8>,
    heads: Vec<Head>,
}

/// Counts the heads of all arenas.
pub fn count_heads(
    context: &Context<'_>,
    memory: &dyn Memory,
    arenas: &[HeadArena],
    bodies: &BodySpaces,
    release: &Layout,
) -> Census {
    let jobs = arenas.len().div_ceil(ARENAS_PER_JOB);
    let (workers, deadline) = (context.workers, context.deadline);
    let (counters, unfinished_jobs) =
        work::run_jobs(workers, jobs, deadline, Counter::default, |counter: &mut Counter, job| {
            let Counter { census, buffer, heads } = counter;
            let first = job * ARENAS_PER_JOB;
            for (index, arena) in arenas.iter().enumerate().skip(first).take(ARENAS_PER_JOB) {
                census.unread_heads += read_heads(memory, arena, buffer, heads);
                census.count(arena, index, heads, release);
                if index == first {
                    census.check_bodies(heads, bodies, release);
                }
            }
        });
    let mut total = Census { is_complete: unfinished_jobs == 0, ..Census::default() };
    for counter in counters {
        total.add(counter.census);
    }
    total.subs.sort_unstable();
    total.arenas_with_free_heads.sort_unstable_by_key(|free| free.arena);
    total
}

impl Census {
    /// Counts the heads of an arena; `index` is its number.
    fn count(&mut self, arena: &HeadArena, index: usize, heads: &[Head], release: &Layout) {
        let mut free_bytes = [0u64; 2];
        for head in heads {
            if head.is_free() {
                self.free_heads += 1;
                let on_pages = split_by_page(arena.address, head.address - arena.address, HEAD_BYTES);
                free_bytes = [free_bytes[0] + on_pages[0], free_bytes[1] + on_pages[1]];
                continue;
            }
            self.live_heads += 1;
            let Some(kind) = head.kind(release) else {
                self.unknown_heads += 1;
                continue;
            };
            if let Some(count) = self.by_type.get_mut(kind as usize) {
                *count += 1;
            }
            if matches!(kind, Type::PvCv | Type::PvFm) {
                self.subs_left_out += u64::from(!push_within(&mut self.subs, MAX_SUBS, head.address));
            }
        }
        if free_bytes != [0, 0] {
            // Only an arena of more than two pages has more, and none of its bytes is claimed as
            // free.
            let bytes_on_pages = free_bytes.map(|bytes| u16::try_from(bytes).unwrap_or(u16::MAX));
            self.arenas_with_free_heads.push(FreeHeads { arena: index, bytes_on_pages });
        }
    }

    /// Looks up the bodies of `heads`. If most are not in arenas of their type, everything is
    /// misread.
    fn check_bodies(&mut self, heads: &[Head], bodies: &BodySpaces, release: &Layout) {
        for head in heads.iter().filter(|head| !head.is_free()) {
            let Some(body) = head.kind(release).and_then(|kind| head.body_place(kind, release)) else {
                continue;
            };
            self.checked_bodies += 1;
            let arena = arena_before(&bodies.arenas, body.start).and_then(|index| bodies.arenas.get(index));
            if !arena.is_some_and(|arena| arena.has_slot_at(body.start, body.bytes)) {
                self.missing_bodies += 1;
            }
        }
    }

    fn add(&mut self, other: Self) {
        for (sum, count) in self.by_type.iter_mut().zip(other.by_type) {
            *sum += count;
        }
        add_fields!(self, other: live_heads, free_heads, unknown_heads, unread_heads);
        add_fields!(self, other: checked_bodies, missing_bodies, subs_left_out);
        self.subs.extend(other.subs);
        self.arenas_with_free_heads.extend(other.arenas_with_free_heads);
    }

    /// Describes the first disagreement with the interpreter's own data, if any. `sv_count` may
    /// differ by one: the process may have been stopped between a head and its count.
    pub fn inconsistency(&self, sv_count: u64) -> Option<String> {
        if self.unread_heads == 0 && self.live_heads.abs_diff(sv_count) > 1 {
            return Some(format!(
                "it counts {}, its arenas hold {}",
                counted(sv_count, "value"),
                thousands(self.live_heads)
            ));
        }
        if self.unknown_heads > 0 {
            return Some(format!(
                "the types of {} of its {} are unknown",
                thousands(self.unknown_heads),
                counted(self.live_heads, "value")
            ));
        }
        let Self { checked_bodies, missing_bodies, .. } = *self;
        if missing_bodies * 100 > checked_bodies {
            return Some(format!(
                "its arenas lack {} of {} bodies that were looked up",
                thousands(missing_bodies),
                thousands(checked_bodies)
            ));
        }
        None
    }
}

/// Index of the last arena that starts at or before `address`.
pub fn arena_before(arenas: &[BodyArena], address: u64) -> Option<usize> {
    arenas.partition_point(|arena| arena.address <= address).checked_sub(1)
}
