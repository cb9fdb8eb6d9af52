//! What the ledger comes to: one sentence, a class, and the remedies, best first.
//!
//! The verdict is the largest finding that deserves a sentence: of the readers', and of those that every process can have
//! (free heap, pages of zeros, stacks, memory of unknown use). All of it is predicted; only `reclaim` proves it.

mod findings;
mod programs;
pub mod remedies;

use strandline_claims::finding::{Finding, LedgerView};

use crate::facts::Verdict;
use crate::readers::RUNTIMES;

/// What the verdict is made of, besides the ledger.
#[derive(Clone, Copy, Debug, Default)]
pub struct Judged<'a> {
    /// The ledger.
    pub view: LedgerView<'a>,
    /// Pages of zeros in bytes that calls into allocators release too: they stand on `kernel.zero`.
    pub trimmed_zero_bytes: u64,
    /// Live chunks that pin free bytes.
    pub pinning_chunks: u64,
    /// Allocators, and runtimes with a heap of their own, that were recognised but not read.
    pub unread: &'a [String],
}

/// The largest finding; where none matters, what a reader says of a process that uses its memory, or what most of it is.
pub fn verdict(judged: &Judged<'_>) -> Verdict {
    let view = &judged.view;
    let readers = || RUNTIMES.iter().filter_map(|entry| entry.reader);
    let of_readers = readers().flat_map(|reader| reader.findings(view));
    let all = of_readers.chain(findings::of_every_process(judged)).filter(|one| view.matters(one.bytes));
    // Of equal ones the first.
    let largest = all.reduce(|largest, one| if one.bytes > largest.bytes { one } else { largest });
    let in_use = || readers().find_map(|reader| reader.in_use(view));
    let Finding { class, headline, .. } =
        largest.or_else(in_use).unwrap_or_else(|| findings::mostly_used(view));
    Verdict { headline, class: class.to_owned() }
}

#[cfg(test)]
mod tests;
