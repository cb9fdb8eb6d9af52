//! Blocks whose addresses only the kernel has.

use std::path::Path;

use serde_json::Value;

use crate::support::subject::number;
use crate::support::{Outcome, Result, Subject, here, skipped, strandline};

const EPOLL_BLOCKS: u64 = 100;
const TIMER_BLOCKS: u64 = 50;

/// The number of blocks that the root `name` alone retains.
fn retained_blocks(document: &Value, name: &str) -> Result<u64> {
    let roots = document["roots"].as_array().ok_or("no roots")?;
    let root = roots.iter().find(|root| root["name"] == name);
    number(root.ok_or_else(|| format!("no root {name} in {roots:?}"))?, "retained_blocks")
}

#[test]
fn what_only_the_kernel_refers_to_is_not_lost() -> Outcome {
    let lists_timers = Path::new("/proc/self/timers").exists();
    if !lists_timers {
        skipped(here!(), "this kernel does not list timers (CONFIG_CHECKPOINT_RESTORE)");
    }
    let timers = if lists_timers { TIMER_BLOCKS } else { 0 };
    let subject = Subject::start("kernel_pointers", &[&EPOLL_BLOCKS.to_string(), &timers.to_string()])?;
    let document = strandline::complete(|| strandline::json(&["holders", "--json", &subject.pid_text()]))?;
    assert_eq!(number(&document["unreachable"], "blocks")?, 0, "leaked blocks");
    assert_eq!(retained_blocks(&document, "epoll data in the kernel")?, EPOLL_BLOCKS, "blocks in epoll");
    if lists_timers {
        assert_eq!(retained_blocks(&document, "timers in the kernel")?, TIMER_BLOCKS, "blocks in timers");
    }
    Ok(())
}
