//! A synthetic heap whose words are in an array.

use std::time::{Duration, Instant};

use strandline_holders::{
    Blocks, Builder, DominatorTree, KnownBlocks, Limits, Reachability, References, Refused, Roots,
};
use strandline_process::memory::Memory;

/// Address of the first word.
pub const BASE: u64 = 0x5555_0000_0000;

/// Words from [`BASE`] on.
pub struct Heap {
    pub words: Vec<u64>,
}

impl Memory for Heap {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let Some(skip) = address.checked_sub(BASE) else { return 0 };
        let words = self.words.iter().skip(skip as usize / 8);
        let mut done = 0;
        for (to, word) in buffer.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
            done += 8;
        }
        done
    }
}

/// A deadline that tests do not reach.
pub fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

/// Limits that tests do not reach.
pub fn limits() -> Limits {
    Limits { max_edges_bytes: 1 << 32, deadline: deadline(), workers: 2 }
}

/// A heap in which each block has the words that `targets` returns, and `plain_words` words
/// that point nowhere.
pub fn heap(
    count: u32,
    plain_words: usize,
    targets: impl Fn(u32) -> Vec<u32>,
) -> Result<(Heap, Blocks), Refused> {
    let words: Vec<usize> = (0..count).map(|block| (targets(block).len() + plain_words).max(1)).collect();
    let mut starts = vec![0; count as usize];
    let (mut at, mut builder) = (BASE, Builder::default());
    for (start, &words) in starts.iter_mut().zip(&words) {
        *start = at;
        builder.push(at, words as u64 * 8);
        at += words as u64 * 8;
    }
    let mut heap = Heap { words: Vec::new() };
    for (block, &words) in words.iter().enumerate() {
        let end = heap.words.len() + words;
        heap.words.extend(targets(block as u32).iter().map(|&target| starts[target as usize]));
        heap.words.resize(end, 7);
    }
    Ok((heap, builder.finish()?))
}

/// The references of a heap, within limits that are not reached.
pub fn read_references(memory: &dyn Memory, blocks: &Blocks) -> Result<References, Refused> {
    References::read(memory, blocks, KnownBlocks::default(), None, &limits(), &|_| ())
}

/// The dominator tree of such a heap.
pub fn dominator_tree(
    count: u32,
    plain_words: usize,
    targets: impl Fn(u32) -> Vec<u32>,
    roots: Roots,
) -> Result<DominatorTree, Refused> {
    let (heap, blocks) = heap(count, plain_words, targets)?;
    let references = read_references(&heap, &blocks)?;
    Reachability::new(blocks, references, roots, deadline())?.held(deadline())
}
