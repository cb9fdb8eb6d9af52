//! Takes surveys, and writes pages to a file.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::Log;
use crate::charges::ChargeReader;
use crate::exchange::SurveyExchange;
use crate::exposition::Format;
use crate::page::Pages;
use crate::textfile::Writer;
use strandline_survey::select::Selection;
use strandline_survey::{Survey, Surveyor};

/// Interval of surveys without requests: ledgers need to know of new processes.
const SURVEY_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of messages on what the selection matches: processes may come and go repeatedly.
const MAX_MATCH_MESSAGES: u32 = 8;

/// Takes surveys, and writes pages to a file, on a separate thread.
pub struct SurveyThread {
    /// Which processes to survey.
    pub selection: Selection,
    /// Number of processes shown one by one.
    pub top: usize,
    /// Writes pages to a file.
    pub writer: Option<Writer>,
    /// Makes pages, and holds the states of the processes.
    pub pages: Arc<Pages>,
    /// Receives a line when the selection matches nothing, and when it matches again.
    pub log: Log,
}

impl SurveyThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If no thread can be created.
    pub fn start(self, exchange: Arc<SurveyExchange>) -> std::io::Result<JoinHandle<()>> {
        let body = move || {
            if catch_unwind(AssertUnwindSafe(|| self.take_surveys(&exchange))).is_err() {
                exchange.fail();
            }
        };
        std::thread::Builder::new().name("surveys".into()).spawn(body)
    }

    /// Takes surveys until the end, at requests and at least once in an interval.
    fn take_surveys(mut self, exchange: &SurveyExchange) {
        let mut surveyor = Surveyor::default();
        let mut charge_reader = ChargeReader::default();
        let mut matches_any = None;
        let mut match_messages = 0;
        loop {
            let mut survey = surveyor.take(&self.selection, self.top);
            let process_count = count_processes(&survey);
            let line = match_message(matches_any, process_count, &self.selection);
            if let Some(line) = line.filter(|_| match_messages < MAX_MATCH_MESSAGES) {
                match_messages += 1;
                let is_last = match_messages == MAX_MATCH_MESSAGES;
                (self.log)(&(line + if is_last { "; further changes are not reported" } else { "" }));
            }
            matches_any = Some(process_count > 0);
            self.pages.set_charges(charge_reader.read(&survey, &self.selection));
            // How long a survey stays valid depends on what it cost.
            survey.duration = survey.at.elapsed();
            let survey = Arc::new(survey);
            self.pages.states.follow(&survey);
            exchange.deliver(Arc::clone(&survey));
            let mut timeout = SURVEY_INTERVAL;
            if let Some(writer) = &mut self.writer {
                if writer.is_due() {
                    exchange.note_reader();
                    writer.write(&self.pages.page(&survey, Format::Plain));
                }
                timeout = timeout.min(writer.time_until_due());
            }
            if !exchange.wait_for_request(timeout) {
                return;
            }
        }
    }
}

/// Number of processes that the selection matches.
fn count_processes(survey: &Survey) -> u64 {
    survey.processes.len() as u64 + survey.others.as_ref().map_or(0, |others| others.processes)
}

/// The line for a survey with `process_count` processes: if no process matches, or if one matches
/// again. `matched_any` is whether the last survey had any; `None` for the first survey.
fn match_message(matched_any: Option<bool>, process_count: u64, selection: &Selection) -> Option<String> {
    match (matched_any, process_count) {
        (None, 0) => Some(format!("no process matches {selection} yet; its metrics begin when one does")),
        (Some(true), 0) => Some(format!("no process matches {selection} any more")),
        (Some(false), 1..) => Some(format!("processes that match {selection}: {process_count}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use strandline_survey::select::SelectionRequest;

    use super::*;

    #[test]
    fn a_selection_that_matches_nothing_is_reported_once() {
        let request = SelectionRequest { units: vec!["web".to_owned()], ..SelectionRequest::default() };
        let selection = Selection::new(request).unwrap();
        let message = |matched_any, count| match_message(matched_any, count, &selection);
        let first = message(None, 0).unwrap();
        assert!(first.starts_with("no process matches --unit web yet"), "{first}");
        assert_eq!(message(Some(false), 0), None);
        assert!(message(Some(false), 2).unwrap().ends_with(": 2"));
        assert_eq!((message(Some(true), 2), message(None, 2)), (None, None));
        assert!(message(Some(true), 0).unwrap().ends_with("any more"));
    }
}
