//! The structures of two lines of SBCL on x86-64, from the sources of 2.1.1 and 2.2.9
//! (gencgc-internal.h, gencgc-alloc-region.h, early-objdef.lisp, objdef.lisp). Independent
//! of the readers' tables: otherwise a mistake in those would not be found.

/// A release of SBCL whose heaps can be fabricated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SbclRelease {
    /// 2.1.1: pages count used bytes, conses are among boxed objects, regions have four words.
    V2_1_1,
    /// 2.2.9: pages count used words, conses have their own pages, regions have three words.
    V2_2_9,
}

/// All releases.
pub const SBCL_RELEASES: [SbclRelease; 2] = [SbclRelease::V2_1_1, SbclRelease::V2_2_9];

/// Kind of the objects on a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageKind {
    Boxed,
    Mixed,
    Cons,
    Unboxed,
    Code,
}

/// The type bytes of objects' headers.
pub(super) struct Widetags {
    pub bignum: u64,
    pub symbol: u64,
    pub code: u64,
    pub simple_fun: u64,
    pub closure: u64,
    pub value_cell: u64,
    pub character: u64,
    pub weak_pointer: u64,
    pub instance: u64,
    pub simple_vector: u64,
    pub bytes: u64,
    pub base_string: u64,
}

/// Words of `struct thread` (objdef.lisp), by index.
pub(super) struct ThreadWords {
    pub os_thread: u64,
    pub binding_stack_pointer: u64,
    pub alien_stack_pointer: u64,
    pub first_region: u64,
    pub region_count: u64,
    pub os_address: u64,
    pub kernel_tid: u64,
    pub alien_stack_start: u64,
    pub binding_stack_start: u64,
    pub control_stack_start: u64,
    pub control_stack_end: u64,
    pub this: u64,
    pub previous: u64,
    pub next: u64,
    pub state: u64,
    pub tls_size: u64,
    pub lisp_thread: u64,
}

/// GENCGC-PAGE-BYTES.
pub(super) const GC_PAGE_BYTES: u64 = 0x8000;
/// Bytes of a page for its conses; their mark bits follow (gc-private.h, CONS_PAGE_USABLE_BYTES): a
/// cons takes 128 bits and a mark bit (early-vm.lisp, MAX-CONSES-PER-PAGE).
pub(super) const CONS_PAGE_BYTES: u64 = GC_PAGE_BYTES * 8 / (128 + 1) * 16;
/// LARGE_OBJECT_SIZE.
pub(super) const LARGE_BYTES: u64 = 4 * GC_PAGE_BYTES;
/// SINGLE_OBJECT_FLAG of a page's type.
pub(super) const SINGLE_OBJECT: u8 = 16;

/// Tags of pointers (early-objdef.lisp): instance, list, function, and other.
pub(super) const INSTANCE: u64 = 3;
pub(super) const LIST: u64 = 7;
pub(super) const FUNCTION: u64 = 11;
pub(super) const OTHER: u64 = 15;

impl SbclRelease {
    /// Its version.
    pub fn name(self) -> &'static str {
        match self {
            Self::V2_1_1 => "2.1.1",
            Self::V2_2_9 => "2.2.9",
        }
    }

    /// The type of a page as its entry holds it.
    pub(super) fn page_type(self, kind: PageKind) -> u8 {
        match (self, kind) {
            (Self::V2_1_1, PageKind::Boxed | PageKind::Mixed | PageKind::Cons) => 1,
            (Self::V2_1_1, PageKind::Unboxed) => 2,
            (Self::V2_1_1, PageKind::Code) => 3,
            (Self::V2_2_9, PageKind::Unboxed) => 1,
            (Self::V2_2_9, PageKind::Boxed) => 2,
            (Self::V2_2_9, PageKind::Mixed) => 3,
            (Self::V2_2_9, PageKind::Cons) => 5,
            (Self::V2_2_9, PageKind::Code) => 7,
        }
    }

    /// The used part of a page as its entry holds it: bytes with a flag in bit 0, or words above
    /// such a flag.
    pub(super) fn used_field(self, bytes: u64) -> u16 {
        match self {
            Self::V2_1_1 => bytes as u16,
            Self::V2_2_9 => (bytes / 8 * 2) as u16,
        }
    }

    /// The type bytes of headers.
    pub(super) fn widetags(self) -> Widetags {
        match self {
            Self::V2_1_1 => Widetags {
                bignum: 0x11,
                symbol: 0x2d,
                code: 0x31,
                simple_fun: 0x35,
                closure: 0x39,
                value_cell: 0x45,
                character: 0x49,
                weak_pointer: 0x55,
                instance: 0x59,
                simple_vector: 0x85,
                bytes: 0x99,
                base_string: 0xe1,
            },
            Self::V2_2_9 => Widetags {
                bignum: 0x11,
                symbol: 0x2d,
                code: 0x35,
                simple_fun: 0x41,
                closure: 0x45,
                value_cell: 0x4d,
                character: 0x51,
                weak_pointer: 0x59,
                instance: 0x39,
                simple_vector: 0x89,
                bytes: 0x9d,
                base_string: 0xe1,
            },
        }
    }

    /// The words of `struct thread`.
    pub(super) fn thread_words(self) -> ThreadWords {
        match self {
            Self::V2_1_1 => ThreadWords {
                os_thread: 1,
                binding_stack_pointer: 2,
                alien_stack_pointer: 6,
                first_region: 13,
                region_count: 1,
                os_address: 17,
                kernel_tid: 18,
                alien_stack_start: 19,
                binding_stack_start: 20,
                control_stack_start: 21,
                control_stack_end: 22,
                this: 23,
                previous: 24,
                next: 25,
                state: 26,
                tls_size: 27,
                lisp_thread: 40,
            },
            Self::V2_2_9 => ThreadWords {
                os_thread: 18,
                binding_stack_pointer: 2,
                alien_stack_pointer: 6,
                first_region: 8,
                region_count: 3,
                os_address: 17,
                kernel_tid: 19,
                alien_stack_start: 20,
                binding_stack_start: 21,
                control_stack_start: 22,
                control_stack_end: 23,
                this: 24,
                previous: 25,
                next: 26,
                state: 27,
                tls_size: 29,
                lisp_thread: 142,
            },
        }
    }

    /// Words of an allocation region: free pointer, end, the last page in 2.1, start.
    pub(super) fn region_words(self) -> u64 {
        if self == Self::V2_1_1 { 4 } else { 3 }
    }

    /// Static regions: boxed, unboxed and code in 2.1; six kinds later.
    pub(super) fn static_region_count(self) -> u64 {
        if self == Self::V2_1_1 { 3 } else { 6 }
    }

    /// Index of a symbol's word that points to its name; in 2.2 its upper 16 bits hold the
    /// package's number.
    pub(super) fn symbol_name_word(self) -> u64 {
        if self == Self::V2_1_1 { 4 } else { 5 }
    }

    /// An entry of `fixedobj_pages` (gencgc-internal.h): in 2.1 four bytes of attributes and eight
    /// others, in 2.2 four others and the attributes. These begin with flags, then the spacing of
    /// objects in words.
    pub(super) fn fixedobj_entry(self, spacing_words: u8) -> Vec<u8> {
        match self {
            Self::V2_1_1 => vec![0, spacing_words, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0],
            Self::V2_2_9 => vec![0, 0, 0, 0, 0, spacing_words, 0, 0x40],
        }
    }
}
