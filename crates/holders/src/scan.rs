//! Reads blocks in large pieces, with several workers, and examines their words.
//!
//! Pieces are cut on demand, so that the plan takes no memory: some thousand blocks, or a part of a
//! large one. Only blocks and small gaps between them are read. Unreadable memory is skipped one
//! page at a time, and counted.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::Memory;
use strandline_process::pages::PAGE_BYTES;
use strandline_process::range::AddressRange;
use strandline_process::work::on_threads;

use crate::arrays::Refused;
use crate::blocks::Blocks;
use crate::marks::BlockSet;

/// Bytes per read.
const WINDOW_BYTES: u64 = 256 << 10;
/// Gaps between blocks of up to this size are read rather than skipped.
const GAP_BYTES: u64 = 16 << 10;
/// Maximum bytes of a piece. A larger block is split into pieces.
const PIECE_BYTES: u64 = 16 << 20;
/// Maximum blocks of a piece.
const PIECE_BLOCKS: u32 = 1 << 15;
/// Number of collected words that are looked up together.
const LOOKUP_WORDS: usize = 4096;

/// What is known about blocks before they are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownBlocks<'a> {
    /// Blocks that refer to nothing.
    pub without_references: Option<&'a BlockSet>,
    /// Blocks whose references are exact.
    pub exact: Option<&'a ExactBlocks>,
}

/// Blocks whose references are exact: each points to the start of a block, or to the end of a
/// header there. A word in such a block that points further into a block is data, or a remnant of
/// an earlier use of the block.
#[derive(Debug)]
pub struct ExactBlocks {
    blocks: BlockSet,
    tagged: Option<TaggedBlocks>,
    /// Blocks that words of exact blocks pointed further into.
    inner_targets: Mutex<BlockSet>,
}

/// Exact blocks that refer to each other by the address of the target plus 1.
#[derive(Debug)]
pub struct TaggedBlocks {
    /// These blocks.
    pub blocks: BlockSet,
    /// Other blocks to which plain addresses in them are references. No word of these is one.
    pub plain_targets: BlockSet,
}

/// Mask of the bits of a tagged reference that are 0 in the address of its target.
const TAG_MASK: u64 = 7;
/// Their value in a reference (V8, include/v8-internal.h, `kHeapObjectTag`).
const TAG: u64 = 1;

/// Maximum bytes of the header before the target of a reference, of CPython's objects: two words of
/// a debug allocator (Objects/obmalloc.c, `_PyMem_DebugRawAlloc`), two for a dictionary and weak
/// references, and the collector's two (3.12, Objects/object_layout.md).
const MAX_HEADER_BYTES: u64 = 48;

impl ExactBlocks {
    /// `exact` are the blocks whose references are exact, of `count` blocks in all.
    ///
    /// # Errors
    /// [`Refused::NoMemory`].
    pub fn new(exact: BlockSet, count: u32) -> Result<Self, Refused> {
        Ok(Self { blocks: exact, tagged: None, inner_targets: Mutex::new(BlockSet::new(count)?) })
    }

    /// Sets which of the blocks have tagged references.
    #[must_use]
    pub fn with_tagged(self, tagged: Option<TaggedBlocks>) -> Self {
        Self { tagged, ..self }
    }

    /// The blocks that words of exact blocks pointed further into.
    pub fn inner_targets(self) -> BlockSet {
        self.inner_targets.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a word of the block `source` is not a reference to the block `target`, which starts
    /// at `start`.
    #[inline]
    fn is_data(&self, source: u32, word: u64, target: u32, start: u64) -> bool {
        match &self.tagged {
            Some(tagged) if tagged.plain_targets.has(source) => true,
            Some(tagged) if tagged.blocks.has(source) && word & TAG_MASK == TAG => word != start + TAG,
            Some(tagged) if tagged.blocks.has(source) => !tagged.plain_targets.has(target),
            _ => self.blocks.has(source) && word.wrapping_sub(start) > MAX_HEADER_BYTES,
        }
    }
}

/// Limits on reading. What they leave out is in the [`Outcome`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum bytes of references, 4 each. Capped at 16 GiB.
    pub max_edges_bytes: u64,
    /// When to stop.
    pub deadline: Instant,
    /// Number of threads.
    pub workers: usize,
}

/// Receives words that may identify the type of a block, from several threads.
pub trait TypeWordSink: Sync {
    /// Returns a callback for one thread, which takes the block and the word.
    fn callback(&self) -> WordCallback<'_>;

    /// The addresses of types: only a word in this range is passed on if it follows a reference.
    fn type_range(&self) -> AddressRange;
}

/// The callback of [`TypeWordSink::callback`].
pub type WordCallback<'a> = Box<dyn FnMut(u32, TypeWord) + 'a>;

/// A word that may identify the type of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TypeWord {
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
    pub total_bytes: u64,
}

/// What was read and what was not. If anything was not read, a block that nothing refers to may
/// still be held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes of blocks that were examined.
    pub read_bytes: u64,
    /// Bytes of [`KnownBlocks::without_references`], which are not read.
    pub bytes_without_references: u64,
    /// Bytes of blocks that could not be read.
    pub unreadable_bytes: u64,
    /// Bytes of blocks that were left out.
    pub skipped_bytes: u64,
    /// Whether blocks were left out because there are more references than the limit.
    pub hit_reference_limit: bool,
    /// Whether blocks were left out because of the deadline.
    pub timed_out: bool,
}

impl Outcome {
    /// Bytes of blocks that were processed.
    fn done_bytes(&self) -> u64 {
        self.read_bytes + self.bytes_without_references + self.unreadable_bytes
    }
}

/// Consecutive blocks, or a part of one block, and their targets.
#[derive(Debug)]
pub struct Run {
    /// The first block.
    pub first: u32,
    /// End of the targets of each block.
    ends: Box<[u32]>,
    /// The targets of all blocks, one block after another.
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
    /// Position among all pieces.
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
    /// Whether it may refer to others: it is not in [`KnownBlocks::without_references`].
    may_refer: bool,
}

/// Cuts blocks into pieces.
struct PieceCutter<I: Iterator> {
    blocks: std::iter::Peekable<I>,
    next: u32,
    order: u64,
    /// Remaining part of a large block.
    remaining: Option<AddressRange>,
}

impl<I: Iterator<Item = AddressRange>> PieceCutter<I> {
    /// The next piece; `None` after the last.
    fn next_piece(&mut self) -> Option<Piece> {
        self.order += 1;
        let order = self.order;
        if self.remaining.is_none() {
            let block = *self.blocks.peek()?;
            if block.len() > PIECE_BYTES {
                self.blocks.next();
                self.next += 1;
                self.remaining = Some(block);
            }
        }
        if let Some(AddressRange { start, end: block_end }) = self.remaining {
            let end = block_end.min(start + PIECE_BYTES);
            self.remaining = (end < block_end).then_some(AddressRange::new(end, block_end));
            let blocks = self.next - 1..self.next;
            return Some(Piece { order, blocks, addresses: AddressRange::new(start, end), is_part: true });
        }
        let first = self.next;
        let (mut sum, mut addresses): (_, Option<AddressRange>) = (0, None);
        while let Some(&block) = self.blocks.peek()
            && sum + block.len() <= PIECE_BYTES
            && self.next - first < PIECE_BLOCKS
        {
            sum += block.len();
            addresses =
                Some(AddressRange::new(addresses.map_or(block.start, |range| range.start), block.end));
            self.next += 1;
            self.blocks.next();
        }
        Some(Piece { order, blocks: first..self.next, addresses: addresses?, is_part: false })
    }
}

/// State that all workers share.
struct SharedState<'a> {
    memory: &'a dyn Memory,
    blocks: &'a Blocks,
    known: KnownBlocks<'a>,
    type_words: Option<&'a dyn TypeWordSink>,
    limits: &'a Limits,
    /// Number of references in all finished pieces.
    edge_count: AtomicU64,
    /// Bytes of blocks in them.
    done_bytes: AtomicU64,
    hit_reference_limit: AtomicBool,
    timed_out: AtomicBool,
}

impl SharedState<'_> {
    /// `None` if this number of references exceeds the limit, which is noted.
    fn check_limit(&self, edge_count: u64) -> Option<()> {
        let max_count = self.limits.max_edges_bytes / size_of::<u32>() as u64;
        if edge_count <= max_count.min(u64::from(u32::MAX)) {
            return Some(());
        }
        self.hit_reference_limit.store(true, Ordering::Relaxed);
        None
    }
}

/// What [`scan`] found.
pub struct ScanResult {
    /// The runs, in order.
    pub runs: Vec<Run>,
    /// What was read and what was not.
    pub outcome: Outcome,
}

/// Reads all blocks.
pub fn scan(
    memory: &dyn Memory,
    blocks: &Blocks,
    known: KnownBlocks<'_>,
    type_words: Option<&dyn TypeWordSink>,
    limits: &Limits,
    progress: &(dyn Fn(Progress) + Sync),
) -> ScanResult {
    let shared = SharedState {
        memory,
        blocks,
        known,
        type_words,
        limits,
        edge_count: AtomicU64::new(0),
        done_bytes: AtomicU64::new(0),
        hit_reference_limit: AtomicBool::new(false),
        timed_out: AtomicBool::new(false),
    };
    let cutter =
        Mutex::new(PieceCutter { blocks: blocks.iter(0).peekable(), next: 0, order: 0, remaining: None });
    let next_piece = || cutter.lock().unwrap_or_else(PoisonError::into_inner).next_piece();
    let work = || {
        let mut worker = Worker::new(&shared);
        let mut runs = Vec::new();
        while let Some(piece) = next_piece()
            && worker.examine(&piece)
        {
            if !piece.is_part || !worker.targets.is_empty() {
                let run = worker.run_of(&piece);
                runs.push((piece, run));
            }
            let done_bytes = shared.done_bytes.load(Ordering::Relaxed);
            progress(Progress { done_bytes, total_bytes: blocks.total_bytes() });
        }
        (runs, worker.outcome)
    };
    let results = on_threads(limits.workers, work);
    let mut runs = Vec::new();
    let mut outcome = Outcome {
        hit_reference_limit: shared.hit_reference_limit.into_inner(),
        timed_out: shared.timed_out.into_inner(),
        ..Outcome::default()
    };
    for (worker_runs, worker_outcome) in results {
        runs.extend(worker_runs);
        outcome.read_bytes += worker_outcome.read_bytes;
        outcome.bytes_without_references += worker_outcome.bytes_without_references;
        outcome.unreadable_bytes += worker_outcome.unreadable_bytes;
    }
    outcome.skipped_bytes = blocks.total_bytes().saturating_sub(outcome.done_bytes());
    runs.sort_unstable_by_key(|(piece, _)| piece.order);
    ScanResult { runs: runs.into_iter().map(|(_, run)| run).collect(), outcome }
}

/// A reference from a block in a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Reference {
    /// Index of the block within the piece.
    holder: u32,
    target: u32,
}

/// A word that follows one that may be a reference.
struct Follower {
    /// Index of the word before it in [`Worker::words`].
    index: usize,
    word: u64,
}

/// One of the threads that examine pieces.
struct Worker<'a> {
    shared: &'a SharedState<'a>,
    /// The bytes read last, their address, and their number.
    window: ReadBuffer,
    window_start: u64,
    window_bytes: u64,
    /// Address ranges of the piece to read, in order, and the index of the current one.
    spans: Vec<AddressRange>,
    span_index: usize,
    /// Words that may be references.
    words: Vec<u64>,
    /// Index within the piece of the block that holds each of `words`.
    holders: Vec<u32>,
    /// Words that follow some of `words`.
    followers: Vec<Follower>,
    /// Number of references of each block in the piece; later their ends.
    ends: Vec<u32>,
    targets: Vec<u32>,
    /// Blocks that words of exact blocks point further into.
    inner_targets: Vec<u32>,
    /// The reference that was found last.
    last_reference: Option<Reference>,
    type_callback: Option<WordCallback<'a>>,
    /// Result of [`TypeWordSink::type_range`].
    type_range: AddressRange,
    outcome: Outcome,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a SharedState<'a>) -> Self {
        let type_range = shared.type_words.map(|sink| sink.type_range()).unwrap_or_default();
        Self {
            shared,
            window: ReadBuffer::new(WINDOW_BYTES as usize),
            window_start: 0,
            window_bytes: 0,
            spans: Vec::new(),
            span_index: 0,
            words: Vec::new(),
            holders: Vec::new(),
            followers: Vec::new(),
            ends: Vec::new(),
            targets: Vec::new(),
            inner_targets: Vec::new(),
            last_reference: None,
            type_callback: shared.type_words.map(|sink| sink.callback()),
            type_range,
            outcome: Outcome::default(),
        }
    }

    /// The targets that were found in a piece.
    fn run_of(&self, piece: &Piece) -> Run {
        let (first, is_part) = (piece.blocks.start, piece.is_part);
        Run { first, ends: self.ends.as_slice().into(), targets: self.targets.as_slice().into(), is_part }
    }

    /// Examines a piece; returns whether to continue. If not, the result covers only a part of the
    /// piece.
    fn examine(&mut self, piece: &Piece) -> bool {
        let before = self.outcome;
        if self.examine_parts(piece).is_none() {
            self.outcome = before;
            return false;
        }
        let done_bytes = self.outcome.done_bytes() - before.done_bytes();
        self.shared.done_bytes.fetch_add(done_bytes, Ordering::Relaxed);
        true
    }

    /// Examines the blocks of a piece; `None` after the deadline, or if there are too many
    /// references.
    fn examine_parts(&mut self, piece: &Piece) -> Option<()> {
        let SharedState { blocks, known: KnownBlocks { without_references, .. }, .. } = *self.shared;
        let first = piece.blocks.start;
        let parts = || {
            piece.blocks.clone().zip(blocks.iter(first)).map(|(block, addresses)| Part {
                block,
                addresses: piece.addresses.intersection(addresses),
                has_start: addresses.start >= piece.addresses.start,
                may_refer: without_references.is_none_or(|blocks| !blocks.has(block)),
            })
        };
        self.spans.clear();
        for Part { addresses, .. } in parts().filter(|part| part.may_refer) {
            match self.spans.last_mut().filter(|last| addresses.start - last.end <= GAP_BYTES) {
                Some(last) => last.end = addresses.end,
                None => self.spans.push(addresses),
            }
        }
        (self.span_index, self.window_bytes) = (0, 0);
        self.ends.clear();
        self.targets.clear();
        self.words.clear();
        self.holders.clear();
        self.followers.clear();
        self.last_reference = None;
        for part in parts() {
            self.ends.push(0);
            if part.may_refer {
                self.examine_part(part, first)?;
            } else {
                self.outcome.bytes_without_references += part.addresses.len();
            }
            if self.words.len() >= LOOKUP_WORDS {
                self.resolve(first);
            }
        }
        self.resolve(first);
        let mut sum = 0;
        for end in &mut self.ends {
            sum += *end;
            *end = sum;
        }
        let edge_count = self.targets.len() as u64;
        let before = self.shared.edge_count.fetch_add(edge_count, Ordering::Relaxed);
        self.shared.check_limit(before + edge_count)
    }

    /// Examines the part of a block that is in the piece. `first` is the first block of the piece.
    fn examine_part(&mut self, part: Part, first: u32) -> Option<()> {
        let Part { block, addresses: AddressRange { start: mut at, end }, has_start: mut is_first, .. } =
            part;
        let span = self.shared.blocks.span();
        let (low, span, type_range) = (span.start, span.len(), self.type_range);
        while at < end {
            if at.wrapping_sub(self.window_start) >= self.window_bytes {
                self.read_window(at)?;
            }
            let skip = at - self.window_start;
            let bytes = (end - at).min(self.window_bytes - skip);
            if bytes == 0 {
                let next = ((at / PAGE_BYTES + 1) * PAGE_BYTES).min(end);
                self.outcome.unreadable_bytes += next - at;
                at = next;
                is_first = false;
                continue;
            }
            let window = self.window.get(skip as usize..(skip + bytes) as usize)?;
            if let Some(take) = self.type_callback.as_mut().filter(|_| is_first)
                && let Some(word) = window.first_chunk()
            {
                take(block, TypeWord::First(u64::from_le_bytes(*word)));
                is_first = false;
            }
            let words = window.as_chunks::<8>().0;
            for (index, word) in words.iter().enumerate() {
                let word = u64::from_le_bytes(*word);
                if word.wrapping_sub(low) < span {
                    // Without the word after the last one of a window, a type may stay unknown.
                    let next = words.get(index + 1).map(|next| u64::from_le_bytes(*next));
                    if let Some(word) = next.filter(|&next| type_range.contains(next)) {
                        self.followers.push(Follower { index: self.words.len(), word });
                    }
                    self.words.push(word);
                    self.holders.push(block - first);
                }
            }
            if self.words.len() >= LOOKUP_WORDS {
                self.resolve(first);
            }
            self.outcome.read_bytes += bytes;
            at += bytes;
        }
        Some(())
    }

    /// Turns the collected words into references. `first` is the first block of the piece.
    fn resolve(&mut self, first: u32) {
        let Self {
            shared,
            words,
            holders,
            followers,
            ends,
            targets,
            last_reference,
            type_callback,
            inner_targets,
            ..
        } = self;
        let mut followers = followers.drain(..).peekable();
        shared.blocks.find_each(words, |index, target| {
            while followers.next_if(|follower| follower.index < index).is_some() {}
            if let Some(follower) = followers.next_if(|follower| follower.index == index)
                && let Some(take) = type_callback.as_mut()
                && words.get(index) == Some(&shared.blocks.start(target))
            {
                take(target, TypeWord::AfterReference(follower.word));
            }
            let (Some(&holder), Some(&word)) = (holders.get(index), words.get(index)) else { return };
            let exact = shared.known.exact;
            if exact
                .is_some_and(|exact| exact.is_data(first + holder, word, target, shared.blocks.start(target)))
            {
                inner_targets.push(target);
            } else if target != first + holder && *last_reference != Some(Reference { holder, target }) {
                *last_reference = Some(Reference { holder, target });
                targets.push(target);
                if let Some(count) = ends.get_mut(holder as usize) {
                    *count += 1;
                }
            }
        });
        words.clear();
        holders.clear();
        let exact = shared.known.exact.filter(|_| !inner_targets.is_empty());
        if let Some(exact) = exact {
            let mut marks = exact.inner_targets.lock().unwrap_or_else(PoisonError::into_inner);
            inner_targets.drain(..).for_each(|target| _ = marks.set(target));
        }
    }

    /// Reads from an address to the end of its range at most; `None` after the deadline, or if
    /// there are too many references.
    fn read_window(&mut self, at: u64) -> Option<()> {
        let shared = self.shared;
        shared.check_limit(shared.edge_count.load(Ordering::Relaxed) + self.targets.len() as u64)?;
        if Instant::now() >= shared.limits.deadline {
            shared.timed_out.store(true, Ordering::Relaxed);
            return None;
        }
        while self.spans.get(self.span_index)?.end <= at {
            self.span_index += 1;
        }
        let bytes = (self.spans.get(self.span_index)?.end - at).min(WINDOW_BYTES);
        let read_bytes = shared.memory.read_some(at, self.window.get_mut(..bytes as usize)?);
        // A word cut off at the end is not examined.
        (self.window_start, self.window_bytes) = (at, (read_bytes as u64).min(bytes) & !7);
        Some(())
    }
}
