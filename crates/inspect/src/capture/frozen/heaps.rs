//! The heaps of allocators in a frozen state: what they hold, and their free memory.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::{FrozenState, ReadPlan, resident_runs};
use crate::ledger::page_map::Plan;
use strandline_claims::allocator::{Context, Layer, RangeClaim, Reading};
use strandline_claims::caveat::Caveat;
use strandline_claims::refinements::Refinements;
use strandline_process::error::{Error, Result};
use strandline_process::memory::Memory;
use strandline_process::pages;
use strandline_process::procfs::Process;
use strandline_process::range::{AddressRange, RangeSet};
use strandline_process::resident::Resident;
use strandline_process::smaps::SmapsEntry;
use strandline_process::stacks::Stack;

/// Maximum anonymous bytes, without those kept from children, in which free memory is searched: for
/// each block, which has at least 16 of these bytes, strandline needs 8.
const MAX_SEARCHED_BYTES: u64 = 256 << 20;
/// Maximum bytes between two blocks in use that are no free block: headers, and what aligns blocks.
const MAX_BLOCK_GAP_BYTES: u64 = 16;
/// Free memory is searched for the available time divided by this; the pass that counts follows.
const FREE_MEMORY_DIVISOR: u32 = 4;

impl FrozenState {
    /// Reads the heaps of all allocators, after the runtimes that refine their blocks.
    pub(super) fn read_heaps(
        &mut self,
        process: &Process,
        memory: &dyn Memory,
        read_plan: &ReadPlan<'_>,
    ) -> Result<()> {
        let mut refinements = std::mem::take(&mut self.refinements);
        let runtimes = self.runtime_readings.iter().flat_map(|reading| &reading.claims);
        let claimed: Vec<_> = runtimes.map(RangeClaim::range).collect();
        refinements.nest(claimed.iter().copied());
        let pass = HeapPass {
            claimed,
            deadline: self.deadline(1),
            keeps_blocks: read_plan.options.keeps_blocks,
            checks_free_lists: read_plan.options.checks_for_call,
            cell_bytes: self.page_map.as_ref().map(Plan::cell_bytes),
        };
        let heaps = self.make_pass(process, memory, &mut refinements, pass, read_plan);
        self.refinements = refinements;
        let HeapReadings { mut heaps, caveats } = heaps?;
        self.caveats.extend(caveats);
        self.caveats.extend(drop_overlapping_claims(&mut heaps));
        for HeapReading { reader_index, mut reading } in heaps {
            self.caveats.append(&mut reading.caveats);
            self.bytes_read += reading.bytes_read;
            self.allocator_indices.push(reader_index);
            self.allocator_readings.push(reading);
        }
        Ok(())
    }

    /// Returns the memory of allocators outside of their blocks in use, as far as it can be found,
    /// if a runtime's reader needs it. It costs a pass over all heaps, for which the target does
    /// not wait, and memory for each block.
    pub(super) fn free_memory(
        &mut self,
        process: &Process,
        memory: &dyn Memory,
        read_plan: &ReadPlan<'_>,
    ) -> RangeSet {
        let is_needed = read_plan.found.runtimes.iter().any(|found| found.needs_free_memory());
        // Allocators do not keep memory from children.
        let managed = self.smaps_entries.iter().filter(|entry| !entry.flags.has(b"dc"));
        let managed_bytes: u64 = managed.map(|entry| entry.counts.anonymous_bytes).sum();
        if !is_needed || self.is_stopped() || managed_bytes > MAX_SEARCHED_BYTES {
            return RangeSet::default();
        }
        let pass = HeapPass {
            claimed: Vec::new(),
            deadline: self.deadline(FREE_MEMORY_DIVISOR),
            keeps_blocks: true,
            checks_free_lists: false,
            cell_bytes: None,
        };
        let heaps = self.make_pass(process, memory, &mut Refinements::default(), pass, read_plan);
        // The pass that counts reports the error.
        let Ok(HeapReadings { heaps, .. }) = heaps else { return RangeSet::default() };
        let mut free = Vec::new();
        for HeapReading { reading, .. } in heaps {
            self.bytes_read += reading.bytes_read;
            if has_known_blocks(&reading) {
                add_free(reading, &mut free);
            }
        }
        free.into_iter().collect()
    }

    /// Reads the heaps of all allocators.
    fn make_pass(
        &self,
        process: &Process,
        memory: &dyn Memory,
        refinements: &mut Refinements,
        pass: HeapPass,
        read_plan: &ReadPlan<'_>,
    ) -> Result<HeapReadings> {
        let total = self.sums.anonymous_bytes;
        let done = AtomicU64::new(0);
        let progress = |bytes: u64| read_plan.options.advance("reading the heap", &done, bytes, total);
        // A thread without thread-local storage has none.
        let with_storage = self.threads().iter().filter(|thread| thread.fs_base != 0);
        let fs_bases: Vec<u64> = with_storage.clone().map(|thread| thread.fs_base).collect();
        let mut main_threads = with_storage.filter(|thread| thread.tid == process.pid());
        let main_fs_base = main_threads.next().map(|thread| thread.fs_base);
        let stacks: Vec<_> = self.stacks.iter().map(Stack::range).collect();
        let mut claimed = pass.claimed;
        let locked = self.mappings_with(|entry| entry.flags.is_locked());
        let swapped = self.mappings_with(|entry| entry.counts.swap_bytes > 0);
        let reserved = self.mappings_with(|entry| entry.flags.is_hugetlb());
        let residency = &self.residency;
        let resident = |range: AddressRange| resident_runs(residency, range, true);
        let pagemap = &self.pagemap;
        let swapped_runs = |range: AddressRange| {
            let runs = pages::swapped_runs(pagemap, range);
            // Without page tables all missing pages may be swapped out.
            let missing = || RangeSet::from_iter([range]).without(&resident(range).into_iter().collect());
            runs.unwrap_or_else(|_| missing()).into_iter().collect()
        };
        let mut all = HeapReadings::default();
        let resident_memory = Resident::new(memory, residency);
        for (reader_index, allocator) in read_plan.found.allocators.iter().enumerate() {
            let context = Context {
                memory: &resident_memory,
                whole_memory: memory,
                space: &self.address_space,
                resident: &resident,
                fs_bases: &fs_bases,
                main_fs_base,
                stacks: &stacks,
                claimed_ranges: &claimed,
                start_brk: self.start_brk,
                locked_mappings: &locked,
                swapped_mappings: &swapped,
                swapped: Some(&swapped_runs),
                reserved_mappings: &reserved,
                refinements: Some(&*refinements).filter(|refinements| !refinements.is_empty()),
                deadline: pass.deadline,
                keeps_blocks: pass.keeps_blocks,
                checks_free_lists: pass.checks_free_lists,
                cell_bytes: pass.cell_bytes,
                workers: read_plan.workers,
                progress: &progress,
            };
            let (mut readings, caveats) = allocator.found.read(&context).map_err(|error| Error::Overlap {
                address: error.at,
                first: format!("a claim that ends at {:#x}", error.expected),
                second: format!("an allocator of process {}", process.pid()),
            })?;
            readings.iter_mut().for_each(|reading| reading.layer = allocator.layer);
            all.caveats.extend(caveats);
            let ranges: Vec<_> = readings.iter().flat_map(|reading| reading.ranges()).collect();
            // Allocators with blocks in those of others come first, and refine these.
            if allocator.layer == Layer::Blocks {
                refinements.nest(ranges.iter().copied());
            }
            claimed.extend(ranges);
            all.heaps.extend(readings.into_iter().map(|reading| HeapReading { reader_index, reading }));
        }
        Ok(all)
    }

    /// Returns the ranges of the mappings that `accepts`, in address order.
    fn mappings_with(&self, accepts: impl Fn(&SmapsEntry) -> bool) -> Vec<AddressRange> {
        let entries = self.smaps_entries.iter().filter(|entry| accepts(entry));
        entries.map(|entry| entry.mapping.range()).collect()
    }
}

/// What an allocator's reader found in one heap.
struct HeapReading {
    /// Index of the reader in [`FoundReaders::allocators`](crate::readers::FoundReaders).
    reader_index: usize,
    reading: Reading,
}

/// Result of a pass.
#[derive(Default)]
struct HeapReadings {
    heaps: Vec<HeapReading>,
    /// Caveats that belong to no heap.
    caveats: Vec<Caveat>,
}

/// A pass over the heaps of all allocators.
struct HeapPass {
    /// Ranges that finer readers have claimed.
    claimed: Vec<AddressRange>,
    /// When to end.
    deadline: Instant,
    /// See [`Context::keeps_blocks`].
    keeps_blocks: bool,
    /// See [`Context::checks_free_lists`].
    checks_free_lists: bool,
    /// See [`Context::cell_bytes`].
    cell_bytes: Option<u64>,
}

/// Whether no block in use is missing from a reading. Blocks in caches that are swapped out or were
/// not found count as in use, so that only free ones are missing.
fn has_known_blocks(reading: &Reading) -> bool {
    let counts_as_used =
        |code: &str| ["_cache_swapped", "_cache_not_found"].iter().any(|end| code.ends_with(end));
    !reading.is_inconsistent && reading.caveats.iter().all(|caveat| counts_as_used(&caveat.code))
}

/// Adds the memory that an allocator manages, without its blocks in use and what is between two:
/// nothing if its blocks are not known.
fn add_free(reading: Reading, free: &mut Vec<AddressRange>) {
    let managed: RangeSet = reading.ranges().collect();
    let Some(blocks) = reading.refined.blocks.and_then(|blocks| blocks.finish().ok()) else { return };
    let mut blocks = blocks.iter(0).peekable();
    for range in &managed {
        let mut at = range.start;
        while let Some(block) = blocks.next_if(|block| block.start < range.end) {
            if block.start > at.saturating_add(MAX_BLOCK_GAP_BYTES) {
                free.push(AddressRange::new(at, block.start));
            }
            at = at.max(block.end);
        }
        if at < range.end {
            free.push(AddressRange::new(at, range.end));
        }
    }
}

/// If two allocators claim the same memory, keeps only the claims of the one recognised by content
/// alone (glibc, read last): one of the two is damaged, or takes its memory from the other.
fn drop_overlapping_claims(heaps: &mut [HeapReading]) -> Vec<Caveat> {
    let readings = heaps.iter().map(|heap| &heap.reading);
    let recognised_by_content = readings.filter(|reading| reading.layer == Layer::RestOfMappings);
    let held: RangeSet = recognised_by_content
        .flat_map(|reading| {
            let mapped = reading.mapped_blocks.iter().map(|block| AddressRange::new(block.start, block.end));
            reading.ranges().chain(mapped)
        })
        .collect();
    let mut caveats = Vec::new();
    let readings = heaps.iter_mut().map(|heap| &mut heap.reading);
    for reading in readings.filter(|reading| reading.layer == Layer::Mappings) {
        let claimed_bytes =
            |claims: &[RangeClaim]| claims.iter().map(|claim| claim.sums.resident.total()).sum::<u64>();
        let (count_before, bytes_before) = (reading.claims.len(), claimed_bytes(&reading.claims));
        reading.claims.retain(|claim| !held.overlaps(claim.range()));
        if reading.claims.len() < count_before {
            let dropped_bytes = bytes_before - claimed_bytes(&reading.claims);
            // No call is made into an allocator whose structures are in doubt.
            reading.call = None;
            let text = format!(
                "memory of {} overlaps that of another allocator: its bytes are on the rows of the other",
                reading.allocator.name
            );
            let place = reading.allocator.found_by.clone();
            caveats.push(Caveat::new("allocators_disagree", place, Some(dropped_bytes), text));
        }
    }
    caveats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_with_swapped_caches_keeps_its_free_memory() {
        let has_blocks = |code: &str| {
            let caveats = vec![Caveat::new(code, "0x1000", None, "text")];
            has_known_blocks(&Reading { caveats, ..Reading::default() })
        };
        assert!(has_known_blocks(&Reading::default()));
        assert!(has_blocks("jemalloc_cache_swapped"));
        assert!(!has_blocks("jemalloc_cache_broken"));
        assert!(!has_known_blocks(&Reading { is_inconsistent: true, ..Reading::default() }));
    }
}
