//! Access to a target: stopping it unnoticed, reading it, and releasing it.

pub mod admission;
pub mod asleep;
pub mod budget;
pub mod copy;
pub mod exit_watch;
pub mod hold;
pub mod holders;
pub mod kernel_pointers;
pub mod live;
pub mod quiet;
pub mod stop;
pub mod tracee;
pub mod transfers;
