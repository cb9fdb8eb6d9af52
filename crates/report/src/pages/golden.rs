//! Compares the output of the writers for known pages with stored output, and checks rules that
//! hold for all.

use super::book::{Book, Chapter};
use super::page::{Cell, Claim, Column, Page, Section, Table, Tone};
use super::{fabricated, html, markdown, terminal};
use crate::paint::{Surface, without_colour};
use crate::text::{is_unsafe, width};

const PLAIN: Surface = Surface { columns: 80, has_colour: false };

fn assert_fits(text: &str, columns: usize) {
    for line in text.lines() {
        // Snippets are indented and never wrapped.
        assert!(width(line) <= columns || line.starts_with("    "), "{} columns: {line:?}", width(line));
        assert!(!line.chars().any(is_unsafe), "{line:?}");
        assert_eq!(line, line.trim_end(), "no line ends in spaces");
    }
}

#[test]
fn a_comparison_on_a_terminal() {
    let text = terminal::text(&fabricated::comparison(), PLAIN);
    assert_fits(&text, 80);
    insta::assert_snapshot!(text);
}

#[test]
fn a_trial_on_a_terminal() {
    let text = terminal::text(&fabricated::trial(), PLAIN);
    assert_fits(&text, 80);
    for figure in ["1.61 GiB", "2,904,117", "0.249"] {
        assert!(text.contains(figure), "figures are never cut: {figure}");
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_comparison_in_markdown() {
    insta::assert_snapshot!(markdown::text(&fabricated::comparison()));
}

#[test]
fn a_trial_in_markdown() {
    insta::assert_snapshot!(markdown::text(&fabricated::trial()));
}

#[test]
fn hostile_text_in_markdown() {
    let text = markdown::text(&fabricated::hostile());
    // The fence of the snippet is not interpreted; elsewhere each bracket is escaped.
    let (before, following) = text.split_once("`````\n").unwrap();
    let (_, after) = following.split_once("`````").unwrap();
    for outside in [before, after] {
        assert!(!outside.replace("\\](", "").contains("]("), "{outside}");
    }
    assert!(!text.chars().any(|c| c != '\n' && is_unsafe(c)));
    insta::assert_snapshot!(text);
}

#[test]
fn colour_changes_nothing_but_colour() {
    for page in [fabricated::comparison(), fabricated::trial(), fabricated::hostile()] {
        let coloured = terminal::text(&page, Surface { columns: 80, has_colour: true });
        let plain = without_colour(&coloured);
        assert_eq!(plain, terminal::text(&page, PLAIN));
        assert!(coloured.len() > plain.len());
    }
}

#[test]
fn hostile_text_reaches_no_terminal() {
    let page = fabricated::hostile();
    for columns in [0, 20, 80, 300] {
        let text = terminal::text(&page, Surface { columns, has_colour: false });
        assert_fits(&text, columns.max(20));
    }
}

#[test]
fn no_table_is_wider_than_its_terminal() {
    for count in [0, 1, 2, 7, 40] {
        let columns = (0..count)
            .map(|n| Column { title: format!("a heading of {n}"), has_figures: n % 3 > 0 })
            .collect();
        let row = (0..count).map(|n| Cell { text: "7".repeat(n * 3 % 19), ..Cell::default() }).collect();
        let table = Table { columns, rows: vec![row, vec![]], ..Table::default() };
        let page =
            Page { sections: vec![Section { tables: vec![table], ..Section::default() }], ..Page::default() };
        for columns in [20, 80, 100] {
            let text = terminal::text(&page, Surface { columns, has_colour: false });
            assert!(text.lines().all(|line| width(line) <= columns), "{count} in {columns}:\n{text}");
        }
        markdown::text(&page);
        html::text(&page).unwrap();
    }
}

#[test]
fn a_page_of_html_escapes_every_text() {
    let text = html::text(&fabricated::hostile()).unwrap();
    assert_eq!(text.matches("<script").count(), 0);
    assert_eq!(text.matches("</title>").count(), text.matches("<title>").count());
    assert!(text.contains("&lt;script&gt;"));
    assert!(!text.chars().any(|c| c != '\n' && is_unsafe(c)));
}

#[test]
fn a_page_of_html_needs_nothing_else() {
    let text = html::text(&fabricated::trial()).unwrap();
    assert!(text.contains("default-src 'none'; style-src 'sha256-"));
    for outside in [" src=", "href=\"http", "url(", "@import", " style=", " onload"] {
        assert!(!text.contains(outside), "{outside}");
    }
    assert_eq!(text.matches("<th scope=\"col\"").count(), 9);
    assert_eq!(text.matches("<th scope=\"row\"").count(), 4);
    assert_eq!(text.matches("<svg ").count(), 2);
}

#[test]
fn cells_of_html_have_the_classes_of_their_column_and_tone() {
    let columns = vec![Column::new("name", false), Column::new("figure", true)];
    let cell = |text: &str, tone| Cell { text: text.to_owned(), tone };
    let rows = vec![
        vec![cell("a", Tone::Plain), cell("1", Tone::Plain)],
        vec![cell("b", Tone::Faint), cell("2", Tone::Good)],
    ];
    let table = Table { columns, rows, ..Table::default() };
    let claim = Claim { verdict: cell("fails", Tone::Bad), ..Claim::default() };
    let section = Section { tables: vec![table], claims: vec![claim], ..Section::default() };
    let text = html::text(&Page { sections: vec![section], ..Page::default() }).unwrap();
    for element in [
        "<th scope=\"col\">name</th><th scope=\"col\" class=\"n\">figure</th>",
        "<th scope=\"row\">a</th><td class=\"n\">1</td>",
        "<th scope=\"row\" class=\"faint\">b</th><td class=\"n good\">2</td>",
        "<td class=\"bad\">fails</td>",
    ] {
        assert!(text.contains(element), "{element} in {text}");
    }
}

/// A published figure with many parts is never shortened: a part of it would mean something else.
#[test]
fn published_figures_are_not_shortened() {
    let parts: Vec<String> = (0..30).map(|n| format!("malloc_zeroed_{n} 0.0{n}")).collect();
    let claim = |statement: &str| Claim {
        id: "as-published".to_owned(),
        statement: statement.to_owned(),
        published: parts.join(", "),
        ..Claim::default()
    };
    let claims = vec![claim("Zeroing is slow."), claim("")];
    let section = Section { heading: "Claims".to_owned(), claims, ..Section::default() };
    let page = Page { sections: vec![section], ..Page::default() };
    let terminal_text = terminal::text(&page, PLAIN);
    assert_fits(&terminal_text, 80);
    let texts = [
        terminal_text.replace('\n', " "),
        markdown::text(&page).replace('\\', ""),
        html::text(&page).unwrap(),
    ];
    for text in texts {
        assert!(parts.iter().all(|part| text.matches(part.as_str()).count() >= 2), "{text}");
        assert!(!text.contains('…'), "{text}");
    }
}

/// A study with thirty plots starts with its claims, not with thirty links.
#[test]
fn contents_of_a_chapter_fold() {
    let page = fabricated::study();
    let book = Book { chapters: vec![Chapter { name: "one".to_owned(), page }], ..Book::default() };
    let text = html::book(&book).unwrap();
    let (before, following) = text.split_once("<nav class=\"parts\"").unwrap();
    let nav = following.split("</nav>").next().unwrap();
    assert!(nav.contains("<details><summary>2 plots<"), "{nav}");
    assert!(!nav.contains("<details open"), "{nav}");
    assert!(before.contains("<h2>"));
}

/// Writes the pages to the directory in STRANDLINE_PICTURES, for visual inspection.
#[test]
fn pages_to_look_at() {
    let Some(folder) = std::env::var_os("STRANDLINE_PICTURES") else { return };
    let folder = std::path::PathBuf::from(folder);
    let pages = [
        ("comparison", fabricated::comparison()),
        ("trial", fabricated::trial()),
        ("study", fabricated::study()),
        ("crowded", fabricated::crowded()),
        ("hostile", fabricated::hostile()),
    ];
    for (name, page) in pages {
        std::fs::write(folder.join(format!("lab-{name}.html")), html::text(&page).unwrap()).unwrap();
    }
}
