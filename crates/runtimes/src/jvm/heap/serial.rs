//! The serial collector: eden, two survivor spaces and an old generation
//! (`gc/serial/vmStructs_serial.hpp`).

use super::{AreaKind, Heap, generations, read_space};
use crate::jvm::view::View;

/// Reads the heap of the serial collector.
pub fn read(view: &View<'_>, heap: u64) -> Option<Heap> {
    let young = view.field(heap, &["SerialHeap::_young_gen", "GenCollectedHeap::_young_gen"])?;
    let old = view.field(heap, &["SerialHeap::_old_gen", "GenCollectedHeap::_old_gen"])?;
    let space_of = |generation, name, kind| {
        read_space(view, view.field(generation, &[name])?, kind, &["ContiguousSpace", "Space"])
    };
    let spaces = [
        space_of(young, "DefNewGeneration::_eden_space", AreaKind::Eden)?,
        space_of(young, "DefNewGeneration::_from_space", AreaKind::Survivor)?,
        space_of(young, "DefNewGeneration::_to_space", AreaKind::Survivor)?,
        space_of(old, "TenuredGeneration::_the_space", AreaKind::Old)?,
    ];
    generations(view, heap, "Serial", spaces, ["Eden Space", "Survivor Space", "Tenured Gen"])
}
