//! ZGC: pages of granules in shared memory (`gc/z/vmStructs_z.hpp`, `zPageAllocator.hpp`,
//! `zPageTable.hpp`). JDK 17 maps it once for each colour of pointers; JDK 25 maps it once, and has
//! generations.

use super::{Jdk, PAGE, Writer};
use crate::Usage;

/// Binary logarithm of a granule's bytes, which are fewer than in a real heap to keep images small.
const GRANULE_SHIFT: u64 = 16;
const GRANULE_BYTES: u64 = 1 << GRANULE_SHIFT;
/// `ZAddressOffsetMask`, and the bits above it for colours (`gc/z/zAddress.hpp`).
const OFFSET_MASK: u64 = (1 << 42) - 1;
const COLOURS: [u64; 3] = [1 << 42, 1 << 43, 1 << 44];
/// Distance between the nodes' values in `ZPerNUMA` (`gc/z/zValue.inline.hpp`).
const BETWEEN_NODES: u64 = 4096;

impl Writer {
    /// Writes a ZGC heap, which is committed in each view.
    pub fn write_z(&mut self) {
        let count = 5 + self.rng.below(5);
        let views = if self.jdk == Jdk::V25 { &COLOURS[2..] } else { &COLOURS };
        let allocator_fields: &[(&str, u64)] = if self.jdk == Jdk::V25 {
            // `_used` and the bytes used by generations follow the first field, and are not in the
            // tables.
            &[("_max_capacity", 32), ("_partitions", 8)]
        } else {
            &[("_max_capacity", 8), ("_capacity", 8), ("_used", 8)]
        };
        self.declare_type("ZGranuleMapForPageTable", &[("_map", 8)]);
        let map_bytes = self.tables.size_of("ZGranuleMapForPageTable");
        self.declare_type("ZPageTable", &[("_map", map_bytes)]);
        self.declare_type("ZPageAllocator", allocator_fields);
        let [allocator_bytes, table_bytes] =
            ["ZPageAllocator", "ZPageTable"].map(|type_name| self.tables.size_of(type_name));
        self.declare_type("ZHeap", &[("_page_allocator", allocator_bytes), ("_page_table", table_bytes)]);
        self.declare_type("ZCollectedHeap", &[("_heap", self.tables.size_of("ZHeap"))]);
        let heap = self.write_collected_heap("ZCollectedHeap", &[("_heap", 0)], count * GRANULE_BYTES);
        let heap = heap + self.tables.offset("ZCollectedHeap", "_heap");
        self.write_z_globals();
        let used_bytes = self.write_z_pages(heap, count);
        self.expected.shared_heap.used_bytes = used_bytes * views.len() as u64;
        self.write_z_allocator(heap + self.tables.offset("ZHeap", "_page_allocator"), count * GRANULE_BYTES);
        views.iter().for_each(|view| self.commit(*view..view + count * GRANULE_BYTES));
    }

    /// Writes the constants of the heap.
    fn write_z_globals(&mut self) {
        self.tables.declare_long("ZGranuleSizeShift", GRANULE_SHIFT);
        self.declare_type("ZGlobalsForVMStructs", &[("_ZAddressOffsetMask", 8)]);
        let mask = self.allocate_structure(8);
        self.image.put_word(mask, OFFSET_MASK);
        let globals = self.write_structure("ZGlobalsForVMStructs", &[("_ZAddressOffsetMask", mask)]);
        self.write_static("ZGlobalsForVMStructs", "_instance_p", globals);
    }

    /// Writes pages of some granules each, and the table that maps granules to pages; returns the
    /// bytes in use.
    fn write_z_pages(&mut self, heap: u64, count: u64) -> u64 {
        let extent_field = if self.jdk == Jdk::V25 { "_size" } else { "_end" };
        self.declare_type("ZVirtualMemory", &[("_start", 8), (extent_field, 8)]);
        let range_bytes = self.tables.size_of("ZVirtualMemory");
        self.declare_type("ZPage", &[("_virtual", range_bytes), ("_top", 8)]);
        let table = self.allocate_structure(8 * count);
        let map =
            heap + self.tables.offset("ZHeap", "_page_table") + self.tables.offset("ZPageTable", "_map");
        self.write_fields(map, "ZGranuleMapForPageTable", &[("_map", table)]);
        let (mut index, mut used_bytes) = (0, 0);
        while index < count {
            let granules = (1 + self.rng.below(3)).min(count - index);
            // Some granules have no page.
            if self.rng.chance(70) {
                let (start, bytes) = (index << GRANULE_SHIFT, granules << GRANULE_SHIFT);
                let object_bytes = 8 * self.rng.below(bytes / 8 + 1);
                let page = self.write_structure("ZPage", &[("_top", start + object_bytes)]);
                let extent = if self.jdk == Jdk::V25 { bytes } else { start + bytes };
                let range = page + self.tables.offset("ZPage", "_virtual");
                self.write_fields(range, "ZVirtualMemory", &[("_start", start), (extent_field, extent)]);
                for part in index..index + granules {
                    self.image.put_word(table + 8 * part, page);
                }
                used_bytes += object_bytes;
            }
            index += granules;
        }
        used_bytes
    }

    /// Writes used and committed bytes, for JDK 25 by generation and by NUMA node.
    fn write_z_allocator(&mut self, allocator: u64, max_bytes: u64) {
        self.write_fields(allocator, "ZPageAllocator", &[("_max_capacity", max_bytes)]);
        if self.jdk != Jdk::V25 {
            let used_bytes = 8 * self.rng.below(max_bytes / 8);
            let fields = [("_capacity", max_bytes), ("_used", used_bytes)];
            self.write_fields(allocator, "ZPageAllocator", &fields);
            self.expected.pools.insert("ZHeap", Usage::of(used_bytes, max_bytes));
            return;
        }
        let nodes = 1 + self.rng.below(3);
        self.declare_type("ZPartition", &[("_capacity", 8), ("_used", 8)]);
        self.tables.declare_field("ZPerNUMAZPartition", "_addr", 0);
        let first = self.allocate_structure((nodes - 1) * BETWEEN_NODES + self.tables.size_of("ZPartition"));
        let capacities: Vec<u64> = (0..nodes).map(|_| PAGE * self.rng.below(100)).collect();
        for (node, capacity) in (0..nodes).zip(&capacities) {
            self.write_fields(first + node * BETWEEN_NODES, "ZPartition", &[("_capacity", *capacity)]);
        }
        self.write_fields(allocator, "ZPageAllocator", &[("_partitions", first)]);
        self.write_static("ZNUMA", "_count", nodes);
        let committed_bytes: u64 = capacities.iter().sum();
        let old_bytes = 8 * self.rng.below(committed_bytes / 8 + 1);
        let young_bytes = 8 * self.rng.below((committed_bytes - old_bytes) / 8 + 1);
        let max_capacity = allocator + self.tables.offset("ZPageAllocator", "_max_capacity");
        self.image.put_row(max_capacity + 8, [young_bytes + old_bytes, young_bytes, old_bytes]);
        let pools = &mut self.expected.pools;
        pools.insert("ZGC Young Generation", Usage::of(young_bytes, committed_bytes - old_bytes));
        pools.insert("ZGC Old Generation", Usage::of(old_bytes, old_bytes));
    }
}
