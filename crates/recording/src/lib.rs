//! The file that memory over time is recorded into, and read back from. This crate must not read
//! a process, sample, or judge.
//!
//! A recording is a sequence of zstd frames; each frame holds whole lines; each line is one JSON
//! object with one field, the name of a [`Record`]. `zstd -dc FILE | jq .` shows all of it. A frame
//! is written with one `write` and carries a checksum: a killed recorder loses at most the current
//! frame, and damage to a frame affects only that frame. `docs/recording.md` documents the format.
//!
//! The crate prints nothing. Recordings may come from untrusted sources: all allocations are
//! bounded, and inconsistent parts become caveats.

#![forbid(unsafe_code)]

mod block;
mod group;
mod read;
mod record;
mod sample;
mod write;

pub use block::{Block, MAX_RUN_SAMPLES, Run, differences};
pub use group::{GroupBlock, GroupKill, GroupSample, GroupStart, OTHER_ROWS};
pub use read::{Error, Reader};
pub use record::{
    CaveatRecord, CommandUsage, Ending, Exec, Header, Heartbeat, Ledger, Limit, Mark, Moment, ProcessEnd,
    ProcessStart, Record, SCHEMA, cut_command,
};
pub use sample::{Column, ColumnValue, Sample};
pub use write::{FLUSH_THRESHOLD_BYTES, Writer};
