//! `study --all`: runs all studies in sequence, each in its own lab.

use super::super::arguments_lab::{LabFormat, Study as Arguments};
use super::super::lab::{LabProgress, chosen_format, json, write_output};
use super::super::output::{Output, print_message};
use super::super::{CommandResult, Failure, Result};
use super::{report_no_result, result_files};
use strandline_lab::executor::{NoResult, StopReason};
use strandline_lab::nodes;
use strandline_lab::setup::LabOptions;
use strandline_report::pages::page::Page;
use strandline_report::pages::{html, markdown, terminal};
use strandline_study::all::{self, StudyEntry};
use strandline_study::chosen::{ChosenStudy, StudyOptions};
use strandline_study::conduct::{StudyRun, run_and_judge};
use strandline_study::confirmation::{PlannedStudy, require_confirmation};
use strandline_study::pages::studies::{Item, Totals, brief, document, page};

const SCHEMA: &str = "strandline/studies-run/1";

/// Runs all studies, and shows and writes their results.
pub fn run(arguments: &Arguments, options: &StudyOptions, output: &mut Output) -> Result<CommandResult> {
    let mut files = result_files(arguments, "strandline-studies.html")?;
    let entries = all::entries(options, &arguments.axis).map_err(Failure)?;
    let runs = confirm_all(&entries, arguments, options, output)
        .and_then(|()| run_all(&entries, arguments, options, output));
    let runs = match runs {
        Ok(runs) => runs,
        Err(reason) => {
            files.report_unwritten();
            return report_no_result(reason);
        }
    };
    let items: Vec<Item<'_>> =
        entries.iter().zip(&runs).map(|(entry, run)| item(&entry.name, run.as_ref())).collect();
    let mut pages: Vec<Page> = items.iter().map(page).collect();
    for (item, page) in items.iter().zip(&mut pages) {
        files.draw_plots(item.name, page);
    }
    let text = match chosen_format(&arguments.report_output, output) {
        LabFormat::Terminal if is_shown_meanwhile(arguments, output) => totals_text(&items, output),
        LabFormat::Terminal => {
            let text: String = items.iter().map(|item| terminal_text(item, output)).collect();
            text + &totals_text(&items, output)
        }
        LabFormat::Markdown => markdown::book(&files.book(&items, &pages)),
        LabFormat::Html => html::book(&files.book(&items, &pages))?,
        LabFormat::Json => {
            let inputs = items.iter().filter_map(|item| item.result.as_ref().ok());
            let nodes = nodes::merge(inputs.flat_map(|input| input.nodes.iter().cloned()));
            json(SCHEMA, &nodes, &document(&items))?
        }
    };
    write_output(&text, &arguments.report_output, output)?;
    files.write(&items, &pages).map_err(Failure)?;
    let totals = Totals::of(&items);
    drop(items);
    for run in runs.into_iter().flatten() {
        run.lab.close();
    }
    Ok(match totals {
        _ if totals.could_not_be_run > 0 => CommandResult::Failed,
        _ if totals.tally.fails > 0 && arguments.fail_if_claims_fail => CommandResult::ConditionHolds,
        _ => CommandResult::Done,
    })
}

/// Checks the extent of all studies together before any is started.
fn confirm_all(
    entries: &[StudyEntry],
    arguments: &Arguments,
    options: &StudyOptions,
    output: &Output,
) -> std::result::Result<(), NoResult> {
    if arguments.lab.yes {
        return Ok(());
    }
    let chosen: Vec<(&ChosenStudy, StudyOptions)> = entries
        .iter()
        .filter_map(|entry| Some((entry.chosen.as_ref().ok()?, options_of(&entry.name, options))))
        .collect();
    let studies: Vec<_> = chosen.iter().map(|(chosen, options)| PlannedStudy { chosen, options }).collect();
    require_confirmation(&studies, &LabProgress::new("studies", !output.is_json))
}

/// The options of one of several studies: with its own folder.
fn options_of(name: &str, options: &StudyOptions) -> StudyOptions {
    let folder = options.lab.folder.as_ref().map(|folder| folder.join(name));
    StudyOptions { lab: LabOptions { folder, ..options.lab.clone() }, ..options.clone() }
}

/// The run of a study, or why it could not be run.
type StudyResult = std::result::Result<StudyRun, String>;

/// Runs the studies in sequence. Completed runs stay in the journals, so a second call does not
/// repeat them.
fn run_all(
    entries: &[StudyEntry],
    arguments: &Arguments,
    options: &StudyOptions,
    output: &mut Output,
) -> std::result::Result<Vec<StudyResult>, NoResult> {
    let is_shown = is_shown_meanwhile(arguments, output);
    let mut results = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let title = format!("{} of {}, {}", index + 1, entries.len(), entry.name);
        let result = run_one(entry, options, &LabProgress::new(title, !output.is_json))?;
        if let Err(reason) = &result {
            // If results are shown meanwhile, the reason is among them.
            let message = if is_shown { "it could not be run" } else { reason.as_str() };
            print_message(&format!("study {}: {message}", entry.name));
        }
        if is_shown {
            let text = terminal_text(&item(&entry.name, result.as_ref()), output);
            output.print(&text).map_err(|Failure(line)| NoResult::Failed(line))?;
        }
        results.push(result);
    }
    Ok(results)
}

/// Runs one study; only a signal ends them all.
fn run_one(
    entry: &StudyEntry,
    options: &StudyOptions,
    progress: &LabProgress,
) -> std::result::Result<StudyResult, NoResult> {
    let chosen = match &entry.chosen {
        Ok(chosen) => chosen,
        Err(why) => return Ok(Err(why.clone())),
    };
    match run_and_judge(chosen, &options_of(&entry.name, options), progress) {
        Ok(mut run) => {
            run.lab.executors.clear();
            Ok(Ok(run))
        }
        Err(NoResult::Failed(why) | NoResult::Stopped(StopReason::Failed(why))) => Ok(Err(why)),
        Err(reason) => Err(reason),
    }
}

fn item<'a>(name: &'a str, result: std::result::Result<&'a StudyRun, &'a String>) -> Item<'a> {
    Item { name, result: result.map(StudyRun::input).map_err(String::as_str) }
}

/// Whether the result of a study is shown before the next one starts.
fn is_shown_meanwhile(arguments: &Arguments, output: &Output) -> bool {
    chosen_format(&arguments.report_output, output) == LabFormat::Terminal
        && arguments.report_output.output.is_none()
}

fn terminal_text(item: &Item<'_>, output: &Output) -> String {
    terminal::text(&brief(item), output.surface) + "\n"
}

fn totals_text(items: &[Item<'_>], output: &Output) -> String {
    let page = Page { headline: Totals::of(items).line(), ..Page::default() };
    terminal::text(&page, output.surface)
}
