//! Adds up resident bytes.

use strandline_claims::runtime::Context;
use strandline_process::range::AddressRange;

/// Returns the sum of the lengths of ranges.
pub fn bytes_of(ranges: impl IntoIterator<Item: Into<AddressRange>>) -> u64 {
    ranges.into_iter().map(|range| range.into().len()).sum()
}

/// Returns the resident anonymous bytes of `start..end`.
pub fn resident_bytes(context: &Context<'_>, start: u64, end: u64) -> u64 {
    bytes_of(context.resident_runs((start, end)))
}
