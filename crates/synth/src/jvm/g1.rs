//! G1: regions (`gc/g1/vmStructs_g1.hpp`, `g1HeapRegionType.hpp`).

use super::heap::{Area, REGION_BYTES};
use super::{HEAP, Jdk, PAGE, Writer};
use crate::Usage;

/// Tags of regions.
struct Tags {
    eden: u32,
    survivor: u32,
    /// The first region of a humongous object, and further ones of it.
    humongous: u32,
    continued: u32,
    old: u32,
    archive: u32,
}

/// What a region holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RegionUse {
    Eden,
    Survivor,
    Humongous,
    Old,
    Archive,
    Free,
    /// Never committed: such a region has no structure.
    Uncommitted,
}

impl RegionUse {
    /// Uses to draw from.
    const ALL: [Self; 8] = [
        Self::Eden,
        Self::Eden,
        Self::Survivor,
        Self::Humongous,
        Self::Old,
        Self::Archive,
        Self::Free,
        Self::Uncommitted,
    ];
}

/// A region, or those of a humongous object, with objects.
struct FilledRegion {
    /// Its kind, as readers report it.
    kind: &'static str,
    tag: u32,
    /// End of its objects.
    top: u64,
}

impl Writer {
    /// Writes a G1 heap.
    pub fn write_g1(&mut self) {
        let count = 6 + self.rng.below(8);
        let names: [&'static str; 4] = if self.jdk == Jdk::V25 {
            ["G1HeapRegion", "G1HeapRegionManager", "G1HeapRegionType", "_monitoring_support"]
        } else {
            ["HeapRegion", "HeapRegionManager", "HeapRegionType", "_g1mm"]
        };
        let [region, manager, kind, support] = names;
        self.declare_type(region, &[("_type", 8), ("_bottom", 8), ("_top", 8), ("_end", 8)]);
        self.declare_type(kind, &[("_tag", 4)]);
        // The type is embedded in regions, and has one field at offset 0.
        self.tables.declare_field(kind, "_tag", 0);
        self.declare_type("G1HeapRegionTable", &[("_base", 8), ("_length", 8), ("_shift_by", 4)]);
        self.declare_type(manager, &[("_regions", 96)]);
        self.declare_type("G1CollectedHeap", &[("_hrm", 200), (support, 8)]);
        let bytes = count * REGION_BYTES;
        self.write_static(region, "GrainBytes", REGION_BYTES);
        let monitoring = self.write_monitoring();
        let heap = self.write_collected_heap("G1CollectedHeap", &[(support, monitoring), ("_hrm", 0)], bytes);
        let manager =
            heap + self.tables.offset("G1CollectedHeap", "_hrm") + self.tables.offset(manager, "_regions");
        let pointers = self.allocate_structure(8 * count);
        self.write_fields(manager, "G1HeapRegionTable", &[("_base", pointers), ("_length", count)]);
        let tags = self.write_tags();
        self.write_regions(region, pointers, count, &tags);
        if self.jdk == Jdk::V11 {
            // Inherited fields are listed with the class that declares them.
            for (field, class) in [("_bottom", "Space"), ("_end", "Space"), ("_top", "G1ContiguousSpace")] {
                self.tables.move_to_base(region, field, class);
            }
        }
    }

    /// Writes the constants of region types (`gc/g1/g1HeapRegionType.hpp`); returns the tags.
    fn write_tags(&mut self) -> Tags {
        if self.jdk == Jdk::V25 {
            for (name, value) in [
                ("G1HeapRegionType::FreeTag", 0),
                ("G1HeapRegionType::YoungMask", 2),
                ("G1HeapRegionType::EdenTag", 2),
                ("G1HeapRegionType::SurvTag", 3),
                ("G1HeapRegionType::HumongousMask", 4),
                ("G1HeapRegionType::OldMask", 8),
            ] {
                self.tables.declare_int(name, value);
            }
            return Tags { eden: 2, survivor: 3, humongous: 4, continued: 5, old: 8, archive: 8 };
        }
        for (name, value) in [
            ("HeapRegionType::FreeTag", 0),
            ("HeapRegionType::YoungMask", 2),
            ("HeapRegionType::EdenTag", 2),
            ("HeapRegionType::SurvTag", 3),
            ("HeapRegionType::HumongousMask", 4),
            ("HeapRegionType::PinnedMask", 8),
            ("HeapRegionType::OldMask", 16),
            ("HeapRegionType::ArchiveMask", 32),
        ] {
            self.tables.declare_int(name, value);
        }
        Tags { eden: 2, survivor: 3, humongous: 12, continued: 13, old: 16, archive: 41 }
    }

    /// Writes `count` regions, and pointers to their structures, which are of the type
    /// `region_type`.
    fn write_regions(&mut self, region_type: &'static str, pointers: u64, count: u64, tags: &Tags) {
        let mut index = 0;
        while index < count {
            let region_use = self.rng.one_of(&RegionUse::ALL);
            // A humongous object is in one or several regions.
            let is_humongous = region_use == RegionUse::Humongous;
            let regions = if is_humongous { (1 + self.rng.below(3)).min(count - index) } else { 1 };
            if region_use == RegionUse::Uncommitted && index + 1 < count {
                index += 1;
                continue;
            }
            let (start, end) = (HEAP + index * REGION_BYTES, HEAP + (index + regions) * REGION_BYTES);
            self.commit(start..end);
            let FilledRegion { kind, tag, top } = self.fill_region(region_use, start, end, tags);
            self.expect_area(kind, Area { start, top, end });
            for part in 0..regions {
                let (bottom, part_end) = (start + part * REGION_BYTES, start + (part + 1) * REGION_BYTES);
                let tag = if part == 0 { tag } else { tags.continued };
                let fields = [("_bottom", bottom), ("_end", part_end), ("_top", top.clamp(bottom, part_end))];
                let region = self.write_structure(region_type, &fields);
                self.image.put(region + self.tables.offset(region_type, "_type"), &tag.to_le_bytes());
                self.image.put_word(pointers + 8 * (index + part), region);
            }
            index += regions;
        }
    }

    /// Fills a region, or those of a humongous object, as `region_use` says.
    fn fill_region(&mut self, region_use: RegionUse, start: u64, end: u64, tags: &Tags) -> FilledRegion {
        let tag = match region_use {
            RegionUse::Eden => tags.eden,
            RegionUse::Survivor => tags.survivor,
            RegionUse::Humongous => tags.humongous,
            RegionUse::Old => tags.old,
            RegionUse::Archive => tags.archive,
            RegionUse::Free | RegionUse::Uncommitted => 0,
        };
        let (kind, top) = match region_use {
            RegionUse::Eden => ("eden", self.write_eden(start, end)),
            RegionUse::Survivor => ("survivor", self.write_objects(start, end)),
            RegionUse::Humongous => {
                let top = end - PAGE * self.rng.below(4);
                self.write_filling_array(start, top);
                ("humongous", top)
            }
            RegionUse::Old => ("old", self.write_objects(start, end)),
            RegionUse::Archive => {
                self.is_archive = self.jdk != Jdk::V25;
                let top = self.write_objects(start, end);
                self.is_archive = false;
                (if self.jdk == Jdk::V25 { "old" } else { "archive" }, top)
            }
            RegionUse::Free | RegionUse::Uncommitted => ("free", start),
        };
        FilledRegion { kind, tag, top }
    }

    /// Writes the figures that the beans report. G1 updates them at each collection, so that they
    /// differ from the regions' own.
    fn write_monitoring(&mut self) -> u64 {
        const FIELDS: [[&str; 2]; 6] = [
            ["_eden_space_used", "_eden_used"],
            ["_eden_space_committed", "_eden_committed"],
            ["_survivor_space_used", "_survivor_used"],
            ["_survivor_space_committed", "_survivor_committed"],
            ["_old_gen_used", "_old_used"],
            ["_old_gen_committed", "_old_committed"],
        ];
        let names = FIELDS.map(|names| names[usize::from(self.jdk == Jdk::V11)]);
        self.declare_type("G1MonitoringSupport", &names.map(|name| (name, 8)));
        let figures: [u64; 3] = std::array::from_fn(|_| 8 * self.rng.below(10_000));
        for (name, used) in ["G1 Eden Space", "G1 Survivor Space", "G1 Old Gen"].into_iter().zip(figures) {
            self.expected.pools.insert(name, Usage::of(used, used.next_multiple_of(REGION_BYTES)));
        }
        let committed_bytes = figures.map(|used| used.next_multiple_of(REGION_BYTES));
        let words =
            [figures[0], committed_bytes[0], figures[1], committed_bytes[1], figures[2], committed_bytes[2]];
        let fields: Vec<(&str, u64)> = names.into_iter().zip(words).collect();
        self.write_structure("G1MonitoringSupport", &fields)
    }
}
