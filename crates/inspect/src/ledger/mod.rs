//! The ledger: claims on address ranges become rows that add up to the kernel's RSS.

pub mod assemble;
pub mod bss;
pub mod inputs;
mod named;
mod overlaps;
pub mod page_map;
pub mod proportional;
pub mod rows;
pub mod sharing;
mod spans;
pub mod zeros;
