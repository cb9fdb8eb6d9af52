//! Work split into parts for several threads.

use strandline_claims::accumulator::Accumulator;
use strandline_claims::allocator::{Context, RangeClaim};
pub(crate) use strandline_claims::refinements::Matches;
use strandline_process::range::AddressRange;
use strandline_process::work::in_order;

/// Address space per part; a thread claims one part at a time.
pub const PART_BYTES: u64 = 16 << 20;

/// Counts of one part of an allocator's memory; those of all parts are added up.
pub trait Totals: Default + Send {
    /// Adds the counts of another part.
    fn add(&mut self, other: Self);

    /// Sets the refinements that its blocks matched, and adds bytes that a cache has read.
    fn with_matches(self, matched: Matches, bytes_read: u64) -> Self;
}

/// Implements [`Totals`] for counts with `classes`, `matched`, `doubts` and `bytes_read`; the other
/// fields are sums.
macro_rules! impl_totals {
    ($counts:ty: $($sum:ident),*) => {
        impl $crate::parallel::Totals for $counts {
            fn add(&mut self, other: Self) {
                for (class, counts) in &other.classes {
                    self.classes.entry(*class).or_default().add(counts);
                }
                $(self.$sum += other.$sum;)*
                self.matched.add(other.matched);
                self.doubts.add(&other.doubts);
                self.bytes_read += other.bytes_read;
            }

            fn with_matches(self, matched: $crate::parallel::Matches, bytes_read: u64) -> Self {
                Self { matched, bytes_read: self.bytes_read + bytes_read, ..self }
            }
        }
    };
}

pub(crate) use impl_totals;

/// Claims `items`, which are in address order without overlap, by `claim_items`: one claim per run
/// of adjacent items, split at multiples of [`PART_BYTES`].
pub fn claim_in_parts<Item: Sync, Counts: Totals>(
    context: &Context<'_>,
    items: &[Item],
    range: &(dyn Fn(&Item) -> AddressRange + Sync),
    claim_items: &(dyn Fn(&[Item], &mut Accumulator<'_>) -> Counts + Sync),
) -> (Vec<RangeClaim>, Counts) {
    let are_in_one_part = |item: &Item, next: &Item| {
        let (item, next) = (range(item), range(next));
        item.end == next.start && item.start / PART_BYTES == next.start / PART_BYTES
    };
    let parts: Vec<&[Item]> = items.chunk_by(are_in_one_part).collect();
    let results = in_order(parts.len(), context.threads, |part| {
        let items = parts[part];
        let (Some(first), Some(last)) = (items.first(), items.last()) else { return Default::default() };
        let (start, end) = (range(first).start, range(last).end);
        let pages = context.pages((start, end));
        let mut accumulator = Accumulator::new(start, &pages);
        let counts = claim_items(items, &mut accumulator);
        let sums = accumulator.cut().finish(&pages);
        (Some(RangeClaim { start, end, sums }), counts)
    });
    let (mut claims, mut total) = (Vec::new(), Counts::default());
    for (claim, counts) in results {
        claims.extend(claim);
        total.add(counts);
    }
    (claims, total)
}
