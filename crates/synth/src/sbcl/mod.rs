//! Fabricated SBCL heaps: dynamic space with its page table, threads with their stacks and
//! thread-local values, static and immobile space, the runtime's variables. What is live is known
//! by construction.
//!
//! A heap is a graph of objects drawn from a seed. What is reachable from roots is live;
//! pseudo-static objects are roots.

mod damage;
mod graph;
mod image;
mod release;
mod space;
mod threads;

pub use release::{SBCL_RELEASES, SbclRelease};

use crate::{Image, Mapping, Rng};

/// Generations 0 to 5, 6 for what came with the core, 7 as scratch.
pub const SBCL_GENERATIONS: usize = 8;
/// The generation of what came with the core, which is never collected.
const PSEUDO_STATIC: u8 = 6;
/// The structures that have instances.
pub const SBCL_TYPES: [&str; 3] = ["MESSAGE", "ACTOR", "NODE"];

/// Parameters of a fabricated heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SbclRecipe {
    /// The release whose layout it has.
    pub release: SbclRelease,
    /// Chooses shapes, links and places.
    pub seed: u64,
    /// Number of objects.
    pub objects: usize,
    /// Number of objects that are larger than four pages.
    pub large_objects: usize,
    /// Number of threads; at least 1.
    pub threads: usize,
    /// Percentage of the possible links that exist.
    pub link_percent: u64,
    /// Number of roots of all kinds.
    pub roots: usize,
}

impl SbclRecipe {
    /// Draws a recipe from `seed`.
    pub fn from_seed(release: SbclRelease, seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5bc1);
        Self {
            release,
            seed,
            objects: 50 + rng.below(4000) as usize,
            large_objects: rng.below(4) as usize,
            threads: 1 + rng.below(3) as usize,
            link_percent: 20 + rng.below(60),
            roots: rng.below(40) as usize,
        }
    }
}

/// A thread of the fabricated process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SbclThread {
    /// Its id in the kernel.
    pub tid: i32,
    /// Its stack pointer, on its control stack.
    pub stack_pointer: u64,
    /// Address of its `struct thread`.
    pub address: u64,
}

/// Expected figures of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SbclGeneration {
    /// Bytes in use on its pages.
    pub bytes: u64,
    /// Its pages.
    pub pages: u64,
    /// Bytes in use on pages of large objects.
    pub large_bytes: u64,
    /// Pages of large objects.
    pub large_pages: u64,
    /// Bytes of reachable objects.
    pub live_bytes: u64,
}

/// Expected figures of a structure's instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SbclInstances {
    /// Number of reachable instances, except those in generation 6.
    pub live_count: u64,
    /// Bytes of these reachable instances.
    pub live_bytes: u64,
    /// Number of unreachable instances.
    pub dead_count: u64,
    /// Bytes of the unreachable instances.
    pub dead_bytes: u64,
}

/// Expected figures of a fabricated heap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SbclExpected {
    /// By number of the generation.
    pub generations: [SbclGeneration; SBCL_GENERATIONS],
    /// By type, as in [`SBCL_TYPES`].
    pub types: [SbclInstances; SBCL_TYPES.len()],
}

impl SbclExpected {
    /// What `(sb-kernel:dynamic-usage)` returns.
    pub fn usage(&self) -> u64 {
        self.generations.iter().map(|generation| generation.bytes).sum()
    }
}

/// A variable of the runtime.
#[derive(Clone, Copy, Debug)]
pub struct SbclSymbol {
    /// Its name.
    pub name: &'static str,
    /// Its address.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// The page table in memory.
#[derive(Clone, Copy, Debug)]
struct PageTable {
    address: u64,
    /// Number of entries.
    entries: u64,
}

/// A fabricated process with an SBCL.
#[derive(Clone, Debug)]
pub struct SbclHeap {
    /// The recipe it was made from.
    pub recipe: SbclRecipe,
    /// Its memory.
    pub image: Image,
    /// Its mappings, in address order.
    pub mappings: Vec<Mapping>,
    /// The runtime's variables.
    pub symbols: Vec<SbclSymbol>,
    /// Its threads.
    pub threads: Vec<SbclThread>,
    /// Dynamic space: its first address, and the first one past its pages.
    pub dynamic_range: (u64, u64),
    /// Its expected figures.
    pub expected: SbclExpected,
    /// Addresses of the words that [`SbclHeap::damage`] overwrites: headers, links, threads, the
    /// runtime's variables. It damages entries of the page table separately.
    damageable_words: Vec<u64>,
    page_table: PageTable,
}

impl SbclHeap {
    /// Its mappings as /proc/PID/maps prints them.
    pub fn maps(&self) -> String {
        crate::maps_text(&self.mappings)
    }

    /// Addresses of all words to overwrite, for callers that choose among them: headers, links,
    /// threads, the runtime's variables, and the entries of the page table.
    pub fn damageable_words(&self) -> Vec<u64> {
        let table_words = (0..self.page_table.entries).map(|entry| self.page_table.address + 8 * entry);
        self.damageable_words.iter().copied().chain(table_words).collect()
    }
}

/// Fabricates the heap of `recipe`. The same recipe gives the same heap.
pub fn fabricate_sbcl(recipe: &SbclRecipe) -> SbclHeap {
    let graph = graph::draw_graph(recipe);
    image::write(recipe, graph)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_recipe_gives_the_same_heap() {
        for release in SBCL_RELEASES {
            let recipe = SbclRecipe::from_seed(release, 3);
            let (one, two) = (fabricate_sbcl(&recipe), fabricate_sbcl(&recipe));
            assert!(one.image.ranges().eq(two.image.ranges()));
            assert_eq!(one.expected, two.expected);
        }
    }

    #[test]
    fn live_bytes_are_part_of_all_and_something_is_dead() {
        let mut dead_bytes = 0;
        for release in SBCL_RELEASES {
            for seed in 0..20 {
                let heap = fabricate_sbcl(&SbclRecipe::from_seed(release, seed));
                assert!(heap.mappings.is_sorted_by(|a, b| a.end <= b.start), "{}", heap.maps());
                for generation in &heap.expected.generations {
                    assert!(generation.live_bytes <= generation.bytes);
                    assert!(generation.bytes <= generation.pages * release::GC_PAGE_BYTES);
                    dead_bytes += generation.bytes - generation.live_bytes;
                }
                let pseudo_static = heap.expected.generations[usize::from(PSEUDO_STATIC)];
                assert_eq!(pseudo_static.bytes, pseudo_static.live_bytes);
            }
        }
        assert!(dead_bytes > 0);
    }
}
