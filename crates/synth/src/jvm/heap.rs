//! The heap: which collector it is of, and what all have (`gc/shared/collectedHeap.hpp`).

use super::{HEAP, PAGE, Writer};

/// Smaller than any collector has them, so that an image is.
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

/// With the name that is told, and their flags.
pub const COLLECTORS: [(Collector, &str, &str); 6] = [
    (Collector::G1, "G1", "UseG1GC"),
    (Collector::Serial, "Serial", "UseSerialGC"),
    (Collector::Parallel, "Parallel", "UseParallelGC"),
    (Collector::Epsilon, "Epsilon", "UseEpsilonGC"),
    // These are not read of JDK 11.
    (Collector::Shenandoah, "Shenandoah", "UseShenandoahGC"),
    (Collector::Z, "Z", "UseZGC"),
];

impl Writer {
    /// Writes one, and returns what of it is committed.
    pub fn heap(&mut self) -> Vec<(u64, u64)> {
        self.declare("MemRegion", &[("_start", 8), ("_word_size", 8)]);
        let active = if self.is_new { "_is_stw_gc_active" } else { "_is_gc_active" };
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

    /// A heap, as far as all collectors have the same; what is its own follows the common part.
    pub fn collected(&mut self, of: &'static str, fields: &[(&'static str, u64)], bytes: u64) -> u64 {
        let common = self.tables.size_of("CollectedHeap") + self.tables.size_of("MemRegion");
        // Declared from 0 on: they are moved behind what all have.
        for (field, _) in fields {
            let offset = self.tables.offset(of, field);
            self.tables.field(of, field, common + offset);
        }
        let heap = self.structure(common + self.tables.size_of(of));
        self.fill(heap, of, fields);
        let region = heap + self.tables.offset("CollectedHeap", "_reserved");
        self.fill(region, "MemRegion", &[("_start", HEAP), ("_word_size", bytes / 8)]);
        self.fixed("Universe", "_collectedHeap", heap);
        heap
    }

    /// Expects a part of the heap: of a kind, with objects up to `top`.
    pub fn area(&mut self, kind: &'static str, [start, top, end]: [u64; 3]) {
        let of = self.expected.kinds.entry(kind).or_default();
        *of = (of.0 + end - start, of.1 + top - start);
    }
}
