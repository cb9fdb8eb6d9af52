//! Samples of one process as columns of differences: compact, and still readable as text.
//!
//! Consecutive equal samples form one [`Run`]: a quiet process costs one run per block. A column
//! holds its first value and then differences; zero differences at the end are left out.

use serde::{Deserialize, Serialize};

use crate::sample::{Column, Sample};

/// Maximum number of samples in one run: a recorder writes a block about every second, with at most
/// a thousand samples.
pub const MAX_RUN_SAMPLES: u64 = 10_000;
/// Maximum number of samples that are read of a block; a recorder takes a thousand in a second.
/// Each of the millions of runs that fit into a frame could otherwise have [`MAX_RUN_SAMPLES`].
const MAX_BLOCK_SAMPLES: u64 = 1 << 20;

/// Consecutive equal samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// When the first was taken, in microseconds since the recording began.
    pub at_us: u64,
    /// Time from the first to the last, in microseconds.
    pub span_us: u64,
    /// Number of samples: at least 1, at most [`MAX_RUN_SAMPLES`].
    pub count: u64,
    /// The figures of each sample.
    pub sample: Sample,
}

impl Run {
    /// When each of its samples was taken, in microseconds: spread evenly over its span.
    pub fn times_us(&self) -> impl Iterator<Item = u64> + use<> {
        let Self { at_us, span_us, count, .. } = *self;
        let gaps = count.saturating_sub(1).max(1);
        (0..count).map(move |index| {
            at_us.saturating_add((u128::from(span_us) * u128::from(index) / u128::from(gaps)) as u64)
        })
    }

    /// When its last sample was taken, in microseconds.
    pub fn end_us(&self) -> u64 {
        self.at_us.saturating_add(self.span_us)
    }
}

/// Defines [`Block`] with a column for each figure, in the order of [`Column`].
macro_rules! define_block {
    ($($figure:ident),* $(,)?) => {
        /// Samples of one process, in order of time: a column for each field of [`Run`] and
        /// [`Sample`], with an entry per run (see [`differences`]).
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Block {
            /// Number of the process: see [`crate::ProcessStart::process`].
            pub process: u32,
            /// [`Run::at_us`]. The only column without zeros left out: its length is the number of
            /// runs.
            us: Vec<i64>,
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            span_us: Vec<i64>,
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            count: Vec<i64>,
            $(
                #[serde(default, skip_serializing_if = "Vec::is_empty")]
                $figure: Vec<i64>,
            )*
        }

        impl Block {
            /// Packs runs of one process.
            pub fn new(process: u32, runs: &[Run]) -> Self {
                let [$($figure),*] = Column::ALL.map(|column| {
                    short_differences(runs.iter().map(|run| run.sample.figures()[column as usize]))
                });
                Self {
                    process,
                    us: differences(runs.iter().map(|run| run.at_us)),
                    span_us: short_differences(runs.iter().map(|run| run.span_us)),
                    count: short_differences(runs.iter().map(|run| run.count)),
                    $($figure),*
                }
            }

            /// The columns of the figures.
            fn figures(&self) -> [&[i64]; Column::COUNT] {
                [$(&self.$figure),*]
            }
        }
    };
}

define_block! {
    rss_kib, virtual_kib, data_kib, anonymous_kib, file_kib, shmem_kib,
    swap_kib, minor_faults, major_faults, user_ms, system_ms, threads,
}

impl Block {
    /// Unpacks the runs. Whatever the columns hold, there are at most as many runs as `us` has
    /// entries, each of 1 to [`MAX_RUN_SAMPLES`] samples; all together have at most
    /// `MAX_BLOCK_SAMPLES`, and further ones are left out.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        let mut figures = self.figures().map(ColumnReader::new);
        let mut times_us = ColumnReader::new(&self.us);
        let mut spans_us = ColumnReader::new(&self.span_us);
        let mut counts = ColumnReader::new(&self.count);
        let mut samples_left = MAX_BLOCK_SAMPLES;
        (0..self.us.len()).map_while(move |_| {
            let run = Run {
                at_us: times_us.next_value(),
                span_us: spans_us.next_value(),
                count: counts.next_value().clamp(1, MAX_RUN_SAMPLES).min(samples_left),
                sample: Sample::from_figures(figures.each_mut().map(ColumnReader::next_value)),
            };
            samples_left -= run.count;
            (run.count > 0).then_some(run)
        })
    }

    /// Number of samples that [`Self::runs`] leaves out.
    pub fn samples_left_out(&self) -> u64 {
        let mut counts = ColumnReader::new(&self.count);
        let (mut recorded, mut in_runs) = (0u64, 0u64);
        for _ in &self.us {
            let samples = counts.next_value().max(1);
            recorded = recorded.saturating_add(samples);
            in_runs = in_runs.saturating_add(samples.min(MAX_RUN_SAMPLES));
        }
        recorded - in_runs.min(MAX_BLOCK_SAMPLES)
    }
}

/// Turns a column of differences into its values again.
pub(crate) struct ColumnReader<'a> {
    /// Entries that were not read yet.
    differences: std::slice::Iter<'a, i64>,
    /// The last value, before negative ones are replaced.
    value: i64,
}

impl<'a> ColumnReader<'a> {
    /// A reader of a column from its first entry on.
    pub fn new(differences: &'a [i64]) -> Self {
        Self { differences: differences.iter(), value: 0 }
    }

    /// The next value; after the last entry of the column, the last value again. A negative value
    /// counts as 0: only a hostile file has one, because frames carry a checksum.
    pub fn next_value(&mut self) -> u64 {
        let difference = self.differences.next().copied().unwrap_or(0);
        self.value = self.value.wrapping_add(difference);
        u64::try_from(self.value).unwrap_or(0)
    }
}

/// The first value, then the difference of each to the one before.
pub fn differences(values: impl Iterator<Item = u64>) -> Vec<i64> {
    let mut previous_value = 0u64;
    values
        .map(|value| {
            let difference = value.wrapping_sub(previous_value).cast_signed();
            previous_value = value;
            difference
        })
        .collect()
}

/// [`differences`] without zeros at the end.
pub(crate) fn short_differences(values: impl Iterator<Item = u64>) -> Vec<i64> {
    let mut column = differences(values);
    let last_change = column.iter().rposition(|&difference| difference != 0);
    column.truncate(last_change.map_or(0, |index| index + 1));
    column
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_run() -> impl Strategy<Value = Run> {
        let figures = proptest::array::uniform12(0..u64::MAX >> 2);
        (0..u64::MAX >> 2, 0..1u64 << 40, 1..MAX_RUN_SAMPLES, figures).prop_map(
            |(at_us, span_us, count, figures)| Run {
                at_us,
                span_us,
                count,
                sample: Sample::from_figures(figures),
            },
        )
    }

    proptest! {
        #[test]
        fn runs_read_back(runs in proptest::collection::vec(any_run(), 0..40)) {
            let text = serde_json::to_string(&Block::new(7, &runs)).unwrap();
            let block: Block = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(block.samples_left_out(), 0);
            prop_assert_eq!(block.runs().collect::<Vec<_>>(), runs);
        }
    }

    #[test]
    fn a_quiet_second_is_one_short_line() {
        let sample = Sample { rss_kib: 5_432, threads: 1, ..Sample::default() };
        let run = Run { at_us: 86_400_000_000, span_us: 999_000, count: 1000, sample };
        let text = serde_json::to_string(&Block::new(0, &[run])).unwrap();
        assert!(text.len() < 120, "{text}");
    }

    #[test]
    fn hostile_columns_stay_within_bounds() {
        let text =
            r#"{"process":0,"us":[-5,9223372036854775807,1],"count":[9223372036854775807],"rss_kib":[-1]}"#;
        let block: Block = serde_json::from_str(text).unwrap();
        let runs: Vec<Run> = block.runs().collect();
        assert_eq!(runs.len(), 3);
        assert!(runs.iter().all(|run| run.count <= MAX_RUN_SAMPLES && run.sample.rss_kib == 0));
        assert!(runs.iter().all(|run| run.times_us().count() as u64 == run.count));
    }

    #[test]
    fn a_block_of_very_many_samples_is_cut() {
        let us = vec!["0"; 1_000].join(",");
        let text = format!(r#"{{"process":0,"us":[{us}],"count":[9000000]}}"#);
        let block: Block = serde_json::from_str(&text).unwrap();
        assert_eq!(block.runs().map(|run| run.count).sum::<u64>(), MAX_BLOCK_SAMPLES);
        assert!(block.runs().all(|run| run.count > 0));
        assert_eq!(block.samples_left_out(), 1_000 * 9_000_000 - MAX_BLOCK_SAMPLES);
    }

    #[test]
    fn samples_of_a_run_are_spread_over_its_span() {
        let run = Run { at_us: 1000, span_us: 3000, count: 4, sample: Sample::default() };
        assert_eq!(run.times_us().collect::<Vec<_>>(), [1000, 2000, 3000, 4000]);
        assert_eq!(run.end_us(), 4000);
        let single = Run { count: 1, span_us: 0, ..run };
        assert_eq!(single.times_us().collect::<Vec<_>>(), [1000]);
    }
}
