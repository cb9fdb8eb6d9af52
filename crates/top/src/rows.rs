//! The rows of the table: processes or control groups with their growth, sorted, filtered, or as a
//! tree.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use strandline_survey::Survey;
use strandline_survey::select::Key;
use strandline_survey::survey::{ProcessFigures, Sum};

/// The columns, from left to right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Column {
    /// Process id, or number of processes in a group.
    Pid,
    /// RSS.
    #[default]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Processes as a list.
    #[default]
    List,
    /// Processes below their parents.
    Tree,
    /// Control groups.
    Groups,
}

/// Identity of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RowId {
    /// A process.
    Process(Key),
    /// A control group, by its path.
    Group(String),
}

/// Results of the last ledger of a process.
#[derive(Clone, Copy, Debug)]
pub struct LedgerSums {
    /// When it was taken.
    pub at: Instant,
    /// Stranded bytes.
    pub stranded_bytes: u64,
    /// Pinned bytes.
    pub pinned_bytes: u64,
}

/// A row: a process or a control group.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its identity.
    pub id: RowId,
    /// Process id, if it is a process.
    pub pid: Option<i32>,
    /// Process id of its parent (0 for none), if it is a process.
    pub parent: Option<i32>,
    /// Number of ancestors shown above it.
    pub depth: usize,
    /// Name of the process or the group.
    pub name: String,
    /// Path of the control group, if known.
    pub group: Option<String>,
    /// Number of processes.
    pub processes: u64,
    /// RSS; shared pages of a group count for each process.
    pub rss_bytes: u64,
    /// PSS, if known; that of a group only if those of all its processes are.
    pub pss_bytes: Option<u64>,
    /// Anonymous memory, if the kernel reports it.
    pub anonymous_bytes: Option<u64>,
    /// Growth of RSS, once it was measured.
    pub growth_bytes_per_minute: Option<i64>,
    /// Results of its last ledger, if one was taken.
    pub ledger: Option<LedgerSums>,
}

/// Growth is measured over the last minute, or as much of it as is known.
const GROWTH_SPAN: Duration = Duration::from_secs(60);
/// Growth is not shown for a shorter time than this: a little less than the shortest interval, of a
/// second.
const MIN_GROWTH_SPAN: Duration = Duration::from_millis(900);

/// RSS of a row at one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    rss_bytes: u64,
}

/// RSS of each row over the last minute.
#[derive(Debug, Default)]
pub struct History {
    samples: HashMap<RowId, VecDeque<Sample>>,
}

impl History {
    /// Adds a survey; drops the rows that it does not have.
    pub fn add(&mut self, survey: &Survey) {
        let of_process = |process: &ProcessFigures| (RowId::Process(process.key), process.figures.rss_bytes);
        let processes = survey.processes.iter().map(of_process);
        let groups =
            survey.groups.iter().map(|group| (RowId::Group(group.path.clone()), group.sum.rss_bytes));
        let mut old_samples = std::mem::take(&mut self.samples);
        for (id, rss_bytes) in processes.chain(groups) {
            let mut samples = old_samples.remove(&id).unwrap_or_default();
            samples.push_back(Sample { at: survey.at, rss_bytes });
            while samples.front().is_some_and(|sample| survey.at.duration_since(sample.at) > GROWTH_SPAN) {
                samples.pop_front();
            }
            self.samples.insert(id, samples);
        }
    }

    /// Growth of RSS in bytes per minute; `None` while it is known for less than
    /// [`MIN_GROWTH_SPAN`].
    fn growth(&self, id: &RowId) -> Option<i64> {
        let samples = self.samples.get(id)?;
        let (earliest, latest) = (samples.front()?, samples.back()?);
        let span = latest.at.duration_since(earliest.at);
        let growth_bytes =
            i64::try_from(latest.rss_bytes).ok()?.checked_sub(i64::try_from(earliest.rss_bytes).ok()?)?;
        let spans_per_minute = GROWTH_SPAN.as_secs_f64() / span.as_secs_f64();
        (span >= MIN_GROWTH_SPAN).then_some((growth_bytes as f64 * spans_per_minute) as i64)
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

/// The rows of a survey, in the order of the screen.
pub fn arrange(
    survey: &Survey,
    history: &History,
    ledgers: &HashMap<Key, LedgerSums>,
    order: Order<'_>,
) -> Vec<Row> {
    let mut rows: Vec<Row> = match order.kind {
        Kind::Groups => {
            survey.groups.iter().map(|group| group_row(&group.path, &group.sum, history)).collect()
        }
        Kind::List | Kind::Tree => {
            let row = |process: &ProcessFigures| process_row(process, history, ledgers.get(&process.key));
            survey.processes.iter().map(row).collect()
        }
    };
    // Sorting is stable: equal rows stay sorted by RSS, or by its reverse.
    match order.sort {
        Column::Pid => rows.sort_by_key(|row| (row.pid, Reverse(row.processes))),
        Column::Rss => rows.sort_by_key(|row| Reverse(row.rss_bytes)),
        Column::Pss => rows.sort_by_key(|row| Reverse(row.pss_bytes)),
        Column::Growth => rows.sort_by_key(|row| Reverse(row.growth_bytes_per_minute)),
        Column::Stranded => rows.sort_by_key(|row| Reverse(row.ledger.map(|sums| sums.stranded_bytes))),
        Column::Pinned => rows.sort_by_key(|row| Reverse(row.ledger.map(|sums| sums.pinned_bytes))),
        Column::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
    }
    if order.is_reversed {
        rows.reverse();
        // What is unknown is neither large nor small: it stays last.
        rows.sort_by_key(|row| match order.sort {
            Column::Pss => row.pss_bytes.is_none(),
            Column::Growth => row.growth_bytes_per_minute.is_none(),
            Column::Stranded | Column::Pinned => row.ledger.is_none(),
            Column::Pid | Column::Rss | Column::Name => false,
        });
    }
    let filter = order.filter.to_lowercase();
    if order.kind == Kind::Tree {
        return tree(rows, &filter);
    }
    rows.retain(|row| matches(row, &filter));
    rows
}

fn process_row(process: &ProcessFigures, history: &History, ledger: Option<&LedgerSums>) -> Row {
    let id = RowId::Process(process.key);
    Row {
        growth_bytes_per_minute: history.growth(&id),
        id,
        pid: Some(process.key.pid),
        parent: Some(process.parent),
        depth: 0,
        name: process.name.replace('\n', " "),
        group: process.group.clone(),
        processes: 1,
        rss_bytes: process.figures.rss_bytes,
        pss_bytes: process.pss.bytes(),
        anonymous_bytes: process.figures.anonymous_bytes,
        ledger: ledger.copied(),
    }
}

fn group_row(name: &str, sum: &Sum, history: &History) -> Row {
    let id = RowId::Group(name.to_owned());
    Row {
        growth_bytes_per_minute: history.growth(&id),
        id,
        pid: None,
        parent: None,
        depth: 0,
        name: name.to_owned(),
        group: Some(name.to_owned()),
        processes: sum.processes,
        rss_bytes: sum.rss_bytes,
        pss_bytes: sum.pss_bytes,
        anonymous_bytes: sum.anonymous_bytes,
        ledger: None,
    }
}

/// Whether a row contains `filter`, which is in lower case.
fn matches(row: &Row, filter: &str) -> bool {
    filter.is_empty()
        || row.name.to_lowercase().contains(filter)
        || row.pid.is_some_and(|pid| pid.to_string() == filter)
        || row.group.as_ref().is_some_and(|group| group.to_lowercase().contains(filter))
}

/// Maximum depth that is drawn.
const MAX_DEPTH: usize = 64;

/// Puts rows below their parents, with siblings in their order. Keeps only rows that match `filter`
/// and their ancestors.
fn tree(rows: Vec<Row>, filter: &str) -> Vec<Row> {
    let parents: HashMap<i32, i32> = rows.iter().filter_map(|row| Some((row.pid?, row.parent?))).collect();
    let mut shown_pids: HashSet<i32> = HashSet::new();
    for row in rows.iter().filter(|row| matches(row, filter)) {
        let mut ancestor = row.pid;
        while let Some(pid) = ancestor.filter(|pid| shown_pids.insert(*pid)) {
            ancestor = parents.get(&pid).copied().filter(|parent| parents.contains_key(parent));
        }
    }
    let mut children: HashMap<i32, Vec<Row>> = HashMap::new();
    let mut roots = Vec::new();
    for row in rows.into_iter().filter(|row| row.pid.is_some_and(|pid| shown_pids.contains(&pid))) {
        match row.parent.filter(|parent| parents.contains_key(parent) && row.parent != row.pid) {
            Some(parent) => children.entry(parent).or_default().push(row),
            None => roots.push(row),
        }
    }
    let mut ordered = Vec::new();
    // In reverse: the last one pushed is taken first.
    let mut pending: Vec<Row> = roots.into_iter().rev().collect();
    loop {
        while let Some(row) = pending.pop() {
            let child_rows = row.pid.and_then(|pid| children.remove(&pid)).unwrap_or_default();
            let depth = (row.depth + 1).min(MAX_DEPTH);
            pending.extend(child_rows.into_iter().rev().map(|child| Row { depth, ..child }));
            ordered.push(row);
        }
        // Ids that were reused while they were read may form a cycle, which is below no root.
        let Some(pid) = children.keys().min().copied() else { return ordered };
        pending.extend(children.remove(&pid).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use strandline_survey::figures::{Figures, Pss};

    use super::*;

    fn process(pid: i32, parent: i32, name: &str, rss_bytes: u64) -> ProcessFigures {
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
        Survey {
            at,
            duration: Duration::ZERO,
            processes,
            others: None,
            groups: Vec::new(),
            summed_groups: 0,
            unread_processes: 0,
        }
    }

    const BY_RSS: Order<'_> = Order { kind: Kind::List, sort: Column::Rss, is_reversed: false, filter: "" };

    fn ids(survey: &Survey, history: &History, order: Order<'_>) -> Vec<(i32, usize)> {
        let rows = arrange(survey, history, &HashMap::new(), order);
        rows.iter().map(|row| (row.pid.unwrap_or(0), row.depth)).collect()
    }

    fn family() -> Vec<ProcessFigures> {
        vec![
            process(1, 0, "init", 10),
            process(2, 1, "shell", 5),
            process(3, 2, "server\nx", 900),
            process(4, 1, "other", 40),
            process(8, 9, "ring", 1),
            process(9, 8, "ring", 2),
        ]
    }

    #[test]
    fn rows_are_in_order_and_filtered() {
        let survey = survey(Instant::now(), family());
        let history = History::default();
        let pids = |order| ids(&survey, &history, order).into_iter().map(|(pid, _)| pid).collect::<Vec<_>>();
        assert_eq!(pids(BY_RSS), [3, 4, 1, 2, 9, 8]);
        assert_eq!(pids(Order { is_reversed: true, ..BY_RSS }), [8, 9, 2, 1, 4, 3]);
        assert_eq!(pids(Order { sort: Column::Pid, ..BY_RSS }), [1, 2, 3, 4, 8, 9]);
        assert_eq!(pids(Order { sort: Column::Name, ..BY_RSS })[0], 1);
        assert_eq!(pids(Order { filter: "SER", ..BY_RSS }), [3]);
        assert_eq!(pids(Order { filter: "/group-1", ..BY_RSS }), [3, 1, 9]);
        assert_eq!(pids(Order { filter: "4", ..BY_RSS }), [4]);
    }

    #[test]
    fn unknown_figures_are_last_in_either_order() {
        let at = Instant::now();
        let mut processes = family();
        processes[3].pss = Pss::Read { bytes: 7, at };
        processes[4].pss = Pss::Read { bytes: 3, at };
        let survey = survey(at, processes);
        let sums = |stranded_bytes| LedgerSums { at, stranded_bytes, pinned_bytes: stranded_bytes };
        let ledgers = [(4, 7), (8, 3)].map(|(pid, bytes)| (Key { pid, start_ticks: 1 }, sums(bytes)));
        let ledgers = HashMap::from(ledgers);
        for sort in [Column::Pss, Column::Stranded, Column::Pinned] {
            for (is_reversed, expected) in [(false, [4, 8]), (true, [8, 4])] {
                let order = Order { sort, is_reversed, ..BY_RSS };
                let rows = arrange(&survey, &History::default(), &ledgers, order);
                let first_pids: Vec<_> = rows.iter().take(2).filter_map(|row| row.pid).collect();
                assert_eq!(first_pids, expected, "{sort:?}");
            }
        }
    }

    #[test]
    fn a_tree_keeps_ancestors_and_survives_rings() {
        let survey = survey(Instant::now(), family());
        let history = History::default();
        let order = Order { kind: Kind::Tree, ..BY_RSS };
        let all_rows = ids(&survey, &history, order);
        assert_eq!(all_rows[..4], [(1, 0), (4, 1), (2, 1), (3, 2)]);
        let mut ring: Vec<i32> = all_rows[4..].iter().map(|(pid, _)| *pid).collect();
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
            let now = survey(at(seconds), vec![process(1, 0, "x", rss)]);
            history.add(&now);
            arrange(&now, &history, &HashMap::new(), BY_RSS)[0].growth_bytes_per_minute
        };
        assert_eq!(growth(0, 1000), None);
        assert_eq!(growth(30, 1500), Some(1000));
        assert_eq!(growth(60, 1000), Some(0));
        assert_eq!(growth(90, 500), Some(-1000));
    }
}
