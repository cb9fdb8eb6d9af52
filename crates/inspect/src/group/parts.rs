//! The kinds of memory charged to a group, made to add up to the charge exactly.
//!
//! The kernel counts the charge in one counter and its kinds in others, which it updates in
//! batches. It also charges up to 64 pages in advance for each processor. So the kinds may fall
//! short of the charge, or exceed it by a little.

use strandline_claims::rows::RowRef;
use strandline_process::group::Memory;
use strandline_process::pages::PAGE_BYTES;

// The kinds, in the order of the documentation.
strandline_claims::row_table! { ALL:
    ANON = ("group.anon", Program, Live, "anonymous memory of a process"),
    LAZYFREE = ("group.anon.lazyfree", Kernel, Evictable, "anonymous memory released with MADV_FREE"),
    ELSEWHERE = ("group.anon.elsewhere", Program, Live, "charged here, in no process of it now"),
    SHMEM = ("group.shmem", Kernel, Live, "other shared memory"),
    CLEAN = ("group.cache.clean", Kernel, Evictable, "other files"),
    DIRTY = ("group.cache.dirty", Kernel, Evictable, "other files, not written to disk yet"),
    WRITEBACK = ("group.cache.writeback", Kernel, Evictable, "other files, being written to disk"),
    SWAP_CACHE = ("group.swap_cache", Kernel, Evictable, "pages that are in swap too"),
    SLAB_RECLAIMABLE = ("group.slab.reclaimable", Kernel, Evictable, "directory entries, inodes"),
    SLAB_UNRECLAIMABLE = ("group.slab.unreclaimable", Kernel, Live, "slab: files, sockets, mappings"),
    PAGE_TABLES = ("group.page_tables", Kernel, Live, "page tables"),
    STACKS = ("group.kernel_stacks", Kernel, Live, "kernel stacks of threads"),
    PERCPU = ("group.percpu", Kernel, Live, "structures for each processor"),
    VMALLOC = ("group.vmalloc", Kernel, Live, "vmalloc: large tables, BPF"),
    ZSWAP = ("group.zswap", Kernel, Live, "compressed pages of zswap"),
    KERNEL_OTHER = ("group.kernel.other", Kernel, Live, "other kernel memory: slab, pipes"),
    SOCKETS = ("group.sockets", Kernel, Live, "buffers of sockets"),
    HUGETLB = ("group.hugetlb", Program, Live, "huge pages of hugetlbfs"),
    STOCK = ("group.charge_stock", Kernel, Evictable, "charged in advance, by processor"),
    UNKNOWN = ("group.unattributed", Kernel, Unattributed, "in none of the kernel's counters"),
}

/// Maximum bytes charged in advance for a processor: 64 pages (include/linux/memcontrol.h,
/// MEMCG_CHARGE_BATCH; 32 before Linux 6.1).
pub(super) const STOCK_BYTES: u64 = 64 * PAGE_BYTES;

/// What the kernel does not count by itself, estimated from the processes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Estimates {
    /// Bytes of their page tables.
    pub page_tables_bytes: Option<u64>,
    /// Bytes of the kernel's stacks of their threads.
    pub kernel_stacks_bytes: Option<u64>,
}

/// A kind with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The kind.
    pub kind: RowRef,
    /// Its bytes.
    pub bytes: u64,
    /// Whether the kernel has a counter of it here; without one, 0 means unknown.
    pub is_counted: bool,
}

impl Part {
    /// Makes a kind from its counter.
    fn counted(kind: RowRef, counter: Option<u64>) -> Self {
        Self { kind, bytes: counter.unwrap_or(0), is_counted: counter.is_some() }
    }
}

/// The kinds with their bytes.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// They add up to the charge.
    pub all: Vec<Part>,
    /// By how much the kernel's counters exceeded the charge.
    pub excess_bytes: u64,
    /// Whether page tables or stacks are estimates.
    pub is_estimated: bool,
}

impl Parts {
    /// Divides the charge of `memory`; kinds without bytes are left out.
    pub fn new(memory: &Memory, estimates: Estimates, processors: u64) -> Self {
        let mut parts = Self::divide(memory, estimates, processors);
        parts.all.retain(|part| part.bytes > 0);
        parts
    }

    /// Divides the charge of `memory`, with all kinds.
    pub fn divide(memory: &Memory, estimates: Estimates, processors: u64) -> Self {
        let counters = &memory.parts;
        // What the kernel does not count here is within what it does count.
        let bytes = |counter: Option<u64>| counter.unwrap_or(0);
        let (shmem, swap_cache) = (bytes(counters.shmem_bytes), bytes(counters.swapcached_bytes));
        let cache = bytes(counters.file_bytes).saturating_sub(shmem).saturating_sub(swap_cache);
        let dirty = bytes(counters.file_dirty_bytes).min(cache);
        let writeback = bytes(counters.file_writeback_bytes).min(cache - dirty);
        let mut all = vec![
            Part::counted(&ANON, counters.anon_bytes),
            Part::counted(&SHMEM, counters.shmem_bytes),
            Part::counted(&CLEAN, counters.file_bytes.map(|_| cache - dirty - writeback)),
            Part::counted(&DIRTY, counters.file_dirty_bytes.map(|_| dirty)),
            Part::counted(&WRITEBACK, counters.file_writeback_bytes.map(|_| writeback)),
            Part::counted(&SOCKETS, counters.sock_bytes),
            Part::counted(&HUGETLB, counters.hugetlb_bytes),
        ];
        let is_estimated = add_kernel(&mut all, memory, estimates);
        all.push(Part::counted(&SWAP_CACHE, counters.swapcached_bytes));
        let mut parts = Self { all, excess_bytes: 0, is_estimated };
        parts.fit_to(memory.current_bytes, processors);
        parts
    }

    /// Makes the kinds add up to the charge, of `charged_bytes`.
    fn fit_to(&mut self, charged_bytes: u64, processors: u64) {
        let sum: u128 = self.all.iter().map(|part| u128::from(part.bytes)).sum();
        let excess = sum.saturating_sub(u128::from(charged_bytes));
        self.remove(excess);
        let uncounted = charged_bytes - u64::try_from(sum - excess).unwrap_or(charged_bytes);
        let stock = uncounted.min(STOCK_BYTES.saturating_mul(processors));
        self.all.push(Part::counted(&STOCK, Some(stock)));
        self.all.push(Part::counted(&UNKNOWN, Some(uncounted - stock)));
    }

    /// Takes the bytes that exceed the charge from the kinds that are least exact. A mapped page in
    /// the swap cache is counted as anonymous too, so that its kind comes first and is not a
    /// contradiction.
    fn remove(&mut self, excess: u128) {
        let excess = self.take(&SWAP_CACHE, excess);
        self.excess_bytes = u64::try_from(excess).unwrap_or(u64::MAX);
        let others: Vec<RowRef> = self.all.iter().map(|part| part.kind).collect();
        let order = [&KERNEL_OTHER, &CLEAN, &SHMEM, &ANON].into_iter().chain(others);
        order.fold(excess, |remaining, kind| self.take(kind, remaining));
    }

    /// Takes up to `bytes` from a kind; returns how many are still to be taken.
    fn take(&mut self, kind: RowRef, bytes: u128) -> u128 {
        let mut remaining = bytes;
        for part in self.all.iter_mut().filter(|part| part.kind == kind) {
            let taken = u64::try_from(remaining).unwrap_or(u64::MAX).min(part.bytes);
            part.bytes -= taken;
            remaining -= u128::from(taken);
        }
        remaining
    }

    /// The bytes of a kind.
    #[cfg(test)]
    pub fn of(&self, kind: RowRef) -> u64 {
        self.all.iter().filter(|part| part.kind == kind).map(|part| part.bytes).sum()
    }
}

/// Adds the kernel's own memory; returns whether parts of it are estimates.
fn add_kernel(all: &mut Vec<Part>, memory: &Memory, estimates: Estimates) -> bool {
    let counters = &memory.parts;
    // The sum of two counters, of which one may be missing.
    let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
    };
    let counted = [
        (&SLAB_RECLAIMABLE, counters.slab_reclaimable_bytes),
        (&SLAB_UNRECLAIMABLE, counters.slab_unreclaimable_bytes),
        (&PAGE_TABLES, sum(counters.pagetables_bytes, counters.sec_pagetables_bytes)),
        (&STACKS, counters.kernel_stack_bytes),
        (&PERCPU, counters.percpu_bytes),
        (&VMALLOC, counters.vmalloc_bytes),
        (&ZSWAP, counters.zswap_bytes),
    ];
    let counted_sum: u64 = counted.iter().filter_map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
    let other_sum = all.iter().fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
    // Before Linux 5.18 the kernel's memory has no sum: estimates may use what no counter has.
    let kernel = counters.kernel_bytes.unwrap_or_else(|| memory.current_bytes.saturating_sub(other_sum));
    let mut remaining = kernel.saturating_sub(counted_sum);
    let mut is_estimated = false;
    for (kind, counter) in counted {
        let estimate = if kind == &PAGE_TABLES {
            estimates.page_tables_bytes
        } else if kind == &STACKS {
            estimates.kernel_stacks_bytes
        } else {
            None
        };
        let mut part = Part::counted(kind, counter);
        if !part.is_counted {
            part.bytes = estimate.unwrap_or(0).min(remaining);
            remaining -= part.bytes;
            is_estimated |= part.bytes > 0;
        }
        all.push(part);
    }
    if counters.kernel_bytes.is_some() {
        all.push(Part::counted(&KERNEL_OTHER, Some(remaining)));
    }
    is_estimated
}

#[cfg(test)]
mod tests {
    use strandline_process::group::memory;

    use super::*;

    fn memory(current_bytes: u64, parts: memory::Parts) -> Memory {
        Memory { current_bytes, parts, ..Memory::default() }
    }

    fn sum(parts: &Parts) -> u64 {
        parts.all.iter().map(|part| part.bytes).sum()
    }

    #[test]
    fn kinds_of_version_two_add_up() {
        let parts = memory::Parts {
            anon_bytes: Some(100_000),
            file_bytes: Some(50_000),
            shmem_bytes: Some(20_000),
            file_dirty_bytes: Some(1_000),
            kernel_bytes: Some(9_000),
            kernel_stack_bytes: Some(4_000),
            pagetables_bytes: Some(2_000),
            slab_reclaimable_bytes: Some(500),
            slab_unreclaimable_bytes: Some(500),
            sock_bytes: Some(700),
            ..memory::Parts::default()
        };
        let made = Parts::new(&memory(1_000_000, parts), Estimates::default(), 1);
        assert_eq!(sum(&made), 1_000_000);
        let of = |kind| made.of(kind);
        assert_eq!((of(&ANON), of(&SHMEM), of(&CLEAN), of(&DIRTY)), (100_000, 20_000, 29_000, 1_000));
        assert_eq!((of(&KERNEL_OTHER), of(&SOCKETS), of(&STOCK)), (2_000, 700, 64 * 4096));
        assert_eq!(of(&UNKNOWN), 1_000_000 - 159_700 - 64 * 4096);
        assert_eq!((made.excess_bytes, made.is_estimated), (0, false));
    }

    #[test]
    fn version_one_splits_its_kernel_memory_by_estimates() {
        let parts = memory::Parts {
            anon_bytes: Some(1_000_000),
            file_bytes: Some(0),
            kernel_bytes: Some(100_000),
            ..memory::Parts::default()
        };
        let estimates = Estimates { page_tables_bytes: Some(60_000), kernel_stacks_bytes: Some(60_000) };
        let made = Parts::new(&memory(1_100_000, parts), estimates, 4);
        assert_eq!(sum(&made), 1_100_000);
        assert_eq!((made.of(&PAGE_TABLES), made.of(&STACKS), made.of(&KERNEL_OTHER)), (60_000, 40_000, 0));
        assert!(made.is_estimated);
    }

    #[test]
    fn counters_above_the_charge_are_cut_with_a_caveat() {
        let parts = memory::Parts {
            anon_bytes: Some(100),
            file_bytes: Some(80),
            swapcached_bytes: Some(30),
            ..memory::Parts::default()
        };
        // Pages in the swap cache that are mapped count twice: no contradiction.
        let made = Parts::new(&memory(160, parts), Estimates::default(), 2);
        assert_eq!((sum(&made), made.of(&SWAP_CACHE), made.excess_bytes), (160, 10, 0));
        let made = Parts::new(&memory(120, parts), Estimates::default(), 2);
        assert_eq!((sum(&made), made.of(&CLEAN), made.excess_bytes), (120, 20, 30));
        let huge = memory::Parts { anon_bytes: Some(u64::MAX), file_bytes: Some(u64::MAX), ..parts };
        for current in [0, 1, u64::MAX] {
            let made = Parts::new(&memory(current, huge), Estimates::default(), u64::MAX);
            assert_eq!(made.all.iter().map(|part| u128::from(part.bytes)).sum::<u128>(), u128::from(current));
        }
    }

    #[test]
    fn a_kind_without_a_counter_is_not_zero() {
        let parts = memory::Parts { anon_bytes: Some(0), file_bytes: Some(0), ..memory::Parts::default() };
        let made = Parts::divide(&memory(0, parts), Estimates::default(), 1);
        let counted = made.all.iter().filter(|part| part.is_counted).map(|part| part.kind.id);
        let ids = ["group.anon", "group.cache.clean", "group.charge_stock", "group.unattributed"];
        assert_eq!(counted.collect::<Vec<_>>(), ids);
    }

    #[test]
    fn rows_have_unique_names() {
        let ids: std::collections::BTreeSet<&str> = ALL.iter().map(|kind| kind.id).collect();
        assert_eq!(ids.len(), ALL.len());
    }
}
