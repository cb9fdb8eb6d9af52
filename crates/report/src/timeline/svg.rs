//! The timeline as a picture for print or for an issue: SVG, in which text remains text, and PNG.
//!
//! Both use the same drawing code. The background is always light, because the context is unknown.

use std::sync::OnceLock;

use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{PathElement, Polygon, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, IntoFont, RGBColor, ShapeStyle, TextStyle, WHITE, register_font};

use super::choice::{bytes_of, ending, largest, process_name, seconds_of};
use super::{DrawError, Point, Timeline};
use crate::text::{clean_sentence, own_command, shorten};
use crate::units::bytes;

/// Width and height, in pixels.
const SIZE: (u32, u32) = (1200, 600);
/// Supersampling factor of a PNG, for smooth lines and letters.
const SUPERSAMPLING: u32 = 3;
/// Heights of the heading, of a row of mark labels, of the axes and of the legend, in pixels.
const HEADING: i32 = 52;
const LABEL_ROWS: usize = 3;
const LABEL_ROW: i32 = 20;
const AXIS_X: i32 = 36;
const AXIS_Y: i32 = 92;
const LEGEND: i32 = 30;
const MARGIN: i32 = 16;

const INK: RGBColor = RGBColor(27, 31, 35);
const QUIET: RGBColor = RGBColor(87, 96, 106);
const GRID: RGBColor = RGBColor(227, 230, 234);
/// The palette of Okabe and Ito, dark enough for lines on white.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
/// The font embedded in PNG pictures; SVG uses the reader's.
const FONT: &[u8] = include_bytes!("assets/font/DejaVuSans-subset.ttf");
const FAMILY: &str = "sans-serif";
/// Text sizes, in pixels.
const LARGE: i32 = 20;
const SMALL: i32 = 15;

type Drawn<DB> = Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

/// The timeline of `timelines` as SVG, several overlaid from their starts.
///
/// # Errors
/// Fails if drawing fails.
pub fn svg(timelines: &[Timeline]) -> Result<String, DrawError> {
    register_font_once()?;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        let pen = Pen { area: &area, scale: 1 };
        picture(&pen, timelines).map_err(|error| DrawError(error.to_string()))?;
        area.present().map_err(|error| DrawError(error.to_string()))?;
    }
    Ok(text)
}

/// The same as the bytes of a PNG file.
///
/// # Errors
/// Fails if drawing or encoding fails.
pub fn png(timelines: &[Timeline]) -> Result<Vec<u8>, DrawError> {
    register_font_once()?;
    let (width, height) = SIZE;
    let finer = (width * SUPERSAMPLING, height * SUPERSAMPLING);
    let mut drawn = vec![255u8; finer.0 as usize * finer.1 as usize * 3];
    {
        let area = BitMapBackend::with_buffer(&mut drawn, finer).into_drawing_area();
        let pen = Pen { area: &area, scale: SUPERSAMPLING as i32 };
        picture(&pen, timelines).map_err(|error| DrawError(error.to_string()))?;
        area.present().map_err(|error| DrawError(error.to_string()))?;
    }
    let pixels = averaged(&drawn, finer.0 as usize);
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let failed = |error: png::EncodingError| DrawError(error.to_string());
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(&pixels).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(file)
}

/// Averages each block of `SUPERSAMPLING` by `SUPERSAMPLING` pixels.
fn averaged(drawn: &[u8], width: usize) -> Vec<u8> {
    let finer = SUPERSAMPLING as usize;
    let mut pixels = Vec::with_capacity(drawn.len() / (finer * finer));
    for rows in drawn.chunks_exact(width * 3 * finer) {
        for x in 0..width / finer {
            for channel in 0..3 {
                let each = (0..finer * finer).map(|n| {
                    let place = (n / finer) * width + x * finer + n % finer;
                    u32::from(rows.get(place * 3 + channel).copied().unwrap_or(255))
                });
                pixels.push((each.sum::<u32>() / (SUPERSAMPLING * SUPERSAMPLING)) as u8);
            }
        }
    }
    pixels
}

/// Registers the font with the drawing library, once.
fn register_font_once() -> Result<(), DrawError> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    let known = *KNOWN.get_or_init(|| register_font(FAMILY, FontStyle::Normal, FONT).is_ok());
    if known { Ok(()) } else { Err(DrawError("its font cannot be read".to_owned())) }
}

/// One line of the plot.
struct Curve {
    name: String,
    colour: RGBColor,
    width: u32,
    points: Vec<(f64, f64)>,
    /// The band between lowest and highest as a polygon; empty if they are equal.
    band: Vec<(f64, f64)>,
}

impl Curve {
    fn new(name: String, colour: RGBColor, width: u32, points: &[Point], kib: fn(&Point) -> u64) -> Self {
        let figure = |point: &Point| (seconds_of(point.at_us), bytes_of(kib(point)) as f64);
        Self { name, colour, width, points: points.iter().map(figure).collect(), band: Vec::new() }
    }

    fn with_band(mut self, points: &[Point]) -> Self {
        if points.iter().any(|point| point.rss_low_kib != point.rss_high_kib) {
            let bound = |point: &Point, kib: u64| (seconds_of(point.at_us), bytes_of(kib) as f64);
            let highs = points.iter().map(|point| bound(point, point.rss_high_kib));
            let lows = points.iter().rev().map(|point| bound(point, point.rss_low_kib));
            self.band = highs.chain(lows).collect();
        }
        self
    }
}

/// RSS and anonymous memory of the largest process; for several recordings, RSS of the largest
/// process of each.
fn curves(timelines: &[Timeline]) -> Vec<Curve> {
    let mut curves = Vec::new();
    for (index, timeline) in timelines.iter().enumerate() {
        let first = largest(timeline).first().and_then(|&process| timeline.processes.get(process));
        let Some(process) = first else { continue };
        let points = process.series.points();
        let colour = COLOURS[index % COLOURS.len()];
        let name = match timelines {
            [_] => format!("RSS of {}", process_name(process, 50)),
            _ => format!("RSS, {}", shorten(&clean_sentence(&timeline.name), 28)),
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
    fn at(&self, (x, y): (f64, f64)) -> (i32, i32) {
        let scaled = |value: f64| (value * f64::from(self.scale)).round() as i32;
        (scaled(x), scaled(y))
    }

    fn line(&self, points: &[(f64, f64)], style: impl Into<ShapeStyle>, width: u32) -> Drawn<DB> {
        let mut style = style.into();
        style.stroke_width = width * self.scale.unsigned_abs();
        self.area.draw(&PathElement::new(points.iter().map(|&at| self.at(at)).collect::<Vec<_>>(), style))
    }

    fn band(&self, points: &[(f64, f64)], colour: RGBColor) -> Drawn<DB> {
        let points: Vec<(i32, i32)> = points.iter().map(|&at| self.at(at)).collect();
        self.area.draw(&Polygon::new(points, colour.mix(0.25)))
    }

    /// `at` is the left end, right end or middle (by `anchor`) of the text's centre line.
    fn text(&self, text: String, at: (f64, f64), size: i32, colour: RGBColor, anchor: HPos) -> Drawn<DB> {
        let style: TextStyle<'_> = (FAMILY, size * self.scale).into_font().color(&colour);
        let style = style.pos(Pos::new(anchor, VPos::Center));
        self.area.draw(&Text::new(text, self.at(at), style))
    }
}

/// Approximate width of `text` in pixels, as fonts differ.
fn pixels(text: &str, size: i32) -> i32 {
    let measured = (FAMILY, size).into_font().box_size(text).map(|(width, _)| i32::try_from(width));
    measured.ok().and_then(Result::ok).unwrap_or_else(|| text.chars().count() as i32 * size)
}

/// Shortens `text` to at most `most` pixels.
fn fitted(text: &str, size: i32, most: i32) -> String {
    let mut columns = 200;
    let mut fitted = shorten(text, columns);
    while columns > 4 && pixels(&fitted, size) > most {
        columns = columns * 9 / 10;
        fitted = shorten(text, columns);
    }
    fitted
}

fn picture<DB: DrawingBackend>(pen: &Pen<'_, DB>, timelines: &[Timeline]) -> Drawn<DB> {
    pen.area.fill(&WHITE)?;
    let room = SIZE.0 as i32 - 2 * MARGIN;
    let title = match timelines {
        [one] if !one.header.command.is_empty() => own_command(&one.header.command),
        [one] => clean_sentence(&one.name),
        several => format!("{} recordings", several.len()),
    };
    let below = match timelines {
        [one] => ending(one),
        _ => "each from its own start".to_owned(),
    };
    let left = f64::from(MARGIN);
    pen.text(fitted(&title, LARGE, room), (left, 20.0), LARGE, INK, HPos::Left)?;
    pen.text(fitted(&below, SMALL, room), (left, 43.0), SMALL, QUIET, HPos::Left)?;
    let curves = curves(timelines);
    let mut frame = Frame::new(timelines, &curves);
    let (labels, rows) = labels(&frame, timelines);
    frame.top += f64::from(rows * LABEL_ROW);
    axes(pen, &frame)?;
    for curve in &curves {
        if !curve.band.is_empty() {
            let band: Vec<(f64, f64)> = curve.band.iter().map(|&figure| frame.at(figure)).collect();
            pen.band(&band, curve.colour)?;
        }
        pen.line(&smooth(curve.points.iter().map(|&figure| frame.at(figure))), curve.colour, curve.width)?;
    }
    for label in &labels {
        marked(pen, &frame, label)?;
    }
    legend(pen, &curves)
}

/// Removes points that nearly coincide with the previous one and would make the line jagged. Keeps
/// the last point before a step, so that level parts are drawn level.
fn smooth(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::new();
    let mut skipped = None;
    for (x, y) in points {
        let far =
            kept.last().map_or(f64::INFINITY, |&(before_x, before_y)| (x - before_x).hypot(y - before_y));
        if far < 1.5 {
            skipped = Some((x, y));
            continue;
        }
        kept.extend(skipped.take().filter(|_| far > 3.0));
        kept.push((x, y));
    }
    kept.extend(skipped);
    kept
}

/// The plot rectangle in pixels, and the values at its edges.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    /// In seconds, from 0.
    end: f64,
    /// In bytes, from 0.
    highest: f64,
}

impl Frame {
    fn new(timelines: &[Timeline], curves: &[Curve]) -> Self {
        let figures = curves.iter().flat_map(|curve| curve.points.iter().chain(&curve.band));
        Self {
            left: f64::from(AXIS_Y),
            right: f64::from(SIZE.0) - f64::from(MARGIN),
            top: f64::from(HEADING),
            bottom: f64::from(SIZE.1) - f64::from(LEGEND + AXIS_X),
            end: timelines.iter().map(|one| seconds_of(one.last_us())).fold(1e-3, f64::max),
            highest: figures.map(|&(_, y)| y).fold(1024.0, f64::max) * 1.04,
        }
    }

    /// The position of a size in bytes at a time in seconds.
    fn at(&self, (seconds, size): (f64, f64)) -> (f64, f64) {
        let x = self.left + seconds / self.end * (self.right - self.left);
        (x, self.bottom - size / self.highest * (self.bottom - self.top))
    }
}

/// Draws the axes with ticks, and a light line for each size tick.
fn axes<DB: DrawingBackend>(pen: &Pen<'_, DB>, frame: &Frame) -> Drawn<DB> {
    for size in byte_ticks(frame.highest) {
        let (_, y) = frame.at((0.0, size));
        pen.line(&[(frame.left, y), (frame.right, y)], GRID, 1)?;
        pen.text(byte_label(size), (frame.left - 8.0, y), SMALL, QUIET, HPos::Right)?;
    }
    let edge = [(frame.left, frame.top), (frame.left, frame.bottom), (frame.right, frame.bottom)];
    pen.line(&edge, QUIET, 1)?;
    for at in time_ticks(frame.end) {
        let (x, _) = frame.at((at, 0.0));
        pen.line(&[(x, frame.bottom), (x, frame.bottom + 5.0)], QUIET, 1)?;
        // Keep the last label within the picture.
        let text = time_label(at, frame.end);
        let x = x.min(f64::from(SIZE.0 as i32 - pixels(&text, SMALL) / 2 - 4));
        pen.text(text, (x, frame.bottom + 17.0), SMALL, QUIET, HPos::Center)?;
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
    /// Row and start of the name; `None` if there is no room.
    place: Option<(i32, f64)>,
}

/// Places the names of the marks in rows, and returns the number of rows. A name goes below all
/// names that extend over its line, so that no line crosses a name; if no row is left, only the
/// line is drawn.
fn labels(frame: &Frame, timelines: &[Timeline]) -> (Vec<Label>, i32) {
    const GAP: f64 = 4.0;
    /// With more marks than this, only those with a name get a line: the data has priority.
    const MAX_LINES: usize = 60;
    let several = timelines.len() > 1;
    let mut labels: Vec<Label> = Vec::new();
    for (index, timeline) in timelines.iter().enumerate() {
        let colour = if several { COLOURS[index % COLOURS.len()] } else { QUIET };
        labels.extend(timeline.marks.iter().map(|mark| Label {
            x: frame.at((seconds_of(mark.at_us), 0.0)).0,
            name: shorten(&clean_sentence(&mark.name), 28),
            colour,
            place: None,
            is_tick: false,
        }));
    }
    labels.sort_by(|a, b| a.x.total_cmp(&b.x));
    let dense = labels.len() > MAX_LINES;
    if dense {
        // Merge ticks on the same pixel.
        labels.dedup_by_key(|label| label.x.round());
    }
    let mut taken = vec![f64::NEG_INFINITY; if dense { 1 } else { LABEL_ROWS }];
    let mut rows = 0;
    for label in &mut labels {
        let row = taken.iter().rposition(|&reached| reached > label.x - GAP).map_or(0, |row| row + 1);
        let wide = f64::from(pixels(&label.name, SMALL));
        let fits = label.x + GAP + wide <= frame.right;
        let start = if fits { label.x + GAP } else { label.x - GAP - wide };
        if let Some(reached) = taken.get_mut(row).filter(|reached| start >= **reached && start >= 0.0) {
            *reached = (start + wide).max(label.x) + 2.0 * GAP;
            label.place = Some((row as i32, start));
            rows = rows.max(row as i32 + 1);
        }
        label.is_tick = dense && label.place.is_none();
    }
    (labels, rows)
}

fn marked<DB: DrawingBackend>(pen: &Pen<'_, DB>, frame: &Frame, label: &Label) -> Drawn<DB> {
    let middle = |row: i32| f64::from(HEADING + row * LABEL_ROW + LABEL_ROW / 2);
    let top = label.place.map_or(frame.top, |(row, _)| middle(row) - 8.0);
    let bottom = if label.is_tick { frame.top + 6.0 } else { frame.bottom };
    pen.line(&[(label.x, top), (label.x, bottom)], label.colour.mix(0.55), 1)?;
    let Some((row, start)) = label.place else { return Ok(()) };
    pen.text(label.name.clone(), (start, middle(row)), SMALL, label.colour, HPos::Left)
}

/// Draws the names of the curves below the plot, up to its width.
fn legend<DB: DrawingBackend>(pen: &Pen<'_, DB>, curves: &[Curve]) -> Drawn<DB> {
    let middle = f64::from(SIZE.1) - f64::from(LEGEND) / 2.0;
    let mut x = f64::from(AXIS_Y);
    for curve in curves.iter().rev() {
        let wide = f64::from(pixels(&curve.name, SMALL));
        if x + 30.0 + wide > f64::from(SIZE.0) {
            break;
        }
        pen.line(&[(x, middle), (x + 22.0, middle)], curve.colour, curve.width)?;
        pen.text(curve.name.clone(), (x + 28.0, middle), SMALL, INK, HPos::Left)?;
        x += 28.0 + wide + 24.0;
    }
    Ok(())
}

/// At most ten multiples of a power of two, which read as round binary sizes.
fn byte_ticks(highest: f64) -> Vec<f64> {
    let mut step = 1024.0;
    while highest / step > 9.0 {
        step *= 2.0;
    }
    (0..10).map(|n| f64::from(n) * step).take_while(|&tick| tick <= highest).collect()
}

/// `512 MiB`, `1.5 GiB`: without trailing zeros.
fn byte_label(size: f64) -> String {
    let text = bytes(size.max(0.0) as u64);
    match text.split_once(' ') {
        Some((figure, unit)) if figure.contains('.') => {
            format!("{} {unit}", figure.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// At most twelve times at round intervals.
fn time_ticks(end: f64) -> Vec<f64> {
    const ROUND: [f64; 15] = [
        1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0,
        43_200.0,
    ];
    let step = if end <= 10.0 {
        let power = 10f64.powf((end / 10.0).log10().floor());
        [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|step| end / step <= 11.0)
    } else {
        ROUND.into_iter().find(|step| end / step <= 11.0)
    };
    let step = step.unwrap_or(end / 10.0);
    (0..12).map(|n| f64::from(n) * step).take_while(|&tick| tick <= end).collect()
}

/// Seconds up to three minutes, `m:ss` and `h:mm:ss` beyond.
fn time_label(at: f64, end: f64) -> String {
    if end < 180.0 {
        let text = format!("{at:.4}");
        return format!("{} s", text.trim_end_matches('0').trim_end_matches('.'));
    }
    let whole = at.max(0.0).round() as u64;
    if end < 7200.0 {
        return format!("{}:{:02}", whole / 60, whole % 60);
    }
    format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
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
        assert_eq!((reader.info().width, reader.info().height), SIZE);
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        let of_rss = pixels.chunks(3).filter(|pixel| *pixel == [0, 114, 178]).count();
        assert!(of_rss > 1000, "the line of RSS is there: {of_rss}");
    }

    #[test]
    fn anything_that_can_be_read_can_be_drawn() {
        for timeline in [fabricated::absurd(), fabricated::empty(), fabricated::hostile()] {
            svg(std::slice::from_ref(&timeline)).unwrap();
            png(&[timeline]).unwrap();
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        for end in [1e-3, 0.5, 1.0, 12.41, 179.0, 3600.0, 86_400.0, 1e13] {
            let ticks = time_ticks(end);
            assert!((3..=12).contains(&ticks.len()), "{end}: {ticks:?}");
        }
        assert_eq!(byte_ticks(1600e6).len(), 6);
        assert_eq!(byte_label(1.5 * 1073741824.0), "1.5 GiB");
        assert_eq!(time_label(3725.0, 9000.0), "1:02:05");
        assert_eq!(time_label(0.25, 2.0), "0.25 s");
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
