//! Spans of address space with what holds them, sorted and without overlap.

use std::ops::Range;

use strandline_claims::rows::RowRef;
use strandline_process::error::{Error, Result};

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
    pub range: Range<u64>,
    /// What holds it.
    pub holder: Holder,
}

/// A list of spans, sorted and without overlap.
pub struct Spans(pub Vec<Span>);

impl Spans {
    /// Returns what holds an address, and the end of the range for which that is so.
    pub fn holder_at(&self, address: u64) -> (Option<Holder>, u64) {
        let index = self.0.partition_point(|span| span.range.end <= address);
        match self.0.get(index) {
            Some(span) if span.range.start <= address => (Some(span.holder), span.range.end),
            Some(span) => (None, span.range.start),
            None => (None, u64::MAX),
        }
    }

    /// Sorts spans; fails if two overlap.
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
