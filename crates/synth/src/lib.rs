//! Fabricated heaps of glibc, jemalloc, tcmalloc, mimalloc, musl, CPython, Perl, SBCL, Go, HotSpot
//! and V8 for tests: byte-exact memory, with all figures known by construction.
//!
//! [`fabricate`] makes a [`Heap`] from a [`Recipe`]: an [`Image`] that is read like a target's
//! memory, the text of its /proc/PID/maps, its threads, and [`Expected`]: what `mallinfo2()` would
//! return and which pages `malloc_trim(0)` would release. [`Heap::damage`] overwrites words of it
//! in the ways that break readers.
//!
//! The crate has its own layouts (`version`): it must not use those of the readers that it
//! tests, or their mistakes would be fabricated too. All pages of an image are resident.
//!
//! ```
//! use strandline_synth::{Recipe, Version, fabricate};
//!
//! let heap = fabricate(&Recipe::from_seed(Version::V2_36, 7));
//! let mapped_bytes: u64 = heap.expected.arenas.iter().map(|arena| arena.mapped_bytes).sum();
//! assert_eq!(heap.expected.mallinfo.arena, mapped_bytes);
//! let mut word = [0; 8];
//! assert_eq!(heap.image.read_some(heap.main_arena, &mut word), 8);
//! ```

#![forbid(unsafe_code)]

mod cpython;
mod cpython_heaps;
mod damage;
mod expected;
mod figures;
mod go;
mod google_tcmalloc;
mod google_tcmalloc_layouts;
mod image;
mod jemalloc;
mod jvm;
mod mimalloc;
mod musl;
mod musl_old;
mod perl;
mod plan;
mod rng;
mod sbcl;
mod tcmalloc;
mod v8;
mod v8_layouts;
mod v8_objects;
mod variants;
mod version;
mod write;

pub use cpython::{CPythonExpected, CPythonImage, fabricate_cpython};
pub use cpython_heaps::fabricate_free_threaded_cpython;
pub use damage::{Damage, DamageKind};
pub use expected::{Expected, ExpectedArena, Mallinfo};
pub use figures::{Tally, Usage};
pub use go::{GoExpected, GoImage, fabricate_go};
pub use google_tcmalloc::fabricate_google_tcmalloc;
pub use google_tcmalloc_layouts::GOOGLE_LAYOUTS;
pub use image::{Image, clipped, is_absent};
use image::{map_line, map_lines};
pub use jemalloc::{JEMALLOC_LAYOUTS, fabricate_jemalloc, fabricate_jemalloc_with_cache};
pub use jvm::{JvmExpected, JvmImage, JvmPools, fabricate_jvm};
pub use mimalloc::{MIMALLOC_LAYOUTS, fabricate_mimalloc};
pub use musl::fabricate_musl;
pub use musl_old::fabricate_old_musl;
pub use perl::{ExpectedPerl, KeptBuffer, PerlImage, PerlRecipe, PerlVariables, Trap, fabricate_perl};
pub use rng::Rng;
pub use sbcl::{
    SBCL_GENERATIONS, SBCL_RELEASES, SBCL_TYPES, SbclExpected, SbclGeneration, SbclHeap, SbclInstances,
    SbclRecipe, SbclRelease, SbclSymbol, SbclThread, fabricate_sbcl,
};
pub use tcmalloc::{HeapExpected, HeapImage, fabricate_tcmalloc};
pub use v8::{V8Expected, V8Image, fabricate_v8};
pub use v8_objects::{FIRST_CONTEXT as V8_FIRST_CONTEXT, TYPES as V8_TYPES};
pub use version::{VERSIONS, Version};

/// Bytes of a page of the kernel on x86-64.
const PAGE: u64 = 4096;

/// Addresses of the parts of a process that address randomisation moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Start of the break; a multiple of the page size.
    pub heap: u64,
    /// main_arena, in libc's data; a multiple of 16.
    pub main_arena: u64,
    /// mp_, in libc's data, not far from main_arena; a multiple of 8.
    pub parameters: u64,
}

impl Places {
    /// Draws places as the kernel would choose them from `seed`.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0xa51);
        let libc_data = 0x7f5a_7800_0000 + PAGE * rng.below(1 << 20);
        Self {
            heap: 0x5555_0000_0000 + PAGE * rng.below(1 << 32),
            main_arena: libc_data + 32 * rng.below(100),
            parameters: libc_data + 0x2000 + 8 * rng.below(100),
        }
    }
}

/// Parameters of a fabricated heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The release whose layout it has.
    pub version: Version,
    /// Addresses of its parts.
    pub places: Places,
    /// Chooses sizes, states and contents.
    pub seed: u64,
    /// Approximate number of chunks in each stretch of heap.
    pub chunks: usize,
    /// Number of threads with a tcache; at least 1.
    pub threads: usize,
    /// Number of 64 MiB heaps of the secondary arena; 0 for no such arena.
    pub secondary_heaps: usize,
    /// Whether the program moved the break itself, so that the main arena is in two parts.
    pub has_foreign_sbrk: bool,
    /// Whether the program moved the break past the top chunk, so that top cannot be released.
    pub is_break_moved: bool,
    /// Number of mmapped pieces in which the main arena continues, because its break was blocked.
    pub mmapped_pieces: usize,
    /// Number of chunks with their own mapping.
    pub mmapped_chunks: usize,
}

impl Recipe {
    /// Draws a recipe from `seed`.
    pub fn from_seed(version: Version, seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed);
        Self {
            version,
            places: Places::from_seed(seed),
            seed,
            chunks: 20 + rng.below(600) as usize,
            threads: 1 + rng.below(4) as usize,
            secondary_heaps: rng.below(4) as usize,
            has_foreign_sbrk: rng.chance(40),
            is_break_moved: rng.chance(20),
            mmapped_pieces: if rng.chance(30) { 1 + rng.below(6) as usize } else { 0 },
            mmapped_chunks: rng.below(4) as usize,
        }
    }
}

/// A thread of the fabricated process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its thread pointer, which a debugger reads as `fs_base`.
    pub fs_base: u64,
    /// Its tcache structure (the user part of that chunk).
    pub tcache: u64,
}

/// A mapping of the fabricated process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Address of the first byte.
    pub start: u64,
    /// First address past the end.
    pub end: u64,
    /// As in /proc/PID/maps: `rw-p`, `---p`.
    pub permissions: &'static str,
    /// As in /proc/PID/maps; empty for anonymous memory.
    pub name: &'static str,
}

/// The heap of a fabricated process.
#[derive(Clone, Debug)]
pub struct Heap {
    /// The recipe it was made from.
    pub recipe: Recipe,
    /// Its memory.
    pub image: Image,
    /// Its mappings, in address order.
    pub mappings: Vec<Mapping>,
    /// The address of main_arena, in libc's data.
    pub main_arena: u64,
    /// The address of mp_, in libc's data.
    pub parameters: u64,
    /// The address of the break.
    pub system_break: u64,
    /// Its threads, the main thread first.
    pub threads: Vec<Thread>,
    /// Its expected figures.
    pub expected: Expected,
    /// Addresses of the words of its structure (sizes, links, arenas), for [`Heap::damage`].
    structure: Vec<u64>,
}

impl Heap {
    /// Its mappings as /proc/PID/maps prints them.
    pub fn maps(&self) -> String {
        maps_text(&self.mappings)
    }
}

fn maps_text(mappings: &[Mapping]) -> String {
    let lines = mappings.iter().map(|mapping| {
        let (device, inode) = if mapping.name.starts_with('/') { ("fe:01", 4711) } else { ("00:00", 0) };
        let (start, end, permissions) = (mapping.start, mapping.end, mapping.permissions);
        format!("{start:x}-{end:x} {permissions} 00000000 {device} {inode} {}\n", mapping.name)
    });
    lines.collect()
}

/// Fabricates the heap of `recipe`. The same recipe gives the same heap.
pub fn fabricate(recipe: &Recipe) -> Heap {
    let plan = plan::plan(recipe);
    let expected = expected::expected(&plan);
    write::write(recipe, plan, expected)
}

fn round_down(value: u64, unit: u64) -> u64 {
    value / unit * unit
}

/// How often a test repeats: `full` in `make test-full` (STRANDLINE_FULL=1), else `plain`.
pub fn scaled<T>(plain: T, full: T) -> T {
    if std::env::var_os("STRANDLINE_FULL").is_some_and(|value| value == "1") { full } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_recipe_gives_the_same_heap() {
        for version in VERSIONS {
            let recipe = Recipe::from_seed(version, 3);
            let (one, two) = (fabricate(&recipe), fabricate(&recipe));
            assert!(one.image.ranges().eq(two.image.ranges()));
            assert_eq!(one.expected, two.expected);
        }
    }

    #[test]
    fn mappings_are_in_order_and_cover_the_image() {
        for version in VERSIONS {
            for seed in 0..10 {
                let heap = fabricate(&Recipe::from_seed(version, seed));
                assert!(heap.mappings.is_sorted_by(|a, b| a.end <= b.start), "{}", heap.maps());
                for (start, bytes) in heap.image.ranges() {
                    let end = start + bytes.len() as u64;
                    let holds = |m: &Mapping| m.start <= start && end <= m.end && m.permissions == "rw-p";
                    assert!(heap.mappings.iter().any(holds), "{start:#x} in {}", heap.maps());
                }
            }
        }
    }
}
