//! The collector's own records of dynamic space: the page table and the generations, checked
//! against each other.
//!
//! For each page of the collector (32 KiB) the page table holds the bytes in use, the generation
//! and the kind of objects; `generations[n].bytes_allocated` is the sum of the bytes by generation,
//! and `bytes_allocated` the sum of all (gencgc.c). SBCL updates the three together under one lock:
//! if they differ, the process was stopped between two of the stores, or it is not a known SBCL.

use super::locate::Program;
use crate::sbcl::layout::{GC_PAGE_BYTES, GENERATION_BYTES, GENERATIONS, Layout, PAGE_ENTRY_BYTES};
use strandline_claims::range::MAX_BYTES;
use strandline_process::memory::{Memory, half_word_at, word_at};

/// Entries of the page table read at a time.
const BLOCK_ENTRIES: usize = 16384;
/// Limit on the size of dynamic space: 64 TiB. Only its first [`MAX_BYTES`] may be in use: each of
/// their pages takes 12 bytes here, and claims cover no more.
const MAX_SPACE_BYTES: u64 = 64 << 40;

/// The entry of one page of the collector in the page table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Where the first object on the page starts, as the page table encodes it: 0 for the start of
    /// the page, otherwise on a page before it.
    pub scan_start: u32,
    /// Bytes in use, from its start.
    pub used_bytes: u32,
    /// Kind of its objects and flags: see [`Layout::page_types`].
    pub kind: u8,
    /// Number of its generation, below [`GENERATIONS`].
    pub generation: u8,
}

/// The collector's record of one generation: fields of `struct generation`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GenerationRecord {
    /// `bytes_allocated`: bytes in use.
    pub bytes_allocated: u64,
    /// `gc_trigger`: bytes in use from which on it is collected.
    pub trigger_bytes: u64,
    /// `bytes_consed_between_gc`: bytes to allocate until `gc_trigger`.
    pub consed_between_bytes: u64,
    /// `num_gc`: collections since the last promotion out of it.
    pub collections: u32,
    /// `number_of_gcs_before_promotion`: collections until its objects are promoted.
    pub collections_before_promotion: u32,
    /// `cum_sum_bytes_allocated`: the sum of its bytes in use before each promotion into it, since
    /// its own last collection.
    pub cum_sum_bytes: u64,
    /// `minimum_age_before_gc`: average age below which it is not collected.
    pub minimum_age: f64,
}

/// Dynamic space, as SBCL records it.
#[derive(Clone, Debug, Default)]
pub struct DynamicSpace {
    /// First byte.
    pub start: u64,
    /// Its size in bytes; not all of it is in use.
    pub size_bytes: u64,
    /// Its pages up to `next_free_page`.
    pub pages: Vec<Page>,
    /// The generations, by number.
    pub generations: [GenerationRecord; GENERATIONS],
    /// `bytes_allocated`: the dynamic usage.
    pub bytes_allocated: u64,
    /// `bytes_consed_between_gcs`: bytes to allocate between two collections; `None` if it cannot
    /// be read, like the two that follow.
    pub consed_between_bytes: Option<u64>,
    /// `auto_gc_trigger`: bytes in use from which on a collection starts; 0 if only a call of `gc`
    /// starts one.
    pub auto_trigger_bytes: Option<u64>,
    /// `gencgc_oldest_gen_to_gc`: the oldest generation that is collected.
    pub oldest_to_collect: Option<u64>,
    /// Bytes of the page table that were read.
    pub bytes_read: u64,
}

/// Why the records cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// A collection or an update of the page table is under way: a temporary state.
    Busy,
    /// Something could not be read, or is inconsistent.
    Damaged(String),
}

impl DynamicSpace {
    /// Reads the records of `program` and checks them against each other.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(memory: &dyn Memory, program: &Program, layout: &Layout) -> Result<Self, ReadError> {
        let value = |name: &str| {
            program.value(memory, name).ok_or_else(|| ReadError::Damaged(format!("{name} cannot be read")))
        };
        if super::is_collecting(memory, program) {
            return Err(ReadError::Busy);
        }
        let start = value("DYNAMIC_SPACE_START")?;
        let page_count = value("page_table_pages")?;
        let next_free = value("next_free_page")?;
        let is_valid = start != 0
            && start.is_multiple_of(GC_PAGE_BYTES)
            && next_free <= page_count.min(MAX_BYTES / GC_PAGE_BYTES);
        let size_bytes = page_count.checked_mul(GC_PAGE_BYTES).filter(|&bytes| bytes <= MAX_SPACE_BYTES);
        let size_bytes = size_bytes.filter(|bytes| is_valid && start.checked_add(*bytes).is_some());
        let Some(size_bytes) = size_bytes else {
            let text = format!("dynamic space at {start:#x} with {next_free} of {page_count} pages");
            return Err(ReadError::Damaged(text));
        };
        let mut heap = Self {
            start,
            size_bytes,
            bytes_allocated: value("bytes_allocated")?,
            consed_between_bytes: program.value(memory, "bytes_consed_between_gcs"),
            auto_trigger_bytes: program.value(memory, "auto_gc_trigger"),
            oldest_to_collect: program.value(memory, "gencgc_oldest_gen_to_gc"),
            ..Self::default()
        };
        heap.read_generations(memory, program)?;
        heap.read_pages(memory, value("page_table")?, next_free, layout)?;
        heap.check()?;
        Ok(heap)
    }

    /// Reads the records of the generations.
    fn read_generations(&mut self, memory: &dyn Memory, program: &Program) -> Result<(), ReadError> {
        let damaged = |reason: &str| ReadError::Damaged(format!("generations: {reason}"));
        let mut bytes = [0; GENERATIONS * GENERATION_BYTES];
        let at = program.address("generations").ok_or_else(|| damaged("no such symbol"))?;
        memory.read(at, &mut bytes).map_err(|error| damaged(&error.to_string()))?;
        for (record, entry) in self.generations.iter_mut().zip(bytes.chunks_exact(GENERATION_BYTES)) {
            *record = GenerationRecord::parse(entry).ok_or_else(|| damaged("an entry is too short"))?;
        }
        Ok(())
    }

    /// Reads the first `count` entries of the page table at `table`.
    fn read_pages(
        &mut self,
        memory: &dyn Memory,
        table: u64,
        count: u64,
        layout: &Layout,
    ) -> Result<(), ReadError> {
        let mut block = vec![0; BLOCK_ENTRIES * PAGE_ENTRY_BYTES];
        let mut read_entries: u64 = 0;
        while read_entries < count {
            let entries = (count - read_entries).min(BLOCK_ENTRIES as u64) as usize;
            let bytes = block.get_mut(..entries * PAGE_ENTRY_BYTES).unwrap_or_default();
            let at = table.wrapping_add(read_entries.wrapping_mul(PAGE_ENTRY_BYTES as u64));
            memory.read(at, bytes).map_err(|error| ReadError::Damaged(format!("page_table: {error}")))?;
            self.bytes_read += bytes.len() as u64;
            for entry in bytes.chunks_exact(PAGE_ENTRY_BYTES) {
                self.pages.push(parse_page(entry, layout)?);
            }
            read_entries += entries as u64;
        }
        Ok(())
    }

    /// Checks that pages, generations and the total agree.
    fn check(&self) -> Result<(), ReadError> {
        let mut sums = [0; GENERATIONS];
        for page in &self.pages {
            if let Some(sum) = sums.get_mut(usize::from(page.generation)) {
                *sum += u64::from(page.used_bytes);
            }
        }
        let recorded = self.generations.map(|record| record.bytes_allocated);
        let total = recorded.iter().fold(0, |sum: u64, &bytes| sum.saturating_add(bytes));
        if sums == recorded && total == self.bytes_allocated { Ok(()) } else { Err(ReadError::Busy) }
    }

    /// First byte behind the pages that are or were in use.
    pub fn end(&self) -> u64 {
        self.start + self.pages.len() as u64 * GC_PAGE_BYTES
    }

    /// First byte behind the part that is claimed: a claim covers at most [`MAX_BYTES`], and no
    /// page behind these is in use.
    pub fn claim_end(&self) -> u64 {
        self.start + self.size_bytes.min(MAX_BYTES)
    }

    /// Address of the page `index`.
    pub fn address_of(&self, index: usize) -> u64 {
        self.start + index as u64 * GC_PAGE_BYTES
    }

    /// Index of the page that holds `address`; `None` if no page that is or was in use does.
    pub fn index_of(&self, address: u64) -> Option<usize> {
        let index = usize::try_from(address.checked_sub(self.start)? / GC_PAGE_BYTES).ok()?;
        (index < self.pages.len()).then_some(index)
    }

    /// The page that holds `address`; `None` if no page that is or was in use does.
    pub fn page_of(&self, address: u64) -> Option<&Page> {
        self.pages.get(self.index_of(address)?)
    }
}

impl GenerationRecord {
    /// Parses a `struct generation`.
    fn parse(entry: &[u8]) -> Option<Self> {
        let word = |index: usize| word_at(entry, index * 8);
        let counts = word(3)?;
        Some(Self {
            bytes_allocated: word(0)?,
            trigger_bytes: word(1)?,
            consed_between_bytes: word(2)?,
            // Two fields of 32 bits.
            collections: counts as u32,
            collections_before_promotion: (counts >> 32) as u32,
            cum_sum_bytes: word(4)?,
            minimum_age: f64::from_bits(word(5)?),
        })
    }

    /// Its average age, computed as by `generation_average_age` (gencgc.c).
    pub fn average_age(&self) -> f64 {
        if self.bytes_allocated == 0 { 0.0 } else { self.cum_sum_bytes as f64 / self.bytes_allocated as f64 }
    }
}

impl Page {
    /// Whether the page is empty and no open region allocates from it.
    pub fn is_free(&self, layout: &Layout) -> bool {
        self.kind & (layout.page_types.mask | layout.page_types.open_region) == 0
    }

    /// Whether it holds a large object.
    pub fn is_large(&self, layout: &Layout) -> bool {
        self.kind & layout.page_types.single_object != 0
    }

    /// Kind of its objects, without flags.
    pub fn content(&self, layout: &Layout) -> u8 {
        self.kind & layout.page_types.mask
    }
}

/// Parses an entry of the page table (`struct page`, see [`PAGE_ENTRY_BYTES`]).
fn parse_page(entry: &[u8], layout: &Layout) -> Result<Page, ReadError> {
    let damaged = || ReadError::Damaged("an entry of page_table is invalid".to_owned());
    let scan_start = half_word_at(entry, 0).ok_or_else(damaged)?;
    // `used` in the lower half, then the type and the generation.
    let fields = half_word_at(entry, 4).ok_or_else(damaged)?;
    let used_bytes = fields & 0xffff;
    // The lowest bit is a flag; the others count bytes or words.
    let used_bytes = if layout.is_used_in_bytes { used_bytes & !1 } else { (used_bytes >> 1) * 8 };
    let kind = (fields >> 16) as u8;
    let generation = (fields >> 24) as u8;
    // A page that was never used has generation 0; a freed page keeps its last one.
    let generation = if used_bytes == 0 && usize::from(generation) >= GENERATIONS { 0 } else { generation };
    if u64::from(used_bytes) > GC_PAGE_BYTES || usize::from(generation) >= GENERATIONS {
        return Err(damaged());
    }
    Ok(Page { scan_start, used_bytes, kind, generation })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_no_larger_than_its_pages() {
        let end = |size_bytes: u64| {
            DynamicSpace { start: GC_PAGE_BYTES, size_bytes, ..DynamicSpace::default() }.claim_end()
        };
        assert_eq!(end(8 * GC_PAGE_BYTES), 9 * GC_PAGE_BYTES);
        assert_eq!(end(2 * MAX_BYTES), GC_PAGE_BYTES + MAX_BYTES);
    }
}
