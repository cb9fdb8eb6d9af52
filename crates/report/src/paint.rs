//! Colour, if there is any. Everything shown is complete without it: states have patterns and strata
//! have letters, so colour only helps. The palette is Okabe and Ito's, which people with any of the
//! common colour-vision deficiencies tell apart, in the 256 colours every current terminal has.

use strandline_inspect::facts::{State, Stratum};

/// Where a report goes: how wide it may be, and whether it may use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surface {
    /// Terminal columns that may be used.
    pub columns: usize,
    /// Whether escape sequences for colour may be written.
    pub colour: bool,
}

/// How something is emphasised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Bold: a headline.
    Strong,
    /// Dim: what may be skipped.
    Faint,
    /// One of the 256 colours, in the foreground.
    Colour(u8),
}

impl Surface {
    /// The narrowest report that is laid out; narrower terminals wrap it.
    pub const NARROWEST: usize = 80;
    /// The widest: longer lines are hard to read.
    pub const WIDEST: usize = 100;

    /// `text` as `paint` says, or as it is where there is no colour.
    pub fn paint(self, paint: Paint, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        match paint {
            Paint::Strong => format!("\x1b[1m{text}\x1b[0m"),
            Paint::Faint => format!("\x1b[2m{text}\x1b[0m"),
            Paint::Colour(colour) => format!("\x1b[38;5;{colour}m{text}\x1b[0m"),
        }
    }
}

/// The colour of a state.
pub fn state(state: State) -> Paint {
    Paint::Colour(match state {
        State::Live => 36,
        State::Stranded => 166,
        State::Pinned => 214,
        State::Evictable => 74,
        State::Unattributed => 245,
    })
}

/// The colour of a stratum.
pub fn stratum(stratum: Stratum) -> Paint {
    Paint::Colour(match stratum {
        Stratum::Values => 36,
        Stratum::Runtime => 175,
        Stratum::Collector => 227,
        Stratum::Allocator => 166,
        Stratum::Kernel => 74,
        Stratum::Program => 32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_colour_nothing_is_added() {
        let plain = Surface { columns: 80, colour: false };
        let coloured = Surface { columns: 80, colour: true };
        assert_eq!(plain.paint(Paint::Strong, "x"), "x");
        assert_eq!(coloured.paint(Paint::Strong, "x"), "\x1b[1mx\x1b[0m");
        assert_eq!(coloured.paint(state(State::Live), ""), "");
    }
}
