//! Ranks what was tried: better, worse or the same than without, which is best for a goal, and what is worth trying
//! together.
//!
//! Only judged figures come in; where figures cannot be told apart, that is `same`, and never a rank.

use serde::Serialize;

use super::applies::compatible;
use super::catalogue::Candidate;

/// How much longer than without settings a run may take under the goal `time-bounded`.
pub const MAX_TIME_RATIO: f64 = 1.05;

/// What has at most so many times the least memory, and so many bytes more, is as good: then time decides.
pub const NEAR_LEAST: f64 = 1.05;
/// The bytes of that.
pub const NEAR_LEAST_BYTES: f64 = 1_048_576.0;

/// What is to be small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// The memory that is left at the end, or after the load.
    #[default]
    Settled,
    /// The most memory.
    Peak,
    /// The memory that is left, among settings that take at most 1.05 times as long.
    TimeBounded,
}

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Less of what is to be small.
    Better,
    /// More of it, or too much time.
    Worse,
    /// Not to be told apart.
    Same,
    /// It did not run as without settings.
    Failed,
}

/// A figure beside that of the run without settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beside {
    /// The median of its runs.
    pub median: f64,
    /// The median ratio to the runs without settings.
    pub ratio: f64,
    /// Whether it is less, more or not to be told apart.
    pub change: Change,
}

/// How a figure stands to that of the run without settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is less.
    Less,
    /// It is more.
    More,
    /// It cannot be told apart.
    Same,
}

/// What was measured of one candidate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Why it failed, if it did.
    pub failure: Option<String>,
    /// Resident bytes that were left.
    pub settled: Option<Beside>,
    /// The most resident bytes.
    pub peak: Option<Beside>,
    /// Seconds.
    pub wall: Option<Beside>,
}

impl Measured {
    fn of(&self, goal: Goal) -> Option<Beside> {
        match goal {
            Goal::Settled | Goal::TimeBounded => self.settled,
            Goal::Peak => self.peak,
        }
    }

    /// What became of it under `goal`.
    pub fn status(&self, goal: Goal) -> Status {
        let Some(beside) = self.of(goal).filter(|_| self.failure.is_none()) else { return Status::Failed };
        let too_long = goal == Goal::TimeBounded && !self.in_time();
        match beside.change {
            Change::Less if too_long => Status::Worse,
            Change::Less => Status::Better,
            Change::More => Status::Worse,
            Change::Same => Status::Same,
        }
    }

    /// Whether it takes at most [`MAX_TIME_RATIO`] of the time, in the median of the ratios; unknown is not. How much
    /// more it could be is for the report to say: few rounds rule nothing out.
    pub fn in_time(&self) -> bool {
        self.wall.is_some_and(|wall| wall.ratio <= MAX_TIME_RATIO)
    }
}

/// The ranking of candidates, which are named by their position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranking {
    /// All of them, best first: better, the same, worse, failed; each by the goal's figure.
    pub order: Vec<usize>,
    /// The best, if any is better.
    pub best: Option<usize>,
}

/// Ranks `measured` for `goal`.
pub fn rank(measured: &[Measured], goal: Goal) -> Ranking {
    let group = |status| match status {
        Status::Better => 0u8,
        Status::Same => 1,
        Status::Worse => 2,
        Status::Failed => 3,
    };
    let mut keyed: Vec<(u8, f64, f64, usize)> = measured
        .iter()
        .enumerate()
        .map(|(index, one)| {
            let figure = one.of(goal).map_or(f64::INFINITY, |beside| beside.median);
            let wall = one.wall.map_or(f64::INFINITY, |beside| beside.median);
            (group(one.status(goal)), figure, wall, index)
        })
        .collect();
    keyed.sort_by(|a, b| {
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.total_cmp(&b.2)).then(a.3.cmp(&b.3))
    });
    let best = best_of(&keyed);
    Ranking { order: keyed.into_iter().map(|key| key.3).collect(), best }
}

/// Of the better ones that are near the least memory that which takes least time; of those that take hardly longer the
/// first.
fn best_of(keyed: &[(u8, f64, f64, usize)]) -> Option<usize> {
    const HARDLY: f64 = 1.02;
    let better = || keyed.iter().filter(|key| key.0 == 0);
    let least = better().map(|key| key.1).fold(f64::INFINITY, f64::min);
    let small = || better().filter(|key| key.1 <= least * NEAR_LEAST + NEAR_LEAST_BYTES);
    let soonest = small().map(|key| key.2).fold(f64::INFINITY, f64::min);
    small().filter(|key| key.2 <= soonest * HARDLY).map(|key| key.3).min()
}

/// The front of memory and time: the points that no other beats in one without being worse in the other.
///
/// A point is (bytes, seconds); the answer has their positions in the order of memory.
pub fn pareto(points: &[Option<(f64, f64)>]) -> Vec<usize> {
    let mut known: Vec<(f64, f64, usize)> = points
        .iter()
        .enumerate()
        .filter_map(|(index, point)| point.map(|(bytes, seconds)| (bytes, seconds, index)))
        .filter(|(bytes, seconds, _)| bytes.is_finite() && seconds.is_finite())
        .collect();
    known.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
    let mut least = f64::INFINITY;
    let mut front = Vec::new();
    for (_, seconds, index) in known {
        if seconds < least {
            least = seconds;
            front.push(index);
        }
    }
    front
}

/// Pairs of better candidates to try together, the most promising first, at most `most`.
///
/// A pair is worth a try where both can be set at once, and where neither contains the other.
pub fn pairs(
    candidates: &[&Candidate],
    measured: &[Measured],
    goal: Goal,
    most: usize,
) -> Vec<(usize, usize)> {
    let ranking = rank(measured, goal);
    let better: Vec<usize> = ranking
        .order
        .into_iter()
        .filter(|&index| measured.get(index).is_some_and(|one| one.status(goal) == Status::Better))
        .collect();
    let mut found: Vec<(usize, (usize, usize))> = Vec::new();
    // More than the best twenty cannot be among the first few pairs in the order of the sum of their ranks.
    for (first_rank, &first) in better.iter().enumerate().take(20) {
        for (second_rank, &second) in better.iter().enumerate().take(20).skip(first_rank + 1) {
            let (Some(one), Some(other)) = (candidates.get(first), candidates.get(second)) else { continue };
            if compatible(one, other).is_ok() && !contains(one, other) && !contains(other, one) {
                found.push((first_rank + second_rank, (first, second)));
            }
        }
    }
    found.sort_by_key(|(sum, pair)| (*sum, *pair));
    found.into_iter().map(|(_, pair)| pair).take(most).collect()
}

/// Whether `whole` sets all that `part` does.
fn contains(whole: &Candidate, part: &Candidate) -> bool {
    let tunables = part.tunables.iter().all(|(name, value)| whole.tunables.get(name) == Some(value));
    let variables = part.environment.iter().all(|(name, value)| {
        whole.environment.get(name).is_some_and(|other| {
            let words = |text: &str| -> Vec<String> {
                text.split([' ', ',']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
            };
            let other = words(other);
            words(value).iter().all(|word| other.contains(word))
        })
    });
    let library = part.library.is_none() || part.library == whole.library;
    let arguments = part.arguments.is_empty() || part.arguments == whole.arguments;
    tunables && variables && library && arguments && (part.thp.is_none() || part.thp == whole.thp)
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::Catalogue;
    use super::*;

    const MIB: f64 = 1_048_576.0;

    fn beside(median: f64, ratio: f64) -> Option<Beside> {
        let change = match ratio {
            ratio if ratio < 0.98 => Change::Less,
            ratio if ratio > 1.02 => Change::More,
            _ => Change::Same,
        };
        Some(Beside { median, ratio, change })
    }

    fn measured(settled: f64, peak: f64, wall: f64) -> Measured {
        Measured {
            failure: None,
            settled: beside(settled * MIB, settled / 100.0),
            peak: beside(peak * MIB, peak / 200.0),
            wall: beside(wall, wall / 10.0),
        }
    }

    fn failed() -> Measured {
        Measured { failure: Some("exit status 1".into()), ..measured(1.0, 1.0, 1.0) }
    }

    #[test]
    fn goals_choose_differently() {
        let all = [
            measured(100.0, 200.0, 10.0),
            measured(20.0, 190.0, 19.0),
            failed(),
            measured(60.0, 100.0, 10.2),
            measured(150.0, 300.0, 5.0),
        ];
        let settled = rank(&all, Goal::Settled);
        assert_eq!((settled.best, settled.order), (Some(1), vec![1, 3, 0, 4, 2]));
        assert_eq!(rank(&all, Goal::Peak).best, Some(3));
        let bounded = rank(&all, Goal::TimeBounded);
        assert_eq!(bounded.best, Some(3), "the other takes 1.9 times as long");
        assert_eq!(all[1].status(Goal::TimeBounded), Status::Worse);
        assert_eq!(all[1].status(Goal::Settled), Status::Better);
        assert_eq!(all[2].status(Goal::Settled), Status::Failed);
        assert_eq!(rank(&all[..1], Goal::Settled).best, None, "the same is not better");
        assert_eq!(rank(&[], Goal::Settled), Ranking::default());
    }

    #[test]
    fn time_decides_between_what_is_near_the_least() {
        let all = [
            measured(15.0, 100.0, 17.0),
            measured(15.9, 100.0, 10.0),
            measured(16.7, 100.0, 10.1),
            measured(16.8, 100.0, 5.0),
        ];
        // Near 15 MiB is what has at most 16.75 MiB.
        assert_eq!(rank(&all, Goal::Settled).best, Some(1));
        assert_eq!(rank(&all, Goal::Settled).order, [0, 1, 2, 3], "the table is by memory");
        assert_eq!(rank(&all[..1], Goal::Settled).best, Some(0));
    }

    #[test]
    fn nothing_measured_is_failed() {
        assert_eq!(Measured::default().status(Goal::Peak), Status::Failed);
        assert!(!Measured::default().in_time());
    }

    #[test]
    fn the_front_has_no_point_that_another_beats() {
        let points = [
            Some((100.0, 1.0)),
            Some((50.0, 2.0)),
            Some((60.0, 2.5)),
            None,
            Some((10.0, 9.0)),
            Some((50.0, 2.0)),
        ];
        assert_eq!(pareto(&points), [4, 1, 0]);
        assert_eq!(pareto(&[Some((f64::NAN, 1.0)), None]), Vec::<usize>::new());
    }

    #[test]
    fn winners_are_paired_where_they_can_be() {
        let catalogue = Catalogue::built_in().unwrap();
        let ids = [
            "arena_max_1",
            "arena_max_2",
            "trim_threshold_128k",
            "jemalloc",
            "arena_max_1_trim",
            "top_pad_0",
        ];
        let chosen: Vec<&Candidate> = ids
            .iter()
            .map(|id| catalogue.candidates.iter().find(|candidate| candidate.id == *id).unwrap())
            .collect();
        let all = [
            measured(20.0, 1.0, 10.0),
            measured(30.0, 1.0, 10.0),
            measured(40.0, 1.0, 10.0),
            measured(10.0, 1.0, 10.0),
            measured(15.0, 1.0, 10.0),
            measured(100.0, 1.0, 10.0),
        ];
        let found = pairs(&chosen, &all, Goal::Settled, 10);
        // jemalloc goes with none of them, arena_max_1_trim contains two, top_pad_0 did not help.
        assert_eq!(found, [(0, 2), (1, 2)]);
        assert_eq!(pairs(&chosen, &all, Goal::Settled, 1), [(0, 2)]);
        assert!(pairs(&chosen, &all[..2], Goal::Settled, 9).is_empty());
    }
}
