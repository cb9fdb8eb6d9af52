//! Bytes by row. The table of readers defines the rows.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use strandline_claims::rows::RowRef;

use crate::facts::{Row, State, Totals};
use crate::readers;

/// All rows, in the order of their numbers.
static ROWS: LazyLock<Vec<RowRef>> = LazyLock::new(|| readers::rows().collect());

/// Returns the ids of all rows that a ledger may have, in the order of their numbers.
pub fn ids() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.id)
}

/// Returns id and state of all rows, in the order of their numbers.
pub fn legend() -> impl Iterator<Item = (&'static str, State)> {
    ROWS.iter().map(|row| (row.id, row.state))
}

/// Bytes by row, in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally(Vec<u64>);

impl Default for Tally {
    fn default() -> Self {
        Self(vec![0; ROWS.len()])
    }
}

impl Tally {
    /// Returns the bytes of a row, to change them.
    fn bytes_mut(&mut self, row: RowRef) -> &mut u64 {
        &mut self.0[readers::number(row)]
    }

    /// Adds bytes to a row.
    pub fn add(&mut self, row: RowRef, bytes: u64) {
        if bytes > 0 {
            *self.bytes_mut(row) += bytes;
        }
    }

    /// Takes up to `bytes` from a row, and returns how many it took.
    pub fn take(&mut self, row: RowRef, bytes: u64) -> u64 {
        let sum = self.bytes_mut(row);
        let taken = (*sum).min(bytes);
        *sum -= taken;
        taken
    }

    /// Returns the bytes of a row.
    pub fn bytes_of(&self, row: RowRef) -> u64 {
        self.0[readers::number(row)]
    }

    /// Adds another tally.
    pub fn add_all(&mut self, other: &Self) {
        for (sum, bytes) in self.0.iter_mut().zip(&other.0) {
            *sum += bytes;
        }
    }

    /// Returns number and bytes of the rows that have any, in the order of numbers. A test of the
    /// table of readers checks that the numbers fit into a byte.
    pub fn parts(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        self.0.iter().enumerate().filter(|(_, bytes)| **bytes > 0).map(|(row, &bytes)| (row as u8, bytes))
    }

    /// Adds bytes to the row with number `row`; ignores unknown numbers.
    pub fn add_part(&mut self, row: u8, bytes: u64) {
        if let Some(sum) = self.0.get_mut(usize::from(row)) {
            *sum += bytes;
        }
    }

    /// Returns the sum of all rows.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the rows that have bytes, largest first. Each named holder in `holders` gets a row
    /// of its own; bytes beyond those of the row are ignored.
    pub fn rows(&self, holders: &NamedHolders) -> Vec<Row> {
        let mut rows = Vec::new();
        for (&row, &bytes) in ROWS.iter().zip(&self.0) {
            let mut unnamed_bytes = bytes;
            let mut push = |holder: &str, bytes| {
                if bytes > 0 {
                    let (id, holder) = (row.id.to_owned(), holder.to_owned());
                    rows.push(Row { id, stratum: row.stratum, state: row.state, holder, bytes });
                }
            };
            for (holder, &bytes) in holders.of_row(row) {
                let bytes = bytes.min(unnamed_bytes);
                unnamed_bytes -= bytes;
                push(holder, bytes);
            }
            push(row.holder, unnamed_bytes);
        }
        rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| (&a.id, &a.holder).cmp(&(&b.id, &b.holder))));
        rows
    }
}

/// Bytes of named holders, by row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedHolders(BTreeMap<RowRef, BTreeMap<String, u64>>);

impl NamedHolders {
    /// Adds bytes that `holder` has on a row.
    pub fn add(&mut self, row: RowRef, holder: &str, bytes: u64) {
        let of_row = self.0.entry(row).or_default();
        match of_row.get_mut(holder) {
            Some(sum) => *sum += bytes,
            None => drop(of_row.insert(holder.to_owned(), bytes)),
        }
    }

    /// Names and bytes of the holders on a row.
    fn of_row(&self, row: RowRef) -> impl Iterator<Item = (&String, &u64)> {
        self.0.get(&row).into_iter().flatten()
    }
}

/// Adds rows up by state.
pub fn totals(rows: &[Row]) -> Totals {
    rows.iter().map(|row| (row.state, row.bytes)).collect()
}
