//! Time since the recording began, and the instants at which samples are due.

use std::time::{Duration, Instant};

/// A time in microseconds.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// When the recording began.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Microseconds since the start.
    pub fn now_us(self) -> u64 {
        micros(self.start.elapsed())
    }
}

/// Equidistant instants, numbered from 0: which one is due, and how many were missed.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    interval_us: u64,
    /// Number of the next instant.
    next: u64,
    /// Number of instants taken: samples were read at them.
    pub taken: u64,
    /// Number of instants that passed before the recorder was ready for them.
    pub missed: u64,
}

impl Grid {
    /// A grid whose first instant is at 0.
    pub fn new(interval: Duration) -> Self {
        Self { interval_us: micros(interval).max(1), next: 0, taken: 0, missed: 0 }
    }

    /// Skips all instants up to `now_us` but the last, which is due at once; the others do not
    /// count as missed.
    pub fn skip_to(&mut self, now_us: u64) {
        self.next = now_us / self.interval_us;
    }

    /// Time until the next instant.
    pub fn time_until_next(&self, now_us: u64) -> Duration {
        Duration::from_micros(self.next_us().saturating_sub(now_us))
    }

    /// Takes the instant that is due, if any. Earlier instants that were not taken count as missed.
    pub fn take_due(&mut self, now_us: u64) -> bool {
        let current = now_us / self.interval_us;
        if current < self.next {
            return false;
        }
        self.missed += current - self.next;
        self.taken += 1;
        self.next = current.saturating_add(1);
        true
    }

    /// Whether the next instant is overdue by more than `tolerance`.
    pub fn is_late(&self, now_us: u64, tolerance: Duration) -> bool {
        now_us.saturating_sub(self.next_us()) > micros(tolerance)
    }

    /// Skips the instants that passed while the recorder was stopped, except the last, which is
    /// due now: they do not count as missed. Returns the microseconds since the first was due.
    pub fn skip_pause(&mut self, now_us: u64) -> u64 {
        let paused_us = now_us.saturating_sub(self.next_us());
        self.next = self.next.max(now_us / self.interval_us);
        paused_us
    }

    /// When the next instant is due.
    fn next_us(&self) -> u64 {
        self.next.saturating_mul(self.interval_us)
    }

    /// Number of the instant that [`Grid::take_due`] has just taken; call it only then.
    pub fn last_taken(&self) -> u64 {
        self.next.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_samples_are_counted_as_missed() {
        let mut grid = Grid::new(Duration::from_millis(1));
        assert!(grid.take_due(0) && !grid.take_due(10) && !grid.take_due(999));
        assert!(grid.take_due(1000) && grid.take_due(2999), "just in time");
        assert!(grid.take_due(6100));
        assert_eq!((grid.taken, grid.missed), (4, 3));
        assert_eq!(grid.time_until_next(6100), Duration::from_micros(900));
        assert_eq!(grid.time_until_next(9999), Duration::ZERO);
        assert!(
            grid.is_late(99_000, Duration::from_millis(50)) && !grid.is_late(9000, Duration::from_millis(50))
        );
        assert_eq!(grid.skip_pause(107_500), 100_500);
        assert!(grid.take_due(107_600));
        assert_eq!((grid.taken, grid.missed), (5, 3), "a pause is no miss");
        let mut grid = Grid::new(Duration::from_millis(1));
        grid.skip_to(2_500);
        assert!(grid.take_due(2_500));
        assert_eq!(grid.missed, 0);
    }
}
