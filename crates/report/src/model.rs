//! The content of a report on one process: facts turned into safe text and parts of bars.
//!
//! All text here is already clean (`text::clean`), so layout code need not consider hostile names.
//! Reads no process and knows no terminal.

use std::collections::BTreeMap;

use strandline_claims::caveat::Caveat;
use strandline_claims::facts::SizeClass;
use strandline_claims::section::{Column, Section, Table, figures, words};
use strandline_inspect::facts::{
    Allocator, Arena, ArenaKind, Explanation, HolderKind, Kernel, Remedy, RemedyKind, Row, Runtime, State,
    Target,
};
use strandline_inspect::readers;

use super::bars::Segment;
use super::brief::Brief;
use super::paint;
use super::runtimes;
use super::text::{clean, clean_sentence, counted, listed_by_verbose, own_name};
use super::units::{bytes, maybe_bytes, seconds, stopped, thousands, whole_percent};

/// Which ledger rows are shown separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rows {
    /// A few largest rows of at least 0.5 % of RSS.
    #[default]
    Large,
    /// This number of largest rows.
    Largest(usize),
    /// All rows.
    All,
}

/// One process, ready to be laid out.
#[derive(Clone, Debug)]
pub struct View {
    /// What the default screen shows beside bars and rows.
    pub brief: Brief,
    /// The process: `process 4711 · /usr/bin/service · 8 threads`.
    pub title: String,
    /// The sentence of the verdict.
    pub headline: String,
    /// The kernel's figures: `RSS 1.6 GiB = …`.
    pub resident: String,
    /// The bar of states.
    pub states: Vec<Segment>,
    /// The bar of strata.
    pub strata: Vec<Segment>,
    /// The ledger rows that are shown, largest first.
    pub rows: Vec<RowView>,
    /// The rows that are not shown, as one: number and size, `9 smaller rows`. `None` if all are
    /// shown.
    pub hidden_rows: Option<RowView>,
    /// The allocators with their size classes and arenas.
    pub allocators: Vec<Section>,
    /// The runtimes that were recognised but not read: `cpython 3.11.2`.
    pub unread_runtimes: Vec<String>,
    /// The runtimes that were read.
    pub read_runtimes: Vec<Section>,
    /// What would release memory, best first.
    pub remedies: Vec<RemedyView>,
    /// Remedies that release too little for their own line, as one line; `None` if no remedy does.
    pub minor_remedies: Option<String>,
    /// What is not known.
    pub caveats: Vec<String>,
    /// The cost of the inspection.
    pub cost: String,
}

/// One row.
#[derive(Clone, Debug)]
pub struct RowView {
    /// Its size: `1.1 GiB`.
    pub bytes: String,
    /// Its share of RSS: `69 %`.
    pub share: String,
    /// Its state; `None` for a sum of rows.
    pub state: Option<State>,
    /// Its id: `glibc.free.trim`.
    pub id: String,
    /// What holds it.
    pub holder: String,
}

/// One remedy.
#[derive(Clone, Debug)]
pub struct RemedyView {
    /// Its name.
    pub id: String,
    /// `releases 1.1 GiB (predicted)`.
    pub effect: String,
    /// The command or setting to paste.
    pub how: String,
    /// What it costs.
    pub cost: String,
}

/// Maximum number of holders of one row id that are shown separately.
const MAX_HOLDERS: usize = 3;
/// Maximum number of rows shown by default.
const MAX_LARGE: usize = 7;
/// Divisor of RSS for the minimum size of a row shown by default: 0.5 %.
const MIN_ROW_DIVISOR: u128 = 200;
/// Maximum number of arenas shown separately; a server with many threads has hundreds.
const MAX_ARENAS: usize = 8;
/// Columns of the table of arenas.
const ARENA_HEAD: &[Column] = &[
    words("arena"),
    figures("mapped"),
    figures("used"),
    figures("free"),
    figures("tcache"),
    figures("top"),
    figures("trim"),
];
/// Number of columns that all allocators have: name, mapped, used, free.
const COMMON_ARENA_COLUMNS: usize = 4;
/// Columns of the table of size classes.
const SIZE_HEAD: &[Column] = &[
    figures("size"),
    figures("in use"),
    figures("cached"),
    figures("free"),
    figures("free bytes"),
    figures("used"),
];
/// Maximum number of size classes shown separately.
const MAX_SIZES: usize = 5;
/// Minimum of free bytes in a size class that is shown or counted.
const MIN_FREE_BYTES: u64 = 64 << 10;
/// Divisor of RSS for the minimum that a shown remedy releases: 1 %.
const MIN_REMEDY_DIVISOR: u64 = 100;

impl View {
    /// Makes the view of `explanation` with `rows` of its ledger.
    pub fn new(explanation: &Explanation, rows: Rows) -> Self {
        let ledger = Ledger::new(explanation, rows);
        Self {
            brief: Brief::new(explanation),
            title: title(&explanation.target),
            headline: clean_sentence(&explanation.verdict.headline),
            resident: resident(&explanation.kernel),
            states: states(explanation),
            strata: strata(explanation),
            rows: ledger.shown_rows,
            hidden_rows: ledger.hidden_rows,
            allocators: explanation.allocators.iter().map(allocator).collect(),
            unread_runtimes: named_only(&explanation.runtimes),
            read_runtimes: runtimes::sections(&explanation.runtimes),
            remedies: remedies(explanation),
            minor_remedies: minor_remedies(explanation),
            caveats: caveats(&explanation.caveats),
            cost: cost(explanation),
        }
    }
}

/// Names the program: the path of its executable, after the process's own name if that differs. A
/// link has another name than its file (redis-server and redis-check-rdb), and server workers put
/// their role into `argv[0]`.
pub fn program(target: &Target) -> String {
    let executable = target.executable.as_deref().map(clean_sentence);
    // The name of a login shell starts with a dash; the kernel appends " (deleted)" to the path of
    // a replaced file.
    let is_same = |name: &str, path: &str| {
        let file = path.trim_end_matches(" (deleted)").rsplit('/').next();
        file == Some(name.trim_start_matches('-'))
    };
    match (own_name(&target.command, target.executable.as_deref()), executable) {
        (Some(name), Some(path)) if !is_same(&name, &path) => format!("{name} ({path})"),
        (_, Some(path)) => path,
        (Some(name), None) => name,
        (None, None) => "(unknown program)".to_owned(),
    }
}

/// The process's own name, or else that of its file.
pub fn short_name(target: &Target) -> String {
    let name = own_name(&target.command, target.executable.as_deref());
    name.unwrap_or_else(|| "(unknown program)".to_owned())
}

fn title(target: &Target) -> String {
    format!("process {} · {} · {}", target.pid, program(target), counted(target.threads, "thread"))
}

fn resident(kernel: &Kernel) -> String {
    let mut text = format!(
        "RSS {} = anonymous {} + file {} + shared {}; PSS {}; peak {}; swap {}",
        bytes(kernel.rss_bytes),
        bytes(kernel.anonymous_bytes),
        bytes(kernel.file_bytes),
        bytes(kernel.shmem_bytes),
        maybe_bytes(kernel.pss_bytes),
        maybe_bytes(kernel.high_water_bytes),
        bytes(kernel.swap_bytes),
    );
    for (name, size) in [("huge pages", kernel.huge_bytes), ("hugetlb, outside RSS,", kernel.hugetlb_bytes)] {
        if size > 0 {
            text += &format!("; {name} {}", bytes(size));
        }
    }
    text
}

/// The name of a state.
pub fn state_name(state: State) -> &'static str {
    match state {
        State::Live => "live",
        State::Stranded => "stranded",
        State::Pinned => "pinned",
        State::Evictable => "evictable",
        State::Unattributed => "unattributed",
    }
}

/// The name of a stratum.
pub fn stratum_name(stratum: HolderKind) -> &'static str {
    match stratum {
        HolderKind::Values => "values",
        HolderKind::Runtime => "runtime",
        HolderKind::Collector => "collector",
        HolderKind::Allocator => "allocator",
        HolderKind::Kernel => "kernel",
        HolderKind::Program => "program",
    }
}

fn states(explanation: &Explanation) -> Vec<Segment> {
    let totals = &explanation.totals;
    let segment =
        |state, glyph, bytes| Segment { name: state_name(state), glyph, paint: paint::state(state), bytes };
    vec![
        segment(State::Live, '█', totals.live),
        segment(State::Stranded, '▒', totals.stranded),
        segment(State::Pinned, '▓', totals.pinned),
        segment(State::Evictable, '░', totals.evictable),
        segment(State::Unattributed, '?', totals.unattributed),
    ]
}

fn strata(explanation: &Explanation) -> Vec<Segment> {
    [
        (HolderKind::Values, 'V'),
        (HolderKind::Runtime, 'R'),
        (HolderKind::Collector, 'C'),
        (HolderKind::Allocator, 'A'),
        (HolderKind::Kernel, 'K'),
        (HolderKind::Program, 'P'),
    ]
    .map(|(stratum, glyph)| {
        let held = explanation.rows.iter().filter(|row| row.stratum == stratum);
        let bytes = held.fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
        Segment { name: stratum_name(stratum), glyph, paint: paint::stratum(stratum), bytes }
    })
    .to_vec()
}

/// The rows of a ledger.
struct Ledger {
    /// Largest first.
    shown_rows: Vec<RowView>,
    /// The others as one, if there are any.
    hidden_rows: Option<RowView>,
}

impl Ledger {
    fn new(explanation: &Explanation, selection: Rows) -> Self {
        let rss_bytes = explanation.kernel.rss_bytes;
        let merged_rows;
        let mut rows: Vec<&Row> = match selection {
            Rows::Large => {
                merged_rows = with_few_holders(&explanation.rows);
                merged_rows.iter().collect()
            }
            _ => explanation.rows.iter().collect(),
        };
        rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
        let (shown, hidden) = rows.split_at(shown_count(&rows, selection, rss_bytes));
        let view = |size: u64, state, id, holder| RowView {
            bytes: bytes(size),
            share: whole_percent(size, rss_bytes),
            state,
            id,
            holder,
        };
        let hidden_rows = (!hidden.is_empty()).then(|| {
            let sum = hidden.iter().fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
            let id = counted(hidden.len() as u64, "smaller row");
            view(sum, None, id, listed_by_verbose(hidden.len() as u64).to_owned())
        });
        let shown = shown.iter();
        let shown_rows = shown
            .map(|row| view(row.bytes, Some(row.state), clean(&row.id), clean_sentence(&row.holder)))
            .collect();
        Self { shown_rows, hidden_rows }
    }
}

/// Number of `rows`, sorted by size, that the selection shows separately.
fn shown_count(rows: &[&Row], selection: Rows, rss_bytes: u64) -> usize {
    match selection {
        Rows::All => rows.len(),
        Rows::Largest(count) => count.min(rows.len()),
        Rows::Large => {
            let large_count =
                rows.partition_point(|row| u128::from(row.bytes) * MIN_ROW_DIVISOR >= u128::from(rss_bytes));
            let shown_count = large_count.min(MAX_LARGE);
            // Replacing a single row by a summary line would save nothing and show less.
            if rows.len() - shown_count == 1 { rows.len() } else { shown_count }
        }
    }
}

/// Merges all but the largest holders of each row id: a program may have thousands.
fn with_few_holders(rows: &[Row]) -> Vec<Row> {
    let mut by_id: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        by_id.entry(&row.id).or_default().push(row);
    }
    let mut merged = Vec::new();
    for mut holders in by_id.into_values() {
        holders.sort_by_key(|row| std::cmp::Reverse(row.bytes));
        let shown_count = if holders.len() > MAX_HOLDERS + 1 { MAX_HOLDERS } else { holders.len() };
        let (large, small) = holders.split_at(shown_count);
        merged.extend(large.iter().map(|row| (*row).clone()));
        if let Some(largest) = small.first() {
            let bytes = small.iter().fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
            let holder = format!("{} more (-v lists them)", small.len());
            merged.push(Row { holder, bytes, ..(*largest).clone() });
        }
    }
    merged
}

/// Runtimes that were recognised but not read.
fn named_only(runtimes: &[Runtime]) -> Vec<String> {
    let unread = runtimes.iter().filter(|runtime| !runtime.read);
    unread.map(|runtime| name_and_version(&runtime.name, &runtime.version)).collect()
}

fn name_and_version(name: &str, version: &Option<String>) -> String {
    version.as_ref().map_or_else(|| clean(name), |version| format!("{} {}", clean(name), clean(version)))
}

/// `glibc 2.36 (found by …): 4 arenas`, and the tables of its size classes and arenas.
fn allocator(allocator: &Allocator) -> Section {
    let name = name_and_version(&allocator.name, &allocator.version);
    let evidence = clean_sentence(&allocator.found_by);
    let content = if !allocator.read {
        "recognised, not read; its memory is unattributed".to_owned()
    } else if readers::runtime_reader(&allocator.name).is_some() {
        "read with its runtime".to_owned()
    } else if !allocator.arenas.is_empty() {
        counted(allocator.arenas.len() as u64, "arena")
    } else {
        match (allocator.live_bytes, allocator.live_blocks) {
            (Some(live), Some(blocks)) => format!("{} in {}", bytes(live), counted(blocks, "block")),
            (Some(live), None) => format!("{} in use", bytes(live)),
            _ => "its figures are not known".to_owned(),
        }
    };
    let title = format!("{name} (found by {evidence}): {content}");
    let tables = [sizes(&allocator.size_classes), arenas(allocator)];
    let tables = tables.into_iter().filter(|table| !table.rows.is_empty()).collect();
    Section { title, lines: Vec::new(), tables }
}

/// The largest arenas, and one row of the others.
fn arenas(allocator: &Allocator) -> Table {
    let mut arenas: Vec<&Arena> = allocator.arenas.iter().collect();
    arenas.sort_by_key(|arena| std::cmp::Reverse(arena.mapped_bytes));
    let (listed, merged) = arenas.split_at(arenas.len().min(MAX_ARENAS));
    // A main arena is known by that name in every debugger; other arenas are identified by address
    // or number.
    let has_main = readers::allocator(&allocator.name).is_some_and(|about| about.has_main_arena);
    let arena_name = |arena: &Arena| match arena.kind {
        ArenaKind::Main if has_main => "main".to_owned(),
        ArenaKind::Main | ArenaKind::Secondary => clean(&arena.id),
    };
    let mut rows: Vec<Vec<String>> =
        listed.iter().map(|arena| arena_row(arena_name(arena), &[*arena])).collect();
    if !merged.is_empty() {
        rows.push(arena_row(format!("{} more", merged.len()), merged));
    }
    let head = if has_main { ARENA_HEAD } else { &ARENA_HEAD[..COMMON_ARENA_COLUMNS] };
    Table { head, rows, flexible: 0 }
}

/// The size classes with the most free bytes, and one row of the other classes with at least
/// [`MIN_FREE_BYTES`].
fn sizes(classes: &[SizeClass]) -> Table {
    let mut worst: Vec<&SizeClass> =
        classes.iter().filter(|class| free_bytes(class) >= MIN_FREE_BYTES).collect();
    worst.sort_by_key(|class| std::cmp::Reverse(free_bytes(class)));
    let (listed, merged) = worst.split_at(worst.len().min(MAX_SIZES));
    let mut rows: Vec<Vec<String>> =
        listed.iter().map(|class| size_row(thousands(class.bytes), &[*class])).collect();
    if !merged.is_empty() {
        rows.push(size_row(format!("{} more", merged.len()), merged));
    }
    Table { head: SIZE_HEAD, rows, flexible: 0 }
}

/// The bytes of the free blocks that are in no cache.
fn free_bytes(class: &SizeClass) -> u64 {
    class.free_blocks.saturating_mul(class.bytes)
}

/// A row with the totals of `classes`; the last cell is the share of blocks in use.
fn size_row(name: String, classes: &[&SizeClass]) -> Vec<String> {
    let figures: [fn(&SizeClass) -> u64; 4] =
        [|class| class.live_blocks, |class| class.cached_blocks, |class| class.free_blocks, free_bytes];
    let [live, cached, free, all_free_bytes] =
        figures.map(|figure| classes.iter().fold(0, |sum: u64, class| sum.saturating_add(figure(class))));
    let blocks = live.saturating_add(cached).saturating_add(free);
    let used_percent = 100.0 * live as f64 / blocks.max(1) as f64;
    vec![
        name,
        thousands(live),
        thousands(cached),
        thousands(free),
        bytes(all_free_bytes),
        format!("{used_percent:.0} %"),
    ]
}

/// A row with the totals of `arenas`.
fn arena_row(name: String, arenas: &[&Arena]) -> Vec<String> {
    let figures: [fn(&Arena) -> Option<u64>; 6] = [
        |arena| Some(arena.mapped_bytes),
        |arena| Some(arena.used_bytes),
        |arena| Some(arena.free_bytes),
        |arena| arena.tcache_bytes,
        |arena| arena.top_bytes,
        |arena| arena.trim_bytes,
    ];
    // The columns of figures that an allocator does not have are not shown.
    let sum = |figure: fn(&Arena) -> Option<u64>| {
        arenas.iter().filter_map(|arena| figure(arena)).fold(0, u64::saturating_add)
    };
    let sums = figures.map(|figure| bytes(sum(figure)));
    std::iter::once(name).chain(sums).collect()
}

/// Whether a remedy is predicted to release too little for a line of its own.
fn is_minor(remedy: &Remedy, explanation: &Explanation) -> bool {
    let min_bytes = explanation.kernel.rss_bytes / MIN_REMEDY_DIVISOR;
    remedy.predicted_bytes.is_some_and(|predicted| predicted < min_bytes)
}

/// The remedies with a line of their own.
fn remedies(explanation: &Explanation) -> Vec<RemedyView> {
    let shown = explanation.remedies.iter().filter(|remedy| !is_minor(remedy, explanation));
    shown.map(remedy).collect()
}

/// The minor remedies that release anything, in one line.
fn minor_remedies(explanation: &Explanation) -> Option<String> {
    let id_and_size = |remedy: &Remedy| {
        let predicted = remedy.predicted_bytes.filter(|&predicted| predicted > 0)?;
        Some(format!("{} {}", clean(&remedy.id), bytes(predicted)))
    };
    let minor = explanation.remedies.iter().filter(|remedy| is_minor(remedy, explanation));
    let texts: Vec<String> = minor.filter_map(id_and_size).collect();
    (!texts.is_empty())
        .then(|| format!("less than 1 % of RSS would be released by: {} (predicted)", texts.join(", ")))
}

fn remedy(remedy: &Remedy) -> RemedyView {
    RemedyView {
        id: clean(&remedy.id),
        effect: effect(remedy),
        how: clean_sentence(&remedy.how),
        cost: clean_sentence(&remedy.cost),
    }
}

/// What a remedy releases, or why it is unknown.
fn effect(remedy: &Remedy) -> String {
    match (remedy.predicted_bytes.map(bytes), &remedy.unknown_because) {
        (Some(predicted), _) if remedy.kind == RemedyKind::Setting => {
            format!("would hold {predicted} less from its next start on (predicted)")
        }
        (Some(predicted), _) => match remedy.predicted_after_better_bytes.map(bytes) {
            Some(remaining) if remaining != predicted => {
                format!("releases {predicted} (predicted), {remaining} after the remedies above")
            }
            _ => format!("releases {predicted} (predicted)"),
        },
        // The reason is also in place of the command: it is printed there.
        (None, Some(_)) if remedy.is_impossible() => "unknown".to_owned(),
        (None, Some(reason)) => format!("cannot be predicted: {}", clean_sentence(reason)),
        (None, None) => "cannot be predicted from outside".to_owned(),
    }
}

/// Caveats as lines.
pub fn caveats(caveats: &[Caveat]) -> Vec<String> {
    let line = |caveat: &Caveat| {
        let size = caveat.bytes.map_or_else(String::new, |size| format!(", {}", bytes(size)));
        format!(
            "{} ({}{size}): {}",
            clean_sentence(&caveat.code),
            clean_sentence(&caveat.place),
            clean_sentence(&caveat.text)
        )
    };
    caveats.iter().map(line).collect()
}

fn cost(explanation: &Explanation) -> String {
    let cost = &explanation.cost;
    let own_peak = cost
        .peak_rss_bytes
        .map_or_else(String::new, |peak| format!(", strandline's own peak {}", bytes(peak)));
    let copied = cost.copied_pages.map_or_else(String::new, |pages| {
        let faults = counted(pages, "minor fault");
        format!(", {faults} of the process meanwhile (pages that it copied, or touched first)")
    });
    format!(
        "{}, {} in all{copied}, read {}{own_peak}",
        stopped(cost.stopped_seconds),
        seconds(cost.wall_seconds),
        bytes(cost.bytes_read)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_that_are_not_listed_are_counted() {
        let class = |bytes: u64, free_blocks: u64| SizeClass {
            bytes,
            free_blocks,
            live_blocks: free_blocks,
            ..SizeClass::default()
        };
        let mut classes: Vec<SizeClass> = (1..=5).map(|factor| class(factor << 20, 1)).collect();
        classes.push(class(16, 1));
        assert_eq!(sizes(&classes).rows.len(), 5, "a class with few free bytes is no row");
        classes.extend([class(64 << 10, 1), class(128 << 10, 1_000)]);
        classes.push(class(256 << 10, 1));
        let rows = sizes(&classes).rows;
        assert_eq!(rows[0][0], "131,072");
        assert_eq!(rows.len(), 6);
        assert_eq!(rows[5], ["3 more", "3", "0", "3", "1.31 MiB", "50 %"]);
    }
}
