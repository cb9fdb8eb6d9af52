//! The glibc reader over fabricated heaps with words overwritten and pages absent: claims do not
//! overlap and add up to the resident bytes, and reading ends after a bounded number of bytes.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use strandline_allocators::glibc;
use strandline_claims::allocator::Context;
use strandline_fuzz::Target;
use strandline_process::map::AddressSpace;
use strandline_synth::{Heap, Image, Recipe, VERSIONS, clipped, fabricate};

/// Small heaps of every layout, in four shapes each.
const SHAPES: usize = 4;

fn heaps() -> &'static [Heap] {
    static HEAPS: OnceLock<Vec<Heap>> = OnceLock::new();
    HEAPS.get_or_init(|| {
        let shapes = (0..SHAPES).flat_map(|shape| VERSIONS.map(|version| (shape, version)));
        let heap = |(shape, version)| {
            fabricate(&Recipe {
                chunks: 24,
                threads: 1 + shape % 2,
                secondary_heaps: if shape == 1 { 2 } else { 0 },
                has_foreign_sbrk: shape == 2,
                mmapped_pieces: if shape == 3 { 2 } else { 0 },
                mmapped_chunks: shape % 3,
                ..Recipe::from_seed(version, 7)
            })
        };
        shapes.map(heap).collect()
    })
}

/// Overwrites words: each ten bytes of `patches` are a place and a word, or a pointer to a place.
fn patch(image: &mut Image, patches: &[u8]) {
    let ranges: Vec<(u64, u64)> = image.ranges().map(|(start, bytes)| (start, bytes.len() as u64)).collect();
    let words: u64 = ranges.iter().map(|range| range.1 / 8).sum();
    let place = |number: u64| {
        let mut rest = number % words;
        ranges.iter().find_map(|&(start, bytes)| {
            let here = rest;
            rest = rest.saturating_sub(bytes / 8);
            (here < bytes / 8).then_some(start + here * 8)
        })
    };
    let (patches, _) = patches.as_chunks::<12>();
    for patch in patches {
        let (at, word) = patch.split_at(4);
        let Some(at) = place(u64::from(u32::from_le_bytes(at.try_into().unwrap_or_default()) >> 2)) else {
            return;
        };
        let kind = patch[0] & 3;
        let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
        let word = match kind {
            0 => word,
            1 => place(word).unwrap_or(0),
            2 => place(word).unwrap_or(0) & !15,
            _ => (place(word).unwrap_or(0) & !15) ^ (at >> 12),
        };
        image.put_word(at, word);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&[choice, threads], data)) = data.split_first_chunk() else { return };
    let Some((absent, patches)) = data.split_first_chunk() else { return };
    let heap = &heaps()[usize::from(choice) % heaps().len()];
    let mut image = heap.image.clone();
    patch(&mut image, patches);
    let image_bytes: u64 = image.ranges().map(|(_, bytes)| bytes.len() as u64).sum();
    let (space, _) = AddressSpace::parse(heap.maps().as_bytes());
    let fs_bases: Vec<u64> = heap.threads.iter().map(|thread| thread.fs_base).collect();
    let target = Target::readable(image, u64::from_le_bytes(*absent));
    let resident = |range| target.resident(range);
    let (readings, _) = glibc::read(&Context {
        fs_bases: &fs_bases,
        start_brk: Some(heap.recipe.places.heap),
        cell_bytes: Some(4096 << (threads % 8)),
        workers: usize::from(threads % 2) + 1,
        ..Context::of_image(&target, &space, &resident)
    })
    .expect("claims follow each other");
    let mut end = 0;
    for claim in readings.iter().flat_map(|reading| &reading.claims) {
        assert!(claim.start >= end);
        end = claim.end;
        let sums = &claim.sums;
        let sum = sums.resident.total();
        assert_eq!(sums.cells.iter().map(|cell| cell.resident.total()).sum::<u64>(), sum);
        let resident: u64 =
            clipped(&target.runs, claim.start, claim.end).iter().map(|run| run.1 - run.0).sum();
        assert_eq!(sum, resident);
    }
    target.assert_read_at_most(64 * image_bytes + (16 << 20));
});
