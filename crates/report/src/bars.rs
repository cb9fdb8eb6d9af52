//! Parts of a whole, a line each: name, size, share, and a bar as long as the share.

use super::paint::{Paint, Surface};
use super::text::{pad_left, pad_right};
use super::units::{bytes, whole_percent};

/// A part of the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub name: &'static str,
    /// The character its bar is drawn with.
    pub glyph: char,
    pub paint: Paint,
    pub bytes: u64,
}

/// Width of the longest name, `unattributed`.
const NAME_COLUMNS: usize = 12;
/// Maximum width of a size: `96.0 MiB`.
const SIZE_COLUMNS: usize = 8;
/// Width of a share: `100 %`.
const SHARE_COLUMNS: usize = 5;
/// Spaces before each of the four columns.
const GAP: usize = 2;

/// The lines, largest part first.
pub fn bars(segments: &[Segment], surface: Surface) -> Vec<String> {
    let whole_bytes = segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.bytes));
    let bar_start = NAME_COLUMNS + SIZE_COLUMNS + SHARE_COLUMNS + 4 * GAP;
    let max_bar_columns = surface.columns.saturating_sub(bar_start) as u128;
    let mut largest: Vec<&Segment> = segments.iter().collect();
    largest.sort_by_key(|segment| std::cmp::Reverse(segment.bytes));
    let line = |segment: &&Segment| {
        // Rounded to the nearest column.
        let half_columns = u128::from(segment.bytes) * max_bar_columns * 2 / u128::from(whole_bytes.max(1));
        let bar_columns = half_columns.div_ceil(2).min(max_bar_columns) as usize;
        let bar = segment.glyph.to_string().repeat(bar_columns);
        let part = part_text(segment.name, NAME_COLUMNS, segment.bytes, whole_bytes);
        format!("{part}  {}", surface.paint(segment.paint, &bar)).trim_end().to_owned()
    };
    largest.iter().map(line).collect()
}

/// The name of a part, its size, and its share of the whole.
pub fn part_text(name: &str, name_columns: usize, part_bytes: u64, whole_bytes: u64) -> String {
    let name = pad_right(name, name_columns);
    let size = pad_left(&bytes(part_bytes), SIZE_COLUMNS);
    let share = pad_left(&whole_percent(part_bytes, whole_bytes), SHARE_COLUMNS);
    format!("  {name}  {size}  {share}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_share() {
        let segment = |name, glyph, bytes| Segment { name, glyph, paint: Paint::Faint, bytes };
        let plain = Surface { columns: 43, has_colour: false };
        let lines = bars(&[segment("live", '█', 1 << 20), segment("pinned", '▓', 3 << 20)], plain);
        assert_eq!(
            lines,
            ["  pinned        3.00 MiB   75 %  ▓▓▓▓▓▓▓▓", "  live          1.00 MiB   25 %  ███"]
        );
        assert_eq!(bars(&[segment("live", '█', 0)], plain), ["  live               0 B    0 %"]);
        let lines = bars(&[segment("live", '█', u64::MAX), segment("pinned", '▓', 0)], plain);
        assert!(lines[0].ends_with("  ██████████") && lines[0].chars().count() == 43, "{lines:?}");
    }
}
