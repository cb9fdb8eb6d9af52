//! The objects of a heap and their references, drawn from a seed; and what is reachable from the
//! roots.

use super::{SBCL_TYPES, SbclRecipe, SbclRelease};
use crate::Rng;

/// Kind and size of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Cons,
    /// Type, and number of slots.
    Instance(usize, u64),
    Vector(u64),
    Bytes(u64),
    Text(u64),
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
    pub fn links(self) -> u64 {
        match self {
            Self::Cons => 2,
            Self::Instance(_, count) | Self::Vector(count) | Self::Closure(count) | Self::Code(count) => {
                count
            }
            Self::ValueCell | Self::WeakPointer => 1,
            Self::Bytes(_) | Self::Text(_) | Self::Bignum(_) => 0,
        }
    }

    /// Its size, a multiple of 16. From 2.2 on a weak pointer's link to the next is in its header.
    pub fn bytes(self, release: SbclRelease) -> u64 {
        let bytes = match self {
            Self::Cons | Self::ValueCell => 16,
            Self::Instance(_, slots) => 8 + 8 * slots,
            Self::Vector(length) => 16 + 8 * length,
            Self::Bytes(length) => 16 + length,
            Self::Text(length) => 16 + length + 1,
            Self::Bignum(digits) => 8 + 8 * digits,
            Self::WeakPointer => {
                if release == SbclRelease::V2_1_1 {
                    32
                } else {
                    16
                }
            }
            Self::Closure(values) => 16 + 8 * values,
            // Header, boxed size, debug information, fixups, constants; a function of 8 words; its
            // table of 16 bytes.
            Self::Code(constants) => 32 + 8 * (constants + constants % 2) + 64 + 16,
        };
        bytes.next_multiple_of(16)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub shape: Shape,
    pub generation: u8,
    /// Targets of those of its words that may be references.
    pub links: Vec<Option<usize>>,
}

/// Objects and roots.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    pub nodes: Vec<Node>,
    /// Targets of threads' stacks, bindings and thread-local values, and of static symbols.
    pub roots: Vec<usize>,
    pub is_live: Vec<bool>,
}

const GENERATIONS: [u8; 12] = [0, 0, 0, 1, 1, 1, 2, 2, 3, 5, 6, 6];

fn shape(dice: &mut Rng) -> Shape {
    let is_long = dice.chance(10);
    match dice.below(20) {
        0..6 => Shape::Cons,
        6..10 => Shape::Instance(dice.below(SBCL_TYPES.len() as u64) as usize, 1 + dice.below(12)),
        10..12 => Shape::Vector(dice.below(if is_long { 6000 } else { 40 })),
        12..14 => Shape::Bytes(dice.below(if is_long { 50_000 } else { 200 })),
        14 => Shape::Text(dice.below(100)),
        15 => Shape::Bignum(1 + dice.below(10)),
        16 => Shape::ValueCell,
        17 => Shape::WeakPointer,
        18 => Shape::Closure(1 + dice.below(4)),
        _ => Shape::Code(dice.below(5)),
    }
}

pub(super) fn graph(recipe: &SbclRecipe) -> Graph {
    let mut dice = Rng::new(recipe.seed ^ 0x6ea9);
    // The first object is the code of all closures.
    let mut shapes = vec![(Shape::Code(1), 6)];
    for _ in 0..recipe.objects {
        shapes.push((shape(&mut dice), dice.one_of(&GENERATIONS)));
    }
    for _ in 0..recipe.large_objects {
        let generation = dice.one_of(&GENERATIONS);
        let length = 16_500 + dice.below(20_000);
        shapes.push(if dice.chance(50) {
            (Shape::Vector(length), generation)
        } else {
            (Shape::Bytes(length * 8), generation)
        });
    }
    let count = shapes.len() as u64;
    let nodes: Vec<Node> = shapes
        .into_iter()
        .map(|(shape, generation)| {
            // Only the first words of a long vector are references: otherwise everything would be
            // reachable.
            let link = |at: u64, dice: &mut Rng| {
                (at < 4 && dice.chance(recipe.link_percent)).then(|| dice.below(count) as usize)
            };
            let links = (0..shape.links()).map(|at| link(at, &mut dice)).collect();
            Node { shape, generation, links }
        })
        .collect();
    let roots: Vec<usize> = (0..recipe.roots).map(|_| dice.below(count) as usize).collect();
    let is_live = reached(&nodes, &roots);
    Graph { nodes, roots, is_live }
}

/// Finds what is reachable. Weak pointers keep nothing; pseudo-static objects are roots.
fn reached(nodes: &[Node], roots: &[usize]) -> Vec<bool> {
    let mut is_live = vec![false; nodes.len()];
    let mut open: Vec<usize> = roots.to_vec();
    open.extend(nodes.iter().enumerate().filter(|(_, node)| node.generation == 6).map(|(at, _)| at));
    while let Some(at) = open.pop() {
        if std::mem::replace(&mut is_live[at], true) {
            continue;
        }
        let node = &nodes[at];
        if node.shape != Shape::WeakPointer {
            open.extend(node.links.iter().flatten());
        }
        if matches!(node.shape, Shape::Closure(_)) {
            open.push(0);
        }
    }
    is_live
}
