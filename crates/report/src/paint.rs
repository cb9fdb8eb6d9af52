//! Optional colour. Output is complete without it: states have patterns and strata have letters.
//! The palette is that of Okabe and Ito, distinguishable with the common colour-vision
//! deficiencies, in the 256 colours that every current terminal has.

use strandline_inspect::facts::{HolderKind, State};

/// The output device: the available width, and whether colour is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surface {
    /// Terminal columns that may be used.
    pub columns: usize,
    /// Whether escape sequences for colour may be written.
    pub has_colour: bool,
}

/// A kind of emphasis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Bold: a headline.
    Strong,
    /// Dim: less important text.
    Faint,
    /// One of the 256 colours, in the foreground.
    Colour(u8),
}

impl Surface {
    /// The minimum width of the layout; narrower terminals wrap it.
    pub const MIN_COLUMNS: usize = 80;
    /// The maximum width: longer lines are hard to read.
    pub const MAX_COLUMNS: usize = 120;

    /// `text` with the escape sequences of `paint`, or unchanged without colour.
    pub fn paint(self, paint: Paint, text: &str) -> String {
        if !self.has_colour || text.is_empty() {
            return text.to_owned();
        }
        match paint {
            Paint::Strong => format!("\x1b[1m{text}\x1b[0m"),
            Paint::Faint => format!("\x1b[2m{text}\x1b[0m"),
            Paint::Colour(colour) => format!("\x1b[38;5;{colour}m{text}\x1b[0m"),
        }
    }
}

/// Bluish green.
pub(crate) const GREEN: Paint = Paint::Colour(36);
pub(crate) const VERMILLION: Paint = Paint::Colour(166);
pub(crate) const ORANGE: Paint = Paint::Colour(214);
pub(crate) const GREY: Paint = Paint::Colour(245);
const SKY_BLUE: Paint = Paint::Colour(74);
const BLUE: Paint = Paint::Colour(32);
/// Reddish purple.
const PURPLE: Paint = Paint::Colour(175);
const YELLOW: Paint = Paint::Colour(227);

/// The colour of a state.
pub fn state(state: State) -> Paint {
    match state {
        State::Live => GREEN,
        State::Stranded => VERMILLION,
        State::Pinned => ORANGE,
        State::Evictable => SKY_BLUE,
        State::Unattributed => GREY,
    }
}

/// The colour of a stratum.
pub fn stratum(stratum: HolderKind) -> Paint {
    match stratum {
        HolderKind::Values => GREEN,
        HolderKind::Runtime => PURPLE,
        HolderKind::Collector => YELLOW,
        HolderKind::Allocator => VERMILLION,
        HolderKind::Kernel => SKY_BLUE,
        HolderKind::Program => BLUE,
    }
}

/// `text` without its escape sequences of colour.
#[cfg(test)]
pub fn without_colour(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default();
    parts.fold(first.to_owned(), |plain, part| plain + part.split_once('m').unwrap().1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_colour_nothing_is_added() {
        let plain = Surface { columns: 80, has_colour: false };
        let coloured = Surface { columns: 80, has_colour: true };
        assert_eq!(plain.paint(Paint::Strong, "x"), "x");
        assert_eq!(coloured.paint(Paint::Strong, "x"), "\x1b[1mx\x1b[0m");
        assert_eq!(coloured.paint(state(State::Live), ""), "");
    }
}
