//! Collectors with a few spaces: serial (`gc/serial/vmStructs_serial.hpp`), parallel
//! (`gc/parallel/vmStructs_parallelgc.hpp`), and Epsilon (`gc/epsilon/vmStructs_epsilon.hpp`).

use super::heap::Collector;
use super::{HEAP, Jdk, PAGE, Writer};
use crate::Usage;

const SPACE_BYTES: u64 = 32 * PAGE;

impl Writer {
    /// Writes a heap of the serial collector, and returns its committed ranges.
    pub fn write_serial(&mut self) -> Vec<(u64, u64)> {
        let heap = if self.jdk == Jdk::V25 { "SerialHeap" } else { "GenCollectedHeap" };
        self.declare_type("DefNewGeneration", &[("_eden_space", 8), ("_from_space", 8), ("_to_space", 8)]);
        self.declare_type("TenuredGeneration", &[("_the_space", 8)]);
        self.declare_type(heap, &[("_young_gen", 8), ("_old_gen", 8)]);
        self.declare_contiguous_space();
        let bytes = 5 * SPACE_BYTES;
        let spaces: [(u64, u64); 4] = [
            (HEAP, HEAP + SPACE_BYTES),
            (HEAP + SPACE_BYTES, HEAP + SPACE_BYTES + 4 * PAGE),
            (HEAP + SPACE_BYTES + 4 * PAGE, HEAP + SPACE_BYTES + 8 * PAGE),
            // The range in between is only reserved.
            (HEAP + 3 * SPACE_BYTES, HEAP + 4 * SPACE_BYTES),
        ];
        self.image.map(spaces[0].0, (spaces[2].1 - spaces[0].0) as usize);
        self.image.map(spaces[3].0, (spaces[3].1 - spaces[3].0) as usize);
        let names = ["Eden Space", "Survivor Space", "Tenured Gen"];
        let [eden, from, to, tenured] = self.write_generations(spaces, names);
        let young = self.write_structure(
            "DefNewGeneration",
            &[("_eden_space", eden), ("_from_space", from), ("_to_space", to)],
        );
        let old = self.write_structure("TenuredGeneration", &[("_the_space", tenured)]);
        self.write_collected_heap(heap, &[("_young_gen", young), ("_old_gen", old)], bytes);
        vec![(spaces[0].0, spaces[2].1), spaces[3]]
    }

    /// Writes a heap of the parallel collector, and returns its committed ranges.
    pub fn write_parallel(&mut self) -> Vec<(u64, u64)> {
        self.declare_type("MutableSpace", &[("_bottom", 8), ("_top", 8), ("_end", 8)]);
        self.declare_type("PSYoungGen", &[("_eden_space", 8), ("_from_space", 8), ("_to_space", 8)]);
        self.declare_type("PSOldGen", &[("_object_space", 8)]);
        self.declare_type("ParallelScavengeHeap", &[]);
        let old = (HEAP, HEAP + SPACE_BYTES);
        let eden = (HEAP + 2 * SPACE_BYTES, HEAP + 3 * SPACE_BYTES);
        // Survivor spaces change places at each collection, and were made smaller: the gaps between
        // them stay committed.
        let gaps = [PAGE * self.dice.below(3), PAGE * self.dice.below(3)];
        let first = (eden.1 + gaps[0], eden.1 + gaps[0] + 4 * PAGE);
        let second = (first.1 + gaps[1], first.1 + gaps[1] + 3 * PAGE);
        let (from, to) = if self.dice.chance(50) { (first, second) } else { (second, first) };
        for range in [old, (eden.0, second.1)] {
            self.image.map(range.0, (range.1 - range.0) as usize);
        }
        for gap in [(eden.1, first.0), (first.1, second.0)].into_iter().filter(|gap| gap.0 < gap.1) {
            self.expect_area("free", [gap.0, gap.0, gap.1]);
        }
        let names = ["PS Eden Space", "PS Survivor Space", "PS Old Gen"];
        let [eden_space, from_space, to_space, old_space] =
            self.write_generations([eden, from, to, old], names);
        let young = self.write_structure(
            "PSYoungGen",
            &[("_eden_space", eden_space), ("_from_space", from_space), ("_to_space", to_space)],
        );
        let generation = self.write_structure("PSOldGen", &[("_object_space", old_space)]);
        self.write_static("ParallelScavengeHeap", "_young_gen", young);
        self.write_static("ParallelScavengeHeap", "_old_gen", generation);
        self.write_collected_heap("ParallelScavengeHeap", &[], 5 * SPACE_BYTES);
        if self.jdk == Jdk::V11 {
            for field in ["_bottom", "_end"] {
                self.tables.move_to_base("MutableSpace", field, "ImmutableSpace");
            }
        }
        vec![old, (eden.0, second.1)]
    }

    /// Writes an Epsilon heap, and returns its committed ranges.
    pub fn write_epsilon(&mut self) -> Vec<(u64, u64)> {
        self.declare_contiguous_space();
        self.declare_type("EpsilonHeap", &[("_space", 8)]);
        let (start, end) = (HEAP, HEAP + 2 * SPACE_BYTES);
        self.image.map(start, (end - start) as usize);
        let top = self.write_eden(start, end);
        self.expect_area("old", [start, top, end]);
        self.expected.pools.insert("Epsilon Heap", Usage::of(top - start, end - start));
        let space = self.write_space(start, end, top);
        self.write_collected_heap("EpsilonHeap", &[("_space", space)], 4 * SPACE_BYTES);
        vec![(start, end)]
    }

    /// Fills eden, two survivor spaces and an old generation, whose pools have these names; returns
    /// the addresses of their structures.
    fn write_generations(&mut self, spaces: [(u64, u64); 4], names: [&'static str; 3]) -> [u64; 4] {
        let tops = [
            self.write_eden(spaces[0].0, spaces[0].1),
            self.write_objects(spaces[1].0, spaces[1].1),
            spaces[2].0,
            self.write_objects(spaces[3].0, spaces[3].1),
        ];
        for (name, index) in names.into_iter().zip([0, 1, 3]) {
            let (start, end) = spaces[index];
            self.expected.pools.insert(name, Usage::of(tops[index] - start, end - start));
        }
        for (index, kind) in ["eden", "survivor", "survivor", "old"].into_iter().enumerate() {
            self.expect_area(kind, [spaces[index].0, tops[index], spaces[index].1]);
        }
        std::array::from_fn(|index| self.write_space(spaces[index].0, spaces[index].1, tops[index]))
    }

    /// Describes a space in which objects follow each other, for Epsilon and the serial collector.
    fn declare_contiguous_space(&mut self) {
        if self.jdk == Jdk::V25 {
            self.declare_type("ContiguousSpace", &[("_bottom", 8), ("_top", 8), ("_end", 8)]);
        } else {
            // The fields of a space, then those of a contiguous space.
            self.declare_type("Space", &[("_bottom", 8), ("_end", 8)]);
            self.declare_type("ContiguousSpace", &[("_top", 8)]);
            let top = self.tables.size_of("Space") + self.tables.offset("ContiguousSpace", "_top");
            self.tables.declare_field("ContiguousSpace", "_top", top);
            self.tables.declare_size("ContiguousSpace", top + 8);
        }
    }

    /// Writes the structure of a space with objects up to `top`; returns its address.
    fn write_space(&mut self, start: u64, end: u64, top: u64) -> u64 {
        let (type_name, base) = match self.collector {
            Collector::Parallel => ("MutableSpace", "MutableSpace"),
            _ if self.jdk == Jdk::V25 => ("ContiguousSpace", "ContiguousSpace"),
            _ => ("ContiguousSpace", "Space"),
        };
        let space = self.write_structure(type_name, &[("_top", top)]);
        self.write_fields(space, base, &[("_bottom", start), ("_end", end)]);
        space
    }
}
