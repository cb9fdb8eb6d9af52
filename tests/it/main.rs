//! The one integration binary: strandline as people and scripts run it, against real processes of
//! known answer.
//!
//! A module a topic. Processes that a test starts are killed when its `Subject` is dropped, so a failing
//! test leaves nothing behind. A test that cannot run here says so by name and reason.

mod address_space;
mod bad_input;
mod cli_demo;
mod cli_doctor;
mod cli_explain;
mod cli_reclaim;
mod cli_support;
mod cli_tree;
mod cli_usage;
mod heap_mallinfo;
mod heap_trim;
mod privacy;
mod quiet_stop;
mod support;
mod synth_adopted;
