//! SBCL's own books of its dynamic space: the page table and the generations, and whether they agree.
//!
//! The page table says of each page of the collector (32 KiB) how much of it is in use, by which generation,
//! and of what kind its objects are; `generations[n].bytes_allocated` is the sum of that by generation, and
//! `bytes_allocated` the sum of all. The three are kept up together under one lock: where they differ,
//! the process stands between two of their stores, or this is no SBCL that we know.

use super::locate::Program;
use crate::sbcl::layout::{
    GC_PAGE_BYTES, GENERATION_BYTES, GENERATIONS, Layout, PAGE_ENTRY_BYTES, PSEUDO_STATIC,
};
use strandline_process::memory::{Memory, half_word_at, word_at};

/// Entries of the page table read at a time.
const BLOCK_ENTRIES: usize = 16384;
/// The largest dynamic space believed: 64 TiB.
const MAX_SPACE_BYTES: u64 = 64 << 40;

/// One page of the collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Where to look for the first object that touches it: 0 is at its start, else before it.
    pub scan_start: u32,
    /// Bytes in use, from its start on.
    pub used: u32,
    /// What is on it: see [`Layout::page_types`].
    pub kind: u8,
    /// Whose it is.
    pub generation: u8,
}

/// What the collector keeps of one generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Books {
    /// `bytes_allocated`
    pub bytes_allocated: u64,
    /// `gc_trigger`
    pub trigger: u64,
    /// `bytes_consed_between_gc`
    pub consed_between: u64,
    /// `num_gc`
    pub collections: u32,
    /// `number_of_gcs_before_promotion`
    pub before_promotion: u32,
    /// `cum_sum_bytes_allocated`
    pub cum_sum: u64,
    /// `minimum_age_before_gc`
    pub minimum_age: f64,
}

/// Dynamic space, as SBCL keeps it.
#[derive(Clone, Debug, Default)]
pub struct Heap {
    /// First byte.
    pub start: u64,
    /// Its size; not all of it is in use.
    pub size: u64,
    /// Its pages up to `next_free_page`.
    pub pages: Vec<Page>,
    /// By number.
    pub generations: [Books; GENERATIONS],
    /// `bytes_allocated`: the dynamic usage.
    pub bytes_allocated: u64,
    /// `bytes_consed_between_gcs`
    pub consed_between: Option<u64>,
    /// `auto_gc_trigger`
    pub auto_trigger: Option<u64>,
    /// `gencgc_oldest_gen_to_gc`
    pub oldest_to_collect: Option<u64>,
    /// Bytes of the page table that were read.
    pub bytes_read: u64,
}

/// Why the books are of no use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// A collection is under way, or a page is being entered: it passes.
    Busy,
    /// What could not be read, or does not hold together.
    Damaged(String),
}

impl Heap {
    /// Reads the books of `program` and holds them against each other.
    pub fn read(memory: &dyn Memory, program: &Program, layout: &Layout) -> Result<Self, Doubt> {
        let value = |name: &str| {
            program.value(memory, name).ok_or_else(|| Doubt::Damaged(format!("{name} cannot be read")))
        };
        if super::is_collecting(memory, program) {
            return Err(Doubt::Busy);
        }
        let start = value("DYNAMIC_SPACE_START")?;
        let most_pages = value("page_table_pages")?;
        let next_free = value("next_free_page")?;
        let size = most_pages.checked_mul(GC_PAGE_BYTES).filter(|&size| size <= MAX_SPACE_BYTES);
        let size =
            size.filter(|size| start.checked_add(*size).is_some() && start.is_multiple_of(GC_PAGE_BYTES));
        let (Some(size), true, true) = (size, start != 0, next_free <= most_pages) else {
            let text = format!("dynamic space at {start:#x} with {next_free} of {most_pages} pages");
            return Err(Doubt::Damaged(text));
        };
        let mut heap = Self {
            start,
            size,
            bytes_allocated: value("bytes_allocated")?,
            consed_between: program.value(memory, "bytes_consed_between_gcs"),
            auto_trigger: program.value(memory, "auto_gc_trigger").filter(|&bytes| bytes != 0),
            oldest_to_collect: program.value(memory, "gencgc_oldest_gen_to_gc"),
            ..Self::default()
        };
        heap.read_generations(memory, program)?;
        heap.read_pages(memory, value("page_table")?, next_free, layout)?;
        heap.check()?;
        Ok(heap)
    }

    fn read_generations(&mut self, memory: &dyn Memory, program: &Program) -> Result<(), Doubt> {
        let mut bytes = [0; GENERATIONS * GENERATION_BYTES];
        let at = program.address("generations").unwrap_or(0);
        memory.read(at, &mut bytes).map_err(|error| Doubt::Damaged(format!("generations: {error}")))?;
        for (books, entry) in self.generations.iter_mut().zip(bytes.chunks_exact(GENERATION_BYTES)) {
            let word = |index: usize| word_at(entry, index * 8).unwrap_or(0);
            *books = Books {
                bytes_allocated: word(0),
                trigger: word(1),
                consed_between: word(2),
                collections: word(3) as u32,
                before_promotion: (word(3) >> 32) as u32,
                cum_sum: word(4),
                minimum_age: f64::from_bits(word(5)),
            };
        }
        Ok(())
    }

    fn read_pages(
        &mut self,
        memory: &dyn Memory,
        table: u64,
        count: u64,
        layout: &Layout,
    ) -> Result<(), Doubt> {
        let mut block = vec![0; BLOCK_ENTRIES * PAGE_ENTRY_BYTES];
        let mut done: u64 = 0;
        while done < count {
            let entries = usize::try_from(count - done).unwrap_or(usize::MAX).min(BLOCK_ENTRIES);
            let bytes = block.get_mut(..entries * PAGE_ENTRY_BYTES).unwrap_or_default();
            let at = table.wrapping_add(done.wrapping_mul(PAGE_ENTRY_BYTES as u64));
            memory.read(at, bytes).map_err(|error| Doubt::Damaged(format!("page_table: {error}")))?;
            self.bytes_read += bytes.len() as u64;
            for entry in bytes.chunks_exact(PAGE_ENTRY_BYTES) {
                self.pages.push(page(entry, layout)?);
            }
            done += entries as u64;
        }
        Ok(())
    }

    /// Whether pages, generations and the sum of all agree.
    fn check(&self) -> Result<(), Doubt> {
        let mut sums = [0; GENERATIONS];
        for page in &self.pages {
            if let Some(sum) = sums.get_mut(usize::from(page.generation)) {
                *sum += u64::from(page.used);
            }
        }
        let kept = self.generations.map(|books| books.bytes_allocated);
        let all = kept.iter().fold(0, |sum: u64, &bytes| sum.saturating_add(bytes));
        if sums == kept && all == self.bytes_allocated { Ok(()) } else { Err(Doubt::Busy) }
    }

    /// First byte behind the pages that are or were in use.
    pub fn end(&self) -> u64 {
        self.start + self.pages.len() as u64 * GC_PAGE_BYTES
    }

    /// Where page `index` starts.
    pub fn address_of(&self, index: usize) -> u64 {
        self.start + index as u64 * GC_PAGE_BYTES
    }

    /// The page that holds `address`, and its number.
    pub fn page_of(&self, address: u64) -> Option<(usize, &Page)> {
        let index = usize::try_from(address.checked_sub(self.start)? / GC_PAGE_BYTES).ok()?;
        self.pages.get(index).map(|page| (index, page))
    }

    /// The average age of a generation, as `generation_average_age` has it.
    pub fn average_age(&self, generation: usize) -> f64 {
        match self.generations.get(generation) {
            Some(books) if books.bytes_allocated > 0 => books.cum_sum as f64 / books.bytes_allocated as f64,
            _ => 0.0,
        }
    }
}

impl Page {
    /// Whether nothing is on it and nothing will be put there by a region that is open.
    pub fn is_free(&self, layout: &Layout) -> bool {
        self.kind & (layout.page_types.mask | layout.page_types.open_region) == 0
    }

    /// Whether a large object is on it.
    pub fn is_large(&self, layout: &Layout) -> bool {
        self.kind & layout.page_types.single_object != 0
    }

    /// What is on it, without flags.
    pub fn content(&self, layout: &Layout) -> u8 {
        self.kind & layout.page_types.mask
    }
}

fn page(entry: &[u8], layout: &Layout) -> Result<Page, Doubt> {
    let damaged = || Doubt::Damaged("an entry of page_table makes no sense".to_owned());
    let scan_start = half_word_at(entry, 0).ok_or_else(damaged)?;
    let rest = half_word_at(entry, 4).ok_or_else(damaged)?;
    let used = rest & 0xffff;
    let used = if layout.used_in_bytes { used & !1 } else { (used >> 1) * 8 };
    let kind = (rest >> 16) as u8;
    let generation = (rest >> 24) as u8;
    // A page that was never used has generation 0; one that was freed keeps its last.
    let generation = if used == 0 && usize::from(generation) >= GENERATIONS { 0 } else { generation };
    if u64::from(used) > GC_PAGE_BYTES || usize::from(generation) >= GENERATIONS {
        return Err(damaged());
    }
    Ok(Page { scan_start, used, kind, generation })
}

/// Whether a generation is never collected of itself.
pub fn is_pseudo_static(generation: usize) -> bool {
    generation == PSEUDO_STATIC
}
