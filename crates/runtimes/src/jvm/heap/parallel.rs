//! The parallel collector: eden, two survivor spaces and an old generation
//! (`gc/parallel/vmStructs_parallelgc.hpp`).

use super::{Area, AreaKind, Heap, generations, read_space};
use crate::jvm::view::View;

/// Reads the heap of the parallel collector.
pub fn read(view: &View<'_>, heap: u64) -> Option<Heap> {
    // Static fields up to JDK 26.
    let generation = |name: &str| view.static_field(&[name]).or_else(|| view.field(heap, &[name]));
    let young = generation("ParallelScavengeHeap::_young_gen")?;
    let old = generation("ParallelScavengeHeap::_old_gen")?;
    let space_of = |generation, name, kind| {
        read_space(view, view.field(generation, &[name])?, kind, &["MutableSpace", "ImmutableSpace"])
    };
    let spaces = [
        space_of(young, "PSYoungGen::_eden_space", AreaKind::Eden)?,
        space_of(young, "PSYoungGen::_from_space", AreaKind::Survivor)?,
        space_of(young, "PSYoungGen::_to_space", AreaKind::Survivor)?,
        space_of(old, "PSOldGen::_object_space", AreaKind::Old)?,
    ];
    let [eden, from, to, _] = spaces;
    let mut heap =
        generations(view, heap, "Parallel", spaces, ["PS Eden Space", "PS Survivor Space", "PS Old Gen"])?;
    heap.areas.extend(gaps_between([eden, from, to]));
    Some(heap)
}

/// Returns the gaps between spaces of the young generation: a shrunken survivor space no longer
/// adjoins the next space, and the gap stays committed (`PSYoungGen::resize_spaces`).
fn gaps_between(mut spaces: [Area; 3]) -> impl Iterator<Item = Area> {
    spaces.sort_by_key(|space| space.start);
    let [first, second, third] = spaces;
    let pairs = [(first, second), (second, third)].into_iter();
    pairs.filter_map(|(space, next)| Area::new(AreaKind::Free, space.end, space.end, next.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_between_spaces_is_free() {
        let area = |kind, start, end| Area { kind, start, top: start, end };
        let eden = area(AreaKind::Eden, 0x10_0000, 0x20_0000);
        let (from, to) =
            (area(AreaKind::Survivor, 0x38_0000, 0x40_0000), area(AreaKind::Survivor, 0x20_0000, 0x30_0000));
        let gaps: Vec<Area> = gaps_between([eden, from, to]).collect();
        assert_eq!(gaps, [area(AreaKind::Free, 0x30_0000, 0x38_0000)]);
    }
}
