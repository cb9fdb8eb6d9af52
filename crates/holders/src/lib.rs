//! Who holds what is live: which blocks of a heap the roots reach, through whom, and what each alone retains.
//!
//! [`Blocks`] is the set of live blocks. [`References::read`] reads them all once, word by word: a word that is an address within a
//! block is a reference to it, whatever it was meant to be. [`Graph`] adds [`Roots`] and numbers what they reach, depth first; what
//! is left is lost. [`Graph::held`] finds the dominators: a block is held by another where every way to it leads through that one.
//!
//! ```
//! # use std::time::{Duration, Instant};
//! # use strandline_holders::{Blocks, Builder, By, Graph, Known, Limits, References, Roots, Ways};
//! # struct Zeros;
//! # impl strandline_process::memory::Memory for Zeros {
//! #     fn read_some(&self, _: u64, buffer: &mut [u8]) -> usize { buffer.fill(0); buffer.len() }
//! # }
//! # fn main() -> Result<(), strandline_holders::Refused> {
//! # let memory = Zeros;
//! let mut builder = Builder::default();
//! builder.push(0x1000, 64);
//! builder.push(0x1040, 64);
//! let blocks = builder.finish()?;
//! let deadline = Instant::now() + Duration::from_secs(60);
//! let limits = Limits { edges_bytes: 1 << 30, deadline, workers: 2 };
//! let references = References::read(&memory, &blocks, Known::default(), None, &limits, &|_| ())?;
//! let mut roots = Roots::default();
//! let stack = roots.add(blocks.find(0x1048));
//! let held = Graph::new(blocks, references, roots, Ways::Shortest, deadline)?.held(deadline)?;
//! assert_eq!(held.root(stack).bytes, 64);
//! assert_eq!((held.dominator(1), held.dominator(0)), (By::Root(stack), By::Nothing));
//! assert_eq!(held.lost().definite.blocks, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Memory in bytes a block, with `m` references a block: 4 for the blocks, 1 + 4 `m` for what they refer to, and 8 while it searches, with
//! 8 more for each vertex with more than one way down that is not gone yet, or 12 while it looks which references lead to descendants;
//! 8 more for shortest ways. Of `m` are then left those `t` that do not: 18 + 4.5 `t` when the first of them are turned round, 24 when
//! the last were. So 17 and 4 for each reference, or 24, whatever is more. Roots count as blocks. What is kept is 12.
//! For each block that no single root retains 8 more while sets of roots are found, beside the 17 and what it leads to, and 2 that are kept; some
//! megabytes for the sets themselves.
//!
//! Nothing is allocated by what the target says without a bound: blocks are counted, references have a limit, and all else is a multiple
//! of the two. Every step takes time in proportion to them, at worst times a logarithm.
//!
//! This crate knows no process, no allocator and no name of a root: it reads through [`Memory`](strandline_process::memory::Memory).

#![forbid(unsafe_code)]

mod arrays;
mod blocks;
mod builder;
mod directory;
mod dominators;
mod held;
mod marks;
mod outline;
mod paths;
mod reach;
mod references;
mod roots;
mod scan;
mod sharing;

pub use arrays::Refused;
pub use blocks::{Blocks, GRANULE_BYTES};
pub use builder::{Builder, Dropped};
pub use held::{By, Held, Lost, NO_ROOT, SEVERAL, Sum};
pub use marks::Marks;
pub use outline::{Node, Outline};
pub use paths::{Path, Ways};
pub use reach::Graph;
pub use references::References;
pub use roots::Roots;
pub use scan::{Exact, Heads, Hear, Known, Limits, Outcome, Progress, Word};
pub use sharing::{MAX_ROOTS, SharedSet};
