//! The heap: regions of G1 (`gc/g1/vmStructs_g1.hpp`, `g1HeapRegionType.hpp`), or the spaces of the serial collector
//! (`gc/serial/vmStructs_serial.hpp`).

use super::{HEAP, PAGE, Writer};

/// Smaller than G1 has them, so that an image is.
const REGION_BYTES: u64 = 16 * PAGE;
const SPACE_BYTES: u64 = 32 * PAGE;

/// Tags of regions: eden, survivor, the first of humongous ones, those that follow, old, archive.
type Tags = [u32; 6];

impl Writer {
    /// Writes one of either, and returns what of it is committed.
    pub fn heap(&mut self) -> Vec<(u64, u64)> {
        self.declare("MemRegion", &[("_start", 8), ("_word_size", 8)]);
        let active = if self.is_new { "_is_stw_gc_active" } else { "_is_gc_active" };
        self.declare("CollectedHeap", &[("_reserved", 80), (active, 1), ("_total_collections", 4)]);
        let is_g1 = self.dice.chance(60);
        self.flag("UseG1GC", u64::from(is_g1));
        self.flag("UseSerialGC", u64::from(!is_g1));
        if is_g1 { self.g1() } else { self.serial() }
    }

    /// A heap, as far as all collectors have the same; what is its own follows the common part.
    fn collected(&mut self, of: &'static str, fields: &[(&str, u64)], bytes: u64) -> u64 {
        let common = self.tables.size_of("CollectedHeap") + self.tables.size_of("MemRegion");
        // Declared from 0 on: they are moved behind what all have.
        for (field, _) in fields {
            let name = self.name_of(of, field);
            let offset = self.tables.offset(of, field);
            self.tables.field(of, name, common + offset);
        }
        let heap = self.structure(common + self.tables.size_of(of));
        self.fill(heap, of, fields);
        let region = heap + self.tables.offset("CollectedHeap", "_reserved");
        self.fill(region, "MemRegion", &[("_start", HEAP), ("_word_size", bytes / 8)]);
        self.fixed("Universe", "_collectedHeap", heap);
        heap
    }

    /// A field's name that lives as long as the tables.
    fn name_of(&self, of: &'static str, field: &str) -> &'static str {
        const NAMES: [&str; 5] = ["_hrm", "_g1mm", "_monitoring_support", "_young_gen", "_old_gen"];
        NAMES.into_iter().find(|name| *name == field).unwrap_or_else(|| panic!("no {of}::{field}"))
    }

    fn g1(&mut self) -> Vec<(u64, u64)> {
        self.expected.collector = "G1";
        let count = 6 + self.dice.below(8);
        let names: [&'static str; 4] = if self.is_new {
            ["G1HeapRegion", "G1HeapRegionManager", "G1HeapRegionType", "_monitoring_support"]
        } else {
            ["HeapRegion", "HeapRegionManager", "HeapRegionType", "_g1mm"]
        };
        let [region, manager, kind, support] = names;
        self.declare(region, &[("_type", 8), ("_bottom", 8), ("_top", 8), ("_end", 8)]);
        self.declare(kind, &[("_tag", 4)]);
        // A type of one field that stands within another: both are small.
        self.tables.field(kind, "_tag", 0);
        self.declare("G1HeapRegionTable", &[("_base", 8), ("_length", 8), ("_shift_by", 4)]);
        self.declare(manager, &[("_regions", 96)]);
        self.declare("G1CollectedHeap", &[("_hrm", 200), (support, 8)]);
        let bytes = count * REGION_BYTES;
        self.fixed(region, "GrainBytes", REGION_BYTES);
        let monitored = self.monitored();
        let heap = self.collected("G1CollectedHeap", &[(support, monitored), ("_hrm", 0)], bytes);
        let manager =
            heap + self.tables.offset("G1CollectedHeap", "_hrm") + self.tables.offset(manager, "_regions");
        let pointers = self.structure(8 * count);
        self.fill(manager, "G1HeapRegionTable", &[("_base", pointers), ("_length", count)]);
        let tags = self.tags();
        let committed = self.regions(region, pointers, (count, tags));
        if self.is_old {
            // What a region inherits is told of what it inherits from.
            for (field, of) in [("_bottom", "Space"), ("_end", "Space"), ("_top", "G1ContiguousSpace")] {
                self.tables.rename((region, field), of);
            }
        }
        committed
    }

    /// What of regions is told by kind (`gc/g1/g1HeapRegionType.hpp`).
    fn tags(&mut self) -> Tags {
        if self.is_new {
            for (name, value) in [
                ("G1HeapRegionType::FreeTag", 0),
                ("G1HeapRegionType::YoungMask", 2),
                ("G1HeapRegionType::EdenTag", 2),
                ("G1HeapRegionType::SurvTag", 3),
                ("G1HeapRegionType::HumongousMask", 4),
                ("G1HeapRegionType::OldMask", 8),
            ] {
                self.tables.int(name, value);
            }
            return [2, 3, 4, 5, 8, 8];
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
            self.tables.int(name, value);
        }
        [2, 3, 12, 13, 16, 41]
    }

    fn regions(&mut self, of: &'static str, pointers: u64, (count, tags): (u64, Tags)) -> Vec<(u64, u64)> {
        let mut committed: Vec<(u64, u64)> = Vec::new();
        let mut index = 0;
        while index < count {
            let what = self.dice.below(8);
            // One object, in several regions.
            let many = if what == 3 { (1 + self.dice.below(3)).min(count - index) } else { 1 };
            let (start, end) = (HEAP + index * REGION_BYTES, HEAP + (index + many) * REGION_BYTES);
            // One that was never committed has no structure.
            if what == 7 && index + 1 < count {
                index += 1;
                continue;
            }
            self.image.map(start, (end - start) as usize);
            match committed.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => committed.push((start, end)),
            }
            let (tag, top) = match what {
                0 | 1 => (tags[0], self.eden(start, end)),
                2 => (tags[1], self.objects(start, end)),
                3 => {
                    let top = end - PAGE * self.dice.below(4);
                    self.one_array(start, top);
                    (tags[2], top)
                }
                4 => (tags[4], self.objects(start, end)),
                5 => {
                    self.is_archive = !self.is_new;
                    let top = self.objects(start, end);
                    self.is_archive = false;
                    (tags[5], top)
                }
                _ => (0, start),
            };
            for part in 0..many {
                let (bottom, behind) = (start + part * REGION_BYTES, start + (part + 1) * REGION_BYTES);
                let tag = if part == 0 { tag } else { tags[3] };
                let fields = [("_bottom", bottom), ("_end", behind), ("_top", top.clamp(bottom, behind))];
                let region = self.object(of, &fields);
                self.image.put(region + self.tables.offset(of, "_type"), &tag.to_le_bytes());
                self.image.put_word(pointers + 8 * (index + part), region);
            }
            index += many;
        }
        committed
    }

    /// What the beans are told from, which G1 brings up to date at each collection and so is not what regions have now.
    fn monitored(&mut self) -> u64 {
        const FIELDS: [[&str; 2]; 6] = [
            ["_eden_space_used", "_eden_used"],
            ["_eden_space_committed", "_eden_committed"],
            ["_survivor_space_used", "_survivor_used"],
            ["_survivor_space_committed", "_survivor_committed"],
            ["_old_gen_used", "_old_used"],
            ["_old_gen_committed", "_old_committed"],
        ];
        let names = FIELDS.map(|names| names[usize::from(self.is_old)]);
        self.declare("G1MonitoringSupport", &names.map(|name| (name, 8)));
        let figures: [u64; 3] = std::array::from_fn(|_| 8 * self.dice.below(10_000));
        for (name, used) in ["G1 Eden Space", "G1 Survivor Space", "G1 Old Gen"].into_iter().zip(figures) {
            self.expected.pools.insert(name, (used, used.next_multiple_of(REGION_BYTES)));
        }
        let committed = figures.map(|used| used.next_multiple_of(REGION_BYTES));
        let words = [figures[0], committed[0], figures[1], committed[1], figures[2], committed[2]];
        let fields: Vec<(&str, u64)> = names.into_iter().zip(words).collect();
        self.object("G1MonitoringSupport", &fields)
    }

    fn serial(&mut self) -> Vec<(u64, u64)> {
        self.expected.collector = "Serial";
        let heap = if self.is_new { "SerialHeap" } else { "GenCollectedHeap" };
        self.declare("DefNewGeneration", &[("_eden_space", 8), ("_from_space", 8), ("_to_space", 8)]);
        self.declare("TenuredGeneration", &[("_the_space", 8)]);
        self.declare(heap, &[("_young_gen", 8), ("_old_gen", 8)]);
        if self.is_new {
            self.declare("ContiguousSpace", &[("_bottom", 8), ("_top", 8), ("_end", 8)]);
        } else {
            // A space's own fields, then those of one in which objects follow each other.
            self.declare("Space", &[("_bottom", 8), ("_end", 8)]);
            self.declare("ContiguousSpace", &[("_top", 8)]);
            let top = self.tables.size_of("Space") + self.tables.offset("ContiguousSpace", "_top");
            self.tables.field("ContiguousSpace", "_top", top);
            self.tables.size("ContiguousSpace", top + 8);
        }
        let bytes = 5 * SPACE_BYTES;
        let spaces: [(u64, u64); 4] = [
            (HEAP, HEAP + SPACE_BYTES),
            (HEAP + SPACE_BYTES, HEAP + SPACE_BYTES + 4 * PAGE),
            (HEAP + SPACE_BYTES + 4 * PAGE, HEAP + SPACE_BYTES + 8 * PAGE),
            // What lies between is reserved.
            (HEAP + 3 * SPACE_BYTES, HEAP + 4 * SPACE_BYTES),
        ];
        self.image.map(spaces[0].0, (spaces[2].1 - spaces[0].0) as usize);
        self.image.map(spaces[3].0, (spaces[3].1 - spaces[3].0) as usize);
        let tops = [
            self.eden(spaces[0].0, spaces[0].1),
            self.objects(spaces[1].0, spaces[1].1),
            spaces[2].0,
            self.objects(spaces[3].0, spaces[3].1),
        ];
        let at: [u64; 4] = std::array::from_fn(|index| self.space(spaces[index], tops[index]));
        for (name, index) in [("Eden Space", 0), ("Survivor Space", 1), ("Tenured Gen", 3)] {
            let (start, end) = spaces[index];
            self.expected.pools.insert(name, (tops[index] - start, end - start));
        }
        let young = self.object(
            "DefNewGeneration",
            &[("_eden_space", at[0]), ("_from_space", at[1]), ("_to_space", at[2])],
        );
        let old = self.object("TenuredGeneration", &[("_the_space", at[3])]);
        self.collected(heap, &[("_young_gen", young), ("_old_gen", old)], bytes);
        vec![(spaces[0].0, spaces[2].1), spaces[3]]
    }

    fn space(&mut self, (start, end): (u64, u64), top: u64) -> u64 {
        let space = self.object("ContiguousSpace", &[("_top", top)]);
        let of = if self.is_new { "ContiguousSpace" } else { "Space" };
        self.fill(space, of, &[("_bottom", start), ("_end", end)]);
        space
    }
}
