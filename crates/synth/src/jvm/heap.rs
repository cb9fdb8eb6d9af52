//! The heap: its collector, and what all collectors share (`gc/shared/collectedHeap.hpp`).

use std::ops::Range;

use super::{HEAP, Jdk, PAGE, Writer};

/// Bytes of a region: fewer than any collector has, so that images are small.
pub const REGION_BYTES: u64 = 16 * PAGE;

/// A part of the heap.
#[derive(Clone, Copy)]
pub struct Area {
    pub start: u64,
    /// End of its objects.
    pub top: u64,
    pub end: u64,
}

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

/// The collectors. The order matters: [`super::new_writer`] does not draw the last two for JDK 11,
/// where they are not read.
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

    /// The command-line flag that chooses it.
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
    /// Writes the heap of the drawn collector, and the flags that choose it.
    pub fn write_heap(&mut self) {
        let region_bytes = self.declare_type("MemRegion", &[("_start", 8), ("_word_size", 8)]);
        let active = if self.jdk == Jdk::V25 { "_is_stw_gc_active" } else { "_is_gc_active" };
        self.declare_type(
            "CollectedHeap",
            &[("_reserved", region_bytes), (active, 1), ("_total_collections", 4)],
        );
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

    /// Writes the structure of a heap of `heap_bytes` from [`HEAP`] on (the part that all
    /// collectors share, then `fields`) and `Universe::_collectedHeap`, which points to it; returns
    /// its address.
    pub fn write_collected_heap(
        &mut self,
        heap_type: &'static str,
        fields: &[(&'static str, u64)],
        heap_bytes: u64,
    ) -> u64 {
        let common_bytes = self.tables.size_of("CollectedHeap");
        // They were declared as if the shared part were empty, and are moved after it.
        for (field, _) in fields {
            let offset = self.tables.offset(heap_type, field);
            self.tables.declare_field(heap_type, field, common_bytes + offset);
        }
        let heap = self.allocate_structure(common_bytes + self.tables.size_of(heap_type));
        self.write_fields(heap, heap_type, fields);
        let region = heap + self.tables.offset("CollectedHeap", "_reserved");
        self.write_fields(region, "MemRegion", &[("_start", HEAP), ("_word_size", heap_bytes / 8)]);
        self.write_static("Universe", "_collectedHeap", heap);
        heap
    }

    /// Commits a range of the heap, which may extend the previous one.
    pub fn commit(&mut self, range: Range<u64>) {
        self.image.map(range.start, (range.end - range.start) as usize);
        match self.committed_ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.committed_ranges.push(range),
        }
    }

    /// Adds a part of the heap to the expected figures of its kind.
    pub fn expect_area(&mut self, kind: &'static str, Area { start, top, end }: Area) {
        let usage = self.expected.usage_by_kind.entry(kind).or_default();
        usage.committed_bytes += end - start;
        usage.used_bytes += top - start;
    }
}
