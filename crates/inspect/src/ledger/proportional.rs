//! A process's rows in proportion: each page is divided among the processes that map it, so that
//! rows of several processes can be added up.
//!
//! The kernel reports the proportional set size (PSS) of anonymous pages, file pages and shared
//! memory, not of single pages. Within each of the three, all rows are scaled alike: an estimate if
//! their pages have different numbers of sharers. The sum is exact.

use super::rows;
use crate::facts::{Explanation, Kernel, Row, Totals};
use strandline_claims::rows::RowKind;

/// The kind of pages that a row's bytes are on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageKind {
    Anonymous,
    File,
    SharedMemory,
}

/// The kind of the pages on the row `id`.
fn page_kind(id: &str) -> PageKind {
    match id {
        "program.text" | "kernel.file" | "kernel.device" => PageKind::File,
        id if RowKind::is_shared(id) => PageKind::SharedMemory,
        _ => PageKind::Anonymous,
    }
}

/// Returns the rows of `explanation`, scaled to add up to its `kernel.pss_bytes`; `None` if that is
/// not known.
pub fn rows(explanation: &Explanation) -> Option<Vec<Row>> {
    let kernel = &explanation.kernel;
    let pss_bytes = kernel.pss_bytes?;
    let mut rows = explanation.rows.clone();
    match kind_shares(kernel, pss_bytes) {
        Some(shares) => {
            let mut unplaced_bytes = 0;
            for share in shares {
                let of_kind = rows.iter_mut().filter(|row| page_kind(&row.id) == share.kind);
                if !scale(&mut of_kind.collect::<Vec<_>>(), share.bytes) {
                    unplaced_bytes += share.bytes;
                }
            }
            // A kind has bytes and no row if its pages appeared after the rows were read.
            if let Some(largest) = rows.iter_mut().max_by_key(|row| row.bytes) {
                largest.bytes = largest.bytes.saturating_add(unplaced_bytes);
            }
        }
        None => _ = scale(&mut rows.iter_mut().collect::<Vec<_>>(), pss_bytes),
    }
    Some(rows)
}

/// Returns the rows of anonymous pages, scaled to add up to `total_bytes`; `None` if there are
/// none.
pub fn anonymous_rows(explanation: &Explanation, total_bytes: u64) -> Option<Vec<Row>> {
    let mut rows = explanation.rows.clone();
    rows.retain(|row| page_kind(&row.id) == PageKind::Anonymous);
    scale(&mut rows.iter_mut().collect::<Vec<_>>(), total_bytes).then_some(rows)
}

/// Returns the rows in proportion, added up by state; `None` if [`rows()`] returns that.
pub fn totals(explanation: &Explanation) -> Option<Totals> {
    rows(explanation).map(|rows| rows::totals(&rows))
}

/// The share of one kind of pages in the proportional set size.
struct KindShare {
    kind: PageKind,
    bytes: u64,
}

/// Returns the shares of all kinds. As each was rounded, the first takes the remainder.
fn kind_shares(kernel: &Kernel, pss_bytes: u64) -> Option<[KindShare; 3]> {
    let parts = kernel.pss_parts?;
    let other_bytes = parts.file_bytes.checked_add(parts.shmem_bytes)?;
    Some([
        KindShare { kind: PageKind::Anonymous, bytes: pss_bytes.checked_sub(other_bytes)? },
        KindShare { kind: PageKind::File, bytes: parts.file_bytes },
        KindShare { kind: PageKind::SharedMemory, bytes: parts.shmem_bytes },
    ])
}

/// Scales `rows` to add up to `total_bytes`; the largest takes the remainder of rounding. False if
/// all rows are empty and `total_bytes` is not 0.
fn scale(rows: &mut [&mut Row], total_bytes: u64) -> bool {
    let sum: u128 = rows.iter().map(|row| u128::from(row.bytes)).sum();
    if sum == 0 {
        return total_bytes == 0;
    }
    let mut remaining_bytes = total_bytes;
    for row in rows.iter_mut() {
        let share = u128::from(row.bytes) * u128::from(total_bytes) / sum;
        row.bytes = u64::try_from(share).unwrap_or(remaining_bytes).min(remaining_bytes);
        remaining_bytes -= row.bytes;
    }
    if let Some(largest) = rows.iter_mut().max_by_key(|row| row.bytes) {
        largest.bytes += remaining_bytes;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{HolderKind, PssParts, State};

    fn explanation(parts: Option<PssParts>, pss: u64, rows: &[(&str, State, u64)]) -> Explanation {
        let row = |&(id, state, bytes): &(&str, State, u64)| Row {
            id: id.to_owned(),
            stratum: HolderKind::Program,
            state,
            holder: String::new(),
            bytes,
        };
        let kernel = Kernel { pss_bytes: Some(pss), pss_parts: parts, ..Kernel::default() };
        Explanation { kernel, rows: rows.iter().map(row).collect(), ..Explanation::default() }
    }

    #[test]
    fn shares_add_up_to_the_proportional_set_size() {
        let parts = PssParts { anonymous_bytes: 700, file_bytes: 101, shmem_bytes: 10 };
        let rows = [
            ("glibc.live", State::Live, 1000),
            ("glibc.free.trim", State::Stranded, 400),
            ("program.text", State::Evictable, 3000),
            ("kernel.file", State::Evictable, 30),
            ("kernel.shmem", State::Live, 40),
        ];
        let of = |parts, pss| totals(&explanation(parts, pss, &rows)).unwrap();
        let shared = of(Some(parts), 813);
        assert_eq!((shared.live, shared.stranded, shared.evictable), (502 + 10, 200, 101));
        assert_eq!(shared.live + shared.stranded + shared.evictable, 813);
        let without_parts = of(None, 4470 / 2);
        assert_eq!((without_parts.live, without_parts.stranded, without_parts.evictable), (520, 200, 1515));
        // Unknown sums are not guessed, and nothing is divided by zero.
        assert_eq!(super::rows(&Explanation::default()), None);
        let empty = explanation(Some(parts), 811, &[("glibc.live", State::Live, 7)]);
        assert_eq!(totals(&empty).unwrap().live, 811);
        let none = explanation(Some(parts), 811, &[]);
        assert_eq!(super::rows(&none), Some(Vec::new()));
    }
}
