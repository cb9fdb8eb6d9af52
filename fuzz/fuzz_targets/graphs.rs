//! The reference graph of heaps with arbitrary words: reachable and unreachable blocks together are
//! all blocks, and every step terminates.
#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use strandline_holders::{Builder, KnownBlocks, Limits, Outline, Reachability, References, Roots};
use strandline_process::memory::Memory;

const BASE: u64 = 0x5555_0000_0000;

/// Memory that holds these words from [`BASE`] on.
struct Words<'a>(&'a [u8]);

impl Memory for Words<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let skip = usize::try_from(address.saturating_sub(BASE)).unwrap_or(usize::MAX);
        let bytes = self.0.get(skip..).unwrap_or_default();
        let got = bytes.len().min(buffer.len());
        buffer[..got].copy_from_slice(&bytes[..got]);
        got
    }
}

// One byte for each block: its size in words. Then one byte for each word: the block it points to,
// or none.
fuzz_target!(|data: &[u8]| {
    let Some((&count, rest)) = data.split_first() else { return };
    let (sizes, words) = rest.split_at(rest.len().min(usize::from(count)));
    let mut builder = Builder::default();
    let mut starts = Vec::new();
    let mut at = BASE;
    for &size in sizes {
        builder.push(at, u64::from(size) * 8);
        starts.push(at);
        at += u64::from(size) * 8;
    }
    let word = |byte: &u8| {
        starts.get(usize::from(*byte)).map_or(u64::from(*byte), |start| start + u64::from(byte % 9))
    };
    let memory: Vec<u8> = words.iter().flat_map(|byte| word(byte).to_le_bytes()).collect();
    let Ok(blocks) = builder.finish() else { return };
    let deadline = Instant::now() + Duration::from_secs(10);
    let limits = Limits { max_edges_bytes: 1 << 20, deadline, workers: 1 };
    let Ok(references) =
        References::read(&Words(&memory), &blocks, KnownBlocks::default(), None, &limits, &|_| ())
    else {
        return;
    };
    let mut roots = Roots::default();
    for root in words.rchunks(3).take(usize::from(count % 5)) {
        roots.add(root.iter().map(|&block| u32::from(block)));
    }
    let all = blocks.len();
    let kinds: Vec<u16> = (0..all).map(|block| (block % 4) as u16).collect();
    let Ok(held) =
        Reachability::new(blocks, references, roots, deadline).and_then(|graph| graph.held(deadline))
    else {
        return;
    };
    let unreachable = held.unreachable();
    assert_eq!(held.reached().blocks + unreachable.definite.blocks + unreachable.indirect.blocks, all);
    let Ok(outline) = held.outline(&kinds) else { return };
    let outlined: u32 = outline.nodes().iter().map(|node| node.own_sum.blocks).sum();
    assert_eq!(outlined, all);
    assert_eq!(outline.nodes()[Outline::SEVERAL as usize].retained, held.shared());
});
