//! Tests of [`super`]: sums by class, and how the bytes of a page are classified.

use super::*;

fn join_parts(pages: &RangePages, parts: Vec<AccumulatedPart>) -> Sums {
    let mut joined = AccumulatedPart::empty(parts[0].start);
    for part in parts {
        joined.join(part, pages).unwrap();
    }
    joined.finish(pages)
}

/// Claims the same chunks, divided into parts of `chunks_per_part`.
fn accumulated(pages: &RangePages, chunks_per_part: usize) -> Sums {
    let mut accumulator = Accumulator::new(0x1_0010, pages);
    let mut parts = Vec::new();
    let mut end = 0x1_0010;
    for number in 0..200u64 {
        end += 0x20 + (number * 0x110) % 0x3000;
        match number % 5 {
            0 => accumulator.claim_free(end, first_trimmed_page(accumulator.cursor()), page_of(end)),
            1 => accumulator.claim_to(end, Class::Cached),
            _ => accumulator.claim_live(end, 8),
        }
        if number as usize % chunks_per_part == chunks_per_part - 1 {
            parts.push(accumulator.cut());
        }
    }
    parts.push(accumulator.cut());
    join_parts(pages, parts)
}

/// The first whole page after `sizeof (struct malloc_chunk)` of a free chunk, as `mtrim` of glibc's
/// malloc/malloc.c has it.
fn first_trimmed_page(chunk: u64) -> u64 {
    super::super::range::page_up(chunk + 48)
}

#[test]
fn joined_parts_equal_one_part() {
    let pages = RangePages::new((0x1_0000, 0x40_0000), [(0x1_0000, 0x8_0000), (0x9_0000, 0x40_0000)]);
    pages.set_zero(0x2_0000);
    pages.set_zero(0xa_3000);
    let one = accumulated(&pages, 1000);
    for chunks in [1, 2, 3, 7, 50] {
        let many = accumulated(&pages, chunks);
        assert_eq!((&many.resident, &many.cells), (&one.resident, &one.cells), "{chunks} chunks per part");
        let counts = |sums: &Sums| (sums.releasable_bytes, sums.pinning_blocks);
        assert_eq!(counts(&many), counts(&one), "{chunks} chunks per part");
    }
    assert!(
        one.resident.releasable > 0
            && one.resident.pinned > 0
            && one.resident.zero > 0
            && one.pinning_blocks > 0
    );
}

#[test]
fn cells_hold_what_the_range_holds() {
    let runs = [(0x1_0000, 0x8_0000), (0x9_0000, 0x40_0000)];
    let plain = |runs: [(u64, u64); 2]| {
        let pages = RangePages::new((0x1_0000, 0x40_0000), runs);
        pages.set_zero(0x2_0000);
        pages.set_zero(0xa_3000);
        pages
    };
    let without_cells = accumulated(&plain(runs), 7);
    assert!(without_cells.cells.is_empty());
    for cell_bytes in [0x1000, 0x4000, 0x10_0000, 1 << 63] {
        // Mappings start at the cuts: no cell crosses one.
        let pages = plain(runs).with_cells(cell_bytes, vec![0x2_3000, 0x10_0000]);
        for chunks_per_part in [1, 3, 1000] {
            let with_cells = accumulated(&pages, chunks_per_part);
            assert_eq!(with_cells.resident, without_cells.resident);
            let mut sum = ResidentBytes::default();
            for cell in &with_cells.cells {
                sum.add(&cell.resident);
                assert!(cell.resident.total() > 0 && cell.resident.total() <= cell.end - cell.start);
                for cut in [0x2_3000, 0x10_0000] {
                    assert!(cell.end <= cut || cut <= cell.start, "{:#x}", cell.start);
                }
                assert!(cell.start.is_multiple_of(cell_bytes) || [0x2_3000, 0x10_0000].contains(&cell.start));
            }
            assert_eq!(sum, with_cells.resident, "{cell_bytes:#x}");
            assert!(with_cells.cells.is_sorted_by(|a, b| a.end <= b.start));
        }
    }
}

#[test]
fn every_resident_byte_is_counted_once() {
    let pages = RangePages::new((0, 0x10_0000), [(0, 0x3000), (0x5000, 0x9000)]);
    let mut accumulator = Accumulator::new(0, &pages);
    accumulator.claim_live(0x1800, 8);
    accumulator.claim_free(0x7800, 0x2000, 0x7000);
    accumulator.claim_to(0x9000, Class::Foreign);
    let sums = join_parts(&pages, vec![accumulator.cut()]);
    assert_eq!(sums.releasable_bytes, 0x3000);
    assert_eq!(sums.resident.pinned, 0x800 + 0x800);
    assert_eq!(sums.resident.total(), 0x7000);
}

#[test]
fn a_refined_chunk_is_the_runtimes_up_to_its_length() {
    let pages = RangePages::new((0, 0x4000), [(0, 0x4000)]);
    let (slot, free) = (Slot::new(0).unwrap(), Slot::new(7).unwrap());
    let mut accumulator = Accumulator::new(0, &pages);
    accumulator.claim_refined(0x100, 8, &Refinement { slot, bytes: 0xe0, free: None });
    accumulator.claim_refined(0x140, 8, &Refinement { slot, bytes: u64::MAX, free: None });
    accumulator.claim_to(0xf00, Class::Metadata);
    let free_slots = FreeSlots { class: free, bytes_on_pages: [0x200, 0x1000] };
    let arena = Refinement { slot, bytes: 0x1ff0, free: Some(free_slots) };
    accumulator.claim_refined(0x2f00, 8, &arena);
    accumulator.claim_to(0x4000, Class::Metadata);
    let sums = join_parts(&pages, vec![accumulator.cut()]);
    assert_eq!(sums.resident.total(), 0x4000);
    assert_eq!(sums.resident.of(Class::Header), 24);
    // The rest of the first page, the whole second page, and what does not fit goes to the third.
    assert_eq!(sums.resident.of(Class::Refined(free)), 0x1200);
    assert_eq!(sums.resident.of(Class::Refined(slot)), 0xe0 + 0x38 + 0x1ff0 - 0x1200);
    assert_eq!(sums.resident.of(Class::Live), 0x18 + 8);
}

#[test]
fn a_gap_between_parts_is_refused() {
    let pages = RangePages::new((0, 0x1000), [(0, 0); 0]);
    let mut part = AccumulatedPart::empty(0);
    assert!(part.join(AccumulatedPart::empty(16), &pages).is_err());
}

/// Nested ranges that other readers claim are in no sum, and free bytes beside them are pinned.
#[test]
fn nested_claims_are_left_out() {
    let runs = [(0x1_0000, 0x1_6000)];
    let nested = [(0x1_0110, 0x1_0210), (0x1_1800, 0x1_4010)].map(AddressRange::from);
    let sums = |zero: &[u64]| {
        let pages = RangePages::new((0x1_0000, 0x1_6000), runs);
        zero.iter().for_each(|&page| pages.set_zero(page));
        let mut accumulator = Accumulator::new(0x1_0100, &pages);
        accumulator.claim_nesting(0x1_4020, 8, &nested);
        accumulator.claim_free(0x1_6000, 0, 0);
        join_parts(&pages, vec![accumulator.cut()])
    };
    let left_out: u64 = nested.iter().map(|range| range.len()).sum();
    let all = sums(&[]).resident;
    assert_eq!(all.total(), 0x1_6000 - 0x1_0100 - left_out);
    assert_eq!((all.of(Class::Header), all.pinned, all.kept), (8, 0xfe0, 0x1000));
    assert_eq!(all.of(Class::Live), 0x1_4020 - 0x1_0100 - 8 - left_out);
    // The same holds for all-zero pages: nested bytes on them are not counted, the rest is.
    let zeros = sums(&[0x1_1000, 0x1_2000, 0x1_5000]).resident;
    assert_eq!((zeros.total(), zeros.zero), (all.total(), 0x800 + 0x1000));
}
