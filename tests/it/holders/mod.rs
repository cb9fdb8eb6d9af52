//! `holders`: leaked blocks, what roots retain, what pins pages.

mod blocks;
mod joined;
mod kernel;
mod large;
mod names;
mod rust;
