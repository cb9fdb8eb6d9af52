//! What the user chose, and what is shown for it.

use std::collections::HashMap;

use strandline_survey::Survey;
use strandline_survey::select::Key;

use crate::look::{Answer, LookSums, Request};
use crate::rows::{Column, History, Id, Kind, LedgerSums, Order, Row, arrange};

/// Effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing outside of the state.
    Nothing,
    /// End the program.
    End,
    /// Stop until continued.
    Suspend,
    /// Look at a process.
    Look(i32, Request),
}

/// What fills the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pane {
    Table,
    /// Help for the keys.
    Help,
    /// The result of a read.
    Text {
        title: String,
        lines: Vec<String>,
    },
}

/// State of the user interface.
#[derive(Debug)]
pub struct State {
    /// The last survey.
    pub survey: Option<Survey>,
    /// The rows shown.
    pub rows: Vec<Row>,
    /// What the rows are.
    pub kind: Kind,
    /// Column by which they are sorted.
    pub sort: Column,
    /// Whether the order is reversed.
    pub is_reversed: bool,
    /// Only rows that contain this are shown.
    pub filter: String,
    /// Whether keys go into the filter.
    pub is_typing: bool,
    pub pane: Pane,
    /// How far the text is scrolled.
    pub scroll: u16,
    /// The first row on the screen.
    pub first: usize,
    /// A message of one line.
    pub message: Option<String>,
    ledger_sums: HashMap<Key, LedgerSums>,
    /// The selected row and its index: if the row is gone, the one at that index is selected.
    selection: (Option<Id>, usize),
    /// The unfinished request.
    waits_for: Option<(i32, Request)>,
}

impl State {
    /// A state without a survey.
    pub fn new(sort: Column, kind: Kind) -> Self {
        Self {
            survey: None,
            rows: Vec::new(),
            kind,
            sort,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            pane: Pane::Table,
            scroll: 0,
            first: 0,
            message: None,
            ledger_sums: HashMap::new(),
            selection: (None, 0),
            waits_for: None,
        }
    }

    /// Updates the rows.
    pub fn arrange(&mut self, history: &History) {
        let Some(survey) = &self.survey else { return };
        let there = |key: &Key| survey.processes.iter().any(|one| one.key == *key);
        self.ledger_sums.retain(|key, _| there(key));
        let Self { kind, sort, is_reversed, .. } = *self;
        let order = Order { kind, sort, is_reversed, filter: &self.filter };
        self.rows = arrange(survey, history, &self.ledger_sums, order);
        let stands = self.selection.0.as_ref().and_then(|id| self.rows.iter().position(|row| row.id == *id));
        self.choose(stands.unwrap_or(self.selection.1));
    }

    fn choose(&mut self, at: usize) {
        let at = at.min(self.rows.len().saturating_sub(1));
        // Until a row is selected, the first row is selected, whatever it is.
        let id = self.rows.get(at).filter(|_| at > 0 || self.selection.0.is_some()).map(|row| row.id.clone());
        self.selection = (id, at);
    }

    /// Selects the row that is `by` rows further.
    pub fn move_by(&mut self, by: isize) {
        let at = self.selection.1.saturating_add_signed(by).min(self.rows.len().saturating_sub(1));
        let id = self.rows.get(at).map(|row| row.id.clone());
        self.selection = (id.filter(|_| at > 0), at);
    }

    /// Index of the selected row.
    pub fn selected_index(&self) -> usize {
        self.selection.1
    }

    pub fn selected(&self) -> Option<&Row> {
        self.rows.get(self.selection.1)
    }

    /// Sorts by another column: `which` gets the number of columns and the current index, and
    /// returns the new index.
    pub fn sort_by(&mut self, which: impl Fn(usize, usize) -> usize) {
        let at = Column::ALL.iter().position(|column| *column == self.sort).unwrap_or(0);
        self.sort = Column::ALL.get(which(Column::ALL.len(), at)).copied().unwrap_or(Column::Rss);
    }

    /// Shows rows of this kind, or the list if they are shown already.
    pub fn toggle(&mut self, kind: Kind) {
        self.kind = if self.kind == kind { Kind::List } else { kind };
        self.selection = (None, 0);
    }

    /// Requests a read of a process with `ask`, which returns whether the request was accepted; one
    /// read at a time.
    pub fn ask(&mut self, pid: i32, wanted: Request, ask: impl FnOnce() -> bool) {
        self.message = Some(match self.waits_for {
            Some((pid, _)) => format!("process {pid} is still being read: one at a time"),
            None if ask() => {
                self.waits_for = Some((pid, wanted));
                format!("{} of process {pid} …", name(wanted))
            }
            None => "no process can be read any more: the thread that reads them has ended".to_owned(),
        });
    }

    /// Handles the result of a read.
    pub fn take_result(&mut self, answer: Answer) {
        self.waits_for = None;
        let Answer { pid, wanted, result, at } = answer;
        let looked = match result {
            Ok(looked) => looked,
            Err(line) => return self.message = Some(line),
        };
        let processes = self.survey.iter().flat_map(|survey| &survey.processes);
        if let (Some(LookSums { stranded_bytes, pinned_bytes }), Some(key)) =
            (looked.sums, processes.map(|one| one.key).find(|key| key.pid == pid))
        {
            self.ledger_sums.insert(key, LedgerSums { at, stranded_bytes, pinned_bytes });
        }
        self.message = None;
        let lines = looked.text.lines().map(str::to_owned).collect();
        self.pane = Pane::Text { title: format!("{} of process {pid}", name(wanted)), lines };
        (self.scroll, self.is_typing) = (0, false);
    }
}

fn name(wanted: Request) -> &'static str {
    match wanted {
        Request::Ledger => "ledger",
        Request::DryRun => "dry run",
    }
}
