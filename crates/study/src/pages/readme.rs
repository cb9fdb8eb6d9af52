//! Inserts the newest results into the README of a study, between two marker comments.

use super::study::StudyInput;
use strandline_report::pages::cleaned::cleaned;
use strandline_report::pages::markdown::{append_claims, escaped, picture, table_text};
use strandline_report::pages::page::{Page, Section};

/// First marker line.
pub const BEGIN: &str = "<!-- results -->";
/// Last marker line.
pub const END: &str = "<!-- end of results -->";
/// Beginning of the line with place and date; a change of this line alone does not count.
const MEASURED: &str = "Measured on: ";

/// Maximum number of tables of the first `[[table]]`, which makes one for each combination of
/// unnamed axes.
const MAX_TABLES: usize = 3;

/// Builds the results in short: the verdicts, the first tables and the first plot of `page`, which
/// is made from `input`. `surroundings` are facts on the machine, each with its name.
pub fn block(input: &StudyInput<'_>, page: &Page, surroundings: &[(String, String)]) -> String {
    let tables = page.sections.iter().map(|section| &section.tables).find(|tables| !tables.is_empty());
    let plot = page.sections.iter().flat_map(|section| &section.plots).find(|plot| !plot.address.is_empty());
    let section = Section {
        claims: super::study::claims(input),
        tables: tables.into_iter().flatten().take(MAX_TABLES).cloned().collect(),
        plots: plot.cloned().into_iter().collect(),
        ..Section::default()
    };
    let page = cleaned(&Page { sections: vec![section], ..page.clone() });
    let mut parts = vec![format!("**{}**", escaped(&page.headline))];
    for section in &page.sections {
        append_claims(&mut parts, &section.claims);
        for table in section.tables.iter().filter(|table| !table.rows.is_empty()) {
            if !table.caption.is_empty() {
                parts.push(escaped(&table.caption));
            }
            parts.push(table_text(table));
        }
        parts.extend(section.plots.iter().map(picture));
    }
    let facts: Vec<String> = surroundings.iter().map(|(name, value)| format!("{name} {value}")).collect();
    parts.push(format!("{MEASURED}{}.", escaped(&facts.join("; "))));
    parts.join("\n\n")
}

/// The README with `block` inserted; `None` if only place and date would change.
///
/// # Errors
/// A sentence without its subject: the README has no marker lines.
pub fn insert_results(readme: &str, block: &str) -> Result<Option<String>, String> {
    let missing = || format!("it has no line `{BEGIN}` with a line `{END}` after it");
    let lines: Vec<&str> = readme.split_inclusive('\n').collect();
    let begin = lines.iter().position(|line| line.trim() == BEGIN).ok_or_else(missing)?;
    let end = lines.iter().skip(begin).position(|line| line.trim() == END).ok_or_else(missing)? + begin;
    let text_of = |from: usize, to: usize| lines.get(from..to).unwrap_or_default().concat();
    let (before, old_block, after) =
        (text_of(0, begin), text_of(begin + 1, end), text_of(end + 1, lines.len()));
    let compared_lines = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with(MEASURED) && !line.trim().is_empty());
        lines.map(str::to_owned).collect()
    };
    if compared_lines(&old_block) == compared_lines(block) {
        return Ok(None);
    }
    Ok(Some(format!("{before}{BEGIN}\n\n{block}\n\n{END}\n{after}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_between_the_marker_lines_is_replaced() {
        let readme = format!("# Mine\n\n{BEGIN}\nold\n{END}\n\nmore\n");
        let new_readme = insert_results(&readme, "new\n\nMeasured on: today.").unwrap().unwrap();
        assert_eq!(new_readme, format!("# Mine\n\n{BEGIN}\n\nnew\n\nMeasured on: today.\n\n{END}\n\nmore\n"));
        assert_eq!(insert_results(&new_readme, "new\n\nMeasured on: tomorrow.").unwrap(), None);
        assert!(insert_results(&new_readme, "newer").unwrap().is_some());
        let empty = format!("{BEGIN}\n{END}");
        assert_eq!(insert_results(&empty, "x").unwrap().unwrap(), format!("{BEGIN}\n\nx\n\n{END}\n"));
        for without in ["", "# Mine\n", BEGIN, END, &format!("{END}\n{BEGIN}\n"), &format!("{BEGIN}\nold\n")]
        {
            assert!(insert_results(without, "x").is_err(), "{without:?}");
        }
    }
}
