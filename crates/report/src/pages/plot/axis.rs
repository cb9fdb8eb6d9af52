//! An axis: its range, the position of a figure on it, and its ticks with their labels.

use crate::units::thousands;

/// Figures are clamped to this, so that differences stay finite.
const MAX_FIGURE: f64 = 1e300;
/// The smallest upper end of an axis that begins at 0.
const MIN_HIGH: f64 = 1e-300;
/// A span below this fraction of the figures counts as zero.
const MIN_SPAN_FRACTION: f64 = 1e-11;
/// The fraction of its length that an axis leaves free at both ends.
const PAD_FRACTION: f64 = 0.04;
/// The fraction of a single figure that its axis spans in both directions.
const SINGLE_FIGURE_FRACTION: f64 = 0.05;
/// The part of a power of ten that a logarithmic axis of a single figure spans in both directions:
/// a factor of 2.
const SINGLE_FIGURE_DECADES: f64 = 0.3;
/// By how much rounding may move a figure off the axis.
const POSITION_TOLERANCE: f64 = 1e-6;
/// The same for ticks, whose figures are exact.
const TICK_TOLERANCE: f64 = 1e-9;
/// Figures from here on are labelled with powers of ten.
const MIN_SCIENTIFIC: f64 = 1e7;
/// Units of bytes, each 1024 times the one before.
const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// How figures are placed on an axis and labelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Labelled in B, KiB, MiB, …
    pub is_bytes: bool,
    /// Logarithmic: figures that are not positive have no position.
    pub is_logarithmic: bool,
}

/// Whether a linear axis includes 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroEnd {
    /// Where 0 is near the figures.
    Free,
    /// Always, for bars.
    Forced,
}

/// An axis of a plot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    scale: Scale,
    /// The lower end, as a figure or its decimal logarithm.
    low: f64,
    /// The upper end, likewise.
    high: f64,
}

/// A mark on an axis.
#[derive(Debug)]
pub struct Tick {
    /// Its position, from 0 to 1.
    pub position: f64,
    pub label: String,
}

impl Axis {
    /// The axis that spans `figures`. Without any valid figure it spans 0 to 1.
    pub fn over(figures: impl Iterator<Item = f64>, scale: Scale, zero_end: ZeroEnd) -> Self {
        let mut span: Option<(f64, f64)> = None;
        for figure in figures.filter_map(|figure| scaled(figure, scale)) {
            span =
                span.map_or(Some((figure, figure)), |(low, high)| Some((low.min(figure), high.max(figure))));
        }
        let (mut low, mut high) = span.unwrap_or((0.0, 1.0));
        let starts_at_zero = zero_end == ZeroEnd::Forced && !scale.is_logarithmic;
        // If the lowest figure is below half the highest, include 0 so that lengths can be
        // compared.
        let is_near_zero = !scale.is_logarithmic && low >= 0.0 && low < high / 2.0;
        let includes_zero = starts_at_zero || is_near_zero;
        if includes_zero {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        if high - low <= MIN_SPAN_FRACTION * high.abs().max(low.abs()) || high == low {
            let reach = match high.abs() {
                _ if scale.is_logarithmic => SINGLE_FIGURE_DECADES,
                0.0 => 1.0,
                size => (size * SINGLE_FIGURE_FRACTION).max(f64::MIN_POSITIVE),
            };
            (low, high) = (low - reach, high + reach);
            if includes_zero {
                (low, high) = (low.max(0.0), high.max(MIN_HIGH));
            }
        }
        let pad = (high - low) * PAD_FRACTION;
        let pad_low = if includes_zero && low == 0.0 { 0.0 } else { pad };
        let pad_high = if starts_at_zero && high == 0.0 { 0.0 } else { pad };
        Self { scale, low: low - pad_low, high: high + pad_high }
    }

    /// The axis of positions 0, 1, … with `count` names, each in the middle of its part.
    pub fn categorical(count: usize) -> Self {
        let scale = Scale { is_bytes: false, is_logarithmic: false };
        Self { scale, low: -0.5, high: count.max(1) as f64 - 0.5 }
    }

    /// The position of `figure`, from 0 to 1; `None` if it has none.
    pub fn position(&self, figure: f64) -> Option<f64> {
        let position = (scaled(figure, self.scale)? - self.low) / (self.high - self.low);
        // Rounding errors are clamped to the edge; anything further out has no position.
        let is_on_axis = (-POSITION_TOLERANCE..=1.0 + POSITION_TOLERANCE).contains(&position);
        is_on_axis.then_some(position.clamp(0.0, 1.0))
    }

    /// Where bars begin: at 0, or at the left end if the axis does not contain 0.
    pub fn base(&self) -> f64 {
        if self.scale.is_logarithmic { 0.0 } else { self.position(0.0).unwrap_or(0.0) }
    }

    /// About `max_ticks` ticks, in order.
    pub fn ticks(&self, max_ticks: usize) -> Vec<Tick> {
        let max_ticks = max_ticks.clamp(2, 20);
        if !self.scale.is_logarithmic {
            return self.even_ticks(self.low, self.high, max_ticks);
        }
        // Factors are of 2 for bytes, or else of 10.
        let factor_decades = if self.scale.is_bytes { 2f64.log10() } else { 1.0 };
        let factor_count = (self.high - self.low) / factor_decades;
        // A short axis may contain no power of the factor.
        let min_factor_count = if self.scale.is_bytes { 1.5 } else { 0.7 };
        if factor_count < min_factor_count {
            return self.even_ticks(10f64.powf(self.low), 10f64.powf(self.high), max_ticks);
        }
        let digits: &[f64] =
            if !self.scale.is_bytes && factor_count < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        // Steps by factors of 2, 4, 32 or 1024 for bytes.
        let strides: &[f64] =
            if self.scale.is_bytes { &[1.0, 2.0, 5.0, 10.0] } else { &[1.0, 2.0, 3.0, 5.0] };
        let fits = |stride: &&f64| factor_count / **stride * digits.len() as f64 <= max_ticks as f64 + 0.5;
        let widest_stride = (factor_count / max_ticks as f64).ceil();
        let stride = strides.iter().find(fits).copied().unwrap_or(widest_stride);
        let first_step = (self.low / factor_decades / stride).floor();
        // If some labels need powers of ten, use them for all.
        let has_large = !self.scale.is_bytes && self.high > MIN_SCIENTIFIC.log10();
        let text = |figure: f64| {
            if has_large && figure >= 1e3 { scientific(figure) } else { label(figure, self.scale.is_bytes) }
        };
        let mut ticks = Vec::new();
        for step in 0..=(factor_count / stride).ceil().clamp(0.0, 100.0) as u32 + 1 {
            let power = 10f64.powf((first_step + f64::from(step)) * stride * factor_decades);
            for digit in digits {
                self.push_tick(digit * power, text, &mut ticks);
            }
        }
        ticks
    }

    /// Evenly spaced ticks from `low` to `high`, also on a logarithmic axis.
    fn even_ticks(&self, low: f64, high: f64, max_ticks: usize) -> Vec<Tick> {
        let largest = low.abs().max(high.abs());
        let (unit, name) = if self.scale.is_bytes { byte_unit(largest) } else { (1.0, "") };
        let min_step = (high - low) / unit / max_ticks as f64;
        let step = if self.scale.is_bytes && min_step >= 1.0 {
            2f64.powf(min_step.log2().ceil())
        } else if self.scale.is_bytes && unit == 1.0 {
            1.0
        } else {
            round_step(min_step)
        };
        let mut ticks = Vec::new();
        let first_step = (low / unit / step).ceil();
        for index in 0..=max_ticks as u32 + 1 {
            let figure = (first_step + f64::from(index)) * step;
            if figure * unit > high * (1.0 + 1e-12_f64.copysign(high)) {
                break;
            }
            let text = |_: f64| match name {
                "" if largest >= MIN_SCIENTIFIC && step >= largest * 1e-3 && figure != 0.0 => {
                    scientific(figure)
                }
                "" => stepped(figure, step),
                name => format!("{} {name}", stepped(figure, step)),
            };
            self.push_tick(figure * unit, text, &mut ticks);
        }
        ticks
    }

    /// Adds the tick of `figure`, if it is on the axis and not at the same position as the last
    /// one.
    fn push_tick(&self, figure: f64, text: impl Fn(f64) -> String, ticks: &mut Vec<Tick>) {
        let Some(scaled) = scaled(figure, self.scale) else { return };
        let position = (scaled - self.low) / (self.high - self.low);
        let is_on_axis = (-TICK_TOLERANCE..=1.0 + TICK_TOLERANCE).contains(&position);
        let is_distinct =
            ticks.last().is_none_or(|previous| position > previous.position + POSITION_TOLERANCE);
        if is_on_axis && is_distinct {
            ticks.push(Tick { position: position.clamp(0.0, 1.0), label: text(figure) });
        }
    }
}

/// `figure` on the scale of the axis; `None` if it has no position.
fn scaled(figure: f64, scale: Scale) -> Option<f64> {
    if !figure.is_finite() {
        None
    } else if scale.is_logarithmic {
        (figure > 0.0).then(|| figure.log10())
    } else {
        Some(figure.clamp(-MAX_FIGURE, MAX_FIGURE))
    }
}

/// The smallest of 1, 2, 5, 10, 20, … times a power of ten that is at least `min_step`.
fn round_step(min_step: f64) -> f64 {
    if min_step.is_nan() || min_step <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(min_step.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|step| *step >= min_step * 0.999)
        .unwrap_or(min_step)
}

/// The largest unit of which `figure` has at least one: its size and name.
fn byte_unit(figure: f64) -> (f64, &'static str) {
    let mut unit = (1.0, "B");
    for (power, name) in UNITS.into_iter().enumerate() {
        let size = 1024f64.powi(power as i32);
        if figure >= size {
            unit = (size, name);
        }
    }
    unit
}

/// Formats `figure` with enough decimals to distinguish it from the next, `step` away.
fn stepped(figure: f64, step: f64) -> String {
    if figure == 0.0 {
        return "0".to_owned();
    }
    if figure.abs() >= 1e15 {
        return scientific(figure);
    }
    let decimals = (-step.log10() - 1e-9).ceil().max(0.0);
    if decimals > 9.0 {
        return scientific(figure);
    }
    fixed(figure, decimals as usize)
}

/// Formats with commas between thousands and a real minus sign.
fn fixed(figure: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", figure.abs());
    let (digits, fraction) =
        text.split_once('.').map_or((text.as_str(), None), |(digits, fraction)| (digits, Some(fraction)));
    let digits = digits.parse().map_or_else(|_| digits.to_owned(), thousands);
    let sign =
        if figure < 0.0 && text.bytes().any(|digit| (b'1'..=b'9').contains(&digit)) { "−" } else { "" };
    fraction.map_or_else(|| format!("{sign}{digits}"), |fraction| format!("{sign}{digits}.{fraction}"))
}

/// `5×10⁹`.
fn scientific(figure: f64) -> String {
    let text = format!("{figure:.2e}");
    let Some((digits, power)) = text.split_once('e') else { return text };
    let digits = digits.trim_end_matches('0').trim_end_matches('.').replace('-', "−");
    let superscript = power.chars().map(|c| match c.to_digit(10) {
        Some(digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(digit as usize).unwrap_or(c),
        None => '⁻',
    });
    let superscript: String = superscript.collect();
    if digits == "1" { format!("10{superscript}") } else { format!("{digits}×10{superscript}") }
}

/// Formats a single figure with three significant digits.
pub fn label(figure: f64, is_bytes: bool) -> String {
    if !figure.is_finite() {
        return "?".to_owned();
    }
    let (unit, name) = if is_bytes { byte_unit(figure.abs()) } else { (1.0, "") };
    let figure = figure / unit;
    let size = figure.abs();
    let text = if size == 0.0 {
        "0".to_owned()
    } else if !(1e-4..MIN_SCIENTIFIC).contains(&size) {
        scientific(figure)
    } else if size >= 100.0 {
        fixed(figure, 0)
    } else {
        // Three significant digits without trailing zeros.
        let decimals = (2.0 - size.log10().floor()).clamp(0.0, 7.0) as usize;
        let text = fixed(figure, decimals);
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    if is_bytes { format!("{text} {name}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(figures: &[f64], is_bytes: bool, is_logarithmic: bool) -> Vec<String> {
        let axis = Axis::over(figures.iter().copied(), Scale { is_bytes, is_logarithmic }, ZeroEnd::Free);
        axis.ticks(6).into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_round_in_what_they_count() {
        assert_eq!(texts(&[0.0, 10.0], false, false), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(texts(&[0.98, 1.02], false, false), ["0.98", "0.99", "1.00", "1.01", "1.02"]);
        assert_eq!(texts(&[0.0, 1.6e9], true, false), ["0 GiB", "0.5 GiB", "1.0 GiB", "1.5 GiB"]);
        let mib = 1_048_576.0;
        assert_eq!(
            texts(&[0.0, 700.0 * mib], true, false),
            ["0 MiB", "128 MiB", "256 MiB", "384 MiB", "512 MiB", "640 MiB"]
        );
        assert_eq!(
            texts(&[1.0, 1e6], false, true),
            ["1", "10", "100", "1,000", "10,000", "100,000", "1,000,000"]
        );
        assert_eq!(
            texts(&[1024.0, 64.0 * 1024.0], true, true),
            ["1 KiB", "2 KiB", "4 KiB", "8 KiB", "16 KiB", "32 KiB", "64 KiB"]
        );
        assert_eq!(texts(&[-3e9, 3e9], false, false), ["−2×10⁹", "0", "2×10⁹"]);
    }

    #[test]
    fn any_figures_have_a_few_ticks_in_order() {
        let worst: [&[f64]; 12] = [
            &[],
            &[f64::NAN, f64::INFINITY],
            &[0.0],
            &[5.0, 5.0],
            &[-1e-300, 1e-300],
            &[f64::MAX, f64::MIN],
            &[1e15, 1e15 + 1.0],
            &[1e9, 1e9 + 1e-3],
            &[5e-324],
            &[-7.0, -7.0],
            &[1.0, 1.0 + 1e-15],
            &[1e-300, 1e300],
        ];
        for figures in worst {
            for bits in 0..4 {
                let scale = Scale { is_bytes: bits & 1 > 0, is_logarithmic: bits & 2 > 0 };
                for zero_end in [ZeroEnd::Free, ZeroEnd::Forced] {
                    let axis = Axis::over(figures.iter().copied(), scale, zero_end);
                    for max_ticks in [0, 2, 6, 1000] {
                        let ticks = axis.ticks(max_ticks);
                        assert!(
                            ticks.len() <= max_ticks.clamp(2, 20) * 3,
                            "{figures:?} {scale:?}: {ticks:?}"
                        );
                        assert!(ticks.is_sorted_by(|tick, next| tick.position < next.position), "{ticks:?}");
                        let is_valid =
                            |tick: &Tick| (0.0..=1.0).contains(&tick.position) && tick.label.len() < 40;
                        assert!(ticks.iter().all(is_valid), "{ticks:?}");
                    }
                    assert!((0.0..=1.0).contains(&axis.base()));
                    let mut positions = figures.iter().filter_map(|&figure| axis.position(figure));
                    assert!(positions.all(|position| (0.0..=1.0).contains(&position)));
                }
            }
        }
    }

    #[test]
    fn figures_have_three_digits() {
        for (figure, text) in [
            (0.0, "0"),
            (1.25, "1.25"),
            (1.2, "1.2"),
            (-12.34, "−12.3"),
            (1234.5, "1,234"),
            (5e9, "5×10⁹"),
            (1e-9, "10⁻⁹"),
        ] {
            assert_eq!(label(figure, false), text, "{figure}");
        }
        assert_eq!(label(1_048_576.0 * 1.5, true), "1.5 MiB");
        assert_eq!(label(f64::NAN, false), "?");
    }
}
