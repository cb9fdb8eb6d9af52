//! Heaps of one shape, large enough to reveal recursion or superlinear time.

mod common;

use common::held;
use strandline_holders::{Holder, MAX_ROOTS, Roots, Sum};

const BLOCK_COUNT: u32 = 250_000;

fn one_root(block: u32) -> Roots {
    let mut roots = Roots::default();
    roots.add([block]);
    roots
}

#[test]
fn a_long_chain_is_held_link_by_link() {
    let next = |block| if block + 1 < BLOCK_COUNT { vec![block + 1] } else { vec![] };
    let held = held((BLOCK_COUNT, 0), next, one_root(0)).unwrap();
    assert_eq!(held.retained_by_root(0), Sum { bytes: u64::from(BLOCK_COUNT) * 8, blocks: BLOCK_COUNT });
    assert_eq!(held.retained(BLOCK_COUNT - 10).unwrap(), Sum { bytes: 80, blocks: 10 });
    assert_eq!(
        (held.dominator(BLOCK_COUNT - 1), held.dominator(0)),
        (Holder::Block(BLOCK_COUNT - 2), Holder::Root(0))
    );
}

#[test]
fn a_long_chain_that_goes_against_the_order_is_lost_at_its_end() {
    let held =
        held((BLOCK_COUNT, 0), |block| if block > 0 { vec![block - 1] } else { vec![] }, Roots::default())
            .unwrap();
    assert_eq!(held.heads().collect::<Vec<_>>(), [BLOCK_COUNT - 1]);
    assert_eq!(held.lost().indirect, Sum { bytes: u64::from(BLOCK_COUNT - 1) * 8, blocks: BLOCK_COUNT - 1 });
}

/// The end of a list refers to many blocks that the root refers to as well: the dominator of each
/// is far above.
#[test]
fn blocks_at_the_end_of_a_list_that_the_root_also_refers_to_take_no_longer() {
    let half = BLOCK_COUNT / 2;
    let targets = |block: u32| match block {
        0 => (half..BLOCK_COUNT).chain([1]).collect(),
        block if block + 1 < half => vec![block + 1],
        block if block + 1 == half => (half..BLOCK_COUNT).collect(),
        _ => vec![],
    };
    // The list is searched first: its second block is referenced by a root, and the targets of the
    // first are seen later.
    let mut roots = Roots::default();
    roots.add([1]);
    roots.add([0]);
    let held = held((BLOCK_COUNT, 0), targets, roots).unwrap();
    assert_eq!(held.dominator(BLOCK_COUNT - 1), Holder::Roots);
    assert_eq!(held.shared().blocks, BLOCK_COUNT - 1);
    assert_eq!(held.retained_by_root(1).blocks, 1);
}

#[test]
fn one_block_leads_to_all_and_all_back() {
    let targets = |block| if block == 0 { (1..BLOCK_COUNT).collect() } else { vec![0] };
    let held = held((BLOCK_COUNT, 0), targets, one_root(BLOCK_COUNT / 2)).unwrap();
    assert_eq!(held.dominator(BLOCK_COUNT - 1), Holder::Block(0));
    assert_eq!(held.dominator(0), Holder::Block(BLOCK_COUNT / 2));
    assert_eq!(held.retained(0).unwrap().blocks, BLOCK_COUNT - 1);
}

#[test]
fn many_roots_share_one_block() {
    let mut roots = Roots::default();
    (0..BLOCK_COUNT).for_each(|root| _ = roots.add([root, BLOCK_COUNT]));
    let held = held((BLOCK_COUNT + 1, 0), |_| vec![], roots).unwrap();
    assert_eq!((held.dominator(BLOCK_COUNT), held.dominator(7)), (Holder::Roots, Holder::Root(7)));
    assert_eq!(held.shared(), Sum { bytes: 8, blocks: 1 });
    let [set] = held.shared_sets() else { panic!("{:?}", held.shared_sets()) };
    assert_eq!((set.roots.len(), set.has_more, set.sum), (MAX_ROOTS, true, held.shared()));
}

/// A list in which each link is referenced by one more root, so that each link has its own set.
#[test]
fn sets_beyond_the_limit_are_merged() {
    let next = |block| if block + 1 < BLOCK_COUNT { vec![block + 1] } else { vec![] };
    let mut roots = Roots::default();
    (0..BLOCK_COUNT).for_each(|root| _ = roots.add([BLOCK_COUNT - 1 - root]));
    let held = held((BLOCK_COUNT, 0), next, roots).unwrap();
    let sum = held.shared_sets().iter().map(|set| set.sum.blocks).sum::<u32>();
    assert_eq!((sum, held.shared().blocks), (BLOCK_COUNT - 1, BLOCK_COUNT - 1));
    assert_eq!(held.each_shared().count() as u32, BLOCK_COUNT - 1);
}

/// A ring with references from two roots at different places, and blocks that it refers to.
#[test]
fn a_long_ring_is_of_one_set() {
    let half = BLOCK_COUNT / 2;
    let targets = |block| if block < half { vec![(block + 1) % half, block + half] } else { vec![] };
    let mut roots = Roots::default();
    [[7], [half / 2], [BLOCK_COUNT - 1]].into_iter().for_each(|to| _ = roots.add(to));
    let held = held((BLOCK_COUNT, 0), targets, roots).unwrap();
    let sums: Vec<(&[u32], u32)> =
        held.shared_sets().iter().map(|set| (set.roots.as_slice(), set.sum.blocks)).collect();
    assert_eq!(sums, [(&[0, 1][..], BLOCK_COUNT - 1), (&[2, 0, 1][..], 1)]);
}

/// Rings of a thousand blocks, whose first blocks form a ring.
#[test]
fn a_ring_of_rings_is_lost_as_one() {
    let (ring, count) = (1000, 300_000);
    let targets = |block: u32| {
        let first = block / ring * ring;
        let next = first + (block + 1) % ring;
        if block == first { vec![next, (first + ring) % count] } else { vec![next] }
    };
    let lost = held((count, 0), targets, Roots::default()).unwrap();
    assert_eq!(lost.heads().collect::<Vec<_>>(), [0]);
    assert_eq!(lost.retained(ring).unwrap().blocks, count - ring);
    let held = held((count, 0), targets, one_root(5 * ring + 1)).unwrap();
    assert_eq!(held.lost().definite, Sum::default());
    // The first block of the ring that the root refers to comes after all others of that ring.
    assert_eq!(held.retained(5 * ring).unwrap().blocks, count - ring + 1);
    assert_eq!(held.dominator(5 * ring), Holder::Block(6 * ring - 1));
}
