//! Finds the ranges that overlap each of many other ranges, in one pass over both.

use strandline_process::range::AddressRange;

/// Items with ranges, in order of their starts, which are looked up in address order.
pub struct Overlaps<'a, T> {
    /// Items that begin after the last range that was looked up.
    ahead: &'a [T],
    /// Items that may extend past that range: an item may contain others.
    begun: Vec<T>,
    range_of: fn(&T) -> AddressRange,
}

impl<'a, T: Copy> Overlaps<'a, T> {
    /// The items, sorted by the start of their ranges.
    pub fn new(sorted: &'a [T], range_of: fn(&T) -> AddressRange) -> Self {
        Self { ahead: sorted, begun: Vec::new(), range_of }
    }

    /// Returns the items that overlap `range`, which starts after the earlier ones.
    pub fn overlapping(&mut self, range: AddressRange) -> &[T] {
        let range_of = self.range_of;
        let count = self.ahead.partition_point(|item| range_of(item).start < range.end);
        let (begun, ahead) = self.ahead.split_at(count);
        self.ahead = ahead;
        self.begun.extend_from_slice(begun);
        self.begun.retain(|item| range_of(item).end > range.start);
        &self.begun
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn items_that_overlap_are_found(
            items in proptest::collection::vec((0_u64..200, 1_u64..60), 0..40),
            gaps in proptest::collection::vec((0_u64..20, 1_u64..20), 0..20),
        ) {
            let mut items: Vec<AddressRange> =
                items.into_iter().map(|(start, bytes)| AddressRange::sized(start, bytes)).collect();
            items.sort_unstable();
            let mut overlaps = Overlaps::new(&items, |item| *item);
            let mut at = 0;
            for (gap, bytes) in gaps {
                let range = AddressRange::sized(at + gap, bytes);
                at = range.end;
                let expected: Vec<AddressRange> = items
                    .iter()
                    .copied()
                    .filter(|item| item.start < range.end && item.end > range.start)
                    .collect();
                prop_assert_eq!(overlaps.overlapping(range), expected.as_slice());
            }
        }
    }
}
