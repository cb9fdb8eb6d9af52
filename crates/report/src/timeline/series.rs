//! A time series thinned while it is read: at most a few thousand points of equal width, each with
//! the lowest and highest RSS in it, so that no peak is lost.

use strandline_recording::{Run, Sample};

/// After thinning, between half of this and all of it is kept.
const MAX_POINTS: usize = 4_096;

/// The samples of one time interval.
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

/// The figures of a process over time.
#[derive(Clone, Debug, Default)]
pub struct Series {
    points: Vec<Point>,
    /// Width of a point's interval in microseconds; 0 while every sample has its own point.
    width_us: u64,
}

impl Series {
    /// The points, in order of time.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Width of a point's interval in microseconds; 0 if every change has its own point.
    pub fn width_us(&self) -> u64 {
        self.width_us
    }

    /// Adds a run: its start, and its end if that differs.
    pub fn add(&mut self, run: &Run) {
        self.add_sample(run.at_us, run.sample);
        if run.span_us > 0 {
            self.add_sample(run.end_us(), run.sample);
        }
    }

    /// Adds a sample, to the last point if that is of the same interval.
    fn add_sample(&mut self, at_us: u64, sample: Sample) {
        let rss_kib = sample.rss_kib;
        let point = Point { at_us, sample, rss_low_kib: rss_kib, rss_high_kib: rss_kib };
        match self.points.last_mut() {
            // Only in damaged recordings does time go back.
            Some(previous) if at_us < previous.at_us => {}
            Some(previous)
                if self.width_us > 0 && at_us / self.width_us == previous.at_us / self.width_us =>
            {
                *previous = merged(previous, &point);
            }
            _ => self.points.push(point),
        }
        if self.points.len() > MAX_POINTS {
            self.thin(MAX_POINTS / 2);
        }
    }

    /// Doubles the width until at most `max_points` are left.
    pub fn thin(&mut self, max_points: usize) {
        let max_points = max_points.max(2);
        if self.points.len() <= max_points {
            return;
        }
        let span_us = self.points.last().map_or(0, |point| point.at_us);
        let first_width_us = (span_us / MAX_POINTS as u64).max(1);
        let mut width_us = if self.width_us == 0 { first_width_us } else { self.width_us };
        while self.points.len() > max_points && width_us < u64::MAX / 2 {
            width_us = width_us.saturating_mul(2);
            let mut points: Vec<Point> = Vec::with_capacity(self.points.len());
            for point in &self.points {
                match points.last_mut() {
                    Some(previous) if point.at_us / width_us == previous.at_us / width_us => {
                        *previous = merged(previous, point);
                    }
                    _ => points.push(*point),
                }
            }
            self.points = points;
        }
        self.points.shrink_to_fit();
        self.width_us = width_us;
    }
}

/// One point for two consecutive ones.
fn merged(earlier: &Point, later: &Point) -> Point {
    Point {
        at_us: later.at_us,
        sample: later.sample,
        rss_low_kib: earlier.rss_low_kib.min(later.rss_low_kib),
        rss_high_kib: earlier.rss_high_kib.max(later.rss_high_kib),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(at_us: u64, rss_kib: u64) -> Run {
        Run { at_us, span_us: 0, count: 1, sample: Sample { rss_kib, ..Sample::default() } }
    }

    #[test]
    fn an_hour_keeps_its_one_peak() {
        let mut series = Series::default();
        for at in 0..3_600_000u64 {
            series.add(&run(at * 1000, if at == 1_234_567 { 9_999 } else { at % 7 }));
        }
        assert!((MAX_POINTS / 4..=MAX_POINTS).contains(&series.points().len()));
        assert_eq!(series.points().iter().map(|point| point.rss_high_kib).max(), Some(9_999));
        assert!(series.points().is_sorted_by_key(|point| point.at_us));
        assert_eq!(series.points().last().map(|point| point.at_us), Some(3_599_999_000));
    }

    #[test]
    fn hostile_times_end() {
        let mut series = Series::default();
        for at in (0..10_000u64).map(|n| u64::MAX - 10_000 + n) {
            series.add(&run(at, 1));
        }
        for at in (0..10_000u64).rev() {
            series.add(&run(at, 1));
        }
        assert!(series.points().len() <= MAX_POINTS);
    }
}
