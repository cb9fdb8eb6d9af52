//! The HTML page of `holders`: a picture of what retains what, where each row shows the children of
//! the one above and widths are retained bytes; and the tables. One file without scripts; its
//! content security policy permits only its own style.

use minijinja::context;
use minijinja::value::{Serde, Value};
use serde::Serialize;
use strandline_inspect::holders::facts::{Holders, Holding, Sum};

use super::growth::{GROWTH_HEAD, PARTIAL_GROWTH, TYPE_GROWTH_HEAD, age_text, growth_rows};
use super::names::{instances, root_name};
use super::{
    LEAKED_NAME, ROOT_HEAD, RootSets, TYPE_HEAD, headline, holding, process_line, root_rows, type_row,
};
use crate::model;
use crate::table::Column;
use crate::template::{DrawError, render};
use crate::text::{counted, shorten};
use crate::units::{bytes, percent, seconds, stopped};

const PAGE: &str = include_str!("assets/holders.html");
const STYLE: &str = include_str!("assets/holders.css");
/// Width of the picture, in its own units, as all lengths here.
const PICTURE_WIDTH: f64 = 1200.0;
const ROW_HEIGHT: f64 = 24.0;
/// Narrower boxes are not drawn.
const MIN_BOX_WIDTH: f64 = 1.5;
/// Narrower boxes have no text.
const MIN_TEXT_BOX_WIDTH: f64 = 30.0;
/// Approximate width of a letter.
const LETTER_WIDTH: f64 = 7.0;
/// Margin of the text in a box, at both sides together.
const TEXT_MARGIN: f64 = 8.0;
/// Space between two boxes.
const BOX_GAP: f64 = 1.0;
/// Maximum number of boxes: a page with more would be slow.
const MAX_BOXES: usize = 20_000;
/// Maximum number of rows of a table.
const MAX_ROWS: usize = 200;

/// A box of the picture, as the template reads it.
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

/// The picture of what retains what.
struct Picture {
    boxes: Vec<PictureBox>,
    /// The bytes that its whole width stands for.
    whole_bytes: u64,
    row_count: usize,
    /// Number of boxes that are wide enough, but beyond `MAX_BOXES`; what they hold is not counted.
    left_out: u64,
}

impl Picture {
    /// Draws what leaked, roots, and sets of roots beside each other, from left to right.
    fn new(facts: &Holders) -> Self {
        let mut picture =
            Self { boxes: Vec::new(), whole_bytes: facts.live.bytes.max(1), row_count: 0, left_out: 0 };
        let mut x = 0.0;
        if let Some(leaked) = &facts.unreachable {
            let retained = Sum { bytes: leaked.bytes, blocks: leaked.blocks };
            x += picture.add(x, 0, LEAKED_NAME, retained, "leaked", &leaked.holds);
        }
        for root in &facts.roots {
            let retained = Sum { bytes: root.retained_bytes, blocks: root.retained_blocks };
            x += picture.add(x, 0, &root_name(root), retained, "root", &root.holds);
        }
        let sets = RootSets::of(facts);
        for (set, names) in sets.shown.iter().zip(sets.names()) {
            let retained = Sum { bytes: set.retained_bytes, blocks: set.retained_blocks };
            let holds: Vec<Holding> = set.types.iter().map(holding).collect();
            x += picture.add(x, 0, &names, retained, "shared", &holds);
        }
        picture.add(x, 0, sets.others_name(), sets.others, "shared", sets.others_holds());
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
        let width = retained.bytes as f64 / self.whole_bytes as f64 * PICTURE_WIDTH;
        if width < MIN_BOX_WIDTH {
            return width;
        }
        if self.boxes.len() >= MAX_BOXES {
            self.left_out += 1;
            return width;
        }
        let max_letters = ((width - TEXT_MARGIN) / LETTER_WIDTH) as usize;
        let text = if width < MIN_TEXT_BOX_WIDTH { String::new() } else { shorten(name, max_letters) };
        let share = percent(retained.bytes, self.whole_bytes);
        let title =
            format!("{name}: {} ({share}) in {}", bytes(retained.bytes), counted(retained.blocks, "block"));
        let y = row as f64 * ROW_HEIGHT;
        self.boxes.push(PictureBox { x, y, width: width - BOX_GAP, text, title, class });
        self.row_count = self.row_count.max(row + 1);
        let mut child_x = x;
        for kind in holds {
            let retained = Sum { bytes: kind.retained_bytes, blocks: kind.retained_blocks };
            child_x += self.add(child_x, row + 1, &instances(kind), retained, "kind", &kind.holds);
        }
        width
    }
}

/// The page as a complete HTML document.
///
/// # Errors
/// Fails if the template cannot be rendered.
pub fn page(facts: &Holders) -> Result<String, DrawError> {
    let picture = Picture::new(facts);
    let table = |head: &[Column], rows: Vec<Vec<String>>| {
        let titles: Vec<&str> = head.iter().map(|column| column.title).collect();
        context! { head => titles, rows }
    };
    let types = facts.types.iter().take(MAX_ROWS).map(type_row).collect();
    let mut tables = vec![table(&ROOT_HEAD, root_rows(facts, MAX_ROWS)), table(&TYPE_HEAD, types)];
    let mut caveats = model::caveats(&facts.caveats);
    let beyond_limit = |count: usize| count.saturating_sub(MAX_ROWS) as u64;
    let mut left_out = vec![(picture.left_out, "picture box"), (beyond_limit(facts.types.len()), "type")];
    if let Some(since) = &facts.since {
        let growth = growth_rows(since, MAX_ROWS);
        tables.push(table(&GROWTH_HEAD, growth.roots));
        tables.push(table(&TYPE_GROWTH_HEAD, growth.types));
        left_out.push((beyond_limit(since.roots.len()), "changed root"));
        left_out.push((beyond_limit(since.types.len()), "changed type"));
        caveats.extend(since.is_partial.then(|| PARTIAL_GROWTH.to_owned()));
    }
    for (count, noun) in left_out {
        if count > 0 {
            caveats.push(format!("left out of this page: {}; holders --json has all", counted(count, noun)));
        }
    }
    let content = context! {
        title => process_line(facts),
        since => facts.since.as_ref().map(|since| age_text(since.seconds)),
        stopped => stopped(facts.cost.stopped_seconds),
        wall => seconds(facts.cost.wall_seconds),
        headline => headline(facts),
        width => PICTURE_WIDTH,
        height => picture.row_count as f64 * ROW_HEIGHT,
        row_height => ROW_HEIGHT,
        boxes => Value::from(Serde(picture.boxes)),
        tables,
        caveats,
    };
    render(PAGE, STYLE, content)
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
        let facts = Holders {
            live: Sum { bytes: 1200, blocks: 3 },
            unreachable: Some(Unreachable { bytes: 600, ..Unreachable::default() }),
            roots: vec![root],
            types: vec![Type { name: evil.into(), ..Type::default() }],
            ..Holders::default()
        };
        let boxes = Picture::new(&facts).boxes;
        let positions: Vec<_> =
            boxes.iter().map(|picture_box| (picture_box.x, picture_box.y, picture_box.width)).collect();
        assert_eq!(
            positions,
            [(0.0, 0.0, 599.0), (600.0, 0.0, 599.0), (600.0, 24.0, 299.0), (600.0, 48.0, 149.0)]
        );
        let page = page(&facts).unwrap();
        assert!(!page.contains(evil) && page.contains("&lt;script&gt;"), "{page}");
    }
}
