//! The rows of Perl.

use strandline_claims::facts::{HolderKind, State};
use strandline_claims::rows::{RowKind, RowRef};

/// String buffers in use.
pub static STRING: RowKind =
    RowKind::new("perl.string", HolderKind::Values, State::Live, "perl, string buffers in use");
/// String buffers that several values share.
pub static STRING_SHARED: RowKind = RowKind::new(
    "perl.string.shared",
    HolderKind::Values,
    State::Live,
    "perl, string buffers that several values share (copy-on-write), counted once",
);
/// Constants in op trees.
pub static CONSTANT: RowKind =
    RowKind::new("perl.constant", HolderKind::Values, State::Live, "perl, constants in op trees");
/// Storage of arrays and hashes, and their keys.
pub static CONTAINER: RowKind = RowKind::new(
    "perl.container",
    HolderKind::Values,
    State::Live,
    "perl, storage of arrays and hashes, and their keys",
);
/// Heads and bodies of values in use.
pub static ARENA: RowKind =
    RowKind::new("perl.arena", HolderKind::Values, State::Live, "perl, heads and bodies of values");
/// Free places in arenas.
pub static ARENA_FREE: RowKind = RowKind::new(
    "perl.arena.free",
    HolderKind::Runtime,
    State::Pinned,
    "perl, free places for heads and bodies, which perl keeps",
);
/// Buffers kept by lexicals and temporaries out of use.
pub static PAD_RETAINED: RowKind = RowKind::new(
    "perl.pad.retained",
    HolderKind::Runtime,
    State::Stranded,
    "perl, buffers kept by lexicals and temporaries out of use",
);
/// Buffers kept by other variables without a value.
pub static BUFFER_RETAINED: RowKind = RowKind::new(
    "perl.buffer.retained",
    HolderKind::Runtime,
    State::Stranded,
    "perl, buffers kept by other variables without a value",
);

/// All rows of Perl.
pub static ROWS: [RowRef; 8] =
    [&STRING, &STRING_SHARED, &CONSTANT, &CONTAINER, &ARENA, &ARENA_FREE, &PAD_RETAINED, &BUFFER_RETAINED];
