//! The screen of a control group: the answer first, then parts and rows, then limits and events.

use std::collections::{BTreeMap, BTreeSet};

use strandline_claims::add_fields;
use strandline_inspect::facts::Totals;
use strandline_inspect::group::advice::Advice;
use strandline_inspect::group::facts::{
    GroupExplanation, GroupFigures, GroupKill, GroupProcess, GroupRemedy, GroupRow,
};
use strandline_inspect::group::verdict::{self, Sums};

use super::bars::part_text;
use super::brief::{ImportantCaveats, NextCommand, Release, cost_line};
use super::model;
use super::table::{Column, figures, lay_out, words};
use super::terminal::{faint, joined, listed, next_commands, releases, strong, table_lines, two_ends};
use super::text::{clean, counted, hanging, listed_by_verbose, pad_right, shorten, width, wrap_at_most};
use super::units::{bytes, maybe_bytes, percent_of, thousands, whole_percent};
use crate::paint::Surface;

/// Maximum number of lines of the answer of a default screen.
const MAX_ANSWER_LINES: usize = 7;
/// Maximum number of large rows of a default screen.
const MAX_ROWS: usize = 10;
/// Maximum number of lines with the sums of smaller rows of one id.
const MAX_SUMS: usize = 2;
const MAX_REMEDIES: usize = 3;
/// Maximum number of kills that are shown.
const MAX_KILLS: usize = 3;
/// Rows below 1/`MIN_ROW_DIVISOR` of the charge are summed.
const MIN_ROW_DIVISOR: u64 = 200;
/// Commands that look into processes are shown if these hold more than 1/`MIN_PROCESSES_DIVISOR` of
/// the charge.
const MIN_PROCESSES_DIVISOR: u64 = 5;
/// Width of the name of a kind of memory, or of a line of limits.
const NAME_COLUMNS: usize = 13;
/// Minimum width of the group's path in the heading.
const MIN_PATH_COLUMNS: usize = 16;

/// The screen, with a final newline.
pub fn screen(explanation: &GroupExplanation, shows_all: bool, surface: Surface) -> String {
    let cgroup = &explanation.cgroup;
    let mut lines = heading(explanation, surface);
    let important = ImportantCaveats::of(&explanation.caveats, cgroup.current_bytes);
    let sentences = important.sentences.into_iter().map(|sentence| sentence + ".");
    let answer: Vec<String> =
        std::iter::once(clean(&explanation.verdict.headline)).chain(sentences).collect();
    let max_lines = if shows_all { usize::MAX } else { MAX_ANSWER_LINES };
    lines.extend(strong(&wrap_at_most(&answer.join(" "), surface.columns, max_lines), surface));
    lines.push(String::new());
    lines.extend(sums(&verdict::sums(&explanation.rows), cgroup.current_bytes));
    lines.extend(states(&explanation.processes, surface));
    lines.push(String::new());
    lines.extend(rows(explanation, shows_all, surface));
    lines.push(String::new());
    lines.extend(limits(explanation, surface));
    let remedies = remedies(explanation);
    let shown_count = if shows_all { remedies.len() } else { remedies.len().min(MAX_REMEDIES) };
    let (shown, hidden) = remedies.split_at(shown_count);
    lines.extend(releases(shown, hidden.len(), usize::MAX, surface));
    if shows_all {
        lines.extend(details(explanation, surface));
    }
    lines.push(String::new());
    lines.extend(next_commands(&commands(explanation, shows_all), surface));
    let hidden_caveats = if shows_all { 0 } else { important.other_count };
    let cost = &explanation.cost;
    lines.extend(faint(&[cost_line(cost.stopped_seconds, cost.wall_seconds, None, hidden_caveats)], surface));
    joined(&lines)
}

/// `limit 48.0 MiB`, or why there is no figure. `unread_path` is the group whose limit could not be
/// read.
pub(crate) fn limit_text(limit_bytes: Option<u64>, unread_path: Option<&str>) -> String {
    match (limit_bytes, unread_path) {
        (Some(limit), _) => format!("limit {}", bytes(limit)),
        (None, Some(_)) => "limit unknown".to_owned(),
        (None, None) => "no limit".to_owned(),
    }
}

/// Name, limit, charge.
fn heading(explanation: &GroupExplanation, surface: Surface) -> Vec<String> {
    let cgroup = &explanation.cgroup;
    let killed = match cgroup.events.oom_kill {
        None | Some(0) => None,
        Some(1) => Some("OOM-killed once".to_owned()),
        Some(kills) => Some(format!("OOM-killed {} times", thousands(kills))),
    };
    let limit = limit_text(cgroup.effective_limit_bytes, cgroup.unread_limit_path.as_deref());
    let under_oom = (cgroup.events.under_oom == Some(true)).then(|| "out of memory now".to_owned());
    let facts: Vec<String> = [Some(limit), killed, under_oom].into_iter().flatten().collect();
    let facts = facts.join(", ");
    let charge = format!("{} charged", bytes(cgroup.current_bytes));
    // What stands beside the path, with a gap of two.
    let other_columns = width("cgroup  ()") + width(&facts) + 2 + width(&charge);
    let path_columns = surface.columns.saturating_sub(other_columns).max(MIN_PATH_COLUMNS);
    let path = shorten(&clean(&explanation.target.path), path_columns);
    let mut lines = two_ends(&format!("cgroup {path} ({facts})"), &charge, surface);
    lines.push(String::new());
    lines
}

/// The kinds of memory, a line each.
fn sums(sums: &Sums, charge_bytes: u64) -> Vec<String> {
    let mut kinds = [
        ("processes", sums.processes_bytes),
        ("shared memory", sums.shared_bytes),
        ("page cache", sums.cache_bytes),
        ("kernel", sums.kernel_bytes),
        ("charge stock", sums.stock_bytes),
        ("unattributed", sums.unknown_bytes),
    ];
    kinds.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    let present = kinds.iter().filter(|(_, size)| *size > 0);
    present.map(|&(name, size)| part_text(name, NAME_COLUMNS, size, charge_bytes)).collect()
}

/// The states of the processes whose ledgers were taken.
fn states(processes: &[GroupProcess], surface: Surface) -> Vec<String> {
    let mut sum = Totals::default();
    let ledgers: Vec<Totals> =
        processes.iter().filter_map(|process| process.ledger).map(|ledger| ledger.totals).collect();
    if ledgers.is_empty() {
        return Vec::new();
    }
    for totals in ledgers {
        add_fields!(saturating sum, totals: live, stranded, pinned, evictable, unattributed);
    }
    let other_bytes = bytes(sum.evictable.saturating_add(sum.unattributed));
    let [live, stranded, pinned] = [sum.live, sum.stranded, sum.pinned].map(bytes);
    let states = format!("live {live} · stranded {stranded} · pinned {pinned} · other {other_bytes}");
    hanging("  processes: ", &states, surface.columns)
}

/// What gives memory back, with what to type.
fn remedies(explanation: &GroupExplanation) -> Vec<Release> {
    let min_bytes = explanation.cgroup.current_bytes / MIN_ROW_DIVISOR;
    let is_useful = |remedy: &&GroupRemedy| remedy.predicted_bytes.is_none_or(|size| size > min_bytes);
    let group = clean(&explanation.target.arguments);
    let release = |remedy: &GroupRemedy| {
        let id = clean(&remedy.id);
        // Calls are chosen for each process if no remedy is named.
        let option = if remedy.kind == "call" { String::new() } else { format!(" --remedy {id}") };
        let predicted = remedy.predicted_bytes.map_or("unknown".to_owned(), bytes);
        Release { id, predicted, how: format!("strandline reclaim {group}{option}") }
    };
    explanation.remedies.iter().filter(is_useful).map(release).collect()
}

const HEAD: [Column; 5] =
    [figures("bytes"), figures("share"), words("state"), words("row"), words("what it is")];

/// The ledger: all rows, or the largest. Sums the others by id, and shows large sums.
fn rows(explanation: &GroupExplanation, shows_all: bool, surface: Surface) -> Vec<String> {
    let charge_bytes = explanation.cgroup.current_bytes;
    let cells: Vec<Vec<String>> = if shows_all {
        explanation.rows.iter().map(|row| RowSum::new(row).cells(charge_bytes, true)).collect()
    } else {
        large_rows(&explanation.rows, charge_bytes)
    };
    table_lines(lay_out(&HEAD, &cells, 4, surface.columns), surface)
}

/// The cells of the largest rows, of sums of smaller ones by id, and of the sum of the rest.
fn large_rows(rows: &[GroupRow], charge_bytes: u64) -> Vec<Vec<String>> {
    let min_bytes = charge_bytes / MIN_ROW_DIVISOR;
    let is_large = |line: &&RowSum<'_>| line.bytes >= min_bytes;
    // Workers hold much the same: the rows of their ledgers are added up.
    let (of_ledgers, mut lines): (Vec<RowSum<'_>>, Vec<RowSum<'_>>) =
        rows.iter().map(RowSum::new).partition(|line| line.is_of_ledger());
    lines.extend(sums_by_id(of_ledgers));
    sort_by_size(&mut lines);
    let large_count = lines.iter().take(MAX_ROWS).take_while(is_large).count();
    let mut sums = sums_by_id(lines.split_off(large_count));
    sort_by_size(&mut sums);
    let small = sums.split_off(sums.iter().take(MAX_SUMS).take_while(is_large).count());
    lines.extend(sums);
    sort_by_size(&mut lines);
    let mut cells: Vec<Vec<String>> = lines.iter().map(|line| line.cells(charge_bytes, false)).collect();
    let row_count: u64 = small.iter().map(|line| line.row_count).sum();
    let size = small.iter().fold(0_u64, |size, line| size.saturating_add(line.bytes));
    if row_count > 0 {
        let (share, name) = (whole_percent(size, charge_bytes), counted(row_count, "smaller row"));
        cells.push(vec![bytes(size), share, String::new(), name, listed_by_verbose(row_count).to_owned()]);
    }
    cells
}

fn sort_by_size(lines: &mut [RowSum<'_>]) {
    lines.sort_by_key(|line| std::cmp::Reverse(line.bytes));
}

/// Adds up lines of one id.
fn sums_by_id(lines: Vec<RowSum<'_>>) -> Vec<RowSum<'_>> {
    let mut sums: BTreeMap<&str, RowSum<'_>> = BTreeMap::new();
    for line in lines {
        match sums.get_mut(line.first_row.id.as_str()) {
            Some(sum) => sum.add(line),
            None => drop(sums.insert(&line.first_row.id, line)),
        }
    }
    sums.into_values().collect()
}

/// Rows that are shown as one line.
#[derive(Clone)]
struct RowSum<'a> {
    row_count: u64,
    bytes: u64,
    /// Its first row, of which the others only differ in holder or process.
    first_row: &'a GroupRow,
    /// The processes that the rows are of.
    pids: BTreeSet<i32>,
}

impl<'a> RowSum<'a> {
    fn new(row: &'a GroupRow) -> Self {
        Self { row_count: 1, bytes: row.bytes, first_row: row, pids: row.pid.into_iter().collect() }
    }

    fn add(&mut self, other: Self) {
        self.row_count += other.row_count;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.pids.extend(other.pids);
    }

    /// Whether it is of the ledger of a process.
    fn is_of_ledger(&self) -> bool {
        self.first_row.pid.is_some() && !self.first_row.id.starts_with("group.")
    }

    /// Its state; of memory of a process without a ledger it is not known how much is in use.
    fn state(&self) -> &'static str {
        if self.first_row.id == "group.anon" { "unread" } else { model::state_name(self.first_row.state) }
    }

    /// The cells of its line; see [`holder`] for `has_meaning`.
    fn cells(&self, charge_bytes: u64, has_meaning: bool) -> Vec<String> {
        let first_holder = holder(self.first_row, has_meaning);
        let holders = match self.pids.len() {
            _ if self.row_count == 1 => first_holder,
            1 if self.is_of_ledger() => first_holder,
            count if self.is_of_ledger() => format!("{count} processes, most {first_holder}"),
            _ => format!("{} smaller, such as {first_holder}", thousands(self.row_count)),
        };
        vec![
            bytes(self.bytes),
            whole_percent(self.bytes, charge_bytes),
            self.state().to_owned(),
            clean(&self.first_row.id),
            holders,
        ]
    }
}

/// The holder of a row: of a process's row `PROCESS: MEANING`, or `PROCESS` without its meaning.
fn holder(row: &GroupRow, has_meaning: bool) -> String {
    let holder = clean(&row.holder);
    match holder.split_once(": ") {
        Some((process, _)) if !has_meaning && row.pid.is_some() => process.to_owned(),
        _ => holder,
    }
}

/// Limits, working set, events and pressure.
fn limits(explanation: &GroupExplanation, surface: Surface) -> Vec<String> {
    let cgroup = &explanation.cgroup;
    let size = |name: &str, size: Option<u64>| size.map(|size| format!("{name} {}", bytes(size)));
    let is_unread = cgroup.unread_limit_path.as_ref() == Some(&cgroup.path);
    let own_limit = match cgroup.limit_bytes {
        Some(limit) => format!("limit {}", bytes(limit)),
        None if is_unread => "its own limit unknown".to_owned(),
        None => "no limit of its own".to_owned(),
    };
    let path_above = cgroup.effective_limit_path.as_ref().filter(|path| **path != cgroup.path);
    let limit_above =
        path_above.map(|path| format!("{} at {}", maybe_bytes(cgroup.effective_limit_bytes), clean(path)));
    let limits = [
        Some(own_limit),
        limit_above,
        size("high", cgroup.high_bytes),
        size("low", cgroup.low_bytes),
        size("soft", cgroup.soft_limit_bytes),
        size("peak", cgroup.peak_bytes),
        size("swap", cgroup.swap_bytes.filter(|&swap| swap > 0)),
    ];
    let working_set = [
        Some(format!(
            "{} (charge - inactive_file {})",
            maybe_bytes(cgroup.working_set_bytes),
            maybe_bytes(cgroup.inactive_file_bytes)
        )),
        size("active_file", cgroup.active_file_bytes),
        size("reclaimable", cgroup.reclaimable_bytes),
    ];
    let line = |name: &str, parts: &[Option<String>]| {
        let parts: Vec<&str> = parts.iter().flatten().map(String::as_str).collect();
        let text = if parts.is_empty() { "not counted".to_owned() } else { parts.join(" · ") };
        hanging(&pad_right(name, NAME_COLUMNS), &text, surface.columns)
    };
    let kills = explanation.kills.iter().take(MAX_KILLS);
    let killed = kills.flat_map(|kill| line("killed", &[Some(killed(kill, &cgroup.path))]));
    let lines = [line("limits", &limits), line("working set", &working_set), line("events", &events(cgroup))]
        .concat();
    lines.into_iter().chain(killed).collect()
}

/// Counts of events, and the pressure of the last minute.
fn events(cgroup: &GroupFigures) -> [Option<String>; 5] {
    let events = cgroup.events;
    let count = |name: &str, count: Option<u64>| count.map(|count| format!("{name} {}", thousands(count)));
    let pressure = cgroup.pressure.map(|pressure| {
        format!(
            "pressure some {} full {} of 60 s",
            percent_of(pressure.some_60),
            percent_of(pressure.full_60)
        )
    });
    [
        count("oom_kill", events.oom_kill),
        count("oom", events.oom),
        events.max.map(|times_met| {
            let name = if cgroup.version == 1 { "failcnt" } else { "max" };
            let meaning = if times_met > 0 { " (times the limit was met, also by page cache)" } else { "" };
            format!("{name} {}{meaning}", thousands(times_met))
        }),
        count("high", events.high),
        pressure,
    ]
}

/// A rounded age: the clock of the kernel's log drifts.
fn rounded_age(seconds: f64) -> String {
    let units = [("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)];
    let unit = units.into_iter().find(|(_, unit_seconds)| seconds >= *unit_seconds);
    let (name, unit_seconds) = unit.unwrap_or(("s", 1.0));
    format!("{:.0} {name}", seconds / unit_seconds)
}

/// `python3 (process 9238) 12 s ago: 47.8 MiB anonymous · 1.1 MiB files · the limit of …`.
fn killed(kill: &GroupKill, group: &str) -> String {
    let sizes =
        [("anonymous", kill.anonymous_bytes), ("files", kill.file_bytes), ("shared", kill.shmem_bytes)];
    let size_texts = sizes.into_iter().filter_map(|(kind, size)| Some(format!("{} {kind}", bytes(size?))));
    let limit = match &kill.limit_cgroup {
        None => "the whole machine was out of memory".to_owned(),
        Some(path) if path == group => "the limit of this group was met".to_owned(),
        Some(path) => format!("the limit of {} was met", clean(path)),
    };
    let facts: Vec<String> = size_texts.chain([limit]).collect();
    let (name, age) = (clean(&kill.name), rounded_age(kill.seconds_ago));
    format!("{name} (process {}) {age} ago: {}", kill.pid, facts.join(" · "))
}

/// Processes, groups below, caveats.
fn details(explanation: &GroupExplanation, surface: Surface) -> Vec<String> {
    let mut lines = Vec::new();
    if !explanation.processes.is_empty() {
        const HEAD: [Column; 5] =
            [words("process"), figures("RSS"), figures("anonymous share"), figures("swap"), words("group")];
        let cells = explanation.processes.iter().map(|process| {
            vec![
                format!("{} {}", process.pid, clean(&process.name)),
                maybe_bytes(process.rss_bytes),
                maybe_bytes(process.pss_anonymous_bytes),
                maybe_bytes(process.swap_bytes),
                clean(&process.cgroup),
            ]
        });
        lines.push(String::new());
        lines.extend(lay_out(&HEAD, &cells.collect::<Vec<_>>(), 4, surface.columns));
    }
    lines.extend(settings(&explanation.advice, surface));
    let groups: Vec<String> = explanation
        .groups
        .iter()
        .map(|group| format!("{} {}", maybe_bytes(group.current_bytes), clean(&group.path)))
        .collect();
    lines.extend(listed("groups below it (contained in the rows)", &groups, surface));
    lines.extend(listed("caveats", &model::caveats(&explanation.caveats), surface));
    lines
}

/// What to set, ready to paste.
pub fn settings(advice: &[Advice], surface: Surface) -> Vec<String> {
    let advice_lines = |advice: &Advice| {
        let text =
            hanging("", &format!("{}: {}", clean(&advice.system), clean(&advice.text)), surface.columns);
        let paste = format!("  {}", clean(&advice.paste));
        [vec![String::new()], text, vec![paste]].concat()
    };
    advice.iter().flat_map(advice_lines).collect()
}

/// What to type next.
fn commands(explanation: &GroupExplanation, shows_all: bool) -> Vec<NextCommand> {
    let group = clean(&explanation.target.arguments);
    let mut commands = Vec::new();
    let has_ledgers = explanation.rows.iter().any(|row| RowSum::new(row).is_of_ledger());
    let process_bytes = verdict::sums(&explanation.rows).processes_bytes;
    let is_large = process_bytes > explanation.cgroup.current_bytes / MIN_PROCESSES_DIVISOR;
    if !has_ledgers && is_large {
        let command = format!("strandline explain --ledgers {group}");
        commands.push(NextCommand::new(command, "what malloc keeps"));
    }
    if let Some(largest) = explanation.processes.first().filter(|_| is_large) {
        let command = format!("strandline explain {}", largest.pid);
        commands.push(NextCommand::new(command, "its largest process"));
    }
    if !shows_all {
        let ledgers = if has_ledgers { "--ledgers " } else { "" };
        let command = format!("strandline explain -v {ledgers}{group}");
        commands.push(NextCommand::new(command, "all rows, processes"));
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_shortened_to_a_heading_of_one_line() {
        let mut explanation = GroupExplanation::default();
        explanation.target.path = "/folder".repeat(30);
        let lines = heading(&explanation, Surface { columns: 80, has_colour: false });
        assert_eq!((lines.len(), width(&lines[0])), (2, 80), "{lines:?}");
    }
}
