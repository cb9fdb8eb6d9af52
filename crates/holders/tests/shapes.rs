//! Heaps of one shape, large enough to reveal recursion or superlinear time.

mod common;

use common::dominator_tree;
use strandline_holders::{Holder, MAX_ROOTS, Roots, Sum};

const BLOCK_COUNT: u32 = 250_000;

fn one_root(block: u32) -> Roots {
    let mut roots = Roots::default();
    roots.add([block]);
    roots
}

#[test]
fn each_block_of_a_long_chain_dominates_the_next() {
    let next = |block| if block + 1 < BLOCK_COUNT { vec![block + 1] } else { vec![] };
    let tree = dominator_tree(BLOCK_COUNT, 0, next, one_root(0)).unwrap();
    assert_eq!(tree.retained_by_root(0), Sum { bytes: u64::from(BLOCK_COUNT) * 8, blocks: BLOCK_COUNT });
    assert_eq!(tree.retained(BLOCK_COUNT - 10).unwrap(), Sum { bytes: 80, blocks: 10 });
    assert_eq!(
        (tree.dominator(BLOCK_COUNT - 1), tree.dominator(0)),
        (Holder::Block(BLOCK_COUNT - 2), Holder::Root(0))
    );
}

#[test]
fn an_unreachable_chain_in_descending_order_has_one_head() {
    let tree = dominator_tree(
        BLOCK_COUNT,
        0,
        |block| if block > 0 { vec![block - 1] } else { vec![] },
        Roots::default(),
    )
    .unwrap();
    assert_eq!(tree.heads().collect::<Vec<_>>(), [BLOCK_COUNT - 1]);
    assert_eq!(
        tree.unreachable().indirect,
        Sum { bytes: u64::from(BLOCK_COUNT - 1) * 8, blocks: BLOCK_COUNT - 1 }
    );
}

/// Block 0 and the end of the list from block 1 refer to the same blocks: the dominator of each is
/// far above.
#[test]
fn a_distant_dominator_is_found_before_the_deadline() {
    let half = BLOCK_COUNT / 2;
    let targets = |block: u32| match block {
        0 => (half..BLOCK_COUNT).chain([1]).collect(),
        block if block + 1 < half => vec![block + 1],
        block if block + 1 == half => (half..BLOCK_COUNT).collect(),
        _ => vec![],
    };
    // Root 0 refers to block 1, so the search follows the list before it sees the other targets of
    // block 0.
    let mut roots = Roots::default();
    roots.add([1]);
    roots.add([0]);
    let tree = dominator_tree(BLOCK_COUNT, 0, targets, roots).unwrap();
    assert_eq!(tree.dominator(BLOCK_COUNT - 1), Holder::Roots);
    assert_eq!(tree.shared().blocks, BLOCK_COUNT - 1);
    assert_eq!(tree.retained_by_root(1).blocks, 1);
}

#[test]
fn one_block_refers_to_all_others_and_they_refer_back() {
    let targets = |block| if block == 0 { (1..BLOCK_COUNT).collect() } else { vec![0] };
    let tree = dominator_tree(BLOCK_COUNT, 0, targets, one_root(BLOCK_COUNT / 2)).unwrap();
    assert_eq!(tree.dominator(BLOCK_COUNT - 1), Holder::Block(0));
    assert_eq!(tree.dominator(0), Holder::Block(BLOCK_COUNT / 2));
    assert_eq!(tree.retained(0).unwrap().blocks, BLOCK_COUNT - 1);
}

#[test]
fn many_roots_share_one_block() {
    let mut roots = Roots::default();
    (0..BLOCK_COUNT).for_each(|root| _ = roots.add([root, BLOCK_COUNT]));
    let tree = dominator_tree(BLOCK_COUNT + 1, 0, |_| vec![], roots).unwrap();
    assert_eq!((tree.dominator(BLOCK_COUNT), tree.dominator(7)), (Holder::Roots, Holder::Root(7)));
    assert_eq!(tree.shared(), Sum { bytes: 8, blocks: 1 });
    let [set] = tree.shared_sets() else { panic!("{:?}", tree.shared_sets()) };
    assert_eq!((set.roots.len(), set.has_more, set.sum), (MAX_ROOTS, true, tree.shared()));
}

/// A list in which each link is referenced by one more root, so that each link has its own set.
#[test]
fn sets_beyond_the_limit_are_merged() {
    let next = |block| if block + 1 < BLOCK_COUNT { vec![block + 1] } else { vec![] };
    let mut roots = Roots::default();
    (0..BLOCK_COUNT).for_each(|root| _ = roots.add([BLOCK_COUNT - 1 - root]));
    let tree = dominator_tree(BLOCK_COUNT, 0, next, roots).unwrap();
    let sum = tree.shared_sets().iter().map(|set| set.sum.blocks).sum::<u32>();
    assert_eq!((sum, tree.shared().blocks), (BLOCK_COUNT - 1, BLOCK_COUNT - 1));
    assert_eq!(tree.each_shared().count() as u32, BLOCK_COUNT - 1);
}

/// A ring with references from two roots at different places, and blocks that it refers to.
#[test]
fn all_blocks_of_a_long_ring_have_one_set_of_roots() {
    let half = BLOCK_COUNT / 2;
    let targets = |block| if block < half { vec![(block + 1) % half, block + half] } else { vec![] };
    let mut roots = Roots::default();
    [[7], [half / 2], [BLOCK_COUNT - 1]].into_iter().for_each(|to| _ = roots.add(to));
    let tree = dominator_tree(BLOCK_COUNT, 0, targets, roots).unwrap();
    let sums: Vec<(&[u32], u32)> =
        tree.shared_sets().iter().map(|set| (set.roots.as_slice(), set.sum.blocks)).collect();
    assert_eq!(sums, [(&[0, 1][..], BLOCK_COUNT - 1), (&[2, 0, 1][..], 1)]);
}

/// Rings of a thousand blocks, whose first blocks form a ring.
#[test]
fn an_unreachable_ring_of_rings_has_one_head() {
    let (ring, count) = (1000, 300_000);
    let targets = |block: u32| {
        let first = block / ring * ring;
        let next = first + (block + 1) % ring;
        if block == first { vec![next, (first + ring) % count] } else { vec![next] }
    };
    let unreachable = dominator_tree(count, 0, targets, Roots::default()).unwrap();
    assert_eq!(unreachable.heads().collect::<Vec<_>>(), [0]);
    assert_eq!(unreachable.retained(ring).unwrap().blocks, count - ring);
    let tree = dominator_tree(count, 0, targets, one_root(5 * ring + 1)).unwrap();
    assert_eq!(tree.unreachable().definite, Sum::default());
    // The first block of the ring that the root refers to comes after all others of that ring.
    assert_eq!(tree.retained(5 * ring).unwrap().blocks, count - ring + 1);
    assert_eq!(tree.dominator(5 * ring), Holder::Block(6 * ring - 1));
}
