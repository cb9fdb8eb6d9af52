//! The command line: each verb's output and errors, bad input, privacy, the terminal.

mod bad_input;
mod demo;
mod doctor;
mod documents;
mod explain;
mod privacy;
mod reclaim;
mod screens;
mod top;
mod top_tmux;
mod transcripts;
mod tree;
mod usage;
