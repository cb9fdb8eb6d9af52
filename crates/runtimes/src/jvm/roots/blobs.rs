//! Finds the piece of code at an address, and its description of frames (`CodeBlob`,
//! code/codeBlob.hpp).

use std::collections::HashMap;

use strandline_process::memory::{half_word_at, word_at};
use strandline_process::range::AddressRange;

use crate::jvm::code::{self, SegmentMap};
use crate::jvm::view::View;

/// Limit on pieces kept.
const MAX_KEPT: usize = 1 << 18;
/// Limit on steps followed in the map of blocks: a step goes back by up to 254 segments.
const MAX_STEPS: usize = 1 << 16;
/// Value in the map for free segments (`CodeHeap::free_sentinel`, memory/heap.hpp).
const FREE: u8 = 0xff;
/// Limit on bytes of a frame.
const MAX_FRAME_BYTES: u64 = 1 << 20;

/// A piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Whether it is a method rather than a stub.
    pub is_method: bool,
    /// First instruction; places in its maps are relative to it.
    pub code: u64,
    /// First instruction at which a frame is complete.
    pub complete: u64,
    /// Bytes of a frame, including the return address.
    pub frame_bytes: u64,
    /// Address of its maps (`ImmutableOopMapSet`); 0 if it has none.
    pub maps: u64,
    /// Range of the references that its instructions use.
    pub oops: AddressRange,
}

/// Pieces of code, by address.
pub struct Blobs<'a> {
    view: View<'a>,
    places: Vec<SegmentMap>,
    known: HashMap<u64, Option<Blob>>,
}

impl<'a> Blobs<'a> {
    /// The pieces of code of a JVM.
    pub fn new(view: &View<'a>) -> Option<Self> {
        Some(Self { view: *view, places: code::places(view)?, known: HashMap::new() })
    }

    /// Returns the piece of code at `pc`.
    pub fn at(&mut self, pc: u64) -> Option<Blob> {
        let place = *self.places.iter().find(|place| place.range.contains(pc))?;
        let start = self.start(&place, pc)?;
        if let Some(known) = self.known.get(&start) {
            return *known;
        }
        let blob = self.read(start).filter(|blob| blob.code <= pc);
        if self.known.len() < MAX_KEPT {
            self.known.insert(start, blob);
        }
        blob
    }

    /// Returns the address, behind its header, of the block that contains an address
    /// (`CodeHeap::find_block_for`, memory/heap.cpp).
    fn start(&self, place: &SegmentMap, pc: u64) -> Option<u64> {
        let mut index = (pc - place.range.start) >> place.shift;
        for _ in 0..MAX_STEPS {
            match self.view.byte(place.map.checked_add(index)?)? {
                FREE => return None,
                0 => return place.range.start.checked_add(index << place.shift)?.checked_add(place.header),
                back => index = index.checked_sub(u64::from(back))?,
            }
        }
        None
    }

    fn read(&self, start: u64) -> Option<Blob> {
        let view = &self.view;
        let half = |name: &str| view.half_field(start, &[&format!("CodeBlob::{name}")]).map(u64::from);
        let place = |offset: Option<u64>| start.checked_add(offset?);
        let code = match view.field(start, &["CodeBlob::_code_begin"]) {
            Some(code) => code,
            None => place(half("_code_offset"))?,
        };
        // 32 bits up to JDK 22, 16 bits in later ones.
        let complete = match view.structs.offset("CodeBlob::_kind") {
            Some(_) => half("_frame_complete_offset")? & 0xffff,
            None => half("_frame_complete_offset")?,
        };
        let end = place(half("_size"))?;
        let frame_bytes = half("_frame_size").map(|words| (words as u32 as i32).max(0) as u64 * 8)?;
        let data = place(half("_data_offset"))?;
        // `nmethod::oops_begin` and `oops_end`. In JDK 25 they bound all of its data.
        let oops = match ["nmethod::_oops_offset", "nmethod::_metadata_offset"]
            .map(|name| view.half_field(start, &[name]))
        {
            [Some(from), Some(to)] => {
                AddressRange::new(place(Some(u64::from(from)))?, place(Some(u64::from(to)))?)
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
            complete: start.checked_add(complete)?.max(code),
            frame_bytes,
            maps: view.field(start, &["CodeBlob::_oop_maps"])?,
            oops: if is_method { oops } else { AddressRange::default() },
        })
    }

    /// Whether it is a method: by `_kind` from JDK 23 on, before that by its name (`nmethod`,
    /// `native nmethod`).
    fn is_method(&self, start: u64) -> Option<bool> {
        if let Some(kind) = self.view.byte_field(start, &["CodeBlob::_kind"]) {
            return Some(u64::from(kind) == self.view.constant(&["CodeBlobKind::Nmethod"])?);
        }
        let mut text = [0; 16];
        let got = self.view.memory.read_some(self.view.field(start, &["CodeBlob::_name"])?, &mut text);
        let text = text.get(..got)?;
        Some(text.starts_with(b"nmethod\0") || text.starts_with(b"native nmethod\0"))
    }

    /// Calls `take` with the references that a method's instructions use.
    pub fn oops(&self, blob: &Blob, take: &mut dyn FnMut(u64)) -> Option<()> {
        let mut bytes = vec![0; usize::try_from(blob.oops.len()).ok().filter(|&bytes| bytes <= 1 << 20)?];
        self.view.memory.read(blob.oops.start, &mut bytes).ok()?;
        (0..bytes.len() / 8).filter_map(|index| word_at(&bytes, index * 8)).for_each(take);
        Some(())
    }

    /// Reads the pair of a map at an index: its place in the code, and its offset.
    pub fn pair(&self, maps: u64, index: u64) -> Option<(u32, u32)> {
        let mut bytes = [0; 8];
        let header = self.view.structs.size("ImmutableOopMapSet")?;
        self.view
            .memory
            .read(maps.checked_add(header)?.checked_add(index.checked_mul(8)?)?, &mut bytes)
            .ok()?;
        Some((half_word_at(&bytes, 0)?, half_word_at(&bytes, 4)?))
    }
}
