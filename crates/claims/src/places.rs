//! A sparse set of addresses anywhere in memory: one bit for each 16 bytes, in leaves allocated on
//! first use.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::bits;

/// Bytes of address space under one bit.
const GRANULE_BYTES: u64 = 16;
/// Bytes of address space under one leaf.
const LEAF_BYTES: u64 = 64 << 10;
/// Number of words of 64 bits in a leaf.
const WORDS_PER_LEAF: usize = (LEAF_BYTES / GRANULE_BYTES / 64) as usize;

/// A set of addresses that are multiples of 16; takes 512 bytes for each 64 KiB with an address in
/// the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSet {
    /// The bits, by leaf number: address divided by [`LEAF_BYTES`].
    leaves: BTreeMap<u64, Box<[u64; WORDS_PER_LEAF]>>,
}

impl AddressSet {
    /// Adds an address; false if it is not a multiple of 16.
    pub fn insert(&mut self, address: u64) -> bool {
        if !address.is_multiple_of(GRANULE_BYTES) {
            return false;
        }
        let leaf = self.leaves.entry(address / LEAF_BYTES).or_insert_with(|| Box::new([0; WORDS_PER_LEAF]));
        bits::set(&mut leaf[..], index_in_leaf(address));
        true
    }

    /// Whether an address is in the set.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        let leaf = || self.leaves.get(&(address / LEAF_BYTES));
        address.is_multiple_of(GRANULE_BYTES)
            && leaf().is_some_and(|leaf| bits::has(&leaf[..], index_in_leaf(address)))
    }

    /// Adds the addresses of another set.
    pub fn extend(&mut self, other: Self) {
        for (number, theirs) in other.leaves {
            match self.leaves.entry(number) {
                Entry::Vacant(entry) => _ = entry.insert(theirs),
                Entry::Occupied(mut mine) => {
                    mine.get_mut().iter_mut().zip(theirs.iter()).for_each(|(mine, theirs)| *mine |= theirs);
                }
            }
        }
    }

    /// The addresses in a range, in order.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        let leaves = self.leaves.range(start / LEAF_BYTES..end.div_ceil(LEAF_BYTES).max(start / LEAF_BYTES));
        let addresses = leaves.flat_map(|(number, leaf)| {
            let words = leaf.iter().zip(0_u64..).filter(|(bits, _)| **bits != 0);
            words.flat_map(move |(&bits, word)| {
                let set_bits = (0..64_u64).filter(move |bit| bits >> bit & 1 != 0);
                set_bits.map(move |bit| number * LEAF_BYTES + (word * 64 + bit) * GRANULE_BYTES)
            })
        });
        addresses.skip_while(move |&address| address < start).take_while(move |&address| address < end)
    }
}

/// The index of the bit for an address in its leaf.
#[inline]
fn index_in_leaf(address: u64) -> usize {
    (address % LEAF_BYTES / GRANULE_BYTES) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_sets_are_in_their_union() {
        let all = [0x1_0000, 0x1_fff0, 0x2_0000, 0x7fff_ffff_0010];
        let (mut joined, mut other) = (AddressSet::default(), AddressSet::default());
        assert!(!joined.insert(8));
        for (index, &address) in all.iter().enumerate() {
            assert!(if index % 2 == 0 { &mut joined } else { &mut other }.insert(address));
        }
        joined.extend(other);
        assert!(all.iter().all(|&address| joined.contains(address) && !joined.contains(address + 32)));
        assert!(!joined.contains(0x1_0008));
        assert_eq!(joined.within(0, u64::MAX).collect::<Vec<_>>(), all);
        assert_eq!(joined.within(0x1_0001, 0x2_0000).collect::<Vec<_>>(), [0x1_fff0]);
        assert_eq!(joined.within(5, 5).count(), 0);
    }
}
