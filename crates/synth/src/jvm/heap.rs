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

/// Collectors; the last two are not read in JDK 11.
pub const COLLECTORS: [Collector; 6] = [
    Collector::G1,
    Collector::Serial,
    Collector::Parallel,
    Collector::Epsilon,
    Collector::Shenandoah,
    Collector::Z,
];

impl Collector {
    /// The name that is reported.
    fn name(self) -> &'static str {
        match self {
            Self::Serial => "Serial",
            Self::Parallel => "Parallel",
            Self::G1 => "G1",
            Self::Shenandoah => "Shenandoah",
            Self::Z => "Z",
            Self::Epsilon => "Epsilon",
        }
    }

    /// Its flag of the command line.
    fn flag(self) -> &'static str {
        match self {
            Self::Serial => "UseSerialGC",
            Self::Parallel => "UseParallelGC",
            Self::G1 => "UseG1GC",
            Self::Shenandoah => "UseShenandoahGC",
            Self::Z => "UseZGC",
            Self::Epsilon => "UseEpsilonGC",
        }
    }
}

impl Writer {
    /// Writes a heap, and returns its committed ranges.
    pub fn write_heap(&mut self) -> Vec<(u64, u64)> {
        self.declare_type("MemRegion", &[("_start", 8), ("_word_size", 8)]);
        let active = if self.jdk == Jdk::V25 { "_is_stw_gc_active" } else { "_is_gc_active" };
        self.declare_type("CollectedHeap", &[("_reserved", 80), (active, 1), ("_total_collections", 4)]);
        for collector in COLLECTORS {
            self.write_flag(collector.flag(), u64::from(collector == self.collector));
        }
        self.expected.collector = self.collector.name();
        match self.collector {
            Collector::Serial => self.write_serial(),
            Collector::Parallel => self.write_parallel(),
            Collector::G1 => self.write_g1(),
            Collector::Shenandoah => self.write_shenandoah(),
            Collector::Z => self.write_z(),
            Collector::Epsilon => self.write_epsilon(),
        }
    }

    /// Writes the structure of a heap: the part that all collectors share, then `fields`; returns
    /// its address.
    pub fn write_collected_heap(
        &mut self,
        heap_type: &'static str,
        fields: &[(&'static str, u64)],
        bytes: u64,
    ) -> u64 {
        let common_bytes = self.tables.size_of("CollectedHeap") + self.tables.size_of("MemRegion");
        // They were declared from offset 0 on, and are moved behind the shared part.
        for (field, _) in fields {
            let offset = self.tables.offset(heap_type, field);
            self.tables.declare_field(heap_type, field, common_bytes + offset);
        }
        let heap = self.allocate_structure(common_bytes + self.tables.size_of(heap_type));
        self.write_fields(heap, heap_type, fields);
        let region = heap + self.tables.offset("CollectedHeap", "_reserved");
        self.write_fields(region, "MemRegion", &[("_start", HEAP), ("_word_size", bytes / 8)]);
        self.write_static("Universe", "_collectedHeap", heap);
        heap
    }

    /// Adds a part of the heap, with objects up to `top`, to the expected figures of its kind.
    pub fn expect_area(&mut self, kind: &'static str, [start, top, end]: [u64; 3]) {
        let usage = self.expected.usage_by_kind.entry(kind).or_default();
        usage.committed_bytes += end - start;
        usage.used_bytes += top - start;
    }
}
