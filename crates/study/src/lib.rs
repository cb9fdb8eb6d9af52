//! Studies: declared experiments. A file names subjects, axes, what is measured and what is claimed; its cells run
//! through the lab's engine, each claim is judged on what was measured, and tables and plots are made of it.
//!
//! Data flows one way: text → [`file::Study`] → [`matrix::Matrix`] → runs → [`data::Data`] → claims, tables, plots.
//! It must not run anything by itself, which is the lab's, and not print.

#![forbid(unsafe_code)]

pub mod build;
pub mod cell;
pub mod check;
mod check_metrics;
mod check_shown;
pub mod claim;
pub mod data;
pub mod diagnostics;
pub mod expression;
pub mod extract;
pub mod file;
pub mod find;
mod kinds;
pub mod matrix;
pub mod metric;
pub mod needs;
pub mod pages;
mod parse;
mod parse_results;
mod parse_words;
pub mod plots;
mod read;
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
