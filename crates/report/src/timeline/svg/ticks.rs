//! The ticks of the two axes, and the labels of times.

/// At most ten multiples of a power of two, which read as round binary sizes.
pub fn byte_ticks(top_bytes: f64) -> Vec<f64> {
    let mut step = 1024.0;
    while top_bytes / step > 9.0 {
        step *= 2.0;
    }
    (0..10).map(|n| f64::from(n) * step).take_while(|&tick| tick <= top_bytes).collect()
}

/// At most twelve times at round intervals.
pub fn time_ticks(end_seconds: f64) -> Vec<f64> {
    const ROUND_SECONDS: [f64; 15] = [
        1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0,
        43_200.0,
    ];
    let is_few = |step: &f64| end_seconds / step <= 11.0;
    let step = if end_seconds <= 10.0 {
        let power = 10f64.powf((end_seconds / 10.0).log10().floor());
        [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(is_few)
    } else {
        ROUND_SECONDS.into_iter().find(is_few)
    };
    let step = step.unwrap_or(end_seconds / 10.0);
    (0..12).map(|n| f64::from(n) * step).take_while(|&tick| tick <= end_seconds).collect()
}

/// The label of a tick: on an axis of up to three minutes seconds, on longer ones `m:ss`, from two
/// hours on `h:mm:ss`.
pub fn time_label(seconds: f64, end_seconds: f64) -> String {
    if end_seconds < 180.0 {
        let text = format!("{seconds:.4}");
        return format!("{} s", text.trim_end_matches('0').trim_end_matches('.'));
    }
    let whole_seconds = seconds.max(0.0).round() as u64;
    let (minutes, rest_seconds) = (whole_seconds / 60, whole_seconds % 60);
    if end_seconds < 7200.0 {
        return format!("{minutes}:{rest_seconds:02}");
    }
    format!("{}:{:02}:{rest_seconds:02}", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::plot::label;

    #[test]
    fn ticks_are_round_and_few() {
        for end in [1e-3, 0.5, 1.0, 12.41, 179.0, 3600.0, 86_400.0, 1e13] {
            let ticks = time_ticks(end);
            assert!((3..=12).contains(&ticks.len()), "{end}: {ticks:?}");
        }
        let labels: Vec<String> = byte_ticks(1600e6).iter().map(|&size| label(size, true)).collect();
        assert_eq!(labels, ["0 B", "256 MiB", "512 MiB", "768 MiB", "1 GiB", "1.25 GiB"]);
        assert_eq!(time_label(3725.0, 9000.0), "1:02:05");
        assert_eq!(time_label(0.25, 2.0), "0.25 s");
    }
}
