//! The heap: its collector, and what all collectors share (`gc/shared/collectedHeap.hpp`).

use super::{HEAP, Jdk, PAGE, Writer};

/// Smaller than with any collector, so that images are small.
pub const REGION_BYTES: u64 = 16 * PAGE;

/// A collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collector {
    Serial,
    Parallel,
    G1,
    Shenandoah,
    Z,
    Epsilon,
}

/// Collectors, with the names that are reported and their flags.
pub const COLLECTORS: [(Collector, &str, &str); 6] = [
    (Collector::G1, "G1", "UseG1GC"),
    (Collector::Serial, "Serial", "UseSerialGC"),
    (Collector::Parallel, "Parallel", "UseParallelGC"),
    (Collector::Epsilon, "Epsilon", "UseEpsilonGC"),
    // These are not read in JDK 11.
    (Collector::Shenandoah, "Shenandoah", "UseShenandoahGC"),
    (Collector::Z, "Z", "UseZGC"),
];

impl Writer {
    /// Writes a heap, and returns its committed ranges.
    pub fn write_heap(&mut self) -> Vec<(u64, u64)> {
        self.declare("MemRegion", &[("_start", 8), ("_word_size", 8)]);
        let active = if self.jdk == Jdk::V25 { "_is_stw_gc_active" } else { "_is_gc_active" };
        self.declare("CollectedHeap", &[("_reserved", 80), (active, 1), ("_total_collections", 4)]);
        for (collector, name, flag) in COLLECTORS {
            self.flag(flag, u64::from(collector == self.collector));
            if collector == self.collector {
                self.expected.collector = name;
            }
        }
        match self.collector {
            Collector::Serial => self.serial(),
            Collector::Parallel => self.parallel(),
            Collector::G1 => self.g1(),
            Collector::Shenandoah => self.shenandoah(),
            Collector::Z => self.z(),
            Collector::Epsilon => self.epsilon(),
        }
    }

    /// Writes the structure of a heap: the part that all collectors share, then `fields`; returns
    /// its address.
    pub fn collected_heap(
        &mut self,
        heap_type: &'static str,
        fields: &[(&'static str, u64)],
        bytes: u64,
    ) -> u64 {
        let common_bytes = self.tables.size_of("CollectedHeap") + self.tables.size_of("MemRegion");
        // They were declared from offset 0 on, and are moved behind the shared part.
        for (field, _) in fields {
            let offset = self.tables.offset(heap_type, field);
            self.tables.field(heap_type, field, common_bytes + offset);
        }
        let heap = self.structure(common_bytes + self.tables.size_of(heap_type));
        self.fill(heap, heap_type, fields);
        let region = heap + self.tables.offset("CollectedHeap", "_reserved");
        self.fill(region, "MemRegion", &[("_start", HEAP), ("_word_size", bytes / 8)]);
        self.static_field("Universe", "_collectedHeap", heap);
        heap
    }

    /// Adds a part of the heap, with objects up to `top`, to the expected figures of its kind.
    pub fn expect_area(&mut self, kind: &'static str, [start, top, end]: [u64; 3]) {
        let usage = self.expected.kinds.entry(kind).or_default();
        usage.committed_bytes += end - start;
        usage.used_bytes += top - start;
    }
}
