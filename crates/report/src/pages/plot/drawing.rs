//! Writes SVG. All text passes through one function that escapes it, all computed numbers through
//! one that rounds them.
//!
//! Not based on a drawing library: following the reader's theme needs `currentColor` and classes,
//! and tooltips need `<title>`; libraries that also draw bitmaps support neither.

use std::fmt;

use unicode_width::UnicodeWidthChar;

use crate::text::{clean_sentence, shorten};

/// The width of every plot, in pixels.
pub const WIDTH: f64 = 720.0;
/// The height of text, in pixels.
pub const TEXT_PIXELS: f64 = 13.0;

/// Identifies a plot file written by strandline.
pub const FILE_MARK: &str = "<!-- a plot by strandline -->";
/// Series colours that are distinguishable with the common colour-vision deficiencies and dark
/// enough for white. Elements of series also have a class, `s0` to `s7`, with which a page
/// overrides them in dark mode.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#00805d", "#b8447f", "#a86f00", "#3a96cc", "#6e7781", "#4b3f9e"];
/// Dash patterns of series lines, to distinguish them without colour.
const DASHES: [&str; 4] = ["none", "7 3", "2 3", "9 3 2 3"];

/// Alignment of text at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The text starts there.
    Start,
    /// The text is centred there.
    Middle,
    /// The text ends there.
    End,
}

/// Approximate width of `text` in pixels, for a font with wide letters.
pub fn text_width(text: &str) -> f64 {
    text.chars().map(advance).sum()
}

/// Approximate width of a character, in pixels.
fn advance(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '|' | '\'' | ' ' => 0.34 * TEXT_PIXELS,
        'f' | 'r' | 't' | '-' | '(' | ')' | '[' | ']' | '/' => 0.42 * TEXT_PIXELS,
        'm' | 'w' | 'M' | 'W' | '…' | '%' | '@' => 0.98 * TEXT_PIXELS,
        'A'..='Z' | '=' | '+' | '<' | '>' => 0.74 * TEXT_PIXELS,
        c if c.is_ascii() => 0.635 * TEXT_PIXELS,
        c => 0.68 * TEXT_PIXELS * c.width().unwrap_or(0) as f64,
    }
}

/// Shortens `text` in the middle with `…` to at most `max_pixels`.
pub fn fitted(text: &str, max_pixels: f64) -> String {
    // No letter is narrower than 0.3 of the height.
    let mut columns = (max_pixels / (0.3 * TEXT_PIXELS)).clamp(0.0, 400.0) as usize;
    let mut shortened = shorten(text, columns);
    while columns > 1 && text_width(&shortened) > max_pixels {
        columns = (columns * 19 / 20).min(columns - 1);
        shortened = shorten(text, columns);
    }
    shortened
}

/// A place in the picture, in pixels from its upper left corner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    pub x: f64,
    pub y: f64,
}

impl Position {
    pub const fn new(x: f64, y: f64) -> Self {
        Self { x, y }
    }

    /// The position to the right of this one by `x_offset`, and below it by `y_offset`.
    fn shifted(self, x_offset: f64, y_offset: f64) -> Self {
        Self { x: self.x + x_offset, y: self.y + y_offset }
    }
}

/// As paths and transformations have it.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", number(self.x), number(self.y))
    }
}

/// Size and opacity of a point.
#[derive(Clone, Copy, Debug)]
pub struct PointStyle {
    /// In pixels.
    pub radius: f64,
    /// From 0, invisible, to 1.
    pub opacity: f64,
}

/// An SVG picture under construction.
pub struct Drawing {
    elements: String,
}

impl Drawing {
    /// An empty drawing.
    pub fn new() -> Self {
        Self { elements: String::new() }
    }

    /// The complete SVG document of this height, with `name` as its accessible name.
    pub fn into_svg(self, height: f64, name: &str) -> String {
        let (name, elements, height) = (escaped(name), self.elements, number(height.round()));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" role=\"img\" fill=\"currentColor\" font-size=\"{TEXT_PIXELS}\" \
             font-family=\"system-ui, 'DejaVu Sans', sans-serif\"><title>{name}</title>\n{elements}</svg>\n"
        )
    }

    /// The same on a white background, with the mark of a strandline file.
    pub fn into_svg_on_white(self, height: f64, name: &str) -> String {
        let background = format!(
            "{FILE_MARK}\n<path d=\"M0 0H{WIDTH}V{}H0Z\" fill=\"#ffffff\"/>\n<g fill=\"#1b1f23\" color=\"#1b1f23\">\n",
            number(height.round())
        );
        Self { elements: background + &self.elements + "</g>\n" }.into_svg(height, name)
    }

    /// Text; its position is the middle of its line.
    pub fn text(&mut self, position: Position, anchor: Anchor, text: &str) {
        self.styled_text(position, anchor, "", text);
    }

    /// Bold text: the title.
    pub fn bold(&mut self, position: Position, anchor: Anchor, text: &str) {
        self.styled_text(position, anchor, " font-weight=\"600\"", text);
    }

    /// Less prominent text: labels of ticks and axes.
    pub fn muted(&mut self, position: Position, anchor: Anchor, text: &str) {
        self.styled_text(position, anchor, " fill-opacity=\"0.72\"", text);
    }

    /// Like `muted`, rotated by `degrees` around its position.
    pub fn rotated(&mut self, position: Position, anchor: Anchor, degrees: i32, text: &str) {
        let style = format!(" fill-opacity=\"0.72\" transform=\"rotate({degrees} {position})\"");
        self.styled_text(position, anchor, &style, text);
    }

    fn styled_text(&mut self, position: Position, anchor: Anchor, style: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        // From the middle of the line to the baseline.
        let Position { x, y } = position.shifted(0.0, TEXT_PIXELS * 0.36);
        let (x, y, text) = (number(x), number(y), escaped(text));
        self.elements +=
            &format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\"{style}>{text}</text>\n");
    }

    /// A light grid line behind the figures.
    pub fn grid(&mut self, from: Position, to: Position) {
        self.straight_line(from, to, "0.14");
    }

    /// The line of an axis.
    pub fn axis(&mut self, from: Position, to: Position) {
        self.straight_line(from, to, "0.55");
    }

    fn straight_line(&mut self, from: Position, to: Position, opacity: &str) {
        self.elements +=
            &format!("<path d=\"M{from}L{to}\" stroke=\"currentColor\" stroke-opacity=\"{opacity}\"/>\n");
    }

    /// The line of a series through `points`, interrupted at `None`.
    pub fn line(&mut self, series: usize, points: impl Iterator<Item = Option<Position>>) {
        let mut path = String::new();
        let mut is_continued = false;
        for point in points {
            if let Some(position) = point {
                path += &format!("{}{position}", if is_continued { 'L' } else { 'M' });
            }
            is_continued = point.is_some();
        }
        // Two series share a pattern, so that a plot of two has solid lines only. Series n and
        // n + 8 look the same.
        let (colour, dashes) = (colour(series), DASHES[series / 2 % DASHES.len()]);
        self.elements += &format!(
            "<path class=\"s{0} line\" d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
                 stroke-linejoin=\"round\" stroke-linecap=\"round\" stroke-dasharray=\"{dashes}\"/>\n",
            class(series)
        );
    }

    /// The filled area of the polygon `points`.
    pub fn area(&mut self, series: usize, points: impl Iterator<Item = Position>) {
        let mut path = String::new();
        for position in points {
            let command = if path.is_empty() { 'M' } else { 'L' };
            path += &format!("{command}{position}");
        }
        let (class, colour) = (class(series), colour(series));
        self.elements +=
            &format!("<path class=\"s{class}\" d=\"{path}Z\" fill=\"{colour}\" fill-opacity=\"0.18\"/>\n");
    }

    /// A bar between two corners, with a tooltip.
    pub fn bar(&mut self, series: usize, corner: Position, opposite: Position, tooltip: &str) {
        let (left, top) = (number(corner.x.min(opposite.x)), number(corner.y.min(opposite.y)));
        let width = number((opposite.x - corner.x).abs().max(0.5));
        let height = number((opposite.y - corner.y).abs());
        let (class, colour, tooltip) = (class(series), colour(series), escaped(tooltip));
        self.elements += &format!(
            "<rect class=\"s{class}\" x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" rx=\"1.5\" \
                 fill=\"{colour}\" fill-opacity=\"0.8\"><title>{tooltip}</title></rect>\n"
        );
    }

    /// An interval with a stroke at both ends: over a bar in the text colour, otherwise in that of
    /// the series.
    pub fn interval(&mut self, series: Option<usize>, from: Position, to: Position) {
        /// Half the length of the strokes.
        const HALF_CAP: f64 = 3.5;
        let is_horizontal = (to.x - from.x).abs() >= (to.y - from.y).abs();
        let (cap_x, cap_y) = if is_horizontal { (0.0, HALF_CAP) } else { (HALF_CAP, 0.0) };
        let cap = |end: Position| format!("M{}L{}", end.shifted(-cap_x, -cap_y), end.shifted(cap_x, cap_y));
        let (class, colour) = series.map_or(("i".to_owned(), "currentColor"), |series| {
            (format!("s{}", class(series)), colour(series))
        });
        let (first_cap, last_cap) = (cap(from), cap(to));
        self.elements += &format!(
            "<path class=\"{class} line\" d=\"M{from}L{to}{first_cap}{last_cap}\" fill=\"none\" \
                 stroke=\"{colour}\" stroke-width=\"1.5\"/>\n"
        );
    }

    /// A stroke across at the median, in the text colour for contrast with the samples around it.
    pub fn median(&mut self, from: Position, to: Position, tooltip: &str) {
        let tooltip = escaped(tooltip);
        self.elements += &format!(
            "<path d=\"M{from}L{to}\" stroke=\"currentColor\" stroke-width=\"2.5\">\
                 <title>{tooltip}</title></path>\n"
        );
    }

    /// A point in the shape of its series, with a tooltip unless that is empty.
    pub fn point(&mut self, series: usize, position: Position, style: PointStyle, tooltip: &str) {
        let (class, colour, radius) = (class(series), colour(series), style.radius);
        // A circle, square, triangle or diamond of about the same area.
        let shape = match series % 4 {
            0 => {
                let (left, r, d) = (position.shifted(-radius, 0.0), number(radius), number(2.0 * radius));
                format!("M{left}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0Z")
            }
            1 => {
                let (half, d) = (radius * 0.9, number(radius * 1.8));
                format!("M{}h{d}v{d}h-{d}Z", position.shifted(-half, -half))
            }
            2 => {
                let (half, height) = (number(radius * 1.15), number(radius * 2.0));
                let (top, base) = (position.shifted(0.0, radius * -1.2), number(radius * 2.3));
                format!("M{top}l{half} {height}h-{base}Z")
            }
            _ => {
                let (top, d) = (position.shifted(0.0, radius * -1.3), number(radius * 1.3));
                format!("M{top}l{d} {d}l-{d} {d}l-{d} -{d}Z")
            }
        };
        let opacity = style.opacity;
        self.elements += &format!(
            "<path class=\"s{class}\" d=\"{shape}\" fill=\"{colour}\" fill-opacity=\"{opacity:.2}\""
        );
        if tooltip.is_empty() {
            self.elements += "/>\n";
        } else {
            let tooltip = escaped(tooltip);
            self.elements += &format!("><title>{tooltip}</title></path>\n");
        }
    }
}

/// A length or coordinate in tenths of a pixel. One that is not finite, which SVG cannot express,
/// becomes 0.
fn number(pixels: f64) -> String {
    let mut text = format!("{:.1}", if pixels.is_finite() { pixels } else { 0.0 });
    if text.ends_with(".0") {
        text.truncate(text.len() - 2);
    }
    text
}

/// Number of the CSS class of a series.
fn class(series: usize) -> usize {
    series % COLOURS.len()
}

fn colour(series: usize) -> &'static str {
    COLOURS[class(series)]
}

/// Escapes text for use as content or attribute.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in clean_sentence(text).chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\'' => safe += "&#39;",
            // Characters that XML does not allow in any form.
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_and_finite() {
        assert_eq!([7.0, 3.12, -0.26, 1e3].map(number), ["7", "3.1", "-0.3", "1000"]);
        assert_eq!([f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(number), ["0", "0", "0"]);
        let mut drawing = Drawing::new();
        let style = PointStyle { radius: f64::NAN, opacity: 1.0 };
        (0..4).for_each(|series| drawing.point(series, Position::new(f64::NAN, 1.0), style, ""));
        assert!(!drawing.into_svg(10.0, "").contains("NaN"));
    }
}
