//! What the user chose, and what is shown for it.

use std::collections::HashMap;

use strandline_survey::Survey;
use strandline_survey::select::Key;

use crate::requests::{Answer, Request, StateSums};
use crate::rows::{Column, History, Kind, LedgerSums, Order, Row, RowId, arrange};

/// What a key asks the main loop for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing outside of the state.
    Nothing,
    /// End the program.
    End,
    /// Stop until continued.
    Suspend,
    /// Read a process.
    Read {
        /// Its process id.
        pid: i32,
        /// What to read.
        request: Request,
    },
}

/// What fills the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pane {
    /// The rows.
    #[default]
    Table,
    /// The keys.
    Help,
    /// The result of a request.
    Text { title: String, lines: Vec<String> },
}

/// The selected row. If it is gone, the one at its index is selected.
#[derive(Debug, Default)]
struct SelectedRow {
    /// `None` for the first row, whatever it is.
    id: Option<RowId>,
    index: usize,
}

/// State of the user interface.
#[derive(Debug, Default)]
pub struct State {
    /// The last survey.
    pub survey: Option<Survey>,
    /// The rows of the table, in order.
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
    /// What fills the screen now.
    pub pane: Pane,
    /// Index of the first visible line of a text.
    pub scroll: u16,
    /// Index of the first visible row.
    pub first_visible: usize,
    /// A message of one line.
    pub message: Option<String>,
    /// Results of the last ledger of each process.
    ledger_sums: HashMap<Key, LedgerSums>,
    selection: SelectedRow,
    /// The process of the unfinished request.
    pending_pid: Option<i32>,
}

impl State {
    /// A state without a survey.
    pub fn new(sort: Column, kind: Kind) -> Self {
        Self { kind, sort, ..Self::default() }
    }

    /// Updates the rows after a change of the survey or of what the user chose.
    pub fn arrange(&mut self, history: &History) {
        let Some(survey) = &self.survey else { return };
        let is_listed = |key: &Key| survey.processes.iter().any(|process| process.key == *key);
        self.ledger_sums.retain(|key, _| is_listed(key));
        let Self { kind, sort, is_reversed, .. } = *self;
        let order = Order { kind, sort, is_reversed, filter: &self.filter };
        self.rows = arrange(survey, history, &self.ledger_sums, order);
        let selected = self.selection.id.as_ref();
        let index = selected.and_then(|id| self.rows.iter().position(|row| row.id == *id));
        let index = index.unwrap_or(self.selection.index);
        self.select(index, self.selection.id.is_some());
    }

    /// Selects the row at an index, or the last one if there are fewer. At index 0, the row itself
    /// is selected only if `keeps_first`; otherwise the first row is, whatever it is then.
    fn select(&mut self, index: usize, keeps_first: bool) {
        let index = index.min(self.rows.len().saturating_sub(1));
        let row = self.rows.get(index).filter(|_| index > 0 || keeps_first);
        self.selection = SelectedRow { id: row.map(|row| row.id.clone()), index };
    }

    /// Selects the row that is `rows` rows further.
    pub fn move_by(&mut self, rows: isize) {
        self.select(self.selection.index.saturating_add_signed(rows), false);
    }

    /// Index of the selected row.
    pub fn selected_index(&self) -> usize {
        self.selection.index
    }

    /// The selected row, if there is any.
    pub fn selected(&self) -> Option<&Row> {
        self.rows.get(self.selection.index)
    }

    /// Sorts by another column: `next_index` gets the current index and the number of columns.
    pub fn sort_by(&mut self, next_index: impl Fn(usize, usize) -> usize) {
        let index = Column::ALL.iter().position(|column| *column == self.sort).unwrap_or(0);
        let next = next_index(index, Column::ALL.len());
        self.sort = Column::ALL.get(next).copied().unwrap_or_default();
    }

    /// Shows rows of this kind, or the list if they are shown already.
    pub fn toggle(&mut self, kind: Kind) {
        self.kind = if self.kind == kind { Kind::List } else { kind };
        self.selection = SelectedRow::default();
    }

    /// Requests to read a process with `send`, which returns whether the request was accepted;
    /// one process at a time.
    pub fn request_read(&mut self, pid: i32, request: Request, send: impl FnOnce() -> bool) {
        self.message = Some(match self.pending_pid {
            Some(pid) => format!("process {pid} is still being read: one at a time"),
            None if send() => {
                self.pending_pid = Some(pid);
                format!("{} of process {pid} …", request_name(request))
            }
            None => "no process can be read any more: the thread that reads them has ended".to_owned(),
        });
    }

    /// Handles the result of a read.
    pub fn take_result(&mut self, answer: Answer) {
        self.pending_pid = None;
        let Answer { pid, request, result, at } = answer;
        let reading = match result {
            Ok(reading) => reading,
            Err(message) => return self.message = Some(message),
        };
        let processes = self.survey.iter().flat_map(|survey| &survey.processes);
        if let (Some(StateSums { stranded_bytes, pinned_bytes }), Some(key)) =
            (reading.sums, processes.map(|process| process.key).find(|key| key.pid == pid))
        {
            self.ledger_sums.insert(key, LedgerSums { at, stranded_bytes, pinned_bytes });
        }
        self.message = None;
        let lines = reading.text.lines().map(str::to_owned).collect();
        self.pane = Pane::Text { title: format!("{} of process {pid}", request_name(request)), lines };
        (self.scroll, self.is_typing) = (0, false);
    }
}

/// A request in words.
fn request_name(request: Request) -> &'static str {
    match request {
        Request::Ledger => "ledger",
        Request::DryRun => "dry run",
    }
}
