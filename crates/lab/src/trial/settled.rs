//! Resident memory of a process over time, and its settled value before the end.
//!
//! An ending program tears itself down: an interpreter frees its objects, an allocator returns
//! their pages, and the resident memory at the last instant does not show what the program held
//! while it worked. The settled value is therefore the last *level*: the last period in which
//! memory stayed within a narrow band. If memory did not fall after it, the last instant is used
//! instead, because it has a ledger.
//!
//! A level lasts at least half a second, or a twentieth of a shorter run, and its band is 3 % wide.
//! A period that ends lower than it began by more than half of the band, or that continues the fall
//! of the period before it at a similar rate, is part of a fall and not a level, however long it
//! lasts.

use std::collections::VecDeque;

/// Width of a level: 3 % of its largest value, but at least this many KiB.
const BAND_PER_CENT: u64 = 3;
/// See [`BAND_PER_CENT`].
const MIN_BAND_KIB: u64 = 512;
/// A level lasts at least this part of the run, a twentieth, but no less than the first and no more
/// than the second of these bounds.
const MIN_LEVEL_DIVISOR: u64 = 20;
/// See [`MIN_LEVEL_DIVISOR`].
const LOWER_MIN_LEVEL_US: u64 = 20_000;
/// See [`MIN_LEVEL_DIVISOR`].
const UPPER_MIN_LEVEL_US: u64 = 500_000;
const US_PER_SECOND: u64 = 1_000_000;
/// Without a level, memory counts as fallen if fewer than these fifths remain: the sawtooth of a
/// collector may end anywhere.
const MIN_REMAINING_FIFTHS: u64 = 4;
/// Above this number of periods, those that are too short to be a level are dropped.
const MAX_PERIODS: usize = 256;

/// A resident size at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct SizeAt {
    kib: u64,
    at_us: u64,
}

/// A period in which memory stayed within a band.
#[derive(Clone, Copy, Debug, Default)]
struct Period {
    from_us: u64,
    to_us: u64,
    min_kib: u64,
    max_kib: u64,
    first_kib: u64,
    last_kib: u64,
    /// Sum of KiB times microseconds, for the mean.
    weighted_kib: u128,
    /// Sum of these microseconds.
    weight_us: u128,
    /// Maximum of the periods dropped after this one, and when it was first reached.
    dropped_max: Option<SizeAt>,
}

impl Period {
    /// Mean size, weighted by time.
    fn mean_kib(&self) -> u64 {
        u64::try_from(self.weighted_kib / self.weight_us.max(1)).unwrap_or(self.max_kib)
    }

    fn duration_us(&self) -> u64 {
        self.to_us.saturating_sub(self.from_us)
    }

    /// KiB per second by which it falls, if it is part of a fall; `previous_rate` is that of the
    /// previous period.
    fn fall_rate(&self, previous_rate: Option<u64>) -> Option<u64> {
        // Measured on both sides of the mean: a level may begin with the end of a fall, and end
        // with the first step down.
        let mean_kib = self.mean_kib();
        let half_fall_kib =
            self.first_kib.saturating_sub(mean_kib).min(mean_kib.saturating_sub(self.last_kib));
        let fall_kib = half_fall_kib.saturating_mul(2);
        let rate = fall_kib.saturating_mul(US_PER_SECOND) / self.duration_us().max(1);
        let continues_fall = previous_rate.is_some_and(|previous| fall_kib > 0 && rate >= previous / 2);
        (continues_fall || fall_kib > band_kib(self.max_kib) / 2).then_some(rate)
    }

    /// Whether `kib` is within the band of this period, or above.
    fn is_at_least(&self, kib: u64) -> bool {
        kib.saturating_add(band_kib(self.max_kib)) >= self.min_kib
    }

    /// Sizes above this are above the level.
    fn upper_bound_kib(&self) -> u64 {
        self.max_kib.saturating_add(band_kib(self.max_kib))
    }

    /// Maximum of this period and those dropped after it.
    fn maximum(&self) -> SizeAt {
        self.dropped_max.unwrap_or_default().max(SizeAt { kib: self.max_kib, at_us: self.from_us })
    }
}

/// Width of the band of a period with this maximum.
fn band_kib(max_kib: u64) -> u64 {
    (max_kib / 100 * BAND_PER_CENT).max(MIN_BAND_KIB)
}

/// Where memory had settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// At its final value: it did not fall.
    AtEnd,
    /// At the last level before it fell.
    Level {
        /// Mean of the level.
        kib: u64,
        from_us: u64,
        to_us: u64,
    },
    /// It fell without having held a level.
    BeforeFall {
        /// Maximum before the fall.
        kib: u64,
        at_us: u64,
    },
}

/// Resident memory of one process over time, added sample by sample in bounded space.
#[derive(Clone, Debug, Default)]
pub struct Series {
    periods: VecDeque<Period>,
    first_us: Option<u64>,
    last_sample: SizeAt,
}

impl Series {
    /// Adds samples of `kib` from `from_us` to `to_us`, in order of time.
    pub fn push(&mut self, from_us: u64, to_us: u64, kib: u64) {
        let first_us = *self.first_us.get_or_insert(from_us);
        let to_us = to_us.max(from_us);
        let weight_us = u128::from(to_us.saturating_sub(self.last_sample.at_us.max(first_us)).max(1));
        self.last_sample = SizeAt { kib, at_us: to_us };
        if let Some(period) = self.periods.back_mut() {
            let (min_kib, max_kib) = (period.min_kib.min(kib), period.max_kib.max(kib));
            if max_kib - min_kib <= band_kib(max_kib) {
                *period = Period {
                    to_us,
                    last_kib: kib,
                    min_kib,
                    max_kib,
                    weighted_kib: period.weighted_kib.saturating_add(u128::from(kib) * weight_us),
                    weight_us: period.weight_us + weight_us,
                    ..*period
                };
                return;
            }
        }
        if self.periods.len() >= MAX_PERIODS {
            self.drop_short_periods();
        }
        self.periods.push_back(Period {
            from_us,
            to_us,
            min_kib: kib,
            max_kib: kib,
            first_kib: kib,
            last_kib: kib,
            weighted_kib: u128::from(kib) * weight_us,
            weight_us,
            dropped_max: None,
        });
    }

    pub fn last_kib(&self) -> Option<u64> {
        self.first_us.map(|_| self.last_sample.kib)
    }

    /// Minimum duration of a level of this run.
    fn min_level_us(&self) -> u64 {
        let duration_us = self.last_sample.at_us.saturating_sub(self.first_us.unwrap_or_default());
        (duration_us / MIN_LEVEL_DIVISOR).clamp(LOWER_MIN_LEVEL_US, UPPER_MIN_LEVEL_US)
    }

    /// Drops periods that are already too short to be a level. The first one is kept, to hold the
    /// maximum before the first level.
    fn drop_short_periods(&mut self) {
        let min_us = self.min_level_us();
        let mut kept_periods: VecDeque<Period> = VecDeque::new();
        for period in self.periods.drain(..) {
            match kept_periods.back_mut() {
                Some(previous) if period.duration_us() < min_us => {
                    previous.dropped_max =
                        Some(previous.dropped_max.unwrap_or_default().max(period.maximum()));
                }
                _ => kept_periods.push_back(period),
            }
        }
        self.periods = kept_periods;
    }

    /// Discards everything from `at_us` on, when the process was stopped for its ledger.
    pub fn truncate(&mut self, at_us: u64) {
        while self.periods.back().is_some_and(|period| period.from_us >= at_us && self.periods.len() > 1) {
            self.periods.pop_back();
        }
        if let Some(period) = self.periods.back_mut() {
            period.to_us = period.to_us.min(at_us).max(period.from_us);
            self.last_sample.at_us = self.last_sample.at_us.min(at_us).max(period.to_us);
        }
    }

    fn last_level(&self) -> Option<usize> {
        let min_us = self.min_level_us();
        let (mut last_level, mut fall_rate) = (None, None);
        for (index, period) in self.periods.iter().enumerate() {
            fall_rate = period.fall_rate(fall_rate);
            if fall_rate.is_none() && period.duration_us() >= min_us {
                last_level = Some(index);
            }
        }
        last_level
    }

    /// Where memory had settled, given `end_kib` at the last instant.
    pub fn settled(&self, end_kib: u64) -> Settled {
        let index = self.last_level();
        let level = index.and_then(|index| self.periods.get(index));
        let after = self.periods.iter().skip(index.map_or(0, |index| index + 1)).map(Period::maximum);
        // Maximum after the level, and when it was first reached.
        let maxima = level.and_then(|level| level.dropped_max).into_iter().chain(after);
        let maximum = maxima.max_by_key(|maximum| (maximum.kib, std::cmp::Reverse(maximum.at_us)));
        let is_above = |top: &SizeAt| level.is_none_or(|level| top.kib > level.upper_bound_kib());
        match (maximum.filter(is_above), level) {
            (Some(top), Some(level)) if self.returned_to_level(level, top.at_us) => {
                level_or_end(level, end_kib)
            }
            (Some(SizeAt { kib, at_us }), _) if end_kib < kib / 5 * MIN_REMAINING_FIFTHS => {
                Settled::BeforeFall { kib, at_us }
            }
            (None, Some(level)) => level_or_end(level, end_kib),
            _ => Settled::AtEnd,
        }
    }

    /// Whether memory that had risen above `level`, with its maximum at `top_us`, was back at it
    /// for as long as it had been away.
    fn returned_to_level(&self, level: &Period, top_us: u64) -> bool {
        let on_level =
            |period: &&Period| period.max_kib <= level.upper_bound_kib() && level.is_at_least(period.min_kib);
        let is_torn_down = |period: &&Period| !level.is_at_least(period.max_kib);
        let mut back = self.periods.iter().rev().skip_while(is_torn_down).take_while(on_level);
        let Some(last_period) = back.next() else { return false };
        let first_period = back.last().unwrap_or(last_period);
        first_period.from_us > top_us
            && last_period.to_us.saturating_sub(first_period.from_us)
                >= first_period.from_us.saturating_sub(level.to_us)
    }
}

/// The level, if memory has fallen below it, or else the last instant.
fn level_or_end(level: &Period, end_kib: u64) -> Settled {
    if level.is_at_least(end_kib) {
        return Settled::AtEnd;
    }
    Settled::Level { kib: level.mean_kib(), from_us: level.from_us, to_us: level.to_us }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1000;
    const MIB: u64 = 1024;

    /// A run sampled every millisecond.
    fn series(parts: &[Part]) -> Series {
        series_of(parts, 0, 1)
    }

    /// A run sampled every `interval_ms` milliseconds, starting at `phase_ms`. Each part changes
    /// linearly from one value to another.
    fn series_of(parts: &[Part], phase_ms: u64, interval_ms: u64) -> Series {
        let mut series = Series::default();
        let mut at_ms: u64 = 0;
        for &(duration_ms, from_mib, to_mib) in parts {
            for n in 0..duration_ms {
                let mib = from_mib + (to_mib - from_mib) * n as f64 / duration_ms as f64;
                if at_ms >= phase_ms && (at_ms - phase_ms).is_multiple_of(interval_ms) {
                    series.push(at_ms * MS, at_ms * MS, (mib * MIB as f64) as u64);
                }
                at_ms += 1;
            }
        }
        series
    }

    /// The settled MiB, and whether they are from a level, the top of a fall, or the end.
    fn settled(parts: &[Part], end_mib: f64) -> (u64, &'static str) {
        match series(parts).settled((end_mib * MIB as f64) as u64) {
            Settled::AtEnd => (end_mib.round() as u64, "end"),
            Settled::Level { kib, .. } => ((kib + MIB / 2) / MIB, "level"),
            Settled::BeforeFall { kib, .. } => ((kib + MIB / 2) / MIB, "top"),
        }
    }

    /// Milliseconds of a part of a run, and the MiB that it changes from and to.
    type Part = (u64, f64, f64);

    /// A run, and where its memory had settled.
    struct LevelCase {
        title: &'static str,
        parts: &'static [Part],
        end_mib: f64,
        settled_mib: u64,
        source: &'static str,
    }

    const fn level_case(
        title: &'static str,
        parts: &'static [Part],
        end_mib: f64,
        settled_mib: u64,
        source: &'static str,
    ) -> LevelCase {
        LevelCase { title, parts, end_mib, settled_mib, source }
    }

    const LEVEL_CASES: [LevelCase; 23] = [
        level_case(
            "an interpreter that holds, then tears itself down",
            &[(300, 10.0, 217.0), (1000, 217.0, 217.0), (150, 217.0, 14.0)],
            12.5,
            217,
            "level",
        ),
        level_case(
            "the same where its allocator had released",
            &[(300, 10.0, 217.0), (20, 217.0, 28.0), (1000, 28.0, 28.0), (30, 28.0, 14.0)],
            12.5,
            28,
            "level",
        ),
        level_case("one that ends as it stands", &[(300, 5.0, 90.0), (700, 90.0, 90.0)], 90.0, 90, "end"),
        level_case("one that grows to its end", &[(2000, 5.0, 300.0)], 300.0, 300, "end"),
        level_case(
            "one that stood, then grew to its end",
            &[(2000, 50.0, 50.0), (1500, 50.0, 300.0)],
            300.0,
            300,
            "end",
        ),
        level_case(
            "one that grows, and frees all at once to end",
            &[(2000, 5.0, 300.0), (20, 300.0, 8.0)],
            7.0,
            300,
            "top",
        ),
        level_case(
            "one that stood, grew, and freed all to end",
            &[(2000, 50.0, 50.0), (600, 50.0, 300.0), (20, 300.0, 8.0)],
            7.0,
            300,
            "top",
        ),
        level_case(
            "one whose end takes longer than its work",
            &[(200, 5.0, 200.0), (400, 200.0, 200.0), (3000, 200.0, 10.0)],
            10.0,
            199,
            "level",
        ),
        level_case(
            "one that frees most of it and goes on",
            &[(500, 5.0, 400.0), (500, 400.0, 400.0), (10, 400.0, 40.0), (900, 40.0, 40.0)],
            40.0,
            40,
            "end",
        ),
        level_case(
            "one that frees in steps to end",
            &[(1000, 100.0, 100.0), (20, 60.0, 60.0), (20, 30.0, 30.0)],
            9.0,
            100,
            "level",
        ),
        level_case(
            "one that is gone between two samples",
            &[(100, 5.0, 80.0), (900, 80.0, 80.0)],
            6.0,
            80,
            "level",
        ),
        level_case(
            "one that drifts upwards slowly",
            &[(4000, 100.0, 120.0), (30, 120.0, 10.0)],
            10.0,
            118,
            "level",
        ),
        level_case(
            "a collector's saw that ends anywhere",
            &[
                (50, 100.0, 120.0),
                (50, 100.0, 120.0),
                (50, 100.0, 120.0),
                (50, 100.0, 120.0),
                (25, 100.0, 110.0),
            ],
            105.0,
            105,
            "end",
        ),
        level_case("a small program", &[(500, 3.0, 3.2), (5, 3.2, 2.9)], 2.9, 3, "end"),
        level_case("a very short one", &[(3, 1.0, 8.0)], 8.0, 8, "end"),
        level_case(
            "a peak in its middle",
            &[(300, 20.0, 20.0), (50, 20.0, 500.0), (50, 500.0, 20.0), (300, 20.0, 20.0)],
            20.0,
            20,
            "end",
        ),
        level_case(
            "a peak, a level, and the end",
            &[(50, 20.0, 500.0), (50, 500.0, 90.0), (300, 90.0, 90.0), (40, 90.0, 5.0)],
            5.0,
            90,
            "level",
        ),
        level_case(
            "a minute's work that holds its result for its last two seconds",
            &[(58_000, 10.0, 217.0), (2000, 217.0, 217.0), (150, 217.0, 14.0)],
            12.5,
            217,
            "level",
        ),
        level_case(
            "a spike, and back on the level to the end",
            &[(9700, 100.0, 100.0), (50, 150.0, 150.0), (250, 100.0, 100.0)],
            100.0,
            100,
            "end",
        ),
        level_case(
            "the same, torn down then",
            &[(9700, 100.0, 100.0), (50, 150.0, 150.0), (250, 100.0, 100.0), (3, 60.0, 12.0)],
            12.0,
            100,
            "level",
        ),
        level_case(
            "one that loses a tenth as it ends",
            &[(300, 5.0, 100.0), (900, 100.0, 100.0), (5, 100.0, 90.0)],
            89.0,
            100,
            "level",
        ),
        level_case(
            "one that holds, falls slowly, and frees the rest at once",
            &[(400, 100.0, 100.0), (3000, 100.0, 60.0)],
            5.0,
            99,
            "level",
        ),
        level_case(
            "one that falls by a third only, steadily, to its end",
            &[(2000, 100.0, 100.0), (9000, 100.0, 70.0)],
            70.0,
            100,
            "level",
        ),
    ];

    #[test]
    fn levels_are_found_in_runs_of_many_kinds() {
        for case in LEVEL_CASES {
            let expected = (case.settled_mib, case.source);
            assert_eq!(settled(case.parts, case.end_mib), expected, "{}", case.title);
        }
        assert_eq!(Series::default().settled(7), Settled::AtEnd, "no sample at all");
        assert_eq!(Series::default().last_kib(), None);
    }

    /// The sampler of `try` samples every 10 ms: the phase of the samples relative to a fast change
    /// must not matter.
    #[test]
    fn fast_runs_are_judged_the_same_at_any_sampling_phase() {
        type Case<'a> = (&'a str, Vec<Part>, f64, &'a str, (f64, f64));
        let saw = [vec![(30, 0.0, 96.0)], vec![(11, 64.0, 96.0); 30]].concat();
        let hold = [(30, 0.0, 96.0), (600, 96.0, 96.0)];
        let halved = [(600, 48.0, 48.0), (5, 36.0, 36.0), (5, 24.0, 24.0), (5, 12.0, 12.0)];
        let cases: [Case<'_>; 5] = [
            ("grows, frees all to end", vec![(30, 0.0, 96.0)], 1.0, "top", (63.0, 96.0)),
            ("frees slowly to end", [&hold[..], &[(1200, 96.0, 1.0)]].concat(), 1.0, "level", (95.0, 96.0)),
            ("rises to its end", vec![(600, 9.6, 9.6), (96, 9.6, 96.0)], 96.0, "end", (96.0, 96.0)),
            ("saws to its end", saw, 80.0, "end", (80.0, 80.0)),
            ("frees in steps to end", [&hold[..], &halved].concat(), 1.0, "level", (47.5, 48.5)),
        ];
        for (title, parts, end_mib, expected_source, (min_mib, max_mib)) in cases {
            for phase in 0..10 {
                let end_kib = (end_mib * MIB as f64) as u64;
                let (kib, source) = match series_of(&parts, phase, 10).settled(end_kib) {
                    Settled::AtEnd => (end_kib, "end"),
                    Settled::Level { kib, .. } => (kib, "level"),
                    Settled::BeforeFall { kib, .. } => (kib, "top"),
                };
                let mib = kib as f64 / MIB as f64;
                assert_eq!(source, expected_source, "{title}, sampled from {phase} ms on");
                assert!((min_mib..=max_mib).contains(&mib), "{title}, sampled from {phase} ms on: {mib} MiB");
            }
        }
    }

    #[test]
    fn a_level_has_its_time() {
        let settled =
            series(&[(300, 10.0, 217.0), (1000, 217.0, 217.0), (150, 217.0, 14.0)]).settled(12 * MIB);
        let Settled::Level { from_us, to_us, .. } = settled else { panic!("{settled:?}") };
        assert!(
            (290 * MS..=300 * MS).contains(&from_us) && (1295 * MS..=1310 * MS).contains(&to_us),
            "{settled:?}"
        );
    }

    #[test]
    fn equal_samples_are_weighted_by_their_time() {
        let mut series = Series::default();
        series.push(0, 0, 100 * MIB);
        series.push(MS, 999 * MS, 200 * MIB);
        series.push(1000 * MS, 1000 * MS, 202 * MIB);
        series.push(1001 * MS, 1001 * MS, 10 * MIB);
        let Settled::Level { kib, .. } = series.settled(9 * MIB) else { panic!() };
        assert_eq!(kib / MIB, 200);
    }

    /// The recorder continues to sample a process that is stopped at its end for its ledger; that
    /// is not a level.
    #[test]
    fn the_time_of_the_ledger_at_exit_does_not_count() {
        let mut held =
            series(&[(300, 10.0, 217.0), (1000, 217.0, 217.0), (5, 60.0, 14.0), (400, 12.5, 12.5)]);
        assert_eq!(held.settled(12 * MIB + 512), Settled::AtEnd);
        held.truncate(1306 * MS);
        let Settled::Level { kib, to_us, .. } = held.settled(12 * MIB + 512) else { panic!("{held:?}") };
        assert_eq!((kib / MIB, to_us / MS), (216, 1299));
        held.truncate(0);
        held.settled(0);
        Series::default().truncate(7);
    }

    /// A million samples of noise, and times that go backwards, must not use more space than a few
    /// samples.
    #[test]
    fn it_stays_small() {
        let mut series = Series::default();
        let mut dice = fastrand::Rng::with_seed(7);
        for n in 0..1_000_000u64 {
            series.push(n * MS, n * MS, dice.u64(1..1 << 40));
            assert!(series.periods.len() <= MAX_PERIODS);
        }
        series.push(0, 5, u64::MAX / 2);
        series.push(u64::MAX, 0, u64::MAX);
        series.push(0, 0, u64::MAX);
        series.push(u64::MAX, u64::MAX, u64::MAX);
        assert_ne!(series.settled(0), Settled::AtEnd);
        // The maximum of dropped periods is kept.
        let mut series = Series::default();
        for n in 0..2000 {
            let kib = if n == 700 { 900 * MIB } else { (n % 7) * 100 * MIB };
            series.push(n * MS, n * MS, kib);
        }
        assert_eq!(series.settled(MIB), Settled::BeforeFall { kib: 900 * MIB, at_us: 700 * MS });
    }
}
