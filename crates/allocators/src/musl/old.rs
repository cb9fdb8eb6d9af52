//! The malloc that musl had before mallocng (1.1 and 1.2.0, and later where it was built `--with-malloc=oldmalloc`), read from
//! outside: `src/malloc/oldmalloc/malloc.c`.
//!
//! Its state is 64 lists of free chunks: one that is empty leads to itself, and the first chunk of another back to it, by which it is found without a symbol. Nothing says
//! where its memory is: regions begin with a chunk of no size, end with another one, and each chunk in between repeats the size of
//! the one before; a block with a mapping of its own has the bytes of that.

use std::time::Instant;

use super::forward::Forward;
use super::layout::PAGE_BYTES;
use super::locate;
use super::rows;
use crate::blocks::Blocks;
use crate::scan::{each_word, is_mapped_memory};
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::{Context, RangeClaim, Reading, overlapping};
use strandline_claims::doubts::Doubts;
use strandline_claims::facts::{Allocator, figures};
use strandline_process::memory::word_at;
use strandline_process::modules;

/// `struct chunk`: the size of the one before and its own, and, of a free one, its neighbours in its list.
const HEAD: u64 = 16;
const FREE_HEAD: u64 = 32;
/// What sizes are multiples of (`SIZE_ALIGN`), of chunks that have no mapping of their own.
const ALIGNMENT: u64 = 32;
/// The lowest bit of both sizes (`C_INUSE`).
const IN_USE: u64 = 1;
/// Where the first chunk of a region stands, or a block with a mapping of its own.
const FIRST: u64 = 16;

/// `struct bin`: a lock, the first and the last chunk.
const BINS: u64 = 64;
const BIN_BYTES: u64 = 24;
/// The bins stand behind `binmap`.
const FIRST_BIN: u64 = 8;
/// All of the state, but for one more lock.
const STATE_BYTES: usize = (FIRST_BIN + BINS * BIN_BYTES) as usize;

/// Static data of one program or library beyond this is not searched.
const MOST_DATA_BYTES: u64 = 64 << 20;
/// Chunks that follow each other before what begins like a region is one.
const FEW_CHUNKS: usize = 8;
/// Pages of a mapping in which an aligned block is looked for.
const MOST_PAGES: u64 = 1 << 14;
/// After so many chunks the time is looked at.
const LOOKS_AT_THE_TIME: u64 = 1 << 12;

/// Finds it: the name of what it is in, and where its state stands.
pub fn find(context: &Context<'_>) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for group in locate::candidates(context.space) {
        let mut state = None;
        let mut left = MOST_DATA_BYTES;
        for mapping in group.iter().filter(|mapping| mapping.permissions.write) {
            let end = mapping.end.min(mapping.start + left);
            left -= end - mapping.start;
            each_word(context, mapping.start, end, &mut |at, word| {
                // `BIN_TO_CHUNK`: a list that is empty leads to itself as if a chunk were there, and so the first chunk leads back.
                let own = at.wrapping_sub(HEAD);
                if word == own || leads_back(context, word, own) {
                    state = (0..BINS)
                        .find_map(|bin| state_at(context, at.checked_sub(8 + BIN_BYTES * bin + FIRST_BIN)?));
                }
                state.is_none()
            });
        }
        found.extend(state.map(|state| (group[0].name.clone(), state)));
    }
    found
}

/// Whether a free chunk may stand at `chunk` that is the first of the list of `bin`.
fn leads_back(context: &Context<'_>, chunk: u64, bin: u64) -> bool {
    let is_readable = || !(context.resident)(chunk, chunk.saturating_add(FREE_HEAD)).is_empty();
    chunk % ALIGNMENT == FIRST
        && is_readable()
        && context.memory.read_word(chunk.wrapping_add(FREE_HEAD - 8)).is_ok_and(|before| before == bin)
}

/// `at`, if the state stands there: a bit for each list that is not empty.
fn state_at(context: &Context<'_>, at: u64) -> Option<u64> {
    let mut bytes = [0; STATE_BYTES];
    context.memory.read(at, &mut bytes).ok()?;
    let map = word_at(&bytes, 0)?;
    let mut filled = 0;
    for bin in 0..BINS {
        let place = FIRST_BIN + BIN_BYTES * bin;
        let (head, tail) = (word_at(&bytes, place as usize + 8)?, word_at(&bytes, place as usize + 16)?);
        let own = at + place + 8 - HEAD;
        let is_empty = (head == 0 && tail == 0) || (head == own && tail == own);
        let is_chunk = |chunk: u64| chunk % ALIGNMENT == FIRST && chunk != own;
        if is_empty == (map >> bin & 1 != 0) || !(is_empty || is_chunk(head) && is_chunk(tail)) {
            return None;
        }
        filled += u64::from(head != 0);
    }
    (filled > 0).then_some(at)
}

/// What its memory comes to.
#[derive(Default)]
struct Counts {
    live_blocks: u64,
    live_bytes: u64,
    free_bytes: u64,
    head_bytes: u64,
    mapped_blocks: u64,
    regions: u64,
    doubts: Doubts,
}

/// Reads one, beside what is `taken` by others.
pub fn read(context: &Context<'_>, (name, state): &(String, u64), taken: &[(u64, u64)]) -> Reading {
    let mut walk = Walk {
        context,
        memory: Forward::new(context.memory),
        blocks: Blocks::new(context),
        counts: Counts::default(),
        claims: Vec::new(),
    };
    for mapping in context.space.mappings().iter().filter(|mapping| is_mapped_memory(mapping)) {
        walk.mapping((mapping.start, mapping.end), taken);
    }
    for group in modules::groups(context.space.mappings()) {
        let written = group.iter().filter(|mapping| mapping.permissions.write);
        let ranges: Vec<(u64, u64)> = written.map(|mapping| (mapping.start, mapping.end)).collect();
        walk.donated(&ranges);
    }
    let counts = walk.counts;
    let mut reading = Reading { rows: Some(&rows::BLOCKS), claims: walk.claims, ..Reading::default() };
    let mut allocator = Allocator {
        name: super::ABOUT.name.to_owned(),
        found_by: format!("lists of free chunks in {name}, at {state:#x}"),
        read: true,
        ..Allocator::default()
    };
    if counts.doubts.is_empty() {
        allocator.live_bytes = Some(counts.live_bytes);
        allocator.live_blocks = Some(counts.live_blocks);
        allocator.cached_bytes = Some(0);
        allocator.free_bytes = Some(counts.free_bytes);
        allocator.metadata_bytes = Some(counts.head_bytes);
        // musl keeps no statistics.
        allocator.own = figures(&[("regions", counts.regions), ("mmapped_blocks", counts.mapped_blocks)]);
    }
    reading.allocator = allocator;
    reading.refined = walk.blocks.matched;
    reading.bytes_read = walk.memory.bytes_read;
    counts.doubts.say(&mut reading.caveats, &super::ABOUT, "chunks", name);
    reading.in_motion = counts.doubts.damages > 0;
    reading
}

/// Where a walk over a region's chunks came to.
enum End {
    /// The region's end.
    At(u64),
    /// A chunk that cannot be.
    Broken(u64),
    /// The time was over.
    Late(u64),
    /// It is no region.
    None,
}

struct Walk<'a> {
    context: &'a Context<'a>,
    memory: Forward<'a>,
    blocks: Blocks<'a>,
    counts: Counts,
    claims: Vec<RangeClaim>,
}

impl Walk<'_> {
    /// Both sizes of the chunk at an address.
    fn chunk(&mut self, at: u64) -> Option<(u64, u64)> {
        let bytes: [u8; 16] = self.memory.read(at)?;
        Some((word_at(&bytes, 0)?, word_at(&bytes, 8)?))
    }

    /// A mapping, in which regions and blocks of its own may lie beside what others have.
    fn mapping(&mut self, (start, end): (u64, u64), taken: &[(u64, u64)]) {
        for (from, to) in (self.context.resident)(start, end) {
            let mut at = self.claims.last().map_or(from, |claim| claim.end.max(from));
            while at < to {
                if Instant::now() >= self.context.deadline {
                    self.counts.doubts.late(at);
                    return;
                }
                let next = self.piece(at, end, taken);
                at = next.unwrap_or(at + PAGE_BYTES);
            }
        }
    }

    /// What begins with the page at `at`: where it ends, if it is the allocator's.
    fn piece(&mut self, at: u64, limit: u64, taken: &[(u64, u64)]) -> Option<u64> {
        let (before, size) = self.chunk(at + FIRST)?;
        let is_free = |end: u64| {
            overlapping(taken, at, end).is_empty() && overlapping(self.context.stacks, at, end).is_empty()
        };
        // A block's mapping has no other chunk before or behind it: neither size has the lowest bit.
        if before == FIRST && size & IN_USE == 0 {
            let (block, end) = self.own_mapping(at, size, limit)?;
            if !is_free(end) {
                return None;
            }
            self.mapped(at, block, end);
            return Some(end);
        }
        if before != IN_USE || size == IN_USE {
            return None;
        }
        let (end, is_whole) = match self.end(at, limit) {
            End::None => return None,
            End::At(end) => (end, true),
            End::Broken(place) => {
                self.counts.doubts.damage(place, 0);
                (place.next_multiple_of(PAGE_BYTES), false)
            }
            End::Late(place) => {
                self.counts.doubts.late(place);
                (place.next_multiple_of(PAGE_BYTES), false)
            }
        };
        if !is_free(end) {
            return None;
        }
        self.region(at, end, is_whole);
        Some(end)
    }

    /// Where the region that may begin at `start` ends.
    fn end(&mut self, start: u64, limit: u64) -> End {
        let (mut at, mut count) = (start + FIRST, 0);
        let Some((_, mut size)) = self.chunk(at) else { return End::None };
        loop {
            let bytes = size & !IN_USE;
            let next = at.checked_add(bytes).filter(|next| next + HEAD <= limit);
            let follows = next.and_then(|next| Some((next, self.chunk(next)?)));
            match follows {
                Some((next, (before, its_size)))
                    if before == size && bytes >= ALIGNMENT && bytes.is_multiple_of(ALIGNMENT) =>
                {
                    if its_size == IN_USE && (next + HEAD).is_multiple_of(PAGE_BYTES) {
                        return End::At(next + HEAD);
                    }
                    (at, size) = (next, its_size);
                }
                _ if count < FEW_CHUNKS as u64 => return End::None,
                _ => return End::Broken(at),
            }
            count += 1;
            if count.is_multiple_of(LOOKS_AT_THE_TIME) && Instant::now() >= self.context.deadline {
                return End::Late(at);
            }
        }
    }

    /// Claims a region, of which chunks were followed to `end`.
    fn region(&mut self, start: u64, end: u64, is_whole: bool) {
        let pages = self.context.pages(start, end);
        let mut accumulator = Accumulator::new(start, &pages);
        let mut at = start + FIRST;
        accumulator.claim_to(at, Class::Header);
        while let Some((_, size)) = self.chunk(at) {
            let next = at.saturating_add(size & !IN_USE);
            if size == IN_USE || next <= at || next > end {
                break;
            }
            self.one((at, next), size & IN_USE != 0, &mut accumulator);
            at = next;
        }
        accumulator.claim_to(end, if is_whole { Class::Header } else { Class::Unread });
        self.counts.regions += 1;
        (self.context.progress)(end - start);
        self.claims.push(RangeClaim { start, end, sums: accumulator.cut().finish(&pages) });
    }

    /// A chunk of a region.
    fn one(&mut self, (at, next): (u64, u64), is_used: bool, accumulator: &mut Accumulator<'_>) {
        if is_used {
            accumulator.claim_to(at + HEAD, Class::Header);
            self.blocks.claim(next, accumulator);
            self.counts.live_blocks += 1;
            self.counts.live_bytes += next - at - HEAD;
            self.counts.head_bytes += HEAD;
        } else {
            accumulator.claim_to((at + FREE_HEAD).min(next), Class::Header);
            accumulator.claim_to(next, Class::Free);
            self.counts.free_bytes += next - at;
        }
    }

    /// Where the block begins, and its mapping ends, that seems to begin at `start` with a chunk of `size`. One that was moved to be
    /// aligned (`memalign`) leaves there what it was at first, which no longer says how large it is once that has changed.
    fn own_mapping(&mut self, start: u64, size: u64, limit: u64) -> Option<(u64, u64)> {
        let end_of = |chunk: u64, size: u64| {
            chunk.checked_add(size).filter(|end| end.is_multiple_of(PAGE_BYTES) && *end <= limit)
        };
        let first = end_of(start + FIRST, size).filter(|end| *end > start);
        let aligned = (6..47).map(|power| 1_u64 << power).take_while(|alignment| *alignment < limit - start);
        let aligned = aligned.map(|alignment| (start + FIRST + HEAD).next_multiple_of(alignment));
        // It stays as far behind its mapping's beginning as it was, wherever that is moved to.
        let pages = (1..MOST_PAGES)
            .map(|page| start + page * PAGE_BYTES)
            .take_while(|block| first.is_none() && *block < limit);
        let moved = aligned.chain(pages).filter(|block| *block > start + FIRST + HEAD).find_map(|block| {
            let (before, size) = self.chunk(block - HEAD)?;
            let end = end_of(block - HEAD, size).filter(|end| *end > block && size & IN_USE == 0)?;
            (before == block - HEAD - start).then_some((block, end))
        });
        moved.or_else(|| Some((start + FIRST + HEAD, first?)))
    }

    /// Claims a block with a mapping of its own.
    fn mapped(&mut self, start: u64, block: u64, end: u64) {
        let pages = self.context.pages(start, end);
        let mut accumulator = Accumulator::new(start, &pages);
        accumulator.claim_to(block, Class::Header);
        self.blocks.claim(end, &mut accumulator);
        self.counts.live_blocks += 1;
        self.counts.mapped_blocks += 1;
        self.counts.live_bytes += end - block;
        self.counts.head_bytes += block - start;
        (self.context.progress)(end - start);
        self.claims.push(RangeClaim { start, end, sums: accumulator.cut().finish(&pages) });
    }

    /// Counts what the loader gave away of pages around static data: that stays on its row. It lies in front of the data, from a
    /// page's beginning on, or behind it, up to a page's end.
    fn donated(&mut self, written: &[(u64, u64)]) {
        for &(start, end) in written {
            if let Some((IN_USE, size)) = self.chunk(start + FIRST) {
                self.donated_from(start + FIRST, size, end.min(start + PAGE_BYTES));
            }
            let Some((size, IN_USE)) = self.chunk(end - HEAD) else { continue };
            let (mut first, mut bytes) = (end - HEAD, size & !IN_USE);
            while bytes >= ALIGNMENT && first.saturating_sub(bytes) >= end - PAGE_BYTES {
                first -= bytes;
                match self.chunk(first) {
                    Some((IN_USE, size)) => {
                        self.donated_from(first, size, end);
                        break;
                    }
                    Some((before, _)) => bytes = before & !IN_USE,
                    None => break,
                }
            }
        }
    }

    /// Counts the chunks from `at` on, if all of them agree.
    fn donated_from(&mut self, mut at: u64, mut size: u64, limit: u64) {
        let mut counts = Counts::default();
        loop {
            let bytes = size & !IN_USE;
            let next = at.saturating_add(bytes);
            let Some((before, its_size)) = self.chunk(next).filter(|_| next + HEAD <= limit) else { return };
            if before != size || bytes < ALIGNMENT || !bytes.is_multiple_of(ALIGNMENT) {
                return;
            }
            if size & IN_USE != 0 {
                counts.live_blocks += 1;
                counts.live_bytes += bytes - HEAD;
            } else {
                counts.free_bytes += bytes;
            }
            if its_size == IN_USE {
                break;
            }
            (at, size) = (next, its_size);
        }
        self.counts.live_blocks += counts.live_blocks;
        self.counts.live_bytes += counts.live_bytes;
        self.counts.free_bytes += counts.free_bytes;
    }
}
