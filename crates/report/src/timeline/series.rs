//! Points over time, thinned while they are added: at most a few thousand, each for an interval of
//! equal width.

use strandline_recording::Sample;

/// A point of a [`Series`]: what is known of an instant, or kept of an interval.
pub trait SeriesPoint {
    /// Maximum number of points of a series. Thinning keeps at most half of them.
    const MAX_POINTS: usize;

    /// Its time, in microseconds.
    fn at_us(&self) -> u64;

    /// Makes it the point of both its interval and the following one, whose point is `later`.
    fn merge(&mut self, later: Self);
}

/// The figures of a process or of a control group over time.
#[derive(Clone, Debug, Default)]
pub struct Series<P> {
    points: Vec<P>,
    width_us: Option<u64>,
}

impl<P: SeriesPoint> Series<P> {
    /// The points, in order of time.
    pub fn points(&self) -> &[P] {
        &self.points
    }

    /// Width of a point's interval in microseconds; `None` while every change has its own point.
    pub fn width_us(&self) -> Option<u64> {
        self.width_us
    }

    /// Adds a point, or merges it with the last one if that is of the same interval.
    pub fn add(&mut self, point: P) {
        let is_same_interval = |last: &P| {
            self.width_us.is_some_and(|width_us| last.at_us() / width_us == point.at_us() / width_us)
        };
        match self.points.last_mut() {
            // Only in damaged recordings does time go back.
            Some(last) if point.at_us() < last.at_us() => {}
            Some(last) if is_same_interval(last) => last.merge(point),
            _ => self.points.push(point),
        }
        if self.points.len() > P::MAX_POINTS {
            self.thin(P::MAX_POINTS / 2);
        }
    }

    /// Doubles the width until at most `max_points` are left.
    pub fn thin(&mut self, max_points: usize) {
        let max_points = max_points.max(2);
        if self.points.len() <= max_points {
            return;
        }
        let span_us = self.points.last().map_or(0, P::at_us);
        let mut width_us = self.width_us.unwrap_or_else(|| (span_us / P::MAX_POINTS as u64).max(1));
        while self.points.len() > max_points && width_us < u64::MAX / 2 {
            width_us = width_us.saturating_mul(2);
            let mut points: Vec<P> = Vec::with_capacity(self.points.len());
            for point in self.points.drain(..) {
                match points.last_mut() {
                    Some(last) if point.at_us() / width_us == last.at_us() / width_us => last.merge(point),
                    _ => points.push(point),
                }
            }
            self.points = points;
        }
        self.points.shrink_to_fit();
        self.width_us = Some(width_us);
    }
}

/// The samples of a process in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Time of its last sample, in microseconds.
    pub at_us: u64,
    /// Its last sample.
    pub sample: Sample,
    /// The lowest RSS within it, in KiB.
    pub rss_low_kib: u64,
    /// The highest RSS within it, in KiB.
    pub rss_high_kib: u64,
}

impl Point {
    /// The point of a single sample.
    pub fn new(at_us: u64, sample: Sample) -> Self {
        Self { at_us, sample, rss_low_kib: sample.rss_kib, rss_high_kib: sample.rss_kib }
    }
}

/// Keeps the lowest and highest RSS, so that no peak is lost.
impl SeriesPoint for Point {
    const MAX_POINTS: usize = 4_096;

    fn at_us(&self) -> u64 {
        self.at_us
    }

    fn merge(&mut self, later: Self) {
        *self = Self {
            rss_low_kib: self.rss_low_kib.min(later.rss_low_kib),
            rss_high_kib: self.rss_high_kib.max(later.rss_high_kib),
            ..later
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at_us: u64, rss_kib: u64) -> Point {
        Point::new(at_us, Sample { rss_kib, ..Sample::default() })
    }

    #[test]
    fn an_hour_keeps_its_one_peak() {
        let mut series = Series::default();
        for at in 0..3_600_000u64 {
            series.add(point(at * 1000, if at == 1_234_567 { 9_999 } else { at % 7 }));
        }
        assert!((Point::MAX_POINTS / 4..=Point::MAX_POINTS).contains(&series.points().len()));
        assert_eq!(series.points().iter().map(|point| point.rss_high_kib).max(), Some(9_999));
        assert!(series.points().is_sorted_by_key(|point| point.at_us));
        assert_eq!(series.points().last().map(|point| point.at_us), Some(3_599_999_000));
    }

    #[test]
    fn hostile_times_end() {
        let mut series = Series::default();
        for at in (0..10_000u64).map(|n| u64::MAX - 10_000 + n) {
            series.add(point(at, 1));
        }
        for at in (0..10_000u64).rev() {
            series.add(point(at, 1));
        }
        assert!(series.points().len() <= Point::MAX_POINTS);
    }
}
