//! A watch that this process keeps on the target pauses while the target is stopped: only one
//! thread can trace a process.

use std::fmt::Debug;
use std::sync::Arc;

/// Watches the target, for its end for example ([`strandline_process::target::exit_watch`]).
pub trait Watch: Debug + Send + Sync {
    /// Stops tracing the target. Each pause is followed by one [`Watch::resume`]; several threads
    /// may pause at once.
    fn pause(&self);
    /// Traces the target again.
    fn resume(&self);
}

/// Keeps a watch paused until it is dropped.
#[derive(Debug)]
pub(super) struct Paused(Option<Arc<dyn Watch>>);

impl Paused {
    /// Pauses `watch`, if there is one.
    pub fn begin(watch: Option<&Arc<dyn Watch>>) -> Self {
        watch.inspect(|watch| watch.pause());
        Self(watch.cloned())
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.iter().for_each(|watch| watch.resume());
    }
}
