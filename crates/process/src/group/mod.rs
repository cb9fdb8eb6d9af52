//! Control groups as the kernel shows them: which there are, what is charged to one, which
//! processes it has, and which files these use.
//!
//! Everything is read below a [`Hierarchy`], whose root a test may fabricate. Names of groups and
//! files are chosen by others and are kept as text; contents are numbers that may be wrong, huge
//! or missing. This module adds nothing up: the ledger of a group is made above it.

pub mod charge;
pub mod files;
pub mod find;
pub mod hierarchy;
pub mod kernel_log;
pub mod memory;
pub mod shared_memory;
pub mod view;

pub use find::{FoundGroups, GroupOwner};
pub use hierarchy::{Group, Hierarchy, Version};
pub use memory::Memory;
pub use view::View;
