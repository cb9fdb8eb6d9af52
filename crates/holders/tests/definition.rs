//! Results for random graphs match the definitions, which are evaluated one vertex at a time.

mod common;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::collection::SizeRange;
use proptest::prelude::*;
use strandline_holders::{DominatorTree, Holder, MAX_ROOTS, Outline, Roots, SEVERAL, SharedSet, Sum};

/// A graph of blocks and roots, as lists.
#[derive(Clone, Debug)]
struct Graph {
    edges: Vec<Vec<u32>>,
    roots: Vec<Vec<u32>>,
}

impl Graph {
    /// Number of steps in which each block is reached from the given ones if the block `without` is
    /// removed.
    fn reached(&self, from: &[u32], without: Option<u32>) -> Vec<Option<u32>> {
        let mut steps = vec![None; self.edges.len()];
        let mut queue: VecDeque<(u32, u32)> = from.iter().map(|&block| (block, 0)).collect();
        while let Some((block, step)) = queue.pop_front() {
            if Some(block) != without && steps[block as usize].is_none() {
                steps[block as usize] = Some(step);
                queue.extend(self.edges[block as usize].iter().map(|&target| (target, step + 1)));
            }
        }
        steps
    }

    fn root_targets(&self, without: Option<usize>) -> Vec<u32> {
        let roots = self.roots.iter().enumerate().filter(|(root, _)| Some(*root) != without);
        roots.flat_map(|(_, blocks)| blocks.iter().copied()).collect()
    }

    fn bytes(&self, block: usize) -> u64 {
        (self.edges[block].len() as u64 + 1) * 8
    }

    fn sum(&self, is_in: impl Fn(usize) -> bool) -> Sum {
        let blocks: Vec<usize> = (0..self.edges.len()).filter(|&block| is_in(block)).collect();
        Sum { bytes: blocks.iter().map(|&block| self.bytes(block)).sum(), blocks: blocks.len() as u32 }
    }

    /// The lowest unreachable block of each cycle, or single block, that no other unreachable block
    /// leads to.
    fn heads(&self, is_unreachable: &[bool]) -> Vec<u32> {
        let count = self.edges.len();
        let leads: Vec<Vec<bool>> = (0..count as u32)
            .map(|block| self.reached(&[block], None).iter().map(Option::is_some).collect())
            .collect();
        let is_head = |block: usize| {
            let above =
                (0..count).filter(|&other| other != block && is_unreachable[other] && leads[other][block]);
            above.into_iter().all(|other| leads[block][other] && other > block)
        };
        (0..count)
            .filter(|&block| is_unreachable[block] && is_head(block))
            .map(|block| block as u32)
            .collect()
    }
}

/// Graphs of `count` blocks, each with `targets`, and of roots with `root_degree` targets each.
fn graphs_of(
    count: u32,
    targets: impl Strategy<Value = Vec<u32>>,
    roots: impl Into<SizeRange>,
    root_degree: impl Into<SizeRange>,
) -> impl Strategy<Value = Graph> {
    let edges = prop::collection::vec(targets, count as usize);
    let roots = prop::collection::vec(prop::collection::vec(0..count, root_degree), roots);
    (edges, roots).prop_map(|(edges, roots)| Graph { edges, roots })
}

fn graphs() -> impl Strategy<Value = Graph> {
    (1..60_u32, 0..5_usize, 0..4_usize).prop_flat_map(|(count, roots, degree)| {
        graphs_of(count, prop::collection::vec(0..count, 0..=degree), roots, 0..4)
    })
}

/// Graphs with more roots than a set can list, and long paths between their targets.
fn graphs_of_many_roots() -> impl Strategy<Value = Graph> {
    (20..80_u32, 20..60_usize)
        .prop_flat_map(|(count, roots)| graphs_of(count, prop::collection::vec(0..count, 0..=2), roots, 0..3))
}

/// Graphs of several groups of blocks, in which some blocks refer to hundreds of others.
fn large_graphs() -> impl Strategy<Value = Graph> {
    (100..260_u32).prop_flat_map(|count| {
        let few = prop::collection::vec(0..count, 0..3).boxed();
        let many = prop::collection::vec(0..count, 240..620).boxed();
        graphs_of(count, prop_oneof![60 => few, 1 => many], 1..4, 0..4)
    })
}

/// Checks all results for a graph.
fn assert_as_defined(graph: &Graph) -> Result<(), TestCaseError> {
    let count = graph.edges.len();
    let mut roots = Roots::default();
    graph.roots.iter().for_each(|blocks| _ = roots.add(blocks.iter().copied()));
    let tree = common::dominator_tree(count as u32, 1, |block| graph.edges[block as usize].clone(), roots);
    let Ok(tree) = tree else { return Err(TestCaseError::fail("refused")) };

    let steps = graph.reached(&graph.root_targets(None), None);
    let is_unreachable: Vec<bool> = steps.iter().map(Option::is_none).collect();
    let heads = graph.heads(&is_unreachable);
    prop_assert_eq!(tree.reached(), graph.sum(|block| !is_unreachable[block]));
    prop_assert_eq!(tree.heads().collect::<Vec<_>>(), heads.clone());
    let definite = graph.sum(|block| heads.contains(&(block as u32)));
    prop_assert_eq!(tree.unreachable().definite, definite);
    prop_assert_eq!(tree.unreachable().indirect, graph.sum(|block| is_unreachable[block]) - definite);

    // What becomes unreachable without a root, or without a block, is what it retains.
    let mut alone = Sum::default();
    for root in 0..graph.roots.len() {
        let without = graph.reached(&graph.root_targets(Some(root)), None);
        let retained = graph.sum(|block| !is_unreachable[block] && without[block].is_none());
        prop_assert_eq!(tree.retained_by_root(root as u32), retained);
        alone = Sum { bytes: alone.bytes + retained.bytes, blocks: alone.blocks + retained.blocks };
    }
    prop_assert_eq!(tree.shared(), tree.reached() - alone);
    let mut dominates = vec![vec![false; count]; count];
    for (block, dominates) in dominates.iter_mut().enumerate() {
        let from = if is_unreachable[block] { heads.clone() } else { graph.root_targets(None) };
        let without = graph.reached(&from, Some(block as u32));
        let is_dominated =
            |other: usize| is_unreachable[other] == is_unreachable[block] && without[other].is_none();
        (0..count).for_each(|other| dominates[other] = is_dominated(other));
        prop_assert_eq!(tree.retained(block as u32).ok(), Some(graph.sum(is_dominated)));
        prop_assert_eq!(tree.is_unreachable(block as u32), is_unreachable[block]);
    }
    for block in 0..count {
        let above: Vec<usize> =
            (0..count).filter(|&other| other != block && dominates[other][block]).collect();
        // The nearest dominator is the one that all others dominate.
        let nearest = above.iter().find(|&&one| above.iter().all(|&other| dominates[other][one]));
        let alone = |root: &usize| graph.reached(&graph.root_targets(Some(*root)), None)[block].is_none();
        let expected_holder = match nearest {
            Some(&nearest) => Holder::Block(nearest as u32),
            None if is_unreachable[block] => Holder::Nothing,
            None => {
                (0..graph.roots.len()).find(alone).map_or(Holder::Roots, |root| Holder::Root(root as u32))
            }
        };
        prop_assert_eq!(tree.dominator(block as u32), expected_holder);
        let (_, chain) = dominators(&tree, block as u32);
        prop_assert_eq!(chain.len(), above.len() + 1);
        prop_assert!(chain.iter().all(|&one| dominates[one as usize][block]));
    }
    assert_shared(&tree, graph)?;
    assert_outlined(&tree, count)
}

/// The holder of the topmost block that dominates `block`, and all these blocks from there down to
/// `block` itself.
fn dominators(tree: &DominatorTree, block: u32) -> (Holder, Vec<u32>) {
    let mut chain = vec![block];
    loop {
        match tree.dominator(chain[chain.len() - 1]) {
            Holder::Block(above) => chain.push(above),
            top => {
                chain.reverse();
                return (top, chain);
            }
        }
    }
}

/// Identity of a set of roots.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// The lowest roots, in order.
    roots: Vec<u32>,
    has_more: bool,
}

fn key(set: &SharedSet) -> Key {
    let mut roots = set.roots.clone();
    roots.sort_unstable();
    Key { roots, has_more: set.has_more }
}

/// The set of each block that no single root retains. The order of roots is ignored: it depends on
/// words, and the compared heaps have different ones.
fn keys(tree: &DominatorTree) -> BTreeMap<u32, Key> {
    tree.each_shared().map(|(block, set)| (block, key(&tree.shared_sets()[set]))).collect()
}

/// Each block that no single root retains is in the set of the roots that reach it. Sets are in
/// order of their bytes, and their roots in order of direct references: from the root, or from what
/// it alone retains.
fn assert_shared(tree: &DominatorTree, graph: &Graph) -> Result<(), TestCaseError> {
    let count = graph.edges.len();
    let reached: Vec<Vec<bool>> = (0..graph.roots.len())
        .map(|root| graph.reached(&graph.roots[root], None).iter().map(Option::is_some).collect())
        .collect();
    let roots_reaching = |block: usize| -> Vec<u32> {
        (0..graph.roots.len() as u32).filter(|&root| reached[root as usize][block]).collect()
    };
    let Ok(sole_roots) = tree.sole_roots() else { return Err(TestCaseError::fail("refused")) };
    let mut expected: BTreeMap<Key, BTreeSet<u32>> = BTreeMap::new();
    for block in (0..count).filter(|&block| sole_roots[block] == SEVERAL) {
        let mut roots = roots_reaching(block);
        prop_assert!(roots.len() > 1);
        let has_more = roots.len() > MAX_ROOTS;
        roots.truncate(MAX_ROOTS);
        expected.entry(Key { roots, has_more }).or_default().insert(block as u32);
    }
    let sets = tree.shared_sets();
    let mut found: BTreeMap<Key, BTreeSet<u32>> = BTreeMap::new();
    tree.each_shared().for_each(|(block, set)| _ = found.entry(key(&sets[set])).or_default().insert(block));
    prop_assert_eq!(&found, &expected);
    prop_assert_eq!(sets.len(), expected.len());
    prop_assert!(sets.is_sorted_by(|one, next| one.sum.bytes >= next.sum.bytes));
    for set in sets {
        let blocks = &expected[&key(set)];
        prop_assert_eq!(set.sum, graph.sum(|block| blocks.contains(&(block as u32))));
        // The first of consecutive words with the same target counts; words that point into their
        // own block do not.
        let into = |from: &[u32], own: Option<u32>| {
            let mut from = from.to_vec();
            from.dedup();
            from.iter().filter(|&target| blocks.contains(target) && Some(*target) != own).count()
        };
        let direct = |root: u32| {
            let alone = (0..count).filter(|&block| sole_roots[block] == root);
            let of_root = graph.roots[root as usize].iter().filter(|target| blocks.contains(target)).count();
            alone.map(|block| into(&graph.edges[block], Some(block as u32))).sum::<usize>() + of_root
        };
        let direct: Vec<usize> = set.roots.iter().map(|&root| direct(root)).collect();
        prop_assert!(direct.is_sorted_by(|one, next| one >= next), "{:?} of {:?}", direct, set);
    }
    let mut sum = Sum::default();
    sets.iter().for_each(|set| sum += set.sum);
    prop_assert_eq!(sum, tree.shared());
    Ok(())
}

/// Each block is in the node given by the kinds of its dominators, with equal kinds in a row as
/// one.
fn assert_outlined(tree: &DominatorTree, count: usize) -> Result<(), TestCaseError> {
    let kinds: Vec<u16> = (0..count as u16).map(|block| block * 7 % 3).collect();
    let Ok(outline) = tree.outline(&kinds) else { return Err(TestCaseError::fail("refused")) };
    let mut expected: BTreeMap<Vec<u32>, (Sum, u32)> = BTreeMap::new();
    for block in 0..count {
        let (top, chain) = dominators(tree, block as u32);
        let chain_kinds: Vec<u16> = chain.iter().map(|&one| kinds[one as usize]).collect();
        let mut path = vec![match top {
            Holder::Root(root) => Outline::root_node(root),
            Holder::Nothing => Outline::UNREACHABLE,
            _ => Outline::SEVERAL,
        }];
        path.extend(chain_kinds.chunk_by(|one, next| one == next).map(|kinds| u32::from(kinds[0])));
        let is_chained = chain_kinds.len() > 1 && chain_kinds[chain_kinds.len() - 2] == kinds[block];
        let (own, chained) = expected.entry(path).or_default();
        *own = Sum { bytes: own.bytes + tree.blocks().bytes(block as u32), blocks: own.blocks + 1 };
        *chained += u32::from(is_chained);
    }
    let mut found = BTreeMap::new();
    for (number, node) in outline.block_nodes() {
        let mut path = vec![node.kind];
        let mut at = node.parent;
        while outline.nodes()[at as usize].parent != at {
            path.push(outline.nodes()[at as usize].kind);
            at = outline.nodes()[at as usize].parent;
        }
        path.push(at);
        path.reverse();
        found.insert(path, (node.own_sum, node.chained_blocks));
        prop_assert!(node.parent < number);
    }
    prop_assert_eq!(found, expected);
    for root in 0..tree.root_count() {
        prop_assert_eq!(
            outline.nodes()[Outline::root_node(root) as usize].retained,
            tree.retained_by_root(root)
        );
    }
    prop_assert_eq!(outline.nodes()[Outline::SEVERAL as usize].retained, tree.shared());
    Ok(())
}

/// A graph whose first roots are named and whose last roots form another class, and the stop blocks
/// of named roots.
fn graphs_of_classes() -> impl Strategy<Value = (Graph, [usize; 2], Vec<u32>)> {
    graphs().prop_flat_map(|graph| {
        let (count, roots) = (graph.edges.len() as u32, graph.roots.len());
        let classes = (0..=roots, 0..=roots).prop_map(|(one, next)| [one.min(next), one.max(next)]);
        (Just(graph), classes, prop::collection::vec(0..count, 0..6))
    })
}

/// The equivalent graph with roots of one class: later classes lose their references to what an
/// earlier class reaches, and stop blocks are referenced by the first root that is not named, which
/// follows the named ones.
fn as_single_class(graph: &Graph, [named, passing]: [usize; 2], stops: &[u32]) -> Graph {
    let mut single_class = graph.clone();
    single_class.roots.insert(named, Vec::new());
    let mut stopped: Vec<u32> = Vec::new();
    let mut is_reached = vec![false; graph.edges.len()];
    for class in [0..named, named..passing + 1, passing + 1..single_class.roots.len()] {
        let is_named = class.end <= named;
        if class.start == named {
            single_class.roots[named].extend(&stopped);
        }
        let mut cut = |targets: &mut Vec<u32>, is_reached: &[bool]| {
            let is_stop = |target: &u32| is_named && stops.contains(target);
            stopped.extend(targets.iter().filter(|target| is_stop(target)));
            targets.retain(|target| !is_reached[*target as usize] && !is_stop(target));
        };
        class.clone().for_each(|root| cut(&mut single_class.roots[root], &is_reached));
        let mut pending: Vec<u32> = single_class.roots[class].iter().flatten().copied().collect();
        let mut is_reached_now = is_reached.clone();
        while let Some(block) = pending.pop() {
            if !std::mem::replace(&mut is_reached_now[block as usize], true) {
                cut(&mut single_class.edges[block as usize], &is_reached);
                pending.extend(&single_class.edges[block as usize]);
            }
        }
        is_reached = is_reached_now;
    }
    single_class
}

fn assert_classes(graph: &Graph, classes: [usize; 2], stops: &[u32]) -> Result<(), TestCaseError> {
    let count = graph.edges.len() as u32;
    let mut roots = Roots::default();
    for (root, blocks) in graph.roots.iter().enumerate() {
        if root == classes[0] {
            roots.end_named_class();
            roots.add_with_stops([], stops.iter().copied());
        }
        if root == classes[1] {
            roots.begin_class();
        }
        roots.add(blocks.iter().copied());
    }
    if classes[0] == graph.roots.len() {
        roots.end_named_class();
        roots.add_with_stops([], stops.iter().copied());
    }
    let tree = common::dominator_tree(count, 1, |block| graph.edges[block as usize].clone(), roots);
    let single_class = as_single_class(graph, classes, stops);
    let mut roots = Roots::default();
    single_class.roots.iter().for_each(|blocks| _ = roots.add(blocks.iter().copied()));
    let words = |block: u32| graph.edges[block as usize].len() + 1;
    let targets = |block: u32| {
        let mut targets = single_class.edges[block as usize].clone();
        // As many words as before: those that point to the block itself are not references.
        targets.resize(words(block) - 1, block);
        targets
    };
    let expected = common::dominator_tree(count, 1, targets, roots);
    let (Ok(tree), Ok(expected)) = (tree, expected) else { return Err(TestCaseError::fail("refused")) };
    // The classes lose nothing: the same blocks are reached without them.
    let steps = graph.reached(&graph.root_targets(None), None);
    for block in 0..count {
        prop_assert_eq!(tree.is_unreachable(block), steps[block as usize].is_none());
        prop_assert_eq!(tree.dominator(block), expected.dominator(block));
    }
    prop_assert_eq!(tree.unreachable(), expected.unreachable());
    prop_assert_eq!(keys(&tree), keys(&expected));
    for root in 0..tree.root_count() {
        prop_assert_eq!(tree.retained_by_root(root), expected.retained_by_root(root));
    }
    Ok(())
}

proptest! {
    #[test]
    fn classes_of_roots_are_as_defined((graph, classes, stops) in graphs_of_classes()) {
        assert_classes(&graph, classes, &stops)?;
    }

    #[test]
    fn random_graphs_of_many_roots_are_as_defined(graph in graphs_of_many_roots()) {
        assert_as_defined(&graph)?;
    }

    #[test]
    fn random_graphs_are_as_defined(graph in graphs()) {
        assert_as_defined(&graph)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn random_graphs_of_many_references_are_as_defined(graph in large_graphs()) {
        assert_as_defined(&graph)?;
    }
}

#[test]
fn the_graph_of_the_paper_is_as_defined() {
    // Lengauer and Tarjan 1979, figure 1: R, A to L.
    let edges = [
        vec![1, 2, 3],
        vec![4],
        vec![1, 4, 5],
        vec![6, 7],
        vec![12],
        vec![8],
        vec![9],
        vec![9, 10],
        vec![5, 11],
        vec![11],
        vec![9],
        vec![9, 0],
        vec![8],
    ];
    let graph = Graph { edges: edges.to_vec(), roots: vec![vec![0]] };
    assert_as_defined(&graph).unwrap();
}
