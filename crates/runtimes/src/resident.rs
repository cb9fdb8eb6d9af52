//! Adds up resident bytes.

use strandline_claims::runtime::Context;

/// Bytes of ranges.
pub fn bytes_of(ranges: impl IntoIterator<Item = (u64, u64)>) -> u64 {
    ranges.into_iter().map(|(start, end)| end - start).sum()
}

/// Resident anonymous bytes of `start..end`.
pub fn resident_bytes(context: &Context<'_>, start: u64, end: u64) -> u64 {
    bytes_of((context.resident)(start, end))
}
