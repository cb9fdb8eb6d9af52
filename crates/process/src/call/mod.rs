//! A call inside a stopped thread of an unprepared process.
//!
//! [`code`] finds the instructions that a call goes through, [`inject`] makes the call, [`ending`]
//! observes its end, [`frame`] builds the signal frames that the kernel reads, [`stack`] determines
//! how much stack the thread has, [`filters`] whether its seccomp filters allow the call,
//! `handlers` which signals may run their handlers in it. The caller chooses the thread, the moment
//! and the function.

pub mod code;
mod delivery;
pub mod ending;
pub mod filters;
pub mod frame;
pub mod handlers;
pub mod inject;
pub mod stack;
