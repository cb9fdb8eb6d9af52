//! The SBCL reader over fabricated heaps with words overwritten and pages absent: claims do not
//! overlap and add up to the resident bytes, and reading ends after a bounded number of bytes.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use strandline_claims::runtime::{Context, FinishContext};
use strandline_fuzz::{Target, this_process};
use strandline_process::map::AddressSpace;
use strandline_process::range::AddressRange;
use strandline_process::stacks::ThreadFacts;
use strandline_runtimes::sbcl;
use strandline_runtimes::sbcl::locate::Program;
use strandline_synth::{Image, SBCL_RELEASES, SbclHeap, SbclRecipe, SbclSymbol, clipped, fabricate_sbcl};

/// Small heaps of every layout, in four shapes each.
const SHAPES: u64 = 4;

fn heaps() -> &'static [SbclHeap] {
    static HEAPS: OnceLock<Vec<SbclHeap>> = OnceLock::new();
    HEAPS.get_or_init(|| {
        let shapes = (0..SHAPES).flat_map(|shape| SBCL_RELEASES.map(|release| (shape, release)));
        let heap = |(shape, release)| {
            fabricate_sbcl(&SbclRecipe {
                objects: 60 + 40 * shape as usize,
                large_objects: usize::from(shape == 3),
                threads: 1 + shape as usize % 2,
                roots: 12,
                ..SbclRecipe::from_seed(release, 7 + shape)
            })
        };
        shapes.map(heap).collect()
    })
}

/// Overwrites words: each twelve bytes of `patches` are a place and a word, or a reference to a
/// place.
fn patch(heap: &SbclHeap, image: &mut Image, patches: &[u8]) {
    let places = heap.damageable_words();
    let place = |number: u64| places[(number % places.len() as u64) as usize];
    for patch in patches.as_chunks::<12>().0 {
        let (at, word) = patch.split_at(4);
        let number = u64::from(u32::from_le_bytes(at.try_into().unwrap_or_default()));
        let at = place(number >> 3);
        let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
        let before = image.word(at).unwrap_or(0);
        let word = match number & 7 {
            0 => word,
            1 => place(word),
            2 => place(word) & !15 | [3, 7, 11, 15][(word >> 60) as usize & 3],
            3 => before ^ word,
            4 => before & 0xff | word << 8,
            5 => before & !0xff | word & 0xff,
            6 => before.wrapping_add(word % 64),
            _ => heap.dynamic_range.0 + word % (heap.dynamic_range.1 - heap.dynamic_range.0),
        };
        image.put_word(at, word);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&[choice, workers], data)) = data.split_first_chunk() else { return };
    let Some((absent, patches)) = data.split_first_chunk() else { return };
    let heap = &heaps()[usize::from(choice) % heaps().len()];
    let mut image = heap.image.clone();
    patch(heap, &mut image, patches);
    // One input in four has absent pages.
    let absent = if workers & 0x30 == 0 { u64::from_le_bytes(*absent) } else { 0 };
    let image_bytes: u64 = image.ranges().map(|(_, bytes)| bytes.len() as u64).sum();
    let (space, _) = AddressSpace::parse(heap.maps().as_bytes());
    let facts = |thread: &strandline_synth::SbclThread| ThreadFacts {
        tid: thread.tid,
        stack_pointer: thread.stack_pointer,
        fs_base: thread.address,
        general: Default::default(),
    };
    let threads: Vec<ThreadFacts> = heap.threads.iter().map(facts).collect();
    let symbol = |symbol: &SbclSymbol| (symbol.name, AddressRange::sized(symbol.address, symbol.bytes));
    let symbols = heap.symbols.iter().map(symbol);
    let program = Program::with_symbols("/usr/bin/fabricated", heap.recipe.release.name(), symbols);
    let process = this_process();
    let target = Target::resident_only(&image, absent);
    let workers = usize::from(workers % 2) + 1;
    let resident = |range| target.resident(range);
    let context = Context {
        threads: &threads,
        workers,
        cell_bytes: Some(4096 << (choice % 8)),
        ..Context::of_image(&target, &process, &space, &resident)
    };
    let Ok(mut reading) = sbcl::read(&context, &program) else { return };
    reading.finish(&FinishContext {
        workers,
        path_to: Some("MESSAGE"),
        matched: &strandline_claims::refinements::Matches::default(),
        by_allocator: &[],
        progress: &|_, _, _| {},
    });
    let mut ranges = Vec::new();
    for claim in &reading.claims {
        ranges.push((claim.start, claim.end));
        let sum = claim.sums.resident.total();
        assert_eq!(claim.sums.cells.iter().map(|cell| cell.resident.total()).sum::<u64>(), sum);
        let resident: u64 =
            clipped(&target.runs, claim.start, claim.end).iter().map(|run| run.1 - run.0).sum();
        assert_eq!(sum, resident);
    }
    ranges.sort_unstable();
    assert!(ranges.is_sorted_by(|a, b| a.1 <= b.0));
    target.assert_read_at_most(64 * image_bytes + (16 << 20));
});
