//! SBCL's own figures: each equal to the byte.

use serde_json::Value;

use crate::support::sbcl::{Sbcl, explain, figures, figures_after, same, size};
use crate::support::subject::number;
use crate::support::{Folder, Outcome, Result, for_any, for_each, here, some_of, strandline};

const KINDS: [&str; 7] = ["idle", "promoted", "generations", "large", "specialized", "conses", "garbage"];

/// Compares all of SBCL's own figures with those found from outside.
fn check_figures(document: &Value, theirs: &Value) -> Outcome {
    let ours = figures(document)?;
    let of_heap =
        ["dynamic_usage_bytes", "dynamic_space_bytes", "bytes_consed_between_gcs", "auto_gc_trigger_bytes"];
    for key in of_heap {
        same("", ours, theirs, key)?;
    }
    let (ours, theirs) = (list(ours, "generations")?, list(theirs, "generations")?);
    for (number, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let what = format!("generation {number}: ");
        let keys = [
            "number",
            "bytes_allocated",
            "collections",
            "collections_before_promotion",
            "bytes_consed_between_gcs",
        ];
        for key in keys {
            same(&what, ours, theirs, key)?;
        }
        // SBCL's counter and the sum over its pages are equal, except during a collection.
        if ours["bytes_allocated_kept"] != ours["bytes_allocated"] {
            return Err(format!("{what}kept and by pages differ: {ours}").into());
        }
        let age = ours["average_age"].as_f64().ok_or("no average_age")?;
        let millionths = number_of(theirs, "average_age_millionths")?;
        if (age * 1e6 - millionths).abs() > 1.0 {
            return Err(format!("{what}average_age: {age}, SBCL prints {millionths} millionths").into());
        }
    }
    if theirs.len() == 7 && ours.len() >= 7 {
        Ok(())
    } else {
        Err(format!("{} generations, SBCL reports {}", ours.len(), theirs.len()).into())
    }
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value]> {
    value[key].as_array().map(Vec::as_slice).ok_or_else(|| format!("no list {key}").into())
}

fn number_of(value: &Value, key: &str) -> Result<f64> {
    value[key].as_f64().ok_or_else(|| format!("no number {key} in {value}").into())
}

#[test]
fn generations_equal_sbcls_counts() -> Outcome {
    for_any(Sbcl::all(here!()), |sbcl| {
        for_each(some_of(KINDS, 3), |kind| {
            let mut subject = sbcl.start(kind, &[&size(20_000, 200_000)])?;
            let before = figures_after(&mut subject, b'f')?;
            check_figures(&explain(&subject)?, &before)?;
            // Neither the read nor the process changed the figures.
            let after = figures_after(&mut subject, b'f')?;
            if after != before {
                return Err(format!("the subject printed {before}, then {after}").into());
            }
            for command in *b"ncg" {
                let printed = figures_after(&mut subject, command)?;
                check_figures(&explain(&subject)?, &printed)?;
            }
            Ok(())
        })
    })
}

/// One generation's line of the table that SBCL's runtime prints, by column name.
struct Line<'a> {
    names: Vec<&'a str>,
    cells: Vec<&'a str>,
}

impl Line<'_> {
    /// The sum of all columns with these names.
    fn sum(&self, names: &[&str]) -> u64 {
        let columns = self.names.iter().zip(&self.cells).filter(|(name, _)| names.contains(name));
        columns.filter_map(|(_, cell)| cell.parse::<u64>().ok()).sum()
    }
}

/// The lines of the last table in `text`.
fn table(text: &str) -> Vec<Line<'_>> {
    let header = text.rfind(" Gen ").or_else(|| text.rfind("Gen ")).unwrap_or(0);
    let mut lines = text[header..].lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let cells = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    cells
        .filter(|cells| cells.len() == names.len() && cells[0].parse::<u64>().is_ok())
        .map(|cells| Line { names: names.clone(), cells })
        .collect()
}

fn check_table(ours: &[Value], table: &[Line<'_>], page_bytes: u64) -> Outcome {
    const LARGE: [&str; 4] = ["LgBox", "LgRaw", "LgCode", "LgMix"];
    const SMALL: [&str; 6] = ["Boxed", "Cons", "Raw", "Code", "SmMix", "Mixed"];
    if table.len() != 7 {
        return Err(format!("{} lines in SBCL's table", table.len()).into());
    }
    for line in table {
        let generation = line.sum(&["Gen"]);
        let ours =
            usize::try_from(generation).ok().and_then(|at| ours.get(at)).ok_or("no such generation")?;
        let check = |key: &str, theirs: u64| -> Outcome {
            let found = number(ours, key)?;
            if found == theirs {
                return Ok(());
            }
            Err(format!("generation {generation}: {key} is {found}, SBCL's table has {theirs}").into())
        };
        let pages = line.sum(&LARGE) + line.sum(&SMALL);
        // SBCL counts a page on which a region was opened before any of it is in use; a thread has
        // few of these.
        let ours_pages = number(ours, "pages")?;
        let open = pages.saturating_sub(ours_pages);
        if generation > 0 || open > 6 {
            check("pages", pages)?;
        }
        let pages = if generation > 0 { pages } else { ours_pages };
        check("large_pages", line.sum(&LARGE))?;
        check("bytes_allocated", line.sum(&["Alloc"]))?;
        check("collections", line.sum(&["GCs"]))?;
        check("trigger_bytes", line.sum(&["Trig"]))?;
        check("waste_bytes", pages * page_bytes - line.sum(&["Alloc"]))?;
    }
    Ok(())
}

#[test]
fn pages_equal_sbcls_table() -> Outcome {
    for_any(Sbcl::all(here!()), |sbcl| {
        for_each(["generations", "large", "specialized"], |kind| {
            let folder = Folder::new(&format!("sbcl-table-{kind}"))?;
            let stderr = folder.0.join("stderr");
            let mut subject =
                sbcl.start_with_stderr(kind, &["count=40000"], std::fs::File::create(&stderr)?)?;
            let document = explain(&subject)?;
            subject.ask(b's')?;
            let text = std::fs::read_to_string(&stderr)?;
            let figures = figures(&document)?;
            check_table(list(figures, "generations")?, &table(&text), number(figures, "gc_page_bytes")?)
                .map_err(|error| format!("{error}\n{text}").into())
        })
    })
}

/// Rows and figures of the runtime cover the same memory.
#[test]
fn rows_are_the_resident_part_of_the_figures() -> Outcome {
    for_any(Sbcl::all(here!()), |sbcl| {
        let subject = sbcl.start("half", &[&size(100_000, 1_000_000)])?;
        let document = explain(&subject)?;
        let figures = figures(&document)?;
        let rows = |id: &str| strandline::row(&document, id);
        let objects = rows("sbcl.live") + rows("sbcl.dead") + rows("sbcl.allocated");
        let usage = number(figures, "dynamic_usage_bytes")?;
        // The core's pages may not have been touched yet, and its file pages are on another row.
        assert!(objects <= usage, "{objects} bytes of {usage} used");
        let old: u64 = list(figures, "generations")?
            .iter()
            .take(6)
            .map(|g| number(g, "bytes_allocated").unwrap_or(0) - number(g, "filler_bytes").unwrap_or(0))
            .sum();
        assert!(
            objects + rows("kernel.zero") >= old,
            "{objects} bytes on rows, {old} in objects of generations 0 to 5"
        );
        assert_eq!(rows("sbcl.allocated"), 0, "it was traced");
        assert!(rows("anonymous") < 4 << 20, "{} bytes are unattributed", rows("anonymous"));
        assert_eq!(rows("sbcl.free"), number(figures, "free_resident_bytes")?);
        assert_eq!(rows("sbcl.waste"), number(figures, "waste_resident_bytes")?);
        Ok(())
    })
}

#[test]
fn tables_are_read_by_their_columns() {
    let text = "Gen  Boxed   Code    Raw  LgBox LgCode  LgRaw  Pin       Alloc     Waste        Trig      WP GCs Mem-age\n \
                0      23      1      1      2      0      0    0      678480    140720    10759690      25   1  0.0000\n";
    let lines = table(text);
    assert_eq!(lines.len(), 1);
    assert_eq!((lines[0].sum(&["LgBox"]), lines[0].sum(&["Boxed", "Code", "Raw"])), (2, 25));
}
