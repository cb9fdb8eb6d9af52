//! Offsets in a perl 5.36 with ithreads on x86-64: from `sv.h`, `av.h`, `hv.h`, `cv.h`, `pad.h` and
//! `intrpvar.h`, by an `offsetof` program compiled against Debian's headers of 5.36.0.

/// Offsets in `struct interpreter`.
pub mod interpreter {
    pub const STRTAB: u64 = 144;
    pub const DEFSTASH: u64 = 192;
    pub const SV_COUNT: u64 = 240;
    pub const SV_ROOT: u64 = 248;
    pub const SV_ARENAROOT: u64 = 256;
    pub const MAIN_CV: u64 = 1800;
    pub const BODY_ROOTS: u64 = 2152;
    pub const BODY_ARENAS: u64 = 2584;
    pub const BYTES: u64 = 3768;
}

/// Bytes of an arena (`PERL_ARENA_SIZE`), and of a head (`SV`).
pub const ARENA_BYTES: u64 = 4080;
pub const HEAD_BYTES: u64 = 24;
/// Heads of an arena; the first one links the arena to the next.
pub const ARENA_HEADS: u64 = ARENA_BYTES / HEAD_BYTES;
/// Arena descriptions in an `arena_set`.
pub const SET_ARENAS: u64 = 169;

/// `svtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Type {
    Null = 0,
    Iv = 1,
    Nv = 2,
    Pv = 3,
    PvIv = 5,
    PvNv = 6,
    PvMg = 7,
    PvGv = 9,
    PvAv = 11,
    PvHv = 12,
    PvCv = 13,
}

/// The bodies of a type (`struct body_details`).
#[derive(Clone, Copy)]
pub struct BodySpec {
    pub bytes: u64,
    /// Bytes at the start of the structure that are not allocated.
    pub left_out_bytes: u64,
}

impl Type {
    /// The bodies of values of this type.
    pub const fn body(self) -> BodySpec {
        let (bytes, left_out_bytes) = match self {
            Self::Null | Self::Iv | Self::Nv => (0, 0),
            Self::Pv => (16, 16),
            Self::PvIv => (24, 16),
            Self::PvNv => (32, 16),
            Self::PvMg | Self::PvGv => (48, 0),
            Self::PvAv => (40, 0),
            Self::PvHv => (32, 0),
            Self::PvCv => (104, 0),
        };
        BodySpec { bytes, left_out_bytes }
    }
}

/// `struct xpvhv_with_aux`: its arenas have the type of the IV.
pub const HASH_WITH_AUX_BYTES: u64 = 88;
/// `HE`: its arenas have type 0.
pub const ENTRY_BYTES: u64 = 24;

/// Flags of heads.
pub mod flags {
    pub const IOK: u32 = 0x1100;
    pub const NOK: u32 = 0x2200;
    pub const POK: u32 = 0x4400;
    pub const ROK: u32 = 0x800;
    pub const GLOB: u32 = 0x8000;
    pub const PADTMP: u32 = 0x2_0000;
    pub const OOK: u32 = 0x200_0000;
    pub const READONLY: u32 = 0x800_0000;
    pub const IS_COW: u32 = 0x1000_0000;
    pub const SHARE_KEYS: u32 = 0x2000_0000;
    pub const FREE: u32 = 0xff;
}

/// Offsets in bodies, from `sv_any`: as if no leading fields were left out.
pub mod body {
    pub const CUR: u64 = 16;
    pub const LEN: u64 = 24;
    pub const FILL: u64 = 16;
    pub const MAX: u64 = 24;
    pub const ALLOC: u64 = 32;
    pub const KEYS: u64 = 16;
    pub const AUX: u64 = 32;
    pub const IV: u64 = 32;
    pub const NV: u64 = 40;
    pub const GLOB_NAME: u64 = 32;
    pub const GLOB_STASH: u64 = 40;
    pub const CODE_STASH: u64 = 32;
    pub const CODE_GLOB: u64 = 56;
    pub const CODE_PADLIST: u64 = 72;
    pub const CODE_FLAGS: u64 = 92;
    pub const CODE_DEPTH: u64 = 96;
}

/// `CvFLAGS`.
pub mod code {
    pub const CLONED: u32 = 0x40;
    pub const UNIQUE: u32 = 0x100;
}

/// `PADNAME`: text, length and flags.
pub mod padname {
    pub const BYTES: u64 = 48;
    pub const TEXT: u64 = 0;
    pub const LENGTH: u64 = 40;
    pub const FLAGS: u64 = 41;
    pub const OUTER: u8 = 1;
    pub const STATE: u8 = 2;
}

/// `specific_1stblock` of glibc's `struct pthread`.
pub const THREAD_SPECIFIC: u64 = 0x310;
