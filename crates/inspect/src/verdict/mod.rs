//! The verdict on a ledger: one sentence, a class, and the remedies, best first.
//!
//! The verdict is the largest finding that is worth a sentence: of the readers' findings, and of
//! those that every process can have (free heap, pages of zeros, stacks, memory of unknown use).
//! All of it is predicted; only `reclaim` proves it.

mod findings;
mod programs;
pub mod remedies;

use strandline_claims::finding::{Finding, LedgerView};

use crate::facts::Verdict;
use crate::readers;

/// What the verdict is derived from.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerdictInputs<'a> {
    /// The ledger.
    pub view: LedgerView<'a>,
    /// Bytes of zero pages that calls into allocators release too; they are on the row
    /// `kernel.zero`.
    pub trimmed_zero_bytes: u64,
    /// Number of blocks in use that pin free bytes; 0 if the readers know none.
    pub pinning_blocks: u64,
    /// Allocators, and runtimes with their own heap, that were recognised but not read.
    pub unread_names: &'a [String],
    /// Resident bytes that were not read in the time for which the process may be stopped.
    pub late_bytes: u64,
}

/// Returns the largest finding. If none matters, returns what a reader reports about a process that
/// uses its memory, or else what most of the memory is.
pub fn verdict(inputs: &VerdictInputs<'_>) -> Verdict {
    let view = &inputs.view;
    let of_readers = readers::findings(view).into_iter();
    let all = of_readers.chain(findings::of_every_process(inputs));
    let important = all.filter(|finding| view.matters(finding.bytes));
    // Of equal findings, the first counts.
    let largest = important.reduce(|largest, next| if next.bytes > largest.bytes { next } else { largest });
    let in_use = || readers::runtime_readers().find_map(|reader| (reader.in_use)(view));
    let Finding { class, headline, .. } =
        largest.or_else(in_use).unwrap_or_else(|| findings::mostly_used(view));
    Verdict { headline, class: class.to_owned() }
}

#[cfg(test)]
mod tests;
