//! The file that memory over time is recorded into, and read back from. It must not look at a process, sample, or judge.
//!
//! A recording is a sequence of zstd frames; each frame holds whole lines; each line is one JSON object
//! with one field, the name of a [`Record`]. `zstd -dc FILE | jq .` shows all of it. A frame is written
//! with one `write` and carries a checksum: whatever kills the recorder costs the frame under way, and a
//! damaged frame costs only itself. `docs/recording.md` is the format's document.
//!
//! The crate looks at no process and prints nothing. Recordings may come from anybody: nothing is
//! allocated by what they claim without a bound, and a part that makes no sense becomes a caveat.

#![forbid(unsafe_code)]

mod block;
mod read;
mod record;
mod sample;
mod write;

pub use block::{Block, MAX_RUN_SAMPLES, Run};
pub use read::{Error, Reader};
pub use record::{
    Caution, CommandUsage, Ending, Exec, Header, Heartbeat, Ledger, Limit, Mark, Moment, ProcessEnd,
    ProcessStart, Record, SCHEMA,
};
pub use sample::{Column, Sample, Shown};
pub use write::{MAX_FRAME_BYTES, Writer};
