//! Readers of allocators other than glibc, over fabricated heaps with words of their structures
//! overwritten: claims do not overlap and lie in their memory, and reading ends after a bounded
//! number of bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strandline_allocators::{google_tcmalloc, jemalloc, mimalloc, musl, tcmalloc};
use strandline_claims::allocator::{Context, Reader};
use strandline_fuzz::{Target, this_process};
use strandline_process::map::AddressSpace;
use strandline_synth::{
    HeapImage, Image, fabricate_google_tcmalloc, fabricate_jemalloc, fabricate_mimalloc, fabricate_musl,
    fabricate_old_musl, fabricate_tcmalloc,
};

/// Overwrites words: each twelve bytes of `patches` choose a structure, an offset in it, and a word
/// or an address in a structure.
fn patch(image: &mut Image, structure_ranges: &[(u64, u64)], patches: &[u8]) {
    let place = |which: u8, at: u16| {
        let (start, end) = structure_ranges[which as usize % structure_ranges.len()];
        start + u64::from(at) * 8 % (end - start)
    };
    for chunk in patches.chunks_exact(12).take(64) {
        let at = place(chunk[0], u16::from_le_bytes([chunk[1], chunk[2]]));
        let word = u64::from_le_bytes([
            chunk[4], chunk[5], chunk[6], chunk[7], chunk[8], chunk[9], chunk[10], chunk[11],
        ]);
        let word =
            if chunk[3] & 1 == 0 { word } else { place(chunk[4], u16::from_le_bytes([chunk[5], chunk[6]])) };
        image.put_word(at & !7, word);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&shape, patches)) = data.split_first() else { return };
    let seed = u64::from(shape);
    let (made, reader): (HeapImage, &Reader) = match shape % 4 {
        0 => (fabricate_jemalloc(usize::from(shape / 4), seed), &jemalloc::READER),
        1 if shape & 64 == 0 => (fabricate_musl(seed), &musl::READER),
        1 => (fabricate_old_musl(seed), &musl::READER),
        2 if shape & 64 == 0 => (fabricate_tcmalloc(seed), &tcmalloc::READER),
        2 => (fabricate_google_tcmalloc(usize::from(shape / 4), seed), &google_tcmalloc::READER),
        _ => (fabricate_mimalloc(usize::from(shape / 4), seed), &mimalloc::READER),
    };
    let HeapImage { mut image, maps, structure_ranges, .. } = made;
    patch(&mut image, &structure_ranges, patches);
    let (space, _) = AddressSpace::parse(maps.as_bytes());
    let target = Target::readable(image, 0);
    let resident = |range| target.resident(range);
    let context = Context::of_image(&target, &space, &resident);
    let Some(found) = (reader.find)(&this_process(), &space) else { return };
    let (readings, _) = found.read(&context).expect("no byte is claimed twice");
    target.assert_read_at_most(1 << 30);
    let claims = readings.iter().flat_map(|reading| &reading.claims);
    let mut ranges: Vec<(u64, u64)> = claims.map(|claim| (claim.start, claim.end)).collect();
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "claims overlap");
    let mapped = |range: &(u64, u64)| {
        target.image.ranges().any(|(start, bytes)| start <= range.0 && range.1 <= start + bytes.len() as u64)
    };
    assert!(ranges.iter().all(mapped), "a claim is not within one mapping");
});
