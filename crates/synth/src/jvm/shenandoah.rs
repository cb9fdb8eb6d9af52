//! Shenandoah: regions (`gc/shenandoah/vmStructs_shenandoah.hpp`, `shenandoahHeapRegion.hpp`).

use super::heap::{Area, REGION_BYTES};
use super::{HEAP, Jdk, PAGE, Writer};
use crate::Usage;

/// `ShenandoahHeapRegion::RegionState`, in order.
const STATES: [&str; 10] = [
    "ShenandoahHeapRegion::_empty_uncommitted",
    "ShenandoahHeapRegion::_empty_committed",
    "ShenandoahHeapRegion::_regular",
    "ShenandoahHeapRegion::_humongous_start",
    "ShenandoahHeapRegion::_humongous_cont",
    "ShenandoahHeapRegion::_pinned_humongous_start",
    "ShenandoahHeapRegion::_cset",
    "ShenandoahHeapRegion::_pinned",
    "ShenandoahHeapRegion::_pinned_cset",
    "ShenandoahHeapRegion::_trash",
];
const UNCOMMITTED: u32 = 0;
const EMPTY: u32 = 1;
const REGULAR: u32 = 2;
const HUMONGOUS_START: u32 = 3;
const HUMONGOUS_CONTINUED: u32 = 4;
const PINNED_HUMONGOUS_START: u32 = 5;
const COLLECTION_SET: u32 = 6;
const PINNED: u32 = 7;
const PINNED_COLLECTION_SET: u32 = 8;
const TRASH: u32 = 9;
/// States to draw from: all but that of the further regions of a humongous object.
const DRAWN_STATES: [u32; 10] = [
    UNCOMMITTED,
    EMPTY,
    REGULAR,
    REGULAR,
    HUMONGOUS_START,
    PINNED_HUMONGOUS_START,
    COLLECTION_SET,
    PINNED,
    PINNED_COLLECTION_SET,
    TRASH,
];

impl Writer {
    /// Writes a Shenandoah heap.
    pub fn write_shenandoah(&mut self) {
        for (state, value) in STATES.into_iter().zip(0..) {
            self.tables.declare_int(state, value);
        }
        let region = "ShenandoahHeapRegion";
        self.declare_type(region, &[("_state", 4), ("_index", 8), ("_bottom", 8), ("_top", 8), ("_end", 8)]);
        self.write_static(region, "RegionSizeBytes", REGION_BYTES);
        let count = 6 + self.rng.below(8);
        let pointers = self.allocate_structure(8 * count);
        // From JDK 21 on used bytes are counted by generation; there is one.
        let used_field = if self.jdk == Jdk::V25 { "_global_generation" } else { "_used" };
        self.declare_type(
            "ShenandoahHeap",
            &[("_num_regions", 8), ("_regions", 8), ("_committed", 8), (used_field, 8)],
        );
        self.write_shenandoah_regions(pointers, count);
        let bytes: u64 = self.committed_ranges.iter().map(|range| range.end - range.start).sum();
        let used_bytes = 8 * self.rng.below(bytes / 8 + 1);
        self.expected.pools.insert("Shenandoah", Usage::of(used_bytes, bytes));
        let used_word = if self.jdk == Jdk::V25 {
            self.declare_type("ShenandoahGeneration", &[("_used", 8)]);
            self.write_structure("ShenandoahGeneration", &[("_used", used_bytes)])
        } else {
            used_bytes
        };
        self.write_collected_heap(
            "ShenandoahHeap",
            &[
                ("_num_regions", count),
                ("_regions", pointers),
                ("_committed", bytes),
                (used_field, used_word),
            ],
            count * REGION_BYTES,
        );
    }

    /// Writes `count` regions, and pointers to their structures.
    fn write_shenandoah_regions(&mut self, pointers: u64, count: u64) {
        let mut index = 0;
        while index < count {
            // The first region is committed, so that there is a heap.
            let state = if index == 0 { REGULAR } else { self.rng.one_of(&DRAWN_STATES) };
            let is_humongous = [HUMONGOUS_START, PINNED_HUMONGOUS_START].contains(&state);
            let regions = if is_humongous { (1 + self.rng.below(3)).min(count - index) } else { 1 };
            let (start, end) = (HEAP + index * REGION_BYTES, HEAP + (index + regions) * REGION_BYTES);
            if state != UNCOMMITTED {
                self.commit(start..end);
            }
            let top = match state {
                _ if is_humongous => {
                    let top = end - PAGE * self.rng.below(4);
                    self.write_filling_array(start, top);
                    self.expect_area("humongous", Area { start, top, end });
                    top
                }
                UNCOMMITTED => start,
                EMPTY | TRASH => {
                    self.expect_area("free", Area { start, top: start, end });
                    // A trash region still has objects, all of them dead.
                    if state == TRASH { start + PAGE } else { start }
                }
                _ => {
                    let top = self.write_eden(start, end);
                    self.expect_area("old", Area { start, top, end });
                    top
                }
            };
            for part in index..index + regions {
                let region = self.write_shenandoah_region(
                    part,
                    if part == index { state } else { HUMONGOUS_CONTINUED },
                    top,
                );
                self.image.put_word(pointers + 8 * part, region);
            }
            index += regions;
        }
    }

    /// Writes the structure of a region; objects extend to its end or to `top`.
    fn write_shenandoah_region(&mut self, index: u64, state: u32, top: u64) -> u64 {
        let (start, end) = (HEAP + index * REGION_BYTES, HEAP + (index + 1) * REGION_BYTES);
        let fields = [("_index", index), ("_bottom", start), ("_end", end), ("_top", top.clamp(start, end))];
        let region = self.write_structure("ShenandoahHeapRegion", &fields);
        let state_field = region + self.tables.offset("ShenandoahHeapRegion", "_state");
        self.image.put(state_field, &state.to_le_bytes());
        region
    }
}
