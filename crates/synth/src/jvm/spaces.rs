//! Collectors with a few spaces: serial (`gc/serial/vmStructs_serial.hpp`), parallel
//! (`gc/parallel/vmStructs_parallelgc.hpp`), and Epsilon (`gc/epsilon/vmStructs_epsilon.hpp`).

use std::ops::Range;

use super::heap::{Area, Collector};
use super::{HEAP, Jdk, PAGE, Writer};
use crate::Usage;

const SPACE_BYTES: u64 = 32 * PAGE;

impl Writer {
    /// Writes a heap of the serial collector.
    pub fn write_serial(&mut self) {
        let heap = if self.jdk == Jdk::V25 { "SerialHeap" } else { "GenCollectedHeap" };
        self.declare_type("DefNewGeneration", &[("_eden_space", 8), ("_from_space", 8), ("_to_space", 8)]);
        self.declare_type("TenuredGeneration", &[("_the_space", 8)]);
        self.declare_type(heap, &[("_young_gen", 8), ("_old_gen", 8)]);
        self.declare_contiguous_space();
        let bytes = 5 * SPACE_BYTES;
        let eden_end = HEAP + SPACE_BYTES;
        let spaces = [
            HEAP..eden_end,
            eden_end..eden_end + 4 * PAGE,
            eden_end + 4 * PAGE..eden_end + 8 * PAGE,
            // The range before the old generation is only reserved.
            HEAP + 3 * SPACE_BYTES..HEAP + 4 * SPACE_BYTES,
        ];
        self.commit(spaces[0].start..spaces[2].end);
        self.commit(spaces[3].clone());
        let names = ["Eden Space", "Survivor Space", "Tenured Gen"];
        let [eden, from, to, tenured] = self.write_generations(spaces, names);
        let young = self.write_structure(
            "DefNewGeneration",
            &[("_eden_space", eden), ("_from_space", from), ("_to_space", to)],
        );
        let old = self.write_structure("TenuredGeneration", &[("_the_space", tenured)]);
        self.write_collected_heap(heap, &[("_young_gen", young), ("_old_gen", old)], bytes);
    }

    /// Writes a heap of the parallel collector.
    pub fn write_parallel(&mut self) {
        self.declare_type("MutableSpace", &[("_bottom", 8), ("_top", 8), ("_end", 8)]);
        self.declare_type("PSYoungGen", &[("_eden_space", 8), ("_from_space", 8), ("_to_space", 8)]);
        self.declare_type("PSOldGen", &[("_object_space", 8)]);
        self.declare_type("ParallelScavengeHeap", &[]);
        let old = HEAP..HEAP + SPACE_BYTES;
        let eden = HEAP + 2 * SPACE_BYTES..HEAP + 3 * SPACE_BYTES;
        // Survivor spaces change places at each collection, and were made smaller: the gaps between
        // them stay committed.
        let gaps = [PAGE * self.rng.below(3), PAGE * self.rng.below(3)];
        let first_start = eden.end + gaps[0];
        let first = first_start..first_start + 4 * PAGE;
        let second_start = first.end + gaps[1];
        let second = second_start..second_start + 3 * PAGE;
        self.commit(old.clone());
        self.commit(eden.start..second.end);
        for gap in [eden.end..first.start, first.end..second.start].iter().filter(|gap| !gap.is_empty()) {
            self.expect_area("free", Area { start: gap.start, top: gap.start, end: gap.end });
        }
        let (from, to) = if self.rng.chance(50) { (first, second) } else { (second, first) };
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
    }

    /// Writes an Epsilon heap.
    pub fn write_epsilon(&mut self) {
        self.declare_contiguous_space();
        self.declare_type("EpsilonHeap", &[("_space", 8)]);
        let (start, end) = (HEAP, HEAP + 2 * SPACE_BYTES);
        self.commit(start..end);
        let top = self.write_eden(start, end);
        self.expect_area("old", Area { start, top, end });
        self.expected.pools.insert("Epsilon Heap", Usage::of(top - start, end - start));
        let space = self.write_space(Area { start, top, end });
        self.write_collected_heap("EpsilonHeap", &[("_space", space)], 4 * SPACE_BYTES);
    }

    /// Fills eden, two survivor spaces and an old generation, whose pools have these names; returns
    /// the addresses of their structures.
    fn write_generations(&mut self, spaces: [Range<u64>; 4], pool_names: [&'static str; 3]) -> [u64; 4] {
        let tops = [
            self.write_eden(spaces[0].start, spaces[0].end),
            self.write_objects(spaces[1].start, spaces[1].end),
            spaces[2].start,
            self.write_objects(spaces[3].start, spaces[3].end),
        ];
        let areas: [Area; 4] = std::array::from_fn(|index| {
            let Range { start, end } = spaces[index];
            Area { start, top: tops[index], end }
        });
        // The second survivor space is empty, and no part of the pool.
        for (name, Area { start, top, end }) in pool_names.into_iter().zip([areas[0], areas[1], areas[3]]) {
            self.expected.pools.insert(name, Usage::of(top - start, end - start));
        }
        for (kind, area) in ["eden", "survivor", "survivor", "old"].into_iter().zip(areas) {
            self.expect_area(kind, area);
        }
        areas.map(|area| self.write_space(area))
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

    /// Writes the structure of a space; returns its address.
    fn write_space(&mut self, Area { start, top, end }: Area) -> u64 {
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
