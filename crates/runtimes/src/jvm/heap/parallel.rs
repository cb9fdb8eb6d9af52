//! The parallel collector: eden, two survivor spaces and an old generation (`gc/parallel/vmStructs_parallelgc.hpp`).

use super::{Heap, Kind, generations, space};
use crate::jvm::view::View;

/// Reads it.
pub fn read(view: &View<'_>, heap: u64) -> Option<Heap> {
    // Static up to JDK 26.
    let generation = |name: &str| view.fixed(&[name]).or_else(|| view.field(heap, &[name]));
    let young = generation("ParallelScavengeHeap::_young_gen")?;
    let old = generation("ParallelScavengeHeap::_old_gen")?;
    let of = |generation, name, kind| {
        space(view, view.field(generation, &[name])?, kind, &["MutableSpace", "ImmutableSpace"])
    };
    let spaces = [
        of(young, "PSYoungGen::_eden_space", Kind::Eden)?,
        of(young, "PSYoungGen::_from_space", Kind::Survivor)?,
        of(young, "PSYoungGen::_to_space", Kind::Survivor)?,
        of(old, "PSOldGen::_object_space", Kind::Old)?,
    ];
    generations(view, (heap, "Parallel"), spaces, ["PS Eden Space", "PS Survivor Space", "PS Old Gen"])
}
