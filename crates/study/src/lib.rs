//! Studies: declared experiments. A file names subjects, axes, metrics and claims. The lab's engine
//! runs the cells; this crate judges each claim on the measured data, and makes tables and plots.
//!
//! Data flows one way: text → [`file::Study`] → [`matrix::Matrix`] → runs → [`data::Data`] →
//! claims, tables, plots. [`conduct`] drives this pipeline. This crate starts no program (the lab
//! does) and prints nothing.

#![forbid(unsafe_code)]

pub mod all;
pub mod build;
mod caveats;
pub mod cell;
pub mod check;
mod check_metrics;
mod check_shown;
pub mod chosen;
pub mod claim;
pub mod conduct;
pub mod confirmation;
pub mod data;
pub mod expression;
pub mod extract;
pub mod fields;
pub mod file;
pub mod find;
mod kinds;
mod labels;
pub mod listing;
pub mod matrix;
pub mod metric;
mod nearest;
pub mod needs;
pub mod pages;
mod parse;
mod parse_results;
mod parse_words;
pub mod plots;
pub mod problems;
mod read;
pub mod result_files;
pub mod run;
mod scan;
pub mod skeleton;
mod syntax;
pub mod table;

#[cfg(test)]
mod check_tests;
#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod shown_tests;
#[cfg(test)]
mod tests;
