//! What is charged to a control group over time, as columns of differences like those of processes.
//! The rows are those of `explain --cgroup`; sizes are bytes, so that rows add up to the charge
//! exactly.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::block::{differences, positive, short_differences};

/// A control group is sampled from here on; again with the same number if a limit changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStart {
    /// Its number in this recording, from 0.
    pub group: u32,
    /// Since when.
    pub at_us: u64,
    /// Its path below the root of the hierarchy.
    pub path: String,
    /// The version of control groups.
    pub version: u8,
    /// Its own limit; `None`: none.
    pub limit_bytes: Option<u64>,
    /// The smallest limit of it and the groups above it.
    pub effective_limit_bytes: Option<u64>,
    /// The group that has that limit.
    pub effective_limit_path: Option<String>,
}

/// What is charged to a control group at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSample {
    /// When.
    pub at_us: u64,
    /// The charge: rows add up to it.
    pub current_bytes: u64,
    /// The charge without inactive file pages.
    pub working_set_bytes: Option<u64>,
    /// What the kernel reclaims before it kills.
    pub reclaimable_bytes: Option<u64>,
    /// Swapped out; not in the charge.
    pub swap_bytes: Option<u64>,
    /// Processes killed for lack of memory since the group exists.
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

/// Samples of one group, in order of time. A column that is missing is not known; of one that is
/// shorter than `us` the last values are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupBlock {
    /// Number of the group: see [`GroupStart::group`].
    pub group: u32,
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

/// The row with the sum of the rows that have none of their own: those beyond the bounds of a
/// block, and those that not all of its samples have. With it the rows still add up to the charge.
pub const OTHER_ROWS: &str = "group.other_rows";

/// Maximum number of rows that are read of a block, and length of their ids: there are about
/// twenty rows, with ids such as `group.anon`. Each sample has a copy of every id.
const MAX_ROWS: usize = 64;
const MAX_ID_BYTES: usize = 64;
/// Maximum number of samples that are read of a block; a recorder takes at most a thousand in a
/// second.
const MAX_SAMPLES: usize = 1 << 16;

impl GroupBlock {
    /// Packs samples of one group. A figure that one of them lacks is not known in all; the bytes
    /// of such rows are on [`OTHER_ROWS`].
    pub fn new(group: u32, samples: &[GroupSample]) -> Self {
        let known = |figure: fn(&GroupSample) -> Option<u64>| {
            let values: Option<Vec<u64>> = samples.iter().map(figure).collect();
            values.map(|values| short_differences(values.into_iter()))
        };
        let ids = samples.first().map(|first| first.rows.keys()).into_iter().flatten();
        let row = |id: &String| {
            let values: Option<Vec<u64>> = samples.iter().map(|one| one.rows.get(id).copied()).collect();
            Some((id.clone(), short_differences(values?.into_iter())))
        };
        let mut rows: BTreeMap<String, Vec<i64>> =
            ids.filter(|id| id.as_str() != OTHER_ROWS).filter_map(row).collect();
        let other_bytes = |sample: &GroupSample| {
            let others = sample.rows.iter().filter(|(id, _)| !rows.contains_key(id.as_str()));
            others.fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes))
        };
        let others: Vec<u64> = samples.iter().map(other_bytes).collect();
        if others.iter().any(|&bytes| bytes > 0) {
            rows.insert(OTHER_ROWS.to_owned(), short_differences(others.into_iter()));
        }
        Self {
            group,
            us: differences(samples.iter().map(|sample| sample.at_us)),
            current_bytes: short_differences(samples.iter().map(|sample| sample.current_bytes)),
            working_set_bytes: known(|sample| sample.working_set_bytes),
            reclaimable_bytes: known(|sample| sample.reclaimable_bytes),
            swap_bytes: known(|sample| sample.swap_bytes),
            oom_kills: known(|sample| sample.oom_kills),
            rows,
        }
    }

    /// Number of samples that [`Self::samples`] leaves out.
    pub fn samples_left_out(&self) -> u64 {
        self.us.len().saturating_sub(MAX_SAMPLES) as u64
    }

    /// Unpacks the samples: as many as `us` has entries, whatever the columns hold, but at most
    /// `MAX_SAMPLES`. Of rows beyond the bounds there is the sum, as [`OTHER_ROWS`].
    pub fn samples(&self) -> impl Iterator<Item = GroupSample> + '_ {
        let mut sums = Sums::default();
        let step = |value: &mut i64, column: &[i64], index: usize| {
            *value = value.wrapping_add(column.get(index).copied().unwrap_or(0));
            positive(*value)
        };
        let maybe = move |value: &mut i64, column: &Option<Vec<i64>>, index: usize| {
            column.as_ref().map(|column| step(value, column, index))
        };
        let read = self.rows.iter().filter(|(id, _)| id.len() <= MAX_ID_BYTES);
        let beyond = read.clone().skip(MAX_ROWS);
        let others = self.rows.iter().filter(|(id, _)| id.len() > MAX_ID_BYTES).chain(beyond);
        let count = self.us.len().min(MAX_SAMPLES);
        let other_bytes = column_sums(others.map(|(_, column)| column.as_slice()), count);
        let mut rows: Vec<(&String, &Vec<i64>, i64)> =
            read.take(MAX_ROWS).map(|(id, column)| (id, column, 0)).collect();
        let samples = (0..count).map(move |index| GroupSample {
            at_us: step(&mut sums.at, &self.us, index),
            current_bytes: step(&mut sums.current, &self.current_bytes, index),
            working_set_bytes: maybe(&mut sums.working_set, &self.working_set_bytes, index),
            reclaimable_bytes: maybe(&mut sums.reclaimable, &self.reclaimable_bytes, index),
            swap_bytes: maybe(&mut sums.swap, &self.swap_bytes, index),
            oom_kills: maybe(&mut sums.kills, &self.oom_kills, index),
            rows: rows
                .iter_mut()
                .map(|(id, column, value)| ((*id).clone(), step(value, column, index)))
                .collect(),
        });
        samples.enumerate().map(move |(index, mut sample)| {
            if let Some(&bytes) = other_bytes.get(index) {
                let others = sample.rows.entry(OTHER_ROWS.to_owned()).or_default();
                *others = others.saturating_add(bytes);
            }
            sample
        })
    }
}

/// The sum of all columns at each of `count` samples; empty without columns. It looks at each entry
/// once, because a hostile line has many short columns beside a long `us`.
fn column_sums<'a>(columns: impl Iterator<Item = &'a [i64]>, count: usize) -> Vec<u64> {
    let mut changes: Vec<i128> = Vec::new();
    for column in columns {
        changes.resize(count, 0);
        let (mut value, mut before) = (0i64, 0u64);
        for (change, difference) in changes.iter_mut().zip(column) {
            value = value.wrapping_add(*difference);
            *change += i128::from(positive(value)) - i128::from(before);
            before = positive(value);
        }
    }
    let mut sum = 0i128;
    let add = |change: i128| {
        sum += change;
        u64::try_from(sum).unwrap_or(u64::MAX)
    };
    changes.into_iter().map(add).collect()
}

/// The values reached in each column.
#[derive(Default)]
struct Sums {
    at: i64,
    current: i64,
    working_set: i64,
    reclaimable: i64,
    swap: i64,
    kills: i64,
}

/// What a group held when the kernel killed a process of it for lack of memory: the last sample
/// before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupKill {
    /// Number of the group: see [`GroupStart::group`].
    pub group: u32,
    /// Its path.
    pub path: String,
    /// Processes killed in it since it is recorded; `None` if it was removed before that could be
    /// read.
    pub kills: Option<u64>,
    /// When the kill was noticed.
    pub noticed_us: u64,
    /// When the sample was taken.
    pub sample_us: u64,
    /// The time between them.
    pub age_us: u64,
    /// The charge.
    pub current_bytes: u64,
    /// The smallest limit of it and the groups above it.
    pub effective_limit_bytes: Option<u64>,
    /// The most that was ever charged, read after the kill.
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

    fn sample() -> impl Strategy<Value = GroupSample> {
        let figure = || 0..u64::MAX >> 2;
        let all = (figure(), figure(), figure(), figure(), figure());
        all.prop_map(|(at_us, current_bytes, working_set, anon, shmem)| GroupSample {
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
        fn samples_read_back(samples in proptest::collection::vec(sample(), 0..40)) {
            let text = serde_json::to_string(&GroupBlock::new(1, &samples)).unwrap();
            let block: GroupBlock = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(block.samples().collect::<Vec<_>>(), samples);
        }
    }

    #[test]
    fn rows_that_not_all_samples_have_are_summed() {
        let of = |rows: &[(&str, u64)]| GroupSample {
            current_bytes: 20,
            rows: rows.iter().map(|(id, bytes)| ((*id).to_owned(), *bytes)).collect(),
            ..GroupSample::default()
        };
        let samples = [
            of(&[("group.anon", 15), ("group.old", 2), ("group.older", 3)]),
            of(&[("group.anon", 11), ("group.new", 9)]),
        ];
        let read: Vec<GroupSample> = GroupBlock::new(0, &samples).samples().collect();
        let summed = [of(&[("group.anon", 15), (OTHER_ROWS, 5)]), of(&[("group.anon", 11), (OTHER_ROWS, 9)])];
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
