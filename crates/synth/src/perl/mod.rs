//! Fabricated perls: an interpreter with its arenas, values, strings, subs and pads, all figures of
//! which are known.
//!
//! [`fabricate_perl`] makes a [`PerlImage`] from a [`PerlRecipe`]. It is a perl 5.36 with ithreads;
//! the addresses in [`PerlVariables`] also serve as the globals of a perl without.
//! [`PerlImage::damage`] overwrites words of its structure; [`PerlImage::trap`] builds structures
//! that a reader could get lost in.

mod layout;
mod traps;
mod write;

pub use traps::Trap;

use std::collections::BTreeMap;

use crate::{Damage, Image, Rng, Tally};

/// Parameters of a fabricated perl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerlRecipe {
    /// Chooses sizes, states and contents.
    pub seed: u64,
    /// Approximate number of values besides those of subs.
    pub values: usize,
    /// Number of subs with pads.
    pub subs: usize,
    /// Greatest depth of recursion.
    pub depth: usize,
    /// Approximate length of the longest string.
    pub max_string_bytes: u64,
}

impl PerlRecipe {
    /// Draws a recipe from `seed`.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x9e71);
        Self {
            seed,
            values: rng.below(1500) as usize,
            subs: 1 + rng.below(12) as usize,
            depth: 1 + rng.below(9) as usize,
            max_string_bytes: rng.one_of(&[30, 300, 9000]),
        }
    }
}

/// A buffer that a pad keeps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeptBuffer {
    /// Name of its sub, such as `main::f3`.
    pub sub: String,
    /// Name of its lexical, such as `$s`; `None` for an operator's target.
    pub lexical: Option<String>,
    /// Depth of its pad, from 1.
    pub depth: u64,
    /// The address that malloc returned.
    pub address: u64,
    /// `LEN`.
    pub bytes: u64,
}

/// Expected figures of a fabricated perl.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedPerl {
    /// Heads in use.
    pub live_heads: u64,
    /// Heads not in use.
    pub free_heads: u64,
    /// Arenas of heads.
    pub arenas: u64,
    /// Heads in use by type number.
    pub by_type: BTreeMap<u32, u64>,
    /// Strings in use that have a buffer.
    pub strings: u64,
    /// Buffers of these strings; several strings may share one.
    pub buffers: u64,
    /// Bytes of these strings (`CUR`).
    pub payload_bytes: u64,
    /// Shared buffers, each counted once.
    pub shared_buffers: Tally,
    /// Buffers (`LEN`) of the code's constants, which are included in the strings.
    pub constant_buffers: Tally,
    /// All buffers that pads keep, sorted.
    pub kept_buffers: Vec<KeptBuffer>,
}

impl ExpectedPerl {
    /// Bytes kept by lexicals; without `is_lexical`, those kept by operators' targets.
    pub fn kept_bytes(&self, is_lexical: bool) -> u64 {
        let buffers = self.kept_buffers.iter().filter(|kept| kept.lexical.is_some() == is_lexical);
        buffers.map(|kept| kept.bytes).sum()
    }
}

/// Addresses of the interpreter's variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerlVariables {
    /// `PL_curinterp`
    pub curinterp: u64,
    /// `PL_thr_key`
    pub thr_key: u64,
    /// `PL_strtab`, in the interpreter.
    pub strtab: u64,
    /// `PL_sv_count`
    pub sv_count: u64,
    /// `PL_sv_arenaroot`
    pub sv_arenaroot: u64,
    /// `PL_main_cv`
    pub main_cv: u64,
    /// `PL_body_roots`
    pub body_roots: u64,
    /// `PL_body_arenas`
    pub body_arenas: u64,
}

/// A fabricated process with a perl.
#[derive(Clone, Debug)]
pub struct PerlImage {
    /// The recipe it was made from.
    pub recipe: PerlRecipe,
    /// Its memory.
    pub image: Image,
    /// Addresses of its variables.
    pub variables: PerlVariables,
    /// The thread pointer of its only thread.
    pub fs_base: u64,
    /// Its expected figures.
    pub expected: ExpectedPerl,
    /// The text of its /proc/PID/maps.
    pub maps: String,
    /// Addresses of the words of its structure, for [`Self::damage`].
    structure: Vec<u64>,
    /// Addresses that traps are built at.
    trap_addresses: traps::TrapAddresses,
}

/// Fabricates the perl of `recipe`. The same recipe gives the same perl.
pub fn fabricate_perl(recipe: &PerlRecipe) -> PerlImage {
    write::write(recipe)
}

impl PerlImage {
    /// Overwrites `word_count` words of the structure, chosen by `seed`, and returns what was done.
    /// `expected` then no longer holds.
    pub fn damage(&mut self, seed: u64, word_count: usize) -> Vec<Damage> {
        crate::damage::overwrite_words(&mut self.image, &self.structure, seed, word_count)
    }

    /// Number of words that [`Self::damage`] chooses from.
    pub fn structure_word_count(&self) -> usize {
        self.structure.len()
    }

    /// Builds a trap.
    pub fn trap(&mut self, trap: Trap) {
        traps::build(&mut self.image, &self.variables, &self.trap_addresses, trap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_recipe_gives_the_same_perl() {
        for seed in 0..20 {
            let recipe = PerlRecipe::from_seed(seed);
            let (one, two) = (fabricate_perl(&recipe), fabricate_perl(&recipe));
            assert!(one.image.ranges().eq(two.image.ranges()));
            assert_eq!(one.expected, two.expected);
            assert!(one.structure_word_count() > 100);
        }
    }

    #[test]
    fn heads_are_counted_as_written() {
        for seed in 0..20 {
            let perl = fabricate_perl(&PerlRecipe::from_seed(seed));
            let by_type: u64 = perl.expected.by_type.values().sum();
            assert_eq!(by_type, perl.expected.live_heads);
            assert_eq!(perl.image.word(perl.variables.sv_count), Some(perl.expected.live_heads));
            let head_slots = perl.expected.live_heads + perl.expected.free_heads + perl.expected.arenas;
            assert_eq!(head_slots, perl.expected.arenas * layout::ARENA_HEADS);
        }
    }

    #[test]
    fn traps_stay_in_the_image() {
        for trap in Trap::ALL {
            let mut perl = fabricate_perl(&PerlRecipe::from_seed(3));
            let sound = perl.image.clone();
            perl.trap(trap);
            assert!(!perl.image.ranges().eq(sound.ranges()), "{trap:?} changes nothing");
        }
    }
}
