//! Stacked bars: a whole divided into parts; each nonzero part gets at least one cell.

use super::paint::{Paint, Surface};

/// One part of a bar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Name of the part in the legend.
    pub name: &'static str,
    /// The character it is drawn with, to distinguish it from its neighbours without colour.
    pub glyph: char,
    /// Its colour, if colour is on.
    pub paint: Paint,
    /// Its size.
    pub bytes: u64,
}

/// Distributes `cells` among the parts: in proportion, remainders to the largest fractions, and at
/// least one cell for each nonzero part. The result adds up to `cells` unless all parts are zero.
pub fn apportion(parts: &[u64], cells: usize) -> Vec<usize> {
    let total: u128 = parts.iter().map(|&part| u128::from(part)).sum();
    if total == 0 {
        return vec![0; parts.len()];
    }
    let cells_wide = cells as u128;
    let mut given: Vec<usize> =
        parts.iter().map(|&part| (u128::from(part) * cells_wide / total) as usize).collect();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(u128::from(parts[i]) * cells_wide % total));
    let mut left = cells - given.iter().sum::<usize>();
    for &index in order.iter().filter(|&&i| parts[i] > 0) {
        if left == 0 {
            break;
        }
        given[index] += 1;
        left -= 1;
    }
    for index in 0..parts.len() {
        if parts[index] == 0 || given[index] > 0 {
            continue;
        }
        // Take it from the widest part, where it matters least.
        let widest = (0..parts.len()).max_by_key(|&i| given[i]).filter(|&i| given[i] > 1);
        let Some(widest) = widest else { break };
        given[widest] -= 1;
        given[index] = 1;
    }
    given
}

/// The bar, `cells` wide, padded with spaces.
pub fn bar(segments: &[Segment], cells: usize, surface: Surface) -> String {
    let parts: Vec<u64> = segments.iter().map(|segment| segment.bytes).collect();
    let given = apportion(&parts, cells);
    let drawn: usize = given.iter().sum();
    let mut line = String::new();
    for (segment, count) in segments.iter().zip(given) {
        let run: String = std::iter::repeat_n(segment.glyph, count).collect();
        line += &surface.paint(segment.paint, &run);
    }
    line + &" ".repeat(cells - drawn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_add_up_and_small_parts_are_seen() {
        assert_eq!(apportion(&[50, 50], 10), [5, 5]);
        assert_eq!(apportion(&[1, 999_999, 0], 10), [1, 9, 0]);
        assert_eq!(apportion(&[1, 1, 1], 10).iter().sum::<usize>(), 10);
        assert_eq!(apportion(&[0, 0], 10), [0, 0]);
        assert_eq!(apportion(&[u64::MAX, u64::MAX, u64::MAX], 9), [3, 3, 3]);
        assert_eq!(apportion(&[1, 1, 1, 1], 2).iter().sum::<usize>(), 2);
    }

    #[test]
    fn a_bar_is_as_wide_as_asked() {
        let segment = |glyph, bytes| Segment { name: "x", glyph, paint: Paint::Faint, bytes };
        let plain = Surface { columns: 80, colour: false };
        assert_eq!(bar(&[segment('█', 3), segment('░', 1)], 8, plain), "██████░░");
        assert_eq!(bar(&[segment('█', 0)], 4, plain), "    ");
    }
}
