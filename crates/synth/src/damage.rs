//! Damage: overwrites words of a heap in the ways that make readers loop, overflow or run away.

use crate::variants::variants;
use crate::{Heap, Image, Rng};

/// An address in the kernel's half of the address space of x86-64, in its direct mapping.
pub(crate) const KERNEL_START: u64 = 0xffff_8880_0000_0000;

variants! {
    /// The new value of a word.
    pub enum DamageKind {
        Random = "Any word.",
        Zero = "0.",
        Huge = "2^63, with or without flag bits.",
        Wraps = "Almost 2^64, so that adding to it wraps.",
        Misaligned = "The old value, plus 1 to 15.",
        SelfPointer = "Its own address, or that of the chunk it belongs to: a cycle of one.",
        Cross = "The address of another word of the structure: cycles and crossings.",
        ProtectedCross = "Like `Cross`, as a protected link.",
        Kernel = "An address in the kernel's half.",
        Bit = "The old value with one bit flipped.",
        Tiny = "A size of 16: smaller than any chunk.",
    }
}

/// One overwritten word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Its address.
    pub address: u64,
    /// What was done to it.
    pub kind: DamageKind,
    /// The old value.
    pub before: u64,
    /// The new value.
    pub after: u64,
}

impl Heap {
    /// Overwrites `word_count` words of the heap's structure, chosen by `seed` (chunk sizes, links,
    /// arenas, heap_info, tcaches, mp_), and returns what was done, in order. `expected` then no
    /// longer holds.
    pub fn damage(&mut self, seed: u64, word_count: usize) -> Vec<Damage> {
        overwrite_words(&mut self.image, &self.structure, seed, word_count)
    }

    /// Overwrites `percent` of all words of the heap's mappings, payload included, with random
    /// ones; libc's own data stays.
    pub fn overwrite_randomly(&mut self, seed: u64, percent: u64) {
        let mut rng = Rng::new(seed ^ 0x0fe2);
        let heap_ranges: Vec<(u64, u64)> = self
            .image
            .ranges()
            .map(|(start, bytes)| (start, start + bytes.len() as u64))
            .filter(|&(start, end)| !(start..end).contains(&self.main_arena))
            .collect();
        for (start, end) in heap_ranges {
            for address in (start..end).step_by(8) {
                if rng.chance(percent) {
                    self.image.put_word(address, rng.word());
                }
            }
        }
    }
}

/// Overwrites `word_count` words of `image`, chosen by `seed` among those at the addresses
/// `structure`, and returns what was done, in order.
pub fn overwrite_words(image: &mut Image, structure: &[u64], seed: u64, word_count: usize) -> Vec<Damage> {
    let mut rng = Rng::new(seed ^ 0xdaa6e);
    let mut damages = Vec::new();
    if structure.is_empty() {
        return damages;
    }
    for _ in 0..word_count {
        let address = rng.one_of(structure);
        let other = rng.one_of(structure);
        let kind = rng.one_of(&DamageKind::ALL);
        let before = image.word(address).unwrap_or(0);
        let after = match kind {
            DamageKind::Random => rng.word(),
            DamageKind::Zero => 0,
            DamageKind::Huge => 1 << 63 | rng.below(8),
            DamageKind::Wraps => u64::MAX - rng.below(64),
            DamageKind::Misaligned => before.wrapping_add(1 + rng.below(15)),
            DamageKind::SelfPointer => address - rng.one_of(&[0, 8, 16, 24]),
            DamageKind::Cross => other - rng.one_of(&[0, 8, 16, 24]),
            DamageKind::ProtectedCross => (address >> 12) ^ (other & !15),
            DamageKind::Kernel => KERNEL_START | rng.word() >> 20,
            DamageKind::Bit => before ^ 1 << rng.below(64),
            DamageKind::Tiny => 0x10 | rng.below(8),
        };
        image.put_word(address, after);
        damages.push(Damage { address, kind, before, after });
    }
    damages
}

#[cfg(test)]
mod tests {
    use crate::{Recipe, VERSIONS, fabricate};

    #[test]
    fn damage_is_repeatable_and_stays_in_the_image() {
        for version in VERSIONS {
            let (mut one, mut two) =
                (fabricate(&Recipe::from_seed(version, 1)), fabricate(&Recipe::from_seed(version, 1)));
            let sound = one.image.clone();
            let damages = one.damage(5, 200);
            assert_eq!(damages, two.damage(5, 200));
            assert_ne!(damages, two.damage(6, 200));
            assert_eq!(damages.len(), 200);
            assert!(damages.iter().all(|damage| sound.word(damage.address).is_some()));
            assert!(damages.iter().any(|damage| damage.before != damage.after));
        }
    }

    #[test]
    fn overwriting_spares_libcs_data() {
        for version in VERSIONS {
            let mut heap = fabricate(&Recipe::from_seed(version, 2));
            let (arena, top) = (heap.main_arena, heap.image.word(heap.main_arena + version.top_offset()));
            let first = heap.mappings[0].start;
            let words = |heap: &crate::Heap| -> Vec<Option<u64>> {
                (0..64).map(|index| heap.image.word(first + index * 8)).collect()
            };
            let before = words(&heap);
            heap.overwrite_randomly(1, 100);
            assert_eq!(heap.image.word(arena + version.top_offset()), top);
            assert_ne!(words(&heap), before);
        }
    }
}
