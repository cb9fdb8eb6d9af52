//! ZGC, with or without generations: used and committed bytes (`gc/z/vmStructs_z.hpp`; in JDK 21 to
//! 23 without generations `gc/x/vmStructs_x.hpp`).

use std::ops::RangeInclusive;
use std::time::Instant;

use strandline_claims::runtime::Context;
use strandline_claims::words::is_process_memory;
use strandline_process::map::Mapping;
use strandline_process::range::AddressRange;

use super::{Heap, Pool};
use crate::jvm::layout::{Z_GENERATIONS_AFTER_USED, Z_PER_NUMA_BYTES, Z_USED_AFTER_MAX_CAPACITY};
use crate::jvm::view::View;

/// Views of ZGC without generations: marked0, marked1 and remapped (`ZAddress`).
const POINTER_COLOURS: u64 = 3;
/// Accepted values of `ZGranuleSizeShift`; HotSpot's is 21.
const GRANULE_SHIFTS: RangeInclusive<u32> = 16..=30;
/// Limit on NUMA nodes: that of Linux (`CONFIG_NODES_SHIFT`).
const MAX_NODES: u32 = 1024;
/// First version with generations, if `ZGenerational` is set; versions without the flag always have
/// them.
const FIRST_VERSION_WITH_GENERATIONS: u32 = 21;

/// Reads the heap of ZGC. Its pages are not walked: their objects move while the program runs.
pub fn read(context: &Context<'_>, view: &View<'_>, heap: u64) -> Option<Heap> {
    let may_have_generations =
        view.structs.major().is_some_and(|major| major >= FIRST_VERSION_WITH_GENERATIONS);
    let has_generations = may_have_generations
        && (view.structs.flag("ZGenerational").is_none() || view.is_set("ZGenerational")?);
    // JDK 21 to 23 have two ZGCs: names of the one without generations have X for Z.
    let name = |name: &str| match may_have_generations && !has_generations {
        true => name.replace('Z', "X"),
        false => name.to_owned(),
    };
    let heap = view.field_address(heap, &[&name("ZCollectedHeap::_heap")])?;
    let allocator = view.field_address(heap, &[&name("ZHeap::_page_allocator")])?;
    let (used_at, committed) = match view.field_address(allocator, &[&name("ZPageAllocator::_used")]) {
        Some(used_at) => (used_at, view.field(allocator, &[&name("ZPageAllocator::_capacity")])?),
        None => {
            let max_capacity = view.field_address(allocator, &["ZPageAllocator::_max_capacity"])?;
            (max_capacity.checked_add(Z_USED_AFTER_MAX_CAPACITY)?, committed_of_partitions(view, allocator)?)
        }
    };
    let pools = if has_generations {
        let generations_at = used_at.checked_add(Z_GENERATIONS_AFTER_USED)?;
        generation_pools(view, generations_at, committed)?
    } else {
        vec![Pool::new("ZHeap", view.word(used_at)?, committed)]
    };
    let mappings = context.space.mappings().iter();
    let views: Vec<AddressRange> = mappings.filter(|mapping| is_view(mapping)).map(Mapping::range).collect();
    let shared = Granules::new(view, heap, &name)?.shared_ranges(context, &views);
    // With generations there is one view; without, one per pointer colour.
    let times_mapped = (!has_generations).then_some(POINTER_COLOURS);
    Some(Heap {
        collector: "Z",
        reserved: AddressRange::new(0, u64::MAX),
        pools,
        shared_used_ranges: shared.used,
        shared_unread_ranges: shared.unread,
        views,
        times_mapped,
        ..Heap::default()
    })
}

/// Returns the pools of both generations, whose used bytes are two words at `at`: the committed
/// bytes are divided as in `compute_memory_usage_info` of `gc/z/zServiceability.cpp`.
fn generation_pools(view: &View<'_>, at: u64, committed: u64) -> Option<Vec<Pool>> {
    let [young, old] = view.words(at, 2)?.try_into().ok()?;
    let old = old.min(committed);
    let young = young.min(committed - old);
    Some(vec![
        Pool::new("ZGC Young Generation", young, committed - old),
        Pool::new("ZGC Old Generation", old, old),
    ])
}

/// Whether a mapping is a view: the heap is a memory file with this name (`ZPhysicalMemoryBacking`,
/// `gc/z/zPhysicalMemoryBacking_linux.cpp`).
fn is_view(mapping: &Mapping) -> bool {
    mapping.permissions.shared && mapping.name.starts_with("/memfd:java_heap")
}

/// Parts of the views' resident memory, in address order.
#[derive(Default)]
struct SharedRanges {
    /// Parts that objects use.
    used: Vec<AddressRange>,
    /// Parts that could not be read, or not in time.
    unread: Vec<AddressRange>,
}

/// Table of the page of each granule (`ZPageTable`).
struct Granules<'a> {
    view: &'a View<'a>,
    /// Address of the first entry.
    table: u64,
    /// Binary logarithm of the bytes of a granule.
    shift: u32,
    /// Bits of an address that are the offset in the heap: the same memory may be mapped at several
    /// addresses.
    mask: u64,
    /// Names of the fields that describe a page: its virtual memory, the start of that, and the end
    /// of its objects.
    names: [String; 3],
}

impl<'a> Granules<'a> {
    fn new(view: &'a View<'a>, heap: u64, name: &dyn Fn(&str) -> String) -> Option<Self> {
        let table = view.field_address(
            view.field_address(heap, &[&name("ZHeap::_page_table")])?,
            &[&name("ZPageTable::_map")],
        )?;
        let instance = view.static_field(&[&name("ZGlobalsForVMStructs::_instance_p")])?;
        let mask = view.field(instance, &[&name("ZGlobalsForVMStructs::_ZAddressOffsetMask")])?;
        let shift = u32::try_from(view.constant(&[&name("ZGranuleSizeShift")])?).ok()?;
        if !GRANULE_SHIFTS.contains(&shift) {
            return None;
        }
        Some(Self {
            view,
            table: view.field(table, &[&name("ZGranuleMapForPageTable::_map")])?,
            shift,
            mask: view.word(mask)?,
            names: ["ZPage::_virtual", "ZVirtualMemory::_start", "ZPage::_top"].map(name),
        })
    }

    /// Returns the parts of the views' resident memory that objects use, and those that could not
    /// be read.
    fn shared_ranges(&self, context: &Context<'_>, views: &[AddressRange]) -> SharedRanges {
        let mut ranges = SharedRanges::default();
        let may_be_swapped = context.may_be_swapped();
        let is_empty =
            |at: u64| !may_be_swapped && is_process_memory(context.space, at, at.saturating_add(8));
        let mut is_late = false;
        for AddressRange { start, end } in views.iter().flat_map(|&view| context.shared_runs(view)) {
            let mut at = start;
            while at < end {
                is_late |= Instant::now() >= context.deadline;
                if is_late {
                    push(&mut ranges.unread, at, end);
                    break;
                }
                let granule_end = ((at | ((1 << self.shift) - 1)) + 1).min(end);
                match self.used_end(at, &is_empty) {
                    Some(used_end) => push(&mut ranges.used, at, used_end.min(granule_end)),
                    None => push(&mut ranges.unread, at, granule_end),
                }
                at = granule_end;
            }
        }
        ranges
    }

    /// Returns the end of the objects from `address` on in its page: `address` itself if there are
    /// none, `None` if that could not be read. `is_empty` returns whether unreadable memory was
    /// never written.
    fn used_end(&self, address: u64, is_empty: &dyn Fn(u64) -> bool) -> Option<u64> {
        let offset = address & self.mask;
        let entry = self.table.checked_add((offset >> self.shift).checked_mul(8)?)?;
        let page = match self.view.word(entry) {
            Some(page) => page,
            None => is_empty(entry).then_some(0)?,
        };
        if page == 0 {
            return Some(address);
        }
        let [range, start, top] = &self.names;
        let first = self.view.field(self.view.field_address(page, &[range])?, &[start])? & self.mask;
        let top = self.view.field(page, &[top])? & self.mask;
        let used_bytes = if first <= offset { top.saturating_sub(offset) } else { 0 };
        Some(address.saturating_add(used_bytes))
    }
}

/// Adds a range unless it is empty; joins it with the last one if they adjoin.
fn push(ranges: &mut Vec<AddressRange>, start: u64, end: u64) {
    match ranges.last_mut() {
        Some(last) if last.end == start => last.end = end,
        _ if start < end => ranges.push(AddressRange { start, end }),
        _ => {}
    }
}

/// Returns the committed bytes: from JDK 25 on, each NUMA node has a part (`ZPerNUMA<ZPartition>`).
fn committed_of_partitions(view: &View<'_>, allocator: u64) -> Option<u64> {
    let count = view.static_half_field(&["ZNUMA::_count"]).filter(|&count| count <= MAX_NODES)?.max(1);
    let first = view.field(
        view.field_address(allocator, &["ZPageAllocator::_partitions"])?,
        &["ZPerNUMAZPartition::_addr"],
    )?;
    let capacity =
        |node: u64| view.field(first.checked_add(node * Z_PER_NUMA_BYTES)?, &["ZPartition::_capacity"]);
    (0..u64::from(count)).try_fold(0_u64, |sum, node| sum.checked_add(capacity(node)?))
}
