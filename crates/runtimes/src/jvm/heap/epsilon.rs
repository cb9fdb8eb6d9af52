//! Epsilon, which collects nothing: one space (`gc/epsilon/vmStructs_epsilon.hpp`).

use super::{AreaKind, Heap, pool, read_space, reserved_range};
use crate::jvm::view::View;

/// Reads the heap of Epsilon.
pub fn read(view: &View<'_>, heap: u64) -> Option<Heap> {
    let area = read_space(
        view,
        view.field(heap, &["EpsilonHeap::_space"])?,
        AreaKind::Old,
        &["ContiguousSpace", "Space"],
    )?;
    Some(Heap {
        collector: "Epsilon",
        reserved: reserved_range(view, heap)?,
        areas: vec![area],
        pools: vec![pool("Epsilon Heap", &area)],
        is_parsable: true,
        ..Heap::default()
    })
}
