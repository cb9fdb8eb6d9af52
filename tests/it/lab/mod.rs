//! `compare`, `try` and `squeeze`, here and on Slurm.

mod compare;
mod engine;
mod slurm;
mod squeeze;
mod trial;
