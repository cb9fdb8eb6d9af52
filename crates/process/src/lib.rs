//! One Linux process as the kernel shows it.
//!
//! Its files under /proc, its mappings and page states, the ELF objects behind them and the stacks
//! of its threads; stopping it, reading it, and making one of its threads execute a call. All of
//! this is designed to leave the process as it was, even if strandline is killed midway.
//!
//! This crate is independent of the contents of the memory, except where a thread's stack ends
//! (glibc's `struct pthread`): allocators, runtimes and the ledger are crates above this one. It
//! contains no `unsafe` and prints nothing.

#![forbid(unsafe_code)]

pub mod buffer;
pub mod c_library;
pub mod call;
pub mod constants;
pub mod control_groups;
pub mod elf;
pub mod error;
pub mod group;
pub mod host;
pub mod image;
pub mod map;
pub mod memory;
pub mod memory_spans;
pub mod modules;
pub mod namespaces;
pub mod page_cache;
pub mod pages;
pub mod procfs;
pub mod range;
pub mod resident;
pub mod rights;
pub mod shell;
pub mod smaps;
pub mod snapshot;
pub mod stacks;
pub mod target;
pub mod unwind;
pub mod work;

pub use error::Error;
