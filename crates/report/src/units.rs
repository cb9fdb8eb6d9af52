//! Sizes and times for people: at most three digits, binary units, and `?` for an unknown figure,
//! never 0. Exact figures accompany them where they serve as evidence.

/// Sizes and counts, as the headlines of verdicts have them.
pub use strandline_claims::units::{UNKNOWN, bytes, maybe_bytes, thousands};

/// A part of a whole in per cent with one decimal; `<0.1 %` if it would round to zero, `0.0 %` of
/// an empty whole.
pub fn percent(part: u64, total: u64) -> String {
    if total == 0 {
        return "0.0 %".to_owned();
    }
    let share = part as f64 * 100.0 / total as f64;
    if part > 0 && share < 0.05 { "<0.1 %".to_owned() } else { format!("{share:.1} %") }
}

/// A part of a whole in per cent without decimals; `<1 %` if it would round to zero, `0 %` of an
/// empty whole.
pub fn whole_percent(part: u64, total: u64) -> String {
    let share = part as f64 * 100.0 / total.max(1) as f64;
    if part > 0 && share < 0.5 { "<1 %".to_owned() } else { format!("{share:.0} %") }
}

/// A fraction in per cent with about three significant digits: `12.3 %`, `4.56 %`, `0.450 %`.
pub fn percent_of(fraction: f64) -> String {
    let percent = fraction * 100.0;
    if !percent.is_finite() {
        return UNKNOWN.to_owned();
    }
    if percent.abs() >= 10.0 {
        format!("{percent:.1} %")
    } else if percent.abs() >= 1.0 || percent == 0.0 {
        format!("{percent:.2} %")
    } else if percent.abs() < 0.0005 {
        format!("{percent:.2e} %")
    } else {
        format!("{percent:.3} %")
    }
}

/// A ratio with three decimals, and below 0.1 with three significant digits: `1.004`, `0.0123`,
/// `4.00e-4`.
pub fn ratio(ratio: f64) -> String {
    match ratio.abs() {
        0.1.. => format!("{ratio:.3}"),
        0.01.. => format!("{ratio:.4}"),
        0.001.. => format!("{ratio:.5}"),
        0.0 => "0".to_owned(),
        _ => format!("{ratio:.2e}"),
    }
}

/// How long a process was stopped; "not stopped" if it was read while its threads slept.
pub fn stopped(stopped_seconds: f64) -> String {
    if stopped_seconds == 0.0 {
        "not stopped".to_owned()
    } else {
        format!("stopped {}", seconds(stopped_seconds))
    }
}

/// A time, given in seconds: `850 µs`, `3.1 ms`, `24 ms`, `1.2 s`, `3 min 20 s`.
pub fn seconds(time: f64) -> String {
    if !time.is_finite() || time < 0.0 {
        return UNKNOWN.to_owned();
    }
    if time >= 120.0 {
        let whole_seconds = time.round() as u64;
        return format!("{} min {} s", whole_seconds / 60, whole_seconds % 60);
    }
    // The bounds are those at which the smaller unit would be rounded to 1000.
    let (value, unit) = match time {
        _ if time < 0.000_999_5 => (time * 1e6, "µs"),
        _ if time < 0.999_5 => (time * 1e3, "ms"),
        _ => (time, "s"),
    };
    // One decimal, unless the value would be rounded to 10.
    if value < 9.95 && unit != "µs" { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// A time, given in seconds, or `?` if unknown.
pub fn maybe_seconds(duration_seconds: Option<f64>) -> String {
    duration_seconds.map_or_else(|| UNKNOWN.to_owned(), seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_size_is_not_zero() {
        assert_eq!(maybe_bytes(None), "?");
        assert_eq!(maybe_bytes(Some(0)), "0 B");
    }

    #[test]
    fn ratios_other_than_0_are_not_shown_as_0() {
        for (value, expected) in [
            (0.0, "0"),
            (1.0, "1.000"),
            (0.5, "0.500"),
            (0.012_34, "0.0123"),
            (0.001_234, "0.00123"),
            (0.000_4, "4.00e-4"),
        ] {
            assert_eq!(ratio(value), expected);
        }
        assert_eq!(
            [percent_of(0.0), percent_of(0.004), percent_of(1e-7)],
            ["0.00 %", "0.400 %", "1.00e-5 %"]
        );
    }

    #[test]
    fn shares_are_never_rounded_to_nothing() {
        assert_eq!(percent(0, 100), "0.0 %");
        assert_eq!(percent(1, 1_000_000), "<0.1 %");
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(5, 0), "0.0 %");
        assert_eq!(percent(7, 7), "100.0 %");
        assert_eq!(
            [whole_percent(0, 0), whole_percent(1, 3), whole_percent(1, 300)],
            ["0 %", "33 %", "<1 %"]
        );
    }

    #[test]
    fn times_have_the_unit_they_need() {
        let cases = [
            (0.000_85, "850 µs"),
            (0.000_999_6, "1.0 ms"),
            (0.003_1, "3.1 ms"),
            (0.024, "24 ms"),
            (1.24, "1.2 s"),
            (12.4, "12 s"),
            (200.0, "3 min 20 s"),
        ];
        for (time, text) in cases {
            assert_eq!(seconds(time), text, "{time}");
        }
        assert_eq!(seconds(f64::NAN), "?");
        assert_eq!(maybe_seconds(None), "?");
    }
}
