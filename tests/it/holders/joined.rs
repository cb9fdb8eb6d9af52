//! Thread-local storage that the kernel has joined with a heap.

use crate::support::subject::number;
use crate::support::{Outcome, Subject, here, skipped, strandline};

/// If brk fails, glibc maps memory for its main arena, which the kernel may join with the
/// thread-local storage of the main thread. Blocks to which only this storage refers are reachable.
#[test]
fn thread_local_storage_joined_with_a_heap_is_a_root() -> Outcome {
    let subject = Subject::start("joined_storage", &[])?;
    if subject.number("joined")? == 0 {
        skipped(here!(), "the kernel mapped the heap elsewhere");
        return Ok(());
    }
    let document = strandline::json(&["holders", "--json", &subject.pid_text()])?;
    let roots = document["roots"].as_array().ok_or("no roots")?;
    let is_storage = |name: Option<&str>| name.is_some_and(|name| name.starts_with("storage of thread"));
    let root = roots.iter().find(|root| root["kind"] == "tls" && is_storage(root["name"].as_str()));
    let held = number(root.ok_or("no storage")?, "retained_blocks")?;
    let leaked = number(&document["unreachable"], "bytes")?;
    if held == subject.number("blocks")? && leaked < 1 << 10 {
        Ok(())
    } else {
        Err(format!("{held} blocks held, {leaked} bytes leaked; {}", subject.ready).into())
    }
}
