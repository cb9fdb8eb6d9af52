//! A sparse set of addresses anywhere in memory: one bit for each 16 bytes, in leaves allocated on
//! first use.

use std::collections::BTreeMap;

const GRANULE_BYTES: u64 = 16;
const LEAF_BYTES: u64 = 64 << 10;
const WORDS: usize = (LEAF_BYTES / GRANULE_BYTES / 64) as usize;

/// A set of addresses that are multiples of 16; takes 512 bytes for each 64 KiB with an address in
/// the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSet {
    leaves: BTreeMap<u64, Box<[u64; WORDS]>>,
}

impl AddressSet {
    /// Adds an address; false if it is not a multiple of 16.
    pub fn insert(&mut self, address: u64) -> bool {
        if !address.is_multiple_of(GRANULE_BYTES) {
            return false;
        }
        let leaf = self.leaves.entry(address / LEAF_BYTES).or_insert_with(|| Box::new([0; WORDS]));
        let (word, bit) = place(address);
        leaf[word] |= bit;
        true
    }

    /// Whether an address is in the set.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        let (word, bit) = place(address);
        address.is_multiple_of(GRANULE_BYTES)
            && self.leaves.get(&(address / LEAF_BYTES)).is_some_and(|leaf| leaf[word] & bit != 0)
    }

    /// Adds the addresses of another set.
    pub fn extend(&mut self, other: Self) {
        for (number, theirs) in other.leaves {
            match self.leaves.entry(number) {
                std::collections::btree_map::Entry::Vacant(place) => _ = place.insert(theirs),
                std::collections::btree_map::Entry::Occupied(mut mine) => {
                    mine.get_mut().iter_mut().zip(theirs.iter()).for_each(|(mine, theirs)| *mine |= theirs);
                }
            }
        }
    }

    /// The addresses in a range, in order.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        let leaves = self.leaves.range(start / LEAF_BYTES..end.div_ceil(LEAF_BYTES).max(start / LEAF_BYTES));
        let places = leaves.flat_map(|(number, leaf)| {
            let words = leaf.iter().zip(0_u64..).filter(|(bits, _)| **bits != 0);
            words.flat_map(move |(&bits, word)| {
                let set = (0..64_u64).filter(move |bit| bits >> bit & 1 != 0);
                set.map(move |bit| number * LEAF_BYTES + (word * 64 + bit) * GRANULE_BYTES)
            })
        });
        places.skip_while(move |&place| place < start).take_while(move |&place| place < end)
    }
}

fn place(address: u64) -> (usize, u64) {
    let granule = address % LEAF_BYTES / GRANULE_BYTES;
    ((granule / 64) as usize, 1 << (granule % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_in() {
        let all = [0x1_0000, 0x1_fff0, 0x2_0000, 0x7fff_ffff_0010];
        let (mut places, mut others) = (AddressSet::default(), AddressSet::default());
        assert!(!places.insert(8));
        for (index, &place) in all.iter().enumerate() {
            assert!(if index % 2 == 0 { &mut places } else { &mut others }.insert(place));
        }
        places.extend(others);
        assert!(all.iter().all(|&place| places.contains(place) && !places.contains(place + 32)));
        assert!(!places.contains(0x1_0008));
        assert_eq!(places.within(0, u64::MAX).collect::<Vec<_>>(), all);
        assert_eq!(places.within(0x1_0001, 0x2_0000).collect::<Vec<_>>(), [0x1_fff0]);
        assert_eq!(places.within(5, 5).count(), 0);
    }
}
