//! Memory of classes: metaspace, and the compressed class space.
//!
//! Each class loader has chunks of both. No symbol leads to them, but the list of class loaders
//! does. The structures of chunks and of the spaces that they are part of differ by version:
//! `chunked` up to JDK 15, `elastic` from JDK 16 on (JEP 387).

mod chunked;
mod elastic;

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::time::Instant;

use strandline_process::range::AddressRange;

use super::heap::is_claimable;
use super::layout::{METASPACE_AFTER_LOADER, METASPACE_ARENAS};
use super::view::View;

/// Limit on class loaders and chunks together; beyond it, the metaspace is not read.
const MAX_VISITED: usize = 1 << 21;
/// Limit on nodes of a space; beyond it, the metaspace is not read.
const MAX_NODES: usize = 1 << 12;
/// Class loaders and chunks read between two checks of the deadline.
const READS_AT_ONCE: usize = 256;
/// Limit on reserved bytes of a space.
const MAX_RESERVED_BYTES: u64 = 1 << 40;

/// One of the two spaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Reserved ranges, in address order.
    pub ranges: Vec<AddressRange>,
    /// Used parts, in address order.
    pub used_ranges: Vec<AddressRange>,
    /// Used bytes, by HotSpot's count.
    pub used_bytes: u64,
    /// Committed bytes, by HotSpot's count.
    pub committed_bytes: u64,
}

impl Space {
    /// Sorts by address; `None` if used parts overlap, or are outside of the reserved ranges.
    fn checked(mut self) -> Option<Self> {
        self.ranges.sort_unstable();
        self.used_ranges.sort_unstable();
        let (ranges, used_ranges) = (&self.ranges, &self.used_ranges);
        let are_apart = |ranges: &[AddressRange]| ranges.windows(2).all(|pair| pair[0].end <= pair[1].start);
        let is_inside = |&used: &AddressRange| {
            let range = ranges.get(ranges.partition_point(|range| range.end <= used.start));
            range.is_some_and(|range| range.covers(used))
        };
        let is_sound = self.reserved_bytes() <= MAX_RESERVED_BYTES
            && ranges.iter().all(|range| range.start <= range.end && is_claimable(range.start, range.end))
            && are_apart(ranges)
            && are_apart(used_ranges)
            && used_ranges.iter().all(is_inside);
        is_sound.then_some(self)
    }

    fn reserved_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.len()).fold(0, u64::saturating_add)
    }
}

/// Metaspace and class space, and the share of each class loader.
#[derive(Clone, Debug, Default)]
pub struct Metaspace {
    /// Method code, constant pools and other data of classes.
    pub non_class_space: Space,
    /// Space that narrow class pointers point to; empty if these are off.
    pub class_space: Space,
    /// Shares of the class loaders, most bytes first.
    pub loaders: Vec<LoaderShare>,
}

/// The share of a class loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderShare {
    /// Address of the handle of its object; 0 for the bootstrap loader.
    pub handle: u64,
    /// Its bytes in both spaces.
    pub bytes: u64,
}

/// How the metaspace of some versions is read.
struct Format {
    /// Major versions.
    versions: RangeInclusive<u32>,
    /// Offset of the lock's address in a loader's metaspace; the loader holds the same address.
    lock: u64,
    /// Reads the chunks of a loader in one space; returns the bytes used. `None` if they are
    /// inconsistent.
    read_arena: fn(&mut Reader<'_>, arena: u64, state: &mut SpaceState) -> Option<u64>,
    /// Computes a space once all loaders are read; `None` if it is inconsistent.
    read_space: fn(SpaceState, &View<'_>) -> Option<Space>,
}

/// The known formats.
static FORMATS: [Format; 2] = [chunked::FORMAT, elastic::FORMAT];

impl Metaspace {
    /// Reads both spaces; `None` if the version is not known, if they are inconsistent, or at the
    /// deadline.
    pub fn read(view: &View<'_>, deadline: Instant) -> Option<Self> {
        let major = view.structs.major()?;
        let format = FORMATS.iter().find(|format| format.versions.contains(&major))?;
        let mut reader = Reader { view, format, visited: HashSet::new(), deadline };
        let mut states = [SpaceState::default(), SpaceState::default()];
        // A hidden class may have its own `ClassLoaderData`, with the object of its loader: it
        // counts for the loader.
        let mut loaders: HashMap<u64, LoaderShare> = HashMap::new();
        let mut at = view.static_field(&["ClassLoaderDataGraph::_head"])?;
        while at != 0 {
            reader.visit(at)?;
            let loader = view.field_address(at, &["ClassLoaderData::_class_loader"])?;
            let metaspace_at = loader.checked_add(METASPACE_AFTER_LOADER)?;
            // A loader without classes has no metaspace.
            if view.word(metaspace_at)? != 0 {
                let bytes = reader.read_loader(metaspace_at, &mut states)?;
                let handle = view.word(loader)?;
                let object = if handle == 0 { 0 } else { view.word(handle)? };
                let share = loaders.entry(object).or_insert(LoaderShare { handle, bytes: 0 });
                share.bytes = share.bytes.saturating_add(bytes);
            }
            at = view.field(at, &["ClassLoaderData::_next"])?;
        }
        let mut loaders: Vec<LoaderShare> = loaders.into_values().collect();
        let [non_class_state, class_state] = states;
        let non_class_space = (format.read_space)(non_class_state, view)?.checked()?;
        let class_space = match class_state.has_chunks {
            true => (format.read_space)(class_state, view)?.checked()?,
            false => Space::default(),
        };
        loaders.sort_by_key(|share| (std::cmp::Reverse(share.bytes), share.handle));
        Some(Self { non_class_space, class_space, loaders })
    }
}

/// State of one space while loaders are read.
#[derive(Clone, Debug, Default)]
struct SpaceState {
    /// Whether any loader has chunks in it.
    has_chunks: bool,
    /// Address of the counter of used words, in versions with one.
    counter: Option<u64>,
    /// Bytes used, by the loaders' counts.
    used_bytes: u64,
    /// Nodes (`VirtualSpaceNode`) that chunks are part of.
    nodes: HashSet<u64>,
    /// Used parts of chunks.
    used_ranges: Vec<AddressRange>,
}

/// Reads the class loaders and their chunks.
struct Reader<'a> {
    view: &'a View<'a>,
    format: &'static Format,
    /// Addresses of the class loaders and chunks that were read.
    visited: HashSet<u64>,
    deadline: Instant,
}

impl Reader<'_> {
    /// Reads the chunks of the class loader whose pointer to its metaspace is at `metaspace_at`.
    /// Returns the bytes used.
    fn read_loader(&mut self, metaspace_at: u64, states: &mut [SpaceState; 2]) -> Option<u64> {
        let metaspace = self.view.word(metaspace_at)?;
        let lock = self.view.word(metaspace_at.checked_add(8)?)?;
        if self.view.word(metaspace.checked_add(self.format.lock)?)? != lock {
            return None;
        }
        let mut bytes = 0_u64;
        for (state, offset) in states.iter_mut().zip(METASPACE_ARENAS) {
            let arena = self.view.word(metaspace.checked_add(offset)?)?;
            if arena != 0 {
                state.has_chunks = true;
                bytes = bytes.checked_add((self.format.read_arena)(self, arena, state)?)?;
            }
        }
        Some(bytes)
    }

    /// Notes a loader or a chunk. `None` if it was read before, at the limit, or at the deadline.
    fn visit(&mut self, at: u64) -> Option<()> {
        let is_late = self.visited.len().is_multiple_of(READS_AT_ONCE) && Instant::now() >= self.deadline;
        (!is_late && self.visited.len() < MAX_VISITED && self.visited.insert(at)).then_some(())
    }
}
