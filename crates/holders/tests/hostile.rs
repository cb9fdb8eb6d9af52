//! Memory that ends, limits that are reached, invalid numbers.

mod common;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{BASE, Heap, deadline, dominator_tree, heap, limits, read_references};
use strandline_holders::{
    BlockSet, Builder, ExactBlocks, Holder, KnownBlocks, Limits, Progress, Reachability, References, Refused,
    Roots, TaggedBlocks, TypeWord, TypeWordSink, WordCallback,
};
use strandline_process::memory::Memory;
use strandline_process::range::AddressRange;

#[test]
fn memory_that_ends_is_counted_and_passed_over() {
    let (mut heap, blocks) = heap(4096, 3, |block| vec![(block + 1) % 4096]).unwrap();
    assert_eq!(blocks.total_bytes(), 4096 * 32);
    heap.words.truncate(4096 * 2 + 1);
    let references = read_references(&heap, &blocks).unwrap();
    let outcome = references.outcome();
    assert_eq!((outcome.read_bytes, outcome.unreadable_bytes, outcome.skipped_bytes), (65544, 65528, 0));
    assert_eq!(references.count(), 2049);
    assert_eq!((references.targets(2048), references.targets(2049)), (&[2049][..], &[][..]));
}

/// Memory with a hole of one page.
struct Holed(Heap);

impl Memory for Holed {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let (hole_start, hole_end) = (BASE + 8192, BASE + 12288);
        if (hole_start..hole_end).contains(&address) {
            return 0;
        }
        let end = if address < hole_start {
            buffer.len().min((hole_start - address) as usize)
        } else {
            buffer.len()
        };
        self.0.read_some(address, &mut buffer[..end])
    }
}

#[test]
fn memory_after_a_hole_is_read() {
    let (heap, blocks) = heap(3000, 0, |block| vec![(block + 7) % 3000]).unwrap();
    let references = read_references(&Holed(heap), &blocks).unwrap();
    assert_eq!(references.outcome().unreadable_bytes, 4096);
    assert_eq!(references.count(), 3000 - 512);
    assert_eq!(
        (references.targets(1023), references.targets(1024), references.targets(1536)),
        (&[1030][..], &[][..], &[1543][..])
    );
}

#[test]
fn exceeding_the_limit_of_references_is_reported() {
    let (heap, blocks) =
        heap(200_000, 0, |block| vec![(block + 1) % 200_000, (block + 2) % 200_000]).unwrap();
    let small_limits = Limits { max_edges_bytes: 1_000_000, ..limits() };
    let references =
        References::read(&heap, &blocks, KnownBlocks::default(), None, &small_limits, &|_| ()).unwrap();
    let outcome = references.outcome();
    assert!(outcome.hit_reference_limit && !outcome.timed_out && outcome.skipped_bytes > 0);
    assert!(references.count() * 4 <= small_limits.max_edges_bytes);
    // The references that were kept can still be searched.
    let mut roots = Roots::default();
    roots.add([0]);
    let tree = Reachability::new(blocks, references, roots, deadline()).unwrap().held(deadline()).unwrap();
    assert_eq!(
        tree.reached().blocks + tree.unreachable().definite.blocks + tree.unreachable().indirect.blocks,
        200_000
    );
}

#[test]
fn a_passed_deadline_stops_each_step() {
    let passed_deadline = Instant::now() - Duration::from_secs(1);
    let (heap, blocks) = heap(1000, 0, |block| vec![(block + 1) % 1000]).unwrap();
    let late = Limits { deadline: passed_deadline, ..limits() };
    let outcome =
        References::read(&heap, &blocks, KnownBlocks::default(), None, &late, &|_| ()).unwrap().outcome();
    assert_eq!((outcome.timed_out, outcome.skipped_bytes), (true, 8000));
    let references = read_references(&heap, &blocks).unwrap();
    let graph = Reachability::new(blocks, references, Roots::default(), deadline()).unwrap();
    assert_eq!(graph.held(passed_deadline).err(), Some(Refused::DeadlinePassed));
}

#[test]
fn what_refers_to_nothing_is_not_read() {
    let (heap, blocks) = heap(1000, 0, |block| vec![(block + 1) % 1000]).unwrap();
    let mut plain = BlockSet::new(blocks.len()).unwrap();
    (100..900).for_each(|block| _ = plain.set(block));
    let references = References::read(
        &heap,
        &blocks,
        KnownBlocks { without_references: Some(&plain), exact: None },
        None,
        &limits(),
        &|_| (),
    )
    .unwrap();
    assert_eq!(
        (references.outcome().bytes_without_references, references.outcome().read_bytes),
        (6400, 1600)
    );
    assert_eq!(
        (references.targets(99), references.targets(100), references.targets(900)),
        (&[100][..], &[][..], &[901][..])
    );
}

/// A word in an exact block that points to the start of a block, or behind its header, is a
/// reference; one that points further in is not, and is reported. In other blocks both are
/// references.
#[test]
fn words_of_exact_blocks_reference_only_block_starts() {
    let block = |number: u64| BASE + number * 128;
    let mut words = vec![0; 48];
    (words[0], words[1]) = (block(1) + 48, block(2) + 56);
    (words[16], words[17]) = (block(2) + 56, block(0));
    let mut builder = Builder::default();
    (0..3).for_each(|number| builder.push(block(number), 128));
    let blocks = builder.finish().unwrap();
    let mut exact_blocks = BlockSet::new(blocks.len()).unwrap();
    exact_blocks.set(0);
    let exact = ExactBlocks::new(exact_blocks, blocks.len()).unwrap();
    let known = KnownBlocks { without_references: None, exact: Some(&exact) };
    let references = References::read(&Heap { words }, &blocks, known, None, &limits(), &|_| ()).unwrap();
    assert_eq!((references.targets(0), references.targets(1)), (&[1][..], &[2, 0][..]));
    assert_eq!(exact.inner_targets().iter().collect::<Vec<_>>(), [2]);
}

/// In a tagged block, the address of a block plus 1 is a reference to it; a plain address is one
/// only to a plain target, and others are reported. No word of a plain target is a reference.
#[test]
fn words_of_tagged_blocks_are_references_if_they_have_the_tag() {
    let block = |number: u64| BASE + number * 128;
    let mut words = vec![0; 96];
    words[..6].copy_from_slice(&[block(1) + 1, block(1) + 9, block(2), block(3), block(4) + 2, block(5) + 3]);
    words[48] = block(1);
    let mut builder = Builder::default();
    (0..6).for_each(|number| builder.push(block(number), 128));
    let blocks = builder.finish().unwrap();
    let set = |members: &[u32]| {
        let mut set = BlockSet::new(blocks.len()).unwrap();
        members.iter().for_each(|block| _ = set.set(*block));
        set
    };
    let tagged = TaggedBlocks { blocks: set(&[0]), plain_targets: set(&[3]) };
    let exact = ExactBlocks::new(set(&[0]), blocks.len()).unwrap().with_tagged(Some(tagged));
    let known = KnownBlocks { without_references: None, exact: Some(&exact) };
    let references = References::read(&Heap { words }, &blocks, known, None, &limits(), &|_| ()).unwrap();
    assert_eq!((references.targets(0), references.targets(3)), (&[1, 3][..], &[][..]));
    assert_eq!(exact.inner_targets().iter().collect::<Vec<_>>(), [1, 2, 4, 5]);
}

/// A block of 40 MiB between small ones is read in parts, which are joined.
#[test]
fn a_large_block_has_its_references_in_order() {
    let count = 10_000_u64;
    let mut words = vec![BASE + 8, BASE];
    let mut builder = Builder::default();
    let large = 5_usize << 20;
    words.extend((0..large as u64).map(|at| if at % 1000 == 0 { BASE + at / 1000 % 2 * 8 } else { at }));
    words.extend((0..count).map(|_| BASE + 16 + 8 * large as u64 - 1));
    builder.push(BASE, 8);
    builder.push(BASE + 8, 8);
    builder.push(BASE + 16, large as u64 * 8);
    (0..count).for_each(|at| builder.push(BASE + 16 + (large as u64 + at) * 8, 8));
    let (heap, blocks) = (Heap { words }, builder.finish().unwrap());
    let reported = Mutex::new(Vec::new());
    let references = References::read(&heap, &blocks, KnownBlocks::default(), None, &limits(), &|progress| {
        reported.lock().unwrap().push(progress)
    })
    .unwrap();
    let expected: Vec<u32> = (0..large.div_ceil(1000)).map(|at| at as u32 % 2).collect();
    assert_eq!(references.targets(2), expected);
    assert!((3..3 + count as u32).all(|block| references.targets(block) == [2]));
    assert_eq!((references.targets(0), references.targets(1)), (&[1][..], &[0][..]));
    let total_bytes = blocks.total_bytes();
    assert!(reported.into_inner().unwrap().contains(&Progress { done_bytes: total_bytes, total_bytes }));
}

#[test]
fn a_large_block_without_references_is_between_others() {
    let large = 5 << 20;
    let mut words = vec![7; large + 2];
    let (last_word, block_after) = (words.len() - 1, BASE + (large as u64 + 1) * 8);
    (words[0], words[last_word]) = (block_after, BASE);
    let mut builder = Builder::default();
    builder.push(BASE, 8);
    builder.push(BASE + 8, large as u64 * 8);
    builder.push(block_after, 8);
    let blocks = builder.finish().unwrap();
    let references = read_references(&Heap { words }, &blocks).unwrap();
    assert_eq!((0..3).map(|block| references.targets(block)).collect::<Vec<_>>(), [&[2][..], &[], &[0]]);
}

#[test]
fn self_references_and_duplicates_are_left_out() {
    let (heap, blocks) =
        heap(4, 0, |block| if block == 1 { vec![0, 0, 1, 0, 2, 0, 3] } else { vec![2] }).unwrap();
    let references = read_references(&heap, &blocks).unwrap();
    assert_eq!(
        (references.targets(0), references.targets(1), references.targets(2)),
        (&[2][..], &[0, 2, 0, 3][..], &[][..])
    );
    assert_eq!(references.targets(3), [2]);
}

#[test]
fn roots_without_a_block_are_ignored_and_references_of_other_blocks_refused() {
    let (heap, blocks) = heap(10, 0, |block| vec![(block + 1) % 10]).unwrap();
    let references = read_references(&heap, &blocks).unwrap();
    let other_blocks = Builder::default().finish().unwrap();
    let refused = Reachability::new(other_blocks, references, Roots::default(), deadline()).err();
    assert_eq!(refused, Some(Refused::BlocksDiffer { count_read: 10, count: 0 }));
    let mut roots = Roots::default();
    roots.add([10, u32::MAX, 11, 3, 12, 3]);
    roots.add([]);
    let tree = dominator_tree(10, 0, |block| vec![(block + 1) % 10], roots).unwrap();
    assert_eq!(
        (tree.retained_by_root(0).blocks, tree.retained_by_root(1).blocks, tree.retained_by_root(2).blocks),
        (10, 0, 0)
    );
    assert_eq!(
        (tree.retained(10).unwrap().blocks, tree.is_unreachable(10), tree.dominator(10)),
        (0, false, Holder::Nothing)
    );
}

#[test]
fn an_empty_heap_has_a_result() {
    let blocks = Builder::default().finish().unwrap();
    let references = read_references(&Heap { words: vec![] }, &blocks).unwrap();
    let graph = Reachability::new(blocks, references, Roots::default(), deadline()).unwrap();
    let tree = graph.held(deadline()).unwrap();
    assert_eq!(
        (tree.reached().blocks, tree.unreachable().definite.blocks, tree.dominator(0)),
        (0, 0, Holder::Nothing)
    );
}

/// Records the words that are reported.
struct RecordingSink(Mutex<Vec<(u32, TypeWord)>>);

impl TypeWordSink for RecordingSink {
    fn callback(&self) -> WordCallback<'_> {
        Box::new(|block, word| {
            if let Ok(mut words) = self.0.lock() {
                words.push((block, word));
            }
        })
    }

    fn type_range(&self) -> AddressRange {
        AddressRange::sized(100, 20)
    }
}

/// Also of a large block that is read in parts, but not of a block whose first page is missing.
#[test]
fn first_words_are_reported_once() {
    let mut builder = Builder::default();
    let mut words: Vec<u64> = (0..8 << 20).map(|word| word as u64 + 7).collect();
    words[2] = 99;
    builder.push(BASE, 16);
    builder.push(BASE + 16, 40 << 20);
    builder.push(BASE + 16 + (40 << 20), 8);
    builder.push(BASE + (1 << 30), 8);
    let blocks = builder.finish().unwrap();
    let sink = RecordingSink(Mutex::default());
    References::read(&Heap { words }, &blocks, KnownBlocks::default(), Some(&sink), &limits(), &|_| ())
        .unwrap();
    let mut reported = sink.0.into_inner().unwrap();
    reported.sort_unstable();
    let all = [(0, TypeWord::First(7)), (1, TypeWord::First(99)), (2, TypeWord::First(2 + (40 << 17) + 7))];
    assert_eq!(reported, all);
}

/// Only words that may be the address of a type, and that follow the address of a block's first
/// byte.
#[test]
fn words_after_addresses_are_reported() {
    let mut builder = Builder::default();
    (0..4).for_each(|block| builder.push(BASE + block * 32, 32));
    let blocks = builder.finish().unwrap();
    // One of the words is not the address of a first byte, one is followed by a word that is no
    // type, and one is at the end.
    let words = [
        [BASE + 32, 101, BASE + 64, 99],
        [BASE + 72, 102, BASE + 32, 103],
        [0, 0, BASE + 96, 119],
        [0, 0, 0, BASE],
    ];
    let sink = RecordingSink(Mutex::default());
    let heap = Heap { words: words.concat() };
    References::read(&heap, &blocks, KnownBlocks::default(), Some(&sink), &limits(), &|_| ()).unwrap();
    let mut reported = sink.0.into_inner().unwrap();
    reported.retain(|(_, word)| matches!(word, TypeWord::AfterReference(_)));
    assert_eq!(
        reported,
        [
            (1, TypeWord::AfterReference(101)),
            (1, TypeWord::AfterReference(103)),
            (3, TypeWord::AfterReference(119))
        ]
    );
}
