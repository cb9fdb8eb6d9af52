//! Epsilon, which collects nothing: one space (`gc/epsilon/vmStructs_epsilon.hpp`).

use super::{Heap, Kind, pool, reserved, space};
use crate::jvm::view::View;

/// Reads the heap of Epsilon.
pub fn read(view: &View<'_>, heap: u64) -> Option<Heap> {
    let area =
        space(view, view.field(heap, &["EpsilonHeap::_space"])?, Kind::Old, &["ContiguousSpace", "Space"])?;
    Some(Heap {
        collector: "Epsilon",
        reserved: reserved(view, heap)?,
        areas: vec![area],
        pools: vec![pool("Epsilon Heap", &area)],
        is_parsable: true,
        ..Heap::default()
    })
}
