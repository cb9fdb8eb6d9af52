//! The ledger: claims on address ranges become rows that add up to the kernel's RSS.

pub mod assemble;
mod named;
pub mod page_map;
pub mod proportional;
pub mod rows;
pub mod zeros;
