//! Spans of address space with what holds them, sorted and without overlap.

use strandline_claims::rows::RowRef;
use strandline_process::error::{Error, Result};
use strandline_process::range::AddressRange;

/// What holds a range, before zero pages are considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Counted by its reader already.
    Claimed,
    /// One row.
    Row(RowRef),
}

/// A range and what holds it.
pub struct Span {
    /// The range.
    pub range: AddressRange,
    /// What holds it.
    pub holder: Holder,
}

/// What holds the memory from an address on.
#[derive(Clone, Copy)]
pub struct HolderUntil {
    /// What holds it, if anything does.
    pub holder: Option<Holder>,
    /// End of the range for which that is so.
    pub end: u64,
}

/// A list of spans, sorted and without overlap.
#[derive(Default)]
pub struct Spans(pub Vec<Span>);

impl Spans {
    /// Returns what holds an address.
    pub fn holder_at(&self, address: u64) -> HolderUntil {
        let index = self.0.partition_point(|span| span.range.end <= address);
        match self.0.get(index) {
            Some(span) if span.range.start <= address => {
                HolderUntil { holder: Some(span.holder), end: span.range.end }
            }
            next => HolderUntil { holder: None, end: next.map_or(u64::MAX, |span| span.range.start) },
        }
    }

    /// Sorts spans.
    ///
    /// # Errors
    /// [`Error::Overlap`] if two overlap.
    pub fn in_order(mut spans: Vec<Span>) -> Result<Self> {
        spans.retain(|span| !span.range.is_empty());
        spans.sort_by_key(|span| span.range.start);
        for pair in spans.windows(2) {
            if pair[1].range.start < pair[0].range.end {
                return Err(Error::Overlap {
                    address: pair[1].range.start,
                    first: format!("a claim on {:#x}-{:#x}", pair[0].range.start, pair[0].range.end),
                    second: format!("a claim on {:#x}-{:#x}", pair[1].range.start, pair[1].range.end),
                });
            }
        }
        Ok(Self(spans))
    }
}
