//! SBCL's structures on x86-64 Linux with threads, by release.
//!
//! Each figure names the file of SBCL's source that it is from. All were compared with the source
//! of every release from 2.1.0 to 2.1.4 and from 2.2.8 to 2.6.6, tag by tag, and tried on running
//! SBCLs 2.1.1, 2.2.9, 2.5.2 and 2.6.4 (Debian's builds). From 2.1.5 to 2.2.7 widetags, the page
//! table and symbols changed several times: these releases are not read. What moves between the
//! releases of one [`Layout`] (the slots of a thread) is found by conditions that must hold for it.

/// A release: 2.5.2 is `Release(2, 5, 2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32, pub u32);

impl Release {
    /// Parses a version as SBCL prints it: `2.2.9.debian`, `2.6.4`, `2.3.0.12-abcdef`. `None` if it
    /// does not begin with three numbers.
    pub fn parse(version: &str) -> Option<Self> {
        let mut parts = version.split(['.', '-']).map(str::parse);
        Some(Self(parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?))
    }
}

/// A release whose structures are known.
#[derive(Clone, Copy, Debug)]
pub struct KnownRelease {
    /// The release.
    pub release: Release,
    /// Its structures.
    pub layout: &'static Layout,
}

/// The release of a version, if its structures are known. A build between two releases
/// (`2.3.6.120-abcdef`, of a tree after 2.3.6) has the structures of either, so both must be laid
/// out alike.
pub fn known_release(version: &str) -> Option<KnownRelease> {
    let release = Release::parse(version)?;
    let layout = layout_of(release)?;
    let is_between = version.split(['.', '-']).nth(3).is_some_and(|part| part.parse::<u32>().is_ok());
    let next = Release(release.0, release.1, release.2.saturating_add(1));
    let changes = [HASH_TABLE_FLAGS_RAW, layout.layout_classoid.moved_in];
    let is_changed = layout_of(next) != Some(layout) || changes.contains(&next);
    (!(is_between && is_changed)).then_some(KnownRelease { release, layout })
}

/// `GENCGC-PAGE-BYTES` (`GENCGC-CARD-BYTES` in 2.1): x86-64/parms.lisp, the same in all releases.
pub const GC_PAGE_BYTES: u64 = 32768;
/// `struct page`: u32 scan start, u16 used, u8 type, i8 generation (gencgc-internal.h,
/// gencgc-impl.h).
pub const PAGE_ENTRY_BYTES: usize = 8;
/// `struct generation`: bytes_allocated, gc_trigger, bytes_consed_between_gc, then the ints num_gc
/// and number_of_gcs_before_promotion, cum_sum_bytes_allocated, the double minimum_age_before_gc
/// (gencgc.c, gencgc-internal.h, gencgc-impl.h).
pub const GENERATION_BYTES: usize = 48;
/// Generations 0 to 5, 6 for what came with the core, 7 as scratch (gencgc.c: `NUM_GENERATIONS`).
pub const GENERATIONS: usize = 8;
/// `PSEUDO_STATIC_GENERATION`.
pub const PSEUDO_STATIC: usize = 6;
/// `HIGHEST_NORMAL_GENERATION`.
pub const OLDEST: usize = 5;

/// Whether a word has the lowtag of a pointer: all four end in the bits 11, and no other lowtag
/// does (`is_lisp_pointer` in lispobj.h).
pub const fn is_pointer(word: u64) -> bool {
    word & 3 == 3
}
/// `LOWTAG_MASK` (early-objdef.lisp).
pub const LOWTAG_MASK: u64 = 15;
/// `INSTANCE_POINTER_LOWTAG`.
pub const INSTANCE_LOWTAG: u64 = 3;
/// `LIST_POINTER_LOWTAG`.
pub const LIST_LOWTAG: u64 = 7;
/// `FUN_POINTER_LOWTAG`.
pub const FUN_LOWTAG: u64 = 11;
/// `OTHER_POINTER_LOWTAG`.
pub const OTHER_LOWTAG: u64 = 15;
/// Distance from a function's tagged address to the raw one that closures jump to:
/// `FUN_RAW_ADDR_OFFSET`, two words less the lowtag (simple-fun-insts-offset 2).
pub const FUN_RAW_OFFSET: u64 = 5;

/// Bits of a page's type byte (`PAGE_TYPE_MASK` and what follows it in gc-internal.h of 2.1,
/// gencgc-internal.h, gencgc-impl.h). The mask is 15 from 2.2.2 on; before that the fourth bit is
/// `OPEN_REGION_PAGE_FLAG`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageTypes {
    /// Mask of the kind of objects; 0 is a free page.
    pub mask: u8,
    /// Flag: a single object is on the page, alone or with the pages that follow.
    pub single_object: u8,
    /// Flag: a thread allocates from the page.
    pub open_region: u8,
    /// Kind: objects without pointers.
    pub unboxed: u8,
    /// Kind: compiled code.
    pub code: u8,
}

/// How the size of an object is encoded, and where its pointers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// No header: a cons, or no object at all.
    Cons,
    /// `BOXED_NWORDS`: 23 bits of payload words, all of them pointers.
    Boxed,
    /// `SHORT_BOXED_NWORDS`: 15 bits of payload words; the first is a raw address of code.
    Closure,
    /// Encoded as a closure, with a layout in the header's upper half.
    FunInstance,
    /// 14 bits of payload words, and one more if it was hashed and moved; a layout as above.
    Instance,
    /// See [`Layout::has_sizes_of_2_2`].
    Symbol,
    /// Four words.
    Fdefn,
    /// Words in the header's upper half; bytes of boxed words in the second word's lower half.
    Code,
    /// Only within code.
    SimpleFun,
    /// Pointers: a length, then elements.
    SimpleVector,
    /// No pointers: a length, then elements.
    Vector {
        /// Bits per element.
        element_bits: u8,
        /// Elements beyond the length.
        extra_elements: u8,
    },
    /// 8 bits of payload words, no pointers.
    Unboxed,
    /// Digits counted in the header.
    Bignum,
    /// An array's header: seven words and its further dimensions.
    Array,
    /// One value that it does not keep alive, or a vector of such values if its payload is 0.
    WeakPointer,
    /// Unused memory; see [`Layout::has_sizes_of_2_2`].
    Filler,
}

/// A word of an object that holds a pointer and other bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedPointer {
    /// Index of the word.
    pub word: usize,
    /// Mask of the pointer in it.
    pub mask: u64,
}

/// A word of an object that moved in one release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedWord {
    /// Its index before.
    pub index_before: usize,
    /// The release in which it moved.
    pub moved_in: Release,
    /// Its index since.
    pub index_since: usize,
}

impl MovedWord {
    /// Its index in a release.
    pub fn index(self, release: Release) -> usize {
        if release >= self.moved_in { self.index_since } else { self.index_before }
    }
}

/// Structures that differ between releases.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// The first release with this layout.
    pub first_release: Release,
    /// The last release with this layout.
    pub last_release: Release,
    /// The bits of a page's type byte.
    pub page_types: PageTypes,
    /// Whether a page's used part is counted in bytes with a flag in bit 0; if not, in words above
    /// that flag.
    pub is_used_in_bytes: bool,
    /// Words of an allocation region (gencgc-alloc-region.h): free pointer, end, in 2.1 the last
    /// page, start.
    pub region_words: usize,
    /// Index of this layout in [`ObjectType::widetags`].
    pub widetag_index: usize,
    /// Position of the flags in a vector's header (`ARRAY_FLAGS_POSITION`).
    pub vector_flags_shift: u32,
    /// A symbol's word that points to its name (objdef.lisp).
    pub symbol_name: MaskedPointer,
    /// Word of a layout that points to the classoid.
    pub layout_classoid: MovedWord,
    /// Whether sizes are encoded as from 2.2 on: a filler's words in its header's upper half, six
    /// words for a symbol, two for a weak pointer to one value. In 2.1: a filler's words above the
    /// widetag and without the header, a symbol's in its header, four for a weak pointer.
    pub has_sizes_of_2_2: bool,
    /// `CHARACTER_WIDETAG`: an immediate, which may be the first word of a cons.
    pub character: u8,
}

/// `SINGLE_FLOAT_WIDETAG` (early-objdef.lisp): an immediate, as a character is.
pub const SINGLE_FLOAT: u8 = 0x19;
/// `UNBOUND_MARKER_WIDETAG` (early-objdef.lisp): an immediate.
pub const UNBOUND_MARKER: u8 = 0x09;
/// `flag_VectorWeak` (vector-weak-flag in early-vm.lisp).
pub const VECTOR_WEAK: u64 = 1;
/// `flag_VectorHashing` (vector-hashing-flag in early-vm.lisp).
pub const VECTOR_HASHING: u64 = 4;
/// The word of a classoid that points to its name (early-classoid.lisp).
pub const CLASSOID_NAME: usize = 2;
/// The word of a hash table that holds its flags (hash-table.lisp).
pub const HASH_TABLE_FLAGS: usize = 10;
/// Bit number of the weakness in these flags (two bits; `ht-flags-weakness` in hash-table.lisp):
/// key-and-value, key, value, key-or-value.
pub const HASH_TABLE_WEAKNESS_SHIFT: u32 = 6;
/// The release from which on these flags are raw; before it they are a fixnum.
pub const HASH_TABLE_FLAGS_RAW: Release = Release(2, 3, 7);

/// The name of strings of characters of 32 bits.
pub const CHARACTER_STRING: &str = "simple-character-string";
/// A string of bytes; the final zero byte is not in its length.
pub const BASE_STRING: ObjectKind = ObjectKind::Vector { element_bits: 8, extra_elements: 1 };

/// A vector of elements of `element_bits`, whose length counts all of them.
const fn vector(element_bits: u8) -> ObjectKind {
    ObjectKind::Vector { element_bits, extra_elements: 0 }
}

/// A type of objects with these widetags.
const fn object(widetags: [u8; 2], kind: ObjectKind, name: &'static str) -> ObjectType {
    ObjectType { widetags, kind, name }
}

/// A type of objects with a header.
#[derive(Clone, Copy, Debug)]
pub struct ObjectType {
    /// Its widetag in each of [`LAYOUTS`].
    pub widetags: [u8; 2],
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    pub name: &'static str,
}

/// All types of objects (early-objdef.lisp); no object has another widetag.
pub const OBJECT_TYPES: [ObjectType; 50] = [
    object([0x11, 0x11], ObjectKind::Bignum, "bignum"),
    object([0x15, 0x15], ObjectKind::Boxed, "ratio"),
    object([0x1d, 0x1d], ObjectKind::Unboxed, "double-float"),
    object([0x21, 0x21], ObjectKind::Boxed, "complex"),
    object([0x25, 0x25], ObjectKind::Unboxed, "complex-single-float"),
    object([0x29, 0x29], ObjectKind::Unboxed, "complex-double-float"),
    object([0x2d, 0x2d], ObjectKind::Symbol, "symbol"),
    object([0x31, 0x35], ObjectKind::Code, "code"),
    object([0x35, 0x41], ObjectKind::SimpleFun, "simple-fun"),
    object([0x39, 0x45], ObjectKind::Closure, "closure"),
    object([0x3d, 0x3d], ObjectKind::FunInstance, "funcallable-instance"),
    object([0x45, 0x4d], ObjectKind::Boxed, "value-cell"),
    object([0x4d, 0x31], ObjectKind::Unboxed, "system-area-pointer"),
    object([0x55, 0x59], ObjectKind::WeakPointer, "weak-pointer"),
    object([0x59, 0x39], ObjectKind::Instance, "instance"),
    object([0x5d, 0x5d], ObjectKind::Fdefn, "fdefn"),
    object([0x65, 0x65], ObjectKind::Unboxed, "simd-pack"),
    object([0x69, 0x69], ObjectKind::Unboxed, "simd-pack-256"),
    object([0x6d, 0x6d], ObjectKind::Filler, "filler"),
    object([0x81, 0x81], ObjectKind::Array, "simple-array"),
    object([0x85, 0x89], ObjectKind::SimpleVector, "simple-vector"),
    object([0x89, 0x8d], vector(1), "simple-bit-vector"),
    object([0x8d, 0x91], vector(2), "(unsigned-byte 2) vector"),
    object([0x91, 0x95], vector(4), "(unsigned-byte 4) vector"),
    object([0x95, 0x99], vector(8), "(unsigned-byte 7) vector"),
    object([0x99, 0x9d], vector(8), "(unsigned-byte 8) vector"),
    object([0x9d, 0xa1], vector(16), "(unsigned-byte 15) vector"),
    object([0xa1, 0xa5], vector(16), "(unsigned-byte 16) vector"),
    object([0xa5, 0xa9], vector(32), "(unsigned-byte 31) vector"),
    object([0xa9, 0xad], vector(32), "(unsigned-byte 32) vector"),
    object([0xad, 0xb1], vector(64), "unsigned fixnum vector"),
    object([0xb1, 0xb5], vector(64), "(unsigned-byte 63) vector"),
    object([0xb5, 0xb9], vector(64), "(unsigned-byte 64) vector"),
    object([0xb9, 0xbd], vector(8), "(signed-byte 8) vector"),
    object([0xbd, 0xc1], vector(16), "(signed-byte 16) vector"),
    object([0xc1, 0xc5], vector(32), "(signed-byte 32) vector"),
    object([0xc5, 0xc9], vector(64), "fixnum vector"),
    object([0xc9, 0xcd], vector(64), "(signed-byte 64) vector"),
    object([0xcd, 0xd1], vector(32), "single-float vector"),
    object([0xd1, 0xd5], vector(64), "double-float vector"),
    object([0xd5, 0xd9], vector(64), "complex-single-float vector"),
    object([0xd9, 0xdd], vector(128), "complex-double-float vector"),
    object([0xdd, 0x85], vector(0), "nil vector"),
    object([0xe1, 0xe1], BASE_STRING, "simple-base-string"),
    object([0xe5, 0xe5], vector(32), CHARACTER_STRING),
    object([0xe9, 0xe9], ObjectKind::Array, "complex-base-string"),
    object([0xed, 0xed], ObjectKind::Array, "complex-character-string"),
    object([0xf1, 0xf1], ObjectKind::Array, "complex-bit-vector"),
    object([0xf5, 0xf5], ObjectKind::Array, "complex-vector"),
    object([0xf9, 0xf9], ObjectKind::Array, "complex-array"),
];

/// All layouts.
pub const LAYOUTS: [Layout; 2] = [
    Layout {
        first_release: Release(2, 1, 0),
        last_release: Release(2, 1, 4),
        page_types: PageTypes { mask: 7, single_object: 16, open_region: 8, unboxed: 2, code: 3 },
        is_used_in_bytes: true,
        region_words: 4,
        widetag_index: 0,
        vector_flags_shift: 8,
        symbol_name: MaskedPointer { word: 4, mask: u64::MAX },
        layout_classoid: MovedWord { index_before: 3, moved_in: Release(2, 5, 7), index_since: 4 },
        has_sizes_of_2_2: false,
        character: 0x49,
    },
    Layout {
        first_release: Release(2, 2, 8),
        last_release: Release(2, 6, 6),
        page_types: PageTypes { mask: 15, single_object: 16, open_region: 32, unboxed: 1, code: 7 },
        is_used_in_bytes: false,
        region_words: 3,
        widetag_index: 1,
        vector_flags_shift: 16,
        symbol_name: MaskedPointer { word: 5, mask: 0xffff_ffff_ffff },
        layout_classoid: MovedWord { index_before: 3, moved_in: Release(2, 5, 7), index_since: 4 },
        has_sizes_of_2_2: true,
        character: 0x51,
    },
];

/// The layout of a release; `None` if it is unknown.
pub fn layout_of(release: Release) -> Option<&'static Layout> {
    LAYOUTS.iter().find(|layout| layout.first_release <= release && release <= layout.last_release)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_they_are_printed() {
        assert_eq!(Release::parse("2.2.9.debian"), Some(Release(2, 2, 9)));
        assert_eq!(Release::parse("2.3.0.12-abcdef"), Some(Release(2, 3, 0)));
        assert_eq!(Release::parse("2.6"), None);
        assert_eq!(layout_of(Release(2, 1, 1)).map(|layout| layout.region_words), Some(4));
        assert_eq!(layout_of(Release(2, 2, 0)), None);
        assert_eq!(layout_of(Release(2, 7, 0)), None);
        let release_of = |version| known_release(version).map(|known| known.release);
        assert_eq!(release_of("2.2.9.debian"), Some(Release(2, 2, 9)));
        assert_eq!(release_of("2.3.5.12-abcdef"), Some(Release(2, 3, 5)));
        assert_eq!(release_of("2.3.6"), Some(Release(2, 3, 6)));
        assert_eq!(release_of("2.3.6.120-abcdef"), None, "flags of tables change from 2.3.6 to 2.3.7");
        assert_eq!(release_of("2.5.6.3"), None, "layouts change from 2.5.6 to 2.5.7");
        assert_eq!(release_of("2.6.6.1-abcdef"), None, "the next release is not known");
        assert_eq!(release_of("2.1.4.7"), None);
    }

    #[test]
    fn each_widetag_has_one_type() {
        for layout in &LAYOUTS {
            let mut widetags = OBJECT_TYPES.map(|object_type| object_type.widetags[layout.widetag_index]);
            widetags.sort_unstable();
            assert!(widetags.is_sorted_by(|a, b| a < b));
        }
    }
}
