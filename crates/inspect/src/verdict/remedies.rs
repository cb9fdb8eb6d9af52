//! The remedies that apply to a process, with what each is predicted to release.

use std::collections::{BTreeMap, BTreeSet};

use super::programs;
use crate::facts::{Remedy, RemedyKind};
use crate::ledger::sharing::Sharing;
use crate::readers;
use strandline_claims::finding::LedgerView;
use strandline_claims::units::{bytes, thousands};

/// The remedy that releases pages of zeros.
pub const ZERO_PAGES: &str = "zero_pages";

/// Facts about the process that the ledger does not contain.
pub struct RemedyInputs<'a> {
    /// Path of the executable, if it is known.
    pub executable: Option<&'a str>,
    /// Bytes that zero_pages would release.
    pub zero_bytes: u64,
    /// How many of these bytes other processes map too; `None` if this was not determined.
    pub zero_sharing: Option<Sharing>,
    /// How many of these bytes calls into allocators release too, by allocator name.
    pub trimmed_zero_bytes: &'a BTreeMap<String, u64>,
    /// Whether pages can be paged out. If not, zero_pages is refused unless its risk is allowed.
    pub can_page_out: bool,
}

/// Returns the remedies, best first; those with unknown effect come last.
pub fn remedies(view: &LedgerView<'_>, inputs: &RemedyInputs<'_>) -> Vec<Remedy> {
    let mut remedies = view.remedies.to_vec();
    remedies.extend(readers::runtime_readers().flat_map(|reader| (reader.remedies)(view)));
    remedies.extend(zero_pages(view.pid, inputs));
    remedies.extend(readers::allocator_readers().flat_map(|reader| (reader.remedies)(view)));
    remedies.extend(inputs.executable.and_then(programs::remedy));
    remedies.sort_by_key(|remedy| std::cmp::Reverse(remedy.predicted_bytes));
    predict_after_better(&mut remedies, inputs);
    remedies
}

/// The remedy that releases pages of zeros, if there are any.
fn zero_pages(pid: i32, inputs: &RemedyInputs<'_>) -> Option<Remedy> {
    let mut cost = "a fault for each page when it is written again".to_owned();
    if !inputs.can_page_out {
        cost.push_str("; refused without swap or CAP_SYS_NICE, unless its small risk is allowed (--allow-lost-write-risk)");
    }
    if let Some(shared) = inputs.zero_sharing.filter(|sharing| sharing.shared_bytes > 0) {
        cost.push_str("; ");
        cost.push_str(&sharing_clause(&shared));
    }
    let predicted_pss_bytes = inputs.zero_sharing.map(|sharing| sharing.private_bytes.min(inputs.zero_bytes));
    let needs = (!inputs.can_page_out).then(|| "swap and CAP_SYS_NICE".to_owned());
    let remedy = Remedy::call(ZERO_PAGES, Some(inputs.zero_bytes), pid, &cost);
    (inputs.zero_bytes > 0).then_some(Remedy { predicted_pss_bytes, needs, ..remedy })
}

/// Describes how much less the machine gets back because other processes map the pages too.
fn sharing_clause(sharing: &Sharing) -> String {
    let others = match sharing.other_processes {
        Some(1) => "another process".to_owned(),
        Some(count) => format!("{} other processes", thousands(count)),
        None => "other processes".to_owned(),
    };
    let (shared, private) = (bytes(sharing.shared_bytes), bytes(sharing.private_bytes));
    format!("{shared} of them are shared with {others} (by fork), so the machine gets back {private}")
}

/// Sets for each remedy of the running process what it would still release after those before it.
/// The pages that zero_pages and a call into an allocator have in common are known; what a
/// collection leaves to other remedies is not.
fn predict_after_better(remedies: &mut [Remedy], inputs: &RemedyInputs<'_>) {
    let mut trimmed: BTreeSet<&str> = BTreeSet::new();
    let (mut has_zero, mut has_collection, mut is_first) = (false, false, true);
    for remedy in remedies.iter_mut().filter(|remedy| remedy.kind == RemedyKind::Call) {
        let predicted = remedy.predicted_bytes;
        let allocator = readers::frees_pages_of(&remedy.id).map(|about| about.name);
        let is_zero = remedy.id == ZERO_PAGES;
        let is_collection = !is_zero && allocator.is_none();
        let zeros = |name: &str| inputs.trimmed_zero_bytes.get(name).copied().unwrap_or(0);
        let predicted_without = |taken: u64| predicted.map(|bytes| bytes.saturating_sub(taken));
        remedy.predicted_after_better_bytes = match allocator {
            _ if is_first => predicted,
            Some(name) if trimmed.contains(name) => predicted.map(|_| 0),
            _ if has_collection || is_collection && has_zero => None,
            None if is_zero => predicted_without(trimmed.iter().map(|name| zeros(name)).sum()),
            Some(name) if has_zero => predicted_without(zeros(name)),
            _ => predicted,
        };
        is_first = false;
        trimmed.extend(allocator);
        has_zero |= is_zero;
        has_collection |= is_collection;
    }
}
