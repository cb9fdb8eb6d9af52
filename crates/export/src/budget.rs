//! What ledgers may cost: time for which a process stands still, and processor time of our own. Only counts; whoever
//! takes a ledger asks before, and tells after.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a process may be stopped: so much in any such period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopBudget {
    /// So long.
    pub stopped: Duration,
    /// In any period of this length.
    pub period: Duration,
}

/// The longest period: a sum over days says nothing of a minute.
const LONGEST_PERIOD: Duration = Duration::from_secs(24 * 3600);

impl StopBudget {
    /// Parses `20ms/min`, `1s/h`, `100ms/5m`; `time` parses a time with its unit.
    ///
    /// # Errors
    /// A sentence that says what is possible.
    pub fn parse(text: &str, time: impl Fn(&str) -> Result<Duration, String>) -> Result<Self, String> {
        let bad =
            || format!("{text:?} is no budget: use a time and a period, such as 20ms/min, 100ms/5m or 1s/h");
        let (stopped, period) = text.split_once('/').ok_or_else(bad)?;
        // `min` alone is one of it.
        let opens_with_digit = period.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        let period = if opens_with_digit { time(period) } else { time(&format!("1{period}")) };
        let (stopped, period) = (time(stopped).map_err(|_| bad())?, period.map_err(|_| bad())?);
        if stopped >= period || period > LONGEST_PERIOD {
            return Err(format!(
                "{text:?}: the time must be shorter than the period, and the period at most a day"
            ));
        }
        Ok(Self { stopped, period })
    }

    fn rate(self) -> f64 {
        self.stopped.as_secs_f64() / self.period.as_secs_f64()
    }
}

/// How long one process was stopped, and when.
#[derive(Clone, Debug)]
pub struct Stops {
    since: Instant,
    total: Duration,
    /// Those of the last period.
    recent: VecDeque<(Instant, Duration)>,
}

impl Stops {
    /// None yet, of a process that is known from now on.
    pub fn new(since: Instant) -> Self {
        Self { since, total: Duration::ZERO, recent: VecDeque::new() }
    }

    /// In all.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Whether it was stopped so lately that a budget may count it.
    pub fn may_count(&self, now: Instant) -> bool {
        self.recent.back().is_some_and(|(at, _)| now.duration_since(*at) <= LONGEST_PERIOD)
    }

    /// It was stopped for so long until now.
    pub fn add(&mut self, now: Instant, stopped: Duration, budget: StopBudget) {
        self.total += stopped;
        while self.recent.front().is_some_and(|(at, _)| now.duration_since(*at) > budget.period) {
            self.recent.pop_front();
        }
        self.recent.push_back((now, stopped));
    }

    /// For how long it may be stopped now: what is left in the period that ends now, and no more than the time since it is
    /// known has brought. A stop that became longer than it was allowed is paid back by both.
    pub fn left(&self, now: Instant, budget: StopBudget) -> Duration {
        let recent = self.recent.iter().filter(|(at, _)| now.duration_since(*at) <= budget.period);
        let spent: Duration = recent.map(|(_, stopped)| *stopped).sum();
        let brought = now.duration_since(self.since).mul_f64(budget.rate());
        budget.stopped.saturating_sub(spent).min(brought.saturating_sub(self.total))
    }
}

/// Processor time that may be taken: a share of the time that goes by, of which at most a minute's is saved up.
#[derive(Debug)]
pub struct Processor {
    share: f64,
    /// What is left, in seconds; below zero it is owed.
    left: f64,
    at: Instant,
    taken: Duration,
}

const MAX_SAVED_SECONDS: f64 = 60.0;

impl Processor {
    /// Nothing saved up yet; `taken` until `now` does not count.
    pub fn new(share: f64, now: Instant, taken: Duration) -> Self {
        Self { share, left: 0.0, at: now, taken }
    }

    /// Counts up to `now`, when `taken` was taken in all. Returns how long something that takes about `expected` may not be
    /// begun: then there is enough for it, or all that can be saved up.
    pub fn wait(&mut self, now: Instant, taken: Duration, expected: Duration) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        let used = taken.saturating_sub(self.taken).as_secs_f64();
        let most = MAX_SAVED_SECONDS * self.share;
        self.left = (self.left + passed * self.share - used).min(most);
        (self.at, self.taken) = (now, taken);
        let missing = expected.as_secs_f64().min(most) - self.left;
        if missing <= 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64((missing / self.share).min(3600.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time(text: &str) -> Result<Duration, String> {
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
        assert_eq!(StopBudget::parse("20ms/min", time), Ok(BUDGET));
        assert_eq!(StopBudget::parse("20ms/1m", time), Ok(BUDGET));
        assert_eq!(StopBudget::parse("1s/h", time).unwrap().period, Duration::from_secs(3600));
        for wrong in ["", "20ms", "20ms/", "/min", "20ms/x", "2s/1s", "1s/s", "20/min"] {
            assert!(StopBudget::parse(wrong, time).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_stopped_is_never_more_than_the_time_has_brought() {
        let start = Instant::now();
        let mut stops = Stops::new(start);
        assert_eq!(stops.left(start, BUDGET), Duration::ZERO);
        let later = start + Duration::from_secs(30);
        assert_eq!(stops.left(later, BUDGET), Duration::from_millis(10));
        stops.add(later, Duration::from_millis(10), BUDGET);
        assert_eq!(stops.left(later, BUDGET), Duration::ZERO);
        let idle = start + Duration::from_secs(600);
        assert_eq!(stops.left(idle, BUDGET), Duration::from_millis(20), "a period's is the most at once");
        // One that took longer is paid back.
        stops.add(idle, Duration::from_millis(300), BUDGET);
        assert_eq!(stops.left(idle + Duration::from_secs(61), BUDGET), Duration::ZERO);
        assert!(stops.left(start + Duration::from_secs(960), BUDGET) > Duration::ZERO);
    }

    #[test]
    fn processor_time_is_owed_and_saved_up_to_a_bound() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let taken = Duration::from_millis;
        let mut processor = Processor::new(0.01, start, taken(50));
        let mut wait = |seconds, all| processor.wait(at(seconds), taken(all), Duration::ZERO);
        assert_eq!(wait(0, 50), Duration::ZERO);
        assert_eq!(wait(10, 250), Duration::from_secs(10));
        assert_eq!(wait(20, 250), Duration::ZERO);
        assert_eq!(wait(100_000, 250), Duration::ZERO);
        assert_eq!(wait(100_000, 1850), Duration::from_secs(100));
        let mut processor = Processor::new(0.5, start, taken(0));
        assert_eq!(processor.wait(start, taken(0), Duration::from_secs(4)), Duration::from_secs(8));
        assert_eq!(
            processor.wait(at(60), taken(0), Duration::from_secs(3600)),
            Duration::ZERO,
            "all that can be saved"
        );
    }

    proptest! {
        #[test]
        fn no_window_holds_more_than_the_budget(turns in proptest::collection::vec((0u64..90_000, 0u64..30), 1..60)) {
            let start = Instant::now();
            let (mut stops, mut now, mut log) = (Stops::new(start), start, Vec::new());
            for (wait, wanted) in turns {
                now += Duration::from_millis(wait);
                let stopped = Duration::from_millis(wanted).min(stops.left(now, BUDGET));
                stops.add(now, stopped, BUDGET);
                log.push((now, stopped));
                let window: Duration = log.iter().filter(|(at, _)| now.duration_since(*at) <= BUDGET.period).map(|(_, s)| *s).sum();
                prop_assert!(window <= BUDGET.stopped);
                let most = now.duration_since(start).mul_f64(BUDGET.rate()) + Duration::from_micros(1);
                prop_assert!(stops.total() <= most);
            }
        }
    }
}
