//! `export`: its metrics, and the files of `deploy/`.

mod deploy;
mod groups;
mod metrics;
mod pods;
