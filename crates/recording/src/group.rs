//! What is charged to a control group over time, as columns of differences like those of processes.
//! The rows are those of `explain --cgroup`; sizes are bytes, so that rows add up to the charge
//! exactly.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::block::{ColumnReader, differences, short_differences};

/// A control group is sampled from here on; again with the same number if a limit changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStart {
    /// Its number in this recording, from 0.
    pub group: u32,
    /// When the group was first sampled, or its limit changed.
    pub at_us: u64,
    /// Its path below the root of the hierarchy.
    pub path: String,
    /// The version of control groups.
    pub version: u8,
    /// Its own limit; `None` if it has none.
    pub limit_bytes: Option<u64>,
    /// The smallest limit of it and the groups above it; `None` if none of them has one.
    pub effective_limit_bytes: Option<u64>,
    /// The group that has that limit.
    pub effective_limit_path: Option<String>,
    /// The first of these groups whose limit could not be read: which limit applies is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread_limit_path: Option<String>,
}

/// What is charged to a control group at one moment. What the kernel does not count is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSample {
    /// When it was taken.
    pub at_us: u64,
    /// The charge: rows add up to it.
    pub current_bytes: u64,
    /// The charge without inactive file pages.
    pub working_set_bytes: Option<u64>,
    /// What the kernel reclaims before it kills.
    pub reclaimable_bytes: Option<u64>,
    /// Bytes in swap; not part of the charge.
    pub swap_bytes: Option<u64>,
    /// Processes killed for lack of memory since the group was created.
    pub oom_kills: Option<u64>,
    /// Bytes by row; a row that the kernel does not count is missing.
    pub rows: BTreeMap<String, u64>,
}

impl GroupSample {
    /// Whether all figures are those of `other`, whenever it was taken.
    pub fn has_figures_of(&self, other: &Self) -> bool {
        *self == Self { at_us: self.at_us, ..other.clone() }
    }
}

/// Samples of one group, in order of time: a column of differences for each field of
/// [`GroupSample`]. The figures of an optional column that is missing are unknown; in a column that
/// is shorter than `us`, the last value repeats.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupBlock {
    /// Number of the group: see [`GroupStart::group`].
    pub group: u32,
    /// [`GroupSample::at_us`]; its length is the number of samples.
    us: Vec<i64>,
    #[serde(default)]
    current_bytes: Vec<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    working_set_bytes: Option<Vec<i64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reclaimable_bytes: Option<Vec<i64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    swap_bytes: Option<Vec<i64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    oom_kills: Option<Vec<i64>>,
    #[serde(default)]
    rows: BTreeMap<String, Vec<i64>>,
}

/// The row for the sum of those rows that a block does not keep one by one: rows beyond its bounds,
/// and rows that some of its samples lack. With it, the rows still add up to the charge.
pub const OTHER_ROWS: &str = "group.other_rows";

/// Maximum number of rows that are read of a block; a kernel has about twenty.
const MAX_ROWS: usize = 64;
/// Maximum length of the id of a row, such as `group.anon`: each sample has a copy.
const MAX_ID_BYTES: usize = 64;
/// Maximum number of samples that are read of a block; a recorder takes at most a thousand in a
/// second.
const MAX_SAMPLES: usize = 1 << 16;

impl GroupBlock {
    /// Packs samples of one group. A figure that one of them lacks is unknown in all; the bytes of
    /// such rows are on [`OTHER_ROWS`].
    pub fn new(group: u32, samples: &[GroupSample]) -> Self {
        let ids = samples.first().map(|sample| sample.rows.keys()).into_iter().flatten();
        let mut rows: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for id in ids.filter(|id| id.as_str() != OTHER_ROWS) {
            let column = column_if_known(samples, |sample| sample.rows.get(id).copied());
            rows.extend(column.map(|column| (id.clone(), column)));
        }
        let sum_of_others = |sample: &GroupSample| {
            let other_rows = sample.rows.iter().filter(|(id, _)| !rows.contains_key(id.as_str()));
            other_rows.fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes))
        };
        let other_bytes: Vec<u64> = samples.iter().map(sum_of_others).collect();
        if other_bytes.iter().any(|&bytes| bytes > 0) {
            rows.insert(OTHER_ROWS.to_owned(), short_differences(other_bytes.into_iter()));
        }
        Self {
            group,
            us: differences(samples.iter().map(|sample| sample.at_us)),
            current_bytes: short_differences(samples.iter().map(|sample| sample.current_bytes)),
            working_set_bytes: column_if_known(samples, |sample| sample.working_set_bytes),
            reclaimable_bytes: column_if_known(samples, |sample| sample.reclaimable_bytes),
            swap_bytes: column_if_known(samples, |sample| sample.swap_bytes),
            oom_kills: column_if_known(samples, |sample| sample.oom_kills),
            rows,
        }
    }

    /// Number of samples that [`Self::samples`] leaves out.
    pub fn samples_left_out(&self) -> u64 {
        self.us.len().saturating_sub(MAX_SAMPLES) as u64
    }

    /// Unpacks the samples: as many as `us` has entries, whatever the columns hold, but at most
    /// `MAX_SAMPLES`. Rows beyond the bounds are summed up, as [`OTHER_ROWS`].
    pub fn samples(&self) -> impl Iterator<Item = GroupSample> + '_ {
        let sample_count = self.us.len().min(MAX_SAMPLES);
        let short_ids = self.rows.iter().filter(|(id, _)| id.len() <= MAX_ID_BYTES);
        let long_ids = self.rows.iter().filter(|(id, _)| id.len() > MAX_ID_BYTES);
        let other_rows = long_ids.chain(short_ids.clone().skip(MAX_ROWS));
        let other_bytes = column_sums(other_rows.map(|(_, column)| column.as_slice()), sample_count);
        let mut rows: Vec<(&String, ColumnReader<'_>)> =
            short_ids.take(MAX_ROWS).map(|(id, column)| (id, ColumnReader::new(column))).collect();
        let mut times_us = ColumnReader::new(&self.us);
        let mut current_bytes = ColumnReader::new(&self.current_bytes);
        let mut working_set_bytes = self.working_set_bytes.as_deref().map(ColumnReader::new);
        let mut reclaimable_bytes = self.reclaimable_bytes.as_deref().map(ColumnReader::new);
        let mut swap_bytes = self.swap_bytes.as_deref().map(ColumnReader::new);
        let mut oom_kills = self.oom_kills.as_deref().map(ColumnReader::new);
        (0..sample_count).map(move |index| {
            let mut sample = GroupSample {
                at_us: times_us.next_value(),
                current_bytes: current_bytes.next_value(),
                working_set_bytes: working_set_bytes.as_mut().map(ColumnReader::next_value),
                reclaimable_bytes: reclaimable_bytes.as_mut().map(ColumnReader::next_value),
                swap_bytes: swap_bytes.as_mut().map(ColumnReader::next_value),
                oom_kills: oom_kills.as_mut().map(ColumnReader::next_value),
                rows: rows.iter_mut().map(|(id, column)| ((*id).clone(), column.next_value())).collect(),
            };
            if let Some(&bytes) = other_bytes.get(index) {
                let row_bytes = sample.rows.entry(OTHER_ROWS.to_owned()).or_default();
                *row_bytes = row_bytes.saturating_add(bytes);
            }
            sample
        })
    }
}

/// The column of one figure; `None` if a sample lacks it.
fn column_if_known(
    samples: &[GroupSample],
    figure: impl Fn(&GroupSample) -> Option<u64>,
) -> Option<Vec<i64>> {
    let values: Option<Vec<u64>> = samples.iter().map(figure).collect();
    values.map(|values| short_differences(values.into_iter()))
}

/// The sum of all columns at each of `count` samples; empty without columns. It looks at each entry
/// once, because a hostile line may have many short columns and a long `us`.
fn column_sums<'a>(columns: impl Iterator<Item = &'a [i64]>, count: usize) -> Vec<u64> {
    let mut changes: Vec<i128> = Vec::new();
    for column in columns {
        changes.resize(count, 0);
        let (mut reader, mut last_value) = (ColumnReader::new(column), 0u64);
        for change in changes.iter_mut().take(column.len()) {
            let value = reader.next_value();
            *change += i128::from(value) - i128::from(last_value);
            last_value = value;
        }
    }
    let mut sum = 0i128;
    let add_change = |change: i128| {
        sum += change;
        // Never negative: it is a sum of values that are not.
        u64::try_from(sum).unwrap_or(u64::MAX)
    };
    changes.into_iter().map(add_change).collect()
}

/// What a group held when the kernel killed a process of it for lack of memory: the last sample
/// before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupKill {
    /// Number of the group: see [`GroupStart::group`].
    pub group: u32,
    /// Its path.
    pub path: String,
    /// Processes killed in it since its recording began; `None` if it was removed before that could
    /// be read.
    pub kills: Option<u64>,
    /// When the kill was noticed.
    pub noticed_us: u64,
    /// When the sample was taken.
    pub sample_us: u64,
    /// Microseconds from the sample to when the kill was noticed.
    pub age_us: u64,
    /// The charge.
    pub current_bytes: u64,
    /// The smallest limit of it and the groups above it.
    pub effective_limit_bytes: Option<u64>,
    /// The highest charge ever, read after the kill.
    pub peak_bytes: Option<u64>,
    /// Bytes by row; they add up to the charge.
    pub rows: BTreeMap<String, u64>,
    /// What cannot be known of it, as a sentence.
    pub unknown: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_sample() -> impl Strategy<Value = GroupSample> {
        let figure = || 0..u64::MAX >> 2;
        let figures = (figure(), figure(), figure(), figure(), figure());
        figures.prop_map(|(at_us, current_bytes, working_set, anon, shmem)| GroupSample {
            at_us,
            current_bytes,
            working_set_bytes: Some(working_set),
            reclaimable_bytes: None,
            swap_bytes: Some(0),
            oom_kills: Some(anon % 3),
            rows: [("group.anon".to_owned(), anon), ("group.shmem".to_owned(), shmem)].into(),
        })
    }

    proptest! {
        #[test]
        fn samples_read_back(samples in proptest::collection::vec(any_sample(), 0..40)) {
            let text = serde_json::to_string(&GroupBlock::new(1, &samples)).unwrap();
            let block: GroupBlock = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(block.samples().collect::<Vec<_>>(), samples);
        }
    }

    #[test]
    fn rows_that_not_all_samples_have_are_summed() {
        let sample_with = |rows: &[(&str, u64)]| GroupSample {
            current_bytes: 20,
            rows: rows.iter().map(|(id, bytes)| ((*id).to_owned(), *bytes)).collect(),
            ..GroupSample::default()
        };
        let samples = [
            sample_with(&[("group.anon", 15), ("group.old", 2), ("group.older", 3)]),
            sample_with(&[("group.anon", 11), ("group.new", 9)]),
        ];
        let read: Vec<GroupSample> = GroupBlock::new(0, &samples).samples().collect();
        let summed = [
            sample_with(&[("group.anon", 15), (OTHER_ROWS, 5)]),
            sample_with(&[("group.anon", 11), (OTHER_ROWS, 9)]),
        ];
        assert_eq!(read, summed);
        assert_eq!(GroupBlock::new(0, &read).samples().collect::<Vec<_>>(), summed, "packed again");
    }

    #[test]
    fn rows_beyond_the_bounds_are_summed_at_each_sample() {
        let rows: Vec<String> = (0..=MAX_ROWS).map(|n| format!("\"r{n:03}\":[1,{n},-99]")).collect();
        let text = format!(r#"{{"group":0,"us":[1,1,1,1],"rows":{{{}}}}}"#, rows.join(","));
        let block: GroupBlock = serde_json::from_str(&text).unwrap();
        let others: Vec<u64> = block.samples().map(|sample| sample.rows[OTHER_ROWS]).collect();
        assert_eq!(others, [1, 65, 0, 0], "the last row, whose column is shorter than us");
        let sums = column_sums([&[5, -9, 7][..], &[2][..]].into_iter(), 4);
        assert_eq!(sums, [7, 2, 5, 5], "a value below 0 counts as 0");
    }

    #[test]
    fn hostile_columns_stay_within_bounds() {
        let mut rows: Vec<String> = (0..1000).map(|n| format!("\"r{n}\":[1]")).collect();
        rows.push(format!("\"{}\":[1]", "a".repeat(1 << 20)));
        let text = format!(
            r#"{{"group":0,"us":[-5,1],"current_bytes":[-1],"oom_kills":[],"rows":{{{}}}}}"#,
            rows.join(",")
        );
        let block: GroupBlock = serde_json::from_str(&text).unwrap();
        let samples: Vec<GroupSample> = block.samples().collect();
        assert_eq!((samples.len(), samples[0].rows.len()), (2, MAX_ROWS + 1));
        let others = 1001 - MAX_ROWS as u64;
        assert_eq!((samples[0].rows[OTHER_ROWS], samples[1].rows[OTHER_ROWS]), (others, others));
        assert!(samples[0].rows.keys().all(|id| id.len() <= MAX_ID_BYTES));
        assert_eq!(
            (samples[1].current_bytes, samples[1].oom_kills, samples[1].swap_bytes),
            (0, Some(0), None)
        );
        let us = vec!["0"; MAX_SAMPLES + 1].join(",");
        let block: GroupBlock = serde_json::from_str(&format!(r#"{{"group":0,"us":[{us}]}}"#)).unwrap();
        assert_eq!((block.samples().count(), block.samples_left_out()), (MAX_SAMPLES, 1));
    }
}
