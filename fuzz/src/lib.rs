//! Shared by the fuzz targets: fabricated memory that counts the bytes read from it.

use std::sync::atomic::{AtomicU64, Ordering};

use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;
use strandline_synth::{Image, clipped, is_absent};

/// An image as a target's memory.
pub struct Target {
    /// Readable memory.
    pub image: Image,
    /// Resident ranges of the image.
    pub runs: Vec<(u64, u64)>,
    bytes_read: AtomicU64,
}

impl Memory for Target {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let got = self.image.read_some(address, buffer);
        self.bytes_read.fetch_add(got as u64, Ordering::Relaxed);
        got
    }
}

impl Target {
    /// All of the image is readable, also the pages named by `absent`, which are not resident:
    /// reading them faults them in.
    pub fn readable(image: Image, absent: u64) -> Self {
        let runs = image.pages_without(|page| is_absent(absent, page));
        Self { image, runs, bytes_read: AtomicU64::new(0) }
    }

    /// Only resident pages are readable.
    pub fn resident_only(image: &Image, absent: u64) -> Self {
        let runs = image.pages_without(|page| is_absent(absent, page));
        Self { image: image.within(&runs), runs, bytes_read: AtomicU64::new(0) }
    }

    /// The resident parts of a range.
    pub fn resident(&self, range: AddressRange) -> Vec<AddressRange> {
        clipped(&self.runs, range.start, range.end).into_iter().map(AddressRange::from).collect()
    }

    pub fn resident_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.1 - run.0).sum()
    }

    /// Fails if more than `bytes` bytes were read.
    pub fn assert_read_at_most(&self, bytes: u64) {
        let read = self.bytes_read.load(Ordering::Relaxed);
        assert!(read <= bytes, "{read} bytes were read, {bytes} are allowed");
    }
}

/// This process, for readers that need a [`Process`] to look for the files of a runtime in.
pub fn this_process() -> Process {
    Process::open(std::process::id().cast_signed()).expect("this process is there")
}

/// Overwrites words: each twelve bytes of `patches` are 3 bytes for the place, one for the
/// operation, and 8 for the operand.
pub fn patch(image: &mut Image, patches: &[u8]) {
    let ranges: Vec<(u64, u64)> = image.ranges().map(|(at, bytes)| (at, bytes.len() as u64)).collect();
    for patch in patches.as_chunks::<12>().0 {
        let range = ranges[usize::from(patch[0]) % ranges.len()];
        let at = range.0 + u64::from(u16::from_le_bytes([patch[1], patch[2]])) * 8 % range.1;
        let word = u64::from_le_bytes(patch[4..].try_into().unwrap_or_default());
        let before = image.word(at).unwrap_or(0);
        let other = ranges[(word % ranges.len() as u64) as usize];
        image.put_word(
            at,
            match patch[3] % 4 {
                0 => word,
                1 => before ^ word,
                2 => before.wrapping_add(word),
                // The address of another word.
                _ => other.0 + (word >> 8) % other.1,
            },
        );
    }
}
