//! The screen of a control group: the answer first, then parts and rows, then limits and events.

use std::collections::{BTreeMap, BTreeSet};

use strandline_claims::add_fields;
use strandline_inspect::facts::Totals;
use strandline_inspect::group::advice::Advice;
use strandline_inspect::group::facts::{GroupExplanation, GroupKill, GroupProcess, GroupRemedy, GroupRow};
use strandline_inspect::group::verdict::{self, Sums};

use super::brief::{Release, cost_line, important_caveats};
use super::model;
use super::table::{Column, figures, lay_out, words};
use super::terminal::{faint, joined, listed, next, releases, strong, table_lines, two_ends};
use super::text::{clean, hanging, pad_left, pad_right, shorten, width, wrap_at_most};
use super::units::{bytes, maybe_bytes, percent_of, thousands, whole_percent};
use crate::paint::Surface;

/// Maximum number of lines of the answer, of rows and of processes of a default screen.
const MAX_ANSWER_LINES: usize = 7;
const MAX_ROWS: usize = 10;
const MAX_FOLDED: usize = 2;
const MAX_REMEDIES: usize = 3;
/// Rows below 1/`MIN_ROW_DIVISOR` of the charge are summed.
const MIN_ROW_DIVISOR: u64 = 200;

/// The screen, with a final newline.
pub fn screen(explanation: &GroupExplanation, verbose: bool, surface: Surface) -> String {
    let cgroup = &explanation.cgroup;
    let mut lines = heading(explanation, surface);
    let (important, others) = important_caveats(&explanation.caveats, cgroup.current_bytes);
    let important = important.into_iter().map(|sentence| sentence + ".");
    let answer: Vec<String> =
        std::iter::once(clean(&explanation.verdict.headline)).chain(important).collect();
    let most = if verbose { usize::MAX } else { MAX_ANSWER_LINES };
    lines.extend(strong(&wrap_at_most(&answer.join(" "), surface.columns, most), surface));
    lines.push(String::new());
    lines.extend(sums(&verdict::sums(&explanation.rows), cgroup.current_bytes));
    lines.extend(states(&explanation.processes, surface));
    lines.push(String::new());
    lines.extend(rows(explanation, verbose, surface));
    lines.push(String::new());
    lines.extend(limits(explanation, surface));
    lines.extend(releases(&remedies(explanation), 0, surface));
    if verbose {
        lines.extend(details(explanation, surface));
    }
    lines.push(String::new());
    lines.extend(next(&commands(explanation, verbose, surface), surface));
    let caveats = if verbose { 0 } else { others };
    let cost = &explanation.cost;
    lines.extend(faint(&[cost_line(cost.stopped_seconds, cost.wall_seconds, None, caveats)], surface));
    joined(&lines)
}

/// Name, limit, charge.
fn heading(explanation: &GroupExplanation, surface: Surface) -> Vec<String> {
    let cgroup = &explanation.cgroup;
    let kills = cgroup.events.oom_kill.filter(|&kills| kills > 0);
    let killed =
        kills.map(|kills| format!("OOM-killed {} times", thousands(kills)).replace(" 1 times", " once"));
    let limit = cgroup
        .effective_limit_bytes
        .map_or_else(|| "no limit".to_owned(), |limit| format!("limit {}", bytes(limit)));
    let under = (cgroup.events.under_oom == Some(true)).then(|| "out of memory now".to_owned());
    let about: Vec<String> = [Some(limit), killed, under].into_iter().flatten().collect();
    let right = format!("{} charged", bytes(cgroup.current_bytes));
    let room = surface.columns.saturating_sub(right.len() + 2 + 9 + about.join(", ").len());
    let path = shorten(&clean(&explanation.target.path), room.max(16));
    let mut lines = two_ends(&format!("cgroup {path} ({})", about.join(", ")), &right, surface);
    lines.push(String::new());
    lines
}

/// The kinds of memory, a line each.
fn sums(sums: &Sums, whole: u64) -> Vec<String> {
    let mut all = [
        ("processes", sums.processes),
        ("shared memory", sums.shared),
        ("page cache", sums.cache),
        ("kernel", sums.kernel),
        ("charge stock", sums.stock),
        ("unattributed", sums.unknown),
    ];
    all.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    let lines = all.iter().filter(|(_, size)| *size > 0).map(|(name, size)| {
        format!(
            "  {}  {}  {}",
            pad_right(name, 13),
            pad_left(&bytes(*size), 8),
            pad_left(&whole_percent(*size, whole), 5)
        )
    });
    lines.collect()
}

/// The states of the processes whose ledgers were taken.
fn states(processes: &[GroupProcess], surface: Surface) -> Vec<String> {
    let mut sum = Totals::default();
    let ledgers: Vec<Totals> =
        processes.iter().filter_map(|one| one.ledger).map(|ledger| ledger.totals).collect();
    if ledgers.is_empty() {
        return Vec::new();
    }
    for totals in ledgers {
        add_fields!(saturating sum, totals: live, stranded, pinned, evictable, unattributed);
    }
    let other = bytes(sum.evictable.saturating_add(sum.unattributed));
    let [live, stranded, pinned] = [sum.live, sum.stranded, sum.pinned].map(bytes);
    let states = format!("live {live} · stranded {stranded} · pinned {pinned} · other {other}");
    hanging("  processes: ", &states, surface.columns)
}

/// What gives memory back, with what to type.
fn remedies(explanation: &GroupExplanation) -> Vec<Release> {
    let least = explanation.cgroup.current_bytes / MIN_ROW_DIVISOR;
    let is_useful = |remedy: &&GroupRemedy| remedy.predicted_bytes.is_none_or(|size| size > least);
    let group = clean(&explanation.target.arguments);
    let release = |remedy: &GroupRemedy| {
        let id = clean(&remedy.id);
        // Calls are chosen for each process if no remedy is named.
        let named = if remedy.kind == "call" { String::new() } else { format!(" --remedy {id}") };
        let predicted = remedy.predicted_bytes.map_or("unknown".to_owned(), bytes);
        Release { id, predicted, how: format!("strandline reclaim {group}{named}") }
    };
    explanation.remedies.iter().filter(is_useful).take(MAX_REMEDIES).map(release).collect()
}

const HEAD: [Column; 5] =
    [figures("bytes"), figures("share"), words("state"), words("row"), words("what it is")];

/// The ledger: all rows, or the largest. Sums the others by id, and shows large sums.
fn rows(explanation: &GroupExplanation, all: bool, surface: Surface) -> Vec<String> {
    let whole = explanation.cgroup.current_bytes;
    let cells: Vec<Vec<String>> = if all {
        explanation.rows.iter().map(|row| Folded::of(row).cells(whole, false)).collect()
    } else {
        large_rows(&explanation.rows, whole)
    };
    table_lines(lay_out(&HEAD, &cells, 4, surface.columns), surface)
}

fn large_rows(rows: &[GroupRow], whole: u64) -> Vec<Vec<String>> {
    let least = whole / MIN_ROW_DIVISOR;
    // Workers hold much the same: the rows of their ledgers are added up.
    let (of_ledgers, mut lines): (Vec<Folded<'_>>, Vec<Folded<'_>>) =
        rows.iter().map(Folded::of).partition(|line| line.is_of_ledger());
    lines.extend(by_id(of_ledgers));
    sort(&mut lines);
    let count = lines.iter().take(MAX_ROWS).take_while(|line| line.bytes >= least).count();
    let mut others = by_id(lines.split_off(count));
    sort(&mut others);
    let small =
        others.split_off(others.iter().take(MAX_FOLDED).take_while(|line| line.bytes >= least).count());
    lines.extend(others);
    sort(&mut lines);
    let mut cells: Vec<Vec<String>> = lines.iter().map(|line| line.cells(whole, true)).collect();
    let (count, size) = small
        .iter()
        .fold((0, 0_u64), |(count, size), line| (count + line.rows, size.saturating_add(line.bytes)));
    if count > 0 {
        let name = format!("{} smaller row{}", thousands(count), if count == 1 { "" } else { "s" });
        let share = whole_percent(size, whole);
        cells.push(vec![bytes(size), share, String::new(), name, "-v lists them".to_owned()]);
    }
    cells
}

fn sort(lines: &mut [Folded<'_>]) {
    lines.sort_by_key(|line| std::cmp::Reverse(line.bytes));
}

/// Adds up lines of one id.
fn by_id(lines: Vec<Folded<'_>>) -> Vec<Folded<'_>> {
    let mut sums: BTreeMap<&str, Folded<'_>> = BTreeMap::new();
    for line in lines {
        match sums.get_mut(line.first.id.as_str()) {
            Some(sum) => sum.join(line),
            None => drop(sums.insert(&line.first.id, line)),
        }
    }
    sums.into_values().collect()
}

/// Rows that are shown as one line.
#[derive(Clone)]
struct Folded<'a> {
    rows: u64,
    bytes: u64,
    first: &'a GroupRow,
    processes: BTreeSet<i32>,
}

impl<'a> Folded<'a> {
    fn of(row: &'a GroupRow) -> Self {
        Self { rows: 1, bytes: row.bytes, first: row, processes: row.pid.into_iter().collect() }
    }

    fn join(&mut self, other: Self) {
        self.rows += other.rows;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.processes.extend(other.processes);
    }

    /// Whether it is of the ledger of a process.
    fn is_of_ledger(&self) -> bool {
        self.first.pid.is_some() && !self.first.id.starts_with("group.")
    }

    /// Its state; of memory of a process without a ledger it is not known how much is in use.
    fn state(&self) -> &'static str {
        if self.first.id == "group.anon" { "unread" } else { model::state_name(self.first.state) }
    }

    fn cells(&self, whole: u64, is_short: bool) -> Vec<String> {
        let first = holder(self.first, is_short);
        let what = match self.processes.len() {
            _ if self.rows == 1 => first,
            1 if self.is_of_ledger() => first,
            count if self.is_of_ledger() => format!("{count} processes, most {first}"),
            _ => format!("{} smaller, such as {first}", thousands(self.rows)),
        };
        vec![
            bytes(self.bytes),
            whole_percent(self.bytes, whole),
            self.state().to_owned(),
            clean(&self.first.id),
            what,
        ]
    }
}

/// The holder of a row; for a process's row also its meaning, unless `is_short`.
fn holder(row: &GroupRow, is_short: bool) -> String {
    let holder = clean(&row.holder);
    match holder.split_once(": ") {
        Some((process, _)) if is_short && row.pid.is_some() => process.to_owned(),
        _ => holder,
    }
}

/// Limits, working set, events and pressure.
fn limits(explanation: &GroupExplanation, surface: Surface) -> Vec<String> {
    let cgroup = &explanation.cgroup;
    let size = |name: &str, known: Option<u64>| known.map(|known| format!("{name} {}", bytes(known)));
    let own = cgroup
        .limit_bytes
        .map_or_else(|| "no limit of its own".to_owned(), |limit| format!("limit {}", bytes(limit)));
    let above = cgroup.effective_limit_path.as_ref().filter(|path| **path != cgroup.path);
    let above = above.map(|path| format!("{} at {}", maybe_bytes(cgroup.effective_limit_bytes), clean(path)));
    let limits = [
        Some(own),
        above,
        size("high", cgroup.high_bytes),
        size("low", cgroup.low_bytes),
        size("soft", cgroup.soft_limit_bytes),
        size("peak", cgroup.peak_bytes),
        size("swap", cgroup.swap_bytes.filter(|&swap| swap > 0)),
    ];
    let sets = [
        Some(format!(
            "{} (charge - inactive_file {})",
            maybe_bytes(cgroup.working_set_bytes),
            maybe_bytes(cgroup.inactive_file_bytes)
        )),
        size("active_file", cgroup.active_file_bytes),
        size("reclaimable", cgroup.reclaimable_bytes),
    ];
    let events = cgroup.events;
    let count = |name: &str, known: Option<u64>| known.map(|known| format!("{name} {}", thousands(known)));
    let waited = cgroup.pressure.map(|pressure| {
        format!(
            "pressure some {} full {} of 60 s",
            percent_of(pressure.some_60),
            percent_of(pressure.full_60)
        )
    });
    let events = [
        count("oom_kill", events.oom_kill),
        count("oom", events.oom),
        events.max.map(|met| {
            let name = if cgroup.version == 1 { "failcnt" } else { "max" };
            let meaning = if met > 0 { " (times the limit was met, also by page cache)" } else { "" };
            format!("{name} {}{meaning}", thousands(met))
        }),
        count("high", events.high),
        waited,
    ];
    let line = |name: &str, parts: &[Option<String>]| {
        let parts: Vec<&str> = parts.iter().flatten().map(String::as_str).collect();
        let text = if parts.is_empty() { "not counted".to_owned() } else { parts.join(" · ") };
        hanging(&pad_right(name, 13), &text, surface.columns)
    };
    let kills = explanation.kills.iter().take(MAX_KILLS);
    let killed = kills.flat_map(|kill| line("killed", &[Some(killed(kill, &cgroup.path))]));
    let lines = [line("limits", &limits), line("working set", &sets), line("events", &events)].concat();
    lines.into_iter().chain(killed).collect()
}

/// Kills that are shown.
const MAX_KILLS: usize = 3;

/// A rounded age: the clock of the kernel's log drifts.
fn age(seconds: f64) -> String {
    let units = [("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)];
    let unit = units.into_iter().find(|(_, length)| seconds >= *length);
    let (name, length) = unit.unwrap_or(("s", 1.0));
    format!("{:.0} {name}", seconds / length)
}

/// `python3 (process 9238) 12 s ago: 47.8 MiB anonymous · 1.1 MiB files · the limit of …`.
fn killed(kill: &GroupKill, group: &str) -> String {
    let sizes =
        [("anonymous", kill.anonymous_bytes), ("files", kill.file_bytes), ("shared", kill.shmem_bytes)];
    let known = sizes.into_iter().filter_map(|(what, size)| Some(format!("{} {what}", bytes(size?))));
    let limit = match &kill.limit_cgroup {
        None => "the whole machine was out of memory".to_owned(),
        Some(path) if path == group => "the limit of this group was met".to_owned(),
        Some(path) => format!("the limit of {} was met", clean(path)),
    };
    let about: Vec<String> = known.chain([limit]).collect();
    let (name, ago) = (clean(&kill.name), age(kill.seconds_ago));
    format!("{name} (process {}) {ago} ago: {}", kill.pid, about.join(" · "))
}

/// Processes, groups below, caveats.
fn details(explanation: &GroupExplanation, surface: Surface) -> Vec<String> {
    let mut lines = Vec::new();
    if !explanation.processes.is_empty() {
        const HEAD: [Column; 5] =
            [words("process"), figures("RSS"), figures("anonymous share"), figures("swap"), words("group")];
        let cells = explanation.processes.iter().map(|one| {
            vec![
                format!("{} {}", one.pid, clean(&one.name)),
                maybe_bytes(one.rss_bytes),
                maybe_bytes(one.pss_anonymous_bytes),
                maybe_bytes(one.swap_bytes),
                clean(&one.cgroup),
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
    let one = |advice: &Advice| {
        let text =
            hanging("", &format!("{}: {}", clean(&advice.system), clean(&advice.text)), surface.columns);
        let paste = format!("  {}", clean(&advice.paste));
        [vec![String::new()], text, vec![paste]].concat()
    };
    advice.iter().flat_map(one).collect()
}

/// What to type next.
fn commands(explanation: &GroupExplanation, verbose: bool, surface: Surface) -> Vec<(String, String)> {
    let group = clean(&explanation.target.arguments);
    let mut commands = Vec::new();
    let has_ledgers = explanation.rows.iter().any(|row| Folded::of(row).is_of_ledger());
    let of_processes = verdict::sums(&explanation.rows).processes;
    let is_large = of_processes > explanation.cgroup.current_bytes / 5;
    if !has_ledgers && is_large {
        commands.push((format!("strandline explain --ledgers {group}"), "what malloc keeps".to_owned()));
    }
    if let Some(largest) = explanation.processes.first().filter(|_| is_large) {
        commands.push((format!("strandline explain {}", largest.pid), "its largest process".to_owned()));
    }
    if !verbose {
        let ledgers = if has_ledgers { "--ledgers " } else { "" };
        commands.push((format!("strandline explain -v {ledgers}{group}"), "all rows, processes".to_owned()));
    }
    // A command is never cut, what it shows may be left out.
    let room = commands.iter().map(|(command, _)| width(command)).max().unwrap_or(0);
    for (_, shows) in &mut commands {
        if "next   ".len() + room + 2 + width(shows) > surface.columns {
            shows.clear();
        }
    }
    commands
}
