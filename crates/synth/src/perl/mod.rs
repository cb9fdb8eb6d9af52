//! Fabricated perls: an interpreter with its arenas, values, strings, subs and pads, whose every figure is known.
//!
//! [`fabricate_perl`] follows a [`PerlRecipe`] and returns a [`PerlImage`]. It is a perl 5.36 with ithreads; with
//! `globals` its variables are where those of a perl without would be. [`PerlImage::damage`] overwrites words that hold
//! it together, [`PerlImage::trap`] builds what a reader could be lost in.

mod layout;
mod traps;
mod write;

pub use traps::{TRAPS, Trap};

use std::collections::BTreeMap;

use crate::{Damage, Dice, Image};

/// What a perl is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerlRecipe {
    /// Chooses sizes, states and contents.
    pub seed: u64,
    /// About how many values there are besides those of subs.
    pub values: usize,
    /// How many subs with pads.
    pub subs: usize,
    /// How deep the deepest recursion was.
    pub depth: usize,
    /// How long the longest string is.
    pub most_string_bytes: u64,
}

impl PerlRecipe {
    /// A recipe in which everything is drawn from `seed`.
    pub fn from_seed(seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ 0x9e71);
        Self {
            seed,
            values: dice.below(1500) as usize,
            subs: 1 + dice.below(12) as usize,
            depth: 1 + dice.below(9) as usize,
            most_string_bytes: dice.one_of(&[30, 300, 9000]),
        }
    }
}

/// A buffer that a pad keeps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeptBuffer {
    /// `main::f3`
    pub sub: String,
    /// `$s`; none for an operator's target.
    pub lexical: Option<String>,
    /// From 1.
    pub depth: u64,
    /// What malloc returned.
    pub address: u64,
    /// `LEN`.
    pub bytes: u64,
}

/// What is true of a fabricated perl.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedPerl {
    /// Heads in use.
    pub live_heads: u64,
    /// Heads not in use.
    pub free_heads: u64,
    /// Arenas of heads.
    pub arenas: u64,
    /// Heads in use by the number of their type.
    pub by_type: BTreeMap<u32, u64>,
    /// Strings in use that have a buffer.
    pub strings: u64,
    /// Buffers of strings in use: fewer, where several share one.
    pub buffers: u64,
    /// Their bytes (`CUR`).
    pub payload_bytes: u64,
    /// Buffers that several strings share: how many, and their bytes, counted once.
    pub shared: (u64, u64),
    /// Constants of the code, among the strings: how many, and the bytes of their buffers (`LEN`).
    pub constants: (u64, u64),
    /// Every buffer that pads keep, in order.
    pub kept: Vec<KeptBuffer>,
}

impl ExpectedPerl {
    /// Bytes that lexicals keep, and temporaries.
    pub fn kept_bytes(&self) -> (u64, u64) {
        let of = |is_lexical| {
            let kept = self.kept.iter().filter(|kept| kept.lexical.is_some() == is_lexical);
            kept.map(|kept| kept.bytes).sum()
        };
        (of(true), of(false))
    }
}

/// Where the variables of the interpreter are.
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
    /// What it was made from.
    pub recipe: PerlRecipe,
    /// Its memory.
    pub image: Image,
    /// Where its variables are.
    pub variables: PerlVariables,
    /// The thread pointer of its only thread.
    pub fs_base: u64,
    /// What is true of it.
    pub expected: ExpectedPerl,
    /// The text of its /proc/PID/maps.
    pub maps: String,
    /// The words that hold it together, for [`Self::damage`].
    structure: Vec<u64>,
    /// Places that traps are built at.
    places: traps::Places,
}

/// Makes the perl of `recipe`. The same recipe gives the same perl.
pub fn fabricate_perl(recipe: &PerlRecipe) -> PerlImage {
    write::write(recipe)
}

impl PerlImage {
    /// Overwrites `words` words chosen by `seed` among those that hold it together, and returns what was done.
    /// `expected` then no longer holds.
    pub fn damage(&mut self, seed: u64, words: usize) -> Vec<Damage> {
        crate::damage::overwrite_words(&mut self.image, &self.structure, seed, words)
    }

    /// How many words [`Self::damage`] chooses from.
    pub fn structure_words(&self) -> usize {
        self.structure.len()
    }

    /// Builds a trap.
    pub fn trap(&mut self, trap: Trap) {
        traps::build(&mut self.image, &self.variables, &self.places, trap);
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
            assert!(one.structure_words() > 100);
        }
    }

    #[test]
    fn heads_are_counted_as_written() {
        for seed in 0..20 {
            let perl = fabricate_perl(&PerlRecipe::from_seed(seed));
            let by_type: u64 = perl.expected.by_type.values().sum();
            assert_eq!(by_type, perl.expected.live_heads);
            assert_eq!(perl.image.word(perl.variables.sv_count), Some(perl.expected.live_heads));
            let slots = perl.expected.live_heads + perl.expected.free_heads + perl.expected.arenas;
            assert_eq!(slots, perl.expected.arenas * layout::SLOTS);
        }
    }

    #[test]
    fn traps_stay_in_the_image() {
        for trap in TRAPS {
            let mut perl = fabricate_perl(&PerlRecipe::from_seed(3));
            let sound = perl.image.clone();
            perl.trap(trap);
            assert!(!perl.image.ranges().eq(sound.ranges()), "{trap:?} changes nothing");
        }
    }
}
