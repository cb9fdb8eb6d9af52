//! Which ledgers are taken, and when: `--ledger marks,peak,exit,every=10s`.

use std::time::Duration;

/// Without `--ledger`, only this many marks have a ledger.
pub const FIRST_MARKS: u64 = 16;
/// Minimum interval between regular ledgers.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Which ledgers are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// At marks.
    pub marks: MarkLedgers,
    /// As the high-water mark grows.
    pub at_peaks: bool,
    /// At the end of processes, while their memory is still there.
    pub at_exits: bool,
    /// At this interval.
    pub every: Option<Duration>,
    /// At the beginning and the end of recording a running process.
    pub at_ends: bool,
}

/// At which marks a ledger is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MarkLedgers {
    /// At no mark.
    #[default]
    None,
    /// The first [`FIRST_MARKS`].
    Few,
    /// At every mark.
    All,
}

impl Plan {
    /// Default of `run`: the first marks, peaks, and exit.
    pub const RUN: Self =
        Self { marks: MarkLedgers::Few, at_peaks: true, at_exits: true, every: None, at_ends: false };
    /// Default of `run` for users who may not trace privileged programs. Tracing a command from its
    /// start would take the privileges from setuid programs, such as `sudo` in a script; a ledger
    /// at a peak traces only for a moment.
    pub const RUN_UNPRIVILEGED: Self =
        Self { marks: MarkLedgers::Few, at_peaks: true, at_exits: false, every: None, at_ends: false };
    /// Default of `record`: at its beginning and its end. Catching the exit requires tracing, which
    /// is too intrusive as a default in production.
    pub const RECORD: Self =
        Self { marks: MarkLedgers::None, at_peaks: false, at_exits: false, every: None, at_ends: true };

    /// Parses the value of `--ledger`.
    ///
    /// # Errors
    /// A sentence with what is wrong and what is possible.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut plan = Self::default();
        for word in text.split(',').map(str::trim) {
            match word.split_once('=') {
                None if word == "marks" => plan.marks = MarkLedgers::All,
                None if word == "peak" => plan.at_peaks = true,
                None if word == "exit" => plan.at_exits = true,
                None if word == "ends" => plan.at_ends = true,
                None if word == "none" && text.trim() == "none" => {}
                Some(("every", time)) => plan.every = Some(parse_interval(time)?),
                _ => {
                    return Err(format!(
                        "{word:?} is not a moment for a ledger: use marks, peak, exit, ends, every=10s (several with commas), or none"
                    ));
                }
            }
        }
        Ok(plan)
    }

    /// The plan in the syntax of `--ledger`.
    pub fn text(&self) -> String {
        let mut words = Vec::new();
        match self.marks {
            MarkLedgers::All => words.push("marks".to_owned()),
            MarkLedgers::Few => words.push(format!("first {FIRST_MARKS} marks")),
            MarkLedgers::None => {}
        }
        for (is_planned, word) in [(self.at_peaks, "peak"), (self.at_exits, "exit"), (self.at_ends, "ends")] {
            if is_planned {
                words.push(word.to_owned());
            }
        }
        words.extend(self.every.map(|every| format!("every={}s", every.as_secs_f64())));
        if words.is_empty() { "none".to_owned() } else { words.join(",") }
    }
}

/// Parses the interval of regular ledgers.
fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < MIN_INTERVAL {
        return Err(format!(
            "every={text} is too often: a ledger stops the process; use every=100ms or more"
        ));
    }
    Ok(interval)
}

/// Parses a time with a unit: `1ms`, `500us`, `10s`, `5m`, `1h`; a bare number is seconds.
///
/// # Errors
/// A sentence with what is possible.
pub fn duration(text: &str) -> Result<Duration, String> {
    /// The seconds of a year.
    const MAX_SECONDS: f64 = 86_400.0 * 366.0;
    let invalid =
        || format!("{text:?} is not a time: use a number with ms, s, m or h, such as 1ms, 0.5s or 10s");
    let number_end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 = text[..number_end].parse().map_err(|_| invalid())?;
    let unit_seconds = match &text[number_end..] {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(invalid()),
    };
    let seconds = number * unit_seconds;
    if !(seconds > 0.0 && seconds <= MAX_SECONDS) {
        return Err(invalid());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_and_written() {
        let plan = Plan::parse("marks,peak,exit,every=10s").unwrap();
        let expected = Plan {
            marks: MarkLedgers::All,
            at_peaks: true,
            at_exits: true,
            every: Some(Duration::from_secs(10)),
            at_ends: false,
        };
        assert_eq!(plan, expected);
        assert_eq!(plan.text(), "marks,peak,exit,every=10s");
        assert_eq!(Plan::parse("none"), Ok(Plan::default()));
        assert_eq!(Plan::default().text(), "none");
        for wrong in ["", "mark", "every", "every=", "every=1ms", "none,exit", "every=-1s", "peak=2"] {
            assert!(Plan::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("500us"), Ok(Duration::from_micros(500)));
        for wrong in ["", "0", "ms", "1 s", "1d", "nan", "inf", "1e9h", "-1s"] {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
