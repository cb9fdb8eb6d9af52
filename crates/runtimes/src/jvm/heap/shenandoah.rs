//! Shenandoah: regions of one size, each in a state (`gc/shenandoah/vmStructs_shenandoah.hpp`).

use std::time::Instant;

use strandline_claims::runtime::Context;

use super::{Area, AreaKind, Heap, MAX_REGIONS, Pool, REGIONS_AT_ONCE, Region, push_region, reserved_range};
use crate::jvm::view::View;

/// Reads the heap of Shenandoah; `None` if it is inconsistent, or at the deadline.
pub fn read(context: &Context<'_>, view: &View<'_>, heap: u64) -> Option<Heap> {
    let region_bytes = view.static_field(&["ShenandoahHeapRegion::RegionSizeBytes"])?;
    let count = view.field(heap, &["ShenandoahHeap::_num_regions"])?;
    let table = view.field(heap, &["ShenandoahHeap::_regions"])?;
    if count > MAX_REGIONS || !region_bytes.is_power_of_two() {
        return None;
    }
    let regions = view.words(table, count as usize)?;
    let state_number = |name: &str| view.constant(&[&format!("ShenandoahHeapRegion::{name}")]);
    let (empty, uncommitted, trash) =
        (state_number("_empty_committed")?, state_number("_empty_uncommitted")?, state_number("_trash")?);
    // Not every version has all of these.
    let humongous = ["_humongous_start", "_humongous_cont", "_pinned_humongous_start"].map(state_number);
    let continued = state_number("_humongous_cont");
    let mut areas: Vec<Area> = Vec::new();
    for (index, region) in (0_u64..).zip(regions) {
        if index.is_multiple_of(REGIONS_AT_ONCE) && Instant::now() >= context.deadline {
            return None;
        }
        let field = |name: &str| view.field(region, &[&format!("ShenandoahHeapRegion::{name}")]);
        let state = u64::from(view.half_field(region, &["ShenandoahHeapRegion::_state"])?);
        let (start, end) = (field("_bottom")?, field("_end")?);
        let (kind, top) = match state {
            state if state == uncommitted => continue,
            state if state == empty || state == trash => (AreaKind::Free, start),
            state if humongous.contains(&Some(state)) => (AreaKind::Humongous, field("_top")?),
            _ => (AreaKind::Old, field("_top")?),
        };
        let area = Area::new(kind, start, top, end)?;
        push_region(&mut areas, Region { area, is_continued: Some(state) == continued })?;
    }
    let used = used_bytes(view, heap)?;
    let committed = view.field(heap, &["ShenandoahHeap::_committed"])?;
    Some(Heap {
        collector: "Shenandoah",
        reserved: reserved_range(view, heap)?,
        areas,
        pools: vec![Pool::new("Shenandoah", used, committed.max(used))],
        region_bytes: Some(region_bytes),
        is_parsable: true,
        ..Heap::default()
    })
}

/// Reads the bytes of objects: a field of the heap, in later versions of its generation, and from
/// JDK 26 on of the set of free regions.
fn used_bytes(view: &View<'_>, heap: u64) -> Option<u64> {
    let generation = view.field(heap, &["ShenandoahHeap::_global_generation"]);
    let free_set = view.field(heap, &["ShenandoahHeap::_free_set"]);
    view.field(heap, &["ShenandoahHeap::_used"])
        .or_else(|| view.field(generation?, &["ShenandoahGeneration::_used"]))
        .or_else(|| view.field(free_set?, &["ShenandoahFreeSet::_total_global_used"]))
}
