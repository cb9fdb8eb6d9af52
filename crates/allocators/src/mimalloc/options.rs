//! mimalloc's table of options (`src/options.c`, `options`, in 3.x `mi_options`), in static data of
//! the program or library that contains it. No symbol is needed: each entry holds its own index.

use super::arena_layout::WORD_SLICES;
use super::layout::SLICE_BYTES;
use super::parts::Heap;
use crate::radix::{self, StaticData};
use crate::scan::{DeadlineCheck, each_word};
use strandline_claims::allocator::Context;
use strandline_process::host;
use strandline_process::memory::word_at;

/// Bytes of an entry (2.0.6 to 3.4.3, `options.c` or `internal.h`, `struct mi_option_desc_s`): its
/// value, its state and index, and two names.
const ENTRY_BYTES: usize = 32;
/// Bytes of an entry of 2.0.3, which has one name.
const EARLY_ENTRY_BYTES: usize = 24;
/// Offset of the state (`init`), of 32 bits; the index (`option`) is the upper half of its word.
const STATE: usize = 8;
/// Maximum state (`MI_OPTION_INITIALIZED`).
const MAX_STATE: u64 = 2;
/// Maximum entries read; 3.4.3 has 47.
const MAX_ENTRIES: usize = 64;
/// Minimum entries of a table (`mimalloc.h`, `_mi_option_last`): 3.0.7 to 3.0.12 have 40, 3.0.2 and
/// 3.0.3 have 42, later ones more.
const MIN_ENTRIES: usize = 40;
/// Minimum entries of a table of any release with that entry: 2.0.6 has 25.
const MIN_ENTRIES_OF_ALL: usize = 25;
/// Entries of 2.0.3.
const EARLY_ENTRIES: usize = 23;

/// Index of the delay after which free memory is released: `decommit_delay` (2.0.6 to 2.1.1) or
/// `purge_delay` (1.8.2 to 1.9, 2.1.2 to 3.4.3).
const DELAY: usize = 15;
/// The same in 2.0.3 (`reset_delay`).
const EARLY_DELAY: usize = 16;
/// Index of `purge_decommits`, in the releases with a `purge_delay`.
const PURGE_DECOMMITS: usize = 5;
/// Minimum entries of those releases: 1.8.2 and 2.1.2 have 27, 2.1.1 has 26.
const MIN_ENTRIES_WITH_PURGE: usize = 27;

/// Index of `allow_thp` (`mimalloc.h`, `enum mi_option_e`, from 3.1.6 on).
const ALLOW_THP: usize = 43;
/// Index of `minimal_purge_size`, in KiB.
const MINIMAL_PURGE_KIB: usize = 44;
/// Number of options from 3.3.2 on (`arena_is_numa_local` is new). These purge runs as large as a
/// huge page only where `allow_thp` is 2, older ones where it is not 0
/// (`os.c`, `_mi_os_minimal_purge_size`).
const COUNT_FROM_3_3_2: usize = 47;
/// Slices of a huge page of 2 MiB (`MI_UNIX_LARGE_PAGE_SIZE`).
const HUGE_PAGE_SLICES: u64 = 32;

/// Returns the number of slices in a run that a purge releases only as a whole; 1 if it releases
/// each slice by itself. A table that cannot be read counts as that of 3.3.1, whose collections
/// release least.
pub fn slices_per_run(context: &Context<'_>, data: &StaticData<'_>) -> u64 {
    let has_huge_pages = host::has_huge_pages();
    match values(context, data) {
        Some(values) => slices_per_run_with(&values, has_huge_pages),
        None if has_huge_pages => HUGE_PAGE_SLICES,
        None => 1,
    }
}

/// Returns the number of slices in a run, given the values of all options.
fn slices_per_run_with(values: &[i64], has_huge_pages: bool) -> u64 {
    // Up to 3.1.5 there are no such options, and each slice is purged by itself.
    let (Some(&allow_thp), Some(&minimal_kib)) = (values.get(ALLOW_THP), values.get(MINIMAL_PURGE_KIB))
    else {
        return 1;
    };
    let purges_huge_pages = if values.len() >= COUNT_FROM_3_3_2 { allow_thp == 2 } else { allow_thp != 0 };
    match u64::try_from(minimal_kib) {
        Ok(kib @ 1..) => kib.div_ceil(SLICE_BYTES >> 10).min(WORD_SLICES),
        _ if purges_huge_pages && has_huge_pages => HUGE_PAGE_SLICES,
        _ => 1,
    }
}

/// The options in force that decide when free memory is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgeOptions {
    /// The delay in milliseconds: 0 releases at once, a negative one never.
    pub delay_milliseconds: i64,
    /// Whether released pages stay resident until the kernel needs them.
    pub is_lazy: bool,
}

/// Returns the options of `heap`; `None` if its table cannot be read before the deadline.
pub fn purge_options(context: &Context<'_>, heap: &Heap) -> Option<PurgeOptions> {
    let static_data = radix::large_data(context.space, 0);
    let data = static_data.iter().find(|data| data.object.name == heap.name)?;
    let shape = TableShape { entry_bytes: ENTRY_BYTES, min_entries: MIN_ENTRIES_OF_ALL };
    if let Some(values) = shape.find(context, data) {
        return purge_options_of(&values);
    }
    let shape = TableShape { entry_bytes: EARLY_ENTRY_BYTES, min_entries: EARLY_ENTRIES };
    let delay = *shape.find(context, data)?.get(EARLY_DELAY)?;
    Some(PurgeOptions { delay_milliseconds: delay, is_lazy: false })
}

/// Returns these options, given the values of all.
fn purge_options_of(values: &[i64]) -> Option<PurgeOptions> {
    let is_lazy = values.len() >= MIN_ENTRIES_WITH_PURGE && values.get(PURGE_DECOMMITS) == Some(&0);
    Some(PurgeOptions { delay_milliseconds: *values.get(DELAY)?, is_lazy })
}

/// Returns the values of all options of 3.x, by index; `None` if no table can be read before the
/// deadline.
fn values(context: &Context<'_>, data: &StaticData<'_>) -> Option<Vec<i64>> {
    TableShape { entry_bytes: ENTRY_BYTES, min_entries: MIN_ENTRIES }.find(context, data)
}

/// How a table is recognised.
struct TableShape {
    /// Bytes of an entry.
    entry_bytes: usize,
    /// Minimum number of entries.
    min_entries: usize,
}

impl TableShape {
    /// Returns the values of all options, by index; `None` if no table can be read before the
    /// deadline.
    fn find(&self, context: &Context<'_>, data: &StaticData<'_>) -> Option<Vec<i64>> {
        if context.deadline_passed() {
            return None;
        }
        let mut values = None;
        // The last entry that every table has: small indexes are common words.
        let last = self.min_entries as u64 - 1;
        let mut deadline = DeadlineCheck::new(context);
        each_word(context, data.range, &mut |at, word| {
            if word >> 32 == last && word & u64::from(u32::MAX) <= MAX_STATE {
                let table = at.checked_sub(STATE as u64 + last * self.entry_bytes as u64);
                values = table.and_then(|table| self.values_at(context, table));
            }
            values.is_none() && !deadline.passed()
        });
        values
    }

    /// Returns the values of the options in the table at `table`; `None` if no table is there.
    fn values_at(&self, context: &Context<'_>, table: u64) -> Option<Vec<i64>> {
        let mut bytes = [0; MAX_ENTRIES * ENTRY_BYTES];
        let length = context.memory.read_some(table, &mut bytes);
        let entries = bytes.get(..length)?.chunks_exact(self.entry_bytes).zip(0..);
        let values = entries.map_while(|(entry, index)| {
            let state = word_at(entry, STATE)?.checked_sub(index << 32)?;
            (state <= MAX_STATE).then_some(word_at(entry, 0)?.cast_signed())
        });
        let values: Vec<i64> = values.take(MAX_ENTRIES).collect();
        (values.len() >= self.min_entries).then_some(values)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use strandline_process::map::AddressSpace;
    use strandline_process::memory::Memory;
    use strandline_process::range::AddressRange;

    /// The values of `count` options, with these two among them.
    fn options(count: usize, allow_thp: i64, minimal_kib: i64) -> Vec<i64> {
        let mut values = vec![7; count];
        for (index, value) in [(ALLOW_THP, allow_thp), (MINIMAL_PURGE_KIB, minimal_kib)] {
            if let Some(slot) = values.get_mut(index) {
                *slot = value;
            }
        }
        values
    }

    const TABLE: u64 = 0x7f51_4000_0000;

    /// Static data with a table of this many options, whose values are their indexes.
    struct Table(usize);

    impl Memory for Table {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            let entry = |index: u64| [index, index << 32 | 2, 0, 0].map(u64::to_le_bytes);
            let bytes: Vec<u8> = (0..self.0 as u64).flat_map(entry).flatten().collect();
            buffer.fill(0);
            let from_address = bytes.get((address - TABLE) as usize..).unwrap_or_default();
            for (slot, byte) in buffer.iter_mut().zip(from_address) {
                *slot = *byte;
            }
            buffer.len()
        }
    }

    #[test]
    fn the_table_of_each_release_is_found() {
        let data_end = TABLE + 8192;
        let maps = format!("{TABLE:x}-{data_end:x} rw-p 00080000 08:01 79 /usr/lib/libmimalloc.so.3\n");
        let (space, _) = AddressSpace::parse(maps.as_bytes());
        let all_resident = |range: AddressRange| vec![range];
        let data = StaticData { range: AddressRange::new(TABLE, data_end), object: &space.mappings()[0] };
        let count_of = |entries: usize, deadline: Instant| {
            let table = Table(entries);
            let context = Context { deadline, ..Context::of_image(&table, &space, &all_resident) };
            values(&context, &data).map(|values| values.len())
        };
        let later = Instant::now() + Duration::from_secs(600);
        // 3.0.7 to 3.0.12; 3.0.2 and 3.0.3; 3.3.2 and later.
        assert_eq!([40, 42, 47].map(|entries| count_of(entries, later)), [Some(40), Some(42), Some(47)]);
        assert_eq!(count_of(42, Instant::now()), None, "no time");
    }

    #[test]
    fn delay_in_force_depends_on_release_and_options() {
        let with = |count: usize, delay: i64, decommits: i64| {
            let mut values = options(count, 1, 0);
            (values[DELAY], values[PURGE_DECOMMITS]) = (delay, decommits);
            purge_options_of(&values)
        };
        let found = |delay_milliseconds, is_lazy| Some(PurgeOptions { delay_milliseconds, is_lazy });
        // 2.0.9 has another option there; 2.1.2; 3.4.3.
        assert_eq!(with(26, 0, 0), found(0, false));
        assert_eq!(with(27, -1, 0), found(-1, true));
        assert_eq!(with(48, 1000, 1), found(1000, false));
    }

    #[test]
    fn runs_depend_on_release_and_options() {
        let slices = |count, allow_thp, minimal_kib| {
            [true, false].map(|huge| slices_per_run_with(&options(count, allow_thp, minimal_kib), huge))
        };
        // 3.1.5; 3.1.6 and 3.2.6; 3.2.7 to 3.3.1; 3.3.2 and later.
        assert_eq!(slices(43, 1, 0), [1, 1]);
        assert_eq!(slices(45, 1, 0), [32, 1]);
        assert_eq!(slices(46, 1, 0), [32, 1]);
        assert_eq!(slices(47, 1, 0), [1, 1]);
        assert_eq!(slices(46, 0, 0), [1, 1]);
        assert_eq!(slices(47, 2, 0), [32, 1]);
        assert_eq!(slices(47, 1, 200), [4, 4]);
        assert_eq!(slices(46, 1, i64::MAX), [64, 64]);
        assert_eq!(slices(46, 1, -1), [32, 1]);
    }
}
