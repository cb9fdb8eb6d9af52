//! Fabricated memory: ranges of bytes at addresses, read as a target's memory is read.

use std::collections::BTreeMap;

use crate::PAGE;

/// A field of a structure, within one aligned word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    /// Offset in bytes.
    pub offset: u64,
    /// Its size.
    pub bits: u32,
}

/// Memory made of separate ranges. Ranges never overlap.
#[derive(Clone, Debug, Default)]
pub struct Image {
    ranges: BTreeMap<u64, Vec<u8>>,
}

impl Image {
    /// Zero bytes in these ranges, each given by its first address and its number of bytes.
    pub fn of(ranges: &[(u64, u64)]) -> Self {
        let mut image = Self::default();
        for &(start, bytes) in ranges {
            image.map(start, bytes as usize);
        }
        image
    }

    /// Adds `bytes` zero bytes from `start` on, and returns whether it did: a range that would
    /// overlap another, or exceed the address space, is not added.
    pub fn map(&mut self, start: u64, bytes: usize) -> bool {
        let Some(end) = start.checked_add(bytes as u64) else { return false };
        let previous = self.ranges.range(..end).next_back();
        if previous.is_some_and(|(address, content)| address + content.len() as u64 > start) {
            return false;
        }
        self.ranges.insert(start, vec![0; bytes]);
        true
    }

    /// Every range: its first address and its bytes, in address order.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.ranges.iter().map(|(start, bytes)| (*start, bytes.as_slice()))
    }

    /// Runs of the pages that hold its ranges, joined if they are adjacent, without the pages for
    /// whose address `is_left_out` is true. A run is its first address and the first one past its
    /// end.
    pub fn pages_without(&self, mut is_left_out: impl FnMut(u64) -> bool) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let pages = self
            .ranges()
            .flat_map(|(start, bytes)| (start..start + bytes.len() as u64).step_by(PAGE as usize));
        for page in pages.filter(|page| !is_left_out(*page)) {
            match runs.last_mut().filter(|run| run.1 == page) {
                Some(run) => run.1 += PAGE,
                None => runs.push((page, page + PAGE)),
            }
        }
        runs
    }

    /// The part of it within `runs`; nothing else can be read.
    #[must_use]
    pub fn within(&self, runs: &[(u64, u64)]) -> Self {
        let mut part = Self::default();
        for (start, bytes) in self.ranges() {
            for (part_start, part_end) in clipped(runs, start, start + bytes.len() as u64) {
                part.map(part_start, (part_end - part_start) as usize);
                part.put(part_start, &bytes[(part_start - start) as usize..(part_end - start) as usize]);
            }
        }
        part
    }

    /// Reads into `buffer` from `address` on, up to the end of the adjacent ranges, and returns the
    /// number of bytes read; 0 if nothing is mapped.
    pub fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut read_bytes = 0;
        while read_bytes < buffer.len() {
            let Some(at) = address.checked_add(read_bytes as u64) else { return read_bytes };
            let Some((start, bytes)) = self.ranges.range(..=at).next_back() else { return read_bytes };
            let offset = (at - start) as usize;
            let Some(readable) = bytes.get(offset..).filter(|bytes| !bytes.is_empty()) else {
                return read_bytes;
            };
            let count = readable.len().min(buffer.len() - read_bytes);
            buffer[read_bytes..read_bytes + count].copy_from_slice(&readable[..count]);
            read_bytes += count;
        }
        read_bytes
    }

    /// The little-endian word at `address`; `None` if one of its bytes is not mapped.
    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read_some(address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }

    /// Writes a little-endian word; what falls outside its range is dropped.
    pub fn put_word(&mut self, address: u64, word: u64) {
        self.put(address, &word.to_le_bytes());
    }

    /// Writes a little-endian half word; what falls outside its range is dropped.
    ///
    /// # Panics
    /// If `half` needs more than 32 bits.
    pub(crate) fn put_half(&mut self, address: u64, half: u64) {
        assert!(half <= u64::from(u32::MAX), "{half:#x} is not a half word");
        self.put(address, &half.to_le_bytes()[..4]);
    }

    /// Writes a word at each of these offsets from `address`.
    pub fn put_words(&mut self, address: u64, words: impl IntoIterator<Item = (u64, u64)>) {
        for (offset, word) in words {
            self.put_word(address + offset, word);
        }
    }

    /// Writes consecutive words from `address` on.
    pub fn put_row(&mut self, address: u64, words: impl IntoIterator<Item = u64>) {
        self.put_words(address, (0..).step_by(8).zip(words));
    }

    /// Writes the low `bits` bits of `value` at `address`; they must be within one aligned word.
    pub fn put_bits(&mut self, address: u64, value: u64, bits: u32) {
        let shift = address % 8 * 8;
        let mask = if bits == 64 { u64::MAX } else { ((1 << bits) - 1) << shift };
        let word = self.word(address & !7).unwrap_or(0);
        self.put_word(address & !7, word & !mask | (value << shift) & mask);
    }

    /// Writes a field of the structure at `structure`.
    pub(crate) fn put_field(&mut self, structure: u64, field: Field, value: u64) {
        self.put_bits(structure + field.offset, value, field.bits);
    }

    /// Writes `bytes` at `address`; what falls outside the range that holds `address` is dropped.
    pub fn put(&mut self, address: u64, bytes: &[u8]) {
        let Some((start, content)) = self.ranges.range_mut(..=address).next_back() else { return };
        let offset = (address - start) as usize;
        let Some(writable) = content.get_mut(offset..) else { return };
        let count = writable.len().min(bytes.len());
        writable[..count].copy_from_slice(&bytes[..count]);
    }
}

/// The parts of `runs` between `start` and `end`. A run is its first address and the first one past
/// its end; `runs` are sorted.
pub fn clipped(runs: &[(u64, u64)], start: u64, end: u64) -> Vec<(u64, u64)> {
    let first = runs.partition_point(|run| run.1 <= start);
    runs[first..].iter().take_while(|run| run.0 < end).map(|run| (run.0.max(start), run.1.min(end))).collect()
}

/// A line of /proc/PID/maps.
#[derive(Clone, Copy)]
pub struct MapLine<'a> {
    pub start: u64,
    pub bytes: u64,
    /// The text after the addresses.
    attributes: &'a str,
}

/// The line of `bytes` bytes from `start` on, with `attributes` after the addresses.
pub const fn map_line(start: u64, bytes: u64, attributes: &str) -> MapLine<'_> {
    MapLine { start, bytes, attributes }
}

/// Lines of /proc/PID/maps as text.
pub fn map_lines(lines: &[MapLine<'_>]) -> String {
    let text =
        |line: &MapLine<'_>| format!("{:x}-{:x} {}\n", line.start, line.start + line.bytes, line.attributes);
    lines.iter().map(text).collect()
}

/// Whether the page at the address `page` is absent: bit n of `absent` is for pages whose number is
/// n modulo 64.
pub fn is_absent(absent: u64, page: u64) -> bool {
    absent >> (page / PAGE % 64) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_stop_where_nothing_is_mapped() {
        let mut image = Image::default();
        assert!(image.map(0x1000, 0x1000) && image.map(0x2000, 0x10) && image.map(0x4000, 0x10));
        assert!(!image.map(0x1ff8, 0x10) && !image.map(0x0, 0x1001) && !image.map(u64::MAX, 2));
        image.put_word(0x1ff8, 7);
        image.put(0x2000, &[1, 2]);
        image.put_word(0x400c, u64::MAX);
        assert_eq!(image.word(0x1ff8), Some(7));
        assert_eq!(image.word(0x1ffc), Some(0x0201_0000_0000));
        assert_eq!(image.word(0x200c), None);
        assert_eq!(image.word(0x3000), None);
        let mut buffer = [0; 0x40];
        assert_eq!(image.read_some(0x1ff0, &mut buffer), 0x20);
        assert_eq!(image.read_some(0xfff, &mut buffer), 0);
        assert_eq!(image.read_some(u64::MAX, &mut buffer), 0);
    }
}
