//! Damage to a fabricated SBCL: overwritten words, and wrong entries of the page table.

use super::SbclHeap;
use super::release::LIST;
use crate::Rng;
use crate::damage::KERNEL_START;

impl SbclHeap {
    /// Overwrites `word_count` words, chosen by `seed`: headers, links, page table, threads, the
    /// runtime's variables. `expected` then no longer holds.
    pub fn damage(&mut self, seed: u64, word_count: usize) {
        let mut rng = Rng::new(seed ^ 0x5bda);
        for _ in 0..word_count {
            if rng.chance(30) {
                self.damage_table(&mut rng);
                continue;
            }
            let (address, other) = (rng.one_of(&self.damageable_words), rng.one_of(&self.damageable_words));
            let before = self.image.word(address).unwrap_or(0);
            let dynamic_end = self.dynamic_range.1;
            let after = match rng.below(12) {
                0 => rng.word(),
                1 => 0,
                // A header or a length that is far too large, with the old widetag.
                2 => before & 0xff | rng.word() << 8,
                3 => before & 0xff | u64::MAX << 8,
                4 => u64::MAX - rng.below(64),
                5 => before ^ 1 << rng.below(64),
                // References: to itself, to another word, unaligned, to the end of dynamic space,
                // into the kernel.
                6 => address & !15 | rng.one_of(&[3, 7, 11, 15]),
                7 => other & !15 | rng.one_of(&[3, 7, 11, 15]),
                8 => other + rng.below(16),
                9 => (dynamic_end - rng.below(64)) | 15,
                10 => KERNEL_START | rng.word() >> 20,
                _ => before.wrapping_add(rng.one_of(&[1, 2, 8, 16, 1 << 10, 1 << 32])),
            };
            self.image.put_word(address, after);
        }
    }

    /// Overwrites an entry of the page table: another generation (200 does not exist), type, used
    /// part or scan start. In an entry these are the upper byte, the one below, the 16 bits below,
    /// and the lower half.
    fn damage_table(&mut self, rng: &mut Rng) {
        let entry = self.page_table.address + 8 * rng.below(self.page_table.entries);
        let before = self.image.word(entry).unwrap_or(0);
        let after = match rng.below(8) {
            0 => rng.word(),
            1 => before & !(0xff << 56) | 200 << 56,
            2 => before & !(0xff << 56) | rng.below(9) << 56,
            3 => before & !(0xff << 48) | rng.below(256) << 48,
            4 => before | 0xffff << 32,
            5 => before & !(0xffff << 32),
            6 => before | 0xffff_fffe,
            _ => before & !0xffff_ffff | rng.word() & 0xffff_ffff,
        };
        self.image.put_word(entry, after);
    }

    /// Overwrites `percent` of all words of dynamic space with random ones.
    pub fn overwrite_randomly(&mut self, seed: u64, percent: u64) {
        let mut rng = Rng::new(seed ^ 0x0b1f);
        for address in (self.dynamic_range.0..self.dynamic_range.1).step_by(8) {
            if rng.chance(percent) {
                let word = rng.word();
                self.image.put_word(address, word);
            }
        }
    }

    /// Replaces all of dynamic space by one chain of conses: both words of each point to the next
    /// one, those of the last to the first.
    pub fn fill_with_chain(&mut self) {
        const CONS_BYTES: u64 = 16;
        let (start, end) = self.dynamic_range;
        for address in (start..end).step_by(CONS_BYTES as usize) {
            let next = if address + CONS_BYTES < end { address + CONS_BYTES } else { start };
            self.image.put_row(address, [next | LIST; 2]);
        }
    }
}
