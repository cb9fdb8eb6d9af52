//! Studies: declared experiments. A file names subjects, axes, metrics and claims. The lab's engine
//! runs the cells; this crate judges each claim on the measured data, and makes tables and plots.
//!
//! Data flows one way: text → [`Study`] → [`Matrix`] → runs → `data::Data` →
//! claims, tables, plots. [`conduct`] drives this pipeline. This crate starts no program (the lab
//! does) and prints nothing.
//!
//! # The modules, in the order of the data
//!
//! Which study:
//! - `find` locates a study by its path or name, or among the embedded ones;
//! - `all` has every study that can be found, with the choices that apply to each;
//! - `chosen` is one study with the choices for a run, and its lab;
//! - `listing` is the list of studies, with their size and whether they can run;
//! - `confirmation` says which are too long to start unasked;
//! - `skeleton` creates a new study.
//!
//! From the text to a [`Study`]:
//! - `read` does it, by the modules below;
//! - `fields` reads TOML tables key by key, with positions, and knows nothing of studies;
//! - `parse` makes settings, subjects, axes and measurements of the tables;
//! - `parse_results` makes exclusions, claims, tables and plots;
//! - `parse_words` has the smallest parts: names, lists, patterns, scalars;
//! - `file` has the types of the result;
//! - `check` checks that names exist and agree, and that each claim can fail;
//! - `check_metrics` does so for the names of metrics;
//! - `check_shown` does so for tables and plots;
//! - `problems` collects what is wrong, with line and column;
//! - `nearest` suggests a name for a misspelt one.
//!
//! Expressions, the language of claims and derived metrics:
//! - `expression` parses and evaluates them: their functions, figures and bounds;
//! - `syntax` describes a syntax error in one line;
//! - `scan` finds what an expression reads, and bounds its time;
//! - `kinds` bounds the size of its values.
//!
//! From the study to cells that can run:
//! - `matrix` makes the cells: one choice on each axis that a subject takes;
//! - `placeholders` fills names in braces in commands and variables;
//! - `metric` has the names and sources of the metrics of a cell;
//! - `needs` decides which cells can run here, and why others cannot;
//! - `build` builds the subjects, once for each combination of placeholder values;
//! - `cell` turns a cell into a subject of the lab.
//!
//! From runs to figures:
//! - `conduct` drives it all: runs a study in its lab and judges its claims;
//! - `run` runs builds and cells through the lab's engine, and makes data of the outcomes;
//! - `extract` takes the metrics of one run from what it wrote, and trusts none of it;
//! - `data` has the samples of each metric in each cell.
//!
//! From figures to results:
//! - `claim` judges claims;
//! - `random_data` makes the data on which claims are tried before a run;
//! - `table` and `plots` make tables and plots;
//! - `labels` says how the choices of an axis are shown;
//! - `caveats` says what weakens the figures;
//! - `pages` lays them out: a study, the list of studies, a README;
//! - `result_files` writes report, plots and the results in a README.

#![forbid(unsafe_code)]

pub mod all;
mod build;
mod caveats;
mod cell;
mod check;
mod check_metrics;
mod check_shown;
pub mod chosen;
mod claim;
pub mod conduct;
pub mod confirmation;
mod data;
mod expression;
mod extract;
mod fields;
mod file;
pub mod find;
mod kinds;
mod labels;
pub mod listing;
mod matrix;
mod metric;
mod nearest;
mod needs;
pub mod pages;
mod parse;
mod parse_results;
mod parse_words;
mod placeholders;
mod plots;
mod problems;
mod random_data;
mod read;
pub mod result_files;
mod run;
mod scan;
pub mod skeleton;
mod syntax;
mod table;

pub use file::Study;
pub use matrix::Matrix;

#[cfg(test)]
mod check_tests;
#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod shown_tests;
#[cfg(test)]
mod tests;
