//! Results of several studies: their document, a book of their pages, and a brief page for each.

use serde::Serialize;
use serde_json::{Value, json};

use super::study::{self, StudyInput, Tally};
use crate::data::Data;
use strandline_report::pages::book::{Book, Chapter};
use strandline_report::pages::page::{Cell, Claim, Column, Page, Section, Table, Tone};
use strandline_report::text::{clean, clean_sentence, counted};
use strandline_report::units::seconds;

/// A study and its result.
pub struct Item<'a> {
    /// Its name.
    pub name: &'a str,
    /// The result, or the reason why it could not be run at all.
    pub result: Result<StudyInput<'a>, &'a str>,
}

/// Totals over all studies.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Totals {
    /// Number of studies, including those that could not be run.
    pub studies: u64,
    /// Number of studies that could not be run.
    pub could_not_be_run: u64,
    /// Tally of their claims.
    #[serde(flatten)]
    pub tally: Tally,
    /// Total time of the runs.
    pub run_seconds: f64,
}

impl Totals {
    /// Totals of `items`.
    pub fn of(items: &[Item<'_>]) -> Self {
        let ran = || items.iter().filter_map(|item| item.result.as_ref().ok());
        Self {
            studies: items.len() as u64,
            could_not_be_run: items.len() as u64 - ran().count() as u64,
            tally: ran().fold(Tally::default(), |sum, input| sum + Tally::of(input.claims)),
            run_seconds: ran().map(|input| run_seconds(input.data)).fold(0.0, |sum, seconds| sum + seconds),
        }
    }

    /// Such as "5 studies, 83 claims: 71 hold, 9 fail, 3 not run".
    pub fn line(&self) -> String {
        let studies =
            if self.studies == 1 { "1 study".to_owned() } else { format!("{} studies", self.studies) };
        let verb = if self.tally.holds == 1 || self.tally.claims == 1 { "holds" } else { "hold" };
        let claims = counted(self.tally.claims, "claim");
        let others = self.tally.others();
        let not_run = match self.could_not_be_run {
            0 => String::new(),
            1 => "; 1 study could not be run".to_owned(),
            count => format!("; {count} studies could not be run"),
        };
        format!("{studies}, {claims}: {} {verb}{others}{not_run}", self.tally.holds)
    }
}

/// Total time of the runs that count.
fn run_seconds(data: &Data) -> f64 {
    let samples = data.cells.values().filter_map(|cell| cell.samples.get("wall_seconds"));
    // `sum` of an empty iterator would be -0.
    samples.flatten().flatten().fold(0.0, |sum, seconds| sum + seconds)
}

/// Builds the document for scripts.
pub fn document(items: &[Item<'_>]) -> Value {
    let describe = |item: &Item<'_>| {
        let document = match &item.result {
            Ok(input) => study::document(input)
                .and_then(|document| serde_json::to_value(document).map_err(|error| error.to_string())),
            Err(why) => Err((*why).to_owned()),
        };
        match document {
            Ok(mut document) => {
                if let Value::Object(fields) = &mut document {
                    fields.insert("name".to_owned(), json!(item.name));
                }
                document
            }
            Err(why) => json!({ "name": item.name, "could_not_be_run": why }),
        }
    };
    json!({ "studies": items.iter().map(describe).collect::<Vec<_>>(), "totals": Totals::of(items) })
}

/// Builds a book of all studies. `pages` are the pages of `items` in the same order; their plots
/// may already be files.
pub fn book(items: &[Item<'_>], pages: Vec<Page>, environment: Vec<(String, String)>) -> Book {
    let totals = Totals::of(items);
    let chapters = items.iter().zip(pages).map(|(item, page)| Chapter { name: item.name.to_owned(), page });
    let title = match items {
        [item] => format!("study {}", clean(item.name)),
        _ => "studies".to_owned(),
    };
    Book {
        title,
        headline: format!("{}.", totals.line()),
        contents: contents(items),
        chapters: chapters.collect(),
        environment,
    }
}

/// Table with one row per study.
fn contents(items: &[Item<'_>]) -> Table {
    let column = |title: &str| Column::new(title, title != "study");
    let columns = ["study", "claims", "hold", "fail", "not run", "time of its runs"].map(column).to_vec();
    let rows = items.iter().map(|item| {
        let figure = |count: u64, tone: Tone| Cell {
            text: count.to_string(),
            tone: if count > 0 { tone } else { Tone::Faint },
        };
        let name = Cell::plain(clean(item.name));
        let Ok(input) = &item.result else {
            let unknown = || Cell { text: "?".to_owned(), tone: Tone::Faint };
            return vec![
                name,
                unknown(),
                unknown(),
                unknown(),
                unknown(),
                Cell { text: "not run".to_owned(), tone: Tone::Bad },
            ];
        };
        let tally = Tally::of(input.claims);
        vec![
            name,
            figure(tally.claims, Tone::Plain),
            figure(tally.holds, Tone::Good),
            figure(tally.fails, Tone::Bad),
            figure(tally.not_run, Tone::Plain),
            Cell::plain(seconds(run_seconds(input.data))),
        ]
    });
    Table { caption: String::new(), columns, rows: rows.collect() }
}

/// Builds the page of a study, also if it could not be run.
pub fn page(item: &Item<'_>) -> Page {
    match &item.result {
        Ok(input) => study::page(input),
        Err(_) => brief(item),
    }
}

/// Builds a page with the verdicts of a study, and reasons for claims that do not hold.
pub fn brief(item: &Item<'_>) -> Page {
    let input = match &item.result {
        Ok(input) => input,
        Err(why) => {
            return Page {
                title: format!("study {}", clean(item.name)),
                headline: "It could not be run.".to_owned(),
                sections: vec![Section { paragraphs: vec![clean_sentence(why)], ..Section::default() }],
                ..Page::default()
            };
        }
    };
    let mut sections = Vec::new();
    if !input.claims.is_empty() {
        let claims = study::claims(input).into_iter().map(brief_claim).collect();
        sections.push(Section { claims, ..Section::default() });
    }
    Page { sections, caveats: Vec::new(), environment: Vec::new(), ..study::page(input) }
}

/// Removes the figures of a claim, and all text of one that holds.
fn brief_claim(claim: Claim) -> Claim {
    let claim = Claim { figures: Vec::new(), ..claim };
    if claim.verdict.tone == Tone::Good {
        return Claim { statement: String::new(), reason: String::new(), note: String::new(), ..claim };
    }
    let note = if claim.reason.is_empty() { claim.note } else { String::new() };
    Claim { note, ..claim }
}
