//! Time since the recording began, and the instants at which samples are due.

use std::time::{Duration, Instant};

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
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// Equidistant instants: which one is due, and how many were missed.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    interval_us: u64,
    /// Number of the next instant.
    next: u64,
    /// Instants sampled.
    pub taken: u64,
    pub missed: u64,
}

impl Grid {
    /// A grid that begins at 0.
    pub fn new(interval: Duration) -> Self {
        let interval_us = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX).max(1);
        Self { interval_us, next: 0, taken: 0, missed: 0 }
    }

    /// Skips the instants before `now_us`.
    pub fn begin(&mut self, now_us: u64) {
        self.next = now_us / self.interval_us;
    }

    /// Time until the next instant.
    pub fn wait(&self, now_us: u64) -> Duration {
        Duration::from_micros(self.next.saturating_mul(self.interval_us).saturating_sub(now_us))
    }

    /// Takes the instant that is due, if any. Earlier instants that were not taken count as missed.
    pub fn take(&mut self, now_us: u64) -> bool {
        let current = now_us / self.interval_us;
        if current < self.next {
            return false;
        }
        self.missed += current - self.next;
        self.taken += 1;
        self.next = current + 1;
        true
    }

    /// Whether the next instant is overdue by more than `late`.
    pub fn is_late(&self, now_us: u64, late: Duration) -> bool {
        let due = self.next.saturating_mul(self.interval_us);
        now_us.saturating_sub(due) > u64::try_from(late.as_micros()).unwrap_or(u64::MAX)
    }

    /// Skips the instants up to now, during which nothing ran. Returns that time in microseconds.
    pub fn pause(&mut self, now_us: u64) -> u64 {
        let due = self.next.saturating_mul(self.interval_us);
        self.next = self.next.max(now_us / self.interval_us);
        now_us.saturating_sub(due)
    }

    /// Number of the last instant taken.
    pub fn last(&self) -> u64 {
        self.next.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_samples_are_counted_as_missed() {
        let mut grid = Grid::new(Duration::from_millis(1));
        assert!(grid.take(0) && !grid.take(10) && !grid.take(999));
        assert!(grid.take(1000) && grid.take(2999), "just in time");
        assert!(grid.take(6100));
        assert_eq!((grid.taken, grid.missed), (4, 3));
        assert_eq!(grid.wait(6100), Duration::from_micros(900));
        assert_eq!(grid.wait(9999), Duration::ZERO);
        assert!(
            grid.is_late(99_000, Duration::from_millis(50)) && !grid.is_late(9000, Duration::from_millis(50))
        );
        assert_eq!(grid.pause(107_500), 100_500);
        assert!(grid.take(107_600));
        assert_eq!((grid.taken, grid.missed), (5, 3), "a pause is no miss");
    }
}
