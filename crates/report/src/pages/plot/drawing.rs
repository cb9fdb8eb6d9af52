//! Writes SVG. All text passes through one function that escapes it, all numbers through formats
//! that round them.
//!
//! Not based on a drawing library: following the reader's theme needs `currentColor` and classes,
//! and tooltips need `<title>`; libraries that also draw bitmaps support neither.

use std::fmt::Write;

use unicode_width::UnicodeWidthChar;

use crate::text::{clean_sentence, shorten};

/// The width of every plot, in pixels.
pub const WIDTH: f64 = 720.0;
/// The height of text, in pixels.
pub const TEXT: f64 = 13.0;

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
pub fn pixels(text: &str) -> f64 {
    text.chars().map(advance).sum()
}

/// Approximate width of a character, in pixels.
fn advance(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '|' | '\'' | ' ' => 0.34 * TEXT,
        'f' | 'r' | 't' | '-' | '(' | ')' | '[' | ']' | '/' => 0.42 * TEXT,
        'm' | 'w' | 'M' | 'W' | '…' | '%' | '@' => 0.98 * TEXT,
        'A'..='Z' | '=' | '+' | '<' | '>' => 0.74 * TEXT,
        c if c.is_ascii() => 0.635 * TEXT,
        c => 0.68 * TEXT * c.width().unwrap_or(0) as f64,
    }
}

/// Shortens `text` in the middle with `…` to at most `max_pixels`.
pub fn fitted(text: &str, max_pixels: f64) -> String {
    // No letter is narrower than 0.3 of the height.
    let mut columns = (max_pixels / (0.3 * TEXT)).clamp(0.0, 400.0) as usize;
    let mut shortened = shorten(text, columns);
    while columns > 1 && pixels(&shortened) > max_pixels {
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

/// An SVG picture under construction.
pub struct Drawing {
    /// The elements so far.
    elements: String,
}

impl Drawing {
    /// An empty drawing.
    pub fn new() -> Self {
        Self { elements: String::new() }
    }

    /// The complete SVG document of this height, with `name` as its accessible name.
    pub fn finished(self, height: f64, name: &str) -> String {
        let (name, elements) = (escaped(name), self.elements);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
             height=\"{height:.0}\" role=\"img\" fill=\"currentColor\" font-size=\"{TEXT}\" \
             font-family=\"system-ui, 'DejaVu Sans', sans-serif\"><title>{name}</title>\n{elements}</svg>\n"
        )
    }

    /// The same on a white background, with the mark of a strandline file.
    pub fn finished_on_white(self, height: f64, name: &str) -> String {
        let background = format!(
            "{FILE_MARK}\n<path d=\"M0 0H{WIDTH}V{height:.0}H0Z\" fill=\"#ffffff\"/>\n<g fill=\"#1b1f23\" color=\"#1b1f23\">\n"
        );
        Self { elements: background + &self.elements + "</g>\n" }.finished(height, name)
    }

    /// Adds elements.
    fn put(&mut self, elements: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.elements.write_fmt(elements);
    }

    /// Text at (x, y), the middle of its line.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        self.styled_text(x, y, anchor, "", text);
    }

    /// Bold text.
    pub fn bold(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        self.styled_text(x, y, anchor, " font-weight=\"600\"", text);
    }

    /// Less prominent text: labels of ticks and axes.
    pub fn muted(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        self.styled_text(x, y, anchor, " fill-opacity=\"0.72\"", text);
    }

    /// Like `muted`, rotated by `degrees` around its position.
    pub fn rotated(&mut self, (x, y): (f64, f64), anchor: Anchor, degrees: i32, text: &str) {
        let style = format!(" fill-opacity=\"0.72\" transform=\"rotate({degrees} {x:.1} {y:.1})\"");
        self.styled_text(x, y, anchor, &style, text);
    }

    fn styled_text(&mut self, x: f64, y: f64, anchor: Anchor, style: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        // From the middle of the line to the baseline.
        let (text, y) = (escaped(text), y + TEXT * 0.36);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{style}>{text}</text>\n"
        ));
    }

    /// A light grid line behind the figures.
    pub fn grid(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.rule(from, to, "0.14");
    }

    /// The line of an axis.
    pub fn edge(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.rule(from, to, "0.55");
    }

    fn rule(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), opacity: &str) {
        self.put(format_args!(
            "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"currentColor\" stroke-opacity=\"{opacity}\"/>\n"
        ));
    }

    /// The line of a series through `points`, interrupted at `None`.
    pub fn line(&mut self, series: usize, points: impl Iterator<Item = Option<Position>>) {
        let mut path = String::new();
        let mut is_continued = false;
        for point in points {
            if let Some(Position { x, y }) = point {
                let _ = write!(path, "{}{x:.1} {y:.1}", if is_continued { 'L' } else { 'M' });
            }
            is_continued = point.is_some();
        }
        let (colour, dashes) = (colour(series), DASHES[series / 2 % DASHES.len()]);
        self.put(format_args!(
            "<path class=\"s{0} line\" d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-linejoin=\"round\" stroke-linecap=\"round\" stroke-dasharray=\"{dashes}\"/>\n",
            class(series)
        ));
    }

    /// The filled area of the polygon `points`.
    pub fn area(&mut self, series: usize, points: impl Iterator<Item = Position>) {
        let mut path = String::new();
        for Position { x, y } in points {
            let _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { 'M' } else { 'L' });
        }
        let (class, colour) = (class(series), colour(series));
        self.put(format_args!(
            "<path class=\"s{class}\" d=\"{path}Z\" fill=\"{colour}\" fill-opacity=\"0.18\"/>\n"
        ));
    }

    /// A bar between two corners, with a tooltip.
    pub fn bar(&mut self, series: usize, (x1, y1): (f64, f64), (x2, y2): (f64, f64), tooltip: &str) {
        let (left, top) = (x1.min(x2), y1.min(y2));
        let (width, height) = ((x2 - x1).abs().max(0.5), (y2 - y1).abs());
        let (class, colour, tooltip) = (class(series), colour(series), escaped(tooltip));
        self.put(format_args!(
            "<rect class=\"s{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"1.5\" \
             fill=\"{colour}\" fill-opacity=\"0.8\"><title>{tooltip}</title></rect>\n"
        ));
    }

    /// An interval with a stroke at both ends: over a bar in the text colour, otherwise in that of
    /// the series.
    pub fn interval(&mut self, series: Option<usize>, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        /// Half the length of the strokes.
        const CAP: f64 = 3.5;
        let (cap_x, cap_y) = if (x2 - x1).abs() >= (y2 - y1).abs() { (0.0, CAP) } else { (CAP, 0.0) };
        let cap =
            |x: f64, y: f64| format!("M{:.1} {:.1}L{:.1} {:.1}", x - cap_x, y - cap_y, x + cap_x, y + cap_y);
        let (class, colour) = series.map_or(("i".to_owned(), "currentColor"), |series| {
            (format!("s{}", class(series)), colour(series))
        });
        let (first_cap, last_cap) = (cap(x1, y1), cap(x2, y2));
        self.put(format_args!(
            "<path class=\"{class} line\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}{first_cap}{last_cap}\" fill=\"none\" \
             stroke=\"{colour}\" stroke-width=\"1.5\"/>\n"
        ));
    }

    /// A stroke across at the median, in the text colour for contrast with the samples around it.
    pub fn median(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), tooltip: &str) {
        let tooltip = escaped(tooltip);
        self.put(format_args!(
            "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"currentColor\" stroke-width=\"2.5\">\
             <title>{tooltip}</title></path>\n"
        ));
    }

    /// A point in the shape of its series, with a tooltip unless that is empty.
    pub fn point(&mut self, series: usize, (x, y): (f64, f64), radius: f64, opacity: f64, tooltip: &str) {
        let (class, colour, r) = (class(series), colour(series), radius);
        // A circle, square, triangle or diamond of about the same area.
        let shape = match series % 4 {
            0 => format!("M{:.1} {y:.1}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0Z", x - r, d = 2.0 * r),
            1 => format!("M{:.1} {:.1}h{d:.1}v{d:.1}h-{d:.1}Z", x - r * 0.9, y - r * 0.9, d = r * 1.8),
            2 => format!("M{x:.1} {:.1}l{:.1} {:.1}h-{:.1}Z", y - r * 1.2, r * 1.15, r * 2.0, r * 2.3),
            _ => format!(
                "M{x:.1} {:.1}l{d:.1} {d:.1}l-{d:.1} {d:.1}l-{d:.1} -{d:.1}Z",
                y - r * 1.3,
                d = r * 1.3
            ),
        };
        self.put(format_args!(
            "<path class=\"s{class}\" d=\"{shape}\" fill=\"{colour}\" fill-opacity=\"{opacity}\""
        ));
        if tooltip.is_empty() {
            self.elements += "/>\n";
        } else {
            let tooltip = escaped(tooltip);
            self.put(format_args!("><title>{tooltip}</title></path>\n"));
        }
    }
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
