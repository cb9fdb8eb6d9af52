//! The conclusion from the ledger of a group: what holds its memory, what of it the kernel gives up
//! before it kills, and why the working set is another figure.

use strandline_claims::units::{bytes, counted};

use super::facts::{GroupExplanation, GroupRow};
use super::parts::SHMEM;
use crate::facts::Verdict;

/// A kind, or a call, of less than the charge divided by this is not mentioned.
const MIN_PART_DIVISOR: u64 = 100;
/// Page cache of less than the charge divided by this is not mentioned.
const MIN_CACHE_DIVISOR: u64 = 50;
/// A file of less than all shared memory divided by this is not mentioned.
const MIN_FILE_DIVISOR: u64 = 10;
/// What cannot be reclaimed is near the limit from this percentage of the limit on.
const NEAR_PERCENT: f64 = 70.0;

/// What the rows sum up to, by what can be done about them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Anonymous memory of processes.
    pub processes_bytes: u64,
    /// Shared memory.
    pub shared_bytes: u64,
    /// Page cache.
    pub cache_bytes: u64,
    /// The kernel's own memory.
    pub kernel_bytes: u64,
    /// Charged in advance, by processor.
    pub stock_bytes: u64,
    /// In none of the kernel's counters.
    pub unknown_bytes: u64,
}

/// The sum to which a row belongs, by its id. Rows of a process's ledger have other ids.
fn sum_of<'a>(sums: &'a mut Sums, row: &GroupRow) -> &'a mut u64 {
    match row.id.as_str() {
        "group.shmem" => &mut sums.shared_bytes,
        "group.cache.clean" | "group.cache.dirty" | "group.cache.writeback" => &mut sums.cache_bytes,
        "group.charge_stock" => &mut sums.stock_bytes,
        "group.unattributed" => &mut sums.unknown_bytes,
        "group.anon"
        | "group.anon.lazyfree"
        | "group.anon.elsewhere"
        | "group.swap_cache"
        | "group.hugetlb" => &mut sums.processes_bytes,
        id if id.starts_with("group.") => &mut sums.kernel_bytes,
        _ => &mut sums.processes_bytes,
    }
}

/// Sums up the rows.
pub fn sums(rows: &[GroupRow]) -> Sums {
    let mut sums = Sums::default();
    for row in rows {
        let sum = sum_of(&mut sums, row);
        *sum = sum.saturating_add(row.bytes);
    }
    sums
}

/// Fills in the verdict.
pub(super) fn set_verdict(explanation: &mut GroupExplanation) {
    let sums = sums(&explanation.rows);
    let sentences =
        [Some(holders(explanation, &sums)), calls(explanation), working_set(explanation), limit(explanation)];
    let headline = sentences.into_iter().flatten().collect::<Vec<_>>().join(" ");
    explanation.verdict = Verdict { headline, class: class(explanation, &sums).to_owned() };
}

/// A part of the charge, and what it is.
struct Clause {
    bytes: u64,
    predicate: String,
}

/// The sentence `Of 1.93 GiB charged, 0.93 GiB belongs to 4 processes, …`.
fn holders(explanation: &GroupExplanation, sums: &Sums) -> String {
    let charged = explanation.cgroup.current_bytes;
    let mut clauses: Vec<Clause> = Vec::new();
    let mut add = |bytes: u64, predicate: String| clauses.push(Clause { bytes, predicate });
    if sums.processes_bytes > 0 {
        let predicate = match explanation.target.processes {
            0 => "is anonymous memory of no process that is here".to_owned(),
            count => format!("belongs to {}", counted(count, "process")),
        };
        add(sums.processes_bytes, predicate);
    }
    if sums.shared_bytes > 0 {
        let names_files = |row: &&GroupRow| row.id == SHMEM.id && row.holder != SHMEM.holder;
        let min_bytes = sums.shared_bytes / MIN_FILE_DIVISOR;
        let largest = explanation.rows.iter().find(names_files).filter(|row| row.bytes > min_bytes);
        let largest =
            largest.map_or_else(String::new, |row| format!(" ({}: {})", row.holder, bytes(row.bytes)));
        add(sums.shared_bytes, format!("is files in shared memory that stay until removed{largest}"));
    }
    if sums.cache_bytes > 0 {
        add(sums.cache_bytes, "is page cache, which the kernel drops before it kills".to_owned());
    }
    if sums.kernel_bytes > 0 {
        add(sums.kernel_bytes, "is the kernel's own".to_owned());
    }
    let min_bytes = charged / MIN_PART_DIVISOR;
    if sums.unknown_bytes > min_bytes {
        add(sums.unknown_bytes, "is unattributed".to_owned());
    }
    clauses.retain(|clause| clause.bytes >= min_bytes);
    clauses.sort_by_key(|clause| std::cmp::Reverse(clause.bytes));
    let whole = bytes(charged);
    if let [only] = &clauses[..]
        && only.bytes >= charged / 10 * 9
    {
        return format!("{whole} is charged: nearly all {}.", only.predicate);
    }
    let texts: Vec<String> =
        clauses.iter().map(|clause| format!("{} {}", bytes(clause.bytes), clause.predicate)).collect();
    match texts.split_last() {
        None if charged > 0 => format!("{whole} is charged: nearly all in advance, by processor."),
        None => "Nothing is charged.".to_owned(),
        Some((only, [])) => format!("Of {whole} charged, {only}."),
        Some((last, others)) => format!("Of {whole} charged, {} and {last}.", others.join(", ")),
    }
}

/// What calls in the processes would release, if their ledgers are known.
fn calls(explanation: &GroupExplanation) -> Option<String> {
    let min_bytes = explanation.cgroup.current_bytes / MIN_PART_DIVISOR;
    let remedies = explanation.remedies.iter().filter(|remedy| remedy.kind == "call");
    let best = remedies.max_by_key(|remedy| remedy.predicted_bytes)?;
    let predicted = best.predicted_bytes.filter(|&predicted| predicted > min_bytes)?;
    Some(format!("{} in {} would release {}.", best.id, counted(best.processes, "process"), bytes(predicted)))
}

/// The working set, and why it is another figure.
fn working_set(explanation: &GroupExplanation) -> Option<String> {
    let cgroup = &explanation.cgroup;
    let (set, active) = (cgroup.working_set_bytes?, cgroup.active_file_bytes?);
    // Where the cache is small, the figures hardly differ.
    let min_bytes = cgroup.current_bytes / MIN_CACHE_DIVISOR;
    if cgroup.inactive_file_bytes? < min_bytes && active < min_bytes {
        return None;
    }
    let because = if active >= min_bytes {
        format!(", which contains {} of page cache that is \"active\" and reclaimable too", bytes(active))
    } else {
        ": the charge without inactive page cache".to_owned()
    };
    Some(format!("The working set of kubelet and docker stats is {}{because}.", bytes(set)))
}

/// How near the limit is, with what the kernel cannot reclaim.
fn limit(explanation: &GroupExplanation) -> Option<String> {
    let cgroup = &explanation.cgroup;
    let limit = cgroup.effective_limit_bytes?;
    let unreclaimable = cgroup.current_bytes.saturating_sub(cgroup.reclaimable_bytes?);
    let percent = unreclaimable as f64 * 100.0 / limit.max(1) as f64;
    let swap = match cgroup.swap_limit_bytes {
        Some(0) => " (no swap is allowed)",
        _ => "",
    };
    let kill = explanation.kill_at_limit();
    let conclusion = if let Some((kill, held)) = kill.and_then(|kill| Some((kill, kill.anonymous_bytes?))) {
        let minutes = (kill.seconds_ago / 60.0).ceil();
        format!("; {}, killed {minutes:.0} min ago, held {}", kill.name, bytes(held))
    } else if percent >= NEAR_PERCENT {
        ": at the limit the kernel kills processes".to_owned()
    } else if cgroup.events.oom_kill.is_some_and(|kills| kills > 0) {
        "; see the kernel's log for what was killed".to_owned()
    } else if unreclaimable < cgroup.current_bytes {
        "; it drops the rest before it kills".to_owned()
    } else {
        format!("; {} is left", bytes(limit.saturating_sub(unreclaimable)))
    };
    Some(format!(
        "Of the limit of {}, the kernel cannot reclaim {} ({percent:.0} %) without swap{swap}{conclusion}.",
        bytes(limit),
        bytes(unreclaimable)
    ))
}

/// The class: what to examine first.
fn class(explanation: &GroupExplanation, sums: &Sums) -> &'static str {
    let half = explanation.cgroup.current_bytes / 2;
    match sums {
        sums if sums.processes_bytes > half => "processes",
        sums if sums.shared_bytes > half => "shared_memory",
        sums if sums.cache_bytes > half => "page_cache",
        sums if sums.kernel_bytes > half => "kernel",
        sums if sums.unknown_bytes > half => "unattributed",
        _ => "mixed",
    }
}
