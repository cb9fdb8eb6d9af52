//! Perl's structures, x86-64, perl 5.18 to 5.42: `sv.h`, `av.h`, `hv.h`, `cv.h`, `pad.h`,
//! `intrpvar.h`.
//!
//! All offsets and flags come from `offsetof` programs that were compiled against the headers
//! themselves (`scripts/perl-offsets`): those that Debian ships for 5.32, 5.36, 5.40 and 5.42 and
//! those of builds of 5.18.2 and 5.28.1; for the other releases, the headers of tag `v5.N.0` with
//! the `config.h` of a neighbouring release. Structures of values are the same with and without
//! ithreads. Only builds with 64-bit integers, `double` and no `-DDEBUGGING` are supported; checks
//! on the structures (the count of values, the types of what variables point to) detect others.

/// Offsets in `struct interpreter` (`intrpvar.h`, with `MULTIPLICITY`), and what else differs by
/// release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The second number of the version: 36 for 5.36.x.
    pub version: u8,
    /// `Istrtab`.
    pub strtab: u64,
    /// `Isv_count`.
    pub sv_count: u64,
    /// `Isv_arenaroot`; `Isv_root` is before it.
    pub sv_arenaroot: u64,
    /// `Isv_undef`.
    pub sv_undef: u64,
    /// `Imain_cv`.
    pub main_cv: u64,
    /// `Ibody_roots`.
    pub body_roots: u64,
    /// `Ibody_arenas`.
    pub body_arenas: u64,
    /// `sizeof (struct regexp)`, the body of a REGEXP.
    pub regexp_bytes: u64,
}

impl Layout {
    /// Whether pad names are separate structures (since 5.22) instead of values.
    pub const fn has_padnames(&self) -> bool {
        self.version >= 22
    }

    /// Offset of `xpadn_flags`; `xpadn_len` is the byte before it. 5.38 inserted `xpadn_fieldinfo`
    /// before them.
    pub const fn padname_flags(&self) -> usize {
        if self.version >= 38 { 49 } else { 41 }
    }

    /// Whether `struct xpvhv_aux` is in the hash's body (since 5.36) instead of behind its table.
    pub const fn has_aux_in_body(&self) -> bool {
        self.version >= 36
    }

    /// `sizeof (struct xpvhv_with_aux)`; its arenas have the type code of the IV, which has no
    /// bodies.
    pub const fn hash_with_aux_bytes(&self) -> Option<u64> {
        match self.version {
            ..36 => None,
            36 => Some(88),
            _ => Some(144),
        }
    }

    /// The flags of `PL_sv_undef`: read-only, and since 5.22 protected.
    pub const fn undef_flags(&self) -> u32 {
        if self.version >= 22 { flags::READONLY | flags::PROTECT } else { flags::READONLY }
    }

    /// `SVf_IsCOW`: it moved to its own bit in 5.22.
    pub const fn cow_flag(&self) -> u32 {
        if self.version >= 22 { 0x1000_0000 } else { 0x1_0000 }
    }
}

/// A release; `early_offsets` are those of `Istrtab`, `Isv_count`, `Isv_arenaroot` and `Isv_undef`,
/// `late_offsets` those of `Imain_cv`, `Ibody_roots` and `Ibody_arenas`.
const fn release(version: u8, early_offsets: [u64; 4], late_offsets: [u64; 3], regexp_bytes: u64) -> Layout {
    let [strtab, sv_count, sv_arenaroot, sv_undef] = early_offsets;
    let [main_cv, body_roots, body_arenas] = late_offsets;
    Layout {
        version,
        strtab,
        sv_count,
        sv_arenaroot,
        sv_undef,
        main_cv,
        body_roots,
        body_arenas,
        regexp_bytes,
    }
}

/// All known releases; maintenance releases do not change structures.
pub const RELEASES: [Layout; 13] = [
    release(18, [136, 208, 232, 376], [1648, 1984, 2888], 144),
    release(20, [152, 240, 264, 304], [1568, 1904, 2672], 192),
    release(22, [152, 248, 264, 304], [1696, 2032, 2808], 192),
    release(24, [152, 248, 264, 304], [1664, 2000, 2784], 200),
    release(26, [152, 256, 272, 312], [1672, 2016, 2848], 200),
    release(28, [152, 256, 272, 336], [1816, 2144, 2648], 200),
    release(30, [152, 256, 272, 336], [1816, 2144, 2632], 200),
    release(32, [152, 256, 272, 336], [1816, 2168, 2616], 192),
    release(34, [144, 240, 256, 320], [1800, 2152, 2584], 192),
    release(36, [144, 240, 256, 320], [1800, 2152, 2584], 192),
    release(38, [144, 240, 256, 320], [1584, 1928, 2456], 224),
    release(40, [144, 240, 256, 320], [1584, 1928, 2328], 224),
    release(42, [144, 240, 256, 320], [1584, 1928, 2328], 224),
];

/// `sizeof (SV)`: `sv_any`, `sv_refcnt`, `sv_flags`, `sv_u`.
pub const HEAD_BYTES: u64 = 24;
/// `sv_any` in a head.
pub const HEAD_ANY: usize = 0;
/// `sv_refcnt` in a head (32 bits).
pub const HEAD_REFERENCES: usize = 8;
/// `sv_flags` in a head (32 bits).
pub const HEAD_FLAGS: usize = 12;
/// `sv_u` in a head.
pub const HEAD_U: usize = 16;
/// `SVTYPEMASK`: the type; all of its bits are set in a free head.
pub const TYPE_MASK: u32 = 0xff;

/// Flags of heads (`sv.h`), the same in all releases.
pub mod flags {
    /// `SVf_POK`, and the private `SVp_POK`: the value has a string.
    pub const POK: u32 = 0x400 | 0x4000;
    /// `SVf_ROK`: the value is a reference, whose target is stored in place of the string.
    pub const ROK: u32 = 0x800;
    /// `SVf_OK`, all flags of a value that is not undefined: `SVf_IOK`, `SVf_NOK`, `SVf_POK`,
    /// `SVf_ROK`, the private ones and GLOB.
    pub const ANY_VALUE: u32 = 0xff00;
    /// `SVp_POK`.
    pub const PRIVATE_POK: u32 = 0x4000;
    /// `SVp_SCREAM`, `SVpgv_GP`: a glob with its contents, unless it has a string.
    pub const GLOB: u32 = 0x8000;
    /// `SVs_PADTMP`: an operator's target, or with READONLY a constant.
    pub const PADTMP: u32 = 0x2_0000;
    /// `SVf_FAKE`.
    pub const FAKE: u32 = 0x100_0000;
    /// `SVf_OOK`: a string that does not start at the beginning of its buffer; a hash with
    /// `struct xpvhv_aux`.
    pub const OOK: u32 = 0x200_0000;
    /// `SVf_PROTECT`, since 5.22.
    pub const PROTECT: u32 = 0x1_0000;
    /// `SVf_READONLY`.
    pub const READONLY: u32 = 0x800_0000;
    /// `SVf_UTF8` of strings.
    pub const UTF8: u32 = 0x2000_0000;
    /// `SVphv_SHAREKEYS` of hashes: the keys are in `PL_strtab`.
    pub const SHARE_KEYS: u32 = 0x2000_0000;
    /// `SVpad_OUR` of a pad name that is a value (before 5.22).
    pub const PAD_OUR: u32 = 0x4_0000;
    /// `SVpad_STATE` of such a pad name.
    pub const PAD_STATE: u32 = 0x8000_0000;
}

/// Flags of pad names (`pad.h`, since 5.22).
pub mod padname {
    /// `PADNAMEf_OUTER`: captured from another pad.
    pub const OUTER: u8 = 1;
    /// `PADNAMEf_STATE`.
    pub const STATE: u8 = 2;
    /// `PADNAMEf_OUR`.
    pub const OUR: u8 = 16;
    /// `PADNAMEf_FIELD` (5.38): an object's field.
    pub const FIELD: u8 = 32;
    /// `sizeof (PADNAME)` at most.
    pub const BYTES: usize = 56;
}

/// `xpadl_max`; `xpadl_arr` follows it: the names, then a pad for each depth.
pub const PADLIST_MAX: u64 = 0;
/// `xpadnl_fill`; `xpadnl_alloc` follows it.
pub const PADNAMELIST_FILL: u64 = 0;

/// `xpv_cur`; `xpv_len` follows it. Bodies of short types begin here and lack the fields before it.
pub const CUR: u64 = 16;
/// `xav_fill` of an array's body; `xav_max` follows it.
pub const ARRAY_FILL: u64 = 16;
/// `xav_alloc` of an array's body.
pub const ARRAY_ALLOC: u64 = 32;
/// `xhv_keys` of a hash's body; `xhv_max` follows it.
pub const HASH_KEYS: u64 = 16;
/// `sizeof (struct xpvhv_aux)` of a hash that has it behind its table (before 5.36).
pub const AUX_BYTES: u64 = 56;
/// `xhv_aux` of a hash's body (since 5.36).
pub const HASH_AUX: u64 = 32;
/// `xhv_name_count` of `struct xpvhv_aux`; `xhv_name_u` is its first word.
pub const AUX_NAME_COUNT: u64 = 28;
/// `xobject_maxfield` of an object's body (since 5.38).
pub const OBJECT_MAXFIELD: u64 = 16;
/// `xobject_fields` of an object's body.
pub const OBJECT_FIELDS: u64 = 32;
/// `xnv_u` of a body. An NV without a body (since 5.22) points this far before its own head's
/// `sv_u`.
pub const NV_FIELD: u64 = 40;
/// `xiv_u` of a glob's body, its `xivu_namehek`; `xgv_stash` follows it.
pub const GLOB_NAME: u64 = 32;

/// Offsets in a sub's body (`struct xpvcv`).
pub mod sub {
    /// `xcv_stash`.
    pub const STASH: usize = 32;
    /// `xcv_gv_u`: its glob, or its name if NAMED is set.
    pub const GLOB: usize = 56;
    /// `xcv_padlist_u`.
    pub const PADLIST: usize = 72;
    /// `xcv_flags`.
    pub const FLAGS: usize = 92;
    /// `xcv_depth`.
    pub const DEPTH: usize = 96;
    /// `sizeof (XPVCV)`.
    pub const BYTES: usize = 104;
    /// `CVf_ISXSUB`: written in C; it has no pads.
    pub const IS_XSUB: u32 = 0x8;
    /// `CVf_CLONED`: a closure.
    pub const CLONED: u32 = 0x40;
    /// `CVf_UNIQUE`: a file, an eval or a BEGIN block.
    pub const UNIQUE: u32 = 0x100;
    /// `CVf_NAMED`: a name is stored in place of the glob.
    pub const NAMED: u32 = 0x8000;
}

/// `hek_len` of a key (32 bits).
pub const KEY_LENGTH: u64 = 4;
/// `hek_key` of a key: its bytes, and their flags after them.
pub const KEY_TEXT: u64 = 8;
/// Bytes of a key besides its text: hash, length, final NUL, flags.
pub const KEY_EXTRA_BYTES: u64 = 10;
/// `sizeof (HE)`: next, key, value.
pub const ENTRY_BYTES: u64 = 24;

/// `struct arena_set` (`sv.c`): next, size, number in use; then address, size and type of each
/// arena.
pub const ARENA_SET_HEADER_BYTES: u64 = 16;
/// `sizeof (struct arena_desc)`.
pub const ARENA_DESCRIPTION_BYTES: u64 = 24;

/// glibc's `pthread_key_t` values in a `struct pthread`: `specific_1stblock` (nptl/descr.h,
/// x86-64), pairs of sequence number and value.
pub const THREAD_SPECIFIC: u64 = 0x310;
/// Number of pairs in it.
pub const THREAD_SPECIFIC_KEYS: u64 = 32;
