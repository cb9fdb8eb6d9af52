//! Parts of a whole, a line each: name, size, share, and a bar as long as the share.

use super::paint::{Paint, Surface};
use super::text::{pad_left, pad_right};
use super::units::{bytes, whole_percent};

/// One part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its name.
    pub name: &'static str,
    /// The character its bar is drawn with.
    pub glyph: char,
    /// Its colour, if colour is on.
    pub paint: Paint,
    /// Its size.
    pub bytes: u64,
}

/// The lines, largest part first.
pub fn bars(segments: &[Segment], surface: Surface) -> Vec<String> {
    const NAME: usize = 12;
    const BEFORE_BAR: usize = 2 + NAME + 2 + 8 + 2 + 5 + 2;
    let whole = segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.bytes));
    let room = surface.columns.saturating_sub(BEFORE_BAR) as u128;
    let mut largest: Vec<&Segment> = segments.iter().collect();
    largest.sort_by_key(|segment| std::cmp::Reverse(segment.bytes));
    let line = |segment: &&Segment| {
        let doubled = u128::from(segment.bytes) * room * 2 / u128::from(whole.max(1));
        let bar = segment.glyph.to_string().repeat(doubled.div_ceil(2).min(room) as usize);
        let name = pad_right(segment.name, NAME);
        let size = pad_left(&bytes(segment.bytes), 8);
        let share = pad_left(&whole_percent(segment.bytes, whole), 5);
        let line = format!("  {name}  {size}  {share}  {}", surface.paint(segment.paint, &bar));
        line.trim_end().to_owned()
    };
    largest.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_share() {
        let segment = |name, glyph, bytes| Segment { name, glyph, paint: Paint::Faint, bytes };
        let plain = Surface { columns: 43, colour: false };
        let lines = bars(&[segment("live", '█', 1 << 20), segment("pinned", '▓', 3 << 20)], plain);
        assert_eq!(
            lines,
            ["  pinned        3.00 MiB   75 %  ▓▓▓▓▓▓▓▓", "  live          1.00 MiB   25 %  ███"]
        );
        assert_eq!(bars(&[segment("live", '█', 0)], plain), ["  live               0 B    0 %"]);
        let all = bars(&[segment("live", '█', u64::MAX), segment("pinned", '▓', 0)], plain);
        assert!(all[0].ends_with("  ██████████") && all[0].chars().count() == 43, "{all:?}");
    }
}
