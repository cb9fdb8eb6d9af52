//! The objects of a heap and their references, drawn from a seed; and what is reachable from the
//! roots.

use super::{PSEUDO_STATIC, SBCL_TYPES, SbclRecipe, SbclRelease};
use crate::Rng;

/// Kind and size of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Cons,
    Instance {
        /// Index of its type in [`SBCL_TYPES`].
        type_index: usize,
        slots: u64,
    },
    /// Number of elements.
    Vector(u64),
    /// Number of bytes.
    Bytes(u64),
    /// Number of characters, of a byte each.
    Text(u64),
    /// Number of digits, of a word each.
    Bignum(u64),
    ValueCell,
    WeakPointer,
    /// Number of values; the function is that of the first code object.
    Closure(u64),
    /// Number of constants; there is one function.
    Code(u64),
}

impl Shape {
    /// Number of its words that may be references.
    pub fn link_count(self) -> u64 {
        match self {
            Self::Cons => 2,
            Self::Instance { slots: count, .. }
            | Self::Vector(count)
            | Self::Closure(count)
            | Self::Code(count) => count,
            Self::ValueCell | Self::WeakPointer => 1,
            Self::Bytes(_) | Self::Text(_) | Self::Bignum(_) => 0,
        }
    }

    /// Its size, a multiple of 16. From 2.2 on a weak pointer's link to the next is in its header.
    pub fn bytes(self, release: SbclRelease) -> u64 {
        let bytes = match self {
            Self::Cons | Self::ValueCell => 16,
            Self::Instance { slots, .. } => 8 + 8 * slots,
            Self::Vector(length) => 16 + 8 * length,
            Self::Bytes(length) => 16 + length,
            Self::Text(length) => 16 + length + 1,
            Self::Bignum(digits) => 8 + 8 * digits,
            Self::WeakPointer if release == SbclRelease::V2_1_1 => 32,
            Self::WeakPointer => 16,
            Self::Closure(values) => 16 + 8 * values,
            // Header, boxed size, debug information, fixups, constants; a function of 8 words; its
            // table of 16 bytes.
            Self::Code(constants) => 32 + 8 * (constants + constants % 2) + 64 + 16,
        };
        bytes.next_multiple_of(16)
    }
}

/// An object.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub shape: Shape,
    pub generation: u8,
    /// By word that may be a reference, the index of its target.
    pub links: Vec<Option<usize>>,
}

/// Objects and roots.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    pub nodes: Vec<Node>,
    /// Indexes of the targets of threads' stacks, bindings and thread-local values, and of static
    /// symbols.
    pub roots: Vec<usize>,
    /// By node, whether it is reachable.
    pub is_live: Vec<bool>,
}

/// Generations to draw from; 4 stays empty.
const GENERATIONS: [u8; 12] = [0, 0, 0, 1, 1, 1, 2, 2, 3, 5, 6, 6];

/// Only the first words of an object refer to others: otherwise long vectors would make everything
/// reachable.
const MAX_LINKS: u64 = 4;
/// A vector of more words is larger than four pages of 32 KiB.
const LARGE_WORDS: u64 = 16_500;

fn draw_shape(rng: &mut Rng) -> Shape {
    let is_long = rng.chance(10);
    match rng.below(20) {
        0..6 => Shape::Cons,
        6..10 => {
            let type_index = rng.below(SBCL_TYPES.len() as u64) as usize;
            Shape::Instance { type_index, slots: 1 + rng.below(12) }
        }
        10..12 => Shape::Vector(rng.below(if is_long { 6000 } else { 40 })),
        12..14 => Shape::Bytes(rng.below(if is_long { 50_000 } else { 200 })),
        14 => Shape::Text(rng.below(100)),
        15 => Shape::Bignum(1 + rng.below(10)),
        16 => Shape::ValueCell,
        17 => Shape::WeakPointer,
        18 => Shape::Closure(1 + rng.below(4)),
        _ => Shape::Code(rng.below(5)),
    }
}

/// Draws the graph of `recipe`.
pub(super) fn draw_graph(recipe: &SbclRecipe) -> Graph {
    let mut rng = Rng::new(recipe.seed ^ 0x6ea9);
    // The first object is the code of all closures.
    let mut shapes = vec![(Shape::Code(1), PSEUDO_STATIC)];
    for _ in 0..recipe.objects {
        shapes.push((draw_shape(&mut rng), rng.one_of(&GENERATIONS)));
    }
    for _ in 0..recipe.large_objects {
        let generation = rng.one_of(&GENERATIONS);
        let length = LARGE_WORDS + rng.below(20_000);
        shapes.push(if rng.chance(50) {
            (Shape::Vector(length), generation)
        } else {
            (Shape::Bytes(length * 8), generation)
        });
    }
    let count = shapes.len() as u64;
    let nodes: Vec<Node> = shapes
        .into_iter()
        .map(|(shape, generation)| {
            let link = |word: u64, rng: &mut Rng| {
                (word < MAX_LINKS && rng.chance(recipe.link_percent)).then(|| rng.below(count) as usize)
            };
            let links = (0..shape.link_count()).map(|word| link(word, &mut rng)).collect();
            Node { shape, generation, links }
        })
        .collect();
    let roots: Vec<usize> = (0..recipe.roots).map(|_| rng.below(count) as usize).collect();
    let is_live = find_live(&nodes, &roots);
    Graph { nodes, roots, is_live }
}

/// Finds what is reachable. Weak pointers keep nothing; pseudo-static objects are roots.
fn find_live(nodes: &[Node], roots: &[usize]) -> Vec<bool> {
    let mut is_live = vec![false; nodes.len()];
    let mut pending: Vec<usize> = roots.to_vec();
    pending.extend((0..nodes.len()).filter(|&index| nodes[index].generation == PSEUDO_STATIC));
    while let Some(index) = pending.pop() {
        if std::mem::replace(&mut is_live[index], true) {
            continue;
        }
        let node = &nodes[index];
        if node.shape != Shape::WeakPointer {
            pending.extend(node.links.iter().flatten());
        }
        // The function of a closure is in the first object.
        if matches!(node.shape, Shape::Closure(_)) {
            pending.push(0);
        }
    }
    is_live
}
