//! Work split into parts for several threads.

use crate::blocks::claim_range;
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

    /// Sets the refinements that its blocks matched, and adds to the bytes read from the target.
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

/// The claims on an allocator's memory, and what was counted in it.
#[derive(Default)]
pub struct Claimed<Counts> {
    /// The claims, in address order.
    pub claims: Vec<RangeClaim>,
    /// The totals of all claims.
    pub counts: Counts,
}

impl<Counts: Totals> Claimed<Counts> {
    /// Joins parts, which are in address order.
    pub fn sum(parts: Vec<Self>) -> Self {
        let mut all = Self { claims: Vec::new(), counts: Counts::default() };
        for part in parts {
            all.claims.extend(part.claims);
            all.counts.add(part.counts);
        }
        all
    }
}

/// Claims `items`, which are in address order without overlap, by `claim_items`: one claim per run
/// of adjacent items, split at multiples of [`PART_BYTES`].
pub fn claim_in_parts<Item: Sync, Counts: Totals>(
    context: &Context<'_>,
    items: &[Item],
    range: &(dyn Fn(&Item) -> AddressRange + Sync),
    claim_items: &(dyn Fn(&[Item], &mut Accumulator<'_>) -> Counts + Sync),
) -> Claimed<Counts> {
    let are_in_one_part = |item: &Item, next: &Item| {
        let (item, next) = (range(item), range(next));
        item.end == next.start && item.start / PART_BYTES == next.start / PART_BYTES
    };
    let parts: Vec<&[Item]> = items.chunk_by(are_in_one_part).collect();
    let results = in_order(parts.len(), context.workers, |part| {
        let items = parts[part];
        let (Some(first), Some(last)) = (items.first(), items.last()) else { return Claimed::default() };
        let mut counts = Counts::default();
        let range = AddressRange::new(range(first).start, range(last).end);
        let claim = claim_range(context, range, |accumulator| counts = claim_items(items, accumulator));
        Claimed { claims: vec![claim], counts }
    });
    Claimed::sum(results)
}
