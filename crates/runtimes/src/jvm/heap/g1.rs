//! G1: regions of one size, each of a kind (`gc/g1/vmStructs_g1.hpp`, `g1HeapRegionType.hpp`).

use std::ops::RangeInclusive;
use std::time::Instant;

use strandline_claims::runtime::Context;
use strandline_process::range::AddressRange;

use super::{Area, AreaKind, Heap, MAX_REGIONS, Pool, REGIONS_AT_ONCE, Region, push_region, reserved_range};
use crate::jvm::view::View;

/// Accepted sizes of a region; HotSpot's have 1 MiB to 512 MiB (`gc/g1/g1HeapRegionBounds.hpp`),
/// those of fabricated heaps less.
const REGION_BYTES: RangeInclusive<u64> = 1 << 16..=1 << 29;
/// Bit of the tag of a region with a large object: set if it is not the first one
/// (`ContinuesHumongousTag`).
const IS_CONTINUED: u32 = 1;

/// Reads the heap of G1; `None` if it is inconsistent, or at the deadline. HotSpot's tables do not
/// describe which regions are committed; a region that never was has no structure.
pub fn read(context: &Context<'_>, view: &View<'_>, heap: u64) -> Option<Heap> {
    let region_bytes = view.static_field(&["G1HeapRegion::GrainBytes", "HeapRegion::GrainBytes"])?;
    if !region_bytes.is_power_of_two() || !REGION_BYTES.contains(&region_bytes) {
        return None;
    }
    let AddressRange { start, end } = reserved_range(view, heap)?;
    let manager = view.field_address(heap, &["G1CollectedHeap::_hrm"])?;
    let table =
        view.field_address(manager, &["G1HeapRegionManager::_regions", "HeapRegionManager::_regions"])?;
    let base = view.field(table, &["G1HeapRegionTable::_base"])?;
    let length = view.field(table, &["G1HeapRegionTable::_length"])?;
    if length > MAX_REGIONS || length.checked_mul(region_bytes)? != end - start {
        return None;
    }
    let regions = view.words(base, length as usize)?;
    let tags = RegionTags::new(view)?;
    let mut areas: Vec<Area> = Vec::new();
    for (index, region) in (0_u64..).zip(regions) {
        if index.is_multiple_of(REGIONS_AT_ONCE) && Instant::now() >= context.deadline {
            return None;
        }
        if region == 0 {
            continue;
        }
        let bottom = start + index * region_bytes;
        // The table keeps the entries of regions that were uncommitted
        // (HeapRegionManager::uncommit_regions); their memory has no access (os::uncommit_memory).
        let is_committed = context.space.find(bottom).is_some_and(|mapping| mapping.permissions.read);
        if !is_committed {
            continue;
        }
        let region = read_region(view, region, bottom, bottom + region_bytes, &tags)?;
        push_region(&mut areas, region)?;
    }
    Some(Heap {
        collector: "G1",
        reserved: AddressRange { start, end },
        areas,
        pools: pools(view, heap)?,
        region_bytes: Some(region_bytes),
        is_parsable: true,
        ..Heap::default()
    })
}

/// Reads the figures of the memory pools.
fn pools(view: &View<'_>, heap: u64) -> Option<Vec<Pool>> {
    let support = view.field(heap, &["G1CollectedHeap::_monitoring_support", "G1CollectedHeap::_g1mm"])?;
    let figure = |spaces: [&str; 2], field: &str| {
        let [name, old_name] = spaces.map(|space| format!("G1MonitoringSupport::_{space}_{field}"));
        view.field(support, &[&name, &old_name])
    };
    // The second name of a space is that of older JDKs, 11 before its backport of JDK-8209062.
    let pools = [
        ("G1 Eden Space", ["eden_space", "eden"]),
        ("G1 Survivor Space", ["survivor_space", "survivor"]),
        ("G1 Old Gen", ["old_gen", "old"]),
    ];
    let pool = |(name, spaces)| Some(Pool::new(name, figure(spaces, "used")?, figure(spaces, "committed")?));
    pools.into_iter().map(pool).collect()
}

/// Masks and values of a region's tag.
struct RegionTags {
    young_mask: u32,
    eden_tag: u32,
    humongous_mask: u32,
    old_mask: u32,
    archive_mask: u32,
}

impl RegionTags {
    fn new(view: &View<'_>) -> Option<Self> {
        let constant = |name: &str| {
            let (name, old_name) = (format!("G1HeapRegionType::{name}"), format!("HeapRegionType::{name}"));
            u32::try_from(view.constant(&[&name, &old_name])?).ok()
        };
        Some(Self {
            young_mask: constant("YoungMask")?,
            eden_tag: constant("EdenTag")?,
            humongous_mask: constant("HumongousMask")?,
            old_mask: constant("OldMask")?,
            // Removed in JDK 21.
            archive_mask: constant("ArchiveMask").unwrap_or(0),
        })
    }

    /// Returns the kind of a tag; `None` if it is not known. The lowest bit of a tag distinguishes
    /// variants: eden from survivor, the first region of a large object from further ones.
    fn kind_of(&self, tag: u32) -> Option<AreaKind> {
        match tag {
            0 => Some(AreaKind::Free),
            tag if tag == self.eden_tag => Some(AreaKind::Eden),
            tag if tag & self.young_mask != 0 => Some(AreaKind::Survivor),
            tag if tag & self.humongous_mask != 0 => Some(AreaKind::Humongous),
            tag if tag & self.archive_mask != 0 => Some(AreaKind::Archive),
            tag if tag & self.old_mask != 0 => Some(AreaKind::Old),
            _ => None,
        }
    }
}

/// Reads a region, which is at `start..end`.
fn read_region(view: &View<'_>, region: u64, start: u64, end: u64, tags: &RegionTags) -> Option<Region> {
    let bottom_names = ["G1HeapRegion::_bottom", "HeapRegion::_bottom", "Space::_bottom"];
    let top_names = ["G1HeapRegion::_top", "HeapRegion::_top", "G1ContiguousSpace::_top"];
    let type_names = ["G1HeapRegion::_type", "HeapRegion::_type"];
    let tag_names = ["G1HeapRegionType::_tag", "HeapRegionType::_tag"];
    if view.field(region, &bottom_names)? != start {
        return None;
    }
    let tag = view.half_field(view.field_address(region, &type_names)?, &tag_names)?;
    let kind = tags.kind_of(tag)?;
    let top = if kind == AreaKind::Free { start } else { view.field(region, &top_names)? };
    let is_continued = kind == AreaKind::Humongous && tag & IS_CONTINUED != 0;
    Some(Region { area: Area::new(kind, start, top, end)?, is_continued })
}
