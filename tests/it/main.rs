//! The integration tests, one binary: strandline as people and scripts run it, against real
//! processes with known answers.
//!
//! Put a new test into the module of its topic, and code shared by several files into `support`.
//! Processes that a test starts end when its `Subject` is dropped, so a failing test leaves nothing
//! behind. A test waits for a state, never for a time. A test that cannot run here calls
//! `skipped(here!(), REASON)` and passes.

mod allocators; // heaps: figures against mallinfo and the allocators' own statistics; trims and purges
mod cli; // output and errors of each verb; bad input; privacy; `top` in a terminal
mod export; // metrics, their budgets, and the files of deploy/
mod group; // the ledger of a control group
mod holders; // leaks, retained sizes, names of roots and types
mod lab; // compare, try, squeeze; Slurm
mod recording; // run, record, report; marks, probes, ledgers in a recording
mod runtimes; // CPython, Go, the JVM, Perl, SBCL, V8
mod snapshot; // address space and page states; stops, snapshots, rights
mod studies; // the verb `study`, and each study of studies/
mod support; // subjects, strandline's runs, invariants of documents, what is installed here
