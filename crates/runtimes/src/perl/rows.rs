//! The rows of Perl.

use strandline_claims::facts::{State, Stratum};
use strandline_claims::rows::{Id, RowKind};

/// String buffers in use.
pub static STRING: RowKind =
    RowKind::new("perl.string", Stratum::Values, State::Live, "perl, string buffers in use");
/// String buffers that several values share.
pub static STRING_SHARED: RowKind = RowKind::new(
    "perl.string.shared",
    Stratum::Values,
    State::Live,
    "perl, string buffers that several values share (copy-on-write), counted once",
);
/// Constants in op trees.
pub static CONSTANT: RowKind =
    RowKind::new("perl.constant", Stratum::Values, State::Live, "perl, constants in op trees");
/// Storage of arrays and hashes, and their keys.
pub static CONTAINER: RowKind = RowKind::new(
    "perl.container",
    Stratum::Values,
    State::Live,
    "perl, storage of arrays and hashes, and their keys",
);
/// Heads and bodies of values in use.
pub static ARENA: RowKind =
    RowKind::new("perl.arena", Stratum::Values, State::Live, "perl, heads and bodies of values");
/// Free places in arenas.
pub static ARENA_FREE: RowKind = RowKind::new(
    "perl.arena.free",
    Stratum::Runtime,
    State::Pinned,
    "perl, free places for heads and bodies, which perl keeps",
);
/// Buffers kept by lexicals and temporaries out of use.
pub static PAD_RETAINED: RowKind = RowKind::new(
    "perl.pad.retained",
    Stratum::Runtime,
    State::Stranded,
    "perl, buffers kept by lexicals and temporaries out of use",
);
/// Buffers kept by other variables without a value.
pub static BUFFER_RETAINED: RowKind = RowKind::new(
    "perl.buffer.retained",
    Stratum::Runtime,
    State::Stranded,
    "perl, buffers kept by other variables without a value",
);

/// All rows of Perl.
pub static ROWS: [Id; 8] =
    [&STRING, &STRING_SHARED, &CONSTANT, &CONTAINER, &ARENA, &ARENA_FREE, &PAD_RETAINED, &BUFFER_RETAINED];
