//! The rows of SBCL.

use strandline_claims::facts::{HolderKind, State};
use strandline_claims::rows::{RowKind, RowRef};

/// Objects in use.
pub static LIVE: RowKind = RowKind::new("sbcl.live", HolderKind::Values, State::Live, "sbcl, objects in use");
/// Objects that nothing reaches.
pub static DEAD: RowKind = RowKind::new(
    "sbcl.dead",
    HolderKind::Collector,
    State::Stranded,
    "sbcl, objects that nothing reaches, not collected yet",
);
/// Objects, in use or not.
pub static ALLOCATED: RowKind = RowKind::new(
    "sbcl.allocated",
    HolderKind::Collector,
    State::Unattributed,
    "sbcl, objects, in use or not",
);
/// The unused rest of pages in use.
pub static WASTE: RowKind =
    RowKind::new("sbcl.waste", HolderKind::Collector, State::Pinned, "sbcl, unused rest of pages in use");
/// Free pages.
pub static FREE: RowKind =
    RowKind::new("sbcl.free", HolderKind::Collector, State::Stranded, "sbcl, free pages");
/// Compiled code.
pub static CODE: RowKind = RowKind::new("sbcl.code", HolderKind::Runtime, State::Live, "sbcl, compiled code");
/// Static space.
pub static STATIC: RowKind =
    RowKind::new("sbcl.static", HolderKind::Runtime, State::Live, "sbcl, static space");
/// Immobile spaces.
pub static IMMOBILE: RowKind =
    RowKind::new("sbcl.immobile", HolderKind::Runtime, State::Live, "sbcl, immobile spaces");
/// Threads' own structures.
pub static THREAD: RowKind =
    RowKind::new("sbcl.thread", HolderKind::Runtime, State::Live, "sbcl, threads' own structures");
/// The collector's tables.
pub static TABLES: RowKind =
    RowKind::new("sbcl.tables", HolderKind::Runtime, State::Live, "sbcl, the collector's tables");

/// All rows of SBCL.
pub static ROWS: [RowRef; 10] =
    [&LIVE, &DEAD, &ALLOCATED, &WASTE, &FREE, &CODE, &STATIC, &IMMOBILE, &THREAD, &TABLES];
