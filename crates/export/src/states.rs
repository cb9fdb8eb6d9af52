//! State of each process besides the kernel's figures: its last ledger, what ledgers have cost it,
//! and what prevents one. Written by the thread that takes ledgers, read when a page is made.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::budget::Stops;
use crate::summary::Summary;
use strandline_survey::Survey;
use strandline_survey::select::Key;

/// State of one process besides the kernel's figures.
#[derive(Clone, Debug)]
pub struct ProcessState {
    /// How long it was stopped.
    pub stops: Stops,
    /// The last ledger.
    pub ledger: Option<Summary>,
    /// Why there is no ledger, or no complete or current one.
    pub problem: Option<&'static str>,
    /// Time before which its next ledger is not taken.
    pub not_before: Instant,
    /// How long its next ledger is expected to stop it, once one was taken.
    pub expected_stop: Option<Duration>,
}

/// State of all processes, and totals.
#[derive(Debug, Default)]
pub struct ProcessStates {
    /// By process.
    entries: Mutex<HashMap<Key, ProcessState>>,
    /// Number of ledgers that were taken.
    pub ledgers: AtomicU64,
    /// Number of ledgers that failed.
    pub failures: AtomicU64,
    /// Number of stops that were longer than allowed.
    pub overruns: AtomicU64,
}

impl ProcessStates {
    /// The entries; the lock is to be held only for copying a few numbers.
    pub fn entries(&self) -> MutexGuard<'_, HashMap<Key, ProcessState>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the processes of `survey`. All others lose their ledgers, and are removed once no
    /// budget counts their stops any more: such a process may be among the largest again.
    pub fn follow(&self, survey: &Survey) {
        let mut entries = self.entries();
        let mut old_entries = std::mem::take(&mut *entries);
        for process in &survey.processes {
            let entry = old_entries.remove(&process.key).unwrap_or_else(|| ProcessState {
                stops: Stops::new(survey.at),
                ledger: None,
                problem: None,
                not_before: survey.at,
                expected_stop: None,
            });
            entries.insert(process.key, entry);
        }
        let may_count = |(_, entry): &(Key, ProcessState)| entry.stops.may_count(survey.at);
        let stopped_before = old_entries.into_iter().filter(may_count);
        entries.extend(stopped_before.map(|(key, entry)| (key, ProcessState { ledger: None, ..entry })));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::StopBudget;
    use strandline_survey::select::{Selection, SelectionRequest};

    #[test]
    fn a_process_that_comes_back_has_its_earlier_stops() {
        let own_pid = std::process::id().cast_signed();
        let request = SelectionRequest { pids: vec![own_pid], ..SelectionRequest::default() };
        let selection = Selection::new(request).unwrap();
        let mut surveyor = strandline_survey::Surveyor::default();
        let (survey, empty_survey) = (surveyor.take(&selection, 1), surveyor.take(&selection, 0));
        assert_eq!((survey.processes.len(), empty_survey.processes.len()), (1, 0));
        let budget = StopBudget { stopped: Duration::from_millis(20), period: Duration::from_secs(60) };
        let states = ProcessStates::default();
        states.follow(&survey);
        let stopped = Duration::from_millis(9);
        for entry in states.entries().values_mut() {
            entry.stops.add(Instant::now(), stopped, budget);
        }
        states.follow(&empty_survey);
        states.follow(&survey);
        assert_eq!(states.entries().values().map(|entry| entry.stops.total()).collect::<Vec<_>>(), [stopped]);
    }
}
