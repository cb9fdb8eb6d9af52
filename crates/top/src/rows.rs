//! The rows of the table: processes or control groups with their growth, sorted, filtered, or as a
//! tree.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use strandline_survey::Survey;
use strandline_survey::select::Key;
use strandline_survey::survey::ProcessFigures;

/// The columns, from left to right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Process id, or number of processes in a group.
    Pid,
    /// RSS.
    Rss,
    /// PSS.
    Pss,
    /// Growth of RSS per minute.
    Growth,
    /// Stranded bytes in the last ledger.
    Stranded,
    /// Pinned bytes in the last ledger.
    Pinned,
    /// The name.
    Name,
}

impl Column {
    /// All columns.
    pub const ALL: [Self; 7] =
        [Self::Pid, Self::Rss, Self::Pss, Self::Growth, Self::Stranded, Self::Pinned, Self::Name];
}

/// What the rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Processes as a list.
    List,
    /// Processes below their parents.
    Tree,
    /// Control groups.
    Groups,
}

/// Identity of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Id {
    Process(Key),
    Group(String),
}

/// Results of the last ledger of a process.
#[derive(Clone, Copy, Debug)]
pub struct LedgerSums {
    /// When it was taken.
    pub at: Instant,
    pub stranded_bytes: u64,
    pub pinned_bytes: u64,
}

#[derive(Clone, Debug)]
pub struct Row {
    pub id: Id,
    /// Process id, if it is a process.
    pub pid: Option<i32>,
    /// Process id of its parent.
    pub parent: i32,
    /// Number of ancestors shown above it.
    pub depth: usize,
    /// Name of the process or the group.
    pub name: String,
    pub group: Option<String>,
    /// Number of processes.
    pub processes: u64,
    pub rss_bytes: u64,
    pub pss_bytes: Option<u64>,
    /// Growth of RSS per minute.
    pub growth_bytes: Option<i64>,
    /// Results of its last ledger.
    pub ledger: Option<LedgerSums>,
}

/// Growth is measured over the last minute, or as much of it as is known.
const SPAN: Duration = Duration::from_secs(60);
/// Growth is not shown for less than this.
const MIN_SPAN: Duration = Duration::from_millis(900);

/// RSS over the last minute.
#[derive(Debug, Default)]
pub struct History {
    samples: HashMap<Id, VecDeque<(Instant, u64)>>,
}

impl History {
    /// Adds a survey; rows that are not on it are dropped.
    pub fn add(&mut self, survey: &Survey) {
        let processes = survey.processes.iter().map(|one| (Id::Process(one.key), one.figures.rss_bytes));
        let groups = survey.groups.iter().map(|(name, sum)| (Id::Group(name.clone()), sum.rss_bytes));
        let mut old = std::mem::take(&mut self.samples);
        for (id, rss_bytes) in processes.chain(groups) {
            let mut all = old.remove(&id).unwrap_or_default();
            all.push_back((survey.at, rss_bytes));
            while all.front().is_some_and(|(at, _)| survey.at.duration_since(*at) > SPAN) {
                all.pop_front();
            }
            self.samples.insert(id, all);
        }
    }

    /// Growth of RSS per minute.
    fn growth(&self, id: &Id) -> Option<i64> {
        let all = self.samples.get(id)?;
        let ((began, first), (ended, last)) = (all.front()?, all.back()?);
        let span = ended.duration_since(*began);
        let grown = i64::try_from(*last).ok()?.checked_sub(i64::try_from(*first).ok()?)?;
        let minutes = SPAN.as_secs_f64() / span.as_secs_f64();
        (span >= MIN_SPAN).then_some((grown as f64 * minutes) as i64)
    }
}

/// How rows are sorted and filtered.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// What the rows are.
    pub kind: Kind,
    /// Column to sort by: the largest first, but names and ids ascending.
    pub sort: Column,
    /// Whether the order is reversed.
    pub is_reversed: bool,
    /// Only rows with this in their name or group, or as their id; all rows if it is empty.
    pub filter: &'a str,
}

/// The rows of a survey.
pub fn arrange(
    survey: &Survey,
    history: &History,
    ledgers: &HashMap<Key, LedgerSums>,
    order: Order<'_>,
) -> Vec<Row> {
    let mut rows: Vec<Row> = match order.kind {
        Kind::Groups => survey.groups.iter().map(|(name, sum)| of_group(name, sum, history)).collect(),
        Kind::List | Kind::Tree => {
            survey.processes.iter().map(|one| of_process(one, history, ledgers.get(&one.key))).collect()
        }
    };
    // Sorting is stable: equal rows stay sorted by RSS, or by its reverse.
    match order.sort {
        Column::Pid => rows.sort_by_key(|row| (row.pid, Reverse(row.processes))),
        Column::Rss => rows.sort_by_key(|row| Reverse(row.rss_bytes)),
        Column::Pss => rows.sort_by_key(|row| Reverse(row.pss_bytes)),
        Column::Growth => rows.sort_by_key(|row| Reverse(row.growth_bytes)),
        Column::Stranded => rows.sort_by_key(|row| Reverse(row.ledger.map(|sums| sums.stranded_bytes))),
        Column::Pinned => rows.sort_by_key(|row| Reverse(row.ledger.map(|sums| sums.pinned_bytes))),
        Column::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
    }
    if order.is_reversed {
        rows.reverse();
        // What is unknown is neither large nor small: it stays last.
        rows.sort_by_key(|row| match order.sort {
            Column::Pss => row.pss_bytes.is_none(),
            Column::Growth => row.growth_bytes.is_none(),
            Column::Stranded | Column::Pinned => row.ledger.is_none(),
            Column::Pid | Column::Rss | Column::Name => false,
        });
    }
    let wanted = order.filter.to_lowercase();
    if order.kind == Kind::Tree {
        return tree(rows, &wanted);
    }
    rows.retain(|row| matches(row, &wanted));
    rows
}

fn of_process(one: &ProcessFigures, history: &History, ledger: Option<&LedgerSums>) -> Row {
    let id = Id::Process(one.key);
    Row {
        growth_bytes: history.growth(&id),
        id,
        pid: Some(one.key.pid),
        parent: one.parent,
        depth: 0,
        name: one.name.replace('\n', " "),
        group: one.group.clone(),
        processes: 1,
        rss_bytes: one.figures.rss_bytes,
        pss_bytes: one.pss.bytes(),
        ledger: ledger.copied(),
    }
}

fn of_group(name: &str, sum: &strandline_survey::survey::Sum, history: &History) -> Row {
    let id = Id::Group(name.to_owned());
    Row {
        growth_bytes: history.growth(&id),
        id,
        pid: None,
        parent: 0,
        depth: 0,
        name: name.to_owned(),
        group: Some(name.to_owned()),
        processes: sum.processes,
        rss_bytes: sum.rss_bytes,
        pss_bytes: sum.pss_bytes,
        ledger: None,
    }
}

/// Whether a row contains `wanted`, which is in lower case.
fn matches(row: &Row, wanted: &str) -> bool {
    wanted.is_empty()
        || row.name.to_lowercase().contains(wanted)
        || row.pid.is_some_and(|pid| pid.to_string() == wanted)
        || row.group.as_ref().is_some_and(|group| group.to_lowercase().contains(wanted))
}

/// Maximum depth that is drawn.
const MAX_DEPTH: usize = 64;

/// Puts rows below their parents, with siblings in their order. If something is wanted, keeps only
/// rows that match and their ancestors.
fn tree(rows: Vec<Row>, wanted: &str) -> Vec<Row> {
    let parents: HashMap<i32, i32> = rows.iter().filter_map(|row| Some((row.pid?, row.parent))).collect();
    let mut kept: HashSet<i32> = HashSet::new();
    for row in rows.iter().filter(|row| matches(row, wanted)) {
        let mut at = row.pid;
        while let Some(pid) = at.filter(|pid| kept.insert(*pid)) {
            at = parents.get(&pid).copied().filter(|parent| parents.contains_key(parent));
        }
    }
    let mut children: HashMap<i32, Vec<Row>> = HashMap::new();
    let mut roots = Vec::new();
    for row in rows.into_iter().filter(|row| row.pid.is_some_and(|pid| kept.contains(&pid))) {
        match parents.contains_key(&row.parent) && Some(row.parent) != row.pid {
            true => children.entry(row.parent).or_default().push(row),
            false => roots.push(row),
        }
    }
    let mut all = Vec::new();
    // In reverse: the last one pushed is taken first.
    let mut left: Vec<Row> = roots.into_iter().rev().collect();
    loop {
        while let Some(row) = left.pop() {
            let below = row.pid.and_then(|pid| children.remove(&pid)).unwrap_or_default();
            let depth = (row.depth + 1).min(MAX_DEPTH);
            left.extend(below.into_iter().rev().map(|child| Row { depth, ..child }));
            all.push(row);
        }
        // Ids that were reused while they were read may form a cycle, which is below no root.
        let Some(pid) = children.keys().min().copied() else { return all };
        left.extend(children.remove(&pid).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use strandline_survey::figures::{Figures, Pss};

    use super::*;

    fn shown(pid: i32, parent: i32, name: &str, rss_bytes: u64) -> ProcessFigures {
        let figures = Figures { rss_bytes, ..Figures::default() };
        let group = Some(format!("/group-{}", pid % 2));
        ProcessFigures {
            key: Key { pid, start_ticks: 1 },
            parent,
            name: name.to_owned(),
            group,
            figures,
            pss: Pss::Unknown,
        }
    }

    fn survey(at: Instant, processes: Vec<ProcessFigures>) -> Survey {
        Survey { at, took: Duration::ZERO, processes, others: None, groups: Vec::new(), summed_groups: 0 }
    }

    const BY_RSS: Order<'_> = Order { kind: Kind::List, sort: Column::Rss, is_reversed: false, filter: "" };

    fn ids(survey: &Survey, history: &History, order: Order<'_>) -> Vec<(i32, usize)> {
        let rows = arrange(survey, history, &HashMap::new(), order);
        rows.iter().map(|row| (row.pid.unwrap_or(0), row.depth)).collect()
    }

    fn family() -> Vec<ProcessFigures> {
        vec![
            shown(1, 0, "init", 10),
            shown(2, 1, "shell", 5),
            shown(3, 2, "server\nx", 900),
            shown(4, 1, "other", 40),
            shown(8, 9, "ring", 1),
            shown(9, 8, "ring", 2),
        ]
    }

    #[test]
    fn rows_are_in_order_and_filtered() {
        let survey = survey(Instant::now(), family());
        let history = History::default();
        let of = |order| ids(&survey, &history, order).into_iter().map(|(pid, _)| pid).collect::<Vec<_>>();
        assert_eq!(of(BY_RSS), [3, 4, 1, 2, 9, 8]);
        assert_eq!(of(Order { is_reversed: true, ..BY_RSS }), [8, 9, 2, 1, 4, 3]);
        assert_eq!(of(Order { sort: Column::Pid, ..BY_RSS }), [1, 2, 3, 4, 8, 9]);
        assert_eq!(of(Order { sort: Column::Name, ..BY_RSS })[0], 1);
        assert_eq!(of(Order { filter: "SER", ..BY_RSS }), [3]);
        assert_eq!(of(Order { filter: "/group-1", ..BY_RSS }), [3, 1, 9]);
        assert_eq!(of(Order { filter: "4", ..BY_RSS }), [4]);
    }

    #[test]
    fn unknown_figures_are_last_in_either_order() {
        let at = Instant::now();
        let mut processes = family();
        processes[3].pss = Pss::Known(7, at);
        processes[4].pss = Pss::Known(3, at);
        let survey = survey(at, processes);
        let sums = |stranded_bytes| LedgerSums { at, stranded_bytes, pinned_bytes: stranded_bytes };
        let ledgers = [(4, 7), (8, 3)].map(|(pid, bytes)| (Key { pid, start_ticks: 1 }, sums(bytes)));
        let ledgers = HashMap::from(ledgers);
        for sort in [Column::Pss, Column::Stranded, Column::Pinned] {
            for (is_reversed, known) in [(false, [4, 8]), (true, [8, 4])] {
                let order = Order { sort, is_reversed, ..BY_RSS };
                let rows = arrange(&survey, &History::default(), &ledgers, order);
                let first: Vec<_> = rows.iter().take(2).filter_map(|row| row.pid).collect();
                assert_eq!(first, known, "{sort:?}");
            }
        }
    }

    #[test]
    fn a_tree_keeps_ancestors_and_survives_rings() {
        let survey = survey(Instant::now(), family());
        let history = History::default();
        let order = Order { kind: Kind::Tree, ..BY_RSS };
        let all = ids(&survey, &history, order);
        assert_eq!(all[..4], [(1, 0), (4, 1), (2, 1), (3, 2)]);
        let mut ring: Vec<i32> = all[4..].iter().map(|(pid, _)| *pid).collect();
        ring.sort_unstable();
        assert_eq!(ring, [8, 9]);
        assert_eq!(ids(&survey, &history, Order { filter: "server", ..order }), [(1, 0), (2, 1), (3, 2)]);
    }

    #[test]
    fn growth_is_that_of_a_minute() {
        let began = Instant::now();
        let mut history = History::default();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut growth = |seconds, rss| {
            let now = survey(at(seconds), vec![shown(1, 0, "x", rss)]);
            history.add(&now);
            arrange(&now, &history, &HashMap::new(), BY_RSS)[0].growth_bytes
        };
        assert_eq!(growth(0, 1000), None);
        assert_eq!(growth(30, 1500), Some(1000));
        assert_eq!(growth(60, 1000), Some(0));
        assert_eq!(growth(90, 500), Some(-1000));
    }
}
