//! How many anonymous pages are resident in some ranges, counted in the page tables: the "actual" of
//! a remedy. Reads page states only, never a page.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use strandline_sys::host;
use strandline_sys::pagemap::{self, FILE, PRESENT, Region, SWAPPED, ZERO_PFN};

/// Entries of /proc/PID/pagemap that are read at once.
const ENTRIES: usize = 8192;
/// Of an entry: present; swapped or being moved; of a file or shared memory.
const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_FILE: u64 = 1 << 61;
/// `ENOTTY`: a kernel without the ioctl.
const ENOTTY: i32 = 25;

/// Counts resident anonymous pages of one process.
#[derive(Debug)]
pub struct Counter {
    pagemap: File,
    /// Without swap an entry that is not present is a page being moved, which is resident.
    counts_swapped: bool,
}

impl Counter {
    /// For process `pid`.
    pub fn open(pid: i32) -> io::Result<Self> {
        // The file's first line is its heading; each other line is a swap area.
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        Ok(Self { pagemap, counts_swapped: swaps.lines().count() <= 1 })
    }

    /// Resident anonymous bytes in `ranges`, the kernel's shared page of zeros left out.
    pub fn resident_bytes(&self, ranges: &[Range<u64>]) -> io::Result<u64> {
        let mut bytes = 0;
        self.each_run(ranges, &mut |run| bytes += run.end - run.start)?;
        Ok(bytes)
    }

    /// Shows every run of resident anonymous pages in `ranges`.
    pub fn each_run(&self, ranges: &[Range<u64>], show: &mut dyn FnMut(Range<u64>)) -> io::Result<()> {
        for range in ranges {
            match self.scan(range, show) {
                Err(error) if error.raw_os_error() == Some(ENOTTY) => self.read_entries(range, show)?,
                result => result?,
            }
        }
        Ok(())
    }

    fn scan(&self, range: &Range<u64>, show: &mut dyn FnMut(Range<u64>)) -> io::Result<()> {
        let mut regions = [Region::default(); pagemap::MOST_REGIONS];
        let wanted = PRESENT | SWAPPED | FILE | ZERO_PFN;
        let (page, mut start) = (host::page_bytes(), range.start);
        let end = range.end.checked_next_multiple_of(page).unwrap_or(range.end & !(page - 1));
        start &= !(page - 1);
        while start < end {
            let (filled, walked) = pagemap::scan(&self.pagemap, start, end, wanted, &mut regions)?;
            for region in &regions[..filled] {
                let is_resident = region.categories & PRESENT != 0
                    || (self.counts_swapped && region.categories & SWAPPED != 0);
                if is_resident && region.categories & (FILE | ZERO_PFN) == 0 {
                    show(region.start..region.end);
                }
            }
            // A walk that does not get on is the kernel's bug; it must not become our endless loop.
            if walked <= start {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "PAGEMAP_SCAN does not get on"));
            }
            start = walked;
        }
        Ok(())
    }

    /// The way of older kernels, which cannot tell the shared page of zeros.
    fn read_entries(&self, range: &Range<u64>, show: &mut dyn FnMut(Range<u64>)) -> io::Result<()> {
        let page = host::page_bytes();
        let mut buffer = vec![0; ENTRIES * 8];
        let mut number = range.start / page;
        let last = range.end.div_ceil(page);
        while number < last {
            let wanted = ((last - number) as usize).min(ENTRIES) * 8;
            let got = self.pagemap.read_at(&mut buffer[..wanted], number * 8)?;
            if got < 8 {
                return Ok(());
            }
            for entry in buffer[..got - got % 8].chunks_exact(8) {
                let entry = crate::memory::word_at(entry, 0).unwrap_or(0);
                let is_resident =
                    entry & ENTRY_PRESENT != 0 || (self.counts_swapped && entry & ENTRY_SWAPPED != 0);
                if is_resident && entry & ENTRY_FILE == 0 {
                    show(number * page..(number + 1) * page);
                }
                number += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_count_the_same_pages() {
        let page = host::page_bytes() as usize;
        let mut memory = vec![0_u8; 64 * page];
        for index in (0..64).step_by(2) {
            memory[index * page] = 1;
        }
        let start = memory.as_ptr() as u64;
        let whole = start.next_multiple_of(page as u64)..(start + memory.len() as u64) & !(page as u64 - 1);
        let counter = Counter::open(std::process::id() as i32).unwrap();
        let scanned = counter.resident_bytes(std::slice::from_ref(&whole)).unwrap();
        let mut read = 0;
        counter.read_entries(&whole, &mut |run| read += run.end - run.start).unwrap();
        assert_eq!(scanned, read);
        assert!(scanned >= 31 * page as u64, "{scanned}");
        assert_eq!(memory[page * 2], 1);
    }
}
