//! Finds the memory of Perl's values: arenas of heads in a chain, arenas of bodies in sets.
//!
//! The first head of an arena holds the address of the next arena, the number of heads and flags.
//! Sets of body arenas are lists of address, size and type. Both are followed until they exceed the
//! target's resident bytes; arenas that overlap, as in a cyclic chain, are damage.

use std::ops::RangeInclusive;
use std::time::Instant;

use super::objects::{Head, Type};
use crate::batch::PageCache;
use crate::perl::layout::{self as layout, Layout, flags};
use strandline_process::pages::{PAGE_BYTES, page_of};
use strandline_process::range::AddressRange;

/// Numbers of heads that an arena may have: 170 by default (`PERL_ARENA_SIZE`), more or fewer in
/// unusual builds. The lower bound limits the list of [`head_arenas`].
pub const ARENA_SLOTS: RangeInclusive<u32> = 64..=1 << 16;
/// Lower bound on the size of a body arena; it limits the list of [`body_spaces`]. Perl's arenas
/// have 2080 to 4080 bytes.
const MIN_ARENA_BYTES: u64 = 1024;
/// Upper bound on the size of a body arena.
const MAX_ARENA_BYTES: u64 = 1 << 20;
/// Upper bound on the arenas of a set: perl's has 169.
const MAX_IN_SET: u32 = 4096;
/// Arenas read between two checks of the deadline.
const ARENAS_PER_DEADLINE_CHECK: u64 = 1024;
/// End of user memory on x86-64 with five levels of page tables (56 bits). It keeps sums small.
const MAX_ADDRESS: u64 = 1 << 56;

/// An inconsistent structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub address: u64,
    /// What is wrong there.
    pub problem: &'static str,
}

impl Damage {
    fn new(address: u64, problem: &'static str) -> Self {
        Self { address, problem }
    }
}

/// Bounds on the reading of a chain.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Resident bytes, which structures cannot exceed.
    pub resident_bytes: u64,
    /// When to stop.
    pub deadline: Instant,
}

/// An arena of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadArena {
    /// Its first byte, which is that of the head that links it.
    pub address: u64,
    /// Number of heads, including the linking one.
    pub slots: u64,
    /// Whether perl was given this memory, so that it is not a malloc chunk (`SVf_FAKE`).
    pub is_fake: bool,
}

impl HeadArena {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.slots * layout::HEAD_BYTES
    }
}

/// The arenas of heads whose chain begins at `root`, in address order.
pub fn head_arenas(pages: &mut PageCache<'_>, root: u64, bounds: &Bounds) -> Result<Vec<HeadArena>, Damage> {
    let mut arenas: Vec<HeadArena> = Vec::new();
    let mut at = root;
    let mut bytes = 0;
    while at != 0 {
        // The first head of an arena has its number of heads in place of the references.
        let first = Head::read(pages, at).ok_or(Damage::new(at, "an arena of heads cannot be read"))?;
        if !at.is_multiple_of(8) || at >= MAX_ADDRESS || !ARENA_SLOTS.contains(&first.references) {
            return Err(Damage::new(at, "no arena of heads"));
        }
        let slots = u64::from(first.references);
        let arena = HeadArena { address: at, slots, is_fake: first.has_flags(flags::FAKE) };
        bytes += arena.bytes();
        if bytes > bounds.resident_bytes {
            return Err(Damage::new(at, "arenas of heads are more than is resident"));
        }
        arenas.push(arena);
        if (arenas.len() as u64).is_multiple_of(ARENAS_PER_DEADLINE_CHECK) && Instant::now() > bounds.deadline
        {
            return Err(Damage::new(at, "no time was left for arenas of heads"));
        }
        at = first.any;
    }
    arenas.sort_unstable_by_key(|arena| arena.address);
    match arenas.windows(2).find(|pair| pair[0].address + pair[0].bytes() > pair[1].address) {
        Some(pair) => Err(Damage::new(pair[1].address, "arenas of heads overlap")),
        None => Ok(arenas),
    }
}

/// An arena of bodies of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyArena {
    /// Its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Size of one body in bytes.
    pub body_bytes: u64,
    pub body_type: BodyType,
}

impl BodyArena {
    /// Number of bodies that fit into it.
    pub fn slots(&self) -> u64 {
        self.bytes / self.body_bytes
    }

    /// Whether a body of `bytes` may start at `address`.
    pub fn has_slot_at(&self, address: u64, bytes: u64) -> bool {
        let Some(offset) = address.checked_sub(self.address) else { return false };
        bytes == self.body_bytes && offset.is_multiple_of(bytes) && offset / bytes < self.slots()
    }

    /// How many bytes of `offset..offset + bytes` are on each of the first two pages of the arena.
    pub fn bytes_by_page(&self, offset: u64, bytes: u64) -> [u64; 2] {
        split_by_page(self.address, offset, bytes)
    }
}

/// How many bytes of `offset..offset + bytes`, counted from `start`, are on the page of `start` and
/// how many behind it.
pub fn split_by_page(start: u64, offset: u64, bytes: u64) -> [u64; 2] {
    let first = (page_of(start) + PAGE_BYTES - start).saturating_sub(offset).min(bytes);
    [first, bytes - first]
}

/// Type of the bodies of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BodyType {
    /// Entries of hashes.
    Entry,
    /// Bodies of values of this type.
    Value(Type),
    /// Bodies of hashes with `struct xpvhv_aux`.
    HashWithAux,
}

impl BodyType {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Entry => "HE",
            Self::Value(kind) => kind.name(),
            Self::HashWithAux => "PVHV with aux",
        }
    }
}

/// Arenas of bodies, and the sets that list them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodySpaces {
    /// Arenas, in address order.
    pub arenas: Vec<BodyArena>,
    pub sets: Vec<AddressRange>,
}

/// The arenas of bodies in the sets that begin at `first`.
pub fn body_spaces(
    pages: &mut PageCache<'_>,
    first: u64,
    release: &Layout,
    bounds: &Bounds,
) -> Result<BodySpaces, Damage> {
    let mut spaces = BodySpaces::default();
    let mut at = first;
    let mut bytes = 0;
    while at != 0 {
        let damage = |problem| Damage::new(at, problem);
        let (next, sizes) = pages.pair(at).ok_or(damage("a set of arenas cannot be read"))?;
        // Two fields of 32 bits.
        let (size, used) = (sizes as u32, (sizes >> 32) as u32);
        if !at.is_multiple_of(8) || size == 0 || size > MAX_IN_SET || used > size {
            return Err(damage("no set of arenas"));
        }
        let set_bytes = layout::ARENA_SET_HEADER_BYTES + u64::from(size) * layout::ARENA_DESCRIPTION_BYTES;
        spaces.sets.push(AddressRange::sized(at, set_bytes));
        // Ends cyclic chains.
        bytes += set_bytes;
        if bytes > bounds.resident_bytes {
            return Err(damage("sets of arenas are more than is resident"));
        }
        for index in 0..u64::from(used) {
            let description = at + layout::ARENA_SET_HEADER_BYTES + index * layout::ARENA_DESCRIPTION_BYTES;
            let arena = read_body_arena(pages, description, release)?;
            bytes += arena.bytes;
            if bytes > bounds.resident_bytes {
                return Err(Damage::new(description, "arenas of bodies are more than is resident"));
            }
            spaces.arenas.push(arena);
        }
        if Instant::now() > bounds.deadline {
            return Err(damage("no time was left for arenas of bodies"));
        }
        at = next;
    }
    spaces.arenas.sort_unstable_by_key(|arena| arena.address);
    match spaces.arenas.windows(2).find(|pair| pair[0].address + pair[0].bytes > pair[1].address) {
        Some(pair) => Err(Damage::new(pair[1].address, "arenas of bodies overlap")),
        None => Ok(spaces),
    }
}

/// Reads the description of an arena in a set: address, size, type.
fn read_body_arena(
    pages: &mut PageCache<'_>,
    description: u64,
    release: &Layout,
) -> Result<BodyArena, Damage> {
    let unread = Damage::new(description, "a set of arenas cannot be read");
    let (address, bytes) = pages.pair(description).ok_or(unread.clone())?;
    let code = pages.word32(description + 16).ok_or(unread)?;
    let unknown = Damage::new(description, "an arena of bodies of an unknown type");
    let kind = Type::from_code(code, release).ok_or(unknown.clone())?;
    let (body_type, body_bytes) = match (kind, release.hash_with_aux_bytes()) {
        (Type::Null, _) => (BodyType::Entry, layout::ENTRY_BYTES),
        (Type::Iv, Some(bytes)) => (BodyType::HashWithAux, bytes),
        (kind, _) => (BodyType::Value(kind), kind.body_layout(release).ok_or(unknown)?.bytes),
    };
    let is_plausible = (MIN_ARENA_BYTES..=MAX_ARENA_BYTES).contains(&bytes) && address < MAX_ADDRESS - bytes;
    if address == 0 || !address.is_multiple_of(8) || !is_plausible {
        return Err(Damage::new(description, "an arena of bodies of an impossible size"));
    }
    Ok(BodyArena { address, bytes, body_bytes, body_type })
}
