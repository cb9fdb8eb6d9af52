//! The class of each byte of a claimed range: from its allocator, or from a finer reader that knows
//! more.

/// What a byte of an allocator's range holds.
///
/// A chunk is a block with the allocator's words in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Payload of a chunk in use.
    Live,
    /// The allocator's words in front of a chunk in use.
    Header,
    /// The allocator's own structures.
    Metadata,
    /// A chunk in a thread's cache.
    Cached,
    /// A free chunk.
    Free,
    /// A chunk with its own mapping.
    Mmapped,
    /// Not the allocator's: foreign bytes in between.
    Foreign,
    /// The allocator's, but not understood.
    Unread,
    /// Memory of a language runtime, with a slot of its palette.
    Refined(Slot),
}

/// The class that a language runtime gives a byte: an index into its palette
/// ([`crate::palette::SlotTable`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u8);

impl Slot {
    /// The slot at `index`; `None` if there are fewer slots.
    pub const fn new(index: u8) -> Option<Self> {
        if (index as usize) < SLOTS { Some(Self(index)) } else { None }
    }

    /// Index in the palette.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// All slots.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SLOTS as u8).map(Self)
    }
}

/// A runtime's claim on a chunk that its allocator holds in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refinement {
    /// Class of the first bytes.
    pub slot: Slot,
    /// Number of these first bytes: at most what the chunk can hold.
    pub bytes: u64,
    /// The free slots in it, if it is an arena of the runtime.
    pub free: Option<FreeSlots>,
}

/// Free slots in an arena of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSlots {
    /// Their class.
    pub class: Slot,
    /// Their bytes on each of the pages that the arena touches: at most two.
    pub bytes_on_pages: [u16; 2],
}

/// A block with its own mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedBlock {
    /// First byte of the mapping.
    pub start: u64,
    /// The pointer that the allocator returned; the bytes before it are the allocator's.
    pub pointer: u64,
    /// First byte past what the program may use; the bytes from there on are the allocator's.
    pub usable_end: u64,
    /// First byte past the mapping.
    pub end: u64,
}

/// Maximum number of slots in a palette.
pub const SLOTS: usize = 24;
/// Number of classes other than [`Class::Refined`].
const UNREFINED_CLASSES: usize = 8;
/// Number of classes.
pub const CLASSES: usize = UNREFINED_CLASSES + SLOTS;

impl Class {
    /// Index in counters.
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
            Self::Refined(slot) => UNREFINED_CLASSES + slot.index(),
        }
    }
}
