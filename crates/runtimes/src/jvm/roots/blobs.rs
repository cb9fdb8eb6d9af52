//! Finds the piece of code (`CodeBlob`, code/codeBlob.hpp) at an address, and its description of
//! frames.

use std::collections::HashMap;

use strandline_process::memory::half_word_at;
use strandline_process::range::AddressRange;

use crate::jvm::code::{self, SegmentMap};
use crate::jvm::view::View;

/// Limit on pieces kept; further ones are read each time.
const MAX_KEPT_BLOBS: usize = 1 << 18;
/// Limit on steps back in the map of blocks, of up to 254 segments each.
const MAX_STEPS: usize = 1 << 16;
/// Value in the map for free segments (`CodeHeap::free_sentinel`, memory/heap.hpp).
const FREE_SEGMENT: u8 = 0xff;
/// Bytes read of a name; `native nmethod` has 15 with its end.
const NAME_BYTES: usize = 16;
/// Limit on bytes of references that a method's instructions use.
const MAX_OOPS_BYTES: usize = 1 << 20;
/// Limit on bytes of a frame.
const MAX_FRAME_BYTES: u64 = 1 << 20;

/// A piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Whether it is a method rather than a stub.
    pub is_method: bool,
    /// Address of the first instruction, to which the addresses in its maps are relative.
    pub code: u64,
    /// Address of the first instruction at which a frame is complete.
    pub frame_complete: u64,
    /// Bytes of a frame, including the return address.
    pub frame_bytes: u64,
    /// Address of its maps (`ImmutableOopMapSet`); `None` if it has no maps.
    pub maps: Option<u64>,
    /// Range of the references that its instructions use; empty for a stub.
    pub oops: AddressRange,
}

/// Which map is for which instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// Offset of the instruction in the code.
    pub pc_offset: u32,
    /// Offset of the map behind all entries.
    pub map_offset: u32,
}

/// Pieces of code, by address.
pub struct Blobs<'a> {
    view: View<'a>,
    segment_maps: Vec<SegmentMap>,
    /// Pieces by their address; `None` if they could not be read.
    blobs: HashMap<u64, Option<Blob>>,
}

impl<'a> Blobs<'a> {
    /// The pieces of code of a JVM; `None` if its code cache cannot be read.
    pub fn new(view: &View<'a>) -> Option<Self> {
        Some(Self { view: *view, segment_maps: code::segment_maps(view)?, blobs: HashMap::new() })
    }

    /// Returns the piece of code at `pc`; `None` if no code is there, or it cannot be read.
    pub fn at(&mut self, pc: u64) -> Option<Blob> {
        let segment = *self.segment_maps.iter().find(|segment| segment.range.contains(pc))?;
        let start = self.blob_start(&segment, pc)?;
        if let Some(blob) = self.blobs.get(&start) {
            return *blob;
        }
        let blob = self.read(start).filter(|blob| blob.code <= pc);
        if self.blobs.len() < MAX_KEPT_BLOBS {
            self.blobs.insert(start, blob);
        }
        blob
    }

    /// Returns the address, behind its header, of the block that contains an address
    /// (`CodeHeap::find_block_for`, memory/heap.cpp).
    fn blob_start(&self, segment: &SegmentMap, pc: u64) -> Option<u64> {
        let mut index = (pc - segment.range.start) >> segment.shift;
        for _ in 0..MAX_STEPS {
            match self.view.byte(segment.map.start.checked_add(index)?)? {
                FREE_SEGMENT => return None,
                0 => {
                    let block = segment.range.start.checked_add(index << segment.shift)?;
                    return block.checked_add(segment.header_bytes);
                }
                distance => index = index.checked_sub(u64::from(distance))?,
            }
        }
        None
    }

    /// Reads the `CodeBlob` at an address.
    fn read(&self, start: u64) -> Option<Blob> {
        let view = &self.view;
        let half = |name: &str| view.half_field(start, &[&format!("CodeBlob::{name}")]).map(u64::from);
        let address = |offset: Option<u64>| start.checked_add(offset?);
        let code = match view.field(start, &["CodeBlob::_code_begin"]) {
            Some(code) => code,
            None => address(half("_code_offset"))?,
        };
        // 32 bits up to JDK 22, 16 bits in later ones.
        let frame_complete_offset = match view.structs.offset("CodeBlob::_kind") {
            Some(_) => half("_frame_complete_offset")? & 0xffff,
            None => half("_frame_complete_offset")?,
        };
        let end = address(half("_size"))?;
        let frame_bytes = half("_frame_size").map(|words| (words as u32 as i32).max(0) as u64 * 8)?;
        let data = address(half("_data_offset"))?;
        // `nmethod::oops_begin` and `oops_end`. In JDK 25 they bound all of its data.
        let oops = match ["nmethod::_oops_offset", "nmethod::_metadata_offset"]
            .map(|name| view.half_field(start, &[name]))
        {
            [Some(from), Some(to)] => {
                AddressRange::new(address(Some(u64::from(from)))?, address(Some(u64::from(to)))?)
            }
            _ => AddressRange::new(data, end),
        };
        let is_sound = start < code
            && code <= end
            && oops.end <= end
            && oops.start <= oops.end
            && frame_bytes <= MAX_FRAME_BYTES;
        let is_method = self.is_method(start)?;
        is_sound.then_some(Blob {
            is_method,
            code,
            frame_complete: code.checked_add(frame_complete_offset)?,
            frame_bytes,
            maps: Some(view.field(start, &["CodeBlob::_oop_maps"])?).filter(|&maps| maps != 0),
            oops: if is_method { oops } else { AddressRange::default() },
        })
    }

    /// Whether it is a method: by `_kind` from JDK 23 on, before that by its name (`nmethod`,
    /// `native nmethod`).
    fn is_method(&self, start: u64) -> Option<bool> {
        if let Some(kind) = self.view.byte_field(start, &["CodeBlob::_kind"]) {
            return Some(u64::from(kind) == self.view.constant(&["CodeBlobKind::Nmethod"])?);
        }
        let mut name = [0; NAME_BYTES];
        let read_bytes = self.view.memory.read_some(self.view.field(start, &["CodeBlob::_name"])?, &mut name);
        let name = name.get(..read_bytes)?;
        Some(name.starts_with(b"nmethod\0") || name.starts_with(b"native nmethod\0"))
    }

    /// Calls `visit` with the references that a method's instructions use; `None` if they cannot be
    /// read, or are too many.
    pub fn each_oop(&self, blob: &Blob, visit: &mut dyn FnMut(u64)) -> Option<()> {
        let length = usize::try_from(blob.oops.len()).ok().filter(|&bytes| bytes <= MAX_OOPS_BYTES)?;
        self.view.words(blob.oops.start, length / 8)?.into_iter().for_each(visit);
        Some(())
    }

    /// Reads the entry of the set of maps at an index (`ImmutableOopMapPair`).
    pub fn map_entry(&self, maps: u64, index: u64) -> Option<MapEntry> {
        let header = self.view.structs.size("ImmutableOopMapSet")?;
        let at = maps.checked_add(header)?.checked_add(index.checked_mul(8)?)?;
        let bytes: [u8; 8] = self.view.array(at)?;
        Some(MapEntry { pc_offset: half_word_at(&bytes, 0)?, map_offset: half_word_at(&bytes, 4)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabricated::EqualWords;
    use crate::jvm::structs::VmStructs;

    #[test]
    fn the_offset_of_a_complete_frame_counts_from_the_first_instruction() {
        let fields =
            ["code_offset", "frame_complete_offset", "size", "frame_size", "data_offset", "name", "oop_maps"];
        let fields = fields.map(|field| format!("CodeBlob::_{field}"));
        let offsets: Vec<(&str, u64)> = fields.iter().map(|field| (field.as_str(), 0)).collect();
        let structs = VmStructs::of_offsets(&offsets, &[]);
        // Every field has this value.
        let memory = EqualWords::new(0x100);
        let view = View { memory: &memory, structs: &structs };
        let blobs = Blobs { view, segment_maps: Vec::new(), blobs: HashMap::new() };
        let blob = blobs.read(0x1000).unwrap();
        assert_eq!((blob.code, blob.frame_complete), (0x1100, 0x1200));
    }
}
