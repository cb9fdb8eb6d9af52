//! Tests on fabricated V8 heaps, intact and damaged.

use std::collections::BTreeMap;

use proptest::prelude::*;
use strandline_claims::accumulator::Class;
use strandline_claims::class::Slot;
use strandline_claims::facts::TypeFacts;
use strandline_process::map::AddressSpace;
use strandline_process::memory::words_in;
use strandline_process::stacks::ThreadFacts;
use strandline_synth::{Tally, V8_FIRST_CONTEXT, V8_TYPES, V8Image, fabricate_v8};

use super::current::CurrentIsolate;
use super::layout::{AreaPointer, PAGE_ALIGNMENT, SPACE_COMMITTED, SPACE_HEAP};
use super::*;
use crate::fabricated::{self, assert_sound, damage};

/// Reads a heap. A page is not resident if `absent` has the bit of its number modulo 64. Returns
/// `None` if the heap is busy: in a collection or inconsistent.
fn try_read_heap(v8: &V8Image, absent: u64) -> Option<Reading> {
    try_read_beside(v8, absent, &RangeSet::default())
}

/// The program with the V8 of a heap.
fn program_of(v8: &V8Image) -> Program {
    let mut program =
        Program { path: "/usr/bin/node".to_owned(), version: Some(v8.version), ..Program::default() };
    let types = V8_TYPES.iter().map(|(name, number)| ((*name).to_owned(), *number));
    program.set_types(types, V8_FIRST_CONTEXT);
    assert_eq!(program.types.is_some(), program.layout().is_some());
    program
}

/// The layout of a V8, and the address of its `Heap`.
fn layout_and_heap(v8: &V8Image) -> (&'static Layout, u64) {
    let layout = program_of(v8).layout().unwrap();
    (layout, v8.state - layout.heap_state)
}

/// Like [`try_read_heap`], in a process in which other runtimes claimed `foreign_ranges`.
fn try_read_beside(v8: &V8Image, absent: u64, foreign_ranges: &RangeSet) -> Option<Reading> {
    let program = program_of(v8);
    let is_busy = std::cell::Cell::new(false);
    let reading = fabricated::read_image(&v8.image, &v8.maps, absent, |context, runs| {
        let read = read(context, &program, foreign_ranges, &Refinements::new(runs.iter().copied()));
        is_busy.set(read.is_err());
        read.unwrap_or_default()
    });
    (!is_busy.get()).then_some(reading)
}

fn read_heap(v8: &V8Image) -> Reading {
    try_read_heap(v8, 0).expect("consistent")
}

/// Resident bytes on the row `id`.
fn row_bytes(reading: &Reading, id: &str) -> u64 {
    let slots = Slot::all().filter(|&slot| reading.palette.get(slot).is_some_and(|entry| entry.row.id == id));
    let slot_bytes =
        |slot| reading.claims.iter().map(move |claim| claim.sums.resident.of(Class::Refined(slot)));
    slots.flat_map(slot_bytes).sum()
}

#[test]
fn intact_heaps_match_expected_figures() {
    for seed in 0..60 {
        let v8 = fabricate_v8(seed);
        let reading = read_heap(&v8);
        assert!(reading.facts.read && reading.caveats.is_empty(), "{seed}: {:?}", reading.caveats);
        let spaces: Vec<facts::SpaceFigures> =
            serde_json::from_value(reading.facts.own["spaces"].clone()).unwrap();
        for (name, usage) in &v8.expected.spaces {
            let space = spaces.iter().find(|space| space.space_name == *name).expect(name);
            assert_eq!(
                (space.space_size, space.space_used_size),
                (usage.committed_bytes, Some(usage.used_bytes)),
                "{seed}: {name}"
            );
        }
        let details: facts::V8 = reading.facts.details("v8").unwrap();
        assert_eq!(details.isolates, 1);
        let tally = |facts: &TypeFacts| Tally { count: facts.instances, bytes: facts.bytes };
        let types = reading.facts.types.iter().map(|facts| (facts.name.clone(), tally(facts)));
        assert_eq!(types.collect::<BTreeMap<_, _>>(), v8.expected.types, "{seed}");
        let objects: u64 = v8.expected.types.values().map(|tally| tally.count).sum();
        assert_eq!(details.objects, Some(objects), "{seed}");
        assert_eq!(details.pool_resident_bytes, v8.expected.pool_bytes, "{seed}");
        assert_eq!(details.young_idle_resident_bytes, v8.expected.young_idle_bytes, "{seed}");
        assert_eq!(details.read_only_resident_bytes, v8.expected.read_only_bytes, "{seed}");
        let counted = |amount: Option<facts::Amount>| {
            amount.map(|amount| Tally { count: amount.count, bytes: amount.bytes })
        };
        assert_eq!(counted(details.buffers), Some(v8.expected.buffers), "{seed}");
        assert_eq!(counted(details.external_strings), Some(v8.expected.strings), "{seed}");
        assert_eq!(row_bytes(&reading, "v8.buffer.mapped"), v8.expected.mapped_bytes, "{seed}");
        assert_eq!(row_bytes(&reading, "v8.pool"), v8.expected.pool_bytes, "{seed}");
        assert_eq!(row_bytes(&reading, "v8.metadata"), v8.expected.abseil_bytes, "{seed}");
        assert_sound(&reading);
    }
}

/// The same heap with a copy of the isolate and of its pages, `COPY_OFFSET` further on.
fn with_second_isolate(v8: &V8Image) -> V8Image {
    const COPY_OFFSET: u64 = 1 << 32;
    let (space, _) = AddressSpace::parse(v8.maps.as_bytes());
    let is_copied = |at: u64| space.find(at).is_some_and(|mapping| mapping.permissions.write);
    let shifted = |word: u64| if is_copied(word) { word + COPY_OFFSET } else { word };
    let mut image = v8.image.clone();
    for (start, bytes) in v8.image.ranges().filter(|(start, _)| is_copied(*start)) {
        assert!(image.map(start + COPY_OFFSET, bytes.len()));
        image.put_row(start + COPY_OFFSET, words_in(bytes).map(shifted));
    }
    let mut lines: Vec<(u64, String)> = Vec::new();
    for (mapping, line) in space.mappings().iter().zip(v8.maps.lines()) {
        let (start, end, attributes) = (mapping.start, mapping.end, line.split_once(' ').unwrap().1);
        lines.push((start, format!("{line}\n")));
        if is_copied(start) {
            let (start, end) = (start + COPY_OFFSET, end + COPY_OFFSET);
            lines.push((start, format!("{start:x}-{end:x} {attributes}\n")));
        }
    }
    lines.sort();
    V8Image { image, maps: lines.into_iter().map(|(_, line)| line).collect(), ..v8.clone() }
}

/// Isolates beyond the limit are counted with their bytes, and nothing of them is claimed.
#[test]
fn isolates_beyond_the_limit_are_left_out() {
    for seed in 0..10 {
        let v8 = with_second_isolate(&fabricate_v8(seed));
        let program = program_of(&v8);
        let layout = program.layout().unwrap();
        let heaps_of = |max_isolates: usize| {
            let heaps = std::cell::Cell::new(None);
            fabricated::read_image(&v8.image, &v8.maps, 0, |context, _| {
                let foreign_ranges = RangeSet::default();
                let read = heap::read(context, context.memory, layout, &foreign_ranges, max_isolates);
                heaps.set(Some(read.unwrap()));
                Reading::default()
            });
            heaps.take().unwrap()
        };
        let page_bytes = |heaps: &Heaps| heaps.all_pages().map(pages::Page::bytes).sum::<u64>();
        let (all, first) = (heaps_of(2), heaps_of(1));
        assert_eq!((all.isolates.len(), first.isolates.len()), (2, 1), "{seed}");
        assert_eq!((all.left_out.heaps.len(), all.left_out.resident_bytes), (0, 0), "{seed}");
        assert!(left_out_caveat(&all.left_out, &program).is_none());
        assert!(first.left_out.heaps.contains(&all.isolates[1].heap), "{seed}");
        assert_eq!(page_bytes(&first) + first.left_out.resident_bytes, page_bytes(&all), "{seed}");
        let caveat = left_out_caveat(&first.left_out, &program).unwrap();
        assert_eq!(caveat.code, "v8_left_out");
        assert_eq!(caveat.bytes, Some(first.left_out.resident_bytes), "{seed}");
        assert!(caveat.text.contains("nothing of 1 isolate;"), "{}", caveat.text);
    }
}

/// What another runtime claimed of the code range is not claimed again.
#[test]
fn claims_of_other_runtimes_are_left_out() {
    let mut tried = 0;
    for seed in 0..20 {
        let v8 = fabricate_v8(seed);
        let reading = read_heap(&v8);
        let code_claim = reading.claims.iter().find(|claim| claim.sums.resident.of(Class::Metadata) > 0);
        let foreign_ranges: RangeSet = code_claim.map(|claim| claim.range()).into_iter().collect();
        let beside = try_read_beside(&v8, 0, &foreign_ranges).expect("consistent");
        assert!(beside.claims.iter().all(|claim| !foreign_ranges.overlaps(claim.range())), "{seed}");
        tried += foreign_ranges.len();
    }
    assert!(tried > 0);
}

#[test]
fn heap_is_not_read_during_a_collection() {
    for seed in 0..5 {
        let mut v8 = fabricate_v8(seed);
        for state in 1..=4 {
            v8.image.put_word(v8.state, state);
            assert!(try_read_heap(&v8, 0).is_none(), "{seed}: {state}");
        }
        // No state of V8's: this is not a heap, though its spaces are listed as one.
        v8.image.put_word(v8.state, 5);
        assert!(try_read_heap(&v8, 0).is_none(), "{seed}");
    }
}

/// A list of pages that leads back to itself or to a page of another space is not followed.
#[test]
fn inconsistent_spaces_are_not_read() {
    for seed in 0..20 {
        let v8 = fabricate_v8(seed);
        let (layout, heap) = layout_and_heap(&v8);
        let number = layout.spaces.iter().position(|name| *name == "old_space").unwrap() as u64;
        let space = v8.image.word(heap + layout.heap_spaces + 8 * number).unwrap();
        let first = v8.image.word(space + layout.first_page).unwrap();
        for (at, word) in [
            (first + layout.record.next, first),
            (first + layout.record.next, 8),
            (first + layout.record.owner as u64, space + 8),
            (first + layout.record.size as u64, 4 * PAGE_ALIGNMENT),
            (space + SPACE_COMMITTED, 0),
            (space + SPACE_COMMITTED, u64::MAX),
            (space + SPACE_HEAP, 0),
        ] {
            let mut damaged = v8.clone();
            damaged.image.put_word(at, word);
            assert!(try_read_heap(&damaged, 0).is_none(), "{seed}: {word:#x} at {at:#x}");
        }
    }
}

/// A list of ArrayBuffers whose bytes do not add up, or that leads back to itself, is not counted.
#[test]
fn inconsistent_array_buffer_lists_are_unknown() {
    for seed in 0..10 {
        let v8 = fabricate_v8(seed);
        let entry = v8.expected.first_entry;
        for (at, word) in
            [(entry + 32, entry), (entry + 24, entry), (entry + 16, entry), (entry, u64::MAX - 7)]
        {
            let mut damaged = v8.clone();
            if entry == 0 || damaged.image.word(at) == Some(word) {
                continue;
            }
            damaged.image.put_word(at, word);
            let reading = read_heap(&damaged);
            let details: facts::V8 = reading.facts.details("v8").unwrap();
            let buffers = details.buffers.map(|amount| Tally { count: amount.count, bytes: amount.bytes });
            let is_counted = buffers == Some(v8.expected.buffers);
            let has_caveat = reading.caveats.iter().any(|caveat| caveat.code == "v8_buffers_unread");
            // A word that this version does not use changes nothing.
            assert!(is_counted || details.buffers.is_none() && has_caveat, "{seed}: {word:#x} at {at:#x}");
            assert_sound(&reading);
        }
    }
}

/// The number of external strings is unknown if the hidden class of one is not found.
#[test]
fn unread_external_strings_are_unknown() {
    let mut tried = 0;
    for seed in 0..20 {
        let mut v8 = fabricate_v8(seed);
        let (layout, heap) = layout_and_heap(&v8);
        let vector = heap + layout.strings.table + layout.strings.vectors.last().unwrap();
        let (first, end) = (v8.image.word(vector).unwrap(), v8.image.word(vector + 8).unwrap());
        if first < end {
            let string = v8.image.word(first).unwrap() - 1;
            v8.image.put_word(string, 9);
            let reading = read_heap(&v8);
            let details: facts::V8 = reading.facts.details("v8").unwrap();
            assert_eq!(details.external_strings, None, "{seed}");
            assert!(reading.caveats.iter().any(|caveat| caveat.code == "v8_buffers_unread"), "{seed}");
            tried += 1;
        }
    }
    assert!(tried > 10);
}

/// V8 counts the free parts of allocation areas as used: without them the bytes of objects are not
/// known.
#[test]
fn used_bytes_without_allocation_areas_are_unknown() {
    let mut tried = 0;
    for seed in 0..10 {
        let mut v8 = fabricate_v8(seed);
        let (layout, heap) = layout_and_heap(&v8);
        if let AreaPointer::InLocalHeap(offset) = layout.area_pointer {
            v8.image.put_word(heap + offset, 8);
            let reading = read_heap(&v8);
            assert!(reading.facts.read && reading.facts.used_bytes.is_none(), "{seed}");
            let spaces = reading.facts.own["spaces"].as_array().unwrap();
            let old_space = spaces.iter().find(|space| space["space_name"] == "old_space").unwrap();
            assert!(old_space["space_used_size"].is_null(), "{seed}");
            tried += 1;
        }
    }
    assert!(tried > 3);
}

/// Objects of a stopped process are not traced: a search for holders says so.
#[test]
fn a_stopped_process_is_not_traced() {
    let v8 = fabricate_v8(0);
    for keeps_blocks in [false, true] {
        let reading = fabricated::read_image(&v8.image, &v8.maps, 0, |context, _| {
            let context = &Context { is_stopped: true, keeps_blocks, ..*context };
            read(context, &program_of(&v8), &RangeSet::default(), &Refinements::default()).unwrap()
        });
        let codes: Vec<&str> = reading.caveats.iter().map(|caveat| caveat.code.as_str()).collect();
        let expected: &[&str] = if keeps_blocks { &["v8_not_traced"] } else { &[] };
        assert_eq!(codes, expected);
    }
}

/// V8 14.6 reuses large pages of its pool without resetting their count of allocated bytes.
#[test]
fn reused_large_page_with_stale_count_is_read() {
    let mut tried = 0;
    for seed in (0..40).map(|number| 4 + 5 * number) {
        let mut v8 = fabricate_v8(seed);
        let (layout, heap) = layout_and_heap(&v8);
        assert_eq!(layout.version, [14, 6]);
        let number = layout.spaces.iter().position(|name| *name == "large_object_space").unwrap() as u64;
        let space = v8.image.word(heap + layout.heap_spaces + 8 * number).unwrap();
        let first = v8.image.word(space + layout.first_page).unwrap();
        if first != 0 {
            v8.image.put_word(first + layout.record.allocated as u64, 64 << 20);
            assert!(read_heap(&v8).facts.read, "{seed}");
            tried += 1;
        }
    }
    assert!(tried > 10);
}

/// The call is made only if V8's own function adds the distance from the isolate to its heap, and a
/// thread owns the isolate.
#[test]
fn call_needs_matching_function_and_owning_thread() {
    const ISOLATE: u64 = 0x1000_0100;
    // An unused word of the fabricated image.
    const CURRENT: u64 = 0x1005_f000;
    for seed in 0..10 {
        let mut v8 = fabricate_v8(seed);
        v8.image.put_word(CURRENT, ISOLATE);
        // V8's function adds `distance`; the current isolate is `offset` from the thread pointer.
        let notification = |distance: u32, offset: i64| {
            let mut code = vec![0x90; 60];
            // lea rdi, [rbx + distance]
            code.extend([0x48, 0x8d, 0xbb]);
            code.extend(distance.to_le_bytes());
            let program = Program {
                memory_pressure: code,
                current_isolate: Some(CurrentIsolate::Offset(offset)),
                ..program_of(&v8)
            };
            let owner = ThreadFacts { tid: 7, fs_base: CURRENT + 0x800, ..ThreadFacts::default() };
            let threads = [ThreadFacts { tid: 6, fs_base: 8, ..owner }, owner];
            let reading = fabricated::read_image(&v8.image, &v8.maps, 0, |context, _| {
                let context = &Context { threads: &threads, ..*context };
                read(context, &program, &RangeSet::default(), &Refinements::default()).unwrap()
            });
            reading.notification.unwrap()
        };
        let none = read_heap(&v8).notification.unwrap();
        assert!(none.unwrap_err().contains("does not export"), "{seed}");
        let plan = notification(0xbf00, -0x800).unwrap();
        assert_eq!(plan.calls.len(), 1);
        let call = plan.calls.first().unwrap();
        assert_eq!(call.arguments, [ISOLATE, 2], "{seed}");
        let owner = call.owner.unwrap();
        assert_eq!((owner.tid, owner.thread_pointer), (7, CURRENT + 0x800));
        for word in call.identity.iter().chain(&call.idle).chain([&owner.proof]) {
            let found = v8.image.word(word.at).unwrap();
            let found = if word.bytes == 4 { found & 0xffff_ffff } else { found };
            assert_eq!(found, word.value, "{seed}: {word:?}");
        }
        // The call does not release pooled pages of an isolate that has ended.
        assert!(call.least_bytes <= v8.expected.pool_bytes + v8.expected.young_idle_bytes, "{seed}");
        assert!(notification(0xbf08, -0x800).unwrap_err().contains("is not called"), "{seed}");
        assert!(notification(0xbf00, -0x7f8).unwrap_err().contains("was not found"), "{seed}");
    }
}

#[test]
fn unknown_versions_are_not_read() {
    let mut v8 = fabricate_v8(3);
    v8.version[1] += 1;
    let reading = read_heap(&v8);
    assert!(!reading.facts.read && reading.claims.is_empty());
    assert_eq!(reading.caveats[0].code, "v8_unknown_version");
}

#[test]
fn wrong_version_layout_finds_no_heap() {
    for (seed, version) in [(3, [10, 2, 0, 0]), (2, [14, 6, 0, 0]), (4, [12, 4, 0, 0])] {
        let mut v8 = fabricate_v8(seed);
        v8.version = version;
        let reading = read_heap(&v8);
        assert!(!reading.facts.read && reading.claims.is_empty());
        assert_eq!(reading.caveats[0].code, "v8_heap_not_found");
    }
}

proptest! {
    #[test]
    fn reading_a_damaged_heap_terminates(seed in 0..64_u64, (absent, patches) in damage()) {
        let mut v8 = fabricate_v8(seed);
        fabricated::patch(&mut v8.image, seed, &patches);
        if let Some(reading) = try_read_heap(&v8, absent) {
            assert_sound(&reading);
        }
    }
}

/// Replaces pointers with the largest value, one at a time: no computation on them overflows.
#[test]
fn reads_of_oversized_words_terminate() {
    for seed in 0..5 {
        let v8 = fabricate_v8(seed);
        fabricated::with_pointers_maximized(&v8.image, |image| {
            if let Some(reading) = try_read_heap(&V8Image { image, ..v8.clone() }, 0) {
                assert_sound(&reading);
            }
        });
    }
}
