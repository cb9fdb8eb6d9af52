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
mod cli_tree;
mod cli_usage;
mod export;
mod export_deploy;
mod export_support;
mod heap_allocators;
mod heap_mallinfo;
mod heap_other;
mod heap_pieces;
mod heap_trim;
mod holders;
mod holders_names;
mod holders_rust;
mod lab_compare;
mod lab_engine;
mod lab_squeeze;
mod lab_study;
mod lab_study_needs;
mod lab_support;
mod lab_try;
mod max_stop;
mod photograph;
mod privacy;
mod probes;
mod quiet_stop;
mod record_faults;
mod record_growth;
mod record_ledgers;
mod record_limits;
mod record_marks;
mod record_own;
mod record_report;
mod record_support;
mod record_tree;
mod record_types;
mod report_html;
mod rights;
mod runtime_cpython;
mod runtime_go;
mod runtime_jvm;
mod runtime_perl;
mod runtime_sbcl;
mod slurm;
mod slurm_support;
mod studies;
mod study_all;
mod study_files;
mod support;
mod synth_adopted;
mod top;
mod top_support;
