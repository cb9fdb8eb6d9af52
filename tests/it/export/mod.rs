//! `export`: its metrics, and the files of `deploy/`.

mod deploy;
mod metrics;
mod pods;
