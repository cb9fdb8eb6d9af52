//! The control group of a recording over time: a bounded number of moments, each with rows that add
//! up to the charge.

use std::collections::BTreeMap;

use strandline_recording::{GroupBlock, GroupKill, GroupSample, GroupStart, OTHER_ROWS};

use super::series::{Series, SeriesPoint};
use super::truncated_word;

/// Maximum number of rows; there are about twenty. The others are summed.
const MAX_ROWS: usize = 64;
/// Maximum number of changes of the limit that are kept; further ones are counted.
const MAX_LIMITS: usize = 256;
/// Maximum length of a row's name.
const MAX_NAME_BYTES: usize = 64;

/// What was charged at one moment; a figure is `None` if it was not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupPoint {
    /// When it was sampled, in microseconds.
    pub at_us: u64,
    /// The charge.
    pub current_bytes: u64,
    /// The charge without inactive file pages.
    pub working_set_bytes: Option<u64>,
    /// What the kernel reclaims before it kills.
    pub reclaimable_bytes: Option<u64>,
    /// Bytes in swap.
    pub swap_bytes: Option<u64>,
    /// Processes killed for lack of memory since the group was created.
    pub oom_kills: Option<u64>,
    /// Bytes by row, in the order of [`GroupTimeline::rows`]; rows at its end may be missing.
    pub rows: Vec<u64>,
}

/// Keeps the moment with the larger charge: rows of two moments would not add up.
impl SeriesPoint for GroupPoint {
    const MAX_POINTS: usize = 2_048;

    fn at_us(&self) -> u64 {
        self.at_us
    }

    fn merge(&mut self, later: Self) {
        if later.current_bytes > self.current_bytes {
            *self = later;
        }
    }
}

/// The limit that holds from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStep {
    /// From when on, in microseconds.
    pub at_us: u64,
    /// The smallest limit of the group and those above it; `None` if none of them has a limit, or
    /// if one limit could not be read.
    pub bytes: Option<u64>,
}

/// A control group over time.
#[derive(Clone, Debug, Default)]
pub struct GroupTimeline {
    /// Its name and its last limits.
    pub start: GroupStart,
    /// Its limits over time.
    pub limits: Vec<LimitStep>,
    /// Names of the rows.
    pub rows: Vec<String>,
    series: Series<GroupPoint>,
    /// The last sample, which thinning may merge into a larger one.
    pub last_point: Option<GroupPoint>,
    /// Number of samples that the recording has; of equal ones the first and the last.
    pub samples: u64,
    /// Number of changes of the limit that are not in `limits`.
    pub(super) dropped_limits: u64,
}

impl GroupTimeline {
    /// The moments, in order of time: of each interval that with the largest charge.
    pub fn points(&self) -> &[GroupPoint] {
        self.series.points()
    }

    /// Width of a point's interval in microseconds; `None` if every sample has its own point.
    pub fn width_us(&self) -> Option<u64> {
        self.series.width_us()
    }

    /// The moment of the largest charge.
    pub fn peak(&self) -> Option<&GroupPoint> {
        // If several are equal, the first.
        self.points().iter().rev().max_by_key(|point| point.current_bytes)
    }

    /// The rows with bytes at any moment, those with the most first; each with its index.
    pub fn largest_rows(&self) -> Vec<usize> {
        let max_bytes =
            |index: usize| self.points().iter().filter_map(|point| point.rows.get(index)).max().copied();
        let mut indices: Vec<usize> =
            (0..self.rows.len()).filter(|&index| max_bytes(index).unwrap_or(0) > 0).collect();
        indices.sort_by_cached_key(|&index| std::cmp::Reverse(max_bytes(index)));
        indices
    }

    /// Begins the group, or changes its limits.
    pub(super) fn begin(&mut self, start: GroupStart) {
        if self.limits.len() < MAX_LIMITS {
            self.limits.push(LimitStep { at_us: start.at_us, bytes: start.effective_limit_bytes });
        } else {
            self.dropped_limits += 1;
        }
        let path = truncated_word(start.path);
        let effective_limit_path = start.effective_limit_path.map(truncated_word);
        let unread_limit_path = start.unread_limit_path.map(truncated_word);
        self.start = GroupStart { path, effective_limit_path, unread_limit_path, ..start };
    }

    pub(super) fn add(&mut self, block: &GroupBlock) {
        let mut last_point: Option<GroupPoint> = None;
        for sample in block.samples() {
            self.samples = self.samples.saturating_add(1);
            let point = self.point(sample);
            if let Some(earlier) = last_point.replace(point) {
                self.series.add(earlier);
            }
        }
        if let Some(point) = last_point {
            self.last_point = Some(point.clone());
            self.series.add(point);
        }
    }

    /// A point with the rows of a sample in the order of this group's; new rows are added to it.
    fn point(&mut self, sample: GroupSample) -> GroupPoint {
        let mut by_name: BTreeMap<String, u64> = sample.rows;
        let mut rows: Vec<u64> = self.rows.iter().map(|name| by_name.remove(name).unwrap_or(0)).collect();
        let mut other_bytes = 0u64;
        for (name, bytes) in by_name {
            if self.rows.len() < MAX_ROWS && name.len() <= MAX_NAME_BYTES && name != OTHER_ROWS {
                self.rows.push(name);
                rows.push(bytes);
            } else {
                other_bytes = other_bytes.saturating_add(bytes);
            }
        }
        if other_bytes > 0 {
            let index = self.other_rows_index();
            rows.resize(rows.len().max(index + 1), 0);
            rows[index] = rows[index].saturating_add(other_bytes);
        }
        GroupPoint {
            at_us: sample.at_us,
            current_bytes: sample.current_bytes,
            working_set_bytes: sample.working_set_bytes,
            reclaimable_bytes: sample.reclaimable_bytes,
            swap_bytes: sample.swap_bytes,
            oom_kills: sample.oom_kills,
            rows,
        }
    }

    /// Returns the index of the row with the sum of the others; it may be one more than the bound.
    fn other_rows_index(&mut self) -> usize {
        let index = self.rows.iter().position(|name| name == OTHER_ROWS);
        index.unwrap_or_else(|| {
            self.rows.push(OTHER_ROWS.to_owned());
            self.rows.len() - 1
        })
    }
}

/// Truncates the names and the sentence of a kill to what a report shows. Rows whose names become
/// equal are added up.
pub(super) fn truncated_kill(kill: GroupKill) -> GroupKill {
    let mut rows: BTreeMap<String, u64> = BTreeMap::new();
    for (name, bytes) in kill.rows {
        let sum = rows.entry(truncated_word(name)).or_default();
        *sum = sum.saturating_add(bytes);
    }
    let (path, unknown) = (truncated_word(kill.path), truncated_word(kill.unknown));
    GroupKill { path, unknown, rows, ..kill }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_us: u64, bytes: u64) -> GroupSample {
        let rows = [("group.anon".to_owned(), bytes / 2), ("group.shmem".to_owned(), bytes - bytes / 2)];
        GroupSample { at_us, current_bytes: bytes, rows: rows.into(), ..GroupSample::default() }
    }

    #[test]
    fn a_day_keeps_its_peak_and_rows_that_add_up() {
        let mut group = GroupTimeline::default();
        for second in 0..86_400u64 {
            let samples: Vec<GroupSample> = (0..10)
                .map(|n| second * 10 + n)
                .map(|n| sample(n * 100_000, if n == 123_456 { 99_999 } else { n % 1_000 }))
                .collect();
            group.add(&GroupBlock::new(0, &samples));
        }
        assert_eq!(group.samples, 864_000);
        let count = group.points().len();
        assert!((GroupPoint::MAX_POINTS / 4..=GroupPoint::MAX_POINTS).contains(&count), "{count}");
        assert_eq!(group.last_point.as_ref().map(|last| last.at_us), Some(86_399_900_000));
        assert_eq!(group.peak().map(|peak| (peak.at_us, peak.current_bytes)), Some((12_345_600_000, 99_999)));
        assert!(group.points().iter().all(|point| point.rows.iter().sum::<u64>() == point.current_bytes));
        assert_eq!(group.largest_rows(), [1, 0]);
    }

    #[test]
    fn hostile_rows_and_times_stay_within_bounds() {
        let mut group = GroupTimeline::default();
        for n in 0..5_000u64 {
            let rows = (0..40).map(|row| (format!("row {n} {row}"), u64::MAX / 2)).collect();
            let at_us = u64::MAX / 4 - (n % 7) * 1_000;
            let hostile = GroupSample { at_us, current_bytes: u64::MAX, rows, ..GroupSample::default() };
            group.add(&GroupBlock::new(0, &[hostile]));
            group.begin(GroupStart::default());
        }
        assert_eq!((group.rows.len(), group.limits.len()), (MAX_ROWS + 1, MAX_LIMITS));
        assert!(group.points().len() <= GroupPoint::MAX_POINTS);
        assert_eq!(group.dropped_limits, 5_000 - MAX_LIMITS as u64);
    }

    #[test]
    fn texts_of_a_kill_are_truncated_and_its_rows_still_add_up() {
        let long = "é".repeat(10_000);
        let rows = [(long.clone(), 3u64), (format!("{long}2"), 4), ("group.anon".to_owned(), 5)];
        let rows = BTreeMap::from(rows);
        let kill = GroupKill { path: long.clone(), unknown: long, rows, ..GroupKill::default() };
        let kill = truncated_kill(kill);
        let lengths = kill.rows.keys().chain([&kill.path, &kill.unknown]).map(String::len);
        assert!(lengths.max().is_some_and(|length| length <= 1024), "{kill:?}");
        assert_eq!((kill.rows.len(), kill.rows.values().sum::<u64>()), (2, 12));
    }

    #[test]
    fn rows_beyond_the_bound_are_summed() {
        let mut group = GroupTimeline::default();
        for n in 0..2u64 {
            let rows = (0..50).map(|row| (format!("row {n} {row}"), 3)).collect();
            let sample = GroupSample { at_us: n, current_bytes: 150, rows, ..GroupSample::default() };
            group.add(&GroupBlock::new(0, &[sample]));
        }
        let last_point = group.points().last().unwrap();
        assert_eq!(last_point.rows.iter().sum::<u64>(), last_point.current_bytes);
        assert_eq!(
            (group.rows.last().map(String::as_str), last_point.rows.last()),
            (Some(OTHER_ROWS), Some(&108))
        );
    }
}
