//! What holds live memory: which blocks of a heap the roots reach, through which others, and what
//! each alone retains.
//!
//! [`Blocks`] is the set of live blocks. [`References::read`] reads them all once, word by word: a
//! word that is an address within a block is a reference to it, whatever its meaning.
//! [`Reachability`] adds [`Roots`] and numbers what they reach, depth first; all other blocks are
//! unreachable. [`Reachability::held`] finds the dominators: a block is held by another if all
//! paths to it pass through that one.
//!
//! ```
//! # use std::time::{Duration, Instant};
//! # use strandline_holders::{Blocks, Builder, Holder, KnownBlocks, Limits};
//! # use strandline_holders::{Reachability, References, Roots};
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
//! let limits = Limits { max_edges_bytes: 1 << 30, deadline, workers: 2 };
//! let known = KnownBlocks::default();
//! let references = References::read(&memory, &blocks, known, None, &limits, &|_| ())?;
//! let mut roots = Roots::default();
//! let stack = roots.add(blocks.find(0x1048));
//! let graph = Reachability::new(blocks, references, roots, deadline)?;
//! let held = graph.held(deadline)?;
//! assert_eq!(held.retained_by_root(stack).bytes, 64);
//! assert_eq!((held.dominator(1), held.dominator(0)), (Holder::Root(stack), Holder::Nothing));
//! assert_eq!(held.unreachable().definite.blocks, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Memory in bytes per block, with `m` references per block:
//!
//! - 4 for the blocks, and 1 + 4 `m` for the references;
//! - 8 for the search, plus 8 for each vertex on its stack (those with more than one child still to
//!   visit);
//! - 12 instead of 8 while references to descendants are found;
//! - with `t` references left that do not lead to descendants, 18 + 4.5 `t` in total when the first
//!   slice of them is transposed, and 24 after the last.
//!
//! So the peak is 17 + 4 `m` or 24, whichever is more. Roots count as blocks. The result takes 12.
//! Each block that no single root retains takes 8 more while sets of roots are found, in addition
//! to the 17 and its references, and 2 in the result; the sets themselves take a few megabytes.
//!
//! Allocations are bounded whatever the target holds: blocks are counted, references have a limit,
//! and everything else is a multiple of the two. Every step takes time in proportion to them, at
//! worst times a logarithm.
//!
//! This crate knows no process, allocator or name of a root: it reads through
//! [`Memory`](strandline_process::memory::Memory).

#![forbid(unsafe_code)]

mod arrays;
mod blocks;
mod builder;
mod directory;
mod dominators;
mod held;
mod marks;
mod outline;
mod reach;
mod references;
mod roots;
mod scan;
mod sharing;

pub use arrays::Refused;
pub use blocks::{Blocks, GRANULE_BYTES};
pub use builder::{Builder, Dropped};
pub use held::{DominatorTree, Holder, NO_ROOT, SEVERAL, Sum, Unreachable};
pub use marks::BlockSet;
pub use outline::{Node, Outline};
pub use reach::Reachability;
pub use references::References;
pub use roots::Roots;
pub use scan::{
    ExactBlocks, KnownBlocks, Limits, Outcome, Progress, TaggedBlocks, TypeWord, TypeWordSink, WordCallback,
};
pub use sharing::{MAX_ROOTS, SharedSet};
