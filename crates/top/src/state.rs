//! What its reader chose, and what is shown for it.

use std::collections::HashMap;

use strandline_survey::Picture;
use strandline_survey::select::Key;

use crate::look::{Answer, Wanted};
use crate::rows::{Column, History, Id, Kind, Order, Row, Told, arrange};

/// What a key led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing outside of the state.
    Nothing,
    /// The end.
    End,
    /// Stop until it is continued.
    Suspend,
    /// A look at a process.
    Look(i32, Wanted),
}

/// What fills the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pane {
    /// The table.
    Table,
    /// What the keys do.
    Help,
    /// What a look said.
    Text {
        /// Its heading.
        title: String,
        /// Its lines.
        lines: Vec<String>,
    },
}

/// The state.
#[derive(Debug)]
pub struct State {
    /// The last picture.
    pub picture: Option<Picture>,
    /// Its rows, as they are shown.
    pub rows: Vec<Row>,
    /// What they are.
    pub kind: Kind,
    /// By which column they are in order.
    pub sort: Column,
    /// Or the other way round.
    pub is_reversed: bool,
    /// Only these.
    pub filter: String,
    /// Whether keys go into the filter.
    pub is_typing: bool,
    /// What fills the screen.
    pub pane: Pane,
    /// How far its text is scrolled.
    pub scroll: u16,
    /// The first row on the screen.
    pub first: usize,
    /// One line to tell.
    pub message: Option<String>,
    told: HashMap<Key, Told>,
    /// The chosen row, and where it stood: if it is gone, the one that stands there now.
    chosen: (Option<Id>, usize),
    /// What is under way.
    waits_for: Option<(i32, Wanted)>,
}

impl State {
    /// Nothing seen yet.
    pub fn new(sort: Column, kind: Kind) -> Self {
        Self {
            picture: None,
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
            told: HashMap::new(),
            chosen: (None, 0),
            waits_for: None,
        }
    }

    /// Makes the rows anew.
    pub fn arrange(&mut self, history: &History) {
        let Some(picture) = &self.picture else { return };
        let there = |key: &Key| picture.processes.iter().any(|one| one.key == *key);
        self.told.retain(|key, _| there(key));
        let Self { kind, sort, is_reversed, .. } = *self;
        let order = Order { kind, sort, is_reversed, filter: &self.filter };
        self.rows = arrange(picture, history, &self.told, order);
        let stands = self.chosen.0.as_ref().and_then(|id| self.rows.iter().position(|row| row.id == *id));
        self.choose(stands.unwrap_or(self.chosen.1));
    }

    fn choose(&mut self, at: usize) {
        let at = at.min(self.rows.len().saturating_sub(1));
        // As long as nothing was chosen, the first row is it, whoever stands there.
        let id = self.rows.get(at).filter(|_| at > 0 || self.chosen.0.is_some()).map(|row| row.id.clone());
        self.chosen = (id, at);
    }

    /// Chooses another row, so many further on.
    pub fn go(&mut self, by: isize) {
        let at = self.chosen.1.saturating_add_signed(by).min(self.rows.len().saturating_sub(1));
        let id = self.rows.get(at).map(|row| row.id.clone());
        self.chosen = (id.filter(|_| at > 0), at);
    }

    /// Where the chosen row stands.
    pub fn at(&self) -> usize {
        self.chosen.1
    }

    /// The chosen row.
    pub fn selected(&self) -> Option<&Row> {
        self.rows.get(self.chosen.1)
    }

    /// Puts the rows in the order of another column: told how many there are and which it is, `which` tells the next.
    pub fn sort_by(&mut self, which: impl Fn(usize, usize) -> usize) {
        let at = Column::ALL.iter().position(|column| *column == self.sort).unwrap_or(0);
        self.sort = Column::ALL.get(which(Column::ALL.len(), at)).copied().unwrap_or(Column::Rss);
    }

    /// Shows this, or if it is shown, the list.
    pub fn toggle(&mut self, kind: Kind) {
        self.kind = if self.kind == kind { Kind::List } else { kind };
        self.chosen = (None, 0);
    }

    /// Asks for a look at a process with `ask`, which says whether the question was taken; one look at a time.
    pub fn ask(&mut self, pid: i32, wanted: Wanted, ask: impl FnOnce() -> bool) {
        self.message = Some(match self.waits_for {
            Some((pid, _)) => format!("process {pid} is still looked at: one at a time"),
            None if ask() => {
                self.waits_for = Some((pid, wanted));
                format!("{} of process {pid} …", name(wanted))
            }
            None => "nothing can be looked at any more: the thread that does has ended".to_owned(),
        });
    }

    /// Hears what a look said.
    pub fn hear(&mut self, answer: Answer) {
        self.waits_for = None;
        let Answer { pid, wanted, result, at } = answer;
        let looked = match result {
            Ok(looked) => looked,
            Err(line) => return self.message = Some(line),
        };
        let processes = self.picture.iter().flat_map(|picture| &picture.processes);
        if let (Some((stranded_bytes, pinned_bytes)), Some(key)) =
            (looked.sums, processes.map(|one| one.key).find(|key| key.pid == pid))
        {
            self.told.insert(key, Told { at, stranded_bytes, pinned_bytes });
        }
        self.message = None;
        let lines = looked.text.lines().map(str::to_owned).collect();
        self.pane = Pane::Text { title: format!("{} of process {pid}", name(wanted)), lines };
        (self.scroll, self.is_typing) = (0, false);
    }
}

fn name(wanted: Wanted) -> &'static str {
    match wanted {
        Wanted::Ledger => "ledger",
        Wanted::DryRun => "dry run",
    }
}
