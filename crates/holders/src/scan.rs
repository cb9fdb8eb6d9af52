//! Reads blocks in large pieces, with several workers, and examines their words.
//!
//! Pieces are cut on demand, so that the plan takes no memory: some thousand blocks, or a part of a
//! large one. Only blocks and small gaps between them are read. Unreadable memory is skipped one
//! page at a time, and counted.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::Memory;
use strandline_process::pages::PAGE_BYTES;
use strandline_process::range::AddressRange;
use strandline_process::work::on_threads;

use crate::arrays::{NONE, Refused};
use crate::blocks::Blocks;
use crate::marks::BlockSet;

/// Bytes to read at once.
const WINDOW_BYTES: u64 = 256 << 10;
/// Gaps between blocks of up to this size are read rather than skipped.
const GAP_BYTES: u64 = 16 << 10;
/// Maximum bytes and blocks of a piece. A larger block is split into pieces.
const PIECE_BYTES: u64 = 16 << 20;
const PIECE_BLOCKS: u32 = 1 << 15;
/// Words are looked up when this many are collected.
const MANY_WORDS: usize = 4096;

/// What is known about blocks before they are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// Blocks that refer to nothing.
    pub no_references: Option<&'a BlockSet>,
    /// Blocks whose references are exact.
    pub exact: Option<&'a Exact>,
}

/// Blocks whose references are exact: each points to the start of a block, or just behind a header
/// there. A word in such a block that points further into a block is data, or left over from an
/// earlier use of the block.
#[derive(Debug)]
pub struct Exact {
    of: BlockSet,
    within: Mutex<BlockSet>,
}

/// Maximum bytes of headers in front of the target of a reference.
const HEADER_BYTES: u64 = 48;

impl Exact {
    /// `of` are the blocks whose references are exact.
    pub fn new(of: BlockSet, blocks: u32) -> Result<Self, Refused> {
        Ok(Self { of, within: Mutex::new(BlockSet::new(blocks)?) })
    }

    /// The blocks that words of exact blocks pointed further into.
    pub fn inner_targets(self) -> BlockSet {
        self.within.into_inner().unwrap_or_default()
    }

    /// Whether a word of the block `from` is not a reference to the block that starts at `target`.
    #[inline]
    fn is_data(&self, from: u32, word: u64, target: u64) -> bool {
        self.of.has(from) && word.wrapping_sub(target) > HEADER_BYTES
    }
}

/// Limits on reading.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of references, 4 each. Capped at 16 GiB.
    pub edges_bytes: u64,
    /// When to stop.
    pub deadline: Instant,
    /// Number of threads.
    pub workers: usize,
}

/// Receives words that may identify the type of a block, from several threads.
pub trait TypeWordSink: Sync {
    /// Returns a callback for one thread, which takes the block and the word.
    fn callback(&self) -> WordCallback<'_>;

    /// Start and length of the address range in which a word that follows a reference must be to be
    /// passed on.
    fn type_range(&self) -> (u64, u64);
}

/// The callback of [`TypeWordSink::callback`].
pub type WordCallback<'a> = Box<dyn FnMut(u32, Word) + 'a>;

/// A word that may identify the type of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Word {
    /// The first word of the block.
    First(u64),
    /// A word in another block, next after the address of this block's first byte.
    AfterReference(u64),
}

/// Progress of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of blocks done.
    pub done_bytes: u64,
    /// Bytes of all blocks.
    pub bytes: u64,
}

/// What was read and what was not. If anything was not read, a block that nothing refers to may
/// still be held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes of blocks that were examined.
    pub read_bytes: u64,
    /// Bytes of blocks known to refer to nothing.
    pub plain_bytes: u64,
    /// Bytes of blocks that could not be read.
    pub unreadable_bytes: u64,
    /// Bytes of blocks that were left out.
    pub skipped_bytes: u64,
    /// Whether blocks were left out because there are more references than the limit.
    pub hit_reference_limit: bool,
    /// Whether blocks were left out because of the deadline.
    pub timed_out: bool,
}

/// Consecutive blocks, or a part of one block, and their targets.
#[derive(Debug)]
pub struct Run {
    pub first: u32,
    /// End of the targets of each block.
    ends: Box<[u32]>,
    pub targets: Box<[u32]>,
    /// Whether it is a part of one block.
    pub is_part: bool,
}

impl Run {
    /// Number of targets of each block.
    pub fn counts(&self) -> impl Iterator<Item = u32> + '_ {
        let before = std::iter::once(0).chain(self.ends.iter().copied());
        self.ends.iter().zip(before).map(|(end, before)| end - before)
    }
}

/// Consecutive blocks, or a part of one block, to be read.
#[derive(Clone, Debug)]
struct Piece {
    /// Place among all pieces.
    order: u64,
    blocks: Range<u32>,
    /// Addresses to read.
    addresses: AddressRange,
    is_part: bool,
}

/// A block as far as it is in a piece.
#[derive(Clone, Copy, Debug)]
struct Part {
    block: u32,
    addresses: AddressRange,
    /// Whether the start of the block is in the piece.
    has_start: bool,
    /// Whether it is known to refer to nothing.
    is_plain: bool,
}

/// Cuts blocks into pieces.
struct Cut<I: Iterator> {
    blocks: std::iter::Peekable<I>,
    next: u32,
    order: u64,
    /// Remaining part of a large block.
    rest: Option<AddressRange>,
}

impl<I: Iterator<Item = (u64, u64)>> Cut<I> {
    fn piece(&mut self) -> Option<Piece> {
        self.order += 1;
        let order = self.order;
        if self.rest.is_none() {
            let (start, bytes) = *self.blocks.peek()?;
            if bytes > PIECE_BYTES {
                self.blocks.next();
                self.next += 1;
                self.rest = Some(AddressRange::new(start, start + bytes));
            }
        }
        if let Some(rest) = self.rest {
            let end = rest.end.min(rest.start + PIECE_BYTES);
            self.rest = (end < rest.end).then_some(AddressRange::new(end, rest.end));
            let blocks = self.next - 1..self.next;
            return Some(Piece { order, blocks, addresses: (rest.start..end).into(), is_part: true });
        }
        let first = self.next;
        let (mut sum, mut addresses): (_, Option<AddressRange>) = (0, None);
        while let Some(&(start, bytes)) = self.blocks.peek()
            && sum + bytes <= PIECE_BYTES
            && self.next - first < PIECE_BLOCKS
        {
            sum += bytes;
            addresses = Some((addresses.map_or(start, |range| range.start)..start + bytes).into());
            self.next += 1;
            self.blocks.next();
        }
        Some(Piece { order, blocks: first..self.next, addresses: addresses?, is_part: false })
    }
}

/// What all workers share.
struct Shared<'a> {
    memory: &'a dyn Memory,
    blocks: &'a Blocks,
    known: Known<'a>,
    heads: Option<&'a dyn TypeWordSink>,
    limits: &'a Limits,
    edges: AtomicU64,
    done_bytes: AtomicU64,
    has_too_many: AtomicBool,
    is_late: AtomicBool,
}

impl Shared<'_> {
    /// `None` if this number of references exceeds the limit, which is noted.
    fn has_room(&self, edges: u64) -> Option<()> {
        if edges <= (self.limits.edges_bytes / 4).min(u64::from(u32::MAX)) {
            return Some(());
        }
        self.has_too_many.store(true, Ordering::Relaxed);
        None
    }
}

/// Reads all blocks and returns the runs in order.
pub fn scan(
    memory: &dyn Memory,
    blocks: &Blocks,
    known: Known<'_>,
    heads: Option<&dyn TypeWordSink>,
    limits: &Limits,
    progress: &(dyn Fn(Progress) + Sync),
) -> (Vec<Run>, Outcome) {
    let shared = Shared {
        memory,
        blocks,
        known,
        heads,
        limits,
        edges: AtomicU64::new(0),
        done_bytes: AtomicU64::new(0),
        has_too_many: AtomicBool::new(false),
        is_late: AtomicBool::new(false),
    };
    let cut = Mutex::new(Cut { blocks: blocks.iter(0).peekable(), next: 0, order: 0, rest: None });
    let next = || cut.lock().ok().and_then(|mut cut| cut.piece());
    let work = || {
        let mut worker = Worker::new(&shared);
        let mut runs = Vec::new();
        while let Some(piece) = next()
            && worker.piece(&piece)
        {
            if !piece.is_part || !worker.targets.is_empty() {
                let run = worker.run(&piece);
                runs.push((piece, run));
            }
            let done_bytes = shared.done_bytes.load(Ordering::Relaxed);
            progress(Progress { done_bytes, bytes: blocks.bytes_of_all() });
        }
        (runs, worker.outcome)
    };
    let results = on_threads(limits.workers, work);
    let mut runs = Vec::new();
    let mut outcome = Outcome {
        hit_reference_limit: shared.has_too_many.into_inner(),
        timed_out: shared.is_late.into_inner(),
        ..Outcome::default()
    };
    for (some, of) in results {
        runs.extend(some);
        outcome.read_bytes += of.read_bytes;
        outcome.plain_bytes += of.plain_bytes;
        outcome.unreadable_bytes += of.unreadable_bytes;
    }
    let seen = outcome.read_bytes + outcome.plain_bytes + outcome.unreadable_bytes;
    outcome.skipped_bytes = blocks.bytes_of_all().saturating_sub(seen);
    runs.sort_unstable_by_key(|(piece, _)| piece.order);
    (runs.into_iter().map(|(_, run)| run).collect(), outcome)
}

struct Worker<'a> {
    shared: &'a Shared<'a>,
    /// The bytes read last, their address, and their number.
    window: ReadBuffer,
    at: u64,
    got: u64,
    /// Address ranges of the piece to read, in order, and the index of the current one.
    spans: Vec<AddressRange>,
    span: usize,
    /// Words that may be references, and the index within the piece of the block that holds each.
    words: Vec<u64>,
    places: Vec<u32>,
    /// Words that follow some of them, each with the index of the word before it.
    behind: Vec<(usize, u64)>,
    /// Number of references of each block in the piece; later their ends.
    ends: Vec<u32>,
    targets: Vec<u32>,
    /// Blocks that words of exact blocks point further into.
    within: Vec<u32>,
    /// Index of the block and target of the last reference.
    last: (u32, u32),
    type_words: Option<WordCallback<'a>>,
    /// Start and length of the range that [`TypeWordSink::type_range`] gave.
    type_range: (u64, u64),
    outcome: Outcome,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared<'a>) -> Self {
        Self {
            shared,
            window: ReadBuffer::new(WINDOW_BYTES as usize),
            at: 0,
            got: 0,
            spans: Vec::new(),
            span: 0,
            words: Vec::new(),
            places: Vec::new(),
            behind: Vec::new(),
            ends: Vec::new(),
            targets: Vec::new(),
            within: Vec::new(),
            last: (NONE, NONE),
            type_words: shared.heads.map(|heads| heads.callback()),
            type_range: shared.heads.map_or((0, 0), |heads| heads.type_range()),
            outcome: Outcome::default(),
        }
    }

    /// What was found in a piece.
    fn run(&self, piece: &Piece) -> Run {
        let (first, is_part) = (piece.blocks.start, piece.is_part);
        Run { first, ends: self.ends.as_slice().into(), targets: self.targets.as_slice().into(), is_part }
    }

    /// Examines a piece and returns whether to go on. If not, the result covers only a part of the
    /// piece.
    fn piece(&mut self, piece: &Piece) -> bool {
        let before = self.outcome;
        if self.look_through(piece).is_none() {
            self.outcome = before;
            return false;
        }
        let (now, was) = (&self.outcome, &before);
        let read = now.read_bytes - was.read_bytes + now.unreadable_bytes - was.unreadable_bytes;
        self.shared.done_bytes.fetch_add(read + now.plain_bytes - was.plain_bytes, Ordering::Relaxed);
        true
    }

    fn look_through(&mut self, piece: &Piece) -> Option<()> {
        let Shared { blocks, known: Known { no_references: plain, .. }, .. } = *self.shared;
        let first = piece.blocks.start;
        let parts = || {
            piece.blocks.clone().zip(blocks.iter(first)).map(|(block, (start, bytes))| Part {
                block,
                addresses: piece.addresses.intersection(AddressRange::new(start, start + bytes)),
                has_start: start >= piece.addresses.start,
                is_plain: plain.is_some_and(|plain| plain.has(block)),
            })
        };
        self.spans.clear();
        for Part { addresses, .. } in parts().filter(|part| !part.is_plain) {
            match self.spans.last_mut().filter(|last| addresses.start - last.end <= GAP_BYTES) {
                Some(last) => last.end = addresses.end,
                None => self.spans.push(addresses),
            }
        }
        (self.span, self.got) = (0, 0);
        self.ends.clear();
        self.targets.clear();
        self.words.clear();
        self.places.clear();
        self.behind.clear();
        self.last = (NONE, NONE);
        for part in parts() {
            self.ends.push(0);
            if part.is_plain {
                self.outcome.plain_bytes += part.addresses.end - part.addresses.start;
            } else {
                self.part(part, first)?;
            }
            if self.words.len() >= MANY_WORDS {
                self.resolve(first);
            }
        }
        self.resolve(first);
        let mut sum = 0;
        for end in &mut self.ends {
            sum += *end;
            *end = sum;
        }
        let edges = self.targets.len() as u64;
        let before = self.shared.edges.fetch_add(edges, Ordering::Relaxed);
        self.shared.has_room(before + edges)
    }

    /// Examines the part of a block that is in the piece. `first` is the first block of the piece.
    fn part(&mut self, part: Part, first: u32) -> Option<()> {
        let Part { block, addresses: AddressRange { start: mut at, end }, has_start: mut is_first, .. } =
            part;
        let (low, span) = self.shared.blocks.span();
        while at < end {
            if at.wrapping_sub(self.at) >= self.got {
                self.fill(at)?;
            }
            let skip = at - self.at;
            let bytes = (end - at).min(self.got - skip);
            if bytes == 0 {
                let page = (at / PAGE_BYTES + 1) * PAGE_BYTES;
                self.outcome.unreadable_bytes += page.min(end) - at;
                at = page.min(end);
                is_first = false;
                continue;
            }
            let window = self.window.get(skip as usize..(skip + bytes) as usize)?;
            if let Some(take) = self.type_words.as_mut().filter(|_| is_first)
                && let Some(word) = window.first_chunk()
            {
                take(block, Word::First(u64::from_le_bytes(*word)));
                is_first = false;
            }
            let words = window.as_chunks::<8>().0;
            for (index, word) in words.iter().enumerate() {
                let word = u64::from_le_bytes(*word);
                if word.wrapping_sub(low) < span {
                    let next = words.get(index + 1).map_or(0, |next| u64::from_le_bytes(*next));
                    if next.wrapping_sub(self.type_range.0) < self.type_range.1 {
                        self.behind.push((self.words.len(), next));
                    }
                    self.words.push(word);
                    self.places.push(block - first);
                }
            }
            if self.words.len() >= MANY_WORDS {
                self.resolve(first);
            }
            self.outcome.read_bytes += bytes;
            at += bytes;
        }
        Some(())
    }

    /// Turns the collected words into references. `first` is the first block of the piece.
    fn resolve(&mut self, first: u32) {
        let Self { shared, words, places, behind, ends, targets, last, type_words, within, .. } = self;
        let mut behind = behind.drain(..).peekable();
        shared.blocks.find_each(words, |index, target| {
            while behind.next_if(|behind| behind.0 < index).is_some() {}
            if let Some((_, next)) = behind.next_if(|behind| behind.0 == index)
                && let Some(take) = type_words.as_mut()
                && words.get(index) == Some(&shared.blocks.start(target))
            {
                take(target, Word::AfterReference(next));
            }
            let place = places.get(index).copied().unwrap_or(0);
            let word = words.get(index).copied().unwrap_or_default();
            if shared
                .known
                .exact
                .is_some_and(|of| of.is_data(first + place, word, shared.blocks.start(target)))
            {
                within.push(target);
            } else if target != first + place && *last != (place, target) {
                *last = (place, target);
                targets.push(target);
                if let Some(count) = ends.get_mut(place as usize) {
                    *count += 1;
                }
            }
        });
        words.clear();
        places.clear();
        if let Some(mut marks) =
            shared.known.exact.filter(|_| !within.is_empty()).and_then(|of| of.within.lock().ok())
        {
            within.drain(..).for_each(|target| _ = marks.set(target));
        }
    }

    /// Reads from an address to the end of its range at most; `None` if it is time to stop.
    fn fill(&mut self, at: u64) -> Option<()> {
        let shared = self.shared;
        shared.has_room(shared.edges.load(Ordering::Relaxed) + self.targets.len() as u64)?;
        if Instant::now() >= shared.limits.deadline {
            shared.is_late.store(true, Ordering::Relaxed);
            return None;
        }
        while self.spans.get(self.span)?.end <= at {
            self.span += 1;
        }
        let bytes = (self.spans.get(self.span)?.end - at).min(WINDOW_BYTES);
        let got = shared.memory.read_some(at, self.window.get_mut(..bytes as usize)?);
        (self.at, self.got) = (at, (got as u64).min(bytes) & !7);
        Some(())
    }
}
