//! The ledger: claims on address ranges become rows that add up to the kernel's RSS.

pub mod accumulator;
pub mod assemble;
pub mod class;
pub mod marks;
mod named;
pub mod page_map;
pub mod proportional;
pub mod range;
pub mod rows;
pub mod window;
pub mod zeros;
