//! The ledger row and the holder of each class of a reader's claims.

use crate::class::{SLOTS, Slot};
use crate::rows::RowRef;

/// The row and holder of each slot ([`crate::class::Class::Refined`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotTable {
    /// By the index of the slot.
    entries: Vec<SlotEntry>,
}

/// The row and holder of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotEntry {
    /// The row.
    pub row: RowRef,
    /// The holder, if only a part of the row has it.
    pub holder: Option<String>,
}

impl SlotTable {
    /// The slot for a row, added if new; `holder` if only a part of the row has this holder. `None`
    /// if all slots are taken.
    pub fn add(&mut self, row: RowRef, holder: Option<&str>) -> Option<Slot> {
        let is_known = |entry: &SlotEntry| entry.row == row && entry.holder.as_deref() == holder;
        let known_index = self.entries.iter().position(is_known);
        let index = known_index.unwrap_or(self.entries.len());
        if index >= SLOTS {
            return None;
        }
        if known_index.is_none() {
            self.entries.push(SlotEntry { row, holder: holder.map(str::to_owned) });
        }
        u8::try_from(index).ok().and_then(Slot::new)
    }

    /// The row and holder of a slot; `None` if it was not added.
    pub fn get(&self, slot: Slot) -> Option<&SlotEntry> {
        self.entries.get(slot.index())
    }
}

/// The rows of an allocator's blocks, by class.
#[derive(Clone, Copy, Debug)]
pub struct BlockRows {
    /// Payload of blocks in use.
    pub live: RowRef,
    /// The allocator's words in front of blocks in use.
    pub header: RowRef,
    /// The allocator's own structures.
    pub metadata: RowRef,
    /// Blocks in caches of threads or processors.
    pub cached: RowRef,
    /// Free, on whole pages that the allocator's own call releases.
    pub releasable: RowRef,
    /// Free, on pages without live data, that this call does not release.
    pub kept: RowRef,
    /// Free, on pages with live data.
    pub pinned: RowRef,
    /// Blocks with their own mappings.
    pub mapped: RowRef,
    /// The allocator's, but not understood.
    pub unread: RowRef,
}

/// A [`BlockRows`](crate::palette::BlockRows) of statics: `class_rows! { live: LIVE, … }` with all
/// its fields, in any order. Several may have the same row.
#[macro_export]
macro_rules! class_rows {
    ($($class:ident: $row:ident),+ $(,)?) => { $crate::palette::BlockRows { $($class: &$row),+ } };
}
