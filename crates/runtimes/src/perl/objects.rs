//! Values: head, type, and where body and buffer are.
//!
//! A head (`SV`) is 24 bytes in an arena: a pointer to its body, a reference count, flags whose
//! lowest byte is the type, and a word that points to its string, array, table or referent.

use crate::batch::PageCache;
use crate::perl::layout::{self as layout, HEAD_ANY, HEAD_FLAGS, HEAD_REFERENCES, HEAD_U, Layout, flags};
use strandline_process::memory::{half_word_at, word_at};

/// Number of types of heads, in all releases.
pub const TYPE_COUNT: usize = 18;

/// A type of value (`svtype`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Type {
    Null,
    /// `SVt_BIND`, in 5.18 only.
    Bind,
    /// `SVt_IV`, also references.
    Iv,
    Nv,
    Pv,
    Invlist,
    PvIv,
    PvNv,
    PvMg,
    Regexp,
    PvGv,
    PvLv,
    PvAv,
    PvHv,
    PvCv,
    PvFm,
    PvIo,
    /// `SVt_PVOBJ`, since 5.38.
    PvObj,
}

/// Names of the types as Devel::Peek has them, in the order of [`Type`]'s discriminants.
pub const TYPE_NAMES: [&str; TYPE_COUNT] = [
    "NULL", "BIND", "IV", "NV", "PV", "INVLIST", "PVIV", "PVNV", "PVMG", "REGEXP", "PVGV", "PVLV", "PVAV",
    "PVHV", "PVCV", "PVFM", "PVIO", "PVOBJ",
];

/// `svtype` of 5.18 (`sv.h`).
const SVTYPES_5_18: [Type; 16] = {
    use Type::*;
    [Null, Bind, Iv, Nv, Pv, PvIv, PvNv, PvMg, Regexp, PvGv, PvLv, PvAv, PvHv, PvCv, PvFm, PvIo]
};

/// `svtype` since 5.20 (`sv.h`); the last since 5.38.
const SVTYPES_5_20: [Type; 17] = {
    use Type::*;
    [Null, Iv, Nv, Pv, Invlist, PvIv, PvNv, PvMg, Regexp, PvGv, PvLv, PvAv, PvHv, PvCv, PvFm, PvIo, PvObj]
};

impl Type {
    /// Its name, as Devel::Peek has it.
    pub fn name(self) -> &'static str {
        TYPE_NAMES[self as usize]
    }

    /// The type with this number; `None` if the release has no such type.
    pub fn from_code(code: u32, release: &Layout) -> Option<Self> {
        let types = match release.version {
            ..20 => SVTYPES_5_18.as_slice(),
            20..38 => SVTYPES_5_20.split_last().map_or(&[][..], |(_, rest)| rest),
            _ => SVTYPES_5_20.as_slice(),
        };
        types.get(code as usize).copied()
    }

    /// The layout of its bodies in arenas; `None` if it has no bodies, or gets each from malloc.
    pub fn body_layout(self, release: &Layout) -> Option<BodyLayout> {
        let (bytes, pointer_bias) = match self {
            Self::Null | Self::Bind | Self::Iv | Self::PvFm => return None,
            Self::Nv => (8, layout::NV_FIELD),
            Self::Pv => (16, layout::CUR),
            Self::Invlist => (40, layout::CUR),
            Self::PvIv => (24, layout::CUR),
            Self::PvNv => (32, layout::CUR),
            Self::PvMg | Self::PvGv => (48, 0),
            Self::Regexp => (release.regexp_bytes, 0),
            Self::PvLv => (80, 0),
            Self::PvAv | Self::PvObj => (40, 0),
            Self::PvHv => (32, 0),
            Self::PvCv => (104, 0),
            Self::PvIo => (136, 0),
        };
        Some(BodyLayout { bytes, pointer_bias })
    }

    /// Whether its body has fields for the lengths of a string and of its buffer.
    pub fn can_hold_string(self) -> bool {
        matches!(
            self,
            Self::Pv | Self::PvIv | Self::PvNv | Self::PvMg | Self::PvLv | Self::PvGv | Self::Invlist
        )
    }
}

/// Layout of the bodies of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLayout {
    /// Bytes of one body.
    pub bytes: u64,
    /// Bytes from where the head points to the first byte of the body.
    pub pointer_bias: u64,
}

/// Where the body of a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyPlace {
    /// First byte.
    pub start: u64,
    /// Size.
    pub bytes: u64,
}

/// A head (`SV`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub address: u64,
    /// `sv_any`.
    pub any: u64,
    /// `sv_refcnt`.
    pub references: u32,
    /// `sv_flags`.
    pub flags: u32,
    /// `sv_u`.
    pub u: u64,
}

/// What a value refers to in addition to its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Nothing that is read.
    Plain,
    /// A string buffer at `u`, in use or not.
    String,
    Array,
    Hash,
    /// A sub or a format.
    Sub,
    /// An object of `use feature 'class'`.
    Object,
}

impl Head {
    /// Parses the head at `address` from its bytes; `None` if they are too few.
    pub fn parse(address: u64, bytes: &[u8]) -> Option<Self> {
        Some(Self {
            address,
            any: word_at(bytes, HEAD_ANY)?,
            references: half_word_at(bytes, HEAD_REFERENCES)?,
            flags: half_word_at(bytes, HEAD_FLAGS)?,
            u: word_at(bytes, HEAD_U)?,
        })
    }

    /// Reads the head at `address`; `None` if it cannot be read.
    pub fn read(pages: &mut PageCache<'_>, address: u64) -> Option<Self> {
        Self::parse(address, &pages.array::<{ layout::HEAD_BYTES as usize }>(address)?)
    }

    /// Whether no value uses it.
    pub fn is_free(&self) -> bool {
        self.flags & layout::TYPE_MASK == layout::TYPE_MASK
    }

    /// Its type; `None` if its number is unknown.
    pub fn kind(&self, release: &Layout) -> Option<Type> {
        Type::from_code(self.flags & layout::TYPE_MASK, release)
    }

    /// Whether all of `flags` are set.
    pub fn has_flags(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// Whether it has a string, public or private (`POK` or `pPOK`).
    pub fn has_string(&self) -> bool {
        self.flags & flags::POK != 0
    }

    /// Whether it has a value: a string, a number or a reference. A scalar without one is `undef`.
    pub fn has_value(&self) -> bool {
        self.flags & flags::ANY_VALUE != 0
    }

    /// The storage that is read in addition to its body.
    pub fn storage(&self, kind: Type) -> Storage {
        match kind {
            Type::PvAv => Storage::Array,
            Type::PvHv => Storage::Hash,
            Type::PvCv | Type::PvFm => Storage::Sub,
            Type::PvObj => Storage::Object,
            // A FAKE LV is a regexp in disguise; a GV or an LV may be a glob with its contents.
            Type::PvLv if self.has_flags(flags::FAKE) => Storage::Plain,
            Type::PvGv | Type::PvLv if self.flags & (flags::PRIVATE_POK | flags::GLOB) == flags::GLOB => {
                Storage::Plain
            }
            Type::Pv | Type::PvIv | Type::PvNv | Type::PvMg | Type::PvGv | Type::PvLv
                if self.u != 0 && !self.has_flags(flags::ROK) =>
            {
                Storage::String
            }
            _ => Storage::Plain,
        }
    }

    /// Where its body is; `None` if it has no body in an arena.
    pub fn body_place(&self, kind: Type, release: &Layout) -> Option<BodyPlace> {
        let body = match kind {
            Type::PvHv if release.has_aux_in_body() && self.has_flags(flags::OOK) => {
                BodyLayout { bytes: release.hash_with_aux_bytes()?, pointer_bias: 0 }
            }
            kind => kind.body_layout(release)?,
        };
        let start = self.any.wrapping_add(body.pointer_bias);
        // The number is stored in the head itself.
        let is_in_head = kind == Type::Nv && start == self.address.wrapping_add(HEAD_U as u64);
        (self.any != 0 && !is_in_head).then_some(BodyPlace { start, bytes: body.bytes })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::perl::layout::RELEASES;

    #[test]
    fn names_are_indexed_by_type() {
        let all: BTreeSet<Type> = SVTYPES_5_18.into_iter().chain(SVTYPES_5_20).collect();
        assert_eq!(all.len(), TYPE_COUNT);
        for kind in all {
            assert_eq!(format!("{kind:?}").to_uppercase(), kind.name());
        }
        for release in &RELEASES {
            assert_eq!(Type::from_code(7, release), Some(Type::PvMg));
            assert_eq!(Type::from_code(4, release) == Some(Type::Pv), release.version < 20);
            assert_eq!(Type::from_code(16, release), (release.version >= 38).then_some(Type::PvObj));
            assert_eq!(Type::from_code(17, release), None);
        }
    }

    #[test]
    fn globs_and_references_have_no_buffer() {
        let head = |flags, u| Head { flags, u, ..Head::default() };
        assert_eq!(head(flags::GLOB | 9, 8).storage(Type::PvGv), Storage::Plain);
        assert_eq!(head(flags::GLOB | flags::PRIVATE_POK | 9, 8).storage(Type::PvGv), Storage::String);
        assert_eq!(head(flags::ROK | 7, 8).storage(Type::PvMg), Storage::Plain);
        assert_eq!(head(7, 0).storage(Type::PvMg), Storage::Plain);
        assert_eq!(head(7, 16).storage(Type::PvMg), Storage::String);
    }
}
