//! Counts the heads, and checks that they are what perl means before anything is claimed.

use super::objects::{Head, TYPES, Type};
use super::spaces::{BodyArena, BodySpaces, HeadArena, split_by_page};
use crate::perl::layout::{HEAD_BYTES, Layout};
use crate::work;
use strandline_claims::runtime::Context;
use strandline_process::memory::Memory;

/// Arenas of heads that a worker reads at a time.
pub const ARENAS_PER_JOB: usize = 16;
/// Upper bound on the subs that are read: a list of their addresses is kept.
const MAX_SUBS: usize = 2 << 20;

/// Counts of the heads.
#[derive(Clone, Debug)]
pub struct Census {
    /// Heads in use by type.
    pub by_type: [u64; TYPES],
    /// Heads in use.
    pub live: u64,
    /// Free heads.
    pub free: u64,
    /// Heads of an unknown type.
    pub unknown: u64,
    /// Heads on pages that could not be read.
    pub unread: u64,
    /// Heads whose bodies were looked up in the arenas.
    pub checked: u64,
    /// Number of these bodies that were missing.
    pub missing: u64,
    /// Subs and formats, sorted.
    pub subs: Vec<u64>,
    /// Subs beyond `MAX_SUBS`.
    pub subs_left_out: u64,
    /// The arenas with free heads.
    pub free_on_pages: Vec<FreeHeads>,
}

/// Free heads of an arena.
#[derive(Clone, Copy, Debug)]
pub struct FreeHeads {
    /// Index of the arena.
    pub arena: u32,
    /// Bytes of its free heads on each of its two pages.
    pub bytes_on_pages: [u16; 2],
}

impl Default for Census {
    fn default() -> Self {
        Self {
            by_type: [0; TYPES],
            live: 0,
            free: 0,
            unknown: 0,
            unread: 0,
            checked: 0,
            missing: 0,
            subs: Vec::new(),
            subs_left_out: 0,
            free_on_pages: Vec::new(),
        }
    }
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
    let length = usize::try_from(arena.bytes()).unwrap_or(0);
    buffer.resize(length, 0);
    let read_bytes = memory.read_some(arena.address, buffer);
    let mut unread = 0;
    for (index, bytes) in buffer.chunks_exact_mut(HEAD_BYTES as usize).enumerate().skip(1) {
        let offset = index * HEAD_BYTES as usize;
        let address = arena.address + offset as u64;
        // Heads behind a page that is not resident are read one by one.
        if offset + HEAD_BYTES as usize > read_bytes && memory.read(address, bytes).is_err() {
            unread += 1;
            continue;
        }
        heads.extend(Head::parse(address, bytes));
    }
    unread
}

/// Counts the heads of all arenas. Also returns whether there was time for all of them.
pub fn count_heads(
    context: &Context<'_>,
    memory: &dyn Memory,
    arenas: &[HeadArena],
    bodies: &BodySpaces,
    release: &Layout,
) -> (Census, bool) {
    let jobs = arenas.len().div_ceil(ARENAS_PER_JOB);
    let state = || (Census::default(), Vec::new(), Vec::new());
    let (workers, deadline) = (context.workers, context.deadline);
    let (states, unfinished) =
        work::run_jobs(workers, jobs, deadline, state, |(census, buffer, heads), job| {
            let first = job * ARENAS_PER_JOB;
            for (index, arena) in arenas.iter().enumerate().skip(first).take(ARENAS_PER_JOB) {
                census.unread += read_heads(memory, arena, buffer, heads);
                census.count(arena, index, heads, release);
                if index == first {
                    census.check_bodies(heads, bodies, release);
                }
            }
        });
    let mut all = Census::default();
    for (census, _, _) in states {
        all.add(census);
    }
    all.subs.sort_unstable();
    all.free_on_pages.sort_unstable_by_key(|free| free.arena);
    (all, unfinished == 0)
}

impl Census {
    fn count(&mut self, arena: &HeadArena, index: usize, heads: &[Head], release: &Layout) {
        let mut free = [0u64; 2];
        for head in heads {
            if head.is_free() {
                self.free += 1;
                let on_pages = split_by_page(arena.address, head.address - arena.address, HEAD_BYTES);
                free = [free[0] + on_pages[0], free[1] + on_pages[1]];
                continue;
            }
            self.live += 1;
            let Some(kind) = head.kind(release) else {
                self.unknown += 1;
                continue;
            };
            if let Some(count) = self.by_type.get_mut(kind as usize) {
                *count += 1;
            }
            if matches!(kind, Type::PvCv | Type::PvFm) {
                if self.subs.len() < MAX_SUBS {
                    self.subs.push(head.address);
                } else {
                    self.subs_left_out += 1;
                }
            }
        }
        if free != [0, 0] {
            let bytes_on_pages = free.map(|bytes| u16::try_from(bytes).unwrap_or(u16::MAX));
            let arena = u32::try_from(index).unwrap_or(u32::MAX);
            self.free_on_pages.push(FreeHeads { arena, bytes_on_pages });
        }
    }

    /// Looks up the bodies of `heads`. If most are not in arenas of their type, everything is
    /// misread.
    fn check_bodies(&mut self, heads: &[Head], bodies: &BodySpaces, release: &Layout) {
        for head in heads.iter().filter(|head| !head.is_free()) {
            let Some(body) = head.kind(release).and_then(|kind| head.body(kind, release)) else { continue };
            self.checked += 1;
            let found = arena_before(&bodies.arenas, body.start);
            if !found
                .and_then(|index| bodies.arenas.get(index))
                .is_some_and(|arena| arena.has_slot_at(body.start, body.bytes))
            {
                self.missing += 1;
            }
        }
    }

    fn add(&mut self, other: Self) {
        for (mine, theirs) in self.by_type.iter_mut().zip(other.by_type) {
            *mine += theirs;
        }
        strandline_claims::add_fields!(self, other: live, free, unknown, unread, checked, missing, subs_left_out);
        self.subs.extend(other.subs);
        self.free_on_pages.extend(other.free_on_pages);
    }

    /// Describes the first disagreement with the interpreter's own data, if any. `sv_count` may
    /// differ by one: the process may have been stopped between a head and its count.
    pub fn inconsistency(&self, sv_count: u64) -> Option<String> {
        if self.unread == 0 && self.live.abs_diff(sv_count) > 1 {
            return Some(format!("it counts {sv_count} values, its arenas hold {}", self.live));
        }
        if self.unknown > 0 {
            return Some(format!("{} of its {} values have no known type", self.unknown, self.live));
        }
        let Self { checked, missing, .. } = *self;
        if missing * 100 > checked {
            return Some(format!("{missing} of {checked} bodies are in no arena of their type"));
        }
        None
    }
}

/// Index of the last arena that starts at or before `address`.
pub fn arena_before(arenas: &[BodyArena], address: u64) -> Option<usize> {
    arenas.partition_point(|arena| arena.address <= address).checked_sub(1)
}
