//! The HTML page of `holders`: a picture of what retains what, where each row shows the children of
//! the one above and widths are retained bytes; and the tables. One file without scripts; its
//! content security policy permits only its own style.

use minijinja::value::{Serde, Value};
use minijinja::{Environment, context};
use serde::Serialize;
use strandline_inspect::holders::facts::{Holders, Holding, Sum};

use super::{
    GROWTH_COLUMNS, TYPE_GROWTH_COLUMNS, TYPES, duration, growth_rows, headline, holding, instances,
    join_root_names, process_line, root_name, root_rows, shown_sets, type_row,
};
use crate::json::VERSION;
use crate::model;
use crate::table::Column;
use crate::text::counted;
use crate::timeline::DrawError;
use crate::timeline::html::digest;
use crate::units::{bytes, percent, seconds};

const PAGE: &str = include_str!("assets/holders.html");
const STYLE: &str = include_str!("assets/holders.css");
/// Width of the picture and height of a row, in units of the picture.
const WIDTH: f64 = 1200.0;
const ROW: f64 = 24.0;
/// Narrower parts are not drawn; parts narrower than the second have no text.
const MIN_WIDTH: f64 = 1.5;
const MIN_TEXT: f64 = 30.0;
/// Approximate width of a letter.
const LETTER: f64 = 7.0;
const MAX_BOXES: usize = 20_000;
/// Maximum number of rows of a table.
const MAX_ROWS: usize = 200;

/// A box in the picture.
#[derive(Serialize)]
struct PictureBox {
    x: f64,
    y: f64,
    width: f64,
    /// Its name, shortened to the width.
    text: String,
    /// Its full name and figures, as the tooltip.
    title: String,
    /// The CSS class of its colour.
    class: &'static str,
}

struct Picture {
    parts: Vec<PictureBox>,
    all_bytes: u64,
    rows: usize,
}

impl Picture {
    fn new(found: &Holders) -> Self {
        let mut picture = Self { parts: Vec::new(), all_bytes: found.live.bytes.max(1), rows: 0 };
        let mut x = 0.0;
        if let Some(lost) = &found.unreachable {
            let retained = Sum { bytes: lost.bytes, blocks: lost.blocks };
            x += picture.add(x, 0, "nothing: leaked", retained, "leaked", &lost.holds);
        }
        for root in &found.roots {
            let retained = Sum { bytes: root.retained_bytes, blocks: root.retained_blocks };
            x += picture.add(x, 0, &root_name(root), retained, "root", &root.holds);
        }
        let (sets, others) = shown_sets(found);
        for set in sets {
            let retained = Sum { bytes: set.retained_bytes, blocks: set.retained_blocks };
            let holds: Vec<Holding> = set.types.iter().map(holding).collect();
            x += picture.add(x, 0, &join_root_names(set), retained, "shared", &holds);
        }
        let holds = if sets.is_empty() { found.shared_holds.as_slice() } else { &[] };
        picture.add(x, 0, "several together", others, "shared", holds);
        picture
    }

    /// Adds a box and its children; returns its width.
    fn add(
        &mut self,
        x: f64,
        row: usize,
        name: &str,
        retained: Sum,
        class: &'static str,
        holds: &[Holding],
    ) -> f64 {
        let width = retained.bytes as f64 / self.all_bytes as f64 * WIDTH;
        if width < MIN_WIDTH || self.parts.len() >= MAX_BOXES {
            return width;
        }
        let letters = ((width - 8.0) / LETTER) as usize;
        let text = if width < MIN_TEXT { String::new() } else { crate::text::shorten(name, letters) };
        let share = percent(retained.bytes, self.all_bytes);
        let title =
            format!("{name}: {} ({share}) in {}", bytes(retained.bytes), counted(retained.blocks, "block"));
        self.parts.push(PictureBox { x, y: row as f64 * ROW, width: width - 1.0, text, title, class });
        self.rows = self.rows.max(row + 1);
        let mut below = x;
        for of in holds {
            let retained = Sum { bytes: of.retained_bytes, blocks: of.retained_blocks };
            below += self.add(below, row + 1, &instances(of), retained, "kind", &of.holds);
        }
        width
    }
}

/// A table, as the template reads it.
#[derive(Serialize)]
struct Rows {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Rows {
    fn new(head: &[Column], rows: Vec<Vec<String>>) -> Self {
        Self { head: head.iter().map(|column| column.title).collect(), rows }
    }
}

/// The page as a complete HTML document.
///
/// # Errors
/// Fails if the template cannot be rendered.
pub fn page(found: &Holders) -> Result<String, DrawError> {
    let picture = Picture::new(found);
    let roots = Rows::new(&super::ROOTS, root_rows(found, MAX_ROWS));
    let types = Rows::new(&TYPES, found.types.iter().take(MAX_ROWS).map(type_row).collect());
    let mut tables = vec![roots, types];
    if let Some(since) = &found.since {
        let [of_roots, of_types] = growth_rows(since, MAX_ROWS);
        tables.extend([Rows::new(&GROWTH_COLUMNS, of_roots), Rows::new(&TYPE_GROWTH_COLUMNS, of_types)]);
    }
    let cost = (seconds(found.cost.stopped_seconds), seconds(found.cost.wall_seconds));
    let mut templates = Environment::new();
    templates.add_template("holders.html", PAGE)?;
    let text = templates.get_template("holders.html")?.render(context! {
        version => VERSION,
        title => process_line(found),
        since => found.since.as_ref().map(|since| duration(since.seconds)),
        stopped => cost.0,
        wall => cost.1,
        headline => headline(found),
        width => WIDTH,
        height => picture.rows as f64 * ROW,
        row => ROW,
        parts => Value::from(Serde(picture.parts)),
        tables => Value::from(Serde(tables)),
        caveats => model::caveats(&found.caveats),
        style_digest => digest(STYLE),
        style => STYLE,
    })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use strandline_inspect::holders::facts::{Root, Sum, Type, Unreachable};

    use super::*;

    fn holding(name: &str, retained_bytes: u64, holds: Vec<Holding>) -> Holding {
        Holding { name: name.into(), instances: 1, retained_bytes, holds, ..Holding::default() }
    }

    #[test]
    fn parts_are_as_wide_as_what_they_hold_and_names_cannot_break_out() {
        let evil = "<script>alert(1)</script>";
        let holds = vec![holding(evil, 300, vec![holding("B", 150, Vec::new())])];
        let root = Root { name: "g_all".into(), retained_bytes: 600, holds, ..Root::default() };
        let found = Holders {
            live: Sum { bytes: 1200, blocks: 3 },
            unreachable: Some(Unreachable { bytes: 600, ..Unreachable::default() }),
            roots: vec![root],
            types: vec![Type { name: evil.into(), ..Type::default() }],
            ..Holders::default()
        };
        let parts = Picture::new(&found).parts;
        let places: Vec<_> = parts.iter().map(|part| (part.x, part.y, part.width)).collect();
        assert_eq!(
            places,
            [(0.0, 0.0, 599.0), (600.0, 0.0, 599.0), (600.0, 24.0, 299.0), (600.0, 48.0, 149.0)]
        );
        let page = page(&found).unwrap();
        assert!(!page.contains(evil) && page.contains("&lt;script&gt;"), "{page}");
    }
}
