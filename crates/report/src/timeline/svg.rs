//! The timeline as a picture for print or for an issue: SVG, in which text remains text, and PNG.
//!
//! Both use the same drawing code. The background is always light, because the context is unknown.

mod ticks;

use std::sync::OnceLock;

use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{PathElement, Polygon, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, IntoFont, RGBColor, ShapeStyle, TextStyle, WHITE, register_font};

use self::ticks::{byte_ticks, time_label, time_ticks};
use super::choice::{bytes_of, ending, largest, process_name, seconds_of, title};
use super::html::MAX_RECORDINGS;
use super::{Point, Timeline};
use crate::pages::plot::{Position, label};
use crate::template::DrawError;
use crate::text::{clean_sentence, shorten};

/// Width of the picture, in pixels, as all lengths here.
const WIDTH: u32 = 1200;
const HEIGHT: u32 = 600;
/// Supersampling factor of a PNG, for smooth lines and letters.
const SUPERSAMPLING: u32 = 3;
/// Height of the two lines above the plot.
const HEADING_HEIGHT: i32 = 52;
/// Maximum number of rows of mark labels.
const MAX_LABEL_ROWS: usize = 3;
const LABEL_ROW_HEIGHT: i32 = 20;
/// Height of the labels below the plot.
const X_AXIS_HEIGHT: i32 = 36;
/// Width of the labels left of the plot.
const Y_AXIS_WIDTH: i32 = 92;
const LEGEND_HEIGHT: i32 = 30;
const MARGIN: i32 = 16;
/// Minimum width of a name of the legend.
const MIN_NAME_PIXELS: f64 = 90.0;
/// Length of the line of a curve in the legend.
const LEGEND_LINE: f64 = 22.0;
/// Space between that line and the name; there is four times as much after the name.
const LEGEND_GAP: f64 = 6.0;
/// Maximum width of a process's name, in columns of a terminal.
const MAX_NAME_COLUMNS: usize = 50;
/// Maximum width of a recording's or mark's name, in columns of a terminal.
const MAX_LABEL_COLUMNS: usize = 28;

/// Colour of the heading and the legend.
const TEXT_COLOUR: RGBColor = RGBColor(27, 31, 35);
/// Colour of axes, their labels, and marks.
const MUTED_COLOUR: RGBColor = RGBColor(87, 96, 106);
const GRID_COLOUR: RGBColor = RGBColor(227, 230, 234);
/// Colours of the recordings: the palette of Okabe and Ito without black and yellow, which is too
/// light on white; then the grey and the violet of the page's lines.
const COLOURS: [RGBColor; MAX_RECORDINGS] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(110, 119, 129),
    RGBColor(75, 63, 158),
];
/// The font embedded in PNG pictures; SVG uses the reader's.
const FONT: &[u8] = include_bytes!("assets/font/DejaVuSans-subset.ttf");
const FAMILY: &str = "sans-serif";
/// Size of the letters of the title.
const HEADING_SIZE: i32 = 20;
/// Size of all other letters.
const TEXT_SIZE: i32 = 15;

/// The result of drawing on the backend `DB`.
type DrawResult<DB> = Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

/// The timeline of `timelines` as SVG, several overlaid from their starts.
///
/// # Errors
/// Fails if the font or the picture cannot be made.
pub fn svg(timelines: &[Timeline]) -> Result<String, DrawError> {
    register_font_once()?;
    let mut text = String::new();
    draw(SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)), 1, timelines)?;
    Ok(text)
}

/// The same as the bytes of a PNG file.
///
/// # Errors
/// As [`svg`].
pub fn png(timelines: &[Timeline]) -> Result<Vec<u8>, DrawError> {
    register_font_once()?;
    let (fine_width, fine_height) = (WIDTH * SUPERSAMPLING, HEIGHT * SUPERSAMPLING);
    let mut fine_pixels = vec![255u8; fine_width as usize * fine_height as usize * CHANNELS];
    let backend = BitMapBackend::with_buffer(&mut fine_pixels, (fine_width, fine_height));
    draw(backend, SUPERSAMPLING as i32, timelines)?;
    let pixels = averaged(&fine_pixels, fine_width as usize);
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, WIDTH, HEIGHT);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(DrawError::new)?;
    writer.write_image_data(&pixels).map_err(DrawError::new)?;
    writer.finish().map_err(DrawError::new)?;
    Ok(file)
}

/// Draws the picture on a backend of `scale` times its resolution.
fn draw<DB: DrawingBackend>(backend: DB, scale: i32, timelines: &[Timeline]) -> Result<(), DrawError> {
    let area = backend.into_drawing_area();
    picture(&Pen { area: &area, scale }, timelines).map_err(DrawError::new)?;
    area.present().map_err(DrawError::new)
}

/// Bytes of a pixel: red, green, blue.
const CHANNELS: usize = 3;

/// Averages each block of `SUPERSAMPLING` by `SUPERSAMPLING` pixels.
fn averaged(fine_pixels: &[u8], fine_width: usize) -> Vec<u8> {
    let factor = SUPERSAMPLING as usize;
    let mut pixels = Vec::with_capacity(fine_pixels.len() / (factor * factor));
    for rows in fine_pixels.chunks_exact(fine_width * CHANNELS * factor) {
        for x in 0..fine_width / factor {
            for channel in 0..CHANNELS {
                let block = (0..factor * factor).map(|index| {
                    let fine_index = (index / factor) * fine_width + x * factor + index % factor;
                    u32::from(rows.get(fine_index * CHANNELS + channel).copied().unwrap_or(255))
                });
                pixels.push((block.sum::<u32>() / (SUPERSAMPLING * SUPERSAMPLING)) as u8);
            }
        }
    }
    pixels
}

/// Registers the font with the drawing library, once.
fn register_font_once() -> Result<(), DrawError> {
    static IS_REGISTERED: OnceLock<bool> = OnceLock::new();
    let is_registered = *IS_REGISTERED.get_or_init(|| register_font(FAMILY, FontStyle::Normal, FONT).is_ok());
    if is_registered { Ok(()) } else { Err(DrawError("its font cannot be read".to_owned())) }
}

/// One line of the plot.
struct Curve {
    name: String,
    colour: RGBColor,
    width: u32,
    points: Vec<Figure>,
    /// The band between lowest and highest as a polygon; empty if they are equal.
    band: Vec<Figure>,
}

/// A size at a time.
#[derive(Clone, Copy)]
struct Figure {
    seconds: f64,
    bytes: f64,
}

impl Figure {
    fn new(at_us: u64, kib: u64) -> Self {
        Self { seconds: seconds_of(at_us), bytes: bytes_of(kib) as f64 }
    }
}

impl Curve {
    fn new(name: String, colour: RGBColor, width: u32, points: &[Point], kib: fn(&Point) -> u64) -> Self {
        let points = points.iter().map(|point| Figure::new(point.at_us, kib(point))).collect();
        Self { name, colour, width, points, band: Vec::new() }
    }

    /// The same with the band of RSS.
    fn with_band(mut self, points: &[Point]) -> Self {
        if points.iter().any(|point| point.rss_low_kib != point.rss_high_kib) {
            let highs = points.iter().map(|point| Figure::new(point.at_us, point.rss_high_kib));
            let lows = points.iter().rev().map(|point| Figure::new(point.at_us, point.rss_low_kib));
            self.band = highs.chain(lows).collect();
        }
        self
    }
}

/// RSS and anonymous memory of the largest process; for several recordings, RSS of the largest
/// process of each.
fn plot_curves(timelines: &[Timeline]) -> Vec<Curve> {
    let mut curves = Vec::new();
    for (index, timeline) in timelines.iter().enumerate() {
        let Some(process) = largest(timeline).first().and_then(|&index| timeline.processes.get(index)) else {
            continue;
        };
        let points = process.series.points();
        let colour = COLOURS[index % COLOURS.len()];
        let name = match timelines {
            [_] => format!("RSS of {}", process_name(process, MAX_NAME_COLUMNS)),
            _ => format!("RSS, {}", shorten(&clean_sentence(&timeline.name), MAX_LABEL_COLUMNS)),
        };
        let rss = Curve::new(name, colour, 2, points, |point| point.sample.rss_kib).with_band(points);
        if timelines.len() == 1 {
            let anonymous = |point: &Point| point.sample.anonymous_kib;
            curves.push(Curve::new("anonymous".to_owned(), COLOURS[1], 1, points, anonymous));
        }
        curves.push(rss);
    }
    curves
}

/// Draws in picture pixels on an area with `scale` times the resolution.
struct Pen<'a, DB: DrawingBackend> {
    area: &'a DrawingArea<DB, Shift>,
    scale: i32,
}

impl<DB: DrawingBackend> Pen<'_, DB> {
    fn scaled(&self, position: Position) -> (i32, i32) {
        let scaled = |value: f64| (value * f64::from(self.scale)).round() as i32;
        (scaled(position.x), scaled(position.y))
    }

    fn line(&self, points: &[Position], style: impl Into<ShapeStyle>, width: u32) -> DrawResult<DB> {
        let mut style = style.into();
        style.stroke_width = width * self.scale.unsigned_abs();
        let points: Vec<(i32, i32)> = points.iter().map(|&point| self.scaled(point)).collect();
        self.area.draw(&PathElement::new(points, style))
    }

    /// Fills a polygon.
    fn band(&self, points: &[Position], colour: RGBColor) -> DrawResult<DB> {
        let points: Vec<(i32, i32)> = points.iter().map(|&point| self.scaled(point)).collect();
        self.area.draw(&Polygon::new(points, colour.mix(0.25)))
    }

    /// Writes `text`; `position` is the left end, right end or middle (by `anchor`) of its centre
    /// line.
    fn text(
        &self,
        text: String,
        position: Position,
        size: i32,
        colour: RGBColor,
        anchor: HPos,
    ) -> DrawResult<DB> {
        let style: TextStyle<'_> = (FAMILY, size * self.scale).into_font().color(&colour);
        let style = style.pos(Pos::new(anchor, VPos::Center));
        self.area.draw(&Text::new(text, self.scaled(position), style))
    }
}

/// Approximate width of `text` in pixels, as fonts differ.
fn text_width(text: &str, size: i32) -> i32 {
    let measured = (FAMILY, size).into_font().box_size(text).map(|(width, _)| i32::try_from(width));
    // No letter is wider than high.
    measured.ok().and_then(Result::ok).unwrap_or_else(|| text.chars().count() as i32 * size)
}

/// Shortens `text` to at most `max_pixels`.
fn fitted(text: &str, size: i32, max_pixels: i32) -> String {
    /// More columns than any width has.
    const MAX_COLUMNS: usize = 200;
    /// A shorter text would say nothing.
    const MIN_COLUMNS: usize = 4;
    let mut columns = MAX_COLUMNS;
    let mut shortened = shorten(text, columns);
    while columns > MIN_COLUMNS && text_width(&shortened, size) > max_pixels {
        columns = columns * 9 / 10;
        shortened = shorten(text, columns);
    }
    shortened
}

fn picture<DB: DrawingBackend>(pen: &Pen<'_, DB>, timelines: &[Timeline]) -> DrawResult<DB> {
    pen.area.fill(&WHITE)?;
    draw_heading(pen, timelines)?;
    let curves = plot_curves(timelines);
    let mut frame = Frame::new(timelines, &curves);
    let labels = mark_labels(&frame, timelines);
    let last_row = labels.iter().filter_map(|label| label.place).map(|place| place.row).max();
    frame.top += f64::from(last_row.map_or(0, |row| row + 1) * LABEL_ROW_HEIGHT);
    draw_axes(pen, &frame)?;
    for curve in &curves {
        if !curve.band.is_empty() {
            let band: Vec<Position> = curve.band.iter().map(|&figure| frame.at(figure)).collect();
            pen.band(&band, curve.colour)?;
        }
        pen.line(&smooth(curve.points.iter().map(|&figure| frame.at(figure))), curve.colour, curve.width)?;
    }
    for label in &labels {
        draw_mark(pen, &frame, label)?;
    }
    draw_legend(pen, &curves)
}

/// Draws the title, and how the recording ended.
fn draw_heading<DB: DrawingBackend>(pen: &Pen<'_, DB>, timelines: &[Timeline]) -> DrawResult<DB> {
    let subtitle = match timelines {
        [timeline] => ending(timeline),
        _ => "each from its own start".to_owned(),
    };
    let (left, max_width) = (f64::from(MARGIN), WIDTH as i32 - 2 * MARGIN);
    let title = fitted(&title(timelines), HEADING_SIZE, max_width);
    pen.text(title, Position::new(left, 20.0), HEADING_SIZE, TEXT_COLOUR, HPos::Left)?;
    let subtitle = fitted(&subtitle, TEXT_SIZE, max_width);
    pen.text(subtitle, Position::new(left, 43.0), TEXT_SIZE, MUTED_COLOUR, HPos::Left)
}

/// Removes points that nearly coincide with the previous one and would make the line jagged. Keeps
/// the last point before a step, so that level parts are drawn level.
fn smooth(points: impl Iterator<Item = Position>) -> Vec<Position> {
    /// Points that are nearer to the previous one are removed.
    const MIN_DISTANCE: f64 = 1.5;
    /// A larger distance to the previous point is a step.
    const STEP_DISTANCE: f64 = 3.0;
    let mut smoothed: Vec<Position> = Vec::new();
    let mut skipped = None;
    for point in points {
        let distance = smoothed
            .last()
            .map_or(f64::INFINITY, |previous| (point.x - previous.x).hypot(point.y - previous.y));
        if distance < MIN_DISTANCE {
            skipped = Some(point);
            continue;
        }
        smoothed.extend(skipped.take().filter(|_| distance > STEP_DISTANCE));
        smoothed.push(point);
    }
    smoothed.extend(skipped);
    smoothed
}

/// The size at the top of the plot is at least this.
const MIN_TOP_BYTES: f64 = 1024.0;
/// The size at the top of the plot is this many times the largest.
const HEADROOM_FACTOR: f64 = 1.04;
/// The time at the right edge of the plot is at least this.
const MIN_END_SECONDS: f64 = 1e-3;

/// The plot rectangle in pixels, and the values at its edges.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    /// The time at the right edge; that at the left edge is 0.
    end_seconds: f64,
    /// The size at the top; that at the bottom is 0.
    top_bytes: f64,
}

impl Frame {
    fn new(timelines: &[Timeline], curves: &[Curve]) -> Self {
        let figures = curves.iter().flat_map(|curve| curve.points.iter().chain(&curve.band));
        let max_bytes = figures.map(|figure| figure.bytes).fold(MIN_TOP_BYTES, f64::max);
        let ends = timelines.iter().map(|timeline| seconds_of(timeline.last_us()));
        Self {
            left: f64::from(Y_AXIS_WIDTH),
            right: f64::from(WIDTH) - f64::from(MARGIN),
            top: f64::from(HEADING_HEIGHT),
            bottom: f64::from(HEIGHT) - f64::from(LEGEND_HEIGHT + X_AXIS_HEIGHT),
            end_seconds: ends.fold(MIN_END_SECONDS, f64::max),
            top_bytes: max_bytes * HEADROOM_FACTOR,
        }
    }

    /// Where a time is, in pixels from the left.
    fn x(&self, seconds: f64) -> f64 {
        self.left + seconds / self.end_seconds * (self.right - self.left)
    }

    /// Where a size is, in pixels from the top.
    fn y(&self, size: f64) -> f64 {
        self.bottom - size / self.top_bytes * (self.bottom - self.top)
    }

    fn at(&self, figure: Figure) -> Position {
        Position { x: self.x(figure.seconds), y: self.y(figure.bytes) }
    }
}

/// Draws the axes with ticks, and a light line for each size tick.
fn draw_axes<DB: DrawingBackend>(pen: &Pen<'_, DB>, frame: &Frame) -> DrawResult<DB> {
    let Frame { left, right, top, bottom, .. } = *frame;
    for size in byte_ticks(frame.top_bytes) {
        let y = frame.y(size);
        pen.line(&[Position::new(left, y), Position::new(right, y)], GRID_COLOUR, 1)?;
        pen.text(label(size, true), Position::new(left - 8.0, y), TEXT_SIZE, MUTED_COLOUR, HPos::Right)?;
    }
    let edge = [(left, top), (left, bottom), (right, bottom)].map(|(x, y)| Position::new(x, y));
    pen.line(&edge, MUTED_COLOUR, 1)?;
    for seconds in time_ticks(frame.end_seconds) {
        let x = frame.x(seconds);
        pen.line(&[Position::new(x, bottom), Position::new(x, bottom + 5.0)], MUTED_COLOUR, 1)?;
        // Keep the last label within the picture.
        let text = time_label(seconds, frame.end_seconds);
        let x = x.min(f64::from(WIDTH as i32 - text_width(&text, TEXT_SIZE) / 2 - 4));
        pen.text(text, Position::new(x, bottom + 17.0), TEXT_SIZE, MUTED_COLOUR, HPos::Center)?;
    }
    Ok(())
}

/// The line of a mark, and the position of its name.
struct Label {
    x: f64,
    name: String,
    colour: RGBColor,
    /// Whether it is a tick at the top of the plot instead of a line through it.
    is_tick: bool,
    /// Where its name is; `None` if there is no free place.
    place: Option<LabelPlace>,
}

/// Where the name of a mark is.
#[derive(Clone, Copy)]
struct LabelPlace {
    /// The row above the plot, from the top.
    row: i32,
    /// The left end.
    x: f64,
}

/// Places the names of the marks in rows. A name goes below all names that extend over its line, so
/// that no line crosses a name; if no row is left, only the line is drawn.
fn mark_labels(frame: &Frame, timelines: &[Timeline]) -> Vec<Label> {
    const GAP: f64 = 4.0;
    /// With more marks than this, only those with a name get a line: the data has priority.
    const MAX_LINES: usize = 60;
    let is_several = timelines.len() > 1;
    let mut labels: Vec<Label> = Vec::new();
    for (index, timeline) in timelines.iter().enumerate() {
        let colour = if is_several { COLOURS[index % COLOURS.len()] } else { MUTED_COLOUR };
        labels.extend(timeline.marks.iter().map(|mark| Label {
            x: frame.x(seconds_of(mark.at_us)),
            name: shorten(&clean_sentence(&mark.name), MAX_LABEL_COLUMNS),
            colour,
            place: None,
            is_tick: false,
        }));
    }
    labels.sort_by(|a, b| a.x.total_cmp(&b.x));
    let is_dense = labels.len() > MAX_LINES;
    if is_dense {
        // Merge ticks on the same pixel.
        labels.dedup_by_key(|label| label.x.round());
    }
    // Where the last name of each row ends.
    let mut row_ends = vec![f64::NEG_INFINITY; if is_dense { 1 } else { MAX_LABEL_ROWS }];
    for label in &mut labels {
        let row = row_ends.iter().rposition(|&end| end > label.x - GAP).map_or(0, |row| row + 1);
        let width = f64::from(text_width(&label.name, TEXT_SIZE));
        let fits_right = label.x + GAP + width <= frame.right;
        let x = if fits_right { label.x + GAP } else { label.x - GAP - width };
        if let Some(row_end) = row_ends.get_mut(row).filter(|row_end| x >= **row_end && x >= 0.0) {
            *row_end = (x + width).max(label.x) + 2.0 * GAP;
            label.place = Some(LabelPlace { row: row as i32, x });
        }
        label.is_tick = is_dense && label.place.is_none();
    }
    labels
}

/// Draws the line of a mark, and its name.
fn draw_mark<DB: DrawingBackend>(pen: &Pen<'_, DB>, frame: &Frame, label: &Label) -> DrawResult<DB> {
    let middle = |row: i32| f64::from(HEADING_HEIGHT + row * LABEL_ROW_HEIGHT + LABEL_ROW_HEIGHT / 2);
    let top = label.place.map_or(frame.top, |place| middle(place.row) - 8.0);
    let bottom = if label.is_tick { frame.top + 6.0 } else { frame.bottom };
    pen.line(&[Position::new(label.x, top), Position::new(label.x, bottom)], label.colour.mix(0.55), 1)?;
    let Some(LabelPlace { row, x }) = label.place else { return Ok(()) };
    pen.text(label.name.clone(), Position::new(x, middle(row)), TEXT_SIZE, label.colour, HPos::Left)
}

/// Draws the names of the curves below the plot; if they are too wide, each has an equal part, and
/// those that do not fit are left out.
fn draw_legend<DB: DrawingBackend>(pen: &Pen<'_, DB>, curves: &[Curve]) -> DrawResult<DB> {
    let y = f64::from(HEIGHT) - f64::from(LEGEND_HEIGHT) / 2.0;
    let mut x = f64::from(Y_AXIS_WIDTH);
    let part_width = (f64::from(WIDTH) - x) / curves.len().max(1) as f64;
    let around_name = LEGEND_LINE + 5.0 * LEGEND_GAP;
    let name_pixels = |curve: &Curve| f64::from(text_width(&curve.name, TEXT_SIZE));
    let full_width: f64 = curves.iter().map(|curve| name_pixels(curve) + around_name).sum();
    let is_too_wide = x + full_width > f64::from(WIDTH);
    let max_pixels = if is_too_wide { (part_width - around_name).max(MIN_NAME_PIXELS) } else { full_width };
    for curve in curves.iter().rev() {
        let name = fitted(&curve.name, TEXT_SIZE, max_pixels as i32);
        let name_x = x + LEGEND_LINE + LEGEND_GAP;
        let name_end = name_x + f64::from(text_width(&name, TEXT_SIZE));
        if name_end > f64::from(WIDTH) {
            break;
        }
        pen.line(&[Position::new(x, y), Position::new(x + LEGEND_LINE, y)], curve.colour, curve.width)?;
        pen.text(name, Position::new(name_x, y), TEXT_SIZE, TEXT_COLOUR, HPos::Left)?;
        x = name_end + 4.0 * LEGEND_GAP;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::is_unsafe;
    use crate::timeline::fabricated;

    #[test]
    fn text_stays_text_and_marks_are_named() {
        let text = svg(&[fabricated::tree()]).unwrap();
        assert!(text.starts_with("<svg "));
        assert!(text.trim_end().ends_with("</svg>"));
        for word in ["loaded", "half", "512 MiB", "10 s", "worker --items 1000000"] {
            assert!(text.contains(word), "{word}");
        }
        assert_eq!(text.matches("<text").count(), text.matches("</text>").count());
    }

    #[test]
    fn hostile_names_are_no_markup() {
        let text = svg(&[fabricated::hostile(), fabricated::tree()]).unwrap();
        assert!(!text.contains("<img") && !text.contains("<script") && !text.contains("</script"));
        assert!(!text.chars().any(|c| c != '\n' && is_unsafe(c)));
    }

    #[test]
    fn a_png_is_decodable() {
        let file = png(&[fabricated::tree()]).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(&file)).read_info().unwrap();
        assert_eq!((reader.info().width, reader.info().height), (WIDTH, HEIGHT));
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        let rss_pixels = pixels.chunks(CHANNELS).filter(|pixel| *pixel == [0, 114, 178]).count();
        assert!(rss_pixels > 1000, "the line of RSS is there: {rss_pixels}");
    }

    #[test]
    fn anything_that_can_be_read_can_be_drawn() {
        for timeline in [fabricated::absurd(), fabricated::empty(), fabricated::hostile()] {
            svg(std::slice::from_ref(&timeline)).unwrap();
            png(&[timeline]).unwrap();
        }
    }

    /// Writes the pictures to the directory in STRANDLINE_PICTURES, for visual inspection.
    #[test]
    fn pictures_to_look_at() {
        let Some(folder) = std::env::var_os("STRANDLINE_PICTURES") else { return };
        let folder = std::path::PathBuf::from(folder);
        let (tree, hostile) = (fabricated::tree(), fabricated::hostile());
        std::fs::write(folder.join("tree.svg"), svg(std::slice::from_ref(&tree)).unwrap()).unwrap();
        std::fs::write(folder.join("tree.png"), png(std::slice::from_ref(&tree)).unwrap()).unwrap();
        std::fs::write(folder.join("two.png"), png(&[tree.clone(), hostile.clone()]).unwrap()).unwrap();
        let page = crate::timeline::html::page;
        std::fs::write(folder.join("tree.html"), page(std::slice::from_ref(&tree)).unwrap()).unwrap();
        std::fs::write(folder.join("hostile.html"), page(std::slice::from_ref(&hostile)).unwrap()).unwrap();
        std::fs::write(folder.join("day.html"), page(&[fabricated::day()]).unwrap()).unwrap();
        std::fs::write(folder.join("day.png"), png(&[fabricated::day()]).unwrap()).unwrap();
        std::fs::write(folder.join("two.html"), page(&[tree, hostile]).unwrap()).unwrap();
    }
}
