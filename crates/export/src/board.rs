//! What is known of each process beside the kernel's figures: its last ledger, what ledgers have cost it, what stands in
//! the way of one. Written by the thread that takes ledgers, read by whoever makes a page.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::budget::Stops;
use crate::summary::Summary;
use strandline_survey::picture::Picture;
use strandline_survey::select::Key;

/// One process's.
#[derive(Clone, Debug)]
pub struct Entry {
    /// How long it was stopped.
    pub stops: Stops,
    /// The last ledger.
    pub ledger: Option<Summary>,
    /// Why there is none, or not a whole or a new one.
    pub trouble: Option<&'static str>,
    /// Its next ledger is not taken before.
    pub not_before: Instant,
    /// How long its next one is expected to stop it.
    pub expected: Option<Duration>,
}

/// All of them, and what happened in all.
#[derive(Debug, Default)]
pub struct Board {
    entries: Mutex<HashMap<Key, Entry>>,
    /// Ledgers taken.
    pub ledgers: AtomicU64,
    /// Ledgers that failed.
    pub failures: AtomicU64,
    /// Stops that became longer than they were allowed.
    pub overruns: AtomicU64,
}

impl Board {
    /// The entries, for as long as it takes to copy a few numbers.
    pub fn entries(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Knows the processes of `picture`. Of others it keeps what ledgers have cost them, as long as a budget may count it: who
    /// has series again has been stopped before.
    pub fn follow(&self, picture: &Picture) {
        let mut entries = self.entries();
        let mut old = std::mem::take(&mut *entries);
        for shown in &picture.processes {
            let entry = old.remove(&shown.key).unwrap_or_else(|| Entry {
                stops: Stops::new(picture.at),
                ledger: None,
                trouble: None,
                not_before: picture.at,
                expected: None,
            });
            entries.insert(shown.key, entry);
        }
        let may_count = |(_, entry): &(Key, Entry)| entry.stops.may_count(picture.at);
        entries.extend(
            old.into_iter().filter(may_count).map(|(key, entry)| (key, Entry { ledger: None, ..entry })),
        );
    }

    /// Counts one more.
    pub fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::StopBudget;
    use strandline_survey::select::{Asked, Selection};

    #[test]
    fn who_comes_back_has_been_stopped_before() {
        let own = std::process::id().cast_signed();
        let asked = Asked { pids: vec![own], ..Asked::default() };
        let selection = Selection::new(asked).unwrap();
        let mut painter = strandline_survey::picture::Painter::default();
        let (with, without) = (painter.paint(&selection, 1), painter.paint(&selection, 0));
        assert_eq!((with.processes.len(), without.processes.len()), (1, 0));
        let budget = StopBudget { stopped: Duration::from_millis(20), period: Duration::from_secs(60) };
        let board = Board::default();
        board.follow(&with);
        let stopped = Duration::from_millis(9);
        for entry in board.entries().values_mut() {
            entry.stops.add(Instant::now(), stopped, budget);
        }
        board.follow(&without);
        board.follow(&with);
        assert_eq!(board.entries().values().map(|entry| entry.stops.total()).collect::<Vec<_>>(), [stopped]);
    }
}
