//! Strings among the constants of an ELF file: names that a process points to, read from the mapped
//! file.
//!
//! A page that was never touched is not resident, and reading it in the process would make it so.
//! All addresses are those in the file, before relocation.
//!
//! The target chooses the file and may have made it to attack the reader: the number of cached
//! blocks is bounded, and inconsistent data counts as absent.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::image::{self, Segment};

/// The unit of reading and caching.
const BLOCK_BYTES: u64 = 16 << 10;
/// Maximum number of cached blocks: 8 MiB.
const MAX_BLOCKS: usize = 512;

/// The constants of a file.
#[derive(Debug)]
pub struct Constants<'a> {
    file: &'a File,
    segments: Vec<Segment>,
    /// Cached blocks, by their offset in the file.
    blocks: HashMap<u64, Vec<u8>>,
}

impl<'a> Constants<'a> {
    /// Reads the headers of an ELF-64 file; `None` if it is not one.
    pub fn parse(file: &'a File) -> Option<Self> {
        let segments = image::segments(file, &image::header(file)?)?;
        Some(Self { file, segments, blocks: HashMap::new() })
    }

    /// The string at `address` up to its zero byte; `None` if it does not end in the segment that
    /// contains the address, is longer than `max_bytes`, or is not printable ASCII.
    pub fn text(&mut self, address: u64, max_bytes: usize) -> Option<String> {
        let part = self.segments.iter().find_map(|segment| segment.part_from(address))?;
        let (mut offset, end) = (part.offset, part.offset.checked_add(part.bytes)?);
        let mut text = String::new();
        loop {
            let block_start = offset - offset % BLOCK_BYTES;
            let in_block = (offset - block_start) as usize..(end - block_start).min(BLOCK_BYTES) as usize;
            let block = self.block(block_start);
            let bytes = block.get(in_block.start..in_block.end.min(block.len()));
            let bytes = bytes.filter(|bytes| !bytes.is_empty())?;
            let read_bytes = bytes.len() as u64;
            for &byte in bytes {
                match byte {
                    0 => return Some(text),
                    b' '..=b'~' if text.len() < max_bytes => text.push(char::from(byte)),
                    _ => return None,
                }
            }
            offset = offset.checked_add(read_bytes)?;
        }
    }

    /// The block at `offset`, a multiple of its size; shorter at the end of the file.
    fn block(&mut self, offset: u64) -> &[u8] {
        if self.blocks.len() >= MAX_BLOCKS && !self.blocks.contains_key(&offset) {
            self.blocks.clear();
        }
        let file = self.file;
        self.blocks.entry(offset).or_insert_with(|| read_some(file, offset, BLOCK_BYTES as usize))
    }
}

/// Reads up to `bytes` bytes from `offset` on; fewer at the end of the file, or before a part that
/// cannot be read.
fn read_some(file: &File, offset: u64, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    let mut read_bytes = 0;
    while let Some(unread) = buffer.get_mut(read_bytes..).filter(|unread| !unread.is_empty()) {
        match file.read_at(unread, offset.saturating_add(read_bytes as u64)) {
            Ok(0) | Err(_) => break,
            Ok(count) => read_bytes += count,
        }
    }
    buffer.truncate(read_bytes);
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    static TEXT: &str = "a text among the constants of this very program\0";

    #[test]
    fn a_text_is_found_and_nothing_beyond_the_file() {
        let file = File::open("/proc/self/exe").unwrap();
        let mut constants = Constants::parse(&file).unwrap();
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let offset = position_of(&bytes, TEXT.as_bytes()) as u64;
        let is_in = |segment: &Segment| (segment.offset..segment.offset + segment.bytes).contains(&offset);
        let index = constants.segments.iter().position(is_in).unwrap();
        let segment = constants.segments[index];
        let address = offset - segment.offset + segment.start;
        assert_eq!(constants.text(address, 100).as_deref(), TEXT.strip_suffix('\0'));
        assert_eq!(constants.text(address, 10), None, "longer than wanted");
        assert_eq!(constants.text(u64::MAX - 3, 100), None);
        constants.segments[index].bytes = offset - segment.offset + TEXT.len() as u64 - 1;
        assert_eq!(constants.text(address, 100), None, "its zero byte is not in the segment");
        assert!(Constants::parse(&File::open("/etc/passwd").unwrap()).is_none());
    }

    fn position_of(bytes: &[u8], text: &[u8]) -> usize {
        bytes.windows(text.len()).position(|window| window == text).unwrap()
    }
}
