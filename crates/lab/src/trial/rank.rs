//! Ranks the candidates: better, worse or the same compared with no settings, the best for a goal,
//! and pairs worth trying.
//!
//! Figures that cannot be distinguished count as `same` and are not ranked.

use serde::Serialize;

use super::applies::check_compatible;
use super::catalogue::{Candidate, Catalogue};
use super::tries::{Figure, Tried, TryResult};
use crate::statistics::Verdict;

/// Times within this factor of the least are equally good; the order of the catalogue then decides.
const NEGLIGIBLE_TIME_FACTOR: f64 = 1.02;
/// Number of the best candidates that are paired: pairs are sorted by the sum of ranks, and only
/// the first few are used.
const MAX_PAIRED_CANDIDATES: usize = 20;

/// Maximum time relative to runs without settings, for the goal `time-bounded`.
pub const MAX_TIME_RATIO: f64 = 1.05;

/// Candidates within this factor of the least memory, plus [`NEAR_LEAST_BYTES`], count as equally
/// good; time then decides.
pub const NEAR_LEAST: f64 = 1.05;
/// See [`NEAR_LEAST`].
pub const NEAR_LEAST_BYTES: f64 = 1_048_576.0;

/// The figure to minimize.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Memory at the end, or after the load.
    #[default]
    Settled,
    /// Peak memory.
    Peak,
    /// Like `Settled`, among settings that take at most 1.05 times as long.
    TimeBounded,
}

/// Result of a candidate, in the order of [`Ranking`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Smaller figure of the goal.
    Better,
    /// No difference was found.
    Same,
    /// Larger figure of the goal, or too slow.
    Worse,
    /// It did not run as it does without settings.
    Failed,
}

impl TryResult {
    /// The figure that `goal` minimizes.
    pub fn goal_figure(&self, goal: Goal) -> &Figure {
        match goal {
            Goal::Settled | Goal::TimeBounded => &self.settled,
            Goal::Peak => &self.peak,
        }
    }

    /// Status under `goal`.
    pub fn status(&self, goal: Goal) -> Status {
        let figure = self.goal_figure(goal);
        if self.failure.is_some() || figure.estimate.is_none() {
            return Status::Failed;
        }
        let is_too_slow = goal == Goal::TimeBounded && !self.is_within_time_bound();
        match figure.verdict() {
            Verdict::Less if is_too_slow => Status::Worse,
            Verdict::Less => Status::Better,
            Verdict::More => Status::Worse,
            Verdict::Same | Verdict::Unknown => Status::Same,
        }
    }

    /// Whether the median time ratio is at most [`MAX_TIME_RATIO`]; false if unknown. The interval
    /// is left to the report: with few rounds it excludes nothing.
    fn is_within_time_bound(&self) -> bool {
        self.wall.ratio.is_some_and(|ratio| ratio.median <= MAX_TIME_RATIO)
    }
}

/// Ranking of candidates, by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranking {
    /// All candidates: better, same, worse, failed; each group sorted by the figure of the goal.
    pub order: Vec<usize>,
    /// The best candidate, if any is better.
    pub best: Option<usize>,
}

/// Ranks `tried` for `goal`.
pub fn rank(tried: &[Tried], goal: Goal) -> Ranking {
    let ranked = tried.iter().enumerate().map(|(index, Tried { result, .. })| RankedCandidate {
        status: result.status(goal),
        bytes: result.goal_figure(goal).median().unwrap_or(f64::INFINITY),
        seconds: result.wall.median().unwrap_or(f64::INFINITY),
        index,
    });
    let mut ranked: Vec<RankedCandidate> = ranked.collect();
    // Stable: equal candidates keep the order of the catalogue.
    ranked.sort_by(|a, b| {
        a.status.cmp(&b.status).then(a.bytes.total_cmp(&b.bytes)).then(a.seconds.total_cmp(&b.seconds))
    });
    let best = best_of(&ranked);
    Ranking { order: ranked.into_iter().map(|candidate| candidate.index).collect(), best }
}

/// A candidate with the figures that it is ranked by.
struct RankedCandidate {
    status: Status,
    /// Median of the figure of the goal; infinite if unknown.
    bytes: f64,
    /// Median of the wall time; infinite if unknown.
    seconds: f64,
    index: usize,
}

/// Among better candidates near the least memory, the fastest; among those hardly slower than it,
/// the first in the catalogue.
fn best_of(ranked: &[RankedCandidate]) -> Option<usize> {
    let better = || ranked.iter().filter(|candidate| candidate.status == Status::Better);
    let least_bytes = better().map(|candidate| candidate.bytes).fold(f64::INFINITY, f64::min);
    let max_bytes = least_bytes * NEAR_LEAST + NEAR_LEAST_BYTES;
    let small = || better().filter(|candidate| candidate.bytes <= max_bytes);
    let least_seconds = small().map(|candidate| candidate.seconds).fold(f64::INFINITY, f64::min);
    let max_seconds = least_seconds * NEGLIGIBLE_TIME_FACTOR;
    small().filter(|candidate| candidate.seconds <= max_seconds).map(|candidate| candidate.index).min()
}

/// Memory and time of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Settled resident bytes.
    pub bytes: f64,
    /// Wall time in seconds.
    pub seconds: f64,
}

/// Pareto front of memory and time: the indices of the points that no other point dominates, in the
/// order of memory.
pub fn pareto(points: &[Option<Point>]) -> Vec<usize> {
    let is_finite = |point: &Point| point.bytes.is_finite() && point.seconds.is_finite();
    let points = points.iter().enumerate();
    let mut finite_points: Vec<(usize, Point)> =
        points.filter_map(|(index, point)| Some((index, point.filter(is_finite)?))).collect();
    // Stable: equal points keep their order.
    finite_points.sort_by(|(_, a), (_, b)| a.bytes.total_cmp(&b.bytes).then(a.seconds.total_cmp(&b.seconds)));
    let mut least_seconds = f64::INFINITY;
    let mut front = Vec::new();
    for (index, point) in finite_points {
        if point.seconds < least_seconds {
            least_seconds = point.seconds;
            front.push(index);
        }
    }
    front
}

/// Pairs of better candidates to try together, the most promising first, at most `max_pairs`.
///
/// Both must be candidates of `catalogue` and compatible, and neither may contain the other.
pub fn pairs(catalogue: &Catalogue, tried: &[Tried], goal: Goal, max_pairs: usize) -> Vec<[usize; 2]> {
    let candidate = |index: usize| -> Option<&Candidate> {
        let id = &tried.get(index)?.setting.id;
        catalogue.candidates.iter().find(|candidate| candidate.id == *id)
    };
    let is_better =
        |index: &usize| tried.get(*index).is_some_and(|tried| tried.result.status(goal) == Status::Better);
    let better: Vec<usize> = rank(tried, goal).order.into_iter().filter(is_better).collect();
    // Each pair after the sum of its ranks.
    let mut ranked_pairs: Vec<(usize, [usize; 2])> = Vec::new();
    for (first_rank, &first) in better.iter().enumerate().take(MAX_PAIRED_CANDIDATES) {
        for (second_rank, &second) in
            better.iter().enumerate().take(MAX_PAIRED_CANDIDATES).skip(first_rank + 1)
        {
            let (Some(a), Some(b)) = (candidate(first), candidate(second)) else { continue };
            if check_compatible(a, b).is_ok() && !contains(a, b) && !contains(b, a) {
                ranked_pairs.push((first_rank + second_rank, [first, second]));
            }
        }
    }
    ranked_pairs.sort_unstable();
    ranked_pairs.into_iter().map(|(_, pair)| pair).take(max_pairs).collect()
}

/// Whether `superset` sets everything that `part` sets.
fn contains(superset: &Candidate, part: &Candidate) -> bool {
    let tunables = part.tunables.iter().all(|(name, value)| superset.tunables.get(name) == Some(value));
    let variables = part.environment.iter().all(|(name, value)| {
        superset.environment.get(name).is_some_and(|superset_value| {
            let words = |text: &str| -> Vec<String> {
                text.split([' ', ',']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
            };
            let superset_words = words(superset_value);
            words(value).iter().all(|word| superset_words.contains(word))
        })
    });
    let library = part.library.is_none() || part.library == superset.library;
    let arguments = part.arguments.is_empty() || part.arguments == superset.arguments;
    tunables && variables && library && arguments && (part.thp.is_none() || part.thp == superset.thp)
}

#[cfg(test)]
mod tests {
    use super::super::applies::AppliedSetting;
    use super::super::tries::TriedSetting;
    use super::*;
    use crate::statistics::{Ratio, without_interval};

    const MIB: f64 = 1_048_576.0;

    fn figure(median: f64, ratio: f64) -> Figure {
        let ratio = Ratio { median: ratio, low: Some(ratio * 0.98), high: Some(ratio * 1.02) };
        Figure { estimate: without_interval(&[median]), ratio: Some(ratio) }
    }

    fn measured(settled: f64, peak: f64, wall: f64) -> Tried {
        let result = TryResult {
            settled: figure(settled * MIB, settled / 100.0),
            peak: figure(peak * MIB, peak / 200.0),
            wall: figure(wall, wall / 10.0),
            ..TryResult::default()
        };
        let catalogue = Catalogue::built_in().unwrap();
        let setting = TriedSetting::single(&catalogue.candidates[0], AppliedSetting::default());
        Tried { setting, result }
    }

    fn failed() -> Tried {
        let mut tried = measured(1.0, 1.0, 1.0);
        tried.result.failure = Some("exit status 1".into());
        tried
    }

    #[test]
    fn goals_choose_differently() {
        let candidates = [
            measured(100.0, 200.0, 10.0),
            measured(20.0, 190.0, 19.0),
            failed(),
            measured(60.0, 100.0, 10.2),
            measured(150.0, 300.0, 5.0),
        ];
        let settled = rank(&candidates, Goal::Settled);
        assert_eq!((settled.best, settled.order), (Some(1), vec![1, 3, 0, 4, 2]));
        assert_eq!(rank(&candidates, Goal::Peak).best, Some(3));
        let bounded = rank(&candidates, Goal::TimeBounded);
        assert_eq!(bounded.best, Some(3), "the other takes 1.9 times as long");
        assert_eq!(candidates[1].result.status(Goal::TimeBounded), Status::Worse);
        assert_eq!(candidates[1].result.status(Goal::Settled), Status::Better);
        assert_eq!(candidates[2].result.status(Goal::Settled), Status::Failed);
        assert_eq!(rank(&candidates[..1], Goal::Settled).best, None, "the same is not better");
        assert_eq!(rank(&[], Goal::Settled), Ranking::default());
    }

    #[test]
    fn time_decides_between_candidates_near_the_smallest() {
        let candidates = [
            measured(15.0, 100.0, 17.0),
            measured(15.9, 100.0, 10.0),
            measured(16.7, 100.0, 10.1),
            measured(16.8, 100.0, 5.0),
        ];
        // The least is 15 MiB, so up to 16.75 MiB is near.
        assert_eq!(rank(&candidates, Goal::Settled).best, Some(1));
        assert_eq!(rank(&candidates, Goal::Settled).order, [0, 1, 2, 3], "the table is by memory");
        assert_eq!(rank(&candidates[..1], Goal::Settled).best, Some(0));
    }

    #[test]
    fn nothing_measured_is_failed() {
        assert_eq!(TryResult::default().status(Goal::Peak), Status::Failed);
        assert!(!TryResult::default().is_within_time_bound());
        let mut untimed = measured(1.0, 1.0, 1.0).result;
        assert!(untimed.is_within_time_bound());
        untimed.wall.ratio = None;
        assert!(!untimed.is_within_time_bound());
    }

    #[test]
    fn the_front_has_no_point_that_another_beats() {
        let point = |bytes, seconds| Some(Point { bytes, seconds });
        let points =
            [point(100.0, 1.0), point(50.0, 2.0), point(60.0, 2.5), None, point(10.0, 9.0), point(50.0, 2.0)];
        assert_eq!(pareto(&points), [4, 1, 0]);
        assert_eq!(pareto(&[point(f64::NAN, 1.0), None]), Vec::<usize>::new());
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
        let mut candidates = [
            measured(20.0, 1.0, 10.0),
            measured(30.0, 1.0, 10.0),
            measured(40.0, 1.0, 10.0),
            measured(10.0, 1.0, 10.0),
            measured(15.0, 1.0, 10.0),
            measured(100.0, 1.0, 10.0),
        ];
        for (tried, id) in candidates.iter_mut().zip(ids) {
            tried.setting.id = id.to_owned();
        }
        let all_pairs = pairs(&catalogue, &candidates, Goal::Settled, 10);
        // jemalloc is compatible with none of them, arena_max_1_trim contains two, top_pad_0 did
        // not help.
        assert_eq!(all_pairs, [[0, 2], [1, 2]]);
        assert_eq!(pairs(&catalogue, &candidates, Goal::Settled, 1), [[0, 2]]);
        assert!(pairs(&catalogue, &candidates[..2], Goal::Settled, 9).is_empty());
    }
}
