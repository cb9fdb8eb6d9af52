//! A call inside a stopped thread of an unprepared process.
//!
//! [`code`] finds the instructions that it goes through, [`inject`] makes it, [`frame`] writes the signal frames that the
//! kernel goes by, [`stack`] says how much stack the thread has for it, [`filters`] whether its seccomp filters let it through. Which thread, when, and what for is decided by who
//! uses this.

pub mod code;
pub mod filters;
pub mod frame;
pub mod inject;
pub mod stack;
