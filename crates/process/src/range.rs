//! Ranges of addresses, and sets of them.

use std::ops::{Deref, Range};

use crate::pages::{PAGE_BYTES, page_of, page_up};

/// The addresses from `start` up to, but not including, `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    /// First byte.
    pub start: u64,
    /// First byte past the end.
    pub end: u64,
}

impl AddressRange {
    /// The range `start..end`.
    #[inline]
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// The `bytes` bytes from `start`, cut at the end of the address space.
    #[inline]
    pub const fn sized(start: u64, bytes: u64) -> Self {
        Self { start, end: start.saturating_add(bytes) }
    }

    /// Number of bytes; 0 if the end is below the start.
    #[inline]
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether no address is in the range.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Whether `address` is in the range.
    #[inline]
    pub const fn contains(self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// Whether all of `other` is in the range.
    #[inline]
    pub const fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether the two have an address in common, or one is empty and inside the other.
    #[inline]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The common part of both; empty if they have no address in common.
    #[inline]
    pub fn intersection(self, other: Self) -> Self {
        Self { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// The range widened to whole pages.
    pub fn widened_to_pages(self) -> Self {
        Self { start: page_of(self.start), end: page_up(self.end) }
    }

    /// The first addresses of the pages of a page-aligned range.
    #[inline]
    pub fn pages(self) -> impl Iterator<Item = u64> {
        (self.start..self.end).step_by(PAGE_BYTES as usize)
    }
}

impl From<Range<u64>> for AddressRange {
    fn from(range: Range<u64>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

impl From<(u64, u64)> for AddressRange {
    fn from((start, end): (u64, u64)) -> Self {
        Self { start, end }
    }
}

impl From<AddressRange> for Range<u64> {
    fn from(range: AddressRange) -> Self {
        range.start..range.end
    }
}

impl From<AddressRange> for (u64, u64) {
    fn from(range: AddressRange) -> Self {
        (range.start, range.end)
    }
}

/// Addresses as ranges in address order that neither touch nor overlap; none is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet(Vec<AddressRange>);

impl RangeSet {
    /// No addresses.
    pub const EMPTY: Self = Self(Vec::new());

    /// Adds the addresses of `ranges`, which may be in any order and overlap.
    pub fn add(&mut self, ranges: impl IntoIterator<Item = impl Into<AddressRange>>) {
        let added = ranges.into_iter().map(Into::into).filter(|range| !range.is_empty());
        let known_count = self.0.len();
        self.0.extend(added);
        if self.0.len() == known_count {
            return;
        }
        self.0.sort_unstable();
        self.0.dedup_by(|next, last| {
            let is_joined = next.start <= last.end;
            if is_joined {
                last.end = last.end.max(next.end);
            }
            is_joined
        });
    }

    /// Number of addresses.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.len()).sum()
    }

    /// Whether `address` is in the set.
    pub fn contains(&self, address: u64) -> bool {
        self.overlaps(AddressRange::sized(address, 1))
    }

    /// Whether an address of `range` is in the set.
    pub fn overlaps(&self, range: impl Into<AddressRange>) -> bool {
        !self.overlapping(range).is_empty()
    }

    /// Whether all of `range` is in the set.
    pub fn covers(&self, range: impl Into<AddressRange>) -> bool {
        let range = range.into();
        range.is_empty() || self.overlapping(range).first().is_some_and(|first| first.covers(range))
    }

    /// The ranges of the set that overlap `range`, whole.
    pub fn overlapping(&self, range: impl Into<AddressRange>) -> &[AddressRange] {
        overlapping(&self.0, range)
    }

    /// The parts of `range` that are in the set, in address order.
    pub fn within(&self, range: impl Into<AddressRange>) -> impl Iterator<Item = AddressRange> {
        let range = range.into();
        self.overlapping(range).iter().map(move |member| member.intersection(range))
    }

    /// The parts of `range` that are not in the set, in address order.
    pub fn gaps_in(&self, range: impl Into<AddressRange>) -> impl Iterator<Item = AddressRange> {
        let range = range.into();
        let members = self.overlapping(range);
        let starts = std::iter::once(range.start).chain(members.iter().map(|member| member.end));
        let ends = members.iter().map(|member| member.start).chain(std::iter::once(range.end));
        starts.zip(ends).map(|gap| gap.into()).filter(|gap: &AddressRange| !gap.is_empty())
    }

    /// The addresses that are not in `other`.
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.iter().flat_map(|&range| other.gaps_in(range)).collect())
    }

    /// The addresses that are in both.
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.iter().flat_map(|&range| other.within(range)).collect())
    }
}

impl Deref for RangeSet {
    type Target = [AddressRange];

    fn deref(&self) -> &[AddressRange] {
        &self.0
    }
}

impl<T: Into<AddressRange>> FromIterator<T> for RangeSet {
    fn from_iter<I: IntoIterator<Item = T>>(ranges: I) -> Self {
        let mut set = Self::default();
        set.add(ranges);
        set
    }
}

impl<T: Into<AddressRange>> Extend<T> for RangeSet {
    fn extend<I: IntoIterator<Item = T>>(&mut self, ranges: I) {
        self.add(ranges);
    }
}

impl IntoIterator for RangeSet {
    type Item = AddressRange;
    type IntoIter = std::vec::IntoIter<AddressRange>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a RangeSet {
    type Item = &'a AddressRange;
    type IntoIter = std::slice::Iter<'a, AddressRange>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// The one of `ranges` (in address order, without overlap) that contains `address`.
pub fn containing(ranges: &[AddressRange], address: u64) -> Option<AddressRange> {
    let index = ranges.partition_point(|range| range.end <= address);
    ranges.get(index).copied().filter(|range| range.start <= address)
}

/// The ranges of `all` (in address order, without overlap) that overlap `range`.
pub fn overlapping<T: Copy + Into<AddressRange>>(all: &[T], range: impl Into<AddressRange>) -> &[T] {
    let range = range.into();
    let first_index = all.partition_point(|&member| member.into().end <= range.start);
    let end_index = all.partition_point(|&member| member.into().start < range.end).max(first_index);
    all.get(first_index..end_index).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(ranges: &[(u64, u64)]) -> RangeSet {
        ranges.iter().copied().collect()
    }

    fn addresses(ranges: &RangeSet) -> Vec<u64> {
        ranges.iter().flat_map(|range| range.start..range.end).collect()
    }

    #[test]
    fn ranges_are_merged() {
        let ranges = set(&[(5, 9), (1, 4), (2, 3), (9, 12), (20, 21), (30, 30), (40, 39)]);
        assert_eq!(ranges, set(&[(1, 4), (5, 12), (20, 21)]));
        assert_eq!((ranges.len(), ranges.bytes()), (3, 11));
        assert!(ranges.contains(11) && !ranges.contains(12) && ranges.covers((6, 12)));
        assert!(!ranges.covers((3, 6)) && ranges.overlaps((3, 6)) && !ranges.overlaps((4, 5)));
    }

    #[test]
    fn a_range_ends_before_its_end() {
        let range = AddressRange::new(0x1800, 0x3000);
        assert!(range.contains(0x1800) && !range.contains(0x3000));
        assert_eq!(range.widened_to_pages().pages().collect::<Vec<_>>(), [0x1000, 0x2000]);
        assert!(range.intersection(AddressRange::new(0x3000, 0x4000)).is_empty());
        assert_eq!(AddressRange::sized(u64::MAX, 2).end, u64::MAX);
    }

    proptest! {
        #[test]
        fn sets_of_ranges_are_sets(
            one in prop::collection::vec((0_u64..60, 0_u64..60), 0..9),
            other in prop::collection::vec((0_u64..60, 0_u64..60), 0..9),
            range in (0_u64..60, 0_u64..60),
        ) {
            let (one, other) = (set(&one), set(&other));
            let all = addresses(&one);
            prop_assert!(all.is_sorted_by(|a, b| a < b));
            let (in_other, not): (Vec<u64>, Vec<u64>) = all.iter().partition(|&&at| other.contains(at));
            prop_assert_eq!(addresses(&one.intersection(&other)), in_other);
            prop_assert_eq!(addresses(&one.without(&other)), not);
            let gaps: RangeSet = one.gaps_in(range).collect();
            let within: RangeSet = one.within(range).collect();
            let (known, unknown): (Vec<u64>, Vec<u64>) = (range.0..range.1).partition(|at| all.contains(at));
            prop_assert_eq!((addresses(&within), addresses(&gaps)), (known, unknown));
        }
    }
}
