//! `run`, `record`, `mark` and `report`: samples, marks, ledgers, files, pages and probes.

mod faults;
mod groups;
mod growth;
mod html;
mod ledgers;
mod limits;
mod marks;
mod own;
mod probes;
mod report;
mod tree;
mod types;
