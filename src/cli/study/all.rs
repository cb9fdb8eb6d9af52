//! `study --all`: runs all studies in sequence, each in its own lab.

use std::path::PathBuf;

use super::super::arguments_lab::{Lab, LabFormat, Study as Arguments};
use super::super::lab::{LabProgress, format, json, write_output};
use super::super::output::{Output, print_message};
use super::super::{CommandResult, Failure, Result};
use super::ask::require_confirmation;
use super::chosen::ChosenStudy;
use super::files::Files;
use super::run::{StudyRun, run_and_judge};
use super::{NoResult, Text, read_in};
use strandline_lab::executor::Stopped;
use strandline_report::pages::page::Page;
use strandline_report::pages::{html, markdown, terminal};
use strandline_study::file::SUBJECT;
use strandline_study::find;
use strandline_study::pages::studies::{Item, Totals, brief, document, page};

const SCHEMA: &str = "strandline/studies-run/1";

/// A study, or the reason why it cannot be run.
struct Entry {
    name: String,
    chosen: std::result::Result<ChosenStudy, String>,
}

/// Runs all studies and shows the results.
pub fn run(arguments: &Arguments, output: &mut Output) -> Result<CommandResult> {
    let mut files = Files::wanted(arguments, "strandline-studies.html")?;
    let entries = entries(arguments)?;
    let ran =
        match ask_all(&entries, arguments, output).and_then(|()| conduct_all(&entries, arguments, output)) {
            Ok(ran) => ran,
            Err(gone) => {
                files.none_written();
                return gone.end();
            }
        };
    let items: Vec<Item<'_>> =
        entries.iter().zip(&ran).map(|(entry, ran)| item(&entry.name, ran.as_ref())).collect();
    let mut pages: Vec<Page> = items.iter().map(page).collect();
    for (item, page) in items.iter().zip(&mut pages) {
        files.pictures(item.name, page);
    }
    let text = match format(&arguments.shown, output) {
        LabFormat::Terminal if is_shown_meanwhile(arguments, output) => total(&items, output),
        LabFormat::Terminal => {
            let text: String = items.iter().map(|item| terminal_text(item, output)).collect();
            text + &total(&items, output)
        }
        LabFormat::Markdown => markdown::book(&files.book(&items, &pages)),
        LabFormat::Html => html::book(&files.book(&items, &pages))?,
        LabFormat::Json => json(SCHEMA, &document(&items))?,
    };
    write_output(&text, &arguments.shown, output)?;
    files.write(&items, &pages)?;
    let totals = Totals::of(&items);
    drop(items);
    for one in ran.into_iter().flatten() {
        one.bench.close();
    }
    Ok(match totals {
        _ if totals.could_not_be_run > 0 => CommandResult::CouldNot,
        _ if totals.tally.fails > 0 && arguments.fail_if_claims_fail => CommandResult::Found,
        _ => CommandResult::Done,
    })
}

fn entries(arguments: &Arguments) -> Result<Vec<Entry>> {
    let texts: Vec<(String, std::result::Result<Text, String>)> =
        find::list().into_iter().map(|(name, folder)| (name.clone(), read_one(&name, folder))).collect();
    if texts.is_empty() {
        return Err(Failure("there is no study: `strandline study new NAME` makes one".to_owned()));
    }
    let readable = || texts.iter().filter_map(|(_, text)| text.as_ref().ok());
    for (axis, choices) in &arguments.axis {
        if !readable().any(|text| has(text, axis, choices)) {
            return Err(Failure(format!("--axis {axis}={}: no study has that", choices.join(","))));
        }
    }
    let chosen = |text: std::result::Result<Text, String>| {
        let text = text?;
        let known = arguments.axis.iter().filter(|(axis, choices)| has(&text, axis, choices));
        let axes = known.map(|(axis, choices)| (axis.clone(), own(&text, axis, choices)));
        let axes: Vec<(String, Vec<String>)> = axes.collect();
        ChosenStudy::new(text, arguments, &axes)
    };
    Ok(texts.into_iter().map(|(name, text)| Entry { name, chosen: chosen(text) }).collect())
}

/// Reads a study; returns its errors in one line.
fn read_one(name: &str, folder: Option<PathBuf>) -> std::result::Result<Text, String> {
    let folder = find::folder_of_listed(name, folder)?;
    read_in(&folder).map_err(|lines| {
        let more = lines.len().saturating_sub(1);
        let first = lines.into_iter().next().unwrap_or_default();
        if more > 0 {
            format!("{first} (and {more} more: `strandline study check {}`)", folder.display())
        } else {
            first
        }
    })
}

/// Whether `--axis` applies to this study: it has the axis, or one of the subjects.
fn has(text: &Text, axis: &str, choices: &[String]) -> bool {
    if axis == SUBJECT { !own(text, axis, choices).is_empty() } else { text.0.axis(axis).is_some() }
}

/// The choices of `--axis` that apply to this study: of subjects, those that it has.
fn own((study, _): &Text, axis: &str, choices: &[String]) -> Vec<String> {
    let is_own =
        |choice: &&String| axis != SUBJECT || study.subjects.iter().any(|subject| subject.name == **choice);
    choices.iter().filter(is_own).cloned().collect()
}

/// Checks the extent of all studies together before any is started.
fn ask_all(entries: &[Entry], arguments: &Arguments, output: &Output) -> std::result::Result<(), NoResult> {
    let labs: Vec<(&ChosenStudy, Lab)> = entries
        .iter()
        .filter_map(|entry| Some((entry.chosen.as_ref().ok()?, lab_of(&entry.name, arguments))))
        .collect();
    let labs: Vec<(&ChosenStudy, &Lab)> = labs.iter().map(|(chosen, lab)| (*chosen, lab)).collect();
    require_confirmation(&labs, arguments, &LabProgress::new("studies", !output.json))
}

fn lab_of(name: &str, arguments: &Arguments) -> Lab {
    let dir = arguments.lab.dir.as_ref().map(|dir| dir.join(name));
    Lab { dir, ..arguments.lab.clone() }
}

/// Runs the studies in sequence. Completed runs stay in the journals, so a second call does not
/// repeat them.
fn conduct_all(
    entries: &[Entry],
    arguments: &Arguments,
    output: &mut Output,
) -> std::result::Result<Vec<std::result::Result<StudyRun, String>>, NoResult> {
    let mut all = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let ran = match &entry.chosen {
            Ok(chosen) => {
                let teller = LabProgress::new(
                    format!("{} of {}, {}", index + 1, entries.len(), entry.name),
                    !output.json,
                );
                match run_and_judge(chosen, arguments, &lab_of(&entry.name, arguments), &teller) {
                    Ok(mut ran) => {
                        ran.bench.executors.clear();
                        Ok(ran)
                    }
                    Err(NoResult::Failed(why)) => Err(why.0),
                    Err(NoResult::Stopped(Stopped::Failed(why))) => Err(why),
                    Err(gone) => return Err(gone),
                }
            }
            Err(why) => Err(why.clone()),
        };
        if let Err(why) = &ran {
            // The reason is shown with the other results.
            let is_shown = is_shown_meanwhile(arguments, output);
            let why = if is_shown { "it could not be run" } else { why.as_str() };
            print_message(&format!("study {}: {why}", entry.name));
        }
        if is_shown_meanwhile(arguments, output) {
            let text = terminal_text(&item(&entry.name, ran.as_ref()), output);
            output.print(&text).map_err(NoResult::Unasked)?;
        }
        all.push(ran);
    }
    Ok(all)
}

fn item<'a>(name: &'a str, ran: std::result::Result<&'a StudyRun, &'a String>) -> Item<'a> {
    Item { name, came: ran.map(StudyRun::facts).map_err(String::as_str) }
}

/// Whether the result of a study is shown before the next one starts.
fn is_shown_meanwhile(arguments: &Arguments, output: &Output) -> bool {
    format(&arguments.shown, output) == LabFormat::Terminal && arguments.shown.output.is_none()
}

fn terminal_text(item: &Item<'_>, output: &Output) -> String {
    terminal::lines(&brief(item), output.surface) + "\n"
}

fn total(items: &[Item<'_>], output: &Output) -> String {
    let page = Page { headline: Totals::of(items).line(), ..Page::default() };
    terminal::lines(&page, output.surface)
}
