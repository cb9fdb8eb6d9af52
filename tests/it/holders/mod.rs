//! `holders`: leaked blocks, what roots retain, what pins pages.

mod blocks;
mod names;
mod rust;
