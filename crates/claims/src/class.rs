//! What a byte of a claimed range is, by who says so: an allocator, or a finer reader that knows better.

/// What stands on a byte of an allocator's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Payload of a chunk in use.
    Live,
    /// The allocator's word in front of a chunk in use.
    Header,
    /// The allocator's own structures.
    Metadata,
    /// A chunk in a thread's cache.
    Cached,
    /// A free chunk.
    Free,
    /// A chunk that is a mapping of its own.
    Mmapped,
    /// Not the allocator's: somebody else's bytes in between.
    Foreign,
    /// The allocator's, but not understood.
    Unread,
    /// A language runtime's, which says more of it: a slot of its palette.
    Refined(Slot),
}

/// What a language runtime calls a byte: a place in its palette ([`crate::palette::Palette`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u8);

impl Slot {
    /// The slot at `index`; `None` for more than there are.
    pub const fn new(index: u8) -> Option<Self> {
        if (index as usize) < SLOTS { Some(Self(index)) } else { None }
    }

    /// Its place in the palette.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// All slots.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SLOTS as u8).map(Self)
    }
}

/// What a runtime says of a chunk that its allocator holds in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refined {
    /// What its first bytes are.
    pub slot: Slot,
    /// How many: at most what the chunk can hold.
    pub bytes: u64,
    /// For an arena of the runtime's own: what free places in it are, and their bytes on each page that
    /// it touches.
    pub free: Option<(Slot, [u16; 2])>,
}

/// A block that is a mapping of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedBlock {
    /// First byte of the mapping.
    pub start: u64,
    /// What the allocator returned: what stands before it is the allocator's.
    pub pointer: u64,
    /// First byte behind what the program may use: what follows is the allocator's.
    pub usable_end: u64,
    /// First byte behind the mapping.
    pub end: u64,
}

/// How many slots a palette may have.
pub const SLOTS: usize = 24;
/// How many classes there are besides.
const PLAIN: usize = 8;
/// How many classes there are.
pub const CLASSES: usize = PLAIN + SLOTS;

impl Class {
    /// Its place in counters.
    #[inline]
    pub const fn index(self) -> usize {
        match self {
            Self::Live => 0,
            Self::Header => 1,
            Self::Metadata => 2,
            Self::Cached => 3,
            Self::Free => 4,
            Self::Mmapped => 5,
            Self::Foreign => 6,
            Self::Unread => 7,
            Self::Refined(slot) => PLAIN + slot.index(),
        }
    }
}
