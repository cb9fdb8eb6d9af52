//! What ledgers may cost: time for which a process is stopped, and processor time of the exporter.
//! This module only counts; the caller checks the budget before a ledger, and reports after it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long ledgers may stop a process: a time in any period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopBudget {
    /// Maximum stopped time in a period.
    pub stopped: Duration,
    /// Length of the period.
    pub period: Duration,
}

/// Longest period: a sum over days does not limit a minute.
const MAX_PERIOD: Duration = Duration::from_secs(24 * 3600);

impl StopBudget {
    /// Parses `20ms/min`, `1s/h`, `100ms/5m`; `parse_time` parses a time with its unit.
    ///
    /// # Errors
    /// A sentence with what is possible.
    pub fn parse(text: &str, parse_time: impl Fn(&str) -> Result<Duration, String>) -> Result<Self, String> {
        let invalid = || {
            format!("{text:?} is not a budget: use a time and a period, such as 20ms/min, 100ms/5m or 1s/h")
        };
        let (stopped, period) = text.split_once('/').ok_or_else(invalid)?;
        // `min` alone is one minute.
        let starts_with_digit = period.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        let period = if starts_with_digit { parse_time(period) } else { parse_time(&format!("1{period}")) };
        let (stopped, period) = (parse_time(stopped).map_err(|_| invalid())?, period.map_err(|_| invalid())?);
        if stopped >= period || period > MAX_PERIOD {
            return Err(format!(
                "{text:?}: the time must be shorter than the period, and the period at most a day"
            ));
        }
        Ok(Self { stopped, period })
    }

    /// Stopped time per elapsed time.
    fn rate(self) -> f64 {
        self.stopped.as_secs_f64() / self.period.as_secs_f64()
    }
}

/// How long one process was stopped, and when.
#[derive(Clone, Debug)]
pub struct Stops {
    /// When the process became known.
    known_since: Instant,
    /// Stopped time since then.
    total: Duration,
    /// Stops of the last period.
    recent: VecDeque<Stop>,
}

/// One stop of a process.
#[derive(Clone, Copy, Debug)]
struct Stop {
    ended_at: Instant,
    duration: Duration,
}

impl Stops {
    /// No stops yet, of a process that is known since `known_since`.
    pub fn new(known_since: Instant) -> Self {
        Self { known_since, total: Duration::ZERO, recent: VecDeque::new() }
    }

    /// Total stopped time.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Whether the last stop is so recent that a budget may count it.
    pub fn may_count(&self, now: Instant) -> bool {
        self.recent.back().is_some_and(|stop| now.duration_since(stop.ended_at) <= MAX_PERIOD)
    }

    /// Adds a stop of this duration that ended at `now`.
    pub fn add(&mut self, now: Instant, duration: Duration, budget: StopBudget) {
        self.total += duration;
        while self.recent.front().is_some_and(|stop| now.duration_since(stop.ended_at) > budget.period) {
            self.recent.pop_front();
        }
        self.recent.push_back(Stop { ended_at: now, duration });
    }

    /// How long the process may be stopped now: the unused budget of the period that ends now, and
    /// at most what has accrued since the process became known. A stop that was longer than allowed
    /// reduces both. Before its first stop a process may use the budget of one period, which later
    /// stops pay back.
    pub fn remaining(&self, now: Instant, budget: StopBudget) -> Duration {
        let recent = self.recent.iter().filter(|stop| now.duration_since(stop.ended_at) <= budget.period);
        let spent: Duration = recent.map(|stop| stop.duration).sum();
        let in_period = budget.stopped.saturating_sub(spent);
        if self.total.is_zero() {
            return in_period;
        }
        let accrued = now.duration_since(self.known_since).mul_f64(budget.rate());
        in_period.min(accrued.saturating_sub(self.total))
    }
}

/// Processor time that may be used: a share of elapsed time. At most one minute's share is
/// saved.
#[derive(Debug)]
pub struct CpuBudget {
    /// Processor time per elapsed time.
    share: f64,
    /// Processor time that was not used yet; negative if too much was used.
    saved_seconds: f64,
    /// When the processor time was last accounted.
    accounted_at: Instant,
    /// Processor time that was used until then.
    used_time: Duration,
}

/// Elapsed time whose share can be saved.
const MAX_SAVED_SECONDS: f64 = 60.0;
/// Longest wait: the budget is checked again after it.
const MAX_WAIT_SECONDS: f64 = 3600.0;

impl CpuBudget {
    /// Nothing is saved yet; processor time `used_time` until `now` does not count.
    pub fn new(share: f64, now: Instant, used_time: Duration) -> Self {
        Self { share, saved_seconds: 0.0, accounted_at: now, used_time }
    }

    /// Accounts up to `now`, when `used_time` was used in total. Returns how long to wait before
    /// something that takes about `expected` may begin: until there is enough for it, or the
    /// maximum is saved.
    pub fn wait(&mut self, now: Instant, used_time: Duration, expected: Duration) -> Duration {
        let passed_seconds = now.saturating_duration_since(self.accounted_at).as_secs_f64();
        let used_seconds = used_time.saturating_sub(self.used_time).as_secs_f64();
        let max_saved_seconds = MAX_SAVED_SECONDS * self.share;
        let saved_seconds = self.saved_seconds + passed_seconds * self.share - used_seconds;
        self.saved_seconds = saved_seconds.min(max_saved_seconds);
        (self.accounted_at, self.used_time) = (now, used_time);
        let missing_seconds = expected.as_secs_f64().min(max_saved_seconds) - self.saved_seconds;
        if missing_seconds <= 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64((missing_seconds / self.share).min(MAX_WAIT_SECONDS))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse_time(text: &str) -> Result<Duration, String> {
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let number: u64 = number.parse().map_err(|_| String::new())?;
        match unit {
            "ms" => Ok(Duration::from_millis(number)),
            "s" => Ok(Duration::from_secs(number)),
            "m" | "min" => Ok(Duration::from_secs(60 * number)),
            "h" => Ok(Duration::from_secs(3600 * number)),
            _ => Err(String::new()),
        }
    }

    const BUDGET: StopBudget =
        StopBudget { stopped: Duration::from_millis(20), period: Duration::from_secs(60) };

    #[test]
    fn budgets_have_a_time_and_a_period() {
        assert_eq!(StopBudget::parse("20ms/min", parse_time), Ok(BUDGET));
        assert_eq!(StopBudget::parse("20ms/1m", parse_time), Ok(BUDGET));
        assert_eq!(StopBudget::parse("1s/h", parse_time).unwrap().period, Duration::from_secs(3600));
        for wrong in ["", "20ms", "20ms/", "/min", "20ms/x", "2s/1s", "1s/s", "20/min"] {
            assert!(StopBudget::parse(wrong, parse_time).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn stops_after_the_first_are_never_longer_than_what_has_accrued() {
        let start = Instant::now();
        let mut stops = Stops::new(start);
        assert_eq!(stops.remaining(start, BUDGET), BUDGET.stopped, "the first does not wait");
        stops.add(start, Duration::from_millis(5), BUDGET);
        assert_eq!(stops.remaining(start + Duration::from_secs(15), BUDGET), Duration::ZERO);
        let later = start + Duration::from_secs(45);
        assert_eq!(stops.remaining(later, BUDGET), Duration::from_millis(10));
        stops.add(later, Duration::from_millis(10), BUDGET);
        assert_eq!(stops.remaining(later, BUDGET), Duration::ZERO);
        let idle = start + Duration::from_secs(600);
        assert_eq!(
            stops.remaining(idle, BUDGET),
            Duration::from_millis(20),
            "a period's is the most at once"
        );
        // A stop that took longer is paid back.
        stops.add(idle, Duration::from_millis(300), BUDGET);
        assert_eq!(stops.remaining(idle + Duration::from_secs(61), BUDGET), Duration::ZERO);
        assert!(stops.remaining(start + Duration::from_secs(960), BUDGET) > Duration::ZERO);
    }

    #[test]
    fn processor_time_is_owed_and_saved_up_to_a_bound() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let used = Duration::from_millis;
        let mut processor = CpuBudget::new(0.01, start, used(50));
        let mut wait = |seconds, used_ms| processor.wait(at(seconds), used(used_ms), Duration::ZERO);
        assert_eq!(wait(0, 50), Duration::ZERO);
        assert_eq!(wait(10, 250), Duration::from_secs(10));
        assert_eq!(wait(20, 250), Duration::ZERO);
        assert_eq!(wait(100_000, 250), Duration::ZERO);
        assert_eq!(wait(100_000, 1850), Duration::from_secs(100));
        let mut processor = CpuBudget::new(0.5, start, used(0));
        assert_eq!(processor.wait(start, used(0), Duration::from_secs(4)), Duration::from_secs(8));
        assert_eq!(
            processor.wait(at(60), used(0), Duration::from_secs(3600)),
            Duration::ZERO,
            "all that can be saved"
        );
    }

    proptest! {
        #[test]
        fn no_window_holds_more_than_the_budget(turns in proptest::collection::vec((0u64..90_000, 0u64..30), 1..60)) {
            let start = Instant::now();
            let (mut stops, mut now, mut log) = (Stops::new(start), start, Vec::new());
            for (wait, wanted_ms) in turns {
                now += Duration::from_millis(wait);
                let stopped = Duration::from_millis(wanted_ms).min(stops.remaining(now, BUDGET));
                stops.add(now, stopped, BUDGET);
                log.push((now, stopped));
                let window: Duration = log.iter().filter(|(at, _)| now.duration_since(*at) <= BUDGET.period).map(|(_, s)| *s).sum();
                prop_assert!(window <= BUDGET.stopped);
                let accrued = now.duration_since(start).mul_f64(BUDGET.rate()) + Duration::from_micros(1);
                prop_assert!(stops.total() <= accrued.max(BUDGET.stopped));
            }
        }
    }
}
